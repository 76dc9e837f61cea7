//! Harvesting: long calls of warm workers are measured in control groups of their own, and the policy of
//! `dayfly-harvest` decides what of theirs is lent.
//!
//! [`Observer`] notices the begins and ends of one lease's calls by the meters that its supervisor reads anyway. A thread
//! of the node ([`Driver`]) makes the groups, reads them in windows of 100 ms, feeds the policy, and applies its actions.
//! A worker gets its group after its first long call, so no cold start waits for it. Hot workers, and calls shorter than
//! [`MIN_LONG_CALL_US`](dayfly_protocol::executor::MIN_LONG_CALL_US), never take part.

mod driver;
mod learning;
mod observer;
mod recording;
mod totals;
mod worker;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;

use dayfly_harvest::{Amount, Rules};
use dayfly_protocol::api::{HarvestMode, HarvestStatus, Mode};
use dayfly_sandbox::cgroup::{Group, Hierarchies};

use self::driver::{Driver, Note};
pub use self::observer::Observer;
pub use self::recording::RecordingFile;
use crate::leases::NodeLease;

/// Name of the record of events and actions in the state directory.
pub const RECORDING: &str = "harvest.jsonl";

/// What a node harvests.
#[derive(Debug)]
pub struct Harvest {
    status: Arc<Mutex<HarvestStatus>>,
    is_measuring: AtomicBool,
    notes: Mutex<Option<mpsc::Sender<Note>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// How to begin.
#[derive(Debug)]
pub struct Start {
    pub mode: HarvestMode,
    pub rules: Rules,
    /// Cores that no hot worker owns, and the memory of leases.
    pub shared: Amount,
    pub recording: Option<RecordingFile>,
}

/// What warm workers share on a node.
pub fn shared(cores: usize, memory_bytes: u64) -> Amount {
    Amount::new((cores as u64).saturating_mul(1000), memory_bytes)
}

impl Harvest {
    /// Begins, in a thread of its own, unless the mode is `off` or no control groups can be made. The hierarchies are
    /// made only if they are needed. Blocks for a moment.
    pub fn start(start: Start, hierarchies: impl FnOnce() -> Arc<Hierarchies>) -> std::io::Result<Self> {
        let (mut notes, mut thread, mut why) = (None, None, None);
        let status = Arc::new(Mutex::new(HarvestStatus::new(start.mode, None)));
        if start.mode != HarvestMode::Off {
            let hierarchies = hierarchies();
            match hierarchies.check_workers() {
                Ok(()) => {
                    let (sender, inbox) = mpsc::channel();
                    let driver = Driver::new(start, hierarchies, Arc::clone(&status))?;
                    let running = std::thread::Builder::new()
                        .name("dayfly-harvest".into())
                        .spawn(move || driver.run(&inbox))?;
                    (notes, thread) = (Some(sender), Some(running));
                }
                Err(reason) => {
                    tracing::warn!(reason, "nothing is harvested");
                    why = Some(reason);
                }
            }
        }
        let harvest = Self {
            is_measuring: AtomicBool::new(notes.is_some()),
            notes: Mutex::new(notes),
            thread: Mutex::new(thread),
            status,
        };
        harvest.change_status(|status| status.why = why);
        Ok(harvest)
    }

    fn change_status(&self, change: impl FnOnce(&mut HarvestStatus)) {
        change(&mut self.status.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The current state.
    pub fn status(&self) -> HarvestStatus {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The current state, unless the node does not harvest.
    pub fn status_unless_off(&self) -> Option<HarvestStatus> {
        Some(self.status()).filter(|status| status.mode != HarvestMode::Off)
    }

    /// Whether calls are measured.
    pub fn is_measuring(&self) -> bool {
        self.is_measuring.load(Ordering::Relaxed)
    }

    fn sender(&self) -> Option<mpsc::Sender<Note>> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Watches the calls of a lease, whose executor has this sandbox. `None` if none of them is measured.
    pub fn observer(&self, lease: &Arc<NodeLease>, sandbox: Option<&Arc<Group>>) -> Option<Observer> {
        if !self.is_measuring() || lease.granted.reservation.mode == Mode::Hot {
            return None;
        }
        Some(Observer::new(self.sender()?, lease, sandbox))
    }

    /// Records that warm workers share other cores than before.
    pub fn set_shared(&self, shared: Amount) {
        if let Some(notes) = self.sender() {
            let _ = notes.send(Note::Shared(shared));
        }
    }

    /// Stops: everything that was lent is returned, and workers leave their groups. Blocks for some milliseconds.
    pub fn stop(&self) {
        self.is_measuring.store(false, Ordering::Relaxed);
        let notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(notes) = notes {
            let _ = notes.send(Note::Stop);
        }
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
