//! Loom runs the real ring code through every interleaving: `RUSTFLAGS="--cfg loom" cargo test -p dayfly-fabric --test loom --release`.
#![cfg(loom)]

use dayfly_fabric::ring::{Word, fall_asleep, has_arrived, must_wake, publish, wake_up};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering, fence};

struct Loom(AtomicU32);

impl Word for Loom {
    fn load(&self, ordering: Ordering) -> u32 {
        self.0.load(ordering)
    }
    fn store(&self, value: u32, ordering: Ordering) {
        self.0.store(value, ordering);
    }
    fn swap(&self, value: u32, ordering: Ordering) -> u32 {
        self.0.swap(value, ordering)
    }
    fn full_fence() {
        fence(Ordering::SeqCst);
    }
}

struct Slot {
    sequence: Loom,
    payload: UnsafeCell<u32>,
}

impl Slot {
    fn new() -> Self {
        Self {
            sequence: Loom(AtomicU32::new(0)),
            payload: UnsafeCell::new(0),
        }
    }
}

struct Channel {
    request: Slot,
    response: Slot,
    worker_asleep: Loom,
    client_asleep: Loom,
    /// Stands for the kernel's futex. Counts the wake-ups sent.
    woken: AtomicU32,
}

/// Blocks like a futex: only while the word is 1.
fn block(word: &Loom) {
    while word.load(Ordering::Relaxed) == 1 {
        loom::thread::yield_now();
    }
}

fn receive(slot: &Slot, asleep: &Loom, number: u32) -> u32 {
    loop {
        if has_arrived(&slot.sequence, number) {
            return slot.payload.with(|payload| unsafe { *payload });
        }
        if fall_asleep(asleep, &slot.sequence, number) {
            block(asleep);
            wake_up(asleep);
        }
    }
}

fn send(slot: &Slot, peer_asleep: &Loom, woken: &AtomicU32, number: u32, value: u32) {
    slot.payload.with_mut(|payload| unsafe { *payload = value });
    publish(&slot.sequence, number);
    if must_wake(peer_asleep) {
        woken.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn no_wake_up_or_payload_is_lost() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let channel = Arc::new(Channel {
            request: Slot::new(),
            response: Slot::new(),
            worker_asleep: Loom(AtomicU32::new(0)),
            client_asleep: Loom(AtomicU32::new(0)),
            woken: AtomicU32::new(0),
        });
        let worker = {
            let channel = channel.clone();
            loom::thread::spawn(move || {
                for number in 1..=2 {
                    let input = receive(&channel.request, &channel.worker_asleep, number);
                    send(
                        &channel.response,
                        &channel.client_asleep,
                        &channel.woken,
                        number,
                        input + 1,
                    );
                }
            })
        };
        for number in 1..=2 {
            send(
                &channel.request,
                &channel.worker_asleep,
                &channel.woken,
                number,
                number * 10,
            );
            assert_eq!(
                receive(&channel.response, &channel.client_asleep, number),
                number * 10 + 1
            );
        }
        worker.join().unwrap();
    });
}
