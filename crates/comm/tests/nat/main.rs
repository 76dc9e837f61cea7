//! Ranks behind NATs: the way that each pair finds, and the bytes over it.

#[path = "../common/mod.rs"]
mod common;
mod lab;
#[path = "../common/rate.rs"]
mod rate;
mod slow;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use common::{exchange, routes};
use dayfly_comm::connect::Trust;
use dayfly_comm::{JoinOptions, Joined, Options, World, join};
use dayfly_comm::{PeerConnection, Route};
use lab::{Host, Kind, Lab, NatBehaviour, join_on, unavailable, world_on};
use slow::{Impairment, SlowNetwork};

/// Joins a rank on each host, exchanges bytes, and returns how each pair is connected.
fn connected(hosts: &[&Host], lab: &Lab) -> Vec<Route> {
    let (_server, [address, _]) = lab.server();
    let mut ranks = world_on(hosts, address);
    exchange(&mut ranks);
    routes(&ranks).into_iter().map(|(_, route)| route).collect()
}

/// One host in each of two sites.
fn between(first: Kind, second: Kind) -> Vec<Route> {
    let lab = Lab::new();
    let sites = [first, second].map(|kind| lab.site(kind, NatBehaviour::default()));
    let hosts = [sites[0].host(), sites[1].host()];
    connected(&[&hosts[0], &hosts[1]], &lab)
}

#[test]
fn cone_nats_are_opened_from_both_sides() {
    if unavailable() {
        return;
    }
    let cones = [Kind::FullCone, Kind::AddressRestricted, Kind::PortRestricted];
    for first in cones {
        for second in cones {
            assert_eq!(between(first, second), [Route::Punched], "{first:?} to {second:?}");
        }
    }
}

#[test]
fn lazy_ranks_open_their_nats_on_demand() {
    if unavailable() {
        return;
    }
    for (kind, route) in [(Kind::PortRestricted, Route::Punched), (Kind::Symmetric, Route::Relay)] {
        let lab = Lab::new();
        let sites = [0; 2].map(|_| lab.site(kind, NatBehaviour::default()));
        let hosts = [sites[0].host(), sites[1].host()];
        let (_server, [address, _]) = lab.server();
        let options = JoinOptions {
            lazy_connect: true,
            ..common::at(address, "lazily", 2)
        };
        let ranks = join_on(&[&hosts[0], &hosts[1]], &options);
        std::thread::scope(|scope| {
            for joined in ranks {
                scope.spawn(move || {
                    let world = World::form(joined.expect("a rank joins"), Options::default()).expect("a world forms");
                    let comm = &world.communicator;
                    let other = 1 - comm.rank();
                    if comm.rank() == 0 {
                        comm.send(&[7; 1000], other, 1).expect("a send");
                    } else {
                        let mut got = [0; 1000];
                        comm.recv(&mut got, other, 1).expect("a receive");
                        assert_eq!(got, [7; 1000]);
                    }
                    assert_eq!(comm.routes()[other as usize], Some(route), "{kind:?}");
                });
            }
        });
    }
}

#[test]
fn symmetric_nat_connects_with_address_restricted_cone() {
    if unavailable() {
        return;
    }
    for cone in [Kind::FullCone, Kind::AddressRestricted] {
        assert_eq!(between(cone, Kind::Symmetric), [Route::Punched], "{cone:?}");
        assert_eq!(between(Kind::Symmetric, cone), [Route::Punched], "{cone:?}");
    }
    assert_eq!(between(Kind::Symmetric, Kind::PortRestricted), [Route::Relay]);
}

#[test]
fn two_symmetric_nats_are_relayed_without_delay() {
    if unavailable() {
        return;
    }
    let begun = Instant::now();
    assert_eq!(between(Kind::Symmetric, Kind::Symmetric), [Route::Relay]);
    println!(
        "two symmetric NATs, with the laboratory: {} ms",
        begun.elapsed().as_millis()
    );
}

#[test]
fn rank_behind_nat_dials_public_rank() {
    if unavailable() {
        return;
    }
    for kind in [Kind::PortRestricted, Kind::Symmetric] {
        let lab = Lab::new();
        let site = lab.site(kind, NatBehaviour::default());
        let (free, inside) = (lab.host(), site.host());
        assert_eq!(connected(&[&free, &inside], &lab), [Route::Direct]);
        assert_eq!(connected(&[&inside, &free], &lab), [Route::Direct]);
    }
}

