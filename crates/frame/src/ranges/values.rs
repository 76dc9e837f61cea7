//! Values by which DataFusion's exchange of hashed rows sends rows to chosen partitions.

use std::sync::Arc;

use datafusion::arrow::array::{RecordBatch, UInt32Array};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::cast::as_uint32_array;
use datafusion::common::{Result as QueryResult, exec_datafusion_err};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::metrics::Time;
use datafusion::physical_plan::repartition::BatchPartitioner;

/// Values that are tried at once.
const BLOCK: u32 = 1_024;

/// For each of so many partitions, a value whose hash is that of the partition.
///
/// # Errors
/// Of DataFusion, by a defect only.
pub fn values_of(partitions: usize) -> QueryResult<Vec<u32>> {
    let schema = Arc::new(Schema::new(vec![Field::new("value", DataType::UInt32, false)]));
    let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new("value", 0));
    let mut partitioner = BatchPartitioner::new_hash_partitioner(vec![column], partitions, Time::new())?;
    let mut found: Vec<Option<u32>> = vec![None; partitions];
    let mut first = 0u32;
    while found.iter().any(Option::is_none) {
        let end = first.checked_add(BLOCK);
        let end = end.ok_or_else(|| exec_datafusion_err!("no value has the hash of some partition"))?;
        let block = Arc::new(UInt32Array::from_iter_values(first..end));
        let batch = RecordBatch::try_new(Arc::clone(&schema), vec![block])?;
        partitioner.partition(batch, |partition, rows| {
            let values = as_uint32_array(rows.column(0))?.values();
            if let Some(place) = found.get_mut(partition).filter(|place| place.is_none()) {
                *place = values.first().copied();
            }
            Ok(())
        })?;
        first = end;
    }
    Ok(found.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_hashes_of_their_partitions() {
        for partitions in [1, 2, 3, 8, 61] {
            let values = values_of(partitions).unwrap();
            assert_eq!(values.len(), partitions);
            let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new("value", 0));
            let mut partitioner =
                BatchPartitioner::new_hash_partitioner(vec![column], partitions, Time::new()).unwrap();
            let schema = Arc::new(Schema::new(vec![Field::new("value", DataType::UInt32, false)]));
            for (expected, value) in values.into_iter().enumerate() {
                let column = Arc::new(UInt32Array::from(vec![value]));
                let batch = RecordBatch::try_new(Arc::clone(&schema), vec![column]).unwrap();
                let sent = partitioner.partition(batch, |partition, rows| {
                    assert!(partition == expected || rows.num_rows() == 0);
                    Ok(())
                });
                sent.unwrap();
            }
        }
    }
}
