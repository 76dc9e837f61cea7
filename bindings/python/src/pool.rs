//! The hot path of a client: arguments out, results in.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use dayfly_client::{
    Buffer, CallId, CallOptions, Code, CodeHash, Delegation, Form, FunctionId, Input, Outcome, Output,
    Pool as ClientPool, Status, WorkerIndex,
};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use crate::block::{Block, Memory};
use crate::client::{Lease, seconds};
use crate::codec::{Arguments, Codec, Encoded, form};
use crate::errors::{from_call, from_error, raise, unreadable};
use crate::foreign::{raised, untrusted};
use crate::guard::Guarded;
use crate::shared::SharedMemory;

/// Maximum wait before control returns to the interpreter, so that it handles signals such as Ctrl-C.
pub const SLICE: Duration = Duration::from_millis(100);
/// Interval at which the helper progresses calls that no thread waits for. It equals a scheduler's tick, so that it
/// does not disturb a program that waits for its own calls.
const HELP: Duration = Duration::from_millis(1);
/// How long the helper stays awake after its last work.
const LINGER: Duration = Duration::from_millis(100);

/// State that all calls of a pool share.
pub struct Shared {
    pub pool: ClientPool,
    inline_bytes: usize,
    closed: AtomicBool,
    /// Whether the helper sleeps until it is woken.
    parked: AtomicBool,
    lock: Mutex<()>,
    woken: Condvar,
}

impl Shared {
    pub fn new(pool: ClientPool) -> Self {
        Self {
            inline_bytes: pool.inline_bytes(),
            pool,
            closed: AtomicBool::new(false),
            parked: AtomicBool::new(false),
            lock: Mutex::new(()),
            woken: Condvar::new(),
        }
    }

    /// Wakes the helper if it sleeps and a call needs it.
    fn call_helper(&self, needed: bool) {
        if self.parked.load(Ordering::SeqCst) && (needed || self.pool.needs_help()) {
            self.wake();
        }
    }

    fn wake(&self) {
        if self.parked.swap(false, Ordering::SeqCst) {
            let _guard = self.lock.lock();
            self.woken.notify_all();
        }
    }

    fn park(&self) {
        let Ok(guard) = self.lock.lock() else { return };
        self.parked.store(true, Ordering::SeqCst);
        let is_needed = || self.closed.load(Ordering::SeqCst) || self.pool.needs_help() || self.pool.watched() > 0;
        if is_needed() {
            self.parked.store(false, Ordering::SeqCst);
            return;
        }
        let _unused = self.woken.wait_while(guard, |()| self.parked.load(Ordering::SeqCst));
    }

    /// Progresses calls that no thread waits for, until some with a notification have ended. Returns those.
    fn help(&self) -> Vec<CallId> {
        let mut idle_since = Instant::now();
        loop {
            let closed = self.closed.load(Ordering::SeqCst);
            if self.pool.watched() > 0 {
                // Calls that ended are returned even after the pool was closed, because a future waits for them.
                let ended = self.pool.drive(Duration::from_millis(50));
                if !ended.is_empty() {
                    return ended;
                }
                idle_since = Instant::now();
            }
            if closed {
                return Vec::new();
            }
            if self.pool.watched() > 0 {
                continue;
            }
            self.pool.poll();
            if self.pool.needs_help() {
                idle_since = Instant::now();
            }
            if idle_since.elapsed() > LINGER {
                self.park();
                idle_since = Instant::now();
            } else {
                std::thread::sleep(HELP);
            }
        }
    }
}

/// Options of a call.
#[pyclass(frozen, module = "dayfly._native")]
pub struct Options {
    options: CallOptions,
}

#[pymethods]
impl Options {
    #[new]
    #[pyo3(signature = (*, deadline_ms = 0, idempotent = false, worker = None, incarnation = None, notify = false, room = 0))]
    fn new(
        deadline_ms: u32,
        idempotent: bool,
        worker: Option<u16>,
        incarnation: Option<u32>,
        notify: bool,
        room: usize,
    ) -> Self {
        Self {
            options: CallOptions {
                deadline_ms,
                idempotent,
                worker: worker.map(WorkerIndex),
                incarnation,
                notify,
                room,
            },
        }
    }
}

