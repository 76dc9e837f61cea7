//! Seeded traces of the measured functions: `single`, `multi-RPM` and `scaling`.
//!
//! The choices, and their reasons. None is made by what a policy does with it.
//!
//! - **Functions**: the ten of Table 1 of LIBRA (Yu and others, HPDC 2023), which is SeBS's selection. `single` calls them
//!   in the shares of the slice of the Azure Functions 2019 set that was published with Freyr; `multi` and `scaling` call
//!   each equally often, as LIBRA's public repository (IntelliSys-Lab/Libra-HPDC23) and its section 8.5 do. Four of the
//!   slice's ten functions have the same abbreviation; the rest is matched in the order of the two lists.
//! - **Sizes** of inputs are uniform between the smallest and the largest measured, as in the published workload, whose
//!   inputs are sized from 1 to 100 times a base. The stated number of an unrelated function names a content.
//! - **Arrivals** are those of LIBRA's public repository: within a minute, the calls of each function are evenly spaced,
//!   and all functions begin together. `multi` lasts a minute, as each of the ten published sets of 10 to 300 calls a
//!   minute does. `single` is shorter, because the measured functions are: [`SINGLE_WINDOW_US`].
//! - **Configured allocations** are those of LIBRA's public repository: one or two cores, and 256 to 1,024 MiB. So most
//!   functions can use more cores than they own, and most own more memory than they use.
//! - All calls lend and borrow processor time, which is the default of a registration. They are of one tenant.

use std::fmt;
use std::str::FromStr;

use dayfly_harvest::random::Random;
use dayfly_harvest::{Amount, TenantId};

use crate::call::Call;
use crate::functions::{Function, Functions};
use crate::trace::{Names, Trace};

/// Steps in which memory is configured: 128 MiB.
pub const MEMORY_STEP_BYTES: u64 = 128 << 20;
/// The rates of the ten multi traces, in calls a minute: 1,050 calls in all.
pub const MULTI_RATES: [u32; 10] = [10, 20, 30, 40, 50, 60, 120, 180, 240, 300];
/// Calls of `single`.
const SINGLE_CALLS: u32 = 165;
/// Calls of `scaling` if no number is stated.
const SCALING_CALLS: u32 = 1000;
/// Calls of a generated trace at most.
const MAX_GENERATED: u32 = 2_000_000;
const MINUTE_US: u64 = 60_000_000;
/// The time within which the calls of `single` arrive: a minute, scaled to the measured functions.
///
/// The published set completes in 49 % of the time of default, though nothing makes its calls arrive earlier. With the
/// last arrival at W, and a last call that takes D by default and D / 8 with eight cores in place of one, this is
/// `W + D / 8 = 0.49 (W + D)`: D is at least 1.4 W, so the longest calls of the paper take at least 84 s. The longest
/// here takes 10.8 s with the core that it is configured to have, about an eighth.
pub const SINGLE_WINDOW_US: u64 = MINUTE_US / 8;

/// One function of the Azure slice: its name there, the measured function that stands for it, its calls in the slice's
/// sixty minutes, and the cores and the steps of memory that LIBRA's repository configures.
struct Row(&'static str, &'static str, u32, u64, u64);

impl Row {
    fn configured(&self) -> Amount {
        Amount::new(1000 * self.3, MEMORY_STEP_BYTES * self.4)
    }
}

const SLICE: [Row; 10] = [
    Row("dh", "dynamic_html", 30, 2, 8),
    Row("eg", "upload", 30, 2, 8),
    Row("ip", "thumbnail", 29, 1, 2),
    Row("vp", "encode_video", 20, 2, 4),
    Row("ir", "recognise", 22, 1, 8),
    Row("knn", "compress", 20, 2, 8),
    Row("alu", "pagerank", 30, 2, 8),
    Row("ms", "spanning_tree", 34, 2, 4),
    Row("gd", "breadth_first", 20, 1, 8),
    Row("dv", "visualise_dna", 33, 1, 8),
];

/// The functions of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    /// All ten.
    Hybrid,
    /// The five whose demand is related to the size of their input.
    Related,
    /// The other five.
    Unrelated,
}

/// A kind of trace. Its text is `single`, `single-related`, `single-unrelated`, `multi-RPM`, `scaling` or `scaling-N`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generator {
    /// 165 calls within [`SINGLE_WINDOW_US`], for one node of 72 cores.
    Single(Mix),
    /// Calls a minute, each function equally often, for one minute and four nodes of 32 cores.
    Multi(u32),
    /// Calls at once, each function equally often.
    Scaling(u32),
}

