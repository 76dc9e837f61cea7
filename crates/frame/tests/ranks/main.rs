//! Queries over real ranks. One program has all of them, because each takes a minute and a half to link.

#[path = "../../../comm/tests/thread_group/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod thread_group;

mod checked;
mod costs;
mod members;
mod memory;
mod queries;
mod recovery;
mod sorting;
mod tpch;
mod wires;
mod writing;

use std::path::Path;

use datafusion::arrow::array::RecordBatch;
use datafusion::dataframe::DataFrameWriteOptions;
use datafusion::prelude::SessionContext;

/// Writes a batch as a Parquet file.
async fn write_file(context: &SessionContext, batch: RecordBatch, path: &Path) {
    let options = DataFrameWriteOptions::new().with_single_file_output(true);
    let frame = context.read_batch(batch).unwrap();
    let written = frame.write_parquet(path.to_str().unwrap(), options, None).await;
    written.unwrap();
}

/// Number of files in a directory and below it.
fn files_below(place: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(place) else {
        return 0;
    };
    entries
        .map(|entry| entry.unwrap().path())
        .map(|path| if path.is_dir() { files_below(&path) } else { 1 })
        .sum()
}
