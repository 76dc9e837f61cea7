//! Durable tasks that Python submits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dayfly_client::{CallError, Status, Tasks as ClientTasks};
use dayfly_protocol::blob::Blob;
use dayfly_protocol::functions::FunctionRegistration;
use dayfly_protocol::ids::{FunctionId, TaskId};
use dayfly_protocol::sizes::Sizes;
use dayfly_protocol::tasks::{TaskOptions as Options, TaskOutcome};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use crate::codec::{Arguments, Codec, Stated, form};
use crate::errors::{from_call, from_error, unreadable};
use crate::foreign::Foreign;
use crate::guard::Guarded;
use crate::pool::{Failure, SLICE, deadline, with_bytes};
use crate::terms::seconds;

/// Options of tasks.
#[pyclass(frozen, module = "dayfly._native")]
pub struct TaskOptions {
    options: Arc<Options>,
}

#[pymethods]
impl TaskOptions {
    /// Parses the options from JSON.
    #[new]
    fn new(text: &str) -> PyResult<Self> {
        let options = serde_json::from_str(text).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Self {
            options: Arc::new(options),
        })
    }
}

/// Durable tasks with one tag.
#[pyclass(frozen, module = "dayfly._native")]
pub struct Tasks {
    tasks: Guarded<Arc<ClientTasks>>,
    codec: Codec,
}

/// Parses a function's id from its bytes.
fn function_of(bytes: &[u8]) -> PyResult<FunctionId> {
    let exact = <[u8; 16]>::try_from(bytes);
    exact
        .map(FunctionId)
        .map_err(|_| PyValueError::new_err("a function's id has 16 bytes"))
}

fn task_of(text: &str) -> PyResult<TaskId> {
    let id = text.parse();
    id.map_err(|_| PyValueError::new_err(format!("{text} is not a task's id")))
}

impl Tasks {
    pub fn new(py: Python<'_>, tasks: ClientTasks) -> PyResult<Self> {
        Ok(Self {
            tasks: Guarded::new(Arc::new(tasks)),
            codec: Codec::new(py)?,
        })
    }

    fn send(
        &self,
        py: Python<'_>,
        function: &[u8],
        arguments: Vec<u8>,
        after: Vec<TaskId>,
        options: &TaskOptions,
    ) -> PyResult<Task> {
        let (tasks, function) = (self.tasks.get(py)?, function_of(function)?);
        let submit = || tasks.submit(function, arguments, after, &options.options);
        let id = py.detach(submit).map_err(|error| from_error(py, &error))?;
        Ok(self.task(tasks, id))
    }

    fn task(&self, tasks: &Arc<ClientTasks>, id: TaskId) -> Task {
        Task {
            tasks: Guarded::new(Arc::clone(tasks)),
            id,
            taken: AtomicBool::new(false),
        }
    }

    fn result<'py>(&self, py: Python<'py>, outcome: TaskOutcome, raw: bool) -> PyResult<Bound<'py, PyAny>> {
        if !outcome.foreign.is_empty() && (outcome.raised || (outcome.error.is_none() && !raw)) {
            let foreign = Foreign::of(outcome);
            return Ok(Bound::new(py, foreign)?.into_any());
        }
        match outcome.error {
            None if raw => Ok(PyBytes::new(py, &outcome.answer).into_any()),
            None => {
                let decoded = self.codec.decode_small(py, &outcome.answer);
                decoded.map_err(|error| unreadable(py, error))
            }
            Some(failure) => Err(from_call(
                py,
                &CallError {
                    failure,
                    status: outcome.raised.then_some(Status::PythonException),
                    payload: outcome.answer.to_vec(),
                },
            )),
        }
    }
}

