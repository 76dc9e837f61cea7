//! Seeded random numbers: SplitMix64 (Steele and others, OOPSLA 2014, doi 10.1145/2660193.2660195).

/// A stream of random numbers. The same seed gives the same numbers on every machine.
#[derive(Debug, Clone)]
pub(super) struct Random {
    state: u64,
}

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number in [0, 1). 24 bits are all that the type holds below 1.
    pub(super) fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u32 << 24) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_of_a_seed_spread_and_repeat() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            (0..10_000).map(|_| random.unit()).collect::<Vec<_>>()
        };
        let units = draw(7);
        assert_eq!(units, draw(7));
        assert_ne!(units, draw(8));
        assert!(units.iter().all(|unit| (0.0..1.0).contains(unit)));
        let mean = units.iter().sum::<f32>() / units.len() as f32;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
    }
}
