//! Bills (`impl Control`): pages of a tenant's leases and their cost.

use dayfly_protocol::error::Failure;
use dayfly_protocol::tenancy::{BillLine, BillPage, Role};
use dayfly_store::{BillQuery, LeaseRecord};

use crate::cluster::Cluster;
use crate::control::Control;
use crate::extractors::Caller;
use crate::tenants::no_such_tenant;

/// Lines of one page.
pub const MAX_LINES: u32 = 1_000;

impl Control {
    /// Returns a page of the bill of this tenant; without one, of the caller's tenant, or for operators of all tenants.
    pub async fn bill(&self, caller: &Caller, tenant: Option<String>, query: BillQuery) -> Result<BillPage, Failure> {
        let tenant = match tenant {
            None if caller.role < Role::Operator => Some(caller.bearer.tenant),
            None => None,
            Some(name) => {
                let found = self.cluster().tenants().named(&name).map(|account| account.record().id);
                let found = found.filter(|tenant| caller.sees(*tenant));
                Some(found.ok_or_else(|| no_such_tenant(&name))?)
            }
        };
        let query = BillQuery { tenant, ..query };
        // Recent grants may be on their way to the store.
        self.journal().drained().await;
        let records = self.store().bill(query).wait().await?;
        let last = records.last().filter(|_| records.len() == query.limit as usize);
        let next = last.map(|record| format!("{}-{}", record.granted_at_ms, record.lease));
        let cluster = self.cluster();
        let lines = records.iter().map(|record| bill_line(&cluster, record)).collect();
        Ok(BillPage { lines, next })
    }
}

fn bill_line(cluster: &Cluster, record: &LeaseRecord) -> BillLine {
    let cost = record.cost();
    let tenant = cluster.tenants().get(&record.tenant);
    BillLine {
        lease: record.lease,
        tenant: record.tenant,
        tenant_name: tenant.map_or_else(String::new, |account| account.record().name.clone()),
        node: record.node,
        state: record.state,
        granted_at_ms: record.granted_at_ms,
        ended_at_ms: record.ended_at_ms,
        workers: record.workers,
        cores_per_worker: record.cores_per_worker,
        memory_bytes: record.memory_bytes,
        mode: record.mode,
        usage: record.usage,
        functions: record.functions.clone(),
        loans: record.loans,
        prices: record.prices,
        allocation: cost.allocation,
        computing: cost.computing,
        polling: cost.polling,
        borrowing: cost.borrowing,
        total: cost.total(),
    }
}
