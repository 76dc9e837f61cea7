//! Plans that would be wrong on several ranks run on one.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::catalog::{Session as Catalog, TableProvider};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result as QueryResult, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, TableType, col};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::file::properties::WriterProperties;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use datafusion::prelude::{CsvReadOptions, ParquetReadOptions, SessionContext};
use dayfly_frame::{RankOptions, Session, SessionOptions, explain, serve};

use crate::thread_group::{Net, group, options};

/// Each has one answer, in any order of its rows, and is wrong if a task takes its part for the whole.
const QUERIES: [&str; 34] = [
    "SELECT key, count(*), sum(number) FROM (SELECT key, number FROM many UNION ALL SELECT key, number FROM one) GROUP BY key",
    "SELECT key, n FROM (SELECT key, count(*) n FROM many GROUP BY key UNION ALL SELECT key, sum(number) FROM one GROUP BY key)",
    "SELECT max(n) FROM (SELECT count(*) n FROM many UNION ALL SELECT count(*) FROM one UNION ALL SELECT count(*) FROM none)",
    "SELECT * FROM one WHERE key NOT IN (SELECT key FROM many WHERE number < 9000 AND key IS NOT NULL)",
    "SELECT * FROM one WHERE key NOT IN (SELECT key FROM many)",
    "SELECT * FROM many WHERE key NOT IN (SELECT key FROM none)",
    "SELECT * FROM many m WHERE NOT EXISTS (SELECT 1 FROM one o WHERE o.key = m.key)",
    "SELECT * FROM one o WHERE EXISTS (SELECT 1 FROM many m WHERE m.key = o.key AND m.number > o.number)",
    "SELECT count(*), count(a.number), count(b.number), sum(a.number) FROM many a FULL JOIN one b ON a.key = b.key",
    "SELECT count(*), count(a.number), count(b.number), sum(b.number) FROM one a FULL JOIN none b ON a.key = b.key",
    "SELECT count(*), count(b.number) FROM one a LEFT JOIN many b ON a.key = b.key AND b.number > 12000",
    "SELECT count(*), count(b.number) FROM one a RIGHT JOIN many b ON a.key = b.key AND a.number > 12",
    "SELECT count(*), count(a.key), count(b.key) FROM one a FULL JOIN one b ON a.number < b.number - 2990",
    "SELECT count(*), count(b.key) FROM one a LEFT JOIN many b ON a.number < b.number - 15990",
    "SELECT count(*) FROM (SELECT * FROM many LIMIT 100 OFFSET 20) a",
    "SELECT count(*), count(DISTINCT a.number) FROM (SELECT number FROM one LIMIT 5) a CROSS JOIN many b",
    "SELECT count(DISTINCT a.number) FROM (SELECT number FROM many LIMIT 5) a CROSS JOIN many b",
    "SELECT count(DISTINCT a.number) FROM (SELECT number FROM many LIMIT 7 OFFSET 3) a JOIN many b ON a.number <= b.number",
    "SELECT count(DISTINCT a.number) FROM (SELECT number FROM one LIMIT 7) a JOIN many b ON a.number = b.number",
    "SELECT a.number, b.text FROM (SELECT number FROM many ORDER BY number DESC LIMIT 7 OFFSET 3) a JOIN many b ON a.number = b.number",
    "SELECT a.number, b.text FROM (SELECT number FROM one ORDER BY number LIMIT 7) a JOIN many b ON a.number = b.number",
    "SELECT a.n, count(*) FROM (SELECT key, count(*) n FROM one GROUP BY key) a JOIN many b ON a.key = b.key GROUP BY a.n",
    "SELECT a.n, count(*) FROM (SELECT count(*) n FROM one) a JOIN many b ON a.n > b.number GROUP BY a.n",
    "SELECT number, row_number() OVER (ORDER BY number), sum(number) OVER () FROM one",
    "SELECT a.place, b.text FROM (SELECT number, row_number() OVER (ORDER BY text, number) AS place FROM one) a JOIN many b ON a.number = b.number",
    "SELECT key, rank() OVER (PARTITION BY key ORDER BY number) AS place, number FROM many",
    "SELECT count(DISTINCT key), count(DISTINCT text), sum(DISTINCT number) FROM many",
    "SELECT key, count(DISTINCT text) FROM one GROUP BY key",
    "SELECT key, text, count(*), grouping(key) FROM many GROUP BY CUBE (key, text)",
    "SELECT count(*), sum(number) FROM none",
    "SELECT key, count(*) FROM many WHERE number < 0 GROUP BY key",
    "SELECT * FROM many ORDER BY text, number LIMIT 13 OFFSET 7",
    "SELECT key FROM many EXCEPT SELECT key FROM one",
    "SELECT key FROM many INTERSECT SELECT key FROM one",
];

