//! The rank that plans queries and gets their results.

use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{DataFusionError, Result as QueryResult};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::{SendableRecordBatchStream, SessionStateBuilder};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::common::collect;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::prelude::{DataFrame, SessionConfig, SessionContext};
use datafusion_distributed::{DistributedExt, SessionStateBuilderExt, WorkerResolver};
use dayfly_comm::post::{Post, PostOptions};
use dayfly_comm::{Communicator, Invitation, World};
use dayfly_protocol::error::{Code, Failure};
use futures_util::StreamExt;
use tokio::runtime::Runtime;
use url::Url;

use crate::codec::NodeCodec;
use crate::cost::Link;
use crate::error::failure_of;
use crate::exchange::{Exchange, Policy, RankChannels, Recovering, address_of, guide};
use crate::float_statistics::optimizer_rules;
use crate::functions::items;
use crate::kept;
use crate::memory::{Memory, needs_sorted_joins};
use crate::plan::{Costs, Cutter, LocalPlanner, RankPlanner, with_broadcasts};
use crate::progress::Running;
use crate::ranges;
use crate::rank::runtime;
use crate::recover::{MAX_ATTEMPTS, Recovery};
use crate::source::{desired_tasks, whole};
use crate::stores::StoreOptions;
use crate::usage::{PendingUsage, begin, usage_of};
use crate::write::{Manifest, Output, write};

/// Fewest partitions with which a plan has stages.
const MIN_PARTITIONS: usize = 2;
/// Fewest rows that are sorted by ranges: one rank merges fewer in less time than another exchange takes.
const MIN_SORTED_ROWS: usize = 100_000;

/// Longest time until all ranks take requests, after their posts are open.
const MAX_READY_TIME: Duration = Duration::from_secs(30);
/// Longest time until a loss that another rank has reported is known here.
const MAX_NOTICE_TIME: Duration = Duration::from_secs(1);
/// Pause between two looks for it.
const NOTICE_PAUSE: Duration = Duration::from_millis(5);

/// How a session plans, and what it may use itself.
#[derive(Debug, Clone)]
pub struct SessionOptions {
    /// Partitions of a stage on each rank: the cores of a rank. At least 2: for one partition, DataFusion plans no
    /// repartition, which is where a plan is cut into stages.
    pub partitions: usize,
    /// Bytes of input for each partition. Fewer ranks scan a table that is smaller than one share for each.
    pub partition_bytes: usize,
    /// Rows from which on each rank sorts a range of the keys. One rank merges fewer rows, if it is known how many there are.
    pub min_sorted_rows: usize,
    /// What the last stage of queries may use, which runs in this process.
    pub memory: Memory,
    /// How this process reaches object stores.
    pub stores: StoreOptions,
    /// What happens to queries whose ranks are lost.
    pub recovery: Recovery,
}

impl Default for SessionOptions {
    /// Two partitions on each rank, 1 MiB for each partition, memory without a bound.
    fn default() -> Self {
        Self {
            partitions: MIN_PARTITIONS,
            partition_bytes: 1 << 20,
            min_sorted_rows: MIN_SORTED_ROWS,
            memory: Memory::default(),
            stores: StoreOptions::default(),
            recovery: Recovery::default(),
        }
    }
}

/// The ranks that execute tasks.
struct Workers(Arc<Exchange>);

impl WorkerResolver for Workers {
    fn get_urls(&self) -> QueryResult<Vec<Url>> {
        let left = self.0.left();
        if left.is_empty() {
            let failure = Failure::new(Code::RankLost, "all ranks of this session are lost");
            return Err(DataFusionError::External(failure.into()));
        }
        Ok(left.into_iter().map(address_of).collect())
    }
}

/// The rows of a query.
#[derive(Debug)]
pub struct Rows {
    /// Their columns.
    pub schema: SchemaRef,
    /// The rows.
    pub batches: Vec<RecordBatch>,
    /// What the query took.
    pub usage: PendingUsage,
}

