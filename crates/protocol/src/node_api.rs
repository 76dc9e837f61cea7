//! Requests to a node over a control connection (after an accepted [`crate::hello::Hello`] with purpose `CONTROL`).
//!
//! A frame is a little-endian `u32` length and that many bytes of JSON. `PutCode` is followed by the announced number
//! of raw bytes, which are not JSON. The node sends one response frame for each request, in order.

use serde::{Deserialize, Serialize};

use crate::api::{Grant, HeldTerms, LeaseChange, LeaseRequest, LoanSeries};
use crate::error::Failure;
use crate::ids::{ChannelId, CodeHash, Incarnation, LeaseId, PublicKey, WorkerIndex};

/// Most bytes of a JSON frame.
pub const MAX_FRAME_BYTES: u32 = 1 << 20;
/// Most bytes of a function's code.
pub const MAX_CODE_BYTES: u64 = 4 << 30;

/// Requests of a verified peer. An allowance permits `Lease`; a lease token permits all others, on its own lease.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Request {
    /// Leases from this node directly.
    Lease(Box<LeaseRequest>),
    /// Sets the length of the lease anew.
    Renew {
        /// Length in milliseconds from now.
        duration_ms: u64,
        /// What changes besides.
        #[serde(default, skip_serializing_if = "LeaseChange::is_none")]
        change: LeaseChange,
    },
    /// Ends the lease.
    Release,
    /// Asks whether the node has this code. If so, the workers of this lease may load it from now on.
    HasCode {
        /// SHA-256 of the code.
        hash: CodeHash,
    },
    /// Uploads code: `length` raw bytes follow this frame. The node stores them under their hash, and the workers of
    /// this lease may load them.
    PutCode {
        /// SHA-256 of the code.
        hash: CodeHash,
        /// Length of the code in bytes.
        length: u64,
    },
    /// Ends the invocation `sequence` on `channel` by killing its worker, now or when the invocation begins.
    Cancel {
        /// The channel on which it was sent.
        channel: ChannelId,
        /// Sequence number of the invocation.
        sequence: u32,
    },
    /// Asks for the fate of a broken channel.
    ChannelStatus {
        /// Id of the channel.
        channel: ChannelId,
    },
    /// Closes a channel that the client has given up and that the node may consider open, because their connection was
    /// lost.
    Close {
        /// Id of the channel.
        channel: ChannelId,
    },
    /// Delegates some of the caller's workers to another holder key for a limited time.
    Delegate {
        /// The key that may use them.
        holder: PublicKey,
        /// Index of the first worker, in the caller's own numbering.
        first: u16,
        /// Number of workers.
        workers: u16,
        /// Milliseconds from now. Limited to the caller's own remaining time.
        duration_ms: u64,
    },
    /// Revokes everything delegated to this key, including further delegations, and closes the channels.
    RevokeDelegation {
        /// The delegate's key.
        holder: PublicKey,
    },
    /// Asks for the node's socket path inside the lease's workers, through which they use their delegations. Isolated
    /// workers see the socket from now on.
    NodeSocket,
    /// Asks for the output of the lease's workers, until some time after its end. Waits if there is none yet.
    Output {
        /// Offset of the first wanted byte, counted from the lease's beginning.
        from: u64,
        /// Longest wait in milliseconds. The node has a limit of its own.
        wait_ms: u32,
        /// Number of the first wanted entry of [`Response::Output`]'s `loans`, counted from the lease's beginning; absent
        /// if none is wanted. Also ends the wait when there is one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        loans_from: Option<u64>,
    },
    /// Does nothing. The response shows that the node is reachable.
    Ping,
    /// Waits until the lease starts no more calls, because it was recalled or its time is over. The response then has
    /// `is_recalled`.
    AwaitRecall {
        /// Longest wait in milliseconds. The node has a limit of its own.
        wait_ms: u32,
    },
}

/// An output stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// A piece of output, printed in one or several writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// The stream.
    pub stream: Stream,
    /// The bytes, in hexadecimal.
    pub bytes: String,
    /// The call that printed it, if the lease attributes output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Printer>,
}

/// A call, as a worker's channel numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Printer {
    /// The worker that ran it.
    pub worker: WorkerIndex,
    /// Sequence number of the call on the worker's channel.
    pub sequence: u32,
}

/// What one call had over time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallLoans {
    /// The call.
    pub by: Printer,
    /// What it owned, used, lent and borrowed.
    pub series: LoanSeries,
}

/// What measured calls that have ended had over time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedLoans {
    /// Number for the next request.
    pub next: u64,
    /// In the order of their ends.
    pub calls: Vec<CallLoans>,
}

