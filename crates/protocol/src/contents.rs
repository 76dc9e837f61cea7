//! Bytes that are too many to travel with what is said of them: they stay in the manager's content store, under their hash.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::blob::Blob;
use crate::ids::ContentHash;

/// Arguments and answers of more bytes go by reference, where a program of ours sends them.
pub const INLINE_BYTES: usize = 128 << 10;

/// Bytes in the content store: of one tenant, under their hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
pub struct Content {
    /// BLAKE3 of the bytes.
    pub hash: ContentHash,
    /// How many there are.
    pub bytes: u64,
}

/// What a tenant has in the content store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ContentUsage {
    /// So many bytes, each content once.
    pub bytes: u64,
    /// At most; what would be more is refused.
    pub most_bytes: u64,
}

/// What a function is called with, or answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Payload {
    /// The bytes.
    Here(Blob),
    /// Where they are.
    Stored(Content),
}

impl Payload {
    /// Of bytes that are here, or, where it is given, of a content.
    pub fn of(bytes: Blob, content: Option<Content>) -> Self {
        content.map_or(Self::Here(bytes), Self::Stored)
    }

    /// The bytes that are here, and where others are.
    pub fn split(self) -> (Blob, Option<Content>) {
        match self {
            Self::Here(bytes) => (bytes, None),
            Self::Stored(content) => (Blob::default(), Some(content)),
        }
    }

    /// How many bytes are here.
    pub fn bytes_here(&self) -> usize {
        match self {
            Self::Here(bytes) => bytes.len(),
            Self::Stored(_) => 0,
        }
    }

    /// Where it is, if not here.
    pub fn content(&self) -> Option<Content> {
        match self {
            Self::Here(_) => None,
            Self::Stored(content) => Some(*content),
        }
    }
}

impl Default for Payload {
    fn default() -> Self {
        Self::Here(Blob::default())
    }
}
