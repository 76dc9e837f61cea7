//! What a manager and an endpoint's dispatcher say to each other, over the one connection that the dispatcher opened.
//!
//! The manager sends as many tasks as the dispatcher has room for ([`FromDispatcher::Room`]); the dispatcher keeps each outcome
//! until the manager has written it down ([`ToDispatcher::Kept`]). After a break, [`FromDispatcher::Hello`] says which tasks the
//! dispatcher still has, so that the others can be given away again or end as *maybe executed*. Between two hosts each message
//! is one frame of MessagePack on a WebSocket; long ones go in [parts](ToDispatcher::parts).

use serde::{Deserialize, Serialize};

use crate::api::{Connection, ManagerAddress, Runtime};
use crate::blob::Blob;
use crate::contents::Payload;
use crate::error::Failure;
use crate::executor::Form;
use crate::ids::{CodeHash, FunctionId, TaskId, TenantId, TriggerId};
use crate::node_api::Stream;
use crate::tasks::{BlockStatus, EndpointSpec, MOST_BODY_BYTES, Resources};
use crate::triggers::{FileSeen, Watch};

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
    pub arguments: Payload,
    /// What those answered whose answers go along.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answers: Vec<Payload>,
    /// Milliseconds that it may run; 0 for no limit.
    pub walltime_ms: u32,
    /// Whether it may be executed again by the dispatcher itself.
    pub repeatable: bool,
}

impl Assigned {
    fn bytes_here(&self) -> usize {
        let answers = self.answers.iter().map(Payload::bytes_here);
        self.arguments.bytes_here() + answers.sum::<usize>()
    }
}

/// A function's code and what it needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Which.
    pub id: FunctionId,
    /// Whose function it is; none for the tenant's whose task it is. What it leaves behind in a worker meets no other tenant's functions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<TenantId>,
    /// SHA-256 of `code`.
    pub hash: CodeHash,
    /// What the code is.
    pub form: Form,
    /// What runs it.
    pub runtime: Runtime,
    /// The container image that it runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// What one execution needs.
    pub resources: Resources,
    /// The code.
    pub code: Blob,
}

/// Manager to dispatcher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToDispatcher {
    /// A tenant whose tasks follow.
    Tenant {
        /// Which.
        tenant: TenantId,
        /// For people.
        name: String,
        /// Whether the endpoint is another tenant's: what this one runs there is kept from what is the owner's.
        #[serde(default)]
        guest: bool,
    },
    /// A tenant wants to lease from the site itself, beside the tasks that it has there.
    Invite {
        /// Names it in the answer.
        number: u64,
        /// Who.
        tenant: TenantId,
        /// For people.
        name: String,
        /// Whether the endpoint is another tenant's.
        guest: bool,
    },
    /// A function that tasks will name.
    Program(Box<Program>),
    /// Whether the site has what would run such a function. Asked before its tasks are accepted.
    Suits {
        /// Which.
        function: FunctionId,
        /// What runs it.
        runtime: Runtime,
    },
    /// Tasks to execute.
    Tasks(Vec<Assigned>),
    /// Tasks to end, if they have not ended.
    Cancel(Vec<Attempt>),
    /// Tasks to end unless a worker has been given them.
    Withdraw {
        /// Names it in the answer.
        number: u64,
        /// Which.
        attempts: Vec<Attempt>,
    },
    /// Outcomes that are written down, and need not be kept any more.
    Kept(Vec<Attempt>),
    /// All the files that it is to look for, from now on: what was told of them before is forgotten.
    Watch(Vec<Watch>),
    /// Files that are written down, by their [keys](FileSeen::key), and need not be told any more.
    Noted {
        /// For which trigger.
        trigger: TriggerId,
        /// Which.
        files: Vec<String>,
    },
    /// A tenant wants to run tasks at an endpoint of its own, below this one, and that one is not there.
    Wanted {
        /// Who.
        tenant: TenantId,
        /// Its name, which says which account it is.
        name: String,
        /// The name of its endpoint.
        endpoint: String,
    },
    /// The first words of a manager that is one of several.
    Site {
        /// Grows whenever another of them has the tasks: who knows of a greater one does not listen to this manager.
        epoch: u64,
        /// All of them, of which each will do; none where there is only this one now.
        managers: Vec<ManagerAddress>,
    },
    /// The last words to a dispatcher that is not taken.
    Refused(Failure),
}

impl ToDispatcher {
    /// The same in messages that fit into a frame.
    pub fn parts(self) -> Vec<Self> {
        match self {
            Self::Tasks(tasks) => parts(tasks, Assigned::bytes_here)
                .into_iter()
                .map(Self::Tasks)
                .collect(),
            Self::Cancel(attempts) => parts(attempts, |_| 0).into_iter().map(Self::Cancel).collect(),
            Self::Kept(attempts) => parts(attempts, |_| 0).into_iter().map(Self::Kept).collect(),
            other => vec![other],
        }
    }
}

