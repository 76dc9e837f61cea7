//! Takes leases, finds them, and releases their resources.

use std::path::PathBuf;

use dayfly_protocol::api::Runtime;
use dayfly_sandbox::isolation::Shown;
use tracing::{Instrument, Span};

use super::*;
use crate::environments::Built;
use crate::executors::{Kind, Language};
use crate::package::PYTHON_DIR;
use crate::policy::Container;
use crate::trust::Rights;

/// How long ended leases and the fates of their calls are remembered, at least, in milliseconds.
const REMEMBER_MS: u64 = 60_000;
/// Most incidents that wait for the manager.
const MAX_INCIDENTS: usize = 1024;

/// A request for a lease, with its default.
pub(crate) struct Wanted {
    pub request: LeaseRequest,
    /// Isolation of a request that names none, from the request's source.
    pub default_sandbox: Option<Sandbox>,
}

impl Node {
    /// The live lease of a token.
    pub(crate) fn lease(&self, token: &Token) -> Result<Arc<Run>, Failure> {
        let (found, ended) = {
            let books = self.books();
            (
                books.leases.get(&token.lease).cloned(),
                books.ended.get(&token.lease).map(|ended| ended.state),
            )
        };
        match (found, ended) {
            (Some(run), _) => run.part_of(&token.holder).map(|_| run),
            (None, Some(state)) => Err(dayfly_lease::state::LeaseError::Ended(state).into()),
            (None, None) => Err(Failure::new(
                Code::NotFound,
                format!(
                    "this node holds no lease {}; it was restarted or never got it, lease again",
                    token.lease
                ),
            )),
        }
    }

    /// The lease of a token, also shortly after its end, and for holders of parts that were taken back: a client that
    /// knows a channel may know its fate.
    pub(crate) fn lease_or_memory(&self, token: &Token) -> Result<Arc<Run>, Failure> {
        self.lease(token).or_else(|failure| {
            let books = self.books();
            let ended = books.ended.get(&token.lease).and_then(|ended| ended.run.as_ref());
            let run = books.leases.get(&token.lease).or(ended.map(|(run, _)| run));
            run.cloned().ok_or(failure)
        })
    }

    /// Takes a lease: reserves resources and gets an executor. If no suitable one is parked, waits for a new one, so
    /// that its error is returned here. Waits at most `patience`; later errors appear on the channels.
    pub(crate) async fn take_lease(
        self: &Arc<Self>,
        id: LeaseId,
        tenant: TenantId,
        origin: Origin,
        wanted: Wanted,
        start_by: Duration,
        patience: Duration,
    ) -> Result<Arc<Run>, Failure> {
        if *self.closing.borrow() {
            return Err(Failure::new(
                Code::Unreachable,
                "the node is shutting down; lease elsewhere",
            ));
        }
        let Wanted {
            request,
            default_sandbox,
        } = wanted;
        let rights = Rights::of(&self.options, tenant, &origin);
        let sandbox = rights.level(&request, default_sandbox)?;
        let container = self.container(&request, sandbox, rights).await?;
        let built = self.environment(&request, sandbox, rights).await?;
        let mut kind = policy::kind(&request, sandbox, rights, &self.options, container, built)?;
        self.show_packages(&mut kind).await;
        let life = Lease::grant(
            Terms {
                duration_ms: request.duration_ms,
                start_by_ms: start_by.as_millis() as u64,
                idle_release_ms: request.idle_release_ms,
                grace_ms: self.options.grace.as_millis() as u64,
            },
            clock::now_ms(),
        )?;
        let run = {
            let mut books = self.books();
            if books.reclaimed {
                return Err(Failure::new(
                    Code::NoCapacity,
                    "this node was taken back by its owner; lease elsewhere",
                ));
            }
            let reservation = books.ledger.reserve(id, &request)?.clone();
            if let Some(direct) = origin.direct()
                && let Err(failure) = books.permits(direct, &request, &reservation)
            {
                books.ledger.release(&id);
                return Err(failure);
            }
            let granted = Granted {
                id,
                tenant,
                origin,
                request,
                reservation,
                kind,
            };
            match Run::new(granted, life, self.hangups.clone()) {
                Ok(run) => {
                    let run = Arc::new(run);
                    books.leases.insert(id, run.clone());
                    run
                }
                Err(error) => {
                    books.ledger.release(&id);
                    return Err(Failure::new(
                        Code::OutOfMemory,
                        format!("there is no memory for the lease's meters: {error}; try later or elsewhere"),
                    ));
                }
            }
        };
        let until_ms = self.token_end_ms(&run, start_by);
        if let Err(failure) = self.journal_start(&run, until_ms) {
            let mut books = self.books();
            books.ledger.release(&id);
            books.leases.remove(&id);
            return Err(failure);
        }
        self.repin();
        let parked = self.pool.take_parked(&run.granted.kind);
        let fits = |parked: &Executor| runtimes::check(&run.granted.request.runtime, &parked.runtime).is_ok();
        let is_ready = parked.as_ref().is_some_and(fits);
        self.task(supervisor::supervise(
            self.clone(),
            run.clone(),
            parked,
            Span::current(),
        ));
        if is_ready {
            return Ok(run);
        }
        match tokio::time::timeout(patience, run.assigned()).await {
            Ok(Err(failure)) => {
                run.gone(SHUTDOWN_DEADLINE).await;
                Err(failure)
            }
            _ => Ok(run),
        }
    }