/// A text that names no generator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "There is no generator of this name. Use `single`, `single-related`, `single-unrelated`, `multi-RPM` with calls a \
     minute, or `scaling-N` with a number of calls; at most {MAX_GENERATED} calls."
)]
pub struct UnknownGenerator;

impl FromStr for Generator {
    type Err = UnknownGenerator;

    fn from_str(text: &str) -> Result<Self, UnknownGenerator> {
        let number = |text: &str| {
            let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
            let number = text.parse().ok().filter(|number| (1..=MAX_GENERATED).contains(number));
            number.filter(|_| is_plain).ok_or(UnknownGenerator)
        };
        match text {
            "single" => Ok(Self::Single(Mix::Hybrid)),
            "single-related" => Ok(Self::Single(Mix::Related)),
            "single-unrelated" => Ok(Self::Single(Mix::Unrelated)),
            "scaling" => Ok(Self::Scaling(SCALING_CALLS)),
            _ => match text.split_once('-') {
                Some(("multi", rate)) => number(rate).map(Self::Multi),
                Some(("scaling", calls)) => number(calls).map(Self::Scaling),
                _ => Err(UnknownGenerator),
            },
        }
    }
}

impl fmt::Display for Generator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single(Mix::Hybrid) => f.write_str("single"),
            Self::Single(Mix::Related) => f.write_str("single-related"),
            Self::Single(Mix::Unrelated) => f.write_str("single-unrelated"),
            Self::Multi(rate) => write!(f, "multi-{rate}"),
            Self::Scaling(calls) => write!(f, "scaling-{calls}"),
        }
    }
}

impl Generator {
    /// Generates a trace. The same seed and functions give the same trace.
    pub fn generate(self, functions: &Functions, seed: u64) -> Trace {
        match self {
            Self::Single(mix) => {
                let is_chosen = |function: &Function| match mix {
                    Mix::Hybrid => true,
                    Mix::Related => function.is_related(),
                    Mix::Unrelated => !function.is_related(),
                };
                let rows = rows(functions).filter(|(_, function)| is_chosen(function)).collect();
                write(rows, |row| row.2, SINGLE_CALLS, SINGLE_WINDOW_US, seed)
            }
            Self::Multi(rate) => write(rows(functions).collect(), |_| 1, rate, MINUTE_US, seed),
            Self::Scaling(calls) => write(rows(functions).collect(), |_| 1, calls, 0, seed),
        }
    }
}

/// Writes calls of functions by their weights. Those of each function are evenly spaced within a window.
fn write(rows: Vec<(&Row, &Function)>, weight: fn(&Row) -> u32, calls: u32, window_us: u64, seed: u64) -> Trace {
    let weights: Vec<u32> = rows.iter().map(|(row, _)| weight(row)).collect();
    let mut writer = Writer::new(seed);
    for ((row, function), count) in rows.iter().zip(shares(calls.min(MAX_GENERATED), &weights)) {
        writer.add(function, row.configured(), count, window_us);
    }
    writer.finish()
}

/// The rows of the slice whose functions were measured.
fn rows(functions: &Functions) -> impl Iterator<Item = (&'static Row, &Function)> {
    SLICE.iter().filter_map(|row| Some((row, functions.by_name(row.1)?)))
}

/// Divides calls by weights: whole numbers, those with the largest remainders rounded up, the first of equals first.
fn shares(calls: u32, weights: &[u32]) -> Vec<u32> {
    let sum: u64 = weights.iter().map(|&weight| u64::from(weight)).sum::<u64>().max(1);
    let exact = |weight: u32| u64::from(calls) * u64::from(weight);
    let mut shares: Vec<u32> = weights.iter().map(|&weight| (exact(weight) / sum) as u32).collect();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(exact(weights[index]) % sum));
    let rest = calls.saturating_sub(shares.iter().sum());
    for &index in order.iter().take(rest as usize) {
        shares[index] += 1;
    }
    shares
}

/// Collects the calls of a trace.
struct Writer {
    seed: u64,
    calls: Vec<Call>,
    names: Names,
}

impl Writer {
    fn new(seed: u64) -> Self {
        Self {
            seed,
            calls: Vec::new(),
            names: Names::default(),
        }
    }

    fn add(&mut self, function: &Function, owned: Amount, count: u32, window_us: u64) {
        let mut random = Random::for_purpose(self.seed, self.names.len() as u64);
        let tenant = TenantId(0);
        // The names of measured functions are plain: a test holds it.
        let Ok(id) = self.names.id(tenant, function.name()) else {
            return;
        };
        let count = u64::from(count);
        self.calls.extend((0..count).map(|number| {
            let size = draw_size(function, &mut random);
            Call {
                arrival_us: window_us * number / count,
                function: id,
                tenant,
                features: function.features(size),
                owned,
                phases: function.draw(size, &mut random),
                lend: true,
                borrow_cpu: true,
                borrow_memory: false,
            }
        }));
    }

