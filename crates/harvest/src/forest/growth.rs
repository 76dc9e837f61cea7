//! How a tree grows from samples.

use super::tree::Tree;
use super::{Row, Settings, Target};
use crate::demand::Features;
use crate::random::Random;

/// Splits above a leaf. It bounds the time of a prediction whatever the samples are.
const MAX_DEPTH: usize = 32;

/// Samples to learn from, sorted by each feature once for all trees and forests.
#[derive(Debug)]
pub struct Training<'a> {
    rows: &'a [Row],
    members: Vec<u16>,
    /// The features that are not the same in all samples, and the members in their order.
    sorted: Vec<(usize, Vec<u16>)>,
}

impl<'a> Training<'a> {
    /// Sorts the samples of these slots. There are at most 65,535 rows. Members without a row are left out.
    pub fn new(rows: &'a [Row], members: &'a [u16]) -> Self {
        let members: Vec<u16> = members
            .iter()
            .copied()
            .filter(|slot| usize::from(*slot) < rows.len())
            .collect();
        let sorted = (0..Features::COUNT).filter_map(|feature| {
            let value = |slot: u16| rows[usize::from(slot)][feature];
            let mut order = members.clone();
            order.sort_unstable_by(|a, b| value(*a).total_cmp(&value(*b)).then(a.cmp(b)));
            let varies = value(*order.first()?) < value(*order.last()?);
            varies.then_some((feature, order))
        });
        let sorted = sorted.collect();
        Self { rows, members, sorted }
    }

    pub(super) fn grow(&self, target: Target<'_>, settings: Settings, random: &mut Random) -> Tree {
        let mut counts = vec![0u8; self.rows.len()];
        for _ in 0..self.members.len() {
            let drawn = self.members[random.index(self.members.len())];
            let count = &mut counts[usize::from(drawn)];
            *count = count.saturating_add(1);
        }
        let mut grower = Grower::new(self, target, settings, Tree::new(counts));
        grower.grow(random);
        grower.tree.shrink();
        grower.tree
    }
}

/// A sample as the search for a split sees it.
#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    weight: f64,
    value: f64,
    class: u16,
}

/// A sample in the order of one feature, with its value of it.
#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    value: f32,
    slot: u16,
}

#[derive(Debug, Clone, Copy)]
struct Split {
    column: usize,
    score: f64,
    /// Samples that go left.
    left: usize,
}

struct Grower {
    features: Vec<usize>,
    tree: Tree,
    entries: Vec<Entry>,
    /// The drawn samples in the order of each feature. A node is the same range of all of them.
    columns: Vec<Vec<Cell>>,
    goes_left: Vec<bool>,
    buffer: Vec<Cell>,
    /// Weights of the classes on the left and on the right of a split; none if values are learned.
    left: Vec<f64>,
    right: Vec<f64>,
    tried: usize,
    min_leaf: usize,
}

impl Grower {
    fn new(training: &Training<'_>, target: Target<'_>, settings: Settings, tree: Tree) -> Self {
        let drawn = |feature: usize, order: &[u16]| {
            let drawn = order.iter().copied().filter(|slot| tree.count(*slot) > 0);
            let cell = |slot| Cell {
                value: training.rows[usize::from(slot)][feature],
                slot,
            };
            drawn.map(cell).collect()
        };
        let mut columns: Vec<Vec<Cell>> = training
            .sorted
            .iter()
            .map(|(feature, order)| drawn(*feature, order))
            .collect();
        if columns.is_empty() {
            columns.push(drawn(0, &training.members));
        }
        let (values, classes) = match target {
            Target::Classes { classes, values } => (values, dense(classes)),
            Target::Values(values) => (values, Vec::new()),
        };
        // Values relative to their mean lose fewer digits in sums.
        let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
        let entries = (0..training.rows.len()).map(|slot| Entry {
            weight: f64::from(tree.count(slot as u16)),
            value: values.get(slot).map_or(0.0, |value| value - mean),
            class: classes.get(slot).copied().unwrap_or_default(),
        });
        let class_count = classes.iter().max().map_or(0, |class| usize::from(*class) + 1);
        let usual = match target {
            Target::Classes { .. } => (training.sorted.len() as f64).sqrt() as usize,
            Target::Values(_) => training.sorted.len(),
        };
        let tried = if settings.features_per_split > 0 {
            settings.features_per_split
        } else {
            usual
        };
        Self {
            features: training.sorted.iter().map(|(feature, _)| *feature).collect(),
            entries: entries.collect(),
            columns,
            goes_left: vec![false; training.rows.len()],
            buffer: vec![Cell::default(); training.members.len()],
            left: vec![0.0; class_count],
            right: vec![0.0; class_count],
            tried: tried.max(1),
            min_leaf: settings.min_leaf.max(1),
            tree,
        }
    }

