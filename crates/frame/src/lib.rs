//! Data frames and SQL across the ranks of a group.
//!
//! DataFusion executes queries, and datafusion-distributed divides them into stages of tasks. This crate carries plans,
//! requests and batches between ranks, over the posts of `dayfly-comm`: there is no server and no listening port.
//!
//! The last rank of a group plans queries, in a [`Session`]. All others execute them, in [`serve_rank`]. So a client
//! joins the group of its workers, and gets results over the best route there is.
//!
//! Or all ranks of a group are programs with rows of their own, which call the same operations: each is a [`Member`].

mod codec;
mod cost;
mod error;
mod exchange;
mod float_statistics;
mod functions;
mod kept;
mod label;
mod member;
mod memory;
mod operation;
mod passing;
mod pauses;
mod pins;
mod plan;
mod progress;
mod ranges;
mod rank;
mod recover;
mod repartition;
mod saved;
mod session;
mod skew;
mod sorted_join;
mod source;
mod stores;
mod usage;
mod write;

pub use datafusion;
pub use error::failure_of;
pub use functions::items::{Item, items};
pub use functions::{BatchFunctions, Functions, MapCall, map_batches};
pub use kept::{FrameId, KeptFrame};
pub use label::Label;
pub use member::Member;
pub use memory::{Memory, Spill};
pub use plan::{analyze, explain};
pub use progress::{Running, Task, Work};
pub use rank::{RankOptions, serve, serve_rank};
pub use recover::Recovery;
pub use repartition::repartition;
pub use saved::{restored, saved};
pub use session::{Rows, Session, SessionOptions};
pub use sorted_join::sorted_join;
pub use source::Source;
pub use stores::StoreOptions;
pub use usage::{PendingUsage, Usage};
pub use write::{Encoder, FileEntry, Format, MANIFEST, Manifest, Output, PartitionColumn, SortColumn, write};
