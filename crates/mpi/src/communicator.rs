//! Communicators, and what programs ask of them.

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use dayfly_comm::Communicator;

use crate::attribute::{Attributes, Holder};
use crate::errhandler::Place;
use crate::error::{Error, Result, class};
use crate::face::mpi;
use crate::group;
use crate::handle::{ANY_SOURCE, ANY_TAG, Comm, Errhandler, Info, PROC_NULL, Table};
use crate::info;
use crate::interface::AtomicNumber;
use crate::interface::comparison::{CONGRUENT, IDENT, UNEQUAL};
use crate::pointer::{Out, Text, TextOut};
use crate::realm::{self, Realm};
use crate::state;
use crate::topology::Topology;

const MAX_OBJECT_NAME: usize = 128;

/// A communicator of MPI.
pub struct CommObject {
    /// The ranks on this side. Empty while a duplication in the background has not agreed on it.
    local: OnceLock<Communicator>,
    /// Of an intercommunicator: the ranks on the other side, for messages only.
    remote: OnceLock<Communicator>,
    /// Of an intercommunicator: the ranks of both sides, for collectives.
    merged: OnceLock<Communicator>,
    /// For the parts of partitioned messages, once there are any.
    parts: OnceLock<Communicator>,
    is_inter: bool,
    // Declared after the communicators, which go before their group does.
    realm: OnceLock<Arc<Realm>>,
    pub attributes: Attributes,
    handler: AtomicNumber,
    /// Its handle, for error handlers; `MPI_COMM_NULL` if the program has none.
    handle: AtomicNumber,
    name: Mutex<String>,
    info: Mutex<Vec<(String, String)>>,
    pub topology: OnceLock<Topology>,
}

pub static COMMUNICATORS: Table<CommObject> = Table::new(1);

/// The predefined communicators.
pub struct Communicators {
    pub world: Arc<CommObject>,
    pub alone: Arc<CommObject>,
}

impl Communicators {
    /// Those of a world and of this process alone, with these error handlers.
    pub fn new(world: Communicator, alone: Communicator, [of_world, of_self]: [Errhandler; 2]) -> Self {
        let named = |communicator, handle: Comm, handler, name: &str| {
            let object = CommObject::new(Some(communicator), handler);
            object.handle.store(handle.0, Ordering::Release);
            *object.name() = name.into();
            Arc::new(object)
        };
        Self {
            world: named(world, Comm::WORLD, of_world, "MPI_COMM_WORLD"),
            alone: named(alone, Comm::SELF, of_self, "MPI_COMM_SELF"),
        }
    }

    /// The error handlers of `MPI_COMM_WORLD` and `MPI_COMM_SELF`.
    pub fn handlers(&self) -> [Errhandler; 2] {
        [self.world.handler(), self.alone.handler()]
    }
}

/// The communicators of an intercommunicator.
pub struct Sides {
    pub local: Communicator,
    pub remote: Communicator,
    pub merged: Communicator,
}

/// Where a message goes or comes from.
pub enum Peer {
    Rank(u32),
    /// `MPI_PROC_NULL`.
    Nobody,
}

impl CommObject {
    /// A communicator within one group; `None` if it follows later.
    pub fn new(local: Option<Communicator>, handler: Errhandler) -> Self {
        let realm = local.as_ref().and_then(realm::of);
        Self {
            realm: realm.map(OnceLock::from).unwrap_or_default(),
            local: local.map(OnceLock::from).unwrap_or_default(),
            remote: OnceLock::new(),
            merged: OnceLock::new(),
            parts: OnceLock::new(),
            is_inter: false,
            attributes: Attributes::default(),
            handler: AtomicNumber::new(handler.0),
            handle: AtomicNumber::new(Comm::NULL.0),
            name: Mutex::default(),
            info: Mutex::default(),
            topology: OnceLock::new(),
        }
    }

    /// A communicator between two groups.
    pub fn between(sides: Sides, handler: Errhandler) -> Self {
        let Sides { local, remote, merged } = sides;
        Self {
            remote: OnceLock::from(remote),
            merged: OnceLock::from(merged),
            is_inter: true,
            ..Self::new(Some(local), handler)
        }
    }

