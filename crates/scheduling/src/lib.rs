//! Scheduling policy for durable tasks. Pure: no I/O, no clock, no randomness.
//!
//! - [`queue`]: the order of tasks, by fair share between tenants and by priority within one;
//! - [`window`]: how many tasks to have at a dispatcher, by their cost;
//! - [`fate`]: whether a task ends, is retried or is requeued after an attempt;
//! - [`blocks`]: how many blocks of nodes to request from a batch system;
//! - [`busy`]: how long executions had workers;
//! - [`timer`]: when a timer is due.

pub mod blocks;
pub mod busy;
pub mod fate;
pub mod queue;
pub mod timer;
pub mod window;

pub use blocks::{Block, BlockTerms, Demand, Plan, plan};
pub use busy::Busy;
pub use fate::{Fate, MAX_FAULTS, Terms, fate, next_wait};
pub use queue::Queue;
pub use timer::{Due, Timer};
pub use window::{Cost, Window, gives};
