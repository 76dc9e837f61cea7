//! Batches of rows in messages: a description, and their buffers as they lie in memory.
//!
//! Buffers are neither copied nor serialized, except those of slices and views, which would drag along what the batch
//! does not have. The receiver checks all offsets and lengths: its rows may come from a rank that is broken.

use std::io::Cursor;

use bytes::Bytes;
use datafusion::arrow::array::{
    Array, ArrayData, ArrayDataBuilder, ArrayRef, BinaryViewArray, MutableArrayData, RecordBatch, RecordBatchOptions,
    StringViewArray, make_array,
};
use datafusion::arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::ipc::reader::StreamReader;
use datafusion::arrow::ipc::writer::StreamWriter;
use dayfly_comm::post::MAX_PARTS;
use serde::{Deserialize, Serialize};

use super::error::ExchangeError;

/// A slice whose buffers hold this many times its rows is copied.
const MAX_WASTE: usize = 2;
/// Deepest nesting of a type.
const MAX_DEPTH: usize = 64;

/// What describes a batch.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    rows: u64,
    columns: Vec<Node>,
}

/// What describes an array. Its buffers are the next parts of the message.
#[derive(Debug, Serialize, Deserialize)]
struct Node {
    rows: u64,
    has_nulls: bool,
    buffers: u16,
    children: Vec<Node>,
}

/// A buffer as a part of a message.
struct Part(Buffer);

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        self.0.as_slice()
    }
}

/// The parts of a message with this batch. Those of several batches follow each other.
pub fn to_parts(batch: &RecordBatch) -> Result<Vec<Bytes>, ExchangeError> {
    let mut parts = vec![Bytes::new()];
    let mut columns = Vec::with_capacity(batch.num_columns());
    for column in batch.columns() {
        columns.push(describe(&compacted(column)?, &mut parts));
    }
    if parts.len() >= MAX_PARTS {
        return Err(ExchangeError::TooWide {
            columns: batch.num_columns(),
        });
    }
    let head = Head {
        rows: batch.num_rows() as u64,
        columns,
    };
    parts[0] = rmp_serde::to_vec(&head).expect("a description of plain numbers").into();
    Ok(parts)
}

/// A batch without what is not its own, and its bytes.
pub fn compact(batch: &RecordBatch) -> Result<(RecordBatch, usize), ArrowError> {
    let columns = batch.columns().iter().map(compacted).collect::<Result<Vec<_>, _>>()?;
    let bytes = columns.iter().map(bytes_in).sum();
    let columns = columns.into_iter().map(make_array).collect();
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    let compact = RecordBatch::try_new_with_options(batch.schema(), columns, &options)?;
    Ok((compact, bytes))
}

fn describe(data: &ArrayData, parts: &mut Vec<Bytes>) -> Node {
    let nulls = data.nulls().filter(|nulls| nulls.null_count() > 0);
    if let Some(nulls) = nulls {
        parts.push(bytes_of(nulls.inner().sliced()));
    }
    for buffer in data.buffers() {
        parts.push(bytes_of(buffer.clone()));
    }
    Node {
        rows: data.len() as u64,
        has_nulls: nulls.is_some(),
        buffers: u16::try_from(data.buffers().len()).unwrap_or(u16::MAX),
        children: data.child_data().iter().map(|child| describe(child, parts)).collect(),
    }
}

fn bytes_of(buffer: Buffer) -> Bytes {
    Bytes::from_owner(Part(buffer))
}

/// An array without what its batch does not have.
fn compacted(array: &ArrayRef) -> Result<ArrayData, ArrowError> {
    if let Some(views) = array.as_any().downcast_ref::<StringViewArray>() {
        return Ok(views.gc().to_data());
    }
    if let Some(views) = array.as_any().downcast_ref::<BinaryViewArray>() {
        return Ok(views.gc().to_data());
    }
    let data = array.to_data();
    let needed = data.get_slice_memory_size().unwrap_or(usize::MAX);
    let has_offset = data.offset() > 0 || data.child_data().iter().any(|child| child.offset() > 0);
    if !has_offset && bytes_in(&data) <= needed.saturating_mul(MAX_WASTE) {
        return Ok(data);
    }
    let mut copy = MutableArrayData::new(vec![&data], false, data.len());
    copy.try_extend(0, 0, data.len())?;
    Ok(copy.freeze())
}

