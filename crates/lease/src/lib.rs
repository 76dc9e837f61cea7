//! Pure lease policy: capability tokens, lease state machine, resource ledger, placement and billing arithmetic.
//!
//! No I/O, no clock, no randomness: time comes in as milliseconds, random bytes as bytes, and what should be done comes
//! out as a value. The daemons and the simulator run the same code.
//!
//! - [`key`]: Ed25519 keys, and their encodings for TLS raw public keys;
//! - [`token`]: signing and checking of tokens, hellos and verdicts; [`replay`] remembers hellos that were seen;
//! - [`delegation`]: parts of a lease in other hands;
//! - [`direct`]: leasing straight from nodes under an allowance;
//! - [`state`]: the life of one lease by its node's monotonic clock;
//! - [`ledger`]: what one node has and who holds it;
//! - [`placement`]: which node should get a lease, and [`gang`] how many of its workers;
//! - [`health`]: which nodes keep failing, and get none for a while;
//! - [`billing`]: what a lease used, and what it costs;
//! - [`quota`]: what a tenant may hold and spend;
//! - [`rendezvous`]: a manager's word that ranks may meet there;
//! - [`admission`]: how many may stand at a door who have shown nothing yet.

pub mod admission;
pub mod billing;
pub mod delegation;
pub mod direct;
pub mod gang;
pub mod health;
pub mod key;
pub mod ledger;
pub mod placement;
pub mod quota;
pub mod rendezvous;
pub mod replay;
pub mod state;
pub mod token;

pub use billing::Cost;
pub use delegation::Delegations;
pub use key::SigningKey;
pub use ledger::{Ledger, Reservation};
pub use replay::ReplayWindow;
pub use state::{Lease, State, Step, Terms};
pub use token::TokenError;
