//! New communicators.

use std::ffi::c_int;
use std::sync::Arc;

use dayfly_comm::{Communicator, Datatype as Element, Operation};

use crate::attribute::{self, Holder};
use crate::buffers::{self, Owner};
use crate::collective::gathered;
use crate::communicator::{self, COMMUNICATORS, CommObject, Peer, Sides, make};
use crate::dynamic;
use crate::errhandler;
use crate::error::{Error, Result, class};
use crate::face::mpi;
use crate::group;
use crate::handle::{Comm, Errhandler, Group, Info, Request, UNDEFINED};
use crate::info;
use crate::interface::part;
use crate::pointer::{Out, Text};
use crate::realm::Control;
use crate::request::{self, Active};
use crate::session;
use crate::status::Completion;

/// In the tags of messages by which the leaders of two groups agree on an intercommunicator. The rest is the caller's tag.
const OF_LEADERS: u32 = 1 << 31;
/// Number of the callers' tags that are told apart. With one more, the greatest would be `ANY_TAG` for leaders.
const KEPT_TAGS: u32 = OF_LEADERS - 1;

/// Agrees with the other ranks of a communicator on the greatest of their numbers.
fn greatest(comm: &Communicator, number: u32) -> Result<u32> {
    let (own, mut all) = (u64::from(number).to_ne_bytes(), [0; 8]);
    comm.allreduce(&own, &mut all, Element::U64, &Operation::Max)?;
    Ok(u64::from_ne_bytes(all) as u32)
}

/// A communicator of these processes, over a group that has all of them. Exactly they call it; the first one decides.
fn of_processes(control: &Control, processes: &[u32], tag: u32) -> Result<Communicator> {
    let members = control.ranks(processes)?;
    let tag = tag % KEPT_TAGS;
    let mut context = control.propose_context();
    let mut word = [0; 4];
    let (leader, others) = members
        .split_first()
        .ok_or_else(|| Error::new(class::GROUP, "the group is empty"))?;
    if *leader == control.rank() {
        for other in others {
            control.recv(&mut word, *other, tag)?;
            context = context.max(u32::from_ne_bytes(word));
        }
        for other in others {
            control.send(&context.to_ne_bytes(), *other, tag)?;
        }
    } else {
        control.send(&context.to_ne_bytes(), *leader, tag)?;
        control.recv(&mut word, *leader, tag)?;
        context = u32::from_ne_bytes(word);
    }
    Ok(control.with_members(context, members)?)
}

/// A communicator of a group outside of any other one; `text` tells calls of the same ranks apart.
pub fn from_group(members: &[u32], text: &str, handler: Errhandler) -> Result<Comm> {
    let made = of_processes(&Control::world()?, members, tag_of(text))?;
    Ok(make(CommObject::new(Some(made), handler)))
}

/// A sum over the bytes of a text: the same on all ranks, and rarely the same for two texts.
fn tag_of(text: &str) -> u32 {
    let add = |sum: u32, byte: u8| sum.wrapping_mul(31).wrapping_add(byte.into());
    text.bytes().fold(0, add)
}

/// How the leaders of two groups exchange messages.
pub struct Link<'a> {
    pub comm: &'a Communicator,
    /// The other leader's rank in it. Only the own leader needs it.
    pub other: u32,
    pub tag: u32,
}

/// The link of the first ranks on both sides of an intercommunicator, apart from the messages of programs.
fn link_of(object: &CommObject) -> Result<Link<'_>> {
    Ok(Link {
        comm: object.merged()?,
        other: object.merged_rank(0)? as u32,
        tag: 0,
    })
}

/// The link of the leaders of two groups without a communicator in common; `other` is a rank of all of `control`.
fn link_of_leaders(control: &Control, other: u32, tag: u32) -> Link<'_> {
    Link {
        comm: control,
        other,
        tag: OF_LEADERS + tag % KEPT_TAGS,
    }
}