/// Queries over the ranks of a group. The last rank of the group has the session; all others are in
/// [`serve_rank`](crate::serve_rank).
///
/// Use it from threads without an asynchronous runtime of their own, and pass futures of [`Session::context`] to
/// [`Session::runtime`].
pub struct Session {
    exchange: Arc<Exchange>,
    context: SessionContext,
    recovery: Recovery,
    runtime: Option<Runtime>,
    // Declared last: the ranks send farewells before they leave the group.
    _world: Option<World>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("ranks", &self.ranks())
            .finish_non_exhaustive()
    }
}

impl Session {
    /// Joins the group of an invitation as its last rank. Returns when all ranks are connected.
    ///
    /// # Errors
    /// As joining a group; [`Code::InvalidRequest`] if the group has one rank only or the invitation another rank;
    /// [`Code::RankLost`] if a rank is lost before it takes requests.
    pub fn join(invitation: &Invitation, options: &SessionOptions) -> Result<Self, Failure> {
        let world = invitation.accept()?;
        let mut session = Self::of(&world.communicator, options)?;
        session._world = Some(world);
        Ok(session)
    }

    /// A session in a group that is connected already. The last rank calls this, and all others
    /// [`serve`](crate::serve).
    ///
    /// # Errors
    /// As [`Session::join`].
    pub fn of(communicator: &Communicator, options: &SessionOptions) -> Result<Self, Failure> {
        let (rank, size) = (communicator.rank(), communicator.size());
        if size < 2 || rank != size - 1 {
            return Err(Failure::new(
                Code::InvalidRequest,
                format!("rank {rank} of {size} cannot have the session: it is the last rank of two or more"),
            ));
        }
        let post = Post::open(communicator, PostOptions::default())?;
        let environment = options.memory.environment(&options.stores);
        let environment = environment.map_err(|error| failure_of(&error))?;
        let exchange = Exchange::new(post, size - 1);
        exchange.wait_for_workers(Instant::now() + MAX_READY_TIME)?;
        let session = Self::over(exchange, environment, link_of(communicator), options)?;
        if session.recovery.goes_on() {
            session.runtime().spawn(guide(Arc::clone(&session.exchange)));
        }
        Ok(session)
    }

    /// A session whose queries run on the workers of this exchange over such a link, and their last stage in this
    /// environment.
    pub(crate) fn over(
        exchange: Arc<Exchange>,
        environment: Arc<RuntimeEnv>,
        link: Link,
        options: &SessionOptions,
    ) -> Result<Self, Failure> {
        let runtime = runtime(options.partitions)?;
        let context = context(&exchange, environment, link, options).map_err(|error| failure_of(&error))?;
        Ok(Self {
            exchange,
            context,
            recovery: options.recovery,
            runtime: Some(runtime),
            _world: None,
        })
    }

    /// Number of ranks that execute tasks.
    pub fn ranks(&self) -> u32 {
        self.exchange.workers()
    }

    /// Number of these that are not known to be lost. A session whose tasks run again goes on with them.
    pub fn ranks_left(&self) -> u32 {
        self.exchange.left().len() as u32
    }

    /// Whether no query is under way and no frame is kept, so that nothing is lost with the session.
    pub fn is_idle(&self) -> bool {
        self.exchange.is_idle()
    }

    /// What happens to queries whose ranks are lost.
    pub fn recovery(&self) -> Recovery {
        self.recovery
    }

    /// The queries under way, the oldest first, and what their tasks have done.
    pub fn running(&self) -> Vec<Running> {
        self.exchange.queries().running()
    }

    /// DataFusion's session: its tables and its planner.
    pub fn context(&self) -> &SessionContext {
        &self.context
    }

    /// The runtime on which queries of this session run.
    pub fn runtime(&self) -> &Runtime {
        self.runtime
            .as_ref()
            .expect("it is taken only when the session is dropped")
    }

