//! Failures: ranks that are lost or have left, and collectives that do not match.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dayfly_protocol::error::{Code, Failure};

use super::Engine;
use crate::collective::Call;
use crate::matching::{ANY_SOURCE, GroupEvent, GroupEventKind, MatchKey, RequestId};
use crate::wire::envelope::{COLLECTIVE, Envelope, Mismatch, kind};
use crate::wire::{Outgoing, Payload};

/// After this time in a collective, a waiting rank sends its call to the others.
const STALL_LIMIT: Duration = Duration::from_millis(20);
/// Past calls that are remembered, to compare them with late calls of others.
const REMEMBERED: usize = 8;

/// State of one communicator.
#[derive(Debug)]
pub struct CommunicatorRecord {
    pub context: u32,
    /// Its ranks, as ranks of the whole group.
    pub members: Arc<[u32]>,
    /// Number of the last collective.
    pub sequence: u32,
    calls: [(u32, u64); REMEMBERED],
    /// Calls of other ranks that this rank has not reached.
    ahead: Vec<(u32, u32, u64)>,
    /// The first collective that cannot work any more, and why.
    broken: Option<(u32, Failure)>,
    stalled: Option<(u32, Instant)>,
    announced: u32,
    agreements: u32,
    /// Whether its communicator exists. A flag that is shared, since a communicator may be dropped by a thread that has
    /// the engine.
    pub open: Arc<AtomicBool>,
}

impl CommunicatorRecord {
    pub fn new(context: u32, members: Arc<[u32]>) -> Self {
        Self {
            context,
            members,
            sequence: 0,
            calls: [(0, 0); REMEMBERED],
            ahead: Vec::new(),
            broken: None,
            stalled: None,
            announced: 0,
            agreements: 0,
            open: Arc::new(AtomicBool::new(true)),
        }
    }

    fn index(&self, rank: u32) -> u32 {
        let found = self.members.iter().position(|member| *member == rank);
        found.map_or(u32::MAX, |at| at as u32)
    }

    /// This rank's call with this number, if it is still remembered.
    fn called(&self, sequence: u32) -> Option<u64> {
        let (number, call) = self.calls[sequence as usize % REMEMBERED];
        (number == sequence).then_some(call)
    }
}

impl Engine {
    /// Begins a collective. Returns its key.
    #[inline]
    pub fn begin(&mut self, record: usize, call: Call) -> Result<MatchKey, Failure> {
        let call = call.to_wire();
        let record_at = record;
        let record = &mut self.communicators[record_at];
        record.sequence = record.sequence.wrapping_add(1);
        let tag = record.sequence;
        record.calls[tag as usize % REMEMBERED] = (tag, call);
        let context = record.context | COLLECTIVE;
        if !record.ahead.is_empty() {
            self.compare_ahead(record_at, tag, call);
        }
        if self.has_failures {
            self.check_group(record_at, tag)?;
        }
        Ok(MatchKey { context, tag, call })
    }

    #[cold]
    fn compare_ahead(&mut self, at: usize, tag: u32, call: u64) {
        let record = &mut self.communicators[at];
        let mut differs = None;
        record.ahead.retain(|(source, sequence, theirs)| {
            if *sequence == tag && *theirs != call {
                differs = Some((*source, *theirs));
            }
            *sequence > tag
        });
        if let Some((source, theirs)) = differs {
            self.disagree(at, tag, call, source, theirs);
        }
    }

    /// Marks a rank as lost.
    pub fn lose(&mut self, peer: u32, reason: String) {
        self.lost.add(peer, reason);
        self.check_for_failures();
    }

    /// Checks for failures, and ends operations that cannot succeed any more.
    pub fn check_for_failures(&mut self) {
        for peer in 0..self.size {
            let closed = self.transports[peer as usize]
                .as_ref()
                .is_some_and(super::PeerTransport::is_closed);
            if closed && !self.departed[peer as usize] {
                self.lost.add(peer, "its process has ended");
            }
        }
        let lost = self.lost.count();
        if lost != self.checks.lost_seen {
            self.checks.lost_seen = lost;
            self.has_failures = true;
            self.matching.lift_limit();
            for (peer, _) in self.lost.all() {
                if peer < self.size {
                    self.matching.withdraw_all(peer);
                }
            }
        }
        if self.has_failures {
            self.fail_doomed();
            for at in 0..self.communicators.len() {
                let record = &self.communicators[at];
                if record.members.iter().any(|rank| self.lost.check(*rank).is_err()) {
                    self.matching.purge(record.context | COLLECTIVE);
                }
            }
        }
        self.matching.fail_given_up();
        self.tell_if_stalled();
    }