#[test]
fn ranks_behind_one_nat_connect_or_are_relayed() {
    if unavailable() {
        return;
    }
    for (hairpin, isolated, route) in [
        (false, false, Route::Direct),
        (true, false, Route::Direct),
        (true, true, Route::Punched),
        (false, true, Route::Relay),
    ] {
        let lab = Lab::new();
        let site = lab.site(
            Kind::PortRestricted,
            NatBehaviour {
                hairpin,
                isolated,
                ..NatBehaviour::default()
            },
        );
        let hosts = [site.host(), site.host()];
        let behaviour = format!("hairpin {hairpin}, isolated {isolated}");
        assert_eq!(connected(&[&hosts[0], &hosts[1]], &lab), [route], "{behaviour}");
    }
}

#[test]
fn nat_behind_carrier_nat_is_opened() {
    if unavailable() {
        return;
    }
    let lab = Lab::new();
    let carrier = lab.site(Kind::PortRestricted, NatBehaviour::default());
    let home = carrier.site(Kind::PortRestricted);
    let elsewhere = lab.site(Kind::PortRestricted, NatBehaviour::default());
    let neighbour = carrier.site(Kind::PortRestricted);
    let hosts = [home.inner_host(), elsewhere.host(), neighbour.inner_host()];
    let routes = connected(&[&hosts[0], &hosts[1], &hosts[2]], &lab);
    // Two homes behind a carrier without hairpinning reach each other only by the relay.
    assert_eq!(routes, [Route::Punched, Route::Relay, Route::Punched]);
}

#[test]
fn ipv6_connects_past_ipv4_nats() {
    if unavailable() {
        return;
    }
    let lab = Lab::new();
    let sites = [0; 2].map(|_| lab.site(Kind::Symmetric, NatBehaviour::default()));
    let hosts = [sites[0].host_with_ipv6(), sites[1].host_with_ipv6()];
    let (_server, addresses) = lab.server();
    for address in addresses {
        let mut ranks = world_on(&[&hosts[0], &hosts[1]], address);
        exchange(&mut ranks);
        assert_eq!(routes(&ranks)[0].1, Route::Direct, "rendezvous at {address}");
        let Some(PeerConnection::Remote { socket, .. }) = &ranks[0].connections[1] else {
            panic!("no connection");
        };
        assert!(socket.peer_addr().unwrap().is_ipv6());
    }
}

/// Firewall rules that permit only responses.
const ANSWERS_ONLY: &str = "table inet own {
    chain inward {
        type filter hook input priority 0; policy drop;
        ct state established,related accept
        meta l4proto icmpv6 accept
    }
    chain outward {
        type filter hook output priority 0;
        meta l4proto udp drop
    }
}
";

#[test]
fn filtered_hosts_connect_and_open_host_is_dialled() {
    if unavailable() {
        return;
    }
    let lab = Lab::new();
    let hosts = [lab.host(), lab.host(), lab.host()];
    hosts[1].net.nft(ANSWERS_ONLY);
    hosts[2].net.nft(ANSWERS_ONLY);
    let routes = connected(&[&hosts[0], &hosts[1], &hosts[2]], &lab);
    assert_eq!(routes, [Route::Direct, Route::Direct, Route::Punched]);
}

#[test]
fn rank_that_reaches_only_the_rendezvous_is_relayed() {
    if unavailable() {
        return;
    }
    let lab = Lab::new();
    let hosts = [lab.host(), lab.host()];
    let (server, [address, _]) = lab.server();
    hosts[0].net.nft(ANSWERS_ONLY);
    hosts[0].net.nft(&format!(
        "table inet one {{
            chain outward {{
                type filter hook output priority 1;
                ip daddr {} accept
                meta l4proto tcp drop
            }}
        }}
        ",
        address.ip()
    ));
    let mut ranks = world_on(&[&hosts[0], &hosts[1]], address);
    exchange(&mut ranks);
    assert_eq!(routes(&ranks)[0].1, Route::Relay);
    drop(server);
}

#[test]
fn rank_with_changed_address_is_lost() {
    if unavailable() {
        return;
    }
    let lab = Lab::new();
    let sites = [0; 2].map(|_| lab.site(Kind::PortRestricted, NatBehaviour::default()));
    let hosts = [sites[0].host(), sites[1].host()];
    let (_server, [address, _]) = lab.server();
    let mut ranks = world_on(&[&hosts[0], &hosts[1]], address);
    assert_eq!(routes(&ranks)[0].1, Route::Punched);
    exchange(&mut ranks);
    sites[1].move_house();
    let begun = Instant::now();
    while ranks[0].lost.check(1).is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(5), "nobody heard of it");
        std::thread::sleep(Duration::from_millis(5));
    }
    println!("the other heard after {} ms", begun.elapsed().as_millis());
    // Both ends of the connection fail by themselves, although neither writes.
    for rank in &mut ranks {
        for connection in rank.connections.iter_mut().flatten() {
            let PeerConnection::Remote { socket, .. } = connection else {
                panic!("no connection");
            };
            socket.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
            let ended = socket.read(&mut [0; 1]);
            let timed_out = |error: &std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
            assert!(
                !ended.as_ref().is_err_and(timed_out),
                "{ended:?} after {:?}",
                begun.elapsed()
            );
        }
    }
}

