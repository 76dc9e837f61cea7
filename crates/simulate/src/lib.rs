//! What harvesting would give a site, before anybody switches it on: the policy of `dayfly-harvest` over virtual time.
//!
//! - [`freyr`]: the baseline Freyr, which chooses allocations by reinforcement learning.

pub mod freyr;
