//! The objects that scripts rely on.

use dayfly_bench::busy::Noise;
use dayfly_bench::machine::Machine;
use dayfly_bench::report::{ColdReport, InvokeReport, Named, Setting, Stages};
use dayfly_bench::{Difference, Samples, Summary};
use serde_json::{Value, to_value};

fn noise() -> Noise {
    Noise {
        wall_s: 1.0,
        cores: 2,
        foreign_cores: 0.01,
        stolen_share: 0.0,
        waited_share: 0.001,
        consumers: Vec::new(),
        warning: None,
    }
}

fn named(name: &str, ns: f64) -> Named {
    Named {
        name: name.into(),
        about: "something raw".into(),
        latency: Summary::of([ns]),
        per_s: None,
        bytes_per_s: None,
        share: None,
    }
}

fn invoke(size: u64, ns: f64, raw_ns: f64) -> InvokeReport {
    let setting = Setting {
        transport: "shm".into(),
        mode: "hot".into(),
        language: "c".into(),
        size,
        depth: 16,
        workers: 1,
        sandbox: "process".into(),
    };
    let (ours, raw) = (Summary::of([ns]), named("cache_line", raw_ns));
    let difference = Difference::between(&raw.latency, &ours, &[ns - raw_ns]);
    InvokeReport::new(setting, ours, raw, difference, 12_345_678.4, noise())
}

#[test]
fn invoke_report_has_its_documented_fields() {
    let json = to_value(invoke(64, 210.0, 111.0)).unwrap();
    for path in [
        "/invoke/p50_ns",
        "/invoke/p99_ns",
        "/invoke/p999_ns",
        "/invoke/min_ns",
        "/invoke/samples",
        "/baseline/p50_ns",
        "/baseline/p99_ns",
        "/overhead_p50_ns",
        "/overhead_p99_ns",
        "/ratio_p50",
        "/invocations_per_s",
        "/size",
        "/depth",
        "/workers",
        "/machine/cores",
        "/noise/foreign_cores",
    ] {
        assert!(json.pointer(path).is_some_and(Value::is_number), "{path} in {json}");
    }
    for (path, text) in [
        ("/baseline/name", "cache_line"),
        ("/transport", "shm"),
        ("/mode", "hot"),
        ("/language", "c"),
    ] {
        assert_eq!(json.pointer(path).and_then(Value::as_str), Some(text), "{path}");
    }
    assert_eq!(json["overhead_p50_ns"], 99.0);
    assert_eq!(json["ratio_p50"], 1.892);
    assert!(
        json.get("bytes_per_s").is_none() && json["noise"].get("warning").is_none(),
        "{json}"
    );
}

#[test]
fn large_payloads_report_bandwidth() {
    let json = to_value(invoke(1 << 20, 100_000.0, 90_000.0)).unwrap();
    assert_eq!(json["bytes_per_s"], 20_971_520_000.0);
    assert_eq!(json["share_of_baseline_bandwidth"], 0.9);
}

#[test]
fn table_shows_both_rows_difference_and_warning() {
    let mut report = invoke(64, 210.0, 111.0);
    report.noise.warning = Some("unreliable figures: a neighbour compiled".into());
    let text = report.to_string();
    for part in [
        "hot shm, c, 64 B in and out",
        "210 ns",
        "111 ns",
        "+99.0 ns",
        "1.89x",
        "12.3 M/s",
        "a neighbour",
    ] {
        assert!(text.contains(part), "`{part}` in\n{text}");
    }
}

#[test]
fn cold_report_lists_stages_in_order() {
    let mut stages = Stages::default();
    let mut samples = Samples::default();
    samples.push_ns(1_500_000.0);
    for stage in ["lease", "executor", "channel", "load", "first_call"] {
        stages.add(stage, &samples);
    }
    let report = ColdReport {
        total: Summary::of([4_200_000.0]).into(),
        stages,
        baseline: named("process_spawn", 700_000.0),
        overhead_p50_ms: 3.5,
        language: "c".into(),
        sandbox: "process".into(),
        starts_per_s: None,
        pool: 0,
        after_idle: None,
        machine: Machine::this(),
        noise: noise(),
    };
    let text = serde_json::to_string(&report).unwrap();
    let at = |name: &str| {
        text.find(&format!("\"{name}\":"))
            .unwrap_or_else(|| panic!("{name} in {text}"))
    };
    assert!(
        at("lease") < at("executor") && at("executor") < at("channel") && at("channel") < at("load"),
        "{text}"
    );
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&json["p50_ms"], &json["stages"]["load"]["p50_ms"]),
        (&4.2.into(), &1.5.into())
    );
    assert!(report.to_string().contains("4.20 ms"), "{report}");
}
