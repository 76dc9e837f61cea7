//! Operations that a binding owns: synchronous sends, matched messages, communicators of chosen ranks.

mod thread_group;

use dayfly_comm::detached::{Detached, Turn};
use dayfly_comm::{ANY_SOURCE, ANY_TAG, Communicator, Status};
use dayfly_protocol::error::{Code, Failure};
use thread_group::{Net, group, options, pattern};

const NETS: [Net; 2] = [Net::Shm, Net::Tcp];

fn wait(turn: &mut Turn<'_>, operation: &Detached) -> Status {
    outcome(turn, operation).unwrap()
}

fn outcome(turn: &mut Turn<'_>, operation: &Detached) -> Result<Status, Failure> {
    loop {
        if let Some(outcome) = turn.take(operation) {
            return outcome;
        }
        turn.step("the test").unwrap();
    }
}

fn end(comm: &Communicator, operation: &Detached) -> Result<Status, Failure> {
    outcome(&mut comm.turn(), operation)
}

fn send(comm: &Communicator, bytes: &[u8], to: u32, tag: u32, synchronous: bool) -> Detached {
    // SAFETY: the callers keep the bytes until the operation was taken.
    unsafe { comm.start_send(bytes.as_ptr(), bytes.len(), to, tag, synchronous) }.unwrap()
}

fn receive(comm: &Communicator, into: &mut [u8], from: u32, tag: u32) -> Detached {
    // SAFETY: the callers keep the memory until the operation was taken.
    unsafe { comm.start_receive(into.as_mut_ptr(), into.len(), from, tag) }.unwrap()
}

/// Exchanges one empty message in each direction, so that all earlier ones have arrived.
fn meet(comm: &Communicator, tag: u32) {
    let other = 1 - comm.rank();
    comm.sendrecv(&[], other, tag, &mut [], other, tag).unwrap();
}

#[test]
fn synchronous_send_waits_for_its_receive() {
    for (net, length) in NETS
        .into_iter()
        .flat_map(|net| [0, 8, 5000, 200_000].map(|length| (net, length)))
    {
        group(2, net, options(), |comm| {
            let bytes = pattern(3, length);
            if comm.rank() == 0 {
                let sent = send(&comm, &bytes, 1, 7, true);
                meet(&comm, 1);
                assert!(
                    !comm.turn().is_complete(&sent),
                    "{net:?}, {length} bytes: complete too early"
                );
                meet(&comm, 2);
                wait(&mut comm.turn(), &sent);
            } else {
                meet(&comm, 1);
                meet(&comm, 2);
                let mut into = vec![0; length];
                let status = comm.recv(&mut into, 0, 7).unwrap();
                assert!(into == bytes && status.length == length as u64);
            }
        });
    }
}

#[test]
fn synchronous_send_to_oneself_waits_for_its_receive() {
    group(1, Net::Shm, options(), |comm| {
        let (bytes, mut into) = ([5; 100], [0; 100]);
        let sent = send(&comm, &bytes, 0, 7, true);
        assert!(!comm.turn().is_complete(&sent));
        assert_eq!(comm.iprobe(0, 7).unwrap().unwrap().length, 100);
        let received = receive(&comm, &mut into, ANY_SOURCE, ANY_TAG);
        wait(&mut comm.turn(), &sent);
        wait(&mut comm.turn(), &received);
        assert_eq!(into, bytes);
        let received = receive(&comm, &mut into, 0, 8);
        let sent = send(&comm, &bytes[..4], 0, 8, true);
        wait(&mut comm.turn(), &sent);
        assert_eq!(wait(&mut comm.turn(), &received).length, 4);
        let sent = send(&comm, &bytes, 0, 9, true);
        assert!(comm.turn().cancel(&sent) && comm.iprobe(0, 9).unwrap().is_none());
    });
}

/// Sends that are offered before their bytes: long ones and synchronous ones.
fn offers() -> impl Iterator<Item = (Net, usize)> {
    NETS.into_iter()
        .flat_map(|net| [8, 200_000].map(|length| (net, length)))
}