/// Exchanges bytes between the leaders of two groups. Returns the other leader's on all ranks of this group.
pub fn across(local: &Communicator, leader: u32, link: &Link<'_>, own: &[u8]) -> Result<Vec<u8>> {
    let mut length = [0; 8];
    let mut theirs = Vec::new();
    if local.rank() == leader {
        let Link { comm, other, tag } = *link;
        let count = (own.len() as u64).to_ne_bytes();
        comm.sendrecv(&count, other, tag, &mut length, other, tag)?;
        theirs.resize(u64::from_ne_bytes(length) as usize, 0);
        comm.sendrecv(own, other, tag, &mut theirs, other, tag)?;
    }
    local.bcast(&mut length, leader)?;
    theirs.resize(u64::from_ne_bytes(length) as usize, 0);
    local.bcast(&mut theirs, leader)?;
    Ok(theirs)
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|word| u32::from_ne_bytes(*word))
        .collect()
}

/// The sides of an intercommunicator in a context and the next one.
fn sides(local: Communicator, remote: Vec<u32>, context: u32) -> Result<Sides> {
    let mut both = [local.members(), &remote].concat();
    both.sort_unstable();
    let merged = local.with_members(context + 1, both)?;
    let remote = local.with_members(context, remote)?;
    Ok(Sides { local, remote, merged })
}

/// An intercommunicator between a group and another one, whose leader is known.
fn between(local: &Communicator, leader: u32, link: &Link<'_>) -> Result<Sides> {
    let local = local.dup()?;
    let proposal = greatest(&local, local.propose_context())?;
    let mut own = proposal.to_ne_bytes().to_vec();
    own.extend(local.members().iter().flat_map(|member| member.to_ne_bytes()));
    let theirs = words(&across(&local, leader, link, &own)?);
    let (context, members) = theirs
        .split_first()
        .ok_or_else(|| Error::new(class::INTERN, "the other group sent nothing"))?;
    if members.iter().any(|member| local.members().contains(member)) {
        return Err(Error::new(class::COMM, "the groups of an intercommunicator overlap"));
    }
    sides(local, members.to_vec(), proposal.max(*context))
}

/// A communicator of the same ranks with its own messages.
pub fn duplicate_local(object: &Arc<CommObject>) -> Result<Communicator> {
    let own = object.intra()?.propose_context();
    let all = words(&gathered(object, &own.to_ne_bytes())?);
    let local = object.local()?;
    let context = all.into_iter().max().unwrap_or(own);
    Ok(local.with_members(context, local.members().to_vec())?)
}

/// The ranks of a communicator with the same color, in the order of their keys.
pub fn split_local(object: &Arc<CommObject>, color: Option<u32>, key: i64) -> Result<Option<Communicator>> {
    let local = object.intra()?;
    let context = local.propose_context();
    let own = [
        u32::from(color.is_some()),
        color.unwrap_or(0),
        context,
        key as u32,
        (key >> 32) as u32,
    ];
    let bytes: Vec<u8> = own.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let all = words(&gathered(object, &bytes)?);
    let entries = all.as_chunks::<5>().0;
    let context = entries.iter().map(|entry| entry[2]).max().unwrap_or(context);
    let Some(color) = color else {
        return Ok(None);
    };
    let mut chosen: Vec<(i64, usize)> = entries
        .iter()
        .enumerate()
        .filter(|(_, entry)| entry[0] == 1 && entry[1] == color)
        .map(|(rank, entry)| (i64::from(entry[3]) | i64::from(entry[4]) << 32, rank))
        .collect();
    chosen.sort_unstable();
    let members = chosen.into_iter().map(|(_, rank)| local.members()[rank]).collect();
    Ok(Some(local.with_members(context, members)?))
}

/// A duplicate with its own messages.
fn duplicate(object: &Arc<CommObject>) -> Result<CommObject> {
    let local = object.local()?;
    if !object.is_inter() {
        return Ok(CommObject::new(Some(duplicate_local(object)?), object.handler()));
    }
    let sides = between(local, 0, &link_of(object)?)?;
    Ok(CommObject::between(sides, object.handler()))
}

/// Copies what a duplicate inherits.
fn inherit(comm: Comm, object: &CommObject, mut copy: CommObject) -> Result<CommObject> {
    copy.attributes = object.attributes().duplicate(comm.0)?;
    copy.topology = object.topology.clone();
    Ok(copy)
}