    /// The image of a lease that requests a container, and the paths to show in it.
    async fn container(
        &self,
        request: &LeaseRequest,
        sandbox: Sandbox,
        rights: Rights<'_>,
    ) -> Result<Option<Container>, Failure> {
        if sandbox != Sandbox::Container {
            return Ok(None);
        }
        let image = self.images.wanted(request.image.as_deref(), rights.sees_all());
        let image = image.instrument(dayfly_telemetry::span!("make an image ready")).await?;
        let own = match &request.runtime {
            Runtime::Native => {
                let found = dayfly_sandbox::find(&self.options.executor_path());
                let from = found.map_err(|error| Failure::new(Code::ExecutorFailed, error.to_string()))?;
                vec![Shown {
                    path: policy::EXECUTOR.into(),
                    from: from.canonicalize().unwrap_or(from),
                    writable: false,
                }]
            }
            Runtime::Python { executable, .. } => {
                let theirs = executable.as_ref().filter(|_| rights.sees_all());
                let python = self.options.pythons.first().cloned().or(theirs.map(PathBuf::from)).ok_or_else(|| {
                    let text = "this node has no Python package to show an image; start it with --python PATH of an interpreter \
                                that has the dayfly module";
                    Failure::new(Code::ExecutorFailed, text)
                })?;
                let packages = self.packages.clone();
                tokio::task::spawn_blocking(move || packages.of(&python))
                    .await
                    .map_err(|error| Failure::new(Code::Internal, error.to_string()))??
            }
        };
        Ok(Some(Container { image, own }))
    }

    /// Shows Dayfly's packages to an isolated executor of one of this node's interpreters, if they are elsewhere than
    /// the interpreter, such as in the home of the node's user.
    pub(crate) async fn show_packages(&self, kind: &mut Kind) {
        let (Language::Python { executable, path, .. }, Some(opening)) = (&mut kind.language, &mut kind.opening) else {
            return;
        };
        // No other interpreter is started outside of a sandbox.
        if opening.image.is_some() || !self.options.pythons.contains(executable) {
            return;
        }
        let (packages, python) = (self.packages.clone(), executable.clone());
        // The executor reports what is wrong with the interpreter.
        let Ok(Ok(found)) = tokio::task::spawn_blocking(move || packages.of(&python)).await else {
            return;
        };
        let is_seen = |package: &Shown| {
            let seen = |shown: &Shown| package.from.starts_with(&shown.from);
            package.from.starts_with("/usr") || opening.shown.iter().any(seen)
        };
        let unseen: Vec<Shown> = found.into_iter().filter(|package| !is_seen(package)).collect();
        if !unseen.is_empty() {
            path.insert(0, PYTHON_DIR.into());
            opening.shown.extend(unseen);
        }
    }

    /// The environment of a lease that requests one.
    async fn environment(
        &self,
        request: &LeaseRequest,
        sandbox: Sandbox,
        rights: Rights<'_>,
    ) -> Result<Option<Arc<Built>>, Failure> {
        let Runtime::Python {
            version,
            executable,
            environment: Some(environment),
            ..
        } = &request.runtime
        else {
            return Ok(None);
        };
        if sandbox == Sandbox::Container {
            return Err(Failure::new(
                Code::InvalidRequest,
                "a container brings what functions import; name an image or an environment",
            ));
        }
        // Use a client's own interpreter if its tenant may start it as the node's user anyway.
        let is_theirs = |path: &PathBuf| path.is_absolute() && path.is_file();
        let theirs = executable.iter().map(PathBuf::from).filter(is_theirs);
        let theirs = theirs.filter(|_| rights.sandboxes().contains(&Sandbox::Process));
        let pythons: Vec<PathBuf> = self.options.pythons.iter().cloned().chain(theirs).collect();
        let built = self.environments.wanted(environment, version, pythons);
        let step = dayfly_telemetry::span!("make an environment ready");
        built.instrument(step).await.map(Some)
    }

