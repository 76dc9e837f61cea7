//! Ranks without a network that join through a connector: they are full ranks, and the connector bounds them.

mod common;
#[path = "common/local_group.rs"]
mod local_group;

use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::{TIMEOUT, exchange, routes};
use dayfly_comm::connect::plan::RouteOptions;
use dayfly_comm::connector::{ConnectorConfig, join_through, serve};
use dayfly_comm::{Datatype, Invitation, JoinOptions, Operation, World};
use dayfly_comm::{PeerConnection, Route};
use dayfly_lease::SigningKey;
use dayfly_lease::rendezvous::vouch;
use dayfly_protocol::error::{Code, Failure};
use dayfly_rendezvous::server::Server;
use local_group::{join_all, options, server, wait_for_ranks, world};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

/// A connector on a thread; dropping it ends the connector.
struct Connector {
    path: PathBuf,
    until: Option<OwnedFd>,
    thread: Option<std::thread::JoinHandle<()>>,
}

fn manager() -> SigningKey {
    SigningKey::from_seed([7; 32])
}

impl Connector {
    fn start(most: u32) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("dayfly-connector-{}-{number}", std::process::id()));
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&listener, 256).unwrap();
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let config = ConnectorConfig {
            managers: vec![manager().public()],
            permitted: Vec::new(),
            max_groups: most,
            user: None,
        };
        let thread = std::thread::spawn(move || serve(&listener, config, theirs.as_fd()).unwrap());
        Self {
            path,
            until: Some(ours),
            thread: Some(thread),
        }
    }

    fn call(&self, patience: Duration) -> OwnedFd {
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::net::connect(&socket, &SocketAddrUnix::new(&self.path).unwrap()).unwrap();
        rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, Some(patience)).unwrap();
        socket
    }
}

impl Drop for Connector {
    fn drop(&mut self) {
        self.until = None;
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
        let _ = std::fs::remove_file(&self.path);
    }
}

fn invitation(server: &Server, name: &str, rank: u32, size: u32) -> Invitation {
    let address = server.addresses()[0].to_string();
    let text = serde_json::json!({
        "rendezvous": address, "key": server.key(), "voucher": vouch(&manager(), &address, &server.key()), "name": name,
        "secret": "5e".repeat(16), "size": size, "rank": rank, "patience_s": TIMEOUT.as_secs(), "spin_us": 50,
    });
    Invitation::from_json(&text.to_string()).unwrap()
}

