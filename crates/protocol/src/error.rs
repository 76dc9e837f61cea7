//! Stable numbers and names for everything that can go wrong where a user may see it.

use serde::{Deserialize, Serialize};

use crate::bounds::MAX_MESSAGE_BYTES;
use crate::exception::Exception;
use crate::text;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $slug:literal, $http:literal, $retry:ident;)*) => {
        /// What went wrong. Numbers and names never change their meaning; docs/errors.md has a section for each.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
        #[serde(rename_all = "snake_case")]
        #[repr(u16)]
        pub enum Code {
            $($(#[$doc])* $name = $number,)*
        }

        impl Code {
            /// Every code there is.
            pub const ALL: &'static [Code] = &[$(Code::$name),*];

            /// The code with this wire number.
            pub fn from_wire(number: u16) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }

            /// Its name, as in JSON and in the documentation.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $slug,)* }
            }

            /// The HTTP status under which the manager reports it.
            pub fn http_status(self) -> u16 {
                match self { $(Self::$name => $http,)* }
            }

            /// Whether the same request may succeed later or elsewhere, unchanged, without running anything twice.
            pub fn retry(self) -> Retry {
                match self { $(Self::$name => Retry::$retry,)* }
            }
        }
    };
}

/// What a caller may do about an error without asking anybody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// The request itself must change.
    Never,
    /// The same request may succeed later.
    Later,
    /// The same request may succeed at once on another worker or node; nothing was executed.
    Elsewhere,
    /// It may have been executed: only an idempotent call may be repeated.
    IfIdempotent,
}

codes! {
    /// The request is malformed or contradicts itself.
    InvalidRequest = 1, "invalid_request", 400, Never;
    /// No such lease, node, worker, function or image.
    NotFound = 2, "not_found", 404, Never;
    /// The token, its signature, its holder's signature or the bearer is not accepted.
    Unauthorized = 3, "unauthorized", 401, Never;
    /// The lease or its token has expired.
    LeaseExpired = 4, "lease_expired", 410, Never;
    /// The lease was released by its holder or revoked by an operator.
    LeaseEnded = 5, "lease_ended", 410, Never;
    /// No node has the wanted cores, memory or workers free.
    NoCapacity = 6, "no_capacity", 503, Later;
    /// The request asks for more than the site's policy or any node could ever give.
    TooLarge = 7, "too_large", 422, Never;
    /// Client and server speak different wire versions.
    VersionMismatch = 8, "version_mismatch", 426, Never;
    /// Client and worker run different Python or cloudpickle versions, or the node has no Python at all.
    PythonMismatch = 9, "python_mismatch", 422, Never;
    /// The executor could not be started.
    ExecutorFailed = 10, "executor_failed", 502, Later;
    /// Another channel is already open to this worker.
    WorkerBusy = 11, "worker_busy", 409, Later;
    /// The hello was seen before, or its clock is too far from the node's.
    Replayed = 12, "replayed", 401, Never;
    /// The transport is not available here or not allowed by site policy.
    TransportRefused = 13, "transport_refused", 422, Never;
    /// The code could not be loaded.
    LoadFailed = 14, "load_failed", 422, Never;
    /// The code's bytes do not have the hash they were announced with.
    HashMismatch = 15, "hash_mismatch", 400, Never;
    /// The function reported an error.
    FunctionError = 16, "function_error", 500, Never;
    /// The function's output did not fit into its room.
    OutputOverflow = 17, "output_overflow", 500, Never;
    /// The worker died during the call: it may have been executed.
    MaybeExecuted = 18, "maybe_executed", 502, IfIdempotent;
    /// The worker died before the call began: it was not executed.
    NotExecuted = 19, "not_executed", 502, Elsewhere;
    /// The call ran past its deadline and was ended.
    DeadlineExceeded = 20, "deadline_exceeded", 504, IfIdempotent;
    /// The worker answered that it cannot run just now.
    Rejected = 21, "rejected", 503, Elsewhere;
    /// The state that the call depends on died with its worker.
    StateLost = 22, "state_lost", 409, Never;
    /// The manager or node cannot be reached.
    Unreachable = 23, "unreachable", 503, Later;
    /// The wait was ended by the caller's own time limit.
    TimedOut = 24, "timed_out", 504, Later;
    /// The store could not write (disk full, corrupt).
    StoreFailed = 25, "store_failed", 507, Later;
    /// The address is already in use.
    AddressInUse = 26, "address_in_use", 500, Never;
    /// The manager's ownership of the node has passed to another.
    StaleEpoch = 27, "stale_epoch", 409, Elsewhere;
    /// Cancelled by the caller.
    Cancelled = 28, "cancelled", 409, Never;
    /// A payload is larger than the channel or the lease allows.
    PayloadTooLarge = 29, "payload_too_large", 413, Never;
    /// The peer broke the protocol.
    ProtocolViolation = 30, "protocol_violation", 400, Never;
    /// A fault of Dayfly itself.
    Internal = 31, "internal", 500, Later;
    /// The function index is not resolved on this channel.
    UnknownFunction = 32, "unknown_function", 422, Never;
    /// Memory for inputs or outputs is used up.
    OutOfMemory = 33, "out_of_memory", 507, Later;
    /// The thing was inherited through a fork and belongs to the parent process.
    Forked = 34, "forked", 500, Never;
    /// The tenant has no budget or quota left for it, or is suspended.
    QuotaExceeded = 35, "quota_exceeded", 429, Later;
    /// Whoever asks is known, and may not do this.
    Forbidden = 36, "forbidden", 403, Never;
    /// A rank of the group died or fell silent.
    RankLost = 37, "rank_lost", 502, Never;
    /// The ranks of a group did not call the same collective operation, or not with arguments that fit together.
    Mismatch = 38, "mismatch", 409, Never;
    /// A message is longer than the room that its receiver has for it.
    Truncated = 39, "truncated", 400, Never;
    /// A task that this one was to come after did not end well.
    DependencyFailed = 40, "dependency_failed", 424, Never;
    /// The node still builds the environment that the workers are to have.
    EnvironmentBuilding = 41, "environment_building", 503, Later;
    /// The environment that the workers are to have cannot be built.
    EnvironmentFailed = 42, "environment_failed", 422, Never;
    /// The call ended well, and its result cannot be made where it was fetched.
    ResultUnreadable = 43, "result_unreadable", 422, Never;
    /// Others can enter the state directory, and it is not the daemon's to close.
    StateExposed = 44, "state_exposed", 500, Never;
    /// The store lacks what it had before: it is empty, older than its mark, or another one.
    StoreLost = 45, "store_lost", 500, Never;
    /// The lease must be isolated, and the node's machine lets it isolate nothing.
    IsolationUnavailable = 46, "isolation_unavailable", 422, Never;
    /// Another tenant may have made the result, and it holds more than data.
    Untrusted = 47, "untrusted", 422, Never;
    /// The beginning or end of an id is that of several.
    Ambiguous = 48, "ambiguous", 409, Never;
}

