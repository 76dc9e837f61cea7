//! Raw TCP on the loopback.

use super::Baseline;
use super::peer::{Control, Peer, TIMEOUT};
use crate::alternate::Block;
use crate::error::Error;
use crate::stats::{Samples, timed};
use crate::tsc::Tsc;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Instant;

/// Makes a connected pair of sockets on the loopback, without Nagle's algorithm.
pub(super) fn pair(nonblocking: bool) -> Result<(TcpStream, TcpStream), Error> {
    let context = "open a connection on the loopback";
    let make = || -> std::io::Result<_> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let client = TcpStream::connect(listener.local_addr()?)?;
        // Other processes may connect to the listener: accept until it is our own socket.
        let server = loop {
            let (socket, from) = listener.accept()?;
            if from == client.local_addr()? {
                break socket;
            }
        };
        for socket in [&client, &server] {
            socket.set_nodelay(true)?;
            socket.set_nonblocking(nonblocking)?;
        }
        // A blocking client must not wait forever for a dead peer.
        client.set_read_timeout(Some(TIMEOUT))?;
        Ok((client, server))
    };
    make().map_err(Error::os(context))
}

/// Reads until the buffer is full. Spins, and calls `between` after each read without data.
#[inline(always)]
fn fill(socket: &mut TcpStream, buffer: &mut [u8], mut between: impl FnMut() -> Result<(), ()>) -> Result<(), ()> {
    let mut done = 0;
    while done < buffer.len() {
        match socket.read(&mut buffer[done..]) {
            Ok(0) => return Err(()),
            Ok(n) => done += n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => between()?,
            Err(e) if e.kind() == ErrorKind::Interrupted => (),
            Err(_) => return Err(()),
        }
    }
    Ok(())
}

#[inline(always)]
fn drain(socket: &mut TcpStream, buffer: &[u8]) -> Result<(), ()> {
    let mut done = 0;
    while done < buffer.len() {
        match socket.write(&buffer[done..]) {
            Ok(n) => done += n,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => (),
            Err(_) => return Err(()),
        }
    }
    Ok(())
}

/// Ends a spin on a socket if its peer is silent for too long. Reads the clock only from time to time.
#[derive(Default)]
pub(super) struct Watchdog {
    polls: u32,
    since: Option<Instant>,
}

impl Watchdog {
    #[inline(always)]
    pub(super) fn poll(&mut self, peer: &Peer) -> Result<(), Error> {
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(1 << 16) {
            return peer.check(*self.since.get_or_insert_with(Instant::now));
        }
        Ok(())
    }
}

/// An echo of SIZE bytes over raw sockets.
pub struct TcpEcho {
    peer: Peer,
    socket: TcpStream,
    buffer: Vec<u8>,
    spins: bool,
    copies: bool,
}

impl TcpEcho {
    /// Both sides spin on non-blocking sockets.
    pub fn spinning(size: usize) -> Result<Self, Error> {
        Self::new(size, true, false)
    }

    /// Both sides spin, and the peer copies its input into the buffer that it sends, like a function that reads
    /// its input and writes its output.
    pub fn copying(size: usize) -> Result<Self, Error> {
        Self::new(size, true, true)
    }

    /// Both sides sleep in `read`.
    pub fn blocking(size: usize) -> Result<Self, Error> {
        Self::new(size, false, false)
    }

    fn new(size: usize, spins: bool, copies: bool) -> Result<Self, Error> {
        let size = size.max(1);
        let (socket, mut other) = pair(spins)?;
        let peer = Peer::fork(if spins { "tcp_spin" } else { "tcp_block" }, |control: &Control| {
            let mut buffer = vec![1; size];
            let rest = || {
                control.rest();
                Ok(())
            };
            let mut copy = if copies { vec![1; size] } else { Vec::new() };
            while fill(&mut other, &mut buffer, rest).is_ok() {
                if copies {
                    copy.copy_from_slice(&buffer);
                }
                if drain(&mut other, if copies { &copy } else { &buffer }).is_err() {
                    return;
                }
            }
        })?;
        Ok(TcpEcho {
            peer,
            socket,
            buffer: vec![7; size],
            spins,
            copies,
        })
    }

    /// Returns bytes per second in both directions together, for the time of one echo.
    pub fn bandwidth(size: usize, ns: f64) -> f64 {
        if ns > 0.0 { 2.0 * size as f64 * 1e9 / ns } else { 0.0 }
    }
}

