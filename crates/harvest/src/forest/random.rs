//! Seeded random numbers: SplitMix64 (Steele, Lea and Flood, 2014).

#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A generator of its own for a part of the work, whose numbers do not depend on the other parts.
    pub(crate) fn derived(&self, part: u64) -> Self {
        let mut parent = Self(self.0 ^ part.wrapping_mul(0xd1b5_4a32_d192_ed03));
        Self(parent.next())
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, by multiplication (Lemire, 2019). Its bias of `bound / 2^64` does not matter here.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    /// A Poisson variable of mean 1, at most 6.
    pub(crate) fn poisson_of_mean_one(&mut self) -> u8 {
        let uniform = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        let (mut count, mut share, mut passed) = (0u8, (-1.0f64).exp(), 0.0);
        loop {
            passed += share;
            if uniform < passed || count == 6 {
                return count;
            }
            count += 1;
            share /= f64::from(count);
        }
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}
