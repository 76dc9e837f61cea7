//! A rank that executes the tasks of queries.

use std::sync::Arc;

use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion_distributed::{DistributedExt, Worker, WorkerQueryContext};
use dayfly_comm::post::{Post, PostOptions};
use dayfly_comm::{Communicator, Invitation};
use dayfly_protocol::error::{Code, Failure};
use tokio::runtime::Runtime;

use crate::codec::NodeCodec;
use crate::error::failure_of;
use crate::exchange::{Exchange, ExchangeError, RankChannels, recovering_of};
use crate::functions::Functions;
use crate::kept::Store;
use crate::memory::Memory;
use crate::pauses::with_pauses;
use crate::pins::with_pins;
use crate::stores::StoreOptions;

/// Polls of tasks after which a thread looks for messages and timers. A poll computes for up to 10 ms here, and by
/// default a thread looks after 61 of them: a canceled query would go on for so long.
const EVENT_INTERVAL: u32 = 2;

/// What a rank may use.
#[derive(Debug, Clone)]
pub struct RankOptions {
    /// Threads that execute tasks: the cores of its lease. At least 1.
    pub threads: usize,
    /// Its share of the lease's memory, and of the disk.
    pub memory: Memory,
    /// How it reaches object stores.
    pub stores: StoreOptions,
    /// What calls the functions of queries; `None` to refuse these.
    pub functions: Option<Functions>,
}

impl Default for RankOptions {
    /// One thread, memory without a bound.
    fn default() -> Self {
        Self {
            threads: 1,
            memory: Memory::default(),
            stores: StoreOptions::default(),
            functions: None,
        }
    }
}

/// Joins the group of an invitation as one of its workers, and executes tasks of the session until it closes.
///
/// # Errors
/// As joining a group; [`Code::RankLost`] if the rank of the session is lost.
pub fn serve_rank(invitation: &Invitation, options: &RankOptions) -> Result<(), Failure> {
    let world = invitation.accept()?;
    serve(&world.communicator, options)
}

/// As [`serve_rank`], in a group that is connected already. All ranks of it call this, except the last one, which opens
/// a [`Session`](crate::Session).
///
/// # Errors
/// As [`serve_rank`].
pub fn serve(communicator: &Communicator, options: &RankOptions) -> Result<(), Failure> {
    let session = communicator.size() - 1;
    let service = service(communicator, options, session)?;
    let runtime = runtime(options.threads)?;
    service.exchange.announce(session);
    let served = runtime.block_on(service.run(session));
    // Tasks that are still under way end with the post.
    runtime.shutdown_background();
    served.map_err(|error| error.to_failure())
}

/// What a rank executes tasks with.
pub struct Service {
    pub exchange: Arc<Exchange>,
    pub kept: Arc<Store>,
    pub environment: Arc<RuntimeEnv>,
    worker: Worker,
    memory: Arc<Memory>,
}

impl Service {
    /// Executes tasks until the exchange ends, or the rank of the session is lost.
    pub fn run(self, session: u32) -> impl Future<Output = Result<(), ExchangeError>> + Send + 'static {
        crate::exchange::serve(
            self.exchange,
            self.worker,
            self.memory,
            self.environment,
            self.kept,
            session,
        )
    }
}

/// Prepares a rank of a group in which the first ranks execute tasks. All ranks have to open their exchanges.
pub fn service(communicator: &Communicator, options: &RankOptions, workers: u32) -> Result<Service, Failure> {
    let memory = Arc::new(options.memory.clone());
    let environment = memory
        .environment(&options.stores)
        .map_err(|error| failure_of(&error))?;
    let exchange = Exchange::new(Post::open(communicator, PostOptions::default())?, workers);
    let channels = exchange.clone();
    let bounds = Arc::clone(&memory);
    let functions = options.functions.clone().map(Arc::new);
    let kept = Arc::new(Store::new(&exchange));
    let store = Arc::clone(&kept);
    let worker = Worker::from_session_builder(move |mut query: WorkerQueryContext| {
        let channels = RankChannels::new(&channels);
        let bounds = Arc::clone(&bounds);
        let functions = functions.clone();
        let store = Arc::clone(&store);
        let recovering = recovering_of(&query.headers);
        async move {
            let mut config = query.builder.config().take().unwrap_or_default();
            config.set_extension(store);
            if let Some(recovering) = recovering {
                config.set_extension(Arc::new(recovering));
            }
            if let Some(functions) = functions {
                config.set_extension(functions);
            }
            Ok(query
                .builder
                .with_config(bounds.configure(config))
                .with_distributed_channel_resolver(channels)
                .with_distributed_user_codec(NodeCodec)
                .with_distributed_worker_plan_rewrite_handler(with_pauses)
                .with_distributed_worker_plan_rewrite_handler(with_pins)
                .build())
        }
    });
    Ok(Service {
        exchange,
        kept,
        worker: worker.with_runtime_env(Arc::clone(&environment)),
        environment,
        memory,
    })
}

/// A runtime for this many tasks at once.
pub fn runtime(threads: usize) -> Result<Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads.max(1))
        .thread_name("frame")
        .event_interval(EVENT_INTERVAL)
        .global_queue_interval(EVENT_INTERVAL)
        .enable_all()
        .build();
    runtime.map_err(|error| Failure::new(Code::Internal, format!("starting threads for queries failed: {error}")))
}
