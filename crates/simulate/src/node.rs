//! One node in virtual time: its queue, its workers, its machine, and the policy that a live node runs.
//!
//! A call starts when what it owns fits beside what running calls own, and waits in the node's queue otherwise. The first
//! call of a worker waits for its start. A call that runs out of memory, or that is ended to free memory, runs again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use dayfly_harvest::engine::{Action, Begin, Counts, Engine, Event, Mode, Outcome};
use dayfly_harvest::record::Entry;
use dayfly_harvest::{Amount, CallId, FunctionId, Heartbeat, Predictor, Rules};

use crate::call::Call;
use crate::freyr::Load;
use crate::machine::{Machine, Measured, Stop, Totals};
use crate::policy::{Agent, Stage};
use crate::record::Record;

/// Times that a call runs at most. The last failure is the call's.
pub const MAX_ATTEMPTS: u8 = 3;
/// Windows that are shorter are part of the next: the kernel accounts use in ticks of up to 10 ms.
pub(crate) const MIN_WINDOW_US: u64 = 20_000;

/// Constants of a node.
#[derive(Debug, Clone, Copy)]
pub struct NodeOptions {
    /// What calls share.
    pub capacity: Amount,
    /// Time until a new worker begins its first call.
    pub cold_start_us: u64,
    /// Time that a worker without calls is kept.
    pub keep_warm_us: u64,
    /// Length of the windows in which use is measured.
    pub window_us: u64,
}

/// What every node sees of the run.
pub(crate) struct Run<'a> {
    pub calls: &'a [Call],
    pub records: Vec<Record>,
    /// What the oracle and Freyr's agent may know.
    pub stage: Stage,
    /// Freyr's agent.
    pub agent: Option<Agent>,
    /// Calls that left a node since this was read last: the node, and the call.
    pub left: Vec<(usize, usize)>,
}

/// One node.
pub(crate) struct Node {
    index: usize,
    options: NodeOptions,
    machine: Machine,
    engine: Option<Engine>,
    /// A lender may run out of what it owns.
    lowers_lenders: bool,
    owned: Amount,
    queue: VecDeque<usize>,
    starting: BTreeSet<(u64, usize)>,
    /// When workers that wait for calls are ended, the last to wait last.
    warm: BTreeMap<FunctionId, VecDeque<u64>>,
    tick_us: Option<u64>,
    /// Calls that the policy ends.
    ending: Vec<CallId>,
    log: Option<Vec<Entry>>,
    has_news: bool,
}

/// What decides on a node.
pub(crate) type Policy = (Rules, Box<dyn Predictor + Send>);

impl Node {
    pub fn new(index: usize, options: NodeOptions, policy: Option<Policy>, logs: bool) -> Self {
        let lowers_lenders = policy.as_ref().is_some_and(|(rules, _)| rules.lowers_lenders);
        let mut node = Self {
            index,
            options,
            machine: Machine::new(options.capacity),
            engine: policy.map(|(rules, predictor)| Engine::new(rules, predictor)),
            lowers_lenders,
            owned: Amount::ZERO,
            queue: VecDeque::new(),
            starting: BTreeSet::new(),
            warm: BTreeMap::new(),
            tick_us: None,
            ending: Vec::new(),
            log: logs.then(Vec::new),
            has_news: false,
        };
        let shared = options.capacity;
        node.feed(Event::Capacity { shared });
        node.feed(Event::Mode { mode: Mode::On });
        node
    }

    /// When something happens here next, if no call comes.
    pub fn next_us(&mut self) -> Option<u64> {
        let starting = self.starting.first().map(|(at_us, _)| *at_us);
        let next = [self.machine.next_us(), starting, self.tick_us];
        next.into_iter().flatten().min()
    }

    /// Takes a call.
    pub fn submit(&mut self, now_us: u64, call: usize, run: &mut Run<'_>) {
        self.machine.advance(now_us);
        self.queue.push_back(call);
        self.settle(run);
    }

