//! The plans of the distributed planner, right ones and damaged ones.

use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use datafusion::common::Result as QueryResult;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::dataframe::DataFrameWriteOptions;
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::SessionStateBuilder;
use datafusion::logical_expr::col;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::joins::{HashJoinExec, NestedLoopJoinExec};
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use datafusion_distributed::{
    DistributedExt, DistributedLeafExec, NetworkBoundary, NetworkCoalesceExec, SessionStateBuilderExt, WorkerResolver,
    display_plan_ascii,
};
use url::Url;

use super::*;

struct Three;

impl WorkerResolver for Three {
    fn get_urls(&self) -> QueryResult<Vec<Url>> {
        let urls = (0..3).map(|rank| Url::parse(&format!("rank://{rank}")).unwrap());
        Ok(urls.collect())
    }
}

/// Writes a table of four files, and one of a single file that is small for DataFusion but not for three ranks.
async fn write_tables(place: &Path) {
    let context = SessionContext::new();
    for (table, files) in [("many", 4), ("one", 1)] {
        for file in 0..files {
            let numbers = || file * 4_000..(file + 1) * 4_000;
            let key: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers().map(|number| number % 700)));
            let number: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers()));
            let text: ArrayRef = Arc::new(StringArray::from_iter_values(
                numbers().map(|number| format!("text {}", number * 7_919 % 10_007)),
            ));
            let batch = RecordBatch::try_from_iter([("key", key), ("number", number), ("text", text)]).unwrap();
            let path = place.join(format!("{table}/{file}.parquet"));
            let options = DataFrameWriteOptions::new().with_single_file_output(true);
            let frame = context.read_batch(batch).unwrap();
            frame
                .write_parquet(path.to_str().unwrap(), options, None)
                .await
                .unwrap();
        }
    }
}

/// Plans a query for three ranks.
async fn planned(query: &str) -> Plan {
    planned_with(query, Vec::new()).await
}

/// As [`planned`], with further rules.
pub async fn planned_with(query: &str, rules: Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>>) -> Plan {
    let place = tempfile::tempdir().unwrap();
    write_tables(place.path()).await;
    let config = SessionConfig::new().with_target_partitions(2);
    let state = SessionStateBuilder::new()
        .with_default_features()
        .with_config(config)
        .with_distributed_planner()
        .with_distributed_worker_resolver(Three)
        .with_distributed_file_scan_config_bytes_per_partition(4 << 10)
        .unwrap();
    let state = rules
        .into_iter()
        .fold(state, SessionStateBuilder::with_physical_optimizer_rule);
    let context = SessionContext::from(state.build());
    for table in ["many", "one"] {
        let path = place.path().join(table);
        let options = ParquetReadOptions::default();
        context
            .register_parquet(table, path.to_str().unwrap(), options)
            .await
            .unwrap();
    }
    // Its files are in order.
    let ordered = ParquetReadOptions::default().file_sort_order(vec![vec![col("number").sort(true, false)]]);
    let path = place.path().join("one");
    context
        .register_parquet("ordered", path.to_str().unwrap(), ordered)
        .await
        .unwrap();
    context.sql(query).await.unwrap().create_physical_plan().await.unwrap()
}

pub fn cause(plan: &Plan) -> String {
    let shown = display_plan_ascii(plan.as_ref(), false);
    let refusal = check(plan).expect_err(&shown);
    refusal.to_string()
}

/// Replaces the nodes for which there is another one.
pub fn damaged(plan: &Plan, damage: impl Fn(&Plan) -> Option<Plan>) -> Plan {
    let mut count = 0;
    let changed = Arc::clone(plan).transform_up(|node| {
        Ok(match damage(&node) {
            Some(other) => {
                count += 1;
                Transformed::yes(other)
            }
            None => Transformed::no(node),
        })
    });
    assert!(count > 0, "{}", display_plan_ascii(plan.as_ref(), false));
    changed.unwrap().data
}

fn with_children(node: &Plan, children: Vec<Plan>) -> Plan {
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    Arc::clone(node).replace_children(children, options).unwrap()
}

/// The plan below the exchanges of a type, in their place.
fn without<T: ExecutionPlan>(plan: &Plan) -> Plan {
    damaged(plan, |node| node.is::<T>().then(|| Arc::clone(node.children()[0])))
}

/// The same node over inputs that have no exchange at their top.
fn without_exchange_below<T: ExecutionPlan>(plan: &Plan) -> Plan {
    damaged(plan, |node| {
        let children = node.children().into_iter();
        let exchanged = children.clone().any(|child| child.is_network_boundary());
        (node.is::<T>() && exchanged).then(|| {
            let inner = children.map(|child| match child.is_network_boundary() {
                true => Arc::clone(child.children()[0]),
                false => Arc::clone(child),
            });
            with_children(node, inner.collect())
        })
    })
}

