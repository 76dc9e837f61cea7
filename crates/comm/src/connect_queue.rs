//! Connects a rank with the thread that makes its connections on demand.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dayfly_protocol::error::{Code, Failure};
use rustix::event::{EventfdFlags, eventfd};

use crate::PeerConnection;
use crate::wake::Wake;

/// Result of a request.
#[derive(Debug)]
pub enum ConnectResult {
    /// A connection to this rank exists.
    Connected(u32, PeerConnection),
    /// This rank has left, and will not be connected.
    Left(u32),
    /// No more connections are made.
    Failed(Failure),
}

/// Requests in one direction, results in the other.
#[derive(Debug)]
pub struct ConnectQueue {
    requests: Mutex<Vec<u32>>,
    /// Wakes the thread for requests.
    wake: OwnedFd,
    results: Mutex<Vec<ConnectResult>>,
    has_results: AtomicBool,
    /// The thread to wake for results.
    watcher: Mutex<Option<Arc<Wake>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ConnectQueue {
    /// An empty queue.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn new() -> Result<Self, Failure> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Self {
            requests: Mutex::default(),
            wake: wake.map_err(|error| Failure::new(Code::Internal, format!("no descriptor is left: {error}")))?,
            results: Mutex::default(),
            has_results: AtomicBool::new(false),
            watcher: Mutex::default(),
        })
    }

    /// Requests the connection to a rank.
    pub fn request(&self, peer: u32) {
        locked(&self.requests).push(peer);
        // A full eventfd would wake the thread too.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Readable when there are requests.
    pub(crate) fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Takes all requests.
    pub(crate) fn take_requests(&self) -> Vec<u32> {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        std::mem::take(&mut locked(&self.requests))
    }

    /// Reports a result.
    pub(crate) fn report(&self, results: ConnectResult) {
        locked(&self.results).push(results);
        self.has_results.store(true, Ordering::Release);
        if let Some(watcher) = &*locked(&self.watcher) {
            watcher.wake();
        }
    }

    /// Sets the thread to wake for results.
    pub(crate) fn watch(&self, watcher: Option<Arc<Wake>>) {
        *locked(&self.watcher) = watcher;
    }

    /// Reports that no more connections are made.
    pub(crate) fn fail(&self, failure: Failure) {
        self.report(ConnectResult::Failed(failure));
    }

    /// Whether there are results; costs one load.
    #[inline]
    pub fn has_results(&self) -> bool {
        self.has_results.load(Ordering::Acquire)
    }

    /// Takes all results.
    pub fn take_results(&self) -> Vec<ConnectResult> {
        self.has_results.store(false, Ordering::Release);
        std::mem::take(&mut locked(&self.results))
    }
}