    /// Does what is due now.
    pub fn step(&mut self, now_us: u64, run: &mut Run<'_>) {
        self.machine.advance(now_us);
        for (id, stop) in self.machine.stopped() {
            self.stop(id, stop, run);
        }
        while let Some((at_us, call)) = self.starting.first().copied()
            && at_us <= now_us
        {
            self.starting.pop_first();
            self.begin(call, run);
        }
        if self.tick_us.is_some_and(|at_us| at_us <= now_us) {
            self.tick(now_us, run);
        }
        self.settle(run);
    }

    /// Lets time pass in which nothing happens.
    pub fn pass(&mut self, now_us: u64) {
        self.machine.advance(now_us);
    }

    /// What its machine did.
    pub fn totals(&self) -> Totals {
        self.machine.totals()
    }

    /// What the node reports of itself. As a live node, it lets no time pass for that.
    pub fn heartbeat(&self, now_us: u64) -> Heartbeat {
        let is_warm = |workers: &VecDeque<u64>| workers.back().is_some_and(|until_us| *until_us >= now_us);
        let warm = self.warm.iter().filter(|(_, workers)| is_warm(workers));
        let warm = warm.map(|(function, _)| *function).collect();
        let capacity = self.options.capacity;
        match &self.engine {
            Some(engine) => Heartbeat::of(engine, now_us, capacity, warm),
            None => Heartbeat {
                at_us: now_us,
                capacity,
                warm,
                ..Heartbeat::default()
            },
        }
    }

    /// What running calls own.
    pub fn owned(&self) -> Amount {
        self.owned
    }

    /// The policy, unless the node harvests nothing.
    pub fn engine(&mut self) -> Option<&mut Engine> {
        self.engine.as_mut()
    }

    /// What the policy counted.
    pub fn counts(&self) -> Counts {
        self.engine.as_ref().map(Engine::counts).unwrap_or_default()
    }

