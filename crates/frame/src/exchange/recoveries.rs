//! In the rank of the session: the plans of tasks that run again when their ranks are lost.
//!
//! A task's plan and its units of work stay here until its query ends. A reader that has lost a run asks here for the next
//! one, which begins on another rank; the [decision](crate::recover) is made there.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use datafusion::common::Result;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionConfig;
use datafusion_distributed::DistributedExt;
use dayfly_comm::post::PostError;
use dayfly_protocol::error::Failure;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::channel::Lane;
use super::error::ExchangeError;
use super::requests::{Key, Plan, Report, Request, Unit, encoded};
use super::server::Kind;
use super::{Exchange, REQUESTS};
use crate::recover::{Decision, GivenUp, Lineage, Place, Recovery, Stages, TaskId, along};

/// The header of plans whose lost tasks run again. It has the rank of the session.
const HEADER: &str = "x-dayfly-recovering";
/// The header with the number of a run after the first one.
const ATTEMPT_HEADER: &str = "x-dayfly-attempt";

/// In the configuration of a query whose lost tasks run again.
#[derive(Debug, Clone, Copy)]
pub struct Recovering {
    /// The rank that has the plans.
    pub session: u32,
    /// The number of the task's run, from 0.
    pub attempt: u32,
}

/// In the configuration of a session: what happens to its queries when ranks are lost.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// The rank of the session.
    pub session: u32,
    /// By this, each query has its own.
    pub recovery: Recovery,
}

impl Recovering {
    /// Of the first runs of a query of this session.
    pub fn of(session: u32) -> Self {
        Self { session, attempt: 0 }
    }

    /// Has the queries of a configuration run lost tasks again.
    ///
    /// # Errors
    /// Of the library, by a defect only.
    pub fn set(self, config: &mut SessionConfig) -> Result<()> {
        let session = (HeaderName::from_static(HEADER), HeaderValue::from(self.session));
        config.set_distributed_passthrough_headers(HeaderMap::from_iter([session]))?;
        config.set_extension(Arc::new(self));
        Ok(())
    }
}

/// What the headers of a plan say; `None` if its tasks run once.
pub fn recovering_of(headers: &HeaderMap) -> Option<Recovering> {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.parse().ok();
    Some(Recovering {
        session: number(HEADER)?,
        attempt: number(ATTEMPT_HEADER).unwrap_or(0),
    })
}

/// The tasks that this rank has planned, and the ranks that it has lost.
#[derive(Debug, Default)]
pub struct Recoveries(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Whether queries go on without lost ranks. Otherwise they fail with the first one.
    follows_losses: bool,
    lost: BTreeMap<u32, String>,
    tasks: HashMap<Key, Task>,
    queries: HashMap<[u8; 16], Query>,
}

/// A query whose lost tasks run again.
#[derive(Debug, Default)]
struct Query {
    lineage: Lineage,
    stages: Stages,
    tasks: usize,
}

#[derive(Debug)]
struct Task {
    /// The lanes of its runs' reports, with their ranks.
    sent: Vec<(u32, u32)>,
    /// `None` if it does not run again.
    retained: Option<Retained>,
    /// Takes the lanes of further runs.
    reports: UnboundedSender<Lane>,
}

#[derive(Debug)]
struct Retained {
    plan: Plan,
    /// Units of work; `None` for their end.
    units: Vec<Option<Vec<Unit>>>,
}

impl Recoveries {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A rank is lost.
    pub fn lose(&self, rank: u32, reason: &str) {
        let mut state = self.lock();
        if state.follows_losses {
            state.lost.entry(rank).or_insert_with(|| reason.to_owned());
        }
    }

    /// The ranks that are lost.
    pub fn lost(&self) -> BTreeSet<u32> {
        self.lock().lost.keys().copied().collect()
    }

    /// A task is sent to a rank, which reports on a lane. With its stage, it runs again if the rank is lost.
    pub fn begin(&self, plan: Plan, rank: u32, lane: u32, stage: Option<Arc<dyn ExecutionPlan>>) -> Reports {
        let (reports, further) = unbounded_channel();
        let (key, runs_again) = (plan.key, stage.is_some());
        let mut state = self.lock();
        if let Some(stage) = stage {
            let query = state.queries.entry(key.query()).or_default();
            let (number, task) = id_of(key);
            query.lineage.begin((number, task), rank);
            query.stages.insert(number, &stage);
            query.tasks += 1;
        }
        let retained = runs_again.then(|| Retained {
            plan,
            units: Vec::new(),
        });
        let task = Task {
            sent: vec![(rank, lane)],
            retained,
            reports,
        };
        state.tasks.insert(key, task);
        Reports { further, runs_again }
    }