    /// Wall-clock time after which no token of this lease is valid, in milliseconds.
    fn token_end_ms(&self, run: &Run, start_by: Duration) -> u64 {
        let tolerance_ms = self.options.skew_tolerance.as_millis() as u64;
        clock::wall_ms()
            .saturating_add(run.remaining_ms().max(run.granted.request.duration_ms))
            .saturating_add(start_by.as_millis() as u64)
            .saturating_add(2 * tolerance_ms)
            .saturating_add(REMEMBER_MS)
    }

    /// Releases the resources of a lease that has ended completely.
    pub(crate) fn lease_over(&self, run: &Arc<Run>) {
        let now_ms = clock::wall_ms();
        let state = run.state();
        // A renewal may have extended it; the longest token counts from the last one.
        let until_ms = self.token_end_ms(run, self.options.start_by).max(run.token_end_ms());
        let ended = journal::Ended { state, until_ms };
        self.journal
            .end(run.id(), ended, run.metered(), run.granted.origin.is_managed());
        let mut books = self.books();
        books.ledger.release(&run.id());
        books.leases.remove(&run.id());
        books.past = billing::add(books.past, run.usage());
        add_durations(&mut books.past_durations, &run.durations());
        let ended = Ended {
            state,
            until_ms,
            run: Some((run.clone(), now_ms + REMEMBER_MS)),
        };
        books.ended.insert(run.id(), ended);
        drop(books);
        self.repin();
        self.news.notify_one();
    }

    /// Reclaims the machine for its owner: refuses new leases, ends the existing ones and all parked executors. Returns
    /// the number of leases when nothing of them is left, or after a time limit.
    pub(crate) async fn reclaim(&self, grace: Duration) -> usize {
        let runs: Vec<Arc<Run>> = {
            let mut books = self.books();
            books.reclaimed = true;
            books.leases.values().cloned().collect()
        };
        for run in &runs {
            run.recall(grace);
        }
        let parked = self.pool.close();
        let gone = async {
            for run in &runs {
                run.gone(grace + SHUTDOWN_DEADLINE).await;
            }
        };
        tokio::join!(parked, gone);
        runs.len()
    }

    /// Takes leases again.
    pub(crate) fn resume(&self) {
        self.books().reclaimed = false;
        self.pool.open();
        self.news.notify_one();
    }

    /// Number of live leases.
    pub(crate) fn live_leases(&self) -> usize {
        self.books().ledger.leases()
    }

    /// Number of calls by duration since the node started.
    pub(crate) fn durations(&self) -> Durations {
        let books = self.books();
        let mut sum = books.past_durations;
        for run in books.leases.values() {
            add_durations(&mut sum, &run.durations());
        }
        sum
    }

    /// Usage of all leases since the node started.
    pub(crate) fn used(&self) -> Usage {
        let books = self.books();
        let live = books.leases.values().map(|run| run.usage());
        live.fold(books.past, billing::add)
    }

    /// Records a system call of a worker that no honest function makes.
    pub(crate) fn incident(&self, run: &Run, what: String) {
        tracing::warn!(lease = %run.id(), tenant = %run.granted.tenant, what, "a worker was refused something hostile");
        if !run.granted.origin.is_managed() {
            return;
        }
        let mut incidents = self.incidents.lock().unwrap_or_else(PoisonError::into_inner);
        // After a long disconnection the manager receives the latest ones.
        if incidents.len() == MAX_INCIDENTS {
            incidents.pop_front();
        }
        incidents.push_back((run.id(), what));
        drop(incidents);
        self.news.notify_one();
    }

    /// Records the first use of a lease.
    pub(crate) fn lease_active(&self, run: &Run) {
        tracing::debug!(lease = %run.id(), "first use");
        self.news.notify_one();
    }

    /// Keeps processes without own cores off the cores of hot leases: warm workers, and the node's own threads. Does
    /// nothing unless a hot lease began or ended.
    fn repin(&self) {
        let (shared, warm) = {
            let mut books = self.books();
            let shared = books.ledger.shared_cores();
            if books.shared_cores == shared {
                return;
            }
            books.shared_cores.clone_from(&shared);
            let runs = books
                .leases
                .values()
                .filter(|run| run.granted.reservation.mode != Mode::Hot);
            let warm: Vec<_> = runs.flat_map(|run| run.processes()).collect();
            (shared, warm)
        };
        self.share(shared.len());
        for process in warm {
            affinity::pin(process, &shared);
        }
        if self.options.own_process {
            affinity::pin(std::process::id(), &shared);
        }
    }
}
