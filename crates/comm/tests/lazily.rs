//! Groups whose ranks connect on demand.

#[allow(dead_code)]
mod common;
#[allow(dead_code)]
#[path = "common/here.rs"]
mod here;

use std::time::{Duration, Instant};

use common::{PATIENCE, serve};
use dayfly_comm::connect::plan::Ways;
use dayfly_comm::road::Via;
use dayfly_comm::{ANY_SOURCE, ANY_TAG, Datatype, JoinOptions, Joined, Operation, Options, World};
use dayfly_protocol::error::Code;
use dayfly_rendezvous::server::{ServeOptions, Server};
use here::{join_all, options, server, world};

fn lazily(server: &Server, name: &str, size: u32) -> JoinOptions {
    JoinOptions {
        lazily: true,
        ..options(server, name, size)
    }
}

/// Runs the ranks of a group, each on its own thread, which leaves the group at its end.
fn each<T: Send>(ranks: Vec<Joined>, options: &Options, run: impl Fn(&World) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let spawn = |joined| {
            let run = &run;
            scope.spawn(move || run(&World::form(joined, options.clone()).expect("a world forms")))
        };
        let threads: Vec<_> = ranks.into_iter().map(spawn).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a rank does not panic"))
            .collect()
    })
}

/// Options for ranks that sleep while they wait, because there are more of them than cores.
fn sleeping() -> Options {
    Options {
        spin: Some(Duration::ZERO),
        ..polling()
    }
}

fn polling() -> Options {
    Options {
        deadline: PATIENCE,
        ..Options::default()
    }
}

#[test]
fn ranks_are_connected_with_those_that_they_exchange_with_and_no_others() {
    let server = server();
    for (name, options) in [("ring", polling()), ("sleeping ring", sleeping())] {
        let ways = each(world(&lazily(&server, name, 6)), &options, |world| {
            let comm = &world.communicator;
            assert_eq!(comm.ways(), [None; 6], "nobody is connected yet");
            let (next, last) = ((comm.rank() + 1) % 6, (comm.rank() + 5) % 6);
            let mut got = [0; 1];
            if comm.rank() == 0 {
                comm.send(&[1], next, 7).unwrap();
                comm.recv(&mut got, last, 7).unwrap();
            } else {
                comm.recv(&mut got, last, 7).unwrap();
                comm.send(&[got[0] + 1], next, 7).unwrap();
            }
            if comm.rank() == 0 {
                assert_eq!(got, [6]);
            }
            comm.ways()
        });
        for (rank, ways) in (0..).zip(ways) {
            let connected = |peer: u32| peer == (rank + 1) % 6 || peer == (rank + 5) % 6;
            let expected: Vec<_> = (0..6).map(|peer| connected(peer).then_some(Via::Local)).collect();
            assert_eq!(ways, expected, "of rank {rank}");
        }
    }
}

#[test]
fn every_way_connects_them_and_every_operation_works() {
    let server = server();
    let direct = Ways {
        direct: true,
        ..Ways::none()
    };
    let relay = Ways {
        relay: true,
        ..Ways::none()
    };
    for (name, ways, via) in [
        ("any", Ways::default(), Via::Local),
        ("direct", direct, Via::Direct),
        ("relay", relay, Via::Relay),
    ] {
        let options = JoinOptions {
            ways,
            ..lazily(&server, name, 4)
        };
        let found = each(world(&options), &sleeping(), |world| {
            let comm = &world.communicator;
            let own = u64::from(comm.rank());
            let mut sum = [0; 8];
            comm.allreduce(&own.to_ne_bytes(), &mut sum, Datatype::U64, &Operation::Sum)
                .unwrap();
            assert_eq!(u64::from_ne_bytes(sum), 6);
            for length in [1, 3000, 3_000_000] {
                let mut all = vec![own as u8; length];
                comm.bcast(&mut all, 2).unwrap();
                assert!(all.iter().all(|byte| *byte == 2));
                let sent = vec![own as u8; 4 * length];
                let mut got = vec![9; 4 * length];
                comm.alltoall(&sent, &mut got).unwrap();
                for (from, block) in got.chunks(length).enumerate() {
                    assert!(block.iter().all(|byte| usize::from(*byte) == from));
                }
            }
            comm.barrier().unwrap();
            comm.ways().into_iter().flatten().collect::<Vec<_>>()
        });
        for ways in found {
            assert_eq!(ways, [via; 3], "{name}: all have exchanged with all");
        }
    }
}

