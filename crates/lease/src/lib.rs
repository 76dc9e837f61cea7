//! Lease policy as pure functions: capability tokens, the lease state machine, the resource ledger, placement and
//! billing.
//!
//! The crate does no I/O, reads no clock and draws no random numbers. Time is a parameter in milliseconds, random bytes
//! are a parameter, and the action to take is a return value. The daemons and the simulator run the same code.
//!
//! - [`key`]: Ed25519 keys, and their encodings for TLS raw public keys;
//! - [`token`]: signatures and checks of tokens, hellos and verdicts; [`replay`] remembers used hellos;
//! - [`delegation`]: parts of a lease that are delegated to other keys;
//! - [`allowance`]: leasing from nodes directly under an allowance;
//! - [`state`]: the states of one lease, by its node's monotonic clock;
//! - [`ledger`]: the resources of one node and the leases that hold them; [`shrink`] chooses the leases that end when it
//!   offers less;
//! - [`placement`]: the choice of nodes for a lease; [`gang`] divides a gang among nodes;
//! - [`fleet`]: growth and shrinkage of leases on many nodes;
//! - [`offload`]: division of calls between a program and leased workers;
//! - [`health`]: suspension of nodes that fail repeatedly;
//! - [`billing`]: metered usage and its cost;
//! - [`quantity`]: amounts in messages about limits;
//! - [`quota`]: limits on what a tenant may hold and spend;
//! - [`rendezvous`]: a manager's voucher for the server where ranks meet;
//! - [`admission`]: limits on unauthenticated connections.

pub mod admission;
pub mod allowance;
pub mod billing;
pub mod delegation;
pub mod fleet;
pub mod gang;
pub mod health;
pub mod key;
pub mod ledger;
pub mod offload;
pub mod placement;
pub mod quantity;
pub mod quota;
pub mod rendezvous;
pub mod replay;
pub mod shrink;
pub mod state;
pub mod token;

pub use billing::Cost;
pub use delegation::Delegations;
pub use key::SigningKey;
pub use ledger::{Ledger, Reservation};
pub use replay::ReplayWindow;
pub use state::{Lease, Step, Terms};
pub use token::TokenError;
