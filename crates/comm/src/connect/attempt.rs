//! An attempt to connect a pair of ranks.
//!
//! Both ends send a hello, then a proof that they know the group's secret, over both hellos. The lower rank chooses the
//! first connection with a valid proof and announces it. Only there TLS follows, if either end wants it. So both ends
//! agree on one connection, however many exist. An attempt never reads more bytes than its current step needs: later
//! bytes belong to the group.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use dayfly_fabric::tls::{self, Identity};
use dayfly_rendezvous::keys::{GroupKeys, MAC_BYTES, random, same_tag};
use dayfly_rendezvous::messages::Card;
use dayfly_rendezvous::messages::{RELAY_JOINED, RELAY_MAGIC};
use rustls::Connection;

use super::Trust;
use super::hello::{HELLO_BYTES, Hello, Way};
use super::socket::rearm;
use crate::road::{Road, Via};

/// State that all attempts of a rank share.
pub struct Common<'a> {
    pub keys: &'a GroupKeys,
    pub identity: &'a Identity,
    pub run: [u8; 16],
    pub rank: u32,
    pub cards: &'a [Card],
    pub trust: Trust,
}

/// A non-blocking socket of any kind.
pub enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// The local end of a way through a store.
    Stored(UnixStream),
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(socket) => socket.as_fd(),
            Self::Unix(socket) | Self::Stored(socket) => socket.as_fd(),
        }
    }
}

impl Read for &Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => (&mut &*socket).read(into),
            Socket::Unix(socket) | Socket::Stored(socket) => (&mut &*socket).read(into),
        }
    }
}

