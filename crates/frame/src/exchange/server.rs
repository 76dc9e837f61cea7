//! What a rank does for others: it keeps the plans of their tasks, and executes them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::Schema;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion_distributed::{CoordinatorToWorkerMsg, Worker, WorkerToCoordinatorMsg};
use dayfly_comm::post::{Delivery, Message, PostError};
use dayfly_protocol::error::Failure;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{AbortHandle, JoinSet};

use super::error::ExchangeError;
use super::measures::Measures;
use super::outputs::Outputs;
use super::requests::{Execute, Key, Load, Plan, Report, Request, Unit, encoded};
use super::{Exchange, REQUESTS, batches, lost_rank};
use crate::error::failure_of;
use crate::kept::{self, Store};
use crate::memory::Memory;

/// What a message on a lane is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The schema of the batches after it.
    Schema,
    /// Batches, one after the other.
    Batches,
    /// A report of a task.
    Report,
    /// The last message.
    End,
    /// The last message, of what failed.
    Error,
}

impl Kind {
    const ALL: [Self; 5] = [Self::Schema, Self::Batches, Self::Report, Self::End, Self::Error];

    /// The kind in the first part of a message.
    pub fn of(part: &[u8]) -> Option<Self> {
        match part {
            [number] => Self::ALL.get(usize::from(*number)).copied(),
            _ => None,
        }
    }

    pub fn part(self) -> Bytes {
        const NUMBERS: [[u8; 1]; 5] = [[0], [1], [2], [3], [4]];
        Bytes::from_static(&NUMBERS[self as usize])
    }
}

/// Pauses before the worker's cache is maintained.
const LET_GO_AFTER: [Duration; 3] = [
    Duration::from_millis(5),
    Duration::from_millis(45),
    Duration::from_millis(450),
];
/// Operations on the worker's cache that cause its maintenance.
const MAINTENANCE_OPERATIONS: usize = 65;

/// Bytes after which a message takes no further batch. Each message wakes three threads.
const MESSAGE_BYTES: usize = 1 << 20;
/// Parts after which it takes none.
const MESSAGE_PARTS: usize = 4096;
/// Messages of a lane that may be under way whatever they hold, so that one is made while one leaves.
const MIN_IN_FLIGHT: usize = 1;
/// Bytes of a lane's messages that are under way, at most, beside those.
const IN_FLIGHT_BYTES: usize = 4 << 20;

/// A lane of another rank.
type Place = (u32, u32);

/// Serves requests of other ranks until the exchange is revoked or closed, or the rank of the session is lost.
pub async fn serve(
    exchange: Arc<Exchange>,
    worker: Worker,
    memory: Arc<Memory>,
    environment: Arc<RuntimeEnv>,
    kept: Arc<Store>,
    session: u32,
) -> Result<(), ExchangeError> {
    let mut server = Server {
        exchange,
        worker,
        memory,
        environment,
        kept,
        outputs: Outputs::default(),
        running: JoinSet::new(),
        aborts: HashMap::new(),
        feeds: HashMap::new(),
    };
    loop {
        let exchange = Arc::clone(&server.exchange);
        tokio::select! {
            message = exchange.post.next(REQUESTS, None) => match message {
                Ok(message) => server.take(message),
                Err(error) => match lost_rank(&error) {
                    Some(rank) if rank != session => server.forget(rank),
                    None if matches!(error, PostError::Closed | PostError::Revoked { .. }) => return Ok(()),
                    _ => return Err(error.into()),
                },
            },
            Some(_) = server.running.join_next() => server.clean(),
        }
    }
}

struct Server {
    exchange: Arc<Exchange>,
    worker: Worker,
    memory: Arc<Memory>,
    environment: Arc<RuntimeEnv>,
    kept: Arc<Store>,
    outputs: Outputs,
    running: JoinSet<()>,
    aborts: HashMap<Place, AbortHandle>,
    /// The run of a plan, and where further units of work for it go.
    feeds: HashMap<Place, (Key, UnboundedSender<CoordinatorToWorkerMsg>)>,
}

