//! The control plane: HTTP API, placement, leases, ledger, events.
//!
//! [`Manager::start`] takes [`Options`] and gives a [`Handle`]. Inside, `http` turns requests, `sessions` the nodes'
//! messages and `control::keep_time` the clock into calls on one `Control`. It decides on the `cluster`, which is all in
//! memory; `journal` and [`dayfly_store`] write down what must survive. What decides (placement, lifetimes, billing) is
//! [`dayfly_lease`]'s; nothing here ever sees the payload of an invocation. Durable tasks are in
//! [`dayfly_durable_tasks`].
//!
//! A grant: `http::create_lease` → `Control::grant` → placement orders the nodes → an offer over the node's own
//! connection → its answer → the journal → a signed token. The node alone allocates; the manager's idea of what is free
//! only orders whom to ask.

mod allowances;
mod cluster;
mod connection;
mod control;
mod dispatchers;
mod error;
mod extractors;
mod forwarding;
mod gangs;
mod history;
mod http;
mod identity;
mod journal;
mod leases;
mod logins;
mod manager;
mod metrics;
pub mod oidc;
mod openapi;
mod options;
mod peers;
mod principal;
mod reclaim;
mod server;
mod sessions;
mod task_owner;
mod tenants;
mod token_registry;

#[cfg(test)]
mod tests;

pub use control::SiteEvent;
pub use error::Error;
pub use manager::{Handle, Manager};
pub use openapi::document as openapi_document;
pub use options::{Options, StoreKind};