/// Bytes that an array would send. Memory that its buffers share with others, as those of a file do, does not count.
fn bytes_in(data: &ArrayData) -> usize {
    let own = data.buffers().iter().map(Buffer::len).sum::<usize>();
    own + data.child_data().iter().map(bytes_in).sum::<usize>()
}

/// A schema as a part of a message: an Arrow stream without batches.
pub fn schema_part(schema: &SchemaRef) -> Result<Bytes, ArrowError> {
    let mut writer = StreamWriter::try_new(Vec::new(), schema)?;
    writer.finish()?;
    Ok(writer.into_inner()?.into())
}

/// The schema in a message.
pub fn schema_of(parts: &[Bytes]) -> Result<SchemaRef, ArrowError> {
    let part = parts.first().cloned().unwrap_or_default();
    Ok(StreamReader::try_new(Cursor::new(part), None)?.schema())
}

/// The batches in a message.
pub fn from_parts(parts: &[Bytes], schema: &SchemaRef) -> Result<Vec<RecordBatch>, ArrowError> {
    let mut parts = parts.iter();
    let mut batches = vec![next_batch(&mut parts, schema)?];
    while !parts.as_slice().is_empty() {
        batches.push(next_batch(&mut parts, schema)?);
    }
    Ok(batches)
}

/// The batch that begins at the next part.
fn next_batch(parts: &mut std::slice::Iter<'_, Bytes>, schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    let malformed = |what: &str| ArrowError::IpcError(what.to_owned());
    let head = parts.next().map_or(&[][..], |head| head);
    let head: Head = rmp_serde::from_slice(head).map_err(|error| malformed(&error.to_string()))?;
    if head.columns.len() != schema.fields().len() {
        return Err(malformed("a batch with other columns than its schema"));
    }
    let columns = head.columns.iter().zip(schema.fields());
    let columns = columns.map(|(node, field)| {
        let data = rebuild(node, field.data_type(), parts, 0)?;
        Ok(make_array(data))
    });
    let columns = columns.collect::<Result<Vec<_>, ArrowError>>()?;
    let rows = usize::try_from(head.rows).map_err(|_| malformed("a batch with too many rows"))?;
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(schema.clone(), columns, &options)
}

fn rebuild(
    node: &Node,
    data_type: &DataType,
    buffers: &mut std::slice::Iter<'_, Bytes>,
    depth: usize,
) -> Result<ArrayData, ArrowError> {
    let malformed = |what: &str| ArrowError::IpcError(what.to_owned());
    let rows = usize::try_from(node.rows).map_err(|_| malformed("an array with too many rows"))?;
    let mut next = || {
        let part = buffers
            .next()
            .ok_or_else(|| malformed("a batch without all of its buffers"))?;
        Ok::<_, ArrowError>(Buffer::from(part.clone()))
    };
    let mut builder = ArrayDataBuilder::new(data_type.clone()).len(rows);
    if node.has_nulls {
        let bits = next()?;
        if bits.len() < rows.div_ceil(8) {
            return Err(malformed("an array with too few bits for its nulls"));
        }
        builder = builder.nulls(Some(NullBuffer::new(BooleanBuffer::new(bits, 0, rows))));
    }
    for _ in 0..node.buffers {
        builder = builder.add_buffer(next()?);
    }
    let types = children_of(data_type);
    if types.len() != node.children.len() || depth >= MAX_DEPTH {
        return Err(malformed("an array with other children than its type"));
    }
    for (child, child_type) in node.children.iter().zip(types) {
        builder = builder.add_child_data(rebuild(child, child_type, buffers, depth + 1)?);
    }
    // Buffers of messages begin at multiples of 64 bytes.
    builder.build()
}

/// The types of an array's children.
fn children_of(data_type: &DataType) -> Vec<&DataType> {
    match data_type {
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::ListView(field)
        | DataType::LargeListView(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _) => vec![field.data_type()],
        DataType::Struct(fields) => fields.iter().map(|field| field.data_type()).collect(),
        DataType::Union(fields, _) => fields.iter().map(|(_, field)| field.data_type()).collect(),
        DataType::Dictionary(_, values) => vec![values],
        DataType::RunEndEncoded(ends, values) => vec![ends.data_type(), values.data_type()],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