impl Write for &Socket {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => (&mut &*socket).write(from),
            Socket::Unix(socket) | Socket::Stored(socket) => (&mut &*socket).write(from),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Passes one record at a time to TLS.
#[derive(Default)]
struct Records {
    header: [u8; 5],
    had: usize,
    body: usize,
}

struct OneRecord<'a>(&'a Socket, &'a mut Records);

impl Read for OneRecord<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let (mut socket, records) = (self.0, &mut *self.1);
        let left = if records.had < 5 { 5 - records.had } else { records.body };
        let most = left.min(into.len());
        let count = socket.read(&mut into[..most])?;
        if records.had < 5 {
            records.header[records.had..records.had + count].copy_from_slice(&into[..count]);
            records.had += count;
            records.body = usize::from(u16::from_be_bytes([records.header[3], records.header[4]]));
        } else {
            records.body -= count;
        }
        if records.had == 5 && records.body == 0 {
            records.had = 0;
        }
        Ok(count)
    }
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
    way: Way,
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
    pub fn dialled(socket: Socket, way: Way, peer: u32, step: usize, ticket: Option<&[u8]>) -> Self {
        let mut attempt = Self::new(socket, way, Stage::Dialing);
        attempt.peer = Some(peer);
        attempt.step = Some(step);
        if let Some(ticket) = ticket {
            attempt.sending = [&RELAY_MAGIC, ticket].concat();
        }
        attempt
    }

    /// An attempt that another rank began.
    pub fn accepted(socket: Socket) -> Self {
        let way = match socket {
            Socket::Unix(_) => Way::Local,
            Socket::Tcp(_) => Way::Direct,
            Socket::Stored(_) => Way::Stored,
        };
        Self::new(socket, way, Stage::Hello)
    }

    fn new(socket: Socket, way: Way, stage: Stage) -> Self {
        Self {
            socket,
            stage,
            way,
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
        self.way == Way::Stored || matches!(self.stage, Stage::Dialing | Stage::Relayed)
    }

    /// What it waits for, for error messages.
    pub fn waits_for(&self) -> &'static str {
        match self.stage {
            Stage::Dialing => "no answer",
            Stage::Relayed => "the other rank did not come to the relay",
            Stage::Hello => "connected, and no hello came",
            Stage::Proof => "connected, and no proof of the secret came",
            Stage::Choice => "connected, and not chosen",
            Stage::Session(..) => "TLS was not completed",
            Stage::Leaving => "the last bytes were not taken",
        }
    }

    fn enter(&mut self, stage: Stage) {
        self.stage = stage;
        self.since = Instant::now();
    }

    fn is_lower(&self, common: &Common<'_>) -> bool {
        self.peer.is_some_and(|peer| common.rank < peer)
    }

    /// Both hellos, the lower rank's first.
    fn ordered(&self, common: &Common<'_>) -> Option<[&Hello; 2]> {
        let (mine, theirs) = self.hellos.as_ref()?;
        let theirs = theirs.as_ref()?;
        Some(if self.is_lower(common) {
            [mine, theirs]
        } else {
            [theirs, mine]
        })
    }

    fn via(&self) -> Via {
        let way = |hello: &Hello| hello.way;
        let ways = self
            .hellos
            .as_ref()
            .map(|(mine, theirs)| (way(mine), theirs.as_ref().map(way)));
        match ways.map_or(self.way, |(mine, theirs)| {
            theirs.map_or(mine, |theirs| mine.max(theirs))
        }) {
            Way::Local => Via::Local,
            Way::Direct => Via::Direct,
            Way::Punch => Via::Punched,
            Way::Relay => Via::Relay,
            Way::Stored => Via::Stored,
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

    fn say_hello(&mut self, common: &Common<'_>, to: u32) -> Result<(), String> {
        let encrypt = match &self.socket {
            Socket::Unix(_) => false,
            // A store keeps the bytes, so trust in the network does not cover it.
            Socket::Stored(_) => true,
            Socket::Tcp(socket) => {
                let stays =
                    self.way != Way::Relay && socket.peer_addr().is_ok_and(|peer: SocketAddr| peer.ip().is_loopback());
                !stays && common.trust == Trust::Nobody
            }
        };
        let hello = Hello {
            way: self.way,
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

    fn hear_hello(&mut self, common: &Common<'_>, bytes: &[u8]) -> Result<(), String> {
        let hello = bytes.try_into().ok().and_then(Hello::from_bytes);
        let hello = hello.ok_or("whoever is there is no rank of a group")?;
        if hello.run != common.run {
            return Err("whoever is there is of another run".into());
        }
        let size = u32::try_from(common.cards.len()).unwrap_or(u32::MAX);
        if hello.to != common.rank || hello.from >= size || hello.from == common.rank {
            return Err(format!("rank {} is there, and looks for {}", hello.from, hello.to));
        }
        if self.peer.is_some_and(|peer| peer != hello.from) {
            return Err(format!("rank {} is there", hello.from));
        }
        self.peer = Some(hello.from);
        if self.hellos.is_none() {
            self.say_hello(common, hello.from)?;
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
    pub fn choose(&mut self, common: &Common<'_>) -> Result<(), String> {
        if let Some([low, high]) = self.ordered(common) {
            let choice = common.keys.choice(&low.to_bytes(), &high.to_bytes());
            self.sending.extend_from_slice(&choice);
        }
        self.settle(common)
    }

    /// Begins TLS if either end wants it.
    fn settle(&mut self, common: &Common<'_>) -> Result<(), String> {
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
    pub fn advance(&mut self, common: &Common<'_>) -> Result<Progress, String> {
        loop {
            if matches!(self.stage, Stage::Dialing) {
                if !self.is_connected()? {
                    return Ok(Progress::Waits);
                }
                let relayed = !self.sending.is_empty();
                if let (false, Some(peer)) = (relayed, self.peer) {
                    self.say_hello(common, peer)?;
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
                            self.say_hello(common, peer)?;
                        }
                        self.enter(Stage::Hello);
                    }
                    Some(_) => return Err("the relay's answer is none".into()),
                    None => return Ok(Progress::Waits),
                },
                Stage::Hello => match self.receive(HELLO_BYTES)? {
                    Some(bytes) => self.hear_hello(common, &bytes)?,
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
                        return Err("whoever is there does not know the group's secret".into());
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
                        return Err("whoever is there does not know the group's secret".into());
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

    /// The road of a completed attempt.
    pub fn into_road(self) -> Result<Road, String> {
        let via = self.via();
        let session = match self.stage {
            Stage::Session(session, _) => Some(session),
            _ => None,
        };
        match self.socket {
            Socket::Unix(socket) => {
                socket.set_nonblocking(false).map_err(broken)?;
                Ok(Road::Local(socket))
            }
            Socket::Tcp(socket) => {
                socket.set_nonblocking(false).map_err(broken)?;
                rearm(&socket).map_err(broken)?;
                Ok(Road::Remote { socket, session, via })
            }
            Socket::Stored(socket) => {
                socket.set_nonblocking(false).map_err(broken)?;
                let session = session.ok_or("nothing is stored in clear")?;
                Ok(Road::Stored { socket, session })
            }
        }
    }
}

/// Advances a TLS handshake. Returns whether it is complete and all of it was sent.
fn secure(mut socket: &Socket, session: &mut Connection, records: &mut Records) -> Result<bool, String> {
    loop {
        while session.wants_write() {
            match session.write_tls(&mut socket) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(broken(error)),
            }
        }
        if !session.is_handshaking() {
            return Ok(true);
        }
        match session.read_tls(&mut OneRecord(socket, records)) {
            Ok(0) => return Err("closed by the other end in TLS".into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(broken(error)),
        }
        session
            .process_new_packets()
            .map_err(|error| format!("the other end has not the key that its rank announced: {error}"))?;
    }
}