/// Calls distributed over the workers of a lease.
#[pyclass(frozen, module = "dayfly._native")]
pub struct Pool {
    shared: Guarded<Arc<Shared>>,
    codec: Codec,
    /// Other tenants that own the workers and are not trusted.
    foreign: Vec<String>,
}

impl Pool {
    pub fn new(py: Python<'_>, pool: ClientPool, foreign: Vec<String>) -> PyResult<Self> {
        Ok(Self {
            shared: Guarded::new(Arc::new(Shared::new(pool))),
            codec: match foreign.is_empty() {
                true => Codec::new(py)?,
                false => Codec::restricted(py)?,
            },
            foreign,
        })
    }

    fn arguments(
        &self,
        py: Python<'_>,
        arguments: &Bound<'_, PyTuple>,
        keywords: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Input> {
        match self.codec.arguments(py, arguments, keywords)? {
            Arguments::Bytes(bytes) => self.bytes(py, bytes),
            Arguments::Encoded(encoded, form) => self.input(py, encoded, form),
        }
    }

    fn bytes(&self, py: Python<'_>, bytes: &[u8]) -> PyResult<Input> {
        let length = bytes.len() + 1;
        if length <= self.shared.inline_bytes {
            let mut own = Vec::with_capacity(length);
            own.extend_from_slice(bytes);
            own.push(form::BYTES);
            return Ok(Input::Bytes(own));
        }
        let mut buffer = self.allocate(py, length)?;
        let place = buffer.as_mut_slice();
        place[..bytes.len()].copy_from_slice(bytes);
        place[bytes.len()] = form::BYTES;
        Ok(Input::Buffer(buffer, length))
    }

    fn input(&self, py: Python<'_>, encoded: Encoded<'_>, last: u8) -> PyResult<Input> {
        if let Some(input) = encoded.in_place(last) {
            return Ok(input);
        }
        let total = encoded.total();
        if total <= self.shared.inline_bytes {
            return Ok(Input::Bytes(encoded.to_vec(last)));
        }
        let buffer = self.allocate(py, total)?;
        Ok(Input::Buffer(encoded.into_buffer(buffer, last), total))
    }

    fn allocate(&self, py: Python<'_>, length: usize) -> PyResult<Buffer> {
        let (buffer, _) = self
            .shared
            .get(py)?
            .pool
            .allocate(length)
            .map_err(|error| from_error(py, &error))?;
        Ok(buffer)
    }

    fn send(&self, py: Python<'_>, function: u32, input: Input, options: Option<&Options>) -> PyResult<Call> {
        let shared = self.shared.get(py)?;
        let options = options.map_or_else(CallOptions::default, |options| options.options);
        let id = shared
            .pool
            .submit(FunctionId(function), input, options)
            .map_err(|error| from_error(py, &error))?;
        shared.call_helper(options.notify);
        Ok(Call {
            shared: Guarded::new(Arc::clone(shared)),
            id,
            taken: AtomicBool::new(false),
        })
    }
}

#[pymethods]
impl Pool {
    /// Registers a pickled callable whose code the node has. Returns the number to call it by.
    fn register_python(
        &self,
        py: Python<'_>,
        hash: &str,
        python: String,
        cloudpickle: String,
        name: String,
    ) -> PyResult<u32> {
        let form = Form::Python {
            python,
            cloudpickle,
            name,
        };
        self.register(py, hash, form)
    }

    /// Delegates some of the workers after their calls have ended. Returns the delegation as text.
    fn delegate(
        &self,
        py: Python<'_>,
        workers: u16,
        duration: f64,
        users: Option<&Lease>,
        limit: f64,
    ) -> PyResult<String> {
        let shared = self.shared.get(py)?;
        let users = users.map(|users| users.get(py)).transpose()?;
        let (duration, limit) = (seconds(duration, "duration")?, seconds(limit, "wait")?);
        py.detach(|| shared.pool.delegate(workers, duration, users.as_ref(), limit))
            .and_then(|delegation| delegation.to_text())
            .map_err(|error| from_error(py, &error))
    }

    /// Revokes a delegation.
    fn take_back(&self, py: Python<'_>, delegation: &str) -> PyResult<()> {
        let shared = self.shared.get(py)?;
        Delegation::from_text(delegation)
            .and_then(|delegation| py.detach(|| shared.pool.take_back(&delegation)))
            .map_err(|error| from_error(py, &error))
    }

