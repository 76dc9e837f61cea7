//! Posts: owned messages between ranks.

mod thread_group;

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use dayfly_comm::post::{MAX_PARTS, MIN_WINDOW_BYTES, Message, Post, PostError, PostOptions};
use dayfly_comm::{Communicator, Options};
use dayfly_protocol::error::Code;
use thread_group::{Net, group, options, pattern};

const NETS: [Net; 2] = [Net::Shm, Net::Tcp];

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn open(comm: &Communicator) -> Post {
    Post::open(comm, PostOptions::default()).unwrap()
}

fn narrow(comm: &Communicator, window_bytes: u64) -> Post {
    let options = PostOptions {
        window_bytes,
        ..PostOptions::default()
    };
    Post::open(comm, options).unwrap()
}

/// What opening a post among two ranks does, without a post. The other rank's post takes this one for a post.
fn open_without_post(comm: &Communicator) -> Communicator {
    let raw = comm.dup().unwrap();
    let bounds = PostOptions::default();
    let own = [bounds.window_bytes, bounds.message_bytes, 1]
        .map(u64::to_ne_bytes)
        .concat();
    let mut all = own.repeat(2);
    raw.allgather(&own, &mut all).unwrap();
    raw
}

/// A waker that runs a function.
struct Callback<F>(F);

impl<F: Fn() + Send + Sync + 'static> Wake for Callback<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

fn waker(run: impl Fn() + Send + Sync + 'static) -> Waker {
    Arc::new(Callback(run)).into()
}

/// Parts whose bytes and lengths follow from a number.
fn parts(number: u64, lengths: &[usize]) -> Vec<Bytes> {
    let part = |(at, length): (usize, &usize)| Bytes::from(pattern(number * 100 + at as u64, *length));
    lengths.iter().enumerate().map(part).collect()
}

fn assert_parts(message: &Message, number: u64, lengths: &[usize]) {
    let expected = parts(number, lengths);
    assert_eq!(message.parts().len(), expected.len());
    for (part, expected) in message.parts().iter().zip(&expected) {
        assert!(part == expected, "message {number}: a part of {} bytes", expected.len());
        assert_eq!(part.as_ptr() as usize % 64, 0, "a part of {} bytes", expected.len());
    }
}

/// Lists of lengths: inline, gathered, copied from where they lie, mixed, in several frames, and none.
const SHAPES: [&[usize]; 9] = [
    &[],
    &[0],
    &[8],
    &[0, 1, 0, 63, 64, 65],
    &[5_000, 5_000, 5_000, 5_000],
    &[100_000],
    &[40_000, 3, 0, 70_000, 31_999, 1 << 20],
    &[20_000_001],
    &[16_384],
];

#[test]
fn messages_of_a_lane_arrive_in_order() {
    for net in NETS {
        group(3, net, options(), |comm| {
            let post = open(&comm);
            let next = (post.rank() + 1) % post.size();
            let mut deliveries = Vec::new();
            for (number, lengths) in (0..).zip(SHAPES.iter().cycle().take(60)) {
                deliveries.push(post.send(next, 5, parts(number, lengths)).unwrap());
            }
            for (number, lengths) in (0..).zip(SHAPES.iter().cycle().take(60)) {
                let message = post.receive(5, soon()).unwrap();
                assert_eq!((message.from() + 1) % post.size(), post.rank());
                assert_parts(&message, number, lengths);
            }
            for delivery in deliveries {
                delivery.wait(soon()).unwrap();
            }
            post.close(soon()).unwrap();
        });
    }
}

#[test]
fn rank_sends_to_itself_in_order() {
    group(2, Net::Shm, options(), |comm| {
        let post = narrow(&comm, MIN_WINDOW_BYTES);
        let own = post.rank();
        for (number, lengths) in (0..).zip(SHAPES.iter().cycle().take(60)) {
            drop(post.send(own, 1, parts(number, lengths)).unwrap());
        }
        for (number, lengths) in (0..).zip(SHAPES.iter().cycle().take(60)) {
            assert_parts(&post.receive(1, soon()).unwrap(), number, lengths);
        }
    });
}

