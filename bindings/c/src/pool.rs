//! Calls spread over all workers of a lease.

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_void};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use dayfly_client::{CallId, CallOptions, Error, FunctionId, Outcome, Output, Pool, PoolOptions, WorkerIndex};

use crate::buffer::dfly_buffer;
use crate::channel::{channel_options, default_channel_options, deliver, dfly_channel_options};
use crate::handle::{Birth, Handle, bytes, get, give, options, put, put_required, take};
use crate::lease::{dfly_code, dfly_lease, function};
use crate::status::{dfly_status, guard, misuse, value};

/// Any worker, in `dfly_call_options`.
pub const DFLY_ANY_WORKER: u32 = 4294967295;

/// How a pool works. Initialise with `dfly_pool_options_init`, then change what you want.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dfly_pool_options {
    /// Set by `dfly_pool_options_init`.
    pub size: usize,
    /// How its channels are opened.
    pub channel: dfly_channel_options,
    /// How often a call that was not executed, or is idempotent, is tried again elsewhere: 3.
    pub retries: u32,
    /// Most calls that one worker may have outstanding; 0 to let measured times decide.
    pub depth: u32,
}

/// How one call is treated. Initialise with `dfly_call_options_init`, then change what you want.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dfly_call_options {
    /// Set by `dfly_call_options_init`.
    pub size: usize,
    /// Milliseconds of execution allowed, after which its worker is ended: 0 for no limit.
    pub deadline_ms: u32,
    /// Not 0 if running it twice does no harm, so that it is repeated when its worker died during it.
    pub idempotent: u32,
    /// The only worker that may run it: DFLY_ANY_WORKER.
    pub worker: u32,
}

/// What is told of the end of a call: its status, the text of its error or "", and its output, all valid during the
/// callback. It runs in the thread that called `dfly_pool_drive` (or `dfly_pool_free`), and may use the pool, except to free
/// it. It must not throw.
pub type dfly_callback = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        status: dfly_status,
        message: *const c_char,
        output: *const c_void,
        length: usize,
    ),
>;

struct Callback {
    function: unsafe extern "C" fn(*mut c_void, dfly_status, *const c_char, *const c_void, usize),
    user: *mut c_void,
}

// SAFETY: that any thread may run the callback is in its contract; we never look at `user`.
unsafe impl Send for Callback {}

impl Callback {
    fn tell(self, outcome: Outcome) {
        let (status, message, output) = match &outcome {
            Ok(output) => (dfly_status::DFLY_OK, CString::default(), output.as_slice()),
            Err(error) => {
                let text: Vec<u8> = error.failure.message.bytes().filter(|byte| *byte != 0).collect();
                (error.code().into(), CString::new(text).unwrap_or_default(), &[][..])
            }
        };
        // SAFETY: a function of the caller's with this signature; what it is given lives until it returns.
        unsafe {
            (self.function)(
                self.user,
                status,
                message.as_ptr(),
                output.as_ptr().cast(),
                output.len(),
            )
        };
    }
}

/// A channel to every worker of a lease. Any thread may use it; whoever waits drives the calls of all.
pub struct dfly_pool {
    birth: Birth,
    pub(crate) pool: Pool,
    callbacks: Mutex<HashMap<CallId, Callback>>,
}

impl Handle for dfly_pool {
    const NAME: &'static str = "pool";
    fn birth(&self) -> Birth {
        self.birth
    }
}

