//! The thread that measures, feeds the policy, and applies its actions. It owns all groups of workers.

mod debts;
mod knowledge;
mod limits;
mod reports;

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use dayfly_harvest::profile::Trained;
use dayfly_harvest::record::Entry;
use dayfly_harvest::{Amount, Begin, CallId, Engine, Event, Features, Group as Ranks, Mode, Outcome};
use dayfly_protocol::api::{Borrow, HarvestMode, LoanTerms};
use dayfly_protocol::call_samples::CallSample;
use dayfly_protocol::ids::{Incarnation, LeaseId, TenantId, WorkerIndex};
use dayfly_protocol::node_api::Printer;
use dayfly_sandbox::cgroup::{Group, GroupError, Hierarchies, Weight};

use self::debts::Debt;
use super::learning::TRAINS;
use super::recording::Recording;
use super::totals::Totals;
use super::trainer::Trainer;
use super::worker::MeasuredWorker;
use super::{Inner, Setup};
use crate::leases::NodeLease;
use crate::loan_sums::LoanWindow;

/// Length of a window.
const WINDOW: Duration = Duration::from_millis(100);
/// Windows after which the policy takes everything back from a call that was not measured.
const LATE_WINDOWS: u32 = 3;
/// Most workers with a group: each has some open files.
const MAX_WORKERS: usize = 4096;

/// A process of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WorkerKey {
    pub lease: LeaseId,
    pub worker: WorkerIndex,
    pub incarnation: Incarnation,
}

/// A long call, or a call of a function whose last call was long.
#[derive(Debug)]
pub(super) struct BegunCall {
    pub worker: WorkerKey,
    /// Number of the call on the worker's channel.
    pub sequence: u32,
    pub pid: u32,
    pub lease: Weak<NodeLease>,
    pub sandbox: Option<Weak<Group>>,
    /// Workers of the lease, which share its sandbox.
    pub workers: u64,
    pub tenant: TenantId,
    /// The function's name in the meter, with the beginning of its code's hash.
    pub function: String,
    pub features: Features,
    /// What one worker owns.
    pub owned: Amount,
    /// What its lease lends and borrows.
    pub loans: LoanTerms,
    /// The ranks that it waits for.
    pub ranks: Option<Ranks>,
}

/// What the driver learns from the rest of the node.
#[derive(Debug)]
pub(super) enum Note {
    Begun(Box<BegunCall>),
    /// The call of this worker that began last has ended.
    Ended(WorkerKey),
    /// The worker has ended.
    Gone(WorkerKey),
    /// What warm workers share.
    Shared(Amount),
    /// The node's mode.
    Mode(HarvestMode),
    /// What calls of a tenant's function used on other nodes.
    Samples {
        tenant: TenantId,
        function: String,
        samples: Vec<CallSample>,
    },
    /// The training that runs has made these models.
    Trained(Box<Trained>),
    Stop,
}

/// The thread's state.
pub(super) struct Driver {
    origin: Instant,
    engine: Engine,
    /// The most that calls may borrow.
    borrow: Borrow,
    recording: Option<Recording>,
    trainer: Trainer,
    hierarchies: Arc<Hierarchies>,
    workers: BTreeMap<WorkerKey, MeasuredWorker>,
    /// The first call of workers without a group, which they get at its end.
    unmeasured: BTreeMap<WorkerKey, Box<BegunCall>>,
    calls: BTreeMap<CallId, WorkerKey>,
    /// Workers whose groups are still to be removed.
    leaving: Vec<(WorkerKey, MeasuredWorker)>,
    /// Workers that owe borrowed memory.
    debts: BTreeMap<WorkerKey, Debt>,
    next_call: u64,
    next_group: u64,
    totals: Totals,
    late_windows: u64,
    mode: HarvestMode,
    node: Arc<Inner>,
}

impl Driver {
    /// Prepares the policy.
    pub fn new(
        setup: &Setup,
        shared: Amount,
        hierarchies: Arc<Hierarchies>,
        node: Arc<Inner>,
    ) -> std::io::Result<Self> {
        let recording = setup.recording.as_ref();
        let recording = recording.map(|target| Recording::begin(target, setup.rules, TRAINS));
        let notes = Arc::clone(&node);
        let trainer = Trainer::start(move |trained| {
            notes.send(Note::Trained(Box::new(trained)));
        })?;
        let mut driver = Self {
            origin: Instant::now(),
            engine: Engine::new(setup.rules, Box::new(node.learning.clone())),
            borrow: setup.borrow,
            recording: recording.transpose()?,
            trainer,
            hierarchies,
            workers: BTreeMap::new(),
            unmeasured: BTreeMap::new(),
            calls: BTreeMap::new(),
            leaving: Vec::new(),
            debts: BTreeMap::new(),
            next_call: 0,
            next_group: 0,
            totals: Totals::default(),
            late_windows: 0,
            mode: HarvestMode::Off,
            node,
        };
        driver.share(shared);
        Ok(driver)
    }

