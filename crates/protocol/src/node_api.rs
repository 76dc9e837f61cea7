//! Requests to a node over a control connection (after an accepted [`crate::hello::Hello`] with purpose `CONTROL`).
//!
//! A frame is a little-endian `u32` length and that many bytes of JSON. `PutCode` is followed by the announced number
//! of raw bytes, which are not JSON. One response frame answers each request, in order.

use serde::{Deserialize, Serialize};

use crate::api::{Grant, LeaseRequest};
use crate::error::Failure;
use crate::ids::{ChannelId, CodeHash, Incarnation, LeaseId, PublicKey, WorkerIndex};

/// No JSON frame is longer.
pub const MAX_FRAME_BYTES: u32 = 1 << 20;
/// No code is longer.
pub const MAX_CODE_BYTES: u64 = 4 << 30;

/// What a verified peer may ask. An allowance permits `Lease`; a lease token the others, on its own lease.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Request {
    /// A lease straight from this node.
    Lease(Box<LeaseRequest>),
    /// More time: the new length of the lease, from now.
    Renew {
        /// Milliseconds from now.
        duration_ms: u64,
    },
    /// The lease is no longer needed.
    Release,
    /// Whether the node has this code. If so, the workers of this lease may load it from now on.
    HasCode {
        /// SHA-256 of it.
        hash: CodeHash,
    },
    /// `length` raw bytes follow this frame; the node keeps them under their hash, and the workers of this lease may load them.
    PutCode {
        /// SHA-256 of them.
        hash: CodeHash,
        /// How many bytes follow.
        length: u64,
    },
    /// End the invocation `sequence` on `channel`, by killing its worker, now or when it begins.
    Cancel {
        /// The channel it was sent on.
        channel: ChannelId,
        /// Its sequence number.
        sequence: u32,
    },
    /// What became of a channel that broke.
    Fate {
        /// The broken channel.
        channel: ChannelId,
    },
    /// The client has given a channel up that the node may still take for open, since the network between them was cut.
    Close {
        /// The channel.
        channel: ChannelId,
    },
    /// Some of the asker's workers for another holder key, for some of its time.
    Delegate {
        /// The key that may use them.
        holder: PublicKey,
        /// The first of them, as the asker counts its own.
        first: u16,
        /// How many.
        workers: u16,
        /// Milliseconds from now; never longer than the asker has them.
        duration_ms: u64,
    },
    /// What was delegated to this key, with all that came of it. Its channels end.
    TakeBack {
        /// The key.
        holder: PublicKey,
    },
    /// Where this lease's workers find this node's socket, to use what is delegated to them. Isolated ones see it from now on.
    ShowNode,
    /// What the lease's workers print, also for a while after it is over. Waits if there is nothing yet.
    Output {
        /// From which byte on, counted from the lease's beginning.
        from: u64,
        /// How long to wait, in milliseconds; the node has a limit of its own.
        wait_ms: u32,
    },
    /// Nothing; whoever gets the answer knows that the node is there.
    Ping,
}

/// Where something was printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// Something that was printed, in one go or several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Where.
    pub stream: Stream,
    /// What, in hexadecimal.
    pub bytes: String,
    /// By which call, where the lease has that told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Printer>,
}

/// A call that printed something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Printer {
    /// On which worker.
    pub worker: WorkerIndex,
    /// Its sequence number on the worker's channel.
    pub sequence: u32,
}

/// The node's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Response {
    /// To `Lease`.
    Granted(Box<Grant>),
    /// To `Renew`: a fresh grant with a later expiry.
    Renewed(Box<Grant>),
    /// To `Delegate`: a grant of that part, for its new holder.
    Delegated(Box<Grant>),
    /// To `ShowNode`.
    Shown {
        /// The socket, as the lease's workers see it.
        path: String,
    },
    /// To `Release`, `PutCode`, `Cancel`, `Close`, `TakeBack`, `Ping`.
    Done,
    /// To `HasCode`.
    Code {
        /// Whether the node has it.
        present: bool,
    },
    /// To `Fate`.
    Fate(Fate),
    /// To `Output`: what there is; nothing after the time to wait.
    Output {
        /// The number of its first byte. More than what was asked for if that is not kept any more.
        from: u64,
        /// What was printed, in order.
        pieces: Vec<Piece>,
        /// Whether the lease is over and this was the last of it.
        over: bool,
    },
    /// To anything.
    Failed(Failure),
}

