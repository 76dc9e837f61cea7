use std::path::Path;

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch};
use datafusion::common::Result as QueryResult;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::dataframe::DataFrameWriteOptions;
use datafusion::execution::SessionStateBuilder;
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use datafusion_distributed::{
    DistributedExt, DistributedLeafExec, SessionStateBuilderExt, WorkerResolver, display_plan_ascii,
};
use url::Url;

use super::*;
use crate::exchange::address_of;

struct Three;

impl WorkerResolver for Three {
    fn get_urls(&self) -> QueryResult<Vec<Url>> {
        Ok((0..3).map(address_of).collect())
    }
}

async fn write_table(place: &Path) {
    for file in 0..4 {
        let numbers = || file * 4_000..(file + 1) * 4_000;
        let key: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers().map(|number| number % 700)));
        let number: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers()));
        let batch = RecordBatch::try_from_iter([("key", key), ("number", number)]).unwrap();
        let frame = SessionContext::new().read_batch(batch).unwrap();
        let path = place.join(format!("{file}.parquet"));
        let options = DataFrameWriteOptions::new().with_single_file_output(true);
        let written = frame.write_parquet(path.to_str().unwrap(), options, None).await;
        written.unwrap();
    }
}

/// Plans a query for three ranks.
async fn planned(query: &str) -> Plan {
    let place = tempfile::tempdir().unwrap();
    write_table(place.path()).await;
    let state = SessionStateBuilder::new()
        .with_default_features()
        .with_config(SessionConfig::new().with_target_partitions(2))
        .with_distributed_planner()
        .with_distributed_worker_resolver(Three)
        .with_distributed_file_scan_config_bytes_per_partition(4 << 10)
        .unwrap()
        .build();
    let context = SessionContext::from(state);
    let path = place.path().to_str().unwrap();
    let registered = context
        .register_parquet("many", path, ParquetReadOptions::default())
        .await;
    registered.unwrap();
    context.sql(query).await.unwrap().create_physical_plan().await.unwrap()
}

/// The stages below a plan, as if each task of one had been sent.
fn add_stages(plan: &Plan, stages: &mut Stages) {
    if let Some(boundary) = plan.as_network_boundary() {
        let stage = boundary.input_stage();
        // Those that are sent have the leaf of one task.
        let sent = Arc::clone(stage.local_plan().unwrap()).transform_up(|node| {
            Ok(match node.downcast_ref::<DistributedLeafExec>() {
                Some(leaf) => Transformed::yes(Arc::clone(leaf.original())),
                None => Transformed::no(node),
            })
        });
        let sent = sent.unwrap().data;
        for _ in 0..stage.task_count() {
            stages.insert(stage.num(), &sent);
        }
    }
    for child in plan.children() {
        add_stages(child, stages);
    }
}

/// The stages of a query of which another run may leave readers with a mixture.
async fn differing(query: &str) -> (Vec<usize>, String) {
    let plan = planned(query).await;
    let mut stages = Stages::default();
    add_stages(&plan, &mut stages);
    assert!(!stages.0.is_empty(), "{query}");
    let differing = stages
        .0
        .keys()
        .copied()
        .filter(|stage| !along(&stages, *stage).is_empty());
    (differing.collect(), display_plan_ascii(plan.as_ref(), false))
}

#[tokio::test]
async fn stages_of_exact_rows_run_again_alone() {
    for query in [
        "SELECT key, count(*), sum(number) FROM many GROUP BY key",
        "SELECT key, avg(number), sum(number * 0.1) FROM many WHERE number > 7 GROUP BY key",
        "SELECT n, count(*) FROM (SELECT key, count(*) n FROM many GROUP BY key) GROUP BY n",
        "SELECT a.key, a.number, b.number FROM many a JOIN many b ON a.number = b.number",
        "SELECT key, number, rank() OVER (PARTITION BY key ORDER BY number) FROM many",
        "SELECT DISTINCT key FROM many ORDER BY key",
        // One task reads the stage with the limit.
        "SELECT * FROM many ORDER BY key LIMIT 7",
    ] {
        let (found, plan) = differing(query).await;
        assert_eq!(found, [0; 0], "{query}\n{plan}");
    }
}

#[tokio::test]
async fn stages_that_may_differ_are_found() {
    for query in [
        "SELECT key, count(*) FROM many WHERE random() < 0.5 GROUP BY key",
        "SELECT total, count(*) FROM (SELECT key, sum(number * 0.1) total FROM many GROUP BY key) GROUP BY total",
        "SELECT key, count(*) FROM (SELECT key, row_number() OVER (PARTITION BY key ORDER BY number % 3) AS place FROM many) WHERE place < 3 GROUP BY key, place",
        "SELECT first, count(*) FROM (SELECT key, first_value(number) first FROM many GROUP BY key) GROUP BY first",
    ] {
        let (found, plan) = differing(query).await;
        assert_ne!(found, [0; 0], "{query}\n{plan}");
    }
}
