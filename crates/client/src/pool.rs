//! Calls spread over all workers of a lease, from any thread.
//!
//! A pool has no thread of its own, except while it repairs a broken channel. The thread that waits for a call becomes
//! the driver: it polls the rings of all workers. Other waiting threads sleep until the driver finishes their calls or
//! leaves the role to them. A sleeping driver holds no lock, so submitting never waits for it.

mod call;
mod delegation;
mod dispatch;
mod follower;
mod members;
mod memory;
mod repair;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use dayfly_fabric::{Allocator, Buffer, sleep_any};
use dayfly_protocol::error::Code;
use dayfly_protocol::executor::Form;
use dayfly_protocol::ids::{CodeHash, WorkerIndex};
use dayfly_protocol::node_api::Printer;

use crate::error::{CallError, Error};
use crate::{ChannelOptions, Lease};
use dispatch::Dispatch;

pub use call::{CallId, CallOptions, FunctionId, Input, Outcome, Output};
pub(crate) use dispatch::Place;
pub(crate) use follower::Follower;
pub(crate) use members::{Backlog, Occupancy};
pub use memory::{CopiedBytes, OutputBuffer, ReturnedBuffer};

/// Retries, depth and channels of a pool.
#[derive(Debug, Clone, Copy)]
pub struct PoolOptions {
    /// Options of its channels. `spin` applies to the thread that waits.
    pub channel: ChannelOptions,
    /// How often a call is retried that was not executed or is idempotent.
    pub retries: u8,
    /// Most outstanding calls of one worker; 0 derives the bound from measured times (200 us of work).
    pub depth: u16,
    /// Whether the pool remembers each worker's last calls, for [`Pool::printer`].
    pub remembers: bool,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self {
            channel: ChannelOptions::default(),
            retries: 3,
            depth: 0,
            remembers: false,
        }
    }
}

/// Spreads calls over the workers of a lease, or of a [`Fleet`](crate::Fleet). Usable from any thread.
pub struct Pool {
    inner: Arc<Inner>,
}

struct Inner {
    state: Mutex<State>,
    /// Notified when calls ended or the driver left.
    changed: Condvar,
    /// Threads that wait for the lock while the driver spins.
    lock_waiters: AtomicUsize,
    spin: Option<Duration>,
}

struct State {
    dispatch: Dispatch,
    is_driven: bool,
    waiting: usize,
    /// When a driver last checked the nodes. Drivers share it, because each may drive for less than the check's
    /// interval.
    nodes_checked_at: Instant,
}

