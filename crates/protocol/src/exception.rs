//! Exceptions of functions as text, made by the worker that caught them.
//!
//! Nobody but a client that leased the worker unpickles an exception. Everybody else, managers and commands above all, shows
//! this text, which a worker appends to the pickle: JSON, its length (u32, little-endian), and [`MARK`]. Unpicklers stop at the
//! end of the pickle and do not see it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::text;

/// The end of a payload that has an exception as text.
pub const MARK: &[u8; 8] = b"dayfly.x";
/// Longest name of a type, in bytes.
pub const MAX_TYPE_BYTES: usize = 256;
/// Longest message, in bytes.
pub const MAX_EXCEPTION_MESSAGE_BYTES: usize = 3 << 10;
/// Longest traceback, in bytes.
pub const MAX_TRACEBACK_BYTES: usize = 12 << 10;
/// Longest text before it is read and cut: JSON may escape each of a worker's 10,200 characters by twelve.
const MAX_JSON_BYTES: usize = 128 << 10;
/// Longest line that says what was raised, in bytes.
const MAX_SUMMARY_BYTES: usize = 1 << 10;

/// An exception of a function, as its worker described it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Exception {
    /// Its type, with its module unless that is built in.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its message.
    pub message: String,
    /// Its traceback, with type and message at the end.
    pub traceback: String,
}

impl Exception {
    /// What a worker appended to a payload; none if it is missing, malformed or too long.
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

    /// The same with each part cut to its bound.
    pub fn bounded(self) -> Self {
        Self {
            kind: text::bounded(&self.kind, MAX_TYPE_BYTES),
            message: text::bounded(&self.message, MAX_EXCEPTION_MESSAGE_BYTES),
            traceback: text::bounded(&self.traceback, MAX_TRACEBACK_BYTES),
        }
    }

    /// Bytes of its parts.
    pub fn bytes(&self) -> usize {
        self.kind.len() + self.message.len() + self.traceback.len()
    }

    /// `ValueError: it is late`, in one line.
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
            // Whatever the length says, it does not lead out of the payload.
            prop_assert_eq!(Exception::read(&bytes), None);
        }
    }
}
