//! Measures Dayfly beside the machine's own limits, in the same run.
//!
//! - [`tsc`], [`stats`], [`alternate`]: reading time, describing latencies, measuring two things in turns.
//! - [`baseline`]: what the machine itself can do, with no Dayfly code on the way.
//! - [`comm`]: ranks of a group beside those of MPI; [`tune`]: their algorithms beside each other.
//! - [`busy`]: whether the machine was quiet enough for the figures to be believed.
//! - [`report`], [`table`], [`picture`]: figures for machines, for people, and to look at.

pub mod alternate;
pub mod baseline;
pub mod busy;
pub mod cold;
pub mod comm;
pub mod control;
pub mod error;
pub mod invoke;
pub mod machine;
pub mod picture;
pub mod proc;
pub mod reclaim;
pub mod reject;
pub mod report;
pub mod stats;
pub mod subject;
pub mod table;
pub mod tsc;
pub mod tune;

pub use alternate::{Alternated, Block, Difference, Plan, alternate, measure};
pub use error::Error;
pub use stats::{Histogram, Samples, Summary};
pub use tsc::Tsc;