fn dup(comm: Comm, given: Option<Info>) -> Result<Comm> {
    let object = communicator::get(comm)?;
    let copy = inherit(comm, &object, duplicate(&object)?)?;
    let pairs = match given {
        Some(given) => info::optional(given)?
            .map(|given| given.pairs().clone())
            .unwrap_or_default(),
        None => object.info().clone(),
    };
    *copy.info() = pairs;
    Ok(make(copy))
}

fn idup(comm: Comm, given: Option<Info>, new: Out<Comm>, request: Out<Request>) -> Result<()> {
    let object = communicator::get(comm)?;
    if object.is_inter() {
        // The groups agree at once: all ranks of both must call it without waiting for each other in between.
        new.check()?.set(dup(comm, given)?);
        request.check()?.set(request::make(Active::Over(Completion::empty())));
        return Ok(());
    }
    let copy = Arc::new(inherit(comm, &object, CommObject::new(None, object.handler()))?);
    let pairs = match given {
        Some(given) => info::optional(given)?
            .map(|given| given.pairs().clone())
            .unwrap_or_default(),
        None => object.info().clone(),
    };
    *copy.info() = pairs;
    let handle = communicator::insert(copy.clone());
    let started = crate::collective::start_agreement(object, move |local| {
        copy.complete(local);
        Ok(())
    })?;
    new.check()?.set(handle);
    request.check()?.set(request::make(started));
    Ok(())
}

fn split(object: &Arc<CommObject>, color: c_int, key: c_int) -> Result<Comm> {
    if color < 0 && color != UNDEFINED {
        return Err(Error::new(class::ARG, format!("the color {color} is negative")));
    }
    let color = u32::try_from(color).ok();
    if object.is_inter() {
        return split_between(object, color, key);
    }
    let part = split_local(object, color, key.into())?;
    Ok(part.map_or(Comm::NULL, |part| make(CommObject::new(Some(part), object.handler()))))
}

fn split_between(object: &CommObject, color: Option<u32>, key: c_int) -> Result<Comm> {
    let local = object.local()?;
    let part = local.split(color, key.into())?;
    // Both sides learn the other's colors and the order of its ranks, and a context for each pair of parts.
    let context = greatest(local, local.propose_context())?;
    let mut mine = [0u32; 3];
    if let (Some(color), Some(part)) = (color, &part) {
        mine = [1, color, part.rank()];
    }
    let own: Vec<u8> = mine.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let mut all = vec![0; own.len() * local.size() as usize];
    local.allgather(&own, &mut all)?;
    all.extend(context.to_ne_bytes());
    let theirs = words(&across(local, 0, &link_of(object)?, &all)?);
    let (context_theirs, entries) = theirs
        .split_last()
        .ok_or_else(|| Error::new(class::INTERN, "the other group sent nothing"))?;
    let context = context.max(*context_theirs);
    let (Some(color), Some(part)) = (color, part) else {
        return Ok(Comm::NULL);
    };
    let entries = entries.chunks_exact(3).zip(object.remote_members()?);
    let mut chosen: Vec<(u32, u32)> = entries
        .filter(|(entry, _)| entry[0] == 1 && entry[1] == color)
        .map(|(entry, member)| (entry[2], *member))
        .collect();
    if chosen.is_empty() {
        return Ok(Comm::NULL);
    }
    chosen.sort_unstable();
    let sides = sides(part, chosen.into_iter().map(|(_, member)| member).collect(), context)?;
    Ok(make(CommObject::between(sides, object.handler())))
}

/// A communicator of a group of ranks of this one; all ranks call it.
fn create(object: &Arc<CommObject>, chosen: &[u32]) -> Result<Comm> {
    let members = object.processes()?;
    if chosen.iter().any(|member| !members.contains(member)) {
        return Err(Error::new(
            class::GROUP,
            "the group has ranks that the communicator has not",
        ));
    }
    let own = members[object.rank() as usize];
    let at = chosen.iter().position(|member| *member == own);
    // Several groups may be given that do not overlap: the first rank of each tells them apart. Between two groups, each
    // side gives one.
    let color = match at {
        Some(_) if object.is_inter() => 0,
        Some(_) => chosen[0] as c_int,
        None => UNDEFINED,
    };
    split(object, color, at.unwrap_or(0) as c_int)
}

