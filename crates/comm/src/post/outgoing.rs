//! The messages of a post to one rank.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use dayfly_protocol::error::Failure;

use super::delivery::Receipt;
use super::incoming::error_of;
use super::layout::{Frames, Layout};
use super::link::Link;
use super::state::Submission;
use super::{PostError, word};
use crate::matching::RequestId;

/// Words that have not left. More messages wait in their lanes.
const MAX_WORDS: usize = 64;
/// Most messages to one rank whose bytes follow their words at a time. The receiver counts them.
pub const MAX_BODIES: usize = 16;
/// Most frames of one message under way.
pub const MAX_FRAMES: usize = 16;

#[derive(Debug, Default)]
struct Lane {
    queued: VecDeque<Submission>,
    in_flight: u64,
}

/// A word that has not left.
#[derive(Debug)]
struct SentWord {
    request: RequestId,
    /// Read by the engine until the request is complete.
    _bytes: Vec<u8>,
    receipt: Option<Receipt>,
}

/// The bytes of a message that follow its word.
#[derive(Debug)]
struct Body {
    tag: u32,
    parts: Vec<Bytes>,
    gathered: Vec<u8>,
    frames: Frames,
    outstanding: Vec<RequestId>,
    failure: Option<Failure>,
    receipt: Receipt,
}

/// The messages to one rank.
#[derive(Debug, Default)]
pub struct Outgoing {
    lanes: HashMap<u32, Lane>,
    /// Lanes with queued messages, in the order of their turns.
    turns: VecDeque<u32>,
    in_flight: u64,
    number: u32,
    words: Vec<SentWord>,
    bodies: Vec<Body>,
    /// Whether a message may be able to start that could not before.
    changed: bool,
    /// Whether credit was asked for since the last credit came.
    has_asked: bool,
}

/// A message that this rank sends to itself.
#[derive(Debug)]
pub struct OwnMessage {
    pub lane: u32,
    pub parts: Vec<Bytes>,
    pub layout: Layout,
    pub receipt: Receipt,
}

impl Outgoing {
    /// Queues a message.
    pub fn queue(&mut self, submission: Submission) {
        let number = submission.lane;
        let lane = self.lanes.entry(number).or_default();
        if lane.queued.is_empty() {
            self.turns.push_back(number);
        }
        lane.queued.push_back(submission);
        self.changed = true;
    }

    /// Whether everything has left.
    pub fn is_idle(&self) -> bool {
        self.turns.is_empty() && self.words.is_empty() && self.bodies.is_empty()
    }

