//! Sessions: the client's end of a group whose ranks execute queries.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dayfly_comm::Invitation;
use dayfly_frame::datafusion::catalog::MemTable;
use dayfly_frame::datafusion::common::DataFusionError;
use dayfly_frame::datafusion::error::Result as QueryResult;
use dayfly_frame::datafusion::logical_expr::LogicalPlan;
use dayfly_frame::{Recovery, Running, Session as Inner, SessionOptions, Source, StoreOptions};
use dayfly_protocol::error::{Code, Failure};
use pyo3::prelude::*;

use crate::arrow::import_stream;
use crate::errors::{ForPython, inherited, raise};
use crate::frame::Frame;
use crate::output::format_of;
use crate::slot::Slot;
use crate::sql;
use crate::tasks::{Task, task_of};
use crate::wait::wait;

/// Times that a query runs whose ranks are lost.
const MAX_ATTEMPTS: u32 = 3;

/// The session of several frames, until it is closed.
#[derive(Clone)]
pub struct Shared {
    current: Arc<Mutex<Current>>,
    /// The process that joined the group.
    process: u32,
    /// Python's function that replaces the lost ranks of a generation, if there is one.
    renew: Slot,
    /// Python's function that has ranks in place of the lost ones of a generation, before a query begins.
    refill: Slot,
    /// Python's view of the ranks, if all of them call the operations of frames.
    group: Slot,
    /// Python's object that shows queries under way, if it was asked for.
    progress: Slot,
    /// Python's function that submits a write as a durable task, if the session has a client.
    detach: Slot,
    /// What the ranks cost in a second, as a number of Python, if it is known.
    price: Slot,
    /// Longest duration of a query, where other ranks wait for its end.
    deadline: Option<Duration>,
}

/// The group of a session. Lost ranks are replaced by a group of the next generation.
struct Current {
    session: Option<Arc<Inner>>,
    generation: u64,
    /// Whether some of its ranks are lost, so that others will replace all of them.
    is_abandoned: bool,
}

impl Current {
    fn is_replaced(&self, generation: u64) -> bool {
        self.generation != generation || self.is_abandoned
    }
}

impl Shared {
    fn new(session: Arc<Inner>, deadline: Option<Duration>) -> Self {
        Self {
            current: Arc::new(Mutex::new(Current {
                session: Some(session),
                generation: 0,
                is_abandoned: false,
            })),
            process: std::process::id(),
            renew: Slot::default(),
            refill: Slot::default(),
            group: Slot::default(),
            progress: Slot::default(),
            detach: Slot::default(),
            price: Slot::default(),
            deadline,
        }
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a query to its end. If ranks are lost meanwhile, others are leased and it runs again.
    pub fn run<T, F>(&self, py: Python<'_>, query: impl Fn(Arc<Inner>) -> F) -> PyResult<T>
    where
        T: Send + 'static,
        F: Future<Output = QueryResult<T>> + Send + 'static,
    {
        self.refill(py)?;
        let mut attempt = 1;
        loop {
            let generation = self.current().generation;
            let session = self.get(py)?;
            let work = within(self.deadline, query(Arc::clone(&session)));
            let found = wait(py, session.runtime().handle(), work)?;
            drop(session);
            let failure = match found {
                Ok(value) => return Ok(value),
                Err(error) => dayfly_frame::failure_of(&error),
            };
            // Who replaces the ranks cancels the queries that other threads have on the old ones.
            let is_replaced = failure.code == Code::Cancelled && self.current().is_replaced(generation);
            match self.renew.get(py) {
                Some(renew) if failure.code == Code::RankLost || is_replaced => {
                    if attempt == MAX_ATTEMPTS {
                        let message = format!("ranks were lost in {attempt} attempts: {}", failure.message);
                        return Err(raise(py, &Failure::new(failure.code, message)));
                    }
                    attempt += 1;
                    renew.call1(py, (generation,))?;
                }
                _ => return Err(raise(py, &failure)),
            }
        }
    }

    /// Has ranks in place of lost ones, where a session goes on without these and nothing keeps it from a new group.
    fn refill(&self, py: Python<'_>) -> PyResult<()> {
        let Some(refill) = self.refill.get(py) else {
            return Ok(());
        };
        let generation = self.current().generation;
        let session = self.get(py)?;
        let is_short = session.ranks_left() < session.ranks() && session.ranks_left() > 0;
        let is_due = is_short && session.recovery().goes_on() && session.is_idle();
        // Python's function drops the session.
        drop(session);
        match is_due {
            true => refill.call1(py, (generation,)).map(drop),
            false => Ok(()),
        }
    }

    /// Python's view of the ranks. Fails if the session is closed.
    pub fn group(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.get(py)?;
        Ok(self.group.get(py))
    }

    /// What shows queries under way.
    pub fn progress(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.progress.get(py)
    }

    /// What submits a write as a durable task. Fails if the session is closed.
    pub fn detach(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.get(py)?;
        Ok(self.detach.get(py))
    }

    /// What the ranks cost in a second.
    pub fn price(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.price.get(py)
    }

    /// The session. Fails if it is closed, and in a process that a fork made.
    pub fn get(&self, py: Python<'_>) -> PyResult<Arc<Inner>> {
        if self.process != std::process::id() {
            return Err(inherited(py));
        }
        let session = self.current().session.clone();
        session.ok_or_else(|| {
            let message = "this session is closed; open another one with client.frames() or Session.of()";
            raise(py, &Failure::new(Code::LeaseEnded, message))
        })
    }

    /// Makes a frame of this session from a plan.
    pub fn frame(&self, plan: LogicalPlan) -> Frame {
        Frame::new(self.clone(), plan)
    }

    /// Makes a frame of a query over these frames, by the names of their tables.
    pub fn sql(&self, py: Python<'_>, query: String, tables: &[(String, PyRef<'_, Frame>)]) -> PyResult<Frame> {
        let session = self.get(py)?;
        let names: Vec<String> = tables.iter().map(|(name, _)| name.clone()).collect();
        let plans = tables.iter().map(|(name, frame)| (name.clone(), frame.plan().clone()));
        let context = sql::with_tables(session.context(), plans.collect()).for_python(py)?;
        let planned = wait(py, session.runtime().handle(), async move {
            sql::planned(&context, &query).await
        })?;
        let plan = planned.map_err(|error| sql::refused(py, &error, &names))?;
        Ok(self.frame(plan))
    }