fn release(comm: Out<Comm>) -> Result<()> {
    let handle = comm.get()?;
    let object = communicator::get(handle)?;
    if matches!(handle, Comm::WORLD | Comm::SELF) {
        return Err(Error::new(class::COMM, "a predefined communicator cannot be freed"));
    }
    attribute::delete_all(&*object, handle)?;
    COMMUNICATORS.remove(handle.0);
    buffers::forget(Owner::Comm(handle.0));
    dynamic::forget_parent(handle);
    comm.set(Comm::NULL);
    Ok(())
}

/// The lowest rank of the communicator's whole group on this rank's host, which names the host.
fn host(object: &CommObject) -> Result<c_int> {
    let control = object.control()?;
    let own = control.rank() as usize;
    let hosts = control.hosts_of_all();
    Ok(hosts.get(own).map_or(0, |host| *host as c_int))
}

/// Whether an info asks for parts that share memory, the only resource that is known.
fn names_shared_memory(given: Info) -> Result<bool> {
    let Some(given) = info::optional(given)? else {
        return Ok(false);
    };
    let pairs = given.pairs();
    Ok(pairs
        .iter()
        .any(|(key, value)| key == "mpi_hw_resource_type" && value == "mpi_shared_memory"))
}

/// The color of the part of a communicator in the set of processes that an info names; `UNDEFINED` without one.
fn part_of_set(given: Info, object: &CommObject) -> Result<c_int> {
    let pairs = info::optional(given)?
        .map(|given| given.pairs().clone())
        .unwrap_or_default();
    let name = pairs.into_iter().find(|(key, _)| key == "mpi_pset_name");
    Ok(match name.and_then(|(_, name)| session::set_named(&name)) {
        Some(session::WORLD) => 0,
        Some(_) => object.rank() as c_int,
        None => UNDEFINED,
    })
}

