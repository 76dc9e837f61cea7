//! One channel to one worker: the shortest way.

use std::ffi::{CString, c_char, c_void};
use std::time::Duration;

use dayfly_client::{
    CallError, Channel, ChannelOptions, Code, Completion, Error, FunctionIndex, Geometry, Status, WorkerIndex,
};

use crate::buffer::dfly_buffer;
use crate::handle::{Birth, Handle, bytes, get, get_mut, give, optional_text, options, put, put_required, take};
use crate::lease::{DFLY_FOR_EVER, dfly_code, dfly_lease, function, transport, transport_number};
use crate::status::{dfly_status, guard, misuse, value};

/// How to open a channel. Initialise with `dfly_channel_options_init`, then change what you want.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dfly_channel_options {
    /// Set by `dfly_channel_options_init`.
    pub size: usize,
    /// DFLY_TRANSPORT_BEST, _SHM, _TCP, _TLS or _LIBFABRIC.
    pub transport: u32,
    /// Slots of each ring, a power of two: as many calls can be outstanding.
    pub slots: u32,
    /// Bytes of a slot, a multiple of 128: larger payloads travel through bulk memory.
    pub stride_bytes: u32,
    /// How long a wait polls before it sleeps, in microseconds; DFLY_FOR_EVER for ever, which spares the worker a fence.
    pub spin_us: u32,
    /// Address space for bulk payloads each way, a multiple of 4096.
    pub bulk_bytes: u64,
    /// For DFLY_TRANSPORT_LIBFABRIC: a provider, or a provider and domain such as `verbs/mlx5_0`; NULL for the one that the node
    /// offers first.
    pub fabric: *const c_char,
}

/// A channel to one worker. One thread at a time may use it.
pub struct dfly_channel {
    birth: Birth,
    pub(crate) channel: Channel,
    /// A completion has been told of and its slot is not free yet.
    told: bool,
    /// An output that did not fit into the room of its caller.
    kept: Option<Vec<u8>>,
    /// Name of its transport.
    transport: CString,
}

impl Handle for dfly_channel {
    const NAME: &'static str = "channel";
    fn birth(&self) -> Birth {
        self.birth
    }
}

/// The end of a call that was submitted.
#[repr(C)]
pub struct dfly_completion {
    /// The number that `dfly_channel_submit` answered.
    pub sequence: u32,
    /// How the call ended.
    pub status: dfly_status,
    /// The output, or the text of the error. Valid until the next function of this channel.
    pub output: *const c_void,
    /// Its bytes.
    pub length: usize,
}

impl dfly_channel {
    /// Frees the slot of the completion that was told of last.
    #[inline]
    fn settle(&mut self) {
        if self.told {
            self.channel.done();
            self.told = false;
        }
        if self.kept.is_some() {
            self.kept = None;
        }
    }

    fn tell(&mut self, completion: Completion) -> dfly_completion {
        self.told = true;
        let output = self.channel.output();
        let status = match completion.status {
            status if status == Status::Ok as u16 => dfly_status::DFLY_OK,
            status => CallError::answered(status, &[]).code().into(),
        };
        dfly_completion {
            sequence: completion.sequence,
            status,
            output: output.as_ptr().cast(),
            length: output.len(),
        }
    }
}

pub(crate) fn channel_options(options: Option<dfly_channel_options>) -> Result<ChannelOptions, Error> {
    let Some(options) = options else {
        return Ok(ChannelOptions::default());
    };
    let slots = u16::try_from(options.slots).map_err(|_| misuse(format!("{} slots are too many", options.slots)))?;
    let spin = Duration::from_micros(options.spin_us.into());
    // SAFETY: the caller of this library promises a C string where it names one.
    let fabric = unsafe { optional_text(options.fabric, "the fabric") }?;
    Ok(ChannelOptions {
        transport: transport(options.transport, fabric)?,
        geometry: Geometry {
            slots,
            stride_bytes: options.stride_bytes,
            bulk_bytes: options.bulk_bytes,
        },
        spin: (options.spin_us != DFLY_FOR_EVER).then_some(spin),
    })
}

