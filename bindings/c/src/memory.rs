//! Buffers passed from C that group operations read and write.

use std::ffi::c_void;
use std::ops::Range;

use dayfly_client::Error;
use dayfly_comm::Datatype;

use crate::status::misuse;

/// Memory of the caller, which must stay valid during the operation, or memory owned by the operation.
pub enum Memory {
    There(*mut u8, usize),
    Own(Vec<u8>),
}

impl Memory {
    /// Empty memory.
    pub const NONE: Self = Self::There(std::ptr::null_mut(), 0);

    /// Memory of `count` elements at `start`. Errors if `start` is null and `count` is not 0, or if the size overflows.
    pub fn of(start: *const c_void, count: usize, datatype: Datatype, what: &str) -> Result<Self, Error> {
        let length = bytes(count, datatype)?;
        if length == 0 {
            return Ok(Self::NONE);
        }
        if start.is_null() {
            return Err(misuse(format!("{what}, which has a length, is NULL")));
        }
        Ok(Self::There(start.cast_mut().cast(), length))
    }

    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::There(_, 0) => &[],
            // SAFETY: the caller of this library promised `length` readable bytes for the duration of the operation.
            Self::There(start, length) => unsafe { std::slice::from_raw_parts(*start, *length) },
            Self::Own(bytes) => bytes,
        }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::There(_, 0) => &mut [],
            // SAFETY: the caller promised `length` writable bytes for memory that the operation writes. Memory that it
            // reads does not overlap: see `beside`.
            Self::There(start, length) => unsafe { std::slice::from_raw_parts_mut(*start, *length) },
            Self::Own(bytes) => bytes,
        }
    }

    fn range(&self) -> Range<usize> {
        match self {
            Self::There(start, length) => *start as usize..(*start as usize).saturating_add(*length),
            Self::Own(_) => 0..0,
        }
    }

    /// Returns the same bytes, copied if they overlap with `written`.
    pub fn beside(self, written: &Self) -> Self {
        let (own, other) = (self.range(), written.range());
        if own.start < other.end && other.start < own.end {
            return self.copied();
        }
        self
    }

    /// Returns a copy of the bytes.
    pub fn copied(&self) -> Self {
        Self::Own(self.bytes().to_vec())
    }

    /// Copies the bytes of another memory into this one. The two may overlap.
    pub fn fill_from(&mut self, other: &Self) {
        if let (Self::There(into, room), Self::There(from, length)) = (self, other)
            && *length > 0
        {
            // SAFETY: the caller of this library promised this many bytes of both; no slice of either is alive.
            unsafe { std::ptr::copy(*from, *into, (*length).min(*room)) };
        }
    }
}

/// Returns the size of `count` elements in bytes. Errors if it overflows.
pub fn bytes(count: usize, datatype: Datatype) -> Result<usize, Error> {
    count
        .checked_mul(datatype.bytes())
        .filter(|bytes| *bytes <= isize::MAX as usize)
        .ok_or_else(|| {
            misuse(format!(
                "{count} elements of {} are more than any memory has",
                datatype.name()
            ))
        })
}