/// Over files whose rows are declared to be in order.
const ORDERED: [&str; 8] = [
    "SELECT count(*), sum(number), count(DISTINCT number) FROM ordered",
    "SELECT * FROM ordered ORDER BY number LIMIT 20 OFFSET 11000",
    "SELECT number, count(*) FROM ordered GROUP BY number",
    "SELECT number, row_number() OVER (ORDER BY number) AS place FROM ordered",
    "SELECT key, number, row_number() OVER (PARTITION BY key ORDER BY number) AS place FROM ordered",
    "SELECT key, number, row_number() OVER (PARTITION BY key ORDER BY number) AS place FROM ordered_one",
    "SELECT a.number, a.text, b.text FROM ordered a JOIN ordered_one b ON a.number = b.number",
    "SELECT key, first_value(text ORDER BY number), last_value(number ORDER BY number) FROM ordered_one GROUP BY key",
];

fn write_table(place: &Path, table: &str, files: i64, rows: i64) {
    for file in 0..files {
        let numbers = || file * rows..(file + 1) * rows;
        let key = |number: i64| (number % 11 > 0).then_some(number * 7_919 % 601);
        let key: ArrayRef = Arc::new(Int64Array::from_iter(numbers().map(key)));
        let number: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers()));
        let text = |number: i64| (number % 7 > 0).then(|| format!("text {}", number * 104_729 % 37));
        let text: ArrayRef = Arc::new(StringArray::from_iter(numbers().map(text)));
        let columns = [("key", key, true), ("number", number, false), ("text", text, true)];
        let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
        let path = place.join(format!("{table}/{file}.parquet"));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        // A file is read in parts of whole row groups.
        let properties = WriterProperties::builder()
            .set_max_row_group_row_count(Some(300))
            .build();
        let file = File::create(path).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    }
}

fn write_tables(place: &Path) {
    write_table(place, "many", 4, 4_000);
    write_table(place, "one", 1, 3_000);
    write_table(place, "none", 2, 0);
    let lines: Vec<_> = (0..2_000).map(|row| format!("{row},\"a\nb {row}\"\n")).collect();
    std::fs::write(place.join("lines.csv"), format!("number,text\n{}", lines.concat())).unwrap();
}

async fn register(context: &SessionContext, place: &Path) {
    for table in ["many", "one", "none"] {
        let path = place.join(table);
        let options = ParquetReadOptions::default();
        context
            .register_parquet(table, path.to_str().unwrap(), options)
            .await
            .unwrap();
    }
    for (table, place) in [("ordered", place.join("many")), ("ordered_one", place.join("one"))] {
        let options = ParquetReadOptions::default().file_sort_order(vec![vec![col("number").sort(true, false)]]);
        context
            .register_parquet(table, place.to_str().unwrap(), options)
            .await
            .unwrap();
    }
    let path = place.join("lines.csv");
    let options = CsvReadOptions::new().newlines_in_values(true);
    context
        .register_csv("lines", path.to_str().unwrap(), options)
        .await
        .unwrap();
}

/// The rows of an answer, in one order.
async fn rows(context: &SessionContext, query: &str) -> Vec<String> {
    let batches = context.sql(query).await.unwrap().collect().await;
    let batches = batches.unwrap_or_else(|error| panic!("{query}: {error}"));
    let text = pretty_format_batches(&batches).unwrap().to_string();
    let mut rows: Vec<_> = text.lines().map(str::to_owned).collect();
    rows.sort_unstable();
    rows
}