    fn take(&self) -> Option<Arc<Inner>> {
        self.current().session.take()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A child has none of the threads that the session would wait for.
        if self.process != std::process::id() {
            std::mem::forget(self.take());
        }
    }
}

/// The client's end of a group whose ranks execute queries.
#[pyclass(frozen, module = "dayfly_frames._frames")]
pub struct Session {
    shared: Shared,
    /// Those of every group that it joins.
    options: SessionOptions,
}

#[pymethods]
impl Session {
    /// Joins the group of an invitation as its last rank.
    #[staticmethod]
    fn join(
        py: Python<'_>,
        invitation: &str,
        partitions: usize,
        partition_bytes: usize,
        stores: BTreeMap<String, String>,
        recover: &str,
    ) -> PyResult<Self> {
        let options = SessionOptions {
            partitions,
            partition_bytes,
            recovery: match recover {
                "auto" => Recovery::Auto,
                "tasks" => Recovery::Tasks,
                "query" => Recovery::Query,
                _ => Recovery::None,
            },
            stores: StoreOptions::new(stores).map_err(|failure| raise(py, &failure))?,
            ..SessionOptions::default()
        };
        let session = joined(py, invitation, &options)?;
        Ok(Self {
            shared: Shared::new(Arc::new(session), None),
            options,
        })
    }

    /// Has the operations of frames that compute rows go through this object, on all ranks.
    fn set_group(&self, group: Py<PyAny>) {
        self.shared.group.set(group);
    }

    /// Has queries show what their tasks have done.
    fn set_progress(&self, progress: Py<PyAny>) {
        self.shared.progress.set(progress);
    }

    /// Has writes that need no client go through this function.
    fn set_detach(&self, detach: Py<PyAny>) {
        self.shared.detach.set(detach);
    }

    /// Has results say what they cost, by what the ranks cost in a second.
    fn set_price(&self, price: Py<PyAny>) {
        self.shared.price.set(price);
    }

    /// The seconds and the tasks of each query under way.
    fn running(&self, py: Python<'_>) -> PyResult<Vec<(f64, Vec<Task>)>> {
        let running = self.shared.get(py)?.running();
        let tasks = |query: &Running| query.tasks.iter().map(task_of).collect();
        Ok(running
            .iter()
            .map(|query| (query.elapsed.as_secs_f64(), tasks(query)))
            .collect())
    }

    /// Has queries whose ranks are lost call this function with their generation, and run again after it.
    fn on_loss(&self, renew: Py<PyAny>) {
        self.shared.renew.set(renew);
    }

    /// Has queries call this function with their generation before they begin, if ranks are lost.
    fn on_shortage(&self, refill: Py<PyAny>) {
        self.shared.refill.set(refill);
    }