impl Server {
    fn take(&mut self, message: Message) {
        let from = message.from();
        let request = message
            .parts()
            .first()
            .map(|part| rmp_serde::from_slice::<Request>(part));
        // What is malformed names no lane to report it on: its sender's deadline does.
        let Some(Ok(request)) = request else { return };
        match request {
            Request::Plan { lane, plan } => {
                let (sender, feed) = unbounded_channel();
                self.feeds.insert((from, lane), (plan.key.of_run(plan.attempt), sender));
                let responses = self.responses(from, lane);
                let task = keep(responses, self.worker.clone(), plan, feed);
                let _ = self.running.spawn(task);
            }
            Request::Units { lane, units } => {
                if let Some((_, feed)) = self.feeds.get(&(from, lane)) {
                    let _ = feed.send(CoordinatorToWorkerMsg::WorkUnitBatch(Unit::batch_of(units)));
                }
            }
            Request::EndOfUnits { lane } => {
                if let Some((_, feed)) = self.feeds.get(&(from, lane)) {
                    let _ = feed.send(CoordinatorToWorkerMsg::WorkUnitEos);
                }
            }
            Request::Supersede { lane } => {
                if let Some((run, _)) = self.feeds.get(&(from, lane)) {
                    self.outputs.supersede(*run, &mut self.running);
                }
            }
            Request::EndOfPlan { lane } => self.end_plan((from, lane)),
            Request::Execute { lane, execute } if execute.attempt.is_some() => {
                self.execute_kept((from, lane), &execute)
            }
            Request::Execute { lane, execute } => {
                let count = execute.count().unwrap_or(0);
                let Some(end) = lane.checked_add(count) else { return };
                let (senders, receivers): (Vec<_>, Vec<_>) =
                    (0..count).map(|_| tokio::sync::oneshot::channel()).unzip();
                for (lane, receiver) in (lane..end).zip(receivers) {
                    let responses = self.responses(from, lane);
                    let abort = self.running.spawn(async move {
                        if let Ok(batches) = receiver.await {
                            responses.send_all(batches).await;
                        }
                    });
                    self.aborts.insert((from, lane), abort);
                }
                let worker = self.worker.clone();
                let _ = self.running.spawn(begin(worker, execute, senders));
            }
            Request::Kept { lane, id, number } => {
                let responses = self.responses(from, lane);
                let kept = self.kept.get(id, number);
                let abort = self
                    .running
                    .spawn(async move { responses.send_all(kept.and_then(stream_of)).await });
                self.aborts.insert((from, lane), abort);
            }
            Request::Copy { lane, id, parts } => {
                let responses = self.responses(from, lane);
                let (store, environment) = (Arc::clone(&self.kept), Arc::clone(&self.environment));
                let abort = self.running.spawn(async move {
                    let copied = kept::take(&store, &environment, id, &parts).await;
                    responses.report_copies(copied.map_err(|error| failure_of(&error)));
                });
                self.aborts.insert((from, lane), abort);
            }
            Request::Sample { lane, part } => self.exchange.take_sample(from, lane, part),
            Request::Forget { id } => self.kept.forget(id),
            // Only the session has the plans of lost tasks, and waits for ranks.
            Request::Moved { .. } | Request::Ready => {}
            Request::Cancel { lane } => {
                self.end_plan((from, lane));
                self.exchange.leave_sort(from, lane);
                if let Some(abort) = self.aborts.remove(&(from, lane)) {
                    abort.abort();
                }
            }
        }
    }

    /// Sends partitions of a task once all of them are complete. The first reader has it run.
    fn execute_kept(&mut self, (from, lane): Place, execute: &Execute) {
        let (count, attempt) = (execute.count().unwrap_or(0), execute.attempt.unwrap_or(0));
        let Some(end) = lane.checked_add(count) else { return };
        for (lane, number) in (lane..end).zip(execute.from..) {
            let run = execute.key.of_run(attempt);
            let output = self
                .outputs
                .of(run, execute, &self.worker, &self.environment, &mut self.running);
            let responses = self.responses(from, lane);
            let abort = self
                .running
                .spawn(async move { responses.send_all(output.partition(number).await).await });
            self.aborts.insert((from, lane), abort);
        }
    }

    /// Has the worker forget a plan, whose query has ended.
    fn end_plan(&mut self, place: Place) {
        if let Some((run, _)) = self.feeds.remove(&place) {
            self.outputs.forget(run);
            let _ = self.running.spawn(let_go(self.worker.clone()));
        }
    }

    fn responses(&self, to: u32, lane: u32) -> Responses {
        Responses {
            exchange: Arc::clone(&self.exchange),
            memory: Arc::clone(&self.memory),
            to,
            lane,
        }
    }

    /// Ends what a lost rank asked for.
    fn forget(&mut self, rank: u32) {
        self.exchange.leave_sorts_of(rank);
        self.feeds.retain(|(from, _), _| *from != rank);
        let _ = self.running.spawn(let_go(self.worker.clone()));
        for (_, abort) in self.aborts.extract_if(|(from, _), _| *from == rank) {
            abort.abort();
        }
    }

    fn clean(&mut self) {
        self.aborts.retain(|_, abort| !abort.is_finished());
        let feeds = &self.feeds;
        self.outputs.clean(|run| feeds.values().any(|(known, _)| *known == run));
    }
}

/// Has the worker drop the plans that it has forgotten.
///
/// A plan has the tasks of its repartitions, which compute until it is dropped, and the hash tables of its joins. The
/// worker keeps plans in a cache that drops what was removed from it at its next maintenance, which follows 64 further
/// operations, or one after 300 ms. A canceled query without successors would go on computing.
async fn let_go(worker: Worker) {
    // The worker removes a plan in a task of its own, once the end of its feed has come there.
    for pause in LET_GO_AFTER {
        tokio::time::sleep(pause).await;
        for _ in 0..MAINTENANCE_OPERATIONS {
            // It looks the plan up at once, and would then wait for it.
            let _ = worker.execute_task(Execute::of_nothing()).now_or_never();
        }
    }
}

