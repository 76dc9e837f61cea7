//! Allowances: leases straight from nodes, on no manager's way.

use std::time::Duration;

use dayfly_client::{AllowanceOptions, Error};

use crate::client::dfly_client;
use crate::handle::{self, get, give, put_required};
use crate::lease::{DFLY_SANDBOX_SITE, narrow, sandbox};
use crate::status::{dfly_status, guard};

/// How much may be leased straight from nodes. Initialise with `dfly_allowance_options_init`, then change what you want.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dfly_allowance_options {
    /// Set by `dfly_allowance_options_init`.
    pub size: usize,
    /// Memory of all workers together in bytes; 0 to leave it to the nodes.
    pub memory_bytes: u64,
    /// The longest lease: an hour.
    pub duration_ms: u64,
    /// Workers, of all leases at a time together: 1.
    pub workers: u32,
    /// Cores of all of them together: 0 for one each.
    pub cores: u32,
    /// Workers on one node at most: 0 for twice an even share.
    pub workers_per_node: u32,
    /// As of a lease; all leases under the allowance have the same.
    pub sandbox: u32,
}

/// Sets every option to its default.
///
/// # Safety
/// `options` is NULL or a place for options.
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
        cores: options.cores,
        memory_bytes: options.memory_bytes,
        workers_per_node: narrow(options.workers_per_node, "workers of a node")?,
        duration: Duration::from_millis(options.duration_ms),
        sandbox: sandbox(options.sandbox)?,
    })
}

/// A client whose leases come straight from nodes, under an allowance of its manager's, which hears of them afterwards: for many short
/// leases, and for leases while the manager is away. NULL for `options` means the defaults: one worker at a time. The allowance is
/// given back with the last of that client, its leases, channels and pools.
///
/// # Safety
/// `client` is a client, `options` NULL or options, `direct` a place for a pointer.
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
