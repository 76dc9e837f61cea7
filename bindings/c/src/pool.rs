//! Pools: calls distributed over all workers of a lease.

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_void};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use dayfly_client::{CallId, CallOptions, FunctionId, Outcome, Output, Pool, PoolOptions};

use crate::buffer::dfly_buffer;
use crate::channel::deliver;
use crate::channel_options::channel_options;
use crate::handle::{Birth, Handle, bytes, get, give, options, put, put_required, take};
use crate::lease::{dfly_code, dfly_lease, function};
use crate::pool_options::{call_options, dfly_call_options, dfly_pool_options, small};
use crate::status::{dfly_status, guard, misuse, value};

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

struct Callback {
    function: unsafe extern "C" fn(*mut c_void, dfly_status, *const c_char, *const c_void, usize),
    user: *mut c_void,
}

// SAFETY: by contract any thread may run the callback, and this library never dereferences `user`.
unsafe impl Send for Callback {}

impl Callback {
    fn run(self, outcome: Outcome) {
        let (status, message, output) = match &outcome {
            Ok(output) => (dfly_status::DFLY_OK, CString::default(), output.as_slice()),
            Err(error) => {
                let text: Vec<u8> = error.failure.message.bytes().filter(|byte| *byte != 0).collect();
                (error.code().into(), CString::new(text).unwrap_or_default(), &[][..])
            }
        };
        // SAFETY: a function of the caller with this signature; its arguments are valid until it returns.
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

/// Channels to all workers of a lease. Thread-safe. A thread that waits progresses the calls of all threads.
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

/// The output of a call. One thread at a time may use it. It may outlive its pool.
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

/// Opens a channel to every worker of a lease. `options` may be NULL for the defaults. `pool` receives the pool; free
/// it with `dfly_pool_free`.
///
/// # Safety
/// `lease` is a lease, `options` NULL or options, `pool` writable.
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

/// Registers a function of code that the lease has loaded. `form` is DFLY_FORM_PLAIN or DFLY_FORM_CHECKED. `id`
/// receives its number for calls of this pool. A worker loads the function at its first call of it; that call fails
/// with DFLY_LOAD_FAILED if the worker cannot.
///
/// # Safety
/// `pool` is a pool, `code` a code, `symbol` a C string, `id` writable.
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

/// Submits a call, or queues it until a worker is free. `call` receives its number. The input may be reused at once.
/// Take the outcome with `dfly_pool_wait`, or discard it with `dfly_pool_forget`. `options` may be NULL for the
/// defaults; `input` may be NULL if `input_length` is 0.
///
/// # Safety
/// `pool` is a pool, `input` points to `input_length` bytes, `options` is NULL or options, `call` writable.
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

/// As `dfly_pool_submit`, with a buffer from `dfly_pool_buffer_alloc`. The input is not copied if the call runs on the
/// worker that the buffer was allocated for. The call takes ownership of the buffer, even on an error.
///
/// # Safety
/// `pool` is a pool, `input` a buffer that is never used again, `options` NULL or options, `call` writable.
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

/// As `dfly_pool_submit`, with a callback. It runs once, when the call has ended, in a thread that calls
/// `dfly_pool_drive`. `user` is passed to it and may be NULL. `call` receives the call's number, for
/// `dfly_pool_cancel`, and may be NULL.
///
/// # Safety
/// As `dfly_pool_submit`; `callback` is NULL or a function of its type that any thread may call with `user`.
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
        // Locked until the callback is inserted, so that no driver looks for it before.
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

/// Progresses all calls until calls with a callback end, at most `timeout_ms` milliseconds, and runs their callbacks.
/// `ended` receives their number, 0 after the timeout, and may be NULL.
///
/// # Safety
/// `pool` is a pool, `ended` NULL or writable.
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
                Some(callback) => callback.run(pool.pool.wait(call, Some(Duration::ZERO))),
                None => pool.pool.forget(call),
            }
        }
        Ok(())
    })
}

/// Waits up to `timeout_ms` milliseconds for the end of a call, or without limit if that is negative. Returns the
/// status of the call. `output` receives its output, or NULL on an error; free it with `dfly_output_free`. After
/// DFLY_TIMED_OUT the call continues and can be waited for again. The outcome of a call can be taken once.
///
/// # Safety
/// `pool` is a pool, `output` writable.
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

/// Calls a function, waits, and copies the output to `output`. `output_length` receives the length of the output in
/// bytes and may be NULL. If the output does not fit, the status is DFLY_OUTPUT_OVERFLOW, `output_length` receives the
/// required size, and the output is lost. `options` may be NULL for the defaults.
///
/// # Safety
/// `pool` is a pool, `input` points to `input_length` bytes, `options` is NULL or options, `output` points to room for
/// `output_capacity` bytes, `output_length` is NULL or writable.
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

/// Returns whether a call has ended; false if `pool` is NULL.
///
/// # Safety
/// `pool` is NULL or a pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_pool_is_done(pool: *const dfly_pool, call: u64) -> bool {
    // SAFETY: as the caller promises.
    value(false, || Ok(unsafe { get(pool) }?.pool.is_done(CallId(call))))
}

/// Removes a call from the queue; it ends with DFLY_CANCELLED. `cancelled` is set to false if it was already sent or
/// has ended, and may be NULL.
///
/// # Safety
/// `pool` is a pool, `cancelled` NULL or writable.
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

/// Ends a call with DFLY_CANCELLED even if it runs, by stopping its worker. Other calls sent to that worker run on other
/// workers.
///
/// # Safety
/// `pool` is a pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_pool_kill(pool: *const dfly_pool, call: u64) -> dfly_status {
    // SAFETY: as the caller promises.
    guard(|| Ok(unsafe { get(pool) }?.pool.kill(CallId(call))?))
}

/// Discards the outcome of a call. A queued call is dropped; a call that was sent continues.
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

/// Returns the number of workers that take calls, now or after their repair; 0 if `pool` is NULL or its lease has
/// ended.
///
/// # Safety
/// `pool` is NULL or a pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_pool_remaining_workers(pool: *const dfly_pool) -> usize {
    // SAFETY: as the caller promises.
    value(0, || Ok(unsafe { get(pool) }?.pool.remaining_workers()))
}

/// Returns the number of calls that have not ended; 0 if `pool` is NULL.
///
/// # Safety
/// `pool` is NULL or a pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_pool_pending(pool: *const dfly_pool) -> usize {
    // SAFETY: as the caller promises.
    value(0, || Ok(unsafe { get(pool) }?.pool.pending()))
}

/// Allocates a buffer of `length` bytes for an input, for the worker with the fewest outstanding calls. `worker`
/// receives that worker's number, for `dfly_call_options`, and may be NULL. `buffer` receives the buffer; submit it, or
/// free it with `dfly_buffer_free`.
///
/// # Safety
/// `pool` is a pool, `buffer` writable, `worker` NULL or writable.
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

/// Returns the address of an output's bytes, valid until the output is freed; NULL if `output` is NULL.
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

/// Returns the length of an output in bytes; 0 if `output` is NULL.
///
/// # Safety
/// `output` is NULL or an output.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_output_length(output: *const dfly_output) -> usize {
    // SAFETY: as the caller promises.
    value(0, || Ok(unsafe { get(output) }?.output.as_slice().len()))
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

/// Closes and frees a pool. Pending callbacks are called with DFLY_CANCELLED. Outputs and buffers remain usable. NULL
/// is a no-op.
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
            callback.run(Err(closed));
        }
        Ok(())
    });
}
