//! Writes changes of leases to the store, in order, and retries while the store cannot write.
//!
//! A grant waits for its write, and is refused if the write fails. Changes that have taken effect, such as ends, cannot
//! be refused: they wait here until the store can write again. Meanwhile the manager's health is `degraded`.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tracing::Instrument;

use dayfly_store::{ChangeResult, LeaseWriter, OwnedChange, StoreError};

/// Pause between two attempts while the store cannot write.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// Changes in one write.
const MAX_GROUP: usize = 256;

struct Entry {
    /// `None` to only wait for earlier entries.
    note: Option<OwnedChange>,
    /// Receives the result. Such an entry is dropped if the write fails; others are retried.
    reply: Option<oneshot::Sender<Result<(), StoreError>>>,
}

/// A queue of changes for the store.
#[derive(Clone)]
pub struct Journal {
    entries: mpsc::UnboundedSender<Entry>,
    error: Arc<Mutex<Option<StoreError>>>,
}

impl Journal {
    /// Starts the task that writes. It ends when the last handle is dropped and all entries are written or refused.
    pub fn start(store: Arc<dyn LeaseWriter>) -> Self {
        let (entries, queue) = mpsc::unbounded_channel();
        let error = Arc::default();
        tokio::spawn(run(store, queue, Arc::clone(&error)));
        Self { entries, error }
    }

    /// Waits until every earlier entry has been written or has failed once.
    pub async fn drained(&self) {
        let _ = self.send(None).await;
    }

    /// Queues an entry at once. The future waits for the write.
    fn send(&self, note: Option<OwnedChange>) -> impl Future<Output = Result<(), StoreError>> + use<> {
        let (reply, result) = oneshot::channel();
        // The task ends only after the last sender, so this does not fail.
        let _ = self.entries.send(Entry {
            note,
            reply: Some(reply),
        });
        async move {
            let stopped = |_| Err(StoreError::Broken("its journal has stopped".into()));
            result.await.unwrap_or_else(stopped)
        }
    }

    /// The store's error, while it cannot write.
    pub fn error(&self) -> Option<StoreError> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Queues a change that has taken effect. It is retried until the store can write.
    pub fn note(&self, note: OwnedChange) {
        let _ = self.entries.send(Entry {
            note: Some(note),
            reply: None,
        });
    }

    /// Queues changes that have taken effect.
    pub fn note_all(&self, notes: Vec<OwnedChange>) {
        notes.into_iter().for_each(|note| self.note(note));
    }

    /// Writes a change that takes effect only if it is written. The change is queued when this returns; a caller that
    /// holds the lock on the cluster thereby keeps the order of the cluster's changes. The future waits for the write.
    pub fn write(&self, note: OwnedChange) -> impl Future<Output = Result<(), StoreError>> + use<> {
        self.send(Some(note)).instrument(dayfly_telemetry::span!("write"))
    }
}

