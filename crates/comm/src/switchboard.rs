//! Between a rank that needs others and the thread that connects it with them, where ranks connect when they first need each other.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dayfly_protocol::error::{Code, Failure};
use rustix::event::{EventfdFlags, eventfd};

use crate::road::Road;

/// What has become of a wish.
#[derive(Debug)]
pub enum News {
    /// There is a road to that rank.
    Road(u32, Road),
    /// That rank has ended its work, and will not be connected.
    Left(u32),
    /// Nobody is connected any more.
    Failed(Failure),
}

/// Wishes in one direction, news in the other.
#[derive(Debug)]
pub struct Switchboard {
    wishes: Mutex<Vec<u32>>,
    /// Tells the thread of wishes.
    wake: OwnedFd,
    news: Mutex<Vec<News>>,
    is_news: AtomicBool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Switchboard {
    /// Without wishes or news.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn new() -> Result<Self, Failure> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Self {
            wishes: Mutex::default(),
            wake: wake.map_err(|error| Failure::new(Code::Internal, format!("no descriptor is left: {error}")))?,
            news: Mutex::default(),
            is_news: AtomicBool::new(false),
        })
    }

    /// A rank is to be connected.
    pub fn wish(&self, peer: u32) {
        locked(&self.wishes).push(peer);
        // Were it full, that would wake the thread too.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// What can be read when there are wishes.
    pub(crate) fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// All wishes since the last look.
    pub(crate) fn take_wishes(&self) -> Vec<u32> {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        std::mem::take(&mut locked(&self.wishes))
    }

    /// Something has become of a wish.
    pub(crate) fn tell(&self, news: News) {
        locked(&self.news).push(news);
        self.is_news.store(true, Ordering::Release);
    }

    /// Nobody is connected any more.
    pub(crate) fn fail(&self, failure: Failure) {
        self.tell(News::Failed(failure));
    }

    /// Whether there are news; costs a load.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.is_news.load(Ordering::Acquire)
    }

    /// All news since the last look.
    pub fn take_news(&self) -> Vec<News> {
        self.is_news.store(false, Ordering::Release);
        std::mem::take(&mut locked(&self.news))
    }
}
