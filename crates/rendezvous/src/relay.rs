//! Relays bytes between two ranks that cannot connect otherwise.
//!
//! Each of the two opens a connection and shows a ticket from the rendezvous. The ticket contains the run, the two
//! ranks, an expiry, and an HMAC under a key that only this server has, so the relay keeps no list of tickets. The
//! first rank waits for the second; then all bytes pass. They belong to the ranks' own handshake and TLS, whose keys
//! the server does not have.
//!
//! `splice` moves the bytes through a pipe for each direction, without a copy into this process. A full pipe is the
//! backpressure.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dayfly_lease::admission::Place;
use dayfly_protocol::error::{Code, Failure};
use ring::hmac;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

use crate::keys;
use crate::messages::{RELAY_JOINED, RELAY_MAGIC, TICKET_BYTES};
use crate::socket::watch_peer;

/// Validity of a ticket.
const VALID: Duration = Duration::from_secs(60);
/// How long the first half waits for the second.
const WAIT: Duration = Duration::from_secs(30);
/// Most waiting halves.
const MAX_WAITING: usize = 50_000;
/// Capacity of a pipe, if the system permits it; the default is 64 KiB.
const PIPE_BYTES: usize = 1 << 20;

/// The run's nonce and the two ranks, the lower first.
type Pair = ([u8; 16], u32, u32);

/// The relay of a server.
pub struct Relay {
    key: Option<hmac::Key>,
    waiting: Mutex<HashMap<Pair, Half>>,
}

/// A waiting half: its rank, and the channel to pass it the other's connection.
struct Half {
    rank: u32,
    hand_over: oneshot::Sender<TcpStream>,
}

fn now_s() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

fn no(text: &str) -> Failure {
    Failure::new(Code::Unauthorized, format!("relay: {text}"))
}

fn broken(error: io::Error) -> Failure {
    Failure::new(Code::Unreachable, format!("relay: a connection broke: {error}"))
}

impl Relay {
    /// A relay. Without `relays` it issues no tickets.
    pub fn new(relays: bool) -> Result<Self, Failure> {
        let key = if relays {
            Some(hmac::Key::new(hmac::HMAC_SHA256, &keys::random::<32>()?))
        } else {
            None
        };
        Ok(Self {
            key,
            waiting: Mutex::default(),
        })
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<Pair, Half>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A ticket for rank `from` to rank `to`; `None` if the server does not relay.
    pub fn ticket(&self, run: [u8; 16], from: u32, to: u32) -> Option<[u8; TICKET_BYTES]> {
        let mut ticket = [0; TICKET_BYTES];
        ticket[..16].copy_from_slice(&run);
        ticket[16..20].copy_from_slice(&from.to_le_bytes());
        ticket[20..24].copy_from_slice(&to.to_le_bytes());
        ticket[24..32].copy_from_slice(&(now_s() + VALID.as_secs()).to_le_bytes());
        let (told, tag) = ticket.split_at_mut(32);
        tag.copy_from_slice(hmac::sign(self.key.as_ref()?, told).as_ref());
        Some(ticket)
    }

    /// Verifies a ticket. Returns its pair and its holder's rank.
    fn check(&self, ticket: &[u8; TICKET_BYTES]) -> Result<(Pair, u32), Failure> {
        let key = self.key.as_ref().ok_or_else(|| no("this server does not relay"))?;
        let (told, tag) = ticket.split_at(32);
        hmac::verify(key, told, tag).map_err(|_| no("that is no ticket of this server"))?;
        let word = |at: usize| u32::from_le_bytes([told[at], told[at + 1], told[at + 2], told[at + 3]]);
        let until = u64::from(word(24)) | u64::from(word(28)) << 32;
        if until < now_s() {
            return Err(no("the ticket is too old"));
        }
        let (from, to) = (word(16), word(20));
        let mut run = [0; 16];
        run.copy_from_slice(&told[..16]);
        Ok(((run, from.min(to), from.max(to)), from))
    }

    /// Serves one half. The first half waits for the second; then the bytes pass until both ends have ended.
    pub async fn serve(&self, mut socket: TcpStream, deadline: Instant, unknown: Place<IpAddr>) -> Result<(), Failure> {
        let mut hello = [0; RELAY_MAGIC.len() + TICKET_BYTES];
        match timeout_at(deadline, socket.read_exact(&mut hello)).await {
            Ok(read) => read.map_err(broken)?,
            Err(_) => return Err(no("the caller showed no ticket in time")),
        };
        let (magic, ticket) = hello.split_at(RELAY_MAGIC.len());
        let ticket = ticket.try_into().map_err(|_| no("half a ticket"))?;
        if magic != RELAY_MAGIC {
            return Err(no("the caller does not speak to a relay"));
        }
        let (pair, rank) = self.check(ticket)?;
        drop(unknown);
        watch_peer(&socket).map_err(broken)?;
        let received = {
            let mut waiting = self.waiting();
            match waiting.remove(&pair) {
                Some(half) if half.rank != rank => {
                    drop(waiting);
                    // If it has just given up, this half tries again.
                    let _ = half.hand_over.send(socket);
                    return Ok(());
                }
                // The same rank again: replace its former connection.
                _ => {}
            }
            if waiting.len() >= MAX_WAITING {
                return Err(Failure::new(Code::NoCapacity, "relay: too many wait already"));
            }
            let (hand_over, received) = oneshot::channel();
            waiting.insert(pair, Half { rank, hand_over });
            received
        };
        let forget = Forget { relay: self, pair };
        let other = tokio::select! {
            other = timeout(WAIT, received) => match other {
                Ok(Ok(other)) => other,
                Ok(Err(_)) => return Ok(()),
                Err(_) => return Err(no("the other half did not come")),
            },
            // A half sends nothing before the response, so this is its end.
            _ = socket.read(&mut hello[..1]) => return Ok(()),
        };
        // The entry is removed already; the next one under this key belongs to others.
        std::mem::forget(forget);
        pass(socket, other).await.map_err(broken)
    }
}

/// Removes a waiting half when it is dropped.
struct Forget<'a> {
    relay: &'a Relay,
    pair: Pair,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        let mut waiting = self.relay.waiting();
        if waiting.get(&self.pair).is_some_and(|half| half.hand_over.is_closed()) {
            waiting.remove(&self.pair);
        }
    }
}