/// What became of a channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fate {
    /// Worker it led to.
    pub worker: WorkerIndex,
    /// Incarnation it led to.
    pub incarnation: Incarnation,
    /// Last sequence number that the worker began.
    pub started: u32,
    /// Last sequence number that the worker finished. Equal to `started` when it died between calls.
    pub finished: u32,
    /// Why the channel ended; none while it is alive.
    pub end: Option<End>,
}

/// Why a channel or a worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cause", rename_all = "snake_case")]
pub enum End {
    /// The worker called exit.
    Exited {
        /// Its exit status.
        status: i32,
    },
    /// The worker was killed by a signal that Dayfly did not send: a crash.
    Signalled {
        /// The signal's number.
        signal: i32,
    },
    /// Killed because a call ran past its deadline.
    Deadline,
    /// Killed because the caller cancelled a running call.
    Cancelled,
    /// The whole executor died.
    ExecutorDied,
    /// The lease expired.
    Expired,
    /// The lease was released.
    Released,
    /// The lease was revoked.
    Revoked,
    /// The client went away.
    ClientGone,
    /// The client broke the protocol.
    Violation,
    /// The lease's memory was used up.
    OutOfMemory,
    /// The part of the lease that the channel's holder had was taken back, or its time is over.
    TakenBack,
}

impl End {
    /// Number under which it is written into a shared-memory channel's header; 0 there means alive.
    pub fn to_word(self) -> u32 {
        let (kind, detail) = match self {
            Self::Exited { status } => (1, status as u32 & 0xffff),
            Self::Signalled { signal } => (2, signal as u32 & 0xffff),
            Self::Deadline => (3, 0),
            Self::Cancelled => (4, 0),
            Self::ExecutorDied => (5, 0),
            Self::Expired => (6, 0),
            Self::Released => (7, 0),
            Self::Revoked => (8, 0),
            Self::ClientGone => (9, 0),
            Self::Violation => (10, 0),
            Self::OutOfMemory => (11, 0),
            Self::TakenBack => (12, 0),
        };
        kind << 16 | detail
    }

    /// Reads [`End::to_word`]; anything unknown (the page is shared) counts as a dead executor.
    pub fn from_word(word: u32) -> Option<Self> {
        let detail = (word & 0xffff) as i32;
        Some(match word >> 16 {
            0 => return None,
            1 => Self::Exited { status: detail },
            2 => Self::Signalled { signal: detail },
            3 => Self::Deadline,
            4 => Self::Cancelled,
            6 => Self::Expired,
            7 => Self::Released,
            8 => Self::Revoked,
            9 => Self::ClientGone,
            10 => Self::Violation,
            11 => Self::OutOfMemory,
            12 => Self::TakenBack,
            _ => Self::ExecutorDied,
        })
    }
}

/// A lease as the node that holds it reports it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeldLease {
    /// Which.
    pub lease: LeaseId,
    /// Milliseconds left by the node's clock.
    pub remaining_ms: u64,
}

/// A lease that a node granted under a manager's allowance, as it reports it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DirectStart {
    /// The hello of whoever asked, in hexadecimal: who pays, under which allowance, proven by the holder's signature.
    pub hello: String,
    /// The key that uses the lease.
    pub holder: PublicKey,
    /// Workers.
    pub workers: u16,
    /// Cores of each.
    pub cores_per_worker: u16,
    /// Hot or warm.
    pub mode: crate::api::Mode,
    /// How isolated its workers are.
    pub sandbox: crate::api::Sandbox,
    /// For a container, what it runs, as in [`Grant::image`].
    #[serde(default)]
    pub image: Option<String>,
    /// Memory of all of it.
    pub memory_bytes: u64,
    /// Length from first use.
    pub duration_ms: u64,
    /// When, by the node's wall clock, milliseconds since the Unix epoch.
    pub started_at_ms: u64,
}
