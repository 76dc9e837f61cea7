//! Proximal policy optimisation (Schulman and others, 2017, arXiv 1707.06347) over the 64 allocations: one network scores
//! every candidate by itself, a second one values the state as the mean over the candidates.

use std::ops::RangeInclusive;

use dayfly_harvest::random::Random;

use super::network::{INPUTS, Network, Optimizer, PARAMETERS, Pass};

/// Steps of an allocation in each resource.
pub(super) const STEPS: u8 = 8;
/// Allocations to choose from.
pub(super) const ACTIONS: usize = STEPS as usize * STEPS as usize;
/// Features of a state, without the two of a candidate.
pub(super) const FEATURES: usize = INPUTS - 2;

/// How the policy learns.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rates {
    pub(super) learning: f32,
    pub(super) clip: f32,
    /// Steps of the optimizers an episode.
    pub(super) epochs: usize,
    pub(super) value: f32,
    pub(super) entropy: f32,
    /// Share of a reward that counts for the decision before.
    pub(super) discount: f32,
}

impl Rates {
    /// Those of the public repository.
    pub(super) const PUBLISHED: Self = Self {
        learning: 1e-3,
        clip: 0.2,
        epochs: 4,
        value: 0.5,
        entropy: 0.01,
        discount: 1.0,
    };
}

/// What the policy sees of a call, scaled to about [0, 1], without the candidate.
pub(super) type State = [f32; FEATURES];

/// The steps that the safeguard leaves to choose from. Neither range is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Allowed {
    pub(super) cpu: RangeInclusive<u8>,
    pub(super) memory: RangeInclusive<u8>,
}

impl Allowed {
    fn actions(&self) -> impl Iterator<Item = Action> + '_ {
        self.cpu
            .clone()
            .flat_map(|cpu| self.memory.clone().map(move |memory| Action { cpu, memory }))
    }
}

/// An allocation in steps, each from 1 to `STEPS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Action {
    pub(super) cpu: u8,
    pub(super) memory: u8,
}

impl Action {
    fn row(self, state: &State) -> [f32; INPUTS] {
        let mut row = [0.0; INPUTS];
        row[..FEATURES].copy_from_slice(state);
        row[FEATURES] = f32::from(self.cpu) / f32::from(STEPS);
        row[FEATURES + 1] = f32::from(self.memory) / f32::from(STEPS);
        row
    }
}

/// One decision and what came of it.
#[derive(Debug, Clone)]
pub(super) struct Step {
    state: State,
    allowed: Allowed,
    action: Action,
    log_probability: f32,
    value: f32,
    /// The sum of what calls that ended before the next decision earned.
    pub(super) reward: f32,
}

/// The two networks.
#[derive(Debug, Clone)]
pub(super) struct Policy {
    pub(super) actor: Network,
    pub(super) critic: Network,
}

/// What learns: the policy's optimizers.
#[derive(Debug, Clone)]
pub(super) struct Teacher {
    rates: Rates,
    actor: Optimizer,
    critic: Optimizer,
}

/// The distribution over the allowed actions of one state.
struct Choice {
    rows: Vec<([f32; INPUTS], Pass)>,
    log_probabilities: Vec<f32>,
}

impl Policy {
    pub(super) fn random(random: &mut Random) -> Self {
        Self {
            actor: Network::random(random),
            critic: Network::random(random),
        }
    }

    /// Draws an action by its probability.
    pub(super) fn choose(&self, state: &State, allowed: &Allowed, random: &mut Random) -> Action {
        self.draw(state, allowed, random).0
    }

    /// Draws an action, and returns what is learned from.
    pub(super) fn explore(&self, state: &State, allowed: Allowed, random: &mut Random) -> Step {
        let (action, log_probability) = self.draw(state, &allowed, random);
        Step {
            state: *state,
            allowed,
            action,
            log_probability,
            value: self.value(state),
            reward: 0.0,
        }
    }

    fn draw(&self, state: &State, allowed: &Allowed, random: &mut Random) -> (Action, f32) {
        let choice = self.distribution(state, allowed);
        let mut left = random.unit() as f32;
        let mut drawn = (
            Action {
                cpu: *allowed.cpu.end(),
                memory: *allowed.memory.end(),
            },
            0.0,
        );
        for (action, log_probability) in allowed.actions().zip(&choice.log_probabilities) {
            drawn = (action, *log_probability);
            left -= log_probability.exp();
            if left < 0.0 {
                break;
            }
        }
        drawn
    }