    /// Whether anything happened since this was called last.
    pub fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
    }

    /// The events of its policy so far, if they are kept.
    pub fn into_log(self) -> Vec<Entry> {
        self.log.unwrap_or_default()
    }

    /// Starts calls of the queue, in its order, as long as they fit.
    fn admit(&mut self, run: &mut Run<'_>) {
        let now_us = self.machine.now_us();
        while let Some(&index) = self.queue.front() {
            let call = &run.calls[index];
            if !self.options.capacity.covers(&(self.owned + call.owned)) {
                return;
            }
            self.queue.pop_front();
            self.owned += call.owned;
            debug_assert!(
                self.options.capacity.covers(&self.owned),
                "a node owns more than it has"
            );
            let record = &mut run.records[index];
            record.node = self.index as u32;
            record.attempts += 1;
            if record.attempts == 1 {
                record.started_us = now_us;
            }
            if self.options.cold_start_us == 0 || self.take_worker(call.function, now_us) {
                self.begin(index, run);
            } else {
                record.is_cold = true;
                let at_us = now_us.saturating_add(self.options.cold_start_us);
                self.starting.insert((at_us, index));
            }
        }
    }

    /// Takes a warm worker of a function, the one that was used last.
    fn take_worker(&mut self, function: FunctionId, now_us: u64) -> bool {
        let Some(workers) = self.warm.get_mut(&function) else {
            return false;
        };
        while workers.front().is_some_and(|until_us| *until_us < now_us) {
            workers.pop_front();
        }
        workers.pop_back().is_some()
    }

    fn begin(&mut self, index: usize, run: &mut Run<'_>) {
        let call = &run.calls[index];
        let id = CallId(index as u64);
        self.machine.start(id, call.owned, call.phases);
        if self.engine.is_none() {
            return;
        }
        if self.tick_us.is_none() {
            let window_us = self.options.window_us.max(1);
            self.tick_us = Some((self.machine.now_us() / window_us + 1).saturating_mul(window_us));
        }
        let load = Load {
            running: self.machine.calls().count() as u64 - 1,
            free: self.options.capacity - self.machine.allocated(id),
        };
        run.stage.begin(self.machine.now_us(), id, call, load);
        self.feed(Event::Begin(Begin {
            call: id,
            tenant: call.tenant,
            function: call.function,
            features: call.features,
            owned: call.owned,
            lends: call.lend,
            borrows_cpu: call.borrow_cpu,
            borrows_memory: call.borrow_memory,
            group: None,
        }));
    }

    fn stop(&mut self, id: CallId, stop: Stop, run: &mut Run<'_>) {
        self.measure(id, run);
        match stop {
            Stop::Finished => self.end(id, Outcome::Returned, run),
            Stop::OutOfMemory => {
                run.records[id.0 as usize].ooms += 1;
                self.feed(Event::OutOfMemory { call: id });
                self.end(id, Outcome::Aborted, run);
            }
        }
    }

    fn end(&mut self, id: CallId, outcome: Outcome, run: &mut Run<'_>) {
        if !self.machine.remove(id) {
            return;
        }
        let now_us = self.machine.now_us();
        let index = id.0 as usize;
        let call = &run.calls[index];
        self.owned -= call.owned;
        self.feed(Event::End { call: id, outcome });
        if let Some(agent) = &run.agent {
            agent.end(now_us, id, outcome == Outcome::Returned);
        }
        let record = &mut run.records[index];
        if outcome == Outcome::Returned {
            let until_us = now_us.saturating_add(self.options.keep_warm_us);
            self.warm.entry(call.function).or_default().push_back(until_us);
        } else if record.attempts < MAX_ATTEMPTS {
            self.queue.push_front(index);
            return;
        } else {
            record.is_failed = true;
        }
        record.ended_us = now_us;
        run.left.push((self.index, index));
    }

    fn tick(&mut self, now_us: u64, run: &mut Run<'_>) {
        let calls: Vec<_> = self.machine.calls().collect();
        for id in calls {
            self.measure(id, run);
        }
        self.feed(Event::Tick);
        let next_us = now_us.saturating_add(self.options.window_us.max(1));
        self.tick_us = (!self.machine.is_idle()).then_some(next_us);
    }

    fn measure(&mut self, id: CallId, run: &mut Run<'_>) {
        let Some(engine) = &self.engine else { return };
        let before = engine.counts();
        let view = engine.view(id).unwrap_or_default();
        let Some(measured) = self.machine.measure(id, MIN_WINDOW_US) else {
            return;
        };
        let Measured {
            window_us,
            milli_cores,
            memory_bytes,
            waiting_ppm,
        } = measured;
        if let Some(agent) = &run.agent {
            agent.measure(id, Amount::new(milli_cores, memory_bytes));
        }
        self.feed(Event::Usage {
            call: id,
            milli_cores,
            memory_bytes,
            waiting_ppm,
        });
        let record = &mut run.records[id.0 as usize];
        record.note_loans(view.offered, view.borrowed, window_us);
        record.is_safeguarded |= self.counts().safeguards > before.safeguards;
    }

    /// Ends the calls that the policy ends, and starts those that fit.
    fn settle(&mut self, run: &mut Run<'_>) {
        self.has_news = true;
        loop {
            while let Some(id) = self.ending.pop() {
                self.end(id, Outcome::Aborted, run);
            }
            self.admit(run);
            if self.ending.is_empty() {
                return;
            }
        }
    }

    /// Gives an event to the policy, and does what it decides in its order.
    fn feed(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let Some(engine) = &mut self.engine else { return };
            let now_us = self.machine.now_us();
            let actions = engine.handle(now_us, &event);
            for action in &actions {
                events.extend(self.apply(*action));
            }
            if let Some(log) = &mut self.log {
                log.push(Entry { now_us, event, actions });
            }
        }
    }

    /// Does what the policy decided. Returns what it has to know of that.
    fn apply(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::Limit { call, resource, units } => {
                // What a borrower holds is reclaimed first. A lender whose limit falls has no such grace.
                self.machine.limit(call, resource, units, !self.lowers_lenders);
                None
            }
            // Nothing but the call itself can free its memory.
            Action::Reclaim { call, .. } => Some(Event::Reclaimed {
                call,
                memory_bytes: self.machine.memory(call),
            }),
            Action::EndCall { call } => {
                self.ending.push(call);
                None
            }
        }
    }
}
