//! The nodes of this crate in plans that cross between ranks.

use std::io::Cursor;
use std::sync::Arc;

use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::arrow::ipc::reader::StreamReader;
use datafusion::arrow::ipc::writer::StreamWriter;
use datafusion::common::{DataFusionError, Result as QueryResult, internal_err};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use datafusion_proto::physical_plan::{PhysicalExtensionCodec, PhysicalProtoConverterExtension};
use serde::{Deserialize, Serialize};

use crate::functions::items::ItemsExec;
use crate::functions::{MapCall, MapExec};
use crate::kept::{FrameId, KeepExec, KeptExec, Part, Rows};
use crate::ranges::{InOrderExec, RangesExec, Spec};
use crate::repartition::{Keys, RepartitionedExec};
use crate::write::{Target, WriteExec};

/// A node without its input.
#[derive(Serialize, Deserialize)]
enum Node {
    Write(Target),
    Keep(FrameId),
    Repartitioned(Vec<usize>),
    Ranges(Spec),
    InOrder,
    Kept {
        id: FrameId,
        parts: Vec<Part>,
        schema: Vec<u8>,
        projection: Option<Vec<usize>>,
        partitions: usize,
    },
    Items {
        items: Vec<Vec<u8>>,
        partitions: usize,
    },
    Map(MapCall),
}

/// Encodes and decodes the nodes of this crate.
#[derive(Debug)]
pub struct NodeCodec;

impl PhysicalExtensionCodec for NodeCodec {
    fn try_decode(
        &self,
        bytes: &[u8],
        inputs: &[Arc<dyn ExecutionPlan>],
        _: &TaskContext,
        _: &dyn PhysicalProtoConverterExtension,
    ) -> QueryResult<Arc<dyn ExecutionPlan>> {
        let node = rmp_serde::from_slice(bytes).map_err(|error| DataFusionError::External(error.into()))?;
        let input = || match inputs {
            [input] => Ok(Arc::clone(input)),
            _ => internal_err!("a node has one input, not {}", inputs.len()),
        };
        Ok(match node {
            Node::Write(target) => Arc::new(WriteExec::new(input()?, target)),
            Node::Keep(id) => Arc::new(KeepExec::new(input()?, id)),
            Node::Ranges(spec) => Arc::new(RangesExec::try_new(input()?, spec)?),
            Node::InOrder => Arc::new(InOrderExec::new(input()?)),
            Node::Repartitioned(keys) => {
                let input = input()?;
                if keys.iter().any(|key| *key >= input.schema().fields().len()) {
                    return internal_err!("rows are repartitioned by a column that they do not have");
                }
                Arc::new(RepartitionedExec::new(input, Keys(keys)))
            }
            Node::Kept {
                id,
                parts,
                schema,
                projection,
                partitions,
            } => {
                let rows = Rows {
                    id,
                    parts,
                    schema: decoded(&schema)?,
                    projection,
                    partitions,
                };
                Arc::new(KeptExec::new(rows, None)?)
            }
            Node::Items { items, partitions } => {
                let items = items.into_iter().map(Into::into).collect();
                Arc::new(ItemsExec::new(items, partitions))
            }
            Node::Map(call) => Arc::new(MapExec::new(input()?, call)),
        })
    }

    fn try_encode(
        &self,
        node: Arc<dyn ExecutionPlan>,
        bytes: &mut Vec<u8>,
        _: &dyn PhysicalProtoConverterExtension,
    ) -> QueryResult<()> {
        let node = if let Some(write) = node.downcast_ref::<WriteExec>() {
            Node::Write(write.target().clone())
        } else if let Some(keep) = node.downcast_ref::<KeepExec>() {
            Node::Keep(keep.id())
        } else if let Some(repartitioned) = node.downcast_ref::<RepartitionedExec>() {
            Node::Repartitioned(repartitioned.passage().0.clone())
        } else if let Some(ranges) = node.downcast_ref::<RangesExec>() {
            Node::Ranges(ranges.spec().clone())
        } else if node.is::<InOrderExec>() {
            Node::InOrder
        } else if let Some(kept) = node.downcast_ref::<KeptExec>() {
            let Rows {
                id,
                parts,
                schema,
                projection,
                partitions,
            } = kept.rows().clone();
            Node::Kept {
                id,
                parts,
                schema: encoded(&schema)?,
                projection,
                partitions,
            }
        } else if let Some(leaf) = node.downcast_ref::<ItemsExec>() {
            Node::Items {
                items: leaf.items().iter().map(|item| item.to_vec()).collect(),
                partitions: leaf.partitions(),
            }
        } else if let Some(map) = node.downcast_ref::<MapExec>() {
            Node::Map(map.call().clone())
        } else {
            return internal_err!("{} is no node of this crate", node.name());
        };
        rmp_serde::encode::write(bytes, &node).map_err(|error| DataFusionError::External(error.into()))
    }
}

/// The schema of such a stream.
pub fn decoded(bytes: &[u8]) -> QueryResult<SchemaRef> {
    Ok(StreamReader::try_new(Cursor::new(bytes), None)?.schema())
}

/// A schema as a stream of Arrow's IPC format without batches.
pub fn encoded(schema: &Schema) -> QueryResult<Vec<u8>> {
    let mut bytes = Vec::new();
    StreamWriter::try_new(&mut bytes, schema)?.finish()?;
    Ok(bytes)
}

/// A field with a schema in values that serde encodes.
pub mod schema_field {
    use datafusion::arrow::datatypes::SchemaRef;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

    /// Encodes a schema.
    ///
    /// # Errors
    /// Of Arrow and of the format.
    pub fn serialize<S: Serializer>(schema: &SchemaRef, to: S) -> Result<S::Ok, S::Error> {
        super::encoded(schema).map_err(ser::Error::custom)?.serialize(to)
    }

    /// Decodes a schema.
    ///
    /// # Errors
    /// Of bytes that are no schema.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SchemaRef, D::Error> {
        super::decoded(&Vec::<u8>::deserialize(from)?).map_err(de::Error::custom)
    }
}
