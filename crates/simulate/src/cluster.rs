//! A cluster in virtual time: calls arrive, schedulers place them on nodes, nodes run them.
//!
//! Each scheduler decides one call at a time. It learns of pools by heartbeats alone, as a live one does.

mod options;
mod schedulers;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::{Arc, Mutex};

use dayfly_harvest::record::Entry;
use dayfly_harvest::{FunctionId, Predictor, Resource, Sample, SchedulerKind};

use crate::call::Call;
use crate::freyr::Freyr;
use crate::node::{Node, NodeOptions, Run};
use crate::policy::{Agent, Policy, Shared, Stage};
use crate::record::Record;
pub use options::{MAX_CORES, MAX_NODES, MAX_SHARDS, MAX_TIMELINE, Options};
use schedulers::{Schedulers, shards};
pub use schedulers::{UnknownScheduler, scheduler_named};

/// Why nothing was simulated.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SimulateError {
    /// An option is out of its bounds.
    #[error("{what} is {value}; give {from} to {to}.")]
    Bounds {
        /// The option.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The least.
        from: u64,
        /// The most.
        to: u64,
    },
    /// A call fits on no node.
    #[error(
        "Call {call} of the trace owns {cores} thousandths of a core and {memory} bytes, more than a node's share of one scheduler. \
         Give nodes of more cores, or fewer shards."
    )]
    TooLarge {
        /// Number of the call, from 1.
        call: usize,
        /// What it owns.
        cores: u64,
        /// What it owns.
        memory: u64,
    },
    /// A call owns no processor time.
    #[error(
        "Call {call} of the trace owns no processor time, so it would never end. Give it at least a thousandth of a core."
    )]
    OwnsNothing {
        /// Number of the call, from 1.
        call: usize,
    },
    /// Calls are not in the order of their arrival.
    #[error("Call {call} of the trace arrives before the one above it. Sort the trace by arrival.")]
    Order {
        /// Number of the call, from 1.
        call: usize,
    },
    /// There is no call.
    #[error("The trace has no call. Give one that has.")]
    Empty,
}

/// What every node did, summed over the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClusterTotals {
    /// Work done: thousandths of a core times microseconds.
    pub work: u128,
    /// Memory used: bytes times microseconds.
    pub memory: u128,
    /// Processor time that was in pools and that nobody had: thousandths of a core times microseconds.
    pub idle_cpu: u128,
    /// Memory that was in pools and that nobody had: bytes times microseconds.
    pub idle_memory: u128,
    /// Offers to pools.
    pub lends: u64,
    /// Grants to borrowers.
    pub borrows: u64,
    /// Offers that the safeguard took back.
    pub safeguards: u64,
    /// Borrowers that were ended to free memory.
    pub ended: u64,
}

/// What the cluster used in one interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimelinePoint {
    /// Its end.
    pub at_us: u64,
    /// Share of all cores that was busy.
    pub cpu: f64,
    /// Share of all memory that was used.
    pub memory: f64,
}

/// What a simulation gave.
#[derive(Debug)]
pub struct Outcome {
    /// What became of each call, in the order of the trace.
    pub records: Vec<Record>,
    /// What the nodes did.
    pub totals: ClusterTotals,
    /// What the cluster used over time, if asked for.
    pub timeline: Vec<TimelinePoint>,
    /// Time of each decision by the caller's clock, in nanoseconds.
    pub decisions_ns: Vec<u32>,
    /// Logs of the nodes, if asked for.
    pub logs: Vec<Vec<Entry>>,
}

/// What happens next, in the order in which events of one time are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// Something on a node, unless the node changed since.
    Node { node: usize, version: u64 },
    /// All heartbeats.
    Heartbeats,
    /// A point of the timeline.
    Timeline,
    /// The next call arrives.
    Arrival,
    /// A scheduler has decided.
    Decision { shard: usize },
}

/// One scheduler's queue.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<usize>,
    /// Its first call finds no room until a call ends.
    is_blocked: bool,
}

/// Simulates a trace.
///
/// `history` is what the policy learned before. `clock_ns` measures how long decisions take, and changes nothing else.
///
/// # Errors
///
/// [`SimulateError`] for options and calls that cannot be simulated.
pub fn simulate(
    calls: &[Call],
    history: &[(FunctionId, Sample)],
    options: &Options,
    clock_ns: &mut dyn FnMut() -> u64,
) -> Result<Outcome, SimulateError> {
    let freyr = if options.policy == Policy::Freyr {
        Some(Arc::new(Mutex::new(crate::training::agent(calls, options))))
    } else {
        None
    };
    simulate_with(calls, history, options, freyr, clock_ns)
}

/// Simulates a trace, with an agent for the policy `freyr`.
pub(crate) fn simulate_with(
    calls: &[Call],
    history: &[(FunctionId, Sample)],
    options: &Options,
    freyr: Option<Arc<Mutex<Freyr>>>,
    clock_ns: &mut dyn FnMut() -> u64,
) -> Result<Outcome, SimulateError> {
    check(calls, options)?;
    let mut cluster = Cluster::new(calls, history, options, freyr);
    cluster.run(clock_ns);
    Ok(cluster.finish())
}

