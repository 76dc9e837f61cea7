//! Communicators: groups of ranks whose messages are separate from those of other groups.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use dayfly_fabric::libfabric::Choice;
use dayfly_protocol::error::{Code, Failure};

use crate::collective::Hosts;
use crate::connect_queue::ConnectQueue;
use crate::engine::{CommunicatorRecord, Engine, SharedEngine};
use crate::options::Options;
use crate::table::Table;
use crate::wire::{PeerTransport, ShmHandshake, StreamTransport};
use crate::{LostRanks, PeerConnection, Route};

/// A group of ranks, seen from one of them. Any thread may use it; one thread at a time has it and others wait.
///
/// Dropping the last communicator of a rank announces to the others that it leaves.
#[derive(Debug)]
pub struct Communicator {
    pub(crate) engine: Arc<SharedEngine>,
    /// Index of its record in the engine.
    pub(crate) record: usize,
    /// The record's flag.
    pub(crate) open: Arc<AtomicBool>,
    pub(crate) context: u32,
    pub(crate) rank: u32,
    /// The ranks, as ranks of the whole group.
    pub(crate) members: Arc<[u32]>,
    pub(crate) table: Table,
    /// Which ranks share hosts, if that makes a difference.
    pub(crate) hosts: Option<Arc<Hosts>>,
    /// The hosts of the whole group, as in [`Options::hosts`].
    pub(crate) hosts_of_all: Arc<[u32]>,
}

impl Communicator {
    /// Forms a communicator of all ranks from a connection to each other rank (`None` for this one). All ranks must
    /// call it.
    ///
    /// # Errors
    /// When another rank sends no handshake within the options' deadline, has another version, or the system is out of
    /// memory or descriptors.
    pub fn form(
        rank: u32,
        size: u32,
        connections: Vec<Option<PeerConnection>>,
        lost: Arc<LostRanks>,
        options: Options,
    ) -> Result<Self, Failure> {
        if rank >= size || connections.len() != size as usize {
            return Err(Failure::new(
                Code::InvalidRequest,
                format!(
                    "rank {rank} of {size} with {} connections is no group",
                    connections.len()
                ),
            ));
        }
        let until = Instant::now() + options.deadline;
        let sleeps = options.spin.is_some();
        let routes = connections
            .iter()
            .map(|connection| connection.as_ref().map(PeerConnection::route))
            .collect();
        let mut transports: Vec<Option<PeerTransport>> = Vec::with_capacity(connections.len());
        let (mut greetings, mut remote) = (Vec::new(), Vec::new());
        for (peer, connection) in (0..).zip(connections) {
            if matches!(connection, Some(PeerConnection::Remote { .. })) {
                remote.push(peer);
            }
            transports.push(match connection {
                None => None,
                Some(PeerConnection::Local(socket)) => {
                    greetings.push((peer, ShmHandshake::send(rank, peer, socket, sleeps)?));
                    None
                }
                Some(connection) => Some(PeerTransport::Stream(stream(peer, connection)?)),
            });
        }
        if let Some(fabric) = options.fabric {
            over_fabric(&mut transports, &remote, fabric)?;
        }
        for (peer, handshake) in greetings {
            transports[peer as usize] = Some(PeerTransport::Shm(handshake.finish(until)?));
        }
        Ok(Self::over(Engine::new(rank, transports, routes, lost, options)?))
    }

    /// Forms a communicator of all ranks, in which two ranks connect when one first needs the other. All ranks must
    /// call it.
    ///
    /// # Errors
    /// When the system is out of memory or descriptors.
    pub fn form_lazily(
        rank: u32,
        size: u32,
        queue: Arc<ConnectQueue>,
        lost: Arc<LostRanks>,
        options: Options,
    ) -> Result<Self, Failure> {
        let transports = (0..size).map(|_| None).collect();
        let routes = vec![None; size as usize];
        let mut engine = Engine::new(rank, transports, routes, lost, options)?;
        engine.connect_lazily(queue);
        Ok(Self::over(engine))
    }

    fn over(mut engine: Engine) -> Self {
        let members: Arc<[u32]> = (0..engine.size).collect();
        let hosts_of_all: Arc<[u32]> = engine.options.hosts.as_slice().into();
        let context = 0;
        engine.note_context(context);
        let record = CommunicatorRecord::new(context, members.clone());
        let open = record.open.clone();
        engine.communicators.push(record);
        Self {
            open,
            record: 0,
            context,
            rank: engine.rank,
            hosts: Hosts::of(&members, &hosts_of_all).map(Arc::new),
            hosts_of_all,
            members,
            table: engine.options.table,
            engine: Arc::new(SharedEngine::new(engine)),
        }
    }

    /// How the bytes to each rank travel; `None` for this rank, and for ranks that are not connected yet.
    pub fn routes(&self) -> Vec<Option<Route>> {
        let mut guard = self.engine.lock();
        let engine = guard.engine();
        self.members.iter().map(|member| engine.route(*member)).collect()
    }

    /// The libfabric provider for a rank of the whole group; `None` if the bytes do not go over libfabric.
    pub fn fabric(&self, rank: u32) -> Option<Choice> {
        self.engine.lock().engine().fabric(rank)
    }

    /// This rank in the communicator, from 0.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> u32 {
        self.members.len() as u32
    }

    /// The ranks of this communicator, as ranks of the whole group.
    pub fn members(&self) -> &[u32] {
        &self.members
    }
}

/// A transport over the byte stream of a connection.
fn stream(peer: u32, connection: PeerConnection) -> Result<StreamTransport, Failure> {
    match connection {
        PeerConnection::Remote { socket, session, .. } => StreamTransport::new(peer, socket, session),
        PeerConnection::Stored { socket, session } => StreamTransport::stored(peer, socket, session),
        PeerConnection::Carried { socket, near, .. } => StreamTransport::carried(peer, socket, near),
        PeerConnection::Local(socket) => StreamTransport::carried(peer, socket, true),
    }
}

/// Makes a transport over a new connection. The other rank does the same.
pub(crate) fn open_transport(
    rank: u32,
    peer: u32,
    connection: PeerConnection,
    options: &Options,
    until: Instant,
) -> Result<PeerTransport, Failure> {
    match connection {
        PeerConnection::Local(socket) => {
            let handshake = ShmHandshake::send(rank, peer, socket, options.spin.is_some())?;
            handshake.finish(until).map(PeerTransport::Shm)
        }
        PeerConnection::Remote { .. } => {
            let transport = stream(peer, connection)?;
            let transport = match options.fabric {
                Some(fabric) => transport.over_fabric(fabric)?,
                None => transport,
            };
            Ok(PeerTransport::Stream(transport))
        }
        connection => stream(peer, connection).map(PeerTransport::Stream),
    }
}

/// Moves the transports to these ranks to libfabric, where both ends have it; all at once, since each waits for its
/// other end.
fn over_fabric(transports: &mut [Option<PeerTransport>], remote: &[u32], fabric: Choice) -> Result<(), Failure> {
    let change = |transport| match transport {
        Some(PeerTransport::Stream(transport)) => transport.over_fabric(fabric).map(PeerTransport::Stream).map(Some),
        other => Ok(other),
    };
    std::thread::scope(|scope| {
        let mut changing = Vec::with_capacity(remote.len());
        for peer in remote {
            let transport = transports[*peer as usize].take();
            changing.push((*peer, scope.spawn(move || change(transport))));
        }
        for (peer, changed) in changing {
            let changed = changed.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            transports[peer as usize] = changed?;
        }
        Ok(())
    })
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.open.store(false, Ordering::Release);
    }
}