    /// All rows of a plan.
    ///
    /// A query whose hash join needs more memory than a rank has runs again with joins that sort, and can spill.
    ///
    /// # Errors
    /// Of the query; [`failure_of`](crate::failure_of) gives the code.
    pub async fn collect(&self, plan: LogicalPlan) -> QueryResult<Rows> {
        let run = |context: SessionContext| {
            let (plan, exchange) = (plan.clone(), Arc::clone(&self.exchange));
            async move {
                let start = Instant::now();
                let (plan, rows, choice) = begin(&context, plan).await?;
                Ok(Rows {
                    schema: rows.schema(),
                    batches: collect(rows).await?,
                    usage: usage_of(plan, start.elapsed(), exchange, choice.recovery),
                })
            }
        };
        self.run(run).await
    }

    /// The rows of a plan as they arrive. Returns when the first ones have.
    ///
    /// A query whose hash join needs more memory than a rank has runs again, as in [`Session::collect`], if this is known
    /// before the first rows.
    ///
    /// # Errors
    /// Of the query until then. Later ones are in the stream.
    pub async fn stream(&self, plan: LogicalPlan) -> QueryResult<SendableRecordBatchStream> {
        let run = |context: SessionContext| {
            let plan = plan.clone();
            async move {
                let (_, mut rows, _) = begin(&context, plan).await?;
                let first = rows.next().await.transpose()?;
                let schema = rows.schema();
                let rows = futures_util::stream::iter(first.map(Ok)).chain(rows);
                let rows: SendableRecordBatchStream = Box::pin(RecordBatchStreamAdapter::new(schema, rows));
                Ok(rows)
            }
        };
        self.run(run).await
    }

    /// Writes all rows of a plan below a directory: see [`write`](crate::write).
    ///
    /// # Errors
    /// As that function.
    pub async fn write(&self, plan: LogicalPlan, output: &Output) -> QueryResult<Manifest> {
        let run = |context: SessionContext| {
            let frame = DataFrame::new(context.state(), plan.clone());
            async move { write(&context, frame, output).await }
        };
        self.run(run).await
    }

    /// Computes a plan, has so many ranks keep each of its rows in their memory, and returns a plan that reads them. The
    /// ranks forget them with the last copy of that plan.
    ///
    /// # Errors
    /// Of the query; [`Code::OutOfMemory`] if the rows do not fit; [`Code::InvalidRequest`] if there are fewer ranks than
    /// `replicas`, or the session does not go on without lost ranks. A query over rows all ranks of which were lost fails
    /// with [`Code::StateLost`].
    pub async fn persist(&self, plan: LogicalPlan, replicas: usize) -> QueryResult<LogicalPlan> {
        if replicas > 1 && !self.recovery.goes_on() {
            let message = "copies of kept rows are for sessions that go on without lost ranks: open the session with \
                           recover=\"tasks\" or recover=\"auto\", or keep one replica";
            return Err(DataFusionError::External(
                Failure::new(Code::InvalidRequest, message).into(),
            ));
        }
        let exchange = Arc::clone(&self.exchange);
        let run = |context: SessionContext| {
            let (plan, exchange) = (plan.clone(), Arc::clone(&exchange));
            async move { kept::persist(&context, plan, &exchange, replicas).await }
        };
        self.run(run).await
    }

    /// Runs a query. One whose lost tasks cannot run again alone runs again as a whole, on the ranks that are left.
    async fn run<T, F>(&self, run: impl Fn(SessionContext) -> F) -> QueryResult<T>
    where
        F: Future<Output = QueryResult<T>>,
    {
        let mut context = self.context.clone();
        let (mut attempts, mut are_joins_sorted) = (1, false);
        loop {
            let ranks = self.ranks_left();
            let error = match run(context.clone()).await {
                Ok(result) => return Ok(result),
                Err(error) => error,
            };
            let failure = failure_of(&error);
            if needs_sorted_joins(&failure) && !are_joins_sorted {
                let mut state = self.context.state();
                state.config_mut().options_mut().optimizer.prefer_hash_join = false;
                (context, are_joins_sorted) = (SessionContext::from(state), true);
            } else if self.runs_again(&failure, attempts) {
                attempts += 1;
                self.notice_loss(ranks).await;
            } else {
                return Err(error);
            }
        }
    }

