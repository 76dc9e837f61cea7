//! One trigger: its record, its timer, and the state of its events.

use std::time::Instant;

use dayfly_protocol::error::Failure;
use dayfly_protocol::ids::EndpointId;
use dayfly_protocol::triggers::{EventSource, TriggerState, TriggerStatus, Watch};
use dayfly_scheduling::Timer;
use dayfly_store::system::now_ms;
use dayfly_store::triggers::{NewEvent, TriggerRecord};

use super::RETRY_DELAY;
use super::timers::due_event;

/// Longest wait for a clock that was set back. Then the times of the trigger begin anew.
const MAX_CLOCK_WAIT_MS: u64 = 24 * 3_600_000;

/// A trigger, as its manager knows it.
pub struct Trigger {
    record: TriggerRecord,
    timer: Option<Timer>,
    /// Next time of its timer in milliseconds since the Unix epoch; 0 for none.
    next_at_ms: u64,
    /// Number of events that have not become tasks.
    waiting: u64,
    started: u64,
    refused: u64,
    /// Why its endpoint does not see its files.
    unseen: Option<Failure>,
    /// Why its events do not become tasks.
    unstarted: Option<Failure>,
    /// Whether its endpoint watches its files.
    is_watched: bool,
    /// Whether events may wait that nobody has read.
    is_ready: bool,
    /// Whether events are being submitted.
    is_busy: bool,
    /// Time of the next attempt after a failed submission.
    rests_until: Option<Instant>,
}

impl Trigger {
    pub fn new(record: TriggerRecord, waiting: u64) -> Self {
        let mut trigger = Self {
            timer: None,
            next_at_ms: 0,
            waiting,
            started: record.started,
            refused: record.refused,
            unseen: None,
            unstarted: None,
            is_watched: false,
            is_ready: waiting > 0,
            is_busy: false,
            rests_until: None,
            record,
        };
        trigger.set_timer();
        trigger
    }

    pub fn record(&self) -> &TriggerRecord {
        &self.record
    }

    /// Replaces the record, and clears the failures.
    pub fn set_record(&mut self, record: TriggerRecord) {
        self.record = record;
        (self.unseen, self.unstarted) = (None, None);
        self.set_timer();
    }

    /// Whether events count now.
    pub fn is_active(&self, now_ms: u64) -> bool {
        !self.record.spec.paused && now_ms < self.record.expires_at_ms
    }

    pub fn state(&self) -> TriggerState {
        match (self.record.expires_at_ms <= now_ms(), self.record.spec.paused) {
            (true, _) => TriggerState::Expired,
            (_, true) => TriggerState::Paused,
            _ => TriggerState::Active,
        }
    }

    /// The status. `watched_at` names the endpoint that watches for it, and `away` is a failure if that is not
    /// connected.
    pub fn status(&self, owner: String, watched_at: Option<String>, away: Option<Failure>) -> TriggerStatus {
        let record = &self.record;
        let is_active = self.is_active(now_ms());
        TriggerStatus {
            id: record.id,
            name: record.name.clone(),
            owner,
            spec: record.spec.clone(),
            watched_at,
            state: self.state(),
            trouble: away.or_else(|| self.unseen.clone()).or_else(|| self.unstarted.clone()),
            created_at_ms: record.created_at_ms,
            expires_at_ms: record.expires_at_ms,
            next_at_ms: if is_active { self.next_at_ms } else { 0 },
            waiting: self.waiting,
            started: self.started,
            refused: self.refused,
        }
    }
}

/// The timer.
impl Trigger {
    /// Next time of its timer in milliseconds since the Unix epoch; 0 for none.
    pub fn next_at_ms(&self) -> u64 {
        self.next_at_ms
    }

    /// Sets the timer by the record.
    fn set_timer(&mut self) {
        (self.timer, self.next_at_ms) = (None, 0);
        if let EventSource::Timer { cron, zone, .. } = &self.record.spec.source {
            match Timer::parse(cron, zone, self.record.done_until_ms) {
                Ok(timer) => {
                    self.next_at_ms = timer.next(self.record.done_until_ms).unwrap_or(0);
                    self.timer = Some(timer);
                }
                // It was valid at registration. Since then its last time has passed, or this program has other time
                // zones.
                Err(failure) => self.unseen = Some(failure),
            }
        }
    }

    /// Waits if the clock was set back, so that no time occurs twice. After a jump of more than `MAX_CLOCK_WAIT_MS` the
    /// earlier clock was wrong, and times count from now on.
    fn check_clock(&mut self, now_ms: u64) {
        if let Some(timer) = &self.timer
            && self.record.done_until_ms > now_ms + MAX_CLOCK_WAIT_MS
        {
            tracing::warn!(
                trigger = self.record.name,
                "the clock was set back; the times of this trigger count from now on"
            );
            self.record.done_until_ms = now_ms;
            self.next_at_ms = timer.next(now_ms).unwrap_or(0);
        }
    }

