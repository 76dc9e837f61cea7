//! Durable tasks: accepted on behalf of clients that may go away, sent to endpoints, and kept until their outcomes are fetched.
//!
//! Everything is in memory but arguments and outcomes, which are in the store; the store has all of it at any time, so that a
//! manager that is started again goes on where it was. A task is written down before its submission is answered, and before it
//! is sent to be executed it is written down that it is, unless it may be executed twice. Its outcome is written down before
//! anybody hears of it.
//!
//! [`Tasks::start`] takes a store, [`ContentOptions`], and the accounts of its manager as [`Tenants`]. The manager turns
//! requests, and the connections of dispatchers, into calls on [`Tasks`]. One lock guards `state`; each of these modules
//! has a part of what changes it:
//!
//! - `live_task`: a task that has not ended, and where it is;
//! - `recovery`: what the store has of tasks when a manager starts;
//! - `upkeep`: deadlines, tasks that rest, and what is not needed any more;
//! - `endpoints`: where they can run, and `accounts`: as whom;
//! - `submit`: functions and tasks come in, and `functions` go;
//! - `contents`: arguments and answers that are long;
//! - `after`: tasks that come after others;
//! - `send`: tasks go to a dispatcher, as many as it has room for;
//! - `link`: what a dispatcher says;
//! - `looking`: what tasks there are, and how many;
//! - `memo`: tasks whose answer is known already;
//! - `cancel`: tasks end before their time;
//! - `direct`: who leases from an endpoint's nodes without tasks;
//! - `finish`: outcomes are written down, and told;
//! - `tag`: who waits for outcomes;
//! - `forgetting`: what their owner does not need goes;
//! - `sharing`: who shares with whom, and what it cost;
//! - `triggers`: what happens becomes tasks;
//! - `flows`: tasks come of other tasks' results.

mod account_endpoints;
mod cancellation;
mod code_cache;
mod compatibility;
mod connection;
mod contents;
mod dependencies;
mod dispatch;
mod endpoints;
mod flows;
mod function_names;
mod functions;
mod invitations;
mod live_task;
mod maintenance;
mod memo;
mod open_requests;
mod outcomes;
mod output;
mod provenance;
mod queries;
mod recovery;
mod retention;
mod state;
mod submission;
mod tag;
mod teams;
#[cfg(test)]
mod tests;
mod triggers;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dayfly_protocol::error::Failure;
use dayfly_protocol::ids::TenantId;
use dayfly_protocol::tenancy::Prices;
use dayfly_store::StoreError;
use dayfly_store::tasks::TaskStore;
use tokio::sync::{RwLock, mpsc};

pub use connection::Conversation;
pub use contents::{ContentOptions, Contents};
pub use endpoints::LOCAL;
pub use function_names::name_of;
pub use live_task::TaskScope;
use state::State;
pub use submission::{Submitter, may_run};
pub use teams::check_team;
pub use triggers::{SourceEvent, TriggerAuthor, check_trigger_lengths};

/// What is known of tenants where the accounts are.
pub trait Tenants: Send + Sync {
    /// Its name, for people.
    fn name(&self, tenant: TenantId) -> String;

    /// Refuses a tenant that is suspended, or has spent its budget.
    fn may_spend(&self, tenant: TenantId) -> Result<(), Failure>;

    /// What a tenant pays.
    fn prices(&self, tenant: TenantId) -> Prices;

    /// What the tasks of tenants cost in all, in billionths: written down, and charged from here on. A total may be said again.
    fn charge(&self, totals: Vec<(TenantId, u64)>);
}

/// The tasks of one manager.
pub struct Tasks {
    state: Mutex<State>,
    store: Arc<dyn TaskStore>,
    /// Long arguments and answers.
    pub contents: Arc<Contents>,
    finishing: mpsc::UnboundedSender<outcomes::UnwrittenOutcomes>,
    trouble: Mutex<Option<StoreError>>,
    /// How many bytes each tenant's flows have in memory.
    flow_bytes: Mutex<HashMap<TenantId, usize>>,
    /// Held by whoever makes functions known, and, alone, by whoever changes or removes some, in the books and here.
    changing_functions: RwLock<()>,
    /// Held by whoever writes what tasks printed: one at a time.
    keeping_printed: tokio::sync::Mutex<()>,
    tenants: Box<dyn Tenants>,
    /// A task and its outcome are forgotten so long after its end.
    kept: Duration,
}

impl Tasks {
    /// Another manager has them from now on: dispatchers are cut off, and go there.
    pub fn close(&self) {
        for endpoint in self.state().endpoints.values_mut() {
            endpoint.link = None;
            endpoint.wake.notify_one();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long outcomes are kept.
    fn kept_ms(&self) -> u64 {
        u64::try_from(self.kept.as_millis()).unwrap_or(u64::MAX)
    }

    /// A tenant may have got what it needs to go on.
    pub fn go_on_for(&self, tenant: TenantId) {
        if self.tenants.may_spend(tenant).is_ok() {
            for endpoint in self.state().endpoints.values() {
                endpoint.wake.notify_one();
            }
        }
    }

    /// What the store said, while it cannot write.
    fn trouble(&self) -> Option<StoreError> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