#[test]
fn full_lane_does_not_block_others() {
    for net in NETS {
        group(2, net, options(), |comm| {
            let post = narrow(&comm, 1 << 20);
            if post.rank() == 0 {
                let stuck: Vec<_> = (0..100)
                    .map(|number| post.send(1, 1, parts(number, &[200_000])).unwrap())
                    .collect();
                for number in 0..300 {
                    post.send(1, 2, parts(number, &[300_000, 5]))
                        .unwrap()
                        .wait(soon())
                        .unwrap();
                }
                assert!(!stuck.iter().all(dayfly_comm::post::Delivery::is_over));
                post.receive(3, soon()).unwrap();
                post.close(soon()).unwrap();
                for delivery in stuck {
                    delivery.wait(soon()).unwrap();
                }
            } else {
                for number in 0..300 {
                    assert_parts(&post.receive(2, soon()).unwrap(), number, &[300_000, 5]);
                }
                post.send(0, 3, Vec::new()).unwrap().wait(soon()).unwrap();
                for number in 0..100 {
                    assert_parts(&post.receive(1, soon()).unwrap(), number, &[200_000]);
                }
            }
        });
    }
}

#[test]
fn unreceived_messages_stay_within_the_window() {
    for net in NETS {
        for bytes in [1_000usize, 100_000] {
            group(2, net, options(), |comm| {
                let window = 1 << 20;
                let post = narrow(&comm, window);
                let count = 4 * window / bytes as u64;
                if post.rank() == 0 {
                    let mut all: Vec<_> = (0..count)
                        .map(|number| post.send(1, 1, parts(number, &[bytes])).unwrap())
                        .collect();
                    // The word of another lane comes after everything that had credit.
                    post.send(1, 2, Vec::new()).unwrap().wait(soon()).unwrap();
                    post.receive(3, soon()).unwrap();
                    all.remove(0).wait(soon()).unwrap();
                    let left = 1 + all.iter().filter(|delivery| delivery.is_over()).count() as u64;
                    assert!(
                        left * bytes as u64 <= window,
                        "{left} of {count} messages of {bytes} bytes"
                    );
                    post.send(1, 2, Vec::new()).unwrap();
                    for delivery in all {
                        delivery.wait(soon()).unwrap();
                    }
                } else {
                    post.receive(2, soon()).unwrap();
                    post.send(0, 3, Vec::new()).unwrap();
                    post.receive(2, soon()).unwrap();
                    for number in 0..count {
                        assert_parts(&post.receive(1, soon()).unwrap(), number, &[bytes]);
                    }
                }
                post.close(soon()).unwrap();
            });
        }
    }
}

#[test]
fn hundred_thousand_small_messages_arrive() {
    const COUNT: u64 = 100_000;
    for net in NETS {
        group(2, net, options(), |comm| {
            let post = open(&comm);
            let other = 1 - post.rank();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for number in 0..COUNT {
                        let bytes = Bytes::copy_from_slice(&number.to_le_bytes());
                        drop(post.send(other, (number % 3) as u32, vec![bytes]).unwrap());
                    }
                });
                for number in 0..COUNT {
                    let message = post.receive((number % 3) as u32, soon()).unwrap();
                    assert_eq!(message.parts()[0], number.to_le_bytes()[..]);
                }
            });
            post.close(soon()).unwrap();
        });
    }
}

