use super::*;
use crate::coverage::Steps;

const GIB: u64 = 1 << 30;

fn amount(cores: u64) -> Amount {
    Amount::new(cores * 1_000, cores * GIB)
}

fn request(function: u64, cores: u64) -> Request {
    Request::new(FunctionId(function), TenantId(0), amount(cores))
}

fn wanting(function: u64, cores: u64, extra_cores: u64, duration_us: u64) -> Request {
    Request {
        want: Want {
            extra: Amount::new(extra_cores * 1_000, 0),
            duration_us,
        },
        ..request(function, cores)
    }
}

fn cluster(kind: SchedulerKind, nodes: u64, cores: u64) -> Scheduler {
    let mut scheduler = Scheduler::new(kind, SchedulerOptions::default());
    for key in 0..nodes {
        scheduler.join(key, amount(cores));
    }
    scheduler
}

fn heartbeat(at_us: u64, cores: u64, entries: &[(u64, u64)]) -> Heartbeat {
    Heartbeat {
        at_us,
        capacity: amount(cores),
        spare: Spare {
            cpu: Steps::of_pool(at_us, entries.iter().copied()),
            memory: Steps::default(),
        },
        warm: Vec::new(),
    }
}

#[test]
fn accelerable_call_goes_where_coverage_is_greatest() {
    let mut scheduler = cluster(SchedulerKind::Dayfly, 3, 32);
    scheduler.heartbeat(10, NodeIndex(0), &heartbeat(10, 32, &[(1_000, 8_000)]));
    scheduler.heartbeat(10, NodeIndex(1), &heartbeat(10, 32, &[(9_000, 3_000)]));
    let call = wanting(1, 1, 2, 5_000);
    assert_eq!(scheduler.place(10, CallId(1), &call), Some(NodeIndex(1)));
    // Of 3 cores one is left there, for the second call of two.
    assert_eq!(scheduler.place(10, CallId(2), &call), Some(NodeIndex(1)));
    assert_eq!(scheduler.place(10, CallId(3), &call), Some(NodeIndex(0)));
}

#[test]
fn other_calls_stay_together_until_full() {
    let mut scheduler = cluster(SchedulerKind::Dayfly, 4, 4);
    let nodes: Vec<_> = (0..5)
        .map(|call| scheduler.place(0, CallId(call), &request(7, 1)))
        .collect();
    assert!(nodes[..4].iter().all(|node| *node == nodes[0]), "{nodes:?}");
    assert!(nodes[4].is_some() && nodes[4] != nodes[0], "{nodes:?}");
}
