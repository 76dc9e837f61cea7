//! The messages of one rank to this post.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use dayfly_protocol::error::{Code, Failure};

use super::layout::{Frames, Layout};
use super::link::Link;
use super::memory::{Memory, Pool};
use super::outgoing::{MAX_BODIES, MAX_FRAMES};
use super::word::{self, MAX_WORD_BYTES};
use super::{Message, PostError};
use crate::matching::{RequestId, Waiting};

/// Why a rank cannot be received from any more.
#[derive(Debug)]
pub enum Trouble {
    /// The connection or the rank failed.
    Failed(Failure),
    /// It broke the protocol.
    Violation(&'static str),
    /// This process has no memory for a message.
    OutOfMemory(u64),
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// A message whose bytes arrive.
#[derive(Debug)]
struct Body {
    lane: u32,
    number: u32,
    layout: Layout,
    memory: Memory,
    frames: Frames,
    /// Requests, and the bytes that each must bring.
    outstanding: Vec<(RequestId, u64)>,
}

/// A message in the order of its lane; `None` until it is complete.
type Place = (u32, Option<Message>);

/// The messages of one rank.
#[derive(Debug, Default)]
pub struct Incoming {
    /// A long word that arrives. The engine writes to it until the request is complete.
    word: Option<(RequestId, Vec<u8>)>,
    number: u32,
    bodies: Vec<Body>,
    /// Lanes with incomplete messages.
    lanes: HashMap<u32, VecDeque<Place>>,
    /// Charges of messages whose credit was not returned.
    outstanding: u64,
    lanes_outstanding: HashMap<u32, u64>,
    /// Whether a message failed, and will not arrive.
    is_cut: bool,
}

impl Incoming {
    /// The next word that has arrived; `None` if there is none.
    pub fn next_word(&mut self, link: &mut Link<'_>) -> Result<Option<Vec<u8>>, Trouble> {
        if let Some((request, _)) = &self.word {
            let Some(outcome) = link.take(*request) else {
                return Ok(None);
            };
            let word = self.word.take().map(|(_, bytes)| bytes);
            outcome?;
            return Ok(word);
        }
        match link.take_arrived(word::WORD_TAG) {
            None => Ok(None),
            Some(Waiting::Bytes(bytes)) => Ok(Some(bytes)),
            Some(Waiting::Offered(length)) if length > MAX_WORD_BYTES => {
                Err(Trouble::Violation("a word longer than any"))
            }
            Some(Waiting::Offered(length)) => {
                let mut bytes = vec![0; length as usize];
                // SAFETY: the bytes are kept with the request until it is complete or cancelled.
                let started = unsafe { link.receive(word::WORD_TAG, bytes.as_mut_ptr(), bytes.len()) }?;
                match started {
                    None => Ok(Some(bytes)),
                    Some(request) => {
                        self.word = Some((request, bytes));
                        Ok(None)
                    }
                }
            }
        }
    }

    /// Begins a message. Pushes it to `complete` if all of it is there.
    pub fn begin(
        &mut self,
        link: &mut Link<'_>,
        head: Head<'_>,
        window: u64,
        pool: &Arc<Pool>,
        complete: &mut Vec<Message>,
    ) -> Result<(), Trouble> {
        let Head {
            lane,
            number,
            layout,
            bytes,
        } = head;
        if number != self.number {
            return Err(Trouble::Violation("a message out of order"));
        }
        self.number = self.number.wrapping_add(1);
        if bytes.is_none() && self.bodies.len() >= MAX_BODIES {
            // The sender may know before this rank that messages have arrived. Their bytes came before this head.
            while self.advance(link, complete)? {}
            if self.bodies.len() >= MAX_BODIES {
                return Err(Trouble::Violation("too many messages at a time"));
            }
        }
        let charge = word::charge(layout.bytes(), layout.offsets().len());
        let of_lane = self.lanes_outstanding.entry(lane).or_default();
        if *of_lane > 0 && self.outstanding.saturating_add(charge) > window {
            return Err(Trouble::Violation("a message without credit"));
        }
        *of_lane += charge;
        self.outstanding += charge;
        let out_of_memory = || Trouble::OutOfMemory(layout.bytes());
        let mut memory = pool.take(&layout).ok_or_else(out_of_memory)?;
        memory.zero_gaps(&layout);
        let Some(mut bytes) = bytes else {
            self.lanes.entry(lane).or_default().push_back((number, None));
            self.bodies.push(Body {
                lane,
                number,
                frames: layout.frames(),
                memory,
                layout,
                outstanding: Vec::with_capacity(MAX_FRAMES),
            });
            return Ok(());
        };
        for (offset, length) in layout.offsets() {
            let (part, rest) = bytes.split_at(*length as usize);
            memory.write(*offset as usize, part);
            bytes = rest;
        }
        let message = Message {
            from: link.rank(),
            lane,
            charge,
            parts: memory.into_parts(&layout),
        };
        match self.lanes.get_mut(&lane) {
            Some(waiting) => waiting.push_back((number, Some(message))),
            None => complete.push(message),
        }
        Ok(())
    }

    /// Continues the messages under way. Pushes those that are complete, in the order of their lanes. Returns whether
    /// anything moved. A message that fails is given up; the others continue even then.
    pub fn advance(&mut self, link: &mut Link<'_>, complete: &mut Vec<Message>) -> Result<bool, Trouble> {
        let (mut moved, mut trouble) = (false, None);
        let mut at = 0;
        while at < self.bodies.len() {
            let body = &mut self.bodies[at];
            match body.advance(link) {
                Ok(more) => moved |= more,
                Err(failed) => {
                    // Its memory is not all written, so nobody may ever see it.
                    self.bodies.swap_remove(at).abandon(link);
                    self.is_cut = true;
                    trouble.get_or_insert(failed);
                    continue;
                }
            }
            if !body.frames.is_over() || !body.outstanding.is_empty() {
                at += 1;
                continue;
            }
            let body = self.bodies.swap_remove(at);
            let charge = word::charge(body.layout.bytes(), body.layout.offsets().len());
            let message = Message {
                from: link.rank(),
                lane: body.lane,
                charge,
                parts: body.memory.into_parts(&body.layout),
            };
            self.complete(body.lane, body.number, message, complete);
        }
        trouble.map_or(Ok(moved), Err)
    }

    /// Takes all messages that have arrived, before the rest is given up. Those that fail are dropped.
    pub fn take_arrived(&mut self, link: &mut Link<'_>, complete: &mut Vec<Message>) {
        // A failure removes a message, so this ends.
        while self.advance(link, complete).unwrap_or(true) {}
    }

    fn complete(&mut self, lane: u32, number: u32, message: Message, complete: &mut Vec<Message>) {
        let Some(waiting) = self.lanes.get_mut(&lane) else {
            return;
        };
        if let Some(place) = waiting.iter_mut().find(|(of, _)| *of == number) {
            place.1 = Some(message);
        }
        while let Some((_, place)) = waiting.front_mut()
            && let Some(message) = place.take()
        {
            complete.push(message);
            waiting.pop_front();
        }
        if waiting.is_empty() {
            self.lanes.remove(&lane);
        }
    }

    /// Records returned credit.
    pub fn returned(&mut self, lane: u32, charge: u64) {
        self.outstanding = self.outstanding.saturating_sub(charge);
        if let Some(of_lane) = self.lanes_outstanding.get_mut(&lane) {
            *of_lane = of_lane.saturating_sub(charge);
            if *of_lane == 0 {
                self.lanes_outstanding.remove(&lane);
            }
        }
    }

    /// Whether a message is incomplete, or has failed.
    pub fn is_incomplete(&self) -> bool {
        self.is_cut || !self.bodies.is_empty() || self.word.is_some()
    }

    /// Gives up what is incomplete.
    pub fn abandon(&mut self, link: &mut Link<'_>) {
        if let Some((request, _)) = &self.word {
            link.cancel(*request);
        }
        self.word = None;
        for body in self.bodies.drain(..) {
            body.abandon(link);
        }
        self.lanes.clear();
    }
}

/// The head of a message, as [`word::Word`] has it.
#[derive(Debug)]
pub struct Head<'a> {
    pub lane: u32,
    pub number: u32,
    pub layout: Layout,
    pub bytes: Option<&'a [u8]>,
}

impl Body {
    /// Gives its memory up, after the engine has.
    fn abandon(self, link: &mut Link<'_>) {
        for (request, _) in &self.outstanding {
            link.cancel(*request);
        }
    }

