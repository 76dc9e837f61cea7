use proptest::prelude::*;

use super::*;

const SETTINGS: Settings = Settings {
    trees: 32,
    min_leaf: 1,
    features_per_split: 0,
    seed: 3,
};

fn rows(count: usize) -> Vec<Row> {
    let mut random = Random::new(1);
    (0..count)
        .map(|_| std::array::from_fn(|_| random.index(1_000_000) as f32))
        .collect()
}

fn slots(count: usize) -> Vec<u16> {
    (0..count as u16).collect()
}

#[test]
fn step_is_learned() {
    let (rows, members) = (rows(300), slots(300));
    let values: Vec<f64> = rows
        .iter()
        .map(|row| if row[2] > 400_000.0 { 9.0 } else { 1.0 })
        .collect();
    let forest = Forest::train(&Training::new(&rows, &members), Target::Values(&values), SETTINGS);
    let mut row = rows[0];
    row[2] = 700_000.0;
    assert!(forest.mean(&row, &values) > 8.5);
    row[2] = 100_000.0;
    assert!(forest.mean(&row, &values) < 1.5);
}

#[test]
fn classes_are_voted_for() {
    let (rows, members) = (rows(400), slots(400));
    let values: Vec<f64> = rows.iter().map(|row| f64::from(row[0])).collect();
    let classes: Vec<u16> = rows.iter().map(|row| (row[0] / 250_000.0) as u16 * 11).collect();
    let target = Target::Classes {
        classes: &classes,
        values: &values,
    };
    let forest = Forest::train(&Training::new(&rows, &members), target, SETTINGS);
    for (value, class) in [(120_000.0, 0), (370_000.0, 11), (620_000.0, 22), (880_000.0, 33)] {
        let mut row = rows[5];
        row[0] = value;
        assert_eq!(forest.class(&row, &classes), class);
    }
}

#[test]
fn replaced_samples_take_over() {
    let (rows, members) = (rows(200), slots(200));
    let mut values: Vec<f64> = vec![1.0; 200];
    let mut forest = Forest::train(&Training::new(&rows, &members), Target::Values(&values), SETTINGS);
    for slot in 0..200 {
        values[slot] = 5.0;
        forest.replace(slot as u16, Some(&rows[slot]), &rows[(slot + 50) % 200]);
    }
    assert!((forest.mean(&rows[0], &values) - 5.0).abs() < 1e-9);
}

#[test]
fn sample_without_neighbours_is_forgotten() {
    let rows = vec![[0.0; 5], [1.0, 0.0, 0.0, 0.0, 0.0]];
    let members = [0, 1];
    let forest = Forest::train(&Training::new(&rows, &members), Target::Values(&[0.0, 1.0]), SETTINGS);
    let mut emptied = forest.clone();
    emptied.replace(0, Some(&rows[0]), &rows[1]);
    emptied.replace(1, Some(&rows[1]), &rows[1]);
    let mut weights = [0.0; 2];
    emptied.weigh(&rows[0], &mut weights);
    assert!(weights.iter().all(|weight| weight.is_finite() && *weight >= 0.0));
}

fn any_row() -> impl Strategy<Value = Row> {
    prop::array::uniform5(prop_oneof![
        Just(0.0),
        Just(f32::MAX),
        Just(f32::MIN),
        0.0..9f32,
        any::<u16>().prop_map(f32::from)
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn weights_sum_to_one_and_repeat(
        samples in prop::collection::vec((any_row(), 0u16..5, -1e9..1e18f64), 1..80),
        asked in any_row(),
        min_leaf in 0usize..8,
        seed in any::<u64>(),
    ) {
        let rows: Vec<Row> = samples.iter().map(|sample| sample.0).collect();
        let classes: Vec<u16> = samples.iter().map(|sample| sample.1).collect();
        let values: Vec<f64> = samples.iter().map(|sample| sample.2).collect();
        let members = slots(rows.len());
        let training = Training::new(&rows, &members);
        let settings = Settings { trees: 5, min_leaf, features_per_split: 0, seed };
        for target in [Target::Values(&values), Target::Classes { classes: &classes, values: &values }] {
            let mut forest = Forest::train(&training, target, settings);
            let mut weights = vec![0.0; rows.len()];
            forest.weigh(&asked, &mut weights);
            prop_assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-3);
            let mut again = vec![0.0; rows.len()];
            Forest::train(&training, target, settings).weigh(&asked, &mut again);
            prop_assert_eq!(&weights, &again);
            for (slot, row) in rows.iter().enumerate() {
                forest.replace(slot as u16, Some(row), &asked);
            }
            forest.weigh(&asked, &mut weights);
            prop_assert!(weights.iter().all(|weight| weight.is_finite()));
        }
    }
}
