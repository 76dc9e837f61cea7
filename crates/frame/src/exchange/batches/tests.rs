use std::sync::Arc;

use datafusion::arrow::array::{
    BooleanArray, DictionaryArray, Float64Array, Int64Array, ListArray, StringArray, StructArray,
};
use datafusion::arrow::buffer::ScalarBuffer;
use datafusion::arrow::datatypes::{Field, Int32Type, Int64Type, Schema};

use super::*;

fn batch() -> RecordBatch {
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(3), Some(4)]));
    let words: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), Some(""), None, Some("längst")]));
    let views: ArrayRef = Arc::new(StringViewArray::from(vec![
        "short",
        "a text that is longer than a view",
        "",
        "x",
    ]));
    let truths: ArrayRef = Arc::new(BooleanArray::from(vec![Some(true), None, Some(false), Some(true)]));
    let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(vec![
        Some(vec![Some(1), None]),
        None,
        Some(vec![]),
        Some(vec![Some(4)]),
    ]));
    let tags: ArrayRef = Arc::new(["x", "y", "x", "x"].into_iter().collect::<DictionaryArray<Int32Type>>());
    let pairs: ArrayRef = Arc::new(StructArray::from(vec![(
        Arc::new(Field::new("part", DataType::Float64, true)),
        Arc::new(Float64Array::from(vec![0.5, f64::NAN, -0.0, f64::INFINITY])) as ArrayRef,
    )]));
    RecordBatch::try_from_iter_with_nullable([
        ("numbers", numbers, true),
        ("words", words, true),
        ("views", views, true),
        ("truths", truths, true),
        ("lists", lists, true),
        ("tags", tags, true),
        ("pairs", pairs, true),
    ])
    .unwrap()
}

fn there_and_back(batch: &RecordBatch) -> RecordBatch {
    let schema = schema_of(&[schema_part(&batch.schema()).unwrap()]).unwrap();
    assert_eq!(schema, batch.schema());
    let [arrived] = from_parts(&to_parts(batch).unwrap(), &schema)
        .unwrap()
        .try_into()
        .unwrap();
    arrived
}

#[test]
fn batch_is_the_same_after_its_way() {
    let batch = batch();
    assert_eq!(there_and_back(&batch), batch);
}

#[test]
fn batches_of_one_message_arrive_in_order() {
    let batch = batch();
    let all = [batch.clone(), batch.slice(1, 2), batch.slice(0, 0), batch.slice(3, 1)];
    let parts: Vec<Bytes> = all.iter().flat_map(|batch| to_parts(batch).unwrap()).collect();
    assert_eq!(from_parts(&parts, &batch.schema()).unwrap(), all);
    let without_columns = RecordBatchOptions::new().with_row_count(Some(7));
    let bare = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), vec![], &without_columns).unwrap();
    let parts = [to_parts(&bare).unwrap(), to_parts(&bare).unwrap()].concat();
    assert_eq!(from_parts(&parts, &bare.schema()).unwrap(), [bare.clone(), bare]);
}

#[test]
fn slices_are_the_same_after_their_way() {
    let batch = batch();
    for from in 0..=batch.num_rows() {
        for rows in 0..=batch.num_rows() - from {
            let slice = batch.slice(from, rows);
            assert_eq!(there_and_back(&slice), slice, "{rows} rows from {from}");
        }
    }
}

#[test]
fn batch_without_columns_keeps_its_rows() {
    let options = RecordBatchOptions::new().with_row_count(Some(7));
    let batch = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), vec![], &options).unwrap();
    assert_eq!(there_and_back(&batch).num_rows(), 7);
}

#[test]
fn buffers_travel_as_they_lie() {
    let numbers = Int64Array::from_iter_values(0..10_000);
    let place = numbers.values().as_ptr().cast::<u8>();
    let batch = RecordBatch::try_from_iter([("numbers", Arc::new(numbers) as ArrayRef)]).unwrap();
    let parts = to_parts(&batch).unwrap();
    assert_eq!((parts.len(), parts[1].as_ptr()), (2, place));
    let arrived = from_parts(&parts, &batch.schema()).unwrap();
    assert_eq!(arrived[0].column(0).to_data().buffers()[0].as_ptr(), place);
}

#[test]
fn buffers_of_one_allocation_travel_as_they_lie() {
    // As the columns of a batch that was read from a file.
    let whole = Buffer::from_vec((0..400i64).collect::<Vec<_>>());
    let columns = (0..4).map(|number| {
        let values = ScalarBuffer::new(whole.clone(), number * 100, 100);
        (number.to_string(), Arc::new(Int64Array::new(values, None)) as ArrayRef)
    });
    let parts = to_parts(&RecordBatch::try_from_iter(columns).unwrap()).unwrap();
    let places = parts[1..].iter().map(|part| part.as_ptr());
    let expected = (0..4).map(|number| whole[number * 800..].as_ptr());
    assert!(places.eq(expected), "columns are copied");
}

#[test]
fn small_slice_leaves_its_large_rest_behind() {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100_000));
    let batch = RecordBatch::try_from_iter([("numbers", numbers)])
        .unwrap()
        .slice(50_000, 10);
    let bytes: usize = to_parts(&batch).unwrap().iter().map(Bytes::len).sum();
    assert!(bytes < 1_000, "{bytes}");
}

#[test]
fn malformed_batches_are_refused() {
    let batch = batch();
    let schema = batch.schema();
    let parts = to_parts(&batch).unwrap();
    for at in 0..parts.len() {
        let mut fewer = parts.clone();
        fewer.remove(at);
        assert!(from_parts(&fewer, &schema).is_err(), "without part {at}");
        let mut shorter = parts.clone();
        shorter[at] = shorter[at].slice(..shorter[at].len() / 2);
        let result = from_parts(&shorter, &schema);
        assert!(
            result.is_err() || result.unwrap() == [batch.clone()],
            "half of part {at}"
        );
    }
    let mut more = parts.clone();
    more.push(Bytes::from_static(b"more"));
    assert!(from_parts(&more, &schema).is_err());
    assert!(from_parts(&[], &schema).is_err());
    let words = 4;
    let mut wild = parts;
    wild[words] = Bytes::from(vec![0xff; wild[words].len()]);
    assert!(from_parts(&wild, &schema).is_err(), "offsets that lead nowhere");
}
