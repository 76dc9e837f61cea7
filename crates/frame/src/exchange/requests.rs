//! What ranks ask of each other, in MessagePack.

use bytes::Bytes;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion_distributed::{
    ExecuteTaskRequest, LoadInfo, MaybeEncoded, ProducerHead, SetPlanRequest, TaskKey, WorkUnitBatch,
    WorkUnitFeedDeclaration, WorkUnitMsg,
};
use http::{HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use url::Url;
use uuid::Uuid;

use super::measures::Measures;
use super::samples::Part;
use crate::kept::{FrameId, Location};
use crate::ranges::Cuts;
use crate::recover::Place;

/// Where a key of a run has its number, in that of the stage.
const ATTEMPT_SHIFT: u32 = 32;

/// A request to a rank. `lane` and the lanes after it are those of its sender.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Keeps a task's plan. Responses: [`Report`]s.
    Plan { lane: u32, plan: Plan },
    /// Further units of work for the task of a plan.
    Units { lane: u32, units: Vec<Unit> },
    /// No further units of work.
    EndOfUnits { lane: u32 },
    /// Another run of the plan's task has begun: nobody may read this one any more.
    Supersede { lane: u32 },
    /// The query has ended.
    EndOfPlan { lane: u32 },
    /// Executes partitions of a task, the first of them on `lane`.
    Execute { lane: u32, execute: Execute },
    /// Of a reader, to the rank of the session: this run of a task is lost. Response: a [`Report::Place`].
    Moved {
        lane: u32,
        key: Key,
        seen: Place,
        cause: String,
    },
    /// To the rank that cuts the ranges of a sort: the sample of a part. Response: [`Report::Cuts`].
    Sample { lane: u32, part: Part },
    /// Sends kept rows.
    Kept { lane: u32, id: FrameId, number: u32 },
    /// Copies kept rows of other ranks. Response: [`Report::Copied`].
    Copy {
        lane: u32,
        id: FrameId,
        parts: Vec<Location>,
    },
    /// Nobody reads a kept frame any more.
    Forget { id: FrameId },
    /// Nobody wants what comes on this lane.
    Cancel { lane: u32 },
    /// To the rank of the session, once: the sender takes requests.
    Ready,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Key {
    query: [u8; 16],
    stage: u64,
    task: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Plan {
    pub headers: Vec<(String, Vec<u8>)>,
    pub key: Key,
    /// The number of its run, from 0.
    pub attempt: u32,
    task_count: u64,
    plan: Vec<u8>,
    feeds: Vec<([u8; 16], u64)>,
    pub address: String,
    query_start_ns: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Unit {
    feed: [u8; 16],
    partition: u64,
    body: Vec<u8>,
    created_ns: u64,
    sent_ns: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Execute {
    pub key: Key,
    pub from: u64,
    pub to: u64,
    head: Head,
    /// The run of the task whose kept output is read; `None` for rows as they are made, of a task without a second run.
    pub attempt: Option<u32>,
}

/// What stands above the task's own plan.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum Head {
    None,
    Broadcast { partitions: u64 },
    Repartition { partitioning: Vec<u8>, partitions: u64 },
}

/// What a task reports to the rank that planned it.
#[derive(Debug, Serialize, Deserialize)]
pub enum Report {
    Load(Load),
    EndOfLoad,
    Measured(Measures),
    /// Where a task's output is.
    Place(Place),
    /// The ranges of a sort.
    Cuts(Cuts),
    /// The numbers of copies.
    Copied(Vec<u32>),
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Load {
    partition: u64,
    rows: u64,
    column_bytes: Vec<u64>,
    distinct: Vec<f32>,
    nulls: Vec<f32>,
    leaf_rows: u64,
    is_complete: bool,
}

/// Encodes a message of this module.
pub fn encoded(message: &impl Serialize) -> Bytes {
    rmp_serde::to_vec(message).expect("plain data is encoded").into()
}

impl Key {
    pub fn of(key: TaskKey) -> Self {
        Self {
            query: *key.query_id.as_bytes(),
            stage: key.stage_id as u64,
            task: key.task_number as u64,
        }
    }

    pub fn decoded(self) -> TaskKey {
        TaskKey {
            query_id: Uuid::from_bytes(self.query),
            stage_id: self.stage as usize,
            task_number: self.task as usize,
        }
    }

    pub fn query(self) -> [u8; 16] {
        self.query
    }

    /// The key of another task of the query.
    pub fn of_task(self, stage: usize, task: usize) -> Self {
        Self {
            stage: stage as u64,
            task: task as u64,
            ..self
        }
    }

    /// The key of a run. A worker takes a key once only.
    pub fn of_run(self, attempt: u32) -> Self {
        Self {
            stage: self.stage | u64::from(attempt) << ATTEMPT_SHIFT,
            ..self
        }
    }
}

impl Plan {
    /// Encodes the request for a plan.
    pub fn of(headers: &HeaderMap, request: SetPlanRequest, context: &Arc<TaskContext>) -> Result<Self> {
        let headers = headers.iter();
        let feeds = request.work_unit_feed_declarations.into_iter();
        Ok(Self {
            headers: headers
                .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
                .collect(),
            key: Key::of(request.task_key),
            attempt: 0,
            task_count: request.task_count as u64,
            plan: request.plan.encode(context)?,
            feeds: feeds
                .map(|feed| (*feed.id.as_bytes(), feed.partitions as u64))
                .collect(),
            address: request.target_worker_url.to_string(),
            query_start_ns: request.query_start_time_ns as u64,
        })
    }

    /// The request for a plan, and its headers.
    pub fn decoded(self) -> Result<(HeaderMap, SetPlanRequest)> {
        let external = |error: &dyn std::fmt::Display| DataFusionError::Execution(error.to_string());
        let mut headers = HeaderMap::new();
        for (name, value) in self.headers {
            let name = HeaderName::try_from(name).map_err(|error| external(&error))?;
            headers.insert(name, HeaderValue::try_from(value).map_err(|error| external(&error))?);
        }
        let feeds = self.feeds.into_iter().map(|(id, partitions)| WorkUnitFeedDeclaration {
            id: Uuid::from_bytes(id),
            partitions: partitions as usize,
        });
        let request = SetPlanRequest {
            task_key: self.key.of_run(self.attempt).decoded(),
            task_count: self.task_count as usize,
            plan: MaybeEncoded::Encoded(self.plan),
            work_unit_feed_declarations: feeds.collect(),
            target_worker_url: Url::parse(&self.address).map_err(|error| external(&error))?,
            query_start_time_ns: self.query_start_ns as usize,
        };
        Ok((headers, request))
    }
}

impl Execute {
    /// Encodes the request to execute a task.
    pub fn of(request: ExecuteTaskRequest, context: &Arc<TaskContext>) -> Result<Self> {
        Ok(Self {
            key: Key::of(request.task_key),
            from: request.target_partition_start as u64,
            to: request.target_partition_end as u64,
            head: match request.producer_head {
                ProducerHead::None => Head::None,
                ProducerHead::BroadcastExec { output_partitions } => Head::Broadcast {
                    partitions: output_partitions as u64,
                },
                ProducerHead::RepartitionExec { partitioning } => Head::Repartition {
                    partitions: match &partitioning {
                        MaybeEncoded::Decoded(partitioning) => partitioning.partition_count() as u64,
                        MaybeEncoded::Encoded(_) => 0,
                    },
                    partitioning: partitioning.encode(context)?,
                },
            },
            attempt: None,
        })
    }

    /// The request to execute no partition of a task that does not exist.
    pub fn of_nothing() -> ExecuteTaskRequest {
        ExecuteTaskRequest {
            task_key: TaskKey {
                query_id: Uuid::nil(),
                stage_id: 0,
                task_number: 0,
            },
            target_partition_start: 0,
            target_partition_end: 0,
            producer_head: ProducerHead::None,
        }
    }

    /// The request for all partitions of the task that differ. Each reader of a broadcast has the same ones.
    pub fn whole(&self) -> Self {
        let to = match &self.head {
            Head::None => self.to,
            Head::Broadcast { .. } => self.to.saturating_sub(self.from),
            Head::Repartition { partitions, .. } => (*partitions).max(self.to),
        };
        Self {
            from: 0,
            to,
            ..self.clone()
        }
    }

    /// Number of partitions.
    pub fn count(&self) -> Option<u32> {
        u32::try_from(self.to.checked_sub(self.from)?).ok()
    }

    /// The request to execute a task.
    pub fn decoded(self) -> ExecuteTaskRequest {
        ExecuteTaskRequest {
            task_key: self.key.of_run(self.attempt.unwrap_or(0)).decoded(),
            target_partition_start: self.from as usize,
            target_partition_end: self.to as usize,
            producer_head: match self.head {
                Head::None => ProducerHead::None,
                Head::Broadcast { partitions } => ProducerHead::BroadcastExec {
                    output_partitions: partitions as usize,
                },
                Head::Repartition { partitioning, .. } => ProducerHead::RepartitionExec {
                    partitioning: MaybeEncoded::Encoded(partitioning),
                },
            },
        }
    }
}

impl Unit {
    /// Encodes units of work.
    pub fn all_of(batch: WorkUnitBatch) -> Vec<Self> {
        let units = batch.batch.into_iter().map(|unit| Self {
            feed: *unit.id.as_bytes(),
            partition: unit.partition as u64,
            body: match unit.body {
                MaybeEncoded::Encoded(body) => body,
                MaybeEncoded::Decoded(body) => body.encode_to_bytes(),
            },
            created_ns: unit.created_timestamp_unix_nanos as u64,
            sent_ns: unit.sent_timestamp_unix_nanos as u64,
        });
        units.collect()
    }

    /// Units of work.
    pub fn batch_of(units: Vec<Self>) -> WorkUnitBatch {
        let units = units.into_iter().map(|unit| WorkUnitMsg {
            id: Uuid::from_bytes(unit.feed),
            partition: unit.partition as usize,
            body: MaybeEncoded::Encoded(unit.body),
            created_timestamp_unix_nanos: unit.created_ns as usize,
            sent_timestamp_unix_nanos: unit.sent_ns as usize,
            received_timestamp_unix_nanos: 0,
            processed_timestamp_unix_nanos: 0,
        });
        WorkUnitBatch { batch: units.collect() }
    }
}

impl Load {
    pub fn of(load: LoadInfo) -> Self {
        Self {
            partition: load.partition as u64,
            rows: load.rows_ready as u64,
            column_bytes: load.per_column_bytes_ready.iter().map(|bytes| *bytes as u64).collect(),
            distinct: load.per_column_ndv_percentage,
            nulls: load.per_column_null_percentage,
            leaf_rows: load.rows_pulled_from_leaf as u64,
            is_complete: load.reached_eos,
        }
    }

    pub fn decoded(self) -> LoadInfo {
        LoadInfo {
            partition: self.partition as usize,
            rows_ready: self.rows as usize,
            per_column_bytes_ready: self.column_bytes.iter().map(|bytes| *bytes as usize).collect(),
            per_column_ndv_percentage: self.distinct,
            per_column_null_percentage: self.nulls,
            rows_pulled_from_leaf: self.leaf_rows as usize,
            reached_eos: self.is_complete,
        }
    }
}