    /// Takes returned credit. Returns an error if it was not due.
    pub fn credit(&mut self, number: u32, charge: u64) -> Result<(), &'static str> {
        const WRONG: &str = "credit for messages that were not sent";
        let lane = self.lanes.get_mut(&number).ok_or(WRONG)?;
        lane.in_flight = lane.in_flight.checked_sub(charge).ok_or(WRONG)?;
        self.in_flight = self.in_flight.checked_sub(charge).ok_or(WRONG)?;
        if lane.in_flight == 0 && lane.queued.is_empty() {
            self.lanes.remove(&number);
        }
        (self.changed, self.has_asked) = (true, false);
        Ok(())
    }

    /// The next message that has credit, in turns between the lanes.
    fn next(&mut self, window: u64) -> Option<Submission> {
        for _ in 0..self.turns.len() {
            let number = self.turns.pop_front()?;
            let lane = self.lanes.get_mut(&number)?;
            let first = lane.queued.front()?;
            let charge = word::charge(first.layout.bytes(), first.parts.len());
            let has_credit = lane.in_flight == 0 || self.in_flight.saturating_add(charge) <= window;
            let has_room = first.layout.is_inline() || self.bodies.len() < MAX_BODIES;
            if !has_credit || !has_room {
                self.turns.push_back(number);
                continue;
            }
            lane.in_flight += charge;
            self.in_flight += charge;
            let first = lane.queued.pop_front();
            if !lane.queued.is_empty() {
                self.turns.push_back(number);
            }
            return first;
        }
        None
    }

    /// Messages of this rank to itself that have credit. Returns whether others wait for credit.
    pub fn take_own(&mut self, window: u64, own: &mut Vec<OwnMessage>) -> bool {
        while let Some(Submission {
            lane,
            parts,
            layout,
            receipt,
            ..
        }) = self.next(window)
        {
            own.push(OwnMessage {
                lane,
                parts,
                layout,
                receipt,
            });
        }
        !self.turns.is_empty()
    }

    /// Starts messages, and continues those under way. Returns whether anything moved.
    pub fn advance(&mut self, link: &mut Link<'_>, window: u64) -> Result<bool, Failure> {
        let mut moved = self.finish_words(link)?;
        moved |= self.advance_bodies(link)?;
        if !self.changed {
            return Ok(moved);
        }
        while self.words.len() < MAX_WORDS {
            let Some(submission) = self.next(window) else {
                self.changed = false;
                self.ask(link)?;
                break;
            };
            moved = true;
            self.start(link, submission)?;
        }
        Ok(moved)
    }

    /// Asks for credit if messages wait for it.
    fn ask(&mut self, link: &mut Link<'_>) -> Result<(), Failure> {
        if self.turns.is_empty() || self.has_asked || self.bodies.len() >= MAX_BODIES {
            return Ok(());
        }
        self.has_asked = true;
        self.send_word(link, word::want(), None)
    }

    /// Sends a word.
    pub fn send_word(&mut self, link: &mut Link<'_>, bytes: Vec<u8>, receipt: Option<Receipt>) -> Result<(), Failure> {
        // SAFETY: the bytes are kept with the request until it is complete or cancelled.
        let outcome = match unsafe { link.send(word::WORD_TAG, bytes.as_ptr(), bytes.len()) } {
            Ok(Some(request)) => {
                self.words.push(SentWord {
                    request,
                    _bytes: bytes,
                    receipt,
                });
                return Ok(());
            }
            Ok(None) => Ok(()),
            Err(failure) => Err(failure),
        };
        if let Some(receipt) = receipt {
            receipt.report(outcome.clone().map_err(|failure| error_of(link.rank(), &failure)));
        }
        outcome
    }

    fn start(&mut self, link: &mut Link<'_>, submission: Submission) -> Result<(), Failure> {
        let Submission {
            lane,
            parts,
            layout,
            receipt,
            ..
        } = submission;
        let number = self.number;
        self.number = self.number.wrapping_add(1);
        let head = word::message(lane, number, &parts, &layout);
        if layout.is_inline() {
            // The receipt's owner may want its memory back.
            drop(parts);
            return self.send_word(link, head, Some(receipt));
        }
        self.bodies.push(Body {
            tag: word::body_tag(number),
            gathered: gather(&parts, &layout),
            frames: layout.frames(),
            parts,
            outstanding: Vec::with_capacity(MAX_FRAMES),
            failure: None,
            receipt,
        });
        self.send_word(link, head, None)?;
        self.advance_bodies(link).map(|_| ())
    }

    fn finish_words(&mut self, link: &mut Link<'_>) -> Result<bool, Failure> {
        let mut at = 0;
        let before = self.words.len();
        while at < self.words.len() {
            let Some(outcome) = link.take(self.words[at].request) else {
                at += 1;
                continue;
            };
            let word = self.words.remove(at);
            let outcome = outcome.map(|_| ());
            if let Some(receipt) = word.receipt {
                receipt.report(outcome.clone().map_err(|failure| error_of(link.rank(), &failure)));
            }
            outcome?;
        }
        self.changed |= self.words.len() < before;
        Ok(self.words.len() < before)
    }

    fn advance_bodies(&mut self, link: &mut Link<'_>) -> Result<bool, Failure> {
        let mut moved = false;
        for body in &mut self.bodies {
            moved |= body.take_outcomes(link);
            body.start_frames(link);
        }
        Ok(self.finish_bodies(link)? || moved)
    }

    /// Reports the bodies that have left or failed. Returns whether anything moved, or the first failure.
    fn finish_bodies(&mut self, link: &mut Link<'_>) -> Result<bool, Failure> {
        let (mut moved, mut failed) = (false, None);
        let mut at = 0;
        while at < self.bodies.len() {
            let body = &mut self.bodies[at];
            moved |= body.take_outcomes(link);
            if body.failure.is_none() && !(body.frames.is_over() && body.outstanding.is_empty()) {
                at += 1;
                continue;
            }
            self.changed = true;
            let body = self.bodies.swap_remove(at);
            let failure = body.failure.clone();
            let outcome = failure.as_ref().map(|failure| error_of(link.rank(), failure));
            body.end(link, outcome.map_or(Ok(()), Err));
            failed = failed.or(failure);
        }
        failed.map_or(Ok(moved), Err)
    }

    /// Reports what has left, before the rest is given up.
    pub fn report_left(&mut self, link: &mut Link<'_>) {
        // A failure removes the word, so this ends.
        while self.finish_words(link).is_err() {}
        let _ = self.finish_bodies(link);
    }

    /// Gives everything up.
    pub fn abandon(&mut self, link: &mut Link<'_>, error: &PostError) {
        for word in std::mem::take(&mut self.words) {
            link.cancel(word.request);
            if let Some(receipt) = word.receipt {
                receipt.report(Err(error.clone()));
            }
        }
        self.abandon_messages(link, error);
    }

    /// Gives all messages up. Words still leave.
    pub fn abandon_messages(&mut self, link: &mut Link<'_>, error: &PostError) {
        for body in std::mem::take(&mut self.bodies) {
            body.end(link, Err(error.clone()));
        }
        for (_, lane) in std::mem::take(&mut self.lanes) {
            for submission in lane.queued {
                submission.refuse(error.clone());
            }
        }
        self.turns.clear();
        self.in_flight = 0;
    }
}

