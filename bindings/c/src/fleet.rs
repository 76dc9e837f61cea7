//! Fleets: workers on many nodes behind one queue.

use std::ffi::c_char;
use std::sync::Arc;
use std::time::Duration;

use dayfly_client::{CallError, Code, Fleet, FleetOptions};

use crate::client::dfly_client;
use crate::handle::{Birth, Handle, get, give, optional_path, options, put_required, take};
use crate::lease::{default_lease_options, dfly_code, dfly_lease_options, lease_options, read_library};
use crate::pool::dfly_pool;
use crate::pool_options::{default_pool_options, dfly_pool_options, pool_options};
use crate::status::{dfly_status, guard, misuse, value};

/// Options of a fleet. Initialise with `dfly_fleet_options_init`, then set fields.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dfly_fleet_options {
    /// Set by `dfly_fleet_options_init`.
    pub size: usize,
    /// Terms of each lease. Its `workers` is the maximum of one lease, by default 4, and its `memory_bytes` is for that
    /// many.
    pub lease: dfly_lease_options,
    /// Options of the fleet's pool.
    pub pool: dfly_pool_options,
    /// Workers that the fleet holds also without calls. Default: 0.
    pub min: u32,
    /// Maximum number of workers. Default: 16.
    pub max: u32,
    /// How long calls must have waited before the fleet grows, in milliseconds. Default: 10.
    pub patience_ms: u64,
    /// How long the workers of a lease must have been idle before the fleet gives it back, in milliseconds. Default: 10
    /// seconds.
    pub idle_ms: u64,
    /// How long calls wait while the fleet cannot lease any worker, in milliseconds. Then they end with the reason.
    /// Default: one minute.
    pub wait_ms: u64,
}

/// Workers on many nodes behind one queue. Thread-safe. Calls move from nodes that are lost or taken back to others, if
/// they have not begun or are idempotent.
pub struct dfly_fleet {
    birth: Birth,
    fleet: Fleet,
    /// Boxed, because C programs hold its address.
    pool: Box<dfly_pool>,
}

impl Handle for dfly_fleet {
    const NAME: &'static str = "fleet";
    fn birth(&self) -> Birth {
        self.birth
    }
}

/// Sets every option to its default. `options` must not be NULL.
///
/// # Safety
/// `options` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_fleet_options_init(options: *mut dfly_fleet_options) -> dfly_status {
    let defaults = FleetOptions::native(0, 16);
    let defaults = dfly_fleet_options {
        size: size_of::<dfly_fleet_options>(),
        lease: dfly_lease_options {
            workers: defaults.lease.workers.into(),
            ..default_lease_options()
        },
        pool: default_pool_options(),
        min: defaults.min,
        max: defaults.max,
        patience_ms: defaults.patience.as_millis() as u64,
        idle_ms: defaults.idle.as_millis() as u64,
        wait_ms: defaults.wait.as_millis() as u64,
    };
    // SAFETY: as the caller promises.
    guard(|| Ok(unsafe { put_required(options, "the place for options", defaults) }?))
}

/// Opens a fleet and returns at once; the first worker serves calls while others are started. `options` may be NULL for
/// the defaults. `fleet` receives the fleet; free it with `dfly_fleet_free`.
///
/// # Safety
/// `client` is a client, `options` NULL or options, `fleet` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_fleet_open(
    client: *const dfly_client,
    options: *const dfly_fleet_options,
    fleet: *mut *mut dfly_fleet,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        unsafe {
            give(fleet, || {
                let client = get(client)?;
                let options = match self::options(options, "dfly_fleet_options")? {
                    None => FleetOptions::native(0, 16),
                    Some(given) => FleetOptions {
                        lease: match self::options(&given.lease, "dfly_lease_options")? {
                            Some(lease) => lease_options(lease)?,
                            None => return Err(misuse("the options of the lease are NULL")),
                        },
                        min: given.min,
                        max: given.max,
                        patience: Duration::from_millis(given.patience_ms),
                        idle: Duration::from_millis(given.idle_ms),
                        wait: Duration::from_millis(given.wait_ms),
                        pool: pool_options(&raw const given.pool)?,
                    },
                };
                let fleet = client.client.fleet(options)?;
                Ok(dfly_fleet {
                    birth: Birth::now(),
                    pool: Box::new(dfly_pool::of_fleet(Arc::clone(fleet.pool()))),
                    fleet,
                })
            })
        }?;
        Ok(())
    })
}

