//! What the nodes of a task measured, between ranks.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use datafusion::physical_plan::metrics::{Count, Gauge, Metric, MetricValue, MetricsSet, PruningMetrics, Time};
use datafusion_distributed::TaskMetrics;
use serde::{Deserialize, Serialize};

use super::channel::RECEIVED_BYTES;
use crate::progress::Work;

/// Most nodes of a task that are measured. The library refuses a task with measures of fewer nodes than it has.
const MAX_NODES: usize = 4096;

/// What marks the measures of a node that a rank has added to its task, and that the session does not know.
const UNPLANNED: &str = "unplanned";

/// The measures of a node that a rank adds to its task.
pub fn unplanned() -> MetricsSet {
    set(vec![Measure::Count(UNPLANNED.into(), 0)])
}

fn is_planned(node: &MetricsSet) -> bool {
    node.iter().all(|metric| metric.value().name() != UNPLANNED)
}

/// What a task measured: a list for each node, in the order of a walk from the top.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Measures(Vec<Vec<Measure>>);

/// What a node measured, in all of its partitions.
#[derive(Debug, Serialize, Deserialize)]
enum Measure {
    Rows(u64),
    Bytes(u64),
    Batches(u64),
    ComputeNs(u64),
    Spills(u64),
    SpilledBytes(u64),
    SpilledRows(u64),
    Count(String, u64),
    Gauge(String, u64),
    TimeNs(String, u64),
    Pruned { name: String, pruned: u64, matched: u64 },
}

impl Measures {
    /// Of what the library collects. Times of day and what other libraries define are left out.
    pub fn of(metrics: &TaskMetrics) -> Self {
        let nodes = metrics.pre_order_plan_metrics.iter();
        let nodes = nodes.filter(|node| is_planned(node)).take(MAX_NODES);
        let nodes = nodes.map(|node| {
            let metrics = node.aggregate_by_name();
            metrics
                .iter()
                .filter_map(|metric| Measure::of(metric.value()))
                .collect()
        });
        Self(nodes.collect())
    }

    /// What the whole task took. The first node is the top, and sends what the first one that counts rows has counted.
    pub fn work(&self) -> Work {
        let mut work = Work::default();
        let counts = |node: &Vec<Measure>| node.iter().any(|measure| matches!(measure, Measure::Rows(_)));
        let top = self.0.iter().position(counts);
        for (node, measure) in self
            .0
            .iter()
            .enumerate()
            .flat_map(|(at, node)| node.iter().map(move |of| (at, of)))
        {
            match measure {
                Measure::Rows(rows) if Some(node) == top => work.rows = *rows,
                Measure::ComputeNs(ns) => work.computing = work.computing.saturating_add(Duration::from_nanos(*ns)),
                Measure::SpilledBytes(bytes) => work.spilled_bytes = work.spilled_bytes.saturating_add(*bytes),
                Measure::Count(name, bytes) if name == RECEIVED_BYTES => {
                    work.received_bytes = work.received_bytes.saturating_add(*bytes);
                }
                _ => {}
            }
        }
        work
    }

    /// What the library collects. Nodes of a task that did not run have measured nothing.
    pub fn decoded(self) -> TaskMetrics {
        let mut nodes: Vec<MetricsSet> = self.0.into_iter().take(MAX_NODES).map(set).collect();
        if nodes.is_empty() {
            nodes.resize_with(MAX_NODES, MetricsSet::new);
        }
        TaskMetrics {
            pre_order_plan_metrics: nodes,
            task_metrics: MetricsSet::new(),
        }
    }
}

fn set(measures: Vec<Measure>) -> MetricsSet {
    let mut set = MetricsSet::new();
    for measure in measures {
        set.push(Arc::new(Metric::new(measure.decoded(), None)));
    }
    set
}

impl Measure {
    fn of(value: &MetricValue) -> Option<Self> {
        let number = value.as_usize() as u64;
        let name = || value.name().to_owned();
        Some(match value {
            MetricValue::OutputRows(_) => Self::Rows(number),
            MetricValue::OutputBytes(_) => Self::Bytes(number),
            MetricValue::OutputBatches(_) => Self::Batches(number),
            MetricValue::ElapsedCompute(_) => Self::ComputeNs(number),
            MetricValue::SpillCount(_) => Self::Spills(number),
            MetricValue::SpilledBytes(_) => Self::SpilledBytes(number),
            MetricValue::SpilledRows(_) => Self::SpilledRows(number),
            MetricValue::Count { .. } => Self::Count(name(), number),
            MetricValue::Gauge { .. } | MetricValue::PeakMemoryUsage { .. } => Self::Gauge(name(), number),
            MetricValue::Time { .. } => Self::TimeNs(name(), number),
            MetricValue::PruningMetrics { pruning_metrics, .. } => Self::Pruned {
                name: name(),
                pruned: pruning_metrics.pruned() as u64,
                matched: pruning_metrics.matched() as u64,
            },
            _ => return None,
        })
    }

    fn decoded(self) -> MetricValue {
        match self {
            Self::Rows(number) => MetricValue::OutputRows(count(number)),
            Self::Bytes(number) => MetricValue::OutputBytes(count(number)),
            Self::Batches(number) => MetricValue::OutputBatches(count(number)),
            Self::ComputeNs(number) => MetricValue::ElapsedCompute(time(number)),
            Self::Spills(number) => MetricValue::SpillCount(count(number)),
            Self::SpilledBytes(number) => MetricValue::SpilledBytes(count(number)),
            Self::SpilledRows(number) => MetricValue::SpilledRows(count(number)),
            Self::Count(name, number) => MetricValue::Count {
                name: Cow::Owned(name),
                count: count(number),
            },
            Self::Gauge(name, number) => {
                let gauge = Gauge::new();
                gauge.set(clamped(number));
                MetricValue::Gauge {
                    name: Cow::Owned(name),
                    gauge,
                }
            }
            Self::TimeNs(name, number) => MetricValue::Time {
                name: Cow::Owned(name),
                time: time(number),
            },
            Self::Pruned { name, pruned, matched } => {
                let pruning_metrics = PruningMetrics::new();
                pruning_metrics.add_pruned(clamped(pruned));
                pruning_metrics.add_matched(clamped(matched));
                MetricValue::PruningMetrics {
                    name: Cow::Owned(name),
                    pruning_metrics,
                }
            }
        }
    }
}

/// A number that can be summed over all tasks without overflow.
fn clamped(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX).min(usize::MAX >> 16)
}

fn count(number: u64) -> Count {
    let count = Count::new();
    count.add(clamped(number));
    count
}

fn time(nanoseconds: u64) -> Time {
    let time = Time::new();
    time.add_duration(Duration::from_nanos(clamped(nanoseconds) as u64));
    time
}
