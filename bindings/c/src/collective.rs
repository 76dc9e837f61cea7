//! Collective operations of a group: barrier and data movement. Reductions are in [`reduction`].

use std::ffi::c_void;
use std::ops::Range;

use dayfly_client::Error;
use dayfly_comm::{Datatype, Operation};

use crate::group::dfly_group;
use crate::handle::{get, give};
use crate::memory::{Memory, bytes};
use crate::operation::{datatype, operation};
use crate::request::dfly_request;
use crate::status::{dfly_status, guard, misuse};

/// Memory of a collective.
struct Work {
    own: Memory,
    into: Memory,
    /// Byte range of each rank's block, if the blocks differ in length: of the input, and of the output.
    sent: Vec<Range<usize>>,
    received: Vec<Range<usize>>,
    /// Length in bytes of each rank's part of the result.
    counts: Vec<usize>,
    operation: Operation,
}

impl Work {
    /// The collective reads `own` and writes `into`. If they overlap, `own` is copied.
    fn new(own: Memory, into: Memory) -> Self {
        Self {
            own: own.beside(&into),
            into,
            sent: Vec::new(),
            received: Vec::new(),
            counts: Vec::new(),
            operation: Operation::Sum,
        }
    }

    fn reducing(self, number: u32) -> Result<Self, Error> {
        Ok(Self {
            operation: operation(number)?,
            ..self
        })
    }
}

/// The body of a collective's function: prepares its memory, then runs it to completion with `$now`, or in the background
/// with `$later` if `$request` is not null. `$work` may use the checked `$group` and `$datatype`.
macro_rules! collective {
    (
        $group:ident,
        $datatype:ident,
        $request:ident,
        $now:ident or $later:ident,
        |$of:ident| ($($argument:expr),*),
        $work:expr
    ) => {
        guard(|| {
            // SAFETY: as the caller promises.
            let $group = unsafe { get($group) }?;
            let $datatype = datatype($datatype)?;
            let mut work: Work = $work;
            if $request.is_null() {
                let $of = &mut work;
                $group.state.communicator.$now($($argument),*).map_err(Error)?;
            } else {
                // SAFETY: a place for a pointer, as the caller promises.
                unsafe {
                    give($request, || {
                        dfly_request::start($group, work, |scope, $of| scope.$later($($argument),*))
                    })
                }?;
            }
            Ok(())
        })
    };
}

mod reduction;

#[cfg(test)]
pub use reduction::*;

/// Returns the byte range of each rank's block. Without displacements the blocks are contiguous.
///
/// # Safety
/// Both point to a number for each rank of the group, unless they are null.
unsafe fn blocks(
    group: &dfly_group,
    counts: *const usize,
    displacements: *const usize,
    datatype: Datatype,
) -> Result<Vec<Range<usize>>, Error> {
    // SAFETY: as the caller promises.
    let counts = unsafe { numbers(group, counts) }?;
    let mut next = 0;
    let mut blocks = Vec::with_capacity(counts.len());
    for (rank, count) in counts.iter().enumerate() {
        let start = if displacements.is_null() {
            next
        } else {
            // SAFETY: as the caller promises.
            unsafe { *displacements.add(rank) }
        };
        next = start
            .checked_add(*count)
            .ok_or_else(|| misuse(format!("the block of rank {rank} ends beyond all memory")))?;
        blocks.push(bytes(start, datatype)?..bytes(next, datatype)?);
    }
    Ok(blocks)
}

/// # Safety
/// `counts` points to a number for each rank of the group, unless it is null.
unsafe fn numbers(group: &dfly_group, counts: *const usize) -> Result<&[usize], Error> {
    if counts.is_null() {
        return Err(misuse("the counts are NULL; give one for each rank"));
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { std::slice::from_raw_parts(counts, group.state.communicator.size() as usize) })
}

/// Memory from `start` that covers all blocks.
fn around(start: *const c_void, blocks: &[Range<usize>], what: &str) -> Result<Memory, Error> {
    let length = blocks.iter().map(|block| block.end).max().unwrap_or(0);
    Memory::of(start, length, Datatype::Bytes, what)
}

impl dfly_group {
    /// Memory of `count` elements for each rank.
    fn all(&self, start: *const c_void, count: usize, datatype: Datatype, what: &str) -> Result<Memory, Error> {
        let ranks = self.state.communicator.size() as usize;
        let total = count.checked_mul(ranks);
        let total = total.ok_or_else(|| misuse(format!("{count} elements for each of {ranks} ranks are too many")))?;
        Memory::of(start, total, datatype, what)
    }

    fn is_root(&self, root: u32) -> bool {
        self.state.communicator.rank() == root
    }
}

