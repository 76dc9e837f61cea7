//! Joins that stop soon after their query has ended.
//!
//! A task ends where it pauses. DataFusion pauses a task after it has read 128 batches of a leaf, but a join may compute
//! for seconds with these, since each row can have thousands of matches.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result as QueryResult;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::joins::{CrossJoinExec, HashJoinExec, NestedLoopJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::{ChildrenPropertiesMode, ExecutionPlan, ReplaceChildrenOptions};
use datafusion_distributed::{WorkerPlanRewriteEvent, WorkerPlanRewriteEventResponse};
use futures_util::{Stream, StreamExt};

use crate::exchange::unplanned;
use crate::passing::{Passage, PassingExec};

/// Time for which a join computes without a pause, but for the matches of one batch.
const PAUSE_AFTER: Duration = Duration::from_millis(10);

/// The plan of a rank's task, whose joins pause between the batches that they probe.
///
/// # Errors
/// Of DataFusion, if a node refuses its new input.
pub fn with_pauses(task: WorkerPlanRewriteEvent<'_>) -> QueryResult<WorkerPlanRewriteEventResponse> {
    let paused = task.plan.transform_up(|node| {
        let joins = node.is::<HashJoinExec>()
            || node.is::<NestedLoopJoinExec>()
            || node.is::<CrossJoinExec>()
            || node.is::<SortMergeJoinExec>();
        if !joins {
            return Ok(Transformed::no(node));
        }
        // The left side is read as a whole, before the first pair.
        let mut children: Vec<_> = node.children().into_iter().cloned().collect();
        if let Some(probed) = children.pop() {
            children.push(Arc::new(PassingExec::new(probed, Pauses)));
        }
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Keep);
        node.replace_children(children, options).map(Transformed::yes)
    });
    Ok(WorkerPlanRewriteEventResponse::new(paused?.data))
}

/// Pauses now and then.
#[derive(Debug, Clone)]
struct Pauses;

impl Passage for Pauses {
    const NAME: &str = "PauseExec";

    fn metrics(&self) -> Option<MetricsSet> {
        Some(unplanned())
    }

    fn execute(
        &self,
        input: &Arc<dyn ExecutionPlan>,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> QueryResult<SendableRecordBatchStream> {
        Ok(Box::pin(Pausing {
            rows: input.execute(partition, context)?,
            since: None,
        }))
    }
}

/// A stream that is pending now and then.
struct Pausing {
    rows: SendableRecordBatchStream,
    /// When it was first polled after its last pause.
    since: Option<Instant>,
}

impl Stream for Pausing {
    type Item = QueryResult<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() > PAUSE_AFTER {
            self.since = None;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let polled = self.rows.poll_next_unpin(context);
        if polled.is_pending() {
            self.since = None;
        }
        polled
    }
}

impl RecordBatchStream for Pausing {
    fn schema(&self) -> SchemaRef {
        self.rows.schema()
    }
}
