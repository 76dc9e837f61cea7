//! Accesses: put, get, accumulate and their relatives; and how the rank that has the memory applies them.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dayfly_comm::detached::Turn;

use super::shared::{Part, outside};
use super::wire::{Kind, Request, Response};
use super::{Claim, State, WINDOW, Waiting, WindowObject, get, room_for, serve};
use crate::datatype::{self, TypeObject, count_of};
use crate::errhandler::Place;
use crate::error::{Error, Result, class};
use crate::face::mpi;
use crate::handle::{Aint, Count, Datatype, Op, PROC_NULL, Request as Handle, Win};
use crate::interface::window::DYNAMIC;
use crate::op::{self, NO_OP, REPLACE, Reduction, reduction};
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

    /// Where its errors are raised.
    pub fn place(&self) -> Option<Place> {
        Some(Win(self.window.handle.load(Ordering::Acquire)).into())
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

    /// Where its bytes begin and how many they are, as accesses transfer them, if they lie in one run.
    fn dense(&self) -> Option<(isize, usize)> {
        self.of.element_span(self.count)
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

/// How an accumulation changes memory.
struct Change {
    op: Op,
    /// The predefined datatype of the elements.
    leaf: Datatype,
    /// `None` for those that only replace, or do nothing.
    by: Option<Reduction>,
}

/// Checks an accumulation.
fn change(from: &Side, into: &Side, op: Op) -> Result<Change> {
    let leaf = leaf(into)?;
    let by = match op {
        REPLACE | NO_OP => None,
        // The operation must be predefined, and defined for the elements.
        op if !op::is_predefined(op) => {
            return Err(Error::new(class::OP, "an accumulation has a predefined operation"));
        }
        op => Some(reduction(op, leaf, &datatype::get(leaf)?)?),
    };
    if op != NO_OP {
        from.check_fits(into)?;
    }
    Ok(Change { op, leaf, by })
}

impl Change {
    fn request(&self, kind: Kind, from: &Side, into: &Side) -> Request {
        let data = match self.op {
            NO_OP => Vec::new(),
            _ => from.of.pack_elements(from.buffer, from.count),
        };
        Request {
            operation: self.op.0,
            element: self.leaf.0,
            runs: into.of.element_runs(into.count),
            data,
            ..Request::new(kind, 0)
        }
    }
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

/// An access that has begun and not ended, and its number; `None` if it is over.
type Started = Result<Option<(Target, u64)>>;

fn start_put(from: Result<Side>, into: Result<Side>, target: Result<Option<Target>>) -> Started {
    let (from, into) = (from?, into?);
    from.check_fits(&into)?;
    let Some(target) = target? else {
        return Ok(None);
    };
    if let Some(part) = target.part() {
        let ends = (from.dense(), into.dense());
        let (Some((start, length)), Some((at, room))) = ends else {
            target.apply_here(&put(&from, &into), None)?;
            return Ok(None);
        };
        let place = part.place(target.displacement, at, length.min(room))?;
        copy(
            from.buffer.address().wrapping_add_signed(start),
            place.wrapping_add_signed(at),
            length.min(room),
        );
        return Ok(None);
    }
    let id = start(&target, put(&from, &into), None)?;
    Ok(Some((target, id)))
}

fn start_get(into: Result<Side>, from: Result<Side>, target: Result<Option<Target>>) -> Started {
    let (into, from) = (into?, from?);
    from.check_fits(&into)?;
    let Some(target) = target? else {
        return Ok(None);
    };
    let request = || Request {
        runs: from.of.element_runs(from.count),
        ..Request::new(Kind::Get, 0)
    };
    if let Some(part) = target.part() {
        let ends = (from.dense(), into.dense());
        let (Some((at, length)), Some((start, room))) = ends else {
            target.apply_here(&request(), Some(&into))?;
            return Ok(None);
        };
        let place = part.place(target.displacement, at, length)?;
        copy(
            place.wrapping_add_signed(at),
            into.buffer.address().wrapping_add_signed(start),
            length.min(room),
        );
        return Ok(None);
    }
    let request = request();
    let id = start(&target, request, Some(into))?;
    Ok(Some((target, id)))
}

fn start_accumulate(from: Result<Side>, into: Result<Side>, op: Op, target: Result<Option<Target>>) -> Started {
    let (from, into) = (from?, into?);
    let change = change(&from, &into, op)?;
    let Some(target) = target? else {
        return Ok(None);
    };
    if target.part().is_some() {
        target.accumulate_here(&from, None, &into, &change)?;
        return Ok(None);
    }
    let id = start(&target, change.request(Kind::Accumulate, &from, &into), None)?;
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
    let change = change(&from, &into, op)?;
    let Some(target) = target? else {
        return Ok(None);
    };
    if target.part().is_some() {
        target.accumulate_here(&from, Some(&result), &into, &change)?;
        return Ok(None);
    }
    let request = change.request(Kind::GetAccumulate, &from, &into);
    let id = start(&target, request, Some(result))?;
    Ok(Some((target, id)))
}

/// Copies between memory that the program lends and a window.
fn copy(from: usize, into: usize, length: usize) {
    // SAFETY: the caller lends one of the ranges for the access, and the other was found to lie in the window's memory,
    // which stays mapped as long as the window. Other ranks may write there at the same time; then the bytes are any.
    unsafe { std::ptr::copy(from as *const u8, into as *mut u8, length) };
}

impl Target {
    /// The target's memory, if this rank reads and writes it itself.
    fn part(&self) -> Option<Part> {
        let shared = self.window.shared.as_ref()?;
        shared.parts.get(self.rank).copied()
    }

    /// Applies an access to memory that this rank reaches itself.
    fn apply_here(&self, request: &Request, into: Option<&Side>) -> Result<()> {
        let (Some(shared), Some(part)) = (&self.window.shared, self.part()) else {
            return Ok(());
        };
        let (low, length) = bounds(&request.runs).ok_or_else(outside)?;
        let start = part.place(self.displacement, low, length)?;
        let is_atomic = !matches!(request.kind, Kind::Put | Kind::Get);
        let lock = is_atomic.then(|| self.window.accumulating(shared, self.rank));
        let lock = lock.transpose()?;
        let old = access(request, start)?;
        drop(lock);
        if let Some(side) = into {
            side.of.unpack_elements(&old, side.buffer, side.count);
        }
        Ok(())
    }

    /// Accumulates in memory that this rank reaches itself; `result` gets what was there.
    fn accumulate_here(&self, from: &Side, result: Option<&Side>, into: &Side, change: &Change) -> Result<()> {
        let (Some(shared), Some(part)) = (&self.window.shared, self.part()) else {
            return Ok(());
        };
        let room = result.map_or(Some(None), |result| result.dense().map(Some));
        let (Some((start, length)), Some((at, all)), Some(room)) = (from.dense(), into.dense(), room) else {
            let kind = if result.is_some() {
                Kind::GetAccumulate
            } else {
                Kind::Accumulate
            };
            return self.apply_here(&change.request(kind, from, into), result);
        };
        let place = part.place(self.displacement, at, all)?.wrapping_add_signed(at);
        let from = from.buffer.address().wrapping_add_signed(start);
        let _lock = self.window.accumulating(shared, self.rank)?;
        if let (Some(result), Some((start, room))) = (result, room) {
            copy(place, result.buffer.address().wrapping_add_signed(start), all.min(room));
        }
        let length = length.min(all);
        match &change.by {
            Some(by) => {
                let length = length / by.bytes.max(1) * by.bytes;
                let (left, right) = (Buffer::new(from as *mut _), Buffer::new(place as *mut _));
                by.operation
                    .combine(left.bytes(length), right.bytes_mut(length), by.element);
            }
            None if change.op == REPLACE => copy(from, place, length),
            None => {}
        }
        Ok(())
    }
}

/// Where runs of bytes begin, and the bytes from there to the end of the last; `None` if no memory is as long.
fn bounds(runs: &[(isize, usize)]) -> Option<(isize, usize)> {
    let (mut low, mut high) = (isize::MAX, isize::MIN);
    for (offset, length) in runs {
        low = low.min(*offset);
        high = high.max(offset.checked_add_unsigned(*length)?);
    }
    match runs {
        [] => Some((0, 0)),
        _ => Some((low, usize::try_from(high.checked_sub(low)?).ok()?)),
    }
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
        let is_dynamic = self.flavor == DYNAMIC;
        let start = match is_dynamic {
            true => request.displacement,
            false => {
                let unit = i64::try_from(self.memory.part.unit).map_err(|_| outside())?;
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
                false => end <= self.memory.part.size,
            })
        };
        let fits = request.is_sound() && request.runs.iter().all(|run| run.1 == 0 || lies_inside(run));
        let base = if is_dynamic { 0 } else { self.memory.part.start };
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
        if target.part().is_some() {
            return target.apply_here(&request, Some(&result));
        }
        start(&target, request, Some(result)).map(|_| ())
    }
}
