//! The files of one task: one at a time, so that only one row group is in memory.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, RecordBatch};
use datafusion::arrow::compute::partition;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::common::Result as QueryResult;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::parquet::arrow::AsyncArrowWriter;
use datafusion::parquet::basic::{Compression, ZstdLevel};
use datafusion::parquet::file::properties::WriterProperties;
use object_store::ObjectStore;
use object_store::buffered::BufWriter;
use object_store::path::Path;

use super::manifest::FileEntry;

/// Name of the directory of rows whose partition value is null, as in Hive.
pub const NULL_VALUE: &str = "__HIVE_DEFAULT_PARTITION__";

/// How the names of a run's files begin.
pub fn prefix_of(run: &str) -> String {
    format!("part-{run}-")
}

/// How Parquet files are written.
pub fn parquet_properties() -> WriterProperties {
    WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .build()
}

/// Writes the batches of one partition of one task, in the order of the partition columns.
pub struct Files {
    store: Arc<dyn ObjectStore>,
    directory: Path,
    /// Name of its files, without their number.
    name: String,
    /// Places of the partition columns in the batches.
    partition_by: Vec<usize>,
    /// Places of the other columns.
    kept: Vec<usize>,
    schema: SchemaRef,
    memory: MemoryReservation,
    open: Option<OpenFile>,
    written: Vec<FileEntry>,
}

struct OpenFile {
    /// Below the directory.
    path: String,
    /// Its subdirectory.
    below: String,
    writer: AsyncArrowWriter<BufWriter>,
    rows: u64,
}

impl Files {
    pub fn new(
        store: Arc<dyn ObjectStore>,
        directory: Path,
        name: String,
        schema: &SchemaRef,
        partition_by: Vec<usize>,
        memory: MemoryReservation,
    ) -> QueryResult<Self> {
        let kept: Vec<_> = (0..schema.fields().len())
            .filter(|place| !partition_by.contains(place))
            .collect();
        Ok(Self {
            store,
            directory,
            name,
            schema: Arc::new(schema.project(&kept)?),
            partition_by,
            kept,
            memory,
            open: None,
            written: Vec::new(),
        })
    }

    /// Writes a batch.
    pub async fn write(&mut self, batch: &RecordBatch) -> QueryResult<()> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let data = batch.project(&self.kept)?;
        if self.partition_by.is_empty() {
            return self.write_into(String::new(), &data).await;
        }
        let values: Vec<ArrayRef> = self
            .partition_by
            .iter()
            .map(|place| Arc::clone(batch.column(*place)))
            .collect();
        for range in partition(&values)?.ranges() {
            let below = self.subdirectory(batch, range.start)?;
            self.write_into(below, &data.slice(range.start, range.len())).await?;
        }
        Ok(())
    }

    /// The subdirectory of a row.
    fn subdirectory(&self, batch: &RecordBatch, row: usize) -> QueryResult<String> {
        let schema = batch.schema();
        let options = FormatOptions::default();
        let mut below = String::new();
        for place in &self.partition_by {
            let column = batch.column(*place);
            let value = if column.is_null(row) {
                NULL_VALUE.to_owned()
            } else {
                escaped(
                    &ArrayFormatter::try_new(column.as_ref(), &options)?
                        .value(row)
                        .try_to_string()?,
                )
            };
            below += &format!("{}={value}/", escaped(schema.field(*place).name()));
        }
        Ok(below)
    }

    async fn write_into(&mut self, below: String, data: &RecordBatch) -> QueryResult<()> {
        if self.open.as_ref().is_none_or(|open| open.below != below) {
            self.close().await?;
            self.open(below)?;
        }
        if let Some(open) = &mut self.open {
            open.writer.write(data).await?;
            open.rows += data.num_rows() as u64;
            self.memory.try_resize(open.writer.memory_size())?;
        }
        Ok(())
    }

    fn open(&mut self, below: String) -> QueryResult<()> {
        let path = format!("{below}{}{}.parquet", self.name, self.written.len());
        let place = Path::parse(format!("{}/{path}", self.directory)).map_err(object_store::Error::from)?;
        let target = BufWriter::new(Arc::clone(&self.store), place);
        let writer = AsyncArrowWriter::try_new(target, Arc::clone(&self.schema), Some(parquet_properties()))?;
        self.open = Some(OpenFile {
            path,
            below,
            writer,
            rows: 0,
        });
        Ok(())
    }

    async fn close(&mut self) -> QueryResult<()> {
        let Some(mut open) = self.open.take() else {
            return Ok(());
        };
        open.writer.finish().await?;
        self.memory.try_resize(0)?;
        self.written.push(FileEntry {
            path: open.path,
            rows: open.rows,
            bytes: open.writer.bytes_written() as u64,
        });
        Ok(())
    }

    /// Ends the last file.
    pub async fn finish(mut self) -> QueryResult<Vec<FileEntry>> {
        self.close().await?;
        Ok(self.written)
    }
}

/// A text as part of a path: what could mean anything there is a `%` and two hexadecimal digits for each byte.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.".contains(&byte) && text != "." && text != ".." {
            escaped.push(char::from(byte));
        } else {
            escaped += &format!("%{byte:02X}");
        }
    }
    escaped
}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Files")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_values_stay_one_part_of_a_path() {
        for (value, expected) in [
            ("a b", "a%20b"),
            ("..", "%2E%2E"),
            ("a/../b", "a%2F..%2Fb"),
            ("1.5", "1.5"),
            ("é", "%C3%A9"),
        ] {
            assert_eq!(escaped(value), expected);
        }
    }
}
