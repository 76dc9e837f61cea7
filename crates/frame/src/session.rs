//! DataFusion's sessions: of the rank that plans queries, and of those that execute tasks.

use std::sync::Arc;

use datafusion::common::{DataFusionError, Result};
use datafusion::execution::SessionStateBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_distributed::{
    DistributedExt, SessionStateBuilderExt, Worker, WorkerQueryContext, WorkerResolver,
};
use url::Url;

use crate::exchange::{Exchange, RankChannels, address_of};

/// The ranks that execute tasks.
struct Workers(Vec<u32>);

impl WorkerResolver for Workers {
    fn get_urls(&self) -> Result<Vec<Url>, DataFusionError> {
        Ok(self.0.iter().map(|rank| address_of(*rank)).collect())
    }
}

/// A session that plans queries and has them executed by these ranks.
pub fn context(exchange: &Arc<Exchange>, ranks: Vec<u32>, config: SessionConfig) -> Result<SessionContext> {
    let state = SessionStateBuilder::new()
        .with_default_features()
        .with_config(config)
        .with_distributed_planner()
        .with_distributed_worker_resolver(Workers(ranks))
        .with_distributed_channel_resolver(RankChannels::new(exchange))
        .with_distributed_metrics_collection(false)?
        .build();
    Ok(SessionContext::from(state))
}

/// What executes the tasks of queries on one rank.
pub fn worker(exchange: &Arc<Exchange>) -> Worker {
    let exchange = Arc::clone(exchange);
    Worker::from_session_builder(move |query: WorkerQueryContext| {
        let channels = RankChannels::new(&exchange);
        async move { Ok(query.builder.with_distributed_channel_resolver(channels).build()) }
    })
}
