//! Numbers of tenants and functions for the policy, and the functions' names for reports.

use std::collections::BTreeMap;

use dayfly_harvest::{Amount, FunctionId};
use dayfly_protocol::api::{MAX_PROFILES, OTHER_FUNCTIONS, is_named};
use dayfly_protocol::ids::{LeaseId, TenantId};
use sha2::{Digest, Sha256};

/// Most functions of a tenant with profiles of their own. A node keeps 4,096 profiles.
const MAX_FUNCTIONS: usize = 64;
/// Most functions whose names are kept, for reports. The policy needs only their numbers.
const MAX_NAMES: usize = 4096;

/// Numbers of tenants and functions for the policy. Names come from meters, which workers can falsify.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// In the order of appearance.
    tenants: BTreeMap<TenantId, Tenant>,
    kept: usize,
}

#[derive(Debug)]
struct Tenant {
    number: u32,
    functions: BTreeMap<FunctionId, KnownFunction>,
}

/// A function of a tenant.
#[derive(Debug, Clone)]
pub(super) struct KnownFunction {
    /// Its name in the meter, with the beginning of its code's hash. `None` beyond [`MAX_NAMES`].
    name: Option<Box<str>>,
    /// What its last call owned.
    owned: Amount,
    /// The lease that ran it last, and whether its calls may lend.
    lease: Option<LeaseId>,
    may_lend: bool,
}

impl KnownFunction {
    /// Its name in the meter.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    /// Whether its last call might lend.
    pub fn may_lend(&self) -> bool {
        self.may_lend
    }

    /// What its last call owned.
    pub fn owned(&self) -> Amount {
        self.owned
    }
}

impl Names {
    /// The numbers of a tenant and of its function, a call of which owns this much. A tenant's functions beyond
    /// [`MAX_FUNCTIONS`] share a profile, so that no tenant displaces the profiles of others.
    pub fn of(&mut self, tenant: TenantId, function: &str, owned: Amount) -> (dayfly_harvest::TenantId, FunctionId) {
        let next = u32::try_from(self.tenants.len()).unwrap_or(u32::MAX);
        let known = self.tenants.entry(tenant).or_insert_with(|| Tenant {
            number: next,
            functions: BTreeMap::new(),
        });
        let (mut id, mut name) = (function_id(tenant, function), function);
        if !known.functions.contains_key(&id) && known.functions.len() >= MAX_FUNCTIONS {
            (id, name) = (function_id(tenant, ""), OTHER_FUNCTIONS);
        }
        let kept = &mut self.kept;
        let function = known.functions.entry(id).or_insert_with(|| {
            let name = (*kept < MAX_NAMES).then(|| name.into());
            *kept += usize::from(name.is_some());
            KnownFunction {
                name,
                owned,
                lease: None,
                may_lend: true,
            }
        });
        function.owned = owned;
        (dayfly_harvest::TenantId(known.number), id)
    }

    /// Notes that a lease, whose calls may lend or not, runs a function of a tenant. Returns whether it is the first.
    pub fn note_lease(&mut self, tenant: TenantId, function: FunctionId, lease: LeaseId, may_lend: bool) -> bool {
        let known = self.tenants.get_mut(&tenant);
        let Some(known) = known.and_then(|tenant| tenant.functions.get_mut(&function)) else {
            return false;
        };
        known.may_lend = may_lend;
        known.lease.replace(lease).is_none()
    }

    /// The lease that ran a function last, and its name in the meter. `None` for functions that share a profile.
    pub fn last_lease(&self, function: FunctionId) -> Option<(LeaseId, String)> {
        let known = self
            .tenants
            .values()
            .find_map(|tenant| tenant.functions.get(&function))?;
        let name = known.name.as_deref().filter(|name| *name != OTHER_FUNCTIONS)?;
        Some((known.lease?, name.to_owned()))
    }

