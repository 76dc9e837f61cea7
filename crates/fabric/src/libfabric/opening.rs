//! Opens a channel over libfabric: each end sends its endpoint and its writable region once, under TLS over the
//! connection on which the channel was opened. That connection stays open, and its end is the channel's end.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_protocol::WIRE_VERSION;
use dayfly_protocol::fabric::{CARD_BYTES, Card, ENDPOINT_BYTES, MAGIC, max_grants, name, text};
use dayfly_protocol::slot::Geometry;
use rustix::event::PollFlags;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::choice::Choice;
use super::ffi::{Endpoint, Library, Region, Target, Wait};
use super::link::{FabricLink, Layout};
use super::{Control, FabricError};
use crate::LinkError;
use crate::memory::Mapping;
use crate::stream::wire::Wire;

/// Time limit of the exchange. Version 1.17 reads all kernel symbols at its first use, which takes 0.3 s.
const LIMIT: Duration = Duration::from_secs(10);
/// Most bytes of a write. Some providers report no limit.
const LARGEST_WRITE: u64 = 1 << 30;
/// Least bytes of a provider's largest write: one page.
const SMALLEST_WRITE: u64 = 4096;

/// The components of a link whose peer is known.
pub(super) struct Parts {
    pub fixed: [Region; 2],
    pub endpoint: Endpoint,
    pub memory: Arc<Mapping>,
    pub geometry: Geometry,
    pub choice: Choice,
    pub control: Control,
}

fn refused(text: impl Into<String>) -> LinkError {
    LinkError::Refused(text.into())
}

fn cannot(error: FabricError) -> LinkError {
    refused(error.to_string())
}

impl FabricLink {
    /// Opens the client's end, over a connection to the worker.
    pub fn client(
        socket: OwnedFd,
        session: impl Into<rustls::Connection>,
        geometry: Geometry,
        wanted: Choice,
        never_sleeps: bool,
    ) -> Result<Self, LinkError> {
        let until = Instant::now() + LIMIT;
        let mut control = Control::new(socket, session.into(), until)?;
        control.send(&question(wanted), until)?;
        // If the provider is given, both ends open their endpoints at the same time.
        let early = match wanted.is_any() {
            true => None,
            false => Some(Opened::new(&control, geometry, wanted, never_sleeps)),
        };
        let theirs = control.receive(until)?.accepted()?;
        let opened = match early {
            Some(opened) => opened?,
            None => {
                let chosen = Choice::new(&text(&theirs.wanted), &wanted.domain().unwrap_or_default());
                Opened::new(&control, geometry, chosen.unwrap_or(wanted), never_sleeps)?
            }
        };
        let card = opened.card(wanted)?;
        let link = opened.join(control, &theirs, geometry, |control| control.send(&card, until))?;
        link.greet()
    }

    /// Opens the worker's end with the client's provider, if `offered` contains it.
    pub fn worker(
        socket: OwnedFd,
        session: impl Into<rustls::Connection>,
        geometry: Geometry,
        offered: &[Choice],
        never_sleeps: bool,
    ) -> Result<Self, LinkError> {
        let until = Instant::now() + LIMIT;
        let mut control = Control::new(socket, session.into(), until)?;
        let wanted = text(&control.receive(until)?.wanted);
        let fitting = offered
            .iter()
            .find(|offer| wanted.is_empty() || offer.provider() == wanted);
        let opened = match fitting {
            Some(offer) => Opened::new(&control, geometry, *offer, never_sleeps)
                .and_then(|opened| Ok((opened.card(*offer)?, opened))),
            None => Err(refused(format!(
                "this node offers no provider `{wanted}` of libfabric; it offers {}",
                names(offered)
            ))),
        };
        match opened {
            Ok((card, opened)) => {
                control.send(&card, until)?;
                let theirs = control.receive(until)?.accepted()?;
                opened.join(control, &theirs, geometry, |_| Ok(()))?.greet()
            }
            Err(error) => {
                control.send(&refusal(&error.to_string()), until)?;
                Err(error)
            }
        }
    }
}

fn names(offered: &[Choice]) -> String {
    let names: Vec<String> = offered.iter().map(Choice::provider).collect();
    if names.is_empty() {
        "none".into()
    } else {
        names.join(", ")
    }
}

/// An endpoint with its memory, before its peer is known. Fields are dropped in this order.
struct Opened {
    fixed: [Region; 2],
    endpoint: Endpoint,
    memory: Arc<Mapping>,
}