#[pymethods]
impl Tasks {
    /// Returns the tag that the tasks share.
    fn tag(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.tasks.get(py)?.tag().to_owned())
    }

    /// Registers a function. `description` is JSON without the code. Returns the manager's record of the function as
    /// JSON.
    fn register(&self, py: Python<'_>, description: &str, code: PyBuffer<u8>) -> PyResult<String> {
        let tasks = self.tasks.get(py)?;
        let mut described: serde_json::Value =
            serde_json::from_str(description).map_err(|error| PyValueError::new_err(error.to_string()))?;
        described["code"] = "".into();
        let registration: Result<FunctionRegistration, _> = serde_json::from_value(described);
        let registration = FunctionRegistration {
            code: Blob::from(code.to_vec(py)?),
            ..registration.map_err(|error| PyValueError::new_err(error.to_string()))?
        };
        let until = Instant::now() + ClientTasks::RETRY_TIMEOUT;
        let status = loop {
            match py.detach(|| tasks.register(&registration, SLICE)) {
                Err(error) if ClientTasks::is_temporary(&error) && Instant::now() < until => py.check_signals()?,
                registered => break registered.map_err(|error| from_error(py, &error))?,
            }
        };
        serde_json::to_string(&status).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    #[allow(clippy::too_many_arguments)] // Python names them
    /// Submits a call of a function; `function` is the bytes of its id. After the arguments are pickled, `taken`
    /// contains the ids of the tasks whose futures are among them. `sizes` are those that the caller states; without
    /// them, the arguments have their own.
    #[pyo3(signature = (function, arguments, keywords, options, taken, sizes = None))]
    fn submit(
        &self,
        py: Python<'_>,
        function: &[u8],
        arguments: &Bound<'_, PyTuple>,
        keywords: Option<&Bound<'_, PyDict>>,
        options: &TaskOptions,
        taken: &Bound<'_, PyDict>,
        sizes: Option<Sizes>,
    ) -> PyResult<Task> {
        let stated = sizes.map_or(Stated::Natural, Stated::These);
        let packed = match self.codec.arguments(py, arguments, keywords, stated)? {
            Arguments::Bytes(bytes) => {
                let mut own = Vec::with_capacity(bytes.len() + 1);
                own.extend_from_slice(bytes);
                own.push(form::BYTES);
                own
            }
            Arguments::Encoded(encoded, form) => encoded.to_vec(form),
        };
        let parse = |id: Bound<'_, PyAny>| task_of(id.extract::<&str>()?);
        let after = taken.keys().iter().map(parse).collect::<PyResult<_>>()?;
        self.send(py, function, packed, after, options)
    }

    /// Submits a call whose payload is the unchanged content of a buffer.
    fn submit_raw(
        &self,
        py: Python<'_>,
        function: &[u8],
        data: &Bound<'_, PyAny>,
        options: &TaskOptions,
    ) -> PyResult<Task> {
        let payload = with_bytes(data, |bytes| Ok(bytes.to_vec()))?;
        self.send(py, function, payload, Vec::new(), options)
    }

    /// Submits one task that calls a function on every item of a list.
    fn submit_map(
        &self,
        py: Python<'_>,
        function: &[u8],
        items: &Bound<'_, PyList>,
        star: bool,
        options: &TaskOptions,
    ) -> PyResult<Task> {
        let last = if star { form::STARMAP } else { form::MAP };
        let packed = self.codec.encode(py, items)?.to_vec(last);
        self.send(py, function, packed, Vec::new(), options)
    }

    /// Follows tasks that were submitted earlier or by another process.
    fn adopt(&self, py: Python<'_>, tasks: Vec<String>) -> PyResult<Vec<Task>> {
        let own = self.tasks.get(py)?;
        let ids = tasks.iter().map(|id| task_of(id)).collect::<PyResult<Vec<_>>>()?;
        own.adopt(&ids).map_err(|error| from_error(py, &error))?;
        Ok(ids.into_iter().map(|id| self.task(own, id)).collect())
    }

    /// Runs the helper thread until tasks with a notification have ended. Returns their ids; empty once it is closed.
    fn serve(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let tasks = Arc::clone(self.tasks.get(py)?);
        let ended = py.detach(|| tasks.serve());
        Ok(ended.into_iter().map(|task| task.to_string()).collect())
    }

    /// Waits up to `limit` seconds until the manager has received all submissions. Returns whether it has.
    fn flush(&self, py: Python<'_>, limit: f64) -> PyResult<bool> {
        let (tasks, limit) = (self.tasks.get(py)?, seconds(limit, "timeout")?);
        let until = Instant::now() + limit;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if py.detach(|| tasks.flush(left.min(SLICE))) {
                return Ok(true);
            }
            py.check_signals()?;
            if left.is_zero() {
                return Ok(false);
            }
        }
    }

    /// Waits until the outcomes of all tasks have arrived.
    fn drain(&self, py: Python<'_>) -> PyResult<()> {
        let tasks = self.tasks.get(py)?;
        while !py.detach(|| tasks.drain(SLICE)) {
            py.check_signals()?;
        }
        Ok(())
    }

    /// Returns the number of tasks whose outcomes have not arrived.
    fn pending(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.tasks.get(py)?.pending())
    }

    /// Cancels all tasks that have no outcome and that were not given to a worker.
    fn cancel_all(&self, py: Python<'_>) -> PyResult<()> {
        let tasks = self.tasks.get(py)?;
        py.detach(|| tasks.cancel_all())
            .map(drop)
            .map_err(|error| from_error(py, &error))
    }

    /// Ends the waits but not the tasks. Pending submissions are sent first.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let tasks = self.tasks.get(py)?;
        py.detach(|| tasks.close());
        Ok(())
    }

    fn __repr__(&self) -> String {
        format!("<dayfly tasks {}>", self.tasks.peek().tag())
    }
}