#[test]
fn thirty_two_ranks_in_eight_networks_connect_quickly() {
    if unavailable() {
        return;
    }
    let lab = Lab::new();
    let mut hosts = Vec::new();
    let sites: Vec<_> = (0..8)
        .map(|at| {
            let kind = [
                Kind::PortRestricted,
                Kind::FullCone,
                Kind::AddressRestricted,
                Kind::Symmetric,
            ][at % 4];
            let site = lab.site(kind, NatBehaviour::default());
            hosts.extend((0..4).map(|_| (at, kind, site.host())));
            site
        })
        .collect();
    let (_server, [address, _]) = lab.server();
    let all: Vec<&Host> = hosts.iter().map(|(.., host)| host).collect();
    let begun = Instant::now();
    let mut ranks = world_on(&all, address);
    let took = begun.elapsed();
    println!("32 ranks in 8 networks: {} ms", took.as_millis());
    assert!(took < Duration::from_secs(5), "{took:?}");
    exchange(&mut ranks);
    let mut lucky = Vec::new();
    for ((low, high), route) in routes(&ranks) {
        let ((site, kind, _), (other_site, other, _)) = (&hosts[low as usize], &hosts[high as usize]);
        let symmetric = [kind, other].iter().filter(|kind| ***kind == Kind::Symmetric).count();
        let port_restricted = [kind, other].contains(&&Kind::PortRestricted);
        let expected = match symmetric {
            _ if site == other_site => Route::Direct,
            0 => Route::Punched,
            1 if !port_restricted => Route::Punched,
            _ => Route::Relay,
        };
        let pair = format!("{kind:?} in site {site} to {other:?} in site {other_site}");
        if (route, expected) == (Route::Punched, Route::Relay) {
            lucky.push(pair);
        } else {
            assert_eq!(route, expected, "{pair}");
        }
    }
    // A symmetric NAT sometimes picks at random the very port that the other side expects.
    assert!(lucky.len() <= 1, "{lucky:?}");
    drop(sites);
}

#[test]
fn symmetric_nats_without_relay_report_attempts() {
    if unavailable() {
        return;
    }
    let lab = Lab::new();
    let sites = [0; 2].map(|_| lab.site(Kind::Symmetric, NatBehaviour::default()));
    let hosts = [sites[0].host(), sites[1].host()];
    let (_server, [address, _]) = lab.server();
    let mut options = JoinOptions {
        patience: Duration::from_secs(2),
        ..common::at(address, "none", 2)
    };
    options.routes.relay = false;
    let failures = join_on(&[&hosts[0], &hosts[1]], &options)
        .into_iter()
        .map(Result::unwrap_err);
    let text: String = failures.map(|failure| failure.message).collect();
    // The first rank to give up informs the other.
    let pairs = ["rank 0 to rank 1 (", "rank 1 to rank 0 ("];
    assert!(pairs.iter().any(|pair| text.contains(pair)), "{text}");
    assert!(text.contains("by simultaneous open: no response"), "{text}");
}

#[test]
fn distant_pair_behind_nats_connects_in_four_roundtrips() {
    if unavailable() {
        return;
    }
    let one_way = Duration::from_millis(20);
    let impairment = Impairment {
        one_way,
        ..Impairment::default()
    };
    let network = SlowNetwork::new(impairment);
    // Other tests may take the processor at the wrong moment, but not every time.
    let slowest = (0..3).map(|_| {
        let mut ranks = network.world(&[Kind::PortRestricted, Kind::PortRestricted], NatBehaviour::default());
        assert_eq!(routes(&ranks)[0].1, Route::Punched);
        exchange(&mut ranks);
        ranks.iter().map(|rank| rank.connecting).max().expect("two ranks")
    });
    let best = slowest.min().expect("three worlds");
    println!(
        "connected after {} ms; four round trips are {}",
        best.as_millis(),
        one_way.as_millis() * 8
    );
    assert!(best < one_way * 8, "{best:?}");
}

