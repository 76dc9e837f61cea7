//! The baseline Freyr: allocations chosen by reinforcement learning (Yu and others, "Accelerating Serverless Computing by
//! Harvesting Idle Resources", WWW 2022, doi 10.1145/3485447.3511979), after its public repository
//! IntelliSys-Lab/Freyr-WWW22.
//!
//! When a call begins, the agent chooses one of 64 allocations: eight steps of processor time by eight of memory. A
//! network of 11-32-16-1 scores each candidate from eleven features: calls that run, free processor time and memory of the
//! node; of the function the mean interval of calls, calls a second, mean peaks of use, mean duration and baseline
//! duration; and the candidate's two amounts. It learns by proximal policy optimisation from the durations of calls
//! relative to their baseline, the last duration with the configured allocation.
//!
//! The safeguard looks at the function's last call that ended. If that one had less than it owns and used 90 % of it,
//! the *next* call gets what is configured; the calls that run keep what they have. A function that used 90 % of what it
//! owns may get more, up to the largest step. Otherwise candidates lie between the recent peak and what it owns.
//!
//! # How it differs from our policy
//!
//! - A lender's limit is lowered for the whole call. Ours never lowers it, and recalls what is lent within 100 ms.
//! - Nothing is known of when lent units return, nor of a call's sizes: only means over a function's calls.
//! - A wrong decision lasts until the call ends.
//! - What is learned is the allocation that makes calls fast in the mean, over all functions at once. No quantile bounds
//!   what a lender loses.
//!
//! # Where this differs from the public repository
//!
//! - Features are scaled to about [0, 1]; there, they go into the networks as they are.
//! - Advantages are scaled to mean 0 and deviation 1, and rewards by the number of calls; both make learning steadier.
//! - A failed call costs its time beside that of the call that runs in its place; there, a call that fails early counts as
//!   a fast one.
//! - What a call earns counts for its own decision, and with a discount of 0.9 for those before; there, undiscounted for
//!   all decisions before it ended, which is mostly the noise of the others. On a task of 32 independent decisions of
//!   which 41 % are right before, 500 episodes teach nothing with a discount of 1, and 99 % with 0.9.
//! - Of the trained weights those with the least relative duration over ten episodes are kept; there, over one.

mod grid;
mod network;
mod policy;
mod record;
mod weights;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use dayfly_harvest::random::Random;
use dayfly_harvest::{Amount, CallId, FunctionId};

pub use grid::Grid;
use policy::{FEATURES, Policy, Rates, STEPS, State, Step, Teacher};
use record::{Record, Running};
pub use weights::{MAX_WEIGHTS_BYTES, Weights, WeightsError};

/// What the agent sees of the node when a call begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// Calls that began and did not end.
    pub running: u64,
    /// What no call is allocated.
    pub free: Amount,
}

/// What an episode of training gave.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Episode {
    /// Decisions.
    pub decisions: usize,
    /// Sum of rewards.
    pub reward: f32,
    /// Mean duration of calls relative to their baselines; 1 if none ended.
    pub relative_duration: f64,
    /// Mean squared error of the values, before learning.
    pub value_loss: f32,
}

/// The agent.
#[derive(Debug, Clone)]
pub struct Freyr {
    grid: Grid,
    policy: Policy,
    random: Random,
    records: BTreeMap<FunctionId, Record>,
    running: BTreeMap<CallId, Call>,
    earnings: Earnings,
    /// `None` while it only decides.
    learning: Option<Learning>,
}

/// How ours learns: as published, but for the discount.
const RATES: Rates = Rates {
    discount: 0.9,
    ..Rates::PUBLISHED
};

#[derive(Debug, Clone)]
struct Learning {
    teacher: Teacher,
    steps: Vec<Step>,
}

/// A call that runs.
#[derive(Debug, Clone)]
struct Call {
    function: FunctionId,
    began_us: u64,
    running: Running,
    /// Highest use so far.
    peak: Amount,
    /// Which of the episode's decisions was its.
    step: usize,
}

/// What calls earned in an episode.
#[derive(Debug, Clone, Default)]
struct Earnings {
    ended: u64,
    /// Sum of relative durations.
    relative: f64,
}

impl Freyr {
    /// An agent that decides by the weights that come with this crate.
    pub fn trained(grid: Grid, seed: u64) -> Self {
        static WEIGHTS: OnceLock<Weights> = OnceLock::new();
        let weights = WEIGHTS.get_or_init(|| {
            Weights::from_json(include_str!("../data/freyr.json")).expect("a test reads the committed weights")
        });
        Self::new(weights, grid, seed)
    }

    /// An agent that decides by trained weights. The seed draws among the allocations, by their probabilities.
    pub fn new(weights: &Weights, grid: Grid, seed: u64) -> Self {
        Self::with(weights.policy(), grid, Random::new(seed), None)
    }

    /// An agent that knows nothing yet and learns.
    pub fn learner(grid: Grid, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let policy = Policy::random(&mut random);
        let learning = Learning {
            teacher: Teacher::new(RATES),
            steps: Vec::new(),
        };
        Self::with(policy, grid, random, Some(learning))
    }

