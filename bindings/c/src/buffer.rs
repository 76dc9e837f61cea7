//! Memory that a channel sends from and receives into without a copy.

use std::ffi::c_void;

use dayfly_client::{Buffer, Error};

use crate::channel::dfly_channel;
use crate::handle::{Birth, Handle, get, get_mut, give, take};
use crate::status::{dfly_status, guard, misuse, value};

/// Memory of a channel or pool for inputs and outputs. The program may read and write its bytes, except while a call
/// uses them. It may outlive its channel. One thread at a time may use a buffer.
pub struct dfly_buffer {
    birth: Birth,
    pub(crate) buffer: Buffer,
}

impl Handle for dfly_buffer {
    const NAME: &'static str = "buffer";
    fn birth(&self) -> Birth {
        self.birth
    }
}

impl dfly_buffer {
    pub(crate) fn new(buffer: Buffer) -> Self {
        Self {
            birth: Birth::now(),
            buffer,
        }
    }

    pub(crate) fn check(&self, length: usize) -> Result<(), Error> {
        if length <= self.buffer.len() {
            return Ok(());
        }
        let has = self.buffer.len();
        Err(misuse(format!(
            "{length} bytes of a buffer that has {has}; see dfly_buffer_resize"
        )))
    }
}

/// Allocates a buffer of `length` bytes in the memory of a channel, aligned to 128 bytes. `buffer` receives it; free it
/// with `dfly_buffer_free`. Errors: DFLY_OUT_OF_MEMORY if the channel's memory is exhausted.
///
/// # Safety
/// `channel` is a channel, `buffer` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_buffer_alloc(
    channel: *mut dfly_channel,
    length: usize,
    buffer: *mut *mut dfly_buffer,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        Ok(unsafe {
            give(buffer, || {
                Ok(dfly_buffer::new(get_mut(channel)?.channel.allocate(length)?))
            })
        }?)
    })
}

/// Returns the address of a buffer's first byte; NULL if `buffer` is NULL. The address is valid and constant until the
/// buffer is freed or submitted.
///
/// # Safety
/// `buffer` is NULL or a buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_buffer_data(buffer: *const dfly_buffer) -> *mut c_void {
    value(std::ptr::null_mut(), || {
        // SAFETY: as the caller promises.
        Ok(unsafe { get(buffer) }?.buffer.as_ptr().cast())
    })
}

/// Returns the length of a buffer in bytes; 0 if `buffer` is NULL.
///
/// # Safety
/// `buffer` is NULL or a buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_buffer_length(buffer: *const dfly_buffer) -> usize {
    // SAFETY: as the caller promises.
    value(0, || Ok(unsafe { get(buffer) }?.buffer.len()))
}

/// Returns the capacity of a buffer in bytes; 0 if `buffer` is NULL.
///
/// # Safety
/// `buffer` is NULL or a buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_buffer_capacity(buffer: *const dfly_buffer) -> usize {
    // SAFETY: as the caller promises.
    value(0, || Ok(unsafe { get(buffer) }?.buffer.capacity()))
}

/// Changes the length of a buffer, in bytes, up to its capacity. Errors: DFLY_INVALID_REQUEST beyond the capacity.
///
/// # Safety
/// `buffer` is a buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_buffer_resize(buffer: *mut dfly_buffer, length: usize) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let buffer = unsafe { get_mut(buffer) }?;
        if buffer.buffer.resize(length) {
            return Ok(());
        }
        let capacity = buffer.buffer.capacity();
        Err(misuse(format!("{length} bytes in a buffer that has room for {capacity}")).into())
    })
}

/// Frees a buffer. NULL is a no-op.
///
/// # Safety
/// `buffer` is NULL or a buffer that is never used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_buffer_free(buffer: *mut dfly_buffer) {
    guard(|| {
        // SAFETY: as the caller promises.
        drop(unsafe { take(buffer) });
        Ok(())
    });
}
