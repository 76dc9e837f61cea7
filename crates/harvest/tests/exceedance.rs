//! How often calls exceed what was predicted for them, on the functions of `scikit_learn.json`.

use dayfly_harvest::{Amount, Demand, Features, FunctionId, Models, Options, Predictor, Profiles, Sample};
use serde::Deserialize;

#[derive(Deserialize)]
struct Fixture {
    functions: Vec<Function>,
}

#[derive(Deserialize)]
struct Function {
    name: String,
    rows: Vec<[u64; 7]>,
}

const FUNCTION: FunctionId = FunctionId(1);

fn sample(row: &[u64; 7]) -> Sample {
    Sample {
        features: Features {
            argument_bytes: row[0],
            sizes: [row[1] as f64, 0.0, 0.0, 0.0],
        },
        allocation: Amount::new(64_000, 1 << 40),
        peak: Amount::new(row[2], row[4] << 20),
        duration_us: row[6] * 1_000,
        cpu_is_bound: false,
        memory_is_bound: false,
    }
}

/// Shares of calls behind the first `learned` that exceed the high prediction of either resource, and that end before
/// the short one.
fn exceeded(function: &Function, models: Models, learned: usize) -> [f64; 3] {
    let mut samples: Vec<_> = function.rows.iter().map(sample).collect();
    let (mut counts, mut predicted) = ([0; 3], 0);
    for _ in 0..4 {
        samples.rotate_left(135);
        let mut profiles = Profiles::new(Options {
            models,
            ..Options::default()
        });
        profiles.import(FUNCTION, &samples[..learned]);
        for sample in &samples[learned..] {
            if let Demand::Known(prediction) = profiles.predict(FUNCTION, &sample.features) {
                predicted += 1;
                counts[0] += usize::from(sample.peak.milli_cores > prediction.high.milli_cores);
                counts[1] += usize::from(sample.peak.memory_bytes > prediction.high.memory_bytes);
                counts[2] += usize::from(sample.duration_us < prediction.short_us);
            }
        }
    }
    assert!(predicted > 1_000, "{} of {}", predicted, function.name);
    counts.map(|count| count as f64 / f64::from(predicted))
}

#[test]
fn high_predictions_are_rarely_exceeded() {
    let fixture: Fixture = serde_json::from_str(include_str!("scikit_learn.json")).expect("valid fixture");
    for learned in [21, 80, 200] {
        for function in &fixture.functions {
            let shares = exceeded(function, Models::Best, learned);
            println!("{:10} after {learned}: {shares:.3?}", function.name);
            // 5 of 100 are meant; what was learned from is drawn by chance.
            assert!(shares.iter().all(|share| *share <= 0.1), "{} {shares:?}", function.name);
        }
    }
}
