//! Reports of `dayfly bench`, as JSON and as text.

use crate::alternate::Difference;
use crate::busy::Noise;
use crate::machine::Machine;
use crate::stats::{Samples, Summary};
use crate::table::{Table, bandwidth, difference, duration, rate, ratio, size};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use std::fmt;

/// A baseline and its figures.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Named {
    /// The baseline's name, such as `cache_line`.
    pub name: String,
    /// Description of one call.
    pub about: String,
    /// Latencies of its calls.
    #[serde(flatten)]
    pub latency: Summary,
    /// Calls per second, if measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_s: Option<f64>,
    /// Bytes read and written per second, for large payloads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<f64>,
    /// The invocations' bandwidth over this one, if measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
}

/// The measured setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// `shm`, `tcp` or `tls`.
    pub transport: String,
    /// `hot` or `warm`.
    pub mode: String,
    /// `c` or `python`.
    pub language: String,
    /// Bytes of the input and of the output.
    pub size: u64,
    /// Invocations outstanding on a channel when the rate was measured.
    pub depth: u32,
    /// Number of workers.
    pub workers: u32,
    /// Their sandbox.
    pub sandbox: String,
}

/// The result of `dayfly bench invoke`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InvokeReport {
    /// Latencies of single invocations.
    pub invoke: Summary,
    /// The raw baseline of the same run.
    pub baseline: Named,
    /// Further baselines of the same run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<Named>,
    /// Differences and ratios of the invocations to the baseline.
    #[serde(flatten)]
    pub difference: Difference,
    /// Invocations per second over all workers at the given depth.
    pub invocations_per_s: f64,
    /// Time that isolation adds to a call: the median over turns of the difference of medians.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox_adds_p50_ns: Option<f64>,
    /// Bytes read and written per second, one invocation at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<f64>,
    /// Bandwidth over the baseline's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_of_baseline_bandwidth: Option<f64>,
    /// The measured setting.
    #[serde(flatten)]
    pub setting: Setting,
    /// The machine.
    pub machine: Machine,
    /// Other work on the machine during the measurement.
    pub noise: Noise,
}

impl InvokeReport {
    /// Smallest payload whose bandwidth is reported.
    pub const LARGE: u64 = 64 << 10;

    /// Makes a report. Computes bandwidths for large payloads.
    pub fn new(
        setting: Setting,
        invoke: Summary,
        mut baseline: Named,
        difference: Difference,
        invocations_per_s: f64,
        noise: Noise,
    ) -> Self {
        let moved = |ns: f64| (setting.size >= Self::LARGE && ns > 0.0).then(|| 2e9 * setting.size as f64 / ns);
        let bytes_per_s = moved(invoke.p50_ns).map(f64::round);
        baseline.bytes_per_s = baseline.bytes_per_s.or(moved(baseline.latency.p50_ns).map(f64::round));
        let share = bytes_per_s
            .zip(baseline.bytes_per_s)
            .map(|(ours, raw)| (ours / raw * 1000.0).round() / 1000.0);
        InvokeReport {
            invoke,
            baseline,
            others: Vec::new(),
            difference,
            invocations_per_s: invocations_per_s.round(),
            sandbox_adds_p50_ns: None,
            bytes_per_s,
            share_of_baseline_bandwidth: share,
            setting,
            machine: Machine::this(),
            noise,
        }
    }
}

impl fmt::Display for InvokeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = &self.setting;
        let of = |label: &str, l: &Summary| {
            let times = [l.min_ns, l.p50_ns, l.p99_ns, l.p999_ns].map(duration);
            [label.to_owned()]
                .into_iter()
                .chain(times)
                .chain([l.samples.to_string()])
                .collect::<Vec<_>>()
        };
        let title = format!(
            "{} {}, {}, {} in and out",
            s.mode,
            s.transport,
            s.language,
            size(s.size)
        );
        let mut table = Table::new(&title, &["", "min", "p50", "p99", "p99.9", "samples"]);
        table.row(of("invocation", &self.invoke));
        table.row(of(&self.baseline.name, &self.baseline.latency));
        for other in &self.others {
            table.row(of(&other.name, &other.latency));
        }
        let d = &self.difference;
        let over = [d.overhead_p50_ns, d.overhead_p99_ns, d.overhead_p999_ns].map(difference);
        table.row(["difference".into(), String::new()].into_iter().chain(over));
        table.row(["ratio".into(), String::new(), ratio(d.ratio_p50), ratio(d.ratio_p99)]);
        write!(f, "{table}")?;
        writeln!(f, "\n  {} is {}", self.baseline.name, self.baseline.about)?;
        let workers = if s.workers == 1 {
            "1 worker".into()
        } else {
            format!("{} workers", s.workers)
        };
        writeln!(
            f,
            "  {} invocations, {} outstanding, {workers}",
            rate(self.invocations_per_s),
            s.depth
        )?;
        if let (Some(ours), Some(share)) = (self.bytes_per_s, self.share_of_baseline_bandwidth) {
            writeln!(f, "  {} read and written, {share:.2} of the baseline", bandwidth(ours))?;
        }
        for other in &self.others {
            if let Some(share) = other.share {
                writeln!(f, "  {share:.2} of {}, which is {}", other.name, other.about)?;
            }
        }
        footer(f, &self.machine, &self.noise)
    }
}

