//! Connects a rank with the thread that makes its connections on demand.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dayfly_protocol::error::{Code, Failure};
use rustix::event::{EventfdFlags, eventfd};

use crate::road::Road;

/// Result of a request.
#[derive(Debug)]
pub enum News {
    /// A road to this rank exists.
    Road(u32, Road),
    /// This rank has left, and will not be connected.
    Left(u32),
    /// No more connections are made.
    Failed(Failure),
}

/// Requests in one direction, results in the other.
#[derive(Debug)]
pub struct Switchboard {
    wishes: Mutex<Vec<u32>>,
    /// Wakes the thread for requests.
    wake: OwnedFd,
    news: Mutex<Vec<News>>,
    is_news: AtomicBool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Switchboard {
    /// An empty switchboard.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn new() -> Result<Self, Failure> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Self {
            wishes: Mutex::default(),
            wake: wake.map_err(|error| Failure::new(Code::Internal, format!("no descriptor is left: {error}")))?,
            news: Mutex::default(),
            is_news: AtomicBool::new(false),
        })
    }

    /// Requests the connection to a rank.
    pub fn wish(&self, peer: u32) {
        locked(&self.wishes).push(peer);
        // A full eventfd would wake the thread too.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Readable when there are requests.
    pub(crate) fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Takes all requests.
    pub(crate) fn take_wishes(&self) -> Vec<u32> {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        std::mem::take(&mut locked(&self.wishes))
    }

    /// Reports a result.
    pub(crate) fn tell(&self, news: News) {
        locked(&self.news).push(news);
        self.is_news.store(true, Ordering::Release);
    }

    /// Reports that no more connections are made.
    pub(crate) fn fail(&self, failure: Failure) {
        self.tell(News::Failed(failure));
    }

    /// Whether there are results; costs one load.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.is_news.load(Ordering::Acquire)
    }

    /// Takes all results.
    pub fn take_news(&self) -> Vec<News> {
        self.is_news.store(false, Ordering::Release);
        std::mem::take(&mut locked(&self.news))
    }
}
