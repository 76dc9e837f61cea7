//! How many calls of a loop go to leased workers, and how many stay with the program.
//!
//! The rule is that of the rFaaS papers: a program sends only as many calls as return before its own work is done,
//! `N_local * T_local >= T_inv + L`. A [`Planner`] learns the times from calls that have ended. The network of each
//! channel is described as in LogP: latency `L`, overhead `o` of the program for a message, gap `g` between two
//! calls, and `G`, the time for a byte. [`division`] divides the calls by these numbers.
//!
//! A channel about which nothing is known gets a few calls, at most one in eight. A channel that is known not to win
//! gets one again when the loss is below a hundredth of the time since the last.

pub mod division;
mod network;
mod samples;

#[cfg(test)]
mod planner_tests;

use std::collections::{BTreeMap, BTreeSet};

use division::{Local, Route, divide};
use network::{Network, RoundTrip};
use samples::{Ring, seconds};

pub use network::LogGp;

/// Most pairs of a function and a size whose times are kept; the least recently used is dropped.
const MAX_FUNCTIONS: usize = 256;
/// Most channels.
const MAX_CHANNELS: u32 = 4096;
/// Most calls of one split.
pub const MAX_CALLS: u64 = 1 << 40;
/// Times from which on their 95th percentile is not merely the longest.
const MIN_FOR_P95: usize = 20;
/// Of so many calls, one at most is sent to learn.
const CALLS_PER_PROBE: u64 = 8;
/// Part of the local time that calls may cost which are sent to learn whether a channel wins by now.
const PROBE_SHARE: f64 = 0.01;

/// A call on a leased worker that has ended with an output. Times are in seconds of one clock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Completion {
    /// The channel; `None` if a pool chose the worker.
    pub channel: Option<u32>,
    /// When the program began to send the call.
    pub submitted: f64,
    /// How long the program needed to send it; `None` if it is unknown.
    pub overhead: Option<f64>,
    /// When the output was there.
    pub ended: f64,
    /// How long the function ran on the worker; `None` if it is unknown.
    pub run: Option<f64>,
    /// Whether the program or a thread of it waited for the end. If not, the call may have ended long before `ended`.
    pub is_exact: bool,
}

/// Why calls were divided as they were.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// There are no channels.
    NoChannels,
    /// Times are unknown; a few calls are sent to learn them.
    Unknown,
    /// No call would return before the local work is done.
    CannotWin,
    /// As many calls are sent as return in time.
    Divided,
}

impl Reason {
    /// One sentence for people.
    pub fn explanation(self) -> &'static str {
        match self {
            Self::NoChannels => "there are no leased workers",
            Self::Unknown => "too little is known; a few calls are sent to learn",
            Self::CannotWin => "no call would return before the local work is done",
            Self::Divided => "as many calls are sent as return before the local work is done",
        }
    }
}

/// Calls for this program and for each channel.
#[derive(Debug, Clone, PartialEq)]
pub struct Split {
    /// Calls that the program computes itself.
    pub local: u64,
    /// Calls of each channel that gets some.
    pub remote: Vec<(u32, u64)>,
    /// How many of the remote calls are sent to learn. The predictions leave them out.
    pub probes: u64,
    /// Predicted time of the local work with the submissions, in seconds; 0 if it is unknown.
    pub local_seconds: f64,
    /// Predicted time until the last remote call has returned, in seconds.
    pub remote_seconds: f64,
    /// Why.
    pub reason: Reason,
}

impl Split {
    /// Calls that are sent.
    pub fn remote_total(&self) -> u64 {
        self.remote.iter().map(|(_, calls)| calls).sum()
    }

    fn all_local(calls: u64, local_seconds: f64, reason: Reason) -> Self {
        Self {
            local: calls,
            remote: Vec::new(),
            probes: 0,
            local_seconds,
            remote_seconds: 0.0,
            reason,
        }
    }
}

/// Times of a function with inputs and outputs of about one size.
#[derive(Debug, Clone, Default)]
struct Times {
    local: Ring,
    remote: Ring,
    /// Seconds that may be spent on calls that probably do not win.
    allowance: f64,
    used: u64,
}

#[derive(Debug, Clone, Default)]
struct Channel {
    /// Channels with the same link share its bandwidth.
    link: u32,
    network: Network,
    /// Times of functions on this channel's worker, divided by their times on all.
    slowness: Ring,
    last_end: Option<(f64, bool)>,
    burst: Option<Burst>,
}

