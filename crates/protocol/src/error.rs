//! Stable numbers and names of all errors that can reach a user.

use serde::{Deserialize, Serialize};

use crate::bounds::MAX_MESSAGE_BYTES;
use crate::exception::Exception;
use crate::text;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $slug:literal, $http:literal, $retry:ident;)*) => {
        /// Kind of an error. Numbers and names never change their meaning; docs/errors.md has a section for each.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
        #[serde(rename_all = "snake_case")]
        #[repr(u16)]
        pub enum Code {
            $($(#[$doc])* $name = $number,)*
        }

        impl Code {
            /// All codes, in the order of their numbers.
            pub const ALL: &'static [Code] = &[$(Code::$name),*];

            /// Returns the code with this wire number, or `None` if this version does not know it.
            pub fn from_wire(number: u16) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }

            /// The code's name in JSON and in the documentation.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $slug,)* }
            }

            /// HTTP status with which the manager reports it.
            pub fn http_status(self) -> u16 {
                match self { $(Self::$name => $http,)* }
            }

            /// Whether the unchanged request may succeed later or elsewhere without executing anything twice.
            pub fn retry(self) -> Retry {
                match self { $(Self::$name => Retry::$retry,)* }
            }
        }
    };
}

/// How a caller may react to an error without asking the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// The request must change first.
    Never,
    /// The same request may succeed later.
    Later,
    /// The same request may succeed at once on another worker or node. Nothing was executed.
    Elsewhere,
    /// It may have been executed. Only an idempotent call may be repeated.
    IfIdempotent,
}

