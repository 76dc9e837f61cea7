//! Status codes, their texts, and how an error reaches C.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use dayfly_client::{CallError, Code, Error, Retry};

/// How a function ended. Numbers and names never change their meaning.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum dfly_status {
    /// It did what was asked.
    DFLY_OK = 0,
    /// The request is malformed or contradicts itself; also every misuse of this library that it can see.
    DFLY_INVALID_REQUEST = 1,
    /// No such lease, node, worker, call, file or function.
    DFLY_NOT_FOUND = 2,
    /// The token, its signature, its holder's signature or the bearer is not accepted.
    DFLY_UNAUTHORIZED = 3,
    /// The lease or its token has expired.
    DFLY_LEASE_EXPIRED = 4,
    /// The lease was released by its holder or revoked by an operator.
    DFLY_LEASE_ENDED = 5,
    /// No node has the wanted cores, memory or workers free.
    DFLY_NO_CAPACITY = 6,
    /// The request asks for more than the site's policy or any node could ever give.
    DFLY_TOO_LARGE = 7,
    /// Client and server speak different wire versions.
    DFLY_VERSION_MISMATCH = 8,
    /// Client and worker run different Python or cloudpickle versions.
    DFLY_PYTHON_MISMATCH = 9,
    /// The executor, or an embedded manager, could not be started.
    DFLY_EXECUTOR_FAILED = 10,
    /// Another channel is already open to this worker.
    DFLY_WORKER_BUSY = 11,
    /// The hello was seen before, or its clock is too far from the node's.
    DFLY_REPLAYED = 12,
    /// The transport is not available here or not allowed by site policy.
    DFLY_TRANSPORT_REFUSED = 13,
    /// The code could not be loaded, or has no such symbol.
    DFLY_LOAD_FAILED = 14,
    /// The code's bytes do not have the hash they were announced with.
    DFLY_HASH_MISMATCH = 15,
    /// The function reported an error; its text is the message.
    DFLY_FUNCTION_ERROR = 16,
    /// The function's output did not fit into its room.
    DFLY_OUTPUT_OVERFLOW = 17,
    /// The worker died during the call: it may have been executed.
    DFLY_MAYBE_EXECUTED = 18,
    /// The worker died before the call began: it was not executed.
    DFLY_NOT_EXECUTED = 19,
    /// The call ran past its deadline and was ended.
    DFLY_DEADLINE_EXCEEDED = 20,
    /// The worker answered that it cannot run just now, or the ring is full.
    DFLY_REJECTED = 21,
    /// The state that the call depends on died with its worker.
    DFLY_STATE_LOST = 22,
    /// The manager or node cannot be reached.
    DFLY_UNREACHABLE = 23,
    /// The wait was ended by the caller's own time limit.
    DFLY_TIMED_OUT = 24,
    /// The store could not write (disk full, corrupt).
    DFLY_STORE_FAILED = 25,
    /// The address is already in use.
    DFLY_ADDRESS_IN_USE = 26,
    /// The manager's ownership of the node has passed to another.
    DFLY_STALE_EPOCH = 27,
    /// Cancelled by the caller.
    DFLY_CANCELLED = 28,
    /// A payload is larger than the channel or the lease allows.
    DFLY_PAYLOAD_TOO_LARGE = 29,
    /// The peer broke the protocol.
    DFLY_PROTOCOL_VIOLATION = 30,
    /// A fault of Dayfly itself.
    DFLY_INTERNAL = 31,
    /// The function index is not resolved on this channel.
    DFLY_UNKNOWN_FUNCTION = 32,
    /// Memory for inputs or outputs is used up.
    DFLY_OUT_OF_MEMORY = 33,
    /// The handle was inherited through a fork and belongs to the parent process.
    DFLY_FORKED = 34,
    /// The tenant has no budget or quota left for it, or is suspended.
    DFLY_QUOTA_EXCEEDED = 35,
    /// The token is good, and does not allow this.
    DFLY_FORBIDDEN = 36,
    /// A rank of the group died or fell silent.
    DFLY_RANK_LOST = 37,
    /// The ranks of a group called operations that do not fit together.
    DFLY_MISMATCH = 38,
    /// A message is longer than the room that its receiver has for it.
    DFLY_TRUNCATED = 39,
    /// A task that this one was to come after did not end well.
    DFLY_DEPENDENCY_FAILED = 40,
    /// The node still builds the environment that the workers are to have.
    DFLY_ENVIRONMENT_BUILDING = 41,
    /// The environment that the workers are to have cannot be built.
    DFLY_ENVIRONMENT_FAILED = 42,
    /// The call ended well, and its result cannot be made where it was fetched.
    DFLY_RESULT_UNREADABLE = 43,
    /// Others can enter the state directory, and it is not the daemon's to close.
    DFLY_STATE_EXPOSED = 44,
    /// The store lacks what it had before.
    DFLY_STORE_LOST = 45,
    /// The lease must be isolated, and the node isolates nothing.
    DFLY_ISOLATION_UNAVAILABLE = 46,
    /// Another tenant may have made the result, and it holds more than data.
    DFLY_UNTRUSTED = 47,
    /// The beginning or end of an id is that of several.
    DFLY_AMBIGUOUS = 48,
}

