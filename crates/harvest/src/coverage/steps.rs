//! What a pool has by remaining time, and its shortest faithful form.

use serde::{Deserialize, Serialize};

/// Steps in one pool's description. A heartbeat with both pools then stays below 2 KiB of JSON.
pub const MAX_STEPS: usize = 16;

/// One step: so many units are left for so long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The step ends after this many microseconds.
    pub remaining_us: u64,
    /// Units until then: thousandths of a core, or bytes.
    pub units: u64,
}

/// Why steps from another process are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StepsError {
    /// There are too many.
    #[error("a pool has {0} steps; send at most {MAX_STEPS}")]
    TooMany(usize),
    /// A step ends when the one before it does, or earlier; the first ends at once.
    #[error(
        "step {0} of a pool does not end after the step before it; sort steps by remaining time and merge equal ones"
    )]
    NotLater(usize),
    /// A step has as many units as the one before it, or more; the last has none.
    #[error("step {0} of a pool does not have fewer units than the step before it, or has none; merge such steps")]
    NotFewer(usize),
}

/// `S(t)`: units that remain in a pool for more than `t` microseconds. Each step ends later than the one before and has
/// fewer units. Past the last step there are none. At most [`MAX_STEPS`] steps.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<Step>", into = "Vec<Step>")]
pub struct Steps(Vec<Step>);

impl Steps {
    /// The steps of a pool at `now_us`: each entry is the time at which units expire, and how many. Entries may be in
    /// any order; those that have expired count nothing. More than [`MAX_STEPS`] different expiries are merged: the result
    /// never has more than the pool at any time, and of all such results it has the largest area.
    pub fn of_pool(now_us: u64, entries: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut entries: Vec<(u64, u64)> = entries
            .into_iter()
            .filter(|&(expiry_us, units)| expiry_us > now_us && units > 0)
            .collect();
        entries.sort_unstable_by(|a, b| b.cmp(a));
        let mut steps: Vec<Step> = Vec::new();
        let mut units = 0_u64;
        for (expiry_us, more) in entries {
            let remaining_us = expiry_us - now_us;
            units = units.saturating_add(more);
            match steps.last_mut() {
                Some(last) if last.remaining_us == remaining_us => last.units = units,
                // The sum is saturated: units that expire earlier make no difference.
                Some(last) if last.units == units => {}
                _ => steps.push(Step { remaining_us, units }),
            }
        }
        steps.reverse();
        Self(largest_below(steps))
    }

    /// The steps, the first to end first.
    pub fn as_slice(&self) -> &[Step] {
        &self.0
    }

    /// Units that remain for more than `after_us` microseconds.
    pub fn at(&self, after_us: u64) -> u64 {
        let step = self.0.partition_point(|step| step.remaining_us <= after_us);
        self.0.get(step).map_or(0, |step| step.units)
    }

    /// The steps `by_us` microseconds later.
    #[must_use]
    pub fn aged(&self, by_us: u64) -> Self {
        let left = self.0.iter().filter(|step| step.remaining_us > by_us);
        Self(
            left.map(|step| Step {
                remaining_us: step.remaining_us - by_us,
                ..*step
            })
            .collect(),
        )
    }

    /// Integral of `min(limit, S(t))` from `from_us` to `to_us`, in unit-microseconds.
    pub fn area(&self, from_us: u64, to_us: u64, limit: u64) -> u128 {
        area(&self.0, from_us, to_us, limit)
    }
}

impl TryFrom<Vec<Step>> for Steps {
    type Error = StepsError;

    fn try_from(steps: Vec<Step>) -> Result<Self, StepsError> {
        if steps.len() > MAX_STEPS {
            return Err(StepsError::TooMany(steps.len()));
        }
        let mut before = Step {
            remaining_us: 0,
            units: u64::MAX,
        };
        for (index, &step) in steps.iter().enumerate() {
            if step.remaining_us <= before.remaining_us {
                return Err(StepsError::NotLater(index));
            }
            // The first may have any number of units.
            if step.units == 0 || (index > 0 && step.units >= before.units) {
                return Err(StepsError::NotFewer(index));
            }
            before = step;
        }
        Ok(Self(steps))
    }
}