    /// Takes the time that has passed, if one has: returns its event and the time until which all is done. Times of an
    /// inactive trigger pass without an event, and so do those before the manager's start unless the trigger catches
    /// up.
    pub fn take_due(&mut self, now_ms: u64, started_at_ms: u64) -> Option<(Option<NewEvent>, u64)> {
        self.check_clock(now_ms);
        if self.next_at_ms == 0 || self.next_at_ms > now_ms {
            return None;
        }
        let timer = self.timer.as_ref()?;
        let Some(due) = timer.due(self.record.done_until_ms, now_ms) else {
            self.next_at_ms = timer.next(now_ms).unwrap_or(0);
            return None;
        };
        self.record.done_until_ms = due.at_ms;
        self.next_at_ms = timer.next(due.at_ms).unwrap_or(0);
        let EventSource::Timer { catch_up, .. } = self.record.spec.source else {
            return None;
        };
        if !self.is_active(now_ms) {
            return None;
        }
        let counts = catch_up || due.at_ms >= started_at_ms;
        let event = counts.then(|| due_event(due).encode(now_ms).ok()).flatten();
        Some((event, due.at_ms))
    }

    /// The event of a time could not be written: the time is due again after a delay.
    pub fn undo_due(&mut self, before_ms: u64, until_ms: u64, now_ms: u64, failure: Failure) {
        if self.record.done_until_ms == until_ms {
            self.unstarted = Some(failure);
            self.record.done_until_ms = before_ms;
            self.next_at_ms = now_ms + u64::try_from(RETRY_DELAY.as_millis()).unwrap_or(u64::MAX);
        }
    }
}

/// The watch for files.
impl Trigger {
    pub fn is_watched(&self) -> bool {
        self.is_watched
    }

    /// Whether this endpoint watches for it.
    pub fn is_watched_by(&self, endpoint: EndpointId) -> bool {
        self.record.watched_at == Some(endpoint) && self.is_watched
    }

    /// Starts or ends the watch, by whether the trigger is active. Returns the watch.
    pub fn set_watch(&mut self, now_ms: u64) -> Option<Watch> {
        self.is_watched = self.is_active(now_ms);
        let EventSource::Files {
            place,
            pattern,
            existing,
            every_ms,
            ..
        } = &self.record.spec.source
        else {
            return None;
        };
        self.is_watched.then(|| Watch {
            trigger: self.record.id,
            place: place.clone(),
            pattern: pattern.clone(),
            within_ms: (!existing).then(|| now_ms.saturating_sub(self.record.done_until_ms)),
            every_ms: *every_ms,
        })
    }

    /// Sets why its endpoint does not see its files.
    pub fn set_unseen(&mut self, failure: Option<Failure>) {
        self.unseen = failure;
    }
}

/// The events.
impl Trigger {
    /// Number of events that have not become tasks.
    pub fn waiting(&self) -> u64 {
        self.waiting
    }

    /// Sets why its events do not become tasks.
    pub fn set_unstarted(&mut self, failure: Failure) {
        self.unstarted = Some(failure);
    }

    /// Counts events before they are written, so before they can be settled.
    pub fn expect(&mut self, count: u64) {
        self.waiting += count;
    }

    /// Of the expected events, `new` are written and were not known.
    pub fn confirm(&mut self, expected: u64, new: u64) {
        self.waiting = self.waiting.saturating_sub(expected - new);
        // Set also without new events: a failed write may have reached the disk, and a known event may not have been
        // submitted.
        self.is_ready = true;
    }

    /// Whether a submission of its events is to begin. It has begun from then on.
    pub fn begin_submission(&mut self, now: Instant) -> bool {
        let rests = self.rests_until.is_some_and(|until| until > now);
        let begins = self.is_ready && !self.is_busy && !rests;
        if begins {
            (self.is_ready, self.is_busy) = (false, true);
        }
        begins
    }

    /// Counts settled events: as started, or as refused for a reason.
    pub fn settle(&mut self, count: u64, refusal: Option<Failure>) {
        self.waiting = self.waiting.saturating_sub(count);
        match refusal.is_none() {
            true => self.started += count,
            false => self.refused += count,
        }
        self.unstarted = refusal;
    }

    /// The submission has ended: with a failure, or without waiting events. Returns whether more events have come.
    pub fn end_submission(&mut self, failure: Option<Failure>) -> bool {
        if failure.is_none() && !self.is_ready {
            self.waiting = 0;
        }
        self.is_busy = false;
        self.rests_until = failure.is_some().then(|| Instant::now() + RETRY_DELAY);
        if failure.is_some() {
            (self.is_ready, self.unstarted) = (true, failure);
            return false;
        }
        self.is_ready
    }
}
