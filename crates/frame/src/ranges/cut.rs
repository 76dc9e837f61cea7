//! Ranges of keys, cut from samples.
//!
//! A key is bytes whose order is that of the sort: nulls, directions and several columns are in them.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

/// Most keys in the sample of one part.
pub const MAX_SAMPLE_KEYS: usize = 512;
/// Most bytes of a key in a sample. The first bytes of a longer key separate rows as well, only less evenly.
pub const MAX_KEY_BYTES: usize = 256;

/// Keys of some rows of a part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Rows of the part.
    pub rows: u64,
    /// The first bytes of the keys of some of them, all equally likely.
    pub keys: Vec<Vec<u8>>,
}

impl Sample {
    /// Whether it is within the bounds of samples.
    pub fn is_bounded(&self) -> bool {
        self.keys.len() <= MAX_SAMPLE_KEYS && self.keys.iter().all(|key| key.len() <= MAX_KEY_BYTES)
    }
}

/// Where ranges end: range `n` has the keys from cut `n - 1` to cut `n`, both included.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cuts(Vec<Vec<u8>>);

/// Cuts at most so many ranges with about as many rows each, by regular sampling of weighted keys.
///
/// A key has the weight of the rows that it stands for. A key with more rows than a range should have is several cuts.
pub fn cut(samples: &[Sample], ranges: usize) -> Cuts {
    let weighted = samples.iter().flat_map(|sample| {
        let weight = sample.rows as f64 / sample.keys.len() as f64;
        sample.keys.iter().map(move |key| (key.as_slice(), weight))
    });
    let mut keys: Vec<_> = weighted.collect();
    keys.sort_unstable_by_key(|(key, _)| *key);
    let total: f64 = keys.iter().map(|(_, weight)| weight).sum();
    let mut cuts = Vec::new();
    let mut passed = 0.0;
    for (key, weight) in keys {
        passed += weight;
        while cuts.len() + 1 < ranges && passed >= total * (cuts.len() + 1) as f64 / ranges as f64 {
            cuts.push(key.to_vec());
        }
    }
    Cuts(cuts)
}

impl Cuts {
    /// Number of cuts: one less than that of ranges.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Whether the cuts are in order.
    pub fn are_in_order(&self) -> bool {
        self.0.is_sorted()
    }

    /// The ranges in which rows with a key may be. There are several if the key is a cut.
    pub fn ranges_of(&self, key: &[u8]) -> RangeInclusive<usize> {
        let first = self.0.partition_point(|cut| cut.as_slice() < key);
        let equal = self.0[first..].partition_point(|cut| cut.as_slice() <= key);
        first..=first + equal
    }
}

/// Chooses the ranges of rows. It deals out those of a key that is in several ranges.
#[derive(Debug)]
pub struct Dealer {
    cuts: Cuts,
    /// Rows that were dealt out.
    dealt: usize,
}

impl Dealer {
    /// Deals from this row on, so that tasks do not all begin with the same range.
    pub fn new(cuts: Cuts, first: usize) -> Self {
        Self { cuts, dealt: first }
    }

    /// The range of a row with this key.
    pub fn range_of(&mut self, key: &[u8]) -> usize {
        let (first, last) = self.cuts.ranges_of(key).into_inner();
        if first == last {
            return first;
        }
        self.dealt = self.dealt.wrapping_add(1);
        first + self.dealt % (last - first + 1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(number: u32) -> Vec<u8> {
        number.to_be_bytes().to_vec()
    }

    /// A sample with the keys of all rows.
    fn whole(numbers: &[u32]) -> Sample {
        Sample {
            rows: numbers.len() as u64,
            keys: numbers.iter().map(|number| key(*number)).collect(),
        }
    }

    fn counts(numbers: &[u32], ranges: usize, cuts: Cuts) -> Vec<usize> {
        let mut dealer = Dealer::new(cuts, 0);
        let mut counts = vec![0; ranges];
        for number in numbers {
            counts[dealer.range_of(&key(*number))] += 1;
        }
        counts
    }

    proptest! {
        #[test]
        fn ranges_are_in_the_order_of_keys(
            parts in prop::collection::vec(prop::collection::vec(0u32..50, 0..40), 1..5),
            rows in prop::collection::vec(0u32..60, 0..60),
            ranges in 1usize..12,
        ) {
            let samples: Vec<_> = parts.iter().map(|part| whole(part)).collect();
            let cuts = cut(&samples, ranges);
            prop_assert!(cuts.count() < ranges && cuts.are_in_order());
            let mut rows = rows;
            rows.sort_unstable();
            for pair in rows.windows(2) {
                if pair[0] < pair[1] {
                    prop_assert!(cuts.ranges_of(&key(pair[0])).end() <= cuts.ranges_of(&key(pair[1])).start());
                }
            }
            for row in rows {
                prop_assert!(*cuts.ranges_of(&key(row)).end() < ranges);
            }
        }

        #[test]
        fn different_keys_are_cut_evenly(rows in 1u32..2_000, step in 1u32..9, ranges in 1usize..20) {
            let numbers: Vec<_> = (0..rows).map(|row| row * step).collect();
            let cuts = cut(&[whole(&numbers)], ranges);
            let most = numbers.len().div_ceil(ranges);
            for count in counts(&numbers, ranges, cuts) {
                prop_assert!(count <= most + 1, "{count} of {rows} rows in one of {ranges} ranges");
            }
        }

        #[test]
        fn heavy_key_fills_several_ranges(heavy in 1u32..100, ranges in 2usize..20) {
            // Nine rows of ten have one key.
            let numbers: Vec<_> = (0..4_000u32).map(|row| if row % 10 > 0 { heavy } else { row % 100 }).collect();
            let counts = counts(&numbers, ranges, cut(&[whole(&numbers)], ranges));
            let most = counts.iter().max().copied().unwrap_or_default();
            prop_assert!(most <= 2 * numbers.len().div_ceil(ranges) + 1, "{counts:?}");
        }

        #[test]
        fn smaller_parts_have_less_weight(rows in 1u64..1_000_000) {
            // Both samples have as many keys, and all rows but few are in the first part.
            let small = Sample { rows: 10, keys: (100..200).map(key).collect() };
            let large = Sample { rows: rows + 10_000, keys: (0..100).map(key).collect() };
            let cuts = cut(&[small, large], 2);
            let (first, last) = cuts.ranges_of(&key(99)).into_inner();
            prop_assert_eq!((first, last), (1, 1));
            prop_assert_eq!(cuts.ranges_of(&key(40)).into_inner(), (0, 0));
        }

        #[test]
        fn truncated_cuts_keep_the_order(texts in prop::collection::vec("[ab]{0,6}", 2..40), length in 0usize..4) {
            let keys: Vec<_> = texts.iter().map(|text| text.as_bytes()[..text.len().min(length)].to_vec()).collect();
            let cuts = cut(&[Sample { rows: keys.len() as u64, keys }], 5);
            let mut texts = texts;
            texts.sort();
            texts.dedup();
            for pair in texts.windows(2) {
                prop_assert!(cuts.ranges_of(pair[0].as_bytes()).end() <= cuts.ranges_of(pair[1].as_bytes()).start());
            }
        }
    }

    #[test]
    fn no_rows_have_one_range() {
        let none = Sample {
            rows: 0,
            keys: Vec::new(),
        };
        let cuts = cut(&[none], 4);
        assert_eq!(cuts.count(), 0);
        assert_eq!(cuts.ranges_of(b"any").into_inner(), (0, 0));
    }
}