/// Calls that followed each other on a channel without a pause.
#[derive(Debug, Clone, Copy)]
struct Burst {
    key: Key,
    /// When the first one was submitted.
    began: f64,
    /// When the last one ended.
    ended: f64,
    calls: u32,
    is_exact: bool,
}

impl Channel {
    fn slowness(&self) -> f64 {
        self.slowness.median().unwrap_or(1.0).clamp(1.0 / 64.0, 64.0)
    }
}

/// A function and the class of its size: sizes of one class differ by less than a factor of two.
type Key = (u64, u8);

fn key(function: u64, bytes: u64) -> Key {
    (function, network::class(bytes))
}

/// How long a function runs on workers, or else in the program.
fn run_of(functions: &BTreeMap<Key, Times>, key: &Key) -> Option<f64> {
    let times = functions.get(key)?;
    times.remote.median().or_else(|| times.local.median())
}

/// What is known of one function and size on one channel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The channel.
    pub channel: u32,
    /// Its network; `None` before its first call has ended.
    pub network: Option<LogGp>,
    /// Median time of the function on the worker, in seconds.
    pub run: Option<f64>,
    /// Time of 95 % of the calls, in seconds.
    pub run_p95: Option<f64>,
}

/// Learns times from calls, and divides loops by them.
#[derive(Debug, Clone, Default)]
pub struct Planner {
    functions: BTreeMap<Key, Times>,
    channels: BTreeMap<u32, Channel>,
    /// Channel of the next completion without one.
    next_channel: u32,
    ticks: u64,
}

impl Planner {
    /// A planner that knows nothing and has no channels.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the number of workers of a pool: channels 0 to `workers - 1`, which share one link.
    pub fn set_workers(&mut self, workers: u32) {
        let workers = workers.min(MAX_CHANNELS);
        self.channels.retain(|channel, _| *channel < workers);
        for channel in 0..workers {
            self.channels.entry(channel).or_default();
        }
    }

    /// Adds a channel, or changes its link. Does nothing when there are too many channels.
    pub fn add_channel(&mut self, channel: u32, link: u32) {
        if self.channels.contains_key(&channel) || self.channels.len() < MAX_CHANNELS as usize {
            self.channels.entry(channel).or_default().link = link;
        }
    }

    /// Removes a channel and what is known of it.
    pub fn remove_channel(&mut self, channel: u32) {
        self.channels.remove(&channel);
    }

    /// Number of channels.
    pub fn channels(&self) -> usize {
        self.channels.len()
    }

    /// Records that the program computed `calls` calls in `elapsed` seconds of one thread. `bytes` is the size of the
    /// input and output of one call. Times that cannot be are ignored.
    pub fn record_local(&mut self, function: u64, bytes: u64, calls: u64, elapsed: f64) {
        if let Some(elapsed) = seconds(elapsed)
            && calls > 0
        {
            self.times(key(function, bytes)).local.push(elapsed / calls as f64);
        }
    }

    /// Records a call on a leased worker. Completions of one channel are in the order of their ends. Times that cannot
    /// be and unknown channels are ignored.
    pub fn record_remote(&mut self, function: u64, bytes: u64, completion: Completion) {
        let Some(round_trip) = seconds(completion.ended - completion.submitted) else {
            return;
        };
        let number = completion.channel.unwrap_or_else(|| self.next_pooled());
        let key = key(function, bytes);
        if !self.channels.contains_key(&number) {
            return;
        }
        let run = completion.run.and_then(seconds).filter(|run| *run <= round_trip);
        let Some(channel) = self.channels.get_mut(&number) else {
            return;
        };
        if let Some(overhead) = completion.overhead.and_then(seconds) {
            channel.network.record_overhead(overhead);
        }
        let previous = channel.last_end.replace((completion.ended, completion.is_exact));
        // A call behind another one shows the time between two; a call alone shows the way there and back.
        let behind = previous.filter(|(end, _)| completion.submitted < *end && *end <= completion.ended);
        let mut is_over = None;
        match (behind, &mut channel.burst) {
            (Some((end, is_exact)), Some(burst)) if burst.key == key => {
                if is_exact && completion.is_exact {
                    channel.network.record_gap(completion.ended - end);
                }
                burst.ended = completion.ended;
                burst.calls = burst.calls.saturating_add(1);
                burst.is_exact &= completion.is_exact;
            }
            _ => {
                if behind.is_none() {
                    channel.network.record(RoundTrip {
                        bytes,
                        seconds: round_trip,
                        run,
                        key,
                        is_exact: completion.is_exact,
                    });
                }
                is_over = channel.burst.replace(Burst {
                    key,
                    began: behind.map_or(completion.submitted, |(end, _)| end),
                    ended: completion.ended,
                    calls: 1,
                    is_exact: completion.is_exact && run.is_none(),
                });
            }
        }
        if let Some(burst) = is_over {
            self.end_burst(number, burst);
        }
        if let Some(run) = run {
            self.record_run(number, key, run);
        }
    }

