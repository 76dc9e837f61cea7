//! Queries over ranks give the answers of one process.

use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use dayfly_frame::{RankOptions, Session, SessionOptions, serve};

use crate::thread_group::{Net, group, options};
use crate::write_file;

const QUERIES: [&str; 6] = [
    "SELECT count(*), sum(fare), min(zone), max(distance) FROM trips",
    "SELECT borough, count(*) AS trips, avg(fare) FROM trips JOIN zones USING (zone) GROUP BY borough ORDER BY borough",
    "SELECT zone, count(DISTINCT distance) FROM trips GROUP BY zone ORDER BY zone",
    "SELECT * FROM trips WHERE distance > 9.5 ORDER BY fare DESC, zone LIMIT 10",
    "SELECT borough, zone FROM zones z WHERE NOT EXISTS (SELECT 1 FROM trips t WHERE t.zone = z.zone) ORDER BY zone",
    "SELECT zone, fare, rank() OVER (PARTITION BY zone ORDER BY fare) AS place FROM trips ORDER BY zone, place, fare LIMIT 20",
];

/// Writes trips in four files, and zones in one.
async fn write_tables(place: &Path) {
    let context = SessionContext::new();
    for file in 0..4 {
        let rows = 5_000;
        let number = |row: i64| (file * rows + row) * 7_919 % 100_003;
        let zones: ArrayRef = Arc::new(Int64Array::from_iter_values((0..rows).map(|row| number(row) % 50)));
        let distances: ArrayRef = Arc::new(Float64Array::from_iter_values(
            (0..rows).map(|row| (number(row) % 1_000) as f64 / 100.0),
        ));
        let fares: ArrayRef = Arc::new(Float64Array::from_iter_values(
            (0..rows).map(|row| number(row) as f64 / 8.0),
        ));
        let batch = RecordBatch::try_from_iter([("zone", zones), ("distance", distances), ("fare", fares)]).unwrap();
        write_file(&context, batch, &place.join(format!("trips/{file}.parquet"))).await;
    }
    let zones: ArrayRef = Arc::new(Int64Array::from_iter_values(0..60));
    let boroughs: ArrayRef = Arc::new(StringArray::from_iter_values(
        (0..60).map(|zone| format!("borough {}", zone % 7)),
    ));
    let batch = RecordBatch::try_from_iter([("zone", zones), ("borough", boroughs)]).unwrap();
    write_file(&context, batch, &place.join("zones/0.parquet")).await;
}

async fn answers(context: &SessionContext, place: &Path) -> Vec<String> {
    for table in ["trips", "zones"] {
        let path = place.join(table);
        context
            .register_parquet(table, path.to_str().unwrap(), ParquetReadOptions::default())
            .await
            .unwrap();
    }
    let mut answers = Vec::new();
    for query in QUERIES {
        let batches = context.sql(query).await.unwrap().collect().await.unwrap();
        answers.push(pretty_format_batches(&batches).unwrap().to_string());
    }
    answers
}

fn check(net: Net, workers: u32) {
    let place = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let one_process = runtime.block_on(async {
        write_tables(place.path()).await;
        answers(&SessionContext::new(), place.path()).await
    });
    group(workers + 1, net, options(), |comm| {
        if comm.rank() < workers {
            serve(&comm, &RankOptions::default()).unwrap();
            return;
        }
        let session = Session::of(&comm, &small_partitions()).unwrap();
        session.runtime().block_on(async {
            let context = session.context();
            let found = answers(context, place.path()).await;
            for ((query, found), expected) in QUERIES.iter().zip(&found).zip(&one_process) {
                assert_eq!(found, expected, "{query}");
            }
            let plan = context
                .sql(QUERIES[1])
                .await
                .unwrap()
                .create_physical_plan()
                .await
                .unwrap();
            let plan = datafusion_distributed::display_plan_ascii(plan.as_ref(), false);
            assert!(plan.contains("Network"), "{plan}");
        });
    });
}

/// So that small tables are divided.
fn small_partitions() -> SessionOptions {
    SessionOptions {
        partitions: 2,
        partition_bytes: 16 << 10,
        ..SessionOptions::default()
    }
}

#[test]
fn one_rank_answers_as_one_process() {
    check(Net::Shm, 1);
}

#[test]
fn two_ranks_answer_as_one_process() {
    check(Net::Shm, 2);
}

#[test]
fn three_ranks_answer_over_tcp() {
    check(Net::Tcp, 3);
}