    /// Begins an agreement on the remaining ranks. Returns its number.
    pub fn begin_agreement(&mut self, at: usize) -> u32 {
        self.communicators[at].agreements += 1;
        self.communicators[at].agreements
    }

    /// The error of an operation with an unreachable rank.
    pub(super) fn lost_or_left(&self, peer: u32) -> Failure {
        let left = || {
            Failure::new(
                Code::RankLost,
                format!("rank {peer} has left the group; it ended while something was expected of it"),
            )
        };
        self.lost.check(peer).err().unwrap_or_else(left)
    }

    pub(super) fn no_connection(&self, peer: u32) -> Failure {
        match peer < self.size {
            true => Failure::new(
                Code::Unreachable,
                format!("there is no connection between ranks {} and {peer}", self.rank),
            ),
            false => Failure::new(
                Code::InvalidRequest,
                format!("there is no rank {peer} in a group of {}", self.size),
            ),
        }
    }

    /// Whether a rank is lost or has left.
    pub fn is_gone(&self, peer: u32) -> bool {
        peer != self.rank
            && peer < self.size
            && (self.departed[peer as usize] || self.lost.count() > 0 && self.lost.check(peer).is_err())
    }

    /// Returns an error if an operation with this rank and address cannot succeed.
    #[cold]
    pub(super) fn check(&self, peer: u32, key: &MatchKey) -> Result<(), Failure> {
        let at = self.record_of(key.context);
        if key.context & COLLECTIVE != 0
            && let Some(at) = at
        {
            self.check_group(at, key.tag)?;
        }
        if peer == ANY_SOURCE {
            let members = at.map(|at| self.communicators[at].members.clone());
            let gone = members.and_then(|members| members.iter().copied().find(|rank| self.lost.check(*rank).is_err()));
            return gone.map_or(Ok(()), |rank| Err(self.lost_or_left(rank)));
        }
        match self.is_gone(peer) {
            true => Err(self.lost_or_left(peer)),
            false => Ok(()),
        }
    }

    /// Returns an error if a message with this rank and address cannot arrive any more.
    #[inline]
    pub fn check_can_arrive(&self, peer: u32, key: MatchKey) -> Result<(), Failure> {
        match self.has_failures {
            true => self.check(peer, &key),
            false => Ok(()),
        }
    }

    fn record_of(&self, context: u32) -> Option<usize> {
        let context = context & !COLLECTIVE;
        self.communicators
            .iter()
            .position(|record| record.open.load(Ordering::Acquire) && record.context == context)
    }

    /// Returns an error if collective `tag` of a communicator cannot succeed.
    #[cold]
    fn check_group(&self, at: usize, tag: u32) -> Result<(), Failure> {
        let record = &self.communicators[at];
        if let Some((from, failure)) = &record.broken
            && tag >= *from
        {
            return Err(failure.clone());
        }
        match record.members.iter().find(|rank| self.lost.check(**rank).is_err()) {
            Some(rank) => Err(self.lost_or_left(*rank)),
            None => Ok(()),
        }
    }

    /// Ends requests that cannot be completed any more.
    fn fail_doomed(&mut self) {
        let doomed: Vec<(RequestId, Failure)> = self
            .matching
            .pending()
            .filter_map(|(id, request)| {
                let key = MatchKey {
                    context: request.context,
                    tag: request.tag,
                    call: request.call,
                };
                self.check(request.peer, &key).err().map(|failure| (id, failure))
            })
            .collect();
        for (id, failure) in doomed {
            self.fail(id, failure);
        }
    }

    /// Handles the events of the transports.
    #[cold]
    pub(super) fn handle_events(&mut self) {
        while let Some(event) = self.matching.events.pop_front() {
            self.handle_event(event);
        }
    }

    /// Records that a rank has left.
    pub(super) fn depart(&mut self, peer: u32) {
        self.departed[peer as usize] = true;
        self.has_failures = true;
        self.fail_doomed();
    }

