//! Timers are due.

use std::sync::Arc;

use dayfly_protocol::ids::TriggerId;
use dayfly_protocol::triggers::EventSource;
use dayfly_scheduling::{Due, Timer};
use dayfly_store::triggers::NewEvent;
use serde_json::Map;

use super::{AGAIN, SourceEvent, Trigger};

use crate::Tasks;

/// The longest that a timer waits for a clock that was set back.
const MAX_WAIT_MS: u64 = 24 * 3_600_000;

impl Trigger {
    /// Reads its times, if it is a timer.
    pub(super) fn set_timer(&mut self) {
        (self.timer, self.next_at_ms) = (None, 0);
        if let EventSource::Timer { cron, zone, .. } = &self.record.spec.source {
            match Timer::parse(cron, zone, self.record.done_until_ms) {
                Ok(timer) => {
                    self.next_at_ms = timer.next(self.record.done_until_ms).unwrap_or(0);
                    self.timer = Some(timer);
                }
                // It was read when it was made: the zones of this program are others, or the last of its times has passed.
                Err(failure) => self.unseen = Some(failure),
            }
        }
    }

    /// A clock that is set back is waited for, so that no time comes twice, but not for long: what it said before was wrong then.
    fn believe(&mut self, now_ms: u64) {
        if let Some(timer) = &self.timer
            && self.record.done_until_ms > now_ms + MAX_WAIT_MS
        {
            tracing::warn!(
                trigger = self.record.name,
                "the clock was set back; the times of this trigger are from now on"
            );
            self.record.done_until_ms = now_ms;
            self.next_at_ms = timer.next(now_ms).unwrap_or(0);
        }
    }

    /// Whether one of its times has passed. Those of a trigger that is paused or has expired pass without a word: it is made, or
    /// resumed, with new ones.
    fn passed(&mut self, now_ms: u64, started_at_ms: u64) -> Option<(Option<NewEvent>, u64)> {
        self.believe(now_ms);
        if self.next_at_ms == 0 || self.next_at_ms > now_ms {
            return None;
        }
        let timer = self.timer.as_ref()?;
        let Some(due) = timer.due(self.record.done_until_ms, now_ms) else {
            self.next_at_ms = timer.next(now_ms).unwrap_or(0);
            return None;
        };
        self.record.done_until_ms = due.at_ms;
        self.next_at_ms = timer.next(due.at_ms).unwrap_or(0);
        let EventSource::Timer { catch_up, .. } = self.record.spec.source else {
            return None;
        };
        if !self.is_active(now_ms) {
            return None;
        }
        let counts = catch_up || due.at_ms >= started_at_ms;
        let event = counts.then(|| event(due).written(now_ms).ok()).flatten();
        Some((event, due.at_ms))
    }
}

fn event(due: Due) -> SourceEvent {
    let mut of = Map::new();
    of.insert("due_ms".into(), due.at_ms.into());
    of.insert("missed".into(), due.missed.into());
    SourceEvent {
        key: Some(due.at_ms.to_string()),
        kind: "timer",
        of,
    }
}

impl Tasks {
    /// What is due is written down, with that it was.
    pub(super) async fn look_at_times(self: &Arc<Self>, now_ms: u64) {
        let due: Vec<(TriggerId, Vec<NewEvent>, u64, u64)> = {
            let mut state = self.state();
            let started_at_ms = state.started_at_ms;
            let all = state.triggers.all.iter_mut();
            let due = all.filter_map(|(id, trigger)| {
                let before_ms = trigger.record.done_until_ms;
                let (event, until_ms) = trigger.passed(now_ms, started_at_ms)?;
                Some((*id, Vec::from_iter(event), before_ms, until_ms))
            });
            due.collect()
        };
        let many = due
            .into_iter()
            .map(|(trigger, events, before_ms, until_ms)| async move {
                let kept = self.take_events(trigger, events, Some(until_ms)).await;
                (trigger, before_ms, until_ms, kept.err())
            });
        for (trigger, before_ms, until_ms, failure) in futures_util::future::join_all(many).await {
            let Some(failure) = failure else { continue };
            tracing::warn!(%trigger, %failure, "a timer was due, and that could not be written down");
            // It is due still.
            if let Some(trigger) = self.state().triggers.all.get_mut(&trigger)
                && trigger.record.done_until_ms == until_ms
            {
                trigger.unstarted = Some(failure);
                trigger.record.done_until_ms = before_ms;
                trigger.next_at_ms = now_ms + u64::try_from(AGAIN.as_millis()).unwrap_or(u64::MAX);
            }
        }
    }
}
