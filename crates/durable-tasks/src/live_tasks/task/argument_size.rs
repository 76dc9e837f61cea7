//! The size of a task's arguments, for display.

use dayfly_protocol::contents::Payload;

use super::LiveTask;
use crate::contents::Inline;

impl LiveTask {
    /// Bytes of its arguments; `None` if they are in the content store and not in memory.
    pub fn argument_bytes(&self) -> Option<u64> {
        match (&self.arguments, &self.inline) {
            (Some(Payload::Stored(content)), _) => Some(content.bytes),
            (Some(arguments), _) => Some(arguments.inline_bytes() as u64),
            (None, inline) => inline.as_ref().map(Inline::bytes),
        }
    }
}
