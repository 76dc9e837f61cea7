//! Point-to-point messages.

mod thread_group;

use std::sync::mpsc::channel;
use std::time::Duration;

use dayfly_comm::{ANY_SOURCE, ANY_TAG, Datatype, Operation, Options};
use dayfly_comm::{PeerConnection, Route};
use dayfly_fabric::tls::{self, Identity};
use dayfly_protocol::error::Code;
use thread_group::{Net, connections_by, group, options, over, pattern};

const NETS: [Net; 2] = [Net::Shm, Net::Tcp];

/// Lengths: inline, in the data ring, beyond the eager limit of each link, and copied by both sides.
const LENGTHS: [usize; 9] = [0, 8, 96, 97, 5000, 32 << 10, (64 << 10) + 1, 300_000, 3 << 20];

#[test]
fn messages_of_any_length_arrive_in_order() {
    for net in NETS {
        group(2, net, options(), |comm| {
            for (number, length) in LENGTHS.iter().cycle().take(40).enumerate() {
                let bytes = pattern(number as u64, *length);
                if comm.rank() == 0 {
                    comm.send(&bytes, 1, 5).unwrap();
                } else {
                    let mut into = vec![0; *length];
                    let status = comm.recv(&mut into, 0, 5).unwrap();
                    assert_eq!((status.source, status.tag, status.length), (0, 5, *length as u64));
                    assert!(into == bytes, "{net:?}, message {number} of {length} bytes");
                }
            }
        });
    }
}

#[test]
fn messages_wait_for_a_receive_of_their_tag() {
    for net in NETS {
        group(2, net, options(), |comm| {
            if comm.rank() == 0 {
                comm.scope(|scope| {
                    for tag in 0..50u32 {
                        scope.isend(&[7; 200][..tag as usize], 1, tag)?;
                    }
                    Ok(())
                })
                .unwrap();
            } else {
                for tag in (0..50).rev() {
                    let mut into = [0; 200];
                    let status = comm.recv(&mut into, 0, tag).unwrap();
                    assert_eq!((status.tag, status.length), (tag, u64::from(tag)));
                }
            }
        });
    }
}

#[test]
fn both_ranks_may_send_before_receiving() {
    for net in NETS {
        group(2, net, options(), |comm| {
            let other = 1 - comm.rank();
            let mut into = vec![0; 30_000];
            for _ in 0..20 {
                let sent = pattern(comm.rank().into(), 30_000);
                comm.send(&sent, other, 1).unwrap();
                comm.send(&sent, other, 2).unwrap();
                comm.recv(&mut into, other, 1).unwrap();
                comm.recv(&mut into, other, 2).unwrap();
                assert!(into == pattern(other.into(), 30_000));
            }
            let long = pattern(comm.rank().into(), 5 << 20);
            let mut into = vec![0; long.len()];
            comm.sendrecv(&long, other, 3, &mut into, other, 3).unwrap();
            assert!(into == pattern(other.into(), long.len()));
        });
    }
}

#[test]
fn any_source_receives_each_rank_in_order() {
    for net in NETS {
        group(5, net, options(), |comm| {
            if comm.rank() > 0 {
                for number in 0..100u32 {
                    comm.send(&number.to_ne_bytes(), 0, number).unwrap();
                }
                return;
            }
            let mut next = [0u32; 5];
            for _ in 0..400 {
                let mut into = [0; 4];
                let status = comm.recv(&mut into, ANY_SOURCE, ANY_TAG).unwrap();
                let number = &mut next[status.source as usize];
                assert_eq!((u32::from_ne_bytes(into), status.tag), (*number, *number));
                *number += 1;
            }
        });
    }
}

#[test]
fn awaited_message_follows_many_unexpected_ones() {
    const MESSAGES: u32 = 400;
    let options = Options {
        unexpected_bytes: 1 << 20,
        deadline: Duration::from_secs(20),
        ..options()
    };
    for net in NETS {
        group(3, net, options.clone(), |comm| {
            if comm.rank() == 2 {
                comm.barrier().unwrap();
                return;
            }
            let sent = pattern(1, 20_000);
            if comm.rank() == 0 {
                comm.scope(|scope| {
                    for tag in 0..MESSAGES {
                        scope.isend(&sent, 1, tag)?;
                    }
                    comm.barrier()
                })
                .unwrap();
                return;
            }
            // The messages of the barrier come after all the others.
            comm.barrier().unwrap();
            let mut into = vec![0; sent.len()];
            for tag in (0..MESSAGES).rev() {
                comm.recv(&mut into, 0, tag).unwrap();
                assert!(into == sent, "{net:?}, message {tag}");
            }
        });
    }
}

