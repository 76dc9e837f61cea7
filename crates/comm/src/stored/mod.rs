//! Ranks that exchange through storage: objects in a bucket or a directory, or streams in Redis.
//!
//! A *lane* is what one rank has stored for another: numbered objects below the run's name, each with a [header](frame) before its
//! bytes. A pair has one in each direction, and both together carry a byte stream as a socket does. One thread of each rank, the pump,
//! moves bytes between lanes and local sockets, whose other ends are the roads; it starts with the first of them. What passes is the
//! ranks' own TLS, so that the store can neither read nor change it: it can only fail.
//!
//! Who reads an object deletes it. No more than [`WINDOW`] bytes of a lane are stored and unread. Each side ends its lane with a last
//! object and then waits for the other's, so that nothing is left.

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
use dayfly_storage::Place;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::road::Lost;
pub use mailbox::{clear, pause};
use pump::Command;

/// Bytes of a lane that are stored and not yet read by the other rank.
pub const WINDOW: u64 = 64 << 20;
/// Bytes of the largest object. Larger ones do not come faster from a store that serves several at a time.
pub const OBJECT_BYTES: usize = 4 << 20;
/// How long a rank that leaves waits for the ends of the others' lanes.
const GRACE: Duration = Duration::from_secs(3);
/// What the pump may take beyond that to delete what is left.
const CLEANING: Duration = Duration::from_secs(5);
/// Bytes of stack of the pump's thread.
const STACK: usize = 2 << 20;

/// What the pump's thread and its owner share.
struct Shared {
    rank: u32,
    lost: Arc<Lost>,
    /// Ranks to which there is a way, and whether it has become the road.
    kept: Mutex<HashMap<u32, bool>>,
    /// What is wrong with the store.
    failure: OnceLock<Failure>,
}

impl Shared {
    fn kept(&self) -> MutexGuard<'_, HashMap<u32, bool>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the way to that rank has become its road.
    fn is_kept(&self, peer: u32) -> bool {
        self.kept().get(&peer).is_some_and(|kept| *kept)
    }

    /// Nothing passes the store any more.
    fn fail(&self, failure: &Failure) {
        let peers: Vec<u32> = self.kept().keys().copied().collect();
        for peer in peers {
            self.broke(peer, &failure.message);
        }
        // Only the first is a cause.
        let _ = self.failure.set(failure.clone());
    }

    /// A road is broken; operations that need it say why.
    fn broke(&self, peer: u32, reason: &str) {
        if self.is_kept(peer) {
            self.lost.add(peer, reason);
        }
    }
}

/// The store of a rank: where it exchanges with those that it reaches in no other way, or with all.
pub struct Stored {
    shared: Arc<Shared>,
    place: Place,
    run: String,
    size: u32,
    pump: Mutex<Option<Pump>>,
}

struct Pump {
    commands: UnboundedSender<Command>,
    thread: std::thread::JoinHandle<()>,
    /// Behind a mutex for those who share what holds it.
    ended: Mutex<std::sync::mpsc::Receiver<()>>,
    /// The thread is this process' own; one that was forked off has none.
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

/// Below which name in a store the runs of a group are. Whoever starts ranks under a name of its own may clear it when they have ended.
pub fn stem(group: &str) -> String {
    // A `/` would make two names of one.
    format!("dayfly/{}", group.replace('/', "%2F"))
}

impl Stored {
    /// For a rank of a run, which the rendezvous named. Nothing is asked of the store before the first road.
    pub fn new(place: Place, group: &str, run: &[u8; 16], rank: u32, size: u32, lost: Arc<Lost>) -> Self {
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

    /// What is wrong with the store, if something is.
    pub fn failure(&self) -> Option<&Failure> {
        self.shared.failure.get()
    }

    /// The local end of a way to another rank, non-blocking. There is one for each rank, once.
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
        // If it has ended just now, the socket closes, and the failure says why.
        let _ = pump.commands.send(Command::Road { peer, socket: far });
        Ok(near)
    }

    /// The way to that rank has become its road.
    pub fn keep(&self, peer: u32) {
        self.shared.kept().insert(peer, true);
    }
}

impl Pump {
    fn start(shared: Arc<Shared>, place: &Place, run: &str, size: u32) -> io::Result<Self> {
        let (commands, received) = unbounded_channel();
        let (tell, ended) = std::sync::mpsc::channel();
        let (place, run) = (place.clone(), run.to_owned());
        let work = move || {
            pump::run(&shared, &place, run, size, received);
            // Nobody listens where the process goes on without it.
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
    /// Waits until what was sent is stored, and what is left is deleted; not for ever. Nothing may be dialled any more.
    pub fn leave(&self) {
        let pump = self.pump.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(pump) = pump else {
            return;
        };
        if pump.process != std::process::id() {
            return std::mem::forget(pump);
        }
        let _ = pump.commands.send(Command::Leave);
        // A store that hangs is left to the thread, which ends with the process.
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
