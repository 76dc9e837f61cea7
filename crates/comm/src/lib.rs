//! Functions that talk to each other: N ranks form a group, connect to each other as well as they can, and exchange messages and
//! run collectives as MPI ranks do.
//!
//! - [`road`]: what connecting hands to communicating: one authenticated road for each pair of ranks, and news of lost ranks.

pub mod road;