pub(crate) fn default_channel_options() -> dfly_channel_options {
    let defaults = ChannelOptions::default();
    dfly_channel_options {
        size: size_of::<dfly_channel_options>(),
        transport: defaults.transport.map_or(0, transport_number),
        slots: defaults.geometry.slots.into(),
        stride_bytes: defaults.geometry.stride_bytes,
        spin_us: defaults.spin.map_or(DFLY_FOR_EVER, |spin| spin.as_micros() as u32),
        bulk_bytes: defaults.geometry.bulk_bytes,
        fabric: std::ptr::null(),
    }
}

/// Writes an output into the caller's room and tells its length; one that does not fit is kept for `dfly_channel_output`.
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
    // SAFETY: the caller's room, which is no memory of ours, is as large as it says.
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

/// Sets every option to its default.
///
/// # Safety
/// `options` is NULL or a place for options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_channel_options_init(options: *mut dfly_channel_options) -> dfly_status {
    // SAFETY: as the caller promises.
    guard(|| Ok(unsafe { put_required(options, "the place for options", default_channel_options()) }?))
}

/// Opens a channel to worker number `worker`, counted from 0. NULL for `options` means the defaults.
///
/// # Safety
/// `lease` is a lease, `options` NULL or options, `channel` a place for a pointer.
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
                    // Names have no zero in them.
                    transport: CString::new(channel.transport().to_string()).unwrap_or_default(),
                    channel,
                    told: false,
                    kept: None,
                })
            })
        }?;
        Ok(())
    })
}

/// Resolves a function of code that the lease has. Every submitted call must have been answered.
///
/// # Safety
/// `channel` is a channel, `code` a code, `symbol` a C string, `index` a place for a number.
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
        channel.settle();
        let loaded = channel.channel.load(hash, &form)?;
        // SAFETY: as the caller promises.
        Ok(unsafe { put_required(index, "the place for the function's index", loaded.0) }?)
    })
}

/// Calls a function and waits for its output, which is copied to `output`. `deadline_ms` limits its execution, 0 for no
/// limit. When the output does not fit, the status is DFLY_OUTPUT_OVERFLOW, `output_length` says what it needs, and
/// `dfly_channel_output` gives it, so that nothing needs to run twice. Every submitted call must have been answered.
///
/// # Safety
/// `channel` is a channel, `input` points to `input_length` bytes, `output` to room for `output_capacity`;
/// `output_length` is NULL or a place for a number.
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
        channel.settle();
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

/// Calls a function on the first `input_length` bytes of a buffer and has its output written into another buffer, both of
/// this channel. Over shared memory nothing is copied. `output_length` tells how much of the buffer was written.
///
/// # Safety
/// `channel` is a channel, `input` and `output` are two buffers, `output_length` is NULL or a place for a number.
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
        // SAFETY: as the caller promises, and they are two buffers.
        let (channel, input, output) = unsafe { (get_mut(channel)?, get(input)?, get_mut(output)?) };
        input.check(input_length)?;
        channel.settle();
        let function = FunctionIndex(function);
        let output = &mut output.buffer;
        let length = channel
            .channel
            .call_into(function, &input.buffer, input_length, output, deadline_ms)?;
        // SAFETY: as the caller promises.
        unsafe { put(output_length, length) };
        Ok(())
    })
}

/// Sends a call without waiting; `sequence` tells its number. The input may be reused at once. At most as many calls as
/// the ring has slots may be outstanding; beyond, the status is DFLY_REJECTED. A completion must be asked for, by
/// `dfly_channel_poll` or `dfly_channel_wait`, for every call.
///
/// # Safety
/// `channel` is a channel, `input` points to `input_length` bytes, `sequence` is NULL or a place for a number.
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
        channel.settle();
        let number = channel.channel.submit(FunctionIndex(function), input, deadline_ms)?;
        // SAFETY: as the caller promises.
        unsafe { put(sequence, number) };
        Ok(())
    })
}

