//! A channel to one worker, for the lowest latency.

use std::ffi::{CString, c_char, c_void};
use std::time::Duration;

use dayfly_client::{CallError, Channel, Code, Completion, Error, FunctionIndex, Status, WorkerIndex};

use crate::buffer::dfly_buffer;
use crate::channel_options::{channel_options, dfly_channel_options};
use crate::handle::{Birth, Handle, bytes, get, get_mut, give, options, put, put_required, take};
use crate::lease::{DFLY_FOR_EVER, dfly_code, dfly_lease, function, transport_number};
use crate::status::{dfly_status, guard, misuse, value};

/// A channel to one worker. One thread at a time may use it.
pub struct dfly_channel {
    birth: Birth,
    pub(crate) channel: Channel,
    /// A completion was returned, and its slot is not free yet.
    has_untaken_output: bool,
    /// An output that did not fit into the caller's memory.
    kept: Option<Vec<u8>>,
    /// Name of the transport.
    transport: CString,
}

impl Handle for dfly_channel {
    const NAME: &'static str = "channel";
    fn birth(&self) -> Birth {
        self.birth
    }
}

/// Completion of a submitted call.
#[repr(C)]
pub struct dfly_completion {
    /// Number of the call, from `dfly_channel_submit`.
    pub sequence: u32,
    /// Status of the call.
    pub status: dfly_status,
    /// Output of the call, or the text of its error. Valid until the next function of this channel.
    pub output: *const c_void,
    /// Length of the output in bytes.
    pub length: usize,
}

impl dfly_channel {
    /// Frees the slot of the last completion that was returned.
    #[inline]
    fn free_last_slot(&mut self) {
        if self.has_untaken_output {
            self.channel.done();
            self.has_untaken_output = false;
        }
        if self.kept.is_some() {
            self.kept = None;
        }
    }

    fn report(&mut self, completion: Completion) -> dfly_completion {
        self.has_untaken_output = true;
        let output = self.channel.output();
        let status = match completion.status {
            status if status == Status::Ok as u16 => dfly_status::DFLY_OK,
            status => CallError::from_response(status, &[]).code().into(),
        };
        dfly_completion {
            sequence: completion.sequence,
            status,
            output: output.as_ptr().cast(),
            length: output.len(),
        }
    }
}

/// Copies an output into the caller's memory and writes its length to `output_length`. Errors: output overflow if it
/// does not fit; the caller of this function then keeps the output.
///
/// # Safety
/// `output` has room for `capacity` bytes and `output_length` is writable, unless they are null.
#[inline]
pub(crate) unsafe fn deliver(
    reply: &[u8],
    output: *mut c_void,
    capacity: usize,
    output_length: *mut usize,
) -> Result<(), Error> {
    // SAFETY: as the caller promises.
    unsafe { put(output_length, reply.len()) };
    if reply.is_empty() {
        return Ok(());
    }
    if output.is_null() || reply.len() > capacity {
        let room = if output.is_null() { 0 } else { capacity };
        return Err(too_small(reply.len(), room));
    }
    // SAFETY: the caller promises `capacity` writable bytes.
    unsafe { std::ptr::copy(reply.as_ptr(), output.cast::<u8>(), reply.len()) };
    Ok(())
}

#[cold]
fn too_small(length: usize, room: usize) -> Error {
    Error::new(
        Code::OutputOverflow,
        format!("an output of {length} bytes in room for {room}"),
    )
}

/// Opens a channel to worker number `worker`, counted from 0. `options` may be NULL for the defaults. `channel`
/// receives the channel; free it with `dfly_channel_free`. Errors: DFLY_WORKER_BUSY if another channel to the worker is
/// open, DFLY_TRANSPORT_REFUSED.
///
/// # Safety
/// `lease` is a lease, `options` NULL or options, `channel` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_channel_open(
    lease: *const dfly_lease,
    worker: u32,
    options: *const dfly_channel_options,
    channel: *mut *mut dfly_channel,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        unsafe {
            give(channel, || {
                let lease = get(lease)?;
                let options = channel_options(self::options(options, "dfly_channel_options")?)?;
                let worker = u16::try_from(worker).map_err(|_| misuse(format!("there is no worker {worker}")))?;
                let channel = lease.lease.channel(WorkerIndex(worker), &options)?;
                Ok(dfly_channel {
                    birth: Birth::now(),
                    // The names of transports contain no NUL.
                    transport: CString::new(channel.transport().to_string()).unwrap_or_default(),
                    channel,
                    has_untaken_output: false,
                    kept: None,
                })
            })
        }?;
        Ok(())
    })
}

/// Resolves a function in code that the lease has loaded. `form` is DFLY_FORM_PLAIN or DFLY_FORM_CHECKED. `index`
/// receives the function's index, for calls on this channel. No call may be outstanding. Errors: DFLY_LOAD_FAILED.
///
/// # Safety
/// `channel` is a channel, `code` a code, `symbol` a C string, `index` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_channel_load(
    channel: *mut dfly_channel,
    code: *const dfly_code,
    symbol: *const c_char,
    form: u32,
    index: *mut u16,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (channel, (hash, form)) = unsafe { (get_mut(channel)?, function(code, symbol, form)?) };
        channel.free_last_slot();
        let loaded = channel.channel.load(hash, &form)?;
        // SAFETY: as the caller promises.
        Ok(unsafe { put_required(index, "the place for the function's index", loaded.0) }?)
    })
}