    /// Completes a communicator that was made without its ranks.
    pub fn complete(&self, local: Communicator) {
        // It is completed once, by the operation that made it.
        if let Some(realm) = realm::of(&local) {
            let _ = self.realm.set(realm);
        }
        let _ = self.local.set(local);
    }

    /// The ranks on this side.
    pub fn local(&self) -> Result<&Communicator> {
        self.local
            .get()
            .ok_or_else(|| Error::new(class::COMM, "the duplication of this communicator is not complete"))
    }

    /// The ranks that messages go to.
    pub fn peers(&self) -> Result<&Communicator> {
        match self.is_inter {
            true => self.remote(),
            false => self.local(),
        }
    }

    /// The ranks that messages go to, for messages that no other receive of the program may match.
    pub fn parts(&self) -> Result<&Communicator> {
        let peers = self.peers()?;
        Ok(self.parts.get_or_init(|| peers.apart()))
    }

    /// The ranks on the other side of an intercommunicator.
    pub fn remote(&self) -> Result<&Communicator> {
        self.remote
            .get()
            .ok_or_else(|| Error::new(class::COMM, "the communicator has one group only"))
    }

    /// The ranks that take part in collectives.
    pub fn merged(&self) -> Result<&Communicator> {
        match self.is_inter {
            true => self
                .merged
                .get()
                .ok_or_else(|| Error::new(class::INTERN, "the groups are not merged")),
            false => self.local(),
        }
    }

    /// The rank in [`CommObject::merged`] of a rank on the other side.
    pub fn merged_rank(&self, remote: usize) -> Result<usize> {
        let world = self.remote_members()?[remote];
        let found = self.merged()?.members().iter().position(|member| *member == world);
        found.ok_or_else(|| Error::new(class::INTERN, "the groups are not merged"))
    }

    /// As [`CommObject::local`], for operations which intercommunicators do not have.
    pub fn intra(&self) -> Result<&Communicator> {
        match self.is_inter {
            true => Err(Error::new(
                class::COMM,
                "this operation is not supported on an intercommunicator",
            )),
            false => self.local(),
        }
    }

    /// The group that it lies over; `None` for the world.
    pub fn realm(&self) -> Option<&Arc<Realm>> {
        self.realm.get()
    }

    pub fn is_inter(&self) -> bool {
        self.is_inter
    }

    pub fn members(&self) -> Result<&[u32]> {
        Ok(self.local()?.members())
    }

    pub fn remote_members(&self) -> Result<&[u32]> {
        Ok(self.remote()?.members())
    }

    pub fn rank(&self) -> u32 {
        self.local.get().map_or(0, Communicator::rank)
    }

    pub fn size(&self) -> u32 {
        self.local.get().map_or(0, Communicator::size)
    }

    /// Where its errors are raised.
    pub fn place(&self) -> Place {
        match Comm(self.handle.load(Ordering::Acquire)) {
            Comm::NULL => ().into(),
            handle => handle.into(),
        }
    }

    pub fn handler(&self) -> Errhandler {
        Errhandler(self.handler.load(Ordering::Acquire))
    }

    pub fn set_handler(&self, handler: Errhandler) {
        self.handler.store(handler.0, Ordering::Release);
    }

    pub fn name(&self) -> MutexGuard<'_, String> {
        self.name.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn info(&self) -> MutexGuard<'_, Vec<(String, String)>> {
        self.info.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks the receiver of a message.
    pub fn receiver(&self, rank: c_int) -> Result<Peer> {
        if rank == PROC_NULL {
            return Ok(Peer::Nobody);
        }
        let size = self.peers()?.size();
        u32::try_from(rank)
            .ok()
            .filter(|rank| *rank < size)
            .map(Peer::Rank)
            .ok_or_else(|| {
                Error::new(
                    class::RANK,
                    format!("there is no rank {rank} in a communicator of {size}"),
                )
            })
    }

    /// Checks the sender of a message.
    pub fn sender(&self, rank: c_int) -> Result<Peer> {
        match rank {
            ANY_SOURCE => Ok(Peer::Rank(dayfly_comm::ANY_SOURCE)),
            rank => self.receiver(rank),
        }
    }

    /// The rank among the peers of a rank of the world.
    pub fn peer_of_world(&self, world: u32) -> c_int {
        let members = self.peers().map_or(&[][..], Communicator::members);
        if members.get(world as usize) == Some(&world) {
            return world as c_int;
        }
        let found = members.iter().position(|member| *member == world);
        found.map_or(ANY_SOURCE, |at| at as c_int)
    }
}