/// The plan below the last exchange, in a stage of so many tasks.
fn in_tasks(plan: Plan, tasks: usize) -> Plan {
    let boundary = NetworkCoalesceExec::try_new(plan, tasks, 1).unwrap();
    Arc::new(DistributedExec::new(Arc::new(CoalescePartitionsExec::new(Arc::new(
        boundary,
    )))))
}

fn found<T: ExecutionPlan>(plan: &Plan) -> Plan {
    let mut found = None;
    plan.apply(|node| {
        if node.is::<T>() {
            found = Some(Arc::clone(node));
            return Ok(TreeNodeRecursion::Stop);
        }
        Ok(TreeNodeRecursion::Continue)
    })
    .unwrap();
    found.unwrap_or_else(|| panic!("{}", display_plan_ascii(plan.as_ref(), false)))
}

#[tokio::test]
async fn right_plans_pass() {
    for query in [
        "SELECT key, count(*) FROM many GROUP BY key ORDER BY key LIMIT 5",
        "SELECT key, text, count(DISTINCT number) FROM many GROUP BY GROUPING SETS ((key), (text), ())",
        "SELECT count(*), max(text) FROM many WHERE key > 3",
        "SELECT a.text, b.number FROM many a LEFT JOIN many b ON a.key = b.key AND a.number = b.number",
        "SELECT a.text, b.number FROM many a FULL JOIN many b ON a.key = b.key",
        "SELECT a.text FROM many a JOIN one b ON a.number < b.key",
        "SELECT a.text FROM many a CROSS JOIN (SELECT max(key) AS most FROM one) b WHERE a.key = b.most",
        "SELECT row_number() OVER (PARTITION BY key ORDER BY number) AS place, text FROM many",
        "SELECT row_number() OVER (ORDER BY number) AS place, text FROM many",
        "SELECT key FROM many UNION ALL SELECT number FROM one UNION ALL SELECT max(key) FROM many",
        "SELECT key FROM many UNION SELECT number FROM one",
        "SELECT * FROM many WHERE key > 3 LIMIT 10 OFFSET 5",
        "SELECT text FROM many WHERE key NOT IN (SELECT number FROM one)",
    ] {
        let plan = planned(query).await;
        let shown = display_plan_ascii(plan.as_ref(), false);
        assert!(shown.contains("Network"), "{query}\n{shown}");
        assert_eq!(check(&plan), Ok(()), "{query}\n{shown}");
    }
}

#[tokio::test]
async fn groups_without_a_shuffle_are_refused() {
    let plan = planned("SELECT key, count(*) FROM many GROUP BY key").await;
    let cause = cause(&without_exchange_below::<AggregateExec>(&plan));
    assert!(cause.starts_with("AggregateExec needs rows by key"), "{cause}");
}

#[tokio::test]
async fn join_without_a_shuffle_is_refused() {
    let plan = planned("SELECT a.text FROM many a FULL JOIN many b ON a.key = b.key").await;
    let cause = cause(&without_exchange_below::<HashJoinExec>(&plan));
    assert!(cause.starts_with("HashJoinExec needs rows by key"), "{cause}");
}

#[tokio::test]
async fn join_of_differently_hashed_inputs_is_refused() {
    let query = "SELECT a.text FROM many a FULL JOIN many b ON a.key = b.key AND a.number = b.number";
    let plan = planned(query).await;
    let changed = damaged(&plan, |node| {
        node.downcast_ref::<HashJoinExec>()?;
        let turned = damaged(node.children()[1], |node| {
            let boundary = node.as_network_boundary()?;
            let Stage::Local(stage) = boundary.input_stage() else {
                return None;
            };
            let turn = |partitions: usize| -> Option<Plan> {
                let repartition = stage.plan.downcast_ref::<RepartitionExec>()?;
                let Partitioning::Hash(keys, _) = repartition.partitioning() else {
                    return None;
                };
                let keys = keys.iter().rev().cloned().collect();
                let turned =
                    RepartitionExec::try_new(Arc::clone(repartition.input()), Partitioning::Hash(keys, partitions));
                Some(Arc::new(turned.unwrap()))
            };
            let partitions = node.output_partitioning().partition_count();
            let shuffle = NetworkShuffleExec::try_new(turn(partitions)?, stage.tasks).unwrap();
            let mut turned = stage.clone();
            turned.plan = turn(stage.plan.output_partitioning().partition_count())?;
            Some(shuffle.with_input_stage(Stage::Local(turned)).unwrap())
        });
        Some(with_children(node, vec![Arc::clone(node.children()[0]), turned]))
    });
    let cause = cause(&changed);
    assert!(cause.contains("its inputs are hashed differently"), "{cause}");
}