/// Calls a function, waits, and copies the output to `output`. `deadline_ms` limits the execution in milliseconds; 0
/// means no limit. `output_length` receives the length of the output in bytes and may be NULL; `input` and `output` may
/// be NULL if their length is 0. If the output does not fit, the status is DFLY_OUTPUT_OVERFLOW, `output_length`
/// receives the required size, and `dfly_channel_output` returns the output without another call. No submitted call may
/// be outstanding.
///
/// # Safety
/// `channel` is a channel, `input` points to `input_length` bytes, `output` to room for `output_capacity`;
/// `output_length` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_channel_call(
    channel: *mut dfly_channel,
    function: u16,
    deadline_ms: u32,
    input: *const c_void,
    input_length: usize,
    output: *mut c_void,
    output_capacity: usize,
    output_length: *mut usize,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (channel, input) = unsafe { (get_mut(channel)?, bytes(input, input_length)?) };
        channel.free_last_slot();
        let reply = channel
            .channel
            .call_within(FunctionIndex(function), input, deadline_ms)?;
        // SAFETY: as the caller promises.
        let delivered = unsafe { deliver(&reply, output, output_capacity, output_length) };
        if let Err(error) = delivered {
            channel.kept = Some(reply.to_vec());
            return Err(error.into());
        }
        Ok(())
    })
}

/// Calls a function on the first `input_length` bytes of one buffer and writes its output to another. Both buffers must
/// belong to this channel. Over shared memory nothing is copied. `deadline_ms` as in `dfly_channel_call`.
/// `output_length` receives the number of bytes written and may be NULL.
///
/// # Safety
/// `channel` is a channel, `input` and `output` are two buffers, `output_length` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_channel_call_into(
    channel: *mut dfly_channel,
    function: u16,
    deadline_ms: u32,
    input: *const dfly_buffer,
    input_length: usize,
    output: *mut dfly_buffer,
    output_length: *mut usize,
) -> dfly_status {
    guard(|| {
        if std::ptr::eq(input, output) {
            return Err(misuse("input and output are one buffer").into());
        }
        // SAFETY: as the caller promises, the buffers are distinct, and this thread alone uses them.
        let (channel, input, output) = unsafe { (get_mut(channel)?, get_mut(input.cast_mut())?, get_mut(output)?) };
        input.check(input_length)?;
        channel.free_last_slot();
        let function = FunctionIndex(function);
        let output = output.own()?;
        let length = channel
            .channel
            .call_into(function, input.own()?, input_length, output, deadline_ms)?;
        // SAFETY: as the caller promises.
        unsafe { put(output_length, length) };
        Ok(())
    })
}

/// Submits a call without waiting. `sequence` receives its number and may be NULL. The input may be reused at once.
/// `deadline_ms` as in `dfly_channel_call`. Take one completion for each call, with `dfly_channel_poll` or
/// `dfly_channel_wait`. Errors: DFLY_REJECTED if as many calls are outstanding as the ring has slots.
///
/// # Safety
/// `channel` is a channel, `input` points to `input_length` bytes, `sequence` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_channel_submit(
    channel: *mut dfly_channel,
    function: u16,
    deadline_ms: u32,
    input: *const c_void,
    input_length: usize,
    sequence: *mut u32,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let (channel, input) = unsafe { (get_mut(channel)?, bytes(input, input_length)?) };
        channel.free_last_slot();
        let number = channel.channel.submit(FunctionIndex(function), input, deadline_ms)?;
        // SAFETY: as the caller promises.
        unsafe { put(sequence, number) };
        Ok(())
    })
}

/// As `dfly_channel_submit`, without a copy. The call takes ownership of the buffer, even on an error.
///
/// # Safety
/// `channel` is a channel, `input` a buffer that is never used again, `sequence` NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_channel_submit_buffer(
    channel: *mut dfly_channel,
    function: u16,
    deadline_ms: u32,
    input: *mut dfly_buffer,
    input_length: usize,
    sequence: *mut u32,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let input = unsafe { take(input) }.ok_or_else(|| misuse("the input buffer is NULL"))?;
        input.check(input_length)?;
        // SAFETY: as the caller promises.
        let channel = unsafe { get_mut(channel) }?;
        channel.free_last_slot();
        let function = FunctionIndex(function);
        let number = channel
            .channel
            .submit_buffer(function, input.into_own()?, input_length, deadline_ms)?;
        // SAFETY: as the caller promises.
        unsafe { put(sequence, number) };
        Ok(())
    })
}

