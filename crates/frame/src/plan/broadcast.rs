//! The rule that has the rows of one side of a join go to all ranks, where the [cost model](crate::cost) finds it cheaper.
//!
//! DataFusion broadcasts sides of less than 1 MiB, without a look at the other side, the ranks or the links.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{JoinType, Result as QueryResult};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion_distributed::{BroadcastExec, NetworkBroadcastExec};

use crate::cost::{Choice, Estimate, Exchange as Way, Link, Ranks, choose};
use crate::exchange::Exchange;

/// DataFusion's rule that chooses how hash joins get their sides. What comes after it exchanges rows accordingly.
const JOIN_SELECTION: &str = "join_selection";

/// What the cost model has to know of a session. It is in the session's configuration.
#[derive(Debug)]
pub struct Costs {
    /// The exchange of its ranks.
    pub exchange: Arc<Exchange>,
    /// Cores of each rank.
    pub cores: usize,
    /// The slowest link to a rank.
    pub link: Link,
}

impl Costs {
    /// The ranks that are left.
    pub fn ranks(&self) -> Ranks {
        Ranks {
            count: self.exchange.left().len() as u32,
            cores: self.cores,
            link: self.link,
        }
    }
}

type Rules = Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>>;

/// These rules, with that for broadcasts.
pub fn with_broadcasts(mut rules: Rules, costs: Arc<Costs>) -> Rules {
    if let Some(at) = rules.iter().position(|rule| rule.name() == JOIN_SELECTION) {
        rules.insert(at + 1, Arc::new(BroadcastRule(costs)));
    }
    rules
}

#[derive(Debug)]
struct BroadcastRule(Arc<Costs>);

impl PhysicalOptimizerRule for BroadcastRule {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _config: &ConfigOptions) -> QueryResult<Arc<dyn ExecutionPlan>> {
        let ranks = self.0.ranks();
        let changed = plan.transform_up(|node| {
            let join = node.downcast_ref::<HashJoinExec>();
            let join = join.filter(|join| join.mode == PartitionMode::Partitioned && can_be_broadcast(join));
            Ok(match join {
                Some(join) if choice_of(join, ranks).exchange == Way::Broadcast => {
                    let join = join.builder().with_partition_mode(PartitionMode::CollectLeft);
                    Transformed::yes(join.build_exec()?)
                }
                _ => Transformed::no(node),
            })
        })?;
        Ok(changed.data)
    }

    fn name(&self) -> &str {
        "broadcast_by_cost"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Whether each rank may have all rows of the left side: none of these is in the result without a row of the right side,
/// or several ranks would return it.
pub fn can_be_broadcast(join: &HashJoinExec) -> bool {
    use JoinType::{Inner, Right, RightAnti, RightMark, RightSemi};
    let is_safe = matches!(join.join_type(), Inner | Right | RightSemi | RightAnti | RightMark);
    is_safe && !join.null_aware
}

/// How the cost model would exchange the rows of a join, and why.
pub fn choice_of(join: &HashJoinExec, ranks: Ranks) -> Choice {
    choose(estimate_of(join.left()), estimate_of(join.right()), ranks)
}

/// What the statistics of a plan say about its rows.
pub fn estimate_of(plan: &Arc<dyn ExecutionPlan>) -> Estimate {
    let plan = below_broadcast(plan);
    let Ok(statistics) = StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::new()) else {
        return Estimate::default();
    };
    let schema = plan.schema();
    let widths = schema.fields().iter().map(|field| field.data_type().primitive_width());
    let rows = statistics.num_rows.get_value().map(|rows| *rows as u64);
    let bytes = statistics.total_byte_size.get_value().map(|bytes| *bytes as u64);
    Estimate::new(rows, bytes, widths)
}

/// The rows that a broadcast sends to each rank. The nodes of the broadcast have no statistics.
fn below_broadcast(plan: &Arc<dyn ExecutionPlan>) -> &Arc<dyn ExecutionPlan> {
    let is_part =
        plan.is::<NetworkBroadcastExec>() || plan.is::<BroadcastExec>() || plan.is::<CoalescePartitionsExec>();
    match plan.children()[..] {
        [input] if is_part && plan.fetch().is_none() => below_broadcast(input),
        _ => plan,
    }
}
