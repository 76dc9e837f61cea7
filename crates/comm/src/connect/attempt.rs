//! An attempt to connect a pair of ranks.
//!
//! Both ends send a hello, then a proof that they know the group's secret, over both hellos. The lower rank chooses the
//! first connection with a valid proof and announces it. Only there TLS follows, if either end wants it. So both ends
//! agree on one connection, however many exist. An attempt never reads more bytes than its current step needs: later
//! bytes belong to the group.

mod handshake;

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::Instant;

use dayfly_fabric::tls::{self, Identity};
use dayfly_rendezvous::keys::{GroupKeys, MAC_BYTES, random, same_tag};
use dayfly_rendezvous::messages::Card;
use dayfly_rendezvous::messages::{RELAY_JOINED, RELAY_MAGIC};
use rustls::Connection;

use super::Trust;
use super::hello::{HELLO_BYTES, Hello};
use super::socket::{Socket, rearm};
use crate::{PeerConnection, Route};
use handshake::{Records, secure};

/// State that all attempts of a rank share.
pub struct AttemptContext<'a> {
    pub keys: &'a GroupKeys,
    pub identity: &'a Identity,
    pub run: [u8; 16],
    pub rank: u32,
    pub cards: &'a [Card],
    pub trust: Trust,
}

enum Stage {
    /// Waits for the connection.
    Dialing,
    /// Waits for the relay to join the other half.
    Relayed,
    /// Waits for the other end's hello.
    Hello,
    /// Waits for the other end's proof.
    Proof,
    /// Waits for the lower rank's choice, or for this rank to choose.
    Choice,
    /// TLS handshake.
    Session(Box<Connection>, Records),
    /// Sends the last bytes.
    Leaving,
}

/// Progress of an attempt.
pub enum Progress {
    /// It waits for the socket.
    Waits,
    /// The other end is authenticated, and this rank has to choose.
    Proven,
    /// It is complete.
    Ready,
}

/// An attempt to connect to another rank.
pub struct Attempt {
    socket: Socket,
    stage: Stage,
    route: Route,
    /// The other rank; `None` for an accepted connection until its hello.
    pub peer: Option<u32>,
    /// The step of the pair's plan; `None` if the other rank dialled.
    pub step: Option<usize>,
    /// Whether the pair's lower rank has chosen it.
    pub chosen: bool,
    /// When its stage began.
    pub since: Instant,
    received: Vec<u8>,
    sending: Vec<u8>,
    hellos: Option<(Hello, Option<Hello>)>,
}

fn broken(error: io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "closed by the other end".to_owned(),
        _ => error.to_string(),
    }
}

impl Attempt {
    /// An attempt that this rank began, to a known rank. It sends `ticket` to the relay first.
    pub fn dialled(socket: Socket, route: Route, peer: u32, step: usize, ticket: Option<&[u8]>) -> Self {
        let mut attempt = Self::new(socket, route, Stage::Dialing);
        attempt.peer = Some(peer);
        attempt.step = Some(step);
        if let Some(ticket) = ticket {
            attempt.sending = [&RELAY_MAGIC, ticket].concat();
        }
        attempt
    }

    /// An attempt that another rank began.
    pub fn accepted(socket: Socket) -> Self {
        let route = match socket {
            Socket::Unix(_) => Route::Local,
            Socket::Tcp(_) => Route::Direct,
            Socket::Stored(_) => Route::Stored,
        };
        Self::new(socket, route, Stage::Hello)
    }

    fn new(socket: Socket, route: Route, stage: Stage) -> Self {
        Self {
            socket,
            stage,
            route,
            peer: None,
            step: None,
            chosen: false,
            since: Instant::now(),
            received: Vec::new(),
            sending: Vec::new(),
            hellos: None,
        }
    }

    /// The socket to poll.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Whether it waits for the socket to become writable.
    pub fn wants_write(&self) -> bool {
        match &self.stage {
            Stage::Dialing => true,
            Stage::Session(session, _) => session.wants_write(),
            _ => !self.sending.is_empty(),
        }
    }

    /// Whether it waits for the network, the relay or the store, which have time limits of their own, and not for the
    /// other rank's next message.
    pub fn is_on_its_way(&self) -> bool {
        self.route == Route::Stored || matches!(self.stage, Stage::Dialing | Stage::Relayed)
    }