const OWN: &str = "the input of this rank";
const INTO: &str = "the memory for the result";

/// Blocks until all ranks have called it. `request` may be NULL.
///
/// # Safety
/// `group` is a group, `request` NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_group_barrier(group: *const dfly_group, request: *mut *mut dfly_request) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let group = unsafe { get(group) }?;
        if request.is_null() {
            return Ok(group.state.communicator.barrier().map_err(Error)?);
        }
        // SAFETY: as the caller promises.
        unsafe { give(request, || dfly_request::start(group, (), |scope, ()| scope.ibarrier())) }?;
        Ok(())
    })
}

/// Copies the root's `count` elements to all ranks. `request` may be NULL.
///
/// # Safety
/// `group` is a group, `data` points to `count` elements, `request` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_group_bcast(
    group: *const dfly_group,
    data: *mut c_void,
    count: usize,
    datatype: u32,
    root: u32,
    request: *mut *mut dfly_request,
) -> dfly_status {
    collective!(group, datatype, request, bcast or ibcast, |work| (work.into.bytes_mut(), root), {
        let data = Memory::of(data, count, datatype, "the buffer")?;
        Work::new(Memory::NONE, data)
    })
}

/// Gathers `count` elements from every rank to the root, in the order of the ranks. `into` has room for `count`
/// elements of each rank; it is used at the root only and may be NULL elsewhere. `request` may be NULL.
///
/// # Safety
/// `group` is a group, `own` points to `count` elements, `into` at the root to room for as many of each rank, `request`
/// is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_group_gather(
    group: *const dfly_group,
    own: *const c_void,
    count: usize,
    datatype: u32,
    into: *mut c_void,
    root: u32,
    request: *mut *mut dfly_request,
) -> dfly_status {
    collective!(group, datatype, request, gather or igather, |work| (work.own.bytes(), work.into.bytes_mut(), root), {
        let into = match group.is_root(root) {
            true => group.all(into, count, datatype, INTO)?,
            false => Memory::NONE,
        };
        Work::new(Memory::of(own, count, datatype, OWN)?, into)
    })
}

/// As `dfly_group_gather`, with a different number of elements from each rank. The `counts[i]` elements of rank i are
/// written from element `displacements[i]` of `into`. If `displacements` is NULL, the blocks are contiguous. `into`,
/// `counts` and `displacements` are used at the root only. `request` may be NULL.
///
/// # Safety
/// `group` is a group, `own` points to `count` elements, `into` at the root to room for all, `counts` and
/// `displacements` there to a number for each rank or are NULL, `request` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_group_gatherv(
    group: *const dfly_group,
    own: *const c_void,
    count: usize,
    datatype: u32,
    into: *mut c_void,
    counts: *const usize,
    displacements: *const usize,
    root: u32,
    request: *mut *mut dfly_request,
) -> dfly_status {
    collective!(group, datatype, request, gatherv or igatherv, |work| (work.own.bytes(), work.into.bytes_mut(), &work.received, root), {
        let received = match group.is_root(root) {
            // SAFETY: as the caller promises.
            true => unsafe { blocks(group, counts, displacements, datatype) }?,
            false => Vec::new(),
        };
        let into = around(into, &received, INTO)?;
        Work {
            received,
            ..Work::new(Memory::of(own, count, datatype, OWN)?, into)
        }
    })
}

/// Distributes the root's elements: rank i receives the i-th block of `count` elements. `all` is used at the root only
/// and may be NULL elsewhere. `request` may be NULL.
///
/// # Safety
/// `group` is a group, `into` has room for `count` elements, `all` points at the root to as many for each rank,
/// `request` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_group_scatter(
    group: *const dfly_group,
    all: *const c_void,
    into: *mut c_void,
    count: usize,
    datatype: u32,
    root: u32,
    request: *mut *mut dfly_request,
) -> dfly_status {
    collective!(group, datatype, request, scatter or iscatter, |work| (work.own.bytes(), work.into.bytes_mut(), root), {
        let all = match group.is_root(root) {
            true => group.all(all, count, datatype, OWN)?,
            false => Memory::NONE,
        };
        Work::new(all, Memory::of(into, count, datatype, INTO)?)
    })
}

