//! What a rank asks other ranks: to keep plans, and to execute tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::metrics::{Count, ExecutionPlanMetricsSet, MetricBuilder};
use datafusion_distributed::{
    ChannelResolver, CoordinatorToWorkerMsg, DistributedConfig, ExecuteTaskRequest, GetWorkerInfoRequest,
    GetWorkerInfoResponse, MaybeEncoded, SetPlanRequest, WorkerChannel, WorkerToCoordinatorMsg,
};
use dayfly_comm::post::PostError;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use http::HeaderMap;
use url::Url;

use super::batches;
use super::error::ExchangeError;
use super::measures::Measures;
use super::reader::Reader;
use super::requests::{Execute, Key, Plan, Report, Request, Unit, encoded};
use super::server::Kind;
use super::{Exchange, REQUESTS, Recovering, rank_of};
use crate::kept::{FrameId, Location};
use crate::label::Label;

/// Name of the bytes that an exchange receives, among the measures of its node.
pub const RECEIVED_BYTES: &str = "received_bytes";

/// The address of every task that keeps its output.
const KEPT_ADDRESS: &str = "kept://output/";

/// Channels to the ranks of an exchange.
pub struct RankChannels(Arc<Exchange>);

impl RankChannels {
    /// Channels from this end of the exchange.
    pub fn new(exchange: &Arc<Exchange>) -> Self {
        Self(Arc::clone(exchange))
    }
}

#[async_trait]
impl ChannelResolver for RankChannels {
    async fn get_worker_client_for_url(&self, url: &Url) -> Result<Box<dyn WorkerChannel>> {
        let rank = rank_of(url).filter(|rank| *rank < self.0.size());
        let rank = rank.ok_or_else(|| ExchangeError::Address(url.to_string()))?;
        Ok(Box::new(RankChannel::new(&self.0, rank)))
    }
}

/// A channel to one rank.
pub struct RankChannel {
    exchange: Arc<Exchange>,
    rank: u32,
}

#[async_trait]
impl WorkerChannel for RankChannel {
    async fn coordinator_channel(
        &mut self,
        headers: HeaderMap,
        request: SetPlanRequest,
        mut units: BoxStream<'static, CoordinatorToWorkerMsg>,
        _metrics: ExecutionPlanMetricsSet,
        context: &Arc<TaskContext>,
    ) -> Result<BoxStream<'static, Result<WorkerToCoordinatorMsg>>> {
        let lane = Lane::new(&self.exchange, self.rank, 1).remove(0);
        let key = request.task_key;
        let recovering = context.session_config().get_extension::<Recovering>();
        let stage = match (&recovering, &request.plan) {
            (Some(_), MaybeEncoded::Decoded(stage)) => Some(Arc::clone(stage)),
            _ => None,
        };
        let mut plan = Plan::of(&headers, request, context)?;
        if stage.is_some() {
            // No rank's own: a rank would read the outputs of its own tasks past the exchange, and not keep them.
            plan.address = KEPT_ADDRESS.into();
        }
        self.ask(&Request::Plan {
            lane: lane.number,
            plan: plan.clone(),
        })?;
        let label = context.session_config().get_extension::<Label>();
        self.exchange.queries().begin(key, self.rank, label);
        let reports = self.exchange.recoveries().begin(plan, self.rank, lane.number, stage);
        let exchange = Arc::clone(&self.exchange);
        tokio::spawn(async move {
            while let Some(message) = units.next().await {
                let message = match message {
                    CoordinatorToWorkerMsg::WorkUnitBatch(batch) => Some(Unit::all_of(batch)),
                    CoordinatorToWorkerMsg::WorkUnitEos => None,
                };
                exchange.recoveries().add_units(&exchange, Key::of(key), message);
            }
            exchange.recoveries().end(&exchange, Key::of(key));
            exchange.queries().forget_plan(key);
        });
        let is_measured = DistributedConfig::from_config_options(context.session_config().options())?.collect_metrics;
        // A task that does not run, since a limit is reached, reports no measures. The library would wait for them.
        let missing = Arc::new(AtomicBool::new(is_measured));
        let is_missing = Arc::clone(&missing);
        let exchange = Arc::clone(&self.exchange);
        let reports = reports.stream(lane, move |parts| {
            let report: Report =
                rmp_serde::from_slice(parts.first().map_or(&[][..], |part| part)).map_err(|error| error.to_string())?;
            Ok(match report {
                Report::Load(load) => WorkerToCoordinatorMsg::LoadInfo(load.decoded()),
                Report::EndOfLoad => WorkerToCoordinatorMsg::LoadInfoEos,
                Report::Measured(measures) => {
                    missing.store(false, Ordering::Relaxed);
                    exchange.queries().end(key, measures.work());
                    WorkerToCoordinatorMsg::TaskMetrics(measures.decoded())
                }
                Report::Place(_) | Report::Cuts(_) | Report::Copied(_) => {
                    return Err("what is no report of a task".into());
                }
            })
        });
        let last = stream::once(async move {
            let none = || Ok(WorkerToCoordinatorMsg::TaskMetrics(Measures::default().decoded()));
            is_missing.load(Ordering::Relaxed).then(none)
        });
        Ok(reports.chain(last.filter_map(std::future::ready)).boxed())
    }

    async fn execute_task(
        &mut self,
        _headers: HeaderMap,
        request: ExecuteTaskRequest,
        metrics: ExecutionPlanMetricsSet,
        context: &Arc<TaskContext>,
    ) -> Result<Vec<BoxStream<'static, Result<RecordBatch>>>> {
        let execute = Execute::of(request, context)?;
        let count = execute.count().ok_or_else(|| {
            DataFusionError::Internal(format!("partitions from {} to {} of a task", execute.from, execute.to))
        })?;
        if count == 0 {
            return Ok(Vec::new());
        }
        let received = MetricBuilder::new(&metrics).global_counter(RECEIVED_BYTES);
        if let Some(recovering) = context.session_config().get_extension::<Recovering>() {
            let reader = Reader {
                exchange: Arc::clone(&self.exchange),
                recovering,
                environment: context.runtime_env(),
                execute,
                rank: self.rank,
                received,
            };
            return Ok(reader.into_partitions(count));
        }
        let lanes = Lane::new(&self.exchange, self.rank, count);
        let lane = lanes[0].number;
        self.ask(&Request::Execute { lane, execute })?;
        let batches = lanes.into_iter().map(|mut lane| {
            lane.received = received.clone();
            lane.into_batches()
        });
        Ok(batches.collect())
    }

    async fn get_worker_info(&mut self, _request: GetWorkerInfoRequest) -> Result<GetWorkerInfoResponse> {
        Ok(GetWorkerInfoResponse {
            version: env!("CARGO_PKG_VERSION").into(),
        })
    }
}

