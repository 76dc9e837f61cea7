//! Maintenance: what happens by the clock. Deadlines pass, rests end, and unneeded state is dropped.

use std::sync::Weak;
use std::time::Duration;

use dayfly_protocol::dispatch::ToDispatcher;
use dayfly_protocol::ids::TaskId;
use dayfly_store::system::{cautious_ms, now_ms, since_boot_ms};

use crate::live_tasks::Stage;
use crate::outcomes::{abandoned, late};
use crate::{Tasks, functions, usage};

/// Interval between checks of deadlines and rests.
const DEADLINES: Duration = Duration::from_millis(20);
/// Interval between searches for unneeded state.
const TIDY: Duration = Duration::from_secs(5);

impl Tasks {
    /// Queues tasks whose rest has ended.
    fn queue_rested(&self, since_boot_ms: u64) {
        let mut state = self.state();
        let state = &mut *state;
        while let Some((id, live)) = state.tasks.pop_rested(since_boot_ms) {
            if let Some(endpoint) = state.endpoints.get_mut(live.endpoint()) {
                endpoint.put_back(live.tenant(), live.priority(), id);
                endpoint.wake();
            }
        }
    }

    /// Ends tasks whose deadline has passed.
    fn end_late(&self, since_boot_ms: u64) {
        let mut state = self.state();
        let state = &mut *state;
        let (mut ended, mut unreported) = (Vec::new(), Vec::new());
        while let Some((id, live)) = state.tasks.pop_late(since_boot_ms) {
            let (endpoint, attempt) = (live.endpoint(), live.attempt(id));
            match live.stage() {
                stage if stage.is_unsent() => ended.push((id, Some(late()))),
                Stage::Sent | Stage::Building | Stage::Running if !state.endpoints.is_up(endpoint) => {
                    unreported.push(abandoned(attempt, late()));
                }
                Stage::Sent | Stage::Building | Stage::Running => {
                    state.endpoints.send(endpoint, ToDispatcher::Cancel(vec![attempt]));
                }
                // The next transition checks for that.
                _ => {}
            }
        }
        self.end_unexecuted(state, ended);
        self.end(state, unreported, None);
    }

    fn tidy(&self) {
        let mut state = self.state();
        for endpoint in state.endpoints.iter_mut() {
            endpoint.tidy();
        }
        state.tags.tidy();
        state.request_daemons(None, &*self.tenants);
    }
}

/// Does what is due, until the manager stops.
pub(super) async fn run(tasks: Weak<Tasks>) {
    let mut deadlines = tokio::time::interval(DEADLINES);
    let mut tidy = tokio::time::interval(TIDY);
    let mut delete_from = Some(TaskId([0; 16]));
    let mut scan = functions::TaskScan::new(now_ms());
    loop {
        tokio::select! {
            _ = deadlines.tick() => match tasks.upgrade() {
                Some(tasks) => {
                    let since_boot_ms = since_boot_ms();
                    tasks.queue_rested(since_boot_ms);
                    tasks.end_late(since_boot_ms);
                }
                None => return,
            },
            _ = tidy.tick() => {
                let Some(tasks) = tasks.upgrade() else { return };
                tasks.tidy();
                let today_ms = cautious_ms();
                let before = today_ms.saturating_sub(tasks.retention_ms());
                let from = delete_from.unwrap_or(TaskId([0; 16]));
                // If the store cannot write, the next round tries again.
                delete_from = Some(from);
                if let Ok(step) = tasks.store.delete_expired(before, from).wait().await {
                    let printed = step.freed_bytes.iter().map(|(tenant, bytes)| (*tenant, -(*bytes as i64)));
                    tasks.contents.count(printed);
                    let whole;
                    (delete_from, whole) = scan.add(step, now_ms());
                    if let Some(whole) = whole {
                        tasks.remove_unused_functions(whole).await;
                    }
                }
                let _ = tasks.store.delete_flows(before).wait().await;
                let _ = tasks.store.delete_usage(usage::first_kept_day(today_ms)).wait().await;
            }
        }
    }
}
