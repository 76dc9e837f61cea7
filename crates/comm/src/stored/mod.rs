//! Ranks that exchange through storage: objects in a bucket or a directory, or streams in Redis.
//!
//! A *lane* holds what one rank stores for another: numbered objects below the run's name, each with a header (`frame`)
//! before its bytes. A pair has one lane in each direction; both together carry a byte stream like a socket. One thread
//! of each rank, the pump, moves bytes between lanes and local sockets, whose other ends are the roads. The pump starts
//! with the first road. The ranks' TLS protects the bytes, so the store can neither read nor change them; it can only
//! fail.
//!
//! The reader of an object deletes it. At most [`WINDOW`] bytes of a lane are stored and unread. Each side ends its
//! lane with a last object and then waits for the other's, so that nothing remains in the store.

mod frame;
mod lane;
mod mailbox;
mod pump;

use std::collections::HashMap;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use dayfly_protocol::error::Failure;
use dayfly_storage::StoreUrl;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::road::Lost;
pub use mailbox::{clear, pause};
use pump::Command;

/// Most bytes of a lane that are stored and not yet read by the other rank.
pub const WINDOW: u64 = 64 << 20;
/// Bytes of the largest object. Larger objects are not faster with a store that serves several at a time.
pub const OBJECT_BYTES: usize = 4 << 20;
/// How long a leaving rank waits for the ends of the others' lanes.
const GRACE: Duration = Duration::from_secs(3);
/// Additional time of the pump to delete what remains.
const CLEANING: Duration = Duration::from_secs(5);
/// Stack of the pump's thread in bytes.
const STACK: usize = 2 << 20;

/// State that the pump's thread and its owner share.
struct Shared {
    rank: u32,
    lost: Arc<Lost>,
    /// Ranks with a way through the store, and whether that way is the road.
    kept: Mutex<HashMap<u32, bool>>,
    /// The store's error.
    failure: OnceLock<Failure>,
}

impl Shared {
    fn kept(&self) -> MutexGuard<'_, HashMap<u32, bool>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the way to this rank is its road.
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

    /// Marks the rank of a broken road as lost.
    fn broke(&self, peer: u32, reason: &str) {
        if self.is_kept(peer) {
            self.lost.add(peer, reason);
        }
    }
}

/// The store of a rank, for pairs without another way or for all pairs.
pub struct Stored {
    shared: Arc<Shared>,
    place: StoreUrl,
    run: String,
    size: u32,
    pump: Mutex<Option<Pump>>,
}

struct Pump {
    commands: UnboundedSender<Command>,
    thread: std::thread::JoinHandle<()>,
    /// In a mutex so that the owner can be shared.
    ended: Mutex<std::sync::mpsc::Receiver<()>>,
    /// The process that started the thread. A forked child has no pump.
    process: u32,
}

impl std::fmt::Debug for Stored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stored")
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

impl Stored {
    /// The store of a rank in a run. Sends no request before the first road.
    pub fn new(place: StoreUrl, group: &str, run: &[u8; 16], rank: u32, size: u32, lost: Arc<Lost>) -> Self {
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
            pump: Mutex::default(),
        }
    }

    /// The store's error, if it failed.
    pub fn failure(&self) -> Option<&Failure> {
        self.shared.failure.get()
    }

    /// The non-blocking local end of a way to another rank. Call it once for each rank.
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
        let mut pump = self.pump.lock().unwrap_or_else(PoisonError::into_inner);
        let pump = match &mut *pump {
            Some(pump) => pump,
            none => none.insert(Pump::start(self.shared.clone(), &self.place, &self.run, self.size)?),
        };
        // If the pump has just ended, the socket closes, and the failure gives the reason.
        let _ = pump.commands.send(Command::Road { peer, socket: far });
        Ok(near)
    }

    /// Records that the way to this rank has become its road.
    pub fn keep(&self, peer: u32) {
        self.shared.kept().insert(peer, true);
    }
}

impl Pump {
    fn start(shared: Arc<Shared>, place: &StoreUrl, run: &str, size: u32) -> io::Result<Self> {
        let (commands, received) = unbounded_channel();
        let (tell, ended) = std::sync::mpsc::channel();
        let (place, run) = (place.clone(), run.to_owned());
        let work = move || {
            pump::run(&shared, &place, run, size, received);
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

impl Stored {
    /// Waits until sent bytes are stored and the rest is deleted, for a limited time. Nothing may be dialled
    /// afterwards.
    pub fn leave(&self) {
        let pump = self.pump.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(pump) = pump else {
            return;
        };
        if pump.process != std::process::id() {
            return std::mem::forget(pump);
        }
        let _ = pump.commands.send(Command::Leave);
        // A thread that hangs in the store ends with the process.
        let ended = pump.ended.into_inner().unwrap_or_else(PoisonError::into_inner);
        if ended.recv_timeout(GRACE + CLEANING).is_ok() {
            let _ = pump.thread.join();
        }
    }
}

impl Drop for Stored {
    fn drop(&mut self) {
        self.leave();
    }
}
