//! Readers of tasks that keep their outputs: they take all of a run or nothing, and find the next run of a lost task.

use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::arrow::array::RecordBatch;
use datafusion::common::{DataFusionError, Result, internal_datafusion_err};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::physical_plan::metrics::Count;
use dayfly_comm::post::PostError;
use dayfly_protocol::error::Code;
use futures_util::stream::BoxStream;
use futures_util::{FutureExt, StreamExt, TryStreamExt};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::channel::{Lane, RankChannel};
use super::error::ExchangeError;
use super::held::{Held, Holder};
use super::requests::{Execute, Report, Request};
use super::{Exchange, Recovering};
use crate::error::failure_of;
use crate::recover::Place;

/// Longest time until the session has sent a task whose rank is lost. The library waits as long for a plan.
const MAX_PLAN_TIME: Duration = Duration::from_secs(10);
/// Pause before the session is asked again for such a task.
const PLAN_PAUSE: Duration = Duration::from_millis(10);

/// Why a reader asks for another run although the rank of the last one is there.
const SUPERSEDED: &str = "another run has begun";

/// One reader of some partitions of a task.
pub struct Reader {
    pub exchange: Arc<Exchange>,
    pub recovering: Arc<Recovering>,
    pub environment: Arc<RuntimeEnv>,
    pub execute: Execute,
    /// The rank that the plan names.
    pub rank: u32,
    pub received: Count,
}

impl Reader {
    /// The partitions. Each begins when all are there.
    pub fn into_partitions(self, count: u32) -> Vec<BoxStream<'static, Result<RecordBatch>>> {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..count).map(|_| oneshot::channel()).unzip();
        // Ends with the last of the partitions that hold it.
        let mut reading = JoinSet::new();
        reading.spawn(async move {
            match self.read().await {
                Ok(held) => {
                    for (sender, held) in senders.into_iter().zip(held) {
                        // Who has left takes nothing.
                        let _ = sender.send(Ok(held));
                    }
                }
                Err(error) => {
                    let error = Arc::new(error);
                    for sender in senders {
                        let _ = sender.send(Err(DataFusionError::Shared(Arc::clone(&error))));
                    }
                }
            }
        });
        let reading = Arc::new(reading);
        let partitions = receivers.into_iter().map(|receiver| {
            let reading = Arc::clone(&reading);
            let rows = async move {
                let held: Result<Arc<Held>> = receiver
                    .await
                    .map_err(|_| internal_datafusion_err!("the reader of a task has ended"))?;
                drop(reading);
                held?.rows()
            };
            rows.into_stream().try_flatten().boxed()
        });
        partitions.collect()
    }

    async fn read(&self) -> Result<Vec<Arc<Held>>> {
        let mut place = Place {
            rank: self.rank,
            attempt: 0,
        };
        loop {
            let cause = match self.read_from(place).await {
                Ok(held) if self.may_keep(place) => return Ok(held),
                Ok(_) => SUPERSEDED.to_owned(),
                Err(error) => cause_of_loss(&error, place.rank).ok_or(error)?,
            };
            place = self.moved(place, cause).await?;
        }
    }

    /// Whether the session may keep what it has read. Other readers run again if they may not.
    fn may_keep(&self, place: Place) -> bool {
        let is_session = self.recovering.session == self.exchange.rank();
        !is_session || self.exchange.recoveries().keep(self.execute.key, place)
    }

    /// All partitions of a run.
    async fn read_from(&self, place: Place) -> Result<Vec<Arc<Held>>> {
        let channel = RankChannel::new(&self.exchange, place.rank);
        let mut execute = self.execute.clone();
        execute.attempt = Some(place.attempt);
        let count = execute.count().unwrap_or(0);
        let lanes = Lane::new(&self.exchange, place.rank, count);
        let Some(first) = lanes.first() else {
            return Ok(Vec::new());
        };
        channel.ask(&Request::Execute {
            lane: first.number(),
            execute,
        })?;
        let mut reading = JoinSet::new();
        for (number, lane) in lanes.into_iter().enumerate() {
            let (environment, received) = (Arc::clone(&self.environment), self.received.clone());
            reading.spawn(async move { Ok((number, held(lane, &environment, &received).await?)) });
        }
        let mut partitions = Vec::with_capacity(reading.len());
        while let Some(partition) = reading.join_next().await {
            let partition: Result<_> = partition.map_err(|error| DataFusionError::ExecutionJoin(Box::new(error)))?;
            partitions.push(partition?);
        }
        partitions.sort_unstable_by_key(|(number, _)| *number);
        Ok(partitions.into_iter().map(|(_, held)| held).collect())
    }

    /// Where the next run of a lost one is. A rank may be lost before the session has sent it the task.
    async fn moved(&self, seen: Place, cause: String) -> Result<Place> {
        let deadline = Instant::now() + MAX_PLAN_TIME;
        loop {
            match self.ask_place(seen, cause.clone()).await {
                Err(error) if failure_of(&error).code == Code::NotFound && Instant::now() < deadline => {
                    tokio::time::sleep(PLAN_PAUSE).await;
                }
                place => return place,
            }
        }
    }

    async fn ask_place(&self, seen: Place, cause: String) -> Result<Place> {
        let (session, key) = (self.recovering.session, self.execute.key);
        if session == self.exchange.rank() {
            let moved = self.exchange.recoveries().moved(&self.exchange, key, seen, &cause);
            return moved.map_err(|failure| DataFusionError::External(failure.into()));
        }
        let lane = Lane::new(&self.exchange, session, 1).remove(0);
        RankChannel::new(&self.exchange, session).ask(&Request::Moved {
            lane: lane.number(),
            key,
            seen,
            cause,
        })?;
        let mut places =
            lane.into_stream(
                |parts| match rmp_serde::from_slice(parts.first().map_or(&[][..], |part| part)) {
                    Ok(Report::Place(place)) => Ok(place),
                    Ok(_) => Err("another report than a place".to_owned()),
                    Err(error) => Err(error.to_string()),
                },
            );
        let place = places.next().await;
        let place = place.map(|place| place.map_err(of_session));
        place.unwrap_or_else(|| Err(internal_datafusion_err!("the session names no place of a lost task")))
    }
}