impl dfly_status {
    /// Every status that stands for a code, in the order of their numbers.
    pub(crate) const ERRORS: [Self; 48] = [
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
        Code::Unauthorized => c"Lease again; if all is refused, check that client and manager are one installation.",
        Code::LeaseExpired => c"Lease for longer, or renew with dfly_lease_renew before the end.",
        Code::LeaseEnded => c"Lease again.",
        Code::NoCapacity => c"Wait, ask for fewer workers or less memory, or add a node.",
        Code::TooLarge => c"Ask for less: `dayfly status` shows what the nodes have.",
        Code::VersionMismatch => c"Install the same version of Dayfly on both sides.",
        Code::PythonMismatch => c"Run the same Python and cloudpickle on both sides.",
        Code::ExecutorFailed => c"Read the node's log, or standard error of an embedded manager.",
        Code::WorkerBusy => c"Close the other channel, or use another worker.",
        Code::Replayed => c"Try again; if it stays, set the clocks of client and node right.",
        Code::TransportRefused => c"Let Dayfly choose: DFLY_TRANSPORT_BEST.",
        Code::LoadFailed => {
            c"Check that the library is built for the node, links, and exports the symbol as extern \"C\"."
        }
        Code::HashMismatch => c"Send the library again.",
        Code::FunctionError => c"The message is the function's own: see its source.",
        Code::OutputOverflow => c"Give more room, or take the output with dfly_channel_output.",
        Code::MaybeExecuted => c"Repeat the call only if running it twice does no harm.",
        Code::NotExecuted => c"Repeat the call.",
        Code::DeadlineExceeded => c"Allow more time; the worker has been replaced.",
        Code::Rejected => c"Take completions first, or use another worker.",
        Code::StateLost => c"Set the state up again in the new worker.",
        Code::Unreachable => c"Check that manager and node run: `dayfly status`.",
        Code::TimedOut => c"Wait again: what was waited for goes on.",
        Code::StoreFailed => c"Make room on the manager's disk.",
        Code::AddressInUse => c"Choose another address, or end what uses it.",
        Code::StaleEpoch => c"Lease again.",
        Code::Cancelled => c"Nothing to do.",
        Code::PayloadTooLarge => c"Send less at once, or open the channel with more bulk_bytes.",
        Code::ProtocolViolation => c"Install the same version of Dayfly on both sides; if it stays, report it.",
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
        Code::EnvironmentFailed => c"Mend the requirements as the message says.",
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

/// What a program may do about an error without asking anybody.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum dfly_retry {
    /// The request itself must change.
    DFLY_RETRY_NEVER = 0,
    /// The same request may succeed later.
    DFLY_RETRY_LATER = 1,
    /// The same request may succeed at once on another worker; nothing was executed.
    DFLY_RETRY_ELSEWHERE = 2,
    /// It may have been executed: repeat it only if that does no harm.
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

/// An error of the caller's.
pub(crate) fn misuse(text: impl Into<String>) -> Error {
    Error::new(Code::InvalidRequest, text)
}

/// Runs the body of a function that C calls: its error becomes a status and a message of this thread, and a panic an
/// error, because C cannot unwind.
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

/// As [`guard`], for functions that answer a value: `otherwise` stands for an error.
pub(crate) fn value<T>(otherwise: T, body: impl FnOnce() -> Result<T, Error>) -> T {
    let mut result = None;
    guard(|| {
        result = Some(body()?);
        Ok(())
    });
    result.unwrap_or(otherwise)
}

/// What the last error of this thread was: what happened, and often what to do. Valid until the next error of this
/// thread; never NULL. A success leaves it as it is.
#[unsafe(no_mangle)]
pub extern "C" fn dfly_last_error_message() -> *const c_char {
    LAST.try_with(|last| last.try_borrow().map_or(c"".as_ptr(), |last| last.1.as_ptr()))
        .unwrap_or(c"".as_ptr())
}

/// The status of the last error of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn dfly_last_error() -> dfly_status {
    LAST.try_with(|last| last.try_borrow().map_or(dfly_status::DFLY_INTERNAL, |last| last.0))
        .unwrap_or(dfly_status::DFLY_INTERNAL)
}

/// The name of a status, as in docs/errors.md, such as `output_overflow`. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn dfly_error_name(status: i32) -> *const c_char {
    if status == 0 {
        return c"ok".as_ptr();
    }
    code_of(status).map_or(c"unknown".as_ptr(), |code| name(code).as_ptr())
}

/// What to do about an error, in one sentence. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn dfly_error_remedy(status: i32) -> *const c_char {
    code_of(status).map_or(c"".as_ptr(), |code| remedy(code).as_ptr())
}

/// Whether the same request may be made again.
#[unsafe(no_mangle)]
pub extern "C" fn dfly_error_retry(status: i32) -> dfly_retry {
    match code_of(status).map(Code::retry) {
        Some(Retry::Later) => dfly_retry::DFLY_RETRY_LATER,
        Some(Retry::Elsewhere) => dfly_retry::DFLY_RETRY_ELSEWHERE,
        Some(Retry::IfIdempotent) => dfly_retry::DFLY_RETRY_IF_IDEMPOTENT,
        Some(Retry::Never) | None => dfly_retry::DFLY_RETRY_NEVER,
    }
}

/// Version of this library. Never NULL.
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
