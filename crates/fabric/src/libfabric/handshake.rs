//! Opens a channel over libfabric: each end sends its endpoint and its writable region once, under TLS over the
//! connection on which the channel was opened. That connection stays open, and its end is the channel's end.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_protocol::WIRE_VERSION;
use dayfly_protocol::fabric::{Card, ENDPOINT_BYTES, MAGIC, max_grants, name, text};
use dayfly_protocol::slot::Geometry;
use zerocopy::FromZeros;

use super::choice::Choice;
use super::ffi::{Endpoint, Library, Region, Target, Wait};
use super::layout::Layout;
use super::link::FabricLink;
use super::send_queue::Write;
use super::{Control, FabricError};
use crate::memory::Mapping;
use crate::{Link, LinkError};

/// Time limit of the exchange. Version 1.17 reads all kernel symbols at its first use, which takes 0.3 s.
pub(super) const LIMIT: Duration = Duration::from_secs(10);
/// Pause between two checks for the peer's greeting. Connecting takes tens of these.
pub(super) const GREETING_PAUSE: Duration = Duration::from_micros(20);
/// Time limit for the greeting. Both ends are already open, and connecting takes milliseconds.
pub(super) const GREETING_LIMIT: Duration = Duration::from_secs(3);
/// Most bytes of one write. Some providers report no limit.
const MAX_WRITE_BYTES: u64 = 1 << 30;
/// Least bytes of a provider's largest write: one page.
const MIN_WRITE_BYTES: u64 = 4096;

/// The components of a link whose peer is known.
pub(super) struct Parts {
    pub fixed: [Region; 2],
    pub endpoint: Endpoint,
    pub memory: Arc<Mapping>,
    pub geometry: Geometry,
    pub choice: Choice,
    pub control: Control,
}

