//! Outcomes of calls of a pool: outputs, and callbacks.

use std::ffi::{CString, c_char, c_void};

use dayfly_client::{CallError, Output};

use crate::handle::{Birth, Handle, get, take};
use crate::status::{dfly_status, guard, value};

/// Called when a call ends, with its status, the text of its error (or ""), and its output. All are valid during the
/// callback only. It runs in the thread that called `dfly_pool_drive` or `dfly_pool_free`. It may use the pool but must
/// not free it, and must not throw.
pub type dfly_callback = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        status: dfly_status,
        message: *const c_char,
        output: *const c_void,
        length: usize,
    ),
>;

pub(super) struct Callback {
    pub(super) function: unsafe extern "C" fn(*mut c_void, dfly_status, *const c_char, *const c_void, usize),
    pub(super) user: *mut c_void,
}

// SAFETY: by contract any thread may run the callback, and this library never dereferences `user`.
unsafe impl Send for Callback {}

impl Callback {
    pub(super) fn run(self, outcome: Result<Delivered, CallError>) {
        let (status, message, (start, length)) = match &outcome {
            Ok(output) => (dfly_status::DFLY_OK, CString::default(), output.place()),
            Err(error) => {
                let text: Vec<u8> = error.failure.message.bytes().filter(|byte| *byte != 0).collect();
                let text = CString::new(text).unwrap_or_default();
                (error.code().into(), text, (std::ptr::null(), 0))
            }
        };
        // SAFETY: a function of the caller with this signature; its arguments are valid until it returns.
        unsafe { (self.function)(self.user, status, message.as_ptr(), start, length) };
    }
}

/// An output that the caller reads.
pub(super) enum Delivered {
    Own(Output),
    /// In a buffer of the caller, which no call uses any more.
    InPlace(*const u8, usize),
}

// SAFETY: the address is of memory that the caller owns, and this library does not read it.
unsafe impl Send for Delivered {}

impl Delivered {
    /// Returns the caller's buffer to the caller.
    pub(super) fn new(output: Output) -> Self {
        match output {
            Output::InPlace(..) => Self::InPlace(output.as_slice().as_ptr(), output.as_slice().len()),
            other => Self::Own(other),
        }
    }

    fn place(&self) -> (*const c_void, usize) {
        match self {
            Self::Own(output) => (output.as_slice().as_ptr().cast(), output.as_slice().len()),
            Self::InPlace(start, length) => (start.cast(), *length),
        }
    }
}

/// The output of a call. One thread at a time may use it. It may outlive its pool.
pub struct dfly_output {
    pub(super) birth: Birth,
    pub(super) output: Delivered,
}

impl Handle for dfly_output {
    const NAME: &'static str = "output";
    fn birth(&self) -> Birth {
        self.birth
    }
}

/// Returns the address of an output's bytes, valid until the output is freed, or in the buffer that the
/// call was given; NULL if `output` is NULL.
///
/// # Safety
/// `output` is NULL or an output.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_output_data(output: *const dfly_output) -> *const c_void {
    value(std::ptr::null(), || {
        // SAFETY: as the caller promises.
        Ok(unsafe { get(output) }?.output.place().0)
    })
}

/// Returns the length of an output in bytes; 0 if `output` is NULL.
///
/// # Safety
/// `output` is NULL or an output.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_output_length(output: *const dfly_output) -> usize {
    // SAFETY: as the caller promises.
    value(0, || Ok(unsafe { get(output) }?.output.place().1))
}

/// Frees an output. NULL is a no-op.
///
/// # Safety
/// `output` is NULL or an output that is never used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_output_free(output: *mut dfly_output) {
    guard(|| {
        // SAFETY: as the caller promises.
        drop(unsafe { take(output) });
        Ok(())
    });
}
