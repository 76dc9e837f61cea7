//! Calls spread over all workers of a lease, from any thread.
//!
//! There is no thread of its own, but for the repair of a channel that broke. Whoever waits for a call drives the rings of all workers meanwhile; the others wait for
//! the driver to finish their calls or to leave the role to them. While the driver sleeps it holds no lock, so that
//! submitting never waits for it.

mod dispatch;
mod lending;
mod repair;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use dayfly_fabric::{Allocator, Buffer, Received, sleep_any};
use dayfly_protocol::blob::Blob;
use dayfly_protocol::error::Code;
use dayfly_protocol::executor::Form;
use dayfly_protocol::ids::{CodeHash, WorkerIndex};
use dayfly_protocol::node_api::Printer;

use crate::error::{CallError, Error};
use crate::{ChannelOptions, Lease};
use dispatch::Dispatch;

/// A call of a pool's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(pub u64);

/// A function known to a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FunctionId(pub u32);

/// How a pool works.
#[derive(Debug, Clone, Copy)]
pub struct PoolOptions {
    /// How its channels are opened. The time to spin is that of the thread that waits.
    pub channel: ChannelOptions,
    /// How often a call that was not executed, or is idempotent, is tried again elsewhere.
    pub retries: u8,
    /// Most calls that one worker may have outstanding; 0 to let measured times decide (200 us of work).
    pub depth: u16,
    /// Whether [`Pool::printer`] is to know the last calls of each worker.
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

/// How one call is to be treated.
#[derive(Debug, Clone, Copy, Default)]
pub struct CallOptions {
    /// Milliseconds of execution allowed, after which its worker is ended; 0 for no limit.
    pub deadline_ms: u32,
    /// Whether it may be executed again when it may have been executed already.
    pub idempotent: bool,
    /// The only worker that may run it.
    pub worker: Option<WorkerIndex>,
    /// The incarnation of that worker whose state it needs; another one ends the call as `state_lost`.
    pub incarnation: Option<u32>,
    /// Whether [`Pool::drive`] shall tell of its end.
    pub notify: bool,
    /// Room to make for the output, in bytes; 0 to let the worker choose its place. A C function is told it as its capacity.
    pub room: usize,
}

/// The input of a call.
#[derive(Debug)]
pub enum Input {
    /// Bytes of its own.
    Bytes(Vec<u8>),
    /// Bytes that others have, too.
    Blob(Blob),
    /// A buffer from [`Pool::allocate`], and how many of its bytes count.
    Buffer(Buffer, usize),
    /// As `Buffer`, but the caller keeps it and can send it again. What the function writes into it, the caller sees.
    Shared(Arc<Buffer>, usize),
}

impl Input {
    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Blob(bytes) => bytes,
            Self::Buffer(buffer, length) => &buffer.as_slice()[..*length],
            Self::Shared(buffer, length) => &buffer.as_slice()[..*length],
        }
    }
}

impl From<&[u8]> for Input {
    fn from(bytes: &[u8]) -> Self {
        Self::Bytes(bytes.to_vec())
    }
}

impl From<Vec<u8>> for Input {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

/// The output of a call.
#[derive(Debug)]
pub enum Output {
    /// A small one, copied out of its slot.
    Small(Vec<u8>),
    /// A large one, where it landed.
    Large(Received),
}

impl Output {
    /// Its bytes.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Small(bytes) => bytes,
            Self::Large(received) => received.as_slice(),
        }
    }

    /// Its bytes, copied from where they landed, which is then for the next output.
    pub fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Small(bytes) => bytes,
            Self::Large(received) => received.as_slice().to_vec(),
        }
    }
}

/// How a call ended.
pub type Outcome = Result<Output, CallError>;

/// Spreads calls over the workers of a lease.
pub struct Pool {
    inner: Arc<Inner>,
}

struct Inner {
    state: Mutex<State>,
    /// Told whenever calls ended or the driver left.
    changed: Condvar,
    /// Threads that want the lock while the driver spins.
    wanting: AtomicUsize,
    spin: Option<Duration>,
}

