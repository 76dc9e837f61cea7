//! A small seeded random forest after CART (Breiman and others, 1984; Breiman, 2001), for classes and for values. Its
//! leaves keep their samples, so that it predicts whole distributions: quantile regression forests (Meinshausen, 2006).
//!
//! A forest here does not store what it predicts. It gives each sample that it learned from a weight: how near the
//! sample is to the call in question, counted by the leaves that both share. Votes on classes, means and quantiles are
//! those of the weighted samples; the first two equal what scikit-learn's forests average over trees.
//!
//! Why not a crate: the forests of `linfa` only classify, those of `smartcore` predict means only and allocate a matrix
//! for each prediction; neither gives access to the samples of leaves, neither takes a sample after training.
//!
//! A sample can be added later (online bagging, Oza and Russell, 2001): each tree puts it into the leaf where it
//! belongs as often as a Poisson variable of mean 1 says, which is how often a bootstrap would have drawn it. Splits
//! stay as they are until the forest is trained again.

mod growth;
mod tree;

use crate::demand::Features;
use crate::random::Random;
pub use growth::Training;
use tree::Tree;

/// The features of a sample or call. They are finite.
pub type Row = [f32; Features::COUNT];

/// The features of a call as a row. Single precision halves the memory; what does not fit is set to its largest value.
pub fn row(features: &Features) -> Row {
    features.values().map(|value| (value as f32).clamp(f32::MIN, f32::MAX))
}

/// What a forest learns, by the slot of each sample.
#[derive(Debug, Clone, Copy)]
pub enum Target<'a> {
    /// Classes: splits lower the Gini impurity. Among samples of one class, splits lower the variance of the values
    /// behind the classes, so that quantiles are as fine as the samples allow.
    Classes {
        /// The class of each sample.
        classes: &'a [u16],
        /// The value that the class stands for.
        values: &'a [f64],
    },
    /// Values: splits lower their variance.
    Values(&'a [f64]),
}

/// The form of a forest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Trees in the forest, at least 1.
    pub trees: usize,
    /// Different samples in each leaf, at least 1.
    pub min_leaf: usize,
    /// Features that are tried for each split. 0 for the usual: all for values, the square root of their number for
    /// classes.
    pub features_per_split: usize,
    /// The seed of all that is random.
    pub seed: u64,
}

/// A trained forest.
#[derive(Debug, Clone)]
pub struct Forest {
    trees: Vec<Tree>,
    random: Random,
}

impl Forest {
    /// Trains a forest. The same samples, target and settings give the same forest.
    pub fn train(training: &Training<'_>, target: Target<'_>, settings: Settings) -> Self {
        let random = Random::new(settings.seed);
        let trees =
            (0..settings.trees.max(1)).map(|tree| training.grow(target, settings, &mut random.derived(tree as u64)));
        Self {
            trees: trees.collect(),
            random: random.derived(u64::MAX),
        }
    }

    /// Adds the weight of each sample for a call to `weights`, by slot. The weights sum to 1, or less if leaves have
    /// lost all their samples.
    pub fn weigh(&self, row: &Row, weights: &mut [f32]) {
        let share = 1.0 / self.trees.len() as f32;
        for tree in &self.trees {
            tree.weigh(row, share, weights);
        }
    }

    /// The class with most votes, the smallest of equals. `classes` is by slot.
    pub fn class(&self, row: &Row, classes: &[u16]) -> u16 {
        let mut weights = vec![0.0; classes.len()];
        self.weigh(row, &mut weights);
        let mut votes: Vec<(u16, f32)> = classes
            .iter()
            .copied()
            .zip(weights)
            .filter(|vote| vote.1 > 0.0)
            .collect();
        votes.sort_by_key(|vote| vote.0);
        votes.dedup_by(|vote, first| {
            let is_same = vote.0 == first.0;
            if is_same {
                first.1 += vote.1;
            }
            is_same
        });
        let most = votes
            .into_iter()
            .reduce(|most, vote| if vote.1 > most.1 + 1e-6 { vote } else { most });
        most.map_or(0, |vote| vote.0)
    }

    /// The mean of the values by slot.
    pub fn mean(&self, row: &Row, values: &[f64]) -> f64 {
        let mut weights = vec![0.0; values.len()];
        self.weigh(row, &mut weights);
        let total: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
        let sum: f64 = values
            .iter()
            .zip(&weights)
            .map(|(value, weight)| value * f64::from(*weight))
            .sum();
        if total > 0.0 { sum / total } else { 0.0 }
    }

    /// Adds a sample in a slot, in place of the one that was there, whose row is `old`.
    pub fn replace(&mut self, slot: u16, old: Option<&Row>, new: &Row) {
        for tree in &mut self.trees {
            if let Some(old) = old {
                tree.remove(slot, old);
            }
            tree.insert(slot, new, self.random.poisson_of_mean_one());
        }
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.trees.iter().map(Tree::heap_bytes).sum::<usize>() + self.trees.capacity() * size_of::<Tree>()
    }
}

#[cfg(test)]
mod tests;
