//! Files that stay as they were when the query was planned.
//!
//! A plan has the size and the time of change of each file. A task compares them after the last row of its files: a file
//! that was changed before is an error, and never a mixture of old and new rows.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DataFusionError, Result as QueryResult};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion_distributed::{WorkerPlanRewriteEvent, WorkerPlanRewriteEventResponse};
use dayfly_protocol::error::{Code, Failure};
use futures_util::{StreamExt, TryStreamExt};
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use crate::exchange::unplanned;
use crate::passing::{Passage, PassingExec};
use crate::source::scan_of;

/// Files that a task compares at the same time.
const MAX_COMPARED: usize = 16;

/// The plan of a rank's task, whose scans compare their files.
///
/// # Errors
/// Of DataFusion, if a node refuses its new input.
pub fn with_pins(task: WorkerPlanRewriteEvent<'_>) -> QueryResult<WorkerPlanRewriteEventResponse> {
    let pinned = task.plan.transform_up(|node| {
        Ok(match scan_of(&node).is_some() {
            true => Transformed::yes(Arc::new(PassingExec::new(node, Pins)) as Arc<dyn ExecutionPlan>),
            false => Transformed::no(node),
        })
    });
    Ok(WorkerPlanRewriteEventResponse::new(pinned?.data))
}

/// Compares files after their last row.
#[derive(Debug, Clone)]
struct Pins;

impl Passage for Pins {
    const NAME: &str = "PinnedExec";

    fn metrics(&self) -> Option<MetricsSet> {
        Some(unplanned())
    }

    fn execute(
        &self,
        input: &Arc<dyn ExecutionPlan>,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> QueryResult<SendableRecordBatchStream> {
        let Some(config) = scan_of(input) else {
            return input.execute(partition, context);
        };
        let store = context.runtime_env().object_store(&config.object_store_url)?;
        let files = config.file_groups.get(partition).map_or(&[][..], |group| group.files());
        let planned = files.iter().map(|file| file.object_meta.clone()).collect();
        let rows = input.execute(partition, context)?;
        let schema = rows.schema();
        let files = Files {
            store,
            is_local: config.object_store_url.as_str().starts_with("file:"),
            planned,
        };
        let pinned = futures_util::stream::try_unfold((rows, files), |(mut rows, files)| async move {
            match rows.next().await {
                Some(Ok(batch)) => Ok(Some((batch, (rows, files)))),
                Some(Err(error)) => Err(files.compare().await.err().unwrap_or(error)),
                None => files.compare().await.map(|()| None),
            }
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, pinned)))
    }
}

/// Files of a partition, as they were when the query was planned.
struct Files {
    store: Arc<dyn ObjectStore>,
    is_local: bool,
    planned: Vec<ObjectMeta>,
}

impl Files {
    /// Compares the files with what they are now.
    async fn compare(self) -> QueryResult<()> {
        let (store, is_local) = (&self.store, self.is_local);
        let compared = futures_util::stream::iter(self.planned).map(|planned| async move {
            match store.head(&planned.location).await {
                Ok(found) if is_same(&planned, &found, is_local) => Ok(()),
                Ok(_) => Err(changed(&planned, "was changed")),
                Err(object_store::Error::NotFound { .. }) => Err(changed(&planned, "was removed")),
                Err(error) => Err(error.into()),
            }
        });
        compared.buffer_unordered(MAX_COMPARED).try_collect().await
    }
}

fn is_same(planned: &ObjectMeta, found: &ObjectMeta, is_local: bool) -> bool {
    let (before, now) = (planned.last_modified, found.last_modified);
    let is_as_old = match is_local {
        true => before == now,
        // A bucket lists objects with fractions of a second, and returns one without.
        false => before.timestamp() == now.timestamp(),
    };
    planned.size == found.size && is_as_old
}

fn changed(file: &ObjectMeta, what: &str) -> DataFusionError {
    let message = format!(
        "the file {} {what} while the query was reading it: run the query again",
        file.location
    );
    DataFusionError::External(Box::new(Failure::new(Code::InputChanged, message)))
}