struct State {
    dispatch: Dispatch,
    driving: bool,
    waiting: usize,
    /// When a driver last looked whether nodes live; kept from one driver to the next, each of which may drive for less than the
    /// time between two looks.
    looked_at: Instant,
}

/// How long a driver sleeps before it looks around although nobody woke it; also how soon it notices a channel that was
/// opened meanwhile.
const SLEEP_LIMIT: Duration = Duration::from_millis(50);
/// How soon a driver that sleeps on other workers' channels notices that one was repaired.
const REPAIR_LOOK: Duration = Duration::from_millis(2);
/// Polls of all workers between two looks at the clock, and at those who want the lock.
const ROUNDS_PER_LOOK: u32 = 64;

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        if let Ok(state) = self.state.try_lock() {
            return state;
        }
        self.wanting.fetch_add(1, Ordering::Relaxed);
        let state = self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.wanting.fetch_sub(1, Ordering::Relaxed);
        state
    }

    /// Gives up the lock until something changed, for so long or a little less.
    fn wait_changed<'a>(&'a self, mut state: MutexGuard<'a, State>, limit: Duration) -> MutexGuard<'a, State> {
        state.waiting += 1;
        state = match self.changed.wait_timeout(state, limit.min(SLEEP_LIMIT)) {
            Ok((state, _)) => state,
            Err(poisoned) => poisoned.into_inner().0,
        };
        state.waiting -= 1;
        state
    }

    /// Starts the repair of every channel that broke since.
    fn begin_repairs(self: &Arc<Self>, state: &mut State) {
        for repair in state.dispatch.take_repairs() {
            let index = repair.index;
            let inner = Arc::downgrade(self);
            let started = std::thread::Builder::new().name("dayfly-repair".into()).spawn(move || {
                let opened = repair.run(|fate| Self::tell(&inner, |dispatch| dispatch.on_fate(index, fate)));
                Self::tell(&inner, |dispatch| dispatch.on_repaired(index, opened));
            });
            if let Err(error) = started {
                let failure = repair::impossible(&error);
                state.dispatch.on_fate(index, &Err(failure.clone().into()));
                state.dispatch.on_repaired(index, Err(failure));
            }
        }
    }

    /// Changes the dispatch of a pool that may be gone, from a thread of its own, and wakes whoever waits for a change.
    fn tell(inner: &Weak<Self>, change: impl FnOnce(&mut Dispatch)) {
        if let Some(inner) = inner.upgrade() {
            change(&mut inner.lock().dispatch);
            inner.changed.notify_all();
        }
    }

    /// Takes the driver's role until `enough` or `limit`, and gives it back.
    fn drive_until<'a>(
        self: &'a Arc<Self>,
        mut state: MutexGuard<'a, State>,
        limit: Duration,
        enough: impl Fn(&Dispatch) -> bool,
    ) -> MutexGuard<'a, State> {
        state.driving = true;
        let since = Instant::now();
        let mut idle_since = since;
        'drive: loop {
            self.begin_repairs(&mut state);
            if enough(&state.dispatch) {
                break;
            }
            if state.dispatch.waits_for_repair() {
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
                    if state.dispatch.take_ended() > 0 && state.waiting > 0 {
                        self.changed.notify_all();
                    }
                    if enough(&state.dispatch) {
                        break 'drive;
                    }
                }
            }
            if state.looked_at.elapsed() >= SLEEP_LIMIT {
                state.looked_at = Instant::now();
                state.dispatch.check_nodes();
                if enough(&state.dispatch) {
                    break;
                }
            }
            if since.elapsed() >= limit {
                break;
            }
            if self.wanting.load(Ordering::Relaxed) > 0 {
                drop(state);
                std::thread::yield_now();
                state = self.lock();
            }
            // A caller that gave no time to spin for still spins while a hot worker answers: the first look is free.
            if self.spin.is_some_and(|spin| idle_since.elapsed() >= spin)
                && let Some(sleepers) = state.dispatch.prepare_sleep()
            {
                let (repairing, patience) = (state.dispatch.is_repairing(), state.dispatch.patience());
                drop(state);
                let left = limit.saturating_sub(since.elapsed());
                // An error shows again at the next poll of the link that has it.
                let nap = if repairing { REPAIR_LOOK } else { SLEEP_LIMIT };
                let _ = sleep_any(&sleepers, left.min(nap).min(patience));
                drop(sleepers);
                state = self.lock();
            }
        }
        state.driving = false;
        if state.waiting > 0 {
            self.changed.notify_all();
        }
        state
    }
}

