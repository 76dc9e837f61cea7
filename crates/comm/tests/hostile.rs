//! Malformed and hostile clients of the rendezvous, which must not affect the others.

mod common;
#[path = "common/local_group.rs"]
mod local_group;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use common::{SECRET, TIMEOUT, at, exchange, routes, serve};
use dayfly_comm::{JoinOptions, join};
use dayfly_protocol::error::Code;
use dayfly_protocol::ids::PublicKey;
use dayfly_rendezvous::client::RendezvousClient;
use dayfly_rendezvous::keys::GroupKeys;
use dayfly_rendezvous::messages::{FromRank, Join, Sealed, ToRank, VERSION};
use dayfly_rendezvous::server::{ServeOptions, Server};
use local_group::{join_all, options, server, wait_for_ranks, world};

/// Reads until the other end closes.
fn until_closed(mut socket: &TcpStream) -> Duration {
    let begun = Instant::now();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut rest = Vec::new();
    // A reset is an end too.
    let ended = socket.read_to_end(&mut rest);
    assert!(
        !ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock),
        "still open"
    );
    begun.elapsed()
}

#[test]
fn silent_and_malformed_clients_are_dropped() {
    let server = serve(ServeOptions {
        patience: Duration::from_millis(700),
        ..ServeOptions::default()
    });
    let address = server.addresses()[0];
    let call = |first: &[u8]| {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.write_all(first).unwrap();
        socket
    };
    let silent: Vec<TcpStream> = (0..200).map(|_| call(b"")).collect();
    // The beginning of a handshake, of a relay ticket, and of something else.
    let half: Vec<TcpStream> = [
        &b"\x16\x03\x01\x02"[..],
        b"DFRL1234",
        b"GET / HTTP/1.1\r\n\r\n",
        &[0xff; 5000],
    ]
    .map(call)
    .into();
    let mut ranks = world(&at(address, "unmoved", 8));
    assert_eq!(routes(&ranks).len(), 28);
    exchange(&mut ranks);
    for socket in silent.iter().chain(&half) {
        assert!(until_closed(socket) < Duration::from_secs(5));
    }
}

#[test]
fn silent_rank_is_lost_within_a_heartbeat() {
    let server = server();
    let keys = GroupKeys::new("silent", "", SECRET).unwrap();
    let deadline = Instant::now() + TIMEOUT;
    let mut silent = contact(&server.addresses()[0].to_string(), &keys);
    silent.send(&joining("silent", 3, Some(2))).unwrap();
    assert!(matches!(silent.wait(deadline), Ok(Some(ToRank::Seat { .. }))));
    let begun = Instant::now();
    let failure = join(&JoinOptions {
        rank: Some(0),
        ..options(&server, "silent", 3)
    })
    .unwrap_err();
    assert_eq!(failure.code, Code::RankLost);
    assert!(
        failure
            .message
            .contains("rank 2 was lost while the group formed: it was silent"),
        "{failure}"
    );
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
}

fn contact(server: &str, keys: &GroupKeys) -> RendezvousClient {
    RendezvousClient::open(server, None, keys, Instant::now() + TIMEOUT).unwrap()
}

fn joining(name: &str, size: u32, rank: Option<u32>) -> FromRank {
    FromRank::Join(Join {
        version: VERSION,
        name: name.into(),
        run: String::new(),
        size,
        rank,
    })
}

#[test]
fn rank_with_another_secret_is_refused() {
    let server = server();
    let right = options(&server, "guarded", 2);
    let first = {
        let right = right.clone();
        std::thread::spawn(move || join(&right))
    };
    let wrong = JoinOptions {
        secret: b"another secret of enough bytes".to_vec(),
        ..right.clone()
    };
    wait_for_ranks(&server, 1);
    let failure = join(&wrong).unwrap_err();
    assert_eq!(failure.code, Code::Unauthorized);
    assert!(
        failure.message.contains("`guarded` already exists with another secret"),
        "{failure}"
    );
    let second = join(&right).unwrap();
    assert_eq!(second.rank + first.join().unwrap().unwrap().rank, 1);
}

#[test]
fn two_runs_of_one_name_form_concurrently() {
    let server = server();
    let mut all = Vec::new();
    for run in ["monday", "tuesday"] {
        let options = JoinOptions {
            run: run.into(),
            ..options(&server, "daily", 3)
        };
        all.extend(vec![options; 3]);
    }
    let mut joined: Vec<_> = join_all(&all).into_iter().map(Result::unwrap).collect();
    let mut second = joined.split_off(3);
    joined.sort_by_key(|rank| rank.rank);
    second.sort_by_key(|rank| rank.rank);
    exchange(&mut joined);
    exchange(&mut second);
}

