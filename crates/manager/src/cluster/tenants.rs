//! The tenants, what their leases hold, and what is reserved of their quotas while nodes decide on offers.

use std::collections::HashMap;

use dayfly_lease::quota::{self, Held};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{LeaseId, TenantId};
use dayfly_protocol::tenancy::{Prices, Tenant};
use dayfly_store::{LeaseRecord, TenantRecord};

/// A tenant and its resources.
pub struct Account {
    record: TenantRecord,
    /// Resources of its live leases.
    held: Held,
    /// Resources reserved for offers and allowances.
    reserved: Held,
}

impl Account {
    fn new(record: TenantRecord) -> Self {
        Self {
            record,
            held: Held::default(),
            reserved: Held::default(),
        }
    }

    /// The stored record.
    pub fn record(&self) -> &TenantRecord {
        &self.record
    }

    /// Checks that the tenant is neither suspended nor over budget.
    pub fn may_spend(&self) -> Result<(), quota::QuotaError> {
        quota::may_spend(&self.record.name, &self.record.spec, self.record.spent)
    }

    /// Whether its quota limits memory.
    pub fn limits_memory(&self) -> bool {
        self.record.spec.quota.memory_bytes.is_some()
    }

    /// Returns the tenant as the API shows it.
    pub fn status(&self) -> Tenant {
        Tenant {
            id: self.record.id,
            name: self.record.name.clone(),
            spec: self.record.spec,
            spent: self.record.spent,
            spent_on_tasks: self.record.spent_on_tasks,
            leases: self.held.leases,
            workers: self.held.workers,
        }
    }
}

/// All tenants, and the prices of the site.
#[derive(Default)]
pub struct Tenants {
    accounts: HashMap<TenantId, Account>,
    /// Prices for tenants without prices of their own.
    prices: Prices,
    /// Reservations by lease. Those of allowances have the allowance's id as a lease id.
    reservations: HashMap<LeaseId, (TenantId, Held)>,
}

impl Tenants {
    pub(super) fn from_records(records: Vec<TenantRecord>, prices: Prices) -> Self {
        let accounts = records.into_iter().map(|record| (record.id, Account::new(record)));
        Self {
            accounts: accounts.collect(),
            prices,
            reservations: HashMap::new(),
        }
    }

    /// Returns the tenant with this id.
    pub fn get(&self, id: &TenantId) -> Option<&Account> {
        self.accounts.get(id)
    }

    /// Returns the tenant with this name.
    pub fn named(&self, name: &str) -> Option<&Account> {
        self.accounts.values().find(|account| account.record.name == name)
    }

    /// Iterates over all tenants.
    pub fn values(&self) -> impl Iterator<Item = &Account> {
        self.accounts.values()
    }

    /// Prices for tenants without prices of their own.
    pub fn default_prices(&self) -> Prices {
        self.prices
    }

    /// Prices that a tenant pays.
    pub fn prices_of(&self, tenant: &TenantId) -> Prices {
        let own = self.accounts.get(tenant).and_then(|account| account.record.spec.prices);
        own.unwrap_or(self.prices)
    }

    /// Checks that a tenant is neither suspended nor over budget. Accepts an unknown one.
    pub fn may_spend(&self, tenant: &TenantId) -> Result<(), quota::QuotaError> {
        self.accounts.get(tenant).map_or(Ok(()), Account::may_spend)
    }

    /// Sets the prices for tenants without prices of their own.
    pub fn set_default_prices(&mut self, prices: Prices) {
        self.prices = prices;
    }

    /// Adds a tenant or changes its limits.
    pub fn set(&mut self, record: TenantRecord) {
        let id = record.id;
        let account = self.accounts.entry(id).or_insert_with(|| Account::new(record.clone()));
        account.record.spec = record.spec;
        // Bookings may arrive in another order than they were stored.
        account.record.spent = account.record.spent.max(record.spent);
        account.record.spent_on_tasks = account.record.spent_on_tasks.max(record.spent_on_tasks);
    }

    /// Records that a tenant has spent this much in all. Bookings may arrive in another order than they were stored.
    pub fn set_spent(&mut self, tenant: &TenantId, spent: u64) {
        if let Some(account) = self.accounts.get_mut(tenant) {
            account.record.spent = account.record.spent.max(spent);
        }
    }

    /// Reserves resources for an offer or an allowance. Returns the tenant's prices.
    ///
    /// # Errors
    /// `Unauthorized` for an unknown tenant, `QuotaExceeded` beyond its quota or budget.
    pub fn reserve(&mut self, lease: LeaseId, tenant: TenantId, wanted: Held) -> Result<Prices, Failure> {
        let prices = self.prices_of(&tenant);
        let unknown = || Failure::new(Code::Unauthorized, format!("tenant {tenant} does not exist (any more)"));
        let account = self.accounts.get_mut(&tenant).ok_or_else(unknown)?;
        account.may_spend()?;
        let Account { record, held, reserved } = account;
        quota::may_hold(&record.name, &record.spec, held.plus(*reserved), wanted)?;
        *reserved = reserved.plus(wanted);
        self.reservations.insert(lease, (tenant, wanted));
        Ok(prices)
    }

    /// Reserves resources without a check.
    pub(super) fn reserve_unchecked(&mut self, lease: LeaseId, tenant: TenantId, wanted: Held) {
        if let Some(account) = self.accounts.get_mut(&tenant) {
            account.reserved = account.reserved.plus(wanted);
            self.reservations.insert(lease, (tenant, wanted));
        }
    }

    /// Ends a reservation: the lease is now held or was refused.
    pub fn release_reservation(&mut self, lease: LeaseId) {
        let Some((tenant, wanted)) = self.reservations.remove(&lease) else {
            return;
        };
        if let Some(account) = self.accounts.get_mut(&tenant) {
            account.reserved = account.reserved.minus(wanted);
        }
    }

    /// Counts a lease for its tenant.
    pub(super) fn hold(&mut self, record: &LeaseRecord) {
        if let Some(account) = self.accounts.get_mut(&record.tenant) {
            account.held = account.held.plus(record.held());
        }
    }

    /// Stops counting a lease for its tenant.
    pub(super) fn release(&mut self, record: &LeaseRecord) {
        if let Some(account) = self.accounts.get_mut(&record.tenant) {
            account.held = account.held.minus(record.held());
        }
    }
}