/// Forms a group in which each rank joins through the named connector, or by itself.
fn worlds(server: &Server, name: &str, through: &[Option<&Path>]) -> Vec<World> {
    std::thread::scope(|scope| {
        let size = u32::try_from(through.len()).unwrap();
        let threads: Vec<_> = through
            .iter()
            .zip(0u32..)
            .map(|(path, rank)| {
                let (invitation, path) = (invitation(server, name, rank, size), *path);
                scope.spawn(move || match path {
                    Some(path) => invitation.accept_through(path),
                    None => invitation.accept(),
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap().unwrap())
            .collect()
    })
}

/// Adds up a megabyte of every rank, and sends more than any buffer holds around.
fn compute(worlds: &[World]) {
    std::thread::scope(|scope| {
        for world in worlds {
            scope.spawn(move || {
                let comm = &world.communicator;
                let (rank, size) = (comm.rank(), comm.size());
                let own: Vec<u8> = (0..1u64 << 17)
                    .flat_map(|at| (at + u64::from(rank)).to_le_bytes())
                    .collect();
                let mut sum = vec![0; own.len()];
                comm.allreduce(&own, &mut sum, Datatype::U64, &Operation::Sum).unwrap();
                let ranks = u64::from(size * (size - 1) / 2);
                for (at, found) in sum.chunks(8).enumerate() {
                    let expected = at as u64 * u64::from(size) + ranks;
                    assert_eq!(u64::from_le_bytes(found.try_into().unwrap()), expected);
                }
                let long = vec![rank as u8; 5 << 20];
                let mut came = vec![0; long.len()];
                let (next, last) = ((rank + 1) % size, (rank + size - 1) % size);
                comm.sendrecv(&long, next, 1, &mut came, last, 1).unwrap();
                assert!(came.iter().all(|byte| *byte == last as u8));
            });
        }
    });
}

#[test]
fn ranks_of_one_connector_share_memory() {
    let (server, connector) = (server(), Connector::start(8));
    let through = [Some(connector.path.as_path()); 3];
    let ranks = worlds(&server, "near", &through);
    assert!(ranks.iter().all(|rank| rank.hosts == [0, 0, 0]));
    compute(&ranks);
    drop(ranks);
    wait_for_ranks(&server, 0);
}

#[test]
fn connector_forwards_bytes_unchanged() {
    let server = server();
    let connector = Connector::start(8);
    let within = invitation(&server, "carried", 0, 2);
    let outside = JoinOptions {
        rank: Some(1),
        secret: hex::decode(&within.secret).unwrap(),
        routes: RouteOptions {
            local: false,
            ..RouteOptions::default()
        },
        ..options(&server, "carried", 2)
    };
    let outside = std::thread::spawn(move || join_all(&[outside]).pop());
    let within = join_through(&connector.path, &within).unwrap();
    let mut connections = [within, outside.join().unwrap().unwrap().unwrap()];
    assert!(matches!(
        connections[0].connections[1],
        Some(PeerConnection::Carried { .. })
    ));
    // Never over the loopback interface: by an address of the host, or by the relay if it has none.
    let [(_, route)] = routes(&connections)[..] else {
        panic!("one pair");
    };
    assert!(matches!(route, Route::Direct | Route::Relay), "{route:?}");
    exchange(&mut connections);
    compute(&connections.map(|joined| World::form(joined, dayfly_comm::Options::default()).unwrap()));
    wait_for_ranks(&server, 0);
}

#[test]
fn sandboxed_and_ordinary_ranks_form_one_group() {
    let server = server();
    let connectors = [Connector::start(8), Connector::start(8)];
    let through = [
        Some(connectors[0].path.as_path()),
        None,
        Some(connectors[1].path.as_path()),
    ];
    compute(&worlds(&server, "mixed", &through));
    wait_for_ranks(&server, 0);
}

fn fails(connector: &Connector, change: impl FnOnce(&mut Invitation)) -> Failure {
    let server = server();
    let mut invitation = invitation(&server, "refused", 0, 2);
    change(&mut invitation);
    let failure = join_through(&connector.path, &invitation).unwrap_err();
    assert_eq!(server.counts(), (0, 0), "nobody came to the rendezvous");
    failure
}

#[test]
fn unvouched_rendezvous_is_refused_without_dialling() {
    let connector = Connector::start(8);
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    other.set_nonblocking(true).unwrap();
    let address = other.local_addr().unwrap().to_string();
    let failure = fails(&connector, |asked| asked.rendezvous = address);
    assert_eq!(failure.code, Code::Forbidden);
    assert!(failure.message.contains("--rendezvous"), "{failure}");
    assert_eq!(fails(&connector, |asked| asked.key = None).code, Code::Forbidden);
    assert_eq!(fails(&connector, |asked| asked.voucher = None).code, Code::Forbidden);
    assert_eq!(fails(&connector, |asked| asked.size = 1 << 20).code, Code::TooLarge);
    assert_eq!(
        fails(&connector, |asked| asked.secret = "abc".into()).code,
        Code::InvalidRequest
    );
    assert_eq!(
        other.accept().unwrap_err().kind(),
        std::io::ErrorKind::WouldBlock,
        "somebody was dialled"
    );
}

fn answer(socket: &OwnedFd) -> String {
    let mut bytes = [0; 8192];
    let length = rustix::net::recv(socket, &mut bytes, RecvFlags::empty()).unwrap().1;
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}

#[test]
fn malformed_request_is_refused_and_next_rank_served() {
    let (server, connector) = (server(), Connector::start(64));
    let huge = vec![b'['; 100_000];
    for words in [&b"garbage"[..], b"{}", b"{\"is\":\"leave\"}", &[0xff; 5000], &huge] {
        let socket = connector.call(TIMEOUT);
        rustix::net::send(&socket, words, SendFlags::NOSIGNAL).unwrap();
        assert!(answer(&socket).contains("protocol_violation"));
    }
    // With unexpected descriptors.
    let socket = connector.call(TIMEOUT);
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    let gift = [socket.as_fd()];
    assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&gift)));
    rustix::net::sendmsg(&socket, &[IoSlice::new(b"x")], &mut control, SendFlags::NOSIGNAL).unwrap();
    assert!(answer(&socket).contains("protocol_violation"));
    compute(&worlds(&server, "after", &[Some(connector.path.as_path()); 2]));
    exchange(&mut world(&options(&server, "unmoved", 2)));
}