#[tokio::test]
async fn shuffle_into_other_partitions_is_refused() {
    let plan = planned("SELECT key, count(*) FROM many GROUP BY key").await;
    let changed = damaged(&plan, |node| {
        let repartition = node.downcast_ref::<RepartitionExec>()?;
        let Partitioning::Hash(keys, count) = repartition.partitioning() else {
            return None;
        };
        let less = Partitioning::Hash(keys.clone(), count - 1);
        let less = RepartitionExec::try_new(Arc::clone(repartition.input()), less);
        Some(Arc::new(less.unwrap()))
    });
    let cause = cause(&changed);
    assert!(cause.contains("reads other partitions"), "{cause}");
}

#[tokio::test]
async fn windows_in_several_tasks_are_refused() {
    let plan = planned("SELECT row_number() OVER (ORDER BY number) AS place, text FROM many").await;
    let window = without::<NetworkCoalesceExec>(&found::<BoundedWindowAggExec>(&plan));
    let refused = cause(&in_tasks(window, 3));
    assert!(refused.contains("needs all rows in one place"), "{refused}");
    let plan = planned("SELECT max(number) OVER (PARTITION BY key) AS most, text FROM many").await;
    let refused = cause(&without_exchange_below::<SortExec>(&plan));
    assert!(refused.starts_with("WindowAggExec needs rows by key"), "{refused}");
    found::<WindowAggExec>(&plan);
}

#[tokio::test]
async fn windows_that_lose_a_part_are_refused() {
    let refused = [
        "SELECT first_value(text) IGNORE NULLS OVER (PARTITION BY key ORDER BY number) AS first FROM many",
        // One of them is reversed, so that both read the same order.
        "SELECT lag(text) OVER (PARTITION BY key ORDER BY number NULLS FIRST) AS before, \
         lag(text) OVER (PARTITION BY key ORDER BY number DESC NULLS LAST) AS after FROM many",
    ];
    for query in refused {
        let cause = cause(&planned(query).await);
        assert!(cause.contains("ignores nulls or is reversed"), "{cause}");
    }
    let kept = [
        "SELECT lag(text) OVER (PARTITION BY key ORDER BY number) AS before FROM many",
        "SELECT sum(number) OVER (PARTITION BY key ORDER BY number) AS total FROM many",
        "SELECT sum(number) OVER (PARTITION BY key ORDER BY number ROWS 2 PRECEDING) AS total FROM many",
    ];
    for query in kept {
        assert_eq!(check(&planned(query).await), Ok(()), "{query}");
    }
}

#[tokio::test]
async fn total_in_several_tasks_is_refused() {
    let plan = planned("SELECT sum(number) FROM many WHERE key > 3").await;
    let total = without::<NetworkCoalesceExec>(&found::<AggregateExec>(&plan));
    let cause = cause(&in_tasks(total, 3));
    assert!(
        cause.starts_with("AggregateExec needs all rows in one place"),
        "{cause}"
    );
}

#[tokio::test]
async fn join_without_a_broadcast_is_refused() {
    let plan = planned("SELECT a.text FROM many a JOIN one b ON a.number < b.key").await;
    let cause = cause(&without::<NetworkBroadcastExec>(&plan));
    assert!(
        cause.contains("BroadcastExec repeats rows") || cause.contains("collects its left input"),
        "{cause}"
    );
    let join = found::<NestedLoopJoinExec>(&plan);
    assert!(join.children()[0].is::<CoalescePartitionsExec>());
}

#[tokio::test]
async fn unmatched_rows_of_a_broadcast_are_refused() {
    let plan = planned("SELECT a.text FROM many a JOIN one b ON a.number < b.key").await;
    let changed = damaged(&plan, |node| {
        let join = node.downcast_ref::<NestedLoopJoinExec>()?;
        let filter = join.filter().cloned();
        let (left, right) = (Arc::clone(join.left()), Arc::clone(join.right()));
        let other = NestedLoopJoinExec::try_new(left, right, filter, &datafusion::common::JoinType::LeftAnti, None);
        Some(Arc::new(other.unwrap()))
    });
    // What is above has columns that this join has not: the join itself is checked.
    let cause = cause(&in_tasks(found::<NestedLoopJoinExec>(&changed), 3));
    assert!(cause.contains("returns rows of its left input"), "{cause}");
}

