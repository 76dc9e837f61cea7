//! Prints how long one placement takes, in microseconds: 1,000 calls at once over four schedulers, each with a quarter of
//! every node. Run with `cargo run --release -p dayfly-harvest --example decision_time`.

use std::time::Instant;

use dayfly_harvest::random::Random;
use dayfly_harvest::{
    Amount, CallId, FunctionId, Heartbeat, NodeIndex, Request, Scheduler, SchedulerKind, SchedulerOptions, Shard,
    Spare, Steps, TenantId, Want,
};

const CALLS: u64 = 1_000;
const SHARDS: u32 = 4;
const GIB: u64 = 1 << 30;
/// Repetitions, each with pools of its own.
const ROUNDS: u64 = 20;

fn main() {
    for nodes in [50, 1_000] {
        for kind in SchedulerKind::ALL {
            let mut times: Vec<f64> = (0..ROUNDS).flat_map(|round| decisions(kind, nodes, round)).collect();
            times.sort_by(f64::total_cmp);
            let quantile = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
            println!(
                "{:>5} nodes  {:<15}  p50 {:7.2} us  p99 {:7.2} us",
                nodes,
                kind.name(),
                quantile(0.5),
                quantile(0.99)
            );
        }
    }
}

/// Times all calls; half of them want more than they own.
fn decisions(kind: SchedulerKind, nodes: u64, round: u64) -> Vec<f64> {
    let mut random = Random::new(round);
    let mut schedulers: Vec<Scheduler> = (0..SHARDS).map(|shard| scheduler(kind, nodes, shard, round)).collect();
    (0..CALLS)
        .map(|call| {
            let request = request(&mut random, call);
            let scheduler = &mut schedulers[(call % u64::from(SHARDS)) as usize];
            let begin = Instant::now();
            let chosen = scheduler.place(1_000, CallId(call), &request);
            let time = begin.elapsed().as_secs_f64() * 1e6;
            assert!(chosen.is_some(), "all calls find room");
            time
        })
        .collect()
}

fn scheduler(kind: SchedulerKind, nodes: u64, shard: u32, round: u64) -> Scheduler {
    let shard = Shard::new(shard, SHARDS).expect("the shard is one of them");
    let options = SchedulerOptions {
        shard,
        ..SchedulerOptions::default()
    };
    let mut scheduler = Scheduler::new(kind, options);
    let capacity = Amount::new(128_000, 512 * GIB);
    for key in 0..nodes {
        let index = scheduler.join(key, capacity);
        scheduler.heartbeat(1, index, &heartbeat(capacity, index, round));
    }
    scheduler
}

/// Full pools: 16 steps of each resource.
fn heartbeat(capacity: Amount, index: NodeIndex, round: u64) -> Heartbeat {
    let mut random = Random::new(round << 32 | u64::from(index.0));
    let steps = |random: &mut Random, most: u64| {
        let entries: Vec<(u64, u64)> = (0..40).map(|_| (random.below(8_000_000), random.below(most))).collect();
        Steps::of_pool(1, entries)
    };
    Heartbeat {
        at_us: 1,
        capacity,
        spare: Spare {
            cpu: steps(&mut random, 800),
            memory: steps(&mut random, GIB / 8),
        },
        unowned: Amount::new(random.below(8_000), 64 * GIB),
        warm: Vec::new(),
    }
}

fn request(random: &mut Random, call: u64) -> Request {
    let owned = Amount::new(1_000 + random.below(3_000), GIB);
    let mut request = Request::new(FunctionId(random.below(10)), TenantId(0), owned);
    if call.is_multiple_of(2) {
        request.want = Want {
            extra: Amount::new(random.below(8_000), random.below(2 * GIB)),
            duration_us: 100_000 + random.below(10_000_000),
        };
    } else {
        request.lends = Amount::new(random.below(1_000), 0);
        request.lends_us = random.below(5_000_000);
    }
    request
}
