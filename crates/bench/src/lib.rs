//! Measures Dayfly beside the machine's own limits, in the same run.
//!
//! - [`tsc`], [`stats`], [`alternate`]: clock, percentiles, measurement of two sides in turns.
//! - [`baseline`]: limits of the machine, measured without Dayfly's code.
//! - [`comm`]: ranks of a group beside those of MPI. [`tune`]: algorithms of collectives beside each other.
//! - [`busy`]: whether the machine was quiet enough for reliable figures.
//! - [`report`], [`table`], [`picture`]: figures as JSON, text and charts.

pub mod alternate;
pub mod baseline;
pub mod busy;
pub mod cold;
pub mod comm;
pub mod control;
pub mod error;
pub mod fleet;
pub mod invoke;
pub mod machine;
pub mod offload;
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
