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

use common::{exchange, vias};
use dayfly_comm::connect::Trust;
use dayfly_comm::road::{Road, Via};
use dayfly_comm::{JoinOptions, Joined, Options, World, join};
use lab::{Habits, Host, Kind, Lab, join_on, unavailable, world_on};
use slow::{Sea, Weather};

/// Joins a rank on each host, exchanges bytes, and returns how each pair is connected.
fn connected(hosts: &[&Host], lab: &Lab) -> Vec<Via> {
    let (_server, [address, _]) = lab.server();
    let mut ranks = world_on(hosts, address);
    exchange(&mut ranks);
    vias(&ranks).into_iter().map(|(_, via)| via).collect()
}

/// One host in each of two sites.
fn between(first: Kind, second: Kind) -> Vec<Via> {
    let lab = Lab::new();
    let sites = [first, second].map(|kind| lab.site(kind, Habits::default()));
    let hosts = [sites[0].host(), sites[1].host()];
    connected(&[&hosts[0], &hosts[1]], &lab)
}

#[test]
fn cones_of_every_kind_are_opened_from_both_sides() {
    if unavailable() {
        return;
    }
    let cones = [Kind::FullCone, Kind::AddressRestricted, Kind::PortRestricted];
    for first in cones {
        for second in cones {
            assert_eq!(between(first, second), [Via::Punched], "{first:?} to {second:?}");
        }
    }
}

#[test]
fn ranks_that_connect_when_they_need_each_other_open_their_nats_then() {
    if unavailable() {
        return;
    }
    for (kind, via) in [(Kind::PortRestricted, Via::Punched), (Kind::Symmetric, Via::Relay)] {
        let lab = Lab::new();
        let sites = [0; 2].map(|_| lab.site(kind, Habits::default()));
        let hosts = [sites[0].host(), sites[1].host()];
        let (_server, [address, _]) = lab.server();
        let options = JoinOptions {
            lazily: true,
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
                    assert_eq!(comm.ways()[other as usize], Some(via), "{kind:?}");
                });
            }
        });
    }
}

#[test]
fn a_symmetric_nat_meets_cones_that_do_not_look_at_ports() {
    if unavailable() {
        return;
    }
    for cone in [Kind::FullCone, Kind::AddressRestricted] {
        assert_eq!(between(cone, Kind::Symmetric), [Via::Punched], "{cone:?}");
        assert_eq!(between(Kind::Symmetric, cone), [Via::Punched], "{cone:?}");
    }
    assert_eq!(between(Kind::Symmetric, Kind::PortRestricted), [Via::Relay]);
}

#[test]
fn two_symmetric_nats_end_on_the_relay_without_a_wait() {
    if unavailable() {
        return;
    }
    let begun = Instant::now();
    assert_eq!(between(Kind::Symmetric, Kind::Symmetric), [Via::Relay]);
    println!(
        "two symmetric NATs, with the laboratory: {} ms",
        begun.elapsed().as_millis()
    );
}

#[test]
fn one_behind_a_nat_dials_one_that_is_not() {
    if unavailable() {
        return;
    }
    for kind in [Kind::PortRestricted, Kind::Symmetric] {
        let lab = Lab::new();
        let site = lab.site(kind, Habits::default());
        let (free, inside) = (lab.host(), site.host());
        assert_eq!(connected(&[&free, &inside], &lab), [Via::Direct]);
        assert_eq!(connected(&[&inside, &free], &lab), [Via::Direct]);
    }
}

#[test]
fn neighbours_behind_one_nat_find_each_other_inside_or_around_it_or_by_the_relay() {
    if unavailable() {
        return;
    }
    for (hairpin, isolated, via) in [
        (false, false, Via::Direct),
        (true, false, Via::Direct),
        (true, true, Via::Punched),
        (false, true, Via::Relay),
    ] {
        let lab = Lab::new();
        let site = lab.site(
            Kind::PortRestricted,
            Habits {
                hairpin,
                isolated,
                ..Habits::default()
            },
        );
        let hosts = [site.host(), site.host()];
        let habits = format!("hairpin {hairpin}, isolated {isolated}");
        assert_eq!(connected(&[&hosts[0], &hosts[1]], &lab), [via], "{habits}");
    }
}

