//! Communicators: groups of ranks whose messages are separate from those of other groups.

use std::sync::Arc;
use std::time::Instant;

use dayfly_fabric::libfabric::Choice;
use dayfly_protocol::error::{Code, Failure};

use crate::collective::Hosts;
use crate::engine::{Core, Engine, Record};
use crate::options::Options;
use crate::road::{Lost, Road, Via};
use crate::switchboard::Switchboard;
use crate::table::Table;
use crate::wire::{Greeting, Link, StreamLink};

/// A group of ranks, seen from one of them. Any thread may use it; one thread at a time has it and others wait.
///
/// Dropping the last communicator of a rank announces to the others that it leaves.
#[derive(Debug)]
pub struct Communicator {
    pub(crate) core: Arc<Core>,
    /// Index of its record in the engine.
    pub(crate) record: usize,
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
    /// Forms a communicator of all ranks from a road to each other rank (`None` for this one). All ranks must call it.
    ///
    /// # Errors
    /// When another rank sends no greeting within the options' deadline, has another version, or the system is out of
    /// memory or descriptors.
    pub fn form(
        rank: u32,
        size: u32,
        roads: Vec<Option<Road>>,
        lost: Arc<Lost>,
        options: Options,
    ) -> Result<Self, Failure> {
        if rank >= size || roads.len() != size as usize {
            return Err(Failure::new(
                Code::InvalidRequest,
                format!("rank {rank} of {size} with {} roads is no group", roads.len()),
            ));
        }
        let until = Instant::now() + options.deadline;
        let sleeps = options.spin.is_some();
        let vias = roads.iter().map(|road| road.as_ref().map(Road::via)).collect();
        let mut links: Vec<Option<Link>> = Vec::with_capacity(roads.len());
        let (mut greetings, mut remote) = (Vec::new(), Vec::new());
        for (peer, road) in (0..).zip(roads) {
            if matches!(road, Some(Road::Remote { .. })) {
                remote.push(peer);
            }
            links.push(match road {
                None => None,
                Some(Road::Local(socket)) => {
                    greetings.push((peer, Greeting::send(rank, peer, socket, sleeps)?));
                    None
                }
                Some(road) => Some(Link::Stream(stream(peer, road)?)),
            });
        }
        if let Some(fabric) = options.fabric {
            over_fabric(&mut links, &remote, fabric)?;
        }
        for (peer, greeting) in greetings {
            links[peer as usize] = Some(Link::Shm(greeting.finish(until)?));
        }
        Ok(Self::over(Engine::new(rank, links, vias, lost, options)?))
    }

    /// Forms a communicator of all ranks, in which two ranks connect when one first needs the other. All ranks must
    /// call it.
    ///
    /// # Errors
    /// When the system is out of memory or descriptors.
    pub fn form_lazily(
        rank: u32,
        size: u32,
        board: Arc<Switchboard>,
        lost: Arc<Lost>,
        options: Options,
    ) -> Result<Self, Failure> {
        let links = (0..size).map(|_| None).collect();
        let vias = vec![None; size as usize];
        let mut engine = Engine::new(rank, links, vias, lost, options)?;
        engine.connect_lazily(board);
        Ok(Self::over(engine))
    }

    fn over(mut engine: Engine) -> Self {
        let members: Arc<[u32]> = (0..engine.size).collect();
        let hosts_of_all: Arc<[u32]> = engine.options.hosts.as_slice().into();
        let context = engine.next_context;
        engine.next_context += 1;
        engine.records.push(Record::new(context, members.clone()));
        Self {
            record: 0,
            context,
            rank: engine.rank,
            hosts: Hosts::of(&members, &hosts_of_all).map(Arc::new),
            hosts_of_all,
            members,
            table: engine.options.table,
            core: Arc::new(Core::new(engine)),
        }
    }

    /// How the bytes to each rank travel; `None` for this rank, and for ranks that are not connected yet.
    pub fn ways(&self) -> Vec<Option<Via>> {
        let mut held = self.core.hold();
        let engine = held.engine();
        self.members.iter().map(|member| engine.via(*member)).collect()
    }

    /// The libfabric provider for a rank of the whole group; `None` if the bytes do not go over libfabric.
    pub fn fabric(&self, rank: u32) -> Option<Choice> {
        self.core.hold().engine().fabric(rank)
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

/// A link over the byte stream of a road.
fn stream(peer: u32, road: Road) -> Result<StreamLink, Failure> {
    match road {
        Road::Remote { socket, session, .. } => StreamLink::new(peer, socket, session),
        Road::Stored { socket, session } => StreamLink::stored(peer, socket, session),
        Road::Carried { socket, near, .. } => StreamLink::carried(peer, socket, near),
        Road::Local(socket) => StreamLink::carried(peer, socket, true),
    }
}

/// Makes a link over a new road. The other rank does the same.
pub(crate) fn link(rank: u32, peer: u32, road: Road, options: &Options, until: Instant) -> Result<Link, Failure> {
    match road {
        Road::Local(socket) => {
            let greeting = Greeting::send(rank, peer, socket, options.spin.is_some())?;
            greeting.finish(until).map(Link::Shm)
        }
        Road::Remote { .. } => {
            let link = stream(peer, road)?;
            let link = match options.fabric {
                Some(fabric) => link.over_fabric(fabric)?,
                None => link,
            };
            Ok(Link::Stream(link))
        }
        road => stream(peer, road).map(Link::Stream),
    }
}

/// Moves the links to these ranks to libfabric, where both ends have it; all at once, since each waits for its other
/// end.
fn over_fabric(links: &mut [Option<Link>], remote: &[u32], fabric: Choice) -> Result<(), Failure> {
    let change = |link| match link {
        Some(Link::Stream(link)) => link.over_fabric(fabric).map(Link::Stream).map(Some),
        other => Ok(other),
    };
    std::thread::scope(|scope| {
        let mut changing = Vec::with_capacity(remote.len());
        for peer in remote {
            let link = links[*peer as usize].take();
            changing.push((*peer, scope.spawn(move || change(link))));
        }
        for (peer, changed) in changing {
            let changed = changed.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            links[peer as usize] = changed?;
        }
        Ok(())
    })
}

impl Drop for Communicator {
    fn drop(&mut self) {
        let mut held = self.core.hold();
        if let Some(record) = held.engine().records.get_mut(self.record) {
            record.open = false;
        }
    }
}