/// As `dfly_group_scatter`, with a different number of elements for each rank. Rank i receives `counts[i]` elements
/// from element `displacements[i]` of `all`. If `displacements` is NULL, the blocks are contiguous. `all`, `counts` and
/// `displacements` are used at the root only. `count` is the number of elements that this rank receives. `request` may
/// be NULL.
///
/// # Safety
/// `group` is a group, `into` has room for `count` elements, `all` points at the root to all of them, `counts` and
/// `displacements` there to a number for each rank or are NULL, `request` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_group_scatterv(
    group: *const dfly_group,
    all: *const c_void,
    counts: *const usize,
    displacements: *const usize,
    into: *mut c_void,
    count: usize,
    datatype: u32,
    root: u32,
    request: *mut *mut dfly_request,
) -> dfly_status {
    collective!(group, datatype, request, scatterv or iscatterv, |work| (work.own.bytes(), &work.sent, work.into.bytes_mut(), root), {
        let sent = match group.is_root(root) {
            // SAFETY: as the caller promises.
            true => unsafe { blocks(group, counts, displacements, datatype) }?,
            false => Vec::new(),
        };
        let all = around(all, &sent, OWN)?;
        Work {
            sent,
            ..Work::new(all, Memory::of(into, count, datatype, INTO)?)
        }
    })
}

/// Gathers `count` elements from every rank to all ranks, in the order of the ranks. `request` may be NULL.
///
/// # Safety
/// `group` is a group, `own` points to `count` elements, `into` to room for as many of each rank, `request` is NULL or
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_group_allgather(
    group: *const dfly_group,
    own: *const c_void,
    count: usize,
    datatype: u32,
    into: *mut c_void,
    request: *mut *mut dfly_request,
) -> dfly_status {
    collective!(group, datatype, request, allgather or iallgather, |work| (work.own.bytes(), work.into.bytes_mut()), {
        let into = group.all(into, count, datatype, INTO)?;
        Work::new(Memory::of(own, count, datatype, OWN)?, into)
    })
}

/// As `dfly_group_allgather`, with a different number of elements from each rank; `counts` and `displacements` as in
/// `dfly_group_gatherv`. They must be equal on all ranks. `request` may be NULL.
///
/// # Safety
/// `group` is a group, `own` points to `count` elements, `into` to room for all, `counts` and `displacements` to a
/// number for each rank or are NULL, `request` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_group_allgatherv(
    group: *const dfly_group,
    own: *const c_void,
    count: usize,
    datatype: u32,
    into: *mut c_void,
    counts: *const usize,
    displacements: *const usize,
    request: *mut *mut dfly_request,
) -> dfly_status {
    collective!(group, datatype, request, allgatherv or iallgatherv, |work| (work.own.bytes(), work.into.bytes_mut(), &work.received), {
        // SAFETY: as the caller promises.
        let received = unsafe { blocks(group, counts, displacements, datatype) }?;
        let into = around(into, &received, INTO)?;
        Work {
            received,
            ..Work::new(Memory::of(own, count, datatype, OWN)?, into)
        }
    })
}

/// Sends the i-th block of `count` elements of `own` to rank i, and receives a block from every rank. `request` may be
/// NULL.
///
/// # Safety
/// `group` is a group, `own` points to `count` elements for each rank, `into` to room for as many, `request` is NULL or
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_group_alltoall(
    group: *const dfly_group,
    own: *const c_void,
    into: *mut c_void,
    count: usize,
    datatype: u32,
    request: *mut *mut dfly_request,
) -> dfly_status {
    collective!(group, datatype, request, alltoall or ialltoall, |work| (work.own.bytes(), work.into.bytes_mut()), {
        let into = group.all(into, count, datatype, INTO)?;
        Work::new(group.all(own, count, datatype, OWN)?, into)
    })
}

/// As `dfly_group_alltoall`, with a different number of elements for each pair of ranks. Sends `sent[i]` elements to
/// rank i, from element `sent_displacements[i]` of `own`. Writes the `received[i]` elements from rank i at element
/// `received_displacements[i]` of `into`. If displacements are NULL, the blocks are contiguous. `request` may be NULL.
///
/// # Safety
/// `group` is a group, `own` and `into` point to all elements, the counts and displacements to a number for each rank
/// (the latter may be NULL), `request` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_group_alltoallv(
    group: *const dfly_group,
    own: *const c_void,
    sent: *const usize,
    sent_displacements: *const usize,
    into: *mut c_void,
    received: *const usize,
    received_displacements: *const usize,
    datatype: u32,
    request: *mut *mut dfly_request,
) -> dfly_status {
    collective!(group, datatype, request, alltoallv or ialltoallv, |work| (work.own.bytes(), &work.sent, work.into.bytes_mut(), &work.received), {
        // SAFETY: as the caller promises.
        let (sent, received) = unsafe {
            (
                blocks(group, sent, sent_displacements, datatype)?,
                blocks(group, received, received_displacements, datatype)?,
            )
        };
        let (own, into) = (around(own, &sent, OWN)?, around(into, &received, INTO)?);
        Work {
            sent,
            received,
            ..Work::new(own, into)
        }
    })
}
