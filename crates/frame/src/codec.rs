//! The nodes of this crate in plans that cross between ranks.

use std::io::Cursor;
use std::sync::Arc;

use datafusion::arrow::datatypes::Schema;
use datafusion::arrow::ipc::reader::StreamReader;
use datafusion::arrow::ipc::writer::StreamWriter;
use datafusion::common::{DataFusionError, Result as QueryResult, internal_err};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use datafusion_proto::physical_plan::{PhysicalExtensionCodec, PhysicalProtoConverterExtension};
use serde::{Deserialize, Serialize};

use crate::functions::items::ItemsExec;
use crate::functions::{MapCall, MapExec};
use crate::write::{Target, WriteExec};

/// A node without its input.
#[derive(Serialize, Deserialize)]
enum Node {
    Write(Target),
    Items {
        items: Vec<Vec<u8>>,
        partitions: usize,
    },
    Map {
        name: String,
        function: Vec<u8>,
        schema: Vec<u8>,
        batch_rows: usize,
    },
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
            Node::Items { items, partitions } => {
                let items = items.into_iter().map(Into::into).collect();
                Arc::new(ItemsExec::new(items, partitions))
            }
            Node::Map {
                name,
                function,
                schema,
                batch_rows,
            } => {
                let schema = StreamReader::try_new(Cursor::new(schema), None)?.schema();
                let call = MapCall {
                    name,
                    function,
                    schema,
                    batch_rows,
                };
                Arc::new(MapExec::new(input()?, call))
            }
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
        } else if let Some(leaf) = node.downcast_ref::<ItemsExec>() {
            Node::Items {
                items: leaf.items().iter().map(|item| item.to_vec()).collect(),
                partitions: leaf.partitions(),
            }
        } else if let Some(map) = node.downcast_ref::<MapExec>() {
            let MapCall {
                name,
                function,
                schema,
                batch_rows,
            } = map.call().clone();
            Node::Map {
                name,
                function,
                schema: encoded(&schema)?,
                batch_rows,
            }
        } else {
            return internal_err!("{} is no node of this crate", node.name());
        };
        rmp_serde::encode::write(bytes, &node).map_err(|error| DataFusionError::External(error.into()))
    }
}

/// A schema as a stream of Arrow's IPC format without batches.
fn encoded(schema: &Schema) -> QueryResult<Vec<u8>> {
    let mut bytes = Vec::new();
    StreamWriter::try_new(&mut bytes, schema)?.finish()?;
    Ok(bytes)
}
