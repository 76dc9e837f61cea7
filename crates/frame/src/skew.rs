//! Joins with a key under which many of the rows are.
//!
//! An exchange by keys sends all rows of a key to one rank, which then computes while the others wait. The rows of heavy
//! keys are joined apart: on the side with many rows they stay where they are read, and the few rows of the other side
//! go to all ranks. A union of both joins is the join, since no row of one key has a match under another: this holds for
//! every kind of join.
//!
//! A key is suspected because of a sample of the rows, and then counted. The rows of the other side are read when the
//! query is planned.

mod sample;

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::DataType;
use datafusion::catalog::{MemTable, Session};
use datafusion::common::cast::as_int64_array;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchemaRef, ExprSchema, Result as QueryResult, ScalarValue};
use datafusion::datasource::provider_as_source;
use datafusion::execution::context::QueryPlanner;
use datafusion::functions_aggregate::expr_fn::count;
use datafusion::logical_expr::{
    Expr, Filter, Join, LogicalPlan, LogicalPlanBuilder, TableScan, TableScanBuilder, Union, lit,
};
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion_distributed::{NetworkBoundaryExt, Stage};

use crate::plan::LocalPlanner;

/// Fewest rows of a side whose heavy keys are looked for.
const MIN_ROWS: usize = 1_000_000;
/// Fewest rows of a sample that say anything.
const MIN_SAMPLE_ROWS: usize = 1_024;
/// Rows of a heavy key, in shares of what each rank would have without it. With this many ranks have at most 1.4 times
/// the mean because of one key.
const HEAVY_SHARES: f64 = 0.4;
/// Most keys of a join that are heavy.
const MAX_KEYS: usize = 16;
/// Most rows of the other side that go to all ranks.
const MAX_SPREAD_ROWS: usize = 100_000;

/// Whether a distributed plan exchanges many rows by the keys of a join.
pub fn has_exchanged_join(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let is_exchanged = |join: &HashJoinExec| {
        join.mode == PartitionMode::Partitioned && join.children().into_iter().any(exchanges_many_rows)
    };
    plan.downcast_ref::<HashJoinExec>().is_some_and(is_exchanged) || plan.children().into_iter().any(has_exchanged_join)
}

fn exchanges_many_rows(side: &Arc<dyn ExecutionPlan>) -> bool {
    let exchange = side.as_network_boundary().map(|boundary| boundary.input_stage());
    let Some(Stage::Local(stage)) = exchange else {
        return false;
    };
    known_rows(&stage.plan).is_ok_and(|rows| rows.is_some_and(|rows| rows >= MIN_ROWS))
}

