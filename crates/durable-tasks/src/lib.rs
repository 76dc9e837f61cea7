//! Durable tasks: accepted on behalf of clients that may disconnect, sent to endpoints, and kept until their outcomes
//! are fetched.
//!
//! Everything except arguments and results is in memory, and the store has all of it, so a restarted manager continues
//! where the last one stopped. A task is in the store before its submission is confirmed. An attempt is in the store
//! before it is sent, unless the task may be executed twice. An outcome is in the store before anyone can read it.
//!
//! [`Tasks::start`] takes a store, [`ContentOptions`], and the accounts of its manager as [`Tenants`]. The manager
//! turns requests, and the connections of dispatchers, into calls of [`Tasks`].
//!
//! One lock guards `state::State`. Its parts own their fields, and each has a module:
//!
//! | part | module |
//! |---|---|
//! | tasks that have not ended, by id, deadline and dependency | `live_tasks` |
//! | endpoints, with queue and connection | `endpoints`, `connection`, `open_requests` |
//! | functions, with their code | `functions`, `code_cache`, `function_names` |
//! | numbers and counts of outcomes | `outcomes` |
//! | recent outcomes by tag | `tag` |
//! | results by computation | `memo` |
//! | cost | `usage` |
//! | printed output; loans | `output`, `loans` |
//! | triggers, flows, teams | `triggers`, `flows`, `teams` |
//!
//! The other modules have the rules that change several parts, in the order of a task's life: `recovery`,
//! `registration`, `submission`, `compatibility`, `account_endpoints`, `dependencies`, `dispatch`,
//! `dispatcher_messages`, `cancellation`, `maintenance`, `provenance`, `queries`, `repetition`, `retention`, and
//! `invitations` for leases without tasks. `contents` stores long arguments and results.

mod account_endpoints;
mod cancellation;
mod code_cache;
mod compatibility;
mod connection;
mod contents;
mod dependencies;
mod detached;
mod dispatch;
mod dispatcher_messages;
mod endpoints;
mod flows;
mod function_names;
mod functions;
mod invitations;
mod live_tasks;
mod loans;
mod maintenance;
mod memo;
mod open_requests;
mod outcomes;
mod output;
mod provenance;
mod queries;
mod recovery;
mod registration;
mod repetition;
mod retention;
mod state;
mod submission;
mod tag;
mod teams;
#[cfg(test)]
mod tests;
mod triggers;
mod usage;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dayfly_protocol::error::Failure;
use dayfly_protocol::ids::TenantId;
use dayfly_protocol::tenancy::Prices;
use dayfly_store::tasks::TaskStore;
use tokio::sync::{RwLock, mpsc};

pub use cancellation::TaskScope;
pub use connection::Conversation;
pub use contents::{ContentOptions, Contents};
pub use endpoints::LOCAL;
pub use function_names::name_of;
pub use functions::may_run;
pub use queries::TextFilter;
use state::State;
pub use submission::Submitter;
pub use teams::check_team;
pub use triggers::{SourceEvent, TriggerAuthor, check_trigger_lengths};

/// The accounts of tenants.
pub trait Tenants: Send + Sync {
    /// The tenant's name.
    fn name(&self, tenant: TenantId) -> String;

    /// Refuses a tenant that is suspended or over budget.
    fn may_spend(&self, tenant: TenantId) -> Result<(), Failure>;

    /// The prices that the tenant pays.
    fn prices(&self, tenant: TenantId) -> Prices;

    /// Charges tenants for their tasks. Takes the total cost of each tenant's tasks in billionths, so repeating it
    /// changes nothing.
    fn charge(&self, totals: Vec<(TenantId, u64)>);
}

/// The tasks of one manager.
pub struct Tasks {
    state: Mutex<State>,
    store: Arc<dyn TaskStore>,
    /// Long arguments and results.
    pub contents: Arc<Contents>,
    /// Outcomes that the store is writing.
    unwritten: mpsc::UnboundedSender<outcomes::UnwrittenOutcomes>,
    health: outcomes::StoreHealth,
    flow_memory: flows::FlowMemory,
    /// Read-locked while a function is registered, write-locked while functions are changed or removed, in the store
    /// and in memory.
    changing_functions: RwLock<()>,
    /// Held while output is written.
    writing_output: tokio::sync::Mutex<()>,
    tenants: Box<dyn Tenants>,
    /// Retention of ended tasks and their outcomes.
    retention: Duration,
}

impl Tasks {
    /// Disconnects all dispatchers, because another manager has the tasks now.
    pub fn close(&self) {
        for endpoint in self.state().endpoints.iter_mut() {
            endpoint.close();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No change of the state panics between two steps that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Retention of ended tasks in milliseconds.
    fn retention_ms(&self) -> u64 {
        u64::try_from(self.retention.as_millis()).unwrap_or(u64::MAX)
    }

    /// Sends the waiting tasks of a tenant that may spend again.
    pub fn resume_tenant(&self, tenant: TenantId) {
        if self.tenants.may_spend(tenant).is_ok() {
            for endpoint in self.state().endpoints.iter() {
                endpoint.wake();
            }
        }
    }
}
