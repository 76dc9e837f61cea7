//! What the threads of a rank share with the driver of its post: messages in both directions, and credits.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::delivery::Receipt;
use super::layout::Layout;
use super::{Message, PostError, PostOptions};
use crate::wake::Wake;

/// Share of a window, as a divisor, from which on consumed credits are returned unasked.
const RETURNED_SHARE: u64 = 4;

/// A message that waits to be sent.
#[derive(Debug)]
pub struct Submission {
    pub to: u32,
    pub lane: u32,
    pub parts: Vec<Bytes>,
    pub layout: Layout,
    pub receipt: Receipt,
}

impl Submission {
    /// Reports that it is not sent, after its parts are released.
    pub fn refuse(self, error: PostError) {
        drop(self.parts);
        self.receipt.report(Err(error));
    }
}

/// How far the end of a post is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Open,
    /// Sends submitted messages, and receives none.
    Closing,
    /// Ends at once.
    Stopping,
}

/// A message that was consumed: the sender, the lane and the charge.
pub type Consumed = (u32, u32, u64);

/// A future that waits on a lane.
#[derive(Debug)]
struct Waiter {
    number: u64,
    waker: Waker,
    deadline: Option<Instant>,
}

#[derive(Debug, Default)]
struct Lane {
    ready: VecDeque<Message>,
    waiters: Vec<Waiter>,
    /// Number of losses that were reported on this lane.
    losses: usize,
}

/// The account of one sender.
#[derive(Debug, Clone, Copy, Default)]
struct Account {
    /// Consumed, and not returned.
    consumed: u64,
    /// Whether a lane of the sender waits for credit.
    wanted: bool,
}

#[derive(Debug)]
pub struct State {
    outbox: Vec<Submission>,
    lanes: HashMap<u32, Lane>,
    /// Lanes that were ended. What arrives on them is dropped.
    ended: HashSet<u32>,
    losses: Vec<PostError>,
    /// Why nothing more is received.
    end: Option<PostError>,
    /// Why messages were given up that were to be sent.
    failure: Option<PostError>,
    accounts: Vec<Account>,
    consumed: Vec<Consumed>,
    /// Messages that nobody receives any more.
    unwanted: Vec<Message>,
    /// Whether credits are to be returned.
    credit_due: bool,
    revoked: bool,
    phase: Phase,
    waiters: u64,
    /// Whether any waiter may have a deadline.
    has_deadlines: bool,
    /// Whether all other ranks have ended.
    exhausted: bool,
    /// Messages of this rank to itself that have not arrived.
    own_pending: usize,
    /// When the driver looks at deadlines next, while it sleeps.
    next_look: Option<Instant>,
    /// Whether the driver's thread has ended.
    over: bool,
}

/// What the driver takes at a time.
#[derive(Debug, Default)]
pub struct Work {
    pub submissions: Vec<Submission>,
    pub consumed: Vec<Consumed>,
    pub revoke: bool,
}

/// The shared state, and the means to wake both sides.
#[derive(Debug)]
pub struct Shared {
    state: Mutex<State>,
    ended: Condvar,
    pub wake: Arc<Wake>,
    pub options: PostOptions,
    pub rank: u32,
    pub size: u32,
}

