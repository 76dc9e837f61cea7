//! One suite for every transport: checks the guarantees of `Link` for shm, inproc, tcp, tls, and libfabric's tcp and
//! shm.
//!
//! Two threads stand for the two processes. Tests with real processes are in `tests/` of the repository.

use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use dayfly_fabric::libfabric::ffi::Library;
use dayfly_fabric::{AnyLink, Choice, FabricLink, Link, LinkError, Payload, StreamLink, inproc, shm, tls};
use dayfly_protocol::slot::Geometry;

const GEOMETRY: Geometry = Geometry {
    slots: 8,
    stride_bytes: 256,
    bulk_bytes: 64 << 20,
};
const LIMIT: Duration = Duration::from_secs(20);

fn sockets() -> (OwnedFd, OwnedFd) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client.into(), listener.accept().unwrap().0.into())
}

fn shm_pair() -> (AnyLink, AnyLink) {
    let memory = shm::ChannelMemory::create(GEOMETRY).unwrap();
    let client = shm::client(memory.file(), GEOMETRY, false).unwrap();
    let worker = shm::worker(memory.file(), GEOMETRY, false).unwrap();
    (AnyLink::Mapped(client), AnyLink::Mapped(worker))
}

fn inproc_pair() -> (AnyLink, AnyLink) {
    let (client, worker, _) = inproc::pair(GEOMETRY).unwrap();
    (AnyLink::Mapped(client), AnyLink::Mapped(worker))
}

fn tcp_pair() -> (AnyLink, AnyLink) {
    let (client, worker) = sockets();
    let link = |socket| AnyLink::Stream(Box::new(StreamLink::tcp(socket, GEOMETRY).unwrap()));
    (link(client), link(worker))
}

/// Returns one of two fixed Ed25519 key pairs for these tests.
fn identity(seed: u8) -> tls::Identity {
    let mut pkcs8 = vec![
        0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
    ];
    pkcs8.extend([seed; 32]);
    tls::Identity::from_pkcs8(pkcs8).unwrap()
}

fn tls_pair() -> (AnyLink, AnyLink) {
    let (client_socket, worker_socket) = sockets();
    let (holder, executor) = (identity(1), identity(2));
    let holder_key = holder.public;
    let executor_key = executor.public;
    let worker = std::thread::spawn(move || {
        StreamLink::tls(worker_socket, tls::worker(&executor, &holder_key).unwrap(), GEOMETRY).unwrap()
    });
    let client = StreamLink::tls(client_socket, tls::client(&holder, &executor_key).unwrap(), GEOMETRY).unwrap();
    (
        AnyLink::Stream(Box::new(client)),
        AnyLink::Stream(Box::new(worker.join().unwrap())),
    )
}

/// Returns `None` where libfabric is not installed.
fn fabric_pair(provider: &str) -> Option<(AnyLink, AnyLink)> {
    if let Err(error) = Library::get() {
        eprintln!("left out: {error}");
        return None;
    }
    let (client_socket, worker_socket) = sockets();
    let (holder, executor) = (identity(1), identity(2));
    let (holder_key, executor_key) = (holder.public, executor.public);
    let wanted: Choice = provider.parse().unwrap();
    let worker = std::thread::spawn(move || {
        let session = tls::worker(&executor, &holder_key).unwrap();
        FabricLink::worker(worker_socket, session, GEOMETRY, &[wanted], false).unwrap()
    });
    let session = tls::client(&holder, &executor_key).unwrap();
    let client = FabricLink::client(client_socket, session, GEOMETRY, wanted, false).unwrap();
    Some((
        AnyLink::Fabric(Box::new(client)),
        AnyLink::Fabric(Box::new(worker.join().unwrap())),
    ))
}

fn next(link: &mut AnyLink) -> Result<dayfly_fabric::Meta, LinkError> {
    let until = Instant::now() + LIMIT;
    loop {
        if let Some(meta) = link.poll()? {
            return Ok(meta);
        }
        assert!(Instant::now() < until, "nothing came within {LIMIT:?}");
        link.wait(Duration::from_millis(200))?;
    }
}

