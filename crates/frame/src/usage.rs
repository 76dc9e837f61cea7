//! What a query took.

use std::sync::Arc;
use std::time::Duration;

use datafusion::common::{Result as QueryResult, exec_err};
use datafusion::execution::{SendableRecordBatchStream, SessionState};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use datafusion::prelude::{DataFrame, SessionContext};
use datafusion_distributed::{DistributedMetricsFormat, NetworkBoundaryExt, rewrite_distributed_plan_with_metrics};
use tokio::sync::watch;
use tokio::time::timeout;
use uuid::Uuid;

use crate::exchange::{Exchange, Policy, RECEIVED_BYTES, Recovering};
use crate::progress::Task;
use crate::recover::{Choice, Recovery};
use crate::source::bytes_read;

/// Time within which ranks report what they measured, after the query's last row.
const MAX_REPORT_TIME: Duration = Duration::from_secs(10);

/// What a query took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    /// Time from the start to the last row.
    pub elapsed: Duration,
    /// Tasks that ranks have executed, in the order of stages.
    pub tasks: Vec<Task>,
    /// Time that nodes have computed, of all threads of all ranks together.
    pub computing: Duration,
    /// Bytes that crossed between tasks, those to the session included.
    pub exchanged_bytes: u64,
    /// Bytes that did not fit into memory, and were written to disk.
    pub spilled_bytes: u64,
    /// What would have happened, or has, if ranks were lost; never [`Recovery::Auto`].
    pub recovery: Recovery,
}

/// What a query took, once its tasks have reported it.
#[derive(Debug, Clone)]
pub struct PendingUsage(watch::Receiver<Option<Usage>>);

impl PendingUsage {
    /// Waits for the reports; `None` if they do not come.
    pub async fn get(mut self) -> Option<Usage> {
        self.0
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|usage| usage.clone())
    }
}

/// Begins a query. Returns its plan, its rows, and what happens when ranks are lost, with the reason.
///
/// # Errors
/// If the query cannot be planned or begun.
pub async fn begin(
    context: &SessionContext,
    plan: LogicalPlan,
) -> QueryResult<(Arc<dyn ExecutionPlan>, SendableRecordBatchStream, Choice)> {
    let mut state = context.state();
    let plan = DataFrame::new(state.clone(), plan).create_physical_plan().await?;
    let recovery = choose_recovery(&mut state, &plan)?;
    let rows = execute_stream(Arc::clone(&plan), state.task_ctx())?;
    Ok((plan, rows, recovery))
}

/// Chooses what happens to a planned query when ranks are lost, and has its tasks know it.
///
/// # Errors
/// Of the library, by a defect only.
pub fn choose_recovery(state: &mut SessionState, plan: &Arc<dyn ExecutionPlan>) -> QueryResult<Choice> {
    let config = state.config_mut();
    let Some(policy) = config.get_extension::<Policy>() else {
        return Ok(Choice::fixed(Recovery::None));
    };
    let choice = policy.recovery.for_input(bytes_read(plan));
    if policy.recovery == Recovery::Auto && choice.recovery == Recovery::Tasks {
        Recovering::of(policy.session).set(config)?;
    }
    Ok(choice)
}

/// Begins to wait for the reports of a plan that was executed with measures.
pub fn usage_of(
    plan: Arc<dyn ExecutionPlan>,
    elapsed: Duration,
    exchange: Arc<Exchange>,
    recovery: Recovery,
) -> PendingUsage {
    let (sender, receiver) = watch::channel(None);
    tokio::spawn(async move {
        let query = query_of(&plan);
        if let Ok(measured) = measured(plan).await {
            let (exchanged_bytes, spilled_bytes) = bytes_of(&measured);
            let usage = Usage {
                elapsed,
                tasks: query.map_or_else(Vec::new, |query| exchange.queries().tasks_of(query)),
                computing: computing_of(&measured),
                exchanged_bytes,
                spilled_bytes,
                recovery,
            };
            // Nobody may want to know.
            let _ = sender.send(Some(usage));
        }
    });
    PendingUsage(receiver)
}

/// A plan that was executed, with what its nodes measured, summed over tasks and partitions.
///
/// # Errors
/// If the ranks do not report it in time.
pub async fn measured(plan: Arc<dyn ExecutionPlan>) -> QueryResult<Arc<dyn ExecutionPlan>> {
    let measured = rewrite_distributed_plan_with_metrics(plan, DistributedMetricsFormat::Aggregated);
    let measured = timeout(MAX_REPORT_TIME, measured).await;
    measured.unwrap_or_else(|_| exec_err!("the ranks did not report what they measured within {MAX_REPORT_TIME:?}"))
}

/// The query of a plan that has tasks on ranks.
fn query_of(plan: &Arc<dyn ExecutionPlan>) -> Option<Uuid> {
    let own = plan
        .as_network_boundary()
        .map(|boundary| boundary.input_stage().query_id());
    own.or_else(|| plan.children().into_iter().find_map(query_of))
}

fn computing_of(plan: &Arc<dyn ExecutionPlan>) -> Duration {
    let own = plan
        .metrics()
        .and_then(|metrics| metrics.elapsed_compute())
        .unwrap_or(0);
    let below = plan.children().into_iter().map(computing_of);
    below.fold(Duration::from_nanos(own as u64), Duration::saturating_add)
}

/// Bytes that crossed, and bytes that were spilled.
fn bytes_of(plan: &Arc<dyn ExecutionPlan>) -> (u64, u64) {
    let metrics = plan.metrics().unwrap_or_default();
    let received = metrics.sum_by_name(RECEIVED_BYTES).map_or(0, |sum| sum.as_usize());
    let spilled = metrics.spilled_bytes().unwrap_or(0);
    let below = plan.children().into_iter().map(bytes_of);
    below.fold((received as u64, spilled as u64), |sum, below| {
        (sum.0 + below.0, sum.1 + below.1)
    })
}
