//! Opens a [`Pipe`]: exchanges the cards of both ends, connects their endpoints, and checks that they reach each other.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_protocol::fabric::{Card, notice};
use rustix::event::epoll;

use super::{COMPLETION_BATCH, Pipe, RING_BYTES, SLOT_BYTES, SLOTS};
use crate::LinkError;
use crate::libfabric::choice::Choice;
use crate::libfabric::control::Control;
use crate::libfabric::ffi::{Context, Endpoint, Entry, Region, Target};
use crate::libfabric::handshake::{
    GREETING_LIMIT, GREETING_PAUSE, ReceivedCard, check_protocol, open_endpoint, own_card, refusal_card, request_card,
    unlink_shm_name,
};
use crate::memory::Mapping;
use crate::stream::wire::Wire;

/// Time limit of opening.
const LIMIT: Duration = Duration::from_secs(10);

/// Result of opening.
#[derive(Debug)]
pub enum OpenResult {
    /// Both ends are open.
    Pipe(Box<Pipe>),
    /// Neither end is open. Contains the unchanged connection and the reason.
    Refused(Wire, String),
}

/// The components of a pipe before its peer is known.
struct Parts {
    incoming: Region,
    outgoing: Region,
    endpoint: Endpoint,
    memory: Arc<Mapping>,
}

impl Pipe {
    /// Opens a stream over a connection whose other end does the same. Either both ends are open afterwards, or
    /// neither.
    ///
    /// # Errors
    /// When the connection ends, or the other end does not respond in time.
    pub fn open(wire: Wire, wanted: Choice) -> Result<OpenResult, LinkError> {
        let until = Instant::now() + LIMIT;
        let mut control = Control(wire);
        let begun = Self::begin(&control, wanted);
        control.send(
            &begun
                .as_ref()
                .map_or_else(|why| refusal_card(&why.to_string()), |(_, card)| *card),
            until,
        )?;
        let theirs = control.receive(until)?.accepted();
        let (mut parts, theirs) = match (begun, theirs) {
            (Ok((parts, _)), Ok(theirs)) => (parts, theirs),
            (Err(why), _) | (_, Err(why)) => return Ok(OpenResult::Refused(control.0, why.to_string())),
        };
        // Both ends reach the same conclusion.
        if let Err(why) = check_protocol(&parts.endpoint, &theirs) {
            return Ok(OpenResult::Refused(control.0, why.to_string()));
        }
        let peer = Target {
            address: theirs.address.get(),
            key: theirs.key.get(),
        };
        parts
            .endpoint
            .connect(theirs.endpoint_name()?)
            .map_err(|error| LinkError::Refused(error.to_string()))?;
        let mut pipe = Self::over(parts, control, wanted, peer)?;
        let greeted = pipe.greet();
        let verdict = match &greeted {
            Ok(()) => request_card(wanted),
            Err(why) => refusal_card(&why.to_string()),
        };
        pipe.control.send(&verdict, until)?;
        let agreed = pipe.control.receive(until)?.accepted();
        unlink_shm_name(&pipe.endpoint);
        match greeted.and(agreed.map(drop)) {
            Ok(()) => Ok(OpenResult::Pipe(Box::new(pipe))),
            Err(why) => Ok(OpenResult::Refused(pipe.control.0, why.to_string())),
        }
    }

    fn begin(control: &Control, wanted: Choice) -> Result<(Parts, Card), LinkError> {
        let mut endpoint = open_endpoint(control, wanted, 4 * SLOTS as usize, false)?;
        if endpoint.provider().largest_write() < SLOT_BYTES {
            return Err(LinkError::Refused(format!(
                "the provider writes no more than {} bytes at once",
                endpoint.provider().largest_write()
            )));
        }
        let memory = Arc::new(Mapping::anonymous(2 * RING_BYTES)?);
        let mut register = |start: usize| {
            // SAFETY: inside the mapping, which outlives its registrations here and in the pipe; what lies there is
            // accessed as memory that the peer may change.
            let region = unsafe { endpoint.register(memory.at(start), RING_BYTES) };
            region.map_err(|error| LinkError::Refused(error.to_string()))
        };
        let (incoming, outgoing) = (register(0)?, register(RING_BYTES)?);
        let card = own_card(&endpoint, incoming.target(), wanted)?;
        let parts = Parts {
            incoming,
            outgoing,
            endpoint,
            memory,
        };
        Ok((parts, card))
    }

    fn over(parts: Parts, control: Control, choice: Choice, peer: Target) -> Result<Self, LinkError> {
        let Parts {
            incoming,
            outgoing,
            endpoint,
            memory,
        } = parts;
        let events = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(std::io::Error::from)?;
        let watch = |source: BorrowedFd<'_>, flags| {
            epoll::add(&events, source, epoll::EventData::new_u64(0), flags).map_err(std::io::Error::from)
        };
        watch(
            control.socket().as_fd(),
            epoll::EventFlags::IN | epoll::EventFlags::RDHUP,
        )?;
        if let Some(queue) = endpoint.wait_descriptor() {
            watch(queue.as_fd(), epoll::EventFlags::IN)?;
        }
        Ok(Self {
            _incoming: incoming,
            outgoing,
            largest_inject: endpoint.provider().largest_inject(),
            endpoint,
            memory,
            control,
            events,
            choice,
            peer,
            contexts: (0..=SLOTS).map(|_| Context([0; 8])).collect(),
            entries: [Entry::EMPTY; COMPLETION_BATCH],
            greeted: false,
            arrived: [false; SLOTS as usize],
            next_in: 0,
            length: 0,
            read: 0,
            credit_sent: 0,
            lengths: [0; SLOTS as usize],
            composed: 0,
            posted: 0,
            acknowledged: 0,
            misses: 0,
            is_closed: false,
        })
    }

    /// Waits until both ends have received a write, so that an unconnected fabric is reported now instead of by a later
    /// hang.
    fn greet(&mut self) -> Result<(), LinkError> {
        let until = Instant::now() + GREETING_LIMIT;
        let mut is_sent = false;
        loop {
            if !is_sent {
                is_sent = self.write_notice(notice::of(notice::GREETING, 0))?;
            }
            self.progress()?;
            if is_sent && self.greeted {
                return Ok(());
            }
            if Instant::now() >= until {
                let choice = self.choice;
                return Err(LinkError::Refused(format!(
                    "the two ends do not reach each other over {choice}"
                )));
            }
            // Do not read the control connection: the other end's verdict may already be there and must be read later.
            std::thread::sleep(GREETING_PAUSE);
        }
    }
}