impl Body {
    /// Takes the outcomes of its frames. Returns whether there were any.
    fn take_outcomes(&mut self, link: &mut Link<'_>) -> bool {
        let before = self.outstanding.len();
        self.outstanding.retain(|request| match link.take(*request) {
            None => true,
            Some(outcome) => {
                self.failure = self.failure.take().or(outcome.err());
                false
            }
        });
        self.outstanding.len() < before
    }

    /// Starts frames, unless one has failed.
    fn start_frames(&mut self, link: &mut Link<'_>) {
        while self.failure.is_none()
            && self.outstanding.len() < MAX_FRAMES
            && let Some(frame) = self.frames.next()
        {
            let memory: &[u8] = match frame.segment.part {
                None => &self.gathered,
                Some(part) => &self.parts[part as usize],
            };
            let bytes = &memory[frame.within as usize..(frame.within + frame.length) as usize];
            // SAFETY: parts and gathered bytes are kept, unchanged, until the request is complete or cancelled.
            match unsafe { link.send(self.tag, bytes.as_ptr(), bytes.len()) } {
                Ok(started) => self.outstanding.extend(started),
                Err(failure) => self.failure = Some(failure),
            }
        }
    }

    /// Reports its end, after its memory is released: the receipt's owner may want it back.
    fn end(self, link: &mut Link<'_>, outcome: Result<(), PostError>) {
        for request in self.outstanding {
            link.cancel(request);
        }
        drop((self.parts, self.gathered));
        self.receipt.report(outcome);
    }
}

/// The region of short parts, as the receiver lays it out.
fn gather(parts: &[Bytes], layout: &Layout) -> Vec<u8> {
    let mut region = vec![0; layout.gathered()];
    for (part, (offset, length)) in parts.iter().zip(layout.offsets()) {
        if Layout::is_gathered(*length) {
            region[*offset as usize..(offset + length) as usize].copy_from_slice(part);
        }
    }
    region
}
