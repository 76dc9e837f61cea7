//! Forests against those of scikit-learn, on the same samples. `scikit_learn.py` made the samples and its scores.

use dayfly_harvest::Features;
use dayfly_harvest::forest::{Forest, Row, Settings, Target, Training, row};
use dayfly_harvest::profile::{r2, settings};
use serde::Deserialize;

#[derive(Deserialize)]
struct Fixture {
    train: usize,
    functions: Vec<Function>,
}

#[derive(Deserialize)]
struct Function {
    name: String,
    scores: Scores,
    /// Bytes, size, thousandths of a core and their class, MiB and their class, milliseconds.
    rows: Vec<[u64; 7]>,
}

#[derive(Deserialize)]
struct Scores {
    /// With as many trees, and samples in a leaf, as profiles have.
    profile: [f64; 3],
    /// With the defaults: 100 trees, and leaves of one sample.
    default: [f64; 3],
}

const MAX_ACCURACY_BELOW: f64 = 0.02;
const MAX_R2_BELOW: f64 = 0.03;

fn fixture() -> Fixture {
    serde_json::from_str(include_str!("scikit_learn.json")).expect("valid fixture")
}

fn column(function: &Function, column: usize) -> Vec<f64> {
    function.rows.iter().map(|row| row[column] as f64).collect()
}

/// Accuracy of both classes and R2 of the duration on the samples behind the first `train`, as means over five seeds.
fn scores(function: &Function, train: usize, settings: impl Fn(u64) -> Settings) -> [f64; 3] {
    let rows: Vec<Row> = function.rows.iter().map(features).collect();
    let members: Vec<u16> = (0..train as u16).collect();
    let training = Training::new(&rows, &members);
    let mut sums = [0.0; 3];
    for seed in 0..5 {
        let settings = settings(seed * 10);
        for (which, values) in [2, 4].into_iter().enumerate() {
            let classes: Vec<u16> = function.rows.iter().map(|row| row[values + 1] as u16).collect();
            let values = column(function, values);
            let target = Target::Classes {
                classes: &classes,
                values: &values,
            };
            let forest = Forest::train(&training, target, settings);
            let right = (train..rows.len()).filter(|slot| forest.class(&rows[*slot], &classes) == classes[*slot]);
            sums[which] += right.count() as f64 / (rows.len() - train) as f64;
        }
        let durations = column(function, 6);
        let forest = Forest::train(&training, Target::Values(&durations), settings);
        let pairs = (train..rows.len()).map(|slot| (durations[slot], forest.mean(&rows[slot], &durations)));
        sums[2] += r2(&pairs.collect::<Vec<_>>());
    }
    sums.map(|sum| sum / 5.0)
}

fn features(row_of_fixture: &[u64; 7]) -> Row {
    row(&Features {
        argument_bytes: row_of_fixture[0],
        sizes: [row_of_fixture[1] as f64, 0.0, 0.0, 0.0],
    })
}

/// Asserts something of each score, with the most by which that score may differ.
fn assert_all(function: &Function, is_near: impl Fn(usize, f64) -> bool) {
    let scores = [
        ("CPU class", MAX_ACCURACY_BELOW),
        ("memory class", MAX_ACCURACY_BELOW),
        ("duration", MAX_R2_BELOW),
    ];
    for (score, (name, most)) in scores.into_iter().enumerate() {
        assert!(is_near(score, most), "{name} of {}", function.name);
    }
}

#[test]
fn forest_scores_as_scikit_learn_with_equal_settings() {
    let fixture = fixture();
    for function in &fixture.functions {
        let (ours, theirs) = (scores(function, fixture.train, settings), function.scores.profile);
        println!("{:10} {ours:.4?} scikit-learn {theirs:.4?}", function.name);
        assert_all(function, |score, most| (ours[score] - theirs[score]).abs() <= most);
    }
}

/// The first five functions are those whose demand depends on sizes: the classes of the others can only be guessed.
#[test]
fn profile_forest_scores_like_scikit_learn() {
    let fixture = fixture();
    for function in &fixture.functions[..5] {
        let (ours, theirs) = (scores(function, fixture.train, settings), function.scores.default);
        println!("{:10} {ours:.4?} scikit-learn's defaults {theirs:.4?}", function.name);
        assert_all(function, |score, most| ours[score] >= theirs[score] - most);
    }
}

#[test]
fn hundred_unpruned_trees_score_as_scikit_learn_defaults() {
    let fixture = fixture();
    let unpruned = |seed| Settings {
        trees: 100,
        min_leaf: 1,
        ..settings(seed)
    };
    for function in &fixture.functions {
        let (ours, theirs) = (scores(function, fixture.train, unpruned), function.scores.default);
        println!("{:10} {ours:.4?} scikit-learn's defaults {theirs:.4?}", function.name);
        assert_all(function, |score, most| (ours[score] - theirs[score]).abs() <= most);
    }
}
