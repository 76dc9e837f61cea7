//! What harvesting would give a site, before anybody switches it on: the policy of `dayfly-harvest` over virtual time.
//!
//! - [`call`]: one call: when it comes, what it owns, what it needs;
//! - [`cluster`]: nodes and schedulers; [`node`]: one node; [`machine`]: its processors and its memory;
//! - [`figures`]: drawings of simulations;
//! - [`freyr`]: the baseline Freyr, which chooses allocations by reinforcement learning;
//! - [`functions`]: the demand of ten measured functions by the size of their input;
//! - [`generate`]: seeded traces of these functions; [`history`]: what was learned before;
//! - [`log`]: logs of nodes, decided again;
//! - [`policy`]: the policies that are compared; [`study`]: one beside the one that harvests nothing;
//! - [`training`]: of the baseline Freyr;
//! - [`record`], [`report`]: what became of each call, and the figures of all;
//! - [`trace`]: calls in order, and the formats that they are read from.

mod arrival;
pub mod call;
pub mod cluster;
pub mod figures;
pub mod freyr;
pub mod functions;
pub mod generate;
pub mod history;
pub mod log;
pub mod machine;
pub mod node;
pub mod policy;
pub mod record;
pub mod report;
pub mod study;
pub mod trace;
pub mod training;

pub use call::{Call, Phase, Phases};
pub use trace::Trace;