fn check(calls: &[Call], options: &Options) -> Result<(), SimulateError> {
    let cores = options.capacity.milli_cores / 1_000;
    for (what, value, to) in [
        ("The number of nodes", options.nodes as u64, MAX_NODES as u64),
        ("The number of cores", cores, MAX_CORES),
        ("The number of shards", options.shards as u64, MAX_SHARDS as u64),
    ] {
        if !(1..=to).contains(&value) {
            return Err(SimulateError::Bounds {
                what,
                value,
                from: 1,
                to,
            });
        }
    }
    let mut before_us = 0;
    for (index, call) in calls.iter().enumerate() {
        let number = index + 1;
        if call.owned.milli_cores == 0 {
            return Err(SimulateError::OwnsNothing { call: number });
        }
        if !shards(options.shards).all(|shard| shard.of(options.capacity).covers(&call.owned)) {
            return Err(SimulateError::TooLarge {
                call: number,
                cores: call.owned.milli_cores,
                memory: call.owned.memory_bytes,
            });
        }
        if call.arrival_us < before_us {
            return Err(SimulateError::Order { call: number });
        }
        before_us = call.arrival_us;
    }
    if calls.is_empty() {
        return Err(SimulateError::Empty);
    }
    Ok(())
}

struct Cluster<'a> {
    options: &'a Options,
    run: Run<'a>,
    nodes: Vec<Node>,
    versions: Vec<u64>,
    schedulers: Schedulers,
    shards: Vec<Queue>,
    due: BinaryHeap<Reverse<(u64, Due)>>,
    next_arrival: usize,
    /// The shard that decided each call.
    decided_by: Vec<u8>,
    running: usize,
    beats: bool,
    last: ClusterTotals,
    timeline: Vec<TimelinePoint>,
    decisions_ns: Vec<u32>,
}

impl<'a> Cluster<'a> {
    fn new(
        calls: &'a [Call],
        history: &[(FunctionId, Sample)],
        options: &'a Options,
        freyr: Option<Arc<Mutex<Freyr>>>,
    ) -> Self {
        let stage = Stage::default();
        let agent = freyr.map(|freyr| Agent::new(stage.clone(), freyr));
        let predictor = || match &agent {
            Some(agent) => Box::new(agent.clone()) as Box<dyn Predictor + Send>,
            None => options.policy.predictor(&stage),
        };
        // Other schedulers do not ask, and one node leaves no choice.
        let asks = options.scheduler == SchedulerKind::Dayfly && options.nodes > 1;
        let mut predictor = Shared::new(predictor(), asks.then(predictor));
        for (function, sample) in history {
            predictor.learn(*function, *sample);
        }
        let rules = options.policy.rules().map(|mut rules| {
            if let (Some(share), true) = (options.safeguard, rules.safeguard.is_some()) {
                rules.safeguard = Some(share);
            }
            rules
        });
        let node_options = NodeOptions {
            capacity: options.capacity,
            cold_start_us: options.cold_start_us,
            keep_warm_us: options.keep_warm_us,
            window_us: rules.map_or(100_000, |rules| rules.window_us),
        };
        let policy = || rules.map(|rules| (rules, Box::new(predictor.clone()) as Box<dyn Predictor + Send>));
        let nodes: Vec<_> = (0..options.nodes)
            .map(|index| Node::new(index, node_options, policy(), options.logs))
            .collect();
        let record = |call: &Call| Record {
            arrival_us: call.arrival_us,
            ..Record::default()
        };
        Self {
            options,
            run: Run {
                calls,
                records: calls.iter().map(record).collect(),
                stage,
                agent,
                left: Vec::new(),
            },
            versions: vec![0; nodes.len()],
            nodes,
            schedulers: Schedulers::new(options, rules, predictor.clone()),
            shards: (0..options.shards).map(|_| Queue::default()).collect(),
            due: BinaryHeap::new(),
            next_arrival: 0,
            decided_by: vec![0; calls.len()],
            running: 0,
            beats: false,
            last: ClusterTotals::default(),
            timeline: Vec::new(),
            decisions_ns: Vec::with_capacity(calls.len()),
        }
    }

    fn run(&mut self, clock_ns: &mut dyn FnMut() -> u64) {
        self.expect_arrival();
        if self.options.timeline_us > 0 {
            let first_us = self.run.calls.first().map_or(0, |call| call.arrival_us);
            let at_us = first_us.saturating_add(self.options.timeline_us);
            self.due.push(Reverse((at_us, Due::Timeline)));
        }
        while let Some(Reverse((now_us, due))) = self.due.pop() {
            match due {
                Due::Node { node, version } => {
                    if self.versions[node] == version {
                        self.nodes[node].step(now_us, &mut self.run);
                        self.changed(now_us, node);
                    }
                }
                Due::Heartbeats => self.heartbeats(now_us),
                Due::Timeline => self.note_timeline(now_us),
                Due::Arrival => self.arrive(now_us),
                Due::Decision { shard } => self.decide(shard, now_us, clock_ns),
            }
            debug_assert!(
                self.nodes
                    .iter()
                    .all(|node| self.options.capacity.covers(&node.owned()))
            );
        }
    }

