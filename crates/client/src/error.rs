//! What a caller is told when something fails.

use dayfly_fabric::LinkError;
use dayfly_protocol::error::{Code, Failure, Retry};
use dayfly_protocol::exception::Exception;
use dayfly_protocol::slot::Status;

/// Anything that failed outside a function: leasing, connecting, sending.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct Error(#[from] pub Failure);

impl Error {
    /// An error with a sentence that says what happened and what to do.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self(Failure::new(code, message))
    }

    /// Its stable code.
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// Whether the same request may be made again.
    pub fn retry(&self) -> Retry {
        self.0.code.retry()
    }
}

impl From<LinkError> for Error {
    fn from(error: LinkError) -> Self {
        let code = match &error {
            LinkError::Malformed(_) | LinkError::Violation(_) => Code::ProtocolViolation,
            LinkError::Ended(_) | LinkError::PeerGone => Code::Unreachable,
            LinkError::NoRoom { length, limit } if *length as u64 > *limit => Code::PayloadTooLarge,
            LinkError::NoRoom { .. } => Code::OutOfMemory,
            LinkError::Refused(_) => Code::TransportRefused,
            LinkError::Io(_) => Code::Unreachable,
        };
        Self::new(code, error.to_string())
    }
}

/// Why one call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{failure}")]
pub struct CallError {
    /// Code and sentence.
    pub failure: Failure,
    /// What the worker said, if it was the worker who said it.
    pub status: Option<Status>,
    /// What came with it: a text, or a pickled exception.
    pub payload: Vec<u8>,
}

impl CallError {
    /// Its stable code.
    pub fn code(&self) -> Code {
        self.failure.code
    }

    /// A call that never reached a worker, or whose worker is gone.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            failure: Failure::new(code, message),
            status: None,
            payload: Vec::new(),
        }
    }

    /// What a worker answered with a status other than `Ok`.
    pub fn answered(status_word: u16, payload: &[u8]) -> Self {
        let Some(status) = Status::from_wire(status_word) else {
            return Self::new(
                Code::ProtocolViolation,
                format!("the worker answered with an unknown status {status_word}"),
            );
        };
        let code = match status {
            Status::Ok => Code::Internal,
            Status::FunctionError | Status::PythonException => Code::FunctionError,
            Status::UnknownFunction => Code::UnknownFunction,
            Status::OutputOverflow => Code::OutputOverflow,
            Status::MalformedRequest => Code::InvalidRequest,
            // The worker has no other word for it; see `executor::Runtime::load` of Python's.
            Status::LoadFailed if String::from_utf8_lossy(payload).contains("was pickled by") => Code::PythonMismatch,
            Status::LoadFailed => Code::LoadFailed,
            Status::Rejected => Code::Rejected,
            Status::OutOfMemory => Code::OutOfMemory,
            Status::StateLost => Code::StateLost,
            Status::Cancelled => Code::Cancelled,
        };
        let exception = (code == Code::FunctionError)
            .then(|| Exception::read(payload))
            .flatten();
        let failure = match (exception, status) {
            (Some(exception), _) => Failure::raised(exception),
            (None, Status::PythonException) => Failure::new(code, "the function raised an exception"),
            (None, _) => Failure::new(code, String::from_utf8_lossy(payload)),
        };
        Self {
            failure,
            status: Some(status),
            payload: payload.to_vec(),
        }
    }
}

impl From<Error> for CallError {
    fn from(error: Error) -> Self {
        Self {
            failure: error.0,
            status: None,
            payload: Vec::new(),
        }
    }
}

impl From<CallError> for Error {
    fn from(error: CallError) -> Self {
        Self(error.failure)
    }
}

impl From<LinkError> for CallError {
    fn from(error: LinkError) -> Self {
        Error::from(error).into()
    }
}