fn send(link: &mut AnyLink, function: u16, bytes: &[u8]) -> u32 {
    link.compose()[..bytes.len()].copy_from_slice(bytes);
    link.post(function, 7, bytes.len()).unwrap()
}

/// Responds to every request with its bytes reversed and the function index plus one, until the client closes.
fn reverser(mut link: AnyLink) {
    loop {
        let meta = match next(&mut link) {
            Ok(meta) => meta,
            Err(LinkError::PeerGone | LinkError::Ended(_)) => return,
            Err(error) => panic!("{error}"),
        };
        if meta.function == u16::MAX {
            link.done();
            send(&mut link, 0, b"bye");
            return;
        }
        let large = link.current().input.len() > link.geometry().inline_bytes();
        if large {
            let length = link.current().input.len();
            let mut reply = link.allocate(length).unwrap();
            reply.as_mut_slice()[..length].copy_from_slice(link.current().input);
            reply.as_mut_slice()[..length].reverse();
            link.post_lent(meta.function + 1, reply, length).unwrap();
        } else {
            let current = link.current();
            let length = current.input.len();
            current.compose[..length].copy_from_slice(current.input);
            current.compose[..length].reverse();
            link.post(meta.function + 1, 0, length).unwrap();
        }
        link.done();
    }
}

fn with_reverser(pair: (AnyLink, AnyLink), test: impl FnOnce(&mut AnyLink)) {
    let (mut client, worker) = pair;
    let thread = std::thread::spawn(move || reverser(worker));
    test(&mut client);
    send(&mut client, u16::MAX, b"");
    next(&mut client).unwrap();
    thread.join().unwrap();
}

fn every_small_size_comes_back_reversed(pair: (AnyLink, AnyLink)) {
    with_reverser(pair, |client| {
        for length in 0..=GEOMETRY.inline_bytes() {
            let bytes: Vec<u8> = (0..length).map(|i| i as u8).collect();
            let sequence = send(client, length as u16, &bytes);
            let meta = next(client).unwrap();
            assert_eq!((meta.sequence, meta.function), (sequence, length as u16 + 1));
            assert!(client.current().input.iter().eq(bytes.iter().rev()));
            client.done();
        }
    });
}

fn a_full_ring_is_answered_in_order(pair: (AnyLink, AnyLink)) {
    with_reverser(pair, |client| {
        for round in 0..200u16 {
            for slot in 0..GEOMETRY.slots {
                send(client, round * GEOMETRY.slots + slot, &slot.to_le_bytes());
            }
            for slot in 0..GEOMETRY.slots {
                let meta = next(client).unwrap();
                assert_eq!(meta.function, round * GEOMETRY.slots + slot + 1);
                assert_eq!(client.current().input, [0, slot as u8]);
                client.done();
            }
        }
    });
}

fn large_payloads_from_plain_bytes_and_from_buffers_come_back(pair: (AnyLink, AnyLink)) {
    with_reverser(pair, |client| {
        for length in [300, 4096, 100_000, 5 << 20] {
            let bytes: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
            client.post_bulk(1, 0, Payload::Bytes(&bytes), None).unwrap();
            next(client).unwrap();
            let reply = client.take().expect("a reply in bulk memory");
            client.done();
            assert!(reply.as_slice().iter().eq(bytes.iter().rev()));

            let mut buffer = client.allocate(length).unwrap();
            buffer.as_mut_slice().copy_from_slice(&bytes);
            client.post_bulk(1, 0, Payload::Buffer(&buffer, length), None).unwrap();
            next(client).unwrap();
            assert!(client.current().input.iter().eq(bytes.iter().rev()));
            drop(client.take());
            client.done();
        }
    });
}

