//! Accesses to memory that this rank reads and writes itself.

use super::access::{Change, Side, Target};
use super::apply::{access, bounds};
use super::shared::{Part, outside};
use super::wire::{Kind, Request};
use crate::error::Result;
use crate::op::REPLACE;
use crate::pointer::Buffer;

/// Copies between memory that the program lends and a window.
pub fn copy(from: usize, into: usize, length: usize) {
    // SAFETY: the caller lends one of the ranges for the access, and the other was found to lie in the window's memory,
    // which stays mapped as long as the window. Other ranks may write there at the same time; then the bytes are any.
    unsafe { std::ptr::copy(from as *const u8, into as *mut u8, length) };
}

impl Target {
    /// The target's memory, if this rank reads and writes it itself.
    pub fn part(&self) -> Option<Part> {
        let shared = self.window.shared.as_ref()?;
        shared.parts.get(self.rank).copied()
    }

    /// Applies an access to memory that this rank reaches itself.
    pub fn apply_here(&self, request: &Request, into: Option<&Side>) -> Result<()> {
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
    pub fn accumulate_here(&self, from: &Side, result: Option<&Side>, into: &Side, change: &Change) -> Result<()> {
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
