//! Writing: a plan node by which every rank writes its own rows as files.
//!
//! A write is visible as a whole or not at all: each file has the name of its run, and the manifest, which names all
//! files, comes last. A directory that holds anything is refused, and a failed run removes its files.

mod encoder;
mod files;
mod manifest;
mod node;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use datafusion::arrow::array::{Array, StringArray, UInt64Array};
use datafusion::arrow::datatypes::Schema;
use datafusion::common::{DataFusionError, Result as QueryResult, plan_err};
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::common::collect;
use datafusion::prelude::{DataFrame, SessionContext};
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use uuid::Uuid;

use crate::exchange::Policy;
use crate::operation::applied;
use crate::usage::begin;
pub use encoder::{Encoder, Format};
pub use files::{NULL_VALUE, prefix_of};
pub use manifest::{FileEntry, MANIFEST, Manifest, PartitionColumn, SortColumn};
pub use node::WriteExec;

/// Pauses before the files of a failed run are removed.
const REMOVE_AFTER: [Duration; 3] = [Duration::ZERO, Duration::from_millis(100), Duration::from_millis(400)];

/// Where the rows of a frame go.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash, serde::Serialize, serde::Deserialize)]
pub struct Output {
    /// A directory, or a URL, that is empty or not there.
    pub directory: String,
    /// Columns whose values name subdirectories, such as `zone=3`; files lack these columns.
    pub partition_by: Vec<String>,
    /// The format of the files.
    pub format: Format,
    /// What names this write, if it may run several times: a run takes the place of earlier ones that were lost, whose
    /// files may be in the directory. Letters and digits.
    pub id: Option<String>,
}

/// Where the rows of one run go.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash, serde::Serialize, serde::Deserialize)]
pub struct Target {
    /// Its directory is a URL with a slash at its end.
    pub output: Output,
    /// The run, which is in the name of every file.
    pub run: String,
    /// Whether the rows are sorted, and the files keep their order.
    pub is_sorted: bool,
}

/// Writes all rows of a frame below a directory, and its manifest.
///
/// # Errors
/// Of a directory with something in it, of columns that the format cannot hold, of a partition column that is not there
/// or the only one, and of the query. Files that the run has written are removed then.
pub async fn write(context: &SessionContext, frame: DataFrame, output: &Output) -> QueryResult<Manifest> {
    let url = ListingTableUrl::parse(format!("{}/", output.directory.trim_end_matches('/')))?;
    let store = context.runtime_env().object_store(url.object_store())?;
    if let Some(manifest) = earlier(context, store.as_ref(), &url, output).await? {
        return Ok(manifest);
    }
    let schema = Arc::new(frame.schema().as_arrow().clone());
    let columns = manifest::partition_columns(&schema, &output.partition_by)?;
    let target = Target {
        output: Output {
            directory: url.as_str().to_owned(),
            ..output.clone()
        },
        run: match &output.id {
            Some(id) => format!("{id}-{}", Uuid::new_v4().simple()),
            None => Uuid::new_v4().simple().to_string(),
        },
        // One directory of many has no place in an order of all files.
        is_sorted: output.partition_by.is_empty() && ends_with_sort(frame.logical_plan()),
    };
    output.format.check(&target.columns(&schema)?)?;
    let written = match written(context, frame, target.clone()).await {
        Ok((files, _)) if files.is_empty() => without_rows(store.as_ref(), &url, &target, &schema)
            .await
            .map(|file| (vec![file], Vec::new())),
        written => written,
    };
    let (files, sorted_by) = match written {
        Ok(written) => written,
        Err(error) => {
            // Tasks of other ranks may end a file before they hear of the failure.
            for pause in REMOVE_AFTER {
                tokio::time::sleep(pause).await;
                remove_run(store.as_ref(), &url, &target.run, &[]).await;
            }
            return Err(error);
        }
    };
    let config = context.copied_config();
    let policy = config.get_extension::<Policy>();
    let has_lost_tasks = policy.is_some_and(|policy| policy.recovery.goes_on());
    if has_lost_tasks || output.id.is_some() {
        // Runs that were lost have left theirs.
        remove_run(store.as_ref(), &url, output.id.as_ref().unwrap_or(&target.run), &files).await;
    }
    let manifest = Manifest {
        run: target.run,
        format: output.format,
        partition_by: columns,
        sorted_by,
        files,
    };
    let path = url.prefix().clone().join(MANIFEST);
    store.put(&path, manifest.to_json()?.into()).await?;
    Ok(manifest)
}

/// The manifest of an earlier run of this write, if one has ended.
///
/// # Errors
/// Of a directory with something else in it.
async fn earlier(
    context: &SessionContext,
    store: &dyn ObjectStore,
    url: &ListingTableUrl,
    output: &Output,
) -> QueryResult<Option<Manifest>> {
    let ours = output.id.as_deref().map(prefix_of);
    let mut is_there = false;
    let mut found = store.list(Some(url.prefix()));
    while let Some(file) = found.next().await.transpose()? {
        let name = file.location.filename().unwrap_or_default();
        is_there = true;
        if name != MANIFEST && !ours.as_ref().is_some_and(|ours| name.starts_with(ours)) {
            return refused(output);
        }
    }
    let manifest = match is_there {
        true => read_manifest(context, &output.directory).await?,
        false => None,
    };
    match (manifest, &output.id) {
        (Some(manifest), Some(id)) if manifest.run.starts_with(&format!("{id}-")) => Ok(Some(manifest)),
        (Some(_), _) => refused(output),
        (None, _) => Ok(None),
    }
}