/// Takes the next completion, in the order of submission, without waiting. `came` is set to whether there was one. The
/// status of a failed call is in the completion; this function returns the status of the channel.
///
/// # Safety
/// `channel` is a channel, `completion` and `came` are writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_channel_poll(
    channel: *mut dfly_channel,
    completion: *mut dfly_completion,
    came: *mut bool,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let channel = unsafe { get_mut(channel) }?;
        if completion.is_null() || came.is_null() {
            return Err(misuse("the place for the completion, or for whether it came, is NULL").into());
        }
        channel.free_last_slot();
        let next = match channel.channel.poll() {
            // The wait below finds the error again, and asks the node why the worker ended.
            Err(_) if channel.channel.outstanding() > 0 => Some(channel.channel.wait(Duration::ZERO)?),
            next => next?,
        };
        // SAFETY: as the caller promises.
        unsafe { came.write(next.is_some()) };
        if let Some(next) = next {
            // SAFETY: as the caller promises.
            unsafe { completion.write(channel.report(next)) };
        }
        Ok(())
    })
}

/// Waits up to `timeout_ms` milliseconds for the next completion, or without limit with DFLY_FOR_EVER. Errors:
/// DFLY_TIMED_OUT.
///
/// # Safety
/// `channel` is a channel, `completion` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_channel_wait(
    channel: *mut dfly_channel,
    timeout_ms: u32,
    completion: *mut dfly_completion,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let channel = unsafe { get_mut(channel) }?;
        if completion.is_null() {
            return Err(misuse("the place for the completion is NULL").into());
        }
        channel.free_last_slot();
        let next = loop {
            match channel.channel.wait(Duration::from_millis(timeout_ms.into())) {
                Err(error) if error.code() == Code::TimedOut && timeout_ms == DFLY_FOR_EVER => {}
                next => break next?,
            }
        };
        // SAFETY: as the caller promises.
        unsafe { completion.write(channel.report(next)) };
        Ok(())
    })
}

/// Returns the output of the last completion, or the output that did not fit in `dfly_channel_call`. `output` receives
/// its address, valid until the next function of this channel; `length` receives its length in bytes and may be NULL.
/// Errors: DFLY_NOT_FOUND if there is no output.
///
/// # Safety
/// `channel` is a channel, `output` writable, `length` NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_channel_output(
    channel: *mut dfly_channel,
    output: *mut *const c_void,
    length: *mut usize,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let channel = unsafe { get_mut(channel) }?;
        let bytes = match &channel.kept {
            Some(kept) => kept.as_slice(),
            None if channel.has_untaken_output => channel.channel.output(),
            None => return Err(CallError::new(Code::NotFound, "no output waits on this channel")),
        };
        // SAFETY: as the caller promises.
        unsafe {
            put(length, bytes.len());
            put_required(output, "the place for the output", bytes.as_ptr().cast())
        }?;
        Ok(())
    })
}

/// Frees the slot of the last completion and its output. The functions that load, call, submit, poll or wait do this
/// first.
///
/// # Safety
/// `channel` is a channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_channel_done(channel: *mut dfly_channel) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        unsafe { get_mut(channel) }?.free_last_slot();
        Ok(())
    })
}

/// Cancels the submitted call `sequence` by stopping its worker, now or when the call begins. The channel ends with the
/// worker.
///
/// # Safety
/// `channel` is a channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_channel_cancel(channel: *mut dfly_channel, sequence: u32) -> dfly_status {
    // SAFETY: as the caller promises.
    guard(|| Ok(unsafe { get(channel) }?.channel.cancel(sequence)?))
}

/// Returns the channel's transport: DFLY_TRANSPORT_SHM, _TCP, _TLS or _LIBFABRIC.
///
/// # Safety
/// `channel` is NULL or a channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_channel_transport(channel: *const dfly_channel) -> u32 {
    // SAFETY: as the caller promises.
    value(0, || Ok(transport_number(unsafe { get(channel) }?.channel.transport())))
}

/// Returns the name of the transport: `shm`, `tcp`, `tls`, or `libfabric:` with provider and domain. The text is valid
/// as long as the channel. Returns "" if `channel` is NULL.
///
/// # Safety
/// `channel` is NULL or a channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_channel_transport_name(channel: *const dfly_channel) -> *const c_char {
    // SAFETY: as the caller promises.
    value(c"".as_ptr(), || Ok(unsafe { get(channel) }?.transport.as_ptr()))
}

/// Returns the process id of the worker on its host; 0 if `channel` is NULL.
///
/// # Safety
/// `channel` is NULL or a channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_channel_worker_pid(channel: *const dfly_channel) -> u32 {
    // SAFETY: as the caller promises.
    value(0, || Ok(unsafe { get(channel) }?.channel.worker_pid()))
}

/// Returns the number of submitted calls without a completion; 0 if `channel` is NULL.
///
/// # Safety
/// `channel` is NULL or a channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_channel_outstanding(channel: *const dfly_channel) -> u32 {
    // SAFETY: as the caller promises.
    value(0, || Ok(unsafe { get(channel) }?.channel.outstanding().into()))
}

/// Closes and frees a channel. Its buffers remain usable. NULL is a no-op.
///
/// # Safety
/// `channel` is NULL or a channel that is never used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_channel_free(channel: *mut dfly_channel) {
    guard(|| {
        // SAFETY: as the caller promises.
        drop(unsafe { take(channel) });
        Ok(())
    });
}
