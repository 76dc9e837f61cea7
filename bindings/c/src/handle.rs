//! Checks of the pointers, texts and options passed from C.

use std::ffi::{CStr, c_char, c_void};
use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use dayfly_client::{Code, Error};

use crate::status::misuse;

/// Number of forks between the process that loaded the library and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn on_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The process in which a handle was made. A forked child shares the parent's sockets and rings, and must not use them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Birth(u32);

impl Birth {
    pub fn now() -> Self {
        static WATCH: Once = Once::new();
        WATCH.call_once(|| {
            // SAFETY: the handler only increments an atomic. If `pthread_atfork` fails for lack of memory, forks are
            // not detected.
            unsafe { libc::pthread_atfork(None, None, Some(on_fork)) };
        });
        Self(FORKS.load(Ordering::Relaxed))
    }

    #[inline]
    fn is_here(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}

/// A type that C refers to by pointer.
pub trait Handle {
    /// Name of the type in messages.
    const NAME: &'static str;
    /// The process that made the handle.
    fn birth(&self) -> Birth;
}

#[cold]
fn null(what: &str) -> Error {
    misuse(format!("{what} is NULL"))
}

#[cold]
fn forked(what: &str) -> Error {
    Error::new(
        Code::Forked,
        format!("this {what} belongs to the parent of this process; connect anew here"),
    )
}

/// # Safety
/// `handle` is null, or a live handle of this type that is not modified while the reference exists.
#[inline]
pub unsafe fn get<'a, T: Handle>(handle: *const T) -> Result<&'a T, Error> {
    // SAFETY: as the caller promises.
    let handle = unsafe { handle.as_ref() }.ok_or_else(|| null(T::NAME))?;
    if handle.birth().is_here() {
        Ok(handle)
    } else {
        Err(forked(T::NAME))
    }
}

/// # Safety
/// `handle` is null, or a live handle of this type that is not used otherwise while the reference exists.
#[inline]
pub unsafe fn get_mut<'a, T: Handle>(handle: *mut T) -> Result<&'a mut T, Error> {
    // SAFETY: as the caller promises.
    let handle = unsafe { handle.as_mut() }.ok_or_else(|| null(T::NAME))?;
    if handle.birth().is_here() {
        Ok(handle)
    } else {
        Err(forked(T::NAME))
    }
}

/// Takes ownership of a handle from C. Returns `None` for NULL, and in a forked child, which must not close the
/// parent's resources.
///
/// # Safety
/// `handle` is null, or was made by [`give`] and is never used again.
pub unsafe fn take<T: Handle>(handle: *mut T) -> Option<Box<T>> {
    // SAFETY: as the caller promises.
    let birth = unsafe { handle.as_ref() }?.birth();
    // SAFETY: as the caller promises.
    birth.is_here().then(|| unsafe { Box::from_raw(handle) })
}

/// Transfers ownership of a new value to C through `place`. Writes NULL if `make` fails.
///
/// # Safety
/// `place` is writable unless null.
pub unsafe fn give<T>(place: *mut *mut T, make: impl FnOnce() -> Result<T, Error>) -> Result<(), Error> {
    // SAFETY: as the caller promises.
    let place = unsafe { place.as_mut() }.ok_or_else(|| null("the place for the new handle"))?;
    *place = std::ptr::null_mut();
    *place = Box::into_raw(Box::new(make()?));
    Ok(())
}

/// Writes a result to `place`, which may be NULL.
///
/// # Safety
/// `place` is writable unless null.
#[inline]
pub unsafe fn put<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: as the caller promises.
        unsafe { place.write(value) };
    }
}

/// # Safety
/// `place` is writable unless null.
pub unsafe fn put_required<T>(place: *mut T, what: &str, value: T) -> Result<(), Error> {
    if place.is_null() {
        return Err(null(what));
    }
    // SAFETY: as the caller promises.
    unsafe { place.write(value) };
    Ok(())
}

/// # Safety
/// `start` points to `length` readable bytes, unless it is null.
#[inline]
pub unsafe fn bytes<'a>(start: *const c_void, length: usize) -> Result<&'a [u8], Error> {
    if length == 0 {
        return Ok(&[]);
    }
    if start.is_null() {
        return Err(null("the input, which has a length,"));
    }
    if length > isize::MAX as usize {
        return Err(misuse(format!("an input of {length} bytes")));
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { std::slice::from_raw_parts(start.cast(), length) })
}

/// # Safety
/// `text` is a C string, unless it is null.
pub unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str, Error> {
    // SAFETY: as the caller promises.
    unsafe { optional_text(text, what) }?.ok_or_else(|| null(what))
}

/// # Safety
/// `text` is a C string, unless it is null.
pub unsafe fn optional_text<'a>(text: *const c_char, what: &str) -> Result<Option<&'a str>, Error> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller promises.
    let text = unsafe { CStr::from_ptr(text) }.to_str();
    text.map(Some).map_err(|_| misuse(format!("{what} is not UTF-8")))
}

/// # Safety
/// `text` is a C string, unless it is null.
pub unsafe fn optional_path<'a>(text: *const c_char, what: &str) -> Result<Option<&'a Path>, Error> {
    // SAFETY: as the caller promises.
    Ok(unsafe { optional_text(text, what) }?.map(Path::new))
}

/// Reads options passed from C. Returns `None` for NULL. The first field must hold the size of the struct; any other
/// value means that the options were not initialised.
///
/// # Safety
/// `options` is null, or points to options of this type or to memory of this size that is readable as integers.
pub unsafe fn options<T: Copy>(options: *const T, name: &str) -> Result<Option<T>, Error> {
    if options.is_null() {
        return Ok(None);
    }
    // SAFETY: every options type is repr(C) and starts with its size; all its fields are integers, pointers or such
    // structs.
    let size = unsafe { options.cast::<usize>().read() };
    if size != size_of::<T>() {
        return Err(misuse(format!(
            "{name} say a size of {size} bytes instead of {}: initialise them with {name}_init",
            size_of::<T>()
        )));
    }
    // SAFETY: as the caller promises.
    Ok(Some(unsafe { options.read() }))
}
