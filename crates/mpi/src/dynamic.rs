//! Dynamic processes: programs that start others, and worlds that connect to each other.
//!
//! Two worlds communicate over a [realm](crate::realm), a new group at the rendezvous of one of them. An invitation to
//! it reaches the other world in one of four ways: the socket between a root and a process that it started
//! ([`spawn`], [`children`], [`parent`]), a meeting of two roots at a port ([`port`]), a socket of the program
//! (`MPI_Comm_join`), or a communicator in common (`MPI_Intercomm_create`). [`name`] publishes ports.

mod bridge;
mod children;
mod name;
mod parent;
mod port;
mod spawn;

use std::ffi::c_int;
use std::sync::Arc;

use dayfly_comm::Invitation;
use dayfly_protocol::error::{Code, Failure};
use dayfly_rendezvous::keys::{GroupKeys, random};

use crate::collective;
use crate::collective::Mode;
use crate::communicator::{self, CommObject};
use crate::error::{Error, Result};
use crate::face::mpi;
use crate::handle::{Comm, Errhandler, Info};
use crate::pointer::{In, Out, Text, TextOut};
use crate::realm::{self, WorldId};
use crate::request::finish;
use crate::state::Instance;

pub use bridge::over_new_group;
pub use parent::{appnum, forget as forget_parent, meet as meet_parents};

/// What names the world of an invitation, or a world without one.
pub fn world_id(invitation: Option<&Invitation>) -> Result<WorldId> {
    let Some(invitation) = invitation else {
        return Ok(random()?);
    };
    let secret = hex::decode(&invitation.secret)
        .map_err(|_| Failure::new(Code::InvalidRequest, "the group's secret is not hexadecimal"))?;
    let keys = GroupKeys::new(&invitation.name, &invitation.run, &secret)?;
    Ok(keys.member().public.0)
}

/// Waits until no rank of the world or of a realm needs this one any more. Otherwise, ends the processes that this one
/// has started and that still are connected to it.
pub fn part(instance: &Instance, waits: bool) -> Result<()> {
    if !waits {
        children::end_connected();
        return Ok(());
    }
    parent::outlive();
    let realms = realm::all();
    if realms.is_empty() {
        let _ = instance.communicators.world.local()?.barrier();
        return Ok(());
    }
    // All begin before any is waited for, since another process may know the realms in another order.
    let mut barriers = vec![collective::barrier(Mode::GoesOn, instance.communicators.world.clone())];
    for realm in &realms {
        let all = realm.control.members().to_vec();
        let everyone = realm.control.with_members(bridge::CLOSING_CONTEXT, all)?;
        let object = Arc::new(CommObject::new(Some(everyone), Errhandler::RETURN));
        barriers.push(collective::barrier(Mode::GoesOn, object));
    }
    for barrier in barriers.into_iter().flatten() {
        // A process that is lost or has disconnected needs nothing any more.
        let _ = finish(barrier, "MPI_Finalize");
    }
    Ok(())
}

/// Waits until all processes of a communicator disconnect from it.
pub fn wait_for_others(comm: Comm) -> Result<()> {
    if matches!(comm, Comm::WORLD | Comm::SELF) {
        return Ok(());
    }
    if comm == parent::handle() {
        // The parent may end as soon as it has met this process in the barrier.
        parent::outlive();
    }
    let ended = collective::barrier(Mode::Waits, communicator::get(comm)?)
        .and_then(|active| finish(active, "MPI_Comm_disconnect"));
    match ended {
        // A process that is lost cannot be waited for.
        Err(error) if error.failure != Some(Code::RankLost) => Err(error),
        _ => Ok(()),
    }
}

/// The root of a collective call.
fn root_of(object: &CommObject, root: c_int) -> Result<u32> {
    collective::is_root(object, root)?;
    Ok(root as u32)
}

fn length(count: c_int) -> Result<usize> {
    usize::try_from(count).map_err(|_| {
        let text = format!("the number of programs is {count}");
        Error::new(crate::error::class::COUNT, text)
    })
}

mpi! {
    fn MPI_Comm_spawn (
        command: Text, arguments: In<Text>, count: c_int, pairs: Info, root: c_int, comm: Comm, new: Out<Comm>,
        codes: Out<c_int>
    ) [comm] {
        let object = communicator::get_intra(comm)?;
        let root = root_of(&object, root)?;
        let programs = || Ok(vec![spawn::Program::new(command, arguments, count, pairs)?]);
        new.check()?.set(spawn::spawn(&object, root, programs, codes)?);
        Ok(())
    }

    fn MPI_Comm_spawn_multiple (
        count: c_int, commands: In<Text>, arguments: In<In<Text>>, counts: In<c_int>, pairs: In<Info>, root: c_int,
        comm: Comm, new: Out<Comm>, codes: Out<c_int>
    ) [comm] {
        let object = communicator::get_intra(comm)?;
        let root = root_of(&object, root)?;
        let programs = || spawn::Program::several(length(count)?, commands, arguments, counts, pairs);
        new.check()?.set(spawn::spawn(&object, root, programs, codes)?);
        Ok(())
    }

    fn MPI_Comm_get_parent (comm: Out<Comm>) [()] {
        comm.check()?.set(parent::handle());
        Ok(())
    }

    fn MPI_Open_port (pairs: Info, port: TextOut) [()] {
        crate::info::optional(pairs)?;
        port.set(&port::open()?, port::MAX_PORT_NAME)?;
        Ok(())
    }

    fn MPI_Close_port (port: Text) [()] {
        port::close(&port.get()?)
    }

    fn MPI_Comm_accept (port: Text, pairs: Info, root: c_int, comm: Comm, new: Out<Comm>) [comm] {
        let object = communicator::get_intra(comm)?;
        let root = root_of(&object, root)?;
        new.check()?.set(port::meet(&object, root, port::Side::Accepts, port, pairs)?);
        Ok(())
    }

    fn MPI_Comm_connect (port: Text, pairs: Info, root: c_int, comm: Comm, new: Out<Comm>) [comm] {
        let object = communicator::get_intra(comm)?;
        let root = root_of(&object, root)?;
        new.check()?.set(port::meet(&object, root, port::Side::Connects, port, pairs)?);
        Ok(())
    }

    fn MPI_Publish_name (service: Text, pairs: Info, port: Text) [()] {
        crate::info::optional(pairs)?;
        name::publish(&service.get()?, port.get()?)
    }

    fn MPI_Lookup_name (service: Text, pairs: Info, port: TextOut) [()] {
        crate::info::optional(pairs)?;
        port.set(&name::look_up(&service.get()?)?, port::MAX_PORT_NAME)?;
        Ok(())
    }

    fn MPI_Unpublish_name (service: Text, pairs: Info, _port: Text) [()] {
        crate::info::optional(pairs)?;
        name::unpublish(&service.get()?)
    }

    fn MPI_Comm_join (descriptor: c_int, new: Out<Comm>) [Comm::SELF] {
        new.check()?.set(port::join(descriptor)?);
        Ok(())
    }
}
