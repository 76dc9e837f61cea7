use std::time::{Duration, Instant};

use super::*;

fn pair() -> (ShmTransport, ShmTransport) {
    let (one, other) = UnixStream::pair().unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    let one = ShmHandshake::send(0, 1, one, true).unwrap();
    let other = ShmHandshake::send(1, 0, other, true).unwrap();
    (one.finish(until).unwrap(), other.finish(until).unwrap())
}

fn say(transport: &mut ShmTransport) {
    let envelope = Envelope {
        kind: kind::EAGER,
        length: 1,
        ..Envelope::default()
    };
    assert!(transport.try_send(envelope, &[7]).unwrap());
}

/// Bytes on the doorbell of a side, which stay there.
fn rings(transport: &ShmTransport) -> usize {
    let mut bytes = [0; 64];
    let found = rustix::net::recv(&transport.doorbell, &mut bytes, RecvFlags::DONTWAIT | RecvFlags::PEEK);
    found.map_or(0, |(count, _)| count)
}

#[test]
fn doorbell_that_waits_rings_once_for_all() {
    let (mut sender, mut receiver) = pair();
    assert!(receiver.fall_asleep());
    sender.hold_doorbell();
    for _ in 0..3 {
        say(&mut sender);
    }
    assert_eq!(rings(&receiver), 0);
    sender.ring_held_doorbell();
    assert_eq!(rings(&receiver), 1);
    // It waits no longer.
    receiver.wake_up();
    let any = MatchKey {
        context: 0,
        tag: 0,
        call: 0,
    };
    for _ in 0..3 {
        assert!(!receiver.fall_asleep(), "messages are there");
        assert!(receiver.try_receive(&any, [0; 1].as_mut_ptr(), 1).is_some());
    }
    assert!(receiver.fall_asleep());
    say(&mut sender);
    assert_eq!(rings(&receiver), 1);
}

#[test]
fn doorbell_waits_for_some_copied_bytes_only() {
    let (mut sender, mut receiver) = pair();
    assert!(receiver.fall_asleep());
    sender.hold_doorbell();
    say(&mut sender);
    sender.copied(SILENT_BYTES - 1);
    assert_eq!(rings(&receiver), 0);
    sender.copied(1);
    assert_eq!(rings(&receiver), 1);
}

#[test]
fn nobody_is_woken_without_a_message() {
    let (mut sender, mut receiver) = pair();
    assert!(receiver.fall_asleep());
    sender.hold_doorbell();
    sender.ring_held_doorbell();
    assert_eq!(rings(&receiver), 0);
}
