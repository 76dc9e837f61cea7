//! Memory of a pool's workers, and counters of copies.

use std::sync::atomic::Ordering;

use dayfly_client::WorkerIndex;

use super::dfly_pool;
use crate::buffer::dfly_buffer;
use crate::handle::{get, give, put};
use crate::pool_options::small;
use crate::status::{dfly_status, guard};

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

/// Allocates a buffer as `dfly_pool_buffer_alloc`, for worker number `worker`, counted from 0.
///
/// # Safety
/// `pool` is a pool, `buffer` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_pool_buffer_alloc_for(
    pool: *const dfly_pool,
    worker: u32,
    length: usize,
    buffer: *mut *mut dfly_buffer,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        unsafe {
            give(buffer, || {
                let worker = WorkerIndex(small(worker, "as the number of a worker")?);
                Ok(dfly_buffer::new(get(pool)?.pool.allocate_for(worker, length)?))
            })
        }?;
        Ok(())
    })
}

/// Reports how many bytes of inputs and outputs of this pool did not travel in place, but were copied. Either may be
/// NULL.
///
/// # Safety
/// `pool` is a pool, `input` and `output` are NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_pool_copied(pool: *const dfly_pool, input: *mut u64, output: *mut u64) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let pool = unsafe { get(pool) }?;
        let copied = pool.pool.copied();
        // SAFETY: as the caller promises.
        unsafe {
            put(input, copied.input);
            put(output, copied.output + pool.copied_output.load(Ordering::Relaxed));
        }
        Ok(())
    })
}