impl Opened {
    fn new(control: &Control, geometry: Geometry, wanted: Choice, never_sleeps: bool) -> Result<Self, LinkError> {
        // The peer's slots, parts and grants, and our own parts.
        let completions = 4 * geometry.slots as usize + max_grants(geometry.slots);
        let mut endpoint = open_endpoint(control, wanted, completions, never_sleeps)?;
        let layout = Layout::new(geometry);
        let memory = Arc::new(Mapping::anonymous(layout.bytes())?);
        let mut register = |(start, length): (usize, usize)| {
            // SAFETY: inside the mapping, which outlives its registrations here and in the link; what lies there is
            // accessed as memory that the peer may change.
            unsafe { endpoint.register(memory.at(start), length) }.map_err(cannot)
        };
        let fixed = [register(layout.ring())?, register(layout.staging())?];
        Ok(Self {
            fixed,
            endpoint,
            memory,
        })
    }

    fn card(&self, wanted: Choice) -> Result<Card, LinkError> {
        introduce(&self.endpoint, self.fixed[0].target(), wanted)
    }

    /// Checks the peer's card, sends ours, and assembles the link.
    fn join(
        mut self,
        mut control: Control,
        theirs: &Card,
        geometry: Geometry,
        tell: impl FnOnce(&mut Control) -> Result<(), LinkError>,
    ) -> Result<FabricLink, LinkError> {
        if let Err(why) = understand(&self.endpoint, theirs) {
            control.send(&refusal(&why.to_string()), Instant::now() + LIMIT)?;
            return Err(why);
        }
        let provider = self.endpoint.provider();
        let largest = (provider.largest_write() as u64)
            .min(LARGEST_WRITE)
            .min(theirs.largest.get());
        if largest < SMALLEST_WRITE.max(geometry.stride_bytes.into()) {
            return Err(refused(format!(
                "the provider writes no more than {largest} bytes at once"
            )));
        }
        let choice = Choice::new(&provider.name(), &provider.domain());
        let choice = choice.ok_or_else(|| refused("the name of the provider or domain is too long"))?;
        tell(&mut control)?;
        self.endpoint.connect(theirs.told()?).map_err(cannot)?;
        let parts = Parts {
            fixed: self.fixed,
            endpoint: self.endpoint,
            memory: self.memory,
            geometry,
            choice,
            control,
        };
        let peer = Target {
            address: theirs.address.get(),
            key: theirs.key.get(),
        };
        Ok(FabricLink::over(parts, peer, largest as usize))
    }
}

/// Opens an endpoint of the wanted provider, on the network of the control connection.
pub(super) fn open_endpoint(
    control: &Control,
    wanted: Choice,
    completions: usize,
    never_sleeps: bool,
) -> Result<Endpoint, LinkError> {
    let provider = Library::get()
        .and_then(|library| library.provider(&wanted.provider(), wanted.domain().as_deref(), control.address()))
        .map_err(cannot)?;
    let wait = if never_sleeps { Wait::Never } else { Wait::Descriptor };
    let seed = RandomState::new().build_hasher().finish();
    Endpoint::open(provider, completions, wait, seed).map_err(cannot)
}

/// Returns the card of this end: its endpoint and its writable region.
pub(super) fn introduce(endpoint: &Endpoint, to: Target, wanted: Choice) -> Result<Card, LinkError> {
    let own = endpoint.name().map_err(cannot)?;
    let provider = endpoint.provider();
    let field = |text: &str| name(text).ok_or_else(|| refused(format!("the name `{text}` is too long")));
    let mut card = question(wanted);
    let (protocol, version) = provider.protocol();
    card.protocol.set(protocol);
    card.protocol_version.set(version);
    card.provider = field(&provider.name())?;
    card.domain = field(&provider.domain())?;
    card.address.set(to.address);
    card.key.set(to.key);
    card.largest.set((provider.largest_write() as u64).min(LARGEST_WRITE));
    card.length.set(own.len() as u16);
    let place = card.endpoint.get_mut(..own.len());
    place
        .ok_or_else(|| refused("the endpoint's name is too long"))?
        .copy_from_slice(&own);
    Ok(card)
}

/// Checks that both ends use the same wire protocol.
pub(super) fn understand(endpoint: &Endpoint, theirs: &Card) -> Result<(), LinkError> {
    let provider = endpoint.provider();
    if provider.protocol() == (theirs.protocol.get(), theirs.protocol_version.get()) {
        return Ok(());
    }
    Err(refused(format!(
        "the two ends have different kinds of libfabric: `{}` here and `{}` there do not understand each other; use the same version \
         of it on both, or another provider",
        provider.name(),
        text(&theirs.provider)
    )))
}

