use datafusion::arrow::array::{ArrayRef, Int64Array};
use dayfly_protocol::error::Code;
use futures_util::TryStreamExt;

use super::*;
use crate::error::failure_of;
use crate::memory::{Memory, Spill};
use crate::stores::StoreOptions;

const BATCHES: i64 = 8;
const ROWS: i64 = 1_000;

fn batch(number: i64) -> RecordBatch {
    let values: ArrayRef = Arc::new(Int64Array::from_iter_values(number * ROWS..(number + 1) * ROWS));
    RecordBatch::try_from_iter([("value", values)]).unwrap()
}

fn environment(bytes: Option<u64>, spill: Option<Spill>) -> Arc<RuntimeEnv> {
    Memory { bytes, spill }.environment(&StoreOptions::default()).unwrap()
}

fn held(environment: &Arc<RuntimeEnv>) -> Result<Arc<Held>> {
    let mut holder = Holder::new(environment, batch(0).schema(), "held");
    for number in 0..BATCHES {
        holder.push(batch(number), (ROWS * 8) as usize)?;
    }
    holder.finish().map(Arc::new)
}

async fn values(held: &Arc<Held>) -> Vec<i64> {
    let batches: Vec<RecordBatch> = held.rows().unwrap().try_collect().await.unwrap();
    let values = batches.iter().flat_map(|batch| {
        let column = batch.column(0).as_any().downcast_ref::<Int64Array>().unwrap();
        column.values().to_vec()
    });
    values.collect()
}

#[tokio::test]
async fn held_rows_are_read_twice_in_order() {
    let disk = tempfile::tempdir().unwrap();
    let spill = Spill {
        directory: disk.path().to_owned(),
        bytes: None,
    };
    // The second one has room for some of the batches only.
    for environment in [environment(None, None), environment(Some(80_000), Some(spill))] {
        let held = held(&environment).unwrap();
        let expected: Vec<i64> = (0..BATCHES * ROWS).collect();
        assert_eq!(values(&held).await, expected);
        assert_eq!(values(&held).await, expected);
        drop(held);
        assert_eq!(environment.memory_pool.reserved(), 0);
    }
}

#[tokio::test]
async fn rows_beyond_memory_need_a_disk() {
    let error = held(&environment(Some(80_000), None)).err().unwrap();
    let failure = Memory::default().explain(failure_of(&error));
    assert_eq!(failure.code, Code::SpillRefused);
}