#[test]
fn truncated_message_fails_only_its_receiver() {
    for net in NETS {
        for length in LENGTHS.into_iter().skip(1) {
            group(2, net, options(), |comm| {
                if comm.rank() == 0 {
                    comm.send(&pattern(1, length), 1, 1).unwrap();
                    comm.send(b"next", 1, 1).unwrap();
                    return;
                }
                let mut into = vec![0; length];
                let (room, guard) = into.split_at_mut(length - 1);
                let failure = comm.recv(room, 0, 1).unwrap_err();
                assert_eq!(failure.code, Code::Truncated);
                assert!(failure.message.contains(&format!("{length} bytes")), "{failure}");
                assert!(*room == pattern(1, length)[..length - 1]);
                assert_eq!(guard, [0]);
                let mut next = [0; 4];
                comm.recv(&mut next, 0, 1).unwrap();
                assert_eq!(&next, b"next");
            });
        }
    }
}

#[test]
fn probe_returns_the_next_receives_status() {
    for net in NETS {
        group(2, net, options(), |comm| {
            if comm.rank() == 0 {
                comm.send(&[1; 777], 1, 9).unwrap();
                comm.send(&vec![2; 1 << 20], 1, 10).unwrap();
                return;
            }
            assert!(comm.iprobe(1, 9).unwrap().is_none());
            for (tag, length) in [(10, 1 << 20), (9, 777)] {
                let status = comm.probe(0, tag).unwrap();
                assert_eq!((status.source, status.tag, status.length), (0, tag, length));
                comm.recv(&mut vec![0; length as usize], status.source, status.tag)
                    .unwrap();
            }
        });
    }
}

#[test]
fn rank_can_send_to_itself() {
    group(1, Net::Shm, options(), |comm| {
        comm.send(b"self", 0, 3).unwrap();
        let mut into = [0; 4];
        comm.recv(&mut into, ANY_SOURCE, ANY_TAG).unwrap();
        assert_eq!(&into, b"self");
    });
}

#[test]
fn background_operations_progress_during_other_waits() {
    for net in NETS {
        group(3, net, options(), |comm| {
            let rank = comm.rank();
            let own = pattern(rank.into(), 100_000);
            let mut all = vec![0; 300_000];
            let (mut sum, mut token) = ([0; 8], [0]);
            let own_number = u64::from(rank).to_ne_bytes();
            let operation = Operation::Sum;
            comm.scope(|scope| {
                let gather = scope.iallgather(&own, &mut all)?;
                let reduce = scope.iallreduce(&own_number, &mut sum, Datatype::U64, &operation)?;
                // Rank 0 sends only after its collectives, which need the other ranks.
                if rank == 0 {
                    scope.wait(reduce)?;
                    scope.wait(gather)?;
                    comm.send(&[1], 1, 1)?;
                    comm.send(&[1], 2, 1)?;
                } else {
                    comm.recv(&mut token, 0, 1)?;
                }
                scope.ibarrier()?;
                Ok(())
            })
            .unwrap();
            assert_eq!(u64::from_ne_bytes(sum), 3);
            assert!(all == (0..3).flat_map(|rank| pattern(rank, 100_000)).collect::<Vec<_>>());
        });
    }
}

#[test]
fn timed_out_wait_leaves_the_message_receivable() {
    for net in NETS {
        let (late, lates) = channel();
        let lates = std::sync::Mutex::new(lates);
        let short = Options {
            deadline: Duration::from_millis(100),
            ..Options::default()
        };
        group(2, net, options(), |comm| {
            // Formed with a long deadline, used with a short one.
            drop(comm);
        });
        over(thread_group::connections(2, net), Options { ..short }, |comm| {
            if comm.rank() == 0 {
                lates.lock().unwrap().recv().unwrap();
                comm.send(&[4; 10], 1, 1).unwrap();
                return;
            }
            let mut into = [0; 10];
            let failure = comm.recv(&mut into, 0, 1).unwrap_err();
            assert_eq!(failure.code, Code::TimedOut);
            assert!(failure.message.contains("recv"), "{failure}");
            late.send(()).unwrap();
            comm.recv(&mut into, 0, 1).unwrap();
            assert_eq!(into, [4; 10]);
        });
    }
}

#[test]
fn sleeping_ranks_are_woken_by_messages() {
    for net in NETS {
        let sleepy = Options {
            spin: Some(Duration::ZERO),
            ..options()
        };
        group(3, net, sleepy, |comm| {
            let (next, previous) = ((comm.rank() + 1) % 3, (comm.rank() + 2) % 3);
            for length in [8, 100_000, 2 << 20] {
                let bytes = pattern(comm.rank().into(), length);
                let mut into = vec![0; length];
                for _ in 0..30 {
                    comm.sendrecv(&bytes, next, 0, &mut into, previous, 0).unwrap();
                    comm.barrier().unwrap();
                }
                assert!(into == pattern(previous.into(), length));
            }
        });
    }
}

