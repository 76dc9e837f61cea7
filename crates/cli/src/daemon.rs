//! What the daemons have in common: a state directory of their own, signals, and a parent that they may have to follow.

mod state_dir;

use std::os::fd::OwnedFd;

use dayfly_manager::Told;
use dayfly_protocol::api::Event;
use dayfly_protocol::error::{Code, Failure};
use rustix::process::{Pid, PidfdFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

pub use state_dir::StateDir;

/// A SIGTERM that comes so soon after the first one is the same.
const TOLD_TWICE: std::time::Duration = std::time::Duration::from_secs(2);

/// The process that a daemon ends with.
pub struct Parent(AsyncFd<OwnedFd>);

impl Parent {
    /// Watches a process, which must be the one that started this one.
    pub fn watch(pid: u32) -> Result<Self, Failure> {
        let wrong = |text: String| Failure::new(Code::InvalidRequest, text);
        let parent = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let parent = parent.ok_or_else(|| wrong(format!("--parent {pid} is no process id")))?;
        let file = rustix::process::pidfd_open(parent, PidfdFlags::empty())
            .map_err(|error| wrong(format!("--parent {pid} cannot be watched: {error}")))?;
        // In this order: whatever has this number now is our parent, so that what was opened is its descriptor too.
        if rustix::process::getppid() != Some(parent) {
            return Err(wrong(format!(
                "--parent {pid} is not the process that started this one"
            )));
        }
        // SAFETY: an owned descriptor is one and the same until it is dropped, which it is after its registration.
        let file = unsafe { AsyncFd::register_with_interest(file, Interest::READABLE) }
            .map_err(|error| Failure::new(Code::Internal, format!("process {pid} cannot be watched: {error}")))?;
        Ok(Self(file))
    }

    async fn ended(&self) {
        // An error would come back at once and for ever; a daemon that cannot see its parent must not outlive it.
        let _ = self.0.readable().await;
    }
}

/// What tells a daemon to end.
pub struct Ending {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    parent: Option<Parent>,
}

/// Why it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    Signal,
    /// Whoever started it went away.
    HungUp,
    ParentEnded,
}

impl Ending {
    /// Catches signals from now on. A daemon with a parent leaves Ctrl-C, which reaches both, to its parent.
    pub fn new(parent: Option<u32>) -> Result<Self, Failure> {
        let catch = |kind| {
            signal(kind).map_err(|error| Failure::new(Code::Internal, format!("signals cannot be caught: {error}")))
        };
        Ok(Self {
            terminate: catch(SignalKind::terminate())?,
            interrupt: catch(SignalKind::interrupt())?,
            hangup: catch(SignalKind::hangup())?,
            parent: parent.map(Parent::watch).transpose()?,
        })
    }

    /// Waits until the daemon is to end.
    pub async fn told(&mut self) -> Why {
        let Self {
            terminate,
            interrupt,
            hangup,
            parent,
        } = self;
        let Some(parent) = parent else {
            tokio::select! {
                _ = terminate.recv() => return Why::Signal,
                _ = interrupt.recv() => return Why::Signal,
                _ = hangup.recv() => return Why::HungUp,
            }
        };
        loop {
            tokio::select! {
                _ = terminate.recv() => return Why::Signal,
                () = parent.ended() => return Why::ParentEnded,
                _ = interrupt.recv() => {}
                _ = hangup.recv() => {}
            }
        }
    }

    /// Runs what ends the daemon; a second signal ends it at once. Batch systems send the first one twice.
    pub async fn orderly(&mut self, end: impl Future<Output = ()>) {
        let begun = tokio::time::Instant::now();
        let again = async {
            loop {
                tokio::select! {
                    _ = self.terminate.recv() => {}
                    _ = self.interrupt.recv() => return,
                }
                if begun.elapsed() > TOLD_TWICE {
                    return;
                }
            }
        };
        tokio::select! {
            () = end => {}
            () = again => {
                tracing::warn!("told to end a second time: ending at once");
                std::process::exit(1);
            }
        }
    }
}

/// Writes a line for each step in a lease's life, until the manager ends.
pub async fn log_leases(mut events: Receiver<Told>) {
    loop {
        match events.recv().await.map(|told| told.event) {
            Ok(Event::Lease { lease, node, state }) => tracing::info!(%lease, %node, state, "lease"),
            // Of nodes the manager tells itself; what was missed while too busy is in its store.
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}

/// Runs a daemon on a runtime of its own.
pub fn run<T>(daemon: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    // Two threads: a daemon has little to do, and what it does must not wait for a slow disk.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Code::Internal, format!("no threads can be started: {error}")))?;
    let result = runtime.block_on(daemon);
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    result
}