#[test]
fn a_nat_behind_a_carriers_nat_is_opened_too() {
    if unavailable() {
        return;
    }
    let lab = Lab::new();
    let carrier = lab.site(Kind::PortRestricted, Habits::default());
    let home = carrier.site(Kind::PortRestricted);
    let elsewhere = lab.site(Kind::PortRestricted, Habits::default());
    let neighbour = carrier.site(Kind::PortRestricted);
    let hosts = [home.inner_host(), elsewhere.host(), neighbour.inner_host()];
    let vias = connected(&[&hosts[0], &hosts[1], &hosts[2]], &lab);
    // Two homes behind a carrier without hairpinning reach each other only by the relay.
    assert_eq!(vias, [Via::Punched, Via::Relay, Via::Punched]);
}

#[test]
fn ipv6_needs_no_nat_and_goes_around_those_there_are() {
    if unavailable() {
        return;
    }
    let lab = Lab::new();
    let sites = [0; 2].map(|_| lab.site(Kind::Symmetric, Habits::default()));
    let hosts = [sites[0].host_with_ipv6(), sites[1].host_with_ipv6()];
    let (_server, addresses) = lab.server();
    for address in addresses {
        let mut ranks = world_on(&[&hosts[0], &hosts[1]], address);
        exchange(&mut ranks);
        assert_eq!(vias(&ranks)[0].1, Via::Direct, "rendezvous at {address}");
        let Some(Road::Remote { socket, .. }) = &ranks[0].roads[1] else {
            panic!("no road");
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
fn hosts_that_let_nobody_in_open_to_each_other_and_one_that_lets_somebody_is_dialled() {
    if unavailable() {
        return;
    }
    let lab = Lab::new();
    let hosts = [lab.host(), lab.host(), lab.host()];
    hosts[1].net.nft(ANSWERS_ONLY);
    hosts[2].net.nft(ANSWERS_ONLY);
    let vias = connected(&[&hosts[0], &hosts[1], &hosts[2]], &lab);
    assert_eq!(vias, [Via::Direct, Via::Direct, Via::Punched]);
}

#[test]
fn who_reaches_the_rendezvous_alone_is_relayed() {
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
    assert_eq!(vias(&ranks)[0].1, Via::Relay);
    drop(server);
}

#[test]
fn a_rank_whose_address_changes_is_lost_to_the_others_and_hangs_nowhere() {
    if unavailable() {
        return;
    }
    let lab = Lab::new();
    let sites = [0; 2].map(|_| lab.site(Kind::PortRestricted, Habits::default()));
    let hosts = [sites[0].host(), sites[1].host()];
    let (_server, [address, _]) = lab.server();
    let mut ranks = world_on(&[&hosts[0], &hosts[1]], address);
    assert_eq!(vias(&ranks)[0].1, Via::Punched);
    exchange(&mut ranks);
    sites[1].move_house();
    let begun = Instant::now();
    while ranks[0].lost.check(1).is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(5), "nobody heard of it");
        std::thread::sleep(Duration::from_millis(5));
    }
    println!("the other heard after {} ms", begun.elapsed().as_millis());
    // Both ends of the road fail by themselves, although neither writes.
    for rank in &mut ranks {
        for road in rank.roads.iter_mut().flatten() {
            let Road::Remote { socket, .. } = road else {
                panic!("no road");
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
fn thirty_two_ranks_in_eight_networks_are_connected_within_five_seconds() {
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
            let site = lab.site(kind, Habits::default());
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
    for ((low, high), via) in vias(&ranks) {
        let ((site, kind, _), (other_site, other, _)) = (&hosts[low as usize], &hosts[high as usize]);
        let symmetric = [kind, other].iter().filter(|kind| ***kind == Kind::Symmetric).count();
        let port_restricted = [kind, other].contains(&&Kind::PortRestricted);
        let expected = match symmetric {
            _ if site == other_site => Via::Direct,
            0 => Via::Punched,
            1 if !port_restricted => Via::Punched,
            _ => Via::Relay,
        };
        let pair = format!("{kind:?} in site {site} to {other:?} in site {other_site}");
        if (via, expected) == (Via::Punched, Via::Relay) {
            lucky.push(pair);
        } else {
            assert_eq!(via, expected, "{pair}");
        }
    }
    // A symmetric NAT sometimes picks at random the very port that the other side expects.
    assert!(lucky.len() <= 1, "{lucky:?}");
    drop(sites);
}

#[test]
fn without_a_relay_two_symmetric_nats_end_with_what_was_tried() {
    if unavailable() {
        return;
    }
    let lab = Lab::new();
    let sites = [0; 2].map(|_| lab.site(Kind::Symmetric, Habits::default()));
    let hosts = [sites[0].host(), sites[1].host()];
    let (_server, [address, _]) = lab.server();
    let mut options = JoinOptions {
        patience: Duration::from_secs(2),
        ..common::at(address, "none", 2)
    };
    options.ways.relay = false;
    let failures = join_on(&[&hosts[0], &hosts[1]], &options)
        .into_iter()
        .map(Result::unwrap_err);
    let text: String = failures.map(|failure| failure.message).collect();
    // The first rank to give up informs the other.
    let pairs = ["rank 0 to rank 1 (", "rank 1 to rank 0 ("];
    assert!(pairs.iter().any(|pair| text.contains(pair)), "{text}");
    assert!(text.contains("by simultaneous open: no answer"), "{text}");
}

#[test]
fn through_two_nats_far_apart_a_pair_is_connected_within_four_round_trips() {
    if unavailable() {
        return;
    }
    let one_way = Duration::from_millis(20);
    let weather = Weather {
        one_way,
        ..Weather::default()
    };
    let sea = Sea::new(weather);
    // Other tests may take the processor at the wrong moment, but not every time.
    let slowest = (0..3).map(|_| {
        let mut ranks = sea.world(&[Kind::PortRestricted, Kind::PortRestricted], Habits::default());
        assert_eq!(vias(&ranks)[0].1, Via::Punched);
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
fn lost_and_reordered_packets_delay_a_world_and_do_not_break_it() {
    if unavailable() {
        return;
    }
    let sea = Sea::new(Weather {
        one_way: Duration::from_millis(5),
        jitter: Duration::from_millis(10),
        lost_of_1000: 50,
    });
    let mut ranks = sea.world(
        &[Kind::PortRestricted, Kind::FullCone, Kind::Symmetric, Kind::Symmetric],
        Habits::default(),
    );
    // A lost packet may prevent one way in time; then another way is used.
    println!("{:?}", vias(&ranks));
    exchange(&mut ranks);
}

fn ends(ranks: &[Joined]) -> (&TcpStream, &TcpStream) {
    (rate::socket(&ranks[0].roads[1]), rate::socket(&ranks[1].roads[0]))
}

#[test]
fn the_relay_lets_through_a_good_part_of_what_a_stream_between_the_same_hosts_has() {
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
    options.ways.direct = false;
    options.ways.punch = false;
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
fn strangers_at_a_ranks_door_do_not_keep_the_ranks_from_each_other() {
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
                None => assert!(begun.elapsed() < common::PATIENCE, "it does not listen"),
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
    assert_eq!(vias(&ranks)[0].1, Via::Direct);
    exchange(&mut ranks);
    drop(server);
}

#[test]
fn nats_that_answer_strangers_with_resets_are_opened_too() {
    if unavailable() {
        return;
    }
    let resets = Habits {
        resets: true,
        ..Habits::default()
    };
    let sea = Sea::new(Weather {
        one_way: Duration::from_millis(20),
        ..Weather::default()
    });
    let mut ranks = sea.world(&[Kind::PortRestricted, Kind::PortRestricted, Kind::FullCone], resets);
    assert!(
        vias(&ranks).iter().all(|(_, via)| *via == Via::Punched),
        "{:?}",
        vias(&ranks)
    );
    exchange(&mut ranks);
}
