//! Memory that a channel sends from and receives into without a copy.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use dayfly_client::{Buffer, Error, OutputBuffer, ReturnedBuffer};

use crate::channel::dfly_channel;
use crate::handle::{Birth, Handle, get, get_mut, give, take};
use crate::status::{dfly_status, guard, misuse, value};

/// Memory of a channel or pool for inputs and outputs. The program may read and write its bytes, except while a call
/// uses them. It may outlive its channel. One thread at a time may use a buffer.
pub struct dfly_buffer {
    birth: Birth,
    start: *mut u8,
    capacity: usize,
    length: usize,
    held: Mutex<Held>,
}

/// Where the memory of a buffer is.
enum Held {
    /// No call uses it.
    Own(Buffer),
    /// Calls may be reading it.
    Shared(Arc<Buffer>),
    /// A call may be writing it.
    Lent(ReturnedBuffer),
    /// Passed on for good.
    Gone,
}

impl Handle for dfly_buffer {
    const NAME: &'static str = "buffer";
    fn birth(&self) -> Birth {
        self.birth
    }
}

fn in_use() -> Error {
    misuse("a call that has not ended uses this buffer")
}

impl Held {
    /// Takes the memory back from calls that have ended.
    fn reclaim(&mut self) {
        *self = match std::mem::replace(self, Self::Gone) {
            Self::Shared(shared) => Arc::try_unwrap(shared).map_or_else(Self::Shared, Self::Own),
            Self::Lent(lent) => lent.take().map_or(Self::Lent(lent), Self::Own),
            other => other,
        };
    }
}

impl dfly_buffer {
    pub(crate) fn new(buffer: Buffer) -> Self {
        Self {
            birth: Birth::now(),
            start: buffer.as_ptr(),
            capacity: buffer.capacity(),
            length: buffer.len(),
            held: Mutex::new(Held::Own(buffer)),
        }
    }

    pub(crate) fn check(&self, length: usize) -> Result<(), Error> {
        if length <= self.length {
            return Ok(());
        }
        let has = self.length;
        Err(misuse(format!(
            "{length} bytes of a buffer that has {has}; see dfly_buffer_resize"
        )))
    }

    /// Returns the memory. Errors while a call uses it.
    pub(crate) fn own(&mut self) -> Result<&mut Buffer, Error> {
        let held = self.held.get_mut().unwrap_or_else(PoisonError::into_inner);
        held.reclaim();
        match held {
            Held::Own(buffer) => Ok(buffer),
            _ => Err(in_use()),
        }
    }

    /// Returns the memory for good. Errors while a call uses it.
    pub(crate) fn into_own(self) -> Result<Buffer, Error> {
        let mut held = self.held.into_inner().unwrap_or_else(PoisonError::into_inner);
        held.reclaim();
        match held {
            Held::Own(buffer) => Ok(buffer),
            _ => Err(in_use()),
        }
    }

    /// Returns the memory for calls that read it. Errors while a call writes it.
    pub(crate) fn share(&self) -> Result<Arc<Buffer>, Error> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.reclaim();
        match std::mem::replace(&mut *held, Held::Gone) {
            Held::Own(buffer) => *held = Held::Shared(Arc::new(buffer)),
            other => *held = other,
        }
        match &*held {
            Held::Shared(shared) => Ok(Arc::clone(shared)),
            _ => Err(in_use()),
        }
    }

    /// Returns the memory for one call that writes it. Errors while a call uses it.
    pub(crate) fn lend(&self) -> Result<OutputBuffer, Error> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.reclaim();
        match std::mem::replace(&mut *held, Held::Gone) {
            Held::Own(buffer) => {
                let (output, returned) = OutputBuffer::new(buffer);
                *held = Held::Lent(returned);
                Ok(output)
            }
            other => {
                *held = other;
                Err(in_use())
            }
        }
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
/// buffer is freed or given away to `dfly_channel_submit_buffer` or `dfly_pool_submit_buffer`.
///
/// # Safety
/// `buffer` is NULL or a buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_buffer_data(buffer: *const dfly_buffer) -> *mut c_void {
    value(std::ptr::null_mut(), || {
        // SAFETY: as the caller promises.
        Ok(unsafe { get(buffer) }?.start.cast())
    })
}

/// Returns the length of a buffer in bytes; 0 if `buffer` is NULL.
///
/// # Safety
/// `buffer` is NULL or a buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_buffer_length(buffer: *const dfly_buffer) -> usize {
    // SAFETY: as the caller promises.
    value(0, || Ok(unsafe { get(buffer) }?.length))
}

/// Returns the capacity of a buffer in bytes; 0 if `buffer` is NULL.
///
/// # Safety
/// `buffer` is NULL or a buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_buffer_capacity(buffer: *const dfly_buffer) -> usize {
    // SAFETY: as the caller promises.
    value(0, || Ok(unsafe { get(buffer) }?.capacity))
}

/// Changes the length of a buffer, in bytes, up to its capacity. Errors: DFLY_INVALID_REQUEST beyond the capacity, or
/// while a call uses the buffer.
///
/// # Safety
/// `buffer` is a buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_buffer_resize(buffer: *mut dfly_buffer, length: usize) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let buffer = unsafe { get_mut(buffer) }?;
        if length == buffer.length {
            return Ok(());
        }
        if buffer.own()?.resize(length) {
            buffer.length = length;
            return Ok(());
        }
        let capacity = buffer.capacity;
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