/// Reports to both halves that they are joined, and passes bytes until both have ended or one broke.
async fn pass(mut first: TcpStream, mut second: TcpStream) -> io::Result<()> {
    first.write_all(&[RELAY_JOINED]).await?;
    second.write_all(&[RELAY_JOINED]).await?;
    let there = one_way(&first, &second);
    let back = one_way(&second, &first);
    tokio::try_join!(there, back).map(drop)
}

fn new_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (out, into) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    // The system may limit a user's pipes; then the default stays.
    let _ = fcntl_setpipe_size(&into, PIPE_BYTES);
    Ok((out, into))
}

async fn one_way(from: &TcpStream, to: &TcpStream) -> io::Result<()> {
    let (out, into) = new_pipe()?;
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    loop {
        let mut held = from
            .async_io(Interest::READABLE, || {
                Ok(splice(from, None, &into, None, PIPE_BYTES, flags)?)
            })
            .await?;
        if held == 0 {
            // The other direction may continue.
            return rustix::net::shutdown(to, rustix::net::Shutdown::Write).map_err(io::Error::from);
        }
        while held > 0 {
            held -= to
                .async_io(Interest::WRITABLE, || Ok(splice(&out, None, to, None, held, flags)?))
                .await?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticket_is_valid_for_its_pair_and_server() {
        let relay = Relay::new(true).unwrap();
        let ticket = relay.ticket([7; 16], 5, 3).unwrap();
        assert_eq!(relay.check(&ticket).unwrap(), (([7; 16], 3, 5), 5));
        assert!(Relay::new(true).unwrap().check(&ticket).is_err());
        for at in 0..TICKET_BYTES {
            let mut forged = ticket;
            forged[at] ^= 1;
            assert!(relay.check(&forged).is_err(), "byte {at}");
        }
    }

    #[test]
    fn disabled_relay_gives_no_ticket() {
        assert_eq!(Relay::new(false).unwrap().ticket([7; 16], 0, 1), None);
    }
}
