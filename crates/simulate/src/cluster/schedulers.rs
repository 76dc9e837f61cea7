//! The schedulers of a cluster, which share nothing.

use dayfly_harvest::{
    Amount, CallId, Heartbeat, NodeIndex, Request, Rules, Scheduler, SchedulerKind, SchedulerOptions, Shard,
};

use super::Options;
use crate::call::Call;
use crate::policy::Shared;

/// A name that no scheduler has.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("There is no scheduler {name:?}. Choose one of: {}.", SchedulerKind::ALL.map(SchedulerKind::name).join(", "))]
pub struct UnknownScheduler {
    name: String,
}

/// The scheduler of a name.
///
/// # Errors
///
/// [`UnknownScheduler`], which lists the names that there are.
pub fn scheduler_named(name: &str) -> Result<SchedulerKind, UnknownScheduler> {
    let found = SchedulerKind::ALL.into_iter().find(|kind| kind.name() == name);
    found.ok_or_else(|| UnknownScheduler {
        name: name.chars().take(64).collect(),
    })
}

/// The share of each scheduler.
pub(super) fn shards(count: usize) -> impl Iterator<Item = Shard> {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    (0..count).filter_map(move |index| Shard::new(index, count).ok())
}

/// All schedulers.
pub(super) struct Schedulers {
    list: Vec<Scheduler>,
    predictor: Option<Shared>,
    rules: Rules,
}

impl Schedulers {
    pub fn new(options: &Options, rules: Option<Rules>, predictor: Shared) -> Self {
        let scheduler = |shard| {
            let mut scheduler = Scheduler::new(
                options.scheduler,
                SchedulerOptions {
                    shard,
                    seed: options.seed,
                    cold_start_us: options.cold_start_us,
                    cpu_weight_percent: options.cpu_weight_percent,
                    ..SchedulerOptions::default()
                },
            );
            for node in 0..options.nodes {
                scheduler.join(node as u64, options.capacity);
            }
            scheduler
        };
        Self {
            list: shards(options.shards).map(scheduler).collect(),
            predictor: rules.is_some().then_some(predictor),
            rules: rules.unwrap_or_default(),
        }
    }

    /// The node for a call. `None` if none has room.
    pub fn place(&mut self, shard: usize, now_us: u64, index: usize, call: &Call) -> Option<usize> {
        let mut request = Request::new(call.function, call.tenant, call.owned);
        if let Some(predictor) = &self.predictor {
            let demand = predictor.expect(call.function, &call.features);
            request = request.with_demand(&demand, &self.rules);
            let extra = &mut request.want.extra;
            extra.milli_cores *= u64::from(call.borrow_cpu);
            extra.memory_bytes *= u64::from(call.borrow_memory);
            if !call.lend {
                request.lends = Amount::ZERO;
            }
        }
        let node = self.list[shard].place(now_us, CallId(index as u64), &request)?;
        Some(node.0 as usize)
    }

    /// A call left its node.
    pub fn ended(&mut self, shard: usize, node: usize, index: usize) {
        self.list[shard].ended(CallId(index as u64), NodeIndex(node as u32));
    }

    /// A node's report reaches all schedulers.
    pub fn heartbeat(&mut self, now_us: u64, node: usize, heartbeat: Heartbeat) {
        for scheduler in &mut self.list {
            scheduler.heartbeat(now_us, NodeIndex(node as u32), &heartbeat);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_scheduler_is_refused_with_known_ones() {
        assert_eq!(scheduler_named("hash"), Ok(SchedulerKind::Hash));
        let error = scheduler_named("best").unwrap_err().to_string();
        assert!(
            error.contains("\"best\"") && error.contains("min-worker-set"),
            "{error}"
        );
    }
}