    fn with(policy: Policy, grid: Grid, random: Random, learning: Option<Learning>) -> Self {
        Self {
            grid: if grid.is_valid() { grid } else { Grid::PAPER },
            policy,
            random,
            records: BTreeMap::new(),
            running: BTreeMap::new(),
            earnings: Earnings::default(),
            learning,
        }
    }

    /// Chooses what a call that begins now gets. Less than it owns is harvested; more is to be borrowed, if it is there.
    pub fn decide(&mut self, now_us: u64, call: CallId, function: FunctionId, owned: Amount, load: Load) -> Amount {
        let record = self.records.entry(function).or_default();
        let state = state(&self.grid, record, now_us, load);
        let guarded = record.guard(&self.grid, owned);
        let mut index = 0;
        let action = match &mut self.learning {
            None => self.policy.choose(&state, &guarded.allowed, &mut self.random),
            Some(learning) => {
                let step = self.policy.explore(&state, guarded.allowed, &mut self.random);
                let action = step.action();
                index = learning.steps.len();
                learning.steps.push(step);
                action
            }
        };
        let allocation = self.grid.allocation(action, owned);
        let running = record.begin(now_us, owned, allocation, guarded.calibrates);
        let begun = Call {
            function,
            began_us: now_us,
            running,
            peak: Amount::ZERO,
            step: index,
        };
        self.running.insert(call, begun);
        allocation
    }

    /// Notes what a call used in a window.
    pub fn measure(&mut self, call: CallId, used: Amount) {
        if let Some(call) = self.running.get_mut(&call) {
            call.peak = call.peak.max(used);
        }
    }

    /// A call ended: it returned, or it did not. One that never began, or already ended, is ignored.
    pub fn end(&mut self, now_us: u64, call: CallId, has_returned: bool) {
        let Some(begun) = self.running.remove(&call) else {
            return;
        };
        let running = &begun.running;
        let duration_us = now_us.saturating_sub(begun.began_us);
        let record = self.records.entry(begun.function).or_default();
        record.end(running, begun.peak, duration_us, has_returned);
        let owned = self.grid.cpu_units(running.owned) + self.grid.memory_units(running.owned);
        let reward = self
            .earnings
            .add(relative_duration(running, duration_us, has_returned), owned);
        let step = self
            .learning
            .as_mut()
            .and_then(|learning| learning.steps.get_mut(begun.step));
        if let Some(step) = step {
            step.reward += reward;
        }
    }

    /// Ends an episode: learns from it, if this is a learner, and forgets all functions.
    pub fn finish(&mut self) -> Episode {
        let mut episode = Episode {
            decisions: 0,
            reward: 0.0,
            relative_duration: self.earnings.mean(),
            value_loss: 0.0,
        };
        if let Some(learning) = &mut self.learning {
            episode.decisions = learning.steps.len();
            episode.reward = learning.steps.iter().map(|step| step.reward).sum();
            episode.value_loss = learning.teacher.learn(&mut self.policy, &learning.steps);
            learning.steps.clear();
        }
        self.earnings = Earnings::default();
        self.records.clear();
        self.running.clear();
        episode
    }

    /// The weights as they are now, with what made them.
    pub fn weights(&self, command: &str, seed: u64, episodes: u64) -> Weights {
        Weights::of(&self.policy, command, seed, episodes)
    }
}

/// The nine features without the candidate. Counts and times are compressed by logarithms, amounts are in eighths of the
/// most that a function may have.
fn state(grid: &Grid, record: &Record, now_us: u64, load: Load) -> State {
    let most = f64::from(STEPS);
    let peak = record.peak();
    let features: [f64; FEATURES] = [
        (load.running as f64).ln_1p() / 4.0,
        grid.cpu_units(load.free).ln_1p() / 4.0,
        grid.memory_units(load.free).ln_1p() / 4.0,
        record.interval_s().ln_1p() / 4.0,
        record.calls_per_s(now_us).ln_1p(),
        grid.cpu_units(peak) / most,
        grid.memory_units(peak) / most,
        record.duration_s().ln_1p() / 4.0,
        record.baseline_s().ln_1p() / 4.0,
    ];
    features.map(|feature| feature.clamp(0.0, 8.0) as f32)
}

/// Duration relative to the baseline; 1 without one. A failed call runs again as it is configured, so its time comes on
/// top of that.
fn relative_duration(running: &Running, duration_us: u64, has_returned: bool) -> f64 {
    let relative = match running.baseline_us {
        Some(baseline) => duration_us as f64 / baseline.max(1) as f64,
        None => 1.0,
    };
    if has_returned { relative } else { 1.0 + relative }
}

impl Earnings {
    /// Adds an ended call, and returns its reward: the share by which it was faster than its baseline, or the share by which
    /// it was slower times `owned`, the steps of what it owns, less its relative duration over the cube root of the calls
    /// that ended. Bounded, so that one absurd duration does not undo what was learned.
    fn add(&mut self, relative: f64, owned: f64) -> f32 {
        self.ended += 1;
        self.relative += relative;
        let change = if relative < 1.0 {
            1.0 - relative
        } else {
            (1.0 - relative) * owned
        };
        let reward = change - relative / (self.ended as f64).cbrt();
        reward.clamp(-1e3, 1e3) as f32
    }

    fn mean(&self) -> f64 {
        if self.ended == 0 {
            1.0
        } else {
            self.relative / self.ended as f64
        }
    }
}

#[cfg(test)]
mod tests;
