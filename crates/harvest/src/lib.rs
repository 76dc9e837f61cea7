//! Harvesting policy: lends what running calls own and do not use, as long as it lasts, and never at the lender's cost.
//! Pure: no I/O, no clock, no randomness without a seed. Times are microseconds of a clock that nobody sets.
//!
//! The ideas are those of LIBRA (Yu and others, HPDC 2023, doi 10.1145/3588195.3592996).
//!
//! - [`amount`]: amounts of processor time and memory;
//! - [`demand`]: what is known about a call, and what is predicted from it;
//! - [`forest`]: random forests whose leaves keep their samples;
//! - [`profile`]: profiles of functions, which predict the demand of calls;
//! - [`rules`]: what sites and published systems decide differently;
//! - [`pool`]: the idle units of one resource on one node, who lent them, and who has them;
//! - [`engine`]: the policy of one node: events go in, changes of limits come out;
//! - [`random`]: seeded random numbers;
//! - [`record`]: what an engine was told and decided, line by line;
//! - [`coverage`]: how much of what a call wants a node's pools can give, and for how long;
//! - [`placement`]: the node on which a call runs.

pub mod amount;
pub mod coverage;
pub mod demand;
pub mod engine;
pub mod forest;
mod histogram;
pub mod placement;
pub mod pool;
pub mod profile;
pub mod random;
pub mod record;
pub mod rules;
mod unreserved;

pub use amount::{Amount, Resource};
pub use coverage::{Claim, ExpectedPools, Spare, Step, Steps, StepsError, Want};
pub use demand::{CallId, Demand, Features, FunctionId, Prediction, Predictor, Sample, TenantId};
pub use engine::{Action, Begin, Engine, Event, Group, Mode, Outcome};
pub use placement::{Heartbeat, NodeIndex, Request, Scheduler, SchedulerKind, SchedulerOptions, Shard};
pub use profile::{Models, Options, Profiles, Trains};
pub use rules::Rules;
