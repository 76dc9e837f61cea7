//! The last samples of functions that nodes reported, for nodes that have not run them. They are kept in memory: after a
//! restart, nodes report new ones.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use dayfly_protocol::call_samples::{CallSample, MAX_REPORTED_SAMPLES, MAX_SAMPLES};
use dayfly_protocol::executor::METERED_NAME_BYTES;
use dayfly_protocol::ids::{LeaseId, NodeId, TenantId};
use dayfly_protocol::node_messages::ManagerMessage;

use crate::control::Control;

/// Most functions of one tenant. Beyond it, the tenant's function that was used longest ago is forgotten.
const MAX_FUNCTIONS_OF_TENANT: usize = 64;
/// Most functions of all tenants: 30 MiB.
const MAX_FUNCTIONS: usize = 512;

/// The samples of all functions.
#[derive(Debug, Default)]
pub struct KnownSamples(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// By the tenant, and the function's label in the meters of workers.
    functions: BTreeMap<(TenantId, String), Kept>,
    uses: u64,
}

#[derive(Debug, Default)]
struct Kept {
    /// Oldest first.
    samples: VecDeque<CallSample>,
    last_use: u64,
}

impl KnownSamples {
    /// Adds samples of a tenant's calls. What a node sends may be anything.
    fn add(&self, tenant: TenantId, function: String, samples: &[CallSample]) {
        let is_label = (1..=METERED_NAME_BYTES).contains(&function.len()) && !function.chars().any(char::is_control);
        if !is_label || samples.is_empty() {
            return;
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.make_room(tenant, &function);
        known.uses += 1;
        let use_number = known.uses;
        let kept = known.functions.entry((tenant, function)).or_default();
        kept.last_use = use_number;
        for sample in samples.iter().take(MAX_REPORTED_SAMPLES) {
            if kept.samples.len() >= MAX_SAMPLES {
                kept.samples.pop_front();
            }
            kept.samples.push_back(sample.sanitized());
        }
    }

    /// Returns the samples of a tenant's function, oldest first.
    fn of(&self, tenant: TenantId, function: &str) -> Vec<CallSample> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.uses += 1;
        let use_number = known.uses;
        let Some(kept) = known.functions.get_mut(&(tenant, function.to_owned())) else {
            return Vec::new();
        };
        kept.last_use = use_number;
        kept.samples.iter().copied().collect()
    }
}

impl Known {
    /// Forgets a function if one more would exceed a bound.
    fn make_room(&mut self, tenant: TenantId, function: &str) {
        if self.functions.contains_key(&(tenant, function.to_owned())) {
            return;
        }
        let of_tenant = self.functions.keys().filter(|(owner, _)| *owner == tenant).count();
        let is_full = self.functions.len() >= MAX_FUNCTIONS;
        if of_tenant < MAX_FUNCTIONS_OF_TENANT && !is_full {
            return;
        }
        let candidates = self
            .functions
            .iter()
            .filter(|((owner, _), _)| is_full && of_tenant < MAX_FUNCTIONS_OF_TENANT || *owner == tenant);
        let oldest = candidates
            .min_by_key(|(_, kept)| kept.last_use)
            .map(|(key, _)| key.clone());
        if let Some(oldest) = oldest {
            self.functions.remove(&oldest);
        }
    }
}

impl Control {
    /// Keeps samples that a node reported of a function that ran in a lease. A node reports only for its own leases, so
    /// it cannot invent samples of other tenants.
    pub fn keep_samples(&self, node: NodeId, lease: LeaseId, function: String, samples: &[CallSample]) {
        if let Some(tenant) = self.tenant_on(node, lease) {
            self.samples().add(tenant, function, samples);
        }
    }

    /// Sends a node the samples of a function that runs in one of its leases, also if there are none.
    pub fn send_samples(&self, node: NodeId, lease: LeaseId, function: String) {
        let Some(tenant) = self.tenant_on(node, lease) else {
            return;
        };
        let samples = self.samples().of(tenant, &function);
        if let Some(node) = self.cluster().nodes_mut().get_mut(&node) {
            node.send(ManagerMessage::Samples {
                tenant,
                function,
                samples,
            });
        }
    }

    /// The tenant of a lease that a node has, or had until recently.
    fn tenant_on(&self, node: NodeId, lease: LeaseId) -> Option<TenantId> {
        let cluster = self.cluster();
        let record = cluster.leases().get(&lease).filter(|record| record.node == node)?;
        Some(record.tenant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(duration_us: u64) -> CallSample {
        CallSample {
            duration_us,
            ..CallSample::default()
        }
    }

    const TENANT: TenantId = TenantId([1; 16]);

    #[test]
    fn last_samples_are_kept_in_order() {
        let known = KnownSamples::default();
        for first in (0..640).step_by(MAX_REPORTED_SAMPLES) {
            let samples: Vec<_> = (first..first + MAX_REPORTED_SAMPLES as u64).map(sample).collect();
            known.add(TENANT, "f@1".into(), &samples);
        }
        let durations: Vec<_> = known.of(TENANT, "f@1").iter().map(|one| one.duration_us).collect();
        assert_eq!(durations, (128..640).collect::<Vec<_>>());
        assert!(known.of(TenantId([2; 16]), "f@1").is_empty());
    }

    #[test]
    fn hostile_reports_are_bounded() {
        let known = KnownSamples::default();
        known.add(TENANT, "f@1".into(), &[sample(1); 5_000]);
        assert_eq!(known.of(TENANT, "f@1").len(), MAX_REPORTED_SAMPLES);
        for function in [String::new(), "f".repeat(10_000), "f\n".into()] {
            known.add(TENANT, function.clone(), &[sample(1)]);
            assert!(known.of(TENANT, &function).is_empty());
        }
    }

    #[test]
    fn many_functions_displace_their_tenants_first() {
        let known = KnownSamples::default();
        known.add(TenantId([2; 16]), "f@1".into(), &[sample(1)]);
        for number in 0..1_000 {
            known.add(TENANT, format!("f{number}@1"), &[sample(1)]);
        }
        let kept = || known.0.lock().unwrap().functions.len();
        assert_eq!(kept(), MAX_FUNCTIONS_OF_TENANT + 1);
        assert!(known.of(TENANT, "f0@1").is_empty() && known.of(TENANT, "f999@1").len() == 1);
        for tenant in 3..=255 {
            for number in 0..3 {
                known.add(TenantId([tenant; 16]), format!("f{number}@1"), &[sample(1)]);
            }
        }
        assert_eq!(kept(), MAX_FUNCTIONS);
        assert_eq!(known.of(TenantId([255; 16]), "f2@1").len(), 1);
    }
}