impl dfly_pool {
    fn callbacks(&self) -> MutexGuard<'_, HashMap<CallId, Callback>> {
        self.callbacks.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The output of a call. One thread at a time may use it; it may outlive its pool.
pub struct dfly_output {
    birth: Birth,
    output: Output,
}

impl Handle for dfly_output {
    const NAME: &'static str = "output";
    fn birth(&self) -> Birth {
        self.birth
    }
}

fn small(number: u32, what: &str) -> Result<u16, Error> {
    u16::try_from(number).map_err(|_| misuse(format!("{number} {what}: at most {}", u16::MAX)))
}

/// # Safety
/// `options` points to options or memory of that size, unless it is null.
unsafe fn call_options(options: *const dfly_call_options) -> Result<CallOptions, Error> {
    // SAFETY: as the caller promises.
    let Some(options) = unsafe { self::options(options, "dfly_call_options") }? else {
        return Ok(CallOptions::default());
    };
    let worker = match options.worker {
        DFLY_ANY_WORKER => None,
        number => Some(WorkerIndex(small(number, "as the number of a worker")?)),
    };
    Ok(CallOptions {
        deadline_ms: options.deadline_ms,
        idempotent: options.idempotent != 0,
        worker,
        ..CallOptions::default()
    })
}

/// Sets every option to its default.
///
/// # Safety
/// `options` is NULL or a place for options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_pool_options_init(options: *mut dfly_pool_options) -> dfly_status {
    let defaults = PoolOptions::default();
    let defaults = dfly_pool_options {
        size: size_of::<dfly_pool_options>(),
        channel: default_channel_options(),
        retries: defaults.retries.into(),
        depth: defaults.depth.into(),
    };
    // SAFETY: as the caller promises.
    guard(|| Ok(unsafe { put_required(options, "the place for options", defaults) }?))
}

/// Sets every option to its default.
///
/// # Safety
/// `options` is NULL or a place for options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_call_options_init(options: *mut dfly_call_options) -> dfly_status {
    let defaults = dfly_call_options {
        size: size_of::<dfly_call_options>(),
        deadline_ms: 0,
        idempotent: 0,
        worker: DFLY_ANY_WORKER,
    };
    // SAFETY: as the caller promises.
    guard(|| Ok(unsafe { put_required(options, "the place for options", defaults) }?))
}

/// Opens a channel to every worker of a lease. NULL for `options` means the defaults.
///
/// # Safety
/// `lease` is a lease, `options` NULL or options, `pool` a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_pool_open(
    lease: *const dfly_lease,
    options: *const dfly_pool_options,
    pool: *mut *mut dfly_pool,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        unsafe {
            give(pool, || {
                let lease = get(lease)?;
                let options = match self::options(options, "dfly_pool_options")? {
                    None => PoolOptions::default(),
                    Some(given) => PoolOptions {
                        channel: channel_options(self::options(&given.channel, "dfly_channel_options")?)?,
                        retries: u8::try_from(given.retries).unwrap_or(u8::MAX),
                        depth: small(given.depth, "calls outstanding")?,
                        remembers: false,
                    },
                };
                Ok(dfly_pool {
                    birth: Birth::now(),
                    pool: lease.lease.pool(options)?,
                    callbacks: Mutex::default(),
                })
            })
        }?;
        Ok(())
    })
}

/// Makes a function of code that the lease has known to the pool. Workers load it at its first call, which fails if they
/// cannot.
///
/// # Safety
/// `pool` is a pool, `code` a code, `symbol` a C string, `id` a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_pool_function(
    pool: *const dfly_pool,
    code: *const dfly_code,
    symbol: *const c_char,
    form: u32,
    id: *mut u32,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (pool, (hash, form)) = unsafe { (get(pool)?, function(code, symbol, form)?) };
        let function = pool.pool.register(hash, form)?;
        // SAFETY: as the caller promises.
        Ok(unsafe { put_required(id, "the place for the function's number", function.0) }?)
    })
}

/// Sends a call, or queues it until a worker has room; `call` tells its number. The input may be reused at once. Its
/// outcome is taken with `dfly_pool_wait`, or given up with `dfly_pool_forget`. NULL for `options` means the defaults.
///
/// # Safety
/// `pool` is a pool, `input` points to `input_length` bytes, `options` is NULL or options, `call` a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_pool_submit(
    pool: *const dfly_pool,
    function: u32,
    input: *const c_void,
    input_length: usize,
    options: *const dfly_call_options,
    call: *mut u64,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (pool, input, options) = unsafe { (get(pool)?, bytes(input, input_length)?, call_options(options)?) };
        if call.is_null() {
            return Err(misuse("the place for the call's number is NULL").into());
        }
        let id = pool.pool.submit(FunctionId(function), input, options)?;
        // SAFETY: as the caller promises.
        unsafe { put(call, id.0) };
        Ok(())
    })
}

