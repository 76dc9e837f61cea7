//! Division of loops between the program and leased workers.

use dayfly_client::offload::{Completion, Offload, Reason};

use crate::handle::{Birth, Handle, get, give, put_required, take};
use crate::pool_options::DFLY_ANY_WORKER;
use crate::status::{dfly_status, guard, misuse};

/// There are no workers.
pub const DFLY_SPLIT_NO_WORKERS: u32 = 0;
/// Too little is known; a few calls are sent to learn.
pub const DFLY_SPLIT_UNKNOWN: u32 = 1;
/// No call would return before the local work is done.
pub const DFLY_SPLIT_CANNOT_WIN: u32 = 2;
/// As many calls are sent as return before the local work is done.
pub const DFLY_SPLIT_DIVIDED: u32 = 3;

/// Learns how long calls take in the program and on workers, and divides loops so that the program does not wait.
/// Thread-safe.
pub struct dfly_offload {
    birth: Birth,
    offload: Offload,
}

impl Handle for dfly_offload {
    const NAME: &'static str = "offload";
    fn birth(&self) -> Birth {
        self.birth
    }
}

/// How a loop is divided. `local` and `remote` add up to the number of calls.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dfly_split {
    /// Calls that the program computes.
    pub local: u64,
    /// Calls for the workers.
    pub remote: u64,
    /// How many of the remote calls are sent to learn. The predictions leave them out.
    pub probes: u64,
    /// Predicted time of the local work, in seconds; 0 if it is unknown.
    pub local_seconds: f64,
    /// Predicted time until the last remote call has returned, in seconds.
    pub remote_seconds: f64,
    /// DFLY_SPLIT_NO_WORKERS, _UNKNOWN, _CANNOT_WIN or _DIVIDED.
    pub reason: u32,
}

/// What is known of the calls of a function with one size, in seconds; below 0 if it is unknown.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dfly_offload_times {
    /// Median time in the program.
    pub local: f64,
    /// Time of 95 % of the calls in the program.
    pub local_p95: f64,
    /// Median time on the worker.
    pub remote: f64,
    /// Time of 95 % of the calls on the worker.
    pub remote_p95: f64,
    /// `L` of LogP: latency of a small message in one direction.
    pub latency: f64,
    /// `o`: work of the program to send or to receive a message.
    pub overhead: f64,
    /// `g`: least time between two calls.
    pub gap: f64,
    /// `G`: time of a byte.
    pub per_byte: f64,
}

/// Makes a planner that knows nothing and has no workers. `offload` receives it; free it with `dfly_offload_free`.
///
/// # Safety
/// `offload` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_offload_new(offload: *mut *mut dfly_offload) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        unsafe {
            give(offload, || {
                Ok(dfly_offload {
                    birth: Birth::now(),
                    offload: Offload::new(),
                })
            })
        }?;
        Ok(())
    })
}

/// Sets the number of workers of a pool. They share the bandwidth to them.
///
/// # Safety
/// `offload` is an offload.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_offload_set_workers(offload: *const dfly_offload, workers: u32) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        unsafe { get(offload) }?.offload.set_workers(workers);
        Ok(())
    })
}

/// Records that the program computed `calls` calls, in `seconds` of one thread. `function` is any number of the
/// caller's for the function, and `bytes` the size of the input and output of one call. Times that cannot be are
/// ignored.
///
/// # Safety
/// `offload` is an offload.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_offload_record_local(
    offload: *const dfly_offload,
    function: u64,
    bytes: u64,
    calls: u64,
    seconds: f64,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        unsafe { get(offload) }?
            .offload
            .record_local(function, bytes, calls, seconds);
        Ok(())
    })
}