/// Longest sleep of a driver without a wake-up; also the time to notice a channel that was opened meanwhile.
const SLEEP_LIMIT: Duration = Duration::from_millis(50);
/// Longest sleep of a driver while a channel is being opened or repaired.
const CHANGE_LOOK: Duration = Duration::from_millis(2);
/// Polls of all workers between two reads of the clock and checks for threads that want the lock.
const ROUNDS_PER_LOOK: u32 = 64;

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        if let Ok(state) = self.state.try_lock() {
            return state;
        }
        self.lock_waiters.fetch_add(1, Ordering::Relaxed);
        let state = self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.lock_waiters.fetch_sub(1, Ordering::Relaxed);
        state
    }

    /// Releases the lock until a change is notified, for at most `limit` and at most [`SLEEP_LIMIT`].
    fn wait_changed<'a>(&'a self, mut state: MutexGuard<'a, State>, limit: Duration) -> MutexGuard<'a, State> {
        state.waiting += 1;
        state = match self.changed.wait_timeout(state, limit.min(SLEEP_LIMIT)) {
            Ok((state, _)) => state,
            Err(poisoned) => poisoned.into_inner().0,
        };
        state.waiting -= 1;
        state
    }

    /// Starts the repair of each channel that broke since the last call.
    fn begin_repairs(self: &Arc<Self>, state: &mut State) {
        for repair in state.dispatch.take_repairs() {
            let index = repair.index;
            let inner = Arc::downgrade(self);
            let started = std::thread::Builder::new().name("dayfly-repair".into()).spawn(move || {
                let opened = repair.run(|fate| Self::update(&inner, |dispatch| dispatch.on_fate(index, fate)));
                Self::update(&inner, |dispatch| dispatch.on_repaired(index, opened));
            });
            if let Err(error) = started {
                let failure = repair::no_thread_error(&error);
                state.dispatch.on_fate(index, &Err(failure.clone().into()));
                state.dispatch.on_repaired(index, Err(failure));
            }
        }
    }

    /// Changes the dispatch from another thread, unless the pool is dropped, and wakes waiting threads.
    fn update(inner: &Weak<Self>, change: impl FnOnce(&mut Dispatch)) {
        if let Some(inner) = inner.upgrade() {
            change(&mut inner.lock().dispatch);
            inner.changed.notify_all();
        }
    }

    /// Drives until `enough` returns true or `limit` is over.
    fn drive_until<'a>(
        self: &'a Arc<Self>,
        mut state: MutexGuard<'a, State>,
        limit: Duration,
        enough: impl Fn(&Dispatch) -> bool,
    ) -> MutexGuard<'a, State> {
        state.is_driven = true;
        let since = Instant::now();
        let mut idle_since = since;
        'drive: loop {
            self.begin_repairs(&mut state);
            if enough(&state.dispatch) {
                break;
            }
            if state.dispatch.waits_for_workers() {
                let left = limit.saturating_sub(since.elapsed());
                if left.is_zero() {
                    break;
                }
                state = self.wait_changed(state, left);
                continue;
            }
            for _ in 0..ROUNDS_PER_LOOK {
                if state.dispatch.poll() {
                    idle_since = Instant::now();
                    if state.dispatch.calls_mut().take_ended() > 0 && state.waiting > 0 {
                        self.changed.notify_all();
                    }
                    if enough(&state.dispatch) {
                        break 'drive;
                    }
                }
            }
            if state.nodes_checked_at.elapsed() >= SLEEP_LIMIT {
                state.nodes_checked_at = Instant::now();
                state.dispatch.check_nodes();
                if enough(&state.dispatch) {
                    break;
                }
            }
            if since.elapsed() >= limit {
                break;
            }
            if self.lock_waiters.load(Ordering::Relaxed) > 0 {
                drop(state);
                std::thread::yield_now();
                state = self.lock();
            }
            // A caller with no time to spin still spins while a hot worker responds: the first check costs nothing.
            if self.spin.is_some_and(|spin| idle_since.elapsed() >= spin)
                && let Some(sleepers) = state.dispatch.prepare_sleep()
            {
                let (changing, patience) = (state.dispatch.is_changing(), state.dispatch.patience());
                drop(state);
                let left = limit.saturating_sub(since.elapsed());
                // The next poll of that link returns the error again.
                let nap = if changing { CHANGE_LOOK } else { SLEEP_LIMIT };
                let _ = sleep_any(&sleepers, left.min(nap).min(patience));
                drop(sleepers);
                state = self.lock();
            }
        }
        state.is_driven = false;
        if state.waiting > 0 {
            self.changed.notify_all();
        }
        state
    }
}

impl Drop for Pool {
    /// Closes every channel and ends those that are being opened, so that the workers are free.
    fn drop(&mut self) {
        self.disconnect();
    }
}

impl Pool {
    pub(crate) fn open(lease: &Lease, options: PoolOptions) -> Result<Self, Error> {
        let terms = lease.pool_terms();
        let pool = Self::over(Dispatch::open(lease, options)?, options);
        let follower = Follower::of(&pool.inner);
        lease.add_follower(follower.clone());
        if lease.pool_terms() != terms {
            // It was renewed while the channels were being opened.
            follower.follow_lease(true, Duration::ZERO);
        }
        Ok(pool)
    }

    fn over(dispatch: Dispatch, options: PoolOptions) -> Self {
        let inner = Inner {
            state: Mutex::new(State {
                dispatch,
                is_driven: false,
                waiting: 0,
                nodes_checked_at: Instant::now(),
            }),
            changed: Condvar::new(),
            lock_waiters: AtomicUsize::new(0),
            spin: options.channel.spin,
        };
        Self { inner: Arc::new(inner) }
    }

    /// Registers a function whose code the node has ([`Lease::put_code`]). Workers load it at its first call.
    pub fn register(&self, hash: CodeHash, form: Form) -> Result<FunctionId, Error> {
        self.inner.lock().dispatch.register(hash, form)
    }

