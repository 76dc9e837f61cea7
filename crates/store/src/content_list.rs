//! Contents in lists.

use dayfly_protocol::contents::Content;
use dayfly_protocol::ids::TaskId;

/// A content in the list of a tenant's contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListedContent {
    /// Hash and length.
    pub content: Content,
    /// When it was stored first, in milliseconds since the Unix epoch; 0 if an earlier release stored it.
    pub since_ms: u64,
    /// When it was last stored, read or submitted with a task.
    pub used_at_ms: u64,
    /// Tasks whose arguments it is, at most [`MAX_COUNTED_USES`].
    pub arguments_of: u32,
    /// Tasks whose result it is, at most [`MAX_COUNTED_USES`].
    pub results_of: u32,
    /// One of these tasks.
    pub task: Option<TaskId>,
}

/// Tasks that are counted as users of one content, each for arguments and results.
pub const MAX_COUNTED_USES: u32 = 1_000;