#[test]
fn message_of_most_parts_arrives() {
    let mut lengths = vec![0; MAX_PARTS];
    for (at, length) in lengths.iter_mut().enumerate() {
        *length = [0, 1, 9, 100][at % 4];
    }
    lengths[500] = 40_000;
    for net in NETS {
        group(2, net, options(), |comm| {
            let post = open(&comm);
            if post.rank() == 0 {
                let one_more = vec![Bytes::new(); MAX_PARTS + 1];
                let error = post.send(1, 1, one_more).unwrap_err();
                assert!(matches!(error, PostError::TooLarge { parts, .. } if parts == MAX_PARTS + 1));
                for number in 0..2 {
                    post.send(1, 1, parts(number, &lengths)).unwrap().wait(soon()).unwrap();
                    post.send(1, 1, vec![Bytes::new(); MAX_PARTS])
                        .unwrap()
                        .wait(soon())
                        .unwrap();
                }
            } else {
                for number in 0..2 {
                    assert_parts(&post.receive(1, soon()).unwrap(), number, &lengths);
                    assert_parts(&post.receive(1, soon()).unwrap(), 0, &vec![0; MAX_PARTS]);
                }
            }
            post.close(soon()).unwrap();
        });
    }
}

/// One message in both directions, whose bytes are compared without a second copy of them.
fn exchange_long(net: Net, length: usize) {
    group(2, net, options(), |comm| {
        let post = open(&comm);
        let block = Bytes::from(pattern(u64::from(post.rank()), length));
        drop(
            post.send(1 - post.rank(), 9, vec![block.clone(), block.slice(..100)])
                .unwrap(),
        );
        let message = post.receive(9, soon()).unwrap();
        let expected = pattern(u64::from(1 - post.rank()), length);
        assert!(message.parts()[0] == expected && message.parts()[1] == expected[..100]);
        post.close(soon()).unwrap();
    });
}

#[test]
fn long_message_exceeds_the_window() {
    for net in NETS {
        exchange_long(net, (64 << 20) + 1);
    }
}

#[test]
#[ignore = "needs 10 GiB of memory and some seconds"]
fn message_beyond_four_gigabytes_arrives() {
    group(2, Net::Shm, options(), |comm| {
        let post = open(&comm);
        let length = (1usize << 32) + 7;
        if post.rank() == 0 {
            let mut block = vec![3u8; length];
            block[length - 1] = 4;
            post.send(1, 1, vec![Bytes::from(block)]).unwrap().wait(soon()).unwrap();
        } else {
            let message = post.receive(1, soon()).unwrap();
            let part = &message.parts()[0];
            assert_eq!((part.len(), part[length - 1]), (length, 4));
            assert!(part[..length - 1].iter().all(|byte| *byte == 3));
        }
        post.close(soon()).unwrap();
    });
}

#[test]
fn longer_messages_than_agreed_are_refused() {
    group(2, Net::Shm, options(), |comm| {
        let options = PostOptions {
            message_bytes: 1000,
            ..PostOptions::default()
        };
        let post = Post::open(&comm, options).unwrap();
        let error = post.send(1 - post.rank(), 1, parts(0, &[500, 501])).unwrap_err();
        assert_eq!(
            error,
            PostError::TooLarge {
                bytes: 1001,
                parts: 2,
                most: 1000
            }
        );
        let error = post.send(2, 1, Vec::new()).unwrap_err();
        assert_eq!(error, PostError::NoSuchRank { rank: 2, size: 2 });
        // Neither rank ends before the other has sent.
        comm.barrier().unwrap();
    });
}

#[test]
fn different_options_are_a_mismatch() {
    let outcomes = group(2, Net::Shm, options(), |comm| {
        let options = PostOptions {
            window_bytes: MIN_WINDOW_BYTES + u64::from(comm.rank()),
            ..PostOptions::default()
        };
        Post::open(&comm, options).map(drop).unwrap_err()
    });
    for failure in outcomes {
        assert_eq!(failure.code, Code::Mismatch);
    }
}

#[test]
fn second_post_of_a_rank_is_refused() {
    group(2, Net::Shm, options(), |comm| {
        let post = open(&comm);
        let failure = Post::open(&comm, PostOptions::default()).map(drop).unwrap_err();
        assert_eq!(failure.code, Code::InvalidRequest);
        post.close(soon()).unwrap();
        // After the first one has ended there may be another.
        let post = open(&comm);
        post.send(1 - post.rank(), 1, Vec::new()).unwrap();
        post.receive(1, soon()).unwrap();
        post.close(soon()).unwrap();
    });
}

