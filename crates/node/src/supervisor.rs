//! Supervises one lease from its executor's start to the end of its last process.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_protocol::api::{Mode, Sandbox};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::executor::{FromExecutor, ToExecutor};
use dayfly_protocol::ids::WorkerIndex;
use dayfly_sandbox::cgroup::Limits;
use dayfly_sandbox::isolation::CODE_DIR;
use rustix::process::{Pid, Signal};
use tracing::{Instrument, Span};

use crate::enclosures::Enclosure;
use crate::executors::{Executor, Heard};
use crate::leases::{Run, Tick};
use crate::node::Node;
use crate::{affinity, connector, runtimes};

/// Most deaths of executors in [`DEATH_WINDOW`]; after more, another executor would only die again.
const MAX_DEATHS: usize = 3;
const DEATH_WINDOW: Duration = Duration::from_secs(10);

/// Memory in bytes of an isolated executor's parent and interpreter, in addition to its lease's.
const OVERHEAD_BYTES: u64 = 64 << 20;
/// Processes and threads of an isolated executor, and of each of its workers: numerical libraries start some for each
/// core.
const TASKS: u32 = 64;
const TASKS_PER_WORKER: u32 = 256;

/// Most messages of an executor in a second, and for each of its workers. An honest one sends some for every worker
/// that starts or ends and every channel that closes.
const MAX_MESSAGES: u32 = 1000;
const MAX_MESSAGES_PER_WORKER: u32 = 100;

/// Counts messages in each second.
struct Chatter {
    since: Instant,
    heard: u32,
    most: u32,
}

impl Chatter {
    fn is_too_much(&mut self) -> bool {
        if self.since.elapsed() > Duration::from_secs(1) {
            self.since = Instant::now();
            self.heard = 0;
        }
        self.heard += 1;
        self.heard > self.most
    }
}

enum Outcome {
    LeaseOver,
    ExecutorGone(Option<String>),
}

/// Runs the lease to its end, first on `parked` if that is given. The start of its first executor belongs to the span
/// `taking`.
pub async fn supervise(node: Arc<Node>, run: Arc<Run>, mut parked: Option<Executor>, taking: Span) {
    let mut taking = Some(taking);
    let mut deaths: Vec<Instant> = Vec::new();
    while run.state().is_live() {
        let shared_cores = node.shared_cores();
        let starting = start(&node, &run, parked.take(), &shared_cores);
        let mut executor = match starting.instrument(taking.take().unwrap_or_else(Span::none)).await {
            Ok(executor) => executor,
            Err(failure) => {
                tracing::warn!(lease = %run.id(), %failure, "no executor");
                run.executor_failed(failure);
                break;
            }
        };
        let mut known_kills = 0;
        let outcome = follow(&node, &run, &mut executor, &shared_cores, &mut known_kills).await;
        // Inform the clients first.
        let out_of_memory = memory_kills(&executor) > known_kills;
        match outcome {
            Outcome::LeaseOver => run.end_channels(),
            Outcome::ExecutorGone(_) => end_groups(&run, run.executor_gone(out_of_memory)),
        }
        executor.end().await;
        if let Outcome::LeaseOver = outcome {
            end_groups(&run, run.executor_gone(out_of_memory));
        }
        node.end_orphans();
        if let Outcome::ExecutorGone(words) = outcome {
            let words = match words {
                Some(words) => words,
                None => executor.last_words().await,
            };
            tracing::warn!(lease = %run.id(), pid = executor.pid(), words, "an executor died and is replaced");
            deaths.retain(|at| at.elapsed() < DEATH_WINDOW);
            deaths.push(Instant::now());
            if deaths.len() > MAX_DEATHS {
                run.executor_failed(Failure::new(
                    Code::ExecutorFailed,
                    format!("the lease's executor died {} times in a row: {words}", deaths.len()),
                ));
            }
        }
    }
    run.end_channels();
    run.printed().close();
    node.lease_over(&run);
    run.over.send_replace(true);
}

