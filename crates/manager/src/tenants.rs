//! Tenants and prices (`impl Control`): changes, listing, and the revocation of leases of tenants that may not spend.

use std::sync::Arc;

use dayfly_lease::quota::Held;
use dayfly_protocol::api::LeaseState;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{LeaseId, TenantId};
use dayfly_protocol::tenancy::{Prices, Tenant, TenantSpec};
use dayfly_store::TenantRecord;
use dayfly_store::system::random;

use crate::cluster::Account;
use crate::control::Control;
use crate::extractors::Caller;

/// Name of the tenant of the user who started the manager.
pub const OWN_TENANT: &str = "default";
/// Characters of a tenant's or token's name.
const MAX_NAME: usize = 64;
/// Highest price: nine units of account for a millisecond. A higher one is a mistake.
const MAX_PRICE: u64 = i64::MAX as u64 / 1_000_000;

/// Checks the name of a tenant or token, which must be typeable and is part of paths of the API.
pub fn check_name(what: &str, name: &str) -> Result<(), Failure> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(allowed) {
        return Err(Failure::new(
            Code::InvalidRequest,
            format!(
                "`{name:.80}` is not a valid name for a {what}; use 1 to {MAX_NAME} of a-z, A-Z, 0-9, `-`, `_`, `.` and `@`"
            ),
        ));
    }
    Ok(())
}

fn check_prices(prices: &Prices) -> Result<(), Failure> {
    let all = [
        prices.allocation_per_gib_s,
        prices.computing_per_s,
        prices.polling_per_s,
        prices.core_per_s,
        prices.gpu_per_s,
        prices.borrowed_core_per_s,
        prices.borrowed_per_gib_s,
    ];
    if all.iter().any(|price| *price > MAX_PRICE) {
        return Err(Failure::new(
            Code::InvalidRequest,
            format!("a price exceeds {MAX_PRICE} billionths a second; set a lower one"),
        ));
    }
    Ok(())
}

/// Returns the error for a tenant that does not exist or that the caller may not see.
pub fn no_such_tenant(name: &str) -> Failure {
    Failure::new(
        Code::NotFound,
        format!("there is no tenant `{name:.80}` that you may see; `dayfly tenant list` lists those that you may"),
    )
}

impl Control {
    /// Makes a tenant or changes its limits.
    pub async fn set_tenant(
        self: &Arc<Self>,
        caller: &Caller,
        name: String,
        spec: TenantSpec,
    ) -> Result<Tenant, Failure> {
        check_name("tenant", &name)?;
        if let Some(prices) = &spec.prices {
            check_prices(prices)?;
        }
        self.audit().record(caller, "tenant.set", &name, &spec).await?;
        let record = self
            .store()
            .tenant(TenantId(random()), name.clone(), spec)
            .wait()
            .await?;
        let id = record.id;
        self.on_tenant(record);
        let status = self.cluster().tenants().get(&id).map(Account::status);
        status.ok_or_else(|| no_such_tenant(&name))
    }

    /// Lists the tenants that the caller may see, by name.
    pub async fn tenants(&self, caller: &Caller) -> Result<Vec<Tenant>, Failure> {
        let held: Vec<(TenantId, Held)> = match self.store().held() {
            Some(at_all_managers) => at_all_managers.wait().await?,
            None => Vec::new(),
        };
        let mut tenants: Vec<Tenant> = {
            let cluster = self.cluster();
            let accounts = cluster.tenants().values();
            let seen = accounts.filter(|account| caller.sees(account.record().id));
            seen.map(Account::status).collect()
        };
        for (id, held) in held {
            if let Some(tenant) = tenants.iter_mut().find(|tenant| tenant.id == id) {
                (tenant.leases, tenant.workers) = (held.leases, held.workers);
            }
        }
        tenants.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(tenants)
    }

    /// Returns a tenant's name, or its id if it is unknown.
    pub fn tenant_name(&self, tenant: TenantId) -> String {
        let cluster = self.cluster();
        let account = cluster.tenants().get(&tenant);
        account.map_or_else(|| tenant.to_string(), |account| account.record().name.clone())
    }

    /// Sets the prices for tenants without prices of their own.
    pub async fn set_prices(&self, caller: &Caller, prices: Prices) -> Result<Prices, Failure> {
        check_prices(&prices)?;
        self.audit().record(caller, "prices.set", "site", &prices).await?;
        self.store().prices(prices).wait().await?;
        self.cluster().tenants_mut().set_default_prices(prices);
        Ok(prices)
    }

    /// Checks that a tenant is neither suspended nor over budget.
    pub fn may_spend(&self, tenant: TenantId) -> Result<(), Failure> {
        Ok(self.cluster().tenants().may_spend(&tenant)?)
    }

    /// Records that tenants have spent this much in all. A tenant over budget loses its leases.
    pub fn on_charged(self: &Arc<Self>, spent: &[(TenantId, u64)]) {
        for (tenant, spent) in spent {
            self.cluster().tenants_mut().set_spent(tenant, *spent);
            self.enforce_budget(*tenant);
        }
    }

    /// Records a change of a tenant's limits or spending.
    pub fn on_tenant(self: &Arc<Self>, record: TenantRecord) {
        let id = record.id;
        self.cluster().tenants_mut().set(record);
        self.enforce_budget(id);
        if let Some(tasks) = self.task_owner().local() {
            tasks.resume_tenant(id);
        }
    }

    /// Revokes the leases and ends the allowances of a tenant that is suspended or over budget.
    fn enforce_budget(self: &Arc<Self>, tenant: TenantId) {
        let (reason, leases) = {
            let cluster = self.cluster();
            let Err(reason) = cluster.tenants().may_spend(&tenant) else {
                return;
            };
            let own = cluster.leases().live().filter(|record| record.tenant == tenant);
            (reason, own.map(|record| record.lease).collect::<Vec<LeaseId>>())
        };
        self.end_allowances_of(tenant);
        if leases.is_empty() {
            return;
        }
        tracing::warn!(%tenant, leases = leases.len(), %reason, "revoking leases");
        let control = Arc::clone(self);
        tokio::spawn(async move {
            for lease in leases {
                // An error means that the lease ended meanwhile.
                let _ = control.end(lease, LeaseState::Revoked).await;
            }
        });
    }
}
