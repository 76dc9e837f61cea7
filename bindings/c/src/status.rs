//! Status codes, their texts, and the last error of each thread.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use dayfly_client::{CallError, Code, Error, Retry};

/// Result of a function. Numbers and names never change their meaning.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum dfly_status {
    /// Success.
    DFLY_OK = 0,
    /// The request is malformed or contradicts itself, or an argument of this library is invalid.
    DFLY_INVALID_REQUEST = 1,
    /// The lease, node, worker, call, file or function does not exist.
    DFLY_NOT_FOUND = 2,
    /// The token, its signature, its holder's signature or the bearer is not accepted.
    DFLY_UNAUTHORIZED = 3,
    /// The lease or its token has expired.
    DFLY_LEASE_EXPIRED = 4,
    /// The lease was released by its holder or revoked by an operator.
    DFLY_LEASE_ENDED = 5,
    /// No node has the requested cores, memory or workers free.
    DFLY_NO_CAPACITY = 6,
    /// The request exceeds the site's policy or the capacity of every node.
    DFLY_TOO_LARGE = 7,
    /// Client and server use different wire versions.
    DFLY_VERSION_MISMATCH = 8,
    /// Client and worker run different Python or cloudpickle versions.
    DFLY_PYTHON_MISMATCH = 9,
    /// The executor, or an embedded manager, could not be started.
    DFLY_EXECUTOR_FAILED = 10,
    /// Another channel is already open to this worker.
    DFLY_WORKER_BUSY = 11,
    /// The hello was seen before, or its clock is too far from the node's.
    DFLY_REPLAYED = 12,
    /// The transport is not available on this host or not allowed by the site's policy.
    DFLY_TRANSPORT_REFUSED = 13,
    /// The code cannot be loaded, or does not export the symbol.
    DFLY_LOAD_FAILED = 14,
    /// The SHA-256 hash of the code's bytes differs from the announced hash.
    DFLY_HASH_MISMATCH = 15,
    /// The function reported an error. The message is the function's own text.
    DFLY_FUNCTION_ERROR = 16,
    /// The function's output does not fit into the memory provided for it.
    DFLY_OUTPUT_OVERFLOW = 17,
    /// The worker died during the call. The call may have been executed.
    DFLY_MAYBE_EXECUTED = 18,
    /// The worker died before the call began. The call was not executed.
    DFLY_NOT_EXECUTED = 19,
    /// The call exceeded its deadline and was stopped.
    DFLY_DEADLINE_EXCEEDED = 20,
    /// The worker cannot accept the call now, or the channel's ring is full.
    DFLY_REJECTED = 21,
    /// The state that the call depends on was lost with its worker.
    DFLY_STATE_LOST = 22,
    /// The manager or node cannot be reached.
    DFLY_UNREACHABLE = 23,
    /// The caller's own time limit for a wait has passed.
    DFLY_TIMED_OUT = 24,
    /// The store could not write: the disk is full, or the store is corrupt.
    DFLY_STORE_FAILED = 25,
    /// The address is already in use.
    DFLY_ADDRESS_IN_USE = 26,
    /// Another manager now owns the node.
    DFLY_STALE_EPOCH = 27,
    /// Cancelled by the caller.
    DFLY_CANCELLED = 28,
    /// A payload is larger than the channel or the lease allows.
    DFLY_PAYLOAD_TOO_LARGE = 29,
    /// The peer violated the protocol.
    DFLY_PROTOCOL_VIOLATION = 30,
    /// Internal error of Dayfly.
    DFLY_INTERNAL = 31,
    /// The function index was not resolved on this channel.
    DFLY_UNKNOWN_FUNCTION = 32,
    /// The memory for inputs or outputs is exhausted.
    DFLY_OUT_OF_MEMORY = 33,
    /// The handle was inherited through a fork and belongs to the parent process.
    DFLY_FORKED = 34,
    /// The tenant has no budget or quota left for the request, or is suspended.
    DFLY_QUOTA_EXCEEDED = 35,
    /// The token is valid but does not permit the operation.
    DFLY_FORBIDDEN = 36,
    /// A rank of the group died or stopped responding.
    DFLY_RANK_LOST = 37,
    /// The ranks of a group called operations that do not match.
    DFLY_MISMATCH = 38,
    /// A message is longer than the receiver's buffer.
    DFLY_TRUNCATED = 39,
    /// A dependency of the task did not succeed.
    DFLY_DEPENDENCY_FAILED = 40,
    /// The node is still building the environment that the workers need.
    DFLY_ENVIRONMENT_BUILDING = 41,
    /// The environment that the workers need cannot be built.
    DFLY_ENVIRONMENT_FAILED = 42,
    /// The call succeeded, but its result cannot be decoded in the process that fetched it.
    DFLY_RESULT_UNREADABLE = 43,
    /// Other users can access the state directory, and the daemon may not change its permissions.
    DFLY_STATE_EXPOSED = 44,
    /// The store lacks data that it held before.
    DFLY_STORE_LOST = 45,
    /// The lease requires isolation, and the node offers none.
    DFLY_ISOLATION_UNAVAILABLE = 46,
    /// Another tenant may have produced the result, and decoding it would run code.
    DFLY_UNTRUSTED = 47,
    /// Several ids match the abbreviated id.
    DFLY_AMBIGUOUS = 48,
    /// The call was ended because it held borrowed memory that its owner needed; it may have been executed.
    DFLY_MEMORY_RETURNED = 49,
    /// A query needs more memory than a rank has, and its node has no directory to spill into.
    DFLY_SPILL_REFUSED = 50,
    /// The directory into which a query spills is full, or the rank has spilled as much as it may.
    DFLY_SPILL_FULL = 51,
    /// A file that a query was reading was changed or removed after the query was planned.
    DFLY_INPUT_CHANGED = 52,
}

