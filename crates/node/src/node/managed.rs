//! Operations for the link to the manager.

use super::*;

impl Node {
    /// Whether it has a manager that it has not reached since its start.
    pub(crate) fn waits_for_its_manager(&self) -> bool {
        let reached = self.trusted.read().unwrap_or_else(PoisonError::into_inner).len() > 1;
        self.options.manager.is_some() && !reached
    }

    pub(crate) fn credential_path(&self) -> std::path::PathBuf {
        self.options.state_dir.join("node.credential")
    }

    pub(crate) fn capacity(&self) -> Capacity {
        self.books().ledger.capacity()
    }

    fn managed(&self) -> Vec<Arc<Run>> {
        let books = self.books();
        books
            .leases
            .values()
            .filter(|run| run.granted.origin.is_managed())
            .cloned()
            .collect()
    }

    /// Live leases of the manager.
    pub(crate) fn held(&self) -> Vec<HeldLease> {
        let held = |run: &Arc<Run>| HeldLease {
            lease: run.id(),
            remaining_ms: run.remaining_ms(),
        };
        self.managed().iter().map(held).collect()
    }

    /// Those of them that were used.
    pub(crate) fn active_leases(&self) -> Vec<LeaseId> {
        let active = self
            .managed()
            .into_iter()
            .filter(|run| run.state() == LeaseState::Active);
        active.map(|run| run.id()).collect()
    }

    /// One of them.
    pub(crate) fn held_lease(&self, lease: LeaseId) -> Result<Arc<Run>, Failure> {
        let books = self.books();
        match (books.leases.get(&lease), books.ended.get(&lease)) {
            (Some(run), _) => Ok(run.clone()),
            (None, Some(ended)) => Err(dayfly_lease::state::LeaseError::Ended(ended.state).into()),
            (None, None) => Err(Failure::new(
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
            .filter_map(|run| Some((run.id(), run.new_usage()?)));
        self.journal.usage(used.collect());
    }
}