    /// Sends further units of work to a task; `None` for their end.
    pub fn add_units(&self, exchange: &Exchange, key: Key, units: Option<Vec<Unit>>) {
        let mut state = self.lock();
        let Some(task) = state.tasks.get_mut(&key) else { return };
        if let Some((rank, lane)) = task.sent.last() {
            send_units(exchange, *rank, *lane, units.clone());
        }
        if let Some(retained) = &mut task.retained {
            retained.units.push(units);
        }
    }

    /// The query of a task has ended.
    pub fn end(&self, exchange: &Exchange, key: Key) {
        let mut state = self.lock();
        let Some(task) = state.tasks.remove(&key) else { return };
        if task.retained.is_some()
            && let Some(query) = state.queries.get_mut(&key.query())
        {
            query.tasks -= 1;
            if query.tasks == 0 {
                state.queries.remove(&key.query());
            }
        }
        for (rank, lane) in task.sent {
            // A rank that is lost needs no word.
            let _ = exchange.send(rank, REQUESTS, vec![encoded(&Request::EndOfPlan { lane })]);
        }
    }

    /// Where the next run of a task is whose run `seen` is lost. Begins it, unless another reader has.
    pub fn moved(&self, exchange: &Arc<Exchange>, key: Key, seen: Place, cause: &str) -> Result<Place, Failure> {
        let id = id_of(key);
        let mut state = self.lock();
        let left = (0..exchange.workers())
            .filter(|rank| !state.lost.contains_key(rank))
            .collect();
        let decision = match state.queries.get_mut(&key.query()) {
            Some(query) => query
                .lineage
                .moved(id, seen.attempt, &left, &along(&query.stages, id.0)),
            None => Err(GivenUp::Unknown),
        };
        let (place, readers) = match decision.map_err(|given_up| given_up.to_failure(id, seen.rank, cause))? {
            Decision::There(place) => return Ok(place),
            Decision::Again { place, along } => (place, along),
        };
        tracing::warn!(
            stage = id.0, task = id.1, lost = seen.rank, rank = place.rank, along = readers.len(), %cause,
            "a task runs again"
        );
        for ((stage, number), place) in readers {
            state.run_again(exchange, key.of_task(stage, number), place)?;
        }
        state.run_again(exchange, key, place)?;
        Ok(place)
    }

    /// The session has read a run. Returns whether it may keep it.
    pub fn keep(&self, key: Key, place: Place) -> bool {
        let mut state = self.lock();
        let query = state.queries.get_mut(&key.query());
        query.is_none_or(|query| query.lineage.keep(id_of(key), place))
    }
}

impl State {
    fn run_again(&mut self, exchange: &Arc<Exchange>, key: Key, place: Place) -> Result<(), Failure> {
        if let Some(task) = self.tasks.get_mut(&key) {
            task.run_again(exchange, place)?;
        }
        exchange.queries().begin_again(key.decoded(), place.rank);
        Ok(())
    }
}

impl Task {
    fn run_again(&mut self, exchange: &Arc<Exchange>, place: Place) -> Result<(), Failure> {
        let Some(retained) = &self.retained else { return Ok(()) };
        if let Some((rank, lane)) = self.sent.last() {
            // A rank that is lost needs no word.
            let _ = exchange.send(*rank, REQUESTS, vec![encoded(&Request::Supersede { lane: *lane })]);
        }
        let lane = Lane::new(exchange, place.rank, 1).remove(0);
        let number = lane.number();
        let mut plan = retained.plan.clone();
        plan.attempt = place.attempt;
        let attempt = place.attempt.to_string().into_bytes();
        plan.headers.push((ATTEMPT_HEADER.into(), attempt));
        let plan = encoded(&Request::Plan { lane: number, plan });
        exchange.send(place.rank, REQUESTS, vec![plan])?;
        for units in &retained.units {
            send_units(exchange, place.rank, number, units.clone());
        }
        self.sent.push((place.rank, number));
        // Nobody takes the reports of a query that has ended.
        let _ = self.reports.send(lane);
        Ok(())
    }
}

fn send_units(exchange: &Exchange, rank: u32, lane: u32, units: Option<Vec<Unit>>) {
    let request = match units {
        Some(units) => Request::Units { lane, units },
        None => Request::EndOfUnits { lane },
    };
    // The stream of reports has the loss of the rank.
    let _ = exchange.send(rank, REQUESTS, vec![encoded(&request)]);
}