    /// Registers a symbol of a shared library that the node has. Returns the number to call it by.
    fn register_symbol(&self, py: Python<'_>, hash: &str, symbol: String, checked: bool) -> PyResult<u32> {
        let form = if checked {
            Form::Checked { symbol }
        } else {
            Form::Plain { symbol }
        };
        self.register(py, hash, form)
    }

    /// Submits a call of a Python function.
    #[pyo3(signature = (function, arguments, keywords = None, options = None))]
    fn submit(
        &self,
        py: Python<'_>,
        function: u32,
        arguments: &Bound<'_, PyTuple>,
        keywords: Option<&Bound<'_, PyDict>>,
        options: Option<&Options>,
    ) -> PyResult<Call> {
        self.shared.get(py)?;
        let input = self.arguments(py, arguments, keywords)?;
        self.send(py, function, input, options)
    }

    /// Submits a call and waits for its result.
    #[pyo3(signature = (function, arguments, keywords = None, options = None))]
    fn call<'py>(
        &self,
        py: Python<'py>,
        function: u32,
        arguments: &Bound<'py, PyTuple>,
        keywords: Option<&Bound<'py, PyDict>>,
        options: Option<&Options>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let call = self.submit(py, function, arguments, keywords, options)?;
        match call.outcome(py, None, true)? {
            Some(outcome) => self.result(py, outcome),
            None => Err(raise(py, Code::Internal, "the outcome of a call was taken by nobody")),
        }
    }

    /// Submits a chunk of a map: one invocation that calls the function on every item of a list.
    #[pyo3(signature = (function, items, star = false, options = None))]
    fn submit_map(
        &self,
        py: Python<'_>,
        function: u32,
        items: &Bound<'_, PyList>,
        star: bool,
        options: Option<&Options>,
    ) -> PyResult<Call> {
        self.shared.get(py)?;
        let last = if star { form::STARMAP } else { form::MAP };
        let input = self.input(py, self.codec.encode(py, items)?, last)?;
        self.send(py, function, input, options)
    }

    /// Submits a call of a symbol of a shared library.
    #[pyo3(signature = (function, data, options = None))]
    fn submit_raw(
        &self,
        py: Python<'_>,
        function: u32,
        data: &Bound<'_, PyAny>,
        options: Option<&Options>,
    ) -> PyResult<Call> {
        self.shared.get(py)?;
        let input = with_bytes(data, |bytes| {
            if let Some((buffer, length)) = SharedMemory::holding(bytes) {
                return Ok(Input::Shared(buffer, length));
            }
            if bytes.len() <= self.shared.inline_bytes {
                return Ok(Input::Bytes(bytes.to_vec()));
            }
            let mut buffer = self.allocate(py, bytes.len())?;
            buffer.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
            Ok(Input::Buffer(buffer, bytes.len()))
        })?;
        self.send(py, function, input, options)
    }

    /// Allocates memory for arguments that are sent without a copy.
    fn shared_memory(&self, py: Python<'_>, length: usize) -> PyResult<SharedMemory> {
        let (buffer, _) = self
            .shared
            .get(py)?
            .pool
            .allocate(length + crate::shared::SLACK)
            .map_err(|error| from_error(py, &error))?;
        Ok(SharedMemory::new(buffer, length))
    }

    /// Runs the helper thread until calls with a notification have ended. Returns their numbers; empty once the pool is
    /// closed.
    fn serve(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        let shared = Arc::clone(self.shared.get(py)?);
        let ended = py.detach(|| shared.help());
        Ok(ended.into_iter().map(|call| call.0).collect())
    }

