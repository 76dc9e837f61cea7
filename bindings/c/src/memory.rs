//! Buffers of C's that operations of groups read and write.

use std::ffi::c_void;
use std::ops::Range;

use dayfly_client::Error;
use dayfly_comm::Datatype;

use crate::status::misuse;

/// Memory of the caller's, which stays there while an operation uses it, or memory of the operation's own.
pub enum Memory {
    There(*mut u8, usize),
    Own(Vec<u8>),
}

impl Memory {
    /// No bytes.
    pub const NONE: Self = Self::There(std::ptr::null_mut(), 0);

    /// So many elements of the caller's.
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
            // SAFETY: the caller of this library promised so many bytes for as long as the operation goes on.
            Self::There(start, length) => unsafe { std::slice::from_raw_parts(*start, *length) },
            Self::Own(bytes) => bytes,
        }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::There(_, 0) => &mut [],
            // SAFETY: as above, to write, where the operation writes; what it reads is `beside` that.
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

    /// The same bytes, copied if they lie where the operation writes.
    pub fn beside(self, written: &Self) -> Self {
        let (own, other) = (self.range(), written.range());
        if own.start < other.end && other.start < own.end {
            return self.copied();
        }
        self
    }

    /// A copy of the bytes.
    pub fn copied(&self) -> Self {
        Self::Own(self.bytes().to_vec())
    }

    /// Takes over the bytes of another, which may lie anywhere: both are the caller's.
    pub fn fill_from(&mut self, other: &Self) {
        if let (Self::There(into, room), Self::There(from, length)) = (self, other)
            && *length > 0
        {
            // SAFETY: the caller of this library promised so many bytes of either; no slice of them is alive.
            unsafe { std::ptr::copy(*from, *into, (*length).min(*room)) };
        }
    }
}

/// Bytes of so many elements.
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
