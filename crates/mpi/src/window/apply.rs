//! How the rank that has the memory applies accesses, and grants locks.

use dayfly_comm::detached::Turn;

use super::shared::outside;
use super::wire::{Kind, Request, Response};
use super::{Claim, State, WindowObject, room_for};
use crate::datatype;
use crate::error::Result;
use crate::handle::{Datatype, Op};
use crate::interface::window::DYNAMIC;
use crate::op::{NO_OP, REPLACE, reduction};
use crate::pointer::Buffer;

/// Where runs of bytes begin, and the bytes from there to the end of the last; `None` if no memory is as long.
pub fn bounds(runs: &[(isize, usize)]) -> Option<(isize, usize)> {
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
pub fn access(request: &Request, start: usize) -> Result<Vec<u8>> {
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
