//! Exceptions of functions as text, written by the worker that caught them.
//!
//! Only a client that leased the worker unpickles an exception. Managers, commands and all other programs show this
//! text, which a worker appends to the pickle: JSON, its length (u32, little-endian), and [`MARK`]. Unpicklers stop at
//! the end of the pickle and ignore it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::text;

/// Ends a payload that contains an exception as text.
pub const MARK: &[u8; 8] = b"dayfly.x";
/// Longest type name, in bytes.
pub const MAX_TYPE_BYTES: usize = 256;
/// Longest message, in bytes.
pub const MAX_EXCEPTION_MESSAGE_BYTES: usize = 3 << 10;
/// Longest traceback, in bytes.
pub const MAX_TRACEBACK_BYTES: usize = 12 << 10;
/// Longest JSON that is parsed. A worker sends at most 10,200 characters, and JSON may escape each as twelve bytes.
const MAX_JSON_BYTES: usize = 128 << 10;
/// Longest summary line, in bytes.
const MAX_SUMMARY_BYTES: usize = 1 << 10;

/// An exception of a function, as reported by its worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Exception {
    /// Type, with its module unless that is `builtins`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Message, at most [`MAX_EXCEPTION_MESSAGE_BYTES`].
    pub message: String,
    /// Traceback, with type and message at the end.
    pub traceback: String,
}

impl Exception {
    /// Returns the exception that a worker appended to a payload, or `None` if it is missing, malformed or too long.
    pub fn read(payload: &[u8]) -> Option<Self> {
        let rest = payload.strip_suffix(MARK)?;
        let (rest, length) = rest.split_last_chunk::<4>()?;
        let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
        if length > MAX_JSON_BYTES {
            return None;
        }
        let json = rest.get(rest.len().checked_sub(length)?..)?;
        serde_json::from_slice(json).ok().map(Self::bounded)
    }

    /// Returns the exception with each part cut to its bound.
    pub fn bounded(self) -> Self {
        Self {
            kind: text::bounded(&self.kind, MAX_TYPE_BYTES),
            message: text::bounded(&self.message, MAX_EXCEPTION_MESSAGE_BYTES),
            traceback: text::bounded(&self.traceback, MAX_TRACEBACK_BYTES),
        }
    }

    /// Bytes of all parts together.
    pub fn bytes(&self) -> usize {
        self.kind.len() + self.message.len() + self.traceback.len()
    }

    /// Returns type and message in one line, such as `ValueError: it is late`.
    pub fn summary(&self) -> String {
        let whole = match &self.message[..] {
            "" => self.kind.clone(),
            message => format!("{}: {message}", self.kind),
        };
        text::line(&whole, MAX_SUMMARY_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn appended(pickle: &[u8], json: &[u8]) -> Vec<u8> {
        [
            pickle,
            json,
            &u32::try_from(json.len()).expect("short").to_le_bytes(),
            MARK,
        ]
        .concat()
    }

    #[test]
    fn appended_exception_is_read_and_bounded() {
        let given = Exception {
            kind: "ValueError".into(),
            message: "it is late\nvery".into(),
            traceback: "x".repeat(20_000),
        };
        let json = serde_json::to_vec(&given).expect("JSON");
        let read = Exception::read(&appended(b"pickle.", &json)).expect("an exception");
        assert_eq!(read.summary(), "ValueError: it is late\\nvery");
        assert_eq!(
            (read.message, read.traceback.len()),
            (given.message, MAX_TRACEBACK_BYTES)
        );
    }

    #[test]
    fn summary_without_message_is_the_type() {
        let exception = Exception {
            kind: "KeyError".into(),
            message: String::new(),
            traceback: String::new(),
        };
        assert_eq!(exception.summary(), "KeyError");
    }

    proptest! {
        #[test]
        fn malformed_payloads_give_none(mut bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(Exception::read(&bytes), None);
            bytes.extend_from_slice(MARK);
            // No length makes the parser read outside the payload.
            prop_assert_eq!(Exception::read(&bytes), None);
        }
    }
}
