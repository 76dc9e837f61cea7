//! Prints how long a profile of 512 samples with five sizes takes to predict, to learn a sample and to train, and how
//! much memory it has. Run it with `cargo run --release -p dayfly-harvest --example profile_timings`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use dayfly_harvest::random::mix;
use dayfly_harvest::{Amount, Features, FunctionId, Models, Options, Predictor, Profiles, Sample};

const FUNCTION: FunctionId = FunctionId(1);
const SAMPLES: u64 = 512;

/// A call whose demand depends on all five sizes.
fn sample(number: u64) -> Sample {
    let size = |which: u64| (mix(number * 5 + which) % 100_000) as f64;
    let sizes = [size(1), size(2), size(3), size(4)];
    let argument_bytes = size(0) as u64;
    let sum = sizes.iter().sum::<f64>() + argument_bytes as f64;
    Sample {
        features: Features { argument_bytes, sizes },
        allocation: Amount::new(64_000, 64 << 30),
        peak: Amount::new((sum / 60.0) as u64 + 300, (sum * 4_000.0) as u64),
        duration_us: (sum * sizes[0] / 5_000.0) as u64,
        cpu_is_bound: false,
        memory_is_bound: false,
    }
}

fn quartiles(name: &str, times: impl IntoIterator<Item = Duration>) {
    let mut times: Vec<_> = times.into_iter().collect();
    times.sort_unstable();
    let at = |share: usize| times[(times.len() - 1) * share / 100];
    println!(
        "{name:8} p50 {:>10.1?}  p99 {:>10.1?}  ({} times)",
        at(50),
        at(99),
        times.len()
    );
}

fn timed(action: impl FnOnce()) -> Duration {
    let start = Instant::now();
    action();
    start.elapsed()
}

fn main() {
    let samples: Vec<_> = (0..SAMPLES).map(sample).collect();
    for models in [Models::Best, Models::Histogram] {
        println!("{models:?}");
        let mut profiles = Profiles::new(Options {
            models,
            ..Options::default()
        });
        quartiles("train", (0..40).map(|_| timed(|| profiles.import(FUNCTION, &samples))));
        quartiles(
            "predict",
            (0..4_000).map(|number| {
                let features = sample(SAMPLES + number).features;
                timed(|| {
                    black_box(profiles.predict(FUNCTION, &features));
                })
            }),
        );
        quartiles(
            "update",
            (0..200).map(|number| timed(|| profiles.learn(FUNCTION, sample(2 * SAMPLES + number)))),
        );
        println!("memory   {} KiB", profiles.heap_bytes(FUNCTION).div_ceil(1_024));
    }
}
