//! Messages between a manager and an endpoint's dispatcher, over the one connection that the dispatcher opens.
//!
//! The manager sends as many tasks as the dispatcher has room for ([`FromDispatcher::Credit`]). The dispatcher keeps
//! each outcome until the manager has stored it ([`ToDispatcher::OutcomesStored`]). After a lost connection,
//! [`FromDispatcher::Hello`] lists the tasks that the dispatcher still has; the manager requeues the others or ends
//! them as *maybe executed*. Between two hosts each message is one frame of MessagePack on a WebSocket. Long messages
//! are split into [parts](ToDispatcher::parts).

use serde::{Deserialize, Serialize};

use crate::api::{Connection, LoanSeries, ManagerAddress, Runtime};
use crate::blob::Blob;
use crate::contents::Payload;
use crate::endpoints::{BlockStatus, EndpointSpec};
use crate::error::Failure;
use crate::executor::Form;
use crate::functions::Resources;
use crate::ids::{CodeHash, FunctionId, TaskId, TenantId, TriggerId};
use crate::node_api::Stream;
use crate::tasks::MAX_BODY_BYTES;
use crate::triggers::{ObservedFile, Watch};

/// One execution of a task. A retry of the same task is another attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Attempt {
    /// The task.
    pub task: TaskId,
    /// Number of the attempt, from 1.
    pub number: u16,
}

/// A task to execute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assigned {
    /// The attempt to execute.
    pub attempt: Attempt,
    /// The function to run. It was sent before.
    pub function: FunctionId,
    /// The tenant that pays.
    pub tenant: TenantId,
    /// Arguments of the function.
    pub arguments: Payload,
    /// Results of the tasks that this task depends on and takes as input.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answers: Vec<Payload>,
    /// Time limit in milliseconds; 0 for no limit.
    pub walltime_ms: u32,
    /// Whether the dispatcher itself may execute it again.
    pub repeatable: bool,
}

impl Assigned {
    fn inline_bytes(&self) -> usize {
        let answers = self.answers.iter().map(Payload::inline_bytes);
        self.arguments.inline_bytes() + answers.sum::<usize>()
    }
}

/// A function's code and requirements.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Id of the function.
    pub id: FunctionId,
    /// Owner of the function; `None` if it belongs to the tenant of the task. Functions of different owners never share
    /// a worker, because code may leave state behind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<TenantId>,
    /// SHA-256 of `code`.
    pub hash: CodeHash,
    /// Form of the code.
    pub form: Form,
    /// Runtime that the code needs.
    pub runtime: Runtime,
    /// Container image to run in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Resources of one execution.
    pub resources: Resources,
    pub code: Blob,
}

/// Messages from manager to dispatcher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToDispatcher {
    /// Announces a tenant before its tasks.
    Tenant {
        /// Id of the tenant.
        tenant: TenantId,
        /// Display name.
        name: String,
        /// Whether the endpoint belongs to another tenant. A guest's tasks are isolated from the owner's.
        #[serde(default)]
        guest: bool,
    },
    /// A tenant asks to lease from the site directly, besides the tasks that it has there.
    Invite {
        /// Number of the request; the response repeats it.
        number: u64,
        /// Id of the tenant.
        tenant: TenantId,
        /// Display name.
        name: String,
        /// Whether the endpoint belongs to another tenant.
        guest: bool,
    },
    /// A function that later tasks refer to.
    Program(Box<Program>),
    /// Asks whether the site can run a function. Sent before its tasks are accepted.
    CheckCompatibility {
        /// The function.
        function: FunctionId,
        /// Runtime that it needs.
        runtime: Runtime,
    },
    Tasks(Vec<Assigned>),
    /// Tasks to end. Attempts that have ended are ignored.
    Cancel(Vec<Attempt>),
    /// Tasks to end unless a worker has already received them.
    Withdraw {
        /// Number of the request; the response repeats it.
        number: u64,
        /// Attempts to withdraw.
        attempts: Vec<Attempt>,
    },
    /// Outcomes that the manager has stored. The dispatcher may drop them.
    OutcomesStored(Vec<Attempt>),
    /// The complete list of files to watch for. Replaces the previous list.
    Watch(Vec<Watch>),
    /// Files that the manager has stored, by their [keys](ObservedFile::key). The dispatcher stops reporting them.
    FilesStored {
        /// The trigger.
        trigger: TriggerId,
        /// Keys of the files.
        files: Vec<String>,
    },
    /// Asks for an endpoint of a tenant's own below this one, because the tenant wants to run tasks there and it is not
    /// connected.
    StartEndpoint {
        /// Id of the tenant.
        tenant: TenantId,
        /// Name of the tenant, which determines its account.
        name: String,
        /// Name of the endpoint.
        endpoint: String,
    },
    /// First message from a manager that is one of several.
    Site {
        /// Grows whenever another manager takes over. A dispatcher that knows a greater epoch ignores this manager.
        epoch: u64,
        /// All managers; any of them will do. Empty if this is the only one.
        managers: Vec<ManagerAddress>,
    },
    /// Last message to a dispatcher that is refused.
    Refused(Failure),
}

