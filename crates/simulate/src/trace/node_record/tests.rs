use dayfly_harvest::engine::Mode;
use dayfly_harvest::{Rules, Trains};
use proptest::prelude::*;

use super::*;
use crate::cluster::{Options, simulate};
use crate::functions::Functions;
use crate::generate::Generator;
use crate::record::Record as CallRecord;

const MIB: u64 = 1 << 20;

fn text_of(entries: &[Entry]) -> Vec<u8> {
    let rules = Rules::default();
    let mut lines = vec![
        serde_json::to_string(&Header {
            rules,
            trains: Trains::OnRequest,
        })
        .unwrap(),
    ];
    lines.extend(entries.iter().map(|entry| serde_json::to_string(entry).unwrap()));
    (lines.join("\n") + "\n").into_bytes()
}

fn read_bytes(bytes: &[u8]) -> Result<Trace, TraceError> {
    let file = NamedText {
        name: "harvest.jsonl",
        bytes,
    };
    Trace::read(&[file], Functions::measured(), 1)
}

fn entry(now_us: u64, event: Event) -> Entry {
    let actions = Vec::new();
    Entry { now_us, event, actions }
}

fn begin(now_us: u64, call: u64, milli_cores: u64) -> Entry {
    entry(
        now_us,
        Event::Begin(Begin {
            call: CallId(call),
            tenant: dayfly_harvest::TenantId(0),
            function: FunctionId(7),
            features: Default::default(),
            owned: Amount::new(milli_cores, 64 * MIB),
            lends: true,
            borrows_cpu: true,
            borrows_memory: false,
            group: None,
        }),
    )
}

fn usage(now_us: u64, call: u64, milli_cores: u64) -> Entry {
    entry(
        now_us,
        Event::Usage {
            call: CallId(call),
            milli_cores,
            memory_bytes: MIB,
            waiting_ppm: 0,
        },
    )
}

fn end(now_us: u64, call: u64, outcome: Outcome) -> Entry {
    let call = CallId(call);
    entry(now_us, Event::End { call, outcome })
}

#[test]
fn phases_follow_what_a_call_used() {
    let shared = Amount::new(4_000, 1 << 30);
    let mut entries = vec![
        entry(0, Event::Capacity { shared }),
        entry(0, Event::Mode { mode: Mode::On }),
        begin(1_000_000, 1, 1_000),
    ];
    // It waits for a second, computes for a second with all that it owns, and waits again.
    for window in 1..=30 {
        let used = if (11..=20).contains(&window) { 1_000 } else { 0 };
        entries.push(usage(1_000_000 + window * 100_000, 1, used));
    }
    entries.push(end(4_000_000, 1, Outcome::Returned));
    // Another call of this function had borrowed two cores, and was killed.
    entries.push(begin(4_000_000, 2, 3_000));
    entries.push(usage(4_100_000, 2, 3_000));
    entries.push(end(4_200_000, 2, Outcome::Aborted));
    let trace = read_bytes(&text_of(&entries)).unwrap();
    let [call] = trace.calls() else {
        panic!("{:?}", trace.calls())
    };
    let phases: Vec<_> = call
        .phases
        .iter()
        .map(|phase| (phase.core_us, phase.milli_cores))
        .collect();
    assert_eq!(phases, [(1_000, 1), (1_000_000, 3_000), (1_000, 1)]);
    assert_eq!(call.duration_us(1_000), 3_000_000, "as on the node");
    let recorded = trace.recorded().unwrap();
    assert_eq!((recorded.calls, recorded.p99_s, recorded.completion_s), (1, 3.0, 3.0));
    assert_eq!(recorded.capacity, shared);
}

#[test]
fn recorded_calls_simulate_as_they_ran() {
    let seconds = |records: &[CallRecord]| {
        let mut responses: Vec<u64> = records
            .iter()
            .map(|record| record.ended_us - record.started_us)
            .collect();
        responses.sort_unstable();
        let last = records.iter().map(|record| record.ended_us).max().unwrap();
        let share = |share| crate::report::percentile(&responses, share) as f64 / 1e6;
        [share(0.5), share(0.99), last as f64 / 1e6]
    };
    for seed in 1..=3 {
        let options = Options {
            cold_start_us: 0,
            seed,
            ..Options::default()
        };
        let calls = Generator::Single(crate::generate::Mix::Hybrid).generate(Functions::measured(), seed);
        let recording = Options {
            logs: true,
            ..options.clone()
        };
        let ran = simulate(calls.calls(), &[], &recording, &mut || 0).unwrap();
        let trace = read_bytes(&text_of(&ran.logs[0])).unwrap();
        let again = simulate(trace.calls(), &[], &options, &mut || 0).unwrap();
        for (now, before) in seconds(&again.records).into_iter().zip(seconds(&ran.records)) {
            assert!(
                (now / before - 1.0).abs() < 0.1,
                "seed {seed}: {now} s, recorded {before} s"
            );
        }
    }
}

#[test]
fn line_that_is_no_entry_is_named() {
    let mut text = text_of(&[begin(0, 1, 1_000)]);
    text.extend_from_slice(b"{\"now_us\":5}\n");
    let error = read_bytes(&text).unwrap_err();
    assert_eq!(error.line(), 3);
    assert!(error.to_string().starts_with("harvest.jsonl:3:12: "), "{error}");
    assert_eq!(read_bytes(&text_of(&[])).unwrap_err().problem(), &Problem::Empty);
}

fn any_event() -> impl Strategy<Value = Event> {
    let number = || prop_oneof![0..3_u64, any::<u64>()];
    prop_oneof![
        (0..4_u64, number()).prop_map(|(call, milli_cores)| begin(0, call, milli_cores).event),
        (0..4_u64, number(), number(), any::<u32>()).prop_map(|(call, milli_cores, memory_bytes, waiting_ppm)| {
            let call = CallId(call);
            Event::Usage {
                call,
                milli_cores,
                memory_bytes,
                waiting_ppm,
            }
        }),
        (0..4_u64).prop_map(|call| end(0, call, Outcome::Returned).event),
        (number(), number()).prop_map(|(cores, bytes)| Event::Capacity {
            shared: Amount::new(cores, bytes)
        }),
    ]
}

proptest! {
    #[test]
    fn any_record_is_read_or_refused(
        events in prop::collection::vec((any_event(), prop_oneof![0..200_000_u64, any::<u64>()]), 0..300),
        cut: prop::sample::Index,
    ) {
        let mut now_us = 0_u64;
        let entries: Vec<_> = events
            .into_iter()
            .map(|(event, later)| {
                now_us = now_us.saturating_add(later);
                entry(now_us, event)
            })
            .collect();
        let text = text_of(&entries);
        if let Ok(trace) = read_bytes(&text) {
            for call in trace.calls() {
                prop_assert!(Phases::new(&call.phases).is_some(), "{call:?}");
            }
        }
        let _ = read_bytes(&text[..cut.index(text.len())]);
    }
}
