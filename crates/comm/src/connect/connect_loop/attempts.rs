//! The loop's attempts: from a socket to a chosen connection, or to a recorded failure.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use dayfly_protocol::error::Failure;
use rustix::event::epoll;

use super::{ConnectLoop, FIRST_LISTENER, LONGEST_PAUSE, interest};
use crate::Route;
use crate::connect::attempt::{Attempt, Progress};
use crate::connect::{failed, listeners};
use crate::connect_queue::ConnectResult;

/// Limit for the other rank's next message on a connection.
const MESSAGE_LIMIT: Duration = Duration::from_secs(5);
/// Most accepted connections without a hello, in addition to four for each rank.
const MAX_STRANGERS: usize = 256;
/// Both ends of a pair dial again at multiples of this time since the rendezvous sent the addresses. A NAT may have
/// rejected the first attempt because the other end was too early; the next ones must meet.
const TOGETHER: Duration = Duration::from_millis(200);
/// Connections that are accepted in one turn.
const ACCEPTS: usize = 64;

impl ConnectLoop<'_> {
    pub(super) fn begin(&mut self, attempt: Attempt) -> Result<(), Failure> {
        let token = self.next;
        self.next += 1;
        self.add(attempt.socket(), token, interest(attempt.wants_write()))?;
        match attempt.peer {
            Some(peer) => self.pairs[peer as usize].attempts.push(token),
            None => self.strangers += 1,
        }
        self.attempts.insert(token, attempt);
        Ok(())
    }

    pub(super) fn accept(&mut self, token: u64) -> Result<(), Failure> {
        for _ in 0..ACCEPTS {
            let accepted = self.settings.listeners.accept(token - FIRST_LISTENER);
            let socket = match accepted {
                Ok(socket) => socket,
                Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                    return Err(failed("a connection cannot be accepted", error));
                }
                // No connection is left, or the peer has closed it.
                Err(_) => return Ok(()),
            };
            if self.strangers >= self.pairs.len() * 4 + MAX_STRANGERS || listeners::prepare(&socket).is_err() {
                continue;
            }
            self.begin(Attempt::accepted(socket))?;
        }
        Ok(())
    }

    pub(super) fn drive(&mut self, token: u64) -> Result<(), Failure> {
        let Some(attempt) = self.attempts.get_mut(&token) else {
            return Ok(());
        };
        let (stranger, writing, chosen) = (attempt.peer.is_none(), attempt.wants_write(), attempt.chosen);
        let mut progress = attempt.advance(&self.context);
        if let (true, Some(peer)) = (stranger, attempt.peer) {
            self.strangers -= 1;
            self.pairs[peer as usize].attempts.push(token);
        }
        if let (Ok(Progress::Proven), Some(peer)) = (&progress, attempt.peer) {
            if self.pairs[peer as usize].chosen {
                self.drop_attempt(token);
                return Ok(());
            }
            progress = attempt
                .choose(&self.context)
                .and_then(|()| attempt.advance(&self.context));
        }
        let Some(peer) = attempt.peer else {
            if progress.is_ok() {
                return self.rewatch(token, writing);
            }
            self.drop_attempt(token);
            return Ok(());
        };
        if attempt.chosen && !chosen {
            self.pairs[peer as usize].chosen = true;
        }
        if self.pairs[peer as usize].connected {
            self.drop_attempt(token);
            return Ok(());
        }
        match progress {
            Ok(Progress::Ready) => {
                self.finish(peer, token);
                Ok(())
            }
            Ok(_) => self.rewatch(token, writing),
            Err(why) => {
                self.fail(token, why);
                Ok(())
            }
        }
    }

    fn rewatch(&mut self, token: u64, was_writing: bool) -> Result<(), Failure> {
        let Some(attempt) = self.attempts.get(&token) else {
            return Ok(());
        };
        let writing = attempt.wants_write();
        if writing == was_writing {
            return Ok(());
        }
        epoll::modify(
            &self.epoll,
            attempt.socket(),
            epoll::EventData::new_u64(token),
            interest(writing),
        )
        .map_err(|error| failed("epoll", error))
    }

    /// Removes an attempt. Its socket closes, and so leaves the epoll set.
    fn drop_attempt(&mut self, token: u64) -> Option<Attempt> {
        let attempt = self.attempts.remove(&token)?;
        match attempt.peer {
            Some(peer) => self.pairs[peer as usize].attempts.retain(|other| *other != token),
            None => self.strangers -= 1,
        }
        Some(attempt)
    }

    fn fail(&mut self, token: u64, why: String) {
        let Some(attempt) = self.drop_attempt(token) else {
            return;
        };
        let Some(peer) = attempt.peer else {
            return;
        };
        if attempt.chosen {
            self.pairs[peer as usize].chosen = false;
        }
        self.note(peer, attempt.step, why);
    }

    /// Records the result of a step, and schedules it again.
    pub(super) fn note(&mut self, peer: u32, step: Option<usize>, why: String) {
        let pair = &mut self.pairs[peer as usize];
        let Some(at) = step else {
            pair.notes.insert("a connection of the other's".into(), why);
            return;
        };
        let stored = pair.steps[at].route == Route::Stored;
        let failure = self
            .settings
            .stored
            .filter(|_| stored)
            .and_then(|stored| stored.failure());
        let why = failure.map_or(why, |failure| failure.message.clone());
        pair.notes.insert(pair.steps[at].name(), why);
        if stored {
            // The store keeps the bytes, so the step needs no repetition.
            return;
        }
        let now = Instant::now();
        let again = if pair.steps[at].route == Route::Punched {
            let begun = pair.begun.unwrap_or(self.begun);
            let rounds = now.duration_since(begun).as_millis() / TOGETHER.as_millis() + 1;
            begun + TOGETHER * u32::try_from(rounds).unwrap_or(u32::MAX)
        } else {
            let pause = pair.pauses[at];
            pair.pauses[at] = (pause * 2).min(LONGEST_PAUSE);
            now + pause
        };
        self.timers.push(Reverse((again, peer, at)));
    }

    fn finish(&mut self, peer: u32, token: u64) {
        let Some(attempt) = self.drop_attempt(token) else {
            return;
        };
        // The connection's user polls the socket in its own way.
        let _ = epoll::delete(&self.epoll, attempt.socket());
        match attempt.into_connection() {
            Ok(connection) => {
                if let (Route::Stored, Some(stored)) = (connection.route(), self.settings.stored) {
                    stored.keep(peer);
                }
                let pair = &mut self.pairs[peer as usize];
                (pair.connected, pair.until) = (true, None);
                match self.lazy {
                    Some(lazy) => lazy.queue.report(ConnectResult::Connected(peer, connection)),
                    None => pair.connection = Some(connection),
                }
                self.open -= 1;
                for other in std::mem::take(&mut pair.attempts) {
                    self.attempts.remove(&other);
                }
            }
            Err(why) => {
                self.pairs[peer as usize].chosen = false;
                self.note(peer, None, why);
            }
        }
    }

    /// Ends attempts that wait too long for the other rank's next message.
    pub(super) fn sweep(&mut self, now: Instant) {
        let late = |attempt: &Attempt| !attempt.is_on_its_way() && now.duration_since(attempt.since) > MESSAGE_LIMIT;
        let late: Vec<u64> = self
            .attempts
            .iter()
            .filter(|(_, attempt)| late(attempt))
            .map(|(token, _)| *token)
            .collect();
        for token in late {
            let why = self.attempts.get(&token).map_or("", Attempt::waits_for);
            self.fail(token, why.into());
        }
    }

    /// Records for each open attempt what it waits for.
    pub(super) fn note_open_attempts(&mut self) {
        for attempt in self.attempts.values() {
            if let (Some(peer), Some(at)) = (attempt.peer, attempt.step) {
                let pair = &mut self.pairs[peer as usize];
                let name = pair.steps[at].name();
                pair.notes.insert(name, attempt.waits_for().into());
            }
        }
    }
}