/// As `dfly_channel_submit`, without a copy: the buffer belongs to the call from now on, whatever the status.
///
/// # Safety
/// `channel` is a channel, `input` a buffer that is never used again, `sequence` NULL or a place for a number.
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
        channel.settle();
        let function = FunctionIndex(function);
        let number = channel
            .channel
            .submit_buffer(function, input.buffer, input_length, deadline_ms)?;
        // SAFETY: as the caller promises.
        unsafe { put(sequence, number) };
        Ok(())
    })
}

/// The next completion, in the order of submission, if it is here (`came`). A call that failed is a completion with a
/// status of its own; the status of this function speaks of the channel.
///
/// # Safety
/// `channel` is a channel, `completion` and `came` are places for their types.
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
        channel.settle();
        let next = match channel.channel.poll() {
            // Found again by a wait, which asks the node what became of the worker.
            Err(_) if channel.channel.outstanding() > 0 => Some(channel.channel.wait(Duration::ZERO)?),
            next => next?,
        };
        // SAFETY: as the caller promises.
        unsafe { came.write(next.is_some()) };
        if let Some(next) = next {
            // SAFETY: as the caller promises.
            unsafe { completion.write(channel.tell(next)) };
        }
        Ok(())
    })
}

/// Waits for the next completion, `timeout_ms` at most (DFLY_TIMED_OUT); DFLY_FOR_EVER for as long as it takes.
///
/// # Safety
/// `channel` is a channel, `completion` a place for one.
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
        channel.settle();
        let next = loop {
            match channel.channel.wait(Duration::from_millis(timeout_ms.into())) {
                Err(error) if error.code() == Code::TimedOut && timeout_ms == DFLY_FOR_EVER => {}
                next => break next?,
            }
        };
        // SAFETY: as the caller promises.
        unsafe { completion.write(channel.tell(next)) };
        Ok(())
    })
}

/// The output of the completion that was told of last, or the one that did not fit into the room of `dfly_channel_call`.
/// Valid until the next function of this channel.
///
/// # Safety
/// `channel` is a channel, `output` a place for a pointer, `length` NULL or a place for a number.
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
            None if channel.told => channel.channel.output(),
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

/// Frees the slot of the completion that was told of last. Every other function of the channel does so first by itself,
/// except `dfly_channel_output`.
///
/// # Safety
/// `channel` is a channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_channel_done(channel: *mut dfly_channel) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        unsafe { get_mut(channel) }?.settle();
        Ok(())
    })
}

/// Ends the submitted call `sequence`, now or when it begins, by ending its worker; the channel ends with it.
///
/// # Safety
/// `channel` is a channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_channel_cancel(channel: *mut dfly_channel, sequence: u32) -> dfly_status {
    // SAFETY: as the caller promises.
    guard(|| Ok(unsafe { get(channel) }?.channel.cancel(sequence)?))
}

/// The transport that it uses: DFLY_TRANSPORT_SHM, _TCP, _TLS or _LIBFABRIC.
///
/// # Safety
/// `channel` is NULL or a channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_channel_transport(channel: *const dfly_channel) -> u32 {
    // SAFETY: as the caller promises.
    value(0, || Ok(transport_number(unsafe { get(channel) }?.channel.transport())))
}

/// The name of that: `shm`, `tcp`, `tls`, or `libfabric:` with provider and domain. Valid as long as the channel; "" for NULL.
///
/// # Safety
/// `channel` is NULL or a channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_channel_transport_name(channel: *const dfly_channel) -> *const c_char {
    // SAFETY: as the caller promises.
    value(c"".as_ptr(), || Ok(unsafe { get(channel) }?.transport.as_ptr()))
}

/// Process id of the worker on its host; 0 for NULL.
///
/// # Safety
/// `channel` is NULL or a channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_channel_worker_pid(channel: *const dfly_channel) -> u32 {
    // SAFETY: as the caller promises.
    value(0, || Ok(unsafe { get(channel) }?.channel.worker_pid()))
}

/// Calls submitted and not yet answered; 0 for NULL.
///
/// # Safety
/// `channel` is NULL or a channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_channel_outstanding(channel: *const dfly_channel) -> u32 {
    // SAFETY: as the caller promises.
    value(0, || Ok(unsafe { get(channel) }?.channel.outstanding().into()))
}

/// Closes the channel. Buffers of it live on. NULL is nothing.
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