/// All rows of a lane.
async fn held(mut lane: Lane, environment: &Arc<RuntimeEnv>, received: &Count) -> Result<Arc<Held>> {
    let (mut schema, mut holder) = (None, None);
    while let Some((batches, known, bytes)) = lane.next_batches(schema).await? {
        received.add(bytes);
        let holder = holder.get_or_insert_with(|| Holder::new(environment, Arc::clone(&known), "task input"));
        // Those of a message share its memory.
        let shares = std::iter::once(bytes).chain(std::iter::repeat(0));
        for (batch, bytes) in batches.into_iter().zip(shares) {
            holder.push(batch, bytes)?;
        }
        schema = Some(known);
    }
    let empty = || {
        Holder::new(
            environment,
            Arc::new(datafusion::arrow::datatypes::Schema::empty()),
            "task input",
        )
    };
    holder.unwrap_or_else(empty).finish().map(Arc::new)
}

/// The failure of a query as the session reports it, without the number of the session's rank.
fn of_session(error: DataFusionError) -> DataFusionError {
    let DataFusionError::External(cause) = &error else {
        return error;
    };
    match cause.downcast_ref::<ExchangeError>() {
        Some(ExchangeError::Task { failure, .. }) => DataFusionError::External(failure.clone().into()),
        _ => error,
    }
}

/// Why a rank is lost, if that is the error.
fn cause_of_loss(error: &DataFusionError, of: u32) -> Option<String> {
    let DataFusionError::External(cause) = error.find_root() else {
        return None;
    };
    match cause.downcast_ref::<ExchangeError>()? {
        ExchangeError::Post(PostError::PeerLost { rank, reason }) if *rank == of => Some(reason.clone()),
        ExchangeError::Task { rank, failure } if *rank == of && failure.code == Code::Cancelled => {
            Some(SUPERSEDED.to_owned())
        }
        ExchangeError::Post(error @ PostError::PeerClosed { rank }) if *rank == of => Some(error.to_string()),
        _ => None,
    }
}