    /// Stops the helper.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let shared = self.shared.get(py)?;
        shared.closed.store(true, Ordering::SeqCst);
        shared.wake();
        Ok(())
    }

    /// Closes every channel.
    fn disconnect(&self, py: Python<'_>) -> PyResult<()> {
        let shared = self.shared.get(py)?;
        py.detach(|| shared.pool.disconnect());
        Ok(())
    }

    /// Cancels every call that was not sent.
    fn cancel_all(&self, py: Python<'_>) -> PyResult<()> {
        self.shared.get(py)?.pool.cancel_all();
        Ok(())
    }

    /// Progresses calls without waiting.
    fn poll(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.shared.get(py)?.pool.poll())
    }

    /// Returns the number of calls that have not ended.
    fn pending(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.shared.get(py)?.pool.pending())
    }

    /// Returns the name of the transport.
    fn transport(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.shared.get(py)?.pool.transport().to_string())
    }

    /// Returns the incarnation of each worker; 0 for workers that are gone.
    fn incarnations(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        Ok(self.shared.get(py)?.pool.incarnations())
    }

    /// Waits up to `limit` seconds until all calls have ended. Returns whether they have.
    #[pyo3(signature = (limit = None))]
    fn drain(&self, py: Python<'_>, limit: Option<f64>) -> PyResult<bool> {
        let until = deadline(limit)?;
        let shared = self.shared.get(py)?;
        loop {
            if shared.pool.pending() == 0 {
                return Ok(true);
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(false);
            }
            py.detach(|| {
                let slice = Instant::now() + SLICE;
                let mut pause = Duration::from_micros(50);
                while shared.pool.pending() > 0 && Instant::now() < slice {
                    if !shared.pool.poll() {
                        std::thread::sleep(pause);
                        pause = (2 * pause).min(Duration::from_millis(5));
                    }
                }
            });
            py.check_signals()?;
        }
    }

    fn __repr__(&self) -> String {
        format!("<dayfly pool over {}>", self.shared.peek().pool.transport())
    }
}

impl Pool {
    fn register(&self, py: Python<'_>, hash: &str, form: Form) -> PyResult<u32> {
        let hash: CodeHash = hash.parse().map_err(|_| PyValueError::new_err("not a hash of code"))?;
        let registered = self.shared.get(py)?.pool.register(hash, form);
        Ok(registered.map_err(|error| from_error(py, &error))?.0)
    }

    fn result<'py>(&self, py: Python<'py>, outcome: Outcome) -> PyResult<Bound<'py, PyAny>> {
        match outcome {
            Ok(output) if !self.foreign.is_empty() => {
                let decoded = self.codec.decode_small(py, output.as_slice());
                decoded.map_err(|error| untrusted(py, error, &self.foreign))
            }
            Err(error) if !self.foreign.is_empty() && error.status == Some(Status::PythonException) => {
                Err(raised(py, &error.payload))
            }
            Ok(Output::Small(bytes)) => self
                .codec
                .decode_small(py, &bytes)
                .map_err(|error| unreadable(py, error)),
            Ok(Output::Large(received)) => {
                let decoded = self.codec.decode_received(py, received);
                decoded.map_err(|error| unreadable(py, error))
            }
            Err(error) => Err(from_call(py, &error)),
        }
    }
}

pub fn deadline(limit: Option<f64>) -> PyResult<Option<Instant>> {
    let Some(seconds) = limit else { return Ok(None) };
    let length = Duration::try_from_secs_f64(seconds.max(0.0))
        .map_err(|_| PyValueError::new_err(format!("a time limit of {seconds} seconds")))?;
    Ok(Instant::now().checked_add(length))
}

/// Passes the bytes of an object that exports a contiguous buffer to `with`.
pub fn with_bytes<T>(data: &Bound<'_, PyAny>, with: impl FnOnce(&[u8]) -> PyResult<T>) -> PyResult<T> {
    if let Ok(bytes) = data.cast::<PyBytes>() {
        return with(bytes.as_bytes());
    }
    let view = data
        .py()
        .import("builtins")?
        .getattr("memoryview")?
        .call1((data,))
        .map_err(|_| PyTypeError::new_err("a C function takes bytes, an array, or another object with a buffer"))?;
    let buffer = PyBuffer::<u8>::get(&view.call_method1("cast", ("B",))?)?;
    // SAFETY: a view cast to bytes is contiguous memory of this length, and the view keeps it alive.
    with(unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast::<u8>(), buffer.len_bytes()) })
}

/// A submitted call.
#[pyclass(frozen, module = "dayfly._native")]
pub struct Call {
    shared: Guarded<Arc<Shared>>,
    id: CallId,
    taken: AtomicBool,
}

/// A failed call: holds the exception in place of a result.
#[pyclass(frozen, module = "dayfly._native")]
pub struct Failure {
    #[pyo3(get)]
    pub error: Py<PyAny>,
}

const TAKEN: &str = "this call's outcome was taken already";