pub(super) fn refused(text: impl Into<String>) -> LinkError {
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
        control.send(&request_card(wanted), until)?;
        // If the provider is given, both ends open their endpoints at the same time.
        let early = match wanted.is_any() {
            true => None,
            false => Some(LocalEnd::new(&control, geometry, wanted, never_sleeps)),
        };
        let theirs = control.receive(until)?.accepted()?;
        let local = match early {
            Some(local) => local?,
            None => {
                let chosen = Choice::new(&text(&theirs.wanted), &wanted.domain().unwrap_or_default());
                LocalEnd::new(&control, geometry, chosen.unwrap_or(wanted), never_sleeps)?
            }
        };
        let card = local.card(wanted)?;
        let link = local.join(control, &theirs, geometry, |control| control.send(&card, until))?;
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
        let local = match fitting {
            Some(offer) => LocalEnd::new(&control, geometry, *offer, never_sleeps)
                .and_then(|local| Ok((local.card(*offer)?, local))),
            None => Err(refused(format!(
                "this node offers no provider `{wanted}` of libfabric; it offers {}",
                names(offered)
            ))),
        };
        match local {
            Ok((card, local)) => {
                control.send(&card, until)?;
                let theirs = control.receive(until)?.accepted()?;
                local.join(control, &theirs, geometry, |_| Ok(()))?.greet()
            }
            Err(error) => {
                control.send(&refusal_card(&error.to_string()), until)?;
                Err(error)
            }
        }
    }

    /// Waits until both ends have received a write, so that an unconnected fabric is reported now instead of by a later
    /// hang.
    fn greet(mut self) -> Result<Self, LinkError> {
        let until = Instant::now() + GREETING_LIMIT;
        self.send(Write::Greeting)?;
        while !self.greeted || !self.send_queue.is_empty() {
            self.progress()?;
            if self.control.wait(None, GREETING_PAUSE).is_err() {
                return Err(LinkError::PeerGone);
            }
            if Instant::now() >= until {
                return Err(LinkError::Refused(format!(
                    "the two ends of the channel do not reach each other over {}; use another provider or domain, or another \
                     transport",
                    self.transport()
                )));
            }
        }
        unlink_shm_name(&self.endpoint);
        Ok(self)
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
struct LocalEnd {
    fixed: [Region; 2],
    endpoint: Endpoint,
    memory: Arc<Mapping>,
}

impl LocalEnd {
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
        own_card(&self.endpoint, self.fixed[0].target(), wanted)
    }

    /// Checks the peer's card, sends ours, and assembles the link.
    fn join(
        mut self,
        mut control: Control,
        theirs: &Card,
        geometry: Geometry,
        tell: impl FnOnce(&mut Control) -> Result<(), LinkError>,
    ) -> Result<FabricLink, LinkError> {
        if let Err(why) = check_protocol(&self.endpoint, theirs) {
            control.send(&refusal_card(&why.to_string()), Instant::now() + LIMIT)?;
            return Err(why);
        }
        let provider = self.endpoint.provider();
        let largest = (provider.largest_write() as u64)
            .min(MAX_WRITE_BYTES)
            .min(theirs.largest.get());
        if largest < MIN_WRITE_BYTES.max(geometry.stride_bytes.into()) {
            return Err(refused(format!(
                "the provider writes no more than {largest} bytes at once"
            )));
        }
        let choice = Choice::new(&provider.name(), &provider.domain());
        let choice = choice.ok_or_else(|| refused("the name of the provider or domain is too long"))?;
        tell(&mut control)?;
        self.endpoint.connect(theirs.endpoint_name()?).map_err(cannot)?;
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
pub(super) fn own_card(endpoint: &Endpoint, to: Target, wanted: Choice) -> Result<Card, LinkError> {
    let own = endpoint.name().map_err(cannot)?;
    let provider = endpoint.provider();
    let field = |text: &str| name(text).ok_or_else(|| refused(format!("the name `{text}` is too long")));
    let mut card = request_card(wanted);
    let (protocol, version) = provider.protocol();
    card.protocol.set(protocol);
    card.protocol_version.set(version);
    card.provider = field(&provider.name())?;
    card.domain = field(&provider.domain())?;
    card.address.set(to.address);
    card.key.set(to.key);
    card.largest.set((provider.largest_write() as u64).min(MAX_WRITE_BYTES));
    card.length.set(own.len() as u16);
    let place = card.endpoint.get_mut(..own.len());
    place
        .ok_or_else(|| refused("the endpoint's name is too long"))?
        .copy_from_slice(&own);
    Ok(card)
}

/// Checks that both ends use the same wire protocol.
pub(super) fn check_protocol(endpoint: &Endpoint, theirs: &Card) -> Result<(), LinkError> {
    let provider = endpoint.provider();
    if provider.protocol() == (theirs.protocol.get(), theirs.protocol_version.get()) {
        return Ok(());
    }
    Err(refused(format!(
        "the two ends use incompatible protocols of libfabric, `{}` here and `{}` there; use the same version of libfabric on both, or \
         another provider",
        provider.name(),
        text(&theirs.provider)
    )))
}

/// Removes the file by which the shm provider finds its peer. It would outlive a killed process, and both ends have it
/// mapped by now.
pub(super) fn unlink_shm_name(endpoint: &Endpoint) {
    let name = endpoint.name().unwrap_or_default();
    let name = String::from_utf8_lossy(&name).into_owned();
    let file = name.strip_prefix("fi_shm://").map(|rest| rest.trim_end_matches('\0'));
    if let Some(file) = file.filter(|file| !file.is_empty() && !file.contains('/')) {
        let _ = std::fs::remove_file(std::path::Path::new("/dev/shm").join(file));
    }
}

/// Returns a client's first card, which is also the beginning of every other card.
pub(super) fn request_card(wanted: Choice) -> Card {
    let mut card = Card::new_zeroed();
    card.magic = MAGIC;
    card.version.set(WIRE_VERSION);
    card.wanted = name(&wanted.provider()).unwrap_or_default();
    card
}

pub(super) fn refusal_card(why: &str) -> Card {
    let mut card = request_card(Choice::ANY);
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
pub(super) trait ReceivedCard: Sized {
    /// Returns the endpoint's name, or the reason of a refusal.
    fn endpoint_name(&self) -> Result<&[u8], LinkError>;
    /// Returns the card, or an error if it is a refusal.
    fn accepted(self) -> Result<Self, LinkError>;
}

impl ReceivedCard for Card {
    fn endpoint_name(&self) -> Result<&[u8], LinkError> {
        self.endpoint
            .get(..self.length.get().into())
            .ok_or_else(|| LinkError::Violation("a card whose name exceeds its field".into()))
    }

    fn accepted(self) -> Result<Self, LinkError> {
        match self.refused.get() {
            0 => Ok(self),
            _ => {
                let why = String::from_utf8_lossy(self.endpoint_name()?).into_owned();
                Err(refused(format!("the other end cannot use libfabric: {why}")))
            }
        }
    }
}
