//! Accesses: put, get, accumulate and their relatives.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dayfly_comm::detached::Turn;

use super::direct::copy;
use super::wire::{Kind, Request};
use super::{WINDOW, Waiting, WindowObject, get, serve};
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
pub struct Side {
    pub buffer: Buffer,
    pub count: usize,
    handle: Datatype,
    pub of: Arc<TypeObject>,
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
    pub fn dense(&self) -> Option<(isize, usize)> {
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
pub struct Target {
    pub window: Arc<WindowObject>,
    pub rank: usize,
    pub displacement: i64,
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
pub struct Change {
    pub op: Op,
    /// The predefined datatype of the elements.
    leaf: Datatype,
    /// `None` for those that only replace, or do nothing.
    pub by: Option<Reduction>,
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
    pub fn request(&self, kind: Kind, from: &Side, into: &Side) -> Request {
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