impl Holder for CommObject {
    fn attributes(&self) -> &Attributes {
        &self.attributes
    }
}

/// Checks the tag of a message to send.
pub fn send_tag(tag: c_int) -> Result<u32> {
    u32::try_from(tag).map_err(|_| Error::new(class::TAG, format!("a message cannot have the tag {tag}")))
}

/// Checks the tag of a message to receive.
pub fn receive_tag(tag: c_int) -> Result<u32> {
    match tag {
        ANY_TAG => Ok(dayfly_comm::ANY_TAG),
        tag => send_tag(tag),
    }
}

pub fn get(comm: Comm) -> Result<Arc<CommObject>> {
    let found = match comm {
        Comm::WORLD => return Ok(state::instance()?.communicators.world.clone()),
        Comm::SELF => return Ok(state::instance()?.communicators.alone.clone()),
        other => COMMUNICATORS.get(other.0),
    };
    found.ok_or_else(|| {
        let what = if comm == Comm::NULL {
            "MPI_COMM_NULL"
        } else {
            "the handle"
        };
        Error::new(class::COMM, format!("{what} is no communicator"))
    })
}

/// The object of a communicator within one group.
pub fn get_intra(comm: Comm) -> Result<Arc<CommObject>> {
    let object = get(comm)?;
    object.intra()?;
    Ok(object)
}

/// A handle for a new communicator.
pub fn make(object: CommObject) -> Comm {
    insert(Arc::new(object))
}

/// A handle for an object that something else keeps too.
pub fn insert(object: Arc<CommObject>) -> Comm {
    let handle = COMMUNICATORS.insert(object.clone());
    object.handle.store(handle, Ordering::Release);
    Comm(handle)
}

mpi! {
    fn MPI_Comm_rank(comm: Comm, rank: Out<c_int>) [comm] {
        rank.check()?.set(get(comm)?.rank() as c_int);
        Ok(())
    }

    fn MPI_Comm_size(comm: Comm, size: Out<c_int>) [comm] {
        size.check()?.set(get(comm)?.size() as c_int);
        Ok(())
    }

    fn MPI_Comm_remote_size(comm: Comm, size: Out<c_int>) [comm] {
        size.check()?.set(get(comm)?.remote()?.size() as c_int);
        Ok(())
    }

    fn MPI_Comm_test_inter(comm: Comm, flag: Out<c_int>) [comm] {
        flag.check()?.set(get(comm)?.is_inter().into());
        Ok(())
    }

    fn MPI_Comm_compare(one: Comm, other: Comm, result: Out<c_int>) [one] {
        let (first, second) = (get(one)?, get(other)?);
        let of_groups = |same: c_int| if same == IDENT { CONGRUENT } else { same };
        let compared = if one == other {
            IDENT
        } else if first.is_inter() != second.is_inter() {
            UNEQUAL
        } else {
            let local = of_groups(group::compare(&first.processes()?, &second.processes()?));
            match first.is_inter() {
                true => local.max(of_groups(group::compare(&first.remote_processes()?, &second.remote_processes()?))),
                false => local,
            }
        };
        result.check()?.set(compared);
        Ok(())
    }

    fn MPI_Comm_set_name(comm: Comm, name: Text) [comm] {
        *get(comm)?.name() = name.get()?;
        Ok(())
    }

    fn MPI_Comm_get_name(comm: Comm, name: TextOut, length: Out<c_int>) [comm] {
        let found = match comm {
            Comm::NULL => "MPI_COMM_NULL".into(),
            comm => get(comm)?.name().clone(),
        };
        length.set(name.set(&found, MAX_OBJECT_NAME)?);
        Ok(())
    }

    fn MPI_Comm_set_info(comm: Comm, info: Info) [comm] {
        let object = get(comm)?;
        let pairs = info::get(info)?.pairs().clone();
        *object.info() = pairs;
        Ok(())
    }

    fn MPI_Comm_get_info(comm: Comm, info: Out<Info>) [comm] {
        let pairs = get(comm)?.info().clone();
        info.check()?.set(info::make(pairs));
        Ok(())
    }
}
