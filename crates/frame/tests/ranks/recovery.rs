//! Ranks that are lost while a query runs: their tasks, and only these, run again on others.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::functions_aggregate::expr_fn::sum;
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder};
use datafusion::prelude::{ParquetReadOptions, SessionContext, col};
use dayfly_comm::Communicator;
use dayfly_comm::post::{Post, PostOptions};
use dayfly_frame::{
    BatchFunctions, Functions, MapCall, RankOptions, Recovery, Session, SessionOptions, Task, Usage, explain,
    failure_of, map_batches, serve,
};
use dayfly_protocol::error::{Code, Failure};

use crate::thread_group::{Net, group, options};
use crate::wires::Wires;
use crate::write_file;

const FILES: i64 = 8;
const ROWS: i64 = 4_000;

/// The stage of a function above it has read all of the stage below.
const GROUPED: &str = "SELECT number % 97 AS key, count(*) AS rows, sum(number) AS total FROM numbers GROUP BY 1";
/// The order of rows decides which of them are read.
const ANY: &str = "SELECT number % 97 AS key, 1 AS rows, number AS total FROM numbers";

/// Longest wait of a killed rank for the end of the query.
const PATIENCE: Duration = Duration::from_secs(60);

/// Kills ranks of a group.
struct Killer {
    wires: Arc<Wires>,
    killed: Mutex<BTreeSet<u32>>,
    has_ended: Mutex<bool>,
    end: Condvar,
}

impl Killer {
    fn new(wires: &Arc<Wires>) -> Self {
        Self {
            wires: Arc::clone(wires),
            killed: Mutex::default(),
            has_ended: Mutex::new(false),
            end: Condvar::new(),
        }
    }

    /// Kills a rank if fewer than so many are. Returns whether it is killed now.
    fn kill_one_of(&self, count: usize, rank: u32) -> bool {
        let mut killed = self.killed.lock().unwrap();
        if killed.len() < count && killed.insert(rank) {
            self.wires.cut(rank);
        }
        killed.contains(&rank)
    }

    /// What runs on a killed rank ends only after the query.
    fn hang(&self) {
        let has_ended = self.has_ended.lock().unwrap();
        let waited = self
            .end
            .wait_timeout_while(has_ended, PATIENCE, |has_ended| !*has_ended);
        drop(waited.unwrap());
    }

    fn end(&self) {
        *self.has_ended.lock().unwrap() = true;
        self.end.notify_all();
    }
}

type Event = Box<dyn Fn(u32) + Send + Sync>;

/// What happens when a rank calls the function.
type Trigger = Arc<dyn Fn(&Killer, u32) + Send + Sync>;

/// A function that returns its batches, and reports each call with its rank.
struct Called {
    rank: u32,
    event: Arc<Event>,
}

impl BatchFunctions for Called {
    fn call(&self, _: &[u8], batch: RecordBatch, _: &SchemaRef) -> Result<RecordBatch, Failure> {
        (self.event)(self.rank);
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
    recovery: Recovery,
    /// Makes the plan of the query another one.
    plan: fn(LogicalPlan) -> LogicalPlan,
    /// What happens at the calls of the function.
    event: Trigger,
}

/// Runs a query, and then checks the session. Returns its answer, and that of one process.
fn run(run: &Run<'_>, place: &Path, then: impl Fn(&Session, &Killer) + Sync) -> (Found, Vec<String>) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let expected = runtime.block_on(async {
        write_numbers(place).await;
        let context = SessionContext::new();
        register(&context, place).await;
        sorted(&context.sql(run.query).await.unwrap().collect().await.unwrap())
    });
    let size = run.ranks + 1;
    let (wires, roads) = Wires::between(size as u32);
    let killer = Arc::new(Killer::new(&wires));
    let (event, killing) = (Arc::clone(&run.event), Arc::clone(&killer));
    let event: Arc<Event> = Arc::new(Box::new(move |rank| event(&killing, rank)));
    let found = Mutex::new(None);
    std::thread::scope(|scope| {
        for (rank, roads) in (0..size as u32).zip(roads) {
            let (event, killer, found, then) = (Arc::clone(&event), &killer, &found, &then);
            scope.spawn(move || {
                let communicator = Communicator::form(rank, size as u32, roads, Arc::default(), options()).unwrap();
                if (rank as usize) < run.ranks {
                    let functions = Functions::new(Called { rank, event });
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
                    recovery: run.recovery,
                    ..SessionOptions::default()
                };
                let session = Session::of(&communicator, &options).unwrap();
                let answer = session.runtime().block_on(answer(&session, run, place));
                killer.end();
                then(&session, killer);
                *found.lock().unwrap() = Some(answer);
            });
        }
    });
    wires.end();
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

