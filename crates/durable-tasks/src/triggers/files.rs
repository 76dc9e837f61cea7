//! Files: endpoints watch for them, and repeat a report until its events are written.
//!
//! Adds to `State` the watches of an endpoint, which need triggers and endpoints.

use std::sync::Arc;

use dayfly_protocol::dispatch::ToDispatcher;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{EndpointId, TriggerId};
use dayfly_protocol::triggers::{EventSource, MAX_FILES, MAX_WAITING_EVENTS, ObservedFile, POLL_INTERVAL_MS};
use dayfly_store::system::now_ms;
use dayfly_store::triggers::NewEvent;
use serde_json::Map;

use super::{SourceEvent, too_many_events};

use crate::Tasks;
use crate::state::State;

/// Longest path of a file.
const MAX_PATH_BYTES: usize = 8_192;
/// Longest version of a file.
const MAX_VERSION_BYTES: usize = 256;

/// Refuses a place, a pattern or an interval that no endpoint could watch.
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
            "`{place:.80}` is no place for files: give the absolute path of a directory, or `s3://bucket/prefix`"
        ));
    }
    if pattern.is_empty() || pattern.len() > 1_024 {
        return wrong("the pattern of the files is empty or too long; `*` matches all".into());
    }
    if let Err(error) = globset::Glob::new(pattern) {
        return wrong(format!("`{pattern:.80}` is no pattern of paths: {error}"));
    }
    if *every_ms != 0 && !POLL_INTERVAL_MS.contains(every_ms) {
        return wrong(format!(
            "an interval of {every_ms} ms; give {} to {}, or 0 for the default",
            POLL_INTERVAL_MS.start(),
            POLL_INTERVAL_MS.end()
        ));
    }
    Ok(())
}

fn event(file: &ObservedFile) -> SourceEvent {
    let mut fields = Map::new();
    fields.insert("path".into(), file.path.clone().into());
    fields.insert("bytes".into(), file.bytes.into());
    fields.insert("modified_at_ms".into(), file.modified_at_ms.into());
    SourceEvent {
        key: Some(file.key()),
        kind: "files",
        fields,
    }
}

impl State {
    /// Sends an endpoint all files that it is to watch for.
    pub fn send_watches(&mut self, endpoint: EndpointId) {
        let watches = self.triggers.set_watches(endpoint, now_ms());
        self.endpoints.send(endpoint, ToDispatcher::Watch(watches));
    }

    /// An endpoint reports whether it sees the files.
    pub fn on_watching(&mut self, endpoint: EndpointId, trigger: TriggerId, trouble: Option<Failure>) {
        if let Some(trigger) = self.triggers.watched_by(endpoint, trigger) {
            trigger.set_unseen(trouble);
        }
    }
}

impl Tasks {
    /// An endpoint reports files. It repeats those whose events cannot be written now.
    pub(crate) fn on_arrived(
        self: &Arc<Self>,
        state: &mut State,
        endpoint: EndpointId,
        id: TriggerId,
        files: Vec<ObservedFile>,
    ) {
        let now_ms = now_ms();
        let Some(trigger) = state.triggers.watched_by(endpoint, id) else {
            return;
        };
        if !trigger.is_active(now_ms) {
            return;
        }
        if trigger.waiting() + files.len() as u64 > MAX_WAITING_EVENTS {
            trigger.set_unstarted(too_many_events(trigger));
            return;
        }
        let fits = |file: &&ObservedFile| file.path.len() <= MAX_PATH_BYTES && file.version.len() <= MAX_VERSION_BYTES;
        let files = &files[..files.len().min(MAX_FILES)];
        let keys: Vec<String> = files.iter().map(ObservedFile::key).collect();
        let events = files
            .iter()
            .filter(fits)
            .filter_map(|file| event(file).encode(now_ms).ok());
        let events: Vec<NewEvent> = events.collect();
        let tasks = Arc::clone(self);
        tokio::spawn(async move {
            let written = tasks.take_events(id, events, None).await;
            let mut state = tasks.state();
            match written {
                Ok(_) => state.endpoints.send(
                    endpoint,
                    ToDispatcher::FilesStored {
                        trigger: id,
                        files: keys,
                    },
                ),
                Err(failure) => {
                    if let Some(trigger) = state.triggers.get_mut(id) {
                        trigger.set_unstarted(failure);
                    }
                }
            }
        });
    }

    /// Ends the watches of triggers that have expired.
    pub(super) fn end_expired_watches(&self, now_ms: u64) {
        let mut state = self.state();
        let watched = state.triggers.values().filter(|trigger| trigger.is_watched());
        let expired = watched.filter(|trigger| !trigger.is_active(now_ms));
        let endpoints: Vec<EndpointId> = expired.filter_map(|trigger| trigger.record().watched_at).collect();
        for endpoint in endpoints {
            state.send_watches(endpoint);
        }
    }
}
