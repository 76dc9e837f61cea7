//! Harvesting: long calls of warm workers are measured in control groups of their own, and the policy of
//! `dayfly-harvest` decides what of theirs is lent.
//!
//! [`Observer`] notices the begins and ends of one lease's calls by the meters that its supervisor reads anyway. A thread
//! of the node ([`Driver`]) makes the groups, reads them in windows of 100 ms, feeds the policy, and applies its actions.
//! A worker gets its group after its first long call, so no cold start waits for it. Hot workers, and calls shorter than
//! [`MIN_LONG_CALL_US`](dayfly_protocol::executor::MIN_LONG_CALL_US), never take part.

mod driver;
mod exchange;
mod learning;
mod memory;
mod names;
mod observer;
mod pools;
mod recording;
mod series;
mod totals;
mod trainer;
mod worker;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;

use dayfly_harvest::{Amount, Rules};
use dayfly_protocol::api::{Borrow, HarvestMode, HarvestStatus, LearntProfile, Mode};
use dayfly_protocol::call_samples::CallSample;
use dayfly_protocol::ids::TenantId;
use dayfly_protocol::node_messages::{LendablePools, NodeMessage};
use dayfly_sandbox::cgroup::Group;

use self::driver::{Driver, Note};
use self::learning::Learning;
pub use self::memory::MemoryWatch;
pub use self::observer::Observer;
use self::pools::Pools;
pub use self::recording::RecordingFile;
use crate::leases::NodeLease;
use crate::pool::Pool;

/// Name of the record of events and actions in the state directory.
pub const RECORDING: &str = "harvest.jsonl";

/// What a node harvests.
#[derive(Debug)]
pub struct Harvest {
    inner: Arc<Inner>,
    setup: Setup,
    pool: Arc<Pool>,
    shared: Mutex<Amount>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What observers and the thread share with the node.
#[derive(Debug)]
struct Inner {
    status: Mutex<HarvestStatus>,
    /// What could be lent at the end of the last window.
    pools: Mutex<Option<Pools>>,
    is_measuring: AtomicBool,
    /// Of the thread, once there is one.
    notes: Mutex<Option<mpsc::Sender<Note>>>,
    learning: Learning,
}

/// How to harvest.
#[derive(Debug)]
pub struct Setup {
    pub rules: Rules,
    /// The most that calls may borrow, whatever they request.
    pub borrow: Borrow,
    pub recording: Option<RecordingFile>,
}

/// What warm workers share on a node.
pub fn shared(cores: usize, memory_bytes: u64) -> Amount {
    Amount::new((cores as u64).saturating_mul(1000), memory_bytes)
}

impl Inner {
    fn status(&self) -> MutexGuard<'_, HarvestStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_pools(&self, pools: Option<Pools>) {
        *self.pools.lock().unwrap_or_else(PoisonError::into_inner) = pools;
    }

    fn is_measuring(&self) -> bool {
        self.is_measuring.load(Ordering::Relaxed)
    }

    /// Informs the thread, if there is one.
    fn send(&self, note: Note) -> bool {
        let notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        notes.as_ref().is_some_and(|notes| notes.send(note).is_ok())
    }
}

impl Harvest {
    /// Does nothing until it is switched on. Warm workers share `shared`: the cores that no hot worker owns, and the
    /// memory of leases.
    pub fn new(setup: Setup, pool: &Arc<Pool>, shared: Amount) -> Self {
        Self {
            inner: Arc::new(Inner {
                status: Mutex::new(HarvestStatus::new(HarvestMode::Off, None)),
                pools: Mutex::default(),
                is_measuring: AtomicBool::new(false),
                notes: Mutex::default(),
                learning: Learning::default(),
            }),
            setup,
            pool: Arc::clone(pool),
            shared: Mutex::new(shared),
            thread: Mutex::default(),
        }
    }