#[test]
fn group_forms_despite_lost_and_reordered_packets() {
    if unavailable() {
        return;
    }
    let network = SlowNetwork::new(Impairment {
        one_way: Duration::from_millis(5),
        jitter: Duration::from_millis(10),
        lost_of_1000: 50,
    });
    let mut ranks = network.world(
        &[Kind::PortRestricted, Kind::FullCone, Kind::Symmetric, Kind::Symmetric],
        NatBehaviour::default(),
    );
    // A lost packet may prevent one way in time; then another way is used.
    println!("{:?}", routes(&ranks));
    exchange(&mut ranks);
}

fn ends(ranks: &[Joined]) -> (&TcpStream, &TcpStream) {
    (
        rate::socket(&ranks[0].connections[1]),
        rate::socket(&ranks[1].connections[0]),
    )
}

#[test]
fn relay_throughput_is_near_a_direct_stream() {
    if unavailable() {
        return;
    }
    let lab = Lab::new();
    let hosts = [lab.host(), lab.host()];
    let (_server, [address, _]) = lab.server();
    let mut options = JoinOptions {
        trust: Trust::Fabric,
        ..common::at(address, "rate", 2)
    };
    let all = join_on(&[&hosts[0], &hosts[1]], &options);
    let direct: Vec<Joined> = all.into_iter().map(Result::unwrap).collect();
    options.routes.direct = false;
    options.routes.punch = false;
    options.name = "relayed".into();
    let all = join_on(&[&hosts[0], &hosts[1]], &options);
    let relayed: Vec<Joined> = all.into_iter().map(Result::unwrap).collect();
    let shares = rate::shares(ends(&direct), ends(&relayed));
    assert!(shares[shares.len() - 1] > 0.2, "{shares:?}");
}

/// The port on which the only process of a host listens.
fn listening(host: &Host) -> Option<u16> {
    // Columns in hexadecimal: number, own address and port, the peer's, state.
    let table = host
        .net
        .within(|| std::fs::read_to_string("/proc/thread-self/net/tcp").expect("a table"));
    table.lines().skip(1).find_map(|line| {
        let mut columns = line.split_whitespace().skip(1);
        let (_, port) = columns.next()?.split_once(':')?;
        (columns.nth(1)? == "0A").then(|| u16::from_str_radix(port, 16).ok())?
    })
}

#[test]
fn strangers_at_a_listener_do_not_prevent_connecting() {
    if unavailable() {
        return;
    }
    let lab = Lab::new();
    let (server, [address, _]) = lab.server();
    let (first, second, stranger) = (lab.host(), lab.host(), lab.host());
    let options = |rank| JoinOptions {
        rank: Some(rank),
        ..common::at(address, "door", 2)
    };
    let mut ranks = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| first.net.within(|| join(&options(0))));
        let begun = Instant::now();
        let port = loop {
            match listening(&first) {
                Some(port) => break port,
                None => assert!(begun.elapsed() < common::TIMEOUT, "it does not listen"),
            }
        };
        let addresses = first.net.within(dayfly_comm::connect::host::addresses);
        let door = SocketAddr::new(addresses[0], port);
        let callers: Vec<TcpStream> = stranger.net.within(|| {
            let call = |at: usize| {
                let mut socket = TcpStream::connect(door).expect("it listens");
                // Silent ones, half a hello, and an invalid one.
                socket
                    .write_all(
                        &b"DFRK\x01\x01 no hello of ours, but as long as one has to be............."[..at % 3 * 32],
                    )
                    .expect("it takes that");
                socket
            };
            (0..100).map(call).collect()
        });
        let joined = second.net.within(|| join(&options(1)));
        drop(callers);
        vec![
            waiting.join().expect("no panic").expect("it joins"),
            joined.expect("it joins"),
        ]
    });
    assert_eq!(routes(&ranks)[0].1, Route::Direct);
    exchange(&mut ranks);
    drop(server);
}

#[test]
fn nats_that_send_resets_are_opened() {
    if unavailable() {
        return;
    }
    let resets = NatBehaviour {
        resets: true,
        ..NatBehaviour::default()
    };
    let network = SlowNetwork::new(Impairment {
        one_way: Duration::from_millis(20),
        ..Impairment::default()
    });
    let mut ranks = network.world(&[Kind::PortRestricted, Kind::PortRestricted, Kind::FullCone], resets);
    assert!(
        routes(&ranks).iter().all(|(_, route)| *route == Route::Punched),
        "{:?}",
        routes(&ranks)
    );
    exchange(&mut ranks);
}