/// Removes the file by which the shm provider finds its peer. It would outlive a killed process, and both ends have it
/// mapped by now.
pub(super) fn remove_name(endpoint: &Endpoint) {
    let name = endpoint.name().unwrap_or_default();
    let name = String::from_utf8_lossy(&name).into_owned();
    let file = name.strip_prefix("fi_shm://").map(|rest| rest.trim_end_matches('\0'));
    if let Some(file) = file.filter(|file| !file.is_empty() && !file.contains('/')) {
        let _ = std::fs::remove_file(std::path::Path::new("/dev/shm").join(file));
    }
}

/// Returns a client's first card, which is also the beginning of every other card.
pub(super) fn question(wanted: Choice) -> Card {
    let mut card = Card::new_zeroed();
    card.magic = MAGIC;
    card.version.set(WIRE_VERSION);
    card.wanted = name(&wanted.provider()).unwrap_or_default();
    card
}

pub(super) fn refusal(why: &str) -> Card {
    let mut card = question(Choice::ANY);
    card.refused.set(1);
    let mut length = why.len().min(ENDPOINT_BYTES);
    while !why.is_char_boundary(length) {
        length -= 1;
    }
    card.endpoint[..length].copy_from_slice(&why.as_bytes()[..length]);
    card.length.set(length as u16);
    card
}

/// Parsing of a card.
pub(super) trait Told: Sized {
    /// Returns the endpoint's name, or the reason of a refusal.
    fn told(&self) -> Result<&[u8], LinkError>;
    /// Returns the card, or an error if it is a refusal.
    fn accepted(self) -> Result<Self, LinkError>;
}

impl Told for Card {
    fn told(&self) -> Result<&[u8], LinkError> {
        self.endpoint
            .get(..self.length.get().into())
            .ok_or_else(|| LinkError::Violation("a card with a name beyond its end".into()))
    }

    fn accepted(self) -> Result<Self, LinkError> {
        match self.refused.get() {
            0 => Ok(self),
            _ => {
                let why = String::from_utf8_lossy(self.told()?).into_owned();
                Err(refused(format!("the other end cannot use libfabric: {why}")))
            }
        }
    }
}

impl Control {
    fn new(socket: OwnedFd, session: rustls::Connection, until: Instant) -> Result<Self, LinkError> {
        let mut wire = Wire::tls(socket, session)?;
        wire.handshake(until)?;
        Ok(Self(wire))
    }

    /// Returns this end's address in the network that connects both ends.
    fn address(&self) -> Option<IpAddr> {
        let own = rustix::net::getsockname(self.socket().as_fd()).ok()?;
        std::net::SocketAddr::try_from(own).ok().map(|address| address.ip())
    }

    pub(super) fn socket(&self) -> &Arc<OwnedFd> {
        self.0.socket()
    }

    pub(super) fn send(&mut self, card: &Card, until: Instant) -> Result<(), LinkError> {
        let bytes = card.as_bytes();
        let mut sent = 0;
        while sent < bytes.len() || !self.0.flush()? {
            match self.0.send(&bytes[sent..], &[]) {
                Ok(more) => sent += more,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => self.block(PollFlags::OUT, until)?,
                Err(error) => return Err(LinkError::Io(error)),
            }
        }
        Ok(())
    }

    pub(super) fn receive(&mut self, until: Instant) -> Result<Card, LinkError> {
        let mut bytes = [0; CARD_BYTES];
        let mut filled = 0;
        while filled < bytes.len() {
            match self.0.receive(&mut bytes[filled..]) {
                Ok(0) => return Err(LinkError::PeerGone),
                Ok(more) => filled += more,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => self.block(PollFlags::IN, until)?,
                Err(error) => return Err(LinkError::Io(error)),
            }
        }
        match Card::read_from_bytes(&bytes) {
            Ok(card) if card.magic == MAGIC && card.version.get() == WIRE_VERSION => Ok(card),
            _ => Err(LinkError::Violation("no card of this version".into())),
        }
    }

    fn block(&self, events: PollFlags, until: Instant) -> Result<(), LinkError> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(refused(format!(
                "the other end of the channel did not tell its endpoint within {} s",
                LIMIT.as_secs()
            )));
        }
        Ok(self.0.block(events, left)?)
    }

    /// Checks the connection, on which the peer sends nothing more. Returns an error once it has ended.
    pub(super) fn listen(&mut self) -> std::io::Result<()> {
        let mut bytes = [0; 64];
        match self.0.receive(&mut bytes) {
            Ok(0) => Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Err(std::io::ErrorKind::InvalidData.into()),
            // Such as a ticket of the TLS session.
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }
}