fn refused<T>(output: &Output) -> QueryResult<T> {
    let directory = &output.directory;
    plan_err!("the directory {directory} has something in it: write into one that is empty or not there")
}

impl Target {
    /// The columns that its files have.
    fn columns(&self, schema: &Schema) -> QueryResult<Schema> {
        let kept =
            (0..schema.fields().len()).filter(|place| !self.output.partition_by.contains(schema.field(*place).name()));
        Ok(schema.project(&kept.collect::<Vec<_>>())?)
    }
}

/// The manifest of a directory, or `None` if it has none.
///
/// # Errors
/// If the directory cannot be read, or has something else under that name.
pub async fn read_manifest(context: &SessionContext, directory: &str) -> QueryResult<Option<Manifest>> {
    let url = ListingTableUrl::parse(format!("{}/", directory.trim_end_matches('/')))?;
    let store = context.runtime_env().object_store(url.object_store())?;
    match store.get(&url.prefix().clone().join(MANIFEST)).await {
        Ok(found) => Manifest::from_json(&found.bytes().await?).map(Some),
        Err(object_store::Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether the last operation of a plan that changes the order of rows is a sort.
fn ends_with_sort(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Sort(_) => true,
        LogicalPlan::Projection(_) | LogicalPlan::Filter(_) | LogicalPlan::SubqueryAlias(_) | LogicalPlan::Limit(_) => {
            plan.inputs().into_iter().any(ends_with_sort)
        }
        _ => false,
    }
}

/// The order of the files that a plan writes.
fn order_of_files(plan: &Arc<dyn ExecutionPlan>) -> Vec<SortColumn> {
    match plan.downcast_ref::<WriteExec>() {
        Some(write) => manifest::sort_columns(write.file_order()),
        None => plan.children().into_iter().flat_map(order_of_files).collect(),
    }
}

/// The files of a frame, and the columns by which they are sorted.
async fn written(
    context: &SessionContext,
    frame: DataFrame,
    target: Target,
) -> QueryResult<(Vec<FileEntry>, Vec<SortColumn>)> {
    let plan = applied(target, frame.into_unoptimized_plan())?;
    let (plan, rows, _) = begin(context, plan).await?;
    let sorted_by = order_of_files(&plan);
    let batches = collect(rows).await?;
    let mut files = Vec::new();
    for batch in &batches {
        let column = |index: usize| batch.column(index).as_any();
        let (Some(paths), Some(rows), Some(bytes)) = (
            column(0).downcast_ref::<StringArray>(),
            column(1).downcast_ref::<UInt64Array>(),
            column(2).downcast_ref::<UInt64Array>(),
        ) else {
            return Err(DataFusionError::Internal("ranks report files in other columns".into()));
        };
        files.extend((0..batch.num_rows()).map(|row| FileEntry {
            path: paths.value(row).to_owned(),
            rows: rows.value(row),
            bytes: bytes.value(row),
        }));
    }
    files.sort_by(|one, other| one.path.cmp(&other.path));
    Ok((files, sorted_by))
}

/// Writes a file without rows, so that the columns are known.
async fn without_rows(
    store: &dyn ObjectStore,
    url: &ListingTableUrl,
    target: &Target,
    schema: &Schema,
) -> QueryResult<FileEntry> {
    let mut encoder = Encoder::new(target.output.format, &Arc::new(target.columns(schema)?))?;
    let bytes = encoder.finish()?;
    let below = target.output.partition_by.iter();
    let below: String = below
        .map(|name| format!("{}={}/", files::escaped(name), NULL_VALUE))
        .collect();
    let path = format!(
        "{below}{}0.{}",
        prefix_of(&target.run),
        target.output.format.extension()
    );
    let place = Path::parse(format!("{}/{path}", url.prefix())).map_err(object_store::Error::from)?;
    let size = bytes.len() as u64;
    store.put(&place, bytes.into()).await?;
    Ok(FileEntry {
        path,
        rows: 0,
        bytes: size,
    })
}

/// Removes the files of a run, but for these. What cannot be removed is in no manifest, and so is never read.
async fn remove_run(store: &dyn ObjectStore, url: &ListingTableUrl, run: &str, but: &[FileEntry]) {
    let kept: HashSet<&str> = but.iter().filter_map(|file| file.path.rsplit('/').next()).collect();
    let listed = store.list(Some(url.prefix()));
    let ours = listed.try_filter(|file| {
        let is_ours = file
            .location
            .filename()
            .is_some_and(|name| name.starts_with(&prefix_of(run)) && !kept.contains(name));
        std::future::ready(is_ours)
    });
    let paths: Vec<_> = ours
        .map_ok(|file| file.location)
        .filter_map(|path| async { path.ok() })
        .collect()
        .await;
    for path in paths {
        let _ = store.delete(&path).await;
    }
}