    /// Waits until this rank knows of a loss that another one has reported: it would plan for the lost rank.
    async fn notice_loss(&self, before: u32) {
        let deadline = Instant::now() + MAX_NOTICE_TIME;
        while self.ranks_left() >= before && Instant::now() < deadline {
            tokio::time::sleep(NOTICE_PAUSE).await;
        }
    }

    fn runs_again(&self, failure: &Failure, attempts: u32) -> bool {
        let has_ranks = self.recovery.goes_on() && self.ranks_left() > 0;
        has_ranks && failure.code == Code::RankLost && attempts < MAX_ATTEMPTS
    }

    /// Ends the session on all ranks. Queries under way fail with [`Code::Cancelled`]. Does nothing the second time.
    pub fn close(&self) {
        self.exchange.revoke();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.close();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The slowest link of this rank to another one: those between the others are taken for no slower.
pub fn link_of(communicator: &Communicator) -> Link {
    Link::slowest(communicator.routes().into_iter().flatten())
}

fn context(
    exchange: &Arc<Exchange>,
    environment: Arc<RuntimeEnv>,
    link: Link,
    options: &SessionOptions,
) -> QueryResult<SessionContext> {
    let config = SessionConfig::new()
        .with_information_schema(true)
        .with_target_partitions(options.partitions.max(MIN_PARTITIONS));
    let mut config = options.memory.configure(config);
    let costs = Arc::new(Costs {
        exchange: Arc::clone(exchange),
        cores: options.partitions,
        link,
    });
    config.set_extension(Arc::clone(&costs));
    let session = exchange.rank();
    config.set_extension(Arc::new(Policy {
        session,
        recovery: options.recovery,
    }));
    if options.recovery == Recovery::Tasks {
        Recovering::of(session).set(&mut config)?;
    }
    let state = SessionStateBuilder::new()
        .with_default_features()
        .with_config(config)
        .with_runtime_env(environment)
        .with_query_planner(Arc::new(LocalPlanner))
        .with_physical_optimizer_rules(with_broadcasts(optimizer_rules(), costs))
        .with_distributed_planner()
        .with_distributed_worker_resolver(Workers(Arc::clone(exchange)))
        .with_distributed_channel_resolver(RankChannels::new(exchange))
        .with_distributed_user_codec(NodeCodec)
        .with_distributed_desired_task_count_handler(items::desired_tasks)
        .with_distributed_scale_up_leaf_node_handler(items::divided)
        .with_distributed_desired_task_count_handler(kept::desired_tasks)
        .with_distributed_scale_up_leaf_node_handler(kept::divided)
        .with_distributed_route_tasks_handler(kept::routed)
        .with_distributed_desired_task_count_handler(ranges::desired_tasks)
        .with_distributed_desired_task_count_handler(desired_tasks)
        .with_distributed_scale_up_leaf_node_handler(whole::divided)
        .with_distributed_file_scan_config_bytes_per_partition(options.partition_bytes)?
        .with_distributed_metrics_collection(true)?
        .build();
    let planner = RankPlanner {
        distributed: Arc::clone(state.query_planner()),
        exchange: Arc::clone(exchange),
        min_sorted_rows: options.min_sorted_rows,
        cutter: match options.recovery {
            Recovery::None | Recovery::Query => Cutter::FirstWorker,
            Recovery::Tasks | Recovery::Auto => Cutter::Session,
        },
    };
    let state = SessionStateBuilder::new_from_existing(state)
        .with_query_planner(Arc::new(planner))
        .build();
    Ok(SessionContext::from(state))
}
