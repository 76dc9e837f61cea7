//! Allowances: leases directly from nodes, without a request to the manager for each lease.

use std::time::Duration;

use dayfly_client::{AllowanceOptions, Error};

use crate::client::dfly_client;
use crate::handle::{self, get, give, put_required};
use crate::lease::{DFLY_SANDBOX_SITE, narrow, sandbox};
use crate::status::{dfly_status, guard};

/// Limits of the leases under an allowance. Initialise with `dfly_allowance_options_init`, then set fields.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dfly_allowance_options {
    /// Set by `dfly_allowance_options_init`.
    pub size: usize,
    /// Memory of all workers together, in bytes. Default: 0, the nodes' usual share. Required if the tenant has a memory
    /// quota.
    pub memory_bytes: u64,
    /// Maximum duration of a lease, in milliseconds. Default: one hour.
    pub duration_ms: u64,
    /// Maximum number of workers of all concurrent leases together. Default: 1.
    pub workers: u32,
    /// Maximum number of whole cores of all workers together. Default: 0, one core per worker.
    pub cores: u32,
    /// Maximum number of workers on one node. Default: 0, twice an even share.
    pub workers_per_node: u32,
    /// Sandbox of all leases under the allowance: DFLY_SANDBOX_SITE, _PROCESS, _ISOLATED or _CONTAINER.
    pub sandbox: u32,
}

/// Sets every option to its default. `options` must not be NULL.
///
/// # Safety
/// `options` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_allowance_options_init(options: *mut dfly_allowance_options) -> dfly_status {
    let defaults = dfly_allowance_options {
        size: size_of::<dfly_allowance_options>(),
        memory_bytes: 0,
        duration_ms: 3_600_000,
        workers: 1,
        cores: 0,
        workers_per_node: 0,
        sandbox: DFLY_SANDBOX_SITE,
    };
    // SAFETY: as the caller promises.
    guard(|| Ok(unsafe { put_required(options, "the place for options", defaults) }?))
}

fn allowance_options(options: dfly_allowance_options) -> Result<AllowanceOptions, Error> {
    Ok(AllowanceOptions {
        workers: options.workers,
        cores: options.cores.into(),
        memory_bytes: options.memory_bytes,
        workers_per_node: narrow(options.workers_per_node, "workers of a node")?,
        duration: Duration::from_millis(options.duration_ms),
        sandbox: sandbox(options.sandbox)?,
    })
}

/// Makes a client that leases directly from nodes under an allowance of `client`'s manager. The nodes report the leases
/// to the manager afterwards. Use it for many short leases, and to lease while the manager is unavailable. `options`
/// may be NULL for the defaults: one worker at a time. `direct` receives the new client; free it with
/// `dfly_client_free`. The allowance is returned when that client and its leases, channels and pools are freed.
///
/// # Safety
/// `client` is a client, `options` NULL or options, `direct` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_client_allowance(
    client: *const dfly_client,
    options: *const dfly_allowance_options,
    direct: *mut *mut dfly_client,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        unsafe {
            give(direct, || {
                let wanted = match handle::options(options, "dfly_allowance_options")? {
                    Some(options) => allowance_options(options)?,
                    None => AllowanceOptions::workers(1),
                };
                Ok(dfly_client::new(get(client)?.client.allowance(&wanted)?))
            })
        }?;
        Ok(())
    })
}
