//! Ranks sort ranges of keys: the order is that of one process.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use dayfly_frame::{
    Format, Memory, Output, RankOptions, Session, SessionOptions, SortColumn, Spill, explain, serve, write,
};

use crate::thread_group::{Net, group, options};
use crate::{files_below, write_file};

const FILES: i64 = 6;
const ROWS: i64 = 3_000;

/// Each has one order.
const QUERIES: [&str; 13] = [
    "SELECT * FROM numbers ORDER BY number",
    "SELECT * FROM numbers ORDER BY key, number DESC",
    "SELECT * FROM numbers ORDER BY key DESC NULLS LAST, number",
    "SELECT number FROM numbers ORDER BY key DESC NULLS FIRST, text NULLS FIRST, number",
    "SELECT number, text FROM numbers ORDER BY text DESC, number",
    "SELECT heavy, number FROM numbers ORDER BY heavy, number",
    // Nine rows of ten are equal.
    "SELECT heavy FROM numbers ORDER BY heavy",
    "SELECT float, number FROM numbers ORDER BY float, number",
    "SELECT float, number FROM numbers ORDER BY float DESC NULLS LAST, number DESC",
    "SELECT number, key FROM numbers ORDER BY number % 7 DESC, text, number",
    "SELECT number FROM numbers WHERE key > 3 ORDER BY abs(key - 300), number OFFSET 100",
    "SELECT text, count(*) AS rows FROM numbers GROUP BY text ORDER BY rows DESC, text",
    "SELECT a.number, b.text FROM numbers a JOIN numbers b ON a.number = b.key ORDER BY b.text NULLS FIRST, a.number, b.number",
];

