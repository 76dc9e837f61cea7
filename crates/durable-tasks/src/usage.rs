//! Usage: what tasks cost, by day, tenant, function and endpoint, and who pays for it.
//!
//! Adds to `State` the payer at an endpoint, which needs the endpoints.

use std::collections::{BTreeMap, HashMap};

use dayfly_lease::Cost;
use dayfly_protocol::api;
use dayfly_protocol::error::Failure;
use dayfly_protocol::functions::Resources;
use dayfly_protocol::ids::{EndpointId, TenantId};
use dayfly_protocol::tasks::UsageLine;
use dayfly_protocol::tenancy::Prices;
use dayfly_store::tasks::EndpointRecord;
use dayfly_store::teams::{Usage, UsageKey};

use crate::endpoints::LOCAL;
use crate::state::State;
use crate::{Tasks, Tenants};

const DAY_MS: u64 = 24 * 3600 * 1000;
/// Days for which usage is kept.
const KEPT_DAYS: u32 = 800;
/// Maximum number of lines in one response.
const MAX_LINES: u32 = 100_000;

/// The day of a time in milliseconds, counted from the Unix epoch.
pub fn day_of(ms: u64) -> u32 {
    u32::try_from(ms / DAY_MS).unwrap_or(u32::MAX)
}

/// The first day whose usage is kept.
pub fn first_kept_day(now_ms: u64) -> u32 {
    day_of(now_ms).saturating_sub(KEPT_DAYS)
}

/// What tasks cost.
#[derive(Default)]
pub struct UsageTotals {
    /// Usage since the last write to the store.
    unwritten: HashMap<UsageKey, Usage>,
    /// Written cost of each tenant's tasks in all, in billionths.
    costs: HashMap<TenantId, u64>,
}

impl UsageTotals {
    /// The costs that the store has.
    pub fn restored(costs: Vec<(TenantId, u64)>) -> Self {
        Self {
            unwritten: HashMap::new(),
            costs: costs.into_iter().collect(),
        }
    }

    /// Counts an execution: the microseconds of all its workers, and its cost in billionths.
    pub fn add_execution(&mut self, key: UsageKey, took_us: u64, cost: u64) {
        let usage = self.unwritten.entry(key).or_default();
        usage.took_us = usage.took_us.saturating_add(took_us);
        usage.cost = usage.cost.saturating_add(cost);
    }

    /// Counts a task that has ended.
    pub fn add_ended(&mut self, key: UsageKey, failed: bool) {
        let usage = self.unwritten.entry(key).or_default();
        usage.tasks += 1;
        usage.failed += u64::from(failed);
    }

    /// Takes the usage that is to be written.
    pub fn take_unwritten(&mut self) -> Vec<(UsageKey, Usage)> {
        self.unwritten.drain().collect()
    }

    /// Adds written usage to the costs. Returns the new total of each tenant whose cost has changed.
    pub fn add_costs(&mut self, usage: &[(UsageKey, Usage)]) -> Vec<(TenantId, u64)> {
        let mut charged = BTreeMap::new();
        for (key, usage) in usage.iter().filter(|(_, usage)| usage.cost > 0) {
            let total = self.costs.entry(key.tenant).or_default();
            *total = total.saturating_add(usage.cost);
            charged.insert(key.tenant, *total);
        }
        charged.into_iter().collect()
    }
}

/// The charges for executions at one endpoint.
pub struct Charges {
    /// Owner of the endpoint; `None` for the manager's own, where leases are charged instead.
    owner: Option<TenantId>,
    /// Prices of the tenant that was charged last.
    last: Option<(TenantId, Prices)>,
}

impl Charges {
    /// The cost of one execution in billionths. The endpoint's owner pays nothing.
    pub fn cost(&mut self, tenants: &dyn Tenants, tenant: TenantId, took_us: u64, resources: &Resources) -> u64 {
        if self.owner.is_none_or(|owner| owner == tenant) {
            return 0;
        }
        let prices = match self.last {
            Some((last, prices)) if last == tenant => prices,
            _ => self.last.insert((tenant, tenants.prices(tenant))).1,
        };
        let workers = resources.workers();
        let us = took_us.saturating_mul(workers.into());
        let used = api::Usage {
            computing_us: us,
            allocated_us: us,
            ..api::Usage::default()
        };
        let memory_bytes = resources.memory_bytes.saturating_mul(workers.into());
        Cost::of(&prices, &used, memory_bytes, workers, resources.cores, resources.gpus).total()
    }
}

impl State {
    /// The charges for executions at an endpoint.
    pub fn charges_at(&self, id: EndpointId) -> Charges {
        let record = |id| self.endpoints.get(id).map(|endpoint| endpoint.record());
        let record_of_owner = |at: &EndpointRecord| match at.of {
            Some(of) => record(of.endpoint).map(|above| above.tenant),
            None => Some(at.tenant),
        };
        let at = record(id).filter(|at| at.name != LOCAL);
        Charges {
            owner: at.and_then(record_of_owner),
            last: None,
        }
    }
}

impl Tasks {
    /// What tasks cost that ended in a period, by whole days (UTC), for one tenant or for all.
    pub async fn usage(
        &self,
        from_ms: u64,
        until_ms: u64,
        tenant: Option<TenantId>,
    ) -> Result<Vec<UsageLine>, Failure> {
        let until = day_of(until_ms.saturating_add(DAY_MS - 1));
        let used = self
            .store
            .usage(day_of(from_ms), until, tenant, MAX_LINES)
            .wait()
            .await?;
        let names: HashMap<TenantId, String> = used
            .iter()
            .map(|(key, _)| (key.tenant, self.tenants.name(key.tenant)))
            .collect();
        let state = self.state();
        let line = |(key, usage): (UsageKey, Usage)| UsageLine {
            day_ms: u64::from(key.day) * DAY_MS,
            tenant: names.get(&key.tenant).cloned().unwrap_or_default(),
            function: key.function,
            name: state.functions.name(key.function),
            endpoint: state.endpoints.name(key.endpoint),
            tasks: usage.tasks,
            failed: usage.failed,
            took_ms: usage.took_us / 1000,
            cost: usage.cost,
        };
        Ok(used.into_iter().map(line).collect())
    }
}
