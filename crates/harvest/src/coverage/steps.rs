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
        Self(largest_below(steps, MAX_STEPS))
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

    /// The steps with at most `most` units at any time.
    #[must_use]
    pub fn at_most(&self, most: u64) -> Self {
        let above = self.0.partition_point(|step| step.units > most);
        let highest = self.0[..above].last().filter(|_| most > 0);
        // Where the next step has as many units, the two are one.
        let highest = highest.filter(|_| self.0.get(above).is_none_or(|next| next.units < most));
        let highest = highest.map(|step| Step { units: most, ..*step });
        Self(highest.into_iter().chain(self.0[above..].iter().copied()).collect())
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
fn area(steps: &[Step], from_us: u64, to_us: u64, limit: u64) -> u128 {
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

/// Returns at most `count` of the steps: those under which the most area remains. A step that is left out falls to
/// the units of the next one kept.
///
/// Dynamic programming over the number of steps kept. Keeping `i` and then `j` gains `(end_j - end_i) * units_j`. For
/// `i < i' < j < j'`, the gains of `(i, j)` and `(i', j')` exceed those of `(i, j')` and `(i', j)` by
/// `(end_i' - end_i) * (units_j - units_j') >= 0`, so the best predecessor never moves back as `j` grows, and divide and
/// conquer finds all of a row in `n log n`.
fn largest_below(steps: Vec<Step>, count: usize) -> Vec<Step> {
    if steps.len() <= count {
        return steps;
    }
    // Row by row: the largest area with so many steps kept. `j` is the last of them.
    let mut best: Vec<u128> = steps.iter().map(|step| gain(None, step)).collect();
    let mut before: Vec<Vec<usize>> = Vec::new();
    for kept in 1..count {
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
    let first_possible = count.saturating_sub(1);
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn units_at(entries: &[(u64, u64)], after_us: u64) -> u64 {
        let left = entries.iter().filter(|(expiry_us, _)| *expiry_us > after_us);
        left.fold(0, |sum: u64, (_, units)| sum.saturating_add(*units))
    }

    /// The largest area of all ways to keep `count` of the steps.
    fn largest_area(steps: &[Step], count: usize) -> u128 {
        let subsets = (0..1_u32 << steps.len()).filter(|subset| subset.count_ones() as usize <= count);
        let areas = subsets.map(|subset| {
            let kept: Vec<Step> = (0..steps.len())
                .filter(|i| subset >> i & 1 == 1)
                .map(|i| steps[i])
                .collect();
            area(&kept, 0, u64::MAX, u64::MAX)
        });
        areas.max().unwrap_or(0)
    }

    fn entries(max: usize) -> impl Strategy<Value = Vec<(u64, u64)>> {
        let some = proptest::collection::vec((0..200u64, 0..50u64), 0..max);
        let any = proptest::collection::vec((any::<u64>(), any::<u64>()), 0..max);
        prop_oneof![some, any]
    }

    #[test]
    fn few_expiries_are_kept_exactly() {
        let steps = Steps::of_pool(10, [(30, 1), (20, 2), (30, 4), (10, 8), (40, 0)]);
        let expected = [(10, 7), (20, 5)].map(|(remaining_us, units)| Step { remaining_us, units });
        assert_eq!(steps.as_slice(), expected);
        assert_eq!((steps.at(9), steps.at(10), steps.at(20)), (7, 5, 0));
        assert_eq!(steps.area(5, 100, 6), 5 * 6 + 10 * 5);
    }

    #[test]
    fn bad_steps_are_refused_with_their_place() {
        let read = |json: &str| serde_json::from_str::<Steps>(json).map_err(|error| error.to_string());
        assert_eq!(
            read(r#"[{"remaining_us": 5, "units": 18446744073709551615}]"#).map(|steps| steps.at(0)),
            Ok(u64::MAX)
        );
        let later = read(r#"[{"remaining_us": 5, "units": 3}, {"remaining_us": 5, "units": 2}]"#).unwrap_err();
        assert!(later.contains("step 1 of a pool does not end after"), "{later}");
        let fewer = read(r#"[{"remaining_us": 5, "units": 3}, {"remaining_us": 6, "units": 3}]"#).unwrap_err();
        assert!(fewer.contains("step 1 of a pool does not have fewer"), "{fewer}");
        let many = (1..=17)
            .map(|n| Step {
                remaining_us: n,
                units: 18 - n,
            })
            .collect::<Vec<_>>();
        assert_eq!(Steps::try_from(many), Err(StepsError::TooMany(17)));
        assert!(read(r#"[{"remaining_us": 0, "units": 3}]"#).is_err());
        assert!(read(r#"[{"remaining_us": 1, "units": 0}]"#).is_err());
    }

    #[test]
    fn thousands_of_expiries_become_sixteen_steps() {
        let entries: Vec<(u64, u64)> = (1..=5_000).map(|n| (n * 1_000, 10)).collect();
        let steps = Steps::of_pool(0, entries.iter().copied());
        assert_eq!(steps.as_slice().len(), MAX_STEPS);
        let exact: u128 = entries.iter().map(|(expiry, units)| u128::from(expiry * units)).sum();
        // A straight slope loses a 17th of its area under 16 steps.
        assert!(steps.area(0, u64::MAX, u64::MAX) * 1_000 > exact * 940);
    }

    proptest! {
        #[test]
        fn steps_never_exceed_the_pool(entries in entries(40), now_us in 0..100u64, times: [u64; 8]) {
            let steps = Steps::of_pool(now_us, entries.iter().copied());
            prop_assert!(steps.as_slice().len() <= MAX_STEPS);
            prop_assert_eq!(Steps::try_from(Vec::from(steps.clone())), Ok(steps.clone()));
            let at = times.into_iter().chain(0..200).chain(entries.iter().map(|(expiry_us, _)| *expiry_us));
            for after_us in at {
                let time = now_us.saturating_add(after_us);
                let exact = units_at(&entries, time);
                prop_assert!(steps.at(after_us) <= exact);
                if entries.len() <= MAX_STEPS {
                    prop_assert_eq!(steps.at(after_us), exact);
                }
            }
        }

        #[test]
        fn merging_loses_as_little_as_possible(entries in entries(11), count in 1..5usize) {
            let Steps(steps) = Steps::of_pool(0, entries);
            let merged = largest_below(steps.clone(), count);
            prop_assert!(merged.len() <= count);
            prop_assert_eq!(area(&merged, 0, u64::MAX, u64::MAX), largest_area(&steps, count));
        }

        #[test]
        fn limited_steps_are_the_smaller_of_both(entries in entries(20), most in 0..150u64, after_us in 0..300u64) {
            let steps = Steps::of_pool(0, entries);
            let limited = steps.at_most(most);
            prop_assert_eq!(limited.at(after_us), steps.at(after_us).min(most));
            prop_assert_eq!(Steps::try_from(Vec::from(limited.clone())), Ok(limited));
        }

        #[test]
        fn aged_steps_are_those_of_later(entries in entries(20), by_us in 0..300u64, after_us in 0..300u64) {
            let steps = Steps::of_pool(0, entries);
            let aged = steps.aged(by_us);
            prop_assert_eq!(aged.at(after_us), steps.at(by_us + after_us));
            prop_assert_eq!(aged.area(0, after_us, 7), steps.area(by_us, by_us + after_us, 7));
        }
    }
}
