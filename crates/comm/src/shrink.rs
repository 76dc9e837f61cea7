//! Splitting communicators, and continuing without lost ranks.

use std::collections::BTreeSet;
use std::sync::Arc;

use dayfly_protocol::error::{Code, Failure};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::collective::{Call, Hosts, Kind, Plan, allgather};
use crate::engine::{CommunicatorRecord, Engine, WaitState};
use crate::group::Communicator;
use crate::matching::{ANY_SOURCE, Body};
use crate::wire::envelope::{Envelope, kind};
use crate::wire::{Outgoing, Payload};

/// Set in the context of messages that agree on the remaining ranks.
const AGREEMENT: u32 = 1 << 30;

/// A rank's arguments of a split.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct SplitRequest {
    key: i64,
    color: u32,
    /// 0 if the rank wants no communicator.
    wanted: u32,
    context: u32,
    reserved: u32,
}

/// Messages of a shrink, as words of four bytes.
#[derive(Debug)]
enum ShrinkMessage {
    /// A rank reports the losses that it knows to the leader.
    Report { context: u32, lost: Vec<u32> },
    /// The leader's decision, which every receiver forwards to all.
    Decision { context: u32, left: Vec<u32> },
}

impl ShrinkMessage {
    fn to_bytes(&self) -> Vec<u8> {
        let (kind, context, ranks) = match self {
            Self::Report { context, lost } => (0, context, lost),
            Self::Decision { context, left } => (1, context, left),
        };
        let mut words = vec![kind, *context];
        words.extend(ranks);
        words.as_bytes().to_vec()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let words: Vec<u32> = bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|word| u32::from_ne_bytes(*word))
            .collect();
        let (head, ranks) = words.split_first_chunk::<2>()?;
        let (context, ranks) = (head[1], ranks.to_vec());
        match head[0] {
            0 => Some(Self::Report { context, lost: ranks }),
            1 => Some(Self::Decision { context, left: ranks }),
            _ => None,
        }
    }
}

impl Communicator {
    /// A communicator of some ranks of this one.
    fn part(&self, engine: &mut Engine, context: u32, members: Vec<u32>) -> Result<Self, Failure> {
        engine.note_context(context);
        let own = self.members[self.rank as usize];
        let Some(rank) = members.iter().position(|member| *member == own) else {
            return Err(Failure::new(
                Code::RankLost,
                "the other ranks take this one for lost and have gone on without it; start it anew",
            ));
        };
        Ok(self.among(engine, context, members, rank as u32))
    }

    /// A communicator of these members, in which this rank has this number.
    pub(crate) fn among(&self, engine: &mut Engine, context: u32, members: Vec<u32>, rank: u32) -> Self {
        let members: Arc<[u32]> = members.into();
        let record = CommunicatorRecord::new(context, members.clone());
        let open = record.open.clone();
        let record = engine.add_record(record);
        Self {
            open,
            engine: self.engine.clone(),
            record,
            context,
            rank,
            hosts: Hosts::of(&members, &self.hosts_of_all).map(Arc::new),
            hosts_of_all: self.hosts_of_all.clone(),
            members,
            table: self.table,
        }
    }

    /// Splits the communicator. Ranks with the same color form a new communicator, in the order of their keys, then of
    /// their ranks. A rank with color `None` gets none.
    ///
    /// # Errors
    /// As every collective.
    pub fn split(&self, color: Option<u32>, key: i64) -> Result<Option<Self>, Failure> {
        let context = self.propose_context();
        let own = SplitRequest {
            key,
            color: color.unwrap_or(0),
            wanted: color.is_some().into(),
            context,
            reserved: 0,
        };
        let mut all = vec![own; self.members.len()];
        let table = self.table;
        let (bytes, into) = (own.as_bytes(), all.as_mut_bytes());
        self.run(Plan::new(Call::new(Kind::Split), "split", |run| {
            allgather(run, bytes, into, table)
        }))?;
        let context = all.iter().map(|wish| wish.context).max().unwrap_or(context);
        let mut guard = self.engine.lock();
        let engine = guard.engine();
        engine.note_context(context);
        let Some(color) = color else {
            return Ok(None);
        };
        if context >= AGREEMENT {
            return Err(Failure::new(
                Code::TooLarge,
                "this group has been split a thousand million times",
            ));
        }
        let mut chosen: Vec<(i64, u32)> = (0..)
            .zip(&all)
            .filter(|(_, wish)| wish.wanted != 0 && wish.color == color)
            .map(|(rank, wish): (u32, _)| (wish.key, rank))
            .collect();
        chosen.sort_unstable();
        let members = chosen.iter().map(|(_, rank)| self.members[*rank as usize]).collect();
        self.part(engine, context, members).map(Some)
    }

