//! Connects a rank with others on demand, while it belongs to the group.
//!
//! A rank calls the rank that it needs through the rendezvous. Both begin when the rendezvous forwards the call, which
//! is their common moment. A rank that cannot be reached in time is lost. A rank that connects to all at once also
//! calls the others if they connect on demand.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use dayfly_protocol::error::Failure;
use dayfly_rendezvous::client::RendezvousClient;
use dayfly_rendezvous::messages::FromRank;
use rustix::event::epoll;

use super::{ConnectLoop, Pair, REQUESTS, STOP};
use crate::LostRanks;
use crate::connect::{ConnectSettings, lost};
use crate::connect_queue::{ConnectQueue, ConnectResult};

/// Interval at which an unconnected rank is called again: it may have left meanwhile.
const CALL_AGAIN: Duration = Duration::from_secs(1);

/// Connects on demand.
#[derive(Clone, Copy)]
pub struct LazyConnect<'a> {
    /// Requests and results.
    pub queue: &'a ConnectQueue,
    /// Ranks that cannot be reached.
    pub lost: &'a LostRanks,
    /// Becomes readable when this ends.
    pub stop: &'a OwnedFd,
}

/// Connects with the ranks that are requested or that call, until it is stopped. Keeps the rank's place in the group
/// meanwhile.
pub fn connect_on_demand(
    settings: &ConnectSettings<'_>,
    rendezvous: &mut RendezvousClient,
    lazy: LazyConnect<'_>,
) -> Result<(), Failure> {
    let mut run = ConnectLoop::new(settings, rendezvous, Some(lazy))?;
    run.add(lazy.queue.wake(), REQUESTS, epoll::EventFlags::IN)?;
    run.add(lazy.stop, STOP, epoll::EventFlags::IN)?;
    while !run.stopped {
        run.take_requests(lazy.queue)?;
        run.advance()?;
        run.give_up_late(lazy.lost);
        run.wait()?;
    }
    Ok(())
}

impl ConnectLoop<'_> {
    /// Calls the requested ranks.
    fn take_requests(&mut self, queue: &ConnectQueue) -> Result<(), Failure> {
        let now = Instant::now();
        for peer in queue.take_requests() {
            if peer != self.settings.rank && (peer as usize) < self.pairs.len() {
                self.call(peer, now)?;
            }
        }
        Ok(())
    }

    /// Calls ranks again that did not connect; they may have left.
    pub(super) fn call_again(&mut self, now: Instant) -> Result<(), Failure> {
        let again = |pair: &Pair| pair.until.is_some() && pair.called.is_some_and(|at| now >= at + CALL_AGAIN);
        let again: Vec<u32> = (0..)
            .zip(&self.pairs)
            .filter(|(_, pair)| again(pair))
            .map(|(peer, _)| peer)
            .collect();
        again.into_iter().try_for_each(|peer| self.call(peer, now))
    }

    pub(super) fn call(&mut self, peer: u32, now: Instant) -> Result<(), Failure> {
        let pair = &mut self.pairs[peer as usize];
        if pair.connected {
            return Ok(());
        }
        pair.until.get_or_insert(now + self.settings.patience);
        pair.called = Some(now);
        if self.rendezvous_is_lost {
            // Without a rendezvous, the other rank may still accept a connection.
            self.begin_pair(peer, now);
            return Ok(());
        }
        self.rendezvous.send(&FromRank::Call { to: peer })
    }

    /// Marks ranks as lost that were not reached in time.
    fn give_up_late(&mut self, lost: &LostRanks) {
        let now = Instant::now();
        let broken = self.settings.stored.filter(|_| self.settings.routes.are_only_stored());
        let broken = broken.and_then(|stored| stored.failure()).is_some();
        for peer in (0..).take(self.pairs.len()) {
            let late = self.pairs[peer as usize]
                .until
                .is_some_and(|until| broken || now >= until);
            if late {
                self.note_open_attempts();
                self.pairs[peer as usize].until = None;
                lost.add(
                    peer,
                    format!(
                        "it could not be reached: {}",
                        self.pairs[peer as usize].describe_attempts(self.settings.routes.cautious)
                    ),
                );
            }
        }
    }

    /// Begins to connect after one of the two called the other.
    pub(super) fn begin_called(&mut self, peer: u32) {
        let now = Instant::now();
        match self.pairs.get_mut(peer as usize) {
            Some(pair) if self.lazy.is_some() && peer != self.settings.rank && !pair.connected => {
                pair.until.get_or_insert(now + self.settings.patience);
                pair.called.get_or_insert(now);
                self.begin_pair(peer, now);
            }
            _ => {}
        }
    }

    /// Handles that a called rank has left.
    pub(super) fn handle_left(&mut self, peer: u32) -> Result<(), Failure> {
        let Some(pair) = self.pairs.get_mut(peer as usize).filter(|pair| !pair.connected) else {
            return Ok(());
        };
        let Some(lazy) = self.lazy else {
            return Err(lost(peer, "it has left again"));
        };
        pair.until = None;
        lazy.queue.report(ConnectResult::Left(peer));
        Ok(())
    }
}