impl dfly_status {
    /// All error statuses, ordered by number.
    pub(crate) const ERRORS: [Self; 52] = [
        Self::DFLY_INVALID_REQUEST,
        Self::DFLY_NOT_FOUND,
        Self::DFLY_UNAUTHORIZED,
        Self::DFLY_LEASE_EXPIRED,
        Self::DFLY_LEASE_ENDED,
        Self::DFLY_NO_CAPACITY,
        Self::DFLY_TOO_LARGE,
        Self::DFLY_VERSION_MISMATCH,
        Self::DFLY_PYTHON_MISMATCH,
        Self::DFLY_EXECUTOR_FAILED,
        Self::DFLY_WORKER_BUSY,
        Self::DFLY_REPLAYED,
        Self::DFLY_TRANSPORT_REFUSED,
        Self::DFLY_LOAD_FAILED,
        Self::DFLY_HASH_MISMATCH,
        Self::DFLY_FUNCTION_ERROR,
        Self::DFLY_OUTPUT_OVERFLOW,
        Self::DFLY_MAYBE_EXECUTED,
        Self::DFLY_NOT_EXECUTED,
        Self::DFLY_DEADLINE_EXCEEDED,
        Self::DFLY_REJECTED,
        Self::DFLY_STATE_LOST,
        Self::DFLY_UNREACHABLE,
        Self::DFLY_TIMED_OUT,
        Self::DFLY_STORE_FAILED,
        Self::DFLY_ADDRESS_IN_USE,
        Self::DFLY_STALE_EPOCH,
        Self::DFLY_CANCELLED,
        Self::DFLY_PAYLOAD_TOO_LARGE,
        Self::DFLY_PROTOCOL_VIOLATION,
        Self::DFLY_INTERNAL,
        Self::DFLY_UNKNOWN_FUNCTION,
        Self::DFLY_OUT_OF_MEMORY,
        Self::DFLY_FORKED,
        Self::DFLY_QUOTA_EXCEEDED,
        Self::DFLY_FORBIDDEN,
        Self::DFLY_RANK_LOST,
        Self::DFLY_MISMATCH,
        Self::DFLY_TRUNCATED,
        Self::DFLY_DEPENDENCY_FAILED,
        Self::DFLY_ENVIRONMENT_BUILDING,
        Self::DFLY_ENVIRONMENT_FAILED,
        Self::DFLY_RESULT_UNREADABLE,
        Self::DFLY_STATE_EXPOSED,
        Self::DFLY_STORE_LOST,
        Self::DFLY_ISOLATION_UNAVAILABLE,
        Self::DFLY_UNTRUSTED,
        Self::DFLY_AMBIGUOUS,
        Self::DFLY_MEMORY_RETURNED,
        Self::DFLY_SPILL_REFUSED,
        Self::DFLY_SPILL_FULL,
        Self::DFLY_INPUT_CHANGED,
    ];
}

impl From<Code> for dfly_status {
    fn from(code: Code) -> Self {
        Self::ERRORS
            .get((code as usize).wrapping_sub(1))
            .copied()
            .unwrap_or(Self::DFLY_INTERNAL)
    }
}