/// Kills a rank when it calls the function. Its task does not end.
fn at_call_of(victim: u32) -> Trigger {
    Arc::new(move |killer, rank| {
        if rank == victim {
            killer.kill_one_of(1, rank);
            killer.hang();
        }
    })
}

/// Kills the first ranks that call the function.
fn first_callers(count: usize) -> Trigger {
    Arc::new(move |killer, rank| {
        if killer.kill_one_of(count, rank) {
            killer.hang();
        }
    })
}

#[test]
fn tasks_keep_outputs_without_a_loss() {
    let place = tempfile::tempdir().unwrap();
    let whole = Run {
        ranks: 3,
        query: GROUPED,
        recovery: Recovery::Tasks,
        plan: called,
        event: first_callers(0),
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
    // At its call the stage below has ended, and the killed rank takes the only copy of its outputs along.
    let killed = Run {
        ranks: 4,
        query: GROUPED,
        recovery: Recovery::Tasks,
        plan: called,
        event: at_call_of(1),
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
        recovery: Recovery::Tasks,
        plan: called,
        event: first_callers(2),
    };
    let (found, expected) = run(&killed, place.path(), |session, _| {
        assert_eq!(session.ranks_left(), 2);
    });
    assert_eq!(found.unwrap().0, expected);
}

#[test]
fn query_ends_when_all_ranks_are_killed() {
    let place = tempfile::tempdir().unwrap();
    let killed = Run {
        ranks: 2,
        query: GROUPED,
        recovery: Recovery::Tasks,
        plan: called,
        event: first_callers(2),
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
    let grouped =
        LogicalPlanBuilder::from(called(input)).aggregate([col("key")], [sum(col("rows")), sum(col("total"))]);
    grouped.unwrap().build().unwrap()
}

#[test]
fn readers_run_again_with_tasks_that_differ() {
    let place = tempfile::tempdir().unwrap();
    let killed = Run {
        ranks: 3,
        query: ANY,
        recovery: Recovery::Tasks,
        plan: grouped_after_call,
        event: at_call_of(1),
    };
    let (found, _) = run(&killed, place.path(), |_, _| {});
    let (rows, usage) = found.unwrap();
    // 97 groups, four lines of the frame and the names.
    assert_eq!(rows.len(), 97 + 4, "{rows:?}");
    // One task of the stage with the function, and all that read it: that of the killed rank may have begun again before.
    let mut attempts: Vec<u32> = tasks_of(&usage, 1).iter().map(|task| task.attempts).collect();
    attempts.sort_unstable();
    assert_eq!(attempts, [1, 1, 2], "{usage:?}");
    assert!(tasks_of(&usage, 2).iter().all(|task| task.attempts > 1), "{usage:?}");
}

#[test]
fn file_changed_before_a_second_run_is_reported() {
    let place = tempfile::tempdir().unwrap();
    let changed = place.path().to_owned();
    let killed = Run {
        ranks: 3,
        query: GROUPED,
        recovery: Recovery::Tasks,
        plan: called,
        event: Arc::new(move |killer, rank| {
            if rank == 1 {
                for file in 0..FILES {
                    let path = changed.join(format!("{file}.parquet"));
                    let bytes = std::fs::read(&path).unwrap();
                    std::fs::write(&path, bytes).unwrap();
                }
                killer.kill_one_of(1, rank);
                killer.hang();
            }
        }),
    };
    // The session asks for the task that was killed, and this for the one that reads the files.
    let (found, _) = run(&killed, place.path(), |_, _| {});
    assert_eq!(found.unwrap_err().code, Code::InputChanged);
}

#[test]
fn kept_rows_of_a_killed_rank_are_reported() {
    let place = tempfile::tempdir().unwrap();
    let whole = Run {
        ranks: 3,
        query: GROUPED,
        recovery: Recovery::Tasks,
        plan: called,
        event: first_callers(0),
    };
    let (found, expected) = run(&whole, place.path(), |session, killer| {
        session.runtime().block_on(async {
            let plan = session.context().sql(GROUPED).await.unwrap().into_unoptimized_plan();
            let kept = session.persist(plan, 1).await.unwrap();
            assert!(killer.kill_one_of(1, 0));
            let is_noticed = async {
                while session.ranks_left() > 2 {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(PATIENCE, is_noticed).await.unwrap();
            let failure = failure_of(&session.collect(kept).await.unwrap_err());
            assert_eq!(failure.code, Code::StateLost, "{failure}");
        });
    });
    assert_eq!(found.unwrap().0, expected);
}

#[test]
fn copies_are_read_after_a_loss() {
    let place = tempfile::tempdir().unwrap();
    let whole = Run {
        ranks: 3,
        query: ANY,
        recovery: Recovery::Tasks,
        plan: called,
        event: first_callers(0),
    };
    let (found, expected) = run(&whole, place.path(), |session, killer| {
        session.runtime().block_on(async {
            let plan = || async { session.context().sql(ANY).await.unwrap().into_unoptimized_plan() };
            let kept = session.persist(plan().await, 2).await.unwrap();
            let rows = || async { sorted(&session.collect(kept.clone()).await.unwrap().batches) };
            let expected = rows().await;
            assert_eq!(expected.len(), (FILES * ROWS) as usize + 4);
            assert!(killer.kill_one_of(1, 0));
            // The first one is planned for the lost rank.
            assert_eq!(rows().await, expected);
            let is_noticed = async {
                while session.ranks_left() > 2 {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(PATIENCE, is_noticed).await.unwrap();
            assert_eq!(rows().await, expected);
            let failure = failure_of(&session.persist(plan().await, 3).await.unwrap_err());
            assert_eq!(failure.code, Code::InvalidRequest, "{failure}");
            // Of some parts, both ranks are lost now.
            assert!(killer.kill_one_of(2, 1));
            let failure = failure_of(&session.collect(kept.clone()).await.unwrap_err());
            assert_eq!(failure.code, Code::StateLost, "{failure}");
        });
    });
    assert_eq!(found.unwrap().0, expected);
}

/// Sorts what the function returns.
fn sorted_after_call(input: LogicalPlan) -> LogicalPlan {
    let sorted = LogicalPlanBuilder::from(called(input)).sort([col("total").sort(false, false)]);
    sorted.unwrap().build().unwrap()
}

#[test]
fn sorted_ranges_survive_a_killed_rank() {
    let place = tempfile::tempdir().unwrap();
    let killed = Run {
        ranks: 3,
        query: ANY,
        recovery: Recovery::Tasks,
        plan: sorted_after_call,
        event: at_call_of(1),
    };
    let (found, expected) = run(&killed, place.path(), |session, _| {
        session.runtime().block_on(async {
            let plan = session.context().sql(ANY).await.unwrap().into_unoptimized_plan();
            let plan = sorted_after_call(plan);
            let text = explain(session.context(), plan.clone()).await.unwrap();
            assert!(text.contains("RangesExec"), "{text}");
            let rows = session.collect(plan).await.unwrap().batches;
            let totals = rows.iter().flat_map(|batch| {
                let totals = batch.column(2).as_any().downcast_ref::<Int64Array>().unwrap();
                totals.values().to_vec()
            });
            assert!(totals.eq((0..FILES * ROWS).rev()));
        });
    });
    assert_eq!(found.unwrap().0, expected);
}

#[test]
fn small_query_runs_again_on_ranks_left() {
    let place = tempfile::tempdir().unwrap();
    let killed = Run {
        ranks: 3,
        query: GROUPED,
        recovery: Recovery::Auto,
        plan: called,
        event: at_call_of(1),
    };
    let (found, expected) = run(&killed, place.path(), |session, _| assert_eq!(session.ranks_left(), 2));
    let (rows, usage) = found.unwrap();
    assert_eq!(rows, expected);
    assert_eq!(usage.recovery, Recovery::Query);
    assert!(usage.tasks.iter().all(|task| task.rank != 1), "{usage:?}");
}

#[test]
fn session_begins_once_ranks_take_requests() {
    let began = group(2, Net::Tcp, options(), |communicator| match communicator.rank() {
        // Opens its post, and takes no request.
        0 => Post::open(&communicator, PostOptions::default()).map(drop),
        _ => Session::of(&communicator, &SessionOptions::default()).map(drop),
    });
    assert_eq!(began[1].as_ref().unwrap_err().code, Code::RankLost);
}