mpi! {
    fn MPI_Comm_dup(comm: Comm, new: Out<Comm>) [comm] {
        new.check()?.set(dup(comm, None)?);
        Ok(())
    }

    fn MPI_Comm_dup_with_info(comm: Comm, info: Info, new: Out<Comm>) [comm] {
        new.check()?.set(dup(comm, Some(info))?);
        Ok(())
    }

    fn MPI_Comm_idup(comm: Comm, new: Out<Comm>, request: Out<Request>) [comm] {
        idup(comm, None, new, request)
    }

    fn MPI_Comm_idup_with_info(comm: Comm, info: Info, new: Out<Comm>, request: Out<Request>) [comm] {
        idup(comm, Some(info), new, request)
    }

    fn MPI_Comm_split(comm: Comm, color: c_int, key: c_int, new: Out<Comm>) [comm] {
        new.check()?.set(split(&communicator::get(comm)?, color, key)?);
        Ok(())
    }

    fn MPI_Comm_split_type(comm: Comm, kind: c_int, key: c_int, info: Info, new: Out<Comm>) [comm] {
        info::optional(info)?;
        let object = communicator::get(comm)?;
        let color = match kind {
            part::SHARED => host(&object)?,
            part::HW_GUIDED | part::RESOURCE_GUIDED if names_shared_memory(info)? => host(&object)?,
            part::RESOURCE_GUIDED => part_of_set(info, &object)?,
            part::HW_GUIDED | part::HW_UNGUIDED | UNDEFINED => UNDEFINED,
            _ => return Err(Error::new(class::ARG, format!("there is no type {kind} of parts"))),
        };
        new.check()?.set(split(&object, color, key)?);
        Ok(())
    }

    fn MPI_Comm_create(comm: Comm, group: Group, new: Out<Comm>) [comm] {
        let object = communicator::get(comm)?;
        new.check()?.set(create(&object, &group::get(group)?)?);
        Ok(())
    }

    fn MPI_Comm_create_group(comm: Comm, group: Group, tag: c_int, new: Out<Comm>) [comm] {
        let object = communicator::get_intra(comm)?;
        let chosen = group::get(group)?;
        let tag = communicator::send_tag(tag)?;
        let own = object.processes()?[object.rank() as usize];
        let made = match chosen.contains(&own) {
            true => {
                let made = of_processes(&object.control()?, &chosen, tag)?;
                make(CommObject::new(Some(made), object.handler()))
            }
            false => Comm::NULL,
        };
        new.check()?.set(made);
        Ok(())
    }

    fn MPI_Intercomm_create(
        local: Comm, leader: c_int, peers: Comm, remote_leader: c_int, tag: c_int, new: Out<Comm>
    ) [local] {
        let object = communicator::get_intra(local)?;
        let Peer::Rank(leader) = object.receiver(leader)? else {
            return Err(Error::new(class::RANK, "the leader is no rank"));
        };
        let tag = communicator::send_tag(tag)?;
        // Only the leader's argument counts.
        let (mut control, mut other) = (object.control()?, 0);
        if object.rank() == leader {
            let peers = communicator::get(peers)?;
            let Peer::Rank(rank) = peers.receiver(remote_leader)? else {
                return Err(Error::new(class::RANK, "the other leader is no rank"));
            };
            other = peers.peers()?.members()[rank as usize];
            control = peers.control()?;
        }
        let link = link_of_leaders(&control, other, tag);
        let made = match dynamic::over_new_group(&object, leader, &link)? {
            Some(made) => made,
            None => CommObject::between(between(object.local()?, leader, &link)?, object.handler()),
        };
        new.check()?.set(make(made));
        Ok(())
    }

    fn MPI_Intercomm_create_from_groups (
        local: Group, leader: c_int, remote: Group, remote_leader: c_int, text: Text, pairs: Info, handler: Errhandler,
        new: Out<Comm>
    ) [()] {
        let pairs = info::optional(pairs)?.map(|info| info.pairs().clone()).unwrap_or_default();
        let (local, remote, tag) = (group::get(local)?, group::get(remote)?, tag_of(&text.get()?));
        let rank = |members: &[u32], at: c_int| usize::try_from(at).ok().and_then(|at| members.get(at).copied());
        let (Some(_), Some(other)) = (rank(&local, leader), rank(&remote, remote_leader)) else {
            return Err(Error::new(class::RANK, "a leader is no rank of its group"));
        };
        let control = Control::world()?;
        let [other] = control.ranks(&[other])?[..] else {
            return Err(Error::new(class::RANK, "the leader is no rank of the world"));
        };
        let own = of_processes(&control, &local, tag)?;
        let sides = between(&own, leader as u32, &link_of_leaders(&control, other, tag))?;
        let object = CommObject::between(sides, errhandler::check(handler)?);
        *object.info() = pairs;
        new.check()?.set(make(object));
        Ok(())
    }

    fn MPI_Intercomm_merge(comm: Comm, high: c_int, new: Out<Comm>) [comm] {
        let object = communicator::get(comm)?;
        let (local, others) = (object.local()?, object.remote_members()?);
        let context = greatest(local, local.propose_context())?;
        let mut own = context.to_ne_bytes().to_vec();
        own.extend(u32::from(high != 0).to_ne_bytes());
        let theirs = words(&across(local, 0, &link_of(&object)?, &own)?);
        let [context_theirs, high_theirs] = theirs[..] else {
            return Err(Error::new(class::INTERN, "the other group sent nothing"));
        };
        let first = match (high != 0, high_theirs != 0) {
            (false, true) => true,
            (true, false) => false,
            _ => local.members()[0] < others[0],
        };
        let both = match first {
            true => [local.members(), others].concat(),
            false => [others, local.members()].concat(),
        };
        let merged = local.with_members(context.max(context_theirs), both)?;
        new.check()?.set(make(CommObject::new(Some(merged), object.handler())));
        Ok(())
    }

    fn MPI_Comm_free(comm: Out<Comm>) [()] {
        release(comm)
    }

    fn MPI_Comm_disconnect(comm: Out<Comm>) [()] {
        dynamic::wait_for_others(comm.get()?)?;
        release(comm)
    }
}