    fn grow(&mut self, random: &mut Random) {
        let mut waiting = vec![(0, 0, self.columns[0].len(), 0)];
        while let Some((node, start, end, depth)) = waiting.pop() {
            match self.split(start, end, depth, random) {
                Some(split) => {
                    let middle = start + split.left;
                    let left = self
                        .tree
                        .split(node, self.features[split.column], self.threshold(split.column, middle));
                    self.partition(split.column, start, middle, end);
                    waiting.push((left + 1, middle, end, depth + 1));
                    waiting.push((left, start, middle, depth + 1));
                }
                None => {
                    for at in start..end {
                        self.tree.put(node, self.columns[0][at].slot);
                    }
                }
            }
        }
    }

    /// The best split of a node, if it can and need be split.
    fn split(&mut self, start: usize, end: usize, depth: usize, random: &mut Random) -> Option<Split> {
        if end - start < 2 * self.min_leaf || depth >= MAX_DEPTH || self.features.is_empty() {
            return None;
        }
        let is_mixed = self.is_mixed(start, end);
        let (mut weight, mut sum, mut squares) = (0.0, 0.0, 0.0);
        for cell in &self.columns[0][start..end] {
            let entry = self.entries[usize::from(cell.slot)];
            weight += entry.weight;
            sum += entry.weight * entry.value;
            squares += entry.weight * entry.value * entry.value;
        }
        let whole = sum * sum / weight;
        if !is_mixed && squares - whole <= 1e-12 * squares {
            return None;
        }
        let mut order: [usize; Features::COUNT] = std::array::from_fn(|column| column);
        random.shuffle(&mut order[..self.features.len()]);
        let (mut best, mut tried) = (None::<Split>, 0);
        for column in order.into_iter().take(self.features.len()) {
            if self.is_constant(column, start, end) {
                continue;
            }
            let cells = &self.columns[column][start..end];
            let found = if is_mixed {
                let criterion = Gini::new(cells, &self.entries, weight, &mut self.left, &mut self.right);
                best_cut(cells, &self.entries, self.min_leaf, criterion)
            } else {
                let criterion = Variance {
                    weight,
                    sum,
                    left_weight: 0.0,
                    left_sum: 0.0,
                };
                best_cut(cells, &self.entries, self.min_leaf, criterion)
            };
            let found = found.map(|(score, left)| Split { column, score, left });
            if let Some(found) = found.filter(|found| best.is_none_or(|best| found.score > best.score)) {
                best = Some(found);
            }
            tried += 1;
            if tried >= self.tried && best.is_some() {
                break;
            }
        }
        best
    }

    fn value(&self, column: usize, at: usize) -> f32 {
        self.columns[column][at].value
    }

    fn is_constant(&self, column: usize, start: usize, end: usize) -> bool {
        self.value(column, start) >= self.value(column, end - 1)
    }

    fn is_mixed(&self, start: usize, end: usize) -> bool {
        let class = |cell: &Cell| self.entries[usize::from(cell.slot)].class;
        let cells = &self.columns[0][start..end];
        !self.left.is_empty() && cells.iter().any(|cell| class(cell) != class(&cells[0]))
    }

    /// Half way between the values before and at `middle`, and below the latter.
    fn threshold(&self, column: usize, middle: usize) -> f32 {
        let (below, above) = (self.value(column, middle - 1), self.value(column, middle));
        let half = below / 2.0 + above / 2.0;
        if half >= below && half < above { half } else { below }
    }