impl From<Steps> for Vec<Step> {
    fn from(steps: Steps) -> Self {
        steps.0
    }
}

/// Integral of `min(limit, steps)` from `from_us` to `to_us`. Steps are in order of their ends; units in any order.
pub(super) fn area(steps: &[Step], from_us: u64, to_us: u64, limit: u64) -> u128 {
    let mut begin_us = from_us;
    let mut sum = 0;
    for step in steps {
        if begin_us >= to_us {
            break;
        }
        let end_us = step.remaining_us.min(to_us);
        if end_us > begin_us {
            sum += u128::from(end_us - begin_us) * u128::from(step.units.min(limit));
            begin_us = end_us;
        }
    }
    sum
}

/// Returns at most [`MAX_STEPS`] of the steps: those under which the most area remains. A step that is left out falls to
/// the units of the next one kept.
///
/// Dynamic programming over the number of steps kept. Keeping `i` and then `j` gains `(end_j - end_i) * units_j`. For
/// `i < i' < j < j'`, the gains of `(i, j)` and `(i', j')` exceed those of `(i, j')` and `(i', j)` by
/// `(end_i' - end_i) * (units_j - units_j') >= 0`, so the best predecessor never moves back as `j` grows, and divide and
/// conquer finds all of a row in `n log n`.
fn largest_below(steps: Vec<Step>) -> Vec<Step> {
    if steps.len() <= MAX_STEPS {
        return steps;
    }
    // Row by row: the largest area with so many steps kept, of which `j` is the last.
    let mut best: Vec<u128> = steps.iter().map(|step| gain(None, step)).collect();
    let mut before: Vec<Vec<usize>> = Vec::new();
    for kept in 1..MAX_STEPS {
        let mut row = Row {
            steps: &steps,
            shorter: &best,
            best: vec![0; steps.len()],
            before: vec![0; steps.len()],
        };
        row.fill(kept, steps.len(), kept - 1, steps.len());
        let Row {
            best: longer,
            before: from,
            ..
        } = row;
        best = longer;
        before.push(from);
    }
    let first_possible = MAX_STEPS - 1;
    let mut last = (first_possible..steps.len())
        .max_by_key(|&j| best[j])
        .unwrap_or(first_possible);
    let mut kept = vec![steps[last]];
    for from in before.iter().rev() {
        last = from[last];
        kept.push(steps[last]);
    }
    kept.reverse();
    kept
}

/// Area that a step adds when the one kept before it is `before`.
fn gain(before: Option<&Step>, step: &Step) -> u128 {
    let begin_us = before.map_or(0, |before| before.remaining_us);
    u128::from(step.remaining_us - begin_us) * u128::from(step.units)
}

/// One row of the dynamic programme.
struct Row<'a> {
    steps: &'a [Step],
    shorter: &'a [u128],
    best: Vec<u128>,
    before: Vec<usize>,
}

impl Row<'_> {
    /// Fills the entries `from..to`, whose best predecessors are in `low..high`.
    fn fill(&mut self, from: usize, to: usize, low: usize, high: usize) {
        if from >= to {
            return;
        }
        let middle = usize::midpoint(from, to);
        let area = |i: usize| self.shorter[i] + gain(Some(&self.steps[i]), &self.steps[middle]);
        let Some(chosen) = (low..high.min(middle)).max_by_key(|&i| area(i)) else {
            return;
        };
        self.best[middle] = area(chosen);
        self.before[middle] = chosen;
        self.fill(from, middle, low, chosen + 1);
        self.fill(middle + 1, to, chosen, high);
    }
}