    /// Whether no query is under way, and no frame is kept.
    fn is_idle(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.shared.get(py)?.is_idle())
    }

    /// Ends the group if no query is under way and no frame is kept; otherwise it stays. Returns whether it has ended.
    fn abandon_idle(&self, py: Python<'_>) -> PyResult<bool> {
        let session = self.shared.get(py)?;
        if !session.is_idle() {
            return Ok(false);
        }
        self.shared.current().is_abandoned = true;
        py.detach(|| session.close());
        Ok(true)
    }

    /// Number of times that the ranks were replaced.
    fn generation(&self) -> u64 {
        self.shared.current().generation
    }

    /// Joins the group of an invitation as its last rank, in place of the one before. Fails if the session is closed.
    fn rejoin(&self, py: Python<'_>, invitation: &str) -> PyResult<()> {
        let session = joined(py, invitation, &self.options)?;
        let replaced = {
            let mut current = self.shared.current();
            if current.session.is_some() {
                current.generation += 1;
                current.is_abandoned = false;
                current.session.replace(Arc::new(session))
            } else {
                None
            }
        };
        py.detach(|| drop(replaced));
        self.shared.get(py).map(drop)
    }

    /// Ends the queries on ranks of which some are lost. The session stays open.
    fn abandon(&self, py: Python<'_>) -> PyResult<()> {
        let session = self.shared.get(py)?;
        self.shared.current().is_abandoned = true;
        py.detach(|| session.close());
        Ok(())
    }

    fn ranks(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.shared.get(py)?.ranks_left())
    }

    /// Ends the session on all ranks, and leaves the group.
    fn close(&self, py: Python<'_>) {
        if self.shared.process == std::process::id() {
            let session = self.shared.take();
            // They hold this session and the client, in a cycle that the interpreter cannot see.
            let shared = &self.shared;
            for slot in [
                &shared.renew,
                &shared.refill,
                &shared.group,
                &shared.progress,
                &shared.detach,
            ] {
                drop(slot.take());
            }
            py.detach(|| {
                if let Some(session) = session {
                    session.close();
                }
            });
        }
    }

    /// A frame over files of a format.
    #[pyo3(signature = (
        format, paths, *, by_extension, has_header = true, separator = b',', newlines_in_values = true, infer_rows = 1000
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are the options of all formats")]
    fn scan(
        &self,
        py: Python<'_>,
        format: &str,
        paths: Vec<String>,
        by_extension: bool,
        has_header: bool,
        separator: u8,
        newlines_in_values: bool,
        infer_rows: usize,
    ) -> PyResult<Frame> {
        let session = self.shared.get(py)?;
        let context = session.context().clone();
        let source = Source {
            format: format_of(format)?,
            paths,
            by_extension,
            has_header,
            separator,
            newlines_in_values,
            infer_rows,
        };
        let read = wait(
            py,
            session.runtime().handle(),
            async move { source.read(&context).await },
        )?;
        Ok(self.shared.frame(read.for_python(py)?.into_unoptimized_plan()))
    }

    /// A frame over the batches of an object that exports an Arrow stream.
    fn table(&self, py: Python<'_>, object: &Bound<'_, PyAny>) -> PyResult<Frame> {
        let session = self.shared.get(py)?;
        let (schema, batches) = import_stream(py, object)?;
        let table = MemTable::try_new(schema, vec![batches]).for_python(py)?;
        let frame = session.context().read_table(Arc::new(table)).for_python(py)?;
        Ok(self.shared.frame(frame.into_unoptimized_plan()))
    }

    /// A frame with a row for each item: a column of bytes that only `Frame.map_batches` reads.
    fn items(&self, py: Python<'_>, items: Vec<Vec<u8>>) -> PyResult<Frame> {
        let items = items.into_iter().map(Into::into).collect();
        let plan = dayfly_frame::items(items).for_python(py)?;
        Ok(self.shared.frame(plan))
    }

    /// The frame of a plan that `Frame.saved` returned.
    fn restored(&self, py: Python<'_>, plan: &[u8]) -> PyResult<Frame> {
        let session = self.shared.get(py)?;
        let plan = dayfly_frame::restored(session.context(), plan).for_python(py)?;
        Ok(self.shared.frame(plan))
    }

    /// A frame of a query over these frames, by the names of their tables.
    fn sql(&self, py: Python<'_>, query: String, tables: Vec<(String, PyRef<'_, Frame>)>) -> PyResult<Frame> {
        self.shared.sql(py, query, &tables)
    }
}

impl Session {
    /// The session of a member of a group, whose queries end by a deadline.
    pub fn of_member(session: Arc<Inner>, options: SessionOptions, deadline: Duration) -> Self {
        Self {
            shared: Shared::new(session, Some(deadline)),
            options,
        }
    }

    pub fn shared(&self) -> &Shared {
        &self.shared
    }
}

/// A query's result, or a failure if it takes longer.
pub async fn within<T>(deadline: Option<Duration>, query: impl Future<Output = QueryResult<T>>) -> QueryResult<T> {
    let Some(deadline) = deadline else {
        return query.await;
    };
    let ended = tokio::time::timeout(deadline, query).await;
    ended.unwrap_or_else(|_| {
        let message = format!(
            "the query did not end within {} s, the timeout of its session",
            deadline.as_secs()
        );
        Err(DataFusionError::External(Failure::new(Code::TimedOut, message).into()))
    })
}

fn joined(py: Python<'_>, invitation: &str, options: &SessionOptions) -> PyResult<Inner> {
    let joined = py.detach(|| Inner::join(&Invitation::from_json(invitation)?, options));
    joined.map_err(|failure| raise(py, &failure))
}
