//! Throughput of the relay, compared with a direct connection in the same run.

mod common;
#[path = "common/local_group.rs"]
mod local_group;
#[path = "common/rate.rs"]
mod rate;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use common::{TIMEOUT, exchange, routes};
use dayfly_comm::JoinOptions;
use dayfly_comm::Route;
use dayfly_comm::connect::Trust;
use dayfly_comm::connect::plan::RouteOptions;
use local_group::{options, server, wait_for_ranks, world};
use rate::{shares, socket};

fn plain() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

#[test]
fn relay_reaches_a_share_of_direct_throughput() {
    let server = server();
    let options = JoinOptions {
        routes: RouteOptions {
            relay: true,
            ..RouteOptions::none()
        },
        // Without this, TLS would be measured.
        trust: Trust::Fabric,
        ..options(&server, "rate", 2)
    };
    let mut ranks = world(&options);
    assert_eq!(routes(&ranks)[0].1, Route::Relay);
    exchange(&mut ranks);
    let (near, far) = plain();
    let connections = (socket(&ranks[0].connections[1]), socket(&ranks[1].connections[0]));
    let shares = shares((&near, &far), connections);
    // Detects a relay that copies byte by byte; benchmarks measure the actual throughput.
    assert!(shares[shares.len() - 1] > 0.2, "{shares:?}");
}

#[test]
fn closing_one_relay_half_closes_the_other() {
    let server = server();
    let options = JoinOptions {
        routes: RouteOptions {
            relay: true,
            ..RouteOptions::none()
        },
        trust: Trust::Fabric,
        ..options(&server, "half", 2)
    };
    let mut ranks = world(&options);
    let last = ranks.pop().unwrap();
    let mut left = socket(&ranks[0].connections[1]);
    // One direction may end while the other continues.
    left.shutdown(std::net::Shutdown::Write).unwrap();
    let mut right = socket(&last.connections[0]);
    right.set_read_timeout(Some(TIMEOUT)).unwrap();
    assert_eq!(right.read(&mut [0; 1]).unwrap(), 0);
    right.write_all(b"still here").unwrap();
    let mut heard = [0; 10];
    left.set_read_timeout(Some(TIMEOUT)).unwrap();
    left.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"still here");
    drop(last);
    assert_eq!(left.read(&mut heard).unwrap(), 0);
    drop(ranks);
    wait_for_ranks(&server, 0);
}
