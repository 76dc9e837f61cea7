//! The rank's side: requests a join from its connector, and takes its sockets.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_protocol::error::{Code, Failure};
use dayfly_rendezvous::socket::timespec;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::messages::{ConnectorMessage, ConnectorRequest, VERSION, is_for_now, receive, send};
use crate::invitation::Invitation;
use crate::join::{Joined, MAX_PATIENCE};
use crate::membership::Membership;
use crate::{LostRanks, PeerConnection};

/// Time for the connector in addition to the group's patience: it may have to start, and it reports a timeout itself.
const BEYOND: Duration = Duration::from_secs(15);
/// Limit for the connector to announce that a rank leaves.
const FAREWELL: Duration = Duration::from_secs(1);
/// Pings in each heartbeat interval, since some may be late.
const PINGS_PER_HEARTBEAT: u32 = 10;

fn unreachable(what: impl std::fmt::Display) -> Failure {
    Failure::new(
        Code::Unreachable,
        format!("this rank has no network, and its node, which joins the group for it, {what}; run again"),
    )
}

/// Joins a group through the connector that listens at `path`, as [`join`](crate::join()) does with a network.
///
/// # Errors
/// As [`join`](crate::join()); [`Code::Forbidden`] when this node's ranks may not meet at that rendezvous,
/// [`Code::NoCapacity`] when the lease has too many groups, [`Code::Unreachable`] when no connector listens.
pub fn join_through(path: &Path, invitation: &Invitation) -> Result<Joined, Failure> {
    let patience = Duration::from_secs(invitation.patience_s).min(MAX_PATIENCE);
    let deadline = Instant::now() + patience + BEYOND;
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(unreachable)?;
    connect(&socket, &SocketAddrUnix::new(path).map_err(unreachable)?)
        .map_err(|error| unreachable(format_args!("does not listen at {}: {error}", path.display())))?;
    let asked = ConnectorRequest::Join {
        version: VERSION,
        invitation: Box::new(invitation.clone()),
    };
    match send(&socket, &asked, None) {
        // The connector refuses surplus ranks before it reads their request.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            return Err(unreachable(format_args!("does not take its request: {error}")));
        }
        _ => {}
    }
    let lost = Arc::new(LostRanks::default());
    let (mut seat, mut connections, mut hosts, mut left) = (None, Vec::new(), Vec::new(), 0);
    let (rank, size, connecting, heartbeat) = loop {
        if let (Some(seat), 0) = (seat, left) {
            break seat;
        }
        match next(&socket, deadline)? {
            (
                ConnectorMessage::Seat {
                    rank,
                    size,
                    host,
                    connecting_us,
                    heartbeat_ms,
                },
                _,
            ) if seat.is_none() && size == invitation.size && rank < size => {
                connections = (0..size).map(|_| None).collect();
                hosts = vec![host; size as usize];
                left = size - 1;
                let heartbeat = Duration::from_millis(heartbeat_ms.max(1));
                seat = Some((rank, size, Duration::from_micros(connecting_us), heartbeat));
            }
            (
                ConnectorMessage::Connection {
                    rank,
                    host,
                    route,
                    shares,
                    near,
                },
                Some(socket),
            ) if connections.get(rank as usize).is_some_and(Option::is_none) => {
                let socket = UnixStream::from(socket);
                connections[rank as usize] = Some(match shares {
                    true => PeerConnection::Local(socket),
                    false => PeerConnection::Carried { socket, route, near },
                });
                hosts[rank as usize] = host;
                left = left.saturating_sub(1);
            }
            (ConnectorMessage::Lost { rank, reason }, _) => lost.add(rank, reason),
            (ConnectorMessage::Failed { failure }, _) => return Err(failure),
            (other, _) => {
                let text = format!("{other:?}");
                let text: String = text.chars().take(60).collect();
                return Err(unreachable(format_args!("said {text} out of turn")));
            }
        }
    };
    let membership = {
        let lost = lost.clone();
        Membership::start(move |stop| {
            if !send_pings(&socket, heartbeat, &lost, stop) {
                // The other ranks are told that this rank is lost, and ignore it from now on.
                let reason = "the connector of this rank's node has ended, and this rank is of the group no more";
                (0..size)
                    .filter(|other| *other != rank)
                    .for_each(|other| lost.add(other, reason));
            }
        })?
    };
    Ok(Joined {
        rank,
        size,
        connections,
        queue: None,
        only_stored: false,
        hosts,
        connecting,
        lost,
        membership,
    })
}

/// Receives the next message. Returns an error after the deadline.
fn next(socket: &OwnedFd, deadline: Instant) -> Result<(ConnectorMessage, Option<OwnedFd>), Failure> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(unreachable("did not answer in time"));
        }
        let left = left.max(Duration::from_millis(1));
        set_socket_timeout(socket, Timeout::Recv, Some(left)).map_err(unreachable)?;
        match receive(socket) {
            Ok(Some(message)) => return Ok(message),
            Ok(None) => return Err(unreachable("ended while the group formed")),
            Err(error) if is_for_now(&error) => {}
            Err(error) => return Err(unreachable(error)),
        }
    }
}

/// Pings until the rank leaves (true) or the connector is gone (false).
fn send_pings(socket: &OwnedFd, heartbeat: Duration, lost: &LostRanks, stop: &OwnedFd) -> bool {
    let wake = timespec(heartbeat / PINGS_PER_HEARTBEAT);
    if rustix::io::ioctl_fionbio(socket, true).is_err() {
        return false;
    }
    loop {
        let mut polled = [PollFd::new(socket, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match poll(&mut polled, Some(&wake)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
        if !polled[1].revents().is_empty() {
            leave(socket);
            return true;
        }
        match receive::<ConnectorMessage>(socket) {
            Ok(Some((ConnectorMessage::Lost { rank, reason }, _))) => lost.add(rank, reason),
            Ok(Some(_)) => {}
            Err(error) if is_for_now(&error) => {}
            Ok(None) | Err(_) => return false,
        }
        // A full socket shows as well that this rank is alive.
        let _ = send(socket, &ConnectorRequest::Ping, None);
    }
}

/// Announces that the rank leaves, and waits until the other ranks are informed.
fn leave(socket: &OwnedFd) {
    let deadline = Instant::now() + FAREWELL;
    if send(socket, &ConnectorRequest::Leave, None).is_err() {
        return;
    }
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut polled = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)];
        if left.is_zero() || poll(&mut polled, Some(&timespec(left))).is_err() {
            return;
        }
        match receive::<ConnectorMessage>(socket) {
            Ok(Some((ConnectorMessage::Left, _)) | None) => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}
