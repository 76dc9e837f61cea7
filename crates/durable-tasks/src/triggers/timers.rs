//! Timers: the times that have passed become events.

use std::sync::Arc;

use dayfly_scheduling::Due;
use serde_json::Map;

use super::SourceEvent;
use super::registry::DueTime;

use crate::Tasks;

/// The event of a time that has passed.
pub fn due_event(due: Due) -> SourceEvent {
    let mut fields = Map::new();
    fields.insert("due_ms".into(), due.at_ms.into());
    fields.insert("missed".into(), due.missed.into());
    SourceEvent {
        key: Some(due.at_ms.to_string()),
        kind: "timer",
        fields,
    }
}

impl Tasks {
    /// Writes the events of the times that have passed, each together with the time until which all is done.
    pub(super) async fn take_due_times(self: &Arc<Self>, now_ms: u64) {
        let due = self.state().triggers.take_due(now_ms);
        let writes = due.into_iter().map(|due| async move {
            let DueTime {
                trigger,
                event,
                before_ms,
                until_ms,
            } = due;
            let written = self.take_events(trigger, Vec::from_iter(event), Some(until_ms)).await;
            (trigger, before_ms, until_ms, written.err())
        });
        for (trigger, before_ms, until_ms, failure) in futures_util::future::join_all(writes).await {
            let Some(failure) = failure else { continue };
            tracing::warn!(%trigger, %failure, "the event of a timer could not be written");
            if let Some(trigger) = self.state().triggers.get_mut(trigger) {
                trigger.undo_due(before_ms, until_ms, now_ms, failure);
            }
        }
    }
}