    /// Moves the samples of a node that go left before those that go right, in all columns, and keeps their order.
    fn partition(&mut self, column: usize, start: usize, middle: usize, end: usize) {
        for at in start..end {
            self.goes_left[usize::from(self.columns[column][at].slot)] = at < middle;
        }
        for (other, cells) in self.columns.iter_mut().enumerate() {
            if other == column {
                continue;
            }
            let cells = &mut cells[start..end];
            // Writes each cell to both sides: a branch here would be mispredicted half of the time.
            let (mut left, mut right) = (0, 0);
            for at in 0..cells.len() {
                let cell = cells[at];
                let goes_left = usize::from(self.goes_left[usize::from(cell.slot)]);
                cells[left] = cell;
                self.buffer[right] = cell;
                left += goes_left;
                right += 1 - goes_left;
            }
            cells[left..].copy_from_slice(&self.buffer[..right]);
        }
    }
}

/// How good a cut of a node into two sides is.
trait Criterion {
    /// Moves a sample from the right side to the left.
    fn move_left(&mut self, entry: &Entry);

    /// The greater, the better.
    fn score(&self) -> f64;
}

/// The cut with the best score, and the number of samples on its left. None if there is no cut between two values.
fn best_cut(cells: &[Cell], entries: &[Entry], min_leaf: usize, mut criterion: impl Criterion) -> Option<(f64, usize)> {
    let (mut best, mut best_left) = (f64::NEG_INFINITY, 0);
    let mut value = cells[0].value;
    for left in 1..=cells.len() - min_leaf {
        criterion.move_left(&entries[usize::from(cells[left - 1].slot)]);
        let next = cells[left].value;
        if next > value && left >= min_leaf {
            let score = criterion.score();
            if score > best {
                (best, best_left) = (score, left);
            }
        }
        value = next;
    }
    (best_left > 0).then_some((best, best_left))
}

/// The least variance: the greatest sum of squared sums over weights.
struct Variance {
    weight: f64,
    sum: f64,
    left_weight: f64,
    left_sum: f64,
}

impl Criterion for Variance {
    fn move_left(&mut self, entry: &Entry) {
        self.left_weight += entry.weight;
        self.left_sum += entry.weight * entry.value;
    }

    fn score(&self) -> f64 {
        let right_sum = self.sum - self.left_sum;
        let right_weight = self.weight - self.left_weight;
        (self.left_sum * self.left_sum * right_weight + right_sum * right_sum * self.left_weight)
            / (self.left_weight * right_weight)
    }
}

/// The least Gini impurity: the greatest sum of squared class weights over weights.
struct Gini<'a> {
    weight: f64,
    left: &'a mut [f64],
    right: &'a mut [f64],
    left_weight: f64,
    left_squares: f64,
    right_squares: f64,
}

impl<'a> Gini<'a> {
    /// All samples are on the right.
    fn new(cells: &[Cell], entries: &[Entry], weight: f64, left: &'a mut [f64], right: &'a mut [f64]) -> Self {
        left.fill(0.0);
        right.fill(0.0);
        for cell in cells {
            let entry = entries[usize::from(cell.slot)];
            right[usize::from(entry.class)] += entry.weight;
        }
        Self {
            weight,
            right_squares: right.iter().map(|weight| weight * weight).sum(),
            left,
            right,
            left_weight: 0.0,
            left_squares: 0.0,
        }
    }
}

impl Criterion for Gini<'_> {
    fn move_left(&mut self, entry: &Entry) {
        let class = usize::from(entry.class);
        self.left_weight += entry.weight;
        self.left_squares += entry.weight * (2.0 * self.left[class] + entry.weight);
        self.right_squares -= entry.weight * (2.0 * self.right[class] - entry.weight);
        self.left[class] += entry.weight;
        self.right[class] -= entry.weight;
    }

    fn score(&self) -> f64 {
        let right_weight = self.weight - self.left_weight;
        (self.left_squares * right_weight + self.right_squares * self.left_weight) / (self.left_weight * right_weight)
    }
}

/// The classes with numbers without gaps, in the same order.
fn dense(classes: &[u16]) -> Vec<u16> {
    let mut present = classes.to_vec();
    present.sort_unstable();
    present.dedup();
    classes
        .iter()
        .map(|class| present.partition_point(|other| other < class) as u16)
        .collect()
}
