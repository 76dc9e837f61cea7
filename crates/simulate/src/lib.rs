//! What harvesting would give a site, before anybody switches it on: the policy of `dayfly-harvest` over virtual time.
//!
//! - [`call`]: one call: when it comes, what it owns, what it needs;
//! - [`freyr`]: the baseline Freyr, which chooses allocations by reinforcement learning;
//! - [`functions`]: the demand of ten measured functions by the size of their input;
//! - [`generate`]: seeded traces of these functions;
//! - [`random`]: seeded random numbers;
//! - [`trace`]: calls in order, and the formats that they are read from.

mod arrival;
pub mod call;
pub mod freyr;
pub mod functions;
pub mod generate;
pub mod random;
pub mod trace;

pub use call::{Call, Phase, Phases};
pub use trace::Trace;
