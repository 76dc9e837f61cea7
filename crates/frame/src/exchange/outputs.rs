//! Outputs of tasks that are kept for readers until the query ends.
//!
//! The first reader has the task run as a whole. Every reader gets its partitions once all are complete: it takes all of a
//! run or nothing. A run goes on when the rank that asked for it is lost.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion_distributed::Worker;
use dayfly_protocol::error::{Code, Failure};
use futures_util::TryStreamExt;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

use super::batches::compact;
use super::held::{Held, Holder};
use super::requests::{Execute, Key};
use crate::error::failure_of;

/// All partitions of a task, once they are complete.
type Complete = Result<Arc<Vec<Arc<Held>>>, Failure>;

/// The outputs that a rank keeps, by the keys of their runs.
#[derive(Default)]
pub struct Outputs(HashMap<Key, Output>);

struct Output {
    complete: watch::Receiver<Option<Complete>>,
    abort: AbortHandle,
}

/// A run whose output a reader waits for.
pub struct Awaited(watch::Receiver<Option<Complete>>);

impl Outputs {
    /// The output of a run. The first call begins it, as one of `running`.
    pub fn of(
        &mut self,
        run: Key,
        execute: &Execute,
        worker: &Worker,
        environment: &Arc<RuntimeEnv>,
        running: &mut JoinSet<()>,
    ) -> Awaited {
        let output = self.0.entry(run).or_insert_with(|| {
            let (sender, complete) = watch::channel(None);
            let task = run_whole(worker.clone(), execute.whole(), Arc::clone(environment));
            let abort = running.spawn(async move {
                let _ = sender.send(Some(task.await.map(Arc::new).map_err(|error| failure_of(&error))));
            });
            Output { complete, abort }
        });
        Awaited(output.complete.clone())
    }

    /// Ends a run, which readers find to be superseded until its query ends.
    pub fn supersede(&mut self, run: Key, running: &mut JoinSet<()>) {
        self.forget(run);
        let failure = Failure::new(Code::Cancelled, "another run of the task has begun");
        let (_, complete) = watch::channel(Some(Err(failure)));
        let abort = running.spawn(std::future::ready(()));
        self.0.insert(run, Output { complete, abort });
    }

    /// Forgets outputs that readers have asked for after the end of their query.
    pub fn clean(&mut self, has_plan: impl Fn(Key) -> bool) {
        self.0
            .retain(|run, output| !output.abort.is_finished() || has_plan(*run));
    }

    /// Forgets the output of a run, whose query has ended.
    pub fn forget(&mut self, run: Key) {
        if let Some(output) = self.0.remove(&run) {
            output.abort.abort();
        }
    }
}

impl Awaited {
    /// The rows of a partition, once the run is complete. Each reader of a broadcast has numbers of its own.
    pub async fn partition(mut self, number: u64) -> Result<SendableRecordBatchStream, Failure> {
        let complete = self.0.wait_for(Option::is_some).await;
        let ended = || Failure::new(Code::Cancelled, "the query has ended");
        let complete = complete.map_err(|_| ended())?.clone().ok_or_else(ended)?;
        let partitions = complete?;
        let count = partitions.len().max(1) as u64;
        let partition = partitions.get((number % count) as usize);
        let partition = partition.ok_or_else(|| Failure::new(Code::Internal, "a task without partitions"))?;
        partition.rows().map_err(|error| failure_of(&error))
    }
}

async fn run_whole(worker: Worker, execute: Execute, environment: Arc<RuntimeEnv>) -> Result<Vec<Arc<Held>>> {
    let (partitions, _) = worker.execute_task(execute.decoded()).await?;
    let count = partitions.len();
    let mut running = JoinSet::new();
    for (number, rows) in partitions.into_iter().enumerate() {
        let environment = Arc::clone(&environment);
        running.spawn(async move { held(rows, &environment).await.map(|held| (number, held)) });
    }
    let mut complete = Vec::with_capacity(count);
    while let Some(partition) = running.join_next().await {
        complete.push(partition.map_err(|error| datafusion::common::DataFusionError::ExecutionJoin(Box::new(error)))??);
    }
    complete.sort_unstable_by_key(|(number, _)| *number);
    Ok(complete.into_iter().map(|(_, held)| held).collect())
}

async fn held(mut rows: SendableRecordBatchStream, environment: &Arc<RuntimeEnv>) -> Result<Arc<Held>> {
    let mut holder = Holder::new(environment, rows.schema(), "task output");
    while let Some(batch) = rows.try_next().await? {
        // A part of a larger batch would keep all of that.
        let (batch, bytes) = compact(&batch)?;
        holder.push(batch, bytes)?;
    }
    holder.finish().map(Arc::new)
}
