use proptest::prelude::*;

use super::*;
use crate::generate::Generator;

fn read_text(text: &str) -> Result<Trace, TraceError> {
    let file = NamedText {
        name: "calls.csv",
        bytes: text.as_bytes(),
    };
    read(file, Functions::measured(), 1)
}

fn refused(text: &str) -> String {
    read_text(text).expect_err(text).to_string()
}

#[test]
fn written_trace_is_read_back_unchanged() {
    let trace = "single"
        .parse::<Generator>()
        .unwrap()
        .generate(Functions::measured(), 7);
    let mut text = String::new();
    write(&trace, &mut text).unwrap();
    assert_eq!(read_text(&text).unwrap(), trace);
}

#[test]
fn line_with_a_name_alone_is_drawn() {
    let trace = read_text("arrival_us,function,sizes\n5,compress,1000000\n0,recognise,\n").unwrap();
    let compress = Functions::measured().by_name("compress").unwrap();
    assert_eq!(trace.calls().len(), 2);
    assert_eq!(trace.calls()[1].owned, compress.configured());
    assert!(trace.calls()[1].features.argument_bytes > 900_000);
    assert!(trace.calls().iter().all(|call| call.core_us() > 0));
    assert_eq!(trace.function_name(trace.calls()[0].function), "recognise");
}

#[test]
fn errors_name_file_line_and_column() {
    let header = "arrival_us,function,owned_milli_cores,owned_memory_bytes,flags,phases\n";
    for (line, place) in [
        ("x,f,1,1,lend,1:1:1", "2:1:"),
        ("1,f g,1,1,lend,1:1:1", "2:3:"),
        ("1,f,-1,1,lend,1:1:1", "2:5:"),
        ("1,f,1,99999999999999999999,lend,1:1:1", "2:7:"),
        ("1,f,1,1,give,1:1:1", "2:9:"),
        ("1,f,1,1,none,1:0:1", "2:14:"),
        ("1,f,1,1,none,1:1", "2:14:"),
        ("1,f,1,1,none,", "2:3:"),
        ("1,f,,1,none,1:1:1", "2:5:"),
        ("1,f", "2:1:"),
        ("99999999999999999,f,1,1,none,1:1:1", "2:1:"),
    ] {
        let error = refused(&format!("{header}{line}\n"));
        assert!(error.starts_with(&format!("calls.csv:{place} ")), "{line}: {error}");
    }
    assert!(refused("arrival_us\n1\n").contains("`function` is missing"));
    assert!(refused("arrival_us,function\n").contains("no call"));
}

#[test]
fn foreign_text_in_errors_is_escaped() {
    let error = refused("arrival_us,function\n\u{1b}[31m,f\n");
    assert!(!error.contains('\u{1b}'), "{error:?}");
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let file = NamedText { name: "f", bytes: &bytes };
        let _ = Trace::read(&[file], Functions::measured(), 1);
        let _ = read(file, Functions::measured(), 1);
    }

    /// Valid lines with some bytes replaced reach deeper than random bytes.
    #[test]
    fn damaged_lines_are_read_or_refused(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
    ) {
        let line = "7,1,compress,2000,268435456,1048576,1048576;0;0;0,lend;borrow_cpu,3000:1000:41943040\n";
        let mut bytes = format!("{HEADER}{line}{line}").into_bytes();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let file = NamedText { name: "f", bytes: &bytes };
        if let Ok(trace) = Trace::read(&[file], Functions::measured(), 1) {
            prop_assert!(trace.calls().windows(2).all(|pair| pair[0].arrival_us <= pair[1].arrival_us));
            prop_assert!(trace.calls().iter().all(|call| call.arrival_us <= MAX_ARRIVAL_US && call.core_us() <= 4 * MAX_CORE_US));
        }
    }

    #[test]
    fn any_call_survives_writing_and_reading(
        arrival_us in 0..MAX_ARRIVAL_US,
        argument_bytes: u64,
        sizes in prop::array::uniform4(0.0..1e18_f64),
        owned in (0..=MAX_MILLI_CORES, 0..=MAX_MEMORY_BYTES),
        phases in prop::collection::vec((0..=MAX_CORE_US, 1..=MAX_MILLI_CORES, 0..=MAX_MEMORY_BYTES), 1..=MAX_PHASES),
        flags in prop::array::uniform3(any::<bool>()),
        tenant: u32,
    ) {
        let mut names = Names::default();
        let phases: Vec<_> = phases
            .into_iter()
            .map(|(core_us, milli_cores, memory_bytes)| Phase { core_us, milli_cores, memory_bytes })
            .collect();
        let call = Call {
            arrival_us,
            function: names.id(TenantId(tenant), "a/b").unwrap(),
            tenant: TenantId(tenant),
            features: Features { argument_bytes, sizes },
            owned: Amount::new(owned.0, owned.1),
            phases: Phases::new(&phases).unwrap(),
            lend: flags[0],
            borrow_cpu: flags[1],
            borrow_memory: flags[2],
        };
        let trace = Trace::new(vec![call], names);
        let mut text = String::new();
        write(&trace, &mut text).unwrap();
        prop_assert_eq!(read_text(&text).unwrap(), trace);
    }
}

/// Ten times the calls take ten times as long; a factor of two is left for the noise of a shared machine.
#[test]
#[ignore = "soak"]
fn soak_million_calls_are_read_in_linear_time() {
    let seconds = |calls: u32| {
        let trace = Generator::Scaling(calls).generate(Functions::measured(), 1);
        let mut text = String::new();
        write(&trace, &mut text).unwrap();
        let begun = std::time::Instant::now();
        assert_eq!(read_text(&text).unwrap().calls().len(), calls as usize);
        let taken = begun.elapsed().as_secs_f64();
        println!("{calls} calls, {} bytes: {taken:.3} s", text.len());
        taken
    };
    let (few, many) = (seconds(100_000), seconds(1_000_000));
    assert!(many < 20.0 * few, "{few} s for a tenth of {many} s");
    assert!(std::mem::size_of::<Call>() * super::super::MAX_CALLS <= 1 << 30);
}
