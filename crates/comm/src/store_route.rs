//! Ranks that exchange through storage: objects in a bucket or a directory, or streams in Redis.
//!
//! A *queue* holds what one rank stores for another: numbered objects below the run's name, each with a
//! header (`object_header`) before its bytes. A pair has one queue in each direction; both together carry a byte stream
//! like a socket. One thread of each rank, the transfer thread, moves bytes between queues and local sockets, whose
//! other ends are the connections. The thread starts with the first connection. The ranks' TLS protects the bytes, so
//! the store can neither read nor change them; it can only fail.
//!
//! The reader of an object deletes it. At most [`WINDOW`] bytes of a queue are stored and unread. Each side ends its
//! queue with a last object and then waits for the other's, so that nothing remains in the store.

mod mailbox;
mod object_header;
mod queue_pair;
mod transfer;

use std::collections::HashMap;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use dayfly_protocol::error::Failure;
use dayfly_storage::StoreUrl;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::LostRanks;
pub use mailbox::{clear, pause};
use transfer::Command;

/// Most bytes of a queue that are stored and not yet read by the other rank.
pub const WINDOW: u64 = 64 << 20;
/// Bytes of the largest object. Larger objects are not faster with a store that serves several at a time.
pub const OBJECT_BYTES: usize = 4 << 20;
/// How long a leaving rank waits for the ends of the others' queues.
const GRACE: Duration = Duration::from_secs(3);
/// Additional time of the transfer thread to delete what remains.
const CLEANING: Duration = Duration::from_secs(5);
/// Stack of the transfer thread in bytes.
const STACK: usize = 2 << 20;

/// State that the transfer thread and its owner share.
struct Shared {
    rank: u32,
    lost: Arc<LostRanks>,
    /// Ranks that are dialled through the store, and whether that became their connection.
    kept: Mutex<HashMap<u32, bool>>,
    /// The store's error.
    failure: OnceLock<Failure>,
}

impl Shared {
    fn kept(&self) -> MutexGuard<'_, HashMap<u32, bool>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the connection to this rank goes through the store.
    fn is_kept(&self, peer: u32) -> bool {
        self.kept().get(&peer).is_some_and(|kept| *kept)
    }

    /// Records that the store failed.
    fn fail(&self, failure: &Failure) {
        let peers: Vec<u32> = self.kept().keys().copied().collect();
        for peer in peers {
            self.broke(peer, &failure.message);
        }
        // Only the first error is the cause.
        let _ = self.failure.set(failure.clone());
    }

    /// Marks the rank of a broken connection as lost.
    fn broke(&self, peer: u32, reason: &str) {
        if self.is_kept(peer) {
            self.lost.add(peer, reason);
        }
    }
}

/// The store of a rank, for pairs without another route or for all pairs.
pub struct StoreRoute {
    shared: Arc<Shared>,
    place: StoreUrl,
    run: String,
    size: u32,
    thread: Mutex<Option<TransferThread>>,
}

struct TransferThread {
    commands: UnboundedSender<Command>,
    thread: std::thread::JoinHandle<()>,
    /// In a mutex so that the owner can be shared.
    ended: Mutex<std::sync::mpsc::Receiver<()>>,
    /// The process that started the thread. A forked child has no such thread.
    process: u32,
}

impl std::fmt::Debug for StoreRoute {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreRoute")
            .field("place", &self.place)
            .field("run", &self.run)
            .finish_non_exhaustive()
    }
}

/// The name in a store under which the runs of a group are. A starter that uses a unique name may clear it afterwards.
pub fn stem(group: &str) -> String {
    // A `/` would split the name.
    format!("dayfly/{}", group.replace('/', "%2F"))
}

impl StoreRoute {
    /// The store of a rank in a run. Sends no request before the first connection.
    pub fn new(place: StoreUrl, group: &str, run: &[u8; 16], rank: u32, size: u32, lost: Arc<LostRanks>) -> Self {
        Self {
            shared: Arc::new(Shared {
                rank,
                lost,
                kept: Mutex::default(),
                failure: OnceLock::new(),
            }),
            run: format!("{}/{}", stem(group), hex::encode(run)),
            place,
            size,
            thread: Mutex::default(),
        }
    }

    /// The store's error, if it failed.
    pub fn failure(&self) -> Option<&Failure> {
        self.shared.failure.get()
    }

    /// The non-blocking local end of a connection to another rank through the store. Call it once for each rank.
    pub fn dial(&self, peer: u32) -> io::Result<UnixStream> {
        if let Some(failure) = self.failure() {
            return Err(io::Error::other(failure.message.clone()));
        }
        if self.shared.kept().insert(peer, false).is_some() {
            return Err(io::Error::other("what was stored for that rank cannot be stored again"));
        }
        let (near, far) = UnixStream::pair()?;
        near.set_nonblocking(true)?;
        far.set_nonblocking(true)?;
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let thread = match &mut *thread {
            Some(thread) => thread,
            none => none.insert(TransferThread::start(
                self.shared.clone(),
                &self.place,
                &self.run,
                self.size,
            )?),
        };
        // If the transfer thread has just ended, the socket closes, and the failure gives the reason.
        let _ = thread.commands.send(Command::Connect { peer, socket: far });
        Ok(near)
    }

    /// Records that the connection to this rank goes through the store.
    pub fn keep(&self, peer: u32) {
        self.shared.kept().insert(peer, true);
    }
}

impl TransferThread {
    fn start(shared: Arc<Shared>, place: &StoreUrl, run: &str, size: u32) -> io::Result<Self> {
        let (commands, received) = unbounded_channel();
        let (tell, ended) = std::sync::mpsc::channel();
        let (place, run) = (place.clone(), run.to_owned());
        let work = move || {
            transfer::run(&shared, &place, run, size, received);
            // After a fork there may be no receiver.
            let _ = tell.send(());
        };
        let thread = std::thread::Builder::new()
            .name("stored".into())
            .stack_size(STACK)
            .spawn(work)?;
        Ok(Self {
            commands,
            thread,
            ended: Mutex::new(ended),
            process: std::process::id(),
        })
    }
}

impl StoreRoute {
    /// Waits until sent bytes are stored and the rest is deleted, for a limited time. Nothing may be dialled
    /// afterwards.
    pub fn leave(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread else {
            return;
        };
        if thread.process != std::process::id() {
            return std::mem::forget(thread);
        }
        let _ = thread.commands.send(Command::Leave);
        // A thread that hangs in the store ends with the process.
        let ended = thread.ended.into_inner().unwrap_or_else(PoisonError::into_inner);
        if ended.recv_timeout(GRACE + CLEANING).is_ok() {
            let _ = thread.thread.join();
        }
    }
}

impl Drop for StoreRoute {
    fn drop(&mut self) {
        self.leave();
    }
}
