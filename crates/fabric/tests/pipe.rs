//! Byte streams over libfabric's software providers: all bytes arrive in order, and the end is reported.

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use dayfly_fabric::libfabric::{Choice, OpenResult, Pipe};
use dayfly_fabric::stream::wire::{Wire, poll};
use rustix::event::{PollFd, PollFlags};

const TIMEOUT: Duration = Duration::from_secs(20);

/// Opens both ends, each with its choice. Empty where libfabric is not installed.
fn opened(choices: [&str; 2]) -> [OpenResult; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let other = listener.accept().unwrap().0;
    std::thread::scope(|scope| {
        let ends = [one, other].into_iter().zip(choices).map(|(socket, choice)| {
            let choice: Choice = choice.parse().unwrap();
            scope.spawn(move || Pipe::open(Wire::plain(socket.into()).unwrap(), choice).unwrap())
        });
        let ends: Vec<_> = ends.collect();
        let ends: Vec<OpenResult> = ends.into_iter().map(|end| end.join().unwrap()).collect();
        ends.try_into().unwrap()
    })
}

fn pair() -> Option<[Box<Pipe>; 2]> {
    match opened(["tcp", "tcp"]) {
        [OpenResult::Pipe(one), OpenResult::Pipe(other)] => Some([one, other]),
        [OpenResult::Refused(_, why), OpenResult::Refused(..)] => {
            assert!(why.contains("libfabric1"), "{why}");
            eprintln!("left out: {why}");
            None
        }
        _ => panic!("one end has it and the other has not"),
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below as u64) as usize
    }
}

fn byte(at: usize, seed: usize) -> u8 {
    (at.wrapping_mul(2_654_435_761) >> 16) as u8 ^ seed as u8
}

#[test]
fn pipe_bytes_arrive_complete_and_in_order() {
    let Some(mut ends) = pair() else { return };
    let mut random = Random(7);
    let all = 24 << 20;
    let (mut sent, mut received) = ([0usize; 2], [0usize; 2]);
    let mut into = vec![0; 200_000];
    let begun = Instant::now();
    while received != [all; 2] {
        assert!(begun.elapsed() < TIMEOUT, "{sent:?} {received:?}");
        for end in 0..2 {
            let longest = [20, 3000, 100_000][random.next(3)];
            let length = random.next(longest + 1).min(all - sent[end]);
            let bytes: Vec<u8> = (sent[end]..sent[end] + length).map(|at| byte(at, end)).collect();
            let (first, second) = bytes.split_at(random.next(length + 1));
            match ends[end].send(first, second) {
                Ok(taken) => sent[end] += taken,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
            }
            let room = 1 + random.next(into.len());
            match ends[end].receive(&mut into[..room]) {
                Ok(count) => {
                    for (at, found) in into[..count].iter().enumerate() {
                        assert_eq!(*found, byte(received[end] + at, 1 - end), "byte {}", received[end] + at);
                    }
                    received[end] += count;
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
            }
        }
    }
}

/// Receives until the end, and sleeps while there is nothing. Returns the number of bytes.
fn read_to_the_end(mut end: Box<Pipe>) -> usize {
    let mut into = vec![0; 65_536];
    let (mut all, begun) = (0, Instant::now());
    loop {
        assert!(begun.elapsed() < TIMEOUT, "{all} bytes came");
        match end.receive(&mut into) {
            Ok(0) => return all,
            Ok(count) => all += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if end.may_sleep() {
                    poll(&mut [PollFd::new(&end.event_descriptor(), PollFlags::IN)], TIMEOUT).unwrap();
                }
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn sleeping_end_is_woken_by_bytes_and_close() {
    let Some([mut one, other]) = pair() else { return };
    let reader = std::thread::spawn(move || read_to_the_end(other));
    let begun = Instant::now();
    let mut sent = 0;
    for length in [1, 100, 5_000_000, 7] {
        // Long enough for the reader to fall asleep.
        std::thread::sleep(Duration::from_millis(50));
        let bytes = vec![3; length];
        let mut left = &bytes[..];
        while !left.is_empty() {
            assert!(begun.elapsed() < TIMEOUT);
            match one.send(left, &[]) {
                Ok(taken) => left = &left[taken..],
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
            }
        }
        sent += length;
    }
    while !one.is_read() {
        assert!(begun.elapsed() < TIMEOUT, "the other end did not say that it has read");
        let _ = one.flush().unwrap();
        let _ = one.receive(&mut [0; 8]);
    }
    drop(one);
    assert_eq!(reader.join().unwrap(), sent);
}

#[test]
fn refused_pipe_leaves_the_connection_usable() {
    let ends = opened(["tcp", "no-such-provider"]);
    let [OpenResult::Refused(mut one, why), OpenResult::Refused(mut other, own)] = ends else {
        panic!("one end has a pipe");
    };
    if own.contains("libfabric1") {
        return eprintln!("left out: {own}");
    }
    assert!(own.contains("no-such-provider"), "{own}");
    assert!(why.contains("no-such-provider"), "the other end is told: {why}");
    assert_eq!(one.send(b"as before", &[]).unwrap(), 9);
    other.block(PollFlags::IN, TIMEOUT).unwrap();
    let mut came = [0; 16];
    assert_eq!(other.receive(&mut came).unwrap(), 9);
    assert_eq!(&came[..9], b"as before");
}