async fn run(
    store: Arc<dyn LeaseWriter>,
    mut queue: mpsc::UnboundedReceiver<Entry>,
    error: Arc<Mutex<Option<StoreError>>>,
) {
    let set_error = |now: Option<StoreError>| *error.lock().unwrap_or_else(PoisonError::into_inner) = now;
    let mut backlog: VecDeque<OwnedChange> = VecDeque::new();
    let mut group = Vec::with_capacity(MAX_GROUP);
    let mut open = true;
    while open || !backlog.is_empty() {
        if backlog.is_empty() {
            open = queue.recv_many(&mut group, MAX_GROUP).await > 0;
        } else {
            // The store cannot write: retry the backlog before new entries.
            let retry = store
                .change_leases(backlog.iter().take(MAX_GROUP).cloned().collect())
                .wait()
                .await;
            match retry {
                Ok(_) => {
                    backlog.drain(..backlog.len().min(MAX_GROUP));
                    if backlog.is_empty() {
                        tracing::info!("the store can write again");
                        set_error(None);
                    }
                    continue;
                }
                Err(error) if !open => {
                    tracing::error!(lost = backlog.len(), %error, "stopped before all changes of leases were written");
                    return;
                }
                Err(error) => set_error(Some(error)),
            }
            open = wait_or_collect(&mut queue, &mut group).await;
        }
        if group.is_empty() {
            continue;
        }
        let written = if backlog.is_empty() {
            let notes = group.iter().filter_map(|entry| entry.note.clone()).collect();
            store.change_leases(notes).wait().await
        } else {
            error
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone()
                .map_or_else(|| Ok(Vec::new()), Err)
        };
        if let (Err(error), true) = (&written, backlog.is_empty()) {
            tracing::error!(%error, "the store cannot write; refusing leases until it can");
        }
        let failed = written.as_ref().err().cloned();
        let mut noted = written.unwrap_or_default().into_iter();
        for Entry { note, reply } in group.drain(..) {
            let noted = note.as_ref().and_then(|_| noted.next());
            match (reply, &failed) {
                (Some(reply), None) => drop(reply.send(match noted {
                    None | Some(ChangeResult::Kept) => Ok(()),
                    Some(ChangeResult::Stale) => Err(StoreError::Stale),
                    Some(ChangeResult::OverQuota(quota)) => Err(quota.into()),
                })),
                (Some(reply), Some(error)) => drop(reply.send(Err(error.clone()))),
                // A stale change is the new owner's concern.
                (None, None) => {}
                (None, Some(_)) => backlog.extend(note),
            }
        }
        set_error(failed);
    }
}

/// Collects entries until the next attempt is due. Returns false if no more will come.
async fn wait_or_collect(queue: &mut mpsc::UnboundedReceiver<Entry>, group: &mut Vec<Entry>) -> bool {
    let until = tokio::time::Instant::now() + RETRY_PAUSE;
    loop {
        match tokio::time::timeout_at(until, queue.recv()).await {
            Ok(Some(entry)) => {
                let waited_for = entry.reply.is_some();
                group.push(entry);
                // A caller waits for this one, and should get the error at once.
                if waited_for {
                    return true;
                }
            }
            Ok(None) => return false,
            Err(_) => return true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use dayfly_protocol::api::LeaseState;
    use dayfly_protocol::ids::{LeaseId, NodeId};
    use dayfly_store::{Change, Pending};

    use super::*;

    /// A fake store that is full at first, and records its writes.
    #[derive(Default)]
    struct FakeDisk {
        roomy: AtomicBool,
        written: Mutex<Vec<OwnedChange>>,
    }

    impl LeaseWriter for FakeDisk {
        fn change_leases(&self, notes: Vec<OwnedChange>) -> Pending<Vec<ChangeResult>> {
            if !self.roomy.load(Ordering::SeqCst) {
                return Pending::ready(Err(StoreError::Full));
            }
            let all = vec![ChangeResult::Kept; notes.len()];
            self.written.lock().unwrap().extend(notes);
            Pending::ready(Ok(all))
        }
    }

    fn ended(n: u8) -> OwnedChange {
        OwnedChange {
            node: NodeId([1; 16]),
            epoch: 1,
            change: Change::Ended {
                lease: LeaseId([n; 16]),
                state: LeaseState::Released,
                at_ms: 1,
            },
        }
    }

    #[tokio::test(start_paused = true)]
    async fn full_store_delays_notes_and_refuses_writes() {
        let disk = Arc::new(FakeDisk::default());
        let journal = Journal::start(Arc::clone(&disk) as Arc<dyn LeaseWriter>);
        journal.note(ended(1));
        assert_eq!(journal.write(ended(2)).await, Err(StoreError::Full));
        journal.note(ended(3));
        assert_eq!(journal.error(), Some(StoreError::Full));
        disk.roomy.store(true, Ordering::SeqCst);
        let healed = async {
            while journal.error().is_some() {
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        };
        tokio::time::timeout(RETRY_PAUSE * 20, healed)
            .await
            .expect("the error ends by itself");
        assert_eq!(journal.write(ended(4)).await, Ok(()));
        assert_eq!(*disk.written.lock().unwrap(), vec![ended(1), ended(3), ended(4)]);
    }
}
