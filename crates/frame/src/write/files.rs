//! The files of one task: one at a time, so that only one row group is in memory.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, RecordBatch};
use datafusion::arrow::compute::partition;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::common::Result as QueryResult;
use datafusion::execution::memory_pool::MemoryReservation;
use object_store::ObjectStore;
use object_store::buffered::BufWriter;
use object_store::path::Path;
use tokio::io::AsyncWriteExt;

use super::encoder::{Encoder, Format};
use super::manifest::FileEntry;

/// Name of the directory of rows whose partition value is null, as in Hive.
pub const NULL_VALUE: &str = "__HIVE_DEFAULT_PARTITION__";

/// How the names of a run's files begin.
pub fn prefix_of(run: &str) -> String {
    format!("part-{run}-")
}

/// Where the files of a partition are.
pub struct Place {
    pub store: Arc<dyn ObjectStore>,
    pub format: Format,
    pub directory: Path,
    /// Name of its files, without their number.
    pub name: String,
}

/// Writes the batches of one partition of one task, in the order of the partition columns.
pub struct Files {
    place: Place,
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
    encoder: Encoder,
    target: BufWriter,
    rows: u64,
    bytes: u64,
}

impl OpenFile {
    async fn put(&mut self, bytes: Vec<u8>) -> QueryResult<()> {
        self.bytes += bytes.len() as u64;
        Ok(self.target.put(bytes.into()).await?)
    }

    async fn finish(mut self) -> QueryResult<FileEntry> {
        let last = self.encoder.finish()?;
        self.put(last).await?;
        self.target.shutdown().await?;
        Ok(FileEntry {
            path: self.path,
            rows: self.rows,
            bytes: self.bytes,
        })
    }
}

impl Files {
    pub fn new(
        place: Place,
        schema: &SchemaRef,
        partition_by: Vec<usize>,
        memory: MemoryReservation,
    ) -> QueryResult<Self> {
        let kept: Vec<_> = (0..schema.fields().len())
            .filter(|place| !partition_by.contains(place))
            .collect();
        Ok(Self {
            place,
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
            let bytes = open.encoder.encode(data)?;
            open.put(bytes).await?;
            open.rows += data.num_rows() as u64;
            self.memory.try_resize(open.encoder.memory())?;
        }
        Ok(())
    }

    fn open(&mut self, below: String) -> QueryResult<()> {
        let Place {
            store,
            format,
            directory,
            name,
        } = &self.place;
        let path = format!("{below}{name}{:05}.{}", self.written.len(), format.extension());
        let place = Path::parse(format!("{directory}/{path}")).map_err(object_store::Error::from)?;
        self.open = Some(OpenFile {
            path,
            below,
            encoder: Encoder::new(*format, &self.schema)?,
            target: BufWriter::new(Arc::clone(store), place),
            rows: 0,
            bytes: 0,
        });
        Ok(())
    }

    async fn close(&mut self) -> QueryResult<()> {
        if let Some(open) = self.open.take() {
            self.written.push(open.finish().await?);
            self.memory.try_resize(0)?;
        }
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
            .field("name", &self.place.name)
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