impl EndedLoans {
    /// Whether it has no call, and no number.
    pub fn is_empty(&self) -> bool {
        self.next == 0 && self.calls.is_empty()
    }
}

/// Responses of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Response {
    /// To `Lease`: the grant.
    Granted(Box<Grant>),
    /// To `Renew`: a new grant with a later expiry.
    Renewed(Box<Grant>),
    /// To `Delegate`: a grant for the new holder.
    Delegated(Box<Grant>),
    /// To `NodeSocket`.
    NodeSocket {
        /// Path of the socket, as the lease's workers see it.
        path: String,
    },
    /// To `Release`, `PutCode`, `Cancel`, `Close`, `RevokeDelegation` and `Ping`: success.
    Done,
    /// To `HasCode`.
    Code {
        /// Whether the node has the code.
        present: bool,
    },
    /// To `ChannelStatus`.
    ChannelStatus(ChannelStatus),
    /// To `Output`: the available output, or none after the wait.
    Output {
        /// Offset of the first byte. Greater than requested if earlier output has been discarded.
        from: u64,
        /// Output in the order of printing.
        pieces: Vec<Piece>,
        /// Whether the lease has ended and all its output has been returned.
        over: bool,
        /// What measured calls that have ended lent and borrowed, if it was asked for.
        #[serde(default, skip_serializing_if = "EndedLoans::is_empty")]
        loans: EndedLoans,
    },
    /// To `AwaitRecall`.
    Recall {
        /// Whether the lease starts no more calls.
        is_recalled: bool,
    },
    /// To any request: why it failed.
    Failed(Failure),
}

/// State of a channel: how far its worker got.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelStatus {
    /// The channel's worker.
    pub worker: WorkerIndex,
    /// The worker's incarnation.
    pub incarnation: Incarnation,
    /// Sequence number of the last invocation that the worker began.
    pub started: u32,
    /// Sequence number of the last invocation that the worker finished. Equal to `started` if it died between calls.
    pub finished: u32,
    /// Why the channel ended; `None` while it is open.
    pub end: Option<End>,
}

/// Why a channel or a worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cause", rename_all = "snake_case")]
pub enum End {
    /// The worker exited by itself.
    Exited {
        /// Its exit status.
        status: i32,
    },
    /// The worker was killed by a signal that Dayfly did not send.
    Signalled {
        /// Number of the signal.
        signal: i32,
    },
    /// Killed because a call exceeded its deadline.
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
    /// The client disconnected.
    ClientGone,
    /// The client violated the protocol.
    Violation,
    /// The lease exhausted its memory.
    OutOfMemory,
    /// The delegation that the channel used was revoked or has expired.
    DelegationRevoked,
    /// Killed because it held borrowed memory that its owner needed.
    MemoryReturned,
    /// The lease was renewed with fewer workers.
    Retired,
}

impl End {
    /// Returns the word that is written into a shared-memory channel's header. There, 0 means open.
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
            Self::DelegationRevoked => (12, 0),
            Self::MemoryReturned => (13, 0),
            Self::Retired => (14, 0),
        };
        kind << 16 | detail
    }

    /// Parses [`End::to_word`]; returns `None` for 0. An unknown word means a dead executor, because any process can
    /// write to the shared page.
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
            12 => Self::DelegationRevoked,
            13 => Self::MemoryReturned,
            14 => Self::Retired,
            _ => Self::ExecutorDied,
        })
    }
}

/// A lease, as reported by its node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeldLease {
    /// Id of the lease.
    pub lease: LeaseId,
    /// Remaining milliseconds by the node's clock.
    pub remaining_ms: u64,
    /// What it holds, if a renewal has changed that. The manager may not have received the node's response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terms: Option<Box<HeldTerms>>,
}

/// A lease that a node granted under a manager's allowance, as reported by the node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DirectStart {
    /// The client's hello, in hexadecimal. The holder's signature in it proves the tenant and the allowance.
    pub hello: String,
    /// The key that may use the lease.
    pub holder: PublicKey,
    /// Number of workers.
    pub workers: u16,
    /// Cores of each worker.
    pub cores_per_worker: crate::cores::MilliCores,
    pub mode: crate::api::Mode,
    /// Isolation of its workers.
    pub sandbox: crate::api::Sandbox,
    /// For a container, the exact image, as in [`Grant::image`].
    #[serde(default)]
    pub image: Option<String>,
    /// Memory of the whole lease in bytes.
    pub memory_bytes: u64,
    /// Length in milliseconds from first use.
    pub duration_ms: u64,
    /// Time of the grant by the node's wall clock, in milliseconds since the Unix epoch.
    pub started_at_ms: u64,
}
