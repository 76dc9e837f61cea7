//! The executor's side: runs Python functions for [`dayfly_executor::Runtime`]. One subject: a call, from its input to its
//! result.
//!
//! The interpreter's main thread runs the executor's loop without the interpreter lock, and holds the lock only between
//! the arrival of an invocation and its reply.

use std::collections::HashMap;
use std::path::Path;

use dayfly_client::{CodeHash, Form, Status};
use dayfly_executor::native::NativeRuntime;
use dayfly_executor::{Call, LoadError, Runtime, fork_guard};
use dayfly_protocol::encoding::{RESULT_PRODUCERS, parts};
use dayfly_protocol::executor::LoadFunction;
use dayfly_protocol::sizes::{Sizes, json_call};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use pyo3::{ffi, intern};

use crate::block::{Block, Memory};
use crate::codec::{BUFFERS, Codec, Encoded, form, form_of, result_form};
use crate::foreign::Foreign;
use crate::sizes;

/// Runs functions in this interpreter, and functions of shared libraries.
pub struct PythonRuntime {
    codec: Codec,
    worker: Py<PyAny>,
    run_map: Py<PyAny>,
    failure: Py<PyAny>,
    python: String,
    cloudpickle: String,
    native: NativeRuntime,
    numbers: HashMap<(CodeHash, Form), u16>,
    functions: Vec<Function>,
    /// The interpreter lock's state, held from before a fork until after it.
    forking: Option<ffi::PyGILState_STATE>,
}

// SAFETY: the runtime never leaves the interpreter's main thread. The bound is needed to release the interpreter lock
// in that thread. Every use of a Python object takes the lock again.
unsafe impl Send for PythonRuntime {}

enum Function {
    Python(Py<PyAny>),
    Native(u16),
}

enum Fault {
    Raised(PyErr),
    /// An exception of the function, as [text](dayfly_protocol::exception) only.
    Described(Vec<u8>),
    TooLarge(String),
}