pub(crate) fn footer(f: &mut fmt::Formatter<'_>, machine: &Machine, noise: &Noise) -> fmt::Result {
    writeln!(
        f,
        "  on {}, {} cores, Linux {}",
        machine.cpu, machine.cores, machine.kernel
    )?;
    match &noise.warning {
        Some(warning) => writeln!(f, "  warning: {warning}"),
        None => Ok(()),
    }
}

/// Latencies in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Millis {
    /// Median.
    pub p50_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// Minimum.
    pub min_ms: f64,
    /// Maximum.
    pub max_ms: f64,
    /// Number of samples.
    pub samples: u64,
}

impl From<Summary> for Millis {
    fn from(s: Summary) -> Self {
        let ms = |ns: f64| (ns / 1e3).round() / 1e3;
        Millis {
            p50_ms: ms(s.p50_ns),
            p99_ms: ms(s.p99_ns),
            min_ms: ms(s.min_ns),
            max_ms: ms(s.max_ns),
            samples: s.samples,
        }
    }
}

/// The stages of a cold invocation in their order. A JSON object.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stages(pub Vec<(String, Millis)>);

impl Stages {
    /// Adds a stage's samples.
    pub fn add(&mut self, name: &str, samples: &Samples) {
        self.0.push((name.into(), samples.summary().into()));
    }
}

impl Serialize for Stages {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, stage) in &self.0 {
            map.serialize_entry(name, stage)?;
        }
        map.end()
    }
}

/// The result of `dayfly bench cold`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ColdReport {
    /// From the request for a lease to the first result.
    #[serde(flatten)]
    pub total: Millis,
    /// Its stages.
    pub stages: Stages,
    /// Start of an empty process, in the same run.
    pub baseline: Named,
    /// Median minus the baseline's median, in milliseconds.
    pub overhead_p50_ms: f64,
    /// `c` or `python`.
    pub language: String,
    /// The sandbox, such as `process`.
    pub sandbox: String,
    /// Starts per second of several clients in parallel, if measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starts_per_s: Option<f64>,
    /// Size of the warm pool; 0 if each executor was started.
    pub pool: usize,
    /// The first start from a warm pool after the machine was idle for half a second or more. `total` counts the starts
    /// that followed immediately.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_idle: Option<Millis>,
    /// The machine.
    pub machine: Machine,
    /// Other work on the machine during the measurement.
    pub noise: Noise,
}

impl fmt::Display for ColdReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pool = match self.pool {
            0 => String::new(),
            size => format!(", from a warm pool of {size}"),
        };
        let title = format!("cold, {}, sandbox {}{pool}", self.language, self.sandbox);
        let mut table = Table::new(&title, &["", "min", "p50", "p99", "max", "samples"]);
        let mut row = |name: String, m: &Millis| {
            let times = [m.min_ms, m.p50_ms, m.p99_ms, m.max_ms].map(|ms| duration(ms * 1e6));
            table.row([name].into_iter().chain(times).chain([m.samples.to_string()]));
        };
        self.stages
            .0
            .iter()
            .for_each(|(name, stage)| row(format!("  {name}"), stage));
        row("in all".into(), &self.total);
        if let Some(after_idle) = &self.after_idle {
            row("in all, after idling".into(), after_idle);
        }
        row(self.baseline.name.clone(), &self.baseline.latency.into());
        write!(f, "{table}")?;
        if let Some(per_s) = self.starts_per_s {
            writeln!(f, "  {} starts of several clients side by side", rate(per_s))?;
        }
        writeln!(f, "\n  {} is to {}", self.baseline.name, self.baseline.about)?;
        footer(f, &self.machine, &self.noise)
    }
}
