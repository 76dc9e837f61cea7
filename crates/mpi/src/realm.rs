//! Realms: groups of the engine beside the world, over which communicators between two worlds lie.
//!
//! A process has one engine for its world, and one for each realm. So a wait drives several engines, one after another:
//! [`Wheel`] does that, and costs nothing while there is only the world. No thread holds two engines, so that threads
//! which wait on different ones never wait for each other.
//!
//! A process of a realm is known by its world and its rank there. [`Realm::processes`] numbers them: the ranks of the
//! own world have their own numbers, and others have numbers from [`FIRST_FOREIGN`] on. Groups of MPI hold these.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use dayfly_comm::detached::{Turn, Waiting};
use dayfly_comm::membership::Membership;
use dayfly_comm::{Communicator, World};
use dayfly_protocol::error::Failure;

use crate::communicator::CommObject;
use crate::error::{Error, Result, class};
use crate::request::{self, poll_orphans};
use crate::state::{self, Instance};

/// Context of the messages of this library among the ranks of a realm, as in the world.
const CONTROL_CONTEXT: u32 = 2;
/// Number of the first process of another world.
const FIRST_FOREIGN: u32 = 1 << 30;

/// What names a world: the same on all its ranks, and different in other worlds.
pub type WorldId = [u8; 32];
const IDENTITY_BYTES: usize = size_of::<WorldId>() + 4;

/// A group of the engine beside the world.
pub struct Realm {
    /// Its name, which no other realm has.
    pub name: String,
    /// All ranks, for the messages of this library.
    pub control: Communicator,
    /// The process of each rank.
    processes: Vec<u32>,
    // Declared last: a rank closes its connections before it leaves the group.
    _membership: Membership,
}

static REALMS: Mutex<Vec<Weak<Realm>>> = Mutex::new(Vec::new());
/// Number of realms, so that a process without any pays one load.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Processes of other worlds, in the order of their numbers.
static FOREIGN: Mutex<Vec<(WorldId, u32)>> = Mutex::new(Vec::new());

/// What every rank of a realm sends the others: its world, and its rank there.
pub fn identity(world: &WorldId, rank: u32) -> [u8; IDENTITY_BYTES] {
    let mut bytes = [0; IDENTITY_BYTES];
    bytes[..world.len()].copy_from_slice(world);
    bytes[world.len()..].copy_from_slice(&rank.to_le_bytes());
    bytes
}

/// The number of a process.
fn process_of(identity: &[u8], own_world: &WorldId) -> u32 {
    let mut world = WorldId::default();
    let (of, rank) = identity.split_at(world.len());
    world.copy_from_slice(of);
    let rank = rank.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    if world == *own_world {
        return rank;
    }
    let mut foreign = FOREIGN.lock().unwrap_or_else(PoisonError::into_inner);
    let at = foreign.iter().position(|known| *known == (world, rank));
    let at = at.unwrap_or_else(|| {
        foreign.push((world, rank));
        foreign.len() - 1
    });
    FIRST_FOREIGN + at as u32
}

impl Realm {
    /// A realm over a group that this process has joined. `identities` has those of all ranks, one after another.
    pub fn new(name: String, group: World, identities: &[u8], own_world: &WorldId) -> Result<Arc<Self>> {
        let World {
            communicator,
            membership,
            ..
        } = group;
        let all = communicator.members().to_vec();
        let processes = identities.chunks_exact(IDENTITY_BYTES);
        let realm = Arc::new(Self {
            name,
            control: communicator.with_members(CONTROL_CONTEXT, all)?,
            processes: processes.map(|identity| process_of(identity, own_world)).collect(),
            _membership: membership,
        });
        let mut realms = REALMS.lock().unwrap_or_else(PoisonError::into_inner);
        realms.retain(|realm| realm.strong_count() > 0);
        realms.push(Arc::downgrade(&realm));
        COUNT.fetch_add(1, Ordering::AcqRel);
        Ok(realm)
    }
}

