//! A thread that drives the engine for as long as it lives, and sleeps without holding it.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use dayfly_protocol::error::{Code, Failure};

use super::{Engine, MAX_UNFLUSHED_SLEEP};
use crate::wake::Wake;
use crate::wire::PeerTransport;

/// A socket to poll during a sleep, and whether to poll for writing. The engine keeps it open for as long as it lives.
pub type Watched = (RawFd, bool);

/// Announces a sleep to another rank. Returns the longest time to sleep, which is zero if something has arrived.
pub(super) fn announce_sleep(transport: &mut PeerTransport) -> Duration {
    if !transport.fall_asleep() {
        Duration::ZERO
    } else if transport.is_flushed() {
        Duration::MAX
    } else {
        MAX_UNFLUSHED_SLEEP
    }
}

impl Engine {
    /// Registers the thread that drives the engine. It is woken for what another thread finds for it.
    pub fn attach_driver(&mut self, wake: &Arc<Wake>) -> Result<(), Failure> {
        if self.matching.driver.is_some() {
            return Err(Failure::new(
                Code::InvalidRequest,
                "this rank has a post already; use its lanes, or close it first",
            ));
        }
        self.matching.driver = Some(wake.clone());
        self.lost.watch(Some(wake.clone()));
        if let Some(lazy) = &self.lazy {
            lazy.watch(Some(wake.clone()));
        }
        Ok(())
    }

    /// Removes the registration.
    pub fn detach_driver(&mut self) {
        self.matching.driver = None;
        self.lost.watch(None);
        if let Some(lazy) = &self.lazy {
            lazy.watch(None);
        }
    }

    /// Expects from now on that any other rank may sleep: sends wake it.
    pub fn expect_sleep(&mut self) {
        self.peers_sleep = true;
        for transport in self.transports.iter_mut().flatten() {
            if let PeerTransport::Shm(transport) = transport {
                transport.expect_sleep();
            }
        }
    }

    /// Has all doorbells wait: one wake of a rank serves all that this thread sends it in a turn.
    pub fn hold_doorbells(&mut self) {
        for transport in self.transports.iter_mut().flatten() {
            transport.hold_doorbell();
        }
    }

    /// Rings the doorbells that are due.
    pub fn ring_held_doorbells(&mut self) {
        for transport in self.transports.iter_mut().flatten() {
            transport.ring_held_doorbell();
        }
    }

    /// Number of losses that are known to any thread of this process.
    pub fn known_losses(&self) -> u64 {
        self.lost.count()
    }

    /// Whether a loss or a connection waits to be handled.
    pub fn has_news(&self, losses_seen: u64) -> bool {
        self.lost.count() != losses_seen || self.lazy.as_ref().is_some_and(|lazy| lazy.has_results())
    }

    /// Why a rank is gone.
    pub fn why_gone(&self, peer: u32) -> Failure {
        self.lost_or_left(peer)
    }

    /// Announces a sleep to the other ranks. Appends the sockets to poll. Returns the longest time to sleep, which is
    /// zero if something has arrived meanwhile.
    pub fn begin_sleep(&mut self, watched: &mut Vec<Watched>, longest: Duration) -> Duration {
        let mut limit = longest;
        for peer in 0..self.transports.len() {
            // The socket of a rank that is gone stays readable.
            if self.is_gone(peer as u32) {
                continue;
            }
            let Some(transport) = &mut self.transports[peer] else {
                continue;
            };
            limit = limit.min(announce_sleep(transport));
            let (socket, writes) = transport.socket();
            watched.push((socket.as_raw_fd(), writes));
        }
        limit
    }

    /// Withdraws the announcement.
    pub fn end_sleep(&mut self) {
        for transport in self.transports.iter_mut().flatten() {
            transport.wake_up();
        }
    }

    /// Whether no bytes wait for room.
    pub fn is_flushed(&self) -> bool {
        self.transports.iter().flatten().all(PeerTransport::is_flushed)
    }
}
