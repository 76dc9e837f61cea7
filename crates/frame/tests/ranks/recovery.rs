//! Ranks that are lost while a query runs: their tasks, and only these, run again on others.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::logical_expr::LogicalPlan;
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use dayfly_comm::{Communicator, LostRanks};
use dayfly_frame::{
    BatchFunctions, Functions, MapCall, RankOptions, Recovery, Session, SessionOptions, Task, Usage, failure_of,
    map_batches, serve,
};
use dayfly_protocol::error::{Code, Failure};

use crate::thread_group::{Net, connections, options};
use crate::write_file;

const FILES: i64 = 8;
const ROWS: i64 = 4_000;

/// The stage of a function above it has read all of the stage below.
const GROUPED: &str = "SELECT number % 97 AS key, count(*) AS rows, sum(number) AS total FROM numbers GROUP BY 1";
/// The order of rows decides which of them are read.
const ANY: &str = "SELECT number % 97 AS key, 1 AS rows, number AS total FROM numbers";

/// Loses ranks of a group.
struct Killer(Vec<Arc<LostRanks>>);

impl Killer {
    /// Has all ranks lose a rank, and that rank all others.
    fn kill(&self, rank: usize) {
        for (own, lost) in self.0.iter().enumerate() {
            if own == rank {
                (0..self.0.len())
                    .filter(|other| *other != own)
                    .for_each(|other| lost.add(other as u32, "it was killed"));
            } else {
                lost.add(rank as u32, "it was killed");
            }
        }
    }
}

type Event = Box<dyn Fn(usize, u32) + Send + Sync>;

/// A function that returns its batches, and reports each call with its number and its rank.
struct Called {
    rank: u32,
    calls: Arc<AtomicUsize>,
    event: Arc<Event>,
}

impl BatchFunctions for Called {
    fn call(&self, _: &[u8], batch: RecordBatch, _: &SchemaRef) -> Result<RecordBatch, Failure> {
        (self.event)(self.calls.fetch_add(1, Ordering::SeqCst), self.rank);
        Ok(batch)
    }
}

fn called(input: LogicalPlan) -> LogicalPlan {
    let fields = ["key", "rows", "total"].map(|name| Field::new(name, DataType::Int64, true));
    let call = MapCall {
        name: "called".into(),
        function: Vec::new(),
        schema: Arc::new(Schema::new(fields.to_vec())),
        batch_rows: 8192,
    };
    map_batches(input, call).unwrap()
}

async fn write_numbers(place: &Path) {
    for file in 0..FILES {
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(file * ROWS..(file + 1) * ROWS));
        let batch = RecordBatch::try_from_iter([("number", numbers)]).unwrap();
        write_file(&SessionContext::new(), batch, &place.join(format!("{file}.parquet"))).await;
    }
}

async fn register(context: &SessionContext, place: &Path) {
    let options = ParquetReadOptions::default();
    context
        .register_parquet("numbers", place.to_str().unwrap(), options)
        .await
        .unwrap();
}

/// The rows of a query as text, in order.
fn sorted(batches: &[RecordBatch]) -> Vec<String> {
    let text = pretty_format_batches(batches).unwrap().to_string();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

type Found = Result<(Vec<String>, Usage), Failure>;

struct Run<'a> {
    ranks: usize,
    query: &'a str,
    /// Makes the plan of the query another one.
    plan: fn(LogicalPlan) -> LogicalPlan,
    /// What happens at the calls of the function.
    event: Arc<dyn Fn(&Killer, usize, u32) + Send + Sync>,
}

/// Runs a query, and then checks the session. Returns its answer, and that of one process.
fn run(run: &Run<'_>, place: &Path, then: impl Fn(&Session, &Found) + Sync) -> (Found, Vec<String>) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let expected = runtime.block_on(async {
        write_numbers(place).await;
        let context = SessionContext::new();
        register(&context, place).await;
        sorted(&context.sql(run.query).await.unwrap().collect().await.unwrap())
    });
    let size = run.ranks + 1;
    let killer = Arc::new(Killer((0..size).map(|_| Arc::default()).collect()));
    let (event, killing) = (Arc::clone(&run.event), Arc::clone(&killer));
    let event: Arc<Event> = Arc::new(Box::new(move |call, rank| event(&killing, call, rank)));
    let calls = Arc::new(AtomicUsize::new(0));
    let found = Mutex::new(None);
    std::thread::scope(|scope| {
        for (rank, roads) in (0..size as u32).zip(connections(size as u32, Net::Tcp)) {
            let lost = Arc::clone(&killer.0[rank as usize]);
            let (event, calls, found, then) = (Arc::clone(&event), Arc::clone(&calls), &found, &then);
            scope.spawn(move || {
                let communicator = Communicator::form(rank, size as u32, roads, lost, options()).unwrap();
                if (rank as usize) < run.ranks {
                    let functions = Functions::new(Called { rank, calls, event });
                    let options = RankOptions {
                        functions: Some(functions),
                        ..RankOptions::default()
                    };
                    // A killed rank has lost its session.
                    let _ = serve(&communicator, &options);
                    return;
                }
                let options = SessionOptions {
                    partition_bytes: 4 << 10,
                    recovery: Recovery::Tasks,
                    ..SessionOptions::default()
                };
                let session = Session::of(&communicator, &options).unwrap();
                let answer = session.runtime().block_on(answer(&session, run, place));
                then(&session, &answer);
                *found.lock().unwrap() = Some(answer);
            });
        }
    });
    (found.into_inner().unwrap().unwrap(), expected)
}

