//! Options of a pool and of a call.

use dayfly_client::{CallOptions, Error, PoolOptions, WorkerIndex};

use crate::channel_options::{channel_options, default_channel_options, dfly_channel_options};
use crate::handle::{options, put_required};
use crate::status::{dfly_status, guard, misuse};

/// Any worker, in `dfly_call_options`.
pub const DFLY_ANY_WORKER: u32 = 4294967295;

/// Options of a pool. Initialise with `dfly_pool_options_init`, then set fields.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dfly_pool_options {
    /// Set by `dfly_pool_options_init`.
    pub size: usize,
    /// Options of the pool's channels.
    pub channel: dfly_channel_options,
    /// How often a call is retried on another worker, if it was not executed or is idempotent. Default: 3.
    pub retries: u32,
    /// Maximum number of outstanding calls per worker. Default: 0, derived from measured times.
    pub depth: u32,
}

/// Options of a call. Initialise with `dfly_call_options_init`, then set fields.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dfly_call_options {
    /// Set by `dfly_call_options_init`.
    pub size: usize,
    /// Limit of the execution time in milliseconds, after which the worker is stopped. Default: 0, no limit.
    pub deadline_ms: u32,
    /// Not 0 if running the call twice does no harm; it is then retried if its worker dies during the call. Default: 0.
    pub idempotent: u32,
    /// The only worker that may run the call. Default: DFLY_ANY_WORKER.
    pub worker: u32,
    /// The incarnation of that worker whose state the call needs, from `dfly_pool_incarnation`. If the worker has been
    /// replaced, the call is not executed and ends with DFLY_STATE_LOST. Default: 0, any.
    pub incarnation: u32,
    /// Bytes to reserve for the output. A checked function receives the number as its capacity. Default: 0, the worker
    /// chooses.
    pub room: usize,
}

pub(crate) fn small(number: u32, what: &str) -> Result<u16, Error> {
    u16::try_from(number).map_err(|_| misuse(format!("{number} {what}: at most {}", u16::MAX)))
}

/// # Safety
/// `options` points to options or memory of that size, unless it is null.
pub(crate) unsafe fn pool_options(options: *const dfly_pool_options) -> Result<PoolOptions, Error> {
    // SAFETY: as the caller promises.
    let Some(given) = unsafe { self::options(options, "dfly_pool_options") }? else {
        return Ok(PoolOptions::default());
    };
    // SAFETY: a field of initialised options.
    let channel = unsafe { self::options(&given.channel, "dfly_channel_options") }?;
    Ok(PoolOptions {
        channel: channel_options(channel)?,
        retries: u8::try_from(given.retries).unwrap_or(u8::MAX),
        depth: small(given.depth, "calls outstanding")?,
        remembers: false,
    })
}

pub(crate) fn default_pool_options() -> dfly_pool_options {
    let defaults = PoolOptions::default();
    dfly_pool_options {
        size: size_of::<dfly_pool_options>(),
        channel: default_channel_options(),
        retries: defaults.retries.into(),
        depth: defaults.depth.into(),
    }
}

/// # Safety
/// `options` points to options or memory of that size, unless it is null.
pub(crate) unsafe fn call_options(options: *const dfly_call_options) -> Result<CallOptions, Error> {
    // SAFETY: as the caller promises.
    let Some(options) = unsafe { self::options(options, "dfly_call_options") }? else {
        return Ok(CallOptions::default());
    };
    let worker = match options.worker {
        DFLY_ANY_WORKER => None,
        number => Some(WorkerIndex(small(number, "as the number of a worker")?)),
    };
    if options.incarnation != 0 && worker.is_none() {
        return Err(misuse("an incarnation without the number of its worker"));
    }
    Ok(CallOptions {
        deadline_ms: options.deadline_ms,
        idempotent: options.idempotent != 0,
        worker,
        incarnation: (options.incarnation != 0).then_some(options.incarnation),
        room: options.room,
        notify: false,
    })
}

/// Sets every option to its default. `options` must not be NULL.
///
/// # Safety
/// `options` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_pool_options_init(options: *mut dfly_pool_options) -> dfly_status {
    // SAFETY: as the caller promises.
    guard(|| Ok(unsafe { put_required(options, "the place for options", default_pool_options()) }?))
}

/// Sets every option to its default. `options` must not be NULL.
///
/// # Safety
/// `options` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_call_options_init(options: *mut dfly_call_options) -> dfly_status {
    let defaults = dfly_call_options {
        size: size_of::<dfly_call_options>(),
        deadline_ms: 0,
        idempotent: 0,
        worker: DFLY_ANY_WORKER,
        incarnation: 0,
        room: 0,
    };
    // SAFETY: as the caller promises.
    guard(|| Ok(unsafe { put_required(options, "the place for options", defaults) }?))
}