#[test]
fn communicators_do_not_match_each_others_messages() {
    for net in NETS {
        group(5, net, options(), |comm| {
            let twin = comm.dup().unwrap();
            let half = comm
                .split(Some(comm.rank() % 2), -i64::from(comm.rank()))
                .unwrap()
                .unwrap();
            assert!(comm.split(None, 0).unwrap().is_none());
            let expected: &[u32] = if comm.rank().is_multiple_of(2) {
                &[4, 2, 0]
            } else {
                &[3, 1]
            };
            assert_eq!(half.members(), expected);
            assert_eq!(half.members()[half.rank() as usize], comm.rank());
            // The same tag on three communicators, received in another order.
            if comm.rank() == 4 {
                for (comm, to) in [(&comm, 2), (&twin, 2), (&half, 1)] {
                    comm.send(&[comm.size() as u8 + comm.rank() as u8], to, 1).unwrap();
                }
            } else if comm.rank() == 2 {
                for (comm, from, expected) in [(&half, 0, 3), (&twin, 4, 9), (&comm, 4, 9)] {
                    let mut into = [0];
                    let status = comm.recv(&mut into, ANY_SOURCE, ANY_TAG).unwrap();
                    assert_eq!((status.source, into[0]), (from, expected));
                }
            }
            let mut sum = [0; 4];
            half.allreduce(&comm.rank().to_ne_bytes(), &mut sum, Datatype::U32, &Operation::Sum)
                .unwrap();
            assert_eq!(u32::from_ne_bytes(sum), expected.iter().sum::<u32>());
        });
    }
}

#[test]
fn two_threads_of_a_rank_wait_concurrently() {
    for net in NETS {
        group(2, net, options(), |comm| {
            let twin = comm.dup().unwrap();
            let other = 1 - comm.rank();
            std::thread::scope(|scope| {
                for (comm, first) in [(&comm, 0), (&twin, 1)] {
                    scope.spawn(move || {
                        let mut into = [0; 8];
                        for _ in 0..20 {
                            if comm.rank() == first {
                                comm.send(&[first as u8; 8], other, 0).unwrap();
                                comm.recv(&mut into, other, 0).unwrap();
                            } else {
                                comm.recv(&mut into, other, 0).unwrap();
                                comm.send(&[first as u8; 8], other, 0).unwrap();
                            }
                            assert_eq!(into, [first as u8; 8]);
                        }
                    });
                }
            });
        });
    }
}

/// An Ed25519 key in PKCS#8 with this seed.
fn identity(seed: u8) -> Identity {
    let prefix = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
    Identity::from_pkcs8([&prefix[..], &[seed; 32]].concat()).unwrap()
}

/// Two ends of a connection with a TLS session after its handshake.
fn encrypted() -> (PeerConnection, PeerConnection) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut one = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut other = listener.accept().unwrap().0;
    let (client, server) = (identity(1), identity(2));
    let mut client_session = rustls::Connection::from(tls::client(&client, &server.public).unwrap());
    let mut server_session = rustls::Connection::from(tls::worker(&server, &client.public).unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| server_session.complete_io(&mut other).unwrap());
        client_session.complete_io(&mut one).unwrap();
    });
    let connection = |socket, session| PeerConnection::Remote {
        socket,
        session: Some(Box::new(session)),
        route: Route::Direct,
    };
    (connection(one, client_session), connection(other, server_session))
}

#[test]
fn messages_and_collectives_pass_through_tls() {
    over(connections_by(3, |_, _| encrypted()), options(), |comm| {
        let (next, previous) = ((comm.rank() + 1) % 3, (comm.rank() + 2) % 3);
        for length in LENGTHS {
            let bytes = pattern(comm.rank().into(), length);
            let mut into = vec![0; length];
            comm.sendrecv(&bytes, next, 0, &mut into, previous, 0).unwrap();
            assert!(into == pattern(previous.into(), length), "{length} bytes");
            let mut all = vec![0; 3 * length];
            comm.allgather(&bytes, &mut all).unwrap();
            assert!(all[next as usize * length..][..length] == pattern(next.into(), length));
        }
    });
}

#[test]
#[ignore = "needs 5 GiB of memory and some seconds"]
fn soak_message_above_two_gibibytes_arrives_whole() {
    const LENGTH: usize = (2 << 30) + 12_345;
    for net in NETS {
        group(2, net, options(), |comm| {
            let mut buffer = vec![0u8; LENGTH];
            if comm.rank() == 0 {
                buffer[LENGTH - 9..].copy_from_slice(b"the end..");
                comm.send(&buffer, 1, 0).unwrap();
            } else {
                assert_eq!(comm.recv(&mut buffer, 0, 0).unwrap().length, LENGTH as u64);
                assert_eq!(&buffer[LENGTH - 9..], b"the end..");
            }
        });
    }
}