#[tokio::test]
async fn limits_of_several_tasks_are_refused() {
    let plan = planned("SELECT a.text FROM (SELECT key, text FROM one LIMIT 5) a JOIN many b ON a.key = b.key").await;
    let refused = cause(&plan);
    assert!(refused.contains("has a limit"), "{refused}");
    let leaf = found::<DistributedLeafExec>(&planned("SELECT * FROM many").await);
    let merged: Plan = Arc::new(CoalescePartitionsExec::new(leaf));
    let refused = cause(&in_tasks(Arc::new(LocalLimitExec::new(Arc::clone(&merged), 10)), 3));
    assert!(
        refused.contains("has a limit, which each task would apply"),
        "{refused}"
    );
    let global = Arc::new(GlobalLimitExec::new(Arc::clone(&merged), 0, Some(10)));
    let refused = cause(&in_tasks(global, 3));
    assert!(refused.starts_with("GlobalLimitExec has a limit"), "{refused}");
    let skipped = Arc::new(GlobalLimitExec::new(Arc::clone(&merged), 5, None));
    let refused = cause(&in_tasks(skipped, 3));
    assert!(refused.starts_with("GlobalLimitExec needs all rows"), "{refused}");
}

#[tokio::test]
async fn leaf_that_each_task_reads_is_refused() {
    let plan = planned("SELECT * FROM many").await;
    let changed = damaged(&plan, |node| {
        let leaf = node.downcast_ref::<DistributedLeafExec>()?;
        Some(Arc::clone(leaf.original()))
    });
    found::<DataSourceExec>(&changed);
    let cause = cause(&changed);
    assert!(cause.contains("gets each row once from each task"), "{cause}");
}

#[tokio::test]
async fn leaf_that_loses_files_is_refused() {
    let plan = planned("SELECT * FROM many").await;
    for lose in [true, false] {
        let changed = damaged(&plan, |node| {
            let leaf = node.downcast_ref::<DistributedLeafExec>()?;
            let mut parts = leaf.variants().to_vec();
            parts[0] = Arc::clone(&parts[1]);
            if !lose {
                parts.pop();
            }
            Some(Arc::new(
                DistributedLeafExec::try_new(Arc::clone(leaf.original()), parts).unwrap(),
            ))
        });
        let expected = if lose {
            "would not read each row"
        } else {
            "another number of tasks"
        };
        let cause = cause(&changed);
        assert!(cause.contains(expected), "{cause}");
    }
}

#[tokio::test]
async fn union_over_other_tasks_is_refused() {
    let plan = planned("SELECT key FROM many UNION ALL SELECT number FROM one").await;
    let mut union = None;
    plan.apply(|node| {
        if node.name() == union::ISOLATOR {
            union = Some(Arc::clone(node));
        }
        Ok(TreeNodeRecursion::Continue)
    })
    .unwrap();
    let cause = cause(&in_tasks(union.unwrap(), 2));
    assert!(cause.contains("another number of tasks"), "{cause}");
}

#[tokio::test]
async fn order_lost_in_an_exchange_is_refused() {
    let query = "SELECT key, number, row_number() OVER (PARTITION BY key ORDER BY number) AS place FROM many";
    let plan = planned(query).await;
    assert_eq!(check(&plan), Ok(()));
    let cause = cause(&without::<SortExec>(&plan));
    assert!(cause.contains("needs rows in an order"), "{cause}");
}

#[tokio::test]
async fn nodes_that_trust_a_lost_order_are_refused() {
    let plan = planned("SELECT number, count(*) FROM ordered GROUP BY number").await;
    let refused = cause(&plan);
    assert!(refused.starts_with("AggregateExec needs rows in an order"), "{refused}");
    let repartition = found::<RepartitionExec>(&plan);
    let Partitioning::Hash(keys, _) = repartition.output_partitioning() else {
        panic!("{repartition:?}");
    };
    let hash = Partitioning::Hash(keys.clone(), 2);
    let source = Arc::clone(repartition.children()[0]);
    let shuffled = |tasks| -> Plan {
        let repartition = RepartitionExec::try_new(Arc::clone(&source), hash.clone()).unwrap();
        let shuffle: Plan = Arc::new(NetworkShuffleExec::try_new(Arc::new(repartition), tasks).unwrap());
        let order = shuffle.output_ordering().unwrap().clone();
        let sort = SortExec::new(order, shuffle).with_preserve_partitioning(true);
        let sort = Arc::new(sort.with_fetch(Some(5)));
        Arc::new(DistributedExec::new(Arc::new(CoalescePartitionsExec::new(sort))))
    };
    let refused = cause(&shuffled(3));
    assert!(
        refused.starts_with("SortExec(TopK) needs rows in an order"),
        "{refused}"
    );
}
