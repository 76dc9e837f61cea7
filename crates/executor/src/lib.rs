//! The side where user code runs: one executor process per lease, which forks its workers.
//!
//! An executor is started by its node with one control socket ([`dayfly_protocol::executor`]) and no other connection to
//! the world. Its parent process stays single-threaded and warm: it waits to be assigned to a lease, forks one worker
//! process for each of the lease's workers, hands each worker the channels that the node opened for it, and replaces a
//! worker that died. It ends when its node does.
//!
//! A worker ([`worker`]) serves one channel at a time, runs one invocation at a time, and writes what it does into its
//! [`meter`], which survives it; a warm one runs calls while it has a place among the node's [`cores`]. What a function *is* lies behind the [`Runtime`] trait: [`native`] loads shared
//! libraries, and starts what an image begins with; the Python module implements the same trait inside the user's own interpreter.

pub mod call;
pub mod cores;
mod entry_point;
pub mod forked;
mod left;
pub mod meter;
pub mod native;
mod outputs;
mod parent;
mod scratch;
mod worker;

use std::path::Path;

use dayfly_protocol::executor::LoadFunction;
use dayfly_protocol::slot::Status;

pub use call::Call;
pub use parent::{ExecutorError, run};

/// A language runtime: loads functions and calls them. One value lives in the parent and is copied by fork into each worker.
pub trait Runtime {
    /// What it runs, for people and for version checks: `native`, or `python 3.11.7 cloudpickle 3.1.0`.
    fn describe(&self) -> String;

    /// Called in the parent before a worker is forked.
    fn before_fork(&mut self) {}

    /// Called in the parent after a worker was forked.
    fn after_fork_in_parent(&mut self) {}

    /// Called in a new worker before anything else.
    fn after_fork_in_worker(&mut self) {}

    /// Called in a worker before its first call: functions are to find this in their environment.
    fn set_variable(&mut self, name: &str, value: &str) {
        // SAFETY: a worker that has not begun to serve has one thread.
        unsafe { std::env::set_var(name, value) };
    }

    /// Called where it is told which call printed what, before a call's reply: nothing that it printed may stay behind.
    fn flush(&mut self) {}

    /// Makes a function callable and answers the number to call it by, or a text that says what is wrong with it. The
    /// same code and form may be loaded again and should get the same number.
    fn load(&mut self, code: &Path, function: &LoadFunction) -> Result<u16, String>;

    /// Calls a function. For any status but `Ok`, the output is the error's text or pickled exception.
    fn invoke(&mut self, function: u16, call: &mut Call<'_>) -> Status;
}