/// Begins a task, and hands each partition's batches to who sends them.
async fn begin(
    worker: Worker,
    execute: Execute,
    senders: Vec<tokio::sync::oneshot::Sender<Result<SendableRecordBatchStream, Failure>>>,
) {
    match worker.execute_task(execute.decoded()).await {
        Ok((streams, _)) => {
            for (sender, stream) in senders.into_iter().zip(streams) {
                // Who is canceled takes nothing.
                let _ = sender.send(Ok(stream));
            }
        }
        Err(error) => {
            let failure = failure_of(&error);
            for sender in senders {
                let _ = sender.send(Err(failure.clone()));
            }
        }
    }
}

/// Kept batches as a task's.
fn stream_of(batches: Vec<RecordBatch>) -> Result<SendableRecordBatchStream, Failure> {
    // The schema crosses with the first of them; no batches need none.
    let schema = batches
        .first()
        .map_or_else(|| Arc::new(Schema::empty()), RecordBatch::schema);
    let rows = futures_util::stream::iter(batches.into_iter().map(Ok));
    Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
}

/// Keeps a plan until its query ends.
async fn keep(responses: Responses, worker: Worker, plan: Plan, feed: UnboundedReceiver<CoordinatorToWorkerMsg>) {
    let sent = async {
        let (headers, request) = plan.decoded()?;
        let feed = futures_util::stream::unfold(feed, |mut feed| async move { Some((Ok(feed.recv().await?), feed)) });
        let mut reports = worker.coordinator_channel(headers, request, feed.boxed()).await?;
        while let Some(report) = reports.next().await {
            let report = match report? {
                WorkerToCoordinatorMsg::LoadInfo(load) => Report::Load(Load::of(load)),
                WorkerToCoordinatorMsg::LoadInfoEos => Report::EndOfLoad,
                WorkerToCoordinatorMsg::TaskMetrics(metrics) => Report::Measured(Measures::of(&metrics)),
            };
            responses.send(Kind::Report, vec![encoded(&report)])?;
        }
        Ok::<(), DataFusionError>(())
    };
    responses.end(sent.await.map_err(|error| failure_of(&error)));
}

/// Where the responses to a request go.
struct Responses {
    exchange: Arc<Exchange>,
    memory: Arc<Memory>,
    to: u32,
    lane: u32,
}

impl Responses {
    fn send(&self, kind: Kind, mut parts: Vec<Bytes>) -> Result<Delivery, ExchangeError> {
        parts.insert(0, kind.part());
        Ok(self.exchange.send(self.to, self.lane, parts)?)
    }

    fn end(&self, result: Result<(), Failure>) {
        // A rank that is lost needs no word.
        let _ = match result {
            Ok(()) => self.send(Kind::End, Vec::new()),
            Err(failure) => self.send(Kind::Error, vec![encoded(&self.memory.explain(failure))]),
        };
    }

    fn report_copies(&self, copied: Result<Vec<u32>, Failure>) {
        let sent = copied.and_then(|numbers| {
            let report = vec![encoded(&Report::Copied(numbers))];
            self.send(Kind::Report, report).map_err(|error| error.to_failure())
        });
        self.end(sent.map(drop));
    }

    async fn send_all(&self, batches: Result<SendableRecordBatchStream, Failure>) {
        let sent = match batches {
            Ok(batches) => self.send_batches(batches).await.map_err(|error| failure_of(&error)),
            Err(failure) => Err(failure),
        };
        self.end(sent);
    }

    /// Sends batches; those that are there at once share a message.
    async fn send_batches(&self, batches: SendableRecordBatchStream) -> Result<()> {
        self.send(Kind::Schema, vec![batches::schema_part(&batches.schema())?])?;
        let mut batches = batches.fuse();
        let mut in_flight = InFlight::default();
        while let Some(batch) = batches.next().await {
            let mut parts = batches::to_parts(&batch?)?;
            let mut bytes = bytes_of(&parts);
            while bytes < MESSAGE_BYTES && parts.len() < MESSAGE_PARTS {
                let Some(Some(batch)) = batches.next().now_or_never() else {
                    break;
                };
                let further = batches::to_parts(&batch?)?;
                bytes += bytes_of(&further);
                parts.extend(further);
            }
            in_flight.push(self.send(Kind::Batches, parts)?, bytes);
            in_flight.shrink().await?;
        }
        Ok(())
    }
}

fn bytes_of(parts: &[Bytes]) -> usize {
    parts.iter().map(Bytes::len).sum()
}

/// Messages of a lane that have not left.
#[derive(Default)]
struct InFlight {
    messages: VecDeque<(Delivery, usize)>,
    bytes: usize,
}

impl InFlight {
    fn push(&mut self, message: Delivery, bytes: usize) {
        self.messages.push_back((message, bytes));
        self.bytes += bytes;
    }

    /// Waits until another message may be made.
    async fn shrink(&mut self) -> Result<(), ExchangeError> {
        while self.messages.len() > MIN_IN_FLIGHT && self.bytes > IN_FLIGHT_BYTES {
            let Some((message, bytes)) = self.messages.pop_front() else {
                break;
            };
            message.await?;
            self.bytes -= bytes;
        }
        Ok(())
    }
}