fn remedy(code: Code) -> &'static CStr {
    match code {
        Code::InvalidRequest => c"Read the message: it names what is wrong and what is allowed.",
        Code::NotFound => c"Check the name: `dayfly status` lists leases and nodes, `nm -D library.so` the symbols.",
        Code::Unauthorized => {
            c"Lease again; if every lease is refused, check that client and manager belong to one installation."
        }
        Code::LeaseExpired => c"Lease for longer, or renew with dfly_lease_renew before the end.",
        Code::LeaseEnded => c"Lease again.",
        Code::NoCapacity => c"Wait, ask for fewer workers or less memory, or add a node.",
        Code::TooLarge => c"Ask for less: `dayfly status` shows what the nodes have.",
        Code::VersionMismatch => c"Install the same version of Dayfly on both sides.",
        Code::PythonMismatch => c"Run the same Python and cloudpickle on both sides.",
        Code::ExecutorFailed => c"Read the node's log, or standard error of an embedded manager.",
        Code::WorkerBusy => c"Close the other channel, or use another worker.",
        Code::Replayed => c"Try again; if the error persists, set the clocks of client and node right.",
        Code::TransportRefused => c"Let Dayfly choose: DFLY_TRANSPORT_BEST.",
        Code::LoadFailed => {
            c"Check that the library is built for the node, links, and exports the symbol as extern \"C\"."
        }
        Code::HashMismatch => c"Send the library again.",
        Code::FunctionError => c"The message is the function's own: see its source.",
        Code::OutputOverflow => c"Give more room, or take the output with dfly_channel_output.",
        Code::MaybeExecuted => c"Repeat the call only if running it twice does no harm.",
        Code::NotExecuted => c"Repeat the call.",
        Code::MemoryReturned => {
            c"Lease more memory, or borrow none. Repeat the call only if running it twice does no harm."
        }
        Code::SpillRefused => c"Lease more memory or more ranks, or start the node with --spill.",
        Code::SpillFull => c"Lease more memory or more ranks, or free space in the directory of --spill.",
        Code::InputChanged => c"Run the query again, once nothing writes into its files.",
        Code::DeadlineExceeded => c"Allow more time; the worker has been replaced.",
        Code::Rejected => c"Take completions first, or use another worker.",
        Code::StateLost => c"Set the state up again in the new worker.",
        Code::Unreachable => c"Check that manager and node run: `dayfly status`.",
        Code::TimedOut => c"Wait again: the operation continues.",
        Code::StoreFailed => c"Free space on the manager's disk.",
        Code::AddressInUse => c"Choose another address, or end what uses it.",
        Code::StaleEpoch => c"Lease again.",
        Code::Cancelled => c"Nothing to do.",
        Code::PayloadTooLarge => c"Send less at once, or open the channel with more bulk_bytes.",
        Code::ProtocolViolation => {
            c"Install the same version of Dayfly on both sides; if the error persists, report it."
        }
        Code::Internal => c"Report it with the message.",
        Code::UnknownFunction => c"Resolve the function on this channel or pool first.",
        Code::OutOfMemory => c"Free buffers and outputs, or lease more memory.",
        Code::Forked => c"Connect anew in the child process; leave the parent's handles alone.",
        Code::QuotaExceeded => c"Release a lease or ask for less; an administrator of the site can allow more.",
        Code::Forbidden => c"Use a token of the role that the message names.",
        Code::RankLost => c"Go on without the rank, or run again from the last checkpoint.",
        Code::Mismatch => c"Have all ranks call the same operations in the same order, with arguments that fit.",
        Code::Truncated => c"Receive into a larger buffer, or probe for the length first.",
        Code::EnvironmentBuilding => c"Ask again in a moment, or wait for a place.",
        Code::EnvironmentFailed => c"Correct the requirements as the message states.",
        Code::Ambiguous => c"Give more digits of the id.",
        Code::ResultUnreadable => c"Install what the message names where results are fetched, or return plain values.",
        Code::StateExposed => c"Choose a directory for Dayfly alone, or close this one with chmod 700.",
        Code::StoreLost => c"Restore the manager's backup, or start it with --accept-loss.",
        Code::IsolationUnavailable => {
            c"Have the node's operator allow what the message names, or lease on another node."
        }
        Code::Untrusted => c"Trust the tenant that the message names, or have the function return plain values.",
        Code::DependencyFailed => c"See how the task ended that the message names; submit both again.",
    }
}

/// When a program may repeat a request that failed.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum dfly_retry {
    /// The request itself must change.
    DFLY_RETRY_NEVER = 0,
    /// The same request may succeed later.
    DFLY_RETRY_LATER = 1,
    /// The same request may succeed at once on another worker. Nothing was executed.
    DFLY_RETRY_ELSEWHERE = 2,
    /// The call may have been executed. Repeat it only if that does no harm.
    DFLY_RETRY_IF_IDEMPOTENT = 3,
}