#[test]
fn offer_without_a_receive_is_cancelled() {
    for (net, length) in offers() {
        group(2, net, options(), |comm| {
            if comm.rank() == 0 {
                let bytes = pattern(3, length);
                let sent = send(&comm, &bytes, 1, 7, true);
                meet(&comm, 1);
                assert!(!comm.turn().cancel(&sent), "{net:?}: the other rank knows of it");
                let failure = end(&comm, &sent).unwrap_err();
                assert_eq!(failure.code, Code::Cancelled);
                meet(&comm, 2);
                meet(&comm, 3);
            } else {
                while comm.iprobe(0, 7).unwrap().is_none() {}
                meet(&comm, 1);
                meet(&comm, 2);
                assert!(comm.iprobe(0, 7).unwrap().is_none());
                meet(&comm, 3);
            }
        });
    }
}

#[test]
fn message_with_a_receive_is_not_cancelled() {
    for (net, length) in offers() {
        group(2, net, options(), |comm| {
            let bytes = pattern(3, length);
            if comm.rank() == 0 {
                let sent = send(&comm, &bytes, 1, 7, true);
                meet(&comm, 1);
                assert!(!comm.turn().cancel(&sent), "{net:?}: a probe has matched it");
                meet(&comm, 2);
                end(&comm, &sent).unwrap();
            } else {
                let message = loop {
                    if let Some(message) = comm.take_message(0, 7).unwrap() {
                        break message;
                    }
                };
                meet(&comm, 1);
                meet(&comm, 2);
                let mut into = vec![0; length];
                // SAFETY: the memory outlives the operation, which is waited for here.
                let received = unsafe { comm.start_matched(message, into.as_mut_ptr(), length) }.unwrap();
                wait(&mut comm.turn(), &received);
                assert!(into == bytes);
            }
        });
    }
}

#[test]
fn matched_message_is_taken_from_other_receives() {
    for (net, length) in NETS
        .into_iter()
        .flat_map(|net| [0, 8, 200_000].map(|length| (net, length)))
    {
        group(2, net, options(), |comm| {
            let messages = [pattern(1, length), pattern(2, length)];
            if comm.rank() == 0 {
                let sent = messages.each_ref().map(|message| send(&comm, message, 1, 7, false));
                sent.iter().for_each(|sent| _ = wait(&mut comm.turn(), sent));
            } else {
                let first = loop {
                    if let Some(message) = comm.take_message(ANY_SOURCE, 7).unwrap() {
                        break message;
                    }
                };
                assert_eq!((first.status().source, first.status().length), (0, length as u64));
                let (mut into, mut second) = (vec![0; length], vec![0; length]);
                comm.recv(&mut second, 0, 7).unwrap();
                // SAFETY: the memory outlives the operation, which is waited for here.
                let received = unsafe { comm.start_matched(first, into.as_mut_ptr(), length) }.unwrap();
                wait(&mut comm.turn(), &received);
                assert!(into == messages[0] && second == messages[1], "{net:?}, {length} bytes");
            }
        });
    }
}

#[test]
fn sparse_exchange_loses_no_message() {
    for net in NETS {
        group(3, net, options(), |comm| {
            let (size, rank) = (comm.size(), comm.rank());
            for round in 0..50u32 {
                // A rank that has left the barrier may send for the next round already.
                let (bytes, tag) = ([round as u8, rank as u8], 4 + round % 2);
                let targets: Vec<u32> = (0..size).filter(|to| (round + rank + to) % 3 != 0).collect();
                let sent: Vec<_> = targets.iter().map(|to| send(&comm, &bytes, *to, tag, true)).collect();
                let due = (0..size).filter(|from| (round + from + rank) % 3 != 0).count();
                let mut seen = 0;
                comm.scope(|scope| {
                    let (mut barrier, mut over) = (None, false);
                    while !over {
                        if let Some(status) = comm.iprobe(ANY_SOURCE, tag)? {
                            let mut into = [0; 2];
                            comm.recv(&mut into, status.source, tag)?;
                            assert_eq!(into, [round as u8, status.source as u8]);
                            seen += 1;
                        }
                        match barrier {
                            Some(request) => over = scope.test(request)?.is_some(),
                            None if sent.iter().all(|sent| comm.turn().is_complete(sent)) => {
                                barrier = Some(scope.ibarrier()?);
                            }
                            None => {}
                        }
                    }
                    Ok(())
                })
                .unwrap();
                sent.iter().for_each(|sent| _ = wait(&mut comm.turn(), sent));
                assert_eq!(seen, due, "{net:?}, round {round}");
            }
        });
    }
}

