//! Outcomes: the part of the [session](super::Inner) that reads them from the manager and stores them.

use std::sync::MutexGuard;
use std::time::Duration;

use dayfly_protocol::error::Code;
use dayfly_protocol::ids::TaskId;
use dayfly_protocol::tasks::{MAX_WAIT_MS, Outcomes, TaskOutcome};
use dayfly_protocol::text::encoded;

use super::{Inner, RETRY, State, wait};
use crate::Error;

/// Most outcomes that are read one by one, because following a tag from its beginning may take long.
const FEW: usize = 16;

impl Inner {
    /// Stores outcomes and wakes the threads that wait for them.
    pub(super) fn end(&self, mut state: MutexGuard<'_, State>, outcomes: impl Iterator<Item = TaskOutcome>) {
        state.end(outcomes);
        let noticed = !state.notices.is_empty();
        drop(state);
        self.changed.notify_all();
        if noticed {
            self.noticed.notify_all();
        }
    }

    /// Reads outcomes that the following thread may have passed before they were wanted.
    pub(super) fn catch_up(&self, tasks: &[TaskId]) -> Result<(), Error> {
        if tasks.len() <= FEW {
            for task in tasks {
                match self
                    .manager
                    .get_packed(&format!("/v1/tasks/{task}/outcome"), Duration::ZERO)
                {
                    Ok(outcome) => self.end(self.state(), std::iter::once(outcome)),
                    Err(error) if error.code() == Code::TimedOut => {}
                    Err(error) => return Err(error),
                }
            }
            return Ok(());
        }
        let mut after = 0;
        loop {
            let path = format!("/v1/outcomes?tag={}&after={after}", encoded(&self.tag));
            let Outcomes { outcomes, next } = self.manager.get_packed(&path, Duration::ZERO)?;
            if outcomes.is_empty() {
                return Ok(());
            }
            after = next;
            self.end(self.state(), outcomes.into_iter());
        }
    }

    /// Reads outcomes while any task is waited for, until the session is closed.
    pub(super) fn follow(&self) {
        let mut after = 0;
        loop {
            let mut state = self.state();
            while state.waiting.is_empty() {
                if state.closed {
                    return;
                }
                state = wait(&self.submitted, state, RETRY);
            }
            if state.closed {
                return;
            }
            drop(state);
            let path = format!(
                "/v1/outcomes?tag={}&after={after}&wait_ms={MAX_WAIT_MS}",
                encoded(&self.tag)
            );
            let longer = Duration::from_millis(MAX_WAIT_MS);
            match self.manager.get_packed::<Outcomes>(&path, longer) {
                Ok(Outcomes { outcomes, next }) => {
                    after = next;
                    self.end(self.state(), outcomes.into_iter());
                }
                Err(_) => {
                    // The manager may return; each waiting thread has its own limit, and the tasks are durable.
                    let state = self.state();
                    if state.closed {
                        return;
                    }
                    drop(wait(&self.submitted, state, RETRY));
                }
            }
        }
    }
}

impl State {
    fn end(&mut self, outcomes: impl Iterator<Item = TaskOutcome>) {
        for outcome in outcomes {
            // The outcome of another session with this tag, or a repeated one.
            if !self.waiting.remove(&outcome.id) {
                continue;
            }
            if self.watched.remove(&outcome.id) {
                self.notices.push(outcome.id);
            }
            if !self.forgotten.remove(&outcome.id) {
                self.ended.insert(outcome.id, outcome);
            }
        }
    }
}
