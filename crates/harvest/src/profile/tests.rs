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

/// A call whose demand is that of its size, or of chance.
fn sized(size: u64, demand: u64) -> Sample {
    let mut sample = sample(200 + 30 * demand, (100 + demand) << 20, 1_000 * demand);
    sample.features.sizes[0] = size as f64;
    sample
}

fn scattered(number: u64) -> u64 {
    1 + number * 37 % 101
}

fn sizes(size: f64) -> Features {
    Features {
        sizes: [size, 0.0, 0.0, 0.0],
        ..Features::default()
    }
}

#[test]
fn forest_predicts_functions_that_sizes_tell() {
    let mut profiles = Profiles::default();
    for number in 0..100 {
        profiles.learn(FUNCTION, sized(scattered(number), scattered(number)));
    }
    let (small, large) = (known(&mut profiles, &sizes(10.0)), known(&mut profiles, &sizes(90.0)));
    assert!((500..1_000).contains(&small.high.milli_cores), "{small:?}");
    assert!((2_500..3_600).contains(&large.median.milli_cores), "{large:?}");
    assert!(large.short_us > 4 * small.median_us, "{small:?} {large:?}");
    let report = profiles
        .report(FUNCTION, &lending(Amount::new(8_000, 1 << 30)))
        .unwrap();
    assert_eq!(report.model, ChosenModel::Forest);
    let scores = report.scores.unwrap();
    assert!(
        scores.forest_loss < scores.histogram_loss / 2.0 && scores.duration_r2 > 0.9,
        "{scores:?}"
    );
    assert!(
        report.reason.contains("predicted from their sizes"),
        "{}",
        report.reason
    );
    assert!(report.lends.milli_cores > 4_000, "{report:?}");
}

#[test]
fn histogram_predicts_functions_that_sizes_do_not_tell() {
    let mut profiles = Profiles::default();
    let mut random = crate::random::Random::new(11);
    for number in 0..200 {
        profiles.learn(FUNCTION, sized(scattered(number), 1 + random.below(100)));
    }
    let report = profiles
        .report(FUNCTION, &lending(Amount::new(2_000, 128 << 20)))
        .unwrap();
    assert_eq!(report.model, ChosenModel::Histogram);
    assert!(!report.scores.unwrap().is_size_related);
    assert_eq!(report.lends, Amount::ZERO);
    assert!(
        report
            .reason
            .starts_with("It lends nothing, because its calls need up to"),
        "{}",
        report.reason
    );
}

#[test]
fn unseen_size_is_profiled() {
    let mut profiles = profiles(Models::Forest);
    for number in 0..100 {
        profiles.learn(FUNCTION, sized(scattered(number), scattered(number)));
    }
    assert_eq!(profiles.predict(FUNCTION, &sizes(1_000.0)), Demand::Profiling);
    profiles.learn(FUNCTION, sized(1_000, 1_000));
    assert!(matches!(profiles.predict(FUNCTION, &sizes(1_000.0)), Demand::Known(_)));
}

#[test]
fn bound_samples_double_demand_of_forest() {
    let mut profiles = profiles(Models::Forest);
    for number in 0..200 {
        let mut sample = sized(scattered(number), scattered(number));
        if sample.peak.milli_cores > 2_000 {
            sample.peak.milli_cores = 2_000;
            sample.cpu_is_bound = true;
        }
        profiles.learn(FUNCTION, sample);
    }
    profiles.learn(FUNCTION, sized(1, 1));
    let (small, large) = (known(&mut profiles, &sizes(10.0)), known(&mut profiles, &sizes(90.0)));
    assert!(small.median.milli_cores < 1_000, "{small:?}");
    assert_eq!(large.median.milli_cores, 4_000);
}

#[test]
fn changed_function_is_learned_anew() {
    for models in [Models::Best, Models::Forest, Models::Histogram] {
        let mut profiles = profiles(models);
        let learn = |profiles: &mut Profiles, count, factor| {
            for number in 0..count {
                let size = scattered(number);
                profiles.learn(FUNCTION, sized(size, size * factor));
            }
        };
        learn(&mut profiles, 400, 4);
        learn(&mut profiles, 70, 1);
        let fallen = known(&mut profiles, &sizes(50.0));
        // A histogram of so wide a spread notices only a rise, and lends less until then.
        assert!(
            models == Models::Histogram || fallen.high.milli_cores < 4_500,
            "{models:?} {fallen:?}"
        );
        learn(&mut profiles, 40, 6);
        let risen = known(&mut profiles, &sizes(50.0));
        assert!(risen.high.milli_cores >= 9_200, "{models:?} {risen:?}");
    }
}

