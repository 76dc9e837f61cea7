//! Wakes a sleeping thread that drives an engine.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};

use dayfly_protocol::error::{Code, Failure};
use rustix::event::{EventfdFlags, eventfd};

/// An event that costs its sender nothing while the receiver is awake.
///
/// The receiver announces its sleep, and then looks for work once more. A sender makes its work visible, and then
/// calls [`Wake::wake`]. The fences order each side's store before its load, so at least one of them sees the other.
#[derive(Debug)]
pub struct Wake {
    event: OwnedFd,
    asleep: AtomicBool,
}

impl Wake {
    /// # Errors
    /// When the process is out of descriptors.
    pub fn new() -> Result<Self, Failure> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Self {
            event: event.map_err(|error| Failure::new(Code::Internal, format!("no descriptor is left: {error}")))?,
            asleep: AtomicBool::new(false),
        })
    }

    /// Wakes the receiver if it sleeps or is about to.
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            // A full eventfd wakes it too.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// Announces the sleep of the receiver, which must look for work once more before it blocks.
    pub fn announce(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Withdraws the announcement. A wake-up that comes late ends the next sleep early.
    pub fn withdraw(&self) {
        if !self.asleep.swap(false, Ordering::Relaxed) {
            let _ = rustix::io::read(&self.event, &mut [0; 8]);
        }
    }

    /// Readable after a wake-up.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    #[test]
    fn no_wake_up_is_lost_between_threads() {
        const ROUNDS: u32 = 20_000;
        let wake = Arc::new(Wake::new().unwrap());
        let (work, done) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let sender = {
            let (wake, work, done) = (wake.clone(), work.clone(), done.clone());
            std::thread::spawn(move || {
                for round in 1..=ROUNDS {
                    work.store(round, Ordering::Release);
                    wake.wake();
                    while done.load(Ordering::Acquire) != round {
                        std::thread::yield_now();
                    }
                }
            })
        };
        let limit = Timespec::try_from(Duration::from_secs(20)).unwrap();
        for round in 1..=ROUNDS {
            while work.load(Ordering::Acquire) != round {
                wake.announce();
                if work.load(Ordering::Acquire) != round {
                    let mut polled = [PollFd::from_borrowed_fd(wake.event(), PollFlags::IN)];
                    assert_eq!(poll(&mut polled, Some(&limit)), Ok(1), "round {round}");
                }
                wake.withdraw();
            }
            done.store(round, Ordering::Release);
        }
        sender.join().unwrap();
    }
}