/// Returns the pool of a fleet, for the functions of pools; NULL if `fleet` is NULL. The fleet owns the pool, and frees
/// it. Options of a call that name a worker or an incarnation are refused with DFLY_INVALID_REQUEST, because the workers
/// come and go; `dfly_pool_buffer_alloc_for` and `dfly_pool_delegate` are, too.
///
/// # Safety
/// `fleet` is NULL or a fleet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_fleet_pool(fleet: *const dfly_fleet) -> *const dfly_pool {
    // SAFETY: as the caller promises.
    value(std::ptr::null(), || Ok(&raw const *unsafe { get(fleet) }?.pool))
}

/// Sends a shared library to all nodes of a fleet, also to those that join later. `code` receives its identity. Errors:
/// DFLY_NOT_FOUND if the file cannot be read.
///
/// # Safety
/// `fleet` is a fleet, `path` a C string, `code` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_fleet_load_library(
    fleet: *const dfly_fleet,
    path: *const c_char,
    code: *mut dfly_code,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (fleet, path) = unsafe { (get(fleet)?, optional_path(path, "the path")?) };
        let library = read_library(path)?;
        let hash = fleet.fleet.put_code(&library)?.0;
        // SAFETY: as the caller promises.
        Ok(unsafe { put_required(code, "the place for the code", dfly_code { hash }) }?)
    })
}

/// Returns the number of workers that serve calls of a fleet or are being repaired; 0 if `fleet` is NULL.
///
/// # Safety
/// `fleet` is NULL or a fleet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_fleet_workers(fleet: *const dfly_fleet) -> u32 {
    // SAFETY: as the caller promises.
    value(0, || Ok(unsafe { get(fleet) }?.fleet.status().workers))
}

/// Returns the number of nodes on which a fleet has leases; 0 if `fleet` is NULL.
///
/// # Safety
/// `fleet` is NULL or a fleet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_fleet_nodes(fleet: *const dfly_fleet) -> u32 {
    value(0, || {
        // SAFETY: as the caller promises.
        let mut nodes = unsafe { get(fleet) }?.fleet.status().nodes;
        nodes.sort_unstable();
        nodes.dedup();
        Ok(nodes.len() as u32)
    })
}

/// Waits up to `timeout_ms` milliseconds until a fleet has at least `workers` workers. Errors: DFLY_TIMED_OUT, with the
/// reason of the last refused lease in the message.
///
/// # Safety
/// `fleet` is a fleet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_fleet_wait(fleet: *const dfly_fleet, workers: u32, timeout_ms: u32) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let fleet = &unsafe { get(fleet) }?.fleet;
        if fleet.wait_for_workers(workers, Duration::from_millis(timeout_ms.into())) {
            return Ok(());
        }
        let status = fleet.status();
        let reason = status.refusal.map_or(String::new(), |refusal| format!(": {refusal}"));
        let text = format!(
            "the fleet has {} of {workers} workers after {timeout_ms} ms{reason}",
            status.workers
        );
        Err(CallError::new(Code::TimedOut, text))
    })
}

/// Releases all workers of a fleet now. Calls that have not ended end with DFLY_LEASE_ENDED.
///
/// # Safety
/// `fleet` is a fleet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_fleet_close(fleet: *const dfly_fleet) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        unsafe { get(fleet) }?.fleet.close();
        Ok(())
    })
}

/// Closes and frees a fleet and its pool. Pending callbacks are called with DFLY_CANCELLED. Outputs and buffers remain
/// usable. NULL is a no-op.
///
/// # Safety
/// `fleet` is NULL or a fleet that is never used again, nor its pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_fleet_free(fleet: *mut dfly_fleet) {
    guard(|| {
        // SAFETY: as the caller promises.
        if let Some(fleet) = unsafe { take(fleet) } {
            fleet.fleet.close();
            fleet.pool.close();
        }
        Ok(())
    });
}
