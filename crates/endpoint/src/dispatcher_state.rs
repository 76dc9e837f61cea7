//! State that all worker sets of a dispatcher share.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::dispatch::{Ended, FromDispatcher};
use dayfly_scheduling::{Demand, Window};
use tokio::runtime::Handle;
use tokio::sync::mpsc::UnboundedSender;

use crate::contents::ContentTransfer;
use crate::dispatcher::{ElasticNodes, Options};
use crate::fair_share::FairShare;
use crate::lending::Lending;
use crate::worker_set::{WorkerKey, WorkerSet};

/// Relative change of the window that is reported to the manager.
const MIN_ROOM_CHANGE: f64 = 0.2;

/// State that all worker sets of a dispatcher share.
pub struct DispatcherState {
    pub options: Options,
    pub transfer: ContentTransfer,
    worker_sets: Mutex<Vec<Weak<WorkerSet>>>,
    outgoing: UnboundedSender<FromDispatcher>,
    /// The window, and the number of tasks that was reported last.
    window: Mutex<(Window, u32)>,
    workers: AtomicU32,
    pub fair_share: FairShare<WorkerKey>,
    pub lending: Lending,
}

impl DispatcherState {
    pub fn new(mut options: Options, runtime: Handle, outgoing: UnboundedSender<FromDispatcher>) -> Self {
        let lending = std::mem::replace(&mut options.lending, Box::new(Vec::new));
        Self {
            lending: Lending::new(lending),
            transfer: ContentTransfer::new(Arc::clone(&options.contents), runtime),
            options,
            worker_sets: Mutex::default(),
            outgoing,
            window: Mutex::default(),
            workers: AtomicU32::new(0),
            fair_share: FairShare::default(),
        }
    }

    /// Includes a worker set's demand from now on.
    pub fn register(&self, worker_set: &Arc<WorkerSet>) {
        let mut worker_sets = self.worker_sets.lock().unwrap_or_else(PoisonError::into_inner);
        worker_sets.push(Arc::downgrade(worker_set));
    }

    /// Work to do, of all worker sets.
    pub fn demand(&self) -> Demand {
        let worker_sets = self.worker_sets.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut demand = Demand::default();
        for worker_set in worker_sets.iter().filter_map(Weak::upgrade) {
            worker_set.demand(&mut demand);
        }
        demand
    }

    /// Workers that are leased for tasks.
    pub fn workers(&self) -> u32 {
        self.workers.load(Ordering::Relaxed)
    }

    /// Sends a message to the manager, unless the connection has ended.
    pub fn send(&self, message: FromDispatcher) {
        let _ = self.outgoing.send(message);
    }

    /// Records the durations of executions, and reports a changed window.
    pub fn record_durations<'a>(&self, ended: impl Iterator<Item = &'a Ended>) {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        for one in ended.filter(|one| one.begun) {
            window.0.record(one.took_us);
        }
        let workers = self
            .workers
            .load(Ordering::Relaxed)
            .max(self.options.max_workers.into());
        let tasks = window.0.tasks(workers);
        let reported = f64::from(window.1);
        if (f64::from(tasks) - reported).abs() > reported * MIN_ROOM_CHANGE {
            window.1 = tasks;
            self.send(FromDispatcher::Credit { tasks });
        }
    }

    /// Cores that are available now for workers of all worker sets.
    pub fn available_cores(&self) -> MilliCores {
        let most = MilliCores::from(self.options.max_workers);
        let available = |elastic_nodes: &Arc<dyn ElasticNodes>| elastic_nodes.available_cores().min(most);
        self.options.elastic_nodes.as_ref().map_or(most, available)
    }

    /// Adds `by` to the number of leased workers, and reports the number with an error, if there is one.
    pub fn workers_changed(&self, by: i64, trouble: Option<String>) {
        let change = |count: u32| u32::try_from(i64::from(count) + by).ok();
        let before = self.workers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
        let count = before.ok().and_then(change).unwrap_or_default();
        self.send(FromDispatcher::Workers { count, trouble });
    }
}