#[test]
fn outlier_is_no_change_of_behaviour() {
    let mut profiles = Profiles::default();
    for number in 0..200 {
        profiles.learn(FUNCTION, sized(scattered(number), scattered(number)));
    }
    profiles.learn(FUNCTION, sample(u64::MAX, u64::MAX, u64::MAX));
    assert_eq!(profiles.export(FUNCTION).len(), 201);
}

#[test]
fn full_profile_takes_less_than_a_mebibyte() {
    let mut profiles = profiles(Models::Forest);
    let mut random = crate::random::Random::new(5);
    let mut number = || random.below(1_000_000);
    let samples: Vec<_> = (0..MAX_SAMPLES)
        .map(|_| {
            let mut sample = sample(number(), number() << 10, number());
            sample.features.argument_bytes = number();
            sample.features.sizes = std::array::from_fn(|_| number() as f64);
            sample
        })
        .collect();
    profiles.import(FUNCTION, &samples);
    // 32 running calls of different functions share 32 MiB with the rest of harvesting.
    let bytes = profiles.heap_bytes(FUNCTION);
    assert!((100_000..600_000).contains(&bytes), "{bytes}");
}

#[test]
fn profiles_stay_within_their_bytes() {
    let mut profiles = Profiles::new(Options {
        max_bytes: 500_000,
        ..Options::default()
    });
    for number in 0..100 {
        for id in 0..10 {
            profiles.learn(FunctionId(id), sized(scattered(number), scattered(number)));
        }
        let sum: usize = profiles.functions().map(|id| profiles.heap_bytes(id)).sum();
        assert_eq!(profiles.bytes, sum);
        assert!(sum <= 500_000, "{sum}");
    }
    let report = |id| profiles.report(FunctionId(id), &lending(Amount::ZERO));
    let models: Vec<_> = (0..10).map(|id| report(id).map(|report| report.model)).collect();
    assert!(models.contains(&Some(ChosenModel::Forest)), "{models:?}");
    assert!(models.contains(&Some(ChosenModel::Histogram)), "{models:?}");
    assert!(models.iter().all(Option::is_some), "{models:?}");
}

fn lending(owned: Amount) -> Lending {
    Lending {
        owned,
        rules: crate::Rules::default(),
        is_on: true,
        is_permitted: true,
    }
}

#[test]
fn short_calls_are_reported_as_left_alone() {
    let mut profiles = Profiles::default();
    for _ in 0..30 {
        profiles.learn(FUNCTION, sample(500, 100 << 20, 5_000));
    }
    let report = profiles
        .report(FUNCTION, &lending(Amount::new(2_000, 1 << 30)))
        .unwrap();
    assert_eq!(report.lends, Amount::ZERO);
    assert!(report.reason.contains("less than 20 ms"), "{}", report.reason);
}

#[test]
fn watching_node_reports_what_would_be_lent() {
    let mut profiles = Profiles::default();
    for _ in 0..30 {
        profiles.learn(FUNCTION, sample(0, 1, 1_000_000));
    }
    let owned = Amount::new(2_000, 1 << 30);
    let watching = Lending {
        is_on: false,
        ..lending(owned)
    };
    let report = profiles.report(FUNCTION, &watching).unwrap();
    assert!(
        report.reason.starts_with("It would lend about 1.90 cores"),
        "{}",
        report.reason
    );
    // The floor stays.
    assert_eq!(report.lends, owned - crate::Rules::default().floor);
}

#[test]
fn forbidden_loan_is_the_reason() {
    let mut profiles = Profiles::default();
    for _ in 0..30 {
        profiles.learn(FUNCTION, sample(100, 1 << 20, 1_000_000));
    }
    let owned = Amount::new(1_000, 1 << 30);
    assert_ne!(profiles.report(FUNCTION, &lending(owned)).unwrap().lends, Amount::ZERO);
    let forbidden = Lending {
        is_permitted: false,
        ..lending(owned)
    };
    let report = profiles.report(FUNCTION, &forbidden).unwrap();
    assert_eq!(report.lends, Amount::ZERO);
    assert!(
        report.reason.ends_with("states that its calls do not lend."),
        "{report:?}"
    );
}