#[test]
fn all_may_begin_at_once_and_expect_something_from_anybody() {
    const RANKS: u32 = 8;
    let server = server();
    each(world(&lazily(&server, "crowd", RANKS)), &sleeping(), |world| {
        let comm = &world.communicator;
        let own = [comm.rank() as u8; 10_000];
        comm.scope(|scope| {
            let sends: Vec<_> = (0..RANKS)
                .filter(|peer| *peer != comm.rank())
                .map(|peer| scope.isend(&own, peer, 1).unwrap())
                .collect();
            let mut heard: Vec<u32> = (1..RANKS)
                .map(|_| {
                    let mut got = [0; 10_000];
                    let status = comm.recv(&mut got, ANY_SOURCE, ANY_TAG).unwrap();
                    assert!(got.iter().all(|byte| u32::from(*byte) == status.source));
                    status.source
                })
                .collect();
            heard.sort_unstable();
            assert_eq!(
                heard,
                (0..RANKS).filter(|peer| *peer != comm.rank()).collect::<Vec<_>>()
            );
            assert_eq!(sends.len(), 7);
            scope.wait_all()
        })
        .unwrap();
    });
}

#[test]
fn a_rank_that_has_left_without_a_word_is_named_at_once() {
    let server = server();
    let begun = Instant::now();
    let found = each(world(&lazily(&server, "left", 3)), &sleeping(), |world| {
        let comm = &world.communicator;
        match comm.rank() {
            0 => None,
            _ => Some((
                comm.recv(&mut [0; 1], 0, 1).unwrap_err(),
                comm.send(&[0; 1], 0, 1).unwrap_err(),
            )),
        }
    });
    for (received, sent) in found.into_iter().flatten() {
        for failure in [received, sent] {
            assert_eq!(failure.code, Code::RankLost);
            assert!(failure.message.contains("rank 0"), "{failure}");
        }
    }
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[test]
fn what_does_not_fit_together_is_told_to_those_concerned() {
    let server = server();
    let found = each(world(&lazily(&server, "unlike", 3)), &sleeping(), |world| {
        let comm = &world.communicator;
        match comm.rank() {
            0 => comm.bcast(&mut [0; 8], 1),
            _ => comm.barrier(),
        }
    });
    for failure in found.into_iter().map(Result::unwrap_err) {
        assert_eq!(failure.code, Code::Mismatch, "{failure}");
    }
}

#[test]
fn who_cannot_be_reached_is_lost_with_all_that_was_tried() {
    let server = server();
    let options = JoinOptions {
        ways: Ways::none(),
        patience: Duration::from_millis(700),
        ..lazily(&server, "walls", 2)
    };
    let found = each(world(&options), &sleeping(), |world| {
        let comm = &world.communicator;
        comm.send(&[1], 1 - comm.rank(), 1).unwrap_err()
    });
    for failure in found {
        assert_eq!(failure.code, Code::RankLost);
        assert!(
            failure.message.contains("nothing could be tried") || failure.message.contains("has left"),
            "{failure}"
        );
    }
}

#[test]
fn ranks_connect_lazily_all_or_none() {
    let server = server();
    let some = [lazily(&server, "some", 2), options(&server, "some", 2)].map(|options| JoinOptions {
        alike: u64::from(options.lazily),
        ..options
    });
    for failure in join_all(&some).into_iter().map(Result::unwrap_err) {
        assert_eq!(failure.code, Code::Mismatch, "{failure}");
        assert!(failure.message.contains("connect all lazily or none"), "{failure}");
    }
}

#[test]
fn a_hundred_ranks_form_a_group_with_no_connection_but_that_with_the_rendezvous() {
    const RANKS: u32 = 100;
    // All of them share these cores.
    let server = serve(ServeOptions {
        heartbeat: PATIENCE,
        ..ServeOptions::default()
    });
    let ranks = world(&lazily(&server, "many", RANKS));
    assert!(ranks.iter().all(|rank| rank.connecting < PATIENCE));
    let ways = each(ranks, &sleeping(), |world| {
        let comm = &world.communicator;
        comm.barrier().unwrap();
        comm.ways().into_iter().flatten().count()
    });
    // Seven steps of a dissemination, each with a rank ahead and a rank behind.
    assert!(ways.iter().all(|count| (7..=14).contains(count)), "{ways:?}");
}
