//! Trains the baseline Freyr: episodes of generated traces, each with its own seed.

use std::sync::{Arc, Mutex, PoisonError};

use dayfly_harvest::Amount;

use crate::call::Call;
use crate::cluster::{Options, SimulateError, simulate_with};
use crate::freyr::{Episode, Freyr, Grid, Weights};
use crate::functions::Functions;
use crate::generate::{Generator, Mix};
use crate::policy::Policy;

/// Episodes of one training at most.
pub const MAX_EPISODES: u64 = 100_000;
/// Seeds of episodes are beyond those that anybody measures with.
const FIRST_SEED: u64 = 1 << 32;
/// Episodes over which the mean duration decides which weights are kept.
const WINDOW: usize = 10;

/// A trained agent, and how its episodes went.
#[derive(Debug)]
pub struct Training {
    /// Of the weights, those before the ten episodes with the least mean duration relative to what is configured.
    pub weights: Weights,
    /// What each episode gave.
    pub episodes: Vec<Episode>,
}

/// The grid of allocations that reaches what the calls own.
pub(crate) fn grid(calls: &[Call]) -> Grid {
    let most = calls.iter().fold(Amount::ZERO, |most, call| most.max(call.owned));
    Grid::PAPER.reaching(most)
}

/// The agent that decides on a trace: by the options' weights, or by those that come with this crate.
pub(crate) fn agent(calls: &[Call], options: &Options) -> Freyr {
    match &options.freyr {
        Some(weights) => Freyr::new(weights, grid(calls), options.seed),
        None => Freyr::trained(grid(calls), options.seed),
    }
}

/// Trains an agent on traces `single` of other seeds than anybody measures with. The same seed gives the same weights.
///
/// # Errors
///
/// [`SimulateError`] for options that cannot be simulated.
pub fn train(
    functions: &Functions,
    options: &Options,
    episodes: u64,
    command: &str,
) -> Result<Training, SimulateError> {
    let options = Options {
        policy: Policy::Freyr,
        ..options.clone()
    };
    let generate = |episode: u64| {
        let seed = FIRST_SEED
            .wrapping_mul(options.seed.wrapping_add(1))
            .wrapping_add(episode);
        Generator::Single(Mix::Hybrid).generate(functions, seed)
    };
    let first = generate(0);
    let learner = Arc::new(Mutex::new(Freyr::learner(grid(first.calls()), options.seed)));
    let mut results: Vec<Episode> = Vec::new();
    let mut best: Option<(f64, Weights)> = None;
    for episode in 0..episodes.min(MAX_EPISODES) {
        let trace = generate(episode);
        simulate_with(trace.calls(), &[], &options, Some(learner.clone()), &mut || 0)?;
        let mut freyr = learner.lock().unwrap_or_else(PoisonError::into_inner);
        let weights = freyr.weights(command, options.seed, episode);
        results.push(freyr.finish());
        let last = &results[results.len().saturating_sub(WINDOW)..];
        let mean = last.iter().map(|episode| episode.relative_duration).sum::<f64>() / last.len() as f64;
        let is_better = best.as_ref().is_none_or(|(least, _)| mean < *least);
        if last.len() == WINDOW && is_better {
            best = Some((mean, weights));
        }
    }
    let freyr = learner.lock().unwrap_or_else(PoisonError::into_inner);
    let weights = best.map_or_else(
        || freyr.weights(command, options.seed, episodes),
        |(_, weights)| weights,
    );
    Ok(Training {
        weights,
        episodes: results,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_trains_the_same_weights_on_traces() {
        let train = |seed| {
            let options = Options {
                seed,
                ..Options::default()
            };
            train(Functions::measured(), &options, 2, "").unwrap()
        };
        let trained = train(1);
        assert_eq!(trained.weights, train(1).weights);
        assert_ne!(trained.weights, train(2).weights);
        assert!(trained.episodes.iter().all(|episode| episode.decisions >= 165));
    }
}