    /// A communicator of the same ranks with separate messages.
    ///
    /// # Errors
    /// As every collective.
    pub fn dup(&self) -> Result<Self, Failure> {
        let dup = self.split(Some(0), self.rank.into())?;
        dup.ok_or_else(|| Failure::new(Code::Internal, "a communicator of all ranks has no place for this one"))
    }

    /// A communicator of the remaining ranks, on which they agree. All remaining ranks must call it; further ranks may
    /// be lost meanwhile.
    ///
    /// The lowest remaining rank leads: it collects from all others the losses that they know, and decides. Every rank
    /// forwards the decision to all. So it reaches either no remaining rank or all of them, even if the leader is lost
    /// meanwhile; in the former case the next rank leads.
    ///
    /// # Errors
    /// [`Code::TimedOut`] when a rank that is not lost does not take part; [`Code::RankLost`] when the others consider
    /// this rank lost.
    pub fn shrink(&self) -> Result<Self, Failure> {
        let mut guard = self.engine.lock();
        let own = self.members[self.rank as usize];
        let tag = guard.engine().begin_agreement(self.record);
        let mut context = guard.engine().propose_context();
        let mut reported: BTreeSet<u32> = BTreeSet::from([own]);
        let mut lost: BTreeSet<u32> = BTreeSet::new();
        let mut reported_to = None;
        let mut wait_state = WaitState::new("shrink");
        loop {
            let engine = guard.engine();
            engine.check_for_failures();
            while let Some((source, message)) =
                engine
                    .matching
                    .take_unexpected(ANY_SOURCE, self.context | AGREEMENT, tag)
            {
                let Body::Bytes(bytes) = message.body else {
                    continue;
                };
                match ShrinkMessage::from_bytes(&bytes) {
                    Some(ShrinkMessage::Report {
                        context: theirs,
                        lost: also,
                    }) => {
                        reported.insert(source);
                        lost.extend(also);
                        context = context.max(theirs);
                    }
                    Some(ShrinkMessage::Decision { context, left }) => {
                        return self.decide(guard.engine(), tag, context, left);
                    }
                    None => {}
                }
            }
            lost.extend(self.members.iter().filter(|member| engine.is_gone(**member)));
            let left: Vec<u32> = self
                .members
                .iter()
                .copied()
                .filter(|member| !lost.contains(member))
                .collect();
            match left.first() {
                Some(leader) if *leader == own && left.iter().all(|member| reported.contains(member)) => {
                    return self.decide(engine, tag, context, left);
                }
                Some(leader) if *leader != own && reported_to != Some(*leader) => {
                    reported_to = Some(*leader);
                    let report = ShrinkMessage::Report {
                        context,
                        lost: lost.iter().copied().collect(),
                    };
                    self.send_shrink(engine, tag, *leader, &report);
                }
                _ => {}
            }
            guard.step(&mut wait_state)?;
        }
    }

    fn decide(&self, engine: &mut Engine, tag: u32, context: u32, left: Vec<u32>) -> Result<Self, Failure> {
        let own = self.members[self.rank as usize];
        let decision = ShrinkMessage::Decision {
            context,
            left: left.clone(),
        };
        for member in left.iter().filter(|member| **member != own) {
            self.send_shrink(engine, tag, *member, &decision);
        }
        self.part(engine, context, left)
    }

    fn send_shrink(&self, engine: &mut Engine, tag: u32, to: u32, message: &ShrinkMessage) {
        let bytes = message.to_bytes();
        let envelope = Envelope {
            kind: kind::EAGER,
            context: self.context | AGREEMENT,
            tag,
            length: bytes.len() as u64,
            ..Envelope::default()
        };
        engine.tell(
            to,
            Outgoing {
                envelope,
                payload: Payload::Owned(bytes),
                request: None,
            },
        );
    }
}
