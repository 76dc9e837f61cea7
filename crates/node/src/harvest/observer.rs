//! Notices the begins and ends of long calls in the meters of one lease.

use std::sync::{Arc, Weak};

use dayfly_executor::meter::Reading;
use dayfly_fabric::clock;
use dayfly_harvest::{Amount, Features, Group as Ranks};
use dayfly_protocol::api::Mode;
use dayfly_protocol::executor::MIN_LONG_CALL_US;
use dayfly_protocol::ids::{Incarnation, WorkerIndex};
use dayfly_sandbox::cgroup::Group;

use super::Inner;
use super::driver::{BegunCall, Note, WorkerKey};
use crate::leases::NodeLease;

/// The observer of one lease under one executor. Dropping it ends the measurement of its workers.
#[derive(Debug)]
pub struct Observer {
    harvest: Arc<Inner>,
    lease: Weak<NodeLease>,
    sandbox: Option<Weak<Group>>,
    workers: Vec<ObservedWorker>,
}

/// The state of a worker at the last reading.
#[derive(Debug, Default)]
struct ObservedWorker {
    key: Option<WorkerKey>,
    /// Its process.
    process: Option<(u32, Incarnation)>,
    call: Option<ObservedCall>,
    /// The account of its last long call: later calls of that function are noticed when they begin.
    long_function: Option<usize>,
}

/// A call, as a meter identifies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ObservedCall {
    sequence: u32,
    start_ticks: u64,
}

impl ObservedCall {
    /// The running call of a reading, and the index of its function. Loading a function is no call.
    fn of(reading: &Reading) -> Option<(Self, usize)> {
        let function = reading.account.function().filter(|_| reading.is_running())?;
        let call = Self {
            sequence: reading.started,
            start_ticks: reading.start_ticks,
        };
        Some((call, function))
    }
}

impl Observer {
    /// Watches a lease.
    pub(super) fn new(harvest: Arc<Inner>, lease: &Arc<NodeLease>, sandbox: Option<&Arc<Group>>) -> Self {
        let workers = usize::from(lease.terms().workers);
        Self {
            harvest,
            lease: Arc::downgrade(lease),
            sandbox: sandbox.map(Arc::downgrade),
            workers: (0..workers).map(|_| ObservedWorker::default()).collect(),
        }
    }

    /// Reads the meters, and reports what changed. Call it whenever the lease's clock ticks, and when a worker has sent
    /// that its call changed.
    pub fn observe(&mut self, lease: &NodeLease) {
        if !self.harvest.is_measuring() {
            // The driver has forgotten them, too.
            if self.workers.iter().any(|worker| worker.process.is_some()) {
                self.workers.fill_with(ObservedWorker::default);
            }
            return;
        }
        let reservation = lease.reservation();
        if reservation.mode == Mode::Hot {
            // A renewal gave the workers cores of their own, which they neither lend nor extend.
            for index in 0..self.workers.len() {
                self.forget(index);
            }
            return;
        }
        let now = clock::ticks();
        let activities = lease.activities();
        if self.workers.len() < activities.len() {
            self.workers.resize_with(activities.len(), ObservedWorker::default);
        }
        for (index, activity) in activities.into_iter().enumerate() {
            let process = activity.pid.map(|pid| (pid, activity.incarnation));
            if self.workers[index].process != process {
                self.forget(index);
                self.workers[index].process = process;
            }
            let Some((pid, incarnation)) = process else { continue };
            let running = ObservedCall::of(&activity.reading);
            let worker = &mut self.workers[index];
            if let Some(call) = worker.call
                && running.map(|(running, _)| running) != Some(call)
            {
                worker.call = None;
                let length_us = clock::us_of_ticks(now.saturating_sub(call.start_ticks));
                if length_us < MIN_LONG_CALL_US {
                    worker.long_function = None;
                }
                if let Some(key) = worker.key {
                    self.harvest.send(Note::Ended(key));
                }
            }
            let Some((call, function)) = running.filter(|_| worker.call.is_none()) else {
                continue;
            };
            let is_long = clock::us_of_ticks(now.saturating_sub(call.start_ticks)) >= MIN_LONG_CALL_US;
            if !is_long && worker.long_function != Some(function) {
                continue;
            }
            worker.long_function = Some(function);
            worker.call = Some(call);
            let key = WorkerKey {
                lease: lease.id(),
                worker: WorkerIndex(index as u16),
                incarnation,
            };
            worker.key = Some(key);
            let name = lease
                .meter(key.worker)
                .and_then(|meter| meter.function_name(function))
                .unwrap_or_default();
            let workers = u64::from(reservation.workers.max(1));
            self.harvest.send(Note::Begun(Box::new(BegunCall {
                worker: key,
                sequence: call.sequence,
                pid,
                lease: self.lease.clone(),
                sandbox: self.sandbox.clone(),
                workers,
                tenant: lease.granted.tenant,
                function: name,
                features: Features {
                    argument_bytes: activity.reading.argument_bytes,
                    sizes: activity.reading.sizes,
                },
                owned: Amount::new(
                    lease.granted.request.cores_per_worker.get(),
                    reservation.memory_bytes / workers,
                ),
                loans: lease.granted.request.loans,
                ranks: ranks_of(lease),
            })));
        }
    }

    /// Reports that a worker is gone.
    fn forget(&mut self, index: usize) {
        if let Some(key) = std::mem::take(&mut self.workers[index]).key {
            self.harvest.send(Note::Gone(key));
        }
    }
}

/// The ranks of a gang on this node.
fn ranks_of(lease: &NodeLease) -> Option<Ranks> {
    let size = u32::from(lease.terms().workers);
    let id = lease.id().0[..8].try_into().map_or(0, u64::from_le_bytes);
    (lease.granted.request.is_gang && size > 1).then_some(Ranks { id, size })
}

impl Drop for Observer {
    fn drop(&mut self) {
        for index in 0..self.workers.len() {
            self.forget(index);
        }
    }
}