impl RankChannel {
    pub fn new(exchange: &Arc<Exchange>, rank: u32) -> Self {
        Self {
            exchange: Arc::clone(exchange),
            rank,
        }
    }

    pub fn ask(&self, request: &Request) -> Result<()> {
        let sent = self.exchange.send(self.rank, REQUESTS, vec![encoded(request)]);
        sent.map(drop).map_err(|error| ExchangeError::from(error).into())
    }
}

/// Rows that another rank keeps.
pub fn kept_rows(
    exchange: &Arc<Exchange>,
    rank: u32,
    id: FrameId,
    number: u32,
) -> BoxStream<'static, Result<RecordBatch>> {
    let channel = RankChannel::new(exchange, rank);
    let lane = Lane::new(exchange, rank, 1).remove(0);
    let lane_number = lane.number;
    let asked = channel.ask(&Request::Kept {
        lane: lane_number,
        id,
        number,
    });
    match asked {
        Ok(()) => lane.into_batches(),
        Err(error) => stream::once(async { Err(error) }).boxed(),
    }
}

/// Has a rank copy kept rows of other ranks. Returns the numbers of its copies, in the order of `parts`.
///
/// # Errors
/// If a rank is lost, or has no room for them.
pub async fn copied_parts(exchange: &Arc<Exchange>, rank: u32, id: FrameId, parts: Vec<Location>) -> Result<Vec<u32>> {
    let lane = Lane::new(exchange, rank, 1).remove(0);
    RankChannel::new(exchange, rank).ask(&Request::Copy {
        lane: lane.number,
        id,
        parts,
    })?;
    let mut numbers =
        lane.into_stream(
            |parts| match rmp_serde::from_slice(parts.first().map_or(&[][..], |part| part)) {
                Ok(Report::Copied(numbers)) => Ok(numbers),
                Ok(_) => Err("no numbers of copies".to_owned()),
                Err(error) => Err(error.to_string()),
            },
        );
    let numbers = numbers.next().await;
    numbers.unwrap_or_else(|| Err(DataFusionError::Internal(format!("rank {rank} reports no copies"))))
}

/// One of the lanes of a request. Dropped before its end, it cancels what it brings.
pub struct Lane {
    exchange: Arc<Exchange>,
    rank: u32,
    number: u32,
    has_ended: bool,
    /// Bytes of the batches so far.
    received: Count,
}

