//! Delegations: parts of a lease for functions that call functions, and for other processes.

use std::ffi::{CString, c_char};
use std::time::Duration;

use dayfly_client::{Code, Delegation, Error};

use crate::handle::{Birth, Handle, get, give, take, text};
use crate::lease::{dfly_lease, narrow};
use crate::pool::dfly_pool;
use crate::status::{dfly_status, guard, value};

/// The right to use some workers of a lease, for the holder of this handle or of its text.
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

/// Delegates `workers` of a pool's workers for at most `duration_ms` milliseconds. Waits up to `limit_ms` milliseconds
/// until the calls on them have ended. The pool does not use these workers until `dfly_pool_take_back`. `users` is the
/// lease of isolated workers that may use the delegation, or NULL. `delegation` receives the delegation; free it with
/// `dfly_delegation_free`.
///
/// # Safety
/// `pool` is a pool, `users` NULL or a lease, `delegation` writable.
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

/// Revokes a delegation of this pool. Its channels are closed, and the pool uses its workers again.
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

/// Returns a delegation as text, to pass to a function as input. The text is a credential: keep it secret. It is valid
/// as long as the handle. Returns NULL if `delegation` is NULL.
///
/// # Safety
/// `delegation` is NULL or a delegation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_delegation_text(delegation: *const dfly_delegation) -> *const c_char {
    // SAFETY: as the caller promises.
    value(std::ptr::null(), || Ok(unsafe { get(delegation) }?.text.as_ptr()))
}

/// Parses the text of a delegation. `delegation` receives the delegation; free it with `dfly_delegation_free`. Errors:
/// DFLY_INVALID_REQUEST if the text is malformed.
///
/// # Safety
/// `text` is a C string, `delegation` writable.
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

/// Opens the workers of a delegation as a lease, which cannot be renewed or released. `lease` receives the lease; free
/// it with `dfly_lease_free`.
///
/// # Safety
/// `delegation` is a delegation, `lease` writable.
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

/// Frees the handle. The delegation itself stays in force. NULL is a no-op.
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
