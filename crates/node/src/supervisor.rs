//! Follows one lease from its executor's start to the last process's end.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mayfly_protocol::api::Mode;
use mayfly_protocol::error::{Code, Failure};
use mayfly_protocol::executor::{FromExecutor, ToExecutor};
use rustix::process::{Pid, Signal};

use crate::executors::Executor;
use crate::leases::{Run, Tick};
use crate::node::Node;
use crate::{affinity, runtimes};

/// An executor that dies more often than this in [`DEATH_WINDOW`] would only die again.
const MOST_DEATHS: usize = 3;
const DEATH_WINDOW: Duration = Duration::from_secs(10);

enum Outcome {
    LeaseOver,
    ExecutorGone(Option<String>),
}

/// Runs the lease to its end, on `parked` first if that is given.
pub async fn supervise(node: Arc<Node>, run: Arc<Run>, mut parked: Option<Executor>) {
    let mut deaths: Vec<Instant> = Vec::new();
    while run.state().is_live() {
        let shared_cores = node.shared_cores();
        let mut executor = match start(&node, &run, parked.take(), &shared_cores).await {
            Ok(executor) => executor,
            Err(failure) => {
                tracing::warn!(lease = %run.id(), %failure, "no executor");
                run.executor_failed(failure);
                break;
            }
        };
        let outcome = follow(&node, &run, &mut executor, &shared_cores).await;
        if let Outcome::LeaseOver = outcome {
            run.end_channels();
        }
        executor.end().await;
        // An executor that was killed could not see to its workers, nor they to what they started.
        for group in run.executor_gone() {
            if let Some(group) = Pid::from_raw(group as i32) {
                let _ = rustix::process::kill_process_group(group, Signal::KILL);
            }
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
            if deaths.len() > MOST_DEATHS {
                run.executor_failed(Failure::new(
                    Code::ExecutorFailed,
                    format!("the lease's executor died {} times in a row: {words}", deaths.len()),
                ));
            }
        }
    }
    run.end_channels();
    node.lease_over(&run);
    run.over.send_replace(true);
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
    let assign = ToExecutor::Assign {
        workers: granted.reservation.workers,
        cores_per_worker: granted.request.cores_per_worker.max(1),
        cores: granted.reservation.cores.clone(),
        shared_cores: shared_cores.to_vec(),
        hot_for_ms: run.hot_for_ms(),
        code_dir: node.options.code_dir().display().to_string(),
        max_output_bytes: granted.reservation.memory_bytes,
    };
    let control = executor.control();
    if let Err(error) = control.send(&assign, &[run.meters_file.as_fd()]) {
        executor.end().await;
        return Err(Failure::new(
            Code::ExecutorFailed,
            format!("a new executor does not listen: {error}; lease again"),
        ));
    }
    run.executor_assigned(control);
    Ok(executor)
}

async fn follow(node: &Node, run: &Run, executor: &mut Executor, assigned: &[u16]) -> Outcome {
    let mut words = None;
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
            message = executor.receive() => message,
            () = run.wake.notified() => continue,
            () = tokio::time::sleep(pace) => continue,
        };
        match message {
            Some(FromExecutor::WorkerStarted {
                worker,
                incarnation,
                pid,
            }) => {
                run.worker_started(worker, incarnation, pid);
                // Its executor pinned it to the cores that were shared when the executor was assigned.
                if run.granted.reservation.mode != Mode::Hot {
                    let shared = node.shared_cores();
                    if shared != assigned {
                        affinity::pin(pid, &shared);
                    }
                }
            }
            Some(FromExecutor::WorkerEnded {
                worker, status, signal, ..
            }) => run.worker_ended(worker, status, signal),
            Some(FromExecutor::Detached { worker, channel }) => run.detached(worker, channel),
            Some(FromExecutor::Failed { message }) => words = Some(message),
            Some(FromExecutor::Ready { .. }) => {}
            None => return Outcome::ExecutorGone(words),
        }
    }
}
