//! Standard output and standard error of a lease's workers.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::time::Duration;

use dayfly_client::{OutputReader, Stream, WorkerOutput};

use crate::handle::{Birth, Handle, get, get_mut, give, put, put_required, take};
use crate::lease::dfly_lease;
use crate::status::{dfly_status, guard, misuse, value};

/// Standard output.
pub const DFLY_STREAM_OUT: u32 = 1;
/// Standard error.
pub const DFLY_STREAM_ERR: u32 = 2;

/// Reader of the output of a lease's workers, from the beginning of the lease. It does not keep the lease alive, and
/// can read for one minute after the lease has ended. One thread at a time may use it.
pub struct dfly_printed {
    birth: Birth,
    reader: OutputReader,
    /// Pieces that were read from the node and not yet returned to the program.
    ahead: VecDeque<WorkerOutput>,
}

impl Handle for dfly_printed {
    const NAME: &'static str = "printed output";
    fn birth(&self) -> Birth {
        self.birth
    }
}

/// Opens the output of a lease's workers. Their node keeps the last 256 KiB. `printed` receives the reader; free it
/// with `dfly_printed_free`.
///
/// # Safety
/// `lease` is a lease, `printed` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_printed_open(lease: *const dfly_lease, printed: *mut *mut dfly_printed) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        Ok(unsafe {
            give(printed, || {
                Ok(dfly_printed {
                    birth: Birth::now(),
                    reader: get(lease)?.lease.output()?,
                    ahead: VecDeque::new(),
                })
            })
        }?)
    })
}

/// Reads the next piece of one stream: writes up to `capacity` bytes to `into` and their number to `length`. `stream`
/// receives DFLY_STREAM_OUT or DFLY_STREAM_ERR and may be NULL. Pieces end at arbitrary bytes. If there is no output,
/// waits up to `wait_ms` milliseconds, and at most a few seconds; then `length` is 0. Errors: DFLY_INVALID_REQUEST if
/// `capacity` is 0, DFLY_LEASE_ENDED or DFLY_LEASE_EXPIRED if the lease ended more than a minute ago.
///
/// # Safety
/// `printed` is an output, `into` has room for `capacity` bytes, `length` is writable, `stream` NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_printed_read(
    printed: *mut dfly_printed,
    wait_ms: u64,
    into: *mut c_void,
    capacity: usize,
    length: *mut usize,
    stream: *mut u32,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let printed = unsafe { get_mut(printed) }?;
        if into.is_null() || capacity == 0 {
            return Err(misuse("there is no room for what was printed").into());
        }
        if printed.ahead.is_empty() {
            printed
                .ahead
                .extend(printed.reader.next(Duration::from_millis(wait_ms))?);
        }
        let mut copied = 0;
        if let Some(piece) = printed.ahead.front_mut() {
            copied = piece.bytes.len().min(capacity);
            // SAFETY: the caller promises `capacity` writable bytes.
            unsafe { std::ptr::copy_nonoverlapping(piece.bytes.as_ptr(), into.cast(), copied) };
            let which = match piece.stream {
                Stream::Out => DFLY_STREAM_OUT,
                Stream::Err => DFLY_STREAM_ERR,
            };
            // SAFETY: as the caller promises.
            unsafe { put(stream, which) };
            piece.bytes.drain(..copied);
            if piece.bytes.is_empty() {
                printed.ahead.pop_front();
            }
        }
        // SAFETY: as the caller promises.
        Ok(unsafe { put_required(length, "the place for the length", copied) }?)
    })
}

/// Returns the number of bytes that the node discarded before they were read; 0 if `printed` is NULL.
///
/// # Safety
/// `printed` is NULL or an output.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_printed_missed(printed: *const dfly_printed) -> u64 {
    // SAFETY: as the caller promises.
    value(0, || Ok(unsafe { get(printed) }?.reader.missed()))
}

/// Returns whether the lease has ended and all output was read; false if `printed` is NULL.
///
/// # Safety
/// `printed` is NULL or an output.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_printed_is_over(printed: *const dfly_printed) -> bool {
    value(false, || {
        // SAFETY: as the caller promises.
        let printed = unsafe { get(printed) }?;
        Ok(printed.ahead.is_empty() && printed.reader.is_over())
    })
}

/// Frees a reader. NULL is a no-op.
///
/// # Safety
/// `printed` is NULL or a reader that is never used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_printed_free(printed: *mut dfly_printed) {
    // SAFETY: as the caller promises.
    drop(unsafe { take(printed) });
}