#[test]
fn four_threads_share_the_messages_of_one_rank() {
    const MESSAGES: u32 = 400;
    for net in NETS {
        group(2, net, options(), |comm| {
            if comm.rank() == 0 {
                for number in 0..MESSAGES {
                    let bytes = vec![number as u8; 16 + number as usize * 300];
                    comm.send(&bytes, 1, 3).unwrap();
                }
            } else {
                let receive = || {
                    for _ in 0..MESSAGES / 4 {
                        let message = loop {
                            if let Some(message) = comm.take_message(0, 3).unwrap() {
                                break message;
                            }
                            std::thread::yield_now();
                        };
                        let length = message.status().length as usize;
                        let number = (length - 16) / 300;
                        let mut into = vec![0; length];
                        // SAFETY: the memory outlives the operation, which is waited for here.
                        let received = unsafe { comm.start_matched(message, into.as_mut_ptr(), length) }.unwrap();
                        wait(&mut comm.turn(), &received);
                        assert!(
                            into.iter().all(|byte| *byte == number as u8),
                            "{net:?}, message {number}"
                        );
                    }
                };
                std::thread::scope(|scope| {
                    for _ in 0..4 {
                        scope.spawn(receive);
                    }
                });
            }
        });
    }
}

#[test]
fn chosen_ranks_form_a_communicator() {
    group(3, Net::Shm, options(), |comm| {
        let mut context = u64::from(comm.propose_context()).to_ne_bytes();
        let own = context;
        comm.allreduce(
            &own,
            &mut context,
            dayfly_comm::Datatype::U64,
            &dayfly_comm::Operation::Max,
        )
        .unwrap();
        let context = u64::from_ne_bytes(context) as u32;
        let pair = comm.with_members(context, vec![2, 0]).unwrap();
        if comm.rank() == 1 {
            // Not a member: it can still send to the members.
            pair.send(&[9], 0, 1).unwrap();
        } else {
            assert_eq!(pair.rank(), u32::from(comm.rank() == 0));
            pair.barrier().unwrap();
        }
        if comm.rank() == 2 {
            let mut into = [0];
            let received = receive(&pair, &mut into, ANY_SOURCE, 1);
            assert_eq!(wait(&mut comm.turn(), &received).source, 1);
            assert_eq!(into, [9]);
        }
        comm.barrier().unwrap();
    });
}

#[test]
fn interleaved_agreements_have_different_contexts() {
    group(3, Net::Shm, options(), |comm| {
        // As two threads do it on each rank, which make a communicator each at the same time.
        let mut proposals = [comm.propose_context(), comm.propose_context()];
        if comm.rank() == 1 {
            proposals.reverse();
        }
        let contexts = proposals.map(|own| {
            let mut greatest = [0; 8];
            let own = u64::from(own).to_ne_bytes();
            comm.allreduce(
                &own,
                &mut greatest,
                dayfly_comm::Datatype::U64,
                &dayfly_comm::Operation::Max,
            )
            .unwrap();
            u64::from_ne_bytes(greatest)
        });
        assert!(contexts[0].abs_diff(contexts[1]) > 1, "{contexts:?}");
    });
}

#[test]
fn communicator_is_dropped_while_the_engine_is_held() {
    group(2, Net::Shm, options(), |comm| {
        let part = comm.dup().unwrap();
        let mut turn = comm.turn();
        drop(part);
        turn.progress();
        drop(turn);
        comm.dup().unwrap().barrier().unwrap();
    });
}
