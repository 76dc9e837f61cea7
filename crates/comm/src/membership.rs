//! Membership in a group: a thread keeps the connection to the rendezvous, sends heartbeats, and receives losses.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dayfly_protocol::error::{Code, Failure};
use dayfly_rendezvous::client::RendezvousClient;
use dayfly_rendezvous::messages::ToRank;
use dayfly_rendezvous::socket::timespec;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::LostRanks;
use crate::store_route::StoreRoute;

/// Longest wait of the thread.
const LONG: Duration = Duration::from_secs(60);
/// Stack of the thread in bytes.
const STACK: usize = 512 << 10;

/// A rank's place in its group. Dropping it leaves the group; the others treat that as the end of the rank's work, not
/// as a loss.
///
/// If the rendezvous fails, the group goes on; then a lost rank is noticed only by its broken connections.
#[derive(Debug)]
pub struct Membership {
    /// Ends before the rank leaves: while sent bytes are being stored, it reports losses.
    stored: Option<Arc<StoreRoute>>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    /// The process that started the thread. A forked child has neither the thread nor a place in the group.
    process: u32,
}

impl Membership {
    /// Keeps a connection and adds reported losses to `lost`. Also keeps the store of the connections.
    pub(crate) fn keep(
        rendezvous: RendezvousClient,
        lost: Arc<LostRanks>,
        stored: Option<Arc<StoreRoute>>,
    ) -> Result<Self, Failure> {
        Ok(Self::start(move |stopped| keep_alive(rendezvous, &lost, stopped))?.with_store(stored))
    }

    /// Sets the store of the connections.
    pub(crate) fn with_store(mut self, stored: Option<Arc<StoreRoute>>) -> Self {
        self.stored = stored;
        self
    }

    /// Runs `work` in a thread. Its descriptor becomes readable when the membership is dropped.
    pub(crate) fn start(work: impl FnOnce(&OwnedFd) + Send + 'static) -> Result<Self, Failure> {
        let failed = |error| {
            Failure::new(
                Code::Internal,
                format!("the thread that keeps a group's heartbeat: {error}"),
            )
        };
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| failed(error.into()))?;
        let stop = Arc::new(stop);
        let stopped = stop.clone();
        let thread = std::thread::Builder::new()
            .name("heartbeat".into())
            .stack_size(STACK)
            .spawn(move || work(&stopped))
            .map_err(failed)?;
        Ok(Self {
            stored: None,
            stop,
            thread: Some(thread),
            process: std::process::id(),
        })
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        if let Some(stored) = self.stored.take() {
            stored.leave();
        }
        // One write suffices; a full eventfd would wake the thread too.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Keeps the connection until the rank leaves or the rendezvous fails.
pub(crate) fn keep_alive(mut rendezvous: RendezvousClient, lost: &LostRanks, stop: &OwnedFd) {
    loop {
        let sound = rendezvous.pump();
        // Messages from before its end count.
        while let Ok(Some(message)) = rendezvous.take() {
            if let ToRank::Lost { rank, reason } = message {
                lost.add_gone(rank, reason);
            }
        }
        if sound.is_err() || rendezvous.has_ended() {
            return;
        }
        let wake = rendezvous
            .next_ping()
            .map_or(LONG, |at| at.saturating_duration_since(Instant::now()));
        let flags = if rendezvous.wants_write() {
            PollFlags::IN | PollFlags::OUT
        } else {
            PollFlags::IN
        };
        let mut polled = [
            PollFd::new(rendezvous.socket(), flags),
            PollFd::new(stop, PollFlags::IN),
        ];
        match poll(&mut polled, Some(&timespec(wake))) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
        if !polled[1].revents().is_empty() {
            rendezvous.leave(None);
            return;
        }
    }
}
