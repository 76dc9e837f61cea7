//! The leases of a manager. This `impl` has the operations that only the connection to the manager uses.

use super::lease_table::Found;
use super::*;

impl Node {
    /// Whether it has a manager that it has not reached since its start.
    pub(crate) fn is_waiting_for_manager(&self) -> bool {
        self.options.manager.is_some() && !self.trusted.has_manager_keys()
    }

    pub(crate) fn credential_path(&self) -> std::path::PathBuf {
        self.options.state_dir.join("node.credential")
    }

    fn managed(&self) -> Vec<Arc<NodeLease>> {
        let mut leases = self.leases.live();
        leases.retain(|lease| lease.granted.origin.is_managed());
        leases
    }

    /// Live leases of the manager.
    pub(crate) fn held(&self) -> Vec<HeldLease> {
        let held = |lease: &Arc<NodeLease>| HeldLease {
            lease: lease.id(),
            remaining_ms: lease.remaining_ms(),
            terms: lease.changed_terms().map(Box::new),
        };
        self.managed().iter().map(held).collect()
    }

    /// Live leases of the manager that were used.
    pub(crate) fn active_leases(&self) -> Vec<LeaseId> {
        let active = self
            .managed()
            .into_iter()
            .filter(|lease| lease.state() == LeaseState::Active);
        active.map(|lease| lease.id()).collect()
    }

    /// A live lease. Returns an error for an ended or unknown one.
    pub(crate) fn held_lease(&self, lease: LeaseId) -> Result<Arc<NodeLease>, Failure> {
        match self.leases.find(&lease) {
            Found::Live(lease) => Ok(lease),
            Found::Ended(state) => Err(dayfly_lease::state::LeaseError::Ended(state).into()),
            Found::Unknown => Err(Failure::new(
                Code::NotFound,
                format!("this node holds no lease {lease}"),
            )),
        }
    }

    /// Journals new usage of the manager's leases.
    pub(crate) fn journal_usage(&self) {
        let used = self
            .managed()
            .into_iter()
            .filter_map(|lease| Some((lease.id(), lease.new_usage()?)));
        self.journal.usage(used.collect());
    }
}
