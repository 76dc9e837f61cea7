//! The exchanges that the cost model chooses, and what plans show of them.

use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch};
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use dayfly_frame::{RankOptions, Recovery, Session, SessionOptions, analyze, explain, serve};

use crate::thread_group::{Net, group, options};
use crate::write_file;

/// Rows of the two tables.
const TABLES: [(&str, i64); 2] = [("many", 200_000), ("few", 300)];
/// So that DataFusion itself broadcasts nothing.
const SETTINGS: [&str; 2] = [
    "SET datafusion.optimizer.hash_join_single_partition_threshold = 0",
    "SET datafusion.optimizer.hash_join_single_partition_threshold_rows = 0",
];

async fn write_tables(place: &Path) {
    for (table, rows) in TABLES {
        for file in 0..2 {
            let keys: ArrayRef = Arc::new(Int64Array::from_iter_values((0..rows / 2).map(|row| row * 2 + file)));
            let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values((0..rows / 2).map(|row| row % 7)));
            let batch = RecordBatch::try_from_iter([("key", keys), ("number", numbers)]).unwrap();
            write_file(
                &SessionContext::new(),
                batch,
                &place.join(format!("{table}/{file}.parquet")),
            )
            .await;
        }
    }
}

async fn register(context: &SessionContext, place: &Path) {
    for (table, _) in TABLES {
        let path = place.join(table);
        let options = ParquetReadOptions::default();
        context
            .register_parquet(table, path.to_str().unwrap(), options)
            .await
            .unwrap();
    }
}

async fn answer(context: &SessionContext, query: &str) -> String {
    let batches = context.sql(query).await.unwrap().collect().await.unwrap();
    pretty_format_batches(&batches).unwrap().to_string()
}

/// Checks a query on two ranks: its answer, and the line of its plan with this beginning.
fn check(query: &str, line: &str, parts: &[&str]) {
    let place = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let expected = runtime.block_on(async {
        write_tables(place.path()).await;
        let context = SessionContext::new();
        register(&context, place.path()).await;
        answer(&context, query).await
    });
    group(3, Net::Shm, options(), |comm| {
        if comm.rank() < 2 {
            serve(&comm, &RankOptions::default()).unwrap();
            return;
        }
        let options = SessionOptions {
            partition_bytes: 1 << 10,
            recovery: Recovery::Auto,
            ..SessionOptions::default()
        };
        let session = Session::of(&comm, &options).unwrap();
        session.runtime().block_on(async {
            let context = session.context();
            for setting in SETTINGS {
                context.sql(setting).await.unwrap().collect().await.unwrap();
            }
            register(context, place.path()).await;
            assert_eq!(answer(context, query).await, expected);
            let plan = context.sql(query).await.unwrap().into_unoptimized_plan();
            let planned = explain(context, plan.clone()).await.unwrap();
            assert!(!planned.contains("; were"), "{planned}");
            let text = analyze(context, plan).await.unwrap();
            let found = text
                .lines()
                .find(|found| found.starts_with(line))
                .unwrap_or_else(|| panic!("{text}"));
            assert!(parts.iter().all(|part| found.contains(part)), "{text}");
            assert!(text.contains("recovery: the query runs again on the ranks that are left: its scans read about"));
        });
    });
}

#[test]
fn few_rows_are_broadcast_to_many() {
    let query = "SELECT count(*), sum(many.number) FROM many JOIN few ON many.key = few.key";
    let parts = [
        "about 300 rows",
        "ms by estimate, and a shuffle of both sides",
        "; were 300 rows",
    ];
    check(query, "stage 1: broadcast from 2 to 2 tasks", &parts);
}

#[test]
fn sides_of_equal_size_are_shuffled() {
    let query = "SELECT count(*), sum(a.number) FROM many a JOIN many b ON a.key = b.key";
    let parts = [
        "about 200000 rows",
        "ms by estimate, and a broadcast",
        "; were 200000 rows",
    ];
    check(query, "stage 1: shuffle from 2 to 2 tasks", &parts);
}

#[test]
fn unmatched_rows_keep_their_side_shuffled() {
    // The few rows are the side in memory, and a rank does not know whether another one has a match.
    let query = "SELECT count(*), sum(few.number) FROM few LEFT ANTI JOIN many ON few.key = many.key";
    check(
        query,
        "stage 1: shuffle from 2 to 2 tasks",
        &["several ranks would return rows"],
    );
}

#[test]
fn scans_read_the_columns_of_the_query() {
    let place = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(write_tables(place.path()));
    let files = std::fs::read_dir(place.path().join("many")).unwrap();
    let bytes: u64 = files.map(|file| file.unwrap().metadata().unwrap().len()).sum();
    group(2, Net::Shm, options(), |comm| {
        if comm.rank() < 1 {
            serve(&comm, &RankOptions::default()).unwrap();
            return;
        }
        let options = SessionOptions {
            recovery: Recovery::Auto,
            ..SessionOptions::default()
        };
        let session = Session::of(&comm, &options).unwrap();
        session.runtime().block_on(async {
            let context = session.context();
            register(context, place.path()).await;
            // Both columns have eight bytes a row.
            let join = "SELECT a.number FROM many a JOIN many b ON a.key = b.number";
            for (query, bytes) in [
                ("SELECT sum(key), sum(number) FROM many", bytes),
                ("SELECT sum(key) FROM many", bytes / 2),
                (join, bytes + bytes / 2),
            ] {
                let plan = context.sql(query).await.unwrap().into_unoptimized_plan();
                let text = explain(context, plan).await.unwrap();
                let read = format!("its scans read about {:.1} KiB, ", bytes as f64 / 1024.0);
                let read = match bytes < 1 << 20 {
                    true => read,
                    false => format!("its scans read about {:.1} MiB, ", bytes as f64 / f64::from(1 << 20)),
                };
                assert!(text.contains(&read), "{read}: {text}");
            }
        });
    });
}