impl Block for TcpEcho {
    fn block(&mut self, calls: usize, samples: &mut Samples) -> Result<(), Error> {
        let (peer, socket) = (&self.peer, &mut self.socket);
        timed(calls, samples, || {
            let mut dog = Watchdog::default();
            drain(socket, &self.buffer).map_err(|()| peer.broke())?;
            fill(socket, &mut self.buffer, || dog.poll(peer).map_err(|_| ())).map_err(|()| peer.broke())
        })
    }
    fn resume(&mut self) -> Result<(), Error> {
        self.peer.resume();
        Ok(())
    }
    fn pause(&mut self) -> Result<(), Error> {
        self.peer.pause();
        Ok(())
    }
}

impl Baseline for TcpEcho {
    fn name(&self) -> &str {
        match (self.spins, self.copies) {
            (true, false) => "tcp_spin",
            (true, true) => "tcp_spin_copy",
            (false, _) => "tcp_block",
        }
    }
    fn about(&self) -> String {
        let how = if self.spins {
            "spinning on non-blocking sockets"
        } else {
            "blocking"
        };
        let copies = if self.copies {
            ", the far one copies from one buffer to another"
        } else {
            ""
        };
        format!(
            "raw TCP on the loopback, {} B each way, both sides {how}{copies}",
            self.buffer.len()
        )
    }
}

/// A stream in one direction: the bandwidth of the loopback.
pub struct TcpSink {
    peer: Peer,
    socket: TcpStream,
    message: Vec<u8>,
}

impl TcpSink {
    /// Makes one for messages of the given size, which the peer reads and drops.
    pub fn new(size: usize) -> Result<Self, Error> {
        let size = size.max(1);
        let (socket, mut other) = pair(false)?;
        let peer = Peer::fork("tcp_stream", |_| {
            let mut buffer = vec![1; size];
            let mut count = [0; 8];
            let never = || Ok(());
            while fill(&mut other, &mut count, never).is_ok() {
                for _ in 0..u64::from_le_bytes(count) {
                    if fill(&mut other, &mut buffer, never).is_err() {
                        return;
                    }
                }
                if drain(&mut other, &[1]).is_err() {
                    return;
                }
            }
        })?;
        Ok(TcpSink {
            peer,
            socket,
            message: vec![7; size],
        })
    }

    /// Sends a number of messages. Returns bytes per second until the peer has read the last one.
    pub fn rate(&mut self, messages: usize) -> Result<f64, Error> {
        let before = Tsc::now_ordered();
        let (socket, message) = (&mut self.socket, &self.message);
        let mut send = || -> Result<(), ()> {
            drain(socket, &(messages as u64).to_le_bytes())?;
            (0..messages).try_for_each(|_| drain(socket, message))?;
            // A blocking read returns without data only at its time limit.
            fill(socket, &mut [0], || Err(()))
        };
        send().map_err(|()| self.peer.broke())?;
        let ns = Tsc::get().ns(Tsc::now_ordered() - before);
        Ok((messages * message.len()) as f64 * 1e9 / ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alternate::{Plan, measure};

    #[test]
    fn blocking_echo_returns_every_call() {
        let mut echo = TcpEcho::blocking(64).unwrap();
        assert_eq!(
            measure(
                &mut echo,
                Plan {
                    blocks: 2,
                    calls: 10,
                    warm_up: 1
                }
            )
            .unwrap()
            .len(),
            20
        );
    }

    #[test]
    fn spinning_echo_sleeps_between_blocks() {
        let mut echo = TcpEcho::spinning(100_000).unwrap();
        assert_eq!(
            measure(
                &mut echo,
                Plan {
                    blocks: 3,
                    calls: 5,
                    warm_up: 1
                }
            )
            .unwrap()
            .len(),
            15
        );
    }

    #[test]
    fn copying_echo_returns_its_input() {
        let mut echo = TcpEcho::copying(100_000).unwrap();
        echo.buffer[99_999] = 42;
        let plan = Plan {
            blocks: 1,
            calls: 3,
            warm_up: 1,
        };
        assert_eq!(measure(&mut echo, plan).unwrap().len(), 3);
        assert_eq!((echo.buffer[0], echo.buffer[99_999]), (7, 42));
    }

    #[test]
    fn stream_reports_its_bandwidth() {
        assert!(TcpSink::new(10_000).unwrap().rate(50).unwrap() > 1e6);
    }
}