/// A durable task.
#[pyclass(frozen, module = "dayfly._native")]
pub struct Task {
    tasks: Guarded<Arc<ClientTasks>>,
    id: TaskId,
    taken: AtomicBool,
}

impl Task {
    fn to_python<'py>(
        &self,
        py: Python<'py>,
        outcome: Result<Option<TaskOutcome>, dayfly_client::Error>,
        raw: bool,
        tasks: &Tasks,
    ) -> PyResult<Bound<'py, PyAny>> {
        let outcome = match outcome {
            Ok(None) => return Ok(py.NotImplemented().into_bound(py)),
            Err(_) => return Ok(py.Ellipsis().into_bound(py)),
            Ok(Some(outcome)) => outcome,
        };
        self.taken.store(true, Ordering::Relaxed);
        match tasks.result(py, outcome, raw) {
            Ok(value) => Ok(value),
            Err(error) => {
                let error = error.into_value(py).into_any();
                Ok(Bound::new(py, Failure { error })?.into_any())
            }
        }
    }
}

#[pymethods]
impl Task {
    /// Its id.
    #[getter]
    fn id(&self) -> String {
        self.id.to_string()
    }

    /// Waits up to `limit` seconds. Returns the result (its bytes if `raw`), a `Failure`, `NotImplemented` at the
    /// limit, or `Ellipsis` if another thread took the outcome.
    #[pyo3(signature = (tasks, limit = None, raw = false))]
    fn wait<'py>(&self, py: Python<'py>, tasks: &Tasks, limit: Option<f64>, raw: bool) -> PyResult<Bound<'py, PyAny>> {
        let until = deadline(limit)?;
        let own = self.tasks.get(py)?;
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let slice = left.unwrap_or(SLICE).min(SLICE);
            let outcome = py.detach(|| own.wait(self.id, slice));
            if !matches!(outcome, Ok(None)) || left.is_some_and(|left| left <= slice) {
                return self.to_python(py, outcome, raw, tasks);
            }
            py.check_signals()?;
        }
    }

    /// As `wait`, without waiting.
    #[pyo3(signature = (tasks, raw = false))]
    fn take<'py>(&self, py: Python<'py>, tasks: &Tasks, raw: bool) -> PyResult<Bound<'py, PyAny>> {
        let own = self.tasks.get(py)?;
        // A large result is fetched now, without the interpreter lock.
        let outcome = py.detach(|| own.wait(self.id, Duration::ZERO));
        self.to_python(py, outcome, raw, tasks)
    }

    /// Returns whether the task was sent to the manager and has not ended.
    fn is_sent(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.tasks.get(py)?.is_sent(self.id))
    }

    /// Requests a notification through the helper when the task ends.
    fn notify(&self, py: Python<'_>) -> PyResult<()> {
        self.tasks.get(py)?.notify(self.id);
        Ok(())
    }

    /// Cancels the task unless it was given to a worker. Returns whether it will not run.
    fn cancel(&self, py: Python<'_>) -> PyResult<bool> {
        let tasks = self.tasks.get(py)?;
        let cancelled = py.detach(|| tasks.cancel(vec![self.id]));
        Ok(cancelled.map_err(|error| from_error(py, &error))?.ended > 0)
    }

    /// Ends the task even if it runs. Returns whether it had not ended yet.
    fn kill(&self, py: Python<'_>) -> PyResult<bool> {
        let tasks = self.tasks.get(py)?;
        let killed = py.detach(|| tasks.kill(vec![self.id]));
        let killed = killed.map_err(|error| from_error(py, &error))?;
        Ok(killed.ended + killed.told > 0)
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if self.tasks.is_own() && !*self.taken.get_mut() {
            self.tasks.peek().forget(self.id);
        }
    }
}