/// As `dfly_pool_submit`, with memory of `dfly_pool_buffer_alloc`, which is not copied if the call goes to the worker for
/// which it was allocated. The buffer belongs to the call from now on, whatever the status.
///
/// # Safety
/// `pool` is a pool, `input` a buffer that is never used again, `options` NULL or options, `call` a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_pool_submit_buffer(
    pool: *const dfly_pool,
    function: u32,
    input: *mut dfly_buffer,
    input_length: usize,
    options: *const dfly_call_options,
    call: *mut u64,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let input = unsafe { take(input) }.ok_or_else(|| misuse("the input buffer is NULL"))?;
        input.check(input_length)?;
        // SAFETY: as the caller promises.
        let (pool, options) = unsafe { (get(pool)?, call_options(options)?) };
        if call.is_null() {
            return Err(misuse("the place for the call's number is NULL").into());
        }
        let input = dayfly_client::Input::Buffer(input.buffer, input_length);
        let id = pool.pool.submit(FunctionId(function), input, options)?;
        // SAFETY: as the caller promises.
        unsafe { put(call, id.0) };
        Ok(())
    })
}

/// As `dfly_pool_submit`, with a function of yours that is told of the end, once, by whoever drives the pool
/// (`dfly_pool_drive`). `call` is NULL or tells the call's number, for `dfly_pool_cancel`.
///
/// # Safety
/// As `dfly_pool_submit`; `callback` is a function of its type, that any thread may call with `user`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_pool_submit_callback(
    pool: *const dfly_pool,
    function: u32,
    input: *const c_void,
    input_length: usize,
    options: *const dfly_call_options,
    callback: dfly_callback,
    user: *mut c_void,
    call: *mut u64,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (pool, input, options) = unsafe { (get(pool)?, bytes(input, input_length)?, call_options(options)?) };
        let function_of_caller = callback.ok_or_else(|| misuse("the callback is NULL"))?;
        let notify = CallOptions {
            notify: true,
            ..options
        };
        // Held until the callback is known, so that no driver looks for it before.
        let mut callbacks = pool.callbacks();
        let id = pool.pool.submit(FunctionId(function), input, notify)?;
        callbacks.insert(
            id,
            Callback {
                function: function_of_caller,
                user,
            },
        );
        // SAFETY: as the caller promises.
        unsafe { put(call, id.0) };
        Ok(())
    })
}

/// Drives the calls until some with a callback have ended, `timeout_ms` at most, and runs their callbacks; `ended` tells
/// how many, 0 when the time is over.
///
/// # Safety
/// `pool` is a pool, `ended` NULL or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_pool_drive(pool: *const dfly_pool, timeout_ms: u32, ended: *mut usize) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let pool = unsafe { get(pool) }?;
        let calls = pool.pool.drive(Duration::from_millis(timeout_ms.into()));
        // SAFETY: as the caller promises.
        unsafe { put(ended, calls.len()) };
        for call in calls {
            let callback = pool.callbacks().remove(&call);
            match callback {
                Some(callback) => callback.tell(pool.pool.wait(call, Some(Duration::ZERO))),
                None => pool.pool.forget(call),
            }
        }
        Ok(())
    })
}

/// Waits for the end of a call, `timeout_ms` at most (DFLY_TIMED_OUT: it goes on and can be waited for again), or for ever if
/// that is negative. The status is the call's own; its output, if it has one, is handed over through `output`. The outcome
/// of a call can be taken once.
///
/// # Safety
/// `pool` is a pool, `output` a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_pool_wait(
    pool: *const dfly_pool,
    call: u64,
    timeout_ms: i64,
    output: *mut *mut dfly_output,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        unsafe {
            give(output, || {
                let limit = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
                Ok(dfly_output {
                    output: get(pool)?.pool.wait(CallId(call), limit)?,
                    birth: Birth::now(),
                })
            })
        }?;
        Ok(())
    })
}

