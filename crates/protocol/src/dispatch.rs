//! What a manager and an endpoint's dispatcher say to each other, over the one connection that the dispatcher opened.
//!
//! The manager sends as many tasks as the dispatcher has room for ([`FromDispatcher::Room`]); the dispatcher keeps each outcome
//! until the manager has written it down ([`ToDispatcher::Kept`]). After a break, [`FromDispatcher::Holds`] says which tasks the
//! dispatcher still has, so that the others can be given away again or end as *maybe executed*.

use serde::{Deserialize, Serialize};

use crate::api::Runtime;
use crate::blob::Blob;
use crate::error::Failure;
use crate::executor::Form;
use crate::ids::{CodeHash, FunctionId, TaskId, TenantId};
use crate::tasks::Resources;

/// One execution of a task: a later one of the same task is another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Attempt {
    /// Of which task.
    pub task: TaskId,
    /// From 1.
    pub number: u16,
}

/// A task to execute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assigned {
    /// Which execution of which task.
    pub attempt: Attempt,
    /// What to run: a function that was sent before.
    pub function: FunctionId,
    /// Who pays.
    pub tenant: TenantId,
    /// What to call it with.
    pub arguments: Blob,
    /// Milliseconds that it may run; 0 for no limit.
    pub walltime_ms: u32,
    /// Whether it may be executed again by the dispatcher itself.
    pub repeatable: bool,
}

/// A function's code and what it needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Which.
    pub id: FunctionId,
    /// SHA-256 of `code`.
    pub hash: CodeHash,
    /// What the code is.
    pub form: Form,
    /// What runs it.
    pub runtime: Runtime,
    /// What one execution needs.
    pub resources: Resources,
    /// The code.
    pub code: Blob,
}

/// Manager to dispatcher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToDispatcher {
    /// A tenant whose tasks follow, and a token with which to lease on its behalf.
    Tenant {
        /// Which.
        tenant: TenantId,
        /// Good for as long as this connection.
        token: String,
    },
    /// A function that tasks will name.
    Program(Box<Program>),
    /// Tasks to execute.
    Tasks(Vec<Assigned>),
    /// Tasks to end, if they have not ended.
    Cancel(Vec<Attempt>),
    /// Outcomes that are written down, and need not be kept any more.
    Kept(Vec<Attempt>),
}

/// How an execution ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Which.
    pub attempt: Attempt,
    /// Why not well.
    pub error: Option<Failure>,
    /// Whether `answer` is a pickled exception.
    pub raised: bool,
    /// Whether the function may have been begun.
    pub begun: bool,
    /// What the function answered.
    pub answer: Blob,
    /// Microseconds from when a worker was given it until it ended.
    pub took_us: u64,
}

/// Dispatcher to manager.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromDispatcher {
    /// The first words of a connection: what the dispatcher has not ended, or not been told is kept.
    Holds(Vec<Attempt>),
    /// How many tasks it wants to have at a time.
    Room {
        /// So many.
        tasks: u32,
    },
    /// Workers that it has, and why it has not got more.
    Workers {
        /// How many.
        count: u32,
        /// The words of whoever refused.
        trouble: Option<String>,
    },
    /// Executions that have been running for a while.
    Running(Vec<Attempt>),
    /// Executions that ended.
    Ended(Vec<Ended>),
}
