//! Payloads that are too large for a message: they stay in the manager's content store, and messages refer to their
//! hash.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::blob::Blob;
use crate::ids::{ContentHash, TaskId};

/// Dayfly's own programs send arguments and results of more bytes than this by reference.
pub const INLINE_BYTES: usize = 128 << 10;

/// A reference to bytes in one tenant's content store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
pub struct Content {
    /// BLAKE3 hash of the bytes.
    pub hash: ContentHash,
    /// Length in bytes.
    pub bytes: u64,
}

/// A tenant's use of the content store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ContentUsage {
    /// Bytes stored. Each content counts once.
    pub bytes: u64,
    /// Limit in bytes. The manager refuses an upload that would exceed it.
    pub most_bytes: u64,
}

/// One of a tenant's contents, in the list of `GET /v1/contents/list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ContentStatus {
    /// BLAKE3 hash of the bytes.
    pub hash: ContentHash,
    /// Length in bytes.
    pub bytes: u64,
    /// When it was stored first, in milliseconds since the Unix epoch; 0 if that is not known.
    pub since_ms: u64,
    /// When it was last stored, read or submitted with a task.
    pub used_at_ms: u64,
    /// Number of tasks whose arguments it is; 1,000 stands for more too.
    pub arguments_of: u32,
    /// Number of tasks whose result it is; 1,000 stands for more too.
    pub results_of: u32,
    /// One of these tasks. A content without a task is deleted an hour after its last use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskId>,
}

/// Arguments or result of a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Payload {
    /// The bytes themselves.
    Inline(Blob),
    /// A reference to the content store.
    Stored(Content),
}

impl Payload {
    /// Refers to `content` if it is given, else holds `bytes`.
    pub fn of(bytes: Blob, content: Option<Content>) -> Self {
        content.map_or(Self::Inline(bytes), Self::Stored)
    }

    /// Returns the inline bytes (empty for a reference) and the reference, if there is one.
    pub fn split(self) -> (Blob, Option<Content>) {
        match self {
            Self::Inline(bytes) => (bytes, None),
            Self::Stored(content) => (Blob::default(), Some(content)),
        }
    }

    /// Inline bytes; 0 for a reference.
    pub fn inline_bytes(&self) -> usize {
        match self {
            Self::Inline(bytes) => bytes.len(),
            Self::Stored(_) => 0,
        }
    }

    /// Length in bytes, inline or not.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Stored(content) => content.bytes,
        }
    }

    /// The reference, or `None` for inline bytes.
    pub fn content(&self) -> Option<Content> {
        match self {
            Self::Inline(_) => None,
            Self::Stored(content) => Some(*content),
        }
    }
}

impl Default for Payload {
    fn default() -> Self {
        Self::Inline(Blob::default())
    }
}