impl ToDispatcher {
    /// Splits the message into messages that fit into a frame.
    pub fn parts(self) -> Vec<Self> {
        match self {
            Self::Tasks(tasks) => parts(tasks, Assigned::inline_bytes)
                .into_iter()
                .map(Self::Tasks)
                .collect(),
            Self::Cancel(attempts) => parts(attempts, |_| 0).into_iter().map(Self::Cancel).collect(),
            Self::OutcomesStored(attempts) => parts(attempts, |_| 0).into_iter().map(Self::OutcomesStored).collect(),
            other => vec![other],
        }
    }
}

/// Target size of one message in bytes. A single larger entry still travels alone.
const PART_BYTES: usize = 4 << 20;
/// Most bytes of an entry besides its payload.
const ENTRY_BYTES: usize = 256;
/// Most bytes of a frame: the largest payload and its envelope.
pub const MAX_FRAME_BYTES: usize = MAX_BODY_BYTES + (1 << 20);

fn parts<T>(entries: Vec<T>, payload: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let mut made: Vec<Vec<T>> = Vec::new();
    let mut bytes = 0;
    for entry in entries {
        let length = payload(&entry) + ENTRY_BYTES;
        match made.last_mut() {
            Some(last) if bytes + length <= PART_BYTES => {
                bytes += length;
                last.push(entry);
            }
            _ => {
                bytes = length;
                made.push(vec![entry]);
            }
        }
    }
    made
}

/// Outcome of an execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// The attempt.
    pub attempt: Attempt,
    /// Why it failed; `None` if it succeeded.
    pub error: Option<Failure>,
    /// Whether `answer` is a pickled exception.
    pub raised: bool,
    /// Whether the function may have begun.
    pub begun: bool,
    /// Result of the function.
    pub answer: Payload,
    /// Microseconds from the moment a worker received it to its end.
    pub took_us: u64,
}

impl Ended {
    fn inline_bytes(&self) -> usize {
        self.answer.inline_bytes() + self.error.as_ref().map_or(0, Failure::bytes)
    }

    /// Returns the outcome of an attempt that did not begin.
    pub fn unexecuted(attempt: Attempt, error: Option<Failure>) -> Self {
        Self {
            attempt,
            error,
            raised: false,
            begun: false,
            answer: Payload::default(),
            took_us: 0,
        }
    }
}

/// Output that an execution printed, or what it lent and borrowed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskOutput {
    /// The attempt.
    pub attempt: Attempt,
    /// Standard output or standard error.
    pub stream: Stream,
    /// The bytes. A piece may end anywhere, even inside a character.
    pub bytes: Blob,
    /// What the execution owned, used, lent and borrowed, if its node measured it. It comes once, shortly after the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loans: Option<LoanSeries>,
}

impl TaskOutput {
    /// What an execution lent and borrowed, without output.
    pub fn of_loans(attempt: Attempt, loans: LoanSeries) -> Self {
        Self {
            attempt,
            stream: Stream::Out,
            bytes: Blob::default(),
            loans: Some(loans),
        }
    }
}