    fn expect_arrival(&mut self) {
        if let Some(call) = self.run.calls.get(self.next_arrival) {
            self.due.push(Reverse((call.arrival_us, Due::Arrival)));
        }
    }

    fn arrive(&mut self, now_us: u64) {
        let call = self.next_arrival;
        self.next_arrival += 1;
        self.running += 1;
        // Each shard gets every so manieth call, as behind a balancer that knows nothing.
        let shard = call % self.shards.len();
        self.decided_by[call] = shard as u8;
        self.shards[shard].waiting.push_back(call);
        if self.shards[shard].waiting.len() == 1 {
            self.expect_decision(shard, now_us);
        }
        self.expect_arrival();
    }

    fn expect_decision(&mut self, shard: usize, now_us: u64) {
        let at_us = now_us.saturating_add(self.options.decision_us);
        self.due.push(Reverse((at_us, Due::Decision { shard })));
    }

    fn decide(&mut self, shard: usize, now_us: u64, clock_ns: &mut dyn FnMut() -> u64) {
        let Some(index) = self.shards[shard].waiting.front().copied() else {
            return;
        };
        let call = &self.run.calls[index];
        self.run.stage.place(now_us, call);
        let begun_ns = clock_ns();
        let node = self.schedulers.place(shard, now_us, index, call);
        let took_ns = clock_ns().saturating_sub(begun_ns);
        self.decisions_ns.push(u32::try_from(took_ns).unwrap_or(u32::MAX));
        let Some(node) = node else {
            self.shards[shard].is_blocked = true;
            return;
        };
        self.shards[shard].waiting.pop_front();
        self.nodes[node].submit(now_us, index, &mut self.run);
        self.changed(now_us, node);
        if !self.shards[shard].waiting.is_empty() {
            self.expect_decision(shard, now_us);
        }
        if !self.beats {
            self.beats = true;
            let period_us = self.options.heartbeat_us.max(1);
            let at_us = (now_us / period_us + 1).saturating_mul(period_us);
            self.due.push(Reverse((at_us, Due::Heartbeats)));
        }
    }

    /// A node's next event may have changed, and calls may have left it.
    fn changed(&mut self, now_us: u64, node: usize) {
        self.versions[node] += 1;
        let version = self.versions[node];
        if let Some(at_us) = self.nodes[node].next_us() {
            self.due.push(Reverse((at_us, Due::Node { node, version })));
        }
        for (node, index) in std::mem::take(&mut self.run.left) {
            self.running -= 1;
            let shard = usize::from(self.decided_by[index]);
            self.schedulers.ended(shard, node, index);
            if std::mem::take(&mut self.shards[shard].is_blocked) {
                self.expect_decision(shard, now_us);
            }
        }
    }

    fn heartbeats(&mut self, now_us: u64) {
        for (index, node) in self.nodes.iter_mut().enumerate() {
            if node.take_news() {
                let heartbeat = node.heartbeat(now_us);
                self.schedulers.heartbeat(now_us, index, heartbeat);
            }
        }
        self.beats = self.running > 0;
        if self.beats {
            let at_us = now_us.saturating_add(self.options.heartbeat_us.max(1));
            self.due.push(Reverse((at_us, Due::Heartbeats)));
        }
    }

    fn note_timeline(&mut self, now_us: u64) {
        let mut sum = ClusterTotals::default();
        for node in &mut self.nodes {
            node.pass(now_us);
            sum.work += node.totals().work;
            sum.memory += node.totals().memory;
        }
        let all = |units: u64| units as f64 * self.nodes.len() as f64 * self.options.timeline_us as f64;
        self.timeline.push(TimelinePoint {
            at_us: now_us,
            cpu: (sum.work - self.last.work) as f64 / all(self.options.capacity.milli_cores),
            memory: (sum.memory - self.last.memory) as f64 / all(self.options.capacity.memory_bytes),
        });
        self.last = sum;
        let is_over = self.running == 0 && self.next_arrival == self.run.calls.len();
        if !is_over && self.timeline.len() < MAX_TIMELINE {
            let at_us = now_us.saturating_add(self.options.timeline_us);
            self.due.push(Reverse((at_us, Due::Timeline)));
        }
    }

    fn finish(mut self) -> Outcome {
        let mut totals = ClusterTotals::default();
        for node in &mut self.nodes {
            let (did, counts) = (node.totals(), node.counts());
            totals.work += did.work;
            totals.memory += did.memory;
            totals.lends += counts.offers;
            totals.borrows += counts.loans;
            totals.safeguards += counts.safeguards;
            totals.ended += counts.ended;
            if let Some(engine) = node.engine() {
                totals.idle_cpu += engine.totals(Resource::Cpu, 0).idle;
                totals.idle_memory += engine.totals(Resource::Memory, 0).idle;
            }
        }
        Outcome {
            records: self.run.records,
            totals,
            timeline: self.timeline,
            decisions_ns: self.decisions_ns,
            logs: self.nodes.into_iter().map(Node::into_log).collect(),
        }
    }
}

#[cfg(test)]
mod tests;
