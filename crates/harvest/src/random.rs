//! Seeded random numbers: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014). The same seed gives the same numbers on
//! every machine.

/// What SplitMix64 adds to its state at each step.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A pseudorandom number that depends on `number` only: a step of SplitMix64.
pub fn mix(number: u64) -> u64 {
    let mixed = number.wrapping_add(STEP);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A generator of random numbers. Not for secrets.
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    /// A generator whose numbers depend on `seed` alone.
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// A generator for one purpose, independent of how many numbers other purposes draw.
    pub fn for_purpose(seed: u64, purpose: u64) -> Self {
        Self::new(mix(seed ^ purpose.wrapping_mul(0xd134_2543_de82_ef95)))
    }

    /// A generator for a part of the work, whose numbers do not depend on the other parts.
    pub fn derived(&self, part: u64) -> Self {
        Self::new(mix(self.state ^ part.wrapping_mul(0xd1b5_4a32_d192_ed03)))
    }

    /// Any number.
    pub fn next_u64(&mut self) -> u64 {
        let number = mix(self.state);
        self.state = self.state.wrapping_add(STEP);
        number
    }

    /// A number from 0 up to, but not including, 1.
    pub fn unit(&mut self) -> f64 {
        // 53 bits are the digits of a double.
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A whole number below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        // The high half of the product: the bias is below end / 2^64.
        ((u128::from(self.next_u64()) * u128::from(end)) >> 64) as u64
    }

    /// An index into a list of `len` items; 0 if it is empty.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// A Poisson variable of mean 1, at most 6.
    pub fn poisson_of_mean_one(&mut self) -> u8 {
        let uniform = self.unit();
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

    /// Puts items into a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }

    /// How often a trial that ends with probability `1 / mean` is made until it ends: at least 1, `mean` on average.
    pub fn geometric(&mut self, mean: f64) -> u64 {
        if mean <= 1.0 || !mean.is_finite() {
            return 1;
        }
        let trials = (1.0 - self.unit()).ln() / (1.0 - 1.0 / mean).ln();
        1 + trials.min(1e9) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn equal_seeds_give_equal_numbers() {
        let (mut one, mut other) = (Random::new(7), Random::new(7));
        assert!((0..100).all(|_| one.next_u64() == other.next_u64()));
        assert_ne!(
            Random::for_purpose(7, 1).next_u64(),
            Random::for_purpose(7, 2).next_u64()
        );
    }

    #[test]
    fn numbers_below_a_bound_spread_evenly() {
        let mut random = Random::new(1);
        let mut counts = [0_u32; 10];
        for _ in 0..100_000 {
            counts[random.index(10)] += 1;
        }
        assert!(
            counts.iter().all(|&count| (9500..10_500).contains(&count)),
            "{counts:?}"
        );
        assert_eq!(random.below(0), 0);
    }

    #[test]
    fn geometric_numbers_have_the_stated_mean() {
        let mut random = Random::new(1);
        let sum: u64 = (0..10_000).map(|_| random.geometric(3.0)).sum();
        assert!((29_000..31_000).contains(&sum), "{sum}");
        assert_eq!(random.geometric(f64::NAN), 1);
    }
}
