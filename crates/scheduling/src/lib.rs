//! Scheduling policy for durable tasks. Pure: no I/O, no clock, no randomness.
//!
//! - [`queue`]: the order of tasks, by fair share between tenants and by priority within one;
//! - [`window`]: how many tasks to have at a dispatcher, by their cost;
//! - [`retry`]: whether a task ends, is retried or is requeued after an attempt;
//! - [`blocks`]: how many blocks of nodes to request from a batch system;
//! - [`busy_time`]: how long executions had workers;
//! - [`timer`]: when a timer is due.

pub mod blocks;
pub mod busy_time;
pub mod queue;
pub mod retry;
pub mod timer;
pub mod window;

pub use blocks::{Block, BlockTerms, Demand, Plan, plan};
pub use busy_time::BusyTime;
pub use queue::Queue;
pub use retry::{Decision, MAX_FAULTS, RetryState, decide, next_wait};
pub use timer::{Due, Timer};
pub use window::{Cost, Window, accepts_more};
