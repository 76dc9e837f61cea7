//! A sample of the rows of a stream: one of each block of rows, at a place by chance.
//!
//! Blocks grow with the stream. When there are too many of them, every two become one, and one of their rows stays.

use super::cut::{MAX_KEY_BYTES, MAX_SAMPLE_KEYS, Sample};

/// Keys that are sampled before blocks grow.
const MAX_HELD_KEYS: usize = 2 * MAX_SAMPLE_KEYS;

/// Samples rows in the order in which they come.
#[derive(Debug)]
pub struct Sampler {
    keys: Vec<Vec<u8>>,
    /// Rows of a block.
    block_rows: u64,
    /// Blocks whose row was chosen.
    blocks: u64,
    /// The row that is chosen in the block after those.
    next: u64,
    seen: u64,
    random: u64,
}

impl Sampler {
    /// A sampler of one stream. Those of others have other seeds.
    pub fn new(seed: u64) -> Self {
        Self {
            keys: Vec::new(),
            block_rows: 1,
            blocks: 0,
            next: 0,
            seen: 0,
            random: seed,
        }
    }

    /// Adds so many rows. `key` returns the key of one of them, by its number among these.
    ///
    /// # Errors
    /// Of `key`.
    pub fn add<E>(&mut self, rows: usize, mut key: impl FnMut(usize) -> Result<Vec<u8>, E>) -> Result<(), E> {
        let end = self.seen + rows as u64;
        while self.next < end {
            let mut chosen = key((self.next - self.seen) as usize)?;
            chosen.truncate(MAX_KEY_BYTES);
            self.keys.push(chosen);
            self.blocks += 1;
            if self.keys.len() >= MAX_HELD_KEYS {
                self.halve();
            }
            self.next = self.blocks * self.block_rows + self.chance() % self.block_rows;
        }
        self.seen = end;
        Ok(())
    }

    /// The sample of all rows.
    pub fn finish(mut self) -> Sample {
        if self.keys.len() > MAX_SAMPLE_KEYS {
            self.halve();
        }
        Sample {
            rows: self.seen,
            keys: self.keys,
        }
    }

    /// Makes one block of every two, and keeps the row of one of them.
    fn halve(&mut self) {
        let keys = std::mem::take(&mut self.keys);
        let mut keys = keys.into_iter();
        while let Some(first) = keys.next() {
            let second = keys.next();
            let is_first = self.chance().is_multiple_of(2);
            self.keys.push(match second {
                Some(second) if !is_first => second,
                _ => first,
            });
        }
        self.block_rows *= 2;
        self.blocks = self.keys.len() as u64;
    }

    /// A number by chance: SplitMix64 (Steele, Lea and Flood, 2014).
    fn chance(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    /// A sample of the numbers below a count, in batches of these sizes.
    fn sample(rows: u64, batch: usize, seed: u64) -> Sample {
        let mut sampler = Sampler::new(seed);
        let mut begin = 0;
        while begin < rows {
            let count = batch.min((rows - begin) as usize);
            let added: Result<(), Infallible> =
                sampler.add(count, |row| Ok((begin + row as u64).to_be_bytes().to_vec()));
            added.unwrap();
            begin += count as u64;
        }
        sampler.finish()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn sample_is_bounded_and_spread(rows in 0u64..200_000, batch in 1usize..9_000, seed: u64) {
            let sample = sample(rows, batch, seed);
            prop_assert_eq!(sample.rows, rows);
            prop_assert!(sample.is_bounded());
            prop_assert!(sample.keys.len() as u64 >= rows.min(MAX_SAMPLE_KEYS as u64 / 2));
            // Of rows in order, the sample has some from every tenth of them.
            let numbers = sample.keys.iter().map(|key| u64::from_be_bytes(key.as_slice().try_into().unwrap()));
            let numbers: Vec<_> = numbers.collect();
            prop_assert!(numbers.is_sorted_by(|one, other| one < other));
            for tenth in 0..10 {
                let (from, to) = (rows * tenth / 10, rows * (tenth + 1) / 10);
                let found = numbers.iter().filter(|number| (from..to).contains(number)).count();
                prop_assert!(rows < 1_000 || found * 15 >= numbers.len(), "{found} of {}", numbers.len());
            }
        }
    }

    #[test]
    fn long_keys_are_truncated() {
        let mut sampler = Sampler::new(1);
        let added: Result<(), Infallible> = sampler.add(3, |_| Ok(vec![7; 10 * MAX_KEY_BYTES]));
        added.unwrap();
        let sample = sampler.finish();
        assert!(sample.is_bounded());
        assert_eq!(sample.keys.len(), 3);
    }
}