    /// Learns the time of a call from calls that followed each other. Their ends may be seen late and together, so only
    /// the time of all of them counts.
    fn end_burst(&mut self, number: u32, burst: Burst) {
        if burst.calls < 2 || !burst.is_exact {
            return;
        }
        let functions = &self.functions;
        let network = self
            .channels
            .get(&number)
            .and_then(|channel| channel.network.fit(|key| run_of(functions, key)));
        let once = network.map_or(0.0, |network| 2.0 * (network.latency + network.overhead));
        if let Some(all) = seconds(burst.ended - burst.began) {
            self.record_run(number, burst.key, (all - once).max(0.0) / f64::from(burst.calls));
        }
    }

    fn record_run(&mut self, number: u32, key: Key, run: f64) {
        let known = self.functions.get(&key).and_then(|times| times.remote.median());
        if let Some(channel) = self.channels.get_mut(&number)
            && let Some(known) = known.filter(|known| *known > 0.0)
        {
            channel.slowness.push(run / known);
        }
        self.times(key).remote.push(run);
    }

    /// The channel that the next completion of a pool is booked on: its workers are alike, so they take turns.
    fn next_pooled(&mut self) -> u32 {
        let next = self.channels.range(self.next_channel..).next();
        let channel = next.or(self.channels.iter().next()).map_or(0, |(number, _)| *number);
        self.next_channel = channel.saturating_add(1);
        channel
    }

    /// Divides `calls` calls with `bytes` bytes of input and output each. `threads` threads of the program compute.
    pub fn split(&mut self, function: u64, bytes: u64, calls: u64, threads: u32) -> Split {
        let calls = calls.min(MAX_CALLS);
        let key = key(function, bytes);
        let over: Vec<(u32, Burst)> = self
            .channels
            .iter_mut()
            .filter_map(|(number, channel)| Some((*number, channel.burst.take()?)))
            .collect();
        for (number, burst) in over {
            self.end_burst(number, burst);
        }
        let local = self.times(key).local.median();
        if self.channels.is_empty() {
            let total = local.unwrap_or(0.0) * calls as f64 / f64::from(threads.max(1));
            return Split::all_local(calls, total, Reason::NoChannels);
        }
        let mut unknown = Vec::new();
        let mut routes = Vec::new();
        for number in self.channels.keys().copied().collect::<Vec<_>>() {
            let route = local.and_then(|local| self.route(number, key, bytes, local));
            if route.is_none()
                || self
                    .channels
                    .get(&number)
                    .is_some_and(|channel| channel.network.is_new())
            {
                unknown.push(number);
            }
            routes.extend(route.map(|route| (number, route)));
        }
        let work = Local {
            calls,
            seconds: local.unwrap_or(0.0),
            threads: threads.max(1),
        };
        let (numbers, routes): (Vec<u32>, Vec<Route>) = routes.into_iter().unzip();
        let division = divide(work, &routes);
        let mut split = Split {
            local: division.local,
            remote: Vec::new(),
            probes: 0,
            local_seconds: division.local_seconds,
            remote_seconds: division.remote_seconds,
            reason: match division.local == calls {
                true if unknown.is_empty() => Reason::CannotWin,
                true => Reason::Unknown,
                false => Reason::Divided,
            },
        };
        let given = numbers.iter().copied().zip(division.remote.iter().copied());
        split.remote.extend(given.filter(|(_, calls)| *calls > 0));
        self.probe_unknown(&mut split, &unknown);
        self.probe_losing(&mut split, key, &numbers, &routes);
        split
    }

