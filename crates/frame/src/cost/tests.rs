use dayfly_comm::Route;
use proptest::prelude::*;

use super::{Estimate, Exchange, Link, MAX_BROADCAST_BYTES, Ranks, Size, choose, ranks_for, share_of};

const HERE: Route = Route::Local;

fn ranks(count: u32, route: Route) -> Ranks {
    Ranks {
        count,
        cores: 1,
        link: Link::slowest([route]),
    }
}

/// Rows of two numbers.
fn rows(count: u64) -> Estimate {
    Estimate::new(Some(count), None, [Some(8), Some(8)].into_iter())
}

fn way(build: u64, probe: u64, ranks: Ranks) -> Exchange {
    choose(rows(build), rows(probe), ranks).exchange
}

#[test]
fn small_side_of_a_large_join_is_broadcast() {
    assert_eq!(way(10_000, 6_000_000, ranks(4, HERE)), Exchange::Broadcast);
    let choice = choose(rows(10_000), rows(6_000_000), ranks(4, HERE)).to_string();
    assert!(choice.contains("by estimate, and a shuffle of both sides"), "{choice}");
}

#[test]
fn sides_of_equal_size_are_shuffled() {
    assert_eq!(way(400_000, 400_000, ranks(2, HERE)), Exchange::Shuffle);
    assert_eq!(way(400_000, 1_200_000, ranks(4, HERE)), Exchange::Shuffle);
}

#[test]
fn large_side_is_never_broadcast() {
    let build = MAX_BROADCAST_BYTES / 16 + 1;
    assert_eq!(way(build, u64::MAX >> 8, ranks(2, HERE)), Exchange::Shuffle);
    let choice = choose(rows(build), rows(u64::MAX >> 8), ranks(2, HERE)).to_string();
    assert!(
        choice.contains("too many for a broadcast, of at most 8.0 MiB"),
        "{choice}"
    );
}

#[test]
fn unknown_sides_are_shuffled() {
    let unknown = Estimate::new(None, None, [Some(8)].into_iter());
    for (build, probe) in [(unknown, rows(1)), (rows(1), unknown)] {
        let choice = choose(build, probe, ranks(2, HERE));
        assert_eq!(choice.exchange, Exchange::Shuffle);
        assert_eq!(choice.to_string(), "the number of rows is not known");
    }
}

#[test]
fn one_rank_exchanges_nothing() {
    assert_eq!(way(1, 6_000_000, ranks(1, HERE)), Exchange::Shuffle);
}

#[test]
fn bytes_follow_from_rows_and_widths() {
    assert_eq!(rows(3).to_string(), "about 3 rows, 48 B");
    let of_text = Estimate::new(None, Some(48 << 10), [Some(8), None].into_iter());
    assert_eq!(of_text.to_string(), "about 2048 rows, 48.0 KiB");
    let both = Estimate::new(Some(5), Some(9), [None].into_iter());
    assert_eq!(both.to_string(), "about 5 rows, 9 B");
}

#[test]
fn sizes_have_the_largest_unit() {
    assert_eq!(Size(1023).to_string(), "1023 B");
    assert_eq!(Size(4 << 30).to_string(), "4.0 GiB");
    assert_eq!(Size(u64::MAX).to_string(), "16777216.0 TiB");
}

proptest! {
    #[test]
    fn more_probed_rows_keep_a_broadcast(build in 1..500_000u64, probe in 1..10_000_000u64, count in 2..64u32) {
        let more = probe.saturating_mul(2);
        if way(build, probe, ranks(count, HERE)) == Exchange::Broadcast {
            prop_assert_eq!(way(build, more, ranks(count, HERE)), Exchange::Broadcast);
        }
    }

    #[test]
    fn fewer_built_rows_keep_a_broadcast(build in 2..500_000u64, probe in 1..10_000_000u64, count in 2..64u32) {
        if way(build, probe, ranks(count, HERE)) == Exchange::Broadcast {
            prop_assert_eq!(way(build / 2, probe, ranks(count, HERE)), Exchange::Broadcast);
        }
    }

    #[test]
    fn broadcast_needs_a_large_probed_side(build in 1..500_000u64, count in 2..64u32) {
        // A side is not sent to all ranks to spare a smaller one the way to its own.
        prop_assert_eq!(way(build, build / 2, ranks(count, HERE)), Exchange::Shuffle);
    }

    #[test]
    fn extreme_sizes_have_a_choice(
        build: Option<u64>, probe: Option<u64>, bytes: Option<u64>, count: u32, cores: usize,
    ) {
        let side = |rows| Estimate::new(rows, bytes, std::iter::once(None));
        let ranks = Ranks { count, cores, link: Link::slowest([Route::Stored]) };
        let text = choose(side(build), side(probe), ranks).to_string();
        prop_assert!(!text.contains("NaN") && !text.contains("inf"), "{}", text);
    }

    #[test]
    fn slowest_route_is_the_link(routes in prop::collection::vec(0..6u8, 0..8)) {
        let all = [Route::Local, Route::Direct, Route::Punched, Route::Relay, Route::Stored, Route::Fabric];
        let routes: Vec<Route> = routes.into_iter().map(|at| all[usize::from(at)]).collect();
        let slowest = Link::slowest(routes.iter().copied()).bytes_per_s;
        prop_assert!(routes.iter().all(|route| slowest <= Link::slowest([*route]).bytes_per_s));
    }

    #[test]
    fn ranks_have_at_most_their_share(bytes: u64, share in 1..u64::MAX, most in 1..1_000usize) {
        let ranks = ranks_for(bytes, share, most);
        prop_assert!((1..=most).contains(&ranks));
        // One rank fewer would have more than its share.
        prop_assert!(ranks == 1 || u128::from(bytes) > (ranks as u128 - 1) * u128::from(share));
        prop_assert!(ranks == most || u128::from(bytes) <= ranks as u128 * u128::from(share));
    }

    #[test]
    fn shares_are_at_most_all(all: u64, part: u64, whole: u64) {
        prop_assert!(share_of(all, part, whole) <= all);
        prop_assert_eq!(share_of(all, whole, whole), all);
    }
}