#[test]
fn tasks_await_messages_without_polling() {
    group(2, Net::Shm, options(), |comm| {
        let post = open(&comm);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let other = 1 - post.rank();
        runtime.block_on(async {
            let (one, two) = tokio::join!(post.next(1, None), async {
                // Polled after the first one waits.
                post.send(other, 2, parts(2, &[10])).unwrap().await.unwrap();
                let two = post.next(2, None).await.unwrap();
                post.send(other, 1, parts(1, &[10])).unwrap().await.unwrap();
                two
            });
            assert_parts(&one.unwrap(), 1, &[10]);
            assert_parts(&two, 2, &[10]);
            let deadline = Instant::now() + Duration::from_millis(30);
            assert_eq!(post.next(4, Some(deadline)).await.unwrap_err(), PostError::Deadline);
            assert!(Instant::now() >= deadline);
        });
        comm.barrier().unwrap();
    });
}

#[test]
fn receive_ends_at_its_deadline() {
    group(2, Net::Shm, options(), |comm| {
        let post = open(&comm);
        assert!(post.try_receive(1).unwrap().is_none());
        let deadline = Instant::now() + Duration::from_millis(20);
        assert_eq!(post.receive(1, deadline).unwrap_err(), PostError::Deadline);
        assert!(Instant::now() >= deadline);
        comm.barrier().unwrap();
    });
}

#[test]
fn revocation_ends_waits_on_all_ranks() {
    for net in NETS {
        group(4, net, options(), |comm| {
            let post = narrow(&comm, MIN_WINDOW_BYTES);
            let next = (post.rank() + 1) % post.size();
            let stuck: Vec<_> = (0..50)
                .map(|number| post.send(next, 1, parts(number, &[100_000])).unwrap())
                .collect();
            // Until all have sent.
            comm.barrier().unwrap();
            if post.rank() == 2 {
                post.receive(1, soon()).unwrap();
                post.revoke();
            }
            let revoked = PostError::Revoked { by: 2 };
            assert_eq!(post.receive(7, soon()).unwrap_err(), revoked);
            assert_eq!(post.try_receive(1).unwrap_err(), revoked);
            let outcomes: Vec<_> = stuck.into_iter().map(|delivery| delivery.wait(soon())).collect();
            assert_eq!(outcomes.last().unwrap(), &Err(revoked.clone()));
            assert_eq!(post.send(next, 1, Vec::new()).unwrap_err(), revoked);
            drop(post);
            // The communicator is as good as before.
            comm.barrier().unwrap();
        });
    }
}

#[test]
fn closed_post_has_delivered_everything() {
    for net in NETS {
        group(2, net, options(), |comm| {
            let post = open(&comm);
            if post.rank() == 0 {
                for number in 0..40 {
                    drop(post.send(1, 1, parts(number, &[300_000, 10])).unwrap());
                }
                post.close(soon()).unwrap();
            } else {
                for number in 0..40 {
                    assert_parts(&post.receive(1, soon()).unwrap(), number, &[300_000, 10]);
                }
                assert_eq!(post.receive(1, soon()).unwrap_err(), PostError::Closed);
                let delivery = post.send(0, 1, Vec::new()).unwrap();
                assert_eq!(delivery.wait(soon()).unwrap_err(), PostError::PeerClosed { rank: 0 });
            }
        });
    }
}

