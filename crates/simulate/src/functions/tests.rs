use proptest::prelude::*;

use super::*;
use crate::call::MAX_CORE_US;

#[test]
fn committed_measurements_are_read() {
    let functions = Functions::measured();
    assert_eq!(functions.list().len(), 10);
    assert_eq!(
        functions.list().iter().filter(|function| function.is_related()).count(),
        5
    );
}

#[test]
fn configured_memory_covers_every_measured_run() {
    for function in Functions::measured().list() {
        let (configured, peak) = (function.configured(), function.peak());
        assert!(configured.memory_bytes >= peak.memory_bytes, "{}", function.name());
        assert!(configured.memory_bytes <= 1 << 30, "{}", function.name());
        assert!((1000..=8000).contains(&configured.milli_cores), "{}", function.name());
        assert!(peak.milli_cores <= 8000, "{}", function.name());
    }
}

#[test]
fn some_functions_are_over_and_some_under_provisioned() {
    let (mut over, mut under) = (0, 0);
    for function in Functions::measured().list() {
        let (configured, peak) = (function.configured().milli_cores, function.peak().milli_cores);
        over += usize::from(peak < configured);
        under += usize::from(peak > configured);
    }
    assert!(over > 0 && under > 0, "{over} over, {under} under");
}

#[test]
fn related_demand_grows_with_the_size() {
    let work = |function: &Function, size: f64| -> u64 {
        let phases = function.draw(size, &mut Random::new(1));
        phases.iter().map(|phase| phase.core_us).sum()
    };
    for function in Functions::measured()
        .list()
        .iter()
        .filter(|function| function.is_related())
    {
        let (least, most) = function.sizes();
        let (low, high) = (work(function, least), work(function, most));
        assert!(high > 5 * low, "{}: {low} to {high} us", function.name());
        assert_eq!(work(function, most), work(function, 1e18), "{}", function.name());
        assert_eq!(work(function, least), work(function, f64::NAN), "{}", function.name());
    }
}

#[test]
fn unrelated_demand_ignores_the_size() {
    for function in Functions::measured()
        .list()
        .iter()
        .filter(|function| !function.is_related())
    {
        let draw = |size, seed| function.draw(size, &mut Random::new(seed));
        assert!(
            (0..50).all(|seed| draw(1.0, seed) == draw(1e9, seed)),
            "{}",
            function.name()
        );
        assert!(
            (0..50).any(|seed| draw(1.0, seed) != draw(1.0, 50)),
            "{}",
            function.name()
        );
    }
}

#[test]
fn malformed_measurements_are_refused() {
    let run = r#"{"phases":[{"core_us":1,"milli_cores":1000,"memory_bytes":1}]}"#;
    let text = |points: &str| {
        format!(
            r#"{{"functions":[{{"name":"f","related":true,"configured_memory_bytes":1,"configured_milli_cores":1,"points":[{points}]}}]}}"#
        )
    };
    let point = |size: &str, runs: &str| format!(r#"{{"size":{size},"argument_bytes":1,"runs":[{runs}]}}"#);
    assert!(Functions::from_json(&text(&point("1", run))).is_ok());
    for wrong in [
        text(""),
        text(&point("1", "")),
        text(&point("-1", run)),
        text(&point("1", &format!(r#"{run},{{"phases":[]}}"#))),
        text(&point("1", &run.replace("1000", "0"))),
        r#"{"functions":[]}"#.to_owned(),
        "{".to_owned(),
    ] {
        assert!(Functions::from_json(&wrong).is_err(), "{wrong}");
    }
}

proptest! {
    #[test]
    fn any_size_and_seed_give_bounded_phases(size in any::<f64>(), seed: u64) {
        for function in Functions::measured().list() {
            let phases = function.draw(size, &mut Random::new(seed));
            prop_assert!(!phases.is_empty());
            prop_assert!(phases.iter().all(|phase| phase.core_us < MAX_CORE_US && phase.milli_cores <= 8000));
            let memory = phases.iter().map(|phase| phase.memory_bytes).max().unwrap_or(0);
            prop_assert!(memory <= function.configured().memory_bytes, "{}: {memory}", function.name());
            let _ = function.features(size);
        }
    }
}