fn columns(numbers: std::ops::Range<i64>) -> RecordBatch {
    let all = || numbers.clone();
    let key = |number: i64| (number % 11 > 0).then_some(number * 7_919 % 601);
    let text = |number: i64| (number % 7 > 0).then(|| format!("text {}", number * 104_729 % 1_037));
    let heavy = |number: i64| if number % 10 > 0 { 42 } else { number % 100 };
    let float = |number: i64| match number % 9 {
        0 => None,
        1 => Some(f64::NAN),
        2 => Some(-0.0),
        3 => Some(0.0),
        4 => Some(f64::INFINITY),
        _ => Some((number * 7_919 % 601) as f64 - 300.0),
    };
    let columns: [(&str, ArrayRef); 5] = [
        ("number", Arc::new(Int64Array::from_iter_values(all()))),
        ("key", Arc::new(Int64Array::from_iter(all().map(key)))),
        ("text", Arc::new(StringArray::from_iter(all().map(text)))),
        ("heavy", Arc::new(Int64Array::from_iter_values(all().map(heavy)))),
        ("float", Arc::new(Float64Array::from_iter(all().map(float)))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).unwrap()
}

async fn write_numbers(place: &Path) {
    let context = SessionContext::new();
    for file in 0..FILES {
        let batch = columns(file * ROWS..(file + 1) * ROWS);
        write_file(&context, batch, &place.join(format!("numbers/{file}.parquet"))).await;
    }
}

async fn register(context: &SessionContext, place: &Path) {
    let path = place.join("numbers");
    let options = ParquetReadOptions::default();
    context
        .register_parquet("numbers", path.to_str().unwrap(), options)
        .await
        .unwrap();
}

/// Runs a body with a session of so many ranks, with one of a single process, and with the place of the files.
fn with_session(
    workers: u32,
    min_sorted_rows: usize,
    body: impl AsyncFn(&SessionContext, &SessionContext, &Path) + Sync,
) {
    let place = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(write_numbers(place.path()));
    group(workers + 1, Net::Shm, options(), |comm| {
        if comm.rank() < workers {
            serve(&comm, &RankOptions::default()).unwrap();
            return;
        }
        let options = SessionOptions {
            partition_bytes: 2 << 10,
            min_sorted_rows,
            ..SessionOptions::default()
        };
        let session = Session::of(&comm, &options).unwrap();
        session.runtime().block_on(async {
            let alone = SessionContext::new();
            for context in [session.context(), &alone] {
                register(context, place.path()).await;
            }
            body(session.context(), &alone, place.path()).await;
        });
    });
}

async fn rows(context: &SessionContext, query: &str) -> Vec<String> {
    let batches = context.sql(query).await.unwrap().collect().await;
    let batches = batches.unwrap_or_else(|error| panic!("{query}: {error}"));
    lines(&batches)
}

fn lines(batches: &[RecordBatch]) -> Vec<String> {
    let text = pretty_format_batches(batches).unwrap().to_string();
    text.lines().map(str::to_owned).collect()
}

async fn plan_text(context: &SessionContext, query: &str) -> String {
    let frame = context.sql(query).await.unwrap();
    explain(context, frame.into_unoptimized_plan()).await.unwrap()
}

#[test]
fn sorted_ranges_have_the_order_of_one_process() {
    for workers in [2, 3, 5] {
        with_session(workers, 0, async |ranks, alone, _| {
            for query in QUERIES {
                let plan = plan_text(ranks, query).await;
                for expected in ["RangesExec: keys=", "InOrderExec: ["] {
                    assert!(plan.contains(expected), "{query}\n{plan}");
                }
                assert!(!plan.contains("OneRankExec"), "{query}\n{plan}");
                let (found, expected) = (rows(ranks, query).await, rows(alone, query).await);
                let first = found
                    .iter()
                    .zip(&expected)
                    .position(|(found, expected)| found != expected);
                assert!(found == expected, "{query}, {workers} ranks, row {first:?}\n{plan}");
            }
        });
    }
}

#[test]
fn empty_and_single_rows_are_sorted() {
    with_session(3, 0, async |ranks, alone, _| {
        for query in [
            "SELECT number FROM numbers WHERE key < 0 ORDER BY number",
            "SELECT number FROM numbers WHERE key + number = 7919 * 5 % 601 + 5 ORDER BY number",
        ] {
            assert!(plan_text(ranks, query).await.contains("RangesExec"), "{query}");
            assert_eq!(rows(ranks, query).await, rows(alone, query).await, "{query}");
        }
    });
}

#[test]
fn limits_keep_their_short_path() {
    with_session(3, 0, async |ranks, alone, _| {
        let query = "SELECT * FROM numbers ORDER BY text, number LIMIT 10 OFFSET 3";
        let plan = plan_text(ranks, query).await;
        assert!(!plan.contains("RangesExec") && plan.contains("TopK"), "{plan}");
        assert_eq!(rows(ranks, query).await, rows(alone, query).await);
    });
}

#[test]
fn few_rows_are_merged_on_one_rank() {
    with_session(3, 100_000, async |ranks, alone, _| {
        let plan = plan_text(ranks, QUERIES[0]).await;
        assert!(
            !plan.contains("RangesExec") && plan.contains("SortPreservingMergeExec"),
            "{plan}"
        );
        assert_eq!(rows(ranks, QUERIES[0]).await, rows(alone, QUERIES[0]).await);
    });
}

/// The rows of the files that a manifest names, one file after the other.
async fn rows_of_files(directory: &Path, paths: &[String]) -> Vec<String> {
    let mut batches = Vec::new();
    for path in paths {
        // One partition reads a file from its beginning to its end.
        let config = datafusion::prelude::SessionConfig::new().with_target_partitions(1);
        let context = SessionContext::new_with_config(config);
        let path = directory.join(path);
        let file = context.read_parquet(path.to_str().unwrap(), ParquetReadOptions::default());
        batches.extend(file.await.unwrap().collect().await.unwrap());
    }
    lines(&batches)
}

#[test]
fn written_files_keep_the_order() {
    with_session(3, 0, async |ranks, alone, place| {
        for (name, query, least) in [
            (
                "all",
                "SELECT key, number FROM numbers ORDER BY key DESC NULLS LAST, number",
                4,
            ),
            (
                "some",
                "SELECT key, number FROM numbers ORDER BY key DESC NULLS LAST, number LIMIT 50",
                1,
            ),
        ] {
            let directory = place.join(name);
            let output = Output {
                directory: directory.to_str().unwrap().to_owned(),
                partition_by: Vec::new(),
                format: Format::Parquet,
                id: None,
            };
            let manifest = write(ranks, ranks.sql(query).await.unwrap(), &output).await.unwrap();
            let column = |name: &str, descending| SortColumn {
                name: name.to_owned(),
                descending,
                nulls_first: false,
            };
            assert_eq!(
                manifest.sorted_by,
                [column("key", true), column("number", false)],
                "{name}"
            );
            let paths: Vec<_> = manifest.files.iter().map(|file| file.path.clone()).collect();
            assert!(paths.is_sorted() && paths.len() >= least, "{paths:?}");
            assert_eq!(
                rows_of_files(&directory, &paths).await,
                rows(alone, query).await,
                "{name}"
            );
        }
    });
}

#[test]
fn unsorted_writes_state_no_order() {
    with_session(2, 0, async |ranks, _, place| {
        let query = "SELECT number FROM (SELECT number FROM numbers ORDER BY key LIMIT 100) GROUP BY number";
        let output = Output {
            directory: place.join("any").to_str().unwrap().to_owned(),
            partition_by: Vec::new(),
            format: Format::Parquet,
            id: None,
        };
        let manifest = write(ranks, ranks.sql(query).await.unwrap(), &output).await.unwrap();
        assert!(manifest.sorted_by.is_empty(), "{manifest:?}");
        assert_eq!(manifest.files.iter().map(|file| file.rows).sum::<u64>(), 100);
    });
}

/// Of each rank. Its queries use 60 % of it, and the table has several times as much.
const RANK_BYTES: u64 = 24 << 20;

#[test]
fn sort_beyond_memory_spills() {
    let (place, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (files, file_rows) = (4, 100_000);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let context = SessionContext::new();
        for file in 0..files {
            let numbers = || file * file_rows..(file + 1) * file_rows;
            let key: ArrayRef = Arc::new(Int64Array::from_iter_values(
                numbers().map(|number| number * 7_919 % (files * file_rows)),
            ));
            let texts = numbers().map(|number| format!("{number:>120}"));
            let text: ArrayRef = Arc::new(StringArray::from_iter_values(texts));
            let batch = RecordBatch::try_from_iter([("key", key), ("text", text)]).unwrap();
            write_file(&context, batch, &place.path().join(format!("numbers/{file}.parquet"))).await;
        }
    });
    group(3, Net::Shm, options(), |comm| {
        if comm.rank() < 2 {
            let spill = Spill {
                directory: disk.path().to_owned(),
                bytes: None,
            };
            let memory = Memory {
                bytes: Some(RANK_BYTES),
                spill: Some(spill),
            };
            let options = RankOptions {
                memory,
                ..RankOptions::default()
            };
            serve(&comm, &options).unwrap();
            return;
        }
        let options = SessionOptions {
            // The files are compressed, and both ranks should read them.
            partition_bytes: 64 << 10,
            ..SessionOptions::default()
        };
        let session = Session::of(&comm, &options).unwrap();
        session.runtime().block_on(async {
            register(session.context(), place.path()).await;
            let query = "SELECT key, text FROM numbers ORDER BY key";
            let text = plan_text(session.context(), query).await;
            assert!(text.contains("RangesExec"), "{text}");
            let plan = session.context().sql(query).await.unwrap().into_unoptimized_plan();
            let found = session.collect(plan).await.unwrap();
            let keys = found.batches.iter().flat_map(|batch| {
                let keys = batch.column(0).as_any().downcast_ref::<Int64Array>().unwrap();
                keys.values().to_vec()
            });
            assert!(keys.eq(0..files * file_rows));
            let usage = found.usage.get().await.unwrap();
            assert!(usage.spilled_bytes > 0, "{usage:?}");
        });
    });
    // Ranks drop the plan of a query, and its files, once they hear of its end.
    let deadline = Instant::now() + Duration::from_secs(10);
    while files_below(disk.path()) > 0 {
        assert!(Instant::now() < deadline, "files are left");
        std::thread::yield_now();
    }
}