    /// Runs until [`Note::Stop`]. While no call is measured, it sleeps.
    pub fn run(mut self, inbox: &mpsc::Receiver<Note>) {
        let mut due = Instant::now();
        let mut has_checked = false;
        loop {
            let note = if self.calls.is_empty() && self.leaving.is_empty() && self.debts.is_empty() {
                (due, has_checked) = (Instant::now() + WINDOW, false);
                inbox.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                let is_checked = has_checked || self.calls.is_empty();
                let next = if is_checked { due } else { due - WINDOW / 2 };
                let next = self.next_collection().map_or(next, |at| at.min(next));
                inbox.recv_timeout(next.saturating_duration_since(Instant::now()))
            };
            match note {
                Ok(Note::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(note) => self.take(note),
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.collect_debts();
            let now = Instant::now();
            if now >= due {
                if now - due >= WINDOW * (LATE_WINDOWS - 1) {
                    self.late_windows += 1;
                }
                self.sample();
                self.remove_left();
                (due, has_checked) = (now + WINDOW, false);
                self.report_pools();
            } else if self.calls.is_empty() {
                self.report_pools();
            } else if !has_checked && now >= due - WINDOW / 2 {
                self.check_lenders();
                has_checked = true;
            }
            self.begin_training();
            self.report();
        }
        self.switch(HarvestMode::Off);
        if let Some(recording) = &mut self.recording {
            recording.flush();
        }
    }

    /// Switches to a mode. Without measurement, no worker has a group.
    fn switch(&mut self, mode: HarvestMode) {
        self.mode = mode;
        self.handle(&Event::Mode {
            mode: match mode {
                HarvestMode::Off => Mode::Off,
                HarvestMode::Watch => Mode::Watch,
                HarvestMode::On => Mode::On,
            },
        });
        if mode != HarvestMode::On {
            self.free_memory();
        }
        if mode == HarvestMode::Off {
            self.unmeasured.clear();
            let keys: Vec<WorkerKey> = self.workers.keys().copied().collect();
            for key in keys {
                self.forget(key);
            }
        }
    }

    fn take(&mut self, note: Note) {
        match note {
            // Of an observer that has not noticed the switch yet.
            Note::Begun(_) | Note::Ended(_) if self.mode == HarvestMode::Off => {}
            Note::Begun(call) => self.begin(call),
            Note::Ended(key) => self.end(key),
            Note::Mode(mode) => self.switch(mode),
            Note::Gone(key) => self.forget(key),
            Note::Shared(shared) => self.share(shared),
            Note::Samples {
                tenant,
                function,
                samples,
            } => self.adopt(tenant, &function, &samples),
            Note::Trained(trained) => self.end_training(*trained),
            Note::Stop => {}
        }
    }

    fn begin(&mut self, call: Box<BegunCall>) {
        let key = call.worker;
        let (tenant, function) = self.node.learning.number(call.tenant, &call.function, call.owned);
        let learning = &self.node.learning;
        learning.meet(call.tenant, function, key.lease, call.loans.lend);
        if !self.workers.contains_key(&key) {
            if self.workers.len() + self.unmeasured.len() < MAX_WORKERS {
                self.unmeasured.insert(key, call);
            }
            return;
        }
        // The end of the call before was not noticed.
        self.end_call(key, Outcome::Returned);
        let id = CallId(self.next_call);
        self.next_call += 1;
        let Some(worker) = self.workers.get_mut(&key) else {
            return;
        };
        let by = Printer {
            worker: key.worker,
            sequence: call.sequence,
        };
        if let Err(error) = worker.begin(id, by) {
            self.lose(key, &error);
            return;
        }
        self.calls.insert(id, key);
        let borrow = call.loans.borrow.min(self.borrow);
        let borrows_memory = self.bind_memory(key, borrow.has_memory() && call.ranks.is_none());
        self.handle(&Event::Begin(Begin {
            call: id,
            tenant,
            function,
            features: call.features,
            owned: call.owned,
            lends: call.loans.lend,
            borrows_cpu: borrow.has_cpu(),
            borrows_memory,
            group: call.ranks,
        }));
    }

    fn end(&mut self, key: WorkerKey) {
        if let Some(call) = self.unmeasured.remove(&key) {
            self.admit(&call);
            return;
        }
        self.measure(key);
        self.end_call(key, Outcome::Returned);
    }

    /// Gives a worker a group.
    fn admit(&mut self, call: &BegunCall) {
        let key = call.worker;
        let is_running = || {
            let lease = call.lease.upgrade();
            lease.is_some_and(|lease| lease.is_running(key.worker, key.incarnation))
        };
        if !is_running() {
            return;
        }
        let name = format!("worker-{}", self.next_group);
        self.next_group += 1;
        match MeasuredWorker::admit(&self.hierarchies, &name, call) {
            // If it ended meanwhile, its number may have been another process's.
            Ok(worker) if is_running() => {
                self.workers.insert(key, worker);
            }
            Ok(_) => {}
            // A sandbox that has ended takes its groups along.
            Err(error) if error.is_vanished() => {}
            Err(error) => tracing::warn!(lease = %key.lease, %error, "a worker's calls are not measured"),
        }
    }

    fn forget(&mut self, key: WorkerKey) {
        self.unmeasured.remove(&key);
        self.end_call(key, Outcome::Aborted);
        self.debts.remove(&key);
        self.leaving
            .extend(self.workers.remove(&key).map(|worker| (key, worker)));
        self.remove_left();
    }

    /// Removes groups of workers that have ended. One whose processes are still dying waits for the next window.
    fn remove_left(&mut self) {
        let mut leaving = std::mem::take(&mut self.leaving);
        leaving.retain_mut(|(key, worker)| !worker.leave(&self.others_of(*key)));
        self.leaving = leaving;
    }

    fn end_call(&mut self, key: WorkerKey, outcome: Outcome) {
        self.note_memory_kills(key);
        let Some(call) = self.workers.get_mut(&key).and_then(MeasuredWorker::end) else {
            return;
        };
        self.calls.remove(&call);
        if self.calls.is_empty() {
            self.totals.set_now(std::iter::empty());
        }
        // Before the policy gives its units to others.
        if let Err(error) = self.limit_cpu(key, 0)
            && outcome == Outcome::Returned
        {
            self.lose(key, &error);
        }
        self.return_memory(key, outcome);
        self.handle(&Event::End { call, outcome });
    }

    /// Stops measuring a worker whose group fails. The policy takes everything back that it has lent.
    fn lose(&mut self, key: WorkerKey, error: &GroupError) {
        if !error.is_vanished() {
            tracing::warn!(lease = %key.lease, %error, "a worker's calls are no longer measured");
        }
        self.forget(key);
    }

    fn share(&mut self, shared: Amount) {
        let weighed = self.hierarchies.weigh(Weight::of_cores(shared.milli_cores));
        if let Err(error) = weighed {
            tracing::warn!(%error, "measured workers have less weight than others");
        }
        self.handle(&Event::Capacity { shared });
    }

    /// Measures every running call.
    fn sample(&mut self) {
        if self.calls.is_empty() {
            return;
        }
        let keys: Vec<WorkerKey> = self.calls.values().copied().collect();
        for key in keys {
            self.measure(key);
        }
        let running = self.calls.values().filter_map(|key| self.workers.get(key));
        self.totals.set_now(running.filter_map(MeasuredWorker::last_window));
        self.handle(&Event::Tick);
        if let Some(recording) = &mut self.recording {
            recording.flush();
        }
    }

    /// In the middle of a window: measures lenders that already use more than they kept, so that they wait for half a
    /// window at most.
    fn check_lenders(&mut self) {
        let lenders: Vec<WorkerKey> = self
            .engine
            .lenders()
            .filter_map(|call| self.calls.get(&call).copied())
            .collect();
        for key in lenders {
            let Some(worker) = self.workers.get_mut(&key) else {
                continue;
            };
            match worker.milli_cores() {
                Ok(Some((call, milli_cores))) if self.engine.would_recall(call, milli_cores) => self.measure(key),
                Ok(_) => {}
                Err(error) => self.lose(key, &error),
            }
        }
    }

    /// Measures the running call of a worker.
    fn measure(&mut self, key: WorkerKey) {
        let Some(worker) = self.workers.get_mut(&key) else {
            return;
        };
        let owned = worker.owned();
        match worker.measure() {
            Ok(Some((call, window))) => {
                let view = self.engine.view(call).unwrap_or_default();
                let loans = LoanWindow {
                    us: u64::try_from(window.length.as_micros()).unwrap_or(u64::MAX),
                    owned,
                    used: window.used,
                    lent: view.lent,
                    borrowed: view.borrowed,
                    waiting_ppm: window.waiting_ppm,
                };
                worker.note_loans(&loans);
                self.totals.add(&loans);
                let others = self.others_of(key);
                if let Some(worker) = self.workers.get_mut(&key)
                    && let Err(error) = worker.balance(&window, &others)
                {
                    tracing::debug!(lease = %key.lease, %error, "a borrower keeps its weight");
                }
                self.handle(&Event::Usage {
                    call,
                    milli_cores: window.used.milli_cores,
                    memory_bytes: window.used.memory_bytes,
                    waiting_ppm: window.waiting_ppm,
                });
            }
            Ok(None) => {}
            Err(error) => self.lose(key, &error),
        }
    }

    /// Gives the policy an event, and applies what follows.
    fn handle(&mut self, event: &Event) {
        let mut events = VecDeque::from([*event]);
        // What cannot be applied is an event itself. Each call is refused at most once for each resource.
        while let Some(event) = events.pop_front() {
            let now_us = self.now_us();
            let actions = self.engine.handle(now_us, &event);
            let entry = Entry { now_us, event, actions };
            self.recording.take_if(|recording| !recording.add(&entry));
            events.extend(entry.actions.into_iter().filter_map(|action| self.apply(action)));
        }
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}