async fn answer(session: &Session, run: &Run<'_>, place: &Path) -> Found {
    register(session.context(), place).await;
    let plan = session.context().sql(run.query).await.unwrap().into_unoptimized_plan();
    let rows = session
        .collect((run.plan)(plan))
        .await
        .map_err(|error| failure_of(&error))?;
    let usage = rows.usage.get().await.expect("the ranks report what they measured");
    Ok((sorted(&rows.batches), usage))
}

fn tasks_of(usage: &Usage, stage: usize) -> Vec<Task> {
    usage.tasks.iter().filter(|task| task.stage == stage).copied().collect()
}

fn at_call(number: usize, ranks: &'static [usize]) -> Arc<dyn Fn(&Killer, usize, u32) + Send + Sync> {
    Arc::new(move |killer, call, _| {
        if call == number {
            ranks.iter().for_each(|rank| killer.kill(*rank));
        }
    })
}

fn nothing() -> Arc<dyn Fn(&Killer, usize, u32) + Send + Sync> {
    Arc::new(|_, _, _| {})
}

#[test]
fn tasks_keep_outputs_without_a_loss() {
    let place = tempfile::tempdir().unwrap();
    let whole = Run {
        ranks: 3,
        query: GROUPED,
        plan: called,
        event: nothing(),
    };
    let (found, expected) = run(&whole, place.path(), |_, _| {});
    let (rows, usage) = found.unwrap();
    assert_eq!(rows, expected);
    assert_eq!(usage.recovery, Recovery::Tasks);
    assert!(usage.tasks.iter().all(|task| task.attempts == 1), "{usage:?}");
}

#[test]
fn only_tasks_of_a_killed_rank_run_again() {
    let place = tempfile::tempdir().unwrap();
    // At the first call the stage below has ended, and a killed rank takes the only copy of its outputs along.
    let killed = Run {
        ranks: 4,
        query: GROUPED,
        plan: called,
        event: at_call(0, &[1]),
    };
    let (found, expected) = run(&killed, place.path(), |session, _| {
        assert_eq!(session.ranks_left(), 3);
        // Further queries run on those that are left.
        let rows = session.runtime().block_on(async {
            let plan = session.context().sql(GROUPED).await.unwrap().into_unoptimized_plan();
            session.collect(plan).await.unwrap()
        });
        assert_eq!(rows.batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 97);
    });
    let (rows, usage) = found.unwrap();
    assert_eq!(rows, expected);
    let again: Vec<_> = usage.tasks.iter().filter(|task| task.attempts > 1).collect();
    assert!(!again.is_empty(), "{usage:?}");
    // Each stage has at most one task on the killed rank.
    for stage in [1, 2] {
        let again = tasks_of(&usage, stage).iter().filter(|task| task.attempts > 1).count();
        assert!(again <= 1, "{usage:?}");
    }
    assert!(
        again.iter().all(|task| task.rank != 1 && task.attempts == 2),
        "{usage:?}"
    );
}

#[test]
fn two_killed_ranks_leave_the_answer() {
    let place = tempfile::tempdir().unwrap();
    let killed = Run {
        ranks: 4,
        query: GROUPED,
        plan: called,
        event: Arc::new(|killer, call, rank| match (call, rank) {
            (0, _) => killer.kill(2),
            (3, _) => killer.kill(0),
            _ => {}
        }),
    };
    let (found, expected) = run(&killed, place.path(), |session, _| {
        assert!(session.ranks_left() >= 2);
    });
    assert_eq!(found.unwrap().0, expected);
}

#[test]
fn query_ends_when_all_ranks_are_killed() {
    let place = tempfile::tempdir().unwrap();
    let killed = Run {
        ranks: 2,
        query: GROUPED,
        plan: called,
        event: at_call(0, &[0, 1]),
    };
    let (found, _) = run(&killed, place.path(), |_, _| {});
    let failure = found.unwrap_err();
    assert_eq!(failure.code, Code::RankLost);
    assert!(
        failure.message.contains("rank") && failure.message.contains("lost"),
        "{failure}"
    );
}

/// The function stands below the exchange. It may return other rows in another run.
fn grouped_after_call(input: LogicalPlan) -> LogicalPlan {
    use datafusion::functions_aggregate::expr_fn::sum;
    use datafusion::logical_expr::LogicalPlanBuilder;
    use datafusion::prelude::col;
    let grouped =
        LogicalPlanBuilder::from(called(input)).aggregate([col("key")], [sum(col("rows")), sum(col("total"))]);
    grouped.unwrap().build().unwrap()
}

#[test]
fn query_with_stages_that_differ_runs_again() {
    let place = tempfile::tempdir().unwrap();
    let killed = Run {
        ranks: 3,
        query: ANY,
        plan: grouped_after_call,
        event: at_call(2, &[1]),
    };
    let (found, _) = run(&killed, place.path(), |_, _| {});
    let (rows, _) = found.unwrap();
    // 97 groups, four lines of the frame and the names.
    assert_eq!(rows.len(), 97 + 4, "{rows:?}");
}

#[test]
fn file_changed_before_a_second_run_is_reported() {
    let place = tempfile::tempdir().unwrap();
    let changed = place.path().to_owned();
    let killed = Run {
        ranks: 3,
        query: GROUPED,
        plan: called,
        event: Arc::new(move |killer, call, _| {
            if call == 0 {
                for file in 0..FILES {
                    let path = changed.join(format!("{file}.parquet"));
                    let bytes = std::fs::read(&path).unwrap();
                    std::fs::write(&path, bytes).unwrap();
                }
                killer.kill(1);
            }
        }),
    };
    // No task above has ended at the first call, so the session asks for that of the killed rank, which reads the files.
    let (found, _) = run(&killed, place.path(), |_, _| {});
    assert_eq!(found.unwrap_err().code, Code::InputChanged);
}
