//! New groups: who invites to them, how processes join them, and what roots share with the other ranks on their side.

use std::ops::Range;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dayfly_comm::{Channel, Invitation, World};
use dayfly_protocol::error::Failure;
use dayfly_rendezvous::keys::random;
use dayfly_rendezvous::server::{ServeOptions, Server};

use crate::collective::{Kept, launch};
use crate::comm_create::{Link, across};
use crate::communicator::{CommObject, Sides};
use crate::error::{Error, Result, class};
use crate::handle::Errhandler;
use crate::realm::{self, Realm};
use crate::request::finish;
use crate::state;

// Contexts of a realm's first communicators, below those that ranks propose. Context 2 is for messages of this library.
/// For the barrier before a realm's end.
pub const CLOSING_CONTEXT: u32 = 3;
const LOCAL_CONTEXT: u32 = 4;
const REMOTE_CONTEXT: u32 = 5;
const MERGED_CONTEXT: u32 = 6;

/// Pause between two looks at the engines, while another thread waits for something else than a message.
const PAUSE: Duration = Duration::from_millis(1);
/// Microseconds that a waiting rank of a world without an invitation polls before it sleeps.
const SPIN_US: u64 = 500;
const PATIENCE_S: u64 = 30;
const DEADLINE_S: u64 = 3600;

/// What makes a process without an invitation a place to meet at. It lasts as long as the process.
struct OwnPlace {
    invitation: Invitation,
    /// Its group of one rank, to which the names belong that it publishes.
    _world: World,
    _server: Server,
}

static OWN: Mutex<Option<OwnPlace>> = Mutex::new(None);

/// The invitation that new groups are like: the world's, or one to a rendezvous in this process.
pub fn template() -> Result<Invitation> {
    if let Some(invitation) = &state::instance()?.invitation {
        return Ok(invitation.clone());
    }
    let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(OwnPlace { invitation, .. }) = &*own {
        return Ok(invitation.clone());
    }
    let server = Server::start(ServeOptions::default())?;
    let address = server.addresses().first().map(ToString::to_string).unwrap_or_default();
    let invitation = Invitation {
        rendezvous: address,
        key: Some(server.key()),
        voucher: None,
        name: format!("mpi-{}", hex::encode(random::<8>()?)),
        run: String::new(),
        secret: hex::encode(random::<32>()?),
        rank: None,
        size: 1,
        trust_fabric: false,
        patience_s: PATIENCE_S,
        deadline_s: DEADLINE_S,
        spin_us: Some(SPIN_US),
        tables: None,
        fabric: None,
        store: None,
        channel: Channel::Direct,
        lazy_connect: false,
    };
    *own = Some(OwnPlace {
        _world: invitation.accept()?,
        invitation: invitation.clone(),
        _server: server,
    });
    Ok(invitation)
}

/// Does something that waits in a thread of its own, which must end by itself; this one moves bytes meanwhile.
pub fn meanwhile<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let (sender, receiver) = sync_channel(1);
    let started = std::thread::Builder::new().name("mpi".into()).spawn(move || {
        // The receiver waits below.
        let _ = sender.send(work());
    });
    started.map_err(|error| Error::new(class::NO_MEM, format!("no thread could be started: {error}")))?;
    loop {
        match receiver.recv_timeout(PAUSE) {
            Ok(outcome) => return Ok(outcome),
            Err(RecvTimeoutError::Timeout) => realm::progress_all(),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::new(class::INTERN, "a thread of the library failed"));
            }
        }
    }
}

/// Joins a group with the identities of all its ranks, one after another.
fn enter(invitation: &Invitation, identity: &[u8]) -> std::result::Result<(World, Vec<u8>), Failure> {
    let world = invitation.accept()?;
    let mut all = vec![0; identity.len() * world.communicator.size() as usize];
    world.communicator.allgather(identity, &mut all)?;
    Ok((world, all))
}

