//! Reductions of a group.

use std::ffi::c_void;
use std::ops::Range;

use dayfly_client::Error;
use dayfly_comm::Datatype;

use super::{INTO, OWN, Work, around, blocks};
use crate::group::dfly_group;
use crate::handle::{get, give};
use crate::memory::Memory;
use crate::operation::datatype;
use crate::request::dfly_request;
use crate::status::{dfly_status, guard};

/// Reduces the elements of all ranks to the root. `into` is used at the root only and may be NULL elsewhere. `request`
/// may be NULL.
///
/// # Safety
/// `group` is a group, `own` points to `count` elements, `into` at the root to room for as many, `request` is NULL or
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_group_reduce(
    group: *const dfly_group,
    own: *const c_void,
    into: *mut c_void,
    count: usize,
    datatype: u32,
    operation: u32,
    root: u32,
    request: *mut *mut dfly_request,
) -> dfly_status {
    collective!(group, datatype, request, reduce or ireduce, |work| (work.into.bytes_mut(), datatype, &work.operation, root), {
        let own = Memory::of(own, count, datatype, OWN)?;
        let into = if group.is_root(root) {
            let mut into = Memory::of(into, count, datatype, INTO)?;
            into.fill_from(&own);
            into
        } else {
            // Other ranks reduce in temporary memory.
            own.copied()
        };
        Work::new(Memory::NONE, into).reducing(operation)?
    })
}

/// Reduces the elements of all ranks to all ranks. `request` may be NULL.
///
/// # Safety
/// `group` is a group, `own` points to `count` elements, `into` to room for as many, `request` is NULL or
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_group_allreduce(
    group: *const dfly_group,
    own: *const c_void,
    into: *mut c_void,
    count: usize,
    datatype: u32,
    operation: u32,
    request: *mut *mut dfly_request,
) -> dfly_status {
    collective!(group, datatype, request, allreduce or iallreduce, |work| (work.own.bytes(), work.into.bytes_mut(), datatype, &work.operation), {
        let into = Memory::of(into, count, datatype, INTO)?;
        Work::new(Memory::of(own, count, datatype, OWN)?, into).reducing(operation)?
    })
}

/// Reduces the elements of all ranks; rank i receives `counts[i]` elements of the result. `counts` must be equal on all
/// ranks. `request` may be NULL.
///
/// # Safety
/// `group` is a group, `counts` points to a number for each rank, `own` to as many elements as these add up to, `into`
/// to room for this rank's, `request` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_group_reduce_scatter(
    group: *const dfly_group,
    own: *const c_void,
    into: *mut c_void,
    counts: *const usize,
    datatype: u32,
    operation: u32,
    request: *mut *mut dfly_request,
) -> dfly_status {
    collective!(group, datatype, request, reduce_scatter or ireduce_scatter, |work| (work.own.bytes(), work.into.bytes_mut(), &work.counts, datatype, &work.operation), {
        // SAFETY: as the caller promises.
        let blocks = unsafe { blocks(group, counts, std::ptr::null(), datatype) }?;
        let counts: Vec<usize> = blocks.iter().map(Range::len).collect();
        let due = counts[group.state.communicator.rank() as usize];
        let into = Memory::of(into, due, Datatype::Bytes, INTO)?;
        Work {
            counts,
            ..Work::new(around(own, &blocks, OWN)?, into).reducing(operation)?
        }
    })
}

/// Inclusive prefix reduction: reduces the elements of ranks 0 to this rank. `request` may be NULL.
///
/// # Safety
/// `group` is a group, `own` points to `count` elements, `into` to room for as many, `request` is NULL or
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_group_scan(
    group: *const dfly_group,
    own: *const c_void,
    into: *mut c_void,
    count: usize,
    datatype: u32,
    operation: u32,
    request: *mut *mut dfly_request,
) -> dfly_status {
    collective!(group, datatype, request, scan or iscan, |work| (work.into.bytes_mut(), datatype, &work.operation), {
        let mut into = Memory::of(into, count, datatype, INTO)?;
        into.fill_from(&Memory::of(own, count, datatype, OWN)?);
        Work::new(Memory::NONE, into).reducing(operation)?
    })
}

/// Exclusive prefix reduction: reduces the elements of the ranks before this one. `into` of rank 0 is not changed.
/// `request` may be NULL.
///
/// # Safety
/// `group` is a group, `own` points to `count` elements, `into` to room for as many, `request` is NULL or
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_group_exscan(
    group: *const dfly_group,
    own: *const c_void,
    into: *mut c_void,
    count: usize,
    datatype: u32,
    operation: u32,
    request: *mut *mut dfly_request,
) -> dfly_status {
    collective!(group, datatype, request, exscan or iexscan, |work| (work.own.bytes(), work.into.bytes_mut(), datatype, &work.operation), {
        let into = Memory::of(into, count, datatype, INTO)?;
        Work::new(Memory::of(own, count, datatype, OWN)?, into).reducing(operation)?
    })
}