    fn advance(&mut self, link: &mut Link<'_>) -> Result<bool, Trouble> {
        let mut moved = false;
        let mut at = 0;
        while at < self.outstanding.len() {
            let (request, expected) = self.outstanding[at];
            let Some(outcome) = link.take(request) else {
                at += 1;
                continue;
            };
            self.outstanding.swap_remove(at);
            moved = true;
            match outcome {
                Ok(status) if status.length == expected => {}
                Ok(_) => return Err(Trouble::Violation("bytes of another length than announced")),
                Err(failure) if failure.code == Code::Truncated => {
                    return Err(Trouble::Violation("more bytes than announced"));
                }
                Err(failure) => return Err(failure.into()),
            }
        }
        let tag = word::body_tag(self.number);
        while self.outstanding.len() < MAX_FRAMES
            && let Some(frame) = self.frames.next()
        {
            let start = self
                .memory
                .start()
                .wrapping_add((frame.segment.offset + frame.within) as usize);
            // SAFETY: the frame lies within the memory, which is kept until the request is complete or cancelled. No
            // other frame covers it.
            let started = unsafe { link.receive(tag, start, frame.length as usize) }?;
            self.outstanding.extend(started.map(|request| (request, frame.length)));
            moved = true;
        }
        Ok(moved)
    }
}

/// The error of messages to a rank after a failure.
pub fn error_of(rank: u32, failure: &Failure) -> PostError {
    match failure.code {
        // The receiver gave it up.
        Code::Cancelled => PostError::PeerClosed { rank },
        _ => PostError::PeerLost {
            rank,
            reason: failure.message.clone(),
        },
    }
}
