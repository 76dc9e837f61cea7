//! Accesses: put, get, accumulate and their relatives; and how the rank that has the memory applies them.

use std::ffi::c_int;
use std::sync::Arc;

use dayfly_comm::detached::Turn;

use super::wire::{Kind, Request, Response};
use super::{Claim, State, WINDOW, Waiting, WindowObject, get, room_for, serve};
use crate::datatype::{self, TypeObject, count_of};
use crate::error::{Error, Result, class};
use crate::face::mpi;
use crate::handle::{Aint, Count, Datatype, Op, PROC_NULL, Request as Handle, Win};
use crate::interface::window::DYNAMIC;
use crate::op::{self, NO_OP, REPLACE, reduction};
use crate::pointer::{Buffer, Out};
use crate::realm::Control;
use crate::request::{Active, make};
use crate::status::Completion;

/// An access with a request of its own.
pub struct Pending {
    window: Arc<WindowObject>,
    id: u64,
}

impl Pending {
    /// The group whose engine it needs.
    pub fn control(&self) -> Result<Control> {
        self.window.comm.control()
    }

    /// Its outcome, if it has ended.
    pub fn poll(&self, turn: &mut Turn<'_>) -> Option<Result<()>> {
        serve(turn);
        self.window.state().outcome(self.id)
    }
}

/// One side of an access.
#[derive(Clone)]
struct Side {
    buffer: Buffer,
    count: usize,
    handle: Datatype,
    of: Arc<TypeObject>,
}

impl Side {
    fn new(buffer: Buffer, count: Count, handle: Datatype) -> Result<Self> {
        let of = datatype::get(handle)?;
        let count = count_of(count)?;
        Ok(Self {
            buffer,
            count,
            handle,
            of,
        })
    }

    /// Checks that a side of the other rank has room for this one.
    fn check_fits(&self, into: &Self) -> Result<()> {
        let (bytes, room) = (self.of.bytes(self.count)?, into.of.bytes(into.count)?);
        match bytes <= room {
            true => Ok(()),
            false => Err(Error::new(
                class::TRUNCATE,
                format!("an access moves {bytes} bytes, and the other side has room for {room}"),
            )),
        }
    }
}

/// The target of an access.
struct Target {
    window: Arc<WindowObject>,
    rank: usize,
    displacement: i64,
}

/// Checks a target; `None` for `MPI_PROC_NULL`.
fn target(window: Win, rank: c_int, displacement: Aint) -> Result<Option<Target>> {
    let window = get(window)?;
    if rank == PROC_NULL {
        return Ok(None);
    }
    if rank < 0 || rank as u32 >= window.comm.size() {
        return Err(Error::new(class::RANK, format!("the window has no rank {rank}")));
    }
    if displacement < 0 && window.flavor != DYNAMIC {
        return Err(Error::new(class::DISP, "the displacement is negative"));
    }
    Ok(Some(Target {
        window,
        rank: rank as usize,
        displacement: displacement as i64,
    }))
}

/// Starts an access. Returns its number.
fn start(target: &Target, mut request: Request, into: Option<Side>) -> Result<u64> {
    let window = &target.window;
    let control = window.comm.control()?;
    let mut turn = control.turn();
    let mut state = window.state();
    request.id = state.id();
    request.displacement = target.displacement;
    let id = request.id;
    state.waiting.insert(
        id,
        Waiting {
            target: target.rank,
            into: into.map(|side| (side.buffer, side.count, side.of)),
        },
    );
    window.request(&mut state, &mut turn, target.rank, &request)?;
    // This rank applies an access to its own memory at once.
    match state.failures.remove(&WINDOW).or_else(|| state.failures.remove(&id)) {
        Some(error) => Err(error),
        None => Ok(id),
    }
}

fn put(from: &Side, into: &Side) -> Request {
    Request {
        runs: into.of.element_runs(into.count),
        data: from.of.pack_elements(from.buffer, from.count),
        ..Request::new(Kind::Put, 0)
    }
}

/// The predefined datatype of all elements.
fn leaf(of: &Side) -> Result<Datatype> {
    of.of.leaf().ok_or_else(|| {
        Error::new(
            class::TYPE,
            "the elements of an accumulation have one predefined datatype",
        )
    })
}

