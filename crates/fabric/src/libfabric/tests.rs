//! Tests with a malicious peer: it writes arbitrary bytes with arbitrary notices anywhere in the writable region.

use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use dayfly_protocol::fabric::notice;
use dayfly_protocol::slot::{Geometry, HEADER_BYTES, Header};
use zerocopy::IntoBytes;

use super::ffi::Library;
use super::{Choice, FabricLink, OpenResult, Pipe};
use crate::stream::wire::Wire;
use crate::{Link, LinkError, tls};

const GEOMETRY: Geometry = Geometry {
    slots: 8,
    stride_bytes: 256,
    bulk_bytes: 1 << 20,
};

fn identity(seed: u8) -> tls::Identity {
    let mut pkcs8 = vec![
        0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
    ];
    pkcs8.extend([seed; 32]);
    tls::Identity::from_pkcs8(pkcs8).unwrap()
}

fn pair() -> Option<[FabricLink; 2]> {
    Library::get()
        .inspect_err(|error| eprintln!("left out: {error}"))
        .ok()?;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let other = listener.accept().unwrap().0;
    let choice: Choice = "tcp".parse().unwrap();
    let worker = std::thread::spawn(move || {
        let session = tls::worker(&identity(2), &identity(1).public).unwrap();
        FabricLink::worker(other.into(), session, GEOMETRY, &[choice], false).unwrap()
    });
    let session = tls::client(&identity(1), &identity(2).public).unwrap();
    let client = FabricLink::client(socket.into(), session, GEOMETRY, choice, false).unwrap();
    Some([client, worker.join().unwrap()])
}

/// Polls the victim until it returns a message or an error, or nothing happens.
fn outcome(victim: &mut FabricLink) -> Result<bool, LinkError> {
    let until = Instant::now() + Duration::from_millis(100);
    while Instant::now() < until {
        if victim.poll()?.is_some() {
            // Read and release the payload, whatever it is.
            let _ = victim.input().iter().map(|byte| u64::from(*byte)).sum::<u64>();
            drop(victim.take());
            victim.done();
            return Ok(true);
        }
    }
    Ok(false)
}

fn send(attacker: &mut FabricLink, at: usize, bytes: &[u8], number: u32) {
    let to = attacker.peer.plus(at as u64);
    let until = Instant::now() + Duration::from_secs(10);
    while !attacker.endpoint.inject(bytes, to, number).unwrap() {
        assert!(Instant::now() < until, "the provider takes no write");
    }
}

/// Returns deterministic pseudorandom numbers.
fn noise(mut state: u64) -> impl FnMut() -> u64 {
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

#[test]
fn malicious_link_writes_are_errors_without_panic() {
    let mut noise = noise(0x9e37_79b9_7f4a_7c15);
    for round in 0..24 {
        let Some([mut attacker, mut victim]) = pair() else {
            return;
        };
        let bytes: Vec<u8> = (0..96).map(|_| noise() as u8).collect();
        let number = match round % 3 {
            0 => noise() as u32,
            1 => notice::of(notice::GRANT, noise() as u32 % 16),
            _ => notice::of(notice::SLOT, 1),
        };
        let mut bytes = bytes;
        let at = match round % 3 {
            1 => attacker.layout.grant(noise() as usize % 16),
            _ => attacker.layout.slot(1),
        };
        if round % 3 == 2 {
            // Use the expected sequence number, so that the flags and lengths are checked.
            bytes[..4].copy_from_slice(&1u32.to_le_bytes());
            bytes[6..8].copy_from_slice(&(noise() as u16 % 64).to_le_bytes());
        }
        bytes.truncate(96.min(GEOMETRY.ring_bytes() - 8));
        send(&mut attacker, at, &bytes, number);
        match outcome(&mut victim) {
            Ok(_) | Err(LinkError::Violation(_) | LinkError::Malformed(_) | LinkError::PeerGone) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn contradictory_message_is_malformed_or_a_violation() {
    let header = |sequence, flags, length| Header {
        sequence,
        flags,
        length,
        ..Header::default()
    };
    for (header, kind, number, malformed) in [
        (header(1, 0, 5000), notice::SLOT, 1, true),
        (header(1, 0x4000, 1), notice::SLOT, 1, true),
        (
            header(1, dayfly_protocol::slot::flags::IN_ROOM, 0),
            notice::SLOT,
            1,
            true,
        ),
        (header(7, 0, 1), notice::SLOT, 1, false),
        (header(1, 0, 1), notice::SLOT, 100, false),
        (header(1, 0, 1), notice::GREETING, 0, false),
        (header(1, 0, 1), notice::GRANT, 1000, false),
    ] {
        let Some([mut attacker, mut victim]) = pair() else {
            return;
        };
        let mut bytes = [0; HEADER_BYTES + 48];
        bytes[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        bytes[HEADER_BYTES] = 9;
        let at = attacker.layout.slot(1);
        send(&mut attacker, at, &bytes, notice::of(kind, number));
        match outcome(&mut victim).unwrap_err() {
            LinkError::Malformed(_) => assert!(malformed, "{header:?}"),
            LinkError::Violation(_) => assert!(!malformed, "{header:?}"),
            other => panic!("{header:?}: {other}"),
        }
    }
}

fn pipes() -> Option<[Box<Pipe>; 2]> {
    Library::get().ok()?;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let other = listener.accept().unwrap().0;
    let open = |socket: TcpStream| {
        let opened = Pipe::open(Wire::plain(socket.into()).unwrap(), "tcp".parse().unwrap());
        match opened.unwrap() {
            OpenResult::Pipe(pipe) => pipe,
            OpenResult::Refused(_, why) => panic!("{why}"),
        }
    };
    let worker = std::thread::spawn(move || open(other));
    Some([open(socket), worker.join().unwrap()])
}

#[test]
fn malicious_pipe_writes_never_panic() {
    let mut noise = noise(0x1234_5678_9abc_def1);
    let (mut errors, mut into) = (0, vec![0; 100_000]);
    for round in 0..24 {
        let Some([mut attacker, mut victim]) = pipes() else {
            return eprintln!("left out: there is no libfabric");
        };
        let until = Instant::now() + Duration::from_millis(200);
        for _ in 0..20 {
            // Slots with any length in any order, credit for anything, greetings, and sometimes meaningless notices.
            let number = match round % 3 {
                0 => notice::of(notice::SLOT, noise() as u32 % 4),
                1 => notice::of((noise() % 4) as u32, noise() as u32 % 80),
                _ => noise() as u32,
            };
            let bytes = noise().to_le_bytes();
            attacker.attack((noise() % 4) as usize * 32_768, &bytes, number);
            match victim.receive(&mut into) {
                Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => {
                    errors += 1;
                    break;
                }
                _ if Instant::now() > until => break,
                _ => {}
            }
        }
        while Instant::now() < until {
            if victim
                .receive(&mut into)
                .is_err_and(|error| error.kind() != std::io::ErrorKind::WouldBlock)
            {
                errors += 1;
                break;
            }
        }
        let _ = victim.send(b"still", b"alive");
    }
    assert!(errors > 12, "{errors} of 24 rounds were noticed");
}