/// Records a call on a worker that has ended with an output. `submitted`, `sent` and `ended` are times of one clock in
/// seconds: before and after the submission, and when the output was there. `worker` is the worker's number, or
/// DFLY_ANY_WORKER if the pool chose one. `is_exact` says that a thread waited for the end; if not, the call may have
/// ended before `ended`. Times that cannot be are ignored.
///
/// # Safety
/// `offload` is an offload.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_offload_record_remote(
    offload: *const dfly_offload,
    function: u64,
    bytes: u64,
    worker: u32,
    submitted: f64,
    sent: f64,
    ended: f64,
    is_exact: bool,
) -> dfly_status {
    guard(|| {
        let completion = Completion {
            channel: (worker != DFLY_ANY_WORKER).then_some(worker),
            submitted,
            overhead: Some(sent - submitted),
            ended,
            run: None,
            is_exact,
        };
        // SAFETY: as the caller promises.
        unsafe { get(offload) }?
            .offload
            .record_remote(function, bytes, completion);
        Ok(())
    })
}

/// Divides `calls` calls with `bytes` bytes of input and output each, for a program that computes with `threads`
/// threads. `split` receives the result. `by_worker` may be NULL; else it has room for `workers` numbers and receives
/// the calls of each worker.
///
/// # Safety
/// `offload` is an offload, `split` writable, `by_worker` NULL or writable for `workers` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_offload_split(
    offload: *const dfly_offload,
    function: u64,
    bytes: u64,
    calls: u64,
    threads: u32,
    split: *mut dfly_split,
    by_worker: *mut u64,
    workers: u32,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let found = unsafe { get(offload) }?.offload.split(function, bytes, calls, threads);
        let result = dfly_split {
            local: found.local,
            remote: found.remote_total(),
            probes: found.probes,
            local_seconds: found.local_seconds,
            remote_seconds: found.remote_seconds,
            reason: match found.reason {
                Reason::NoChannels => DFLY_SPLIT_NO_WORKERS,
                Reason::Unknown => DFLY_SPLIT_UNKNOWN,
                Reason::CannotWin => DFLY_SPLIT_CANNOT_WIN,
                Reason::Divided => DFLY_SPLIT_DIVIDED,
            },
        };
        if !by_worker.is_null() {
            let mut counts = vec![0; workers as usize];
            for (worker, calls) in &found.remote {
                *counts
                    .get_mut(*worker as usize)
                    .ok_or_else(|| misuse(format!("room for {workers} workers, but worker {worker} gets calls")))? +=
                    calls;
            }
            // SAFETY: the caller promises room for so many numbers.
            unsafe { std::ptr::copy_nonoverlapping(counts.as_ptr(), by_worker, counts.len()) };
        }
        // SAFETY: as the caller promises.
        Ok(unsafe { put_required(split, "the place for the split", result) }?)
    })
}

/// Returns in `times` what is known of a function and a size on `worker`.
///
/// # Safety
/// `offload` is an offload, `times` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_offload_estimate(
    offload: *const dfly_offload,
    function: u64,
    bytes: u64,
    worker: u32,
    times: *mut dfly_offload_times,
) -> dfly_status {
    guard(|| {
        const UNKNOWN: f64 = -1.0;
        // SAFETY: as the caller promises.
        let offload = &unsafe { get(offload) }?.offload;
        let (local, local_p95) = offload.local(function, bytes).unwrap_or((UNKNOWN, UNKNOWN));
        let estimates = offload.estimates(function, bytes);
        let estimate = estimates.iter().find(|estimate| estimate.channel == worker);
        let network = estimate.and_then(|estimate| estimate.network);
        let known = dfly_offload_times {
            local,
            local_p95,
            remote: estimate.and_then(|estimate| estimate.run).unwrap_or(UNKNOWN),
            remote_p95: estimate.and_then(|estimate| estimate.run_p95).unwrap_or(UNKNOWN),
            latency: network.map_or(UNKNOWN, |network| network.latency),
            overhead: network.map_or(UNKNOWN, |network| network.overhead),
            gap: network.map_or(UNKNOWN, |network| network.gap),
            per_byte: network.map_or(UNKNOWN, |network| network.per_byte),
        };
        // SAFETY: as the caller promises.
        Ok(unsafe { put_required(times, "the place for the times", known) }?)
    })
}

/// Frees an offload. NULL is a no-op.
///
/// # Safety
/// `offload` is NULL or an offload that is never used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_offload_free(offload: *mut dfly_offload) {
    // SAFETY: as the caller promises.
    drop(unsafe { take(offload) });
}
