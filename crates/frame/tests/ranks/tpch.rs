//! The queries of TPC-H give the answers of one process, on any number of ranks.

use std::fs::File;
use std::path::Path;
use std::sync::OnceLock;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use dayfly_frame::{RankOptions, Session, SessionOptions, explain, serve};
use tempfile::TempDir;
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator, PartSuppGenerator,
    RegionGenerator, SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow, SupplierArrow,
};

use crate::thread_group::{Net, group, options};

const SCALE: f64 = 0.1;
/// Files of a large table.
const FILES: i32 = 4;
const TABLES: [&str; 8] = [
    "customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier",
];

// `dayfly bench frames` has them.
macro_rules! queries {
    ($($name:literal)*) => {
        [$((
            $name,
            include_str!(concat!("../../../../bindings/frames/python/dayfly_frames/_bench/tpch/", $name, ".sql")),
        )),*]
    };
}
const QUERIES: [(&str, &str); 22] = queries!(
    "q01" "q02" "q03" "q04" "q05" "q06" "q07" "q08" "q09" "q10" "q11" "q12" "q13" "q14" "q15" "q16" "q17" "q18" "q19"
    "q20" "q21" "q22"
);

fn write(path: &Path, file: i32, batches: impl Iterator<Item = Result<RecordBatch, ArrowError>>) {
    std::fs::create_dir_all(path).unwrap();
    let mut batches = batches.map(Result::unwrap).peekable();
    let schema = batches.peek().unwrap().schema();
    let file = File::create(path.join(format!("{file}.parquet"))).unwrap();
    let mut writer = ArrowWriter::try_new(file, schema, None).unwrap();
    batches.for_each(|batch| writer.write(&batch).unwrap());
    writer.close().unwrap();
}

fn write_tables(place: &Path) {
    write(
        &place.join("nation"),
        1,
        NationArrow::new(NationGenerator::new(SCALE, 1, 1)),
    );
    write(
        &place.join("region"),
        1,
        RegionArrow::new(RegionGenerator::new(SCALE, 1, 1)),
    );
    write(
        &place.join("supplier"),
        1,
        SupplierArrow::new(SupplierGenerator::new(SCALE, 1, 1)),
    );
    for file in 1..=FILES {
        let (n, place) = (file, |table: &str| place.join(table));
        write(
            &place("customer"),
            n,
            CustomerArrow::new(CustomerGenerator::new(SCALE, n, FILES)),
        );
        write(
            &place("lineitem"),
            n,
            LineItemArrow::new(LineItemGenerator::new(SCALE, n, FILES)),
        );
        write(
            &place("orders"),
            n,
            OrderArrow::new(OrderGenerator::new(SCALE, n, FILES)),
        );
        write(&place("part"), n, PartArrow::new(PartGenerator::new(SCALE, n, FILES)));
        write(
            &place("partsupp"),
            n,
            PartSuppArrow::new(PartSuppGenerator::new(SCALE, n, FILES)),
        );
    }
}

async fn answers(context: &SessionContext, place: &Path) -> Vec<String> {
    for table in TABLES {
        let path = place.join(table);
        let path = path.to_str().unwrap();
        context
            .register_parquet(table, path, ParquetReadOptions::default())
            .await
            .unwrap();
    }
    let mut answers = Vec::new();
    for (name, query) in QUERIES {
        let frame = context.sql(query).await.unwrap();
        let batches = frame.collect().await.unwrap_or_else(|error| panic!("{name}: {error}"));
        answers.push(pretty_format_batches(&batches).unwrap().to_string());
    }
    answers
}

/// The tables, and the answers of one process.
fn expected() -> &'static (TempDir, Vec<String>) {
    static EXPECTED: OnceLock<(TempDir, Vec<String>)> = OnceLock::new();
    EXPECTED.get_or_init(|| {
        let place = tempfile::tempdir().unwrap();
        write_tables(place.path());
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let answers = runtime.block_on(answers(&SessionContext::new(), place.path()));
        (place, answers)
    })
}

fn check(net: Net, workers: u32) {
    let (place, expected) = expected();
    group(workers + 1, net, options(), |comm| {
        if comm.rank() < workers {
            serve(&comm, &RankOptions::default()).unwrap();
            return;
        }
        let options = SessionOptions {
            partitions: 2,
            partition_bytes: 256 << 10,
            ..SessionOptions::default()
        };
        let session = Session::of(&comm, &options).unwrap();
        let found = session.runtime().block_on(answers(session.context(), place.path()));
        for (((name, _), found), expected) in QUERIES.iter().zip(&found).zip(expected) {
            assert_eq!(found, expected, "{name}");
        }
        session.runtime().block_on(async {
            for (name, query) in QUERIES {
                let frame = session.context().sql(query).await.unwrap();
                let plan = explain(session.context(), frame.into_unoptimized_plan()).await.unwrap();
                assert!(!plan.contains("runs on one rank"), "{name}\n{plan}");
            }
        });
    });
}

#[test]
fn one_rank_gives_the_answers() {
    check(Net::Shm, 1);
}

#[test]
fn two_ranks_give_the_answers() {
    check(Net::Shm, 2);
}

#[test]
fn three_ranks_give_the_answers_over_tcp() {
    check(Net::Tcp, 3);
}

#[test]
fn five_ranks_give_the_answers() {
    check(Net::Shm, 5);
}
