//! What happens at its time: deadlines pass, tasks have rested, and what is not needed any more goes.

use std::cmp::Reverse;
use std::sync::{Arc, Weak};
use std::time::Duration;

use dayfly_protocol::dispatch::ToDispatcher;
use dayfly_protocol::ids::TaskId;
use dayfly_store::system::{cautious_ms, now_ms, since_boot_ms};

use crate::live_task::Stage;
use crate::outcomes::{given_up, late};
use crate::{Tasks, functions, teams};

/// How often deadlines are looked at.
const DEADLINES: Duration = Duration::from_millis(20);
/// Between two looks for what is not needed any more.
const TIDY: Duration = Duration::from_secs(5);

impl Tasks {
    /// Tasks that have rested line up again.
    fn look_at_rests(&self, since_boot_ms: u64) {
        let mut state = self.state();
        while let Some(Reverse((at_ms, id))) = state.rests.peek().copied()
            && at_ms <= since_boot_ms
        {
            state.rests.pop();
            let live = state.live.get_mut(&id);
            let Some(live) = live.filter(|live| live.place == Stage::Resting) else {
                continue;
            };
            live.place = Stage::Queued;
            let (endpoint, tenant, priority) = (live.endpoint, live.tenant, live.priority);
            if let Some(endpoint) = state.endpoints.get_mut(&endpoint) {
                endpoint.queue.put_back(tenant, priority, id);
                endpoint.wake.notify_one();
            }
        }
    }

    /// Tasks that reached their deadline end.
    fn look_at_deadlines(&self, since_boot_ms: u64) {
        let mut state = self.state();
        let (mut ended, mut unheard) = (Vec::new(), Vec::new());
        while let Some(Reverse((at_ms, id))) = state.deadlines.peek().copied()
            && at_ms <= since_boot_ms
        {
            state.deadlines.pop();
            let Some(live) = state.live.get_mut(&id) else { continue };
            live.late = true;
            let (endpoint, attempt, place) = (live.endpoint, live.attempt(id), live.place);
            match place {
                place if place.is_unsent() => ended.push((id, Some(late()))),
                Stage::Sent | Stage::Building | Stage::Running if !state.is_up(endpoint) => {
                    unheard.push(given_up(attempt, late()));
                }
                Stage::Sent | Stage::Building | Stage::Running => {
                    state.tell(endpoint, ToDispatcher::Cancel(vec![attempt]))
                }
                // What is on its way is looked at when it arrives.
                _ => {}
            }
        }
        self.end_unexecuted(&mut state, ended);
        self.end(&mut state, unheard, None);
    }

    fn tidy(&self) {
        let mut state = self.state();
        for endpoint in state.endpoints.values_mut() {
            endpoint.queue.drop_idle();
        }
        for tags in state.tags.values_mut() {
            tags.retain(|_, tag| Arc::strong_count(tag) > 1 || tag.is_fresh());
        }
        state.tags.retain(|_, tags| !tags.is_empty());
        state.want_all(None, &*self.tenants);
    }
}

/// Does for as long as there are tasks what is to be done at its time.
pub(super) async fn keep_time(tasks: Weak<Tasks>) {
    let mut deadlines = tokio::time::interval(DEADLINES);
    let mut tidy = tokio::time::interval(TIDY);
    let mut forget_from = Some(TaskId([0; 16]));
    let mut walk = functions::TaskScan::new(now_ms());
    loop {
        tokio::select! {
            _ = deadlines.tick() => match tasks.upgrade() {
                Some(tasks) => {
                    let since_boot_ms = since_boot_ms();
                    tasks.look_at_rests(since_boot_ms);
                    tasks.look_at_deadlines(since_boot_ms);
                }
                None => return,
            },
            _ = tidy.tick() => {
                let Some(tasks) = tasks.upgrade() else { return };
                tasks.tidy();
                let today_ms = cautious_ms();
                let before = today_ms.saturating_sub(tasks.kept_ms());
                let from = forget_from.unwrap_or(TaskId([0; 16]));
                // A store that cannot write has more urgent work; the next turn tries again.
                forget_from = Some(from);
                if let Ok(passed) = tasks.store.forget(before, from).wait().await {
                    let printed = passed.printed.iter().map(|(tenant, bytes)| (*tenant, -(*bytes as i64)));
                    tasks.contents.count(printed);
                    let whole;
                    (forget_from, whole) = walk.passed(passed, now_ms());
                    if let Some(whole) = whole {
                        tasks.forget_unused_functions(whole).await;
                    }
                }
                let _ = tasks.store.forget_flows(before).wait().await;
                let _ = tasks.store.forget_usage(teams::forgotten_before(today_ms)).wait().await;
            }
        }
    }
}
