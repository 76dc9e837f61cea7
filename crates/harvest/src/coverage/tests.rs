use super::*;

fn steps(pairs: &[(u64, u64)]) -> Steps {
    Steps::of_pool(0, pairs.iter().copied())
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