#[test]
fn dropped_post_gives_messages_up_in_time() {
    for net in NETS {
        group(2, net, options(), |comm| {
            let post = narrow(&comm, MIN_WINDOW_BYTES);
            if post.rank() == 0 {
                let stuck: Vec<_> = (0..50)
                    .map(|number| post.send(1, 1, parts(number, &[1 << 20])).unwrap())
                    .collect();
                post.receive(2, soon()).unwrap();
                let began = Instant::now();
                drop(post);
                assert!(began.elapsed() < dayfly_comm::post::MAX_DROP_TIME);
                comm.barrier().unwrap();
                for delivery in stuck.into_iter().skip(1) {
                    assert_eq!(delivery.wait(soon()).unwrap_err(), PostError::Closed);
                }
            } else {
                post.send(0, 2, Vec::new()).unwrap();
                comm.barrier().unwrap();
                // What had arrived is received; then the loss of the rest or the end is reported.
                let end = loop {
                    match post.receive(1, soon()) {
                        Ok(_) => {}
                        Err(error) => break error,
                    }
                };
                assert!(
                    matches!(end, PostError::PeerLost { rank: 0, .. } | PostError::Closed),
                    "{end}"
                );
            }
            comm.barrier().unwrap();
        });
    }
}

#[test]
fn ended_lane_drops_messages_and_returns_credit() {
    group(2, Net::Shm, options(), |comm| {
        let post = narrow(&comm, 1 << 20);
        if post.rank() == 0 {
            for number in 0..100 {
                post.send(1, 1, parts(number, &[200_000]))
                    .unwrap()
                    .wait(soon())
                    .unwrap();
            }
            post.send(1, 2, Vec::new()).unwrap();
            post.close(soon()).unwrap();
        } else {
            post.receive(1, soon()).unwrap();
            post.end_lane(1);
            assert_eq!(post.receive(1, soon()).unwrap_err(), PostError::Closed);
            post.receive(2, soon()).unwrap();
        }
    });
}

#[test]
fn post_goes_on_beside_collectives() {
    for spin in [None, Some(Duration::ZERO)] {
        for net in NETS {
            let options = Options { spin, ..options() };
            group(2, net, options, |comm| {
                let post = open(&comm);
                let ended = AtomicBool::new(false);
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        let other = 1 - post.rank();
                        for number in 0..60 {
                            drop(post.send(other, 1, parts(number, &[10, 200_000])).unwrap());
                            assert_parts(&post.receive(1, soon()).unwrap(), number, &[10, 200_000]);
                        }
                        ended.store(true, Ordering::Release);
                    });
                    let mut all_ended = [0u8];
                    while all_ended[0] == 0 {
                        let own = [u8::from(ended.load(Ordering::Acquire))];
                        let (datatype, least) = (dayfly_comm::Datatype::U8, dayfly_comm::Operation::Min);
                        comm.allreduce(&own, &mut all_ended, datatype, &least).unwrap();
                    }
                });
                post.close(soon()).unwrap();
            });
        }
    }
}

/// Time that the threads of posts in this process have used the processor.
fn processor_time_of_posts() -> Duration {
    let mut total = 0;
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        if name.trim() == "post" {
            let times = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            total += times
                .split(' ')
                .next()
                .and_then(|word| word.parse::<u64>().ok())
                .unwrap_or(0);
        }
    }
    Duration::from_nanos(total)
}

/// Not a test of its own: no other test may run in its process.
#[test]
#[ignore = "run by idle_post_uses_no_processor_time, in a process of its own"]
fn idle_post_in_own_process() {
    for net in NETS {
        group(2, net, options(), |comm| {
            let post = open(&comm);
            let other = 1 - post.rank();
            drop(post.send(other, 1, parts(0, &[100_000])).unwrap());
            post.receive(1, soon()).unwrap();
            comm.barrier().unwrap();
            let before = processor_time_of_posts();
            let deadline = Instant::now() + Duration::from_secs(2);
            assert_eq!(post.receive(1, deadline).unwrap_err(), PostError::Deadline);
            let used = processor_time_of_posts() - before;
            assert!(used < Duration::from_millis(60), "{net:?}: {used:?} of 2 s");
            comm.barrier().unwrap();
        });
    }
}

