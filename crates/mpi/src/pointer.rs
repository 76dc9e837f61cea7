//! The pointers of MPI's C interface, as types with the operations that MPI defines for them.
//!
//! Only the functions of the face make these values, from the arguments of their callers. MPI obliges a caller to pass
//! pointers that are valid for what the standard says about the argument: every `unsafe` block here relies on that.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::error::{Error, Result, class};
use crate::interface;

/// Where a function writes a value or an array. NULL discards what is written.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    /// This place.
    pub fn at(place: *mut T) -> Self {
        Self(place)
    }

    /// Nowhere.
    pub fn none() -> Self {
        Self(std::ptr::null_mut())
    }

    pub fn set(self, value: T) {
        self.set_at(0, value);
    }

    pub fn set_at(self, at: usize, value: T) {
        if !self.0.is_null() {
            // SAFETY: the caller passed a pointer to room for the values that MPI writes here.
            unsafe { self.0.add(at).write(value) };
        }
    }

    pub fn get(self) -> Result<T> {
        self.check()?;
        // SAFETY: the argument is an input too, so the caller initialised it.
        Ok(unsafe { self.0.read() })
    }

    pub fn check(self) -> Result<Self> {
        match self.0.is_null() {
            true => Err(Error::new(class::ARG, "a pointer to a result is NULL")),
            false => Ok(self),
        }
    }

    /// The array, for as long as the call lasts.
    pub fn slice<'a>(self, length: usize) -> Result<&'a mut [T]> {
        if length == 0 {
            return Ok(&mut []);
        }
        self.check()?;
        // SAFETY: the caller passed an initialised array of that length, which nothing else uses during the call.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.0, length) })
    }
}

/// An array of values that a function reads.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// NULL.
    pub fn none() -> Self {
        Self(std::ptr::null())
    }

    /// The array, for as long as the call lasts.
    pub fn slice<'a>(self, length: usize) -> Result<&'a [T]> {
        if length == 0 {
            return Ok(&[]);
        }
        if self.0.is_null() {
            return Err(Error::new(class::ARG, "a pointer to an array is NULL"));
        }
        // SAFETY: the caller passed an array of that length, which nothing changes during the call.
        Ok(unsafe { std::slice::from_raw_parts(self.0, length) })
    }

    pub fn address(self) -> usize {
        self.0 as usize
    }
}

impl In<Text> {
    /// The texts before the first NULL; none if the array itself is NULL.
    pub fn until_null(self) -> Vec<String> {
        let mut all = Vec::new();
        while !self.0.is_null() {
            // SAFETY: the caller passed an array that ends with NULL, and no NULL came before this place.
            match unsafe { self.0.add(all.len()).read() }.optional() {
                Some(text) => all.push(text),
                None => break,
            }
        }
        all
    }
}

/// The memory of a message. It may be NULL, or an absolute zero for datatypes that hold addresses.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct Buffer(*mut c_void);

// SAFETY: a number. The code that reads or writes through it states why that holds.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    pub const NULL: Self = Self(std::ptr::null_mut());

    pub fn new(start: *mut c_void) -> Self {
        Self(start)
    }

    /// `MPI_IN_PLACE`.
    pub fn is_in_place(self) -> bool {
        self.0 as isize == interface::IN_PLACE
    }

    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub fn start(self) -> *mut u8 {
        self.0.cast()
    }

    pub fn address(self) -> usize {
        self.0 as usize
    }

    pub fn offset(self, bytes: isize) -> Self {
        Self(self.0.wrapping_byte_offset(bytes))
    }

    /// The bytes, which the caller lends for as long as its operation lasts.
    pub fn bytes<'a>(self, length: usize) -> &'a [u8] {
        if length == 0 {
            return &[];
        }
        // SAFETY: the caller lends `length` bytes from here until the operation is complete.
        unsafe { std::slice::from_raw_parts(self.start(), length) }
    }

    /// As [`Buffer::bytes`], to write.
    pub fn bytes_mut<'a>(self, length: usize) -> &'a mut [u8] {
        if length == 0 {
            return &mut [];
        }
        // SAFETY: the caller lends `length` bytes from here until the operation is complete, to this operation only.
        unsafe { std::slice::from_raw_parts_mut(self.start(), length) }
    }
}

/// A C string that a function reads.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Text(*const c_char);

impl Text {
    pub fn get(self) -> Result<String> {
        self.optional()
            .ok_or_else(|| Error::new(class::ARG, "a pointer to a text is NULL"))
    }

    pub fn optional(self) -> Option<String> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: the caller passed a C string.
        Some(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}

/// Room for a C string.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct TextOut(*mut c_char);

impl TextOut {
    /// Writes a text, cut to fit into `room` bytes with its end. Returns its length.
    pub fn set(self, text: &str, room: usize) -> Result<c_int> {
        if self.0.is_null() {
            return Err(Error::new(class::ARG, "a pointer to room for a text is NULL"));
        }
        let length = text.len().min(room.saturating_sub(1));
        // SAFETY: the caller passed room for `room` bytes, as MPI requires for this argument.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), self.0.cast(), length);
            *self.0.add(length) = 0;
        }
        Ok(length as c_int)
    }
}
