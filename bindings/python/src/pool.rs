//! The hot path of a client: arguments out, results in.

mod call;
mod helper;

use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_client::{
    Buffer, CallOptions, Code, CodeHash, Delegation, Form, FunctionId, Input, Outcome, Output, Pool as ClientPool,
    Status, WorkerIndex,
};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

pub use call::{Call, Failure};
pub use helper::Shared;

use crate::client::Lease;
use crate::codec::{Arguments, Codec, Encoded, Stated, form};
use crate::errors::{from_call, from_error, raise, unreadable};
use crate::foreign::{raised, untrusted};
use crate::guard::Guarded;
use crate::shared::SharedMemory;
use crate::terms::seconds;

/// Maximum wait before control returns to the interpreter, so that it handles signals such as Ctrl-C.
pub const SLICE: Duration = Duration::from_millis(100);

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

/// Calls distributed over the workers of a lease or a fleet.
#[pyclass(frozen, module = "dayfly._native")]
pub struct Pool {
    shared: Guarded<Arc<Shared>>,
    codec: Codec,
    /// Other tenants that own the workers and are not trusted.
    foreign: Vec<String>,
    /// Which sizes calls state.
    stated: Stated,
}

impl Pool {
    pub fn new(py: Python<'_>, pool: Arc<ClientPool>, foreign: Vec<String>, is_hot: bool) -> PyResult<Self> {
        Ok(Self {
            shared: Guarded::new(Arc::new(Shared::new(pool))),
            codec: match foreign.is_empty() {
                true => Codec::new(py)?,
                false => Codec::restricted(py)?,
            },
            foreign,
            stated: if is_hot { Stated::None } else { Stated::Natural },
        })
    }

    fn arguments(
        &self,
        py: Python<'_>,
        arguments: &Bound<'_, PyTuple>,
        keywords: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Input> {
        match self.codec.arguments(py, arguments, keywords, self.stated)? {
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
        Ok(Call::new(shared, id))
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
            None => Err(raise(
                py,
                Code::Internal,
                "a call ended without an outcome; report this",
            )),
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
        self.shared.get(py)?.close();
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
            Ok(Output::Large(received)) => {
                let decoded = self.codec.decode_received(py, received);
                decoded.map_err(|error| unreadable(py, error))
            }
            Ok(output) => self
                .codec
                .decode_small(py, output.as_slice())
                .map_err(|error| unreadable(py, error)),
            Err(error) => Err(from_call(py, &error)),
        }
    }
}

pub fn deadline(limit: Option<f64>) -> PyResult<Option<Instant>> {
    let Some(seconds) = limit else { return Ok(None) };
    let length = Duration::try_from_secs_f64(seconds.max(0.0))
        .map_err(|_| PyValueError::new_err(format!("{seconds} is not a time limit in seconds")))?;
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