impl Drop for Pool {
    /// Closes every channel, and gives up those that are being opened: whoever opens one next finds the workers free.
    fn drop(&mut self) {
        self.disconnect();
    }
}

impl Pool {
    pub(crate) fn open(lease: &Lease, options: PoolOptions) -> Result<Self, Error> {
        let inner = Inner {
            state: Mutex::new(State {
                dispatch: Dispatch::open(lease, options)?,
                driving: false,
                waiting: 0,
                looked_at: Instant::now(),
            }),
            changed: Condvar::new(),
            wanting: AtomicUsize::new(0),
            spin: options.channel.spin,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Makes a function known; its code must be at the node ([`Lease::put_code`]). Workers load it at its first call.
    pub fn register(&self, hash: CodeHash, form: Form) -> Result<FunctionId, Error> {
        self.inner.lock().dispatch.register(hash, form)
    }

    /// Sends a call, or queues it until a worker has room.
    pub fn submit(&self, function: FunctionId, input: impl Into<Input>, options: CallOptions) -> Result<CallId, Error> {
        let mut state = self.inner.lock();
        let id = state.dispatch.submit(function, input.into(), options)?;
        self.inner.begin_repairs(&mut state);
        if !state.driving && state.dispatch.take_ended() > 0 && state.waiting > 0 {
            self.inner.changed.notify_all();
        }
        Ok(id)
    }

    /// Whether the call has ended.
    pub fn is_done(&self, call: CallId) -> bool {
        self.inner.lock().dispatch.is_done(call)
    }

    /// Waits for a call and takes its outcome. Without a limit it waits as long as the call lasts; a call that is over or
    /// unknown is an error, and so is one that takes longer than the limit (it goes on, and can be waited for again).
    pub fn wait(&self, call: CallId, limit: Option<Duration>) -> Outcome {
        let until = limit.map(|limit| Instant::now() + limit);
        let mut state = self.inner.lock();
        loop {
            if let Some(outcome) = state.dispatch.take(call) {
                return outcome;
            }
            if !state.dispatch.is_known(call) {
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
            if state.driving {
                state = self.inner.wait_changed(state, left.unwrap_or(SLEEP_LIMIT));
            } else {
                state = self
                    .inner
                    .drive_until(state, left.unwrap_or(SLEEP_LIMIT), |dispatch| dispatch.is_done(call));
            }
        }
    }

    /// Submits and waits.
    pub fn call(&self, function: FunctionId, input: &[u8], options: CallOptions) -> Outcome {
        let call = self.submit(function, input, options)?;
        self.wait(call, None)
    }

    /// Drives the rings until some call that asked for it ended, or `limit` has passed; answers which have.
    pub fn drive(&self, limit: Duration) -> Vec<CallId> {
        let until = Instant::now() + limit;
        let mut state = self.inner.lock();
        loop {
            let ended = state.dispatch.take_notices();
            let left = until.saturating_duration_since(Instant::now());
            if !ended.is_empty() || left.is_zero() {
                return ended;
            }
            if state.driving {
                state = self.inner.wait_changed(state, left);
            } else {
                state = self.inner.drive_until(state, left, Dispatch::has_notices);
            }
        }
    }

    /// Takes a call out of the queue. True if it will not run; false if it was sent already or is over.
    pub fn cancel(&self, call: CallId) -> bool {
        let cancelled = self.inner.lock().dispatch.cancel(call);
        if cancelled {
            self.inner.changed.notify_all();
        }
        cancelled
    }

    /// Closes every channel. Calls that have not ended end as [`Code::LeaseEnded`]; outcomes can still be taken.
    pub fn disconnect(&self) {
        self.inner.lock().dispatch.disconnect();
        self.inner.changed.notify_all();
    }

    /// Takes every call out of the queue that was not sent.
    pub fn cancel_all(&self) {
        self.inner.lock().dispatch.cancel_all();
        self.inner.changed.notify_all();
    }

    /// Ends a call that runs, by ending its worker; one that was sent and has not begun ends when it begins. It is then
    /// `cancelled`, and calls behind it go elsewhere.
    pub fn kill(&self, call: CallId) -> Result<(), Error> {
        self.inner.lock().dispatch.kill(call)
    }

    /// Nobody will ask for this call's outcome.
    pub fn forget(&self, call: CallId) {
        self.inner.lock().dispatch.forget(call);
    }

    /// Takes in what has come and sends what waits, without waiting for anything. Whether anything came; nothing does while
    /// another thread drives.
    pub fn poll(&self) -> bool {
        let mut state = self.inner.lock();
        if state.driving {
            return false;
        }
        let came = state.dispatch.poll();
        self.inner.begin_repairs(&mut state);
        if came && state.dispatch.take_ended() > 0 && state.waiting > 0 {
            self.inner.changed.notify_all();
        }
        came
    }

    /// From now on [`Pool::drive`] shall tell of this call's end; at once if it has ended.
    pub fn notify(&self, call: CallId) {
        self.inner.lock().dispatch.notify(call);
        self.inner.changed.notify_all();
    }

    /// Calls of whose end [`Pool::drive`] has still to tell.
    pub fn watched(&self) -> usize {
        self.inner.lock().dispatch.watched()
    }

    /// Whether calls wait for somebody to drive: for room in a ring, or for their function to be loaded. What is in the
    /// rings already runs without anybody's help.
    pub fn needs_help(&self) -> bool {
        self.inner.lock().dispatch.needs_help()
    }

    /// Whether the call has been sent to a worker and has not ended.
    pub fn is_sent(&self, call: CallId) -> bool {
        self.inner.lock().dispatch.is_sent(call)
    }

    /// Which of the pool's calls printed something, also if it ended a moment ago.
    pub fn printer(&self, printer: Printer) -> Option<CallId> {
        self.inner.lock().dispatch.printer(printer)
    }

    /// Nobody will ask for this call's outcome, but it shall run.
    pub fn discard(&self, call: CallId) {
        self.inner.lock().dispatch.discard(call);
    }

    /// Calls that have not ended.
    pub fn pending(&self) -> usize {
        self.inner.lock().dispatch.pending()
    }

    /// A buffer to compose an input in, that travels without a copy to the worker that [`CallOptions::worker`] should
    /// then name. Any worker takes it; another one costs a copy.
    pub fn allocate(&self, length: usize) -> Result<(Buffer, WorkerIndex), Error> {
        let (allocator, worker) = self.allocator()?;
        Ok((allocator.allocate(length)?, worker))
    }

    /// Allocates for the worker that has least to do.
    pub fn allocator(&self) -> Result<(Allocator, WorkerIndex), Error> {
        self.inner.lock().dispatch.allocator()
    }

    /// Largest input that travels inside a slot.
    pub fn inline_bytes(&self) -> usize {
        self.inner.lock().dispatch.inline_bytes()
    }

    /// Transport of its channels.
    pub fn transport(&self) -> crate::Transport {
        self.inner.lock().dispatch.transport()
    }

    /// Incarnation of each worker, 0 for those that are gone.
    pub fn incarnations(&self) -> Vec<u32> {
        self.inner.lock().dispatch.incarnations()
    }
}
