//! The control plane: HTTP API, placement, leases, ledger, events.
//!
//! [`Manager::start`] takes [`Options`] and returns a [`Handle`]. Three sources call one `Control`: `http` with
//! requests, `sessions` with the nodes' messages, and `control::run_clock` with the time. `Control` composes parts that
//! each own their state: `cluster` (nodes, leases, tenants, tokens, allowances, all in memory), `journal` and
//! [`dayfly_store`] (the durable state), `peers`, `task_owner`, `audit`, `events`, `metrics`, `queries` and `history`.
//! Policy (placement, lifetimes, billing) is in [`dayfly_lease`], and durable tasks are in [`dayfly_durable_tasks`]. The
//! payload of an invocation never passes through this crate.
//!
//! A grant: `http::leases::create_lease` → `Control::grant` → placement orders the nodes → an offer over the node's
//! connection → its response → the journal → a signed token. Only the node allocates. The manager's figures of free
//! resources only decide which node is asked first.

mod allowances;
mod audit;
mod billing;
mod browser_sessions;
mod cluster;
mod connection;
mod control;
mod dispatchers;
mod error;
mod events;
mod extractors;
mod forwarding;
mod gangs;
mod group_prefixes;
mod history;
mod http;
mod identity;
mod journal;
mod leases;
mod logins;
mod manager;
mod metrics;
mod node_requests;
pub mod oidc;
mod openapi;
mod options;
mod peers;
mod principal;
mod profiles;
mod queries;
mod reclaim;
mod samples;
mod server;
mod sessions;
mod shutdown;
mod task_owner;
mod tenants;
mod tickets;
mod token_registry;
mod tokens;

#[cfg(test)]
mod tests;

pub use cluster::LendingReport;
pub use error::Error;
pub use events::SiteEvent;
pub use manager::{Handle, Manager};
pub use openapi::document as openapi_document;
pub use options::{Options, StoreKind};
