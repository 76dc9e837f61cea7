//! Copies between elements where their datatype has them and packed bytes.
//!
//! Blocks of a vector are copied by loops of their own, since a call for each block of a few bytes costs more than its
//! bytes.

use super::{Part, TypeObject};
use crate::pointer::Buffer;

/// Copies blocks of `N` bytes at a stride.
///
/// # Safety
/// All blocks are readable at `from`, and writable at `into`, and the two do not overlap.
unsafe fn copy_blocks<const N: usize>(
    from: *const u8,
    from_stride: isize,
    into: *mut u8,
    into_stride: isize,
    blocks: usize,
) {
    for block in 0..blocks as isize {
        // SAFETY: required of the caller. Arrays of bytes need no alignment.
        unsafe {
            let bytes = from.wrapping_offset(block * from_stride).cast::<[u8; N]>().read();
            into.wrapping_offset(block * into_stride).cast::<[u8; N]>().write(bytes);
        }
    }
}

/// As [`copy_blocks`], for any length.
///
/// # Safety
/// As for [`copy_blocks`].
unsafe fn copy_any(
    from: *const u8,
    from_stride: isize,
    into: *mut u8,
    into_stride: isize,
    blocks: usize,
    bytes: usize,
) {
    // SAFETY: required of the caller.
    unsafe {
        match bytes {
            4 => copy_blocks::<4>(from, from_stride, into, into_stride, blocks),
            8 => copy_blocks::<8>(from, from_stride, into, into_stride, blocks),
            16 => copy_blocks::<16>(from, from_stride, into, into_stride, blocks),
            _ => {
                for block in 0..blocks as isize {
                    let (from, into) = (
                        from.wrapping_offset(block * from_stride),
                        into.wrapping_offset(block * into_stride),
                    );
                    std::ptr::copy_nonoverlapping(from, into, bytes);
                }
            }
        }
    }
}

/// Which way bytes are copied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Pack,
    Unpack,
}

impl TypeObject {
    /// Copies all elements between memory and packed bytes.
    pub fn copy_all(&self, way: Way, buffer: Buffer, count: usize, mut packed: *mut u8) {
        for element in 0..count as isize {
            let element = buffer.offset(element * self.extent).start();
            // SAFETY: the caller of MPI lends the elements, and the packed bytes are as many as theirs. Packed bytes that
            // are unpacked are only read.
            packed = unsafe { self.copy_element(way, element, packed) };
        }
    }

    /// Copies one element between memory and packed bytes. Returns where the packed bytes of the next one begin.
    ///
    /// # Safety
    /// What the element says lies at `element` is memory of the program, and the packed bytes have room for it.
    unsafe fn copy_element(&self, way: Way, element: *mut u8, mut packed: *mut u8) -> *mut u8 {
        if self.parts.is_empty() {
            // SAFETY: required of the caller.
            unsafe { copy_any_way(way, element, 0, packed, 1, self.size) };
            return packed.wrapping_add(self.size);
        }
        for Part {
            offset,
            blocks,
            stride,
            length,
            of,
        } in &self.parts
        {
            if of.size == 0 {
                continue;
            }
            let start = element.wrapping_offset(*offset);
            if of.dense {
                let bytes = length * of.size;
                let start = start.wrapping_offset(of.true_lower);
                // SAFETY: required of the caller.
                unsafe { copy_any_way(way, start, *stride, packed, *blocks, bytes) };
                packed = packed.wrapping_add(bytes * blocks);
                continue;
            }
            for block in 0..*blocks as isize {
                for at in 0..*length as isize {
                    let element = start.wrapping_offset(block * stride + at * of.extent);
                    // SAFETY: required of the caller.
                    packed = unsafe { of.copy_element(way, element, packed) };
                }
            }
        }
        packed
    }
}

/// Copies blocks between memory, where they have a stride, and packed bytes.
///
/// # Safety
/// As for [`copy_blocks`].
unsafe fn copy_any_way(way: Way, memory: *mut u8, stride: isize, packed: *mut u8, blocks: usize, bytes: usize) {
    // SAFETY: required of the caller.
    unsafe {
        match way {
            Way::Pack => copy_any(memory, stride, packed, bytes as isize, blocks, bytes),
            Way::Unpack => copy_any(packed, bytes as isize, memory, stride, blocks, bytes),
        }
    }
}