    /// The functions of a tenant that a text names, at most [`MAX_PROFILES`].
    pub fn named(&self, tenant: TenantId, wanted: &str) -> Vec<(FunctionId, KnownFunction)> {
        let known = self
            .tenants
            .get(&tenant)
            .into_iter()
            .flat_map(|tenant| &tenant.functions);
        let named = known.filter(|(_, function)| is_named(function.name(), wanted));
        named
            .take(MAX_PROFILES)
            .map(|(id, function)| (*id, function.clone()))
            .collect()
    }
}

/// The profile of a function: that of one tenant only, so that nobody spoils another's.
fn function_id(tenant: TenantId, function: &str) -> FunctionId {
    let digest = Sha256::new().chain_update(tenant.0).chain_update(function).finalize();
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    FunctionId(u64::from_le_bytes(first))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const OWNED: Amount = Amount::new(1_000, 1 << 30);

    #[test]
    fn tenants_share_no_profile_of_a_function() {
        let (one, other) = (TenantId([1; 16]), TenantId([2; 16]));
        assert_eq!(function_id(one, "f@1"), function_id(one, "f@1"));
        assert_ne!(function_id(one, "f@1"), function_id(other, "f@1"));
        assert_ne!(function_id(one, "f@1"), function_id(one, "f@2"));
    }

    #[test]
    fn invented_functions_displace_no_other_profile() {
        let (mut names, tenant) = (Names::default(), TenantId([1; 16]));
        let first = names.of(tenant, "f0", OWNED);
        let invented: BTreeSet<_> = (0..10_000).map(|n| names.of(tenant, &format!("f{n}"), OWNED)).collect();
        assert_eq!(invented.len(), MAX_FUNCTIONS + 1);
        assert_eq!(names.of(tenant, "f0", OWNED), first);
        let other = names.of(TenantId([2; 16]), "f0", OWNED);
        assert!(!invented.contains(&other) && other.0 != first.0);
    }

    #[test]
    fn tenant_finds_only_its_own_functions() {
        let (mut names, one, other) = (Names::default(), TenantId([1; 16]), TenantId([2; 16]));
        let (_, id) = names.of(one, "m.f@12345678", OWNED);
        names.of(other, "m.f@12345678", Amount::new(2_000, 1));
        names.of(one, "m.g@12345678", OWNED);
        let found = names.named(one, "f");
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].0, found[0].1.owned()), (id, OWNED));
        assert!(names.named(TenantId([3; 16]), "f").is_empty());
    }

    #[test]
    fn first_lease_of_a_function_is_noticed() {
        let (mut names, tenant) = (Names::default(), TenantId([1; 16]));
        let (_, id) = names.of(tenant, "f@1", OWNED);
        assert_eq!(names.last_lease(id), None);
        assert!(names.note_lease(tenant, id, LeaseId([1; 16]), true));
        assert!(!names.note_lease(tenant, id, LeaseId([2; 16]), true));
        assert!(!names.note_lease(TenantId([2; 16]), id, LeaseId([3; 16]), true));
        assert_eq!(names.last_lease(id), Some((LeaseId([2; 16]), "f@1".into())));
        for n in 0..MAX_FUNCTIONS {
            names.of(tenant, &format!("g{n}@1"), OWNED);
        }
        let (_, shared) = names.of(tenant, "h@1", OWNED);
        names.note_lease(tenant, shared, LeaseId([1; 16]), true);
        assert_eq!(names.last_lease(shared), None);
    }

    #[test]
    fn names_and_reports_have_a_bound() {
        let mut names = Names::default();
        for tenant in 0..=255 {
            for n in 0..MAX_FUNCTIONS {
                names.of(TenantId([tenant; 16]), &format!("{n}.f@{n:08x}"), OWNED);
            }
        }
        assert_eq!(names.kept, MAX_NAMES);
        assert_eq!(names.named(TenantId([0; 16]), "f").len(), MAX_PROFILES);
        // Beyond the bound, functions have numbers, and no names.
        assert!(names.named(TenantId([255; 16]), "f").is_empty());
        assert_eq!(names.of(TenantId([255; 16]), "0.f@00000000", OWNED).0.0, 255);
    }
}