/// Joins a new group, and makes the intercommunicator between the ranks of this side and those of the other one.
pub fn bridge(invitation: Invitation, own: Range<u32>, other: Range<u32>, handler: Errhandler) -> Result<CommObject> {
    let instance = state::instance()?;
    let identity = realm::identity(&instance.id, instance.control.rank());
    let name = invitation.name.clone();
    let (world, identities) = meanwhile(move || enter(&invitation, &identity))??;
    let realm = Realm::new(name, world, &identities, &instance.id)?;
    let control = &realm.control;
    let sides = Sides {
        local: control.with_members(LOCAL_CONTEXT, own.collect())?,
        remote: control.with_members(REMOTE_CONTEXT, other.collect())?,
        merged: control.with_members(MERGED_CONTEXT, control.members().to_vec())?,
    };
    Ok(CommObject::between(sides, handler))
}

/// Returns the root's bytes on all ranks.
pub fn broadcast(object: &Arc<CommObject>, root: u32, own: Vec<u8>) -> Result<Vec<u8>> {
    let mut length = [0; 8];
    length.copy_from_slice(&broadcast_of(object, root, (own.len() as u64).to_le_bytes().into())?);
    let mut bytes = own;
    bytes.resize(u64::from_le_bytes(length) as usize, 0);
    broadcast_of(object, root, bytes)
}

fn broadcast_of(object: &Arc<CommObject>, root: u32, bytes: Vec<u8>) -> Result<Vec<u8>> {
    let kept = Kept {
        receive: bytes,
        ..Kept::default()
    };
    let (sender, receiver) = std::sync::mpsc::channel();
    let active = launch(
        object.clone(),
        kept,
        |scope, kept| scope.ibcast(&mut kept.receive, root),
        move |kept| {
            // The receiver waits below.
            let _ = sender.send(kept.receive.clone());
            Ok(())
        },
    )?;
    finish(active, "a call with a root")?;
    let lost = |_| Error::new(class::INTERN, "a broadcast has no result");
    receiver.try_recv().map_err(lost)
}

/// Returns the root's outcome on all ranks. Only the root has one before.
pub fn share<T>(object: &Arc<CommObject>, root: u32, outcome: Option<Result<T>>) -> Result<Option<T>> {
    let own = match &outcome {
        Some(Err(error)) => [&error.code.to_le_bytes()[..], error.text.as_bytes()].concat(),
        _ => Vec::new(),
    };
    let shared = broadcast(object, root, own)?;
    match (outcome, shared.split_first_chunk()) {
        (Some(outcome), _) => outcome.map(Some),
        (None, Some((code, text))) => Err(Error::new(i32::from_le_bytes(*code), String::from_utf8_lossy(text))),
        (None, None) => Ok(None),
    }
}

/// An intercommunicator over a new group between this communicator's ranks and those of another leader, to which the
/// leader has a link. One side invites.
pub fn bridge_over(object: &Arc<CommObject>, leader: u32, link: &Link<'_>, invites: bool) -> Result<CommObject> {
    let broken = || {
        Error::new(
            class::INTERN,
            "the other side sent no invitation; its error names the cause",
        )
    };
    let (local, own) = (object.local()?, object.size());
    let theirs = across(local, leader, link, &own.to_le_bytes())?;
    let other = u32::from_le_bytes(*theirs.first_chunk().ok_or_else(broken)?);
    let mut text = Vec::new();
    if invites {
        if object.rank() == leader {
            // Without a text, both sides return an error.
            let made = template().and_then(|template| Ok(template.to_new_group(own + other)?));
            text = made.map(|made| made.to_json().into_bytes()).unwrap_or_default();
        }
        text = broadcast(object, leader, text)?;
        across(local, leader, link, &text)?;
    } else {
        text = across(local, leader, link, &[])?;
    }
    let text = String::from_utf8(text).ok().filter(|text| !text.is_empty());
    let mut invitation = Invitation::from_json(&text.ok_or_else(broken)?)?;
    let (ours, others) = match invites {
        true => (0..own, own..own + other),
        false => (other..other + own, 0..other),
    };
    invitation.rank = Some(ours.start + object.rank());
    bridge(invitation, ours, others, object.handler())
}

/// For `MPI_Intercomm_create`: an intercommunicator over a new group, if the two sides lie over different ones.
pub fn over_new_group(object: &Arc<CommObject>, leader: u32, link: &Link<'_>) -> Result<Option<CommObject>> {
    let own = object.control()?.name().into_bytes();
    let theirs = across(object.local()?, leader, link, &own)?;
    match own == theirs {
        true => Ok(None),
        false => bridge_over(object, leader, link, own < theirs).map(Some),
    }
}