    fn handle_event(&mut self, event: GroupEvent) {
        let GroupEvent { source, tag, call, .. } = event;
        if let GroupEventKind::Leaves = event.kind {
            self.depart(source);
            return;
        }
        let Some(at) = self.record_of(event.context) else {
            return;
        };
        match event.kind {
            GroupEventKind::Called => match self.communicators[at].called(tag) {
                Some(own) if own != call => self.disagree(at, tag, own, source, call),
                Some(_) => {}
                None if tag > self.communicators[at].sequence => self.communicators[at].ahead.push((source, tag, call)),
                None => {}
            },
            GroupEventKind::Length(sent, due) => {
                let own = self.communicators[at].called(tag).unwrap_or_default();
                let detail = format!(
                    ": rank {} sent {sent} bytes where {due} were due",
                    self.communicators[at].index(source)
                );
                self.send_mismatch(at, tag, own, source, call);
                self.break_group(at, tag, [(self.rank, own), (source, call)], &detail);
            }
            GroupEventKind::Mismatch(Mismatch { ranks, other }) => {
                self.break_group(at, tag, [(ranks[0], call), (ranks[1], other)], "");
            }
            GroupEventKind::Leaves => {}
        }
    }

    /// Handles that this rank and another one made different calls: informs all ranks.
    fn disagree(&mut self, at: usize, tag: u32, own: u64, source: u32, theirs: u64) {
        self.send_mismatch(at, tag, own, source, theirs);
        self.break_group(at, tag, [(self.rank, own), (source, theirs)], "");
    }

    fn send_mismatch(&mut self, at: usize, tag: u32, own: u64, source: u32, theirs: u64) {
        if self.communicators[at]
            .broken
            .as_ref()
            .is_some_and(|(from, _)| *from <= tag)
        {
            return;
        }
        let record = &self.communicators[at];
        let (context, members) = (record.context, record.members.clone());
        let mismatch = Mismatch {
            ranks: [self.rank, source],
            other: theirs,
        };
        let own_rank = self.rank;
        for peer in members.iter().filter(|peer| **peer != own_rank) {
            self.tell(
                *peer,
                Outgoing {
                    envelope: Envelope {
                        kind: kind::MISMATCH,
                        context,
                        tag,
                        call: own,
                        ..Envelope::default()
                    },
                    payload: Payload::Extra(zerocopy::transmute!(mismatch)),
                    request: None,
                },
            );
        }
    }

    /// Marks all collectives of this communicator from `tag` on as failed.
    fn break_group(&mut self, at: usize, tag: u32, calls: [(u32, u64); 2], detail: &str) {
        let record = &mut self.communicators[at];
        if record.broken.as_ref().is_some_and(|(from, _)| *from <= tag) {
            return;
        }
        let [one, other] =
            calls.map(|(rank, call)| format!("rank {} called {}", record.index(rank), Call::from_wire(call)));
        let failure = Failure::new(
            Code::Mismatch,
            format!("collective {tag} of this communicator does not fit together: {one}, {other}{detail}"),
        );
        record.broken = Some((tag, failure));
        self.has_failures = true;
        self.fail_doomed();
    }

    /// After a long wait in a collective, sends this rank's call to the others. They may be in another collective that
    /// sends nothing to this rank.
    fn tell_if_stalled(&mut self) {
        let waiting = self
            .matching
            .pending()
            .filter(|(_, request)| request.context & COLLECTIVE != 0);
        let waiting: Vec<(u32, u32, u64, u32)> = waiting
            .map(|(_, request)| (request.context, request.tag, request.call, request.peer))
            .collect();
        for &(of, tag, call, _) in &waiting {
            let Some(at) = self.record_of(of) else {
                continue;
            };
            let record = &mut self.communicators[at];
            let since = match record.stalled {
                Some((number, since)) if number == tag => since,
                _ => record.stalled.insert((tag, Instant::now())).1,
            };
            if since.elapsed() < STALL_LIMIT || record.announced == tag {
                continue;
            }
            record.announced = tag;
            let (context, members) = (record.context, record.members.clone());
            // With connections on demand, only the ranks concern us that a message is expected from.
            let expected = |peer: u32| {
                waiting
                    .iter()
                    .any(|(other, under, _, from)| (*other, *under, *from) == (of, tag, peer))
            };
            let own_rank = self.rank;
            for peer in members.iter().copied().filter(|peer| *peer != own_rank) {
                if self.transports[peer as usize].is_none() && !expected(peer) {
                    continue;
                }
                self.tell(
                    peer,
                    Outgoing::control(Envelope {
                        kind: kind::CALLED,
                        context,
                        tag,
                        call,
                        ..Envelope::default()
                    }),
                );
            }
        }
    }
}