impl Shared {
    pub fn new(wake: Arc<Wake>, options: PostOptions, rank: u32, size: u32) -> Self {
        Self {
            state: Mutex::new(State {
                outbox: Vec::new(),
                lanes: HashMap::new(),
                ended: HashSet::new(),
                losses: Vec::new(),
                end: None,
                failure: None,
                accounts: vec![Account::default(); size as usize],
                consumed: Vec::new(),
                unwanted: Vec::new(),
                credit_due: false,
                revoked: false,
                phase: Phase::Open,
                waiters: 0,
                has_deadlines: false,
                exhausted: false,
                own_pending: 0,
                next_look: None,
                over: false,
            }),
            ended: Condvar::new(),
            wake,
            options,
            rank,
            size,
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a message.
    pub fn submit(&self, submission: Submission) -> Result<(), PostError> {
        {
            let mut state = self.lock();
            if let Some(end) = &state.end {
                return Err(end.clone());
            }
            state.own_pending += usize::from(submission.to == self.rank);
            state.outbox.push(submission);
        }
        self.wake.wake();
        Ok(())
    }

    /// Changes the phase, and wakes the driver.
    pub fn advance_to(&self, phase: Phase) {
        let dropped = {
            let mut state = self.lock();
            state.phase = phase;
            state.end.get_or_insert(PostError::Closed);
            state.take_arrived()
        };
        // Not under the lock: parts of a message of this rank to itself may be anything.
        drop(dropped);
        self.wake.wake();
    }

    /// Why messages were given up that were to be sent.
    pub fn failure(&self) -> Option<PostError> {
        self.lock().failure.clone()
    }

    /// Revokes the post.
    pub fn revoke(&self) {
        self.lock().revoked = true;
        self.wake.wake();
    }

    /// Ends a lane: drops what has arrived and what will arrive on it.
    pub fn end_lane(&self, lane: u32) {
        let (due, Lane { ready, waiters, .. }) = {
            let mut state = self.lock();
            state.ended.insert(lane);
            let dropped = state.lanes.remove(&lane).unwrap_or_default();
            for message in &dropped.ready {
                state.consume(message, self.options.window_bytes);
            }
            (state.credit_due, dropped)
        };
        drop(ready);
        waiters.into_iter().for_each(|waiter| waiter.waker.wake());
        if due {
            self.wake.wake();
        }
    }

    /// Takes the next message of a lane. Registers the waiter if there is none.
    pub fn take(&self, lane: u32, waiter: Option<(&mut Option<u64>, &Waker, Option<Instant>)>) -> Option<Taken> {
        let (taken, wakes) = {
            let mut state = self.lock();
            let taken = state.take(lane, self.options.window_bytes);
            let mut wakes = state.credit_due;
            if taken.is_none()
                && let Some((number, waker, deadline)) = waiter
            {
                wakes |= state.register(lane, number, waker, deadline);
            }
            (taken, wakes)
        };
        if wakes {
            self.wake.wake();
        }
        taken
    }

    /// Removes a waiter.
    pub fn unregister(&self, lane: u32, number: u64) {
        if let Some(lane) = self.lock().lanes.get_mut(&lane) {
            lane.waiters.retain(|waiter| waiter.number != number);
        }
    }

    /// Records that the driver's thread has ended.
    pub fn finish(&self) {
        let (refused, wakers) = {
            let mut state = self.lock();
            state.over = true;
            state.end.get_or_insert(PostError::Closed);
            (std::mem::take(&mut state.outbox), state.all_wakers())
        };
        self.ended.notify_all();
        for submission in refused {
            submission.refuse(PostError::Closed);
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Waits until the driver's thread has ended. Returns false if it has not by then.
    pub fn wait_until_over(&self, limit: Duration) -> bool {
        let waited = self.ended.wait_timeout_while(self.lock(), limit, |state| !state.over);
        waited.unwrap_or_else(PoisonError::into_inner).0.over
    }
}

/// A message, or why there is none.
pub type Taken = Result<Message, PostError>;

impl State {
    /// Whether the driver has something to take.
    pub fn has_work(&self) -> bool {
        !self.outbox.is_empty() || self.credit_due || self.revoked || self.phase != Phase::Open
    }

    /// Takes what is to be done.
    pub fn take_work(&mut self) -> Work {
        let mut work = Work {
            submissions: std::mem::take(&mut self.outbox),
            revoke: std::mem::take(&mut self.revoked),
            ..Work::default()
        };
        if std::mem::take(&mut self.credit_due) {
            work.consumed = std::mem::take(&mut self.consumed);
            for account in &mut self.accounts {
                if account.consumed > 0 {
                    *account = Account::default();
                }
            }
        }
        work
    }

    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Records that all other ranks have ended. Returns the wakers to call.
    pub fn exhaust(&mut self) -> Vec<Waker> {
        self.exhausted = true;
        self.all_wakers()
    }

    /// Records that messages of this rank to itself have arrived. Returns the wakers to call.
    pub fn own_arrived(&mut self, count: usize) -> Vec<Waker> {
        self.own_pending = self.own_pending.saturating_sub(count);
        match self.exhausted && self.own_pending == 0 {
            true => self.all_wakers(),
            false => Vec::new(),
        }
    }

    /// Adds an arrived message, unless nobody receives it any more. Returns the wakers to call.
    pub fn deliver(&mut self, message: Message, window: u64) -> Vec<Waker> {
        if self.end.is_some() || self.ended.contains(&message.lane()) {
            self.consume(&message, window);
            self.unwanted.push(message);
            return Vec::new();
        }
        let lane = self.lanes.entry(message.lane()).or_default();
        lane.ready.push_back(message);
        lane.waiters.drain(..).map(|waiter| waiter.waker).collect()
    }

    /// Records that a sender waits for credit.
    pub fn want_credit(&mut self, rank: u32) {
        let account = &mut self.accounts[rank as usize];
        account.wanted = true;
        self.credit_due |= account.consumed > 0;
    }

    /// Records the loss of a rank. Returns the wakers to call.
    pub fn lose(&mut self, loss: PostError) -> Vec<Waker> {
        self.losses.push(loss);
        self.all_wakers()
    }

    /// Messages that nobody receives any more, to be dropped without the lock.
    pub fn take_unwanted(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.unwanted)
    }

    /// Ends receiving, and gives up what was to be sent. Returns the wakers to call.
    pub fn end(&mut self, why: PostError) -> Vec<Waker> {
        if why != PostError::Closed {
            self.failure.get_or_insert(why.clone());
        }
        self.end.get_or_insert(why);
        let arrived = self.take_arrived();
        self.unwanted.extend(arrived);
        self.all_wakers()
    }

    /// Wakes those whose deadline is over. Returns the next deadline.
    pub fn expire(&mut self, now: Instant) -> (Vec<Waker>, Option<Instant>) {
        let mut expired = Vec::new();
        let mut next: Option<Instant> = None;
        if !self.has_deadlines {
            return (expired, next);
        }
        for lane in self.lanes.values_mut() {
            lane.waiters.retain(|waiter| match waiter.deadline {
                Some(deadline) if deadline <= now => {
                    expired.push(waiter.waker.clone());
                    false
                }
                Some(deadline) => {
                    next = Some(next.map_or(deadline, |next| next.min(deadline)));
                    true
                }
                None => true,
            });
        }
        self.has_deadlines = next.is_some();
        (expired, next)
    }

    /// Sets when the driver looks at deadlines next.
    pub fn set_next_look(&mut self, at: Option<Instant>) {
        self.next_look = at;
    }

    fn all_wakers(&mut self) -> Vec<Waker> {
        let lanes = self.lanes.values_mut();
        lanes
            .flat_map(|lane| lane.waiters.drain(..).map(|waiter| waiter.waker))
            .collect()
    }

    /// Takes all messages that were not received. Their credit is returned.
    fn take_arrived(&mut self) -> Vec<Message> {
        let lanes = self.lanes.values_mut();
        let arrived: Vec<Message> = lanes.flat_map(|lane| lane.ready.drain(..)).collect();
        for message in &arrived {
            self.consumed.push((message.from(), message.lane(), message.charge()));
            self.accounts[message.from() as usize].consumed += message.charge();
        }
        self.credit_due = !self.consumed.is_empty();
        arrived
    }

    fn consume(&mut self, message: &Message, window: u64) {
        let account = &mut self.accounts[message.from() as usize];
        account.consumed += message.charge();
        self.consumed.push((message.from(), message.lane(), message.charge()));
        self.credit_due |= account.wanted || account.consumed >= window / RETURNED_SHARE;
    }

    fn take(&mut self, lane: u32, window: u64) -> Option<Taken> {
        if self.ended.contains(&lane) {
            return Some(Err(PostError::Closed));
        }
        let found = self.lanes.entry(lane).or_default();
        if let Some(message) = found.ready.pop_front() {
            self.consume(&message, window);
            return Some(Ok(message));
        }
        if let Some(end) = &self.end {
            return Some(Err(end.clone()));
        }
        if let Some(loss) = self.losses.get(found.losses) {
            found.losses += 1;
            return Some(Err(loss.clone()));
        }
        (self.exhausted && self.own_pending == 0).then_some(Err(PostError::Closed))
    }

    /// Registers a waiter. Returns whether the driver sleeps longer than this waiter may wait.
    fn register(&mut self, lane: u32, number: &mut Option<u64>, waker: &Waker, deadline: Option<Instant>) -> bool {
        let own = *number.get_or_insert_with(|| {
            self.waiters += 1;
            self.waiters
        });
        self.has_deadlines |= deadline.is_some();
        let waiters = &mut self.lanes.entry(lane).or_default().waiters;
        waiters.retain(|waiter| waiter.number != own);
        waiters.push(Waiter {
            number: own,
            waker: waker.clone(),
            deadline,
        });
        match (deadline, self.next_look) {
            (Some(deadline), Some(look)) => deadline < look,
            _ => false,
        }
    }
}