/// Ends processes of an executor's workers, which a killed executor or worker could not end. For an isolated executor
/// the kernel has ended them.
fn end_groups(run: &Run, groups: Vec<u32>) {
    for group in groups.into_iter().filter(|_| run.sandbox() == Sandbox::Process) {
        if let Some(group) = Pid::from_raw(group as i32) {
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
    }
}

async fn start(
    node: &Arc<Node>,
    run: &Arc<Run>,
    parked: Option<Executor>,
    shared_cores: &[u16],
) -> Result<Executor, Failure> {
    let mut executor = match parked {
        Some(executor) => executor,
        None => node.pool.take(&run.granted.kind).await?,
    };
    if let Err(failure) = runtimes::check(&run.granted.request.runtime, &executor.runtime) {
        executor.end().await;
        return Err(failure);
    }
    let granted = &run.granted;
    let enclosed = enclose(node, run, &executor);
    if let Err(error) = enclosed {
        executor.end().await;
        return Err(Failure::new(
            Code::ExecutorFailed,
            format!("an isolated executor cannot be limited: {error}; may the node change its control groups?"),
        ));
    }
    let bounded = executor
        .enclosure
        .as_ref()
        .is_none_or(|enclosure| enclosure.bounds_memory);
    let assign = ToExecutor::Assign {
        workers: granted.reservation.workers,
        cores_per_worker: granted.request.cores_per_worker.max(1),
        cores: granted.reservation.cores.clone(),
        shared_cores: shared_cores.to_vec(),
        hot_for_ms: run.hot_for_ms(),
        gpus: node.counts_gpus().then(|| granted.reservation.gpus.clone()),
        gpus_per_worker: granted.request.gpus_per_worker,
        code_dir: match &executor.enclosure {
            Some(_) => CODE_DIR.into(),
            None => node.options.code_dir().display().to_string(),
        },
        max_output_bytes: granted.reservation.memory_bytes,
        pins: executor.enclosure.is_none(),
        worker_memory_bytes: if bounded {
            0
        } else {
            granted.reservation.memory_bytes + OVERHEAD_BYTES
        },
    };
    let control = executor.control();
    let mut files = vec![run.meters_file.as_fd()];
    if granted.reservation.mode != Mode::Hot && node.options.calls_per_core > 0 {
        files.push(node.places.file().as_fd());
    }
    if let Err(error) = control.send(&assign, &files) {
        executor.end().await;
        return Err(Failure::new(
            Code::ExecutorFailed,
            format!("a new executor does not listen: {error}; lease again"),
        ));
    }
    run.executor_assigned(control, executor.printed());
    Ok(executor)
}

/// Sets the limits of an isolated executor's enclosure for its lease.
fn enclose(node: &Arc<Node>, run: &Run, executor: &Executor) -> std::io::Result<()> {
    let Some(enclosure) = &executor.enclosure else {
        return Ok(());
    };
    let granted = &run.granted;
    let workers = u64::from(granted.reservation.workers);
    let cores = workers * u64::from(granted.request.cores_per_worker.max(1));
    enclosure.limit(&Limits {
        // Workers with own cores cannot leave them; a quota would only interrupt them.
        milli_cores: if granted.reservation.mode == Mode::Hot {
            0
        } else {
            cores * 1000
        },
        memory_bytes: granted.reservation.memory_bytes + OVERHEAD_BYTES,
        tasks: TASKS + (workers as u32).saturating_mul(TASKS_PER_WORKER),
    })?;
    run.code_goes_to(&node.options.code_dir(), enclosure.code_dir())?;
    run.keep_connector(connector::open(node, run, enclosure)?);
    match run.shows_node() {
        true => node.show_itself_to(run).map(drop),
        false => Ok(()),
    }
}

/// Number of an executor's processes that were killed for lack of the lease's memory.
fn memory_kills(executor: &Executor) -> u64 {
    executor.enclosure.as_ref().map_or(0, Enclosure::memory_kills)
}

/// The cores of one worker.
fn cores_of<'a>(run: &'a Run, worker: WorkerIndex, shared: &'a [u16]) -> &'a [u16] {
    let count = usize::from(run.granted.request.cores_per_worker.max(1));
    let first = usize::from(worker.0) * count;
    run.granted
        .reservation
        .cores
        .get(first..first + count)
        .unwrap_or(shared)
}

async fn follow(node: &Node, run: &Run, executor: &mut Executor, assigned: &[u16], known_kills: &mut u64) -> Outcome {
    let mut words = None;
    let mut chatter = Chatter {
        since: Instant::now(),
        heard: 0,
        most: MAX_MESSAGES + MAX_MESSAGES_PER_WORKER * u32::from(run.granted.reservation.workers),
    };
    loop {
        let pace = match run.tick() {
            Tick::Again(pace) => pace,
            Tick::Over => return Outcome::LeaseOver,
            Tick::Stuck => {
                executor.kill();
                return Outcome::ExecutorGone(Some("it did not kill a worker when told".into()));
            }
        };
        let message = tokio::select! {
            heard = executor.hear() => heard,
            () = run.wake.notified() => continue,
            () = tokio::time::sleep(pace) => continue,
        };
        if chatter.is_too_much() {
            executor.kill();
            return Outcome::ExecutorGone(Some("it sent more messages than any honest executor does".into()));
        }
        let (message, process) = match message {
            Some(Heard::Said(message, process)) => (Some(message), process),
            Some(Heard::Refused(refusal)) => {
                if refusal.is_hostile {
                    node.incident(run, refusal.call);
                }
                continue;
            }
            None => (None, None),
        };
        match message {
            Some(FromExecutor::WorkerStarted {
                worker,
                incarnation,
                pid,
            }) => {
                // Before its channels, which are opened when it is known to have started.
                if run.granted.request.output_by_call
                    && let Some(meter) = run.meter(worker)
                    && let Err(error) = executor.tell_apart(worker, meter, node.options.output)
                {
                    tracing::warn!(lease = %run.id(), %error, "what a worker prints is not told apart");
                }
                run.worker_started(worker, incarnation, pid, process);
                let shared = node.shared_cores();
                if run.sandbox() != Sandbox::Process {
                    affinity::pin(pid, cores_of(run, worker, &shared));
                } else if run.granted.reservation.mode != Mode::Hot && shared != assigned {
                    // Its executor pinned it to the cores that were shared at the assignment.
                    affinity::pin(pid, &shared);
                }
            }
            Some(FromExecutor::WorkerEnded {
                worker, status, signal, ..
            }) => {
                let kills = memory_kills(executor);
                run.worker_ended(worker, status, signal, kills > *known_kills);
                *known_kills = kills;
            }
            Some(FromExecutor::Detached { worker, channel }) => run.detached(worker, channel),
            Some(FromExecutor::Failed { message }) => words = Some(message),
            Some(FromExecutor::Ready { .. }) => {}
            None => return Outcome::ExecutorGone(words),
        }
    }
}