    /// What it waits for, for error messages.
    pub fn waits_for(&self) -> &'static str {
        match self.stage {
            Stage::Dialing => "no response",
            Stage::Relayed => "the other rank did not reach the relay",
            Stage::Hello => "connected, but no hello arrived",
            Stage::Proof => "connected, but no proof of the secret arrived",
            Stage::Choice => "connected, but not chosen",
            Stage::Session(..) => "TLS was not completed",
            Stage::Leaving => "the last bytes were not taken",
        }
    }

    fn enter(&mut self, stage: Stage) {
        self.stage = stage;
        self.since = Instant::now();
    }

    fn is_lower(&self, common: &AttemptContext<'_>) -> bool {
        self.peer.is_some_and(|peer| common.rank < peer)
    }

    /// Both hellos, the lower rank's first.
    fn ordered(&self, common: &AttemptContext<'_>) -> Option<[&Hello; 2]> {
        let (mine, theirs) = self.hellos.as_ref()?;
        let theirs = theirs.as_ref()?;
        Some(if self.is_lower(common) {
            [mine, theirs]
        } else {
            [theirs, mine]
        })
    }

    /// The later of the two ends' routes: only the end that used a relay or a simultaneous open knows it.
    fn route(&self) -> Route {
        match &self.hellos {
            Some((mine, Some(theirs))) => mine.route.max(theirs.route),
            Some((mine, None)) => mine.route,
            None => self.route,
        }
    }

    fn flush(&mut self) -> Result<bool, String> {
        while !self.sending.is_empty() {
            match (&self.socket).write(&self.sending) {
                Ok(count) => drop(self.sending.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(broken(error)),
            }
        }
        Ok(true)
    }

    /// Reads until `wanted` bytes have arrived, and returns them; `None` before.
    fn receive(&mut self, wanted: usize) -> Result<Option<Vec<u8>>, String> {
        let mut buffer = [0; HELLO_BYTES];
        while self.received.len() < wanted {
            let most = (wanted - self.received.len()).min(buffer.len());
            match (&self.socket).read(&mut buffer[..most]) {
                Ok(0) => return Err("closed by the other end".into()),
                Ok(count) => self.received.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(broken(error)),
            }
        }
        Ok(Some(std::mem::take(&mut self.received)))
    }

    fn send_hello(&mut self, common: &AttemptContext<'_>, to: u32) -> Result<(), String> {
        let encrypt = match &self.socket {
            Socket::Unix(_) => false,
            // A store keeps the bytes, so trust in the network does not cover it.
            Socket::Stored(_) => true,
            Socket::Tcp(socket) => {
                let stays = self.route != Route::Relay
                    && socket.peer_addr().is_ok_and(|peer: SocketAddr| peer.ip().is_loopback());
                !stays && common.trust == Trust::Nobody
            }
        };
        let hello = Hello {
            route: self.route,
            encrypt,
            run: common.run,
            from: common.rank,
            to,
            nonce: random().map_err(|failure| failure.message)?,
        };
        self.sending.extend_from_slice(&hello.to_bytes());
        self.hellos = Some((hello, None));
        Ok(())
    }

    fn receive_hello(&mut self, common: &AttemptContext<'_>, bytes: &[u8]) -> Result<(), String> {
        let hello = bytes.try_into().ok().and_then(Hello::from_bytes);
        let hello = hello.ok_or("the peer is not a rank of a group")?;
        if hello.run != common.run {
            return Err("the peer belongs to another run".into());
        }
        let size = u32::try_from(common.cards.len()).unwrap_or(u32::MAX);
        if hello.to != common.rank || hello.from >= size || hello.from == common.rank {
            return Err(format!("rank {} is there, and expects rank {}", hello.from, hello.to));
        }
        if self.peer.is_some_and(|peer| peer != hello.from) {
            return Err(format!("rank {} is there", hello.from));
        }
        self.peer = Some(hello.from);
        if self.hellos.is_none() {
            self.send_hello(common, hello.from)?;
        }
        if let Some((_, theirs)) = &mut self.hellos {
            *theirs = Some(hello);
        }
        let lower = self.is_lower(common);
        if let Some([low, high]) = self.ordered(common) {
            let proof = common.keys.proof(lower, &low.to_bytes(), &high.to_bytes());
            self.sending.extend_from_slice(&proof);
        }
        self.enter(Stage::Proof);
        Ok(())
    }

    /// Chooses this attempt. Only the lower rank calls this.
    pub fn choose(&mut self, common: &AttemptContext<'_>) -> Result<(), String> {
        if let Some([low, high]) = self.ordered(common) {
            let choice = common.keys.choice(&low.to_bytes(), &high.to_bytes());
            self.sending.extend_from_slice(&choice);
        }
        self.settle(common)
    }

    /// Begins TLS if either end wants it.
    fn settle(&mut self, common: &AttemptContext<'_>) -> Result<(), String> {
        self.chosen = true;
        let encrypt = self
            .ordered(common)
            .is_some_and(|hellos| hellos.iter().any(|hello| hello.encrypt));
        let card = self.peer.and_then(|peer| common.cards.get(peer as usize));
        let stage = match (&self.socket, card, encrypt) {
            (_, _, false) => Stage::Leaving,
            (Socket::Tcp(_) | Socket::Stored(_), Some(card), true) => {
                let session = if self.is_lower(common) {
                    tls::client(common.identity, &card.key).map(Connection::from)
                } else {
                    tls::worker(common.identity, &card.key).map(Connection::from)
                };
                let session = session.map_err(|error| format!("TLS cannot begin: {error}"))?;
                Stage::Session(Box::new(session), Records::default())
            }
            _ => return Err("the other end wants TLS within a host".into()),
        };
        self.enter(stage);
        Ok(())
    }

    /// Advances as far as the socket permits.
    pub fn advance(&mut self, common: &AttemptContext<'_>) -> Result<Progress, String> {
        loop {
            if matches!(self.stage, Stage::Dialing) {
                if !self.is_connected()? {
                    return Ok(Progress::Waits);
                }
                let relayed = !self.sending.is_empty();
                if let (false, Some(peer)) = (relayed, self.peer) {
                    self.send_hello(common, peer)?;
                }
                self.enter(if relayed { Stage::Relayed } else { Stage::Hello });
            }
            let flushed = self.flush()?;
            let lower = self.is_lower(common);
            match &mut self.stage {
                Stage::Dialing => {}
                Stage::Relayed => match self.receive(1)? {
                    Some(answer) if answer == [RELAY_JOINED] => {
                        if let Some(peer) = self.peer {
                            self.send_hello(common, peer)?;
                        }
                        self.enter(Stage::Hello);
                    }
                    Some(_) => return Err("the relay sent an unknown response".into()),
                    None => return Ok(Progress::Waits),
                },
                Stage::Hello => match self.receive(HELLO_BYTES)? {
                    Some(bytes) => self.receive_hello(common, &bytes)?,
                    None => return Ok(Progress::Waits),
                },
                Stage::Proof => {
                    let Some(proof) = self.receive(MAC_BYTES)? else {
                        return Ok(Progress::Waits);
                    };
                    let expected = self
                        .ordered(common)
                        .map(|[low, high]| common.keys.proof(!lower, &low.to_bytes(), &high.to_bytes()));
                    if !expected.is_some_and(|expected| same_tag(&expected, &proof)) {
                        return Err("the peer does not know the group's secret".into());
                    }
                    self.enter(Stage::Choice);
                    if lower {
                        return Ok(Progress::Proven);
                    }
                }
                Stage::Choice if lower => return Ok(Progress::Proven),
                Stage::Choice => {
                    let Some(choice) = self.receive(MAC_BYTES)? else {
                        return Ok(Progress::Waits);
                    };
                    let expected = self
                        .ordered(common)
                        .map(|[low, high]| common.keys.choice(&low.to_bytes(), &high.to_bytes()));
                    if !expected.is_some_and(|expected| same_tag(&expected, &choice)) {
                        return Err("the peer does not know the group's secret".into());
                    }
                    self.settle(common)?;
                }
                Stage::Session(session, records) => {
                    if !flushed {
                        return Ok(Progress::Waits);
                    }
                    if !secure(&self.socket, session, records)? {
                        return Ok(Progress::Waits);
                    }
                    return Ok(Progress::Ready);
                }
                Stage::Leaving if flushed => return Ok(Progress::Ready),
                Stage::Leaving => return Ok(Progress::Waits),
            }
        }
    }

    fn is_connected(&self) -> Result<bool, String> {
        let Socket::Tcp(socket) = &self.socket else {
            return Ok(true);
        };
        if let Some(error) = socket.take_error().map_err(broken)? {
            return Err(broken(error));
        }
        match socket.peer_addr() {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(broken(error)),
        }
    }

    /// The connection of a completed attempt.
    pub fn into_connection(self) -> Result<PeerConnection, String> {
        let route = self.route();
        let session = match self.stage {
            Stage::Session(session, _) => Some(session),
            _ => None,
        };
        match self.socket {
            Socket::Unix(socket) => {
                socket.set_nonblocking(false).map_err(broken)?;
                Ok(PeerConnection::Local(socket))
            }
            Socket::Tcp(socket) => {
                socket.set_nonblocking(false).map_err(broken)?;
                rearm(&socket).map_err(broken)?;
                Ok(PeerConnection::Remote { socket, session, route })
            }
            Socket::Stored(socket) => {
                socket.set_nonblocking(false).map_err(broken)?;
                let session = session.ok_or("a store carries only encrypted bytes")?;
                Ok(PeerConnection::Stored { socket, session })
            }
        }
    }
}