async fn plan_text(context: &SessionContext, query: &str) -> String {
    let frame = context.sql(query).await.unwrap();
    explain(context, frame.into_unoptimized_plan()).await.unwrap()
}

/// Runs a body with a session of so many ranks, and with one of a single process.
fn with_session(workers: u32, body: impl AsyncFn(&SessionContext, &SessionContext) + Sync) {
    let place = tempfile::tempdir().unwrap();
    write_tables(place.path());
    group(workers + 1, Net::Shm, options(), |comm| {
        if comm.rank() < workers {
            serve(&comm, &RankOptions::default()).unwrap();
            return;
        }
        let options = SessionOptions {
            partition_bytes: 2 << 10,
            ..SessionOptions::default()
        };
        let session = Session::of(&comm, &options).unwrap();
        session.runtime().block_on(async {
            let alone = SessionContext::new();
            for context in [session.context(), &alone] {
                register(context, place.path()).await;
            }
            body(session.context(), &alone).await;
        });
    });
}

async fn compare(ranks: &SessionContext, alone: &SessionContext, queries: &[&str]) {
    let mut differences = Vec::new();
    for query in queries {
        let (found, expected) = (rows(ranks, query).await, rows(alone, query).await);
        let plan = plan_text(ranks, query).await;
        if let Some(line) = plan.lines().find(|line| line.contains("OneRankExec")) {
            println!("{query}\n  {line}");
        }
        if found != expected {
            let first = found.iter().zip(&expected).find(|(found, expected)| found != expected);
            differences.push(format!("{query}\n{} {} {first:?}\n{plan}", found.len(), expected.len()));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
}

#[test]
fn answers_are_those_of_one_process() {
    for workers in [2, 3] {
        with_session(workers, async |ranks, alone| compare(ranks, alone, &QUERIES).await);
    }
}

#[test]
fn files_in_order_keep_all_rows() {
    for workers in [2, 3, 5] {
        with_session(workers, async |ranks, alone| compare(ranks, alone, &ORDERED).await);
    }
}

#[test]
fn quoted_lines_are_read_with_their_whole_file() {
    let query = "SELECT count(*), sum(number), count(DISTINCT text) FROM lines";
    with_session(3, async |ranks, alone| {
        compare(ranks, alone, &[query]).await;
        let plan = plan_text(ranks, query).await;
        assert!(!plan.contains("runs on one rank"), "{plan}");
    });
}

#[test]
fn unknown_node_runs_on_one_rank() {
    let query = "SELECT key, count(*) FROM passed GROUP BY key";
    with_session(3, async |ranks, alone| {
        for context in [ranks, alone] {
            let inner = context.table_provider("many").await.unwrap();
            context.register_table("passed", Arc::new(PassedTable(inner))).unwrap();
        }
        compare(ranks, alone, &[query]).await;
        let plan = plan_text(ranks, query).await;
        let reason = "runs on one rank: PassedExec is not known to be right on several";
        assert!(plan.contains(reason), "{plan}");
    });
}

/// A table whose rows pass a node of another library.
#[derive(Debug)]
struct PassedTable(Arc<dyn TableProvider>);

#[async_trait]
impl TableProvider for PassedTable {
    fn schema(&self) -> SchemaRef {
        self.0.schema()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        session: &dyn Catalog,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> QueryResult<Arc<dyn ExecutionPlan>> {
        let rows = self.0.scan(session, projection, filters, limit).await?;
        Ok(Arc::new(PassedExec(rows)))
    }
}

#[derive(Debug)]
struct PassedExec(Arc<dyn ExecutionPlan>);

impl DisplayAs for PassedExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "PassedExec")
    }
}

impl ExecutionPlan for PassedExec {
    fn name(&self) -> &str {
        "PassedExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.0.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.0]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> QueryResult<TreeNodeRecursion>,
    ) -> QueryResult<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> QueryResult<Arc<dyn ExecutionPlan>> {
        match children.pop() {
            Some(rows) => Ok(Arc::new(Self(rows))),
            None => internal_err!("it has one input"),
        }
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> QueryResult<SendableRecordBatchStream> {
        self.0.execute(partition, context)
    }
}
