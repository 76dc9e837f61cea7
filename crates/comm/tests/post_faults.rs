//! Ranks that are killed while they exchange messages through posts.

mod rank_process;
#[allow(dead_code)]
mod thread_group;

use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use dayfly_comm::post::{Post, PostError, PostOptions};
use dayfly_comm::{Communicator, LostRanks, Options};
use rank_process::{Rank, Start};
use thread_group::{Net, connections, options};

/// Exchanges messages with all ranks until one is lost. Prints a line every few messages. Returns the lost rank.
fn exchange(post: &Post, bytes: usize) -> Result<u32, PostError> {
    let block = Bytes::from(vec![post.rank() as u8; bytes]);
    let mut count = 0u64;
    loop {
        let mut deliveries = Vec::new();
        for to in 0..post.size() {
            deliveries.push(post.send(to, to % 2, vec![block.clone(), block.slice(..bytes / 2)])?);
        }
        for _ in 0..post.size() {
            match post.receive(post.rank() % 2, Instant::now() + Duration::from_secs(20)) {
                Ok(message) => assert!(message.parts()[0].iter().all(|byte| u32::from(*byte) == message.from())),
                Err(PostError::PeerLost { rank, .. }) => return Ok(rank),
                Err(error) => return Err(error),
            }
        }
        for delivery in deliveries {
            match delivery.wait(Instant::now() + Duration::from_secs(20)) {
                Err(PostError::PeerLost { rank, .. }) => return Ok(rank),
                outcome => outcome?,
            }
        }
        count += 1;
        if count == 5 {
            eprintln!("running");
        }
    }
}

/// Not a test of its own: the program of each process of a group.
#[test]
#[ignore = "run by other tests, in processes of their own"]
fn posting_rank_in_child_process() {
    let Some(Start {
        words,
        rank,
        connections,
    }) = Start::from_environment()
    else {
        return;
    };
    let bytes: usize = words[0].parse().unwrap();
    let size = connections.len() as u32;
    let options = Options {
        spin: (words[1] == "sleep").then_some(Duration::ZERO),
        ..options()
    };
    let comm = Communicator::form(rank, size, connections, Arc::new(LostRanks::default()), options).unwrap();
    let post = Post::open(&comm, PostOptions::default()).unwrap();
    match exchange(&post, bytes) {
        Ok(lost) => eprintln!("lost {lost}"),
        Err(error) => eprintln!("{error}"),
    }
    // The others may still wait for this rank's messages.
    post.revoke();
    drop(post);
    let rest = comm.shrink().unwrap();
    let post = Post::open(&rest, PostOptions::default()).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    for to in 0..post.size() {
        drop(post.send(to, 0, vec![Bytes::from(vec![1; bytes])]).unwrap());
    }
    for _ in 0..post.size() {
        post.receive(0, deadline).unwrap();
    }
    post.close(deadline).unwrap();
    eprintln!("{} left", rest.size());
    let _ = std::io::stdin().read(&mut [0]);
}

/// Kills a rank at a moment that nothing agrees with: the others name it or see the revocation of one that does, and go
/// on with a new post.
fn kill_one(net: Net, size: u32, bytes: usize, wait: &str, victim: usize) {
    let words = format!("{bytes} {wait}");
    let what = format!("{net:?}, {bytes} bytes");
    let mut ranks = Rank::start_group("posting_rank_in_child_process", &words, connections(size, net), &what);
    ranks[victim].kill();
    let killed = Instant::now();
    let mut named = 0;
    for (number, rank) in Rank::others(&mut ranks, victim) {
        let line = rank.line();
        named += u32::from(line.trim() == format!("lost {victim}"));
        assert!(
            line.trim() == format!("lost {victim}") || line.contains("revoked"),
            "{what}, rank {number}: {line}"
        );
    }
    assert!(named > 0, "no rank named the lost one");
    Rank::assert_left(&mut ranks, victim, &what);
    let took = killed.elapsed();
    assert!(took < Duration::from_secs(10), "{what}: {took:?}");
}

#[test]
fn killed_rank_is_named_and_others_continue() {
    for (number, bytes) in [64, 20_000, 300_000, 5 << 20].into_iter().enumerate() {
        for (turn, wait) in ["spin", "sleep"].into_iter().enumerate() {
            kill_one(Net::Shm, 3, bytes, wait, (number + turn) % 3);
            kill_one(Net::Tcp, 3, bytes, wait, (number + turn + 1) % 3);
        }
    }
}

#[test]
#[ignore = "takes some minutes"]
fn ranks_killed_two_hundred_times_are_named() {
    for number in 0..200usize {
        let net = [Net::Shm, Net::Tcp][number % 2];
        let bytes = [64, 9_000, 40_000, 700_000, 6 << 20][number % 5];
        kill_one(net, 3, bytes, ["spin", "sleep"][number / 2 % 2], number / 3 % 3);
    }
}
