//! Parts of a lease for others: functions that call functions, and other processes.

use std::ffi::{CString, c_char};
use std::time::Duration;

use dayfly_client::{Code, Delegation, Error};

use crate::handle::{Birth, Handle, get, give, take, text};
use crate::lease::{dfly_lease, narrow};
use crate::pool::dfly_pool;
use crate::status::{dfly_status, guard, value};

/// Some workers of a lease, for whoever holds this or its text.
pub struct dfly_delegation {
    birth: Birth,
    delegation: Delegation,
    text: CString,
}

impl Handle for dfly_delegation {
    const NAME: &'static str = "delegation";
    fn birth(&self) -> Birth {
        self.birth
    }
}

impl dfly_delegation {
    fn new(delegation: Delegation) -> Result<Self, Error> {
        let text = CString::new(delegation.to_text()?)
            .map_err(|_| Error::new(Code::Internal, "a delegation's text has a zero in it"))?;
        Ok(Self {
            birth: Birth::now(),
            delegation,
            text,
        })
    }
}

/// Gives some of a pool's workers away for so long at most, once what they were sent has ended, within `limit_ms`. The pool does
/// without them until they are taken back. Isolated workers of `users` can use the delegation; NULL if no such ones shall.
///
/// # Safety
/// `pool` is a pool, `users` NULL or a lease, `delegation` a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_pool_delegate(
    pool: *const dfly_pool,
    workers: u32,
    duration_ms: u64,
    users: *const dfly_lease,
    limit_ms: u64,
    delegation: *mut *mut dfly_delegation,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        unsafe {
            give(delegation, || {
                let pool = get(pool)?;
                let users = if users.is_null() { None } else { Some(get(users)?) };
                let made = pool.pool.delegate(
                    narrow(workers, "workers")?,
                    Duration::from_millis(duration_ms),
                    users.map(|users| &users.lease),
                    Duration::from_millis(limit_ms),
                )?;
                dfly_delegation::new(made)
            })
        }?;
        Ok(())
    })
}

/// Takes back what `dfly_pool_delegate` gave. Its channels end, and its workers serve the pool again.
///
/// # Safety
/// `pool` is a pool, `delegation` a delegation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_pool_take_back(
    pool: *const dfly_pool,
    delegation: *const dfly_delegation,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (pool, delegation) = unsafe { (get(pool)?, get(delegation)?) };
        Ok(pool.pool.take_back(&delegation.delegation)?)
    })
}

/// A delegation as text, to be given to a function as its input. It is as good as a password. Valid as long as the delegation.
///
/// # Safety
/// `delegation` is NULL or a delegation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_delegation_text(delegation: *const dfly_delegation) -> *const c_char {
    // SAFETY: as the caller promises.
    value(std::ptr::null(), || Ok(unsafe { get(delegation) }?.text.as_ptr()))
}

/// Reads the text of a delegation.
///
/// # Safety
/// `text` is a C string, `delegation` a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_delegation_read(
    text: *const c_char,
    delegation: *mut *mut dfly_delegation,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        unsafe {
            give(delegation, || {
                let words = self::text(text, "the delegation's text")?;
                dfly_delegation::new(Delegation::from_text(words)?)
            })
        }?;
        Ok(())
    })
}

/// The workers of a delegation as a lease, which can neither be renewed nor released.
///
/// # Safety
/// `delegation` is a delegation, `lease` a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_delegation_open(
    delegation: *const dfly_delegation,
    lease: *mut *mut dfly_lease,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        unsafe { give(lease, || Ok(dfly_lease::new(get(delegation)?.delegation.open()?))) }?;
        Ok(())
    })
}

/// Frees the handle; what was delegated stays so. NULL is nothing.
///
/// # Safety
/// `delegation` is NULL or a delegation that is never used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_delegation_free(delegation: *mut dfly_delegation) {
    guard(|| {
        // SAFETY: as the caller promises.
        drop(unsafe { take(delegation) });
        Ok(())
    });
}
