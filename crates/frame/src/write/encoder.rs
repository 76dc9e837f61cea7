//! Rows as the bytes of a file.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::arrow::ipc::writer::FileWriter;
use datafusion::arrow::{csv, json};
use datafusion::common::{Result as QueryResult, plan_err};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::basic::{Compression, ZstdLevel};
use datafusion::parquet::file::properties::WriterProperties;
use serde::{Deserialize, Serialize};

/// A format of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Parquet, compressed by Zstandard.
    Parquet,
    /// Comma-separated values, with the names of the columns in the first line.
    Csv,
    /// A JSON object on each line.
    NdJson,
    /// An array of JSON objects.
    Json,
    /// Arrow's IPC format for files.
    Ipc,
}

impl Format {
    /// A format by its name: `parquet`, `csv`, `ndjson`, `json` or `ipc`.
    pub fn of(name: &str) -> Option<Self> {
        let all = [Self::Parquet, Self::Csv, Self::NdJson, Self::Json, Self::Ipc];
        all.into_iter().find(|format| format.name() == name)
    }

    /// Its name, as in [`Format::of`].
    pub fn name(self) -> &'static str {
        match self {
            Self::Parquet => "parquet",
            Self::Csv => "csv",
            Self::NdJson => "ndjson",
            Self::Json => "json",
            Self::Ipc => "ipc",
        }
    }

    /// How the names of its files end.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Parquet => "parquet",
            Self::Csv => "csv",
            Self::NdJson | Self::Json => "json",
            Self::Ipc => "arrow",
        }
    }

    /// Checks that files of the format can have these columns.
    ///
    /// # Errors
    /// Of the first column that they cannot have.
    pub fn check(self, schema: &Schema) -> QueryResult<()> {
        let fields = schema.fields();
        if self == Self::Csv {
            return match fields.iter().find(|field| field.data_type().is_nested()) {
                Some(nested) => plan_err!(
                    "column {:?} has lists or structs, which CSV cannot hold: write JSON or Parquet",
                    nested.name()
                ),
                None => Ok(()),
            };
        }
        let names = fields.iter().enumerate();
        let mut twice =
            names.filter(|(place, field)| fields[..*place].iter().any(|other| other.name() == field.name()));
        if let Some((_, field)) = twice.next() {
            return plan_err!(
                "two columns are named {:?}: give one of them another name with AS",
                field.name()
            );
        }
        let mut intervals = fields
            .iter()
            .filter(|field| matches!(field.data_type(), DataType::Interval(_)));
        match intervals.next() {
            Some(interval) if self == Self::Parquet => plan_err!(
                "column {:?} has intervals, which Parquet cannot hold: cast it to a duration or a string",
                interval.name()
            ),
            _ => Ok(()),
        }
    }
}

/// Bytes that a writer has made and nobody has taken.
#[derive(Clone, Default)]
struct Made(Arc<Mutex<Vec<u8>>>);

impl Made {
    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Write for Made {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        made.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

enum Writer {
    Csv(Box<csv::Writer<Made>>),
    Lines(json::LineDelimitedWriter<Made>),
    Array(json::ArrayWriter<Made>),
    Parquet(Box<ArrowWriter<Made>>),
    Ipc(Box<FileWriter<Made>>),
}

/// Makes the bytes of a file, batch by batch.
pub struct Encoder {
    writer: Writer,
    made: Made,
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encoder").finish_non_exhaustive()
    }
}

impl Encoder {
    /// An encoder of rows with this schema.
    ///
    /// # Errors
    /// As [`Format::check`].
    pub fn new(format: Format, schema: &SchemaRef) -> QueryResult<Self> {
        format.check(schema)?;
        let made = Made::default();
        let target = made.clone();
        let objects = || json::WriterBuilder::new().with_explicit_nulls(true);
        let writer = match format {
            Format::Csv => {
                let mut writer = csv::Writer::new(target);
                // A file without rows has its header, too.
                writer.write(&RecordBatch::new_empty(Arc::clone(schema)))?;
                Writer::Csv(Box::new(writer))
            }
            Format::NdJson => Writer::Lines(objects().build(target)),
            Format::Json => Writer::Array(objects().build(target)),
            Format::Parquet => {
                let properties = WriterProperties::builder()
                    .set_compression(Compression::ZSTD(ZstdLevel::default()))
                    .build();
                Writer::Parquet(Box::new(ArrowWriter::try_new(
                    target,
                    Arc::clone(schema),
                    Some(properties),
                )?))
            }
            Format::Ipc => Writer::Ipc(Box::new(FileWriter::try_new(target, schema)?)),
        };
        Ok(Self { writer, made })
    }

    /// Adds rows. Returns the bytes that are ready.
    ///
    /// # Errors
    /// Of values that the format cannot hold.
    pub fn encode(&mut self, batch: &RecordBatch) -> QueryResult<Vec<u8>> {
        match &mut self.writer {
            Writer::Csv(writer) => writer.write(batch)?,
            Writer::Lines(writer) => writer.write(batch)?,
            Writer::Array(writer) => writer.write(batch)?,
            Writer::Parquet(writer) => writer.write(batch)?,
            Writer::Ipc(writer) => writer.write(batch)?,
        }
        Ok(self.made.take())
    }

    /// Bytes of memory for rows that are not encoded yet.
    pub fn memory(&self) -> usize {
        match &self.writer {
            Writer::Parquet(writer) => writer.memory_size(),
            _ => 0,
        }
    }

    /// Returns the last bytes. No rows can follow.
    ///
    /// # Errors
    /// As [`Encoder::encode`].
    pub fn finish(&mut self) -> QueryResult<Vec<u8>> {
        match &mut self.writer {
            Writer::Csv(_) => {}
            Writer::Lines(writer) => writer.finish()?,
            Writer::Array(writer) => writer.finish()?,
            Writer::Parquet(writer) => drop(writer.finish()?),
            Writer::Ipc(writer) => writer.finish()?,
        }
        Ok(self.made.take())
    }
}