    fn distribution(&self, state: &State, allowed: &Allowed) -> Choice {
        let rows: Vec<_> = allowed
            .actions()
            .map(|action| {
                let row = action.row(state);
                (row, self.actor.forward(&row))
            })
            .collect();
        let most = rows.iter().map(|(_, pass)| pass.output).fold(f32::MIN, f32::max);
        let total: f32 = rows.iter().map(|(_, pass)| (pass.output - most).exp()).sum();
        let log_probabilities = rows.iter().map(|(_, pass)| pass.output - most - total.ln()).collect();
        Choice {
            rows,
            log_probabilities,
        }
    }

    fn value(&self, state: &State) -> f32 {
        all_rows(state).map(|row| self.critic.forward(&row).output).sum::<f32>() / ACTIONS as f32
    }
}

fn all_rows(state: &State) -> impl Iterator<Item = [f32; INPUTS]> + '_ {
    let all = 1..=STEPS;
    all.clone()
        .flat_map(move |cpu| all.clone().map(move |memory| Action { cpu, memory }.row(state)))
}

impl Step {
    pub(super) fn action(&self) -> Action {
        self.action
    }
}

impl Teacher {
    pub(super) fn new(rates: Rates) -> Self {
        Self {
            rates,
            actor: Optimizer::new(),
            critic: Optimizer::new(),
        }
    }

    /// Learns from one episode. Returns the mean squared difference between the values and what was earned.
    pub(super) fn learn(&mut self, policy: &mut Policy, steps: &[Step]) -> f32 {
        if steps.is_empty() {
            return 0.0;
        }
        let earned = returns(steps, self.rates.discount);
        let advantages = advantages(steps, &earned);
        for _ in 0..self.rates.epochs {
            let mut by_actor = [0.0; PARAMETERS];
            let mut by_critic = [0.0; PARAMETERS];
            for ((step, earned), advantage) in steps.iter().zip(&earned).zip(&advantages) {
                actor_gradient(&self.rates, policy, step, *advantage, &mut by_actor);
                critic_gradient(&self.rates, &policy.critic, step, *earned, &mut by_critic);
            }
            for slope in by_actor.iter_mut().chain(&mut by_critic) {
                *slope /= steps.len() as f32;
            }
            self.actor.step(&mut policy.actor, &by_actor, self.rates.learning);
            self.critic.step(&mut policy.critic, &by_critic, self.rates.learning);
        }
        let squares = steps
            .iter()
            .zip(&earned)
            .map(|(step, earned)| (step.value - earned).powi(2));
        squares.sum::<f32>() / steps.len() as f32
    }
}

/// What was earned from each step on, divided by the number of steps, so that traces of all lengths are learned alike.
fn returns(steps: &[Step], discount: f32) -> Vec<f32> {
    let mut sum = 0.0;
    let mut earned: Vec<f32> = steps
        .iter()
        .rev()
        .map(|step| {
            sum = sum * discount + step.reward / steps.len() as f32;
            sum
        })
        .collect();
    earned.reverse();
    earned
}

/// What was earned beyond the value of the state, scaled to mean 0 and deviation 1.
fn advantages(steps: &[Step], earned: &[f32]) -> Vec<f32> {
    let raw: Vec<f32> = steps
        .iter()
        .zip(earned)
        .map(|(step, earned)| earned - step.value)
        .collect();
    let mean = raw.iter().sum::<f32>() / raw.len() as f32;
    let variance = raw.iter().map(|advantage| (advantage - mean).powi(2)).sum::<f32>() / raw.len() as f32;
    let scale = 1.0 / (variance.sqrt() + 1e-6);
    raw.iter().map(|advantage| (advantage - mean) * scale).collect()
}