#[test]
fn stale_and_duplicate_ranks_are_refused() {
    let server = server();
    let options = JoinOptions {
        run: "first".into(),
        ..options(&server, "job", 2)
    };
    let ranks = world(&options);
    let failure = join(&options).unwrap_err();
    assert!(
        failure.message.contains("surplus or left over from an earlier run"),
        "{failure}"
    );
    drop(ranks);
    let failure = join(&options).unwrap_err();
    assert!(
        failure.message.contains("run `first` of group `job` has ended"),
        "{failure}"
    );
    let again = JoinOptions {
        run: "second".into(),
        rank: Some(1),
        ..options
    };
    let results = join_all(&[again.clone(), again.clone(), JoinOptions { rank: Some(0), ..again }]);
    let failures: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert!(
        failures[0].message.contains("rank 1 of group `job` has already joined")
            || failures[0].message.contains("has all its 2 ranks"),
        "{failures:?}"
    );
}

#[test]
fn rendezvous_with_unpinned_key_is_refused() {
    let server = server();
    let pinned = JoinOptions {
        server_key: Some(server.key()),
        ..options(&server, "pinned", 1)
    };
    assert!(join(&pinned).is_ok());
    let wrong = JoinOptions {
        server_key: Some(PublicKey([3; 32])),
        ..pinned
    };
    let failure = join(&wrong).unwrap_err();
    assert_eq!(failure.code, Code::Unauthorized, "{failure}");
}

#[test]
fn card_without_the_groups_key_is_refused() {
    let server = server();
    // The key that admits it belongs to the name; the key among ranks belongs to the run.
    let keys = GroupKeys::new("sealed", "other run", SECRET).unwrap();
    let deadline = Instant::now() + TIMEOUT;
    let mut forger = contact(&server.addresses()[0].to_string(), &keys);
    forger.send(&joining("sealed", 2, Some(1))).unwrap();
    let Ok(Some(ToRank::Seat { seat, .. })) = forger.wait(deadline) else {
        panic!("no seat");
    };
    let honest = {
        let options = JoinOptions {
            rank: Some(0),
            ..options(&server, "sealed", 2)
        };
        std::thread::spawn(move || join(&options))
    };
    let nonce: [u8; 16] = hex::decode(&seat.nonce).unwrap().try_into().unwrap();
    let card = "{}".to_owned();
    let mac = hex::encode(keys.seal_card(&nonce, 1, 2, &card));
    forger.send(&FromRank::Card(Sealed { card, mac })).unwrap();
    assert!(matches!(forger.wait(deadline), Ok(Some(ToRank::World { .. }))));
    let failure = honest.join().unwrap().unwrap_err();
    assert_eq!(failure.code, Code::Unauthorized);
    assert!(
        failure
            .message
            .contains("the card of rank 1 was not made with this group's secret"),
        "{failure}"
    );
}

#[test]
fn group_of_a_thousand_ranks_forms() {
    // One thread keeps all of them alive, which takes time.
    let patient = ServeOptions {
        heartbeat: TIMEOUT,
        ..ServeOptions::default()
    };
    let server = Server::start(patient).unwrap();
    let keys = GroupKeys::new("many", "", SECRET).unwrap();
    let address = server.addresses()[0].to_string();
    let size = 1000;
    let begun = Instant::now();
    let mut waiting: Vec<RendezvousClient> = Vec::new();
    for rank in 0..size {
        let mut contact = contact(&address, &keys);
        contact.send(&joining("many", size, Some(rank))).unwrap();
        contact.pump().unwrap();
        waiting.push(contact);
        // One thread keeps all of them alive.
        for other in &mut waiting {
            if other.next_ping().is_none_or(|ping| ping < Instant::now()) {
                other.pump().unwrap();
                while let Some(message) = other.take().unwrap() {
                    seated(other, &message);
                }
            }
        }
    }
    let mut worlds = 0;
    while worlds < size {
        assert!(begun.elapsed() < TIMEOUT, "{worlds} of {size}");
        for contact in &mut waiting {
            contact.pump().unwrap();
            while let Some(message) = contact.take().unwrap() {
                seated(contact, &message);
                if let ToRank::World { cards } = message {
                    assert_eq!(cards.len(), size as usize);
                    worlds += 1;
                }
            }
        }
    }
    println!("{size} ranks: {} ms", begun.elapsed().as_millis());
}

fn seated(contact: &mut RendezvousClient, message: &ToRank) {
    if let ToRank::Seat { heartbeat_ms, .. } = message {
        contact.keep_alive(Duration::from_millis(*heartbeat_ms));
        let card = Sealed {
            card: "x".repeat(300),
            mac: "y".repeat(64),
        };
        contact.send(&FromRank::Card(card)).unwrap();
        contact.pump().unwrap();
    }
}