fn both_sides_may_send_large_messages_at_once(pair: (AnyLink, AnyLink)) {
    with_reverser(pair, |client| {
        let bytes = vec![3; 3 << 20];
        for _ in 0..GEOMETRY.slots {
            client.post_bulk(1, 0, Payload::Bytes(&bytes), None).unwrap();
        }
        for _ in 0..GEOMETRY.slots {
            next(client).unwrap();
            assert_eq!(client.current().input, bytes);
            drop(client.take());
            client.done();
        }
    });
}

fn freed_bulk_memory_is_used_again(pair: (AnyLink, AnyLink)) {
    // 100 times 4 MiB through regions of 64 MiB works only if every block is released.
    with_reverser(pair, |client| {
        let bytes = vec![9; 4 << 20];
        for _ in 0..100 {
            client.post_bulk(1, 0, Payload::Bytes(&bytes), None).unwrap();
            next(client).unwrap();
            drop(client.take());
            client.done();
        }
    });
}

fn a_reply_is_written_into_the_callers_room(pair: (AnyLink, AnyLink)) {
    let (mut client, mut worker) = pair;
    let thread = std::thread::spawn(move || {
        next(&mut worker).unwrap();
        let length = worker.current().room_length;
        if let Some(room) = worker.current().room {
            room[..length - 1].fill(5);
            worker.post_in_room(0, length - 1).unwrap();
        } else {
            let mut reply = worker.allocate(length).unwrap();
            reply.as_mut_slice().fill(5);
            worker.post_lent(0, reply, length - 1).unwrap();
        }
        worker.done();
        let _ = next(&mut worker);
    });
    let mut room = client.allocate(100_000).unwrap();
    room.as_mut_slice().fill(1);
    let place = client.room(&mut room);
    client.post_bulk(1, 0, Payload::Bytes(&[0; 1000]), Some(place)).unwrap();
    next(&mut client).unwrap();
    assert_eq!(client.arrived_in_room(), Some(99_999));
    client.done();
    assert!(room.as_slice()[..99_999].iter().all(|byte| *byte == 5));
    assert_eq!(room.as_slice()[99_999], 1);
    send(&mut client, 0, b"");
    thread.join().unwrap();
}

fn numbers_wrap_around_without_a_gap(pair: (AnyLink, AnyLink)) {
    let (mut client, mut worker) = pair;
    for link in [&mut client, &mut worker] {
        match link {
            AnyLink::Mapped(link) => link.start_after(u32::MAX - 20),
            AnyLink::Stream(link) => link.start_after(u32::MAX - 20),
            AnyLink::Fabric(link) => link.start_after(u32::MAX - 20),
        }
    }
    with_reverser((client, worker), |client| {
        for _ in 0..60 {
            let sequence = send(client, 3, b"ab");
            assert_eq!(next(client).unwrap().sequence, sequence);
            assert_eq!(client.current().input, b"ba");
            client.done();
        }
    });
}

fn waiting_ends_at_its_limit(pair: (AnyLink, AnyLink)) {
    let (mut client, _worker) = pair;
    let since = Instant::now();
    while since.elapsed() < Duration::from_millis(30) {
        client
            .wait(Duration::from_millis(30).saturating_sub(since.elapsed()))
            .unwrap();
    }
    assert!(client.poll().unwrap().is_none());
    assert!(since.elapsed() < LIMIT);
}

fn more_than_the_bulk_region_is_refused_with_both_numbers(pair: (AnyLink, AnyLink)) {
    let (mut client, _worker) = pair;
    let error = client.allocate(65 << 20).unwrap_err().to_string();
    assert!(
        error.contains(&(65 << 20).to_string()) && error.contains(&(64 << 20).to_string()),
        "{error}"
    );
}

