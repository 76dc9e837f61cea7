//! Errors of posts.

use dayfly_protocol::error::{Code, Failure};

/// Why an operation of a post failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// A rank is lost, or left while a message was incomplete.
    #[error("rank {rank} is lost to this post: {reason}")]
    PeerLost {
        /// The rank in the post.
        rank: u32,
        /// What happened.
        reason: String,
    },
    /// The receiver has closed its post.
    #[error("rank {rank} has closed its post, and receives no more messages")]
    PeerClosed {
        /// The rank in the post.
        rank: u32,
    },
    /// A rank revoked the post on all ranks.
    #[error("rank {by} revoked this post; open another one")]
    Revoked {
        /// The rank in the post.
        by: u32,
    },
    /// The deadline of the call is over.
    #[error("the deadline of this call is over; the post goes on")]
    Deadline,
    /// The message has more bytes or parts than are allowed.
    #[error(
        "a message of {bytes} bytes in {parts} parts is too large: at most {most} bytes in {} parts",
        super::MAX_PARTS
    )]
    TooLarge {
        /// Bytes of the message.
        bytes: u64,
        /// Its parts.
        parts: usize,
        /// The bound in bytes.
        most: u64,
    },
    /// There is no such rank.
    #[error("there is no rank {rank} in a post of {size}")]
    NoSuchRank {
        /// The rank that was named.
        rank: u32,
        /// Number of ranks.
        size: u32,
    },
    /// The post is closed, or all other ranks have closed theirs.
    #[error("this post is closed")]
    Closed,
    /// No memory is left for a message that arrived. The post has ended.
    #[error("no memory is left for a message of {bytes} bytes; this post has ended")]
    OutOfMemory {
        /// Bytes of the message.
        bytes: u64,
    },
}

impl PostError {
    /// The stable code of this error.
    pub fn code(&self) -> Code {
        match self {
            Self::PeerLost { .. } => Code::RankLost,
            Self::PeerClosed { .. } | Self::Revoked { .. } | Self::Closed => Code::Cancelled,
            Self::Deadline => Code::TimedOut,
            Self::TooLarge { .. } => Code::TooLarge,
            Self::NoSuchRank { .. } => Code::InvalidRequest,
            Self::OutOfMemory { .. } => Code::OutOfMemory,
        }
    }
}

impl From<PostError> for Failure {
    fn from(error: PostError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}
