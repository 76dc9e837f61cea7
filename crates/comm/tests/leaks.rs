//! What is left when groups are gone. A test alone in its process, for it counts what the process has.

mod common;
#[path = "common/here.rs"]
mod here;

use common::{exchange, vias};
use here::{options, server, wait_for_ranks, world};

#[test]
fn one_hundred_worlds_one_after_another_leave_nothing_behind() {
    let server = server();
    let count = |what: &str| std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count();
    let round = || {
        let mut ranks = world(&options(&server, "again", 3));
        exchange(&mut ranks);
        assert_eq!(vias(&ranks).len(), 3);
        drop(ranks);
        wait_for_ranks(&server, 0);
    };
    round();
    let before = (count("fd"), count("task"));
    for _ in 0..100 {
        round();
    }
    assert_eq!((count("fd"), count("task")), before);
}
