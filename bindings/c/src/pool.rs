//! Pools: calls distributed over all workers of a lease.

pub mod memory;
pub mod outcome;

use std::collections::HashMap;
use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use dayfly_client::{CallId, CallOptions, Error, FunctionId, Input, Output, Pool};

use crate::buffer::dfly_buffer;
use crate::channel::deliver;
use crate::handle::{Birth, Handle, bytes, get, give, put, put_required, take};
use crate::lease::{dfly_code, dfly_lease, function};
use crate::pool_options::{call_options, dfly_call_options, dfly_pool_options, pool_options};
use crate::status::{dfly_status, guard, misuse, value};
use outcome::{Callback, Delivered, dfly_callback, dfly_output};

/// Channels to all workers of a lease. Thread-safe. A thread that waits progresses the calls of all threads.
pub struct dfly_pool {
    birth: Birth,
    pub(crate) pool: Arc<Pool>,
    /// Whether a fleet owns it.
    is_of_fleet: bool,
    callbacks: Mutex<HashMap<CallId, Callback>>,
    /// Bytes of outputs that this library copied although the pool did not.
    copied_output: AtomicU64,
}

impl Handle for dfly_pool {
    const NAME: &'static str = "pool";
    fn birth(&self) -> Birth {
        self.birth
    }
}

impl dfly_pool {
    fn new(pool: Arc<Pool>, is_of_fleet: bool) -> Self {
        Self {
            birth: Birth::now(),
            pool,
            is_of_fleet,
            callbacks: Mutex::default(),
            copied_output: AtomicU64::new(0),
        }
    }

    pub(crate) fn of_fleet(pool: Arc<Pool>) -> Self {
        Self::new(pool, true)
    }

    /// Closes all channels, and runs the callbacks of calls that have not ended.
    pub(crate) fn close(&self) {
        // Calls return the buffers that they use before their callbacks run.
        self.pool.disconnect();
        let callbacks = std::mem::take(&mut *self.callbacks());
        for callback in callbacks.into_values() {
            let closed = dayfly_client::CallError::new(dayfly_client::Code::Cancelled, "the pool was closed");
            callback.run(Err(closed));
        }
    }

    fn callbacks(&self) -> MutexGuard<'_, HashMap<CallId, Callback>> {
        self.callbacks.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Submits a call with a callback.
    fn submit_callback(
        &self,
        callback: Callback,
        submit: impl FnOnce() -> Result<CallId, Error>,
    ) -> Result<CallId, Error> {
        // Locked until the callback is inserted, so that no driver looks for it before.
        let mut callbacks = self.callbacks();
        let id = submit()?;
        callbacks.insert(id, callback);
        Ok(id)
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
                let options = pool_options(options)?;
                Ok(dfly_pool::new(Arc::new(lease.lease.pool(options)?), false))
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
        let input = Input::Buffer(input.into_own()?, input_length);
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
        let options = CallOptions {
            notify: true,
            ..options
        };
        let callback = Callback {
            function: function_of_caller,
            user,
        };
        let id = pool.submit_callback(callback, || pool.pool.submit(FunctionId(function), input, options))?;
        // SAFETY: as the caller promises.
        unsafe { put(call, id.0) };
        Ok(())
    })
}

/// As `dfly_pool_submit`, with buffers of `dfly_pool_buffer_alloc` or `dfly_pool_buffer_alloc_for` that the caller
/// keeps. The function reads the first `input_length` bytes of `input` and writes `output` in place: they are not copied
/// if both buffers were allocated for one worker, except an output that fits in a slot. The call goes to that worker,
/// unless it is so busy that a copy for another one costs less. `input` may be NULL if `input_length` is 0, and `output`
/// may be NULL; the output is then as of `dfly_pool_submit`. Until its outcome was taken or discarded, the caller must
/// not write the input or use the output; another call may use the input. If `callback` is not NULL, it runs as in
/// `dfly_pool_submit_callback` and `call` may be NULL; otherwise take the outcome with `dfly_pool_wait`. Errors:
/// DFLY_INVALID_REQUEST if a call uses a buffer; DFLY_OUTPUT_OVERFLOW as the status of a call whose output does not fit.
///
/// # Safety
/// `pool` is a pool, `input` and `output` are two buffers or NULL, `options` is NULL or options, `callback` is NULL or
/// a function of its type that any thread may call with `user`, `call` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_pool_submit_into(
    pool: *const dfly_pool,
    function: u32,
    input: *const dfly_buffer,
    input_length: usize,
    output: *const dfly_buffer,
    options: *const dfly_call_options,
    callback: dfly_callback,
    user: *mut c_void,
    call: *mut u64,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (pool, mut options) = unsafe { (get(pool)?, call_options(options)?) };
        let payload = if input.is_null() && input_length == 0 {
            Input::Bytes(Vec::new())
        } else {
            // SAFETY: as the caller promises.
            let input = unsafe { get(input) }?;
            input.check(input_length)?;
            Input::Shared(input.share()?, input_length)
        };
        let place = if output.is_null() {
            None
        } else {
            // SAFETY: as the caller promises.
            Some(unsafe { get(output) }?.lend()?)
        };
        if callback.is_none() && call.is_null() {
            return Err(misuse("the place for the call's number is NULL, and there is no callback").into());
        }
        options.notify = callback.is_some();
        let submit = || match place {
            Some(place) => pool.pool.submit_into(FunctionId(function), payload, place, options),
            None => pool.pool.submit(FunctionId(function), payload, options),
        };
        let id = match callback {
            Some(function) => pool.submit_callback(Callback { function, user }, submit)?,
            None => submit()?,
        };
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
                Some(callback) => callback.run(pool.pool.wait(call, Some(Duration::ZERO)).map(Delivered::new)),
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
                    output: Delivered::new(get(pool)?.pool.wait(CallId(call), limit)?),
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
        if !matches!(reply, Output::Small(_)) {
            pool.copied_output
                .fetch_add(reply.as_slice().len() as u64, Ordering::Relaxed);
        }
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

/// Returns how many times worker number `worker` has been started: the incarnation that holds its state, for
/// `dfly_call_options`. Returns 0 if `pool` is NULL, or if the worker has no channel now.
///
/// # Safety
/// `pool` is NULL or a pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_pool_incarnation(pool: *const dfly_pool, worker: u32) -> u32 {
    value(0, || {
        // SAFETY: as the caller promises.
        let incarnations = unsafe { get(pool) }?.pool.incarnations();
        Ok(incarnations.get(worker as usize).copied().unwrap_or(0))
    })
}

/// Closes and frees a pool. Pending callbacks are called with DFLY_CANCELLED. Outputs and buffers remain usable. NULL
/// is a no-op, and so is the pool of a fleet.
///
/// # Safety
/// `pool` is NULL or a pool that is never used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_pool_free(pool: *mut dfly_pool) {
    guard(|| {
        // SAFETY: as the caller promises.
        match unsafe { get(pool) } {
            Ok(pool) if pool.is_of_fleet => return Err(misuse("the pool of a fleet is freed with its fleet").into()),
            _ => {}
        }
        // SAFETY: as the caller promises.
        if let Some(pool) = unsafe { take(pool) } {
            pool.close();
        }
        Ok(())
    });
}
