//! Scheduling of durable tasks: pure policy, without I/O, clock or randomness.
//!
//! - [`queue`]: whose task is next, by fair share between tenants and priority within one;
//! - [`window`]: how many tasks to have at a dispatcher, by what they cost;
//! - [`fate`]: what becomes of a task after an execution or a fault;
//! - [`blocks`]: how many nodes to ask a batch system for;
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
pub use fate::{Fate, MOST_FAULTS, Terms, fate, next_wait};
pub use queue::Queue;
pub use timer::{Due, Timer};
pub use window::{Cost, Window, gives};