/// An error as it travels: code and a sentence that says what happened and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema, thiserror::Error)]
#[error("{message} [{}]", code.name())]
pub struct Failure {
    /// What went wrong.
    pub code: Code,
    /// What happened and what to do about it.
    pub message: String,
    /// What the function raised, if that is the failure. Only where one task is asked for; lists leave it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exception: Option<Box<Exception>>,
}

impl Failure {
    /// A failure with a sentence.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            exception: None,
        }
    }

    /// The failure of a call whose function raised.
    pub fn raised(exception: Exception) -> Self {
        Self {
            exception: Some(Box::new(exception.clone())),
            ..Self::new(
                Code::FunctionError,
                format!("the function raised {}", exception.summary()),
            )
        }
    }

    /// The same, from a peer that may send any length, cut to what is kept.
    pub fn bounded(self) -> Self {
        Self {
            code: self.code,
            message: text::bounded(&self.message, MAX_MESSAGE_BYTES),
            exception: self.exception.map(|exception| Box::new(exception.bounded())),
        }
    }

    /// Bytes of its texts.
    pub fn bytes(&self) -> usize {
        let exception = self.exception.as_ref().map_or(0, |exception| exception.bytes());
        self.message.len() + exception
    }

    /// What the function raised, as it is stored.
    pub fn exception_json(&self) -> Option<String> {
        let exception = self.exception.as_ref()?;
        serde_json::to_string(exception).ok()
    }

    /// The same for lists, without the text of an exception.
    pub fn short(mut self) -> Self {
        self.exception = None;
        self
    }
}
