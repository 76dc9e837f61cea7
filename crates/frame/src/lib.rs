//! Data frames and SQL across the ranks of a group.
//!
//! DataFusion executes queries, and datafusion-distributed divides them into stages of tasks. This crate carries plans,
//! requests and batches between ranks, over the posts of `dayfly-comm`: there is no server and no listening port.
//!
//! The last rank of a group plans queries, in a [`Session`]. All others execute them, in [`serve_rank`]. So a client
//! joins the group of its workers, and gets results over the best route there is.

mod codec;
mod error;
mod exchange;
mod float_statistics;
mod functions;
mod kept;
mod memory;
mod pauses;
mod plan;
mod rank;
mod session;
mod write;

pub use datafusion;
pub use datafusion_distributed::display_plan_ascii;
pub use error::failure_of;
pub use functions::items::{Item, items};
pub use functions::{BatchFunctions, Functions, MapCall, map_batches};
pub use memory::{Memory, Spill};
pub use rank::{RankOptions, serve, serve_rank};
pub use session::{Session, SessionOptions};
pub use write::{
    FileEntry, MANIFEST, Manifest, PartitionColumn, parquet_properties, read_manifest, read_written, write_parquet,
};