fn id_of(key: Key) -> TaskId {
    let key = key.decoded();
    (key.stage_id, key.task_number)
}

/// The reports of a task, of all its runs.
pub struct Reports {
    further: UnboundedReceiver<Lane>,
    runs_again: bool,
}

impl Reports {
    /// Reads each report, from the lane of the first run on. Ends with the query.
    pub fn stream<T: Send + 'static>(
        self,
        first: Lane,
        read: impl Fn(Vec<Bytes>) -> Result<T, String> + Send + Sync + 'static,
    ) -> BoxStream<'static, Result<T>> {
        if !self.runs_again {
            return first.into_stream(read);
        }
        let lanes = Lanes {
            current: Some(first),
            superseded: Vec::new(),
            further: Some(self.further),
        };
        let reports = stream::unfold((lanes, read), |(mut lanes, read)| async move {
            let item = match lanes.next().await? {
                Ok((rank, parts)) => read(parts).map_err(|what| ExchangeError::Violation { rank, what }.into()),
                Err(error) => Err(error.into()),
            };
            Some((item, (lanes, read)))
        });
        reports.boxed()
    }
}

/// The lanes of a task's reports: that of the latest run, and those before it.
struct Lanes {
    current: Option<Lane>,
    /// Dropped, they would have their ranks forget what readers of these runs have to find.
    superseded: Vec<Lane>,
    /// `None` once the query has ended.
    further: Option<UnboundedReceiver<Lane>>,
}

impl Lanes {
    /// The rank and the message of the next report; `None` once the last run has reported all.
    async fn next(&mut self) -> Option<Result<(u32, Vec<Bytes>), ExchangeError>> {
        loop {
            let next = match (&mut self.current, &mut self.further) {
                (None, None) => return None,
                (Some(current), None) => Next::Message(current.next().await),
                (None, Some(further)) => Next::Lane(further.recv().await),
                (Some(current), Some(further)) => tokio::select! {
                    biased;
                    lane = further.recv() => Next::Lane(lane),
                    message = current.next() => Next::Message(message),
                },
            };
            match next {
                Next::Lane(None) => self.further = None,
                Next::Lane(Some(lane)) => self.superseded.extend(self.current.replace(lane)),
                Next::Message(Ok(Some((_, parts)))) => {
                    let rank = self.current.as_ref().map_or(0, Lane::rank);
                    return Some(Ok((rank, parts)));
                }
                // The end of this run, or its loss.
                Next::Message(
                    Ok(None) | Err(ExchangeError::Post(PostError::PeerLost { .. } | PostError::PeerClosed { .. })),
                ) => self.current = None,
                Next::Message(Err(error)) => {
                    (self.current, self.further) = (None, None);
                    return Some(Err(error));
                }
            }
        }
    }
}

enum Next {
    Lane(Option<Lane>),
    Message(Result<Option<(Kind, Vec<Bytes>)>, ExchangeError>),
}

/// Takes questions of readers for the runs of lost tasks, and samples of sorts, until the exchange ends.
pub fn guide(exchange: Arc<Exchange>) -> impl Future<Output = ()> + Send + 'static {
    exchange.recoveries().lock().follows_losses = true;
    async move { answer(exchange).await }
}

async fn answer(exchange: Arc<Exchange>) {
    loop {
        let message = match exchange.post.next(REQUESTS, None).await {
            Ok(message) => message,
            Err(PostError::PeerLost { rank, reason }) => {
                exchange.recoveries().lose(rank, &reason);
                exchange.leave_sorts_of(rank);
                continue;
            }
            Err(_) => return,
        };
        let request = message
            .parts()
            .first()
            .map(|part| rmp_serde::from_slice::<Request>(part));
        if exchange.recoveries().lost().contains(&message.from()) {
            // It may have lost all others, and would have their tasks run again.
            continue;
        }
        // Other requests are for ranks that execute tasks; a reader cancels its question once it has the place.
        let from = message.from();
        match request {
            Some(Ok(Request::Moved { lane, key, seen, cause })) => {
                let response = match exchange.recoveries().moved(&exchange, key, seen, &cause) {
                    Ok(place) => vec![Kind::Report.part(), encoded(&Report::Place(place))],
                    Err(failure) => vec![Kind::Error.part(), encoded(&failure)],
                };
                // A reader that is lost needs no word.
                let _ = exchange.send(from, lane, response);
            }
            Some(Ok(Request::Sample { lane, part })) => exchange.take_sample(from, lane, part),
            Some(Ok(Request::Cancel { lane })) => exchange.leave_sort(from, lane),
            _ => {}
        }
    }
}