fn accumulate(kind: Kind, from: &Side, into: &Side, op: Op) -> Result<Request> {
    let leaf = leaf(into)?;
    if !matches!(op, REPLACE | NO_OP) {
        // The operation must be predefined, and defined for the elements.
        if !op::is_predefined(op) {
            return Err(Error::new(class::OP, "an accumulation has a predefined operation"));
        }
        reduction(op, leaf, &datatype::get(leaf)?)?;
    }
    let data = if op == NO_OP {
        Vec::new()
    } else {
        from.check_fits(into)?;
        from.of.pack_elements(from.buffer, from.count)
    };
    Ok(Request {
        operation: op.0,
        element: leaf.0,
        runs: into.of.element_runs(into.count),
        data,
        ..Request::new(kind, 0)
    })
}

/// A handle for an access, which may be none at all.
fn later(started: Option<(Target, u64)>, handle: Out<Handle>) -> Result<()> {
    let active = match started {
        Some((target, id)) => Active::Window(Pending {
            window: target.window,
            id,
        }),
        None => Active::Over(Completion::empty()),
    };
    handle.check()?.set(make(active));
    Ok(())
}

type Started = Result<Option<(Target, u64)>>;

fn start_put(from: Result<Side>, into: Result<Side>, target: Result<Option<Target>>) -> Started {
    let (from, into) = (from?, into?);
    from.check_fits(&into)?;
    let Some(target) = target? else {
        return Ok(None);
    };
    let id = start(&target, put(&from, &into), None)?;
    Ok(Some((target, id)))
}

fn start_get(into: Result<Side>, from: Result<Side>, target: Result<Option<Target>>) -> Started {
    let (into, from) = (into?, from?);
    from.check_fits(&into)?;
    let Some(target) = target? else {
        return Ok(None);
    };
    let request = Request {
        runs: from.of.element_runs(from.count),
        ..Request::new(Kind::Get, 0)
    };
    let id = start(&target, request, Some(into))?;
    Ok(Some((target, id)))
}

fn start_accumulate(from: Result<Side>, into: Result<Side>, op: Op, target: Result<Option<Target>>) -> Started {
    let (from, into) = (from?, into?);
    let request = accumulate(Kind::Accumulate, &from, &into, op)?;
    let Some(target) = target? else {
        return Ok(None);
    };
    let id = start(&target, request, None)?;
    Ok(Some((target, id)))
}

fn start_get_accumulate(
    from: Result<Side>,
    result: Result<Side>,
    into: Result<Side>,
    op: Op,
    target: Result<Option<Target>>,
) -> Started {
    let result = result?;
    // Without an operation, the origin's arguments mean nothing.
    let into = into?;
    into.check_fits(&result)?;
    let from = if op == NO_OP { into.clone() } else { from? };
    let request = accumulate(Kind::GetAccumulate, &from, &into, op)?;
    let Some(target) = target? else {
        return Ok(None);
    };
    let id = start(&target, request, Some(result))?;
    Ok(Some((target, id)))
}

fn elements(runs: &[(isize, usize)], start: usize, mut see: impl FnMut(Buffer, usize)) {
    for (offset, length) in runs {
        see(Buffer::new(start.wrapping_add_signed(*offset) as *mut _), *length);
    }
}

impl WindowObject {
    /// The address that a request begins at, if each of its runs lies in the window. The request may come from a peer
    /// that sends anything.
    fn place(&self, state: &State, request: &Request) -> Result<usize> {
        let outside = || Error::new(class::RMA_RANGE, "the access lies outside of the window");
        let is_dynamic = self.flavor == DYNAMIC;
        let start = match is_dynamic {
            true => request.displacement,
            false => {
                let unit = i64::try_from(self.memory.unit).map_err(|_| outside())?;
                request.displacement.checked_mul(unit).ok_or_else(outside)?
            }
        };
        let lies_inside = |(offset, length): &(isize, usize)| {
            // Addresses are unsigned: a run may begin above the middle of them.
            let first = match is_dynamic {
                true => (start as usize).checked_add_signed(*offset),
                false => start
                    .checked_add(*offset as i64)
                    .and_then(|first| usize::try_from(first).ok()),
            };
            let ends = first.and_then(|first| Some((first, first.checked_add(*length)?)));
            ends.is_some_and(|(first, end)| match is_dynamic {
                true => state.is_attached(first, end),
                false => end <= self.memory.size,
            })
        };
        let fits = request.is_sound() && request.runs.iter().all(|run| run.1 == 0 || lies_inside(run));
        let base = if is_dynamic { 0 } else { self.memory.base };
        fits.then_some(base.wrapping_add_signed(start as isize))
            .ok_or_else(outside)
    }

