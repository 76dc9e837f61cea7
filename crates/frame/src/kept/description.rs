//! Descriptions of kept frames, which all ranks have.

use std::sync::{Arc, Weak};

use datafusion::arrow::array::{RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::arrow::error::ArrowError;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result as QueryResult};
use datafusion::datasource::listing::ListingTable;
use datafusion::datasource::source_as_provider;
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::logical_expr::LogicalPlan;
use dayfly_protocol::error::{Code, Failure};
use futures_util::TryStreamExt;
use serde::{Deserialize, Serialize};

use super::{FrameId, Kept, KeptTable, Location, Part, Store, reading};
use crate::codec;
use crate::error::failure_of;
use crate::exchange::{Exchange, kept_rows};
use crate::memory::CANNOT_KEEP;

/// Fewest rows for which a part of a frame is divided among the threads of its rank.
const MIN_PART_ROWS: usize = 8192;

/// A frame that ranks keep: its columns, and where its rows are. The ranks may forget these in the meantime.
#[derive(Debug, Clone)]
pub struct KeptFrame {
    id: FrameId,
    schema: SchemaRef,
    parts: Vec<Part>,
}

#[derive(Serialize, Deserialize)]
struct Encoded {
    id: FrameId,
    schema: Vec<u8>,
    parts: Vec<Part>,
}

impl KeptFrame {
    /// The frame that a plan reads, if it does nothing else.
    pub fn of(plan: &LogicalPlan) -> Option<Self> {
        let LogicalPlan::TableScan(scan) = plan else {
            return None;
        };
        let provider = source_as_provider(&scan.source).ok()?;
        let table = provider.downcast_ref::<KeptTable>()?;
        Some(Self {
            id: table.kept.id,
            schema: Arc::clone(&table.schema),
            parts: table.kept.parts.clone(),
        })
    }

    /// Keeps rows on this rank, as its part of a frame. Their buffers are not copied. All columns may have nulls.
    ///
    /// # Errors
    /// [`Code::OutOfMemory`] if the rank has no room for them.
    pub(crate) fn keep(
        store: &Store,
        environment: &RuntimeEnv,
        id: FrameId,
        schema: &Schema,
        batches: Vec<RecordBatch>,
        threads: usize,
    ) -> QueryResult<Self> {
        let schema = plain(schema);
        let mut kept = Self {
            id,
            schema: Arc::clone(&schema),
            parts: Vec::new(),
        };
        let batches = batches.into_iter().map(|batch| with_schema(batch, &schema));
        let batches = batches.collect::<Result<Vec<_>, _>>()?;
        for batches in divided(batches, threads) {
            let bytes = batches.iter().map(bytes_of).sum::<usize>();
            let memory = MemoryConsumer::new("local rows").register(&environment.memory_pool);
            if memory.try_grow(bytes).is_err() {
                store.forget(id);
                return Err(does_not_fit(store.rank(), bytes));
            }
            let rows = batches.iter().map(|batch| batch.num_rows() as u64).sum();
            // The schema of a part without rows crosses with a batch without rows.
            let batches = match batches.is_empty() {
                true => vec![RecordBatch::new_empty(Arc::clone(&schema))],
                false => batches,
            };
            kept.parts.push(Part {
                location: Location {
                    rank: store.rank(),
                    number: store.put(id, batches, memory),
                },
                copies: Vec::new(),
                rows,
                bytes: bytes as u64,
            });
        }
        Ok(kept)
    }

    /// One frame of what each rank keeps of it, in the order of the ranks.
    ///
    /// # Errors
    /// [`Code::InvalidRequest`] if the ranks have different columns.
    pub fn joined(of_ranks: Vec<Self>) -> Result<Self, Failure> {
        let mut of_ranks = of_ranks.into_iter();
        let Some(mut all) = of_ranks.next() else {
            return Err(Failure::new(
                Code::InvalidRequest,
                "a frame has the rows of at least one rank",
            ));
        };
        for (rank, other) in (1u32..).zip(of_ranks) {
            if let Some(difference) = difference(&all.schema, &other.schema, rank) {
                let message = format!("the ranks have different columns: {difference}; cast or select them first");
                return Err(Failure::new(Code::InvalidRequest, message));
            }
            all.parts.extend(other.parts);
        }
        Ok(all)
    }

    /// Its columns.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// A plan that reads it. With an exchange, the ranks forget it with the last copy of that plan.
    pub(crate) fn plan(&self, forget: Option<&Arc<Exchange>>) -> QueryResult<LogicalPlan> {
        if let Some(exchange) = forget {
            exchange.remember();
        }
        let kept = Kept {
            id: self.id,
            parts: self.parts.clone(),
            exchange: forget.map_or_else(Weak::new, Arc::downgrade),
        };
        reading(Arc::clone(&self.schema), kept)
    }

    /// The rows of this rank.
    ///
    /// # Errors
    /// [`Code::StateLost`] if it has forgotten them.
    pub(crate) fn own_rows(&self, store: &Store) -> Result<Vec<RecordBatch>, Failure> {
        let locations = self.parts.iter().map(|part| part.location);
        let own = locations.filter(|location| location.rank == store.rank());
        let mut batches = Vec::new();
        for part in own {
            let rows = store.get(self.id, part.number)?;
            batches.extend(rows.into_iter().map(|batch| self.named(batch)));
        }
        Ok(batches)
    }