    /// Switches to a mode. The first time to another one than `off`, it makes the node's control groups and starts the
    /// thread; where no groups can be made, the status says why. Blocks for a moment.
    pub fn switch(&self, mode: HarvestMode) -> std::io::Result<()> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() && mode != HarvestMode::Off {
            let hierarchies = self.pool.sandboxes().hierarchies();
            if let Err(why) = hierarchies.check_workers() {
                tracing::warn!(why, "nothing is harvested");
                *self.inner.status() = HarvestStatus::new(mode, Some(why));
                return Ok(());
            }
            let shared = *self.shared.lock().unwrap_or_else(PoisonError::into_inner);
            let driver = Driver::new(&self.setup, shared, Arc::clone(hierarchies), Arc::clone(&self.inner))?;
            let (notes, inbox) = mpsc::channel();
            *thread = Some(
                std::thread::Builder::new()
                    .name("dayfly-harvest".into())
                    .spawn(move || driver.run(&inbox))?,
            );
            *self.inner.notes.lock().unwrap_or_else(PoisonError::into_inner) = Some(notes);
        }
        let mut status = self.inner.status();
        status.mode = mode;
        status.why = None;
        drop(status);
        let has_thread = self.inner.send(Note::Mode(mode));
        let measures = has_thread && mode != HarvestMode::Off;
        self.inner.is_measuring.store(measures, Ordering::Relaxed);
        Ok(())
    }

    /// The current state.
    pub fn status(&self) -> HarvestStatus {
        self.inner.status().clone()
    }

    /// The current state, unless the node does not harvest.
    pub fn status_unless_off(&self) -> Option<HarvestStatus> {
        Some(self.status()).filter(|status| status.mode != HarvestMode::Off)
    }

    /// What was learnt about the functions of a tenant that a text names. Takes up to some milliseconds.
    pub fn profiles(&self, tenant: TenantId, function: &str) -> Vec<LearntProfile> {
        let is_on = self.status().mode == HarvestMode::On;
        self.inner.learning.reports(tenant, function, self.setup.rules, is_on)
    }

    /// The next samples for the manager, and functions to ask it for. Empty while calls are not measured.
    pub fn sample_messages(&self) -> Vec<NodeMessage> {
        match self.is_measuring() {
            true => self.inner.learning.messages(),
            false => Vec::new(),
        }
    }

    /// Takes what calls of a tenant's function used on other nodes, if the manager was asked for it.
    pub fn take_samples(&self, tenant: TenantId, function: String, samples: Vec<CallSample>) {
        self.inner.send(Note::Samples {
            tenant,
            function,
            samples,
        });
    }

    /// What could be lent now, unless the node lends nothing.
    pub fn pools(&self) -> Option<LendablePools> {
        let lends = self.inner.status().mode == HarvestMode::On;
        let pools = self.inner.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.as_ref().filter(|_| lends).map(Pools::now)
    }

    /// Whether calls are measured.
    pub fn is_measuring(&self) -> bool {
        self.inner.is_measuring()
    }

    /// Watches the calls of a lease, whose executor has this sandbox, whenever calls are measured. `None` if none of its
    /// calls ever is.
    pub fn observer(&self, lease: &Arc<NodeLease>, sandbox: Option<&Arc<Group>>) -> Option<Observer> {
        let is_warm = lease.terms().mode != Mode::Hot;
        is_warm.then(|| Observer::new(Arc::clone(&self.inner), lease, sandbox))
    }

    /// Records that warm workers share other cores than before.
    pub fn set_shared(&self, shared: Amount) {
        *self.shared.lock().unwrap_or_else(PoisonError::into_inner) = shared;
        self.inner.send(Note::Shared(shared));
    }

    /// Stops: everything that was lent is returned, and workers leave their groups. Blocks for some milliseconds.
    pub fn stop(&self) {
        self.inner.is_measuring.store(false, Ordering::Relaxed);
        self.inner.send(Note::Stop);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Drop for Harvest {
    fn drop(&mut self) {
        self.stop();
    }
}