    /// Applies a request of another rank, or of this one.
    pub(super) fn apply(&self, state: &mut State, turn: &mut Turn<'_>, source: usize, request: &Request) -> Result<()> {
        let claim = |is_exclusive| Claim {
            rank: source,
            id: request.id,
            is_exclusive,
        };
        match request.kind {
            Kind::Lock | Kind::LockExclusive => {
                state.queue.push_back(claim(request.kind == Kind::LockExclusive));
                return self.grant(state, turn);
            }
            Kind::Unlock => {
                if let Some(at) = state.holders.iter().position(|holder| holder.rank == source) {
                    state.holders.remove(at);
                }
                self.answer(state, turn, source, request.id, Ok(Vec::new()))?;
                return self.grant(state, turn);
            }
            Kind::Post => {
                *state.posts.entry(source).or_default() += 1;
                return Ok(());
            }
            Kind::Complete => {
                *state.completes.entry(source).or_default() += 1;
                return Ok(());
            }
            _ => {}
        }
        let outcome = self.place(state, request).and_then(|start| access(request, start));
        self.answer(state, turn, source, request.id, outcome)
    }

    fn answer(
        &self,
        state: &mut State,
        turn: &mut Turn<'_>,
        to: usize,
        id: u64,
        outcome: Result<Vec<u8>>,
    ) -> Result<()> {
        let (bytes, error) = match outcome {
            Ok(bytes) => (bytes, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        self.respond(state, turn, to, Response { id, error, bytes })
    }

    /// Grants the locks that can be granted, in the order in which they were wanted.
    fn grant(&self, state: &mut State, turn: &mut Turn<'_>) -> Result<()> {
        while let Some(claim) = state.queue.front().copied() {
            let is_free = match claim.is_exclusive {
                true => state.holders.is_empty(),
                false => state.holders.iter().all(|holder| !holder.is_exclusive),
            };
            if !is_free {
                break;
            }
            state.queue.pop_front();
            state.holders.push(claim);
            self.answer(state, turn, claim.rank, claim.id, Ok(Vec::new()))?;
        }
        Ok(())
    }
}

/// Applies an access to memory. Returns the bytes that the other rank gets.
fn access(request: &Request, start: usize) -> Result<Vec<u8>> {
    let read = || {
        // Runs may overlap, and so be longer together than the window.
        let length = request.length().unwrap_or(usize::MAX);
        let mut old = room_for(length)?;
        elements(&request.runs, start, |place, length| old.extend(place.bytes(length)));
        Ok(old)
    };
    let write = |bytes: &[u8]| {
        let mut rest = bytes;
        elements(&request.runs, start, |place, length| {
            let (from, after) = rest.split_at(length.min(rest.len()));
            place.bytes_mut(from.len()).copy_from_slice(from);
            rest = after;
        });
    };
    match request.kind {
        Kind::Get => read(),
        Kind::Put => {
            write(&request.data);
            Ok(Vec::new())
        }
        Kind::CompareAndSwap => {
            let old = read()?;
            let (compare, new) = request.data.split_at(request.data.len() / 2);
            if old == compare {
                write(new);
            }
            Ok(old)
        }
        _ => {
            let old = if request.kind == Kind::GetAccumulate {
                read()?
            } else {
                Vec::new()
            };
            match Op(request.operation) {
                NO_OP => {}
                REPLACE => write(&request.data),
                op => {
                    let handle = Datatype(request.element);
                    let by = reduction(op, handle, &datatype::get(handle)?)?;
                    let mut new = read()?;
                    let length = new.len().min(request.data.len()) / by.bytes.max(1) * by.bytes;
                    by.operation
                        .combine(&request.data[..length], &mut new[..length], by.element);
                    write(&new);
                }
            }
            Ok(old)
        }
    }
}

mpi! {
    fn MPI_Put / MPI_Put_c (
        buffer: Buffer, count: N, datatype: Datatype, rank: c_int, displacement: Aint, room: N, of: Datatype, win: Win
    ) [win] {
        let sides = (Side::new(buffer, count as Count, datatype), Side::new(Buffer::NULL, room as Count, of));
        start_put(sides.0, sides.1, target(win, rank, displacement)).map(|_| ())
    }

    fn MPI_Rput / MPI_Rput_c (
        buffer: Buffer, count: N, datatype: Datatype, rank: c_int, displacement: Aint, room: N, of: Datatype, win: Win,
        handle: Out<Handle>
    ) [win] {
        let sides = (Side::new(buffer, count as Count, datatype), Side::new(Buffer::NULL, room as Count, of));
        later(start_put(sides.0, sides.1, target(win, rank, displacement))?, handle)
    }

    fn MPI_Get / MPI_Get_c (
        buffer: Buffer, count: N, datatype: Datatype, rank: c_int, displacement: Aint, room: N, of: Datatype, win: Win
    ) [win] {
        let sides = (Side::new(buffer, count as Count, datatype), Side::new(Buffer::NULL, room as Count, of));
        start_get(sides.0, sides.1, target(win, rank, displacement)).map(|_| ())
    }

    fn MPI_Rget / MPI_Rget_c (
        buffer: Buffer, count: N, datatype: Datatype, rank: c_int, displacement: Aint, room: N, of: Datatype, win: Win,
        handle: Out<Handle>
    ) [win] {
        let sides = (Side::new(buffer, count as Count, datatype), Side::new(Buffer::NULL, room as Count, of));
        later(start_get(sides.0, sides.1, target(win, rank, displacement))?, handle)
    }

    fn MPI_Accumulate / MPI_Accumulate_c (
        buffer: Buffer, count: N, datatype: Datatype, rank: c_int, displacement: Aint, room: N, of: Datatype, op: Op,
        win: Win
    ) [win] {
        let sides = (Side::new(buffer, count as Count, datatype), Side::new(Buffer::NULL, room as Count, of));
        start_accumulate(sides.0, sides.1, op, target(win, rank, displacement)).map(|_| ())
    }

    fn MPI_Raccumulate / MPI_Raccumulate_c (
        buffer: Buffer, count: N, datatype: Datatype, rank: c_int, displacement: Aint, room: N, of: Datatype, op: Op,
        win: Win, handle: Out<Handle>
    ) [win] {
        let sides = (Side::new(buffer, count as Count, datatype), Side::new(Buffer::NULL, room as Count, of));
        later(start_accumulate(sides.0, sides.1, op, target(win, rank, displacement))?, handle)
    }

    fn MPI_Get_accumulate / MPI_Get_accumulate_c (
        buffer: Buffer, count: N, datatype: Datatype, result: Buffer, result_count: N, result_type: Datatype,
        rank: c_int, displacement: Aint, room: N, of: Datatype, op: Op, win: Win
    ) [win] {
        let result = Side::new(result, result_count as Count, result_type);
        let sides = (Side::new(buffer, count as Count, datatype), Side::new(Buffer::NULL, room as Count, of));
        start_get_accumulate(sides.0, result, sides.1, op, target(win, rank, displacement)).map(|_| ())
    }

    fn MPI_Rget_accumulate / MPI_Rget_accumulate_c (
        buffer: Buffer, count: N, datatype: Datatype, result: Buffer, result_count: N, result_type: Datatype,
        rank: c_int, displacement: Aint, room: N, of: Datatype, op: Op, win: Win, handle: Out<Handle>
    ) [win] {
        let result = Side::new(result, result_count as Count, result_type);
        let sides = (Side::new(buffer, count as Count, datatype), Side::new(Buffer::NULL, room as Count, of));
        later(start_get_accumulate(sides.0, result, sides.1, op, target(win, rank, displacement))?, handle)
    }

    fn MPI_Fetch_and_op (
        buffer: Buffer, result: Buffer, datatype: Datatype, rank: c_int, displacement: Aint, op: Op, win: Win
    ) [win] {
        let side = |buffer| Side::new(buffer, 1, datatype);
        let place = target(win, rank, displacement);
        start_get_accumulate(side(buffer), side(result), side(Buffer::NULL), op, place).map(|_| ())
    }

    fn MPI_Compare_and_swap (
        buffer: Buffer, compare: Buffer, result: Buffer, datatype: Datatype, rank: c_int, displacement: Aint, win: Win
    ) [win] {
        let result = Side::new(result, 1, datatype)?;
        if result.of.predefined.is_none() {
            return Err(Error::new(class::TYPE, "a comparison has a predefined datatype"));
        }
        let Some(target) = target(win, rank, displacement)? else {
            return Ok(());
        };
        let mut data = result.of.pack_elements(compare, 1);
        data.extend(result.of.pack_elements(buffer, 1));
        let request = Request {
            element: result.handle.0,
            runs: result.of.element_runs(1),
            data,
            ..Request::new(Kind::CompareAndSwap, 0)
        };
        start(&target, request, Some(result)).map(|_| ())
    }
}
