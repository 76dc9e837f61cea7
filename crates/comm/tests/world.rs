//! Groups on one host: how they form, and why some do not.

mod common;
#[path = "common/here.rs"]
mod here;

use std::time::{Duration, Instant};

use common::{PATIENCE, exchange, vias};
use dayfly_comm::connect::Trust;
use dayfly_comm::connect::plan::Ways;
use dayfly_comm::road::Via;
use dayfly_comm::{JoinOptions, join};
use dayfly_protocol::error::Code;
use here::{join_all, options, server, wait_for_ranks, world};

#[test]
fn ranks_of_one_host_meet_over_its_sockets() {
    let server = server();
    let mut ranks = world(&options(&server, "local", 5));
    assert!(vias(&ranks).iter().all(|(_, via)| *via == Via::Local));
    assert!(ranks.iter().all(|rank| rank.hosts == [0; 5]));
    exchange(&mut ranks);
}

#[test]
fn each_way_alone_connects_all() {
    let server = server();
    let direct = Ways {
        direct: true,
        ..Ways::none()
    };
    let relay = Ways {
        relay: true,
        ..Ways::none()
    };
    for (name, ways, via) in [("direct", direct, Via::Direct), ("relay", relay, Via::Relay)] {
        for trust in [Trust::Nobody, Trust::Fabric] {
            let options = JoinOptions {
                ways,
                trust,
                ..options(&server, name, 4)
            };
            let mut ranks = world(&options);
            assert!(vias(&ranks).iter().all(|(_, found)| *found == via), "{name}");
            exchange(&mut ranks);
            drop(ranks);
        }
    }
}

#[test]
fn ranks_that_were_told_otherwise_than_others_do_not_join() {
    let server = server();
    let options = options(&server, "unlike", 2);
    let other = JoinOptions {
        alike: 7,
        ..options.clone()
    };
    for failure in join_all(&[options, other]).into_iter().map(Result::unwrap_err) {
        assert_eq!(failure.code, Code::Mismatch, "{failure}");
        assert!(failure.message.contains("give all ranks the same tables"), "{failure}");
    }
}

#[test]
fn a_group_of_one_needs_nobody() {
    let server = server();
    let joined = join(&options(&server, "alone", 1)).unwrap();
    assert_eq!((joined.rank, joined.size, joined.roads.len()), (0, 1, 1));
    assert_eq!(server.counts(), (1, 1));
    drop(joined);
    wait_for_ranks(&server, 0);
}

#[test]
fn sixty_four_ranks_are_connected_within_a_second_over_tcp() {
    let server = server();
    let options = JoinOptions {
        ways: Ways {
            direct: true,
            ..Ways::none()
        },
        ..options(&server, "tcp", 64)
    };
    let begun = Instant::now();
    let mut ranks = world(&options);
    let took = begun.elapsed();
    println!("64 ranks over TCP: {} ms", took.as_millis());
    // The promise is one second for released programs on a quiet machine; other tests run at the same time.
    assert!(took < Duration::from_secs(4), "{took:?}");
    exchange(&mut ranks);
}

#[test]
fn a_world_that_is_never_complete_ends_with_the_names_of_those_who_did_not_come() {
    let server = server();
    let options = JoinOptions {
        patience: Duration::from_millis(1500),
        ..options(&server, "incomplete", 5)
    };
    let ranks: Vec<JoinOptions> = [0, 3]
        .map(|rank| JoinOptions {
            rank: Some(rank),
            ..options.clone()
        })
        .into();
    let begun = Instant::now();
    let failures: Vec<_> = join_all(&ranks).into_iter().map(Result::unwrap_err).collect();
    assert!(begun.elapsed() < PATIENCE / 4);
    // The last to give up may be informed by the first; each error names the missing ranks.
    for failure in failures {
        assert!(failure.message.contains("3 did not come: 1, 2, 4"), "{failure}");
        assert!(matches!(failure.code, Code::TimedOut | Code::RankLost), "{failure}");
    }
}

#[test]
fn a_pair_that_cannot_connect_is_named_with_what_was_tried() {
    let server = server();
    let options = JoinOptions {
        ways: Ways::none(),
        patience: Duration::from_secs(1),
        ..options(&server, "apart", 2)
    };
    let failures: Vec<_> = join_all(&[options.clone(), options])
        .into_iter()
        .map(Result::unwrap_err)
        .collect();
    assert!(
        failures.iter().any(
            |failure| failure.message.contains("rank 0 to rank 1 (nothing could be tried)")
                || failure.message.contains("rank 1 to rank 0 (nothing could be tried)")
        ),
        "{failures:?}"
    );
}
