//! Harvesting policy: lends what running calls own and do not use, as long as it lasts, and never at the lender's cost.
//! Pure: no I/O, no clock, no randomness without a seed. Times are microseconds of a clock that nobody sets.
//!
//! The ideas are those of LIBRA (Yu and others, HPDC 2023, doi 10.1145/3588195.3592996).
//!
//! - [`amount`]: amounts of processor time and memory;
//! - [`demand`]: what is known about a call, and what is predicted from it;
//! - [`profile`]: profiles of functions, which predict the demand of calls.

pub mod amount;
pub mod demand;
mod histogram;
pub mod profile;

pub use amount::{Amount, Resource};
pub use demand::{CallId, Demand, Features, FunctionId, Prediction, Predictor, Sample, TenantId};
pub use profile::{Models, Options, Profiles};
