//! Queries over more data than the memory of their ranks.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use dayfly_frame::{Memory, RankOptions, Session, SessionOptions, Spill, failure_of, serve};
use dayfly_protocol::error::{Code, Failure};

use crate::files_below;
use crate::thread_group::{Net, group, options};
use crate::write_file;

const ROWS: i64 = 700_000;
const FILES: i64 = 4;
/// Of each rank. Its queries use 60 % of it, and each of these tables has more than 200 MB.
const RANK_BYTES: u64 = 128 << 20;

/// Each needs all rows at once in some place.
const QUERIES: [&str; 3] = [
    "SELECT sum(number), max(place), max(text) FROM (SELECT number, text, row_number() OVER (ORDER BY key) AS place FROM left)",
    "SELECT count(*), sum(most) FROM (SELECT text, key, max(number) AS most FROM left GROUP BY text, key)",
    "SELECT count(*), sum(l.number + r.number), max(l.text), max(r.text) FROM left l JOIN right r ON l.key = r.key",
];

async fn write_tables(place: &Path) {
    let context = SessionContext::new();
    for (table, step) in [("left", 7_919), ("right", 104_729)] {
        for file in 0..FILES {
            let numbers = || file * ROWS..(file + 1) * ROWS;
            let key = |number: i64| number * step % (ROWS * FILES);
            let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers().map(key)));
            let number: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers()));
            let texts = numbers().map(|number| format!("{table} has a text of number {number:>12}"));
            let text: ArrayRef = Arc::new(StringArray::from_iter_values(texts));
            let batch = RecordBatch::try_from_iter([("key", keys), ("number", number), ("text", text)]).unwrap();
            let path = place.join(format!("{table}/{file}.parquet"));
            write_file(&context, batch, &path).await;
        }
    }
}

async fn register(context: &SessionContext, place: &Path) {
    for table in ["left", "right"] {
        let path = place.join(table);
        let options = ParquetReadOptions::default();
        context
            .register_parquet(table, path.to_str().unwrap(), options)
            .await
            .unwrap();
    }
}

async fn answer(session: &Session, query: &str) -> Result<String, Failure> {
    let plan = session.context().sql(query).await.unwrap().into_unoptimized_plan();
    let rows = session.collect(plan).await.map_err(|error| failure_of(&error))?;
    Ok(pretty_format_batches(&rows.batches).unwrap().to_string())
}

fn spill_into(disk: &Path, bytes: Option<u64>) -> Spill {
    Spill {
        directory: disk.to_owned(),
        bytes,
    }
}

/// Runs all queries on two ranks with little memory.
fn run(spill: Option<Spill>, check: impl Fn(&str, Result<String, Failure>, &str) + Sync) {
    let place = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let expected = runtime.block_on(async {
        write_tables(place.path()).await;
        let context = SessionContext::new();
        register(&context, place.path()).await;
        let mut answers = Vec::new();
        for query in QUERIES {
            let batches = context.sql(query).await.unwrap().collect().await.unwrap();
            answers.push(pretty_format_batches(&batches).unwrap().to_string());
        }
        answers
    });
    group(3, Net::Shm, options(), |comm| {
        if comm.rank() < 2 {
            let memory = Memory {
                bytes: Some(RANK_BYTES),
                spill: spill.clone(),
            };
            let options = RankOptions {
                memory,
                ..RankOptions::default()
            };
            serve(&comm, &options).unwrap();
            return;
        }
        let session = Session::of(&comm, &SessionOptions::default()).unwrap();
        session.runtime().block_on(async {
            register(session.context(), place.path()).await;
            for (query, expected) in QUERIES.iter().zip(&expected) {
                check(query, answer(&session, query).await, expected);
            }
        });
    });
}

#[test]
fn queries_beyond_memory_spill() {
    let disk = tempfile::tempdir().unwrap();
    run(Some(spill_into(disk.path(), None)), |query, found, expected| {
        assert_eq!(found.unwrap(), expected, "{query}");
        // Ranks drop the plan of a query, and its files, once they hear of its end.
        let deadline = Instant::now() + Duration::from_secs(10);
        while files_below(disk.path()) > 0 {
            assert!(Instant::now() < deadline, "{query} leaves files");
            std::thread::yield_now();
        }
    });
}

#[test]
fn queries_beyond_memory_name_the_remedy() {
    run(None, |query, found, _| {
        let failure = found.unwrap_err();
        assert_eq!(failure.code, Code::SpillRefused, "{query}: {failure}");
        assert!(failure.message.contains("--spill DIR"), "{failure}");
    });
}

#[test]
fn query_spills_no_more_than_it_may() {
    let disk = tempfile::tempdir().unwrap();
    run(Some(spill_into(disk.path(), Some(1 << 20))), |query, found, _| {
        let failure = found.unwrap_err();
        assert_eq!(failure.code, Code::SpillFull, "{query}: {failure}");
    });
}