    /// The rows of all ranks.
    pub(crate) async fn all_rows(&self, store: &Store) -> QueryResult<Vec<RecordBatch>> {
        let mut all = Vec::new();
        for part in &self.parts {
            let Location { rank, number } = part.location;
            if rank == store.rank() {
                let rows = store.get(self.id, number);
                all.extend(rows.map_err(|failure| DataFusionError::External(failure.into()))?);
            } else {
                let rows = kept_rows(store.exchange(), rank, self.id, number);
                all.extend(rows.try_collect::<Vec<_>>().await?);
            }
        }
        Ok(all.into_iter().map(|batch| self.named(batch)).collect())
    }

    /// A batch with the schema of the frame. Tasks may know that a column has no nulls where the frame does not.
    fn named(&self, batch: RecordBatch) -> RecordBatch {
        with_schema(batch.clone(), &self.schema).unwrap_or(batch)
    }

    /// For another rank.
    ///
    /// # Errors
    /// If the schema cannot be written.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Failure> {
        let encoded = Encoded {
            id: self.id,
            schema: codec::encoded(&self.schema).map_err(|error| failure_of(&error))?,
            parts: self.parts.clone(),
        };
        rmp_serde::to_vec(&encoded).map_err(|error| Failure::new(Code::Internal, error.to_string()))
    }

    /// From another rank.
    ///
    /// # Errors
    /// [`Code::ProtocolViolation`] if these are not the bytes of [`KeptFrame::to_bytes`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Failure> {
        let violation = |what: String| Failure::new(Code::ProtocolViolation, format!("this is no kept frame: {what}"));
        let Encoded { id, schema, parts } =
            rmp_serde::from_slice(bytes).map_err(|error| violation(error.to_string()))?;
        let schema = codec::decoded(&schema).map_err(|error| violation(error.to_string()))?;
        Ok(Self { id, schema, parts })
    }
}

/// A text that equal plans of different ranks have in common: their operations, kept frames and files.
pub fn fingerprint(plan: &LogicalPlan) -> QueryResult<String> {
    let mut text = plan.display_indent_schema().to_string();
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node {
            let provider = source_as_provider(&scan.source)?;
            if let Some(table) = provider.downcast_ref::<KeptTable>() {
                text.push_str(&format!("\n{:?}", table.kept.id));
            } else if let Some(files) = provider.downcast_ref::<ListingTable>() {
                let paths = files.table_paths().iter();
                text.extend(paths.map(|path| format!("\n{path}")));
            }
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(text)
}

/// The names and types of columns. Metadata and whether there are nulls may differ between ranks.
fn plain(schema: &Schema) -> SchemaRef {
    let fields = schema.fields().iter();
    let fields = fields.map(|field| {
        field
            .as_ref()
            .clone()
            .with_nullable(true)
            .with_metadata(Default::default())
    });
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

fn with_schema(batch: RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::clone(schema), batch.columns().to_vec(), &options)
}

/// The first difference between the columns of rank 0 and those of another.
fn difference(first: &Schema, other: &Schema, rank: u32) -> Option<String> {
    let (own, theirs) = (first.fields(), other.fields());
    let differing = own.iter().zip(theirs).find(|(own, theirs)| own != theirs);
    match differing {
        Some((own, theirs)) if own.name() == theirs.name() => Some(format!(
            "{:?} is {} on rank 0 and {} on rank {rank}",
            own.name(),
            own.data_type(),
            theirs.data_type()
        )),
        Some((own, theirs)) => Some(format!(
            "rank 0 has {:?} where rank {rank} has {:?}",
            own.name(),
            theirs.name()
        )),
        None if own.len() != theirs.len() => Some(format!(
            "rank 0 has {} of them, and rank {rank} has {}",
            own.len(),
            theirs.len()
        )),
        None => None,
    }
}

/// Rows in as many parts as there are threads, if there are enough of them.
fn divided(batches: Vec<RecordBatch>, threads: usize) -> Vec<Vec<RecordBatch>> {
    let rows = batches.iter().map(RecordBatch::num_rows).sum::<usize>();
    let share = rows.div_ceil(threads.max(1)).max(MIN_PART_ROWS);
    let (mut parts, mut room) = (vec![Vec::new()], share);
    for mut batch in batches {
        while batch.num_rows() > 0 {
            if room == 0 {
                parts.push(Vec::new());
                room = share;
            }
            let taken = batch.num_rows().min(room);
            parts
                .last_mut()
                .expect("there is a first part")
                .push(batch.slice(0, taken));
            batch = batch.slice(taken, batch.num_rows() - taken);
            room -= taken;
        }
    }
    parts
}

/// Bytes of its own rows. Its buffers may have more.
fn bytes_of(batch: &RecordBatch) -> usize {
    let columns = batch.columns().iter();
    let bytes = columns.map(|column| column.to_data().get_slice_memory_size().unwrap_or_default());
    bytes.sum()
}

fn does_not_fit(rank: u32, bytes: usize) -> DataFusionError {
    let message = format!(
        "the memory of rank {rank} {CANNOT_KEEP}: {bytes} bytes of local rows need a larger bound, fewer rows or columns, or \
         more ranks"
    );
    DataFusionError::External(Box::new(Failure::new(Code::OutOfMemory, message)))
}