/// A function's result, and its encoding.
enum Done<'py> {
    Value(Bound<'py, PyAny>, u8),
    Json(Bound<'py, PyBytes>),
}

impl From<PyErr> for Fault {
    fn from(error: PyErr) -> Self {
        Self::Raised(error)
    }
}

impl PythonRuntime {
    pub fn new(py: Python<'_>) -> PyResult<Self> {
        let worker = py.import("dayfly._worker")?;
        let version = py.version_info();
        let version = format!("{}.{}.{}", version.major, version.minor, version.patch);
        let cloudpickle: String = py.import("cloudpickle")?.getattr("__version__")?.extract()?;
        Ok(Self {
            codec: Codec::new(py)?,
            run_map: worker.getattr("run_map")?.unbind(),
            failure: worker.getattr("report_exception")?.unbind(),
            worker: worker.into_any().unbind(),
            python: version,
            cloudpickle,
            native: NativeRuntime::default(),
            numbers: HashMap::new(),
            functions: Vec::new(),
            forking: None,
        })
    }

    fn check_versions(&self, python: &str, cloudpickle: &str) -> Result<(), String> {
        let own = minor(&self.python);
        if minor(python) != own {
            return Err(format!(
                "the function was pickled by Python {python} and this worker runs Python {}: use Python {own} in the client, \
                 or start the node with --python of a Python {}",
                self.python,
                minor(python)
            ));
        }
        if major(cloudpickle) != major(&self.cloudpickle) {
            return Err(format!(
                "the function was pickled by cloudpickle {cloudpickle} and this worker has cloudpickle {}: install the same \
                 major version on both",
                self.cloudpickle
            ));
        }
        Ok(())
    }

    fn compile(&self, code: &Path, entry: &str) -> Result<Py<PyAny>, String> {
        let source = read(code)?;
        Python::attach(|py| {
            let worker = self.worker.bind(py);
            let loaded = worker.call_method1("load_source", (PyBytes::new(py, &source), entry));
            loaded.map(Bound::unbind).map_err(|error| {
                let message = error.to_string();
                let text = worker.call_method1("describe_exception", (error.into_value(py),));
                let text = text.and_then(|text| text.extract::<String>());
                text.unwrap_or_else(|_| format!("the function's source cannot be run here: {message}"))
            })
        })
    }

    fn unpickle(&self, code: &Path) -> Result<Py<PyAny>, String> {
        let bytes = read(code)?;
        Python::attach(|py| {
            let loaded = self.codec.decode_plain(py, &bytes).and_then(|function| {
                if function.is_callable() {
                    return Ok(function.unbind());
                }
                let kind = function.get_type().name()?;
                Err(pyo3::exceptions::PyTypeError::new_err(format!(
                    "{kind} is not callable"
                )))
            });
            loaded.map_err(|error| {
                let text = self
                    .worker
                    .bind(py)
                    .call_method1("explain_load", (error.value(py),))
                    .and_then(|text| text.extract::<String>());
                text.unwrap_or_else(|_| format!("the function cannot be unpickled here: {error}"))
            })
        })
    }

    /// Calls a Python function on the current input and stores its result as the output.
    fn call_python(&self, py: Python<'_>, function: &Py<PyAny>, call: &mut Call<'_>) -> Result<(), Fault> {
        let function = function.bind(py);
        let (last, length) = {
            let input = call.input();
            (input.last().copied().unwrap_or(form::ARGUMENTS), input.len())
        };
        let mut block = None;
        if last == form::OF_RANK {
            let done = self.call_as_rank(py, function, call.input())?;
            return self.give(py, &done, call);
        }
        if matches!(form_of(last), form::JSON | form::WITH_ANSWERS) {
            let done = self.call_on(py, function, call.input())?;
            return self.give(py, &done, call);
        }
        let argument = if last & BUFFERS == 0 {
            let content = &call.input()[..length.saturating_sub(1)];
            if last == form::BYTES {
                PyBytes::new(py, content).into_any()
            } else {
                self.codec.decode_plain(py, content)?
            }
        } else {
            let memory = match call.take_input() {
                Some(received) => Memory::Landed(received),
                None => Memory::Copied(call.input().to_vec()),
            };
            let taken = block.insert(Bound::new(py, Block::new(memory))?);
            self.codec.decode_buffers(py, taken)?
        };
        let done = self.apply(py, function, form_of(last), argument);
        let done = done.and_then(|(result, kind)| self.put_result(py, &result, kind, call));
        if let Some(block) = block
            // SAFETY: the object is alive, and the count is only compared.
            && unsafe { ffi::Py_REFCNT(block.as_ptr()) } > 1
        {
            // A view of the input still exists, so its memory must not be reused yet.
            call.retain();
        }
        done
    }

    /// Calls a function as a rank of a group.
    fn call_as_rank<'py>(
        &self,
        py: Python<'py>,
        function: &Bound<'py, PyAny>,
        input: &[u8],
    ) -> Result<Done<'py>, Fault> {
        let broken = || pyo3::exceptions::PyValueError::new_err("the call of a rank is malformed");
        let given = parts(input).ok_or_else(broken)?;
        let [asked, invitation] = given[..] else {
            return Err(broken().into());
        };
        let worker = self.worker.bind(py);
        let invitation = std::str::from_utf8(invitation).map_err(|_| broken())?;
        worker.call_method1(intern!(py, "enter_group"), (invitation,))?;
        let done = self.call_on(py, function, asked);
        // End this process here if the function forked it: only the worker itself belongs to the group.
        fork_guard::exit_if_forked();
        let done = done.map_err(|fault| match fault {
            Fault::Raised(error) => {
                let told = worker.call_method1(intern!(py, "rank_exception"), (error.value(py),));
                Fault::Raised(told.map_or(error, PyErr::from_value))
            }
            other => other,
        });
        worker.call_method1(intern!(py, "leave_group"), (done.is_ok(),))?;
        done
    }

    /// Calls a function on an input that the call does not keep.
    fn call_on<'py>(&self, py: Python<'py>, function: &Bound<'py, PyAny>, input: &[u8]) -> Result<Done<'py>, Fault> {
        let last = input.last().copied().unwrap_or(form::ARGUMENTS);
        let content = &input[..input.len().saturating_sub(1)];
        if let Some(text) = json_call(input) {
            return self.call_json(py, function, text).map(Done::Json);
        }
        let (argument, kind) = match last {
            form::BYTES => (PyBytes::new(py, content).into_any(), form::BYTES),
            form::WITH_ANSWERS => self.with_answers(py, input)?,
            _ => (self.codec.decode_copied(py, input)?, form_of(last)),
        };
        let (result, kind) = self.apply(py, function, kind, argument)?;
        Ok(Done::Value(result, kind))
    }

    /// Decodes arguments that refer to results of other tasks. Returns the arguments and their form.
    fn with_answers<'py>(&self, py: Python<'py>, input: &[u8]) -> PyResult<(Bound<'py, PyAny>, u8)> {
        let broken = || pyo3::exceptions::PyValueError::new_err("the call or its dependencies are malformed");
        let given = parts(input).ok_or_else(broken)?;
        let (arguments, results) = given.split_first().ok_or_else(broken)?;
        // The manager's last entry names the tenants that produced results other than the task's own tenant's.
        let (results, makers) = match results.split_last() {
            Some((makers, results)) if makers.last() == Some(&RESULT_PRODUCERS) => {
                let makers = serde_json::from_slice::<Vec<Vec<String>>>(&makers[..makers.len() - 1]);
                (results, makers.map_err(|_| broken())?)
            }
            _ => (results, vec![Vec::new(); results.len()]),
        };
        if results.len() != makers.len() {
            return Err(broken());
        }
        let decoded = results
            .iter()
            .zip(makers)
            .map(|(result, makers)| match makers.is_empty() {
                true => self.codec.decode_small(py, result),
                false => Ok(Bound::new(py, Foreign::of_dependency(makers, result))?.into_any()),
            });
        let decoded = PyList::new(py, decoded.collect::<PyResult<Vec<_>>>()?)?;
        let kind = form_of(arguments.last().copied().unwrap_or(form::ARGUMENTS));
        // The arguments refer to the results by this list of the module; see `result_of` there.
        let dependencies = py.import(intern!(py, "dayfly._codec.dependencies"))?;
        let referred = dependencies.getattr(intern!(py, "results"))?;
        referred.call_method1(intern!(py, "extend"), (decoded,))?;
        let argument = self.codec.decode_copied(py, arguments);
        referred.call_method0(intern!(py, "clear"))?;
        Ok((argument?, kind))
    }

    fn call_json<'py>(
        &self,
        py: Python<'py>,
        function: &Bound<'py, PyAny>,
        asked: &[u8],
    ) -> Result<Bound<'py, PyBytes>, Fault> {
        let worker = self.worker.bind(py);
        let called = worker.call_method1("call_json", (function, PyBytes::new(py, asked)));
        match called {
            Ok(result) => Ok(result.cast_into::<PyBytes>().map_err(PyErr::from)?),
            // A caller in JSON cannot unpickle an exception.
            Err(error) => {
                // The exception keeps its traceback in this form.
                let text = worker.call_method1("exception_text", (error.into_value(py),))?;
                Err(Fault::Described(text.extract()?))
            }
        }
    }

    /// Stores a function's result as the output.
    fn give(&self, py: Python<'_>, done: &Done<'_>, call: &mut Call<'_>) -> Result<(), Fault> {
        match done {
            Done::Value(result, kind) => self.put_result(py, result, *kind, call),
            Done::Json(text) => {
                let bytes = text.as_bytes();
                put(call, bytes.len() + 1, |place| {
                    place[..bytes.len()].copy_from_slice(bytes);
                    place[bytes.len()] = result_form::JSON;
                })
            }
        }
    }

    fn apply<'py>(
        &self,
        py: Python<'py>,
        function: &Bound<'py, PyAny>,
        kind: u8,
        argument: Bound<'py, PyAny>,
    ) -> Result<(Bound<'py, PyAny>, u8), Fault> {
        let result = match kind {
            form::ARGUMENTS => function.call1(argument.cast_into::<PyTuple>().map_err(PyErr::from)?)?,
            form::KEYWORDS => {
                let (arguments, keywords) = argument.extract::<(Bound<'py, PyTuple>, Bound<'py, PyDict>)>()?;
                drop(argument);
                function.call(arguments, Some(&keywords))?
            }
            form::MAP | form::STARMAP => {
                let results = self
                    .run_map
                    .bind(py)
                    .call1((function, argument, kind == form::STARMAP))?;
                return Ok(results.extract::<(Bound<'py, PyAny>, u8)>()?);
            }
            form::BYTES => function.call1((argument,))?,
            other => {
                let text =
                    format!("an unknown form of call {other}; client and worker run different versions of dayfly");
                return Err(pyo3::exceptions::PyValueError::new_err(text).into());
            }
        };
        Ok((result, result_form::VALUE))
    }

    fn put_result(
        &self,
        py: Python<'_>,
        result: &Bound<'_, PyAny>,
        kind: u8,
        call: &mut Call<'_>,
    ) -> Result<(), Fault> {
        if result.is_none() && kind == result_form::VALUE {
            return put(call, 1, |place| place[0] = result_form::NONE);
        }
        if let Ok(bytes) = result.cast_exact::<PyBytes>() {
            let bytes = bytes.as_bytes();
            return put(call, bytes.len() + 1, |place| {
                place[..bytes.len()].copy_from_slice(bytes);
                place[bytes.len()] = result_form::BYTES;
            });
        }
        let encoded: Encoded<'_> = self.codec.encode(py, result)?;
        put(call, encoded.total(), |place| encoded.write(place, kind))
    }

    fn report(&self, py: Python<'_>, error: PyErr, call: &mut Call<'_>) -> Status {
        let text = error.to_string();
        // The exception keeps its traceback in this form.
        let packed = self.failure.bind(py).call1((error.into_value(py),));
        let packed = packed.and_then(|packed| Ok(packed.cast_into::<PyBytes>()?));
        match packed {
            Ok(packed) if call.put(packed.as_bytes()).is_ok() => Status::PythonException,
            Ok(_) => {
                call.fail("the function raised an exception that is too large to travel");
                Status::FunctionError
            }
            Err(second) => {
                call.fail(&format!(
                    "the function raised {text}, which cannot be described: {second}"
                ));
                Status::FunctionError
            }
        }
    }
}

fn put(call: &mut Call<'_>, length: usize, write: impl FnOnce(&mut [u8])) -> Result<(), Fault> {
    let (start, _) = call.place(length).map_err(|error| Fault::TooLarge(error.to_string()))?;
    // SAFETY: `place` made room for `length` bytes, which nothing else uses until the call ends.
    write(unsafe { std::slice::from_raw_parts_mut(start, length) });
    call.set_length(length);
    Ok(())
}

fn read(code: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(code).map_err(|error| format!("the function's code cannot be read: {error}"))
}

/// Returns the minor version: `3.11` for `3.11.7`.
fn minor(version: &str) -> &str {
    let end = version.match_indices('.').nth(1).map_or(version.len(), |(at, _)| at);
    &version[..end]
}

fn major(version: &str) -> &str {
    version.split('.').next().unwrap_or_default()
}

impl Runtime for PythonRuntime {
    fn describe(&self) -> String {
        format!("python {} cloudpickle {}", self.python, self.cloudpickle)
    }

    fn before_fork(&mut self) {
        // SAFETY: the interpreter is initialised. The lock is held across the fork, as the hooks require. One of the
        // two functions below releases it in each of the two processes.
        unsafe {
            self.forking = Some(ffi::PyGILState_Ensure());
            ffi::PyOS_BeforeFork();
        }
    }

    fn after_fork_in_parent(&mut self) {
        if let Some(state) = self.forking.take() {
            // SAFETY: this thread took the lock before the fork.
            unsafe {
                ffi::PyOS_AfterFork_Parent();
                ffi::PyGILState_Release(state);
            }
        }
    }

    fn after_fork_in_worker(&mut self) {
        if let Some(state) = self.forking.take() {
            // SAFETY: this thread is the copy of the one that took the lock before the fork.
            unsafe { ffi::PyOS_AfterFork_Child() };
            Python::attach(|py| {
                if let Err(error) = self.worker.bind(py).call_method0("after_fork") {
                    error.print(py);
                }
            });
            // SAFETY: as above.
            unsafe { ffi::PyGILState_Release(state) };
        }
    }

    fn set_variable(&mut self, name: &str, value: &str) {
        // Set through Python, which keeps a copy of the environment.
        Python::attach(|py| {
            if let Err(error) = self.worker.bind(py).call_method1("set_variable", (name, value)) {
                error.print(py);
            }
        });
    }

    fn flush(&mut self) {
        // Flushes the output of extensions and shared libraries, which Python does not buffer.
        self.native.flush();
        Python::attach(|py| {
            if let Err(error) = self.worker.bind(py).call_method0("flush") {
                error.print(py);
            }
        });
    }

    fn load(&mut self, code: &Path, function: &LoadFunction) -> Result<u16, LoadError> {
        let key = (function.hash, function.form.clone());
        if let Some(number) = self.numbers.get(&key) {
            return Ok(*number);
        }
        let loaded = match &function.form {
            Form::Python {
                python, cloudpickle, ..
            } => {
                self.check_versions(python, cloudpickle)
                    .map_err(LoadError::PythonMismatch)?;
                Function::Python(self.unpickle(code)?)
            }
            Form::Source { entry } => Function::Python(self.compile(code, entry)?),
            Form::Plain { .. } | Form::Checked { .. } | Form::EntryPoint { .. } => {
                Function::Native(self.native.load(code, function)?)
            }
        };
        let number = u16::try_from(self.functions.len()).map_err(|_| "more than 65,536 functions in one worker")?;
        self.functions.push(loaded);
        self.numbers.insert(key, number);
        Ok(number)
    }

    fn sizes(&self, function: u16, input: &[u8]) -> Sizes {
        match self.functions.get(usize::from(function)) {
            Some(Function::Native(number)) => self.native.sizes(*number, input),
            Some(Function::Python(_)) => sizes::stated(input),
            None => Sizes::default(),
        }
    }

    fn invoke(&mut self, function: u16, call: &mut Call<'_>) -> Status {
        let function = match self.functions.get(function as usize) {
            Some(Function::Python(function)) => function,
            Some(Function::Native(number)) => return self.native.invoke(*number, call),
            None => {
                call.fail("no function of this index was loaded by this worker");
                return Status::UnknownFunction;
            }
        };
        Python::attach(|py| match self.call_python(py, function, call) {
            Ok(()) => Status::Ok,
            Err(Fault::Raised(error)) => self.report(py, error, call),
            Err(Fault::Described(text)) => {
                if let Err(error) = call.put(&text) {
                    call.fail(&error.to_string());
                }
                Status::FunctionError
            }
            Err(Fault::TooLarge(text)) => {
                call.fail(&text);
                Status::OutOfMemory
            }
        })
    }
}
