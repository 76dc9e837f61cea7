//! Sorts across ranks: the keys are cut into ranges, and each rank sorts its own.
//!
//! Every task of the stage below a sort holds its rows, and samples their keys. One rank cuts ranges from all samples,
//! with about as many rows each. Then an exchange sends each row to the partition that has its range, and DataFusion
//! sorts the partitions. The rows of all partitions, one partition after the other, are the sorted rows.
//!
//! - **Held rows** are in memory while that has room, and on disk otherwise.
//! - **The exchange** is that of hashed rows. A task adds a column whose values have the hashes of the partitions. So
//!   recovery, measures and the bounds of memory are those of every other exchange.
//! - **A key of many rows** is in several ranges, and its rows are dealt out among these: equal rows have no order.
//! - **Small inputs and limits** are merged on one rank instead, as DataFusion does it.

mod cut;
mod in_order;
mod node;
mod rule;
mod sample;
mod tasks;
mod values;

pub use cut::{Cuts, Sample, cut};
pub use in_order::InOrderExec;
pub use node::{RangesExec, Spec};
pub use rule::{SortRule, sorts_all};
pub use tasks::{desired_tasks, has_ranges, order_of, placed};

/// Name of one sort.
pub type SortId = [u8; 16];
