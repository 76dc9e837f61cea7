//! What is stored of a task's output.

use dayfly_protocol::ids::{EndpointId, TaskId};
use dayfly_protocol::tasks::OutputPiece;

/// The last part of a task's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredOutput {
    /// Id of the task.
    pub task: TaskId,
    /// The endpoint that ran it.
    pub endpoint: EndpointId,
    /// Offset of the first byte.
    pub first: u64,
    /// The output.
    pub pieces: Vec<OutputPiece>,
}

impl StoredOutput {
    /// Returns the pieces encoded for one column.
    pub(crate) fn packed(&self) -> Vec<u8> {
        // MessagePack can encode any bytes.
        rmp_serde::to_vec_named(&self.pieces).unwrap_or_default()
    }

    /// Decodes [`StoredOutput::packed`]. Returns nothing if it is malformed.
    pub(crate) fn unpacked(column: &[u8]) -> Vec<OutputPiece> {
        rmp_serde::from_slice(column).unwrap_or_default()
    }
}
