//! What remains when groups have ended. The only test in its process, because it counts the process's resources.

mod common;
#[path = "common/local_group.rs"]
mod local_group;

use std::time::{Duration, Instant};

use common::{exchange, routes};
use local_group::{options, server, wait_for_ranks, world};

#[test]
fn hundred_groups_in_sequence_leak_nothing() {
    let server = server();
    let count = |what: &str| std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count();
    let round = || {
        let mut ranks = world(&options(&server, "again", 3));
        exchange(&mut ranks);
        assert_eq!(routes(&ranks).len(), 3);
        drop(ranks);
        wait_for_ranks(&server, 0);
    };
    let at_rest = count("task");
    // A joined thread remains in /proc for a moment.
    let settle = || {
        let deadline = Instant::now() + Duration::from_secs(10);
        while count("task") > at_rest && Instant::now() < deadline {
            std::thread::yield_now();
        }
        (count("fd"), count("task"))
    };
    round();
    let before = settle();
    assert_eq!(before.1, at_rest);
    for _ in 0..100 {
        round();
    }
    assert_eq!(settle(), before);
}
