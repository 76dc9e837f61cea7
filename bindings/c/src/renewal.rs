//! Renewals of leases that change their terms.

use std::time::Duration;

use dayfly_client::{Error, LeaseChange};

use crate::handle::{get, options, put_required};
use crate::lease::{dfly_lease, mode, narrow};
use crate::status::{dfly_status, guard, misuse};

/// A term stays as it is, in `dfly_renew_options`.
pub const DFLY_UNCHANGED: u32 = 4294967294;

/// Terms of a renewal. Initialise with `dfly_renew_options_init`, then set fields.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dfly_renew_options {
    /// Set by `dfly_renew_options_init`.
    pub size: usize,
    /// Duration from now, in milliseconds. Default: one hour.
    pub duration_ms: u64,
    /// Number of workers. Memory follows in proportion. Default: DFLY_UNCHANGED.
    pub workers: u32,
    /// The fewest workers to accept if there is no room for `workers`. Default: DFLY_UNCHANGED, all or an error.
    pub min_workers: u32,
    /// DFLY_MODE_AUTO, DFLY_MODE_HOT or DFLY_MODE_WARM. Default: DFLY_UNCHANGED.
    pub mode: u32,
    /// How long a hot worker polls after a call before it sleeps, in milliseconds, or DFLY_FOR_EVER. Default:
    /// DFLY_UNCHANGED.
    pub hot_for_ms: u32,
    /// How long a warm worker polls after a call before it sleeps, in microseconds. Default: DFLY_UNCHANGED.
    pub poll_for_us: u32,
    /// Must be 0.
    pub reserved: u32,
}

fn default_renew_options() -> dfly_renew_options {
    dfly_renew_options {
        size: size_of::<dfly_renew_options>(),
        duration_ms: 3_600_000,
        workers: DFLY_UNCHANGED,
        min_workers: DFLY_UNCHANGED,
        mode: DFLY_UNCHANGED,
        hot_for_ms: DFLY_UNCHANGED,
        poll_for_us: DFLY_UNCHANGED,
        reserved: 0,
    }
}

fn changed(number: u32) -> Option<u32> {
    (number != DFLY_UNCHANGED).then_some(number)
}

fn change(options: &dfly_renew_options) -> Result<LeaseChange, Error> {
    if options.reserved != 0 {
        return Err(misuse("the reserved field of dfly_renew_options is not 0".to_owned()));
    }
    let workers = |number| changed(number).map(|number| narrow(number, "workers")).transpose();
    Ok(LeaseChange {
        workers: workers(options.workers)?,
        min_workers: workers(options.min_workers)?,
        mode: changed(options.mode).map(mode).transpose()?,
        hot_for_ms: changed(options.hot_for_ms),
        poll_for_us: changed(options.poll_for_us),
    })
}

/// Sets every option to its default. `options` must not be NULL.
///
/// # Safety
/// `options` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_renew_options_init(options: *mut dfly_renew_options) -> dfly_status {
    // SAFETY: as the caller promises.
    guard(|| Ok(unsafe { put_required(options, "the place for options", default_renew_options()) }?))
}

/// Renews a lease and changes its terms. `options` may be NULL for the defaults. Pools over the lease use its present
/// workers afterwards: this returns when added workers serve. Idle workers are given back first. Errors:
/// DFLY_NO_CAPACITY, DFLY_TOO_LARGE, DFLY_QUOTA_EXCEEDED, DFLY_INVALID_REQUEST for a change that the lease cannot have,
/// and DFLY_LEASE_EXPIRED or DFLY_LEASE_ENDED if it is over. The lease then stays as it is.
///
/// # Safety
/// `lease` is a lease, `options` NULL or options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_lease_renew_with(
    lease: *const dfly_lease,
    options: *const dfly_renew_options,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (lease, options) = unsafe { (get(lease)?, self::options(options, "dfly_renew_options")?) };
        let options = options.unwrap_or_else(default_renew_options);
        let duration = Duration::from_millis(options.duration_ms);
        Ok(lease.lease.renew_with(duration, &change(&options)?)?)
    })
}
