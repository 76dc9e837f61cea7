//! Loans of memory: what borrowers owe is asked for every [`PAUSE`], until the policy ends them.

use std::time::{Duration, Instant};

use dayfly_harvest::{CallId, Event, Outcome, Resource};
use dayfly_protocol::api::HarvestMode;
use dayfly_protocol::node_api::End;

use super::{Driver, WorkerKey};

/// Time between two attempts to reclaim what a borrower owes.
const PAUSE: Duration = Duration::from_millis(20);

/// A worker that owes memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Debt {
    /// When the policy decides about it, in the driver's time; then never again.
    by_us: u64,
    /// When it is asked again.
    at: Instant,
}

impl Driver {
    /// Prepares a call that may borrow memory: its worker is held to what it owns. Returns whether it can be.
    pub(super) fn bind_memory(&mut self, key: WorkerKey, may_borrow: bool) -> bool {
        let lends = self.mode == HarvestMode::On;
        let Some(worker) = self.workers.get_mut(&key) else {
            return false;
        };
        let (limits, group) = worker.memory();
        if !may_borrow || !lends || limits.owned() == 0 {
            return false;
        }
        match limits.bind(group) {
            Ok(()) => {
                worker.watch_memory(key);
                true
            }
            // Calls before had no limit, and left it with more.
            Err(error) => {
                tracing::debug!(lease = %key.lease, %error, "a worker borrows no memory");
                false
            }
        }
    }

    /// Changes a borrower's limit of memory. Returns the event of a refused change.
    pub(super) fn limit_memory(&mut self, call: CallId, bytes: u64) -> Option<Event> {
        let key = *self.calls.get(&call)?;
        let others = self.others_of(key).memory;
        let worker = self.workers.get_mut(&key)?;
        let (limits, group) = worker.memory();
        let raising = limits.would_rise(bytes);
        let set = limits.set(group, bytes, others);
        self.note_debt(key, u64::MAX);
        let error = set.err()?;
        tracing::warn!(lease = %key.lease, %error, raising, "a worker's limit of memory could not be changed");
        Some(Event::Refused {
            call,
            resource: Resource::Memory,
            raising,
        })
    }

    /// Reports what a borrower holds after its limit fell.
    pub(super) fn reclaim_memory(&mut self, call: CallId, by_us: u64) -> Option<Event> {
        let key = *self.calls.get(&call)?;
        self.note_debt(key, by_us);
        let memory_bytes = self.workers.get_mut(&key)?.memory().0.held();
        Some(Event::Reclaimed { call, memory_bytes })
    }

    /// Remembers whether a worker owes memory, and until when.
    fn note_debt(&mut self, key: WorkerKey, by_us: u64) {
        let is_returning = self
            .workers
            .get_mut(&key)
            .is_some_and(|worker| worker.memory().0.is_returning());
        let at = Instant::now() + PAUSE;
        if !is_returning {
            self.debts.remove(&key);
            return;
        }
        let debt = self.debts.entry(key).or_insert(Debt { by_us, at });
        debt.by_us = debt.by_us.min(by_us);
    }

    /// Asks those that owe memory for it again, if that is due. Lets the policy decide about those that owe it for too
    /// long.
    pub(super) fn collect_debts(&mut self) {
        let now = Instant::now();
        let due: Vec<WorkerKey> = self
            .debts
            .iter()
            .filter(|(_, debt)| debt.at <= now)
            .map(|(key, _)| *key)
            .collect();
        let mut is_late = false;
        for key in due {
            let others = self.others_of(key).memory;
            let now_us = self.now_us();
            let Some(worker) = self.workers.get_mut(&key) else {
                self.debts.remove(&key);
                continue;
            };
            let call = worker.call();
            let (limits, group) = worker.memory();
            let lowered = limits.lower(group, others);
            let memory_bytes = limits.held();
            let is_returning = limits.is_returning();
            match self.debts.get_mut(&key) {
                Some(debt) if is_returning => {
                    debt.at = now + PAUSE;
                    if debt.by_us < now_us {
                        debt.by_us = u64::MAX;
                        is_late = true;
                    }
                }
                _ => drop(self.debts.remove(&key)),
            }
            let Some(call) = call else { continue };
            self.handle(&match lowered {
                Ok(()) => Event::Reclaimed { call, memory_bytes },
                Err(error) => {
                    tracing::warn!(lease = %key.lease, %error, "a worker's limit of memory could not be lowered");
                    Event::Refused {
                        call,
                        resource: Resource::Memory,
                        raising: false,
                    }
                }
            });
        }
        if is_late {
            self.handle(&Event::Tick);
        }
    }

    /// When the next worker is asked for what it owes.
    pub(super) fn next_collection(&self) -> Option<Instant> {
        self.debts.values().map(|debt| debt.at).min()
    }

    /// Takes back what the worker of a call that ends borrowed. A worker that holds it is ended: the policy gives the
    /// memory to others.
    pub(super) fn return_memory(&mut self, key: WorkerKey, outcome: Outcome) {
        let others = self.others_of(key).memory;
        let lends = self.mode == HarvestMode::On;
        let Some(worker) = self.workers.get_mut(&key) else {
            return;
        };
        let (limits, group) = worker.memory();
        if !limits.is_bound() {
            return;
        }
        let owned = limits.owned();
        let mut returned = limits.set(group, owned, others);
        limits.forget_recall();
        let holds_too_much = limits.holds_too_much();
        if returned.is_ok() && !limits.is_returning() && !lends {
            returned = limits.free(group);
        }
        if holds_too_much {
            worker.kill(key, End::MemoryReturned);
        }
        self.note_debt(key, u64::MAX);
        match returned {
            Err(error) if outcome == Outcome::Returned => self.lose(key, &error),
            _ => {}
        }
    }

    /// Removes the limits of workers without a call, since nothing is lent any longer.
    pub(super) fn free_memory(&mut self) {
        for worker in self.workers.values_mut() {
            if worker.call().is_none() {
                let (limits, group) = worker.memory();
                if !limits.is_returning()
                    && let Err(error) = limits.free(group)
                {
                    tracing::debug!(%error, "a worker keeps its limit of memory");
                }
            }
        }
    }

    /// Lets the policy know that a call ran out of memory, if it did since this was asked last.
    pub(super) fn note_memory_kills(&mut self, key: WorkerKey) {
        let Some(worker) = self.workers.get_mut(&key) else {
            return;
        };
        let was_killed = worker.memory().0.was_killed();
        if let Some(call) = worker.call().filter(|_| was_killed) {
            self.handle(&Event::OutOfMemory { call });
        }
    }
}