#[test]
fn idle_post_uses_no_processor_time() {
    let mut own = std::process::Command::new(std::env::current_exe().unwrap());
    let output = own
        .args(["--exact", "idle_post_in_own_process", "--ignored"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn garbage_of_a_rank_is_its_loss() {
    let words: [&[u8]; 6] = [
        b"",
        b"short",
        &[0xff; 16],
        // The head of a message of 2^62 bytes.
        &[
            1, 0, 0x66, 0x64, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x40,
        ],
        // A revocation by a rank that does not exist.
        &[3, 0, 0x66, 0x64, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0],
        // Credit for a lane that nothing was sent on.
        &[
            2, 0, 0x66, 0x64, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ],
    ];
    for net in NETS {
        for word in words {
            let options = Options {
                spin: Some(Duration::from_micros(10)),
                ..options()
            };
            group(2, net, options, |comm| {
                if comm.rank() == 0 {
                    let post = open(&comm);
                    match post.receive(1, soon()).unwrap_err() {
                        PostError::PeerLost { rank: 1, reason } => {
                            assert!(reason.contains("broke the protocol"), "{reason}");
                        }
                        other => panic!("{other}"),
                    }
                } else {
                    let raw = open_without_post(&comm);
                    raw.send(word, 0, 0).unwrap();
                    // Until the other rank has gone.
                    let _ = raw.recv(&mut [0; 64], 0, 77);
                }
            });
        }
    }
}

#[test]
fn memory_of_messages_outlives_the_post() {
    let kept = group(2, Net::Shm, options(), |comm| {
        let post = open(&comm);
        let sent = Arc::new(pattern(1, 500_000));
        let part = Bytes::from_owner(Owned(sent.clone()));
        post.send(1 - post.rank(), 1, vec![part]).unwrap().wait(soon()).unwrap();
        assert_eq!(
            Arc::strong_count(&sent),
            1,
            "the parts are released before the delivery is reported"
        );
        let message = post.receive(1, soon()).unwrap();
        post.close(soon()).unwrap();
        message.into_parts()
    });
    for parts in kept {
        assert!(parts[0] == pattern(1, 500_000));
    }
}

struct Owned(Arc<Vec<u8>>);

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[test]
fn messages_that_wait_for_the_driver_arrive() {
    const COUNT: u64 = 1000;
    for net in NETS {
        group(2, net, options(), |comm| {
            let post = open(&comm);
            if post.rank() == 0 {
                for number in 0..COUNT {
                    drop(post.send(1, 1, parts(number, &[20_000])).unwrap());
                }
                // The other rank's thread takes the messages from the transport until this one arrives.
                post.send(1, 2, Vec::new()).unwrap().wait(soon()).unwrap();
                comm.send(&[1], 1, 0).unwrap();
            } else {
                comm.recv(&mut [0], 0, 0).unwrap();
                for number in 0..COUNT {
                    assert_parts(&post.receive(1, soon()).unwrap(), number, &[20_000]);
                }
            }
            post.close(soon()).unwrap();
        });
    }
}

#[test]
fn messages_before_the_close_arrive() {
    for net in NETS {
        group(2, net, options(), |comm| {
            for _ in 0..20 {
                let post = open(&comm);
                if post.rank() == 0 {
                    drop(post.send(1, 1, parts(1, &[20_000])).unwrap());
                    drop(post.send(1, 2, parts(2, &[17_000])).unwrap());
                    post.close(soon()).unwrap();
                    comm.send(&[1], 1, 0).unwrap();
                } else {
                    // Meanwhile this thread takes the messages and the close from the transport.
                    comm.recv(&mut [0], 0, 0).unwrap();
                    assert_parts(&post.receive(1, soon()).unwrap(), 1, &[20_000]);
                    assert_parts(&post.receive(2, soon()).unwrap(), 2, &[17_000]);
                    assert_eq!(post.receive(1, soon()).unwrap_err(), PostError::Closed);
                }
            }
        });
    }
}

#[test]
fn messages_of_a_departed_rank_arrive() {
    const COUNT: u64 = 12;
    for net in NETS {
        for _ in 0..100 {
            group(2, net, options(), |comm| {
                let post = narrow(&comm, MIN_WINDOW_BYTES);
                if post.rank() == 0 {
                    for number in 0..COUNT {
                        drop(post.send(1, 1, parts(number, &[15_000])).unwrap());
                    }
                    post.close(soon()).unwrap();
                } else {
                    // Each message returns credit, also to the rank that has left.
                    for number in 0..COUNT {
                        assert_parts(&post.receive(1, soon()).unwrap(), number, &[15_000]);
                    }
                }
            });
        }
    }
}

#[test]
fn messages_received_before_the_close_are_delivered() {
    for net in NETS {
        for bytes in [100, 20_000, 300_000] {
            group(2, net, options(), |comm| {
                for _ in 0..20 {
                    let post = open(&comm);
                    if post.rank() == 0 {
                        let delivery = post.send(1, 1, parts(1, &[bytes])).unwrap();
                        // Meanwhile this thread takes the receiver's reports and its close from the transport.
                        comm.recv(&mut [0], 1, 0).unwrap();
                        delivery.wait(soon()).unwrap();
                    } else {
                        assert_parts(&post.receive(1, soon()).unwrap(), 1, &[bytes]);
                        post.close(soon()).unwrap();
                        comm.send(&[1], 0, 0).unwrap();
                    }
                }
            });
        }
    }
}

#[test]
fn short_parts_are_released_before_delivery() {
    group(2, Net::Shm, options(), |comm| {
        let post = open(&comm);
        if post.rank() == 1 {
            // The short messages, those to itself aside, arrive here.
            for _ in 0..200 {
                post.receive(1, soon()).unwrap();
            }
            return;
        }
        for number in 0..200 {
            for to in [1, 0] {
                // Neither begins at a multiple of 64 bytes.
                let sent = Arc::new(pattern(number, 1000));
                let part = Bytes::from_owner(Owned(sent.clone())).slice(1..);
                let mut delivery = pin!(post.send(to, 1, vec![part]).unwrap());
                let (reports, reported) = channel();
                let at_wake = sent.clone();
                let waker = waker(move || reports.send(Arc::strong_count(&at_wake)).unwrap_or_default());
                let mut context = Context::from_waker(&waker);
                let users = match delivery.as_mut().poll(&mut context) {
                    Poll::Ready(outcome) => {
                        outcome.unwrap();
                        Arc::strong_count(&sent)
                    }
                    Poll::Pending => reported.recv_timeout(Duration::from_secs(60)).unwrap(),
                };
                // This function and the waker.
                assert_eq!(users, 2, "message {number} to {to}");
                if to == 0 {
                    post.receive(1, soon()).unwrap();
                }
            }
        }
        post.close(soon()).unwrap();
    });
}

#[test]
fn deadline_ends_a_wait_during_traffic() {
    group(1, Net::Shm, options(), |comm| {
        let post = narrow(&comm, MIN_WINDOW_BYTES);
        // What arrives on it is dropped at once, so the driver never rests.
        post.end_lane(1);
        let mut busy: Vec<_> = (0..300_000).map(|_| post.send(0, 1, Vec::new()).unwrap()).collect();
        let last = Arc::new(busy.pop().unwrap());
        let (reports, reported) = channel();
        let waker = waker(move || reports.send(last.is_over()).unwrap_or_default());
        let mut receive = loop {
            let deadline = Instant::now() + Duration::from_millis(1);
            let mut receive = Box::pin(post.next(2, Some(deadline)));
            // This thread may be interrupted for longer than the wait, which is over then.
            if receive.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
                break receive;
            }
        };
        let was_over = reported.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(!was_over, "the wait went on for as long as there was traffic");
        let outcome = receive.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(outcome, Poll::Ready(Err(PostError::Deadline))), "{outcome:?}");
    });
}

#[test]
fn messages_to_a_departed_rank_name_it() {
    let filled = Barrier::new(2);
    group(2, Net::Shm, options(), |comm| {
        if comm.rank() == 1 {
            let raw = open_without_post(&comm);
            filled.wait();
            drop(raw);
            return;
        }
        let post = open(&comm);
        // More than the ring of shared memory has room for, so that heads wait.
        let mut all: Vec<_> = (0..50)
            .map(|number| post.send(1, 1, parts(number, &[16_000])).unwrap())
            .collect();
        all.remove(0).wait(soon()).unwrap();
        filled.wait();
        let outcomes: Vec<_> = all.into_iter().map(|delivery| delivery.wait(soon())).collect();
        assert!(outcomes.iter().any(Result::is_err));
        for outcome in outcomes {
            assert!(
                matches!(outcome, Ok(()) | Err(PostError::PeerLost { rank: 1, .. })),
                "{outcome:?}"
            );
        }
    });
}

#[test]
fn last_own_message_ends_waits_of_other_lanes() {
    group(2, Net::Shm, options(), |comm| {
        let post = narrow(&comm, MIN_WINDOW_BYTES);
        if post.rank() == 1 {
            // Only what ends after the receive has begun wakes it.
            comm.barrier().unwrap();
            post.close(soon()).unwrap();
            return;
        }
        // The second one waits for the credit of the first one.
        for number in 0..2 {
            drop(post.send(0, 1, parts(number, &[50_000])).unwrap());
        }
        let (reports, reported) = channel();
        let waker = waker(move || reports.send(()).unwrap_or_default());
        let mut context = Context::from_waker(&waker);
        let mut receive = pin!(post.next(2, None));
        assert!(receive.as_mut().poll(&mut context).is_pending());
        comm.barrier().unwrap();
        reported.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(receive.as_mut().poll(&mut context).is_pending());
        for _ in 0..2 {
            post.receive(1, soon()).unwrap();
        }
        reported.recv_timeout(Duration::from_secs(5)).unwrap();
        let outcome = receive.as_mut().poll(&mut context);
        assert!(matches!(outcome, Poll::Ready(Err(PostError::Closed))), "{outcome:?}");
    });
}

#[test]
fn close_of_a_revoked_post_is_an_error() {
    group(2, Net::Shm, options(), |comm| {
        let post = narrow(&comm, MIN_WINDOW_BYTES);
        if post.rank() == 0 {
            for number in 0..10 {
                drop(post.send(1, 1, parts(number, &[60_000])).unwrap());
            }
            comm.barrier().unwrap();
            assert_eq!(post.close(soon()).unwrap_err(), PostError::Revoked { by: 1 });
        } else {
            comm.barrier().unwrap();
            post.revoke();
            // Until the other rank has closed its post.
            let _ = post.receive(2, soon());
        }
        comm.barrier().unwrap();
    });
}

#[test]
fn post_beside_another_fails_on_all_ranks() {
    let failures = group(2, Net::Shm, options(), |comm| {
        let alone = comm.split(Some(comm.rank()), 0).unwrap().unwrap();
        let _first = (comm.rank() == 0).then(|| open(&alone));
        let failure = Post::open(&comm, PostOptions::default()).map(drop).unwrap_err();
        comm.barrier().unwrap();
        failure
    });
    for failure in failures {
        assert_eq!(failure.code, Code::InvalidRequest);
        assert!(failure.message.contains("has a post already"), "{}", failure.message);
    }
}

#[test]
fn late_messages_to_a_closed_post_are_dropped() {
    let options = Options {
        unexpected_bytes: 1 << 20,
        deadline: Duration::from_secs(10),
        ..options()
    };
    for net in NETS {
        group(2, net, options.clone(), |comm| {
            if comm.rank() == 0 {
                let raw = open_without_post(&comm);
                comm.barrier().unwrap();
                for _ in 0..200 {
                    raw.send(&[0; 16_000], 1, 0).unwrap();
                }
                comm.send(&[1], 1, 5).unwrap();
                comm.send(&[2], 1, 6).unwrap();
            } else {
                drop(open(&comm));
                comm.barrier().unwrap();
                // The last message first: the others must find room.
                comm.recv(&mut [0], 0, 6).unwrap();
                comm.recv(&mut [0], 0, 5).unwrap();
            }
        });
    }
}