    /// Sends a call, or queues it until a worker has room. Returns without waiting for the call.
    pub fn submit(&self, function: FunctionId, input: impl Into<Input>, options: CallOptions) -> Result<CallId, Error> {
        self.submit_with(function, input.into(), None, options)
    }

    /// As [`Pool::submit`], with memory for the output, which the outcome then is in. The call goes to the worker that
    /// shares the memory of its buffers, unless that worker is so busy that a copy for another one costs less.
    /// [`CallOptions::room`] is ignored.
    pub fn submit_into(
        &self,
        function: FunctionId,
        input: impl Into<Input>,
        output: OutputBuffer,
        options: CallOptions,
    ) -> Result<CallId, Error> {
        self.submit_with(function, input.into(), Some(output), options)
    }

    fn submit_with(
        &self,
        function: FunctionId,
        input: Input,
        output: Option<OutputBuffer>,
        options: CallOptions,
    ) -> Result<CallId, Error> {
        let mut state = self.inner.lock();
        let id = state.dispatch.submit(function, input, output, options)?;
        self.inner.begin_repairs(&mut state);
        if !state.is_driven && state.dispatch.calls_mut().take_ended() > 0 && state.waiting > 0 {
            self.inner.changed.notify_all();
        }
        Ok(id)
    }

    /// Whether the call has ended.
    pub fn is_done(&self, call: CallId) -> bool {
        self.inner.lock().dispatch.calls().is_done(call)
    }

    /// Waits for a call and takes its outcome. Without a limit it waits until the call ends. A call that is unknown or
    /// whose outcome was taken is an error. Passing the limit is an error too; the call goes on, and can be waited for
    /// again.
    pub fn wait(&self, call: CallId, limit: Option<Duration>) -> Outcome {
        let until = limit.map(|limit| Instant::now() + limit);
        let mut state = self.inner.lock();
        loop {
            if let Some(outcome) = state.dispatch.calls_mut().take(call) {
                return outcome;
            }
            if !state.dispatch.calls().is_known(call) {
                return Err(CallError::new(Code::NotFound, "this call's outcome was taken already"));
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                let millis = limit.unwrap_or_default().as_millis();
                return Err(CallError::new(
                    Code::TimedOut,
                    format!("the call did not end within {millis} ms; it goes on"),
                ));
            }
            if state.is_driven {
                state = self.inner.wait_changed(state, left.unwrap_or(SLEEP_LIMIT));
            } else {
                state = self.inner.drive_until(state, left.unwrap_or(SLEEP_LIMIT), |dispatch| {
                    dispatch.calls().is_done(call)
                });
            }
        }
    }

    /// [`Pool::submit`] and [`Pool::wait`] without a limit.
    pub fn call(&self, function: FunctionId, input: &[u8], options: CallOptions) -> Outcome {
        let call = self.submit(function, input, options)?;
        self.wait(call, None)
    }

    /// Drives the rings until a call with [`CallOptions::notify`] ends or `limit` is over. Returns such calls that
    /// ended.
    pub fn drive(&self, limit: Duration) -> Vec<CallId> {
        let until = Instant::now() + limit;
        let mut state = self.inner.lock();
        loop {
            let ended = state.dispatch.calls_mut().take_notices();
            let left = until.saturating_duration_since(Instant::now());
            if !ended.is_empty() || left.is_zero() {
                return ended;
            }
            if state.is_driven {
                state = self.inner.wait_changed(state, left);
            } else {
                state = self
                    .inner
                    .drive_until(state, left, |dispatch| dispatch.calls().has_notices());
            }
        }
    }

    /// Removes a call from the queue. Returns true if it will not run, false if it was sent already or has ended.
    pub fn cancel(&self, call: CallId) -> bool {
        let cancelled = self.inner.lock().dispatch.cancel(call);
        if cancelled {
            self.inner.changed.notify_all();
        }
        cancelled
    }

    /// Closes every channel. Calls that have not ended end with [`Code::LeaseEnded`]; outcomes can still be taken.
    pub fn disconnect(&self) {
        self.inner.lock().dispatch.disconnect();
        self.inner.changed.notify_all();
    }

    /// Removes every unsent call from the queue.
    pub fn cancel_all(&self) {
        self.inner.lock().dispatch.cancel_all();
        self.inner.changed.notify_all();
    }