impl Lane {
    pub fn new(exchange: &Arc<Exchange>, rank: u32, count: u32) -> Vec<Self> {
        let first = exchange.lanes(count);
        let lanes = (first..first + count).map(|number| Self {
            exchange: Arc::clone(exchange),
            rank,
            number,
            has_ended: false,
            received: Count::new(),
        });
        lanes.collect()
    }

    pub fn number(&self) -> u32 {
        self.number
    }

    /// The rank whose messages it takes.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The next message; `None` after the last one.
    pub async fn next(&mut self) -> Result<Option<(Kind, Vec<Bytes>)>, ExchangeError> {
        let rank = self.rank;
        let violation = |what: &str| ExchangeError::Violation {
            rank,
            what: what.into(),
        };
        loop {
            let message = match self.exchange.post.next(self.number, None).await {
                Ok(message) => message,
                Err(PostError::PeerLost { rank: lost, reason }) => {
                    // Before the next query, or the next run of this one, is planned.
                    self.exchange.recoveries().lose(lost, &reason);
                    if lost != rank {
                        continue;
                    }
                    self.has_ended = true;
                    return Err(PostError::PeerLost { rank, reason }.into());
                }
                Err(error) => {
                    self.has_ended = true;
                    return Err(error.into());
                }
            };
            if message.from() != self.rank {
                continue;
            }
            let mut parts = message.into_parts();
            if parts.is_empty() {
                return Err(violation("an empty message"));
            }
            let kind = parts.remove(0);
            let kind = Kind::of(&kind).ok_or_else(|| violation("a message of an unknown kind"))?;
            match kind {
                Kind::End => {
                    self.has_ended = true;
                    return Ok(None);
                }
                Kind::Error => {
                    self.has_ended = true;
                    let failure = parts.first().and_then(|part| rmp_serde::from_slice(part).ok());
                    let failure = failure.ok_or_else(|| violation("a failure that cannot be read"))?;
                    return Err(ExchangeError::Task { rank, failure });
                }
                _ => return Ok(Some((kind, parts))),
            }
        }
    }

    /// Reads each message.
    pub fn into_stream<T: Send + 'static>(
        self,
        read: impl Fn(Vec<Bytes>) -> Result<T, String> + Send + Sync + 'static,
    ) -> BoxStream<'static, Result<T>> {
        let stream = stream::unfold((Some(self), read), |(lane, read)| async move {
            let mut lane = lane?;
            let rank = lane.rank;
            match lane.next().await {
                Ok(None) => None,
                Ok(Some((_, parts))) => match read(parts) {
                    Ok(item) => Some((Ok(item), (Some(lane), read))),
                    Err(what) => Some((Err(ExchangeError::Violation { rank, what }.into()), (None, read))),
                },
                Err(error) => Some((Err(error.into()), (None, read))),
            }
        });
        stream.boxed()
    }

    /// Its batches, whose bytes it counts. The schema comes first.
    fn into_batches(self) -> BoxStream<'static, Result<RecordBatch>> {
        let messages = stream::unfold((Some(self), None), |(lane, schema)| async move {
            let mut lane = lane?;
            let (batches, schema) = match lane.next_batches(schema).await {
                Ok(Some((batches, schema, bytes))) => {
                    lane.received.add(bytes);
                    (batches, schema)
                }
                Ok(None) => return None,
                Err(error) => return Some((vec![Err(error.into())], (None, None))),
            };
            Some((batches.into_iter().map(Ok).collect(), (Some(lane), Some(schema))))
        });
        messages.flat_map(stream::iter).boxed()
    }

    /// The batches of the next message that has some, their schema, and their bytes; `None` after the last one.
    pub async fn next_batches(
        &mut self,
        mut schema: Option<SchemaRef>,
    ) -> Result<Option<(Vec<RecordBatch>, SchemaRef, usize)>, ExchangeError> {
        let rank = self.rank;
        let violation = |what: String| ExchangeError::Violation { rank, what };
        loop {
            let Some((kind, parts)) = self.next().await? else {
                return Ok(None);
            };
            if kind == Kind::Schema {
                schema = Some(batches::schema_of(&parts).map_err(|error| violation(error.to_string()))?);
                continue;
            }
            let known = schema.ok_or_else(|| violation("a batch before its schema".into()))?;
            let found = batches::from_parts(&parts, &known).map_err(|error| violation(error.to_string()))?;
            return Ok(Some((found, known, parts.iter().map(Bytes::len).sum())));
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if !self.has_ended {
            let cancel = encoded(&Request::Cancel { lane: self.number });
            // A rank that is lost needs no word.
            let _ = self.exchange.send(self.rank, REQUESTS, vec![cancel]);
        }
        self.exchange.post.end_lane(self.number);
    }
}
