//! A call of a pool: its options, input and output.

use std::sync::Arc;

use dayfly_fabric::{Buffer, Received};
use dayfly_protocol::blob::Blob;
use dayfly_protocol::ids::WorkerIndex;

use super::memory::OutputBuffer;
use crate::error::CallError;

/// Identifies a call of one pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(pub u64);

/// Identifies a function that is registered with one pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FunctionId(pub u32);

/// Limits and placement of one call.
#[derive(Debug, Clone, Copy, Default)]
pub struct CallOptions {
    /// Execution limit in milliseconds, after which the worker is ended; 0 for no limit.
    pub deadline_ms: u32,
    /// Whether the call may be retried after it may have been executed.
    pub idempotent: bool,
    /// The only worker that may run it; `None` for any.
    pub worker: Option<WorkerIndex>,
    /// The incarnation of that worker whose state the call needs; with any other the call ends as `state_lost`.
    pub incarnation: Option<u32>,
    /// Whether [`Pool::drive`](super::Pool::drive) reports the end of this call.
    pub notify: bool,
    /// Bytes to reserve for the output; 0 lets the worker choose. A C function receives the number as its capacity.
    pub room: usize,
}

/// The input of a call.
#[derive(Debug)]
pub enum Input {
    /// Owned bytes.
    Bytes(Vec<u8>),
    /// Shared bytes.
    Blob(Blob),
    /// A buffer from [`Pool::allocate`](super::Pool::allocate), and its length in use, in bytes.
    Buffer(Buffer, usize),
    /// As `Buffer`, but the caller keeps the buffer and can send it again. The caller sees what the function writes
    /// into it.
    Shared(Arc<Buffer>, usize),
}

impl Input {
    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Blob(bytes) => bytes,
            Self::Buffer(buffer, length) => &buffer.as_slice()[..*length],
            Self::Shared(buffer, length) => &buffer.as_slice()[..*length],
        }
    }
}

impl From<&[u8]> for Input {
    fn from(bytes: &[u8]) -> Self {
        Self::Bytes(bytes.to_vec())
    }
}

impl From<Vec<u8>> for Input {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

/// The output of a call.
#[derive(Debug)]
pub enum Output {
    /// Copied out of its slot.
    Small(Vec<u8>),
    /// Still in the memory that it was received in.
    Large(Received),
    /// In the first bytes of the buffer that the caller gave.
    InPlace(OutputBuffer, usize),
}

impl Output {
    /// The output's bytes.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Small(bytes) => bytes,
            Self::Large(received) => received.as_slice(),
            Self::InPlace(buffer, length) => &buffer.as_slice()[..*length],
        }
    }

    /// Copies the bytes and frees the memory that they were received in.
    pub fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Small(bytes) => bytes,
            other => other.as_slice().to_vec(),
        }
    }
}

/// Output or error of a call.
pub type Outcome = Result<Output, CallError>;