thread_local! {
    static LAST: RefCell<(dfly_status, CString)> = RefCell::new((dfly_status::DFLY_OK, CString::default()));
}

fn remember(error: &Error) -> dfly_status {
    let status = error.code().into();
    let text: Vec<u8> = error.0.message.bytes().filter(|byte| *byte != 0).collect();
    LAST.with_borrow_mut(|last| *last = (status, CString::new(text).unwrap_or_default()));
    status
}

/// Returns the error for an invalid argument.
pub(crate) fn misuse(text: impl Into<String>) -> Error {
    Error::new(Code::InvalidRequest, text)
}

/// Runs the body of a function called from C. Converts its error into a status and a message of this thread, and a
/// panic into `DFLY_INTERNAL`, because C cannot unwind.
#[inline]
pub(crate) fn guard(body: impl FnOnce() -> Result<(), CallError>) -> dfly_status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => dfly_status::DFLY_OK,
        Ok(Err(error)) => remember(&error.into()),
        Err(panic) => remember(&Error::new(
            Code::Internal,
            format!("a fault of Dayfly: {}", said(&*panic)),
        )),
    }
}

fn said(panic: &(dyn std::any::Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text,
        _ => "it panicked",
    }
}

/// As [`guard`], for functions that return a value. Returns `otherwise` on an error.
pub(crate) fn value<T>(otherwise: T, body: impl FnOnce() -> Result<T, Error>) -> T {
    let mut result = None;
    guard(|| {
        result = Some(body()?);
        Ok(())
    });
    result.unwrap_or(otherwise)
}

/// Returns the message of this thread's last error: what happened, and often what to do. Never NULL. The text is valid
/// until the next error of this thread. A successful call does not change it.
#[unsafe(no_mangle)]
pub extern "C" fn dfly_last_error_message() -> *const c_char {
    LAST.try_with(|last| last.try_borrow().map_or(c"".as_ptr(), |last| last.1.as_ptr()))
        .unwrap_or(c"".as_ptr())
}

/// Returns the status of this thread's last error; DFLY_OK before the first error.
#[unsafe(no_mangle)]
pub extern "C" fn dfly_last_error() -> dfly_status {
    LAST.try_with(|last| last.try_borrow().map_or(dfly_status::DFLY_INTERNAL, |last| last.0))
        .unwrap_or(dfly_status::DFLY_INTERNAL)
}

/// Returns the name of a status, such as `output_overflow`, as listed in docs/errors.md. Never NULL. The text is
/// static.
#[unsafe(no_mangle)]
pub extern "C" fn dfly_error_name(status: i32) -> *const c_char {
    if status == 0 {
        return c"ok".as_ptr();
    }
    code_of(status).map_or(c"unknown".as_ptr(), |code| name(code).as_ptr())
}

/// Returns one sentence on how to correct an error. Never NULL. The text is static.
#[unsafe(no_mangle)]
pub extern "C" fn dfly_error_remedy(status: i32) -> *const c_char {
    code_of(status).map_or(c"".as_ptr(), |code| remedy(code).as_ptr())
}

/// Returns whether and where the same request may be repeated after an error.
#[unsafe(no_mangle)]
pub extern "C" fn dfly_error_retry(status: i32) -> dfly_retry {
    match code_of(status).map(Code::retry) {
        Some(Retry::Later) => dfly_retry::DFLY_RETRY_LATER,
        Some(Retry::Elsewhere) => dfly_retry::DFLY_RETRY_ELSEWHERE,
        Some(Retry::IfIdempotent) => dfly_retry::DFLY_RETRY_IF_IDEMPOTENT,
        Some(Retry::Never) | None => dfly_retry::DFLY_RETRY_NEVER,
    }
}

/// Returns the version of this library, such as `1.2.3`. Never NULL. The text is static.
#[unsafe(no_mangle)]
pub extern "C" fn dfly_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

fn code_of(status: i32) -> Option<Code> {
    Code::from_wire(u16::try_from(status).ok()?)
}

fn name(code: Code) -> &'static CStr {
    use std::sync::LazyLock;
    static NAMES: LazyLock<Vec<CString>> = LazyLock::new(|| {
        let names = Code::ALL
            .iter()
            .map(|code| CString::new(code.name()).unwrap_or_default());
        names.collect()
    });
    Code::ALL
        .iter()
        .position(|known| *known == code)
        .map_or(c"unknown", |index| NAMES[index].as_c_str())
}
