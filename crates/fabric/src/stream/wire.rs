//! Bytes to and from a non-blocking socket, in clear text or through a TLS session.

use std::io::{IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::net::{RecvFlags, SendFlags};

use super::timespec;

/// Plaintext passed to the session at a time: one TLS record.
const RECORD_BYTES: usize = 16 << 10;

/// A connected socket, and the TLS session over it if there is one. No call blocks unless its documentation says so.
#[derive(Debug)]
pub struct Wire {
    socket: Arc<OwnedFd>,
    session: Option<Box<rustls::Connection>>,
    /// The receive timeout that the kernel has.
    limit: Duration,
}

/// Adapter of the socket for rustls.
struct Raw<'a>(&'a OwnedFd);

impl Read for Raw<'_> {
    fn read(&mut self, target: &mut [u8]) -> std::io::Result<usize> {
        Ok(rustix::net::recv(self.0, target, RecvFlags::DONTWAIT)?.0)
    }
}

impl Write for Raw<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Ok(rustix::net::send(
            self.0,
            bytes,
            SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
        )?)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Blocks until a descriptor is ready, a signal arrives, or `limit` has passed.
pub fn poll(waiting: &mut [PollFd<'_>], limit: Duration) -> std::io::Result<()> {
    match rustix::event::poll(waiting, Some(&timespec(limit))) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Returns the number of sent bytes that the other host has not acknowledged. Closing the socket before may lose them.
pub fn unacknowledged_bytes(socket: impl AsFd) -> u32 {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the request writes one int, which it gets.
    let asked = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if asked == 0 { bytes.max(0).unsigned_abs() } else { 0 }
}

fn broken(error: rustls::Error) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, error)
}

impl Wire {
    /// Returns a wire over a socket in clear text, with `TCP_NODELAY`.
    pub fn plain(socket: OwnedFd) -> std::io::Result<Self> {
        // Fails on a Unix socket, which tests also use.
        let _ = rustix::net::sockopt::set_tcp_nodelay(&socket, true);
        // Each call requests non-blocking operation itself, because `receive_blocking` must be able to block.
        rustix::io::ioctl_fionbio(&socket, false)?;
        Ok(Self {
            socket: Arc::new(socket),
            session: None,
            limit: Duration::ZERO,
        })
    }

    /// Returns a wire over a socket and a session. The handshake may still be outstanding.
    pub fn tls(socket: OwnedFd, session: rustls::Connection) -> std::io::Result<Self> {
        Self::over(socket, Some(Box::new(session)))
    }

    /// Returns a wire over a socket, with a session if one is given.
    pub fn over(socket: OwnedFd, session: Option<Box<rustls::Connection>>) -> std::io::Result<Self> {
        let wire = Self::plain(socket)?;
        Ok(Self { session, ..wire })
    }

    /// Whether the wire uses TLS.
    pub fn is_encrypted(&self) -> bool {
        self.session.is_some()
    }

    pub fn socket(&self) -> &Arc<OwnedFd> {
        &self.socket
    }

    /// Whether decrypted bytes are waiting, which `poll` on the socket does not report. The session is drained on every
    /// receive unless the reader's buffer was full.
    pub fn has_plaintext(&self) -> bool {
        // `receive` reads the session before the socket, so bytes can remain only there.
        self.session
            .as_ref()
            .is_some_and(|session| !session.wants_read() && !session.is_handshaking())
    }

    /// Completes the session's handshake, blocking at most until `until`.
    pub fn handshake(&mut self, until: Instant) -> std::io::Result<()> {
        loop {
            let Some(session) = &mut self.session else {
                return Ok(());
            };
            if !session.is_handshaking() && !session.wants_write() {
                return Ok(());
            }
            let mut blocked = true;
            if session.wants_write() {
                match session.write_tls(&mut Raw(&self.socket)) {
                    Ok(_) => blocked = false,
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            } else if session.wants_read() {
                match session.read_tls(&mut Raw(&self.socket)) {
                    Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                    Ok(_) => {
                        blocked = false;
                        if let Err(error) = session.process_new_packets() {
                            // The alert contains the reason for the peer.
                            let _ = session.write_tls(&mut Raw(&self.socket));
                            return Err(broken(error));
                        }
                    }
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
            if blocked {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(std::io::Error::new(
                        std::io::ErrorKind::TimedOut,
                        "the TLS handshake did not finish in time",
                    ));
                }
                let wants = if session.wants_write() {
                    PollFlags::OUT
                } else {
                    PollFlags::IN
                };
                self.block(wants, left)?;
            }
        }
    }

    /// Receives into `target`. Returns 0 when the peer has closed.
    #[inline]
    pub fn receive(&mut self, target: &mut [u8]) -> std::io::Result<usize> {
        let Some(session) = &mut self.session else {
            return Ok(rustix::net::recv(&self.socket, target, RecvFlags::DONTWAIT)?.0);
        };
        loop {
            match session.reader().read(target) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                result => return result,
            }
            if session.read_tls(&mut Raw(&self.socket))? == 0 {
                return Ok(0);
            }
            session.process_new_packets().map_err(broken)?;
        }
    }

    /// Receives into `target` in clear text, blocking for at most `limit`. One system call instead of two for waiting
    /// and receiving.
    pub fn receive_blocking(&mut self, target: &mut [u8], limit: Duration) -> std::io::Result<usize> {
        // The kernel takes zero as no limit.
        let limit = limit.max(Duration::from_millis(1));
        if self.limit != limit {
            rustix::net::sockopt::set_socket_timeout(&self.socket, rustix::net::sockopt::Timeout::Recv, Some(limit))?;
            self.limit = limit;
        }
        Ok(rustix::net::recv(&self.socket, target, RecvFlags::empty())?.0)
    }

    /// Sends from `first`, then `second`. Returns the number of bytes taken.
    #[inline]
    pub fn send(&mut self, first: &[u8], second: &[u8]) -> std::io::Result<usize> {
        let Some(session) = &mut self.session else {
            if second.is_empty() {
                return Ok(rustix::net::send(
                    &self.socket,
                    first,
                    SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
                )?);
            }
            let mut none = rustix::net::SendAncillaryBuffer::default();
            let parts = [IoSlice::new(first), IoSlice::new(second)];
            return Ok(rustix::net::sendmsg(
                &self.socket,
                &parts,
                &mut none,
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            )?);
        };
        if session.wants_write() {
            session.write_tls(&mut Raw(&self.socket))?;
            if session.wants_write() {
                return Err(std::io::ErrorKind::WouldBlock.into());
            }
        }
        let taken = session.writer().write(&first[..first.len().min(RECORD_BYTES)])?;
        match session.write_tls(&mut Raw(&self.socket)) {
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(taken),
        }
    }

    /// Sends buffered bytes. Returns whether all have left.
    pub fn flush(&mut self) -> std::io::Result<bool> {
        let Some(session) = &mut self.session else {
            return Ok(true);
        };
        while session.wants_write() {
            match session.write_tls(&mut Raw(&self.socket)) {
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Blocks until the socket is ready for one of `events`, or `limit` has passed.
    pub fn block(&self, events: PollFlags, limit: Duration) -> std::io::Result<()> {
        poll(&mut [PollFd::new(&self.socket, events)], limit)
    }
}
