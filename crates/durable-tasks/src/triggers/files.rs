//! Endpoints look for files, and tell of them until they are written down.

use std::sync::Arc;

use dayfly_protocol::dispatch::ToDispatcher;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{EndpointId, TriggerId};
use dayfly_protocol::triggers::{EventSource, MAX_FILES, MAX_WAITING_EVENTS, ObservedFile, POLL_INTERVAL_MS, Watch};
use dayfly_store::system::now_ms;
use dayfly_store::triggers::NewEvent;
use serde_json::Map;

use super::{SourceEvent, Trigger, too_many};

use crate::Tasks;
use crate::state::State;

/// The longest path of a file.
const MAX_PATH_BYTES: usize = 8_192;

/// Refuses places that no endpoint could look at.
pub fn check(source: &EventSource) -> Result<(), Failure> {
    let EventSource::Files {
        place,
        pattern,
        every_ms,
        ..
    } = source
    else {
        return Ok(());
    };
    let wrong = |text: String| Err(Failure::new(Code::InvalidRequest, text));
    let bucket = place.strip_prefix("s3://").filter(|rest| !rest.is_empty());
    if (!place.starts_with('/') && bucket.is_none()) || place.len() > MAX_PATH_BYTES / 2 {
        return wrong(format!(
            "`{place:.80}` is no place for files: give a directory's path from the root, or `s3://bucket/prefix`"
        ));
    }
    if pattern.is_empty() || pattern.len() > 1_024 {
        return wrong("the pattern of the files is empty, or too long; `*` is all".into());
    }
    if let Err(error) = globset::Glob::new(pattern) {
        return wrong(format!("`{pattern:.80}` is no pattern of paths: {error}"));
    }
    if *every_ms != 0 && !POLL_INTERVAL_MS.contains(every_ms) {
        return wrong(format!(
            "a look every {every_ms} ms; give {} to {}, or 0",
            POLL_INTERVAL_MS.start(),
            POLL_INTERVAL_MS.end()
        ));
    }
    Ok(())
}

fn event(file: &ObservedFile) -> SourceEvent {
    let mut of = Map::new();
    of.insert("path".into(), file.path.clone().into());
    of.insert("bytes".into(), file.bytes.into());
    of.insert("modified_at_ms".into(), file.modified_at_ms.into());
    SourceEvent {
        key: Some(file.key()),
        kind: "files",
        of,
    }
}

impl Trigger {
    fn watch(&self, now_ms: u64) -> Option<Watch> {
        let EventSource::Files {
            place,
            pattern,
            existing,
            every_ms,
            ..
        } = &self.record.spec.source
        else {
            return None;
        };
        Some(Watch {
            trigger: self.record.id,
            place: place.clone(),
            pattern: pattern.clone(),
            within_ms: (!existing).then(|| now_ms.saturating_sub(self.record.done_until_ms)),
            every_ms: *every_ms,
        })
    }
}

impl State {
    /// All that an endpoint is to look for.
    pub(crate) fn watches(&mut self, endpoint: EndpointId) -> Vec<Watch> {
        let now_ms = now_ms();
        let its = self.triggers.all.values_mut();
        let its = its.filter(|trigger| trigger.record.watched_at == Some(endpoint));
        its.filter_map(|trigger| {
            trigger.watched = trigger.is_active(now_ms);
            trigger.watched.then(|| trigger.watch(now_ms)).flatten()
        })
        .collect()
    }

    /// What an endpoint is to look for has changed.
    pub(crate) fn tell_watches(&mut self, endpoint: EndpointId) {
        let watches = self.watches(endpoint);
        self.tell(endpoint, ToDispatcher::Watch(watches));
    }

    /// The trigger whose files an endpoint tells of; none for one that it should not look for.
    fn watched_by(&mut self, endpoint: EndpointId, trigger: TriggerId) -> Option<&mut Trigger> {
        let trigger = self.triggers.all.get_mut(&trigger)?;
        (trigger.record.watched_at == Some(endpoint) && trigger.watched).then_some(trigger)
    }

    /// An endpoint says whether it sees the files.
    pub(crate) fn on_watching(&mut self, endpoint: EndpointId, trigger: TriggerId, trouble: Option<Failure>) {
        if let Some(trigger) = self.watched_by(endpoint, trigger) {
            trigger.unseen = trouble;
        }
    }
}

impl Tasks {
    /// An endpoint tells of files. Those that cannot be written down for now it will tell of again.
    pub(crate) fn on_arrived(
        self: &Arc<Self>,
        state: &mut State,
        endpoint: EndpointId,
        id: TriggerId,
        files: Vec<ObservedFile>,
    ) {
        let now_ms = now_ms();
        let Some(trigger) = state.watched_by(endpoint, id) else {
            return;
        };
        if !trigger.is_active(now_ms) {
            return;
        }
        if trigger.waiting + files.len() as u64 > MAX_WAITING_EVENTS {
            trigger.unstarted = Some(too_many(trigger));
            return;
        }
        let fits = |file: &&ObservedFile| file.path.len() <= MAX_PATH_BYTES && file.version.len() <= 256;
        let files = &files[..files.len().min(MAX_FILES)];
        let keys: Vec<String> = files.iter().map(ObservedFile::key).collect();
        let events = files
            .iter()
            .filter(fits)
            .filter_map(|file| event(file).written(now_ms).ok());
        let events: Vec<NewEvent> = events.collect();
        let tasks = Arc::clone(self);
        tokio::spawn(async move {
            let kept = tasks.take_events(id, events, None).await;
            let mut state = tasks.state();
            match kept {
                Ok(_) => state.tell(
                    endpoint,
                    ToDispatcher::FilesStored {
                        trigger: id,
                        files: keys,
                    },
                ),
                Err(failure) => {
                    if let Some(trigger) = state.triggers.all.get_mut(&id) {
                        trigger.unstarted = Some(failure);
                    }
                }
            }
        });
    }

    /// Endpoints look no longer for what a trigger waited for that has expired.
    pub(super) fn look_at_expiries(&self, now_ms: u64) {
        let mut state = self.state();
        let expired = state.triggers.all.values();
        let expired = expired.filter(|trigger| trigger.watched && !trigger.is_active(now_ms));
        let endpoints: Vec<EndpointId> = expired.filter_map(|trigger| trigger.record.watched_at).collect();
        for endpoint in endpoints {
            state.tell_watches(endpoint);
        }
    }
}
