//! Supervises one lease from its executor's start to the end of its last process.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_lease::ledger::MAX_WORKERS;
use dayfly_protocol::api::{Mode, Sandbox};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::executor::{FromExecutor, ToExecutor};
use dayfly_protocol::ids::WorkerIndex;
use dayfly_sandbox::cgroup::{Limits, Weight};
use dayfly_sandbox::isolation::CODE_DIR;
use rustix::process::{Pid, Signal};
use tracing::{Instrument, Span};

use crate::executor_sandbox::ExecutorSandbox;
use crate::executors::{Executor, ExecutorEvent};
use crate::harvest::Observer;
use crate::leases::{NodeLease, Tick};
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

/// Counts the messages of an executor in each second.
struct MessageRate {
    since: Instant,
    count: u32,
    limit: u32,
}

impl MessageRate {
    fn is_exceeded(&mut self) -> bool {
        if self.since.elapsed() > Duration::from_secs(1) {
            self.since = Instant::now();
            self.count = 0;
        }
        self.count += 1;
        self.count > self.limit
    }
}

enum Outcome {
    LeaseOver,
    ExecutorGone(Option<String>),
}

/// Runs the lease to its end, first on `parked` if that is given. The start of its first executor belongs to the span
/// `taking`.
pub async fn supervise(node: Arc<Node>, lease: Arc<NodeLease>, mut parked: Option<Executor>, taking: Span) {
    let mut taking = Some(taking);
    let mut deaths: Vec<Instant> = Vec::new();
    while lease.state().is_live() {
        let assigned = AssignedCores::of(&lease, node.leases.shared_cores());
        let starting = start(&node, &lease, parked.take(), &assigned);
        let mut executor = match starting.instrument(taking.take().unwrap_or_else(Span::none)).await {
            Ok(executor) => executor,
            Err(failure) => {
                tracing::warn!(lease = %lease.id(), %failure, "no executor");
                lease.fail(failure);
                break;
            }
        };
        let mut known_kills = 0;
        let sandbox = executor.sandbox.as_ref().map(ExecutorSandbox::group);
        let mut calls = node.harvest.observer(&lease, sandbox);
        let outcome = watch_executor(
            &node,
            &lease,
            &mut executor,
            &assigned,
            &mut known_kills,
            calls.as_mut(),
        )
        .await;
        // Their control groups go before those of the sandbox.
        drop(calls);
        // Inform the clients first.
        let out_of_memory = memory_kills(&executor) > known_kills;
        match outcome {
            Outcome::LeaseOver => lease.end_channels(),
            Outcome::ExecutorGone(_) => end_groups(&lease, lease.on_executor_end(out_of_memory)),
        }
        executor.end().await;
        if let Outcome::LeaseOver = outcome {
            end_groups(&lease, lease.on_executor_end(out_of_memory));
        }
        node.end_orphans();
        if let Outcome::ExecutorGone(cause) = outcome {
            let cause = match cause {
                Some(cause) => cause,
                None => executor.output_tail().await,
            };
            tracing::warn!(lease = %lease.id(), pid = executor.pid(), cause, "an executor died and is replaced");
            deaths.retain(|at| at.elapsed() < DEATH_WINDOW);
            deaths.push(Instant::now());
            if deaths.len() > MAX_DEATHS {
                lease.fail(Failure::new(
                    Code::ExecutorFailed,
                    format!("the lease's executor died {} times in a row: {cause}", deaths.len()),
                ));
            }
        }
    }
    lease.end_channels();
    lease.output().close();
    node.release_lease(&lease);
    lease.over.send_replace(true);
}

