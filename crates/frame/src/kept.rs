//! Frames that stay in the memory of the ranks: computed once, and read by later queries where they lie.

mod copies;
mod description;
mod node;
mod read;
mod store;

use std::fmt;
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use datafusion::arrow::array::{RecordBatch, UInt32Array, UInt64Array};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{Result as QueryResult, internal_err};
use datafusion::datasource::provider_as_source;
use datafusion::execution::context::SessionContext;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, TableType};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::common::collect;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::exchange::Exchange;
use crate::operation::applied;
use crate::usage::begin;
pub use copies::take;
pub use description::{KeptFrame, fingerprint};
pub use node::{Keep, KeepExec};
pub use read::{KeptExec, Rows, desired_tasks, divided, routed};
pub use store::Store;

/// Name of a kept frame.
pub type FrameId = [u8; 16];

/// Where rows of a frame are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Location {
    /// The rank that has them.
    pub rank: u32,
    /// Their number among the rank's parts of the frame.
    pub number: u32,
}

/// Rows that one task kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Where they are read.
    pub location: Location,
    /// Where the same rows are too.
    pub copies: Vec<Location>,
    pub rows: u64,
    pub bytes: u64,
}

impl Part {
    /// The same rows, read on a rank that is left, if one of them has a copy.
    fn on_ranks(&self, left: &[u32]) -> Self {
        let mut part = self.clone();
        if !left.contains(&part.location.rank)
            && let Some(copy) = part.copies.iter_mut().find(|copy| left.contains(&copy.rank))
        {
            std::mem::swap(&mut part.location, copy);
        }
        part
    }
}

/// A kept frame, as its session knows it. The ranks forget it with the last plan that reads it.
pub struct Kept {
    id: FrameId,
    parts: Vec<Part>,
    /// Ends with its session, which kept frames may outlive.
    exchange: Weak<Exchange>,
}

impl Kept {
    /// A frame whose parts are not known yet. Its end has the ranks forget what they have of it.
    fn new(id: FrameId, exchange: &Arc<Exchange>) -> Self {
        exchange.remember();
        Self {
            id,
            parts: Vec::new(),
            exchange: Arc::downgrade(exchange),
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(exchange) = self.exchange.upgrade() {
            exchange.forget(self.id);
        }
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a kept frame of {} parts", self.parts.len())
    }
}

/// Computes a plan, has so many ranks keep each of its rows, and returns a plan that reads them.
pub async fn persist(
    context: &SessionContext,
    plan: LogicalPlan,
    exchange: &Arc<Exchange>,
    replicas: usize,
) -> QueryResult<LogicalPlan> {
    let left = exchange.left();
    copies::check(replicas, left.len())?;
    let schema = Arc::new(plan.schema().as_arrow().clone());
    let mut kept = Kept::new(Uuid::new_v4().into_bytes(), exchange);
    let plan = applied(Keep(kept.id), plan)?;
    let (_, rows, _) = begin(context, plan).await?;
    for batch in collect(rows).await? {
        kept.parts.extend(parts_of(&batch)?);
    }
    kept.parts
        .sort_by_key(|part| (part.location.rank, part.location.number));
    copies::copy(exchange, kept.id, &mut kept.parts, &left, replicas).await?;
    reading(schema, kept)
}

/// A plan that reads a kept frame.
fn reading(schema: SchemaRef, kept: Kept) -> QueryResult<LogicalPlan> {
    let table = KeptTable {
        schema,
        kept: Arc::new(kept),
    };
    LogicalPlanBuilder::scan("kept", provider_as_source(Arc::new(table)), None)?.build()
}

fn parts_of(batch: &RecordBatch) -> QueryResult<Vec<Part>> {
    let column = |index: usize| batch.column(index).as_any();
    let (Some(ranks), Some(numbers), Some(rows), Some(bytes)) = (
        column(0).downcast_ref::<UInt32Array>(),
        column(1).downcast_ref::<UInt32Array>(),
        column(2).downcast_ref::<UInt64Array>(),
        column(3).downcast_ref::<UInt64Array>(),
    ) else {
        return internal_err!("ranks report what they keep in other columns");
    };
    let parts = (0..batch.num_rows()).map(|row| Part {
        location: Location {
            rank: ranks.value(row),
            number: numbers.value(row),
        },
        copies: Vec::new(),
        rows: rows.value(row),
        bytes: bytes.value(row),
    });
    Ok(parts.collect())
}

#[derive(Debug)]
struct KeptTable {
    schema: SchemaRef,
    kept: Arc<Kept>,
}

#[async_trait]
impl TableProvider for KeptTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        _: &[Expr],
        _: Option<usize>,
    ) -> QueryResult<Arc<dyn ExecutionPlan>> {
        let parts = match self.kept.exchange.upgrade() {
            Some(exchange) => {
                let left = exchange.left();
                self.kept.parts.iter().map(|part| part.on_ranks(&left)).collect()
            }
            None => self.kept.parts.clone(),
        };
        let rows = Rows {
            id: self.kept.id,
            parts,
            schema: Arc::clone(&self.schema),
            projection: projection.cloned(),
            partitions: session.config().target_partitions(),
        };
        Ok(Arc::new(KeptExec::new(rows, Some(Arc::clone(&self.kept)))?))
    }
}
