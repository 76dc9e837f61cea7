use proptest::prelude::*;

use super::*;

/// The largest difference that rounding makes.
const ROUNDING: f64 = 1e-12;
const NOTHING: Amount = Amount::ZERO;

fn steps(pairs: &[(u64, u64)]) -> Steps {
    Steps::of_pool(0, pairs.iter().copied())
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..20u64, any::<u64>(), Just(u64::MAX)]
}

fn pairs() -> impl Strategy<Value = Vec<(u64, u64)>> {
    proptest::collection::vec((number(), number()), 0..10)
}

fn spare() -> impl Strategy<Value = Spare> {
    (pairs(), pairs()).prop_map(|(cpu, memory)| Spare {
        cpu: steps(&cpu),
        memory: steps(&memory),
    })
}

/// Pools of less than 2^63 units: levels of a forecast are signed.
fn small_spare() -> impl Strategy<Value = Spare> {
    let steps = || pairs().prop_map(|pairs| Steps::of_pool(0, pairs.into_iter().map(|(us, units)| (us, units >> 5))));
    (steps(), steps()).prop_map(|(cpu, memory)| Spare { cpu, memory })
}

fn want() -> impl Strategy<Value = Want> {
    (number(), number(), number()).prop_map(|(milli_cores, memory_bytes, duration_us)| Want {
        extra: Amount::new(milli_cores, memory_bytes),
        duration_us,
    })
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let change = (number(), number(), number()).prop_map(|(milli_cores, memory_bytes, until_us)| Change {
        amount: Amount::new(milli_cores, memory_bytes),
        until_us,
    });
    proptest::collection::vec(change, 0..6)
}

fn cores(units: u64, until_us: u64) -> Change {
    Change {
        amount: Amount::new(units, 0),
        until_us,
    }
}

#[test]
fn coverage_counts_units_only_until_they_expire() {
    let spare = Spare {
        cpu: steps(&[(5, 1), (10, 1)]),
        memory: Steps::default(),
    };
    let want = Want {
        extra: Amount::new(2, 0),
        duration_us: 10,
    };
    // 15 of 20 unit-microseconds of processor time, and no memory is wanted.
    assert_eq!(want.coverage(&spare), 0.9 * 0.75 + 0.1);
    assert_eq!(want.coverage(&spare.aged(5)), 0.9 * 0.25 + 0.1);
}

#[test]
fn nothing_wanted_is_covered_by_an_empty_pool() {
    let nothing = Spare::default();
    assert_eq!(Want::default().coverage(&nothing), 1.0);
    let never = Want {
        extra: Amount::new(1, 1),
        duration_us: 0,
    };
    assert_eq!(never.coverage(&nothing), 1.0);
    let memory = Want {
        extra: Amount::new(0, 1),
        duration_us: 1,
    };
    assert_eq!(memory.coverage(&nothing), 0.9);
}

#[test]
fn promises_return_when_they_end() {
    let spare = Spare {
        cpu: steps(&[(10, 4), (20, 4)]),
        memory: Steps::default(),
    };
    let forecast = Forecast::new(100, &spare, &[cores(6, 115)], &[]);
    let want = |duration_us| Want {
        extra: Amount::new(4, 0),
        duration_us,
    };
    // Two are left for 10, none for 5, then four for 5 more.
    assert_eq!(forecast.coverage(100, &want(10), NOTHING), 0.9 * 0.5 + 0.1);
    assert_eq!(forecast.coverage(110, &want(5), NOTHING), 0.1);
    assert_eq!(forecast.coverage(115, &want(5), NOTHING), 1.0);
    assert_eq!(forecast.coverage(120, &want(5), NOTHING), 0.1);
}

#[test]
fn units_lent_soon_cover_like_idle_units() {
    let forecast = Forecast::new(0, &Spare::default(), &[cores(1, 10)], &[cores(3, 10)]);
    let want = Want {
        extra: Amount::new(2, 0),
        duration_us: 20,
    };
    assert_eq!(forecast.coverage(0, &want, NOTHING), 0.9 * 0.5 + 0.1);
}

