//! Non-blocking operations.
//!
//! They progress whenever this rank waits for anything or tests an operation. A [`Scope`] keeps the memory that they
//! use borrowed until all of them have ended.

use std::cell::RefCell;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use dayfly_protocol::error::{Code, Failure};

use crate::collective::{Algorithm, Plan, Run};
use crate::datatype::Datatype;
use crate::detached::Turn;
use crate::engine::{EngineGuard, Started, WaitState};
use crate::group::Communicator;
use crate::matching::{RequestId, Status};
use crate::operation::Operation;

/// A future that is polled while the engine is locked.
pub(crate) type Running = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>;

/// A background collective.
enum Background {
    Running(Running),
    Over(Result<(), Failure>),
    Vacant,
}

/// All background collectives of a rank.
#[derive(Default)]
pub struct BackgroundCollectives {
    all: Vec<Background>,
    /// The engine's number of completions when they were polled last.
    seen: u64,
    running: usize,
}

impl std::fmt::Debug for BackgroundCollectives {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BackgroundCollectives")
            .field("running", &self.running)
            .finish_non_exhaustive()
    }
}

fn poll(running: &mut Running) -> Poll<Result<(), Failure>> {
    running.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

impl BackgroundCollectives {
    /// Polls the collectives that may progress. The engine must be locked.
    #[cold]
    pub fn poll(&mut self) {
        for task in &mut self.all {
            if let Background::Running(running) = task
                && let Poll::Ready(outcome) = poll(running)
            {
                *task = Background::Over(outcome);
                self.running -= 1;
            }
        }
    }

    /// Whether there are any and a request has completed since the last poll.
    #[inline]
    pub fn are_due(&mut self, completions: u64) -> bool {
        self.running > 0 && std::mem::replace(&mut self.seen, completions) != completions
    }

    pub(crate) fn add(&mut self, mut running: Running) -> usize {
        let task = match poll(&mut running) {
            Poll::Ready(outcome) => Background::Over(outcome),
            Poll::Pending => {
                self.running += 1;
                Background::Running(running)
            }
        };
        match self.all.iter().position(|task| matches!(task, Background::Vacant)) {
            Some(at) => {
                self.all[at] = task;
                at
            }
            None => {
                self.all.push(task);
                self.all.len() - 1
            }
        }
    }

    /// Takes the outcome of a collective that has ended.
    fn take(&mut self, at: usize) -> Option<Result<(), Failure>> {
        let task = self.all.get_mut(at)?;
        match std::mem::replace(task, Background::Vacant) {
            Background::Over(outcome) => Some(outcome),
            other => {
                *task = other;
                None
            }
        }
    }

    /// Cancels a collective. The engine must be locked.
    pub(crate) fn cancel(&mut self, at: usize) {
        if let Some(task) = self.all.get_mut(at)
            && let Background::Running(_) = std::mem::replace(task, Background::Vacant)
        {
            self.running -= 1;
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Handle {
    Message(RequestId),
    Task(usize),
    Over(Status),
}

/// An operation of a scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Request(usize);

/// Of a collective that ended before its request was made.
const ENDED: Request = Request(usize::MAX);

/// Background operations over memory that is borrowed for `'env`.
#[derive(Debug)]
pub struct Scope<'env> {
    comm: &'env Communicator,
    handles: RefCell<Vec<Option<Handle>>>,
    /// Of a scope whose collectives have ended when they are started: what else the caller does meanwhile.
    serve: Option<Serve>,
}

/// What a caller does for other ranks whenever it waits.
pub type Serve = fn(&mut Turn<'_>);

impl Communicator {
    /// Runs a function that may start operations, then waits for those that it did not wait for. If the function or an
    /// operation fails, the others are cancelled.
    ///
    /// ```no_run
    /// # fn example(comm: &dayfly_comm::Communicator) -> Result<(), dayfly_protocol::error::Failure> {
    /// let (out, mut into) = ([1u8; 8], [0u8; 8]);
    /// comm.scope(|scope| {
    ///     scope.irecv(&mut into, 1, 0)?;
    ///     scope.isend(&out, 1, 0)?;
    ///     Ok(())
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn scope<'env, T>(&'env self, run: impl FnOnce(&Scope<'env>) -> Result<T, Failure>) -> Result<T, Failure> {
        // SAFETY: dropped here, before memory that is borrowed for 'env can be used otherwise.
        let scope = unsafe { self.detached_scope() };
        let outcome = run(&scope)?;
        scope.wait_all()?;
        Ok(outcome)
    }

    /// A scope without a borrowing closure, for bindings to other languages. Dropping it cancels its operations.
    ///
    /// # Safety
    /// Drop it before the memory of its operations is used otherwise, and never forget it.
    pub unsafe fn detached_scope(&self) -> Scope<'_> {
        Scope {
            comm: self,
            handles: RefCell::default(),
            serve: None,
        }
    }

    /// As [`Communicator::detached_scope`], but collectives end before the function that starts them returns, without
    /// what it costs to keep them. Their requests are not to be waited for.
    ///
    /// # Safety
    /// As [`Communicator::detached_scope`], for messages.
    pub unsafe fn waiting_scope(&self, serve: Serve) -> Scope<'_> {
        Scope {
            comm: self,
            handles: RefCell::default(),
            serve: Some(serve),
        }
    }
}

impl<'env> Scope<'env> {
    fn add(&self, handle: Handle) -> Request {
        let mut handles = self.handles.borrow_mut();
        handles.push(Some(handle));
        Request(handles.len() - 1)
    }

    fn started(&self, started: Started) -> Request {
        self.add(match started {
            Started::Done(status) => Handle::Over(status),
            Started::Pending(id) => Handle::Message(id),
        })
    }

    /// Starts a send.
    pub fn isend(&self, bytes: &'env [u8], to: u32, tag: u32) -> Result<Request, Failure> {
        let (to, key) = self.comm.send_key(to, tag)?;
        let mut guard = self.comm.engine.lock();
        // SAFETY: the bytes are borrowed for 'env, and the scope cancels unfinished operations before its end.
        let started = unsafe { guard.engine().send(to, key, bytes.as_ptr(), bytes.len()) }?;
        Ok(self.started(started))
    }

    /// Starts a receive.
    pub fn irecv(&self, into: &'env mut [u8], from: u32, tag: u32) -> Result<Request, Failure> {
        let (from, key) = self.comm.receive_key(from, tag)?;
        let mut guard = self.comm.engine.lock();
        // SAFETY: as for `isend`.
        let started = unsafe { guard.engine().receive(from, key, into.as_mut_ptr(), into.len()) }?;
        Ok(self.started(started))
    }

    fn start<A: Algorithm<'env>>(&self, plan: Result<Plan<A>, Failure>) -> Result<Request, Failure> {
        if let Some(serve) = self.serve {
            self.comm.run_and_serve(plan, serve)?;
            return Ok(ENDED);
        }
        let Plan { call, run, .. } = plan?;
        let comm = self.comm;
        let mut guard = comm.engine.lock();
        let key = guard.engine().begin(comm.record, call)?;
        let own = Run::new(&comm.engine, &comm.members, comm.rank as usize, key);
        let running: Pin<Box<dyn Future<Output = Result<(), Failure>> + Send + 'env>> = Box::pin(run(own));
        // SAFETY: the scope drops it before 'env ends.
        let running: Running = unsafe { std::mem::transmute(running) };
        Ok(self.add(Handle::Task(guard.background().add(running))))
    }

    /// As [`Communicator::barrier`].
    pub fn ibarrier(&self) -> Result<Request, Failure> {
        self.start(self.comm.plan_barrier())
    }

    /// As [`Communicator::bcast`].
    pub fn ibcast(&self, buffer: &'env mut [u8], root: u32) -> Result<Request, Failure> {
        self.start(self.comm.plan_bcast(buffer, root))
    }

    /// As [`Communicator::gather`].
    pub fn igather(&self, own: &'env [u8], into: &'env mut [u8], root: u32) -> Result<Request, Failure> {
        self.start(self.comm.plan_gather(own, into, root))
    }

    /// As [`Communicator::gatherv`].
    pub fn igatherv(
        &self,
        own: &'env [u8],
        into: &'env mut [u8],
        blocks: &'env [Range<usize>],
        root: u32,
    ) -> Result<Request, Failure> {
        self.start(self.comm.plan_gatherv(own, into, blocks, root))
    }

    /// As [`Communicator::scatter`].
    pub fn iscatter(&self, all: &'env [u8], into: &'env mut [u8], root: u32) -> Result<Request, Failure> {
        self.start(self.comm.plan_scatter(all, into, root))
    }

    /// As [`Communicator::scatterv`].
    pub fn iscatterv(
        &self,
        all: &'env [u8],
        blocks: &'env [Range<usize>],
        into: &'env mut [u8],
        root: u32,
    ) -> Result<Request, Failure> {
        self.start(self.comm.plan_scatterv(all, blocks, into, root))
    }

    /// As [`Communicator::allgather`].
    pub fn iallgather(&self, own: &'env [u8], into: &'env mut [u8]) -> Result<Request, Failure> {
        self.start(self.comm.plan_allgather(own, into))
    }

    /// As [`Communicator::allgatherv`].
    pub fn iallgatherv(
        &self,
        own: &'env [u8],
        into: &'env mut [u8],
        blocks: &'env [Range<usize>],
    ) -> Result<Request, Failure> {
        self.start(self.comm.plan_allgatherv(own, into, blocks))
    }

    /// As [`Communicator::alltoall`].
    pub fn ialltoall(&self, from: &'env [u8], into: &'env mut [u8]) -> Result<Request, Failure> {
        self.start(self.comm.plan_alltoall(from, into))
    }

    /// As [`Communicator::alltoallv`].
    pub fn ialltoallv(
        &self,
        from: &'env [u8],
        sent: &'env [Range<usize>],
        into: &'env mut [u8],
        received: &'env [Range<usize>],
    ) -> Result<Request, Failure> {
        self.start(self.comm.plan_alltoallv(from, sent, into, received))
    }

    /// As [`Communicator::reduce`].
    pub fn ireduce(
        &self,
        buffer: &'env mut [u8],
        datatype: Datatype,
        operation: &'env Operation,
        root: u32,
    ) -> Result<Request, Failure> {
        self.start(self.comm.plan_reduce(None, buffer, datatype, operation, root))
    }

    /// As [`Communicator::reduce`], with the elements of this rank in memory of their own. `into` is used at the root only,
    /// where it is as long.
    pub fn ireduce_from(
        &self,
        own: &'env [u8],
        into: &'env mut [u8],
        datatype: Datatype,
        operation: &'env Operation,
        root: u32,
    ) -> Result<Request, Failure> {
        self.start(self.comm.plan_reduce(Some(own), into, datatype, operation, root))
    }

    /// As [`Communicator::allreduce`].
    pub fn iallreduce(
        &self,
        own: &'env [u8],
        into: &'env mut [u8],
        datatype: Datatype,
        operation: &'env Operation,
    ) -> Result<Request, Failure> {
        self.start(self.comm.plan_allreduce(own, into, datatype, operation))
    }

    /// As [`Communicator::reduce_scatter`].
    pub fn ireduce_scatter(
        &self,
        from: &'env [u8],
        into: &'env mut [u8],
        counts: &'env [usize],
        datatype: Datatype,
        operation: &'env Operation,
    ) -> Result<Request, Failure> {
        self.start(self.comm.plan_reduce_scatter(from, into, counts, datatype, operation))
    }

    /// As [`Communicator::scan`].
    pub fn iscan(
        &self,
        buffer: &'env mut [u8],
        datatype: Datatype,
        operation: &'env Operation,
    ) -> Result<Request, Failure> {
        self.start(self.comm.plan_scan(buffer, datatype, operation))
    }

    /// As [`Communicator::exscan`].
    pub fn iexscan(
        &self,
        own: &'env [u8],
        into: &'env mut [u8],
        datatype: Datatype,
        operation: &'env Operation,
    ) -> Result<Request, Failure> {
        self.start(self.comm.plan_exscan(own, into, datatype, operation))
    }

    /// Takes the outcome of an operation that has ended.
    fn take(&self, guard: &mut EngineGuard<'_>, request: Request) -> Option<Result<Status, Failure>> {
        let mut handles = self.handles.borrow_mut();
        let slot = handles.get_mut(request.0);
        let Some(Some(handle)) = slot else {
            return Some(Err(Failure::new(
                Code::InvalidRequest,
                "this request has been waited for already; wait for each once",
            )));
        };
        let outcome = match *handle {
            Handle::Over(status) => Ok(status),
            Handle::Message(id) => guard
                .engine()
                .matching
                .take(id)?
                .map(|status| self.comm.localise(status)),
            Handle::Task(at) => guard.background().take(at)?.map(|()| Status::default()),
        };
        handles[request.0] = None;
        Some(outcome)
    }

    /// Moves bytes. Returns the status of an operation if it has ended, and its error if it failed.
    pub fn test(&self, request: Request) -> Result<Option<Status>, Failure> {
        let mut guard = self.comm.engine.lock();
        guard.progress();
        self.take(&mut guard, request).transpose()
    }

    /// The outcome of an operation, once; `None` if it has not ended. For a caller that drives the engine itself.
    pub fn take_in(&self, turn: &mut Turn<'_>, request: Request) -> Option<Result<Status, Failure>> {
        self.take(turn.guard(), request)
    }

    /// Waits for an operation.
    pub fn wait(&self, request: Request) -> Result<Status, Failure> {
        let mut guard = self.comm.engine.lock();
        let mut wait_state = WaitState::new("wait");
        loop {
            if let Some(outcome) = self.take(&mut guard, request) {
                return outcome;
            }
            guard.step(&mut wait_state)?;
        }
    }

    /// Waits for one of several operations. Returns its index in `requests` and its status.
    pub fn wait_any(&self, requests: &[Request]) -> Result<(usize, Status), Failure> {
        let mut guard = self.comm.engine.lock();
        let mut wait_state = WaitState::new("wait_any");
        loop {
            for (at, request) in requests.iter().enumerate() {
                if let Some(outcome) = self.take(&mut guard, *request) {
                    return outcome.map(|status| (at, status));
                }
            }
            guard.step(&mut wait_state)?;
        }
    }

    /// Waits for all operations of the scope.
    pub fn wait_all(&self) -> Result<(), Failure> {
        let count = self.handles.borrow().len();
        for number in 0..count {
            if self.handles.borrow()[number].is_some() {
                self.wait(Request(number))?;
            }
        }
        Ok(())
    }

    /// Cancels an operation. The contents of its memory are undefined afterwards.
    pub fn cancel(&self, request: Request) {
        let handle = self.handles.borrow_mut().get_mut(request.0).and_then(Option::take);
        match handle {
            Some(Handle::Message(id)) => self.comm.engine.lock().engine().cancel(id),
            Some(Handle::Task(at)) => self.comm.engine.lock().background().cancel(at),
            Some(Handle::Over(_)) | None => {}
        }
    }
}

impl Drop for Scope<'_> {
    fn drop(&mut self) {
        let count = self.handles.borrow().len();
        for number in 0..count {
            self.cancel(Request(number));
        }
    }
}
