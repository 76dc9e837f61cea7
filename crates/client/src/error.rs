//! Errors of this crate.

use dayfly_fabric::LinkError;
use dayfly_protocol::error::{Code, Failure, Retry};
use dayfly_protocol::exception::Exception;
use dayfly_protocol::slot::Status;

/// An error outside a function: leasing, connecting, sending.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct Error(#[from] pub Failure);

impl Error {
    /// An error with a message that states what happened and what to do.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self(Failure::new(code, message))
    }

    /// The stable code of this error.
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// Whether the same request may be repeated.
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

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{failure}")]
pub struct CallError {
    /// Code and message.
    pub failure: Failure,
    /// The worker's status; `None` if the error does not come from the worker.
    pub status: Option<Status>,
    /// What the worker sent with it: a text, or a pickled exception.
    pub payload: Vec<u8>,
}

impl CallError {
    /// The stable code of this error.
    pub fn code(&self) -> Code {
        self.failure.code
    }

    /// The error of a call that reached no worker, or whose worker has ended.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            failure: Failure::new(code, message),
            status: None,
            payload: Vec::new(),
        }
    }

    /// The error for a response with a status other than `Ok`.
    pub fn from_response(status_word: u16, payload: &[u8]) -> Self {
        let Some(status) = Status::from_wire(status_word) else {
            return Self::new(
                Code::ProtocolViolation,
                format!("the worker responded with an unknown status {status_word}"),
            );
        };
        let code = match status {
            Status::Ok => Code::Internal,
            Status::FunctionError | Status::PythonException => Code::FunctionError,
            Status::UnknownFunction => Code::UnknownFunction,
            Status::OutputOverflow => Code::OutputOverflow,
            Status::MalformedRequest => Code::InvalidRequest,
            Status::LoadFailed => Code::LoadFailed,
            Status::Rejected => Code::Rejected,
            Status::OutOfMemory => Code::OutOfMemory,
            Status::StateLost => Code::StateLost,
            Status::Cancelled => Code::Cancelled,
            Status::PythonMismatch => Code::PythonMismatch,
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
