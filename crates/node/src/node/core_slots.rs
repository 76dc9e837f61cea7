//! The slots for calls on the cores that warm workers share. This `impl` sets their number and ends workers that hold
//! more than one.

use std::collections::HashMap;

use dayfly_protocol::node_api::End;
use rustix::process::{Pid, Signal};

use super::*;

/// Interval of the check. A worker that holds too many slots only slows others down: a call that was rejected for a
/// while runs without a slot.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

impl Node {
    /// Sets the number of slots for the shared cores and the warm workers of now.
    pub(super) fn set_core_slots(&self) {
        let calls = u32::from(self.options.calls_per_core);
        self.core_slots.set(calls.saturating_mul(self.leases.calls_at_once()));
    }

    /// Ends workers that hold more than they may. Runs without end.
    pub(super) async fn guard_core_slots(&self) {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            self.check_core_slots();
        }
    }

    /// Ends workers that hold more than one slot, or hold one while they sleep.
    fn check_core_slots(&self) {
        let held = self.holders();
        if held.is_empty() {
            return;
        }
        let leases = self.leases.live();
        for (process, slots) in held {
            let Some((lease, worker)) = leases.iter().find_map(|lease| Some((lease, lease.worker_of(process)?))) else {
                // A process that a worker started: no other process has the file.
                tracing::warn!(
                    process,
                    "ended a process that held a slot of the shared cores and is not a worker"
                );
                if let Some(process) = Pid::from_raw(process as i32) {
                    let _ = rustix::process::kill_process(process, Signal::KILL);
                }
                continue;
            };
            // An honest worker releases its slot before its meter shows sleep, and claims one after its meter shows
            // that it is awake.
            let sleeps_with_it = || {
                let calls = lease.calls_before_sleep(worker);
                calls.is_some() && self.holders().contains_key(&process) && lease.calls_before_sleep(worker) == calls
            };
            if slots > 1 || sleeps_with_it() {
                self.incident(lease, format!("held {slots} slots of the shared cores"));
                lease.kill_worker(worker, End::Violation);
            }
        }
    }

    /// Processes that hold slots, with their numbers of slots.
    fn holders(&self) -> HashMap<u32, usize> {
        let mut held = HashMap::new();
        for process in self.core_slots.holders() {
            *held.entry(process).or_default() += 1;
        }
        held
    }
}