    fn finish(self) -> Trace {
        Trace::new(self.calls, self.names)
    }
}

/// Draws what a client states: a size, or the name of a content, which says nothing.
pub(crate) fn draw_size(function: &Function, random: &mut Random) -> f64 {
    if !function.is_related() {
        return random.below(1 << 31) as f64;
    }
    let (least, most) = function.sizes();
    (least + (most - least) * random.unit()).round()
}

/// The measured function that stands for a function of an Azure trace.
pub(crate) fn measured_for<'a>(functions: &'a Functions, name: &str) -> &'a Function {
    let row = SLICE.iter().find(|row| row.0 == name);
    row.and_then(|row| functions.by_name(row.1)).unwrap_or_else(|| {
        // FNV-1a.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let list = functions.list();
        &list[Random::new(hash).index(list.len())]
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn generate(text: &str, seed: u64) -> Trace {
        text.parse::<Generator>().unwrap().generate(Functions::measured(), seed)
    }

    #[test]
    fn generators_are_read_as_they_are_written() {
        for text in [
            "single",
            "single-related",
            "single-unrelated",
            "multi-120",
            "scaling-1000",
        ] {
            assert_eq!(text.parse::<Generator>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "multi",
            "multi-",
            "multi-0",
            "multi--1",
            "multi-+1",
            "scaling-99999999",
            "double",
        ] {
            assert_eq!(text.parse::<Generator>(), Err(UnknownGenerator), "{text}");
        }
    }

    #[test]
    fn single_has_165_calls_of_all_functions() {
        let trace = generate("single", 1);
        assert_eq!(trace.calls().len(), 165);
        assert_eq!(trace.functions().len(), 10);
        assert!(trace.calls().iter().all(|call| call.arrival_us < SINGLE_WINDOW_US));
        assert_eq!(trace.calls().iter().filter(|call| call.arrival_us == 0).count(), 10);
        assert!(
            trace
                .calls()
                .windows(2)
                .all(|pair| pair[0].arrival_us <= pair[1].arrival_us)
        );
    }

    #[test]
    fn single_related_and_unrelated_divide_the_functions() {
        let (related, unrelated) = (generate("single-related", 1), generate("single-unrelated", 1));
        assert_eq!((related.calls().len(), unrelated.calls().len()), (165, 165));
        assert_eq!((related.functions().len(), unrelated.functions().len()), (5, 5));
        assert!(
            related
                .functions()
                .iter()
                .all(|name| !unrelated.functions().contains(name))
        );
    }

    #[test]
    fn multi_traces_have_1050_calls_together() {
        let calls: usize = MULTI_RATES
            .iter()
            .map(|rate| generate(&format!("multi-{rate}"), 1).calls().len())
            .sum();
        assert_eq!(calls, 1050);
    }

    #[test]
    fn configured_memory_covers_every_measured_run() {
        for (row, function) in rows(Functions::measured()) {
            assert!(
                row.configured().memory_bytes >= function.peak().memory_bytes,
                "{}",
                row.1
            );
        }
    }

    #[test]
    fn multi_trace_calls_all_functions_at_even_times() {
        let trace = generate("multi-120", 1);
        let times: Vec<_> = trace.calls().iter().map(|call| call.arrival_us).collect();
        let expected: Vec<_> = (0..12).flat_map(|number| [number * MINUTE_US / 12; 10]).collect();
        assert_eq!(times, expected);
    }

    #[test]
    fn scaling_has_each_function_equally_often_at_once() {
        let trace = generate("scaling-1000", 1);
        let mut counts = BTreeMap::new();
        for call in trace.calls() {
            assert_eq!(call.arrival_us, 0);
            *counts.entry(call.function).or_insert(0) += 1;
        }
        assert_eq!(counts.into_values().collect::<Vec<_>>(), [100; 10]);
    }

    #[test]
    fn seed_alone_decides_the_trace() {
        assert_eq!(generate("single", 5), generate("single", 5));
        assert_ne!(generate("single", 5), generate("single", 6));
    }

    #[test]
    fn shares_add_up_to_the_calls() {
        assert_eq!(shares(10, &[1, 1, 1]), [4, 3, 3]);
        assert_eq!(shares(0, &[1, 2]), [0, 0]);
        assert_eq!(shares(7, &[]), [0_u32; 0]);
        for calls in 0..500 {
            assert_eq!(shares(calls, &[30, 30, 29, 20, 22]).iter().sum::<u32>(), calls);
        }
    }
}
