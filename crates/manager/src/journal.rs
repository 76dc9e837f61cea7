//! Writes lease changes to the store in order, and keeps on trying while the store cannot.
//!
//! A grant waits for its write and is refused when that fails. An end cannot be refused: it has happened. Such changes
//! wait here until the disk has room again, and meanwhile the manager says that it is degraded.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tracing::Instrument;

use dayfly_store::{ChangeResult, LeaseWriter, OwnedChange, StoreError};

/// Between two attempts on a store that cannot write.
const RETRY: Duration = Duration::from_millis(500);
/// Most changes in one write.
const GROUP: usize = 256;

struct Entry {
    /// None to only wait for what came before.
    note: Option<OwnedChange>,
    /// Who waits for it, and takes it back when it fails.
    reply: Option<oneshot::Sender<Result<(), StoreError>>>,
}

/// The way into the store for lease changes.
#[derive(Clone)]
pub struct Journal {
    entries: mpsc::UnboundedSender<Entry>,
    trouble: Arc<Mutex<Option<StoreError>>>,
}

impl Journal {
    /// Starts the task that writes; it ends when the last handle is gone and all that waited is written or refused.
    pub fn start(store: Arc<dyn LeaseWriter>) -> Self {
        let (entries, queue) = mpsc::unbounded_channel();
        let trouble = Arc::default();
        tokio::spawn(write(store, queue, Arc::clone(&trouble)));
        Self { entries, trouble }
    }

    /// Waits until everything noted before has been written, or was tried and cannot be.
    pub async fn drained(&self) {
        let _ = self.send(None).await;
    }

    /// Is in the queue when this returns; the future waits for the write.
    fn send(&self, note: Option<OwnedChange>) -> impl Future<Output = Result<(), StoreError>> + use<> {
        let (reply, answer) = oneshot::channel();
        // The task only ends after the last sender, so that this cannot fail while anybody can call it.
        let _ = self.entries.send(Entry {
            note,
            reply: Some(reply),
        });
        async move {
            let stopped = |_| Err(StoreError::Broken("its journal has stopped".into()));
            answer.await.unwrap_or_else(stopped)
        }
    }

    /// What the store said, while it cannot write.
    pub fn trouble(&self) -> Option<StoreError> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Writes a change that has happened, whatever the store says now.
    pub fn note(&self, note: OwnedChange) {
        let _ = self.entries.send(Entry {
            note: Some(note),
            reply: None,
        });
    }

    /// Writes changes that have happened, whatever the store says now.
    pub fn note_all(&self, notes: Vec<OwnedChange>) {
        notes.into_iter().for_each(|note| self.note(note));
    }

    /// Writes a change that is to happen only if it is written. It has its place in the order when this returns, so that a caller
    /// that holds the cluster has it in the order in which the cluster changes.
    pub fn ask(&self, note: OwnedChange) -> impl Future<Output = Result<(), StoreError>> + use<> {
        self.send(Some(note)).instrument(dayfly_telemetry::span!("write"))
    }
}

async fn write(
    store: Arc<dyn LeaseWriter>,
    mut queue: mpsc::UnboundedReceiver<Entry>,
    trouble: Arc<Mutex<Option<StoreError>>>,
) {
    let say = |what: Option<StoreError>| *trouble.lock().unwrap_or_else(PoisonError::into_inner) = what;
    let mut backlog: VecDeque<OwnedChange> = VecDeque::new();
    let mut group = Vec::with_capacity(GROUP);
    let mut open = true;
    while open || !backlog.is_empty() {
        if backlog.is_empty() {
            open = queue.recv_many(&mut group, GROUP).await > 0;
        } else {
            // While the store cannot write, only its own next attempt or the end of the queue is worth waiting for.
            let retry = store
                .change_leases(backlog.iter().take(GROUP).cloned().collect())
                .wait()
                .await;
            match retry {
                Ok(_) => {
                    backlog.drain(..backlog.len().min(GROUP));
                    if backlog.is_empty() {
                        tracing::info!("the store can write again");
                        say(None);
                    }
                    continue;
                }
                Err(error) if !open => {
                    tracing::error!(lost = backlog.len(), %error, "ending with lease changes that could not be written");
                    return;
                }
                Err(error) => say(Some(error)),
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
            trouble
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone()
                .map_or_else(|| Ok(Vec::new()), Err)
        };
        if let (Err(error), true) = (&written, backlog.is_empty()) {
            tracing::error!(%error, "the store cannot write; leases are refused until it can");
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
                // One that is stale is the new owner's business.
                (None, None) => {}
                (None, Some(_)) => backlog.extend(note),
            }
        }
        say(failed);
    }
}

/// Collects what arrives until it is time to try again. False when nothing will arrive any more.
async fn wait_or_collect(queue: &mut mpsc::UnboundedReceiver<Entry>, group: &mut Vec<Entry>) -> bool {
    let until = tokio::time::Instant::now() + RETRY;
    loop {
        match tokio::time::timeout_at(until, queue.recv()).await {
            Ok(Some(entry)) => {
                let waited_for = entry.reply.is_some();
                group.push(entry);
                // Somebody waits for this one, and should hear of the trouble at once.
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

    /// A fake disk that is full until it is told otherwise, and remembers what was written.
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
    async fn what_has_happened_waits_for_room_and_what_is_asked_is_refused_at_once() {
        let disk = Arc::new(FakeDisk::default());
        let journal = Journal::start(Arc::clone(&disk) as Arc<dyn LeaseWriter>);
        journal.note(ended(1));
        assert_eq!(journal.ask(ended(2)).await, Err(StoreError::Full));
        journal.note(ended(3));
        assert_eq!(journal.trouble(), Some(StoreError::Full));
        disk.roomy.store(true, Ordering::SeqCst);
        let healed = async {
            while journal.trouble().is_some() {
                tokio::time::sleep(RETRY).await;
            }
        };
        tokio::time::timeout(RETRY * 20, healed)
            .await
            .expect("it heals by itself");
        assert_eq!(journal.ask(ended(4)).await, Ok(()));
        assert_eq!(*disk.written.lock().unwrap(), vec![ended(1), ended(3), ended(4)]);
    }
}
