//! Groups: ordered sets of processes. Those of the world have their ranks as numbers ([`crate::realm`]).

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::Arc;

use crate::communicator;
use crate::error::{Error, Result, class};
use crate::face::mpi;
use crate::handle::{Comm, Group, PROC_NULL, Table, UNDEFINED};
use crate::interface::comparison::{IDENT, SIMILAR, UNEQUAL};
use crate::pointer::{In, Out};

/// The processes of a group.
pub type Members = Arc<[u32]>;

struct GroupObject(Members);

static GROUPS: Table<GroupObject> = Table::new(2);

pub fn get(group: Group) -> Result<Members> {
    if group == Group::EMPTY {
        return Ok(Arc::new([]));
    }
    GROUPS
        .get(group.0)
        .map(|object| object.0.clone())
        .ok_or_else(|| Error::new(class::GROUP, "the handle is no group"))
}

/// A handle for a group of these ranks.
pub fn make(members: Members) -> Group {
    match members.is_empty() {
        true => Group::EMPTY,
        false => Group(GROUPS.insert(Arc::new(GroupObject(members)))),
    }
}

/// How two lists of ranks compare, as `MPI_Group_compare` has it.
pub fn compare(one: &[u32], other: &[u32]) -> c_int {
    if one == other {
        return IDENT;
    }
    let sorted = |members: &[u32]| {
        let mut members = members.to_vec();
        members.sort_unstable();
        members
    };
    match sorted(one) == sorted(other) {
        true => SIMILAR,
        false => UNEQUAL,
    }
}

fn positions(members: &[u32]) -> HashMap<u32, usize> {
    members.iter().enumerate().map(|(at, member)| (*member, at)).collect()
}

/// Checks a list of ranks of a group: each exists, and none occurs twice.
fn chosen(members: &[u32], ranks: &[c_int]) -> Result<Vec<usize>> {
    let mut seen = vec![false; members.len()];
    let mut all = Vec::with_capacity(ranks.len());
    for rank in ranks {
        let at = usize::try_from(*rank).ok().filter(|at| *at < members.len());
        let at = at.ok_or_else(|| Error::new(class::RANK, format!("the group has no rank {rank}")))?;
        if std::mem::replace(&mut seen[at], true) {
            return Err(Error::new(class::RANK, format!("rank {rank} is given twice")));
        }
        all.push(at);
    }
    Ok(all)
}

/// The ranks that triplets of first, last and stride name.
fn expanded(ranges: &[[c_int; 3]]) -> Result<Vec<c_int>> {
    let mut all = Vec::new();
    for [first, last, stride] in ranges {
        if *stride == 0 {
            return Err(Error::new(class::ARG, "the stride of a range is 0"));
        }
        let mut rank = *first;
        while (*stride > 0 && rank <= *last) || (*stride < 0 && rank >= *last) {
            all.push(rank);
            rank += stride;
        }
    }
    Ok(all)
}

fn included(members: &[u32], ranks: &[c_int]) -> Result<Members> {
    Ok(chosen(members, ranks)?.into_iter().map(|at| members[at]).collect())
}

fn excluded(members: &[u32], ranks: &[c_int]) -> Result<Members> {
    let mut kept = vec![true; members.len()];
    for at in chosen(members, ranks)? {
        kept[at] = false;
    }
    let all = members.iter().zip(kept);
    Ok(all.filter(|(_, kept)| *kept).map(|(member, _)| *member).collect())
}

fn length(count: c_int) -> Result<usize> {
    usize::try_from(count).map_err(|_| Error::new(class::ARG, format!("the number of ranks is {count}")))
}