    /// Sends calls to channels of which little is known and that get none otherwise: two to each, because the second one shows what a call costs
    /// after another.
    fn probe_unknown(&self, split: &mut Split, unknown: &[u32]) {
        let given: BTreeSet<u32> = split.remote.iter().map(|(channel, _)| *channel).collect();
        let unknown: Vec<u32> = unknown
            .iter()
            .copied()
            .filter(|channel| !given.contains(channel))
            .collect();
        if unknown.is_empty() || split.local < 2 {
            return;
        }
        let most = (split.local / CALLS_PER_PROBE).max(1).min(2 * unknown.len() as u64);
        // Each split begins with another channel, so that all get their turn.
        let first = self.ticks as usize % unknown.len();
        let turns = unknown[first..].iter().chain(&unknown[..first]).cycle();
        let mut counts = BTreeMap::new();
        for channel in turns.take(most as usize) {
            *counts.entry(*channel).or_insert(0) += 1;
        }
        split.remote.extend(counts);
        split.remote.sort_unstable();
        split.local -= most;
        split.probes += most;
    }

    /// Sends calls to a channel that probably does not win, when the time for it has been saved up.
    fn probe_losing(&mut self, split: &mut Split, key: Key, numbers: &[u32], routes: &[Route]) {
        let local_seconds = split.local_seconds;
        let times = self.times(key);
        times.allowance = (times.allowance + local_seconds * PROBE_SHARE).min(network::MAX_SECONDS);
        if split.reason != Reason::CannotWin || split.local < 2 {
            return;
        }
        let best = numbers
            .iter()
            .zip(routes)
            .min_by(|one, other| one.1.finish(1).total_cmp(&other.1.finish(1)));
        let Some((number, route)) = best else { return };
        let calls = if split.local < 2 * CALLS_PER_PROBE { 1 } else { 2 };
        let loss = (route.finish(calls) - local_seconds).max(0.0);
        if loss > times.allowance || times.allowance <= 0.0 {
            return;
        }
        times.allowance = 0.0;
        split.remote.push((*number, calls));
        split.local -= calls;
        split.probes += calls;
    }

    /// What is known of a channel for these calls; `None` before its network is known.
    fn route(&mut self, number: u32, key: Key, bytes: u64, local: f64) -> Option<Route> {
        let functions = &self.functions;
        let channel = self.channels.get_mut(&number)?;
        let network = channel.network.fit(|key| run_of(functions, key))?;
        let times = functions.get(&key)?;
        let slowness = channel.slowness();
        let run = times.remote.median().unwrap_or(local) * slowness;
        let late = match times.remote.len() < MIN_FOR_P95 {
            true => 0.0,
            false => times.remote.p95().map_or(0.0, |p95| (p95 * slowness - run).max(0.0)),
        };
        Some(Route {
            link: channel.link,
            overhead: network.overhead,
            latency: network.latency,
            transfer: network.transfer(bytes),
            gap: network.gap,
            run,
            margin: late,
        })
    }

    /// What is known of each channel for a function and a size.
    pub fn estimates(&mut self, function: u64, bytes: u64) -> Vec<Estimate> {
        let key = key(function, bytes);
        let functions = &self.functions;
        let of = |(number, channel): (&u32, &mut Channel)| {
            let slowness = channel.slowness();
            let remote = functions.get(&key).map(|times| &times.remote);
            Estimate {
                channel: *number,
                network: channel.network.fit(|key| run_of(functions, key)),
                run: remote.and_then(Ring::median).map(|run| run * slowness),
                run_p95: remote.and_then(Ring::p95).map(|run| run * slowness),
            }
        };
        self.channels.iter_mut().map(of).collect()
    }

    /// Median local time of a function and a size, and the time of 95 % of the calls, in seconds.
    pub fn local(&self, function: u64, bytes: u64) -> Option<(f64, f64)> {
        let local = &self.functions.get(&key(function, bytes))?.local;
        local.median().zip(local.p95())
    }

    fn times(&mut self, key: Key) -> &mut Times {
        self.ticks += 1;
        if !self.functions.contains_key(&key) && self.functions.len() >= MAX_FUNCTIONS {
            let oldest = self.functions.iter().min_by_key(|(_, times)| times.used);
            if let Some(oldest) = oldest.map(|(key, _)| *key) {
                self.functions.remove(&oldest);
            }
        }
        let times = self.functions.entry(key).or_default();
        times.used = self.ticks;
        times
    }
}
