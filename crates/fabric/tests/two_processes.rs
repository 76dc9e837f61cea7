//! Two real processes on one ring for a long time: every message arrives once, complete and in order, however the two
//! poll, sleep and wake.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::process::Command;
use std::time::{Duration, Instant};

use dayfly_fabric::{AnyLink, Link, LinkError, Payload, shm};
use dayfly_protocol::node_api::End;
use dayfly_protocol::slot::Geometry;

const GEOMETRY: Geometry = Geometry {
    slots: 16,
    stride_bytes: 256,
    bulk_bytes: 16 << 20,
};
const DESCRIPTOR: &str = "DAYFLY_TEST_RING";
const LIMIT: Duration = Duration::from_secs(60);

/// A deterministic generator, so that both processes produce the same messages.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

fn next(link: &mut AnyLink, noise: &mut Noise) -> Result<u32, LinkError> {
    let until = Instant::now() + LIMIT;
    loop {
        // Sleep at once or poll for a while, so that all interleavings occur.
        for _ in 0..noise.next() % 300 {
            if let Some(meta) = link.poll()? {
                return Ok(meta.sequence);
            }
        }
        assert!(Instant::now() < until, "a wake-up was lost");
        link.wait(Duration::from_secs(5))?;
        if let Some(meta) = link.poll()? {
            return Ok(meta.sequence);
        }
    }
}

/// Not a separate test: the worker process of the test below.
#[test]
fn worker_process() {
    let Ok(descriptor) = std::env::var(DESCRIPTOR) else {
        return;
    };
    // SAFETY: the parent passed this descriptor on.
    let file = unsafe { BorrowedFd::borrow_raw(descriptor.parse().unwrap()) };
    let mut link = AnyLink::Mapped(shm::worker(file, GEOMETRY, false).unwrap());
    let mut noise = Noise(0x5eed);
    loop {
        match next(&mut link, &mut noise) {
            Ok(_) => {}
            Err(LinkError::Ended(End::Released)) => return,
            Err(error) => panic!("{error}"),
        }
        let length = link.current().input.len();
        let sum: u64 = link.current().input.iter().map(|byte| u64::from(*byte)).sum();
        link.compose()[..8].copy_from_slice(&sum.to_le_bytes());
        link.compose()[8..16].copy_from_slice(&(length as u64).to_le_bytes());
        link.post(0, 0, 16).unwrap();
        link.done();
    }
}

#[test]
fn messages_between_processes_arrive_once_in_order() {
    let memory = shm::ChannelMemory::create(GEOMETRY).unwrap();
    let file = memory.file().as_fd().try_clone_to_owned().unwrap();
    rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
    let mut worker = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "worker_process"])
        .env(DESCRIPTOR, file.as_raw_fd().to_string())
        .spawn()
        .unwrap();
    let mut link = AnyLink::Mapped(shm::client(memory.file(), GEOMETRY, false).unwrap());
    let mut noise = Noise(0xfeed);
    let mut expected = std::collections::VecDeque::new();
    let (total, mut sent, mut received) = (60_000u32, 0u32, 0u32);
    while received < total {
        let burst = noise.next() % 16;
        for _ in 0..=burst {
            if sent == total || sent - received == u32::from(GEOMETRY.slots) {
                break;
            }
            let large = noise.next().is_multiple_of(50);
            let length = noise.next() as usize % if large { 20_000 } else { GEOMETRY.inline_bytes() };
            let bytes: Vec<u8> = (0..length).map(|i| (i as u64 ^ noise.0) as u8).collect();
            expected.push_back((bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>(), length as u64));
            if large {
                link.post_bulk(1, 0, Payload::Bytes(&bytes), None).unwrap();
            } else {
                link.compose()[..length].copy_from_slice(&bytes);
                link.post(1, 0, length).unwrap();
            }
            sent += 1;
        }
        received += 1;
        assert_eq!(next(&mut link, &mut noise).unwrap(), received);
        let (sum, length) = expected.pop_front().unwrap();
        assert_eq!(link.current().input[..8], sum.to_le_bytes());
        assert_eq!(link.current().input[8..16], length.to_le_bytes());
        link.done();
    }
    memory.close(End::Released);
    assert!(worker.wait().unwrap().success());
}