macro_rules! suite {
    ($($test:ident),* $(,)?) => {
        mod over_shm { $(#[test] fn $test() { super::$test(super::shm_pair()); })* }
        mod over_inproc { $(#[test] fn $test() { super::$test(super::inproc_pair()); })* }
        mod over_tcp { $(#[test] fn $test() { super::$test(super::tcp_pair()); })* }
        mod over_tls { $(#[test] fn $test() { super::$test(super::tls_pair()); })* }
        mod over_fabric_tcp {
            $(#[test] fn $test() { super::fabric_pair("tcp").into_iter().for_each(super::$test); })*
        }
        mod over_fabric_shm {
            $(#[test] fn $test() { super::fabric_pair("shm").into_iter().for_each(super::$test); })*
        }
    };
}

suite!(
    every_small_size_comes_back_reversed,
    a_full_ring_is_answered_in_order,
    large_payloads_from_plain_bytes_and_from_buffers_come_back,
    both_sides_may_send_large_messages_at_once,
    freed_bulk_memory_is_used_again,
    a_reply_is_written_into_the_callers_room,
    numbers_wrap_around_without_a_gap,
    waiting_ends_at_its_limit,
    more_than_the_bulk_region_is_refused_with_both_numbers,
);

#[test]
fn closed_channel_gives_sleeping_sides_the_reason() {
    let memory = shm::ChannelMemory::create(GEOMETRY).unwrap();
    let client = AnyLink::Mapped(shm::client(memory.file(), GEOMETRY, false).unwrap());
    let worker = AnyLink::Mapped(shm::worker(memory.file(), GEOMETRY, false).unwrap());
    let sleepers = [client, worker].map(|mut link| {
        std::thread::spawn(move || {
            loop {
                match link.wait(LIMIT) {
                    Ok(()) => {}
                    Err(LinkError::Ended(end)) => return end,
                    Err(error) => panic!("{error}"),
                }
            }
        })
    });
    let since = Instant::now();
    memory.close(dayfly_protocol::node_api::End::Revoked);
    for sleeper in sleepers {
        assert_eq!(sleeper.join().unwrap(), dayfly_protocol::node_api::End::Revoked);
    }
    assert!(since.elapsed() < LIMIT / 2);
}

#[test]
fn broken_stream_is_reported() {
    let (mut client, worker) = tcp_pair();
    drop(worker);
    assert!(matches!(next(&mut client), Err(LinkError::PeerGone)));
    assert!(matches!(client.poll(), Err(LinkError::PeerGone)));
}

#[test]
fn malformed_stream_is_a_violation_without_panic() {
    for seed in 0..200u64 {
        let (client, worker) = sockets();
        let mut link = StreamLink::tcp(worker, GEOMETRY).unwrap();
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut bytes: Vec<u8> = (0..500)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state as u8
            })
            .collect();
        if seed % 2 == 0 {
            // Use the expected sequence number, so that the flags and lengths are checked.
            bytes[..4].copy_from_slice(&1u32.to_le_bytes());
            bytes[6..8].copy_from_slice(&((seed % 16) as u16).to_le_bytes());
        }
        let mut client = TcpStream::from(client);
        std::io::Write::write_all(&mut client, &bytes).unwrap();
        drop(client);
        let mut link = AnyLink::Stream(Box::new(std::mem::replace(
            &mut link,
            StreamLink::tcp(sockets().0, GEOMETRY).unwrap(),
        )));
        loop {
            match next(&mut link) {
                Ok(_) => link.done(),
                Err(LinkError::Violation(_) | LinkError::PeerGone) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn tls_handshake_with_an_unknown_key_fails() {
    let (client_socket, worker_socket) = sockets();
    let (holder, stranger, executor) = (identity(1), identity(3), identity(2));
    let (holder_key, executor_key) = (holder.public, executor.public);
    let worker = std::thread::spawn(move || {
        StreamLink::tls(worker_socket, tls::worker(&executor, &holder_key).unwrap(), GEOMETRY).map(|_| ())
    });
    let _ = StreamLink::tls(client_socket, tls::client(&stranger, &executor_key).unwrap(), GEOMETRY);
    assert!(worker.join().unwrap().is_err());
}
