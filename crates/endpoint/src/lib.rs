//! A site: the dispatcher of one endpoint, and the nodes that it gets from a batch system.
//!
//! - [`dispatcher`]: takes tasks from a manager, runs them on workers that it leases, and tells how they ended. A [`crew::Crew`] has
//!   the workers of one tenant and one runtime: tenants share no worker. It leases them when tasks come, in lanes
//!   ([`lane::Lane`]: a lease, or those of a gang, its pools of channels and the thread that drives them), and gives them back
//!   when none have come for a while, or others find no room ([`crowd`]). Nothing here is durable: the manager has every task until its outcome is written down there;
//! - [`contents`]: arguments and answers that are long, which travel beside all that;
//! - [`watch`]: files that triggers wait for, in directories and buckets that the site sees;
//! - [`connection`]: the way to a manager at another host, and [`outbox`]: outcomes that wait for it;
//! - [`blocks`]: jobs of a batch system, as many as the tasks can use, by a [`provider`].

pub mod blocks;
pub mod connection;
mod contents;
mod crew;
mod crowd;
mod dispatcher;
mod lane;
mod outbox;
pub mod provider;
mod watch;

pub use contents::Contents;
pub use dispatcher::{Admission, Dispatcher, Handle, Invites, Most, Options, Places, Suits, Tenants};