/// The gradient of the clipped surrogate and of the entropy. A state with one allowed action teaches nothing.
fn actor_gradient(rates: &Rates, policy: &Policy, step: &Step, advantage: f32, gradient: &mut [f32; PARAMETERS]) {
    let choice = policy.distribution(&step.state, &step.allowed);
    if choice.rows.len() < 2 {
        return;
    }
    let Some(chosen) = step.allowed.actions().position(|action| action == step.action) else {
        return;
    };
    let ratio = (choice.log_probabilities[chosen] - step.log_probability).exp();
    let is_clipped = if advantage > 0.0 {
        ratio > 1.0 + rates.clip
    } else {
        ratio < 1.0 - rates.clip
    };
    let pull = if is_clipped { 0.0 } else { ratio * advantage };
    let entropy: f32 = -choice.log_probabilities.iter().map(|log| log.exp() * log).sum::<f32>();
    for (index, ((row, pass), log)) in choice.rows.iter().zip(&choice.log_probabilities).enumerate() {
        let probability = log.exp();
        let indicator = if index == chosen { 1.0 } else { 0.0 };
        let slope = -pull * (indicator - probability) + rates.entropy * probability * (log + entropy);
        policy.actor.backward(row, pass, slope, gradient);
    }
}

/// The gradient of the smooth absolute difference, which is quadratic below 1.
fn critic_gradient(rates: &Rates, critic: &Network, step: &Step, earned: f32, gradient: &mut [f32; PARAMETERS]) {
    let passes: Vec<_> = all_rows(&step.state).map(|row| (row, critic.forward(&row))).collect();
    let value = passes.iter().map(|(_, pass)| pass.output).sum::<f32>() / ACTIONS as f32;
    let slope = (value - earned).clamp(-1.0, 1.0) * rates.value / ACTIONS as f32;
    for (row, pass) in &passes {
        critic.backward(row, pass, slope, gradient);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERYTHING: fn() -> Allowed = || Allowed {
        cpu: 1..=STEPS,
        memory: 1..=STEPS,
    };

    #[test]
    fn actions_are_drawn_from_allowed_steps_only() {
        let mut random = Random::new(1);
        let policy = Policy::random(&mut random);
        let allowed = Allowed {
            cpu: 2..=3,
            memory: 8..=8,
        };
        let mut drawn = [0; 2];
        for _ in 0..200 {
            let action = policy.choose(&[0.5; FEATURES], &allowed, &mut random);
            assert_eq!(action.memory, 8);
            drawn[usize::from(action.cpu) - 2] += 1;
        }
        assert!(drawn.iter().all(|count| *count > 20), "{drawn:?}");
    }

    #[test]
    fn probabilities_of_allowed_actions_add_to_one() {
        let policy = Policy::random(&mut Random::new(2));
        let choice = policy.distribution(&[0.2; FEATURES], &EVERYTHING());
        assert_eq!(choice.log_probabilities.len(), ACTIONS);
        let total: f32 = choice.log_probabilities.iter().map(|log| log.exp()).sum();
        assert!((total - 1.0).abs() < 1e-4, "{total}");
    }

    /// The best answer is 6 steps of processor time in one half of the states and 3 in the other; memory does not matter.
    /// Returns how many of 32 decisions are at most one step away from it.
    fn episode(policy: &mut Policy, teacher: Option<&mut Teacher>, random: &mut Random) -> usize {
        let mut steps = Vec::new();
        let mut right = 0;
        for index in 0..32 {
            let mut state = [0.0; FEATURES];
            state[3] = if index % 2 == 0 { 1.0 } else { 0.0 };
            let best: u8 = if index % 2 == 0 { 6 } else { 3 };
            let mut step = policy.explore(&state, EVERYTHING(), random);
            let distance = step.action().cpu.abs_diff(best);
            right += usize::from(distance <= 1);
            step.reward = -f32::from(distance);
            steps.push(step);
        }
        if let Some(teacher) = teacher {
            teacher.learn(policy, &steps);
        }
        right
    }

    #[test]
    fn policy_learns_an_answer_that_depends_on_state() {
        let mut random = Random::new(11);
        let mut policy = Policy::random(&mut random);
        let mut teacher = Teacher::new(Rates {
            discount: 0.0,
            ..Rates::PUBLISHED
        });
        let before: usize = (0..10).map(|_| episode(&mut policy, None, &mut random)).sum();
        for _ in 0..150 {
            episode(&mut policy, Some(&mut teacher), &mut random);
        }
        let after: usize = (0..10).map(|_| episode(&mut policy, None, &mut random)).sum();
        assert!(before < 160, "{before} of 320 are right by chance");
        assert!(after > 240, "{before} of 320 are right before, {after} after");
    }
}
