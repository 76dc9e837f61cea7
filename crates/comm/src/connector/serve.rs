//! The connector's accept loop: a thread for each rank, up to the node's bound.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use dayfly_protocol::error::{Code, Failure};
use dayfly_rendezvous::socket::timespec;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{SocketFlags, accept_with, sockopt};

use super::config::ConnectorConfig;
use super::rate_limit::RateLimit;
use super::session;

/// An idle connector ends after this time; its node starts another on demand.
const IDLE: Duration = Duration::from_secs(10);
/// Pause after a failed `accept`, for example for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Stack of a rank's thread in bytes.
const STACK: usize = 512 << 10;
/// Bytes that may be unread by a rank. Each packet can hold a descriptor, and the system bounds a user's descriptors in
/// flight.
const UNREAD_BYTES: usize = 8 << 10;

/// The place of one served rank; dropping it frees the place.
struct Seat(Arc<AtomicU32>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Serves ranks at this listener, a non-blocking packet socket, until the other end of `until` is closed or the
/// connector was idle for `IDLE`.
///
/// # Errors
/// When a system call of the loop fails.
pub fn serve(listener: &OwnedFd, config: ConnectorConfig, until: BorrowedFd<'_>) -> io::Result<()> {
    let config = Arc::new(config);
    let served = Arc::new(AtomicU32::new(0));
    let mut rate_limit = RateLimit::new(config.max_groups, Instant::now());
    let mut idle_since = Instant::now();
    loop {
        let mut polled = [
            PollFd::new(listener, PollFlags::IN),
            PollFd::from_borrowed_fd(until, PollFlags::IN),
        ];
        match poll(&mut polled, Some(&timespec(IDLE))) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !polled[1].revents().is_empty() {
            return Ok(());
        }
        if served.load(Ordering::Acquire) > 0 || !polled[0].revents().is_empty() {
            idle_since = Instant::now();
        } else if idle_since.elapsed() >= IDLE {
            return Ok(());
        }
        if polled[0].revents().is_empty() {
            continue;
        }
        match accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(socket) => admit(socket, &config, &served, &mut rate_limit),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {}
            Err(error) => {
                eprintln!("dayfly connector: a rank could not be taken in: {error}; raise `ulimit -n`?");
                std::thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
}

fn admit(socket: OwnedFd, config: &Arc<ConnectorConfig>, served: &Arc<AtomicU32>, rate_limit: &mut RateLimit) {
    let _ = sockopt::set_socket_send_buffer_size(&socket, UNREAD_BYTES);
    let seat = Seat(served.clone());
    let others = served.fetch_add(1, Ordering::AcqRel);
    if others >= config.max_groups || !rate_limit.admits(Instant::now()) {
        return session::refuse(&socket, too_many(config.max_groups));
    }
    let config = config.clone();
    let thread = std::thread::Builder::new().name("rank".into()).stack_size(STACK);
    let spawned = thread.spawn(move || {
        session::serve(socket, &config);
        drop(seat);
    });
    if let Err(error) = spawned {
        // The closure owned the socket, so the rank sees the end of the connection.
        eprintln!("dayfly connector: no thread for a rank: {error}");
    }
}

fn too_many(most: u32) -> Failure {
    match most {
        0 => Failure::new(
            Code::Forbidden,
            "this node joins no groups for ranks in a sandbox without a network: its owner has switched that off (--no-groups); lease \
             with the host's network where that is granted, or elsewhere",
        ),
        most => Failure::new(
            Code::NoCapacity,
            format!(
                "this lease's ranks join too many groups: {most} at a time and ten a second are allowed; leave some, or wait"
            ),
        ),
    }
}
