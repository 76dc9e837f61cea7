//! The worker processes of a lease. This `impl` finds them, reads what they do, and ends them.

use super::*;
use crate::harvest::MemoryWatch;

impl NodeLease {
    /// The meter of a worker.
    pub fn meter(&self, worker: WorkerIndex) -> Option<&Meter> {
        self.meters.get(usize::from(worker.0))
    }

    /// The worker with this process id.
    pub fn worker_of(&self, process: u32) -> Option<WorkerIndex> {
        let state = self.lock();
        let index = state
            .slots
            .iter()
            .position(|slot| slot.running_pid() == Some(process))?;
        Some(WorkerIndex(index as u16))
    }

    /// What each worker does now.
    pub fn activities(&self) -> Vec<WorkerActivity> {
        let state = self.lock();
        let each = state.slots.iter().zip(&self.meters);
        each.map(|(slot, meter)| WorkerActivity {
            pid: slot.running_pid(),
            incarnation: slot.incarnation(),
            reading: meter.read(),
        })
        .collect()
    }

    /// Whether this process of a worker still runs, as far as the kernel reports it.
    pub fn is_running(&self, worker: WorkerIndex, incarnation: Incarnation) -> bool {
        let state = self.lock();
        let slot = state.slots.get(usize::from(worker.0));
        let slot = slot.filter(|slot| slot.is_up() && slot.incarnation() == incarnation);
        slot.and_then(WorkerSlot::process).is_some_and(worker_slot::is_alive)
    }

    /// Number of calls of this worker, if its meter shows that it sleeps.
    pub fn calls_before_sleep(&self, worker: WorkerIndex) -> Option<u64> {
        let meter = self.meters.get(usize::from(worker.0))?;
        (!meter.read().awake).then(|| meter.total().calls)
    }

    /// Notices when this process of a worker is killed for lack of memory in its own control group.
    pub fn watch_memory(&self, worker: WorkerIndex, incarnation: Incarnation, watch: MemoryWatch) {
        let mut state = self.lock();
        let slot = state.slots.get_mut(usize::from(worker.0));
        if let Some(slot) = slot.filter(|slot| slot.incarnation() == incarnation) {
            slot.watch_memory(watch);
        }
    }

    /// Ends a worker, which is then replaced.
    pub fn kill_worker(&self, worker: WorkerIndex, end: End) {
        let mut state = self.lock();
        let LeaseData { slots, control, .. } = &mut *state;
        if let Some(slot) = slots.get_mut(usize::from(worker.0)) {
            slot.kill(control.as_ref(), usize::from(worker.0), end);
        }
    }
}
