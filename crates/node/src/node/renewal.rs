//! Renewals, which may change the terms of a lease.

use dayfly_protocol::api::{HeldTerms, LeaseChange};

use super::*;
use crate::leases::CorePin;

impl Node {
    /// Restarts a lease's duration from now, and changes its terms. Returns what it holds now.
    ///
    /// # Errors
    /// `NoCapacity` or `TooLarge` without room for the change, `InvalidRequest` for one that the lease cannot have, and
    /// those of a lease that is over. The lease then stays as it is.
    pub(crate) fn renew(
        &self,
        lease: &NodeLease,
        duration_ms: u64,
        change: &LeaseChange,
    ) -> Result<HeldTerms, Failure> {
        lease.check_renewal(duration_ms)?;
        if !change.is_none() {
            let pins = self.leases.change(lease, change, self.options.grace)?;
            self.pin(&pins);
        }
        lease.renew(duration_ms)?;
        Ok(lease.held_terms())
    }

    /// Accounts for workers of a lease that are gone, fell asleep or woke up.
    pub(crate) fn settle(&self, lease: &NodeLease) {
        if let Some(pins) = self.leases.settle(lease) {
            self.pin(&pins);
        }
    }

    /// Pins processes to their new cores, and all that share cores to the rest.
    fn pin(&self, pins: &[CorePin]) {
        self.repin();
        let shared = self.leases.shared_cores();
        for pin in pins {
            let cores = if pin.cores.is_empty() { &shared } else { &pin.cores };
            affinity::pin(pin.process, cores);
        }
    }
}
