//! Rows that are held until all of them are there: in memory while that has room, and on disk otherwise.

use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::spill_file::SpillFile;
use datafusion::physical_plan::SpillManager;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, SpillMetrics};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures_util::StreamExt;
use futures_util::stream;

/// Appends a batch to a file, or ends the file. DataFusion's own type has no name outside of it.
type Append = Box<dyn FnMut(Option<&RecordBatch>) -> Result<Option<Arc<dyn SpillFile>>> + Send>;

/// Rows that are being collected.
pub struct Holder {
    schema: SchemaRef,
    /// With the bytes that each counts.
    batches: Vec<(RecordBatch, usize)>,
    memory: MemoryReservation,
    spills: SpillManager,
    file: Option<Append>,
}

/// All rows of a partition, in the order in which they were collected.
pub struct Held {
    schema: SchemaRef,
    batches: Vec<(RecordBatch, usize)>,
    /// Counts the batches while they are there.
    memory: MemoryReservation,
    spills: SpillManager,
    file: Option<Arc<dyn SpillFile>>,
}

impl Holder {
    /// Collects rows with these columns, which count as memory of queries under this name.
    pub fn new(environment: &Arc<RuntimeEnv>, schema: SchemaRef, name: &str) -> Self {
        let metrics = SpillMetrics::new(&ExecutionPlanMetricsSet::new(), 0);
        Self::measured(environment, schema, name, metrics)
    }

    /// As [`Holder::new`], with what it spills among the measures of a node.
    pub fn measured(environment: &Arc<RuntimeEnv>, schema: SchemaRef, name: &str, metrics: SpillMetrics) -> Self {
        let consumer = MemoryConsumer::new(name).with_can_spill(true);
        Self {
            batches: Vec::new(),
            memory: consumer.register(&environment.memory_pool),
            spills: SpillManager::new(Arc::clone(environment), metrics, Arc::clone(&schema)),
            schema,
            file: None,
        }
    }

    /// Adds a batch of so many bytes.
    ///
    /// # Errors
    /// If it does not fit, and cannot go to disk.
    pub fn push(&mut self, batch: RecordBatch, bytes: usize) -> Result<()> {
        if self.file.is_none() {
            if self.memory.try_grow(bytes).is_ok() {
                self.batches.push((batch, bytes));
                return Ok(());
            }
            let mut file = self.spills.create_in_progress_file("keeping the output of a task")?;
            let mut append: Append = Box::new(move |batch| match batch {
                Some(batch) => file.append_batch(batch).map(|_| None),
                None => file.finish(),
            });
            for (held, _) in self.batches.drain(..) {
                append(Some(&held))?;
            }
            self.memory.free();
            self.file = Some(append);
        }
        if let Some(append) = &mut self.file {
            append(Some(&batch))?;
        }
        Ok(())
    }

    /// All rows.
    ///
    /// # Errors
    /// If the last ones cannot be written to disk.
    pub fn finish(mut self) -> Result<Held> {
        let file = self.file.as_mut().map(|append| append(None)).transpose()?.flatten();
        Ok(Held {
            schema: self.schema,
            batches: self.batches,
            memory: self.memory,
            spills: self.spills,
            file,
        })
    }
}

impl Held {
    /// Its rows. They stay, and can be read again.
    ///
    /// # Errors
    /// If its file cannot be read.
    pub fn rows(self: &Arc<Self>) -> Result<SendableRecordBatchStream> {
        if let Some(file) = &self.file {
            return self.spills.read_spill_as_stream(Arc::clone(file), None);
        }
        let rows = stream::iter(0..self.batches.len()).map({
            let held = Arc::clone(self);
            move |number| Ok(held.batches[number].0.clone())
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), rows)))
    }

    /// Its rows, each of them once. Their memory is free when they are taken.
    ///
    /// # Errors
    /// If its file cannot be read.
    pub fn into_rows(self) -> Result<SendableRecordBatchStream> {
        if let Some(file) = self.file {
            return self.spills.read_spill_as_stream(file, None);
        }
        let memory = self.memory;
        let rows = stream::iter(self.batches).map(move |(batch, bytes)| {
            memory.shrink(bytes);
            Ok(batch)
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema, rows)))
    }
}

#[cfg(test)]
mod tests;
