//! The size of a task's arguments: for display, and in the tenant's quota.

use dayfly_protocol::contents::Payload;
use dayfly_store::tasks::counted_bytes;

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

    /// Lets its inline arguments count in the tenant's quota after its end, as far as the store's copy counts.
    pub fn keep_arguments(&mut self) {
        if let Some(inline) = self.inline.take()
            && counted_bytes(inline.bytes()) > 0
        {
            inline.keep();
        }
    }
}
