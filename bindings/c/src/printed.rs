//! What a lease's workers print.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::time::Duration;

use dayfly_client::{Printed, Reader, Stream};

use crate::handle::{Birth, Handle, get, get_mut, give, put, put_required, take};
use crate::lease::dfly_lease;
use crate::status::{dfly_status, guard, misuse, value};

/// Standard output.
pub const DFLY_STREAM_OUT: u32 = 1;
/// Standard error.
pub const DFLY_STREAM_ERR: u32 = 2;

/// Reads what a lease's workers print, from the lease's beginning. It keeps no lease alive, and reads on for a minute after one is
/// over.
pub struct dfly_printed {
    birth: Birth,
    reader: Reader,
    /// Read from the node, and not by the program.
    ahead: VecDeque<Printed>,
}

impl Handle for dfly_printed {
    const NAME: &'static str = "printed output";
    fn birth(&self) -> Birth {
        self.birth
    }
}

/// Opens what a lease's workers print. Their node keeps the last 256 KiB.
///
/// # Safety
/// `lease` is a lease, `printed` a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_printed_open(lease: *const dfly_lease, printed: *mut *mut dfly_printed) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        Ok(unsafe {
            give(printed, || {
                Ok(dfly_printed {
                    birth: Birth::now(),
                    reader: get(lease)?.lease.printed()?,
                    ahead: VecDeque::new(),
                })
            })
        }?)
    })
}

/// The next piece, of one stream: up to `capacity` bytes are written to `into`, how many to `length`, and DFLY_STREAM_OUT or
/// DFLY_STREAM_ERR to `stream`, which may be NULL. Pieces end anywhere. If there is none yet, waits for one, no longer than `wait_ms` and no
/// longer than some seconds; `length` is 0 then.
///
/// # Safety
/// `printed` is an output, `into` has room for `capacity` bytes, `length` is a place for a number, `stream` NULL or a place for one.
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
            // SAFETY: there is room for `capacity` bytes, as the caller promises.
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

/// Bytes that the node did not keep until they were read.
///
/// # Safety
/// `printed` is NULL or an output.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_printed_missed(printed: *const dfly_printed) -> u64 {
    // SAFETY: as the caller promises.
    value(0, || Ok(unsafe { get(printed) }?.reader.missed()))
}

/// Whether the lease is over, and all was read.
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

/// Frees an output.
///
/// # Safety
/// `printed` is NULL or an output, which nobody uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_printed_free(printed: *mut dfly_printed) {
    // SAFETY: as the caller promises.
    drop(unsafe { take(printed) });
}