codes! {
    /// The request is malformed or contradicts itself.
    InvalidRequest = 1, "invalid_request", 400, Never;
    /// No such lease, node, worker, function or image exists.
    NotFound = 2, "not_found", 404, Never;
    /// The token, its signature, the holder's signature or the bearer is not accepted.
    Unauthorized = 3, "unauthorized", 401, Never;
    /// The lease or its token has expired.
    LeaseExpired = 4, "lease_expired", 410, Never;
    /// The lease was released by its holder or revoked by an operator.
    LeaseEnded = 5, "lease_ended", 410, Never;
    /// No node has the wanted cores, memory or workers free.
    NoCapacity = 6, "no_capacity", 503, Later;
    /// The request exceeds the site's policy or the capacity of every node.
    TooLarge = 7, "too_large", 422, Never;
    /// Client and server use different wire versions.
    VersionMismatch = 8, "version_mismatch", 426, Never;
    /// Client and worker run different Python or cloudpickle versions, or the node has no Python at all.
    PythonMismatch = 9, "python_mismatch", 422, Never;
    /// The executor could not be started.
    ExecutorFailed = 10, "executor_failed", 502, Later;
    /// Another channel is already open to this worker.
    WorkerBusy = 11, "worker_busy", 409, Later;
    /// The hello was seen before, or its timestamp is too far from the node's clock.
    Replayed = 12, "replayed", 401, Never;
    /// The transport is not available here or not allowed by the site's policy.
    TransportRefused = 13, "transport_refused", 422, Never;
    /// The code could not be loaded.
    LoadFailed = 14, "load_failed", 422, Never;
    /// The code does not match its announced hash.
    HashMismatch = 15, "hash_mismatch", 400, Never;
    /// The function reported an error.
    FunctionError = 16, "function_error", 500, Never;
    /// The function's output did not fit into the room for it.
    OutputOverflow = 17, "output_overflow", 500, Never;
    /// The worker died during the call; it may have been executed.
    MaybeExecuted = 18, "maybe_executed", 502, IfIdempotent;
    /// The worker died before the call began; it was not executed.
    NotExecuted = 19, "not_executed", 502, Elsewhere;
    /// The call exceeded its deadline and was ended.
    DeadlineExceeded = 20, "deadline_exceeded", 504, IfIdempotent;
    /// The worker cannot run the call at the moment.
    Rejected = 21, "rejected", 503, Elsewhere;
    /// The state that the call depends on was lost with its worker.
    StateLost = 22, "state_lost", 409, Never;
    /// The manager or node cannot be reached.
    Unreachable = 23, "unreachable", 503, Later;
    /// The caller's own time limit ended the wait.
    TimedOut = 24, "timed_out", 504, Later;
    /// The store could not write, because the disk is full or the store is corrupt.
    StoreFailed = 25, "store_failed", 507, Later;
    /// The address is already in use.
    AddressInUse = 26, "address_in_use", 500, Never;
    /// Another manager has taken over the node.
    StaleEpoch = 27, "stale_epoch", 409, Elsewhere;
    /// The caller cancelled it.
    Cancelled = 28, "cancelled", 409, Never;
    /// A payload is larger than the channel or the lease allows.
    PayloadTooLarge = 29, "payload_too_large", 413, Never;
    /// The peer violated the protocol.
    ProtocolViolation = 30, "protocol_violation", 400, Never;
    /// A defect in Dayfly itself.
    Internal = 31, "internal", 500, Later;
    /// The function index is not resolved on this channel.
    UnknownFunction = 32, "unknown_function", 422, Never;
    /// The memory for inputs or outputs is exhausted.
    OutOfMemory = 33, "out_of_memory", 507, Later;
    /// The object was inherited through a fork and belongs to the parent process.
    Forked = 34, "forked", 500, Never;
    /// The tenant has no budget or quota left, or is suspended.
    QuotaExceeded = 35, "quota_exceeded", 429, Later;
    /// The caller is authenticated but not allowed to do this.
    Forbidden = 36, "forbidden", 403, Never;
    /// A rank of the group died or stopped responding.
    RankLost = 37, "rank_lost", 502, Never;
    /// The ranks of a group did not call the same collective operation with compatible arguments.
    Mismatch = 38, "mismatch", 409, Never;
    /// A message is longer than its receiver's buffer.
    Truncated = 39, "truncated", 400, Never;
    /// A task that this one depends on did not succeed.
    DependencyFailed = 40, "dependency_failed", 424, Never;
    /// The node is still building the environment of the workers.
    EnvironmentBuilding = 41, "environment_building", 503, Later;
    /// The environment of the workers cannot be built.
    EnvironmentFailed = 42, "environment_failed", 422, Never;
    /// The call succeeded, but its result cannot be deserialized by the client.
    ResultUnreadable = 43, "result_unreadable", 422, Never;
    /// Other users can enter the state directory, and the daemon cannot restrict it.
    StateExposed = 44, "state_exposed", 500, Never;
    /// The store lacks data that it had before: it is empty, older than its mark, or a different store.
    StoreLost = 45, "store_lost", 500, Never;
    /// The lease must be isolated, and the node's host does not support isolation.
    IsolationUnavailable = 46, "isolation_unavailable", 422, Never;
    /// Another tenant may have produced the result, and it contains more than plain data.
    Untrusted = 47, "untrusted", 422, Never;
    /// An abbreviated id matches several ids.
    Ambiguous = 48, "ambiguous", 409, Never;
    /// The call held borrowed memory that its owner needed, and was ended; it may have been executed.
    MemoryReturned = 49, "memory_returned", 502, IfIdempotent;
    /// A query needs more memory than a rank has, and its node has no directory to spill into.
    SpillRefused = 50, "spill_refused", 422, Never;
    /// The directory into which a query spills is full, or the rank has spilled as much as it may.
    SpillFull = 51, "spill_full", 507, Later;
    /// A file that a query was reading was changed or removed after the query was planned.
    InputChanged = 52, "input_changed", 409, Later;
}

/// An error as it travels: a code, and a sentence with what happened and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema, thiserror::Error)]
#[error("{message} [{}]", code.name())]
pub struct Failure {
    /// Kind of the error.
    pub code: Code,
    /// What happened and what to do about it.
    pub message: String,
    /// The exception that the function raised, if any. Only in responses about one task; lists omit it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exception: Option<Box<Exception>>,
}

impl Failure {
    /// Returns a failure without an exception.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            exception: None,
        }
    }

    /// Returns the failure of a call whose function raised an exception.
    pub fn raised(exception: Exception) -> Self {
        Self {
            exception: Some(Box::new(exception.clone())),
            ..Self::new(
                Code::FunctionError,
                format!("the function raised {}", exception.summary()),
            )
        }
    }

    /// Returns the failure with its texts cut to their bounds. For failures from peers, whose texts may have any
    /// length.
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

    /// Returns the exception as JSON for the store, or `None` if there is none.
    pub fn exception_json(&self) -> Option<String> {
        let exception = self.exception.as_ref()?;
        serde_json::to_string(exception).ok()
    }

    /// Returns the failure without its exception, for lists.
    pub fn without_exception(mut self) -> Self {
        self.exception = None;
        self
    }
}
