//! Shared by the daemons: private state directories, signals, and the parent process.

mod state_dir;

use std::os::fd::OwnedFd;

use dayfly_manager::SiteEvent;
use dayfly_protocol::api::Event;
use dayfly_protocol::error::{Code, Failure};
use rustix::process::{Pid, PidfdFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

pub use state_dir::StateDir;

/// A second SIGTERM within this time is a duplicate of the first.
const TOLD_TWICE: std::time::Duration = std::time::Duration::from_secs(2);

/// The process whose end stops a daemon.
pub struct Parent(AsyncFd<OwnedFd>);

impl Parent {
    /// Watches a process. It must be the parent of this one.
    pub fn watch(pid: u32) -> Result<Self, Failure> {
        let wrong = |text: String| Failure::new(Code::InvalidRequest, text);
        let parent = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let parent = parent.ok_or_else(|| wrong(format!("--parent {pid} is no process id")))?;
        let file = rustix::process::pidfd_open(parent, PidfdFlags::empty())
            .map_err(|error| wrong(format!("--parent {pid} cannot be watched: {error}")))?;
        // Check the parent after the descriptor was opened: then the number still belongs to the parent, and so does
        // the descriptor.
        if rustix::process::getppid() != Some(parent) {
            return Err(wrong(format!(
                "--parent {pid} is not the process that started this one"
            )));
        }
        // SAFETY: an owned descriptor does not change until it is dropped, which is after its registration ends.
        let file = unsafe { AsyncFd::register_with_interest(file, Interest::READABLE) }
            .map_err(|error| Failure::new(Code::Internal, format!("process {pid} cannot be watched: {error}")))?;
        Ok(Self(file))
    }

    async fn ended(&self) {
        // An error would repeat at once and for ever, and a daemon that cannot watch its parent must not outlive it.
        let _ = self.0.readable().await;
    }
}

/// Sources of the request to stop a daemon.
pub struct Ending {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    parent: Option<Parent>,
}

/// Why a daemon stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    Signal,
    /// The terminal or session that started it was closed.
    HungUp,
    ParentEnded,
}

impl Ending {
    /// Starts to catch signals. Ctrl-C reaches a daemon and its parent; a daemon with a parent ignores it.
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

    /// Waits until the daemon must stop.
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

    /// Runs the shutdown; a second signal ends the daemon at once. Batch systems send SIGTERM twice.
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

/// Logs each step of a lease's life until the manager ends.
pub async fn log_leases(mut events: Receiver<SiteEvent>) {
    loop {
        match events.recv().await.map(|told| told.event) {
            Ok(Event::Lease { lease, node, state }) => tracing::info!(%lease, %node, %state, "lease"),
            // The manager itself logs events of nodes. Missed events are in its store.
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}

/// Runs a daemon on a new runtime.
pub fn run<T>(daemon: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    // Two threads: a daemon has little work, but a slow disk must not block it.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Code::Internal, format!("no threads can be started: {error}")))?;
    let result = runtime.block_on(daemon);
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    result
}