/// Ends processes of an executor's workers, which a killed executor or worker could not end. For an isolated executor
/// the kernel has ended them.
fn end_groups(lease: &NodeLease, groups: Vec<u32>) {
    for group in groups.into_iter().filter(|_| lease.sandbox() == Sandbox::Process) {
        if let Some(group) = Pid::from_raw(group as i32) {
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
    }
}

async fn start(
    node: &Arc<Node>,
    lease: &Arc<NodeLease>,
    parked: Option<Executor>,
    assigned: &AssignedCores,
) -> Result<Executor, Failure> {
    let mut executor = match parked {
        Some(executor) => executor,
        None => node.pool.take(&lease.granted.kind).await?,
    };
    if let Err(failure) = runtimes::check(&lease.granted.request.runtime, &executor.runtime) {
        executor.end().await;
        return Err(failure);
    }
    let granted = &lease.granted;
    let (terms, reservation) = (lease.terms(), lease.reservation());
    let (workers, retired) = lease.retired();
    let limited = prepare_sandbox(node, lease, &executor);
    if let Err(error) = limited {
        executor.end().await;
        return Err(Failure::new(
            Code::ExecutorFailed,
            format!("an isolated executor cannot be limited: {error}; may the node change its control groups?"),
        ));
    }
    let bounded = executor.sandbox.as_ref().is_none_or(|sandbox| sandbox.bounds_memory);
    let assign = ToExecutor::Assign {
        workers,
        retired: retired.clone(),
        meters: MAX_WORKERS,
        cores_per_worker: own_cores(lease),
        cores: assigned.cores.clone(),
        shared_cores: assigned.shared.clone(),
        gpus: node.has_gpus().then(|| reservation.gpus.clone()),
        gpus_per_worker: granted.request.gpus_per_worker,
        code_dir: match &executor.sandbox {
            Some(_) => CODE_DIR.into(),
            None => node.options.code_dir().display().to_string(),
        },
        max_output_bytes: reservation.memory_bytes,
        pins: executor.sandbox.is_none(),
        worker_memory_bytes: if bounded {
            0
        } else {
            reservation.memory_bytes + OVERHEAD_BYTES
        },
        announces_calls: node.harvest.is_measuring() && terms.mode != Mode::Hot,
    };
    let control = executor.control();
    let mut files = vec![lease.meters_file.as_fd()];
    // Hot workers need it too: they may lose their cores, by a renewal or while they sleep.
    if node.options.calls_per_core > 0 {
        files.push(node.core_slots.file().as_fd());
    }
    if let Err(error) = control.send(&assign, &files) {
        executor.end().await;
        return Err(Failure::new(
            Code::ExecutorFailed,
            format!("a new executor does not accept messages: {error}; lease again"),
        ));
    }
    lease.set_executor(control, executor.output(), (workers, &retired));
    Ok(executor)
}

/// Sets the limits of an isolated executor's sandbox for its lease.
fn apply_limits(lease: &NodeLease, sandbox: &ExecutorSandbox) -> std::io::Result<()> {
    let reservation = lease.reservation();
    let workers = u64::from(reservation.workers);
    let owned = (lease.granted.request.cores_per_worker * u32::from(reservation.workers)).get();
    sandbox.limit(&Limits {
        // Workers with own cores cannot leave them; a quota would only interrupt them.
        milli_cores: if lease.owns_all_cores() { 0 } else { owned },
        memory_bytes: reservation.memory_bytes + OVERHEAD_BYTES,
        tasks: TASKS + (workers as u32).saturating_mul(TASKS_PER_WORKER),
    })?;
    if let Err(error) = sandbox.group().weigh(Weight::of_cores(owned)) {
        tracing::debug!(lease = %lease.id(), %error, "a sandbox competes with the weight of one core");
    }
    Ok(())
}

/// Sets the limits of an isolated executor's sandbox, and opens what the lease's workers need in it.
fn prepare_sandbox(node: &Arc<Node>, lease: &NodeLease, executor: &Executor) -> std::io::Result<()> {
    let Some(sandbox) = &executor.sandbox else {
        return Ok(());
    };
    apply_limits(lease, sandbox)?;
    lease.set_code_dir(&node.options.code_dir(), sandbox.code_dir())?;
    lease.set_connector(connector::open(node, lease, sandbox)?);
    match lease.wants_socket() {
        true => node.open_sandbox_socket(lease).map(drop),
        false => Ok(()),
    }
}

/// Number of an executor's processes that were killed for lack of the lease's memory.
fn memory_kills(executor: &Executor) -> u64 {
    executor.sandbox.as_ref().map_or(0, ExecutorSandbox::memory_kills)
}

/// Number of cores that a hot worker has to itself.
fn own_cores(lease: &NodeLease) -> u16 {
    lease.granted.request.cores_per_worker.as_whole().unwrap_or(1).max(1)
}

/// The cores that an executor pins its workers to.
struct AssignedCores {
    /// Those of each worker in turn; none if they share cores, or not all have their own.
    cores: Vec<u16>,
    of_worker: usize,
    shared: Vec<u16>,
}

impl AssignedCores {
    /// The cores of a lease's workers now.
    fn of(lease: &NodeLease, shared: Vec<u16>) -> Self {
        let (workers, _) = lease.retired();
        let of_worker = usize::from(own_cores(lease));
        let each: Vec<Vec<u16>> = (0..workers).map(|index| lease.cores_of(WorkerIndex(index))).collect();
        let cores = match each.iter().all(|cores| cores.len() == of_worker) {
            true => each.concat(),
            false => Vec::new(),
        };
        Self {
            cores,
            of_worker,
            shared,
        }
    }

    fn of_worker(&self, worker: WorkerIndex) -> &[u16] {
        let first = usize::from(worker.0) * self.of_worker;
        self.cores.get(first..first + self.of_worker).unwrap_or(&self.shared)
    }
}

/// Pins a new worker to its cores, unless its executor did.
fn pin_worker(node: &Node, lease: &NodeLease, worker: WorkerIndex, pid: u32, assigned: &AssignedCores) {
    let own = lease.cores_of(worker);
    let cores = if own.is_empty() {
        node.leases.shared_cores()
    } else {
        own
    };
    if lease.sandbox() != Sandbox::Process || assigned.of_worker(worker) != cores {
        affinity::pin(pid, &cores);
    }
}

/// Applies the lease's time limits and handles the executor's events, until the lease or the executor ends.
async fn watch_executor(
    node: &Node,
    lease: &NodeLease,
    executor: &mut Executor,
    assigned: &AssignedCores,
    known_kills: &mut u64,
    mut calls: Option<&mut Observer>,
) -> Outcome {
    let mut cause = None;
    let mut message_rate = MessageRate {
        since: Instant::now(),
        count: 0,
        limit: 0,
    };
    loop {
        message_rate.limit = MAX_MESSAGES + MAX_MESSAGES_PER_WORKER * u32::from(lease.slot_count());
        let pace = match lease.tick() {
            Tick::Again(pace) => pace,
            Tick::Over => return Outcome::LeaseOver,
            Tick::Stuck => {
                executor.kill();
                return Outcome::ExecutorGone(Some("it did not kill a worker as requested".into()));
            }
        };
        node.settle(lease);
        if let Some(sandbox) = executor.sandbox.as_ref().filter(|_| lease.take_new_limits())
            && let Err(error) = apply_limits(lease, sandbox)
        {
            tracing::warn!(lease = %lease.id(), %error, "a sandbox keeps the limits that its lease had before");
        }
        if let Some(calls) = &mut calls {
            calls.observe(lease);
        }
        let event = tokio::select! {
            event = executor.next_event() => event,
            () = lease.wake.notified() => continue,
            () = tokio::time::sleep(pace) => continue,
        };
        if message_rate.is_exceeded() {
            executor.kill();
            return Outcome::ExecutorGone(Some("it sent more messages than any honest executor does".into()));
        }
        let (message, process) = match event {
            Some(ExecutorEvent::Message(message, process)) => (Some(message), process),
            Some(ExecutorEvent::RefusedCall(refusal)) => {
                if refusal.is_hostile {
                    node.incident(lease, refusal.call);
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
                if lease.granted.request.output_by_call
                    && let Some(meter) = lease.meter(worker)
                    && let Err(error) = executor.attribute_output(worker, meter, node.options.output)
                {
                    tracing::warn!(lease = %lease.id(), %error, "the output of a worker is not attributed to calls");
                }
                lease.on_worker_start(worker, incarnation, pid, process);
                pin_worker(node, lease, worker, pid, assigned);
            }
            Some(FromExecutor::WorkerEnded {
                worker, status, signal, ..
            }) => {
                let kills = memory_kills(executor);
                lease.on_worker_end(worker, status, signal, kills > *known_kills);
                *known_kills = kills;
            }
            Some(FromExecutor::Detached { worker, channel }) => lease.on_detached(worker, channel),
            Some(FromExecutor::Failed { message }) => cause = Some(message),
            // The meter is read again.
            Some(FromExecutor::CallChanged { .. } | FromExecutor::Ready { .. }) => {}
            None => return Outcome::ExecutorGone(cause),
        }
    }
}
