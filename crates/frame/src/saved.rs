//! Plans as bytes: what a program writes after its session, and even the program itself, have ended.

use std::io::Cursor;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::ipc::reader::StreamReader;
use datafusion::arrow::ipc::writer::StreamWriter;
use datafusion::catalog::{MemTable, TableProvider};
use datafusion::common::{DataFusionError, Result as QueryResult, TableReference, exec_err, plan_err};
use datafusion::execution::TaskContext;
use datafusion::logical_expr::{Extension, LogicalPlan};
use datafusion::prelude::SessionContext;
use datafusion_proto::bytes::{
    logical_plan_from_bytes_with_extension_codec, logical_plan_to_bytes_with_extension_codec,
};
use datafusion_proto::logical_plan::LogicalExtensionCodec;
use serde::{Deserialize, Serialize};

use crate::functions::MapCall;
use crate::functions::items::{Items, table_of};
use crate::operation::{Operation, as_extension, operation_of};
use crate::repartition::Repartition;
use crate::sorted_join::SortedJoin;

/// Most bytes of a plan. More are in tables of the program's own memory, which belong in a file.
const MAX_PLAN_BYTES: usize = 64 << 20;

/// A plan as bytes, for [`restored`].
///
/// # Errors
/// If the plan reads rows that a session keeps, or is too large.
pub fn saved(context: &SessionContext, plan: &LogicalPlan) -> QueryResult<Vec<u8>> {
    // Subqueries have no form as bytes. Those of an optimized plan have become joins.
    let plan = context.state().optimize(plan)?;
    let bytes = logical_plan_to_bytes_with_extension_codec(&plan, &PlanCodec)?;
    if bytes.len() > MAX_PLAN_BYTES {
        return plan_err!(
            "the frame holds {} MiB of rows of this program, and {} MiB can go along: write them to a file first",
            bytes.len() >> 20,
            MAX_PLAN_BYTES >> 20
        );
    }
    Ok(bytes.to_vec())
}

/// A plan that [`saved`] returned. It reads the files that are there now.
///
/// # Errors
/// If the bytes are no such plan.
pub fn restored(context: &SessionContext, bytes: &[u8]) -> QueryResult<LogicalPlan> {
    logical_plan_from_bytes_with_extension_codec(bytes, &context.task_ctx(), &PlanCodec)
}

/// A node of this crate, without its input.
#[derive(Serialize, Deserialize)]
enum Node {
    Map(MapCall),
    Repartition(Vec<String>),
    SortedJoin,
}

/// A table that is no scan of files.
#[derive(Serialize, Deserialize)]
enum Table {
    /// Partitions, each a stream of Arrow's IPC format.
    Memory(Vec<Vec<u8>>),
    Items(Vec<Vec<u8>>),
}

#[derive(Debug)]
struct PlanCodec;

impl LogicalExtensionCodec for PlanCodec {
    fn try_decode(&self, bytes: &[u8], inputs: &[LogicalPlan], _: &TaskContext) -> QueryResult<Extension> {
        let [input] = inputs else {
            return plan_err!("a node has one input, not {}", inputs.len());
        };
        match unpacked(bytes)? {
            Node::Map(call) => as_extension(call, input.clone()),
            Node::SortedJoin => as_extension(SortedJoin, input.clone()),
            Node::Repartition(keys) => as_extension(Repartition::by(keys), input.clone()),
        }
    }

    fn try_encode(&self, node: &Extension, bytes: &mut Vec<u8>) -> QueryResult<()> {
        let node = node.node.as_ref();
        let kept = if let Some(call) = operation_of::<MapCall>(node) {
            Node::Map(call.clone())
        } else if let Some(repartition) = operation_of::<Repartition>(node) {
            Node::Repartition(repartition.keys().to_vec())
        } else if operation_of::<SortedJoin>(node).is_some() {
            Node::SortedJoin
        } else {
            return plan_err!("the operation {} ends with its session", node.name());
        };
        packed(&kept, bytes)
    }

    fn try_decode_table_provider(
        &self,
        bytes: &[u8],
        _: &TableReference,
        schema: SchemaRef,
        _: &TaskContext,
    ) -> QueryResult<Arc<dyn TableProvider>> {
        Ok(match unpacked(bytes)? {
            Table::Memory(partitions) => {
                let partitions = partitions
                    .iter()
                    .map(|bytes| batches_of(bytes))
                    .collect::<QueryResult<_>>()?;
                Arc::new(MemTable::try_new(schema, partitions)?)
            }
            Table::Items(items) => table_of(items.into_iter().map(Into::into).collect()),
        })
    }

    fn try_encode_table_provider(
        &self,
        _: &TableReference,
        table: Arc<dyn TableProvider>,
        bytes: &mut Vec<u8>,
    ) -> QueryResult<()> {
        let kept = if let Some(table) = table.downcast_ref::<MemTable>() {
            let mut partitions = Vec::new();
            for partition in &table.batches {
                // Nobody inserts into tables of frames, so nobody has the lock for writing.
                let Ok(batches) = partition.try_read() else {
                    return exec_err!("a table of the frame changes now");
                };
                partitions.push(stream_of(&table.schema(), &batches)?);
            }
            Table::Memory(partitions)
        } else if let Some(items) = table.downcast_ref::<Items>() {
            Table::Items(items.0.iter().map(|item| item.to_vec()).collect())
        } else {
            return plan_err!(
                "the frame reads rows that its session keeps, which end with it: write them to files first"
            );
        };
        packed(&kept, bytes)
    }
}

fn packed(value: &impl Serialize, bytes: &mut Vec<u8>) -> QueryResult<()> {
    rmp_serde::encode::write(bytes, value).map_err(|error| DataFusionError::External(error.into()))
}

fn unpacked<T: for<'a> Deserialize<'a>>(bytes: &[u8]) -> QueryResult<T> {
    rmp_serde::from_slice(bytes).map_err(|error| DataFusionError::External(error.into()))
}

fn stream_of(schema: &SchemaRef, batches: &[RecordBatch]) -> QueryResult<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut writer = StreamWriter::try_new(&mut bytes, schema)?;
    for batch in batches {
        writer.write(batch)?;
    }
    writer.finish()?;
    drop(writer);
    Ok(bytes)
}

fn batches_of(bytes: &[u8]) -> QueryResult<Vec<RecordBatch>> {
    let batches = StreamReader::try_new(Cursor::new(bytes), None)?;
    Ok(batches.collect::<Result<_, _>>()?)
}