mpi! {
    fn MPI_Comm_group(comm: Comm, group: Out<Group>) [comm] {
        let members: Members = communicator::get(comm)?.processes()?;
        group.check()?.set(make(members));
        Ok(())
    }

    fn MPI_Comm_remote_group(comm: Comm, group: Out<Group>) [comm] {
        let members: Members = communicator::get(comm)?.remote_processes()?;
        group.check()?.set(make(members));
        Ok(())
    }

    fn MPI_Group_size(group: Group, size: Out<c_int>) [()] {
        size.check()?.set(get(group)?.len() as c_int);
        Ok(())
    }

    fn MPI_Group_rank(group: Group, rank: Out<c_int>) [()] {
        let own = crate::state::own_rank();
        let found = get(group)?.iter().position(|member| Some(*member) == own);
        rank.check()?.set(found.map_or(UNDEFINED, |at| at as c_int));
        Ok(())
    }

    fn MPI_Group_free(group: Out<Group>) [()] {
        let handle = group.get()?;
        get(handle)?;
        GROUPS.remove(handle.0);
        group.set(Group::NULL);
        Ok(())
    }

    fn MPI_Group_compare(one: Group, other: Group, result: Out<c_int>) [()] {
        result.check()?.set(compare(&get(one)?, &get(other)?));
        Ok(())
    }

    fn MPI_Group_translate_ranks(
        from: Group, count: c_int, ranks: In<c_int>, to: Group, translated: Out<c_int>
    ) [()] {
        let (from, to) = (get(from)?, positions(&get(to)?));
        for (at, rank) in ranks.slice(length(count)?)?.iter().enumerate() {
            if *rank == PROC_NULL {
                translated.set_at(at, PROC_NULL);
                continue;
            }
            let member = usize::try_from(*rank).ok().and_then(|rank| from.get(rank));
            let member = member.ok_or_else(|| Error::new(class::RANK, format!("the group has no rank {rank}")))?;
            translated.set_at(at, to.get(member).map_or(UNDEFINED, |at| *at as c_int));
        }
        Ok(())
    }

    fn MPI_Group_union(one: Group, other: Group, result: Out<Group>) [()] {
        let (one, other) = (get(one)?, get(other)?);
        let known = positions(&one);
        let more = other.iter().filter(|member| !known.contains_key(member));
        result.check()?.set(make(one.iter().chain(more).copied().collect()));
        Ok(())
    }

    fn MPI_Group_intersection(one: Group, other: Group, result: Out<Group>) [()] {
        let (one, other) = (get(one)?, positions(&get(other)?));
        let both = one.iter().filter(|member| other.contains_key(member));
        result.check()?.set(make(both.copied().collect()));
        Ok(())
    }

    fn MPI_Group_difference(one: Group, other: Group, result: Out<Group>) [()] {
        let (one, other) = (get(one)?, positions(&get(other)?));
        let rest = one.iter().filter(|member| !other.contains_key(member));
        result.check()?.set(make(rest.copied().collect()));
        Ok(())
    }

    fn MPI_Group_incl(group: Group, count: c_int, ranks: In<c_int>, result: Out<Group>) [()] {
        result.check()?.set(make(included(&get(group)?, ranks.slice(length(count)?)?)?));
        Ok(())
    }

    fn MPI_Group_excl(group: Group, count: c_int, ranks: In<c_int>, result: Out<Group>) [()] {
        result.check()?.set(make(excluded(&get(group)?, ranks.slice(length(count)?)?)?));
        Ok(())
    }

    fn MPI_Group_range_incl(group: Group, count: c_int, ranges: In<[c_int; 3]>, result: Out<Group>) [()] {
        let ranks = expanded(ranges.slice(length(count)?)?)?;
        result.check()?.set(make(included(&get(group)?, &ranks)?));
        Ok(())
    }

    fn MPI_Group_range_excl(group: Group, count: c_int, ranges: In<[c_int; 3]>, result: Out<Group>) [()] {
        let ranks = expanded(ranges.slice(length(count)?)?)?;
        result.check()?.set(make(excluded(&get(group)?, &ranks)?));
        Ok(())
    }
}
