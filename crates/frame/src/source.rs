//! Files as frames.

mod csv;
mod ipc;
mod paths;
pub mod whole;
mod written;

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::common::Result as QueryResult;
use datafusion::datasource::file_format::options::{
    ArrowReadOptions, CsvReadOptions, JsonReadOptions, ParquetReadOptions,
};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::{DataFrame, SessionContext};
use datafusion_distributed::{
    DesiredTaskCountEvent, DesiredTaskCountEventResponse, DistributedConfig, DistributedLeafExec,
};
use object_store::path::Path;

use self::paths::Paths;
use crate::cost::{ranks_for, share_of};
use crate::write::{Format, read_manifest};

/// The files that a leaf reads; `None` if it is no scan of files.
pub fn scan_of(plan: &Arc<dyn ExecutionPlan>) -> Option<&FileScanConfig> {
    plan.downcast_ref::<DataSourceExec>()?.data_source().downcast_ref()
}

/// Every file that a plan reads, as it was when the query was planned: its path, when it was changed, in
/// microseconds, and its bytes.
pub fn files_of(plan: &Arc<dyn ExecutionPlan>) -> BTreeSet<(Path, i64, u64)> {
    let groups = scan_of(original(plan)).map_or(&[][..], |scan| &scan.file_groups);
    let files = groups.iter().flat_map(FileGroup::files).map(|file| {
        let file = &file.object_meta;
        (file.location.clone(), file.last_modified.timestamp_micros(), file.size)
    });
    files.chain(plan.children().into_iter().flat_map(files_of)).collect()
}

/// How many ranks read the files of a scan: one for each share of their bytes, and not more than there are files, if each
/// is read by one task.
pub fn desired_tasks(event: DesiredTaskCountEvent<'_>) -> Option<QueryResult<DesiredTaskCountEventResponse>> {
    let scan = scan_of(event.plan)?;
    let config = DistributedConfig::from_config_options(event.session_config.options()).ok()?;
    let share = config.file_scan_config_bytes_per_partition * event.session_config.target_partitions();
    let most = whole::whole_scan_of(event.plan).map_or(usize::MAX, |scan| files_in(scan).count());
    let tasks = ranks_for(bytes_in(scan), share as u64, most);
    Some(Ok(DesiredTaskCountEventResponse::desired(tasks)))
}

fn files_in(scan: &FileScanConfig) -> impl Iterator<Item = &PartitionedFile> {
    scan.file_groups.iter().flat_map(FileGroup::files)
}

fn bytes_in(scan: &FileScanConfig) -> u64 {
    files_in(scan)
        .map(PartitionedFile::effective_size)
        .fold(0, u64::saturating_add)
}

/// Bytes of files that the scans of a plan read, by estimate: of Parquet the share of the columns that are read, of other
/// formats all. Two scans of a file read it twice.
pub fn bytes_read(plan: &Arc<dyn ExecutionPlan>) -> u64 {
    let own = scan_of(original(plan)).map_or(0, bytes_of_scan);
    let below = plan.children().into_iter().map(bytes_read);
    below.fold(own, u64::saturating_add)
}

fn bytes_of_scan(scan: &FileScanConfig) -> u64 {
    let all = bytes_in(scan);
    let Some(projection) = scan.file_source().projection() else {
        return all;
    };
    // Only Parquet has the bytes of columns. Columns of directories have none.
    let columns = scan.statistics().column_statistics;
    let width = |column: usize| columns.get(column).and_then(|column| column.byte_size.get_value());
    let read: Option<Vec<usize>> = projection
        .column_indices()
        .into_iter()
        .map(|at| width(at).copied())
        .collect();
    let whole: Option<Vec<usize>> = (0..columns.len()).map(|at| width(at).copied()).collect();
    match (read, whole) {
        (Some(read), Some(whole)) => share_of(all, total(&read), total(&whole)),
        _ => all,
    }
}

fn total(bytes: &[usize]) -> u64 {
    bytes.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes as u64))
}

/// The leaf as it was before it was divided among tasks.
fn original(plan: &Arc<dyn ExecutionPlan>) -> &Arc<dyn ExecutionPlan> {
    plan.downcast_ref::<DistributedLeafExec>()
        .map_or(plan, |leaf| leaf.original())
}

/// Files, and how they are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Their format.
    pub format: Format,
    /// Paths or URLs: of files, of directories with a slash at their end, and patterns with `*`.
    pub paths: Vec<String>,
    /// Whether only files with the format's extension are read: those of a directory.
    pub by_extension: bool,
    /// Of CSV: whether the first line has the names of the columns.
    pub has_header: bool,
    /// Of CSV: what stands between values.
    pub separator: u8,
    /// Of CSV: whether a value in quotes may have line breaks, so that a file cannot be divided.
    pub newlines_in_values: bool,
    /// Number of rows whose values give the columns their types.
    pub infer_rows: usize,
}

impl Source {
    /// Files of a format, with a comma between the values of CSV, and names of columns in its first line.
    pub fn new(format: Format, paths: Vec<String>) -> Self {
        Self {
            format,
            paths,
            by_extension: false,
            has_header: true,
            separator: b',',
            newlines_in_values: true,
            infer_rows: 1_000,
        }
    }

    /// A frame of the files. A directory that a frame was written into has the files that its manifest names, and no
    /// others.
    ///
    /// # Errors
    /// If files cannot be read, or have different columns.
    pub async fn read(&self, context: &SessionContext) -> QueryResult<DataFrame> {
        if let ([directory], true) = (self.paths.as_slice(), self.by_extension)
            && let Some(manifest) = read_manifest(context, directory).await?
        {
            return written::read(context, self, directory, &manifest).await;
        }
        let extension = match self.by_extension {
            true => format!(".{}", self.format.extension()),
            false => String::new(),
        };
        let paths = Paths::parse(&self.paths)?;
        self.scan(context, paths, &extension, &[]).await
    }

    /// Files of these paths, with columns in the names of their directories.
    async fn scan(
        &self,
        context: &SessionContext,
        paths: Paths,
        extension: &str,
        columns: &[written::NamedColumn],
    ) -> QueryResult<DataFrame> {
        let columns = columns.to_vec();
        match self.format {
            Format::Parquet => {
                let options = ParquetReadOptions {
                    file_extension: extension,
                    table_partition_cols: columns,
                    ..ParquetReadOptions::default()
                };
                context.read_parquet(paths, options).await
            }
            Format::Csv => {
                let schema = csv::inferred(context, self, &paths, extension).await?;
                let mut options = CsvReadOptions::new()
                    .has_header(self.has_header)
                    .delimiter(self.separator)
                    .newlines_in_values(self.newlines_in_values)
                    .table_partition_cols(columns)
                    .schema(&schema);
                options.file_extension = extension;
                context.read_csv(paths, options).await
            }
            Format::NdJson | Format::Json => {
                let options = JsonReadOptions {
                    newline_delimited: self.format == Format::NdJson,
                    schema_infer_max_records: self.infer_rows,
                    file_extension: extension,
                    table_partition_cols: columns,
                    ..JsonReadOptions::default()
                };
                context.read_json(paths, options).await
            }
            Format::Ipc => {
                let schema = ipc::schema(context, &paths, extension).await?;
                let options = ArrowReadOptions {
                    schema: schema.as_ref(),
                    file_extension: extension,
                    table_partition_cols: columns,
                };
                context.read_arrow(paths, options).await
            }
        }
    }
}