    /// Ends a call that runs by ending its worker; a call that was sent and has not begun ends when it begins. Its
    /// outcome is `cancelled`. Calls behind it go to other workers.
    pub fn kill(&self, call: CallId) -> Result<(), Error> {
        self.inner.lock().dispatch.kill(call)
    }

    /// Drops the outcome of this call, and the call itself if it is not sent yet.
    pub fn forget(&self, call: CallId) {
        self.inner.lock().dispatch.forget(call);
    }

    /// Takes in completions and sends queued calls without waiting. Returns whether there were completions; always
    /// false while another thread drives.
    pub fn poll(&self) -> bool {
        let mut state = self.inner.lock();
        if state.is_driven {
            return false;
        }
        let has_completions = state.dispatch.poll();
        self.inner.begin_repairs(&mut state);
        if has_completions && state.dispatch.calls_mut().take_ended() > 0 && state.waiting > 0 {
            self.inner.changed.notify_all();
        }
        has_completions
    }

    /// Has [`Pool::drive`] report the end of this call; at once if it has ended.
    pub fn notify(&self, call: CallId) {
        self.inner.lock().dispatch.calls_mut().notify(call);
        self.inner.changed.notify_all();
    }

    /// Workers that take calls, now or after their repair. A worker that could not be repaired never does again.
    pub fn remaining_workers(&self) -> usize {
        self.inner.lock().dispatch.remaining_workers()
    }

    /// Calls whose end [`Pool::drive`] has still to report.
    pub fn watched(&self) -> usize {
        self.inner.lock().dispatch.calls().watched()
    }

    /// Whether calls wait for a thread to drive: for room in a ring, or for their function to be loaded. Calls in the
    /// rings run without a driver.
    pub fn needs_driver(&self) -> bool {
        self.inner.lock().dispatch.needs_driver()
    }

    /// Whether the call is sent to a worker and has not ended.
    pub fn is_sent(&self, call: CallId) -> bool {
        self.inner.lock().dispatch.calls().worker_of(call).is_some()
    }

    /// The call of this pool that printed, also shortly after its end. `None` without [`PoolOptions::remembers`].
    pub fn printer(&self, printer: Printer) -> Option<CallId> {
        self.inner.lock().dispatch.printer(printer)
    }

    /// Runs this call and drops its outcome.
    pub fn discard(&self, call: CallId) {
        self.inner.lock().dispatch.calls_mut().discard(call);
    }

    /// Calls that have not ended.
    pub fn pending(&self) -> usize {
        self.inner.lock().dispatch.calls().pending()
    }

    /// Allocates a buffer of `length` bytes in the memory of the worker with the fewest calls, and returns that worker.
    /// Calls with the buffer go there without a copy, unless the worker is so busy that a copy for another one costs
    /// less; [`CallOptions::worker`] forbids that.
    pub fn allocate(&self, length: usize) -> Result<(Buffer, WorkerIndex), Error> {
        let (allocator, worker) = self.allocator()?;
        Ok((allocator.allocate(length)?, worker))
    }

    /// Allocator of the worker with the fewest calls, and that worker.
    pub fn allocator(&self) -> Result<(Allocator, WorkerIndex), Error> {
        self.inner.lock().dispatch.allocator()
    }

    /// Allocates a buffer as [`Pool::allocate`], in the memory of one worker.
    pub fn allocate_for(&self, worker: WorkerIndex, length: usize) -> Result<Buffer, Error> {
        let allocator = self.inner.lock().dispatch.allocator_of(worker)?;
        Ok(allocator.allocate(length)?)
    }

    /// Bytes that this pool copied.
    pub fn copied(&self) -> CopiedBytes {
        self.inner.lock().dispatch.copied()
    }

    /// Largest input that fits in a slot, in bytes.
    pub fn inline_bytes(&self) -> usize {
        self.inner.lock().dispatch.inline_bytes()
    }

    /// Transport of the pool's channels.
    pub fn transport(&self) -> crate::Transport {
        self.inner.lock().dispatch.transport()
    }

    /// Incarnation of each worker; 0 for a worker without a channel.
    pub fn incarnations(&self) -> Vec<u32> {
        self.inner.lock().dispatch.incarnations()
    }
}