#[test]
fn report_says_what_is_missing() {
    let mut profiles = Profiles::default();
    let owned = Amount::new(2_000, 1 << 30);
    assert_eq!(profiles.report(FUNCTION, &lending(owned)), None);
    profiles.predict(FUNCTION, &Features::default());
    let reason = |profiles: &Profiles| profiles.report(FUNCTION, &lending(owned)).unwrap().reason;
    assert!(reason(&profiles).contains("none of its calls has ended"));
    profiles.learn(FUNCTION, sample(1, 1, 1));
    assert!(reason(&profiles).contains("1 of 21 samples"), "{}", reason(&profiles));
    for _ in 0..30 {
        profiles.learn(FUNCTION, sample(500, 100 << 20, 1_000_000));
    }
    assert_eq!(
        reason(&profiles),
        "It lends about 1.38 cores and 899 MiB of 2.00 cores and 1024 MiB, because its last calls need at most about \
         0.50 cores and 100 MiB, whatever their sizes are."
    );
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

fn on_request() -> Profiles {
    Profiles::new(Options {
        trains: Trains::OnRequest,
        max_functions: 3,
        ..Options::default()
    })
}

#[test]
fn training_waits_until_it_is_requested() {
    let mut profiles = on_request();
    let model = |profiles: &Profiles| profiles.functions[&FUNCTION].model(&profiles.options);
    for number in 0..40 {
        profiles.learn(FUNCTION, sized(scattered(number), scattered(number)));
    }
    assert_eq!(model(&profiles), ChosenModel::Histogram);
    assert_eq!(profiles.due(), Some(FUNCTION));
    profiles.begin_training(FUNCTION);
    assert_eq!(profiles.due(), None);
    profiles.end_training(FUNCTION);
    assert_eq!(model(&profiles), ChosenModel::Forest);
    // A training that was not due changes nothing.
    profiles.begin_training(FUNCTION);
    assert!(profiles.training(FUNCTION).is_none());
    profiles.end_training(FunctionId(9));
    assert!(profiles.functions().eq([FUNCTION]));
}

#[test]
fn change_during_training_makes_its_models_void() {
    let mut profiles = on_request();
    for number in 0..40 {
        profiles.learn(FUNCTION, sized(1 + number % 3, 1 + number % 3));
    }
    profiles.begin_training(FUNCTION);
    profiles.end_training(FUNCTION);
    while profiles.due().is_none() {
        profiles.learn(FUNCTION, sized(1, 1));
    }
    profiles.begin_training(FUNCTION);
    assert!(profiles.training(FUNCTION).is_some());
    let changed = (0..40).any(|_| {
        profiles.learn(FUNCTION, sized(1, 5_000));
        profiles.training(FUNCTION).is_none()
    });
    assert!(changed && profiles.due() == Some(FUNCTION));
    profiles.end_training(FUNCTION);
    assert!(!profiles.functions[&FUNCTION].uses_forests());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn models_do_not_depend_on_training_time(
        events in prop::collection::vec((0..100_u64, 0..24_u8, 0..4_u64), 40..400),
    ) {
        let (mut profiles, mut repeated) = (on_request(), on_request());
        let mut running = None;
        for (size, kind, function) in events {
            match (kind, running.take()) {
                (0..=20, before) => {
                    running = before;
                    let function = FunctionId(function);
                    profiles.learn(function, sized(size, size));
                    repeated.learn(function, sized(size, size));
                }
                (_, None) => {
                    prop_assert_eq!(profiles.due(), repeated.due());
                    if let Some(function) = profiles.due() {
                        profiles.begin_training(function);
                        repeated.begin_training(function);
                        // Trained at once here, and at the end of the training there.
                        let trained = profiles.training(function).map(|job| job.train());
                        running = Some((function, trained));
                    }
                }
                (_, Some((function, trained))) => {
                    profiles.end_training_with(function, trained);
                    repeated.end_training(function);
                }
            }
            for function in [FUNCTION, FunctionId(function)] {
                let features = sizes(size as f64);
                prop_assert_eq!(profiles.predict(function, &features), repeated.predict(function, &features));
                prop_assert_eq!(profiles.heap_bytes(function), repeated.heap_bytes(function));
            }
        }
    }
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
        let mut profiles = Profiles::new(options.clone());
        let mut twin = Profiles::new(options);
        for sample in samples {
            profiles.learn(FUNCTION, sample);
            twin.learn(FUNCTION, sample);
            prop_assert_eq!(twin.predict(FUNCTION, &features), profiles.predict(FUNCTION, &features));
            if let Demand::Known(prediction) = profiles.predict(FUNCTION, &features) {
                prop_assert!(max.covers(&prediction.high));
                prop_assert!(prediction.high.covers(&prediction.median));
                prop_assert!(prediction.short_us <= prediction.median_us);
                prop_assert!(prediction.median_us <= MAX_DURATION_US);
            }
        }
    }
}