/// Calls a function and waits; the output is copied to `output`. When it does not fit, the status is DFLY_OUTPUT_OVERFLOW and
/// `output_length` says what it needs.
///
/// # Safety
/// `pool` is a pool, `input` points to `input_length` bytes, `options` is NULL or options, `output` points to room for
/// `output_capacity` bytes, `output_length` is NULL or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_pool_call(
    pool: *const dfly_pool,
    function: u32,
    input: *const c_void,
    input_length: usize,
    options: *const dfly_call_options,
    output: *mut c_void,
    output_capacity: usize,
    output_length: *mut usize,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (pool, input, options) = unsafe { (get(pool)?, bytes(input, input_length)?, call_options(options)?) };
        let reply = pool.pool.call(FunctionId(function), input, options)?;
        // SAFETY: as the caller promises.
        Ok(unsafe { deliver(reply.as_slice(), output, output_capacity, output_length) }?)
    })
}

/// Whether a call has ended.
///
/// # Safety
/// `pool` is NULL or a pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_pool_is_done(pool: *const dfly_pool, call: u64) -> bool {
    // SAFETY: as the caller promises.
    value(false, || Ok(unsafe { get(pool) }?.pool.is_done(CallId(call))))
}

/// Takes a call out of the queue, so that it ends as DFLY_CANCELLED; `cancelled` tells whether it was still there.
///
/// # Safety
/// `pool` is a pool, `cancelled` NULL or a place for a bool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_pool_cancel(pool: *const dfly_pool, call: u64, cancelled: *mut bool) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let done = unsafe { get(pool) }?.pool.cancel(CallId(call));
        // SAFETY: as the caller promises.
        unsafe { put(cancelled, done) };
        Ok(())
    })
}

/// Ends a call even if it runs, by ending its worker. Calls behind it go elsewhere.
///
/// # Safety
/// `pool` is a pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_pool_kill(pool: *const dfly_pool, call: u64) -> dfly_status {
    // SAFETY: as the caller promises.
    guard(|| Ok(unsafe { get(pool) }?.pool.kill(CallId(call))?))
}

/// Nobody will wait for this call.
///
/// # Safety
/// `pool` is a pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_pool_forget(pool: *const dfly_pool, call: u64) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        unsafe { get(pool) }?.pool.forget(CallId(call));
        Ok(())
    })
}

/// Calls that have not ended; 0 for NULL.
///
/// # Safety
/// `pool` is NULL or a pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_pool_pending(pool: *const dfly_pool) -> usize {
    // SAFETY: as the caller promises.
    value(0, || Ok(unsafe { get(pool) }?.pool.pending()))
}

/// Allocates memory for an input, for the worker that has least to do; `worker` tells which, for `dfly_call_options`.
///
/// # Safety
/// `pool` is a pool, `buffer` a place for a pointer, `worker` NULL or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_pool_buffer_alloc(
    pool: *const dfly_pool,
    length: usize,
    buffer: *mut *mut dfly_buffer,
    worker: *mut u32,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        unsafe {
            give(buffer, || {
                let (memory, of) = get(pool)?.pool.allocate(length)?;
                put(worker, of.0.into());
                Ok(dfly_buffer::new(memory))
            })
        }?;
        Ok(())
    })
}

/// The bytes of an output; NULL for NULL.
///
/// # Safety
/// `output` is NULL or an output.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_output_data(output: *const dfly_output) -> *const c_void {
    value(std::ptr::null(), || {
        // SAFETY: as the caller promises.
        Ok(unsafe { get(output) }?.output.as_slice().as_ptr().cast())
    })
}

/// How many bytes an output has; 0 for NULL.
///
/// # Safety
/// `output` is NULL or an output.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_output_length(output: *const dfly_output) -> usize {
    // SAFETY: as the caller promises.
    value(0, || Ok(unsafe { get(output) }?.output.as_slice().len()))
}

/// Gives an output's memory back. NULL is nothing.
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

/// Closes the pool. Callbacks that were not called are told DFLY_CANCELLED. Outputs and buffers live on. NULL is nothing.
///
/// # Safety
/// `pool` is NULL or a pool that is never used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_pool_free(pool: *mut dfly_pool) {
    guard(|| {
        // SAFETY: as the caller promises.
        let Some(pool) = (unsafe { take(pool) }) else {
            return Ok(());
        };
        let callbacks = std::mem::take(&mut *pool.callbacks());
        for callback in callbacks.into_values() {
            let closed = dayfly_client::CallError::new(dayfly_client::Code::Cancelled, "the pool was closed");
            callback.tell(Err(closed));
        }
        Ok(())
    });
}
