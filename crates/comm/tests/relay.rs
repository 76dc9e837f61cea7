//! Throughput of the relay, compared with a direct connection in the same run.

mod common;
#[path = "common/here.rs"]
mod here;
#[path = "common/rate.rs"]
mod rate;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use common::{PATIENCE, exchange, vias};
use dayfly_comm::JoinOptions;
use dayfly_comm::connect::Trust;
use dayfly_comm::connect::plan::Ways;
use dayfly_comm::road::Via;
use here::{options, server, wait_for_ranks, world};
use rate::{shares, socket};

fn plain() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

#[test]
fn what_is_relayed_comes_at_a_rate_worth_having() {
    let server = server();
    let options = JoinOptions {
        ways: Ways {
            relay: true,
            ..Ways::none()
        },
        // Without this, TLS would be measured.
        trust: Trust::Fabric,
        ..options(&server, "rate", 2)
    };
    let mut ranks = world(&options);
    assert_eq!(vias(&ranks)[0].1, Via::Relay);
    exchange(&mut ranks);
    let (near, far) = plain();
    let roads = (socket(&ranks[0].roads[1]), socket(&ranks[1].roads[0]));
    let shares = shares((&near, &far), roads);
    // Detects a relay that copies byte by byte; benchmarks measure the actual throughput.
    assert!(shares[shares.len() - 1] > 0.2, "{shares:?}");
}

#[test]
fn the_end_of_one_half_is_the_end_of_the_other() {
    let server = server();
    let options = JoinOptions {
        ways: Ways {
            relay: true,
            ..Ways::none()
        },
        trust: Trust::Fabric,
        ..options(&server, "half", 2)
    };
    let mut ranks = world(&options);
    let last = ranks.pop().unwrap();
    let mut left = socket(&ranks[0].roads[1]);
    // One direction may end while the other continues.
    left.shutdown(std::net::Shutdown::Write).unwrap();
    let mut right = socket(&last.roads[0]);
    right.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(right.read(&mut [0; 1]).unwrap(), 0);
    right.write_all(b"still here").unwrap();
    let mut heard = [0; 10];
    left.set_read_timeout(Some(PATIENCE)).unwrap();
    left.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"still here");
    drop(last);
    assert_eq!(left.read(&mut heard).unwrap(), 0);
    drop(ranks);
    wait_for_ranks(&server, 0);
}
