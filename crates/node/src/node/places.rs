//! The cores that warm workers share: their number, and the check that no worker takes more than one call needs.

use std::collections::HashMap;

use dayfly_protocol::node_api::End;
use rustix::process::{Pid, Signal};

use super::*;

/// Interval of the check. A worker that takes too many only slows others down: calls that were rejected for a while run
/// all the same.
const LOOK: Duration = Duration::from_secs(1);

impl Node {
    /// Sets the number of shared cores.
    pub(super) fn share(&self, cores: usize) {
        let calls = u32::from(self.options.calls_per_core);
        self.places.set(calls.saturating_mul(cores as u32));
    }

    /// Ends workers that hold more than they may. Runs without end.
    pub(super) async fn guard_places(&self) {
        loop {
            tokio::time::sleep(LOOK).await;
            self.look_at_places();
        }
    }

    /// Ends workers that hold more than one place, or hold one while they sleep.
    fn look_at_places(&self) {
        let held = self.holders();
        if held.is_empty() {
            return;
        }
        let runs: Vec<_> = self.books().leases.values().cloned().collect();
        for (process, places) in held {
            let Some((run, worker)) = runs.iter().find_map(|run| Some((run, run.worker_of(process)?))) else {
                // A process that a worker started: no other process has the file.
                tracing::warn!(
                    process,
                    "a process that is no worker held cores that are shared, and was ended"
                );
                if let Some(process) = Pid::from_raw(process as i32) {
                    let _ = rustix::process::kill_process(process, Signal::KILL);
                }
                continue;
            };
            // An honest worker releases its place before its meter shows sleep, and claims one after its meter shows
            // that it is awake.
            let sleeps_with_it = || {
                let calls = run.calls_before_sleep(worker);
                calls.is_some() && self.holders().contains_key(&process) && run.calls_before_sleep(worker) == calls
            };
            if places > 1 || sleeps_with_it() {
                self.incident(run, format!("kept {places} of the shared cores from others"));
                run.kill_worker(worker, End::Violation);
            }
        }
    }

    /// Processes that hold places, with their numbers of places.
    fn holders(&self) -> HashMap<u32, usize> {
        let mut held = HashMap::new();
        for process in self.places.holders() {
            *held.entry(process).or_default() += 1;
        }
        held
    }
}