impl Drop for Realm {
    fn drop(&mut self) {
        COUNT.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Whether this process has any realm.
#[inline]
pub fn is_any() -> bool {
    COUNT.load(Ordering::Acquire) > 0
}

/// All realms of this process.
pub fn all() -> Vec<Arc<Realm>> {
    if !is_any() {
        return Vec::new();
    }
    let realms = REALMS.lock().unwrap_or_else(PoisonError::into_inner);
    realms.iter().filter_map(Weak::upgrade).collect()
}

/// The realm that a communicator lies over; `None` if it lies over the world.
pub fn of(comm: &Communicator) -> Option<Arc<Realm>> {
    all().into_iter().find(|realm| realm.control.shares_engine(comm))
}

/// The group that a communicator lies over. It is the communicator of all its ranks, for the messages of this library.
pub enum Control {
    World(Arc<Instance>),
    Realm(Arc<Realm>),
}

impl Deref for Control {
    type Target = Communicator;

    fn deref(&self) -> &Communicator {
        match self {
            Self::World(instance) => &instance.control,
            Self::Realm(realm) => &realm.control,
        }
    }
}

impl Control {
    /// The world.
    pub fn world() -> Result<Self> {
        Ok(Self::World(state::instance()?))
    }

    /// What names the group; the same on all its ranks, and different in others.
    pub fn name(&self) -> String {
        match self {
            Self::World(instance) => instance.id.iter().map(|byte| format!("{byte:02x}")).collect(),
            Self::Realm(realm) => realm.name.clone(),
        }
    }

    /// The processes of some of its ranks.
    pub fn processes(&self, ranks: &[u32]) -> Arc<[u32]> {
        match self {
            Self::World(_) => ranks.into(),
            Self::Realm(realm) => ranks.iter().map(|rank| realm.processes[*rank as usize]).collect(),
        }
    }

    /// The ranks of processes.
    pub fn ranks(&self, processes: &[u32]) -> Result<Vec<u32>> {
        let found = |process: &u32| match self {
            Self::World(instance) => (*process < instance.control.size()).then_some(*process),
            Self::Realm(realm) => {
                let at = realm.processes.iter().position(|other| other == process);
                at.map(|at| at as u32)
            }
        };
        let absent = || {
            let text = "the group has processes that this communicator cannot reach";
            Error::new(class::GROUP, text)
        };
        processes
            .iter()
            .map(|process| found(process).ok_or_else(absent))
            .collect()
    }
}

/// The world, unless it has ended, and all realms.
fn engines() -> Vec<Control> {
    let world = state::current().map(Control::World);
    world.into_iter().chain(all().into_iter().map(Control::Realm)).collect()
}

/// Drives all engines of this process for one wait.
pub struct Wheel<'a> {
    /// The engine that the awaited operation is expected on: its limits and its sleep hold for the wait.
    primary: &'a Communicator,
    /// Held all the time while the world is the only engine.
    turn: Option<Turn<'a>>,
    waiting: Option<Waiting>,
}

impl<'a> Wheel<'a> {
    /// Begins a wait.
    #[inline]
    pub fn new(primary: &'a Communicator) -> Self {
        Self {
            primary,
            turn: (!is_any()).then(|| primary.turn()),
            waiting: None,
        }
    }

    /// Moves bytes, for a test that does not wait.
    pub fn progress(&mut self) {
        if let Some(turn) = &mut self.turn {
            turn.progress();
        }
    }

    /// Serves other ranks and looks at the operations of each engine.
    #[inline]
    pub fn each(&mut self, mut look: impl FnMut(&mut Turn<'_>)) {
        match &mut self.turn {
            Some(turn) if !is_any() => {
                request::serve(turn);
                look(turn);
            }
            _ => self.each_engine(&mut look),
        }
    }

    #[cold]
    fn each_engine(&mut self, look: &mut dyn FnMut(&mut Turn<'_>)) {
        if let Some(turn) = self.turn.take() {
            self.waiting = turn.pause();
        }
        for engine in engines() {
            let mut turn = engine.turn();
            turn.progress();
            request::serve(&mut turn);
            look(&mut turn);
        }
    }

    /// Moves bytes; without any, waits a little.
    ///
    /// # Errors
    /// After the deadline of the primary engine.
    #[inline]
    pub fn step(&mut self, what: &'static str) -> std::result::Result<(), Failure> {
        if let Some(turn) = &mut self.turn {
            return turn.step(what);
        }
        let mut turn = self.primary.resume(self.waiting.take());
        let outcome = turn.step(what);
        self.waiting = turn.pause();
        outcome
    }
}

/// Moves bytes on all engines once, for a wait for something else than a message.
pub fn progress_all() {
    for engine in engines() {
        let mut turn = engine.turn();
        turn.progress();
        request::serve(&mut turn);
        poll_orphans(&mut turn);
    }
}

impl CommObject {
    /// The group that it lies over.
    pub fn control(&self) -> Result<Control> {
        match self.realm() {
            Some(realm) => Ok(Control::Realm(realm.clone())),
            None => Control::world(),
        }
    }

    /// Whether its messages are those of this engine.
    #[inline]
    pub fn is_driven_by(&self, turn: &Turn<'_>) -> bool {
        self.local().map_or(true, |local| turn.drives(local))
    }

    /// The processes on this side.
    pub fn processes(&self) -> Result<Arc<[u32]>> {
        Ok(self.control()?.processes(self.members()?))
    }

    /// The processes on the other side of an intercommunicator.
    pub fn remote_processes(&self) -> Result<Arc<[u32]>> {
        Ok(self.control()?.processes(self.remote_members()?))
    }
}