impl Call {
    /// Waits for the outcome and takes it. Returns `None` at the limit.
    fn outcome(&self, py: Python<'_>, until: Option<Instant>, wait: bool) -> PyResult<Option<Outcome>> {
        let shared = self.shared.get(py)?;
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let slice = if wait {
                left.unwrap_or(SLICE).min(SLICE)
            } else {
                Duration::ZERO
            };
            let outcome = if slice.is_zero() {
                shared.pool.poll();
                shared.pool.wait(self.id, Some(slice))
            } else {
                py.detach(|| shared.pool.wait(self.id, Some(slice)))
            };
            match outcome {
                Err(error) if error.code() == Code::TimedOut && error.status.is_none() => {
                    py.check_signals()?;
                    if !wait || left.is_some_and(|left| left <= slice) {
                        return Ok(None);
                    }
                }
                outcome => {
                    self.taken.store(true, Ordering::Relaxed);
                    return Ok(Some(outcome));
                }
            }
        }
    }

    fn answer<'py>(
        &self,
        py: Python<'py>,
        outcome: Option<Outcome>,
        raw: bool,
        pool: &Pool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let result = match outcome {
            None => return Ok(py.NotImplemented().into_bound(py)),
            Some(Err(error)) if error.code() == Code::NotFound && error.failure.message == TAKEN => {
                return Ok(py.Ellipsis().into_bound(py));
            }
            Some(Ok(output)) if raw => raw_output(py, output),
            Some(outcome) => pool.result(py, outcome),
        };
        match result {
            Ok(value) => Ok(value),
            Err(error) => {
                let error = error.into_value(py).into_any();
                Ok(Bound::new(py, Failure { error })?.into_any())
            }
        }
    }
}

/// Returns the output of a C function: bytes if it is small, else a view of the received memory.
fn raw_output(py: Python<'_>, output: Output) -> PyResult<Bound<'_, PyAny>> {
    match output {
        Output::Small(bytes) => Ok(PyBytes::new(py, &bytes).into_any()),
        Output::Large(received) => Ok(Bound::new(py, Block::new(Memory::Landed(received)))?.into_any()),
    }
}

#[pymethods]
impl Call {
    /// Returns its number in its pool.
    #[getter]
    fn id(&self) -> u64 {
        self.id.0
    }

    /// Waits up to `limit` seconds. Returns the result, a `Failure`, `NotImplemented` at the limit, or `Ellipsis` if
    /// another thread took the outcome.
    #[pyo3(signature = (pool, limit = None, raw = false))]
    fn wait<'py>(&self, py: Python<'py>, pool: &Pool, limit: Option<f64>, raw: bool) -> PyResult<Bound<'py, PyAny>> {
        let outcome = self.outcome(py, deadline(limit)?, true)?;
        self.answer(py, outcome, raw, pool)
    }

    /// As `wait`, without waiting.
    #[pyo3(signature = (pool, raw = false))]
    fn take<'py>(&self, py: Python<'py>, pool: &Pool, raw: bool) -> PyResult<Bound<'py, PyAny>> {
        let outcome = self.outcome(py, None, false)?;
        self.answer(py, outcome, raw, pool)
    }

    /// Returns whether the call has ended.
    fn is_done(&self, py: Python<'_>) -> PyResult<bool> {
        let shared = self.shared.get(py)?;
        Ok(shared.pool.is_done(self.id) || (shared.pool.poll() && shared.pool.is_done(self.id)))
    }

    /// Returns whether the call was sent to a worker and has not ended.
    fn is_sent(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.shared.get(py)?.pool.is_sent(self.id))
    }

    /// Requests a notification through the helper when the call ends.
    fn notify(&self, py: Python<'_>) -> PyResult<()> {
        let shared = self.shared.get(py)?;
        shared.pool.notify(self.id);
        shared.call_helper(true);
        Ok(())
    }

    /// Cancels the call if it was not sent. Returns whether it was cancelled.
    fn cancel(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.shared.get(py)?.pool.cancel(self.id))
    }

    /// Ends the call even if it runs, by stopping its worker. Returns whether it had not ended yet.
    fn kill(&self, py: Python<'_>) -> PyResult<bool> {
        let shared = self.shared.get(py)?;
        match py.detach(|| shared.pool.kill(self.id)) {
            Ok(()) => Ok(true),
            Err(error) if error.code() == Code::NotFound => Ok(false),
            Err(error) => Err(from_error(py, &error)),
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.shared.is_own() && !*self.taken.get_mut() {
            self.shared.peek().pool.discard(self.id);
        }
    }
}