/// The plan with the rows of heavy keys joined apart; `None` if no join has such keys.
///
/// # Errors
/// Of the queries that look for them.
pub async fn spread(plan: &LogicalPlan, session: &dyn Session, ranks: u32) -> QueryResult<Option<LogicalPlan>> {
    let mut joins = Vec::new();
    plan.apply(|node| {
        if let LogicalPlan::Join(join) = node {
            joins.push(join.clone());
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    let mut replaced = Vec::new();
    for join in joins {
        if let Some(spread) = spread_join(&join, session, ranks).await? {
            replaced.push((LogicalPlan::Join(join), spread));
        }
    }
    if replaced.is_empty() {
        return Ok(None);
    }
    let plan = plan.clone().transform_up(|node| {
        let found = replaced.iter().find(|(join, _)| *join == node);
        Ok(found.map_or_else(
            || Transformed::no(node.clone()),
            |(_, spread)| Transformed::yes(spread.clone()),
        ))
    });
    plan.map(|plan| Some(plan.data))
}

async fn spread_join(join: &Join, session: &dyn Session, ranks: u32) -> QueryResult<Option<LogicalPlan>> {
    let is_fit = !join.null_aware && is_repeatable(&join.left)? && is_repeatable(&join.right)?;
    let Some((Expr::Column(left), Expr::Column(right))) = join.on.first().filter(|_| is_fit) else {
        return Ok(None);
    };
    let sides = [
        (&join.left, left, &join.right, right),
        (&join.right, right, &join.left, left),
    ];
    for (at, (many, key, few, other)) in sides.into_iter().enumerate() {
        let keys = heavy_keys(many, key, session, ranks).await?;
        if keys.is_empty() {
            continue;
        }
        let of_heavy = filtered(few, among(other, &keys))?;
        let Some(rows) = few_rows(of_heavy, session).await? else {
            continue;
        };
        let heavy = [filtered(many, among(key, &keys))?, in_memory(few.schema(), rows)?];
        let rest = [filtered(many, apart(key, &keys))?, filtered(few, apart(other, &keys))?];
        let inputs = [heavy, rest].map(|[many, few]| {
            let (left, right) = if at == 0 { (many, few) } else { (few, many) };
            let (left, right) = (Arc::new(left), Arc::new(right));
            Arc::new(LogicalPlan::Join(Join {
                left,
                right,
                ..join.clone()
            }))
        });
        tracing::info!(%key, keys = keys.len(), "the rows of heavy keys are joined apart");
        return Ok(Some(LogicalPlan::Union(Union {
            inputs: inputs.to_vec(),
            schema: Arc::clone(&join.schema),
        })));
    }
    Ok(None)
}

/// Whether a plan only reads and filters, so that it gives the same rows each time.
fn is_repeatable(plan: &LogicalPlan) -> QueryResult<bool> {
    let mut is_repeatable = true;
    plan.apply(|node| {
        is_repeatable &= match node {
            LogicalPlan::TableScan(scan) => scan.fetch.is_none(),
            LogicalPlan::Filter(_) | LogicalPlan::Projection(_) | LogicalPlan::SubqueryAlias(_) => true,
            _ => false,
        };
        is_repeatable &= !node.expressions().iter().any(Expr::is_volatile);
        Ok(match is_repeatable {
            true => TreeNodeRecursion::Continue,
            false => TreeNodeRecursion::Stop,
        })
    })?;
    Ok(is_repeatable)
}

/// The keys of a side that have so many rows that a rank would have too many.
async fn heavy_keys(side: &LogicalPlan, key: &Column, session: &dyn Session, ranks: u32) -> QueryResult<Vec<Expr>> {
    let kind = side.schema().field_from_column(key)?.data_type();
    let is_text = matches!(kind, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    if !kind.is_integer() && !is_text {
        return Ok(Vec::new());
    }
    let column = Expr::Column(key.clone());
    let keys = LogicalPlanBuilder::from(side.clone()).project([column.clone()])?;
    let keys = keys.build()?;
    let planned = LocalPlanner.create_physical_plan(&keys, session).await?;
    let Some(all) = known_rows(&planned)?.filter(|all| *all >= MIN_ROWS) else {
        return Ok(Vec::new());
    };
    let sampled = sample::sample(keys, planned, session).await?;
    let sample = counted(&sampled)?;
    let (seen, share) = (sample.values().sum::<usize>(), HEAVY_SHARES / f64::from(ranks));
    let is_heavy = |rows: usize, all: usize| rows as f64 >= share * all as f64;
    let suspects = sample
        .into_iter()
        .filter(|(value, rows)| !value.is_null() && is_heavy(*rows, seen));
    let suspects: Vec<Expr> = suspects.map(|(value, _)| lit(value)).take(MAX_KEYS).collect();
    if seen < MIN_SAMPLE_ROWS || suspects.is_empty() {
        return Ok(Vec::new());
    }
    let of_suspects = LogicalPlanBuilder::from(filtered(side, among(key, &suspects))?);
    let of_suspects = of_suspects.aggregate([column], [count(lit(1))])?.build()?;
    let mut heavy = Vec::new();
    for batch in rows_of(of_suspects, session).await? {
        let rows = as_int64_array(batch.column(1))?;
        for (at, rows) in rows.values().iter().enumerate() {
            if is_heavy(usize::try_from(*rows).unwrap_or(0), all) {
                heavy.push(lit(ScalarValue::try_from_array(batch.column(0), at)?));
            }
        }
    }
    Ok(heavy)
}

/// Number of rows of a plan, if its statistics have it.
pub fn known_rows(plan: &Arc<dyn ExecutionPlan>) -> QueryResult<Option<usize>> {
    let statistics = StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::new())?;
    Ok(statistics.num_rows.get_value().copied())
}

/// How often each value of the first column is there.
fn counted(batches: &[RecordBatch]) -> QueryResult<HashMap<ScalarValue, usize>> {
    let mut counts = HashMap::new();
    for batch in batches {
        for row in 0..batch.num_rows() {
            let value = ScalarValue::try_from_array(batch.column(0), row)?;
            *counts.entry(value).or_default() += 1;
        }
    }
    Ok(counts)
}

/// The rows of a plan; `None` if they are too many for all ranks.
async fn few_rows(plan: LogicalPlan, session: &dyn Session) -> QueryResult<Option<Vec<RecordBatch>>> {
    let plan = LogicalPlanBuilder::from(plan).limit(0, Some(MAX_SPREAD_ROWS + 1))?;
    let rows = rows_of(plan.build()?, session).await?;
    let count: usize = rows.iter().map(RecordBatch::num_rows).sum();
    Ok((count <= MAX_SPREAD_ROWS).then_some(rows))
}

async fn rows_of(plan: LogicalPlan, session: &dyn Session) -> QueryResult<Vec<RecordBatch>> {
    let plan = session.create_physical_plan(&plan).await?;
    collect(plan, session.task_ctx()).await
}

fn among(key: &Column, keys: &[Expr]) -> Expr {
    Expr::Column(key.clone()).in_list(keys.to_vec(), false)
}

/// Of all other keys, and of none.
fn apart(key: &Column, keys: &[Expr]) -> Expr {
    let column = Expr::Column(key.clone());
    column.clone().in_list(keys.to_vec(), true).or(column.is_null())
}

fn filtered(plan: &LogicalPlan, predicate: Expr) -> QueryResult<LogicalPlan> {
    Filter::try_new(predicate, Arc::new(plan.clone())).map(LogicalPlan::Filter)
}

/// Rows as a table with the columns of a plan.
fn in_memory(schema: &DFSchemaRef, rows: Vec<RecordBatch>) -> QueryResult<LogicalPlan> {
    let table = MemTable::try_new(Arc::clone(schema.inner()), vec![rows])?;
    let scan = TableScanBuilder::new("heavy", provider_as_source(Arc::new(table))).build()?;
    // The join refers to the columns by the names of their tables.
    Ok(LogicalPlan::TableScan(TableScan {
        projected_schema: Arc::clone(schema),
        ..scan
    }))
}