/// What is sent in one message has so many bytes, roughly, unless a single task has more.
const PART_BYTES: usize = 4 << 20;
/// What an entry has beside its payload, at most.
const ENTRY_BYTES: usize = 256;
/// No frame has more: the largest payload, with room for what is around it.
pub const MOST_FRAME_BYTES: usize = MOST_BODY_BYTES + (1 << 20);

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
    pub answer: Payload,
    /// Microseconds from when a worker was given it until it ended.
    pub took_us: u64,
}

impl Ended {
    fn bytes_here(&self) -> usize {
        self.answer.bytes_here() + self.error.as_ref().map_or(0, Failure::bytes)
    }

    /// An execution that did not begin.
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

/// Something that an execution printed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskOutput {
    /// Which.
    pub attempt: Attempt,
    /// Where.
    pub stream: Stream,
    /// What. Pieces end anywhere.
    pub bytes: Blob,
}

/// Dispatcher to manager.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromDispatcher {
    /// The first words of a connection.
    Hello {
        /// [`WIRE_VERSION`](crate::WIRE_VERSION) of the dispatcher.
        version: u16,
        /// Drawn by its process: the same one may connect again at once, another one must wait until this one is gone.
        instance: u64,
        /// What it has not ended, or not been told is kept.
        holds: Vec<Attempt>,
    },
    /// What its endpoint is, as its owner has it now.
    Spec(EndpointSpec),
    /// Where and with what a tenant leases from the site itself, or why it may not.
    Invited {
        /// As it was asked.
        number: u64,
        /// The site's own manager, with a token for the tenant.
        answer: Result<Connection, Failure>,
    },
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
    /// What its site has of a batch system, or asked it for.
    Blocks {
        /// All of them.
        blocks: Vec<BlockStatus>,
        /// Why there are not more, if more are wanted.
        trouble: Option<String>,
    },
    /// The answer to [`ToDispatcher::Suits`].
    Suits {
        /// Of which function.
        function: FunctionId,
        /// Why not.
        refusal: Option<Failure>,
    },
    /// The answer to [`ToDispatcher::Withdraw`].
    Withdrawn {
        /// As it was asked.
        number: u64,
        /// Those that end without having begun. The others run, or have ended.
        attempts: Vec<Attempt>,
    },
    /// Executions that wait for the environment that they run in, which is being built.
    Building {
        /// Which.
        attempts: Vec<Attempt>,
        /// How that goes, in the node's words.
        how: String,
    },
    /// What executions print, while they do or a moment after their end.
    Printed(Vec<TaskOutput>),
    /// Executions that have been running for a while.
    Running(Vec<Attempt>),
    /// Executions that ended.
    Ended(Vec<Ended>),
    /// Files that a trigger waits for are there, and do not change any more: [some](crate::triggers::MOST_FILES) at a time, told
    /// until they are [noted](ToDispatcher::Noted).
    Arrived {
        /// Which trigger.
        trigger: TriggerId,
        /// Them.
        files: Vec<FileSeen>,
    },
    /// A tenant has no account here, or it cannot be used.
    Unmapped {
        /// Who.
        tenant: TenantId,
        /// Why.
        failure: Failure,
    },
    /// Whether a trigger's files can be seen.
    Watching {
        /// Which trigger.
        trigger: TriggerId,
        /// Why not.
        trouble: Option<Failure>,
    },
}

impl FromDispatcher {
    /// The same in messages that fit into a frame.
    pub fn parts(self) -> Vec<Self> {
        match self {
            Self::Ended(ended) => parts(ended, Ended::bytes_here).into_iter().map(Self::Ended).collect(),
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
            answer: Payload::Here(vec![0; bytes].into()),
            ..Ended::unexecuted(attempt, None)
        }
    }

    #[test]
    fn long_messages_go_in_parts_that_fit_and_lose_nothing() {
        let sizes = [3 << 20, 3 << 20, 100, 60 << 20, 0];
        let all = FromDispatcher::Ended(sizes.map(ended).to_vec());
        let parts = all.parts();
        let seen = parts.iter().map(|part| match part {
            FromDispatcher::Ended(some) => some.iter().map(|one| one.answer.bytes_here()).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        });
        let seen: Vec<_> = seen.collect();
        assert_eq!(seen, [vec![3 << 20], vec![3 << 20, 100], vec![60 << 20], vec![0]]);
        for part in &parts {
            assert!(rmp_serde::to_vec_named(part).unwrap().len() < MOST_FRAME_BYTES);
        }
    }
}
