//! Groups whose ranks connect on demand.

#[allow(dead_code)]
mod common;
#[allow(dead_code)]
#[path = "common/local_group.rs"]
mod local_group;

use std::time::{Duration, Instant};

use bytes::Bytes;
use common::{TIMEOUT, serve};
use dayfly_comm::Route;
use dayfly_comm::connect::plan::RouteOptions;
use dayfly_comm::post::{Post, PostOptions};
use dayfly_comm::{ANY_SOURCE, ANY_TAG, Datatype, JoinOptions, Joined, Operation, Options, World};
use dayfly_protocol::error::Code;
use dayfly_rendezvous::server::{ServeOptions, Server};
use local_group::{join_all, options, server, world};

fn lazy_options(server: &Server, name: &str, size: u32) -> JoinOptions {
    JoinOptions {
        lazy_connect: true,
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
        deadline: TIMEOUT,
        ..Options::default()
    }
}

#[test]
fn lazy_ranks_connect_only_on_use() {
    let server = server();
    for (name, options) in [("ring", polling()), ("sleeping ring", sleeping())] {
        let routes = each(world(&lazy_options(&server, name, 6)), &options, |world| {
            let comm = &world.communicator;
            assert_eq!(comm.routes(), [None; 6], "nobody is connected yet");
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
            comm.routes()
        });
        for (rank, routes) in (0..).zip(routes) {
            let connected = |peer: u32| peer == (rank + 1) % 6 || peer == (rank + 5) % 6;
            let expected: Vec<_> = (0..6).map(|peer| connected(peer).then_some(Route::Local)).collect();
            assert_eq!(routes, expected, "of rank {rank}");
        }
    }
}

#[test]
fn posts_connect_ranks_on_demand() {
    let server = server();
    for (name, options) in [("posts", polling()), ("sleeping posts", sleeping())] {
        each(world(&lazy_options(&server, name, 5)), &options, |world| {
            let post = Post::open(&world.communicator, PostOptions::default()).unwrap();
            let deadline = Instant::now() + TIMEOUT;
            for bytes in [10, 20_000, 300_000] {
                for to in 0..post.size() {
                    let part = Bytes::from(vec![post.rank() as u8; bytes]);
                    drop(post.send(to, 1, vec![part]).unwrap());
                }
                for _ in 0..post.size() {
                    let message = post.receive(1, deadline).unwrap();
                    let own = message.from() as u8;
                    assert!(message.parts()[0].iter().all(|byte| *byte == own));
                }
            }
            post.close(deadline).unwrap();
            let connected = world.communicator.routes().into_iter().flatten().count();
            assert_eq!(connected, 4, "this rank has sent to all others");
        });
    }
}

#[test]
fn lazy_ranks_run_every_operation_over_every_route() {
    let server = server();
    let direct = RouteOptions {
        direct: true,
        ..RouteOptions::none()
    };
    let relay = RouteOptions {
        relay: true,
        ..RouteOptions::none()
    };
    for (name, routes, route) in [
        ("any", RouteOptions::default(), Route::Local),
        ("direct", direct, Route::Direct),
        ("relay", relay, Route::Relay),
    ] {
        let options = JoinOptions {
            routes,
            ..lazy_options(&server, name, 4)
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
            comm.routes().into_iter().flatten().collect::<Vec<_>>()
        });
        for used in found {
            assert_eq!(used, [route; 3], "{name}: all have exchanged with all");
        }
    }
}

#[test]
fn lazy_ranks_may_all_receive_from_any_source() {
    const RANKS: u32 = 8;
    let server = server();
    each(world(&lazy_options(&server, "crowd", RANKS)), &sleeping(), |world| {
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
fn lazy_rank_that_left_is_named_at_once() {
    let server = server();
    let begun = Instant::now();
    let found = each(world(&lazy_options(&server, "left", 3)), &sleeping(), |world| {
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
fn lazy_mismatch_is_reported_to_involved_ranks() {
    let server = server();
    let found = each(world(&lazy_options(&server, "unlike", 3)), &sleeping(), |world| {
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
fn unreachable_lazy_rank_is_lost_with_its_attempts() {
    let server = server();
    let options = JoinOptions {
        routes: RouteOptions::none(),
        patience: Duration::from_millis(700),
        ..lazy_options(&server, "walls", 2)
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
fn lazy_and_eager_ranks_do_not_join() {
    let server = server();
    let some = [lazy_options(&server, "some", 2), options(&server, "some", 2)].map(|options| JoinOptions {
        settings_digest: u64::from(options.lazy_connect),
        ..options
    });
    for failure in join_all(&some).into_iter().map(Result::unwrap_err) {
        assert_eq!(failure.code, Code::Mismatch, "{failure}");
        assert!(failure.message.contains("connect all lazily or none"), "{failure}");
    }
}

#[test]
fn hundred_lazy_ranks_form_without_peer_connections() {
    const RANKS: u32 = 100;
    // All of them share these cores.
    let server = serve(ServeOptions {
        heartbeat: TIMEOUT,
        ..ServeOptions::default()
    });
    let ranks = world(&lazy_options(&server, "many", RANKS));
    assert!(ranks.iter().all(|rank| rank.connecting < TIMEOUT));
    let routes = each(ranks, &sleeping(), |world| {
        let comm = &world.communicator;
        comm.barrier().unwrap();
        comm.routes().into_iter().flatten().count()
    });
    // Seven steps of a dissemination, each with a rank ahead and a rank behind.
    assert!(routes.iter().all(|count| (7..=14).contains(count)), "{routes:?}");
}
