//! Ranks whose own programs have the rows, and call the operations of frames together.

use std::sync::Arc;
use std::time::Duration;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::Schema;
use datafusion::common::Result as QueryResult;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::logical_expr::LogicalPlan;
use dayfly_comm::membership::Membership;
use dayfly_comm::{Communicator, Invitation, Options, World};
use dayfly_protocol::error::{Code, Failure};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::error::failure_of;
use crate::exchange::ExchangeError;
use crate::kept::{self, FrameId, KeptFrame, Store};
use crate::rank::{RankOptions, runtime, service};
use crate::recover::Recovery;
use crate::session::{Session, SessionOptions, link_of};

/// The rank that runs queries for all.
const LEADER: u32 = 0;
/// Time for the tasks of a rank to end when its session closes.
const GRACE: Duration = Duration::from_secs(1);
/// Most bytes that the ranks exchange at once: descriptions and small results, never rows.
const MAX_EXCHANGED: u64 = 1 << 30;

/// A rank of a group in which every rank executes tasks, has rows of its own, and plans.
///
/// All ranks make the same plans. Rank 0 runs them, on the tasks of all ranks, and [`Member::allgather`] carries the
/// outcome. Tasks run in threads of their own, and read local rows without a copy.
pub struct Member {
    session: Arc<Session>,
    kept: Arc<Store>,
    environment: Arc<RuntimeEnv>,
    threads: usize,
    deadline: Duration,
    runtime: Option<Runtime>,
    serving: Option<JoinHandle<Result<(), ExchangeError>>>,
    communicator: Communicator,
    // Declared last: the ranks send farewells before they leave the group.
    _membership: Option<Membership>,
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rank = self.communicator.rank();
        f.debug_struct("Member").field("rank", &rank).finish_non_exhaustive()
    }
}

impl Member {
    /// Joins the group of an invitation. Returns when all ranks are connected.
    ///
    /// # Errors
    /// As joining a group.
    pub fn join(invitation: &Invitation, rank: &RankOptions, session: &SessionOptions) -> Result<Self, Failure> {
        let World {
            communicator,
            membership,
            ..
        } = invitation.accept()?;
        let mut member = Self::of(communicator, rank, session)?;
        member.deadline = Duration::from_secs(invitation.deadline_s);
        member._membership = Some(membership);
        Ok(member)
    }

    /// As [`Member::join`], in a group that is connected already. All its ranks call this. The memory and the object
    /// stores are those of the rank, for its session too.
    ///
    /// # Errors
    /// As opening a [`Post`](dayfly_comm::post::Post).
    pub fn of(communicator: Communicator, rank: &RankOptions, session: &SessionOptions) -> Result<Self, Failure> {
        let service = service(&communicator, rank, communicator.size())?;
        let (kept, environment) = (Arc::clone(&service.kept), Arc::clone(&service.environment));
        let session = SessionOptions {
            memory: rank.memory.clone(),
            stores: rank.stores.clone(),
            // Every rank has rows of its own, which no other rank can make again.
            recovery: Recovery::None,
            ..session.clone()
        };
        let exchange = Arc::clone(&service.exchange);
        let session = Session::over(exchange, Arc::clone(&environment), link_of(&communicator), &session)?;
        let runtime = runtime(rank.threads)?;
        let serving = runtime.spawn(service.run(LEADER));
        Ok(Self {
            session: Arc::new(session),
            kept,
            environment,
            threads: rank.threads,
            deadline: Options::default().deadline,
            runtime: Some(runtime),
            serving: Some(serving),
            communicator,
            _membership: None,
        })
    }

    /// The session of this rank. Only that of rank 0 runs queries.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Whether this is the rank whose session runs queries.
    pub fn is_leader(&self) -> bool {
        self.communicator.rank() == LEADER
    }

    /// Longest duration of one operation, with its query.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Exchanges bytes with all ranks, in the order of the ranks. All of them call this.
    ///
    /// # Errors
    /// As every collective: [`Code::RankLost`] if a rank is lost, and [`Code::TimedOut`] if one does not call this in
    /// time; [`Code::TooLarge`] on all ranks if their bytes are more than 1 GiB.
    pub fn allgather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, Failure> {
        let ranks = self.communicator.size() as usize;
        let mut lengths = vec![0; ranks * size_of::<u64>()];
        self.communicator
            .allgather(&(own.len() as u64).to_le_bytes(), &mut lengths)?;
        let (mut blocks, mut end) = (Vec::with_capacity(ranks), 0u64);
        for length in lengths.chunks_exact(size_of::<u64>()) {
            let start = end;
            end = end.saturating_add(u64::from_le_bytes(length.try_into().expect("it has eight bytes")));
            blocks.push(start as usize..end as usize);
        }
        if end > MAX_EXCHANGED {
            let message = format!("the ranks exchange {end} bytes at once, of at most {MAX_EXCHANGED}");
            return Err(Failure::new(Code::TooLarge, message));
        }
        let mut all = vec![0; end as usize];
        self.communicator.allgatherv(own, &mut all, &blocks)?;
        Ok(blocks.into_iter().map(|block| all[block].to_vec()).collect())
    }

    /// Keeps rows of this program as this rank's part of a frame. Their memory counts as that of queries.
    ///
    /// # Errors
    /// [`Code::OutOfMemory`] if the rank has no room for them.
    pub fn keep(&self, id: FrameId, schema: &Schema, batches: Vec<RecordBatch>) -> Result<KeptFrame, Failure> {
        let kept = KeptFrame::keep(&self.kept, &self.environment, id, schema, batches, self.threads);
        kept.map_err(|error| failure_of(&error))
    }

    /// Forgets this rank's part of a frame.
    pub fn forget(&self, id: FrameId) {
        self.kept.forget(id);
    }

    /// A plan that reads a kept frame. The ranks forget the frame with the last copy of that plan on rank 0.
    ///
    /// # Errors
    /// Of DataFusion, by a defect only.
    pub fn plan(&self, frame: &KeptFrame) -> Result<LogicalPlan, Failure> {
        let exchange = self.is_leader().then(|| self.kept.exchange());
        frame.plan(exchange).map_err(|error| failure_of(&error))
    }

    /// A text that the plans of all ranks have in common, if these called the same operations.
    ///
    /// # Errors
    /// Of DataFusion, by a defect only.
    pub fn fingerprint(&self, plan: &LogicalPlan) -> Result<String, Failure> {
        kept::fingerprint(plan).map_err(|error| failure_of(&error))
    }

    /// This rank's rows of a kept frame.
    ///
    /// # Errors
    /// [`Code::StateLost`] if the rank has forgotten them.
    pub fn own_rows(&self, frame: &KeptFrame) -> Result<Vec<RecordBatch>, Failure> {
        frame.own_rows(&self.kept)
    }

    /// All ranks' rows of a kept frame. Their memory does not count.
    ///
    /// # Errors
    /// [`Code::StateLost`] if a rank does not have them any more, and [`Code::RankLost`] if it is lost.
    pub fn all_rows(&self, frame: KeptFrame) -> impl Future<Output = QueryResult<Vec<RecordBatch>>> + Send + 'static {
        let kept = Arc::clone(&self.kept);
        async move { frame.all_rows(&kept).await }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.session.close();
        if let (Some(runtime), Some(serving)) = (self.runtime.take(), self.serving.take()) {
            // Its own failure, such as a lost rank, was reported to the queries.
            let _ = runtime.block_on(async { tokio::time::timeout(GRACE, serving).await });
            runtime.shutdown_background();
        }
    }
}