#[test]
fn excess_joins_are_refused_with_the_limit() {
    let (server, connector) = (server(), Connector::start(4));
    let mut served = Vec::new();
    for _ in 0..10_000 {
        let socket = connector.call(Duration::from_millis(50));
        let mut bytes = [0; 8192];
        // Surplus ranks are refused before they send a message.
        match rustix::net::recv(&socket, &mut bytes, RecvFlags::empty()) {
            Ok((_, length)) => assert!(String::from_utf8_lossy(&bytes[..length]).contains("no_capacity")),
            Err(_) => served.push(socket),
        }
    }
    assert!((4..20).contains(&served.len()), "{} were served", served.len());
    assert_eq!(server.counts(), (0, 0));
    drop(served);
    let begun = Instant::now();
    // After their end there is room again.
    loop {
        match join_through(&connector.path, &invitation(&server, "room", 0, 1)) {
            Ok(joined) => return assert_eq!((joined.rank, joined.size), (0, 1)),
            Err(failure) => assert_eq!(failure.code, Code::NoCapacity),
        }
        assert!(begun.elapsed() < TIMEOUT);
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn rank_killed_while_forming_is_reported_at_once() {
    let (server, connector) = (server(), Connector::start(8));
    let socket = connector.call(TIMEOUT);
    let asked = serde_json::json!({"is": "join", "version": 1, "invitation": invitation(&server, "early", 1, 3)});
    rustix::net::send(&socket, asked.to_string().as_bytes(), SendFlags::NOSIGNAL).unwrap();
    wait_for_ranks(&server, 1);
    let other = {
        let (path, invitation) = (connector.path.clone(), invitation(&server, "early", 0, 3));
        std::thread::spawn(move || join_through(&path, &invitation))
    };
    wait_for_ranks(&server, 2);
    let begun = Instant::now();
    drop(socket);
    let failure = other.join().unwrap().unwrap_err();
    assert_eq!(failure.code, Code::RankLost);
    assert!(failure.message.contains("rank 1 was lost"), "{failure}");
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    wait_for_ranks(&server, 0);
}

#[test]
fn dead_or_silent_sandboxed_rank_is_named() {
    let (server, connector) = (server(), Connector::start(8));
    for (name, dies) in [("dies", true), ("silent", false)] {
        let path = connector.path.as_path();
        let socket = connector.call(TIMEOUT);
        let asked = serde_json::json!({"is": "join", "version": 1, "invitation": invitation(&server, name, 1, 2)});
        rustix::net::send(&socket, asked.to_string().as_bytes(), SendFlags::NOSIGNAL).unwrap();
        let joined = join_through(path, &invitation(&server, name, 0, 2)).unwrap();
        assert_eq!(joined.lost.count(), 0);
        let begun = Instant::now();
        // A silent rank counts as lost after a heartbeat, which is a second here.
        let kept = (!dies).then_some(socket);
        while joined.lost.check(1).is_ok() {
            assert!(begun.elapsed() < Duration::from_secs(3), "nobody heard that it {name}");
            std::thread::sleep(Duration::from_millis(1));
        }
        let failure = joined.lost.check(1).unwrap_err();
        let why = if dies {
            "its process ended"
        } else {
            "silent for 1000 ms"
        };
        assert!(failure.message.contains(why), "{failure}");
        drop((joined, kept));
        wait_for_ranks(&server, 0);
    }
}
