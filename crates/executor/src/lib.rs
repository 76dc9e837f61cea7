//! The side where user code runs: one executor process for each lease, which forks its workers.
//!
//! A node starts an executor with one control socket ([`dayfly_protocol::executor`]) and no other connection. Its
//! parent process stays single-threaded and warm. It waits for a lease, forks a worker process for each of the lease's
//! workers, passes each worker the channels that the node opened for it, and replaces dead workers. It ends with its
//! node.
//!
//! A worker ([`worker`]) serves one channel at a time and runs one invocation at a time. It records its work in its
//! [`meter`], which survives it. A warm worker runs calls while it holds one of the node's [`cores`]. The [`Runtime`]
//! trait defines what a function is: [`native`] loads shared libraries and starts entry points of images; the Python
//! module implements the same trait inside the user's own interpreter.

mod attachment;
pub mod call;
pub mod cores;
mod entry_point;
pub mod fork_guard;
pub mod meter;
pub mod native;
mod output_pipes;
mod parent;
mod reaper;
mod scratch;
mod worker;

use std::path::Path;

use dayfly_protocol::executor::LoadFunction;
use dayfly_protocol::sizes::Sizes;
use dayfly_protocol::slot::Status;

pub use call::Call;
pub use parent::{ExecutorError, run};

/// The reason why a function was not loaded, as a text for the caller.
#[derive(Debug)]
pub enum LoadError {
    /// The code cannot be loaded.
    Failed(String),
    /// The function was pickled by another version of Python or of cloudpickle than this worker's.
    PythonMismatch(String),
}

impl LoadError {
    /// Returns the status of the invocation that was to load the function.
    pub fn status(&self) -> Status {
        match self {
            Self::Failed(_) => Status::LoadFailed,
            Self::PythonMismatch(_) => Status::PythonMismatch,
        }
    }

    /// Returns the text for the caller.
    pub fn text(&self) -> &str {
        match self {
            Self::Failed(text) | Self::PythonMismatch(text) => text,
        }
    }
}

impl From<String> for LoadError {
    fn from(text: String) -> Self {
        Self::Failed(text)
    }
}

impl From<&str> for LoadError {
    fn from(text: &str) -> Self {
        Self::Failed(text.into())
    }
}

/// A language runtime: loads functions and calls them. The parent has one value, and fork copies it into each worker.
pub trait Runtime {
    /// Name and versions, for users and for version checks: `native`, or `python 3.11.7 cloudpickle 3.1.0`.
    fn describe(&self) -> String;

    /// Called in the parent before a worker is forked.
    fn before_fork(&mut self) {}

    /// Called in the parent after a worker was forked.
    fn after_fork_in_parent(&mut self) {}

    /// Called in a new worker before anything else.
    fn after_fork_in_worker(&mut self) {}

    /// Called in a worker before its first call: sets an environment variable for functions.
    fn set_variable(&mut self, name: &str, value: &str) {
        // SAFETY: a worker that does not serve yet has one thread.
        unsafe { std::env::set_var(name, value) };
    }

    /// Called before a call's reply if output is attributed to calls: writes all buffered output.
    fn flush(&mut self) {}

    /// Loads a function and returns the number to call it by. Loading the same code and form again should return the
    /// same number.
    fn load(&mut self, code: &Path, function: &LoadFunction) -> Result<u16, LoadError>;

    /// The sizes that the client of a call states in its payload, 0 for those that it does not. The node predicts calls
    /// by them. Only called for warm workers, where the node measures calls.
    fn sizes(&self, _function: u16, _input: &[u8]) -> Sizes {
        Sizes::default()
    }

    /// Calls a function. For any status except `Ok`, the output is the error's text or pickled exception.
    fn invoke(&mut self, function: u16, call: &mut Call<'_>) -> Status;
}
