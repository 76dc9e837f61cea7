//! The dispatcher of one endpoint: it takes tasks from a manager, runs them on workers that it leases, and tells how they ended.
//!
//! A [`crew::Crew`] has the workers of one tenant and one runtime: tenants share no worker. It leases them when tasks come, in
//! lanes ([`lane::Lane`]: a lease, its pool of channels and the thread that drives it), and gives them back when none have come for
//! a while. Nothing here is durable: the manager has every task until its outcome is written down there.

mod crew;
mod dispatcher;
mod lane;

pub use dispatcher::{Dispatcher, Handle, Options};