/// Messages from dispatcher to manager.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromDispatcher {
    /// First message of a connection.
    Hello {
        /// [`WIRE_VERSION`](crate::WIRE_VERSION) of the dispatcher.
        version: u16,
        /// Random number of the dispatcher's process. The same process may reconnect at once; another one waits until
        /// the first has disconnected.
        instance: u64,
        /// Attempts that have not ended, or whose outcome is not confirmed as kept.
        holds: Vec<Attempt>,
    },
    /// The endpoint's current configuration.
    Spec(EndpointSpec),
    /// Response to [`ToDispatcher::Invite`].
    Invited {
        /// Number of the request.
        number: u64,
        /// Address of the site's own manager with a token for the tenant, or why it is refused.
        answer: Result<Connection, Failure>,
    },
    /// How many tasks the dispatcher wants to hold at a time.
    Credit {
        /// Number of tasks.
        tasks: u32,
    },
    /// Workers that the dispatcher has, and why it has no more.
    Workers {
        /// Number of workers.
        count: u32,
        /// Error message of the party that refused.
        trouble: Option<String>,
    },
    /// Blocks that the site holds or has requested from a batch system.
    Blocks {
        blocks: Vec<BlockStatus>,
        /// Why no more blocks are coming, if more are wanted.
        trouble: Option<String>,
    },
    /// Response to [`ToDispatcher::CheckCompatibility`].
    Compatibility {
        /// The function.
        function: FunctionId,
        /// Why the site cannot run it; `None` if it can.
        refusal: Option<Failure>,
    },
    /// Response to [`ToDispatcher::Withdraw`].
    Withdrawn {
        /// Number of the request.
        number: u64,
        /// Attempts that end without having begun. The others run or have ended.
        attempts: Vec<Attempt>,
    },
    /// Attempts that wait while a node builds their environment.
    Building {
        /// The attempts.
        attempts: Vec<Attempt>,
        /// Progress, as reported by the node.
        how: String,
    },
    /// Output of executions, sent while they run or shortly after they end.
    Printed(Vec<TaskOutput>),
    /// Attempts that have been running for a while.
    Running(Vec<Attempt>),
    Ended(Vec<Ended>),
    /// Files that a trigger waits for and that no longer change. At most [`MAX_FILES`](crate::triggers::MAX_FILES) at
    /// a time; repeated until they are [noted](ToDispatcher::FilesStored).
    Arrived {
        /// The trigger.
        trigger: TriggerId,
        /// The files.
        files: Vec<ObservedFile>,
    },
    /// A tenant has no account at the site, or the account cannot be used.
    Unmapped {
        /// Id of the tenant.
        tenant: TenantId,
        failure: Failure,
    },
    /// Reports whether a trigger's files can be watched.
    Watching {
        /// The trigger.
        trigger: TriggerId,
        /// Why they cannot be watched; `None` if they can.
        trouble: Option<Failure>,
    },
}

impl FromDispatcher {
    /// Splits the message into messages that fit into a frame.
    pub fn parts(self) -> Vec<Self> {
        match self {
            Self::Ended(ended) => parts(ended, Ended::inline_bytes).into_iter().map(Self::Ended).collect(),
            other => vec![other],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(bytes: usize) -> Ended {
        let attempt = Attempt {
            task: TaskId([1; 16]),
            number: 1,
        };
        Ended {
            answer: Payload::Inline(vec![0; bytes].into()),
            ..Ended::unexecuted(attempt, None)
        }
    }

    #[test]
    fn long_messages_are_split_without_loss() {
        let sizes = [3 << 20, 3 << 20, 100, 60 << 20, 0];
        let all = FromDispatcher::Ended(sizes.map(ended).to_vec());
        let parts = all.parts();
        let seen = parts.iter().map(|part| match part {
            FromDispatcher::Ended(some) => some.iter().map(|one| one.answer.inline_bytes()).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        });
        let seen: Vec<_> = seen.collect();
        assert_eq!(seen, [vec![3 << 20], vec![3 << 20, 100], vec![60 << 20], vec![0]]);
        for part in &parts {
            assert!(rmp_serde::to_vec_named(part).unwrap().len() < MAX_FRAME_BYTES);
        }
    }
}
