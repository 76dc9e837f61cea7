//! Labels, by which a caller finds what it runs among the queries of a session.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A caller's mark on the queries that one of its calls runs. A call may run several: those that sample rows for a plan
/// come before the one that the plan is for.
#[derive(Debug, Default)]
pub struct Label {
    lost_runs: AtomicU32,
}

tokio::task_local! {
    static CURRENT: Arc<Label>;
}

impl Label {
    /// Runs a future whose queries have this label.
    pub async fn scope<F: Future>(self: Arc<Self>, query: F) -> F::Output {
        CURRENT.scope(self, query).await
    }

    /// The label of the future that runs.
    pub fn current() -> Option<Arc<Self>> {
        CURRENT.try_with(Arc::clone).ok()
    }

    /// A whole run was lost with its ranks, and begins again.
    pub fn lose_run(&self) {
        self.lost_runs.fetch_add(1, Ordering::Relaxed);
    }

    /// Whole runs that were lost.
    pub fn lost_runs(&self) -> u32 {
        self.lost_runs.load(Ordering::Relaxed)
    }
}
