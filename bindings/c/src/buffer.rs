//! Memory that a channel sends from and receives into without a copy.

use std::ffi::c_void;

use dayfly_client::{Buffer, Error};

use crate::channel::dfly_channel;
use crate::handle::{Birth, Handle, get, get_mut, give, take};
use crate::status::{dfly_status, guard, misuse, value};

/// Memory of a channel or pool. Its bytes are the program's own to read and write, except while a call uses them. It
/// may outlive its channel. Different threads may use different buffers.
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

/// Allocates memory of a channel, aligned to 128 bytes.
///
/// # Safety
/// `channel` is a channel, `buffer` a place for a pointer.
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

/// Its first byte; NULL for NULL. The address stays the same until the buffer is freed or submitted.
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

/// Bytes in it; 0 for NULL.
///
/// # Safety
/// `buffer` is NULL or a buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_buffer_length(buffer: *const dfly_buffer) -> usize {
    // SAFETY: as the caller promises.
    value(0, || Ok(unsafe { get(buffer) }?.buffer.len()))
}

/// Bytes that it could have; 0 for NULL.
///
/// # Safety
/// `buffer` is NULL or a buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_buffer_capacity(buffer: *const dfly_buffer) -> usize {
    // SAFETY: as the caller promises.
    value(0, || Ok(unsafe { get(buffer) }?.buffer.capacity()))
}

/// Makes it shorter, or longer up to its capacity.
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

/// Gives the memory back. NULL is nothing.
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