#[test]
fn promises_beyond_the_pool_take_unowned_units() {
    let spare = Spare {
        cpu: steps(&[(10, 2)]),
        memory: Steps::default(),
    };
    let forecast = Forecast::new(0, &spare, &[cores(3, 10)], &[]);
    let want = Want {
        extra: Amount::new(4, 0),
        duration_us: 20,
    };
    // Of two beside the pool one is promised for 10, and both are there afterwards.
    assert_eq!(
        forecast.coverage(0, &want, Amount::new(2, 0)),
        0.9 * (10.0 + 20.0) / 80.0 + 0.1
    );
}

proptest! {
    #[test]
    fn coverage_is_between_none_and_all(spare in spare(), want in want()) {
        let coverage = want.coverage(&spare);
        prop_assert!((0.0..=1.0).contains(&coverage), "{coverage}");
    }

    #[test]
    fn coverage_grows_with_the_pool(pool in pairs(), more in pairs(), want in want()) {
        let sum = |pairs: &[(u64, u64)]| {
            let steps = steps(pairs);
            Spare { cpu: steps.clone(), memory: steps }
        };
        let larger: Vec<_> = pool.iter().chain(&more).copied().collect();
        // With at most 16 expiries nothing is merged.
        prop_assume!(larger.len() <= MAX_STEPS);
        prop_assert!(want.coverage(&sum(&larger)) >= want.coverage(&sum(&pool)));
    }

    #[test]
    fn coverage_falls_with_the_demand(spare in spare(), want in want(), more in want()) {
        let larger = Want {
            extra: want.extra + more.extra,
            duration_us: want.duration_us.saturating_add(more.duration_us),
        };
        prop_assert!(larger.coverage(&spare) <= want.coverage(&spare) + ROUNDING);
    }

    #[test]
    fn forecast_without_changes_is_the_aged_pool(spare in small_spare(), want in want(), at_us in number(), age_us in number()) {
        let forecast = Forecast::new(at_us, &spare, &[], &[]);
        let now_us = at_us.saturating_add(age_us);
        let (left, expected) = (forecast.coverage(now_us, &want, NOTHING), want.coverage(&spare.aged(now_us - at_us)));
        prop_assert!((left - expected).abs() <= ROUNDING, "{left} {expected}");
        // A scheduler whose clock is behind takes the pool as it was sent.
        prop_assert_eq!(forecast.coverage(0, &want, NOTHING), want.coverage(&spare));
    }

    #[test]
    fn promises_lower_and_loans_raise_a_forecast(
        spare in spare(), want in want(), taken in changes(), given in changes(), at_us in 0..9u64, now_us in number(),
        beside in (number(), number()).prop_map(|(milli_cores, bytes)| Amount::new(milli_cores, bytes)),
    ) {
        let plain = Forecast::new(at_us, &spare, &[], &[]);
        let both = Forecast::new(at_us, &spare, &taken, &given);
        let less = Forecast::new(at_us, &spare, &taken, &[]);
        let more = Forecast::new(at_us, &spare, &[], &given);
        let coverage = |forecast: &Forecast| forecast.coverage(now_us, &want, beside);
        prop_assert!(coverage(&less) <= coverage(&plain) && coverage(&plain) <= coverage(&more));
        prop_assert!(coverage(&less) <= coverage(&both) && coverage(&both) <= coverage(&more));
        for forecast in [plain, both, less, more] {
            let covered = coverage(&forecast);
            prop_assert!((0.0..=1.0).contains(&covered), "{covered}");
            prop_assert_eq!(forecast.coverage_from(now_us, &want, beside, covered), Some(covered));
            prop_assert_eq!(forecast.coverage_from(now_us, &want, beside, covered + ROUNDING), None);
        }
    }
}
