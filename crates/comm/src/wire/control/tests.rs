use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::*;
use crate::wire::{PeerTransport, ShmHandshake, ShmTransport, StreamTransport};

/// More than the sockets and rings between two ranks hold.
const LENGTH: usize = 4 << 20;

fn shm(own: u32, socket: UnixStream) -> ShmHandshake {
    ShmHandshake::send(own, 1 - own, socket, true).unwrap()
}

/// A transport to a peer that sends anything, and the peer's end, of each kind.
fn pairs() -> Vec<(PeerTransport, PeerTransport)> {
    let (one, other) = UnixStream::pair().unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    let (one, other) = (shm(0, one), shm(1, other));
    let finish = |handshake: ShmHandshake| -> ShmTransport { handshake.finish(until).unwrap() };
    let near = (PeerTransport::Shm(finish(one)), PeerTransport::Shm(finish(other)));
    let (one, other) = UnixStream::pair().unwrap();
    let carried = |peer, socket| PeerTransport::Stream(StreamTransport::carried(peer, socket, true).unwrap());
    vec![near, (carried(1, one), carried(0, other))]
}

/// Offers a message to the peer, or queues it without an offer. Returns its number.
fn begin(transport: &mut PeerTransport, matching: &mut Matching, bytes: &[u8], kind: u32) -> RequestId {
    let mut envelope = Envelope {
        kind,
        length: bytes.len() as u64,
        ..Envelope::default()
    };
    let id = matching.add_send(1, &envelope, bytes.as_ptr(), bytes.len()).unwrap();
    let mut payload = Payload::Borrowed(bytes.as_ptr(), bytes.len());
    if kind == kind::OFFER {
        envelope.sequence = id.to_wire();
        matching.get_mut(id).unwrap().rendezvous = Rendezvous::Offered;
        payload = Payload::Extra([0; EXTRA_BYTES]);
    }
    let request = (kind != kind::OFFER).then_some(id);
    let message = Outgoing {
        envelope,
        payload,
        request,
    };
    transport.send(message, matching).unwrap();
    id
}

/// Has the peer send control messages about a send, and this side take them.
fn say(pair: &mut (PeerTransport, PeerTransport), matching: &mut Matching, kinds: &[u32], id: RequestId) -> Failure {
    let mut theirs = Matching::new(2, usize::MAX);
    for kind in kinds {
        let envelope = Envelope {
            kind: *kind,
            tag: id.to_wire(),
            ..Envelope::default()
        };
        pair.1.send(Outgoing::control(envelope), &mut theirs).unwrap();
    }
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        if let Err(failure) = pair.0.progress(matching) {
            return failure;
        }
        assert!(Instant::now() < until, "the messages {kinds:?} are accepted");
    }
}

#[test]
fn second_acceptance_breaks_the_protocol() {
    for mut pair in pairs() {
        let (bytes, mut matching) = (vec![7; LENGTH], Matching::new(2, usize::MAX));
        let id = begin(&mut pair.0, &mut matching, &bytes, kind::OFFER);
        let failure = say(&mut pair, &mut matching, &[kind::ACCEPT, kind::ACCEPT], id);
        assert_eq!(failure.code, Code::ProtocolViolation);
        assert_eq!(matching.get(id).unwrap().state, State::Sending, "its bytes are lent");
    }
}

#[test]
fn message_in_the_outbox_cannot_be_taken() {
    for mut pair in pairs() {
        let (bytes, mut matching) = (vec![7; LENGTH], Matching::new(2, usize::MAX));
        let id = begin(&mut pair.0, &mut matching, &bytes, kind::OFFER);
        let failure = say(&mut pair, &mut matching, &[kind::ACCEPT, kind::TAKEN], id);
        assert_eq!(failure.code, Code::ProtocolViolation);
        assert_eq!(matching.get(id).unwrap().state, State::Sending, "its bytes are lent");
    }
}

#[test]
fn message_without_an_offer_cannot_be_accepted() {
    for answer in [kind::ACCEPT, kind::TAKEN] {
        for mut pair in pairs() {
            let (bytes, mut matching) = (vec![7; 32 << 10], Matching::new(2, usize::MAX));
            // The first ones fill the way to the peer, so that the last one waits.
            let ids: Vec<_> = (0..100)
                .map(|_| begin(&mut pair.0, &mut matching, &bytes, kind::EAGER))
                .collect();
            let last = ids[99];
            assert_eq!(matching.get(last).unwrap().state, State::Sending);
            let failure = say(&mut pair, &mut matching, &[answer], last);
            assert_eq!(failure.code, Code::ProtocolViolation);
        }
    }
}

#[test]
fn given_up_collective_cannot_be_accepted() {
    for mut pair in pairs() {
        let (bytes, mut matching) = (vec![7; LENGTH], Matching::new(2, usize::MAX));
        let id = begin(&mut pair.0, &mut matching, &bytes, kind::OFFER);
        matching.get_mut(id).unwrap().context = crate::wire::envelope::COLLECTIVE;
        let mut theirs = Matching::new(2, usize::MAX);
        let given_up = Envelope {
            kind: kind::TAKEN,
            tag: id.to_wire(),
            length: 1,
            ..Envelope::default()
        };
        pair.1.send(Outgoing::control(given_up), &mut theirs).unwrap();
        let failure = say(&mut pair, &mut matching, &[kind::ACCEPT], id);
        assert_eq!(failure.code, Code::ProtocolViolation);
    }
}
