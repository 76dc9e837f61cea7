use proptest::prelude::*;

use super::*;

const FUNCTION: FunctionId = FunctionId(7);

fn sample(milli_cores: u64, memory_bytes: u64, duration_us: u64) -> Sample {
    Sample {
        features: Features::default(),
        allocation: Amount::new(8_000, 1 << 30),
        peak: Amount::new(milli_cores, memory_bytes),
        duration_us,
        cpu_is_bound: false,
        memory_is_bound: false,
    }
}

fn profiles(models: Models) -> Profiles {
    Profiles::new(Options {
        models,
        ..Options::default()
    })
}

fn known(profiles: &mut Profiles, features: &Features) -> crate::demand::Prediction {
    match profiles.predict(FUNCTION, features) {
        Demand::Known(prediction) => prediction,
        other => panic!("{other:?}"),
    }
}

#[test]
fn first_call_is_unknown_then_twenty_are_profiled() {
    let mut profiles = Profiles::default();
    assert_eq!(profiles.predict(FUNCTION, &Features::default()), Demand::Unknown);
    assert_eq!(profiles.predict(FUNCTION, &Features::default()), Demand::Profiling);
    for _ in 0..20 {
        profiles.learn(FUNCTION, sample(500, 1 << 20, 1_000_000));
        assert_eq!(profiles.predict(FUNCTION, &Features::default()), Demand::Profiling);
    }
    profiles.learn(FUNCTION, sample(500, 1 << 20, 1_000_000));
    let prediction = known(&mut profiles, &Features::default());
    assert_eq!(prediction.high, Amount::new(500, 1 << 20));
    assert_eq!((prediction.short_us, prediction.median_us), (1_000_000, 1_000_000));
}

#[test]
fn bound_sample_doubles_demand_until_free() {
    let mut profiles = profiles(Models::Histogram);
    for _ in 0..40 {
        profiles.learn(FUNCTION, sample(1_000, 1 << 20, 1_000_000));
    }
    let mut bound = sample(1_000, 1 << 20, 1_000_000);
    bound.cpu_is_bound = true;
    profiles.learn(FUNCTION, bound);
    let prediction = known(&mut profiles, &Features::default());
    assert_eq!(prediction.median.milli_cores, 2_000);
    assert!(prediction.high.milli_cores >= 2_000);
    assert_eq!(prediction.median.memory_bytes, 1 << 20);
    profiles.learn(FUNCTION, sample(1_200, 1 << 20, 1_000_000));
    assert_eq!(known(&mut profiles, &Features::default()).median.milli_cores, 1_000);
}

#[test]
fn maximum_of_last_five_is_predicted() {
    let mut profiles = profiles(Models::MaxOfLast(5));
    assert_eq!(profiles.predict(FUNCTION, &Features::default()), Demand::Unknown);
    for used in [9_000, 100, 300, 200, 500, 400] {
        profiles.learn(FUNCTION, sample(used, used, used));
    }
    let prediction = known(&mut profiles, &Features::default());
    assert_eq!(
        (prediction.high, prediction.median),
        (Amount::new(500, 500), Amount::new(500, 500))
    );
    assert_eq!((prediction.short_us, prediction.median_us), (500, 500));
}

#[test]
fn exported_samples_predict_the_same_elsewhere() {
    let mut here = Profiles::default();
    for step in 0..700u64 {
        here.learn(FUNCTION, sample(step * 7 % 900, step * 31 % 1_000, step * 13 % 777));
    }
    let samples = here.export(FUNCTION);
    assert_eq!(samples.len(), MAX_SAMPLES);
    let mut there = Profiles::default();
    there.import(FUNCTION, &samples);
    assert_eq!(there.export(FUNCTION), samples);
    assert!(matches!(
        there.predict(FUNCTION, &Features::default()),
        Demand::Known(_)
    ));
}

#[test]
fn function_used_longest_ago_is_forgotten() {
    let mut profiles = Profiles::new(Options {
        max_functions: 2,
        ..Options::default()
    });
    for id in [1, 2, 1, 3] {
        profiles.learn(FunctionId(id), sample(1, 1, 1));
    }
    assert!(profiles.functions().eq([FunctionId(1), FunctionId(3)]));
}

fn any_units() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(1),
        Just(u64::MAX),
        Just(1_000_000_000_000_000_000),
        0u64..10_000,
        any::<u64>()
    ]
}

prop_compose! {
    fn any_features()(bytes in any_units(), sizes in prop::array::uniform4(prop_oneof![
        Just(f64::NAN), Just(f64::INFINITY), Just(-1e300), Just(0.0), 0.0..1e6f64, any::<f64>(),
    ])) -> Features {
        Features { argument_bytes: bytes, sizes }
    }
}

prop_compose! {
    fn any_sample()(
        features in any_features(),
        allocation in (any_units(), any_units()),
        peak in (any_units(), any_units()),
        duration_us in any_units(),
        bound in any::<(bool, bool)>(),
    ) -> Sample {
        Sample {
            features,
            allocation: Amount::new(allocation.0, allocation.1),
            peak: Amount::new(peak.0, peak.1),
            duration_us,
            cpu_is_bound: bound.0,
            memory_is_bound: bound.1,
        }
    }
}

fn any_models() -> impl Strategy<Value = Models> {
    prop_oneof![
        Just(Models::Best),
        Just(Models::Forest),
        Just(Models::Histogram),
        Just(Models::MaxOfLast(0)),
        Just(Models::MaxOfLast(5)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn predictions_are_sane_whatever_the_samples(
        samples in prop::collection::vec(any_sample(), 0..120),
        features in any_features(),
        models in any_models(),
    ) {
        let options = Options { models, ..Options::default() };
        let max = options.max_demand;
        let mut profiles = Profiles::new(options);
        for sample in samples {
            profiles.learn(FUNCTION, sample);
            if let Demand::Known(prediction) = profiles.predict(FUNCTION, &features) {
                prop_assert!(max.covers(&prediction.high));
                prop_assert!(prediction.high.covers(&prediction.median));
                prop_assert!(prediction.short_us <= prediction.median_us);
                prop_assert!(prediction.median_us <= MAX_DURATION_US);
            }
        }
    }
}
