use proptest::prelude::*;

use super::*;

const INVOCATIONS: &str = "HashFunction,Trigger,1,2,3\ndh,timer,1,0,2\nf00,http,0,5,0\n";
const DURATIONS_FILE: &str = "HashFunction,Average,Count,Minimum,Maximum,percentile_Average_0,percentile_Average_1,\
    percentile_Average_25,percentile_Average_50,percentile_Average_75,percentile_Average_99,percentile_Average_100\n\
    dh,62927,522,3900.0,300152.0,3900,4462,15385,41538,70266,300100,300152\n";
const MEMORY: &str = "HashFunction,SampleCount,AverageAllocatedMb,AverageAllocatedMb_pct1,AverageAllocatedMb_pct100\n\
    dh,31642,185,103,388\n";

fn read_three(invocations: &[u8], durations: &[u8], memory: &[u8]) -> Result<Trace, TraceError> {
    let files = [
        ("memory", memory),
        ("invocations", invocations),
        ("durations", durations),
    ];
    Trace::read(
        &files.map(|(name, bytes)| NamedText { name, bytes }),
        Functions::measured(),
        1,
    )
}

#[test]
fn counts_become_calls_in_their_minutes() {
    let trace = read_three(INVOCATIONS.as_bytes(), DURATIONS_FILE.as_bytes(), MEMORY.as_bytes()).unwrap();
    let minutes = |name: &str| -> Vec<u64> {
        let calls = trace.calls().iter();
        calls
            .filter(|call| trace.function_name(call.function) == name)
            .map(|call| call.arrival_us / MINUTE_US)
            .collect()
    };
    assert_eq!(minutes("dh"), [0, 2, 2]);
    assert_eq!(minutes("f00"), [1; 5]);
    let first = trace.calls()[0];
    assert!(first.owned.memory_bytes >= 388 << 20, "{:?}", first.owned);
    assert!(trace.calls().iter().all(|call| call.core_us() > 0));
}

#[test]
fn full_schema_has_owners_and_memory_by_app() {
    let invocations = "HashOwner,HashApp,HashFunction,Trigger,1\no1,a,f,http,1\no2,b,f,queue,2\n";
    let memory = "HashOwner,HashApp,SampleCount,AverageAllocatedMb,AverageAllocatedMb_pct100\no2,b,1,1,1000\n";
    let trace = read_three(invocations.as_bytes(), DURATIONS_FILE.as_bytes(), memory.as_bytes()).unwrap();
    assert_eq!(trace.functions().len(), 2);
    let of_second = trace.calls().iter().filter(|call| call.tenant == TenantId(1));
    assert_eq!(of_second.filter(|call| call.owned.memory_bytes == 1 << 30).count(), 2);
}

#[test]
fn same_seed_gives_the_same_trace() {
    let read = || read_three(INVOCATIONS.as_bytes(), DURATIONS_FILE.as_bytes(), MEMORY.as_bytes()).unwrap();
    assert_eq!(read(), read());
}

#[test]
fn errors_name_the_file_at_fault() {
    let refused = |a: &str, b: &str, c: &str| {
        let error = read_three(a.as_bytes(), b.as_bytes(), c.as_bytes()).unwrap_err();
        error.to_string()
    };
    let wrong = INVOCATIONS.replace("0,5,0", "0,-5,0");
    assert!(refused(&wrong, DURATIONS_FILE, MEMORY).starts_with("invocations:3:12: `-5`"));
    let wrong = DURATIONS_FILE.replace("41538", "NaN");
    assert!(refused(INVOCATIONS, &wrong, MEMORY).starts_with("durations:2:"));
    let wrong = INVOCATIONS.replace("0,5,0", "0,9999999,0");
    assert!(refused(&wrong, DURATIONS_FILE, MEMORY).starts_with("invocations:3:12:"));
    assert!(refused(INVOCATIONS, INVOCATIONS, MEMORY).contains("durations is missing"));
    assert!(refused(INVOCATIONS, "a,b\n", MEMORY).starts_with("durations:1:1: "));
}

#[test]
fn longest_duration_is_the_largest_size() {
    let durations = [1.0, 1.0, 10.0, 100.0, 1000.0, 10_000.0, 10_000.0];
    assert!(place_of(&durations, 0.0).abs() < 1e-9);
    assert!((place_of(&durations, 0.999_999) - 1.0).abs() < 1e-9);
    assert!((0.4..0.6).contains(&place_of(&durations, 0.5)));
    assert!((place_of(&[3.0; 7], 0.7) - 0.5).abs() < 1e-9);
}

proptest! {
    #[test]
    fn damaged_files_are_read_or_refused(
        damage in prop::collection::vec((0..3_usize, any::<prop::sample::Index>(), any::<u8>()), 1..20),
    ) {
        let mut files = [INVOCATIONS, DURATIONS_FILE, MEMORY].map(|text| text.as_bytes().to_vec());
        for (file, at, byte) in damage {
            let at = at.index(files[file].len());
            files[file][at] = byte;
        }
        let [a, b, c] = &files;
        let _ = read_three(a, b, c);
    }

    #[test]
    fn places_are_shares_that_never_fall(shares in prop::collection::vec(0.0..1.0_f64, 2..20), values in prop::array::uniform7(0.0..1e9_f64)) {
        let (mut values, mut shares) = (values, shares);
        values.sort_by(f64::total_cmp);
        shares.sort_by(f64::total_cmp);
        let places: Vec<_> = shares.iter().map(|&share| place_of(&values, share)).collect();
        prop_assert!(places.iter().all(|place| (0.0..=1.0).contains(place)));
        prop_assert!(places.windows(2).all(|pair| pair[0] <= pair[1] + 1e-9));
    }
}
