//! Groups on one host: how they form, and why some do not.

mod common;
#[path = "common/local_group.rs"]
mod local_group;

use std::time::{Duration, Instant};

use common::{TIMEOUT, exchange, routes};
use dayfly_comm::Route;
use dayfly_comm::connect::Trust;
use dayfly_comm::connect::plan::RouteOptions;
use dayfly_comm::{JoinOptions, join};
use dayfly_protocol::error::Code;
use local_group::{join_all, options, server, wait_for_ranks, world};

#[test]
fn ranks_of_one_host_use_local_sockets() {
    let server = server();
    let mut ranks = world(&options(&server, "local", 5));
    assert!(routes(&ranks).iter().all(|(_, route)| *route == Route::Local));
    assert!(ranks.iter().all(|rank| rank.hosts == [0; 5]));
    exchange(&mut ranks);
}

#[test]
fn each_route_alone_connects_all_ranks() {
    let server = server();
    let direct = RouteOptions {
        direct: true,
        ..RouteOptions::none()
    };
    let relay = RouteOptions {
        relay: true,
        ..RouteOptions::none()
    };
    for (name, allowed, route) in [("direct", direct, Route::Direct), ("relay", relay, Route::Relay)] {
        for trust in [Trust::Nobody, Trust::Fabric] {
            let options = JoinOptions {
                routes: allowed,
                trust,
                ..options(&server, name, 4)
            };
            let mut ranks = world(&options);
            assert!(routes(&ranks).iter().all(|(_, found)| *found == route), "{name}");
            exchange(&mut ranks);
            drop(ranks);
        }
    }
}

#[test]
fn ranks_with_different_settings_do_not_join() {
    let server = server();
    let options = options(&server, "unlike", 2);
    let other = JoinOptions {
        settings_digest: 7,
        ..options.clone()
    };
    for failure in join_all(&[options, other]).into_iter().map(Result::unwrap_err) {
        assert_eq!(failure.code, Code::Mismatch, "{failure}");
        assert!(failure.message.contains("give all ranks the same tables"), "{failure}");
    }
}

#[test]
fn group_of_one_forms_alone() {
    let server = server();
    let joined = join(&options(&server, "alone", 1)).unwrap();
    assert_eq!((joined.rank, joined.size, joined.connections.len()), (0, 1, 1));
    assert_eq!(server.counts(), (1, 1));
    drop(joined);
    wait_for_ranks(&server, 0);
}

#[test]
fn sixty_four_tcp_ranks_connect_within_a_second() {
    let server = server();
    let options = JoinOptions {
        routes: RouteOptions {
            direct: true,
            ..RouteOptions::none()
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
fn incomplete_group_times_out_naming_missing_ranks() {
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
    assert!(begun.elapsed() < TIMEOUT / 4);
    // The last to give up may be informed by the first; each error names the missing ranks.
    for failure in failures {
        assert!(failure.message.contains("3 did not come: 1, 2, 4"), "{failure}");
        assert!(matches!(failure.code, Code::TimedOut | Code::RankLost), "{failure}");
    }
}

#[test]
fn unconnected_pair_is_reported_with_its_attempts() {
    let server = server();
    let options = JoinOptions {
        routes: RouteOptions::none(),
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
