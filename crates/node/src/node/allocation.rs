//! Starts and ends the leases of a node. This `impl` connects the lease table with the journal, the executors and the
//! manager.

use std::path::PathBuf;

use dayfly_protocol::api::Runtime;
use dayfly_sandbox::isolation::BindMount;
use tracing::{Instrument, Span};

use super::lease_table::{Found, MIN_ENDED_MS, NewLease};
use super::*;
use crate::environments::BuiltEnvironment;
use crate::executors::{ExecutorKind, Language};
use crate::package::PYTHON_DIR;
use crate::policy::Container;
use crate::trust::Permissions;

/// A request for a lease, with its default.
pub(crate) struct RequestedLease {
    pub request: LeaseRequest,
    /// Isolation of a request that names none, from the request's source.
    pub default_sandbox: Option<Sandbox>,
}

impl Node {
    /// The live lease of a token.
    pub(crate) fn lease(&self, token: &Token) -> Result<Arc<NodeLease>, Failure> {
        match self.leases.find(&token.lease) {
            Found::Live(lease) => lease.part_of(&token.holder).map(|_| lease),
            Found::Ended(state) => Err(dayfly_lease::state::LeaseError::Ended(state).into()),
            Found::Unknown => Err(Failure::new(
                Code::NotFound,
                format!(
                    "this node holds no lease {}; it was restarted or never got it, lease again",
                    token.lease
                ),
            )),
        }
    }

    /// The lease of a token, also shortly after its end, and for holders of parts that were taken back: a client that
    /// knows a channel may ask for its state.
    pub(crate) fn live_or_recent_lease(&self, token: &Token) -> Result<Arc<NodeLease>, Failure> {
        self.lease(token)
            .or_else(|failure| self.leases.find_recent(&token.lease).ok_or(failure))
    }

    /// Takes a lease: reserves resources and gets an executor. If no suitable one is parked, waits for a new one, so
    /// that its error is returned here. Waits at most `patience`; later errors appear on the channels.
    pub(crate) async fn take_lease(
        self: &Arc<Self>,
        id: LeaseId,
        tenant: TenantId,
        origin: Origin,
        requested: RequestedLease,
        start_by: Duration,
        patience: Duration,
    ) -> Result<Arc<NodeLease>, Failure> {
        if self.tasks.is_closing() {
            return Err(Failure::new(
                Code::Unreachable,
                "the node is shutting down; lease elsewhere",
            ));
        }
        let RequestedLease {
            request,
            default_sandbox,
        } = requested;
        let permissions = Permissions::of(&self.options, tenant, &origin);
        let sandbox = permissions.level(&request, default_sandbox)?;
        let container = self.container(&request, sandbox, permissions).await?;
        let built = self.environment(&request, sandbox, permissions).await?;
        let mut kind = policy::kind(&request, sandbox, permissions, &self.options, container, built)?;
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
        let new = NewLease {
            id,
            tenant,
            origin,
            request,
            kind,
            life,
        };
        let lease = self.leases.add(new, &self.disconnects)?;
        let until_ms = self.token_end_ms(&lease, start_by);
        if let Err(failure) = self.journal_start(&lease, until_ms) {
            self.leases.remove(&id);
            return Err(failure);
        }
        self.repin();
        let parked = self.pool.take_parked(&lease.granted.kind);
        let fits = |parked: &Executor| runtimes::check(&lease.granted.request.runtime, &parked.runtime).is_ok();
        let is_ready = parked.as_ref().is_some_and(fits);
        self.tasks.spawn(supervisor::supervise(
            self.clone(),
            lease.clone(),
            parked,
            Span::current(),
        ));
        if is_ready {
            return Ok(lease);
        }
        match tokio::time::timeout(patience, lease.wait_for_executor()).await {
            Ok(Err(failure)) => {
                lease.wait_until_over(SHUTDOWN_DEADLINE).await;
                Err(failure)
            }
            _ => Ok(lease),
        }
    }

    /// The image of a lease that requests a container, and the paths to show in it.
    async fn container(
        &self,
        request: &LeaseRequest,
        sandbox: Sandbox,
        permissions: Permissions<'_>,
    ) -> Result<Option<Container>, Failure> {
        if sandbox != Sandbox::Container {
            return Ok(None);
        }
        let image = self.images.get(request.image.as_deref(), permissions.sees_all());
        let image = image.instrument(dayfly_telemetry::span!("make an image ready")).await?;
        let own = match &request.runtime {
            Runtime::Native => {
                let found = dayfly_sandbox::find(&self.options.executor_path());
                let from = found.map_err(|error| Failure::new(Code::ExecutorFailed, error.to_string()))?;
                vec![BindMount {
                    path: policy::EXECUTOR.into(),
                    from: from.canonicalize().unwrap_or(from),
                    writable: false,
                }]
            }
            Runtime::Python { executable, .. } => {
                let theirs = executable.as_ref().filter(|_| permissions.sees_all());
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
    pub(crate) async fn show_packages(&self, kind: &mut ExecutorKind) {
        let (Language::Python { executable, path, .. }, Some(host_access)) =
            (&mut kind.language, &mut kind.host_access)
        else {
            return;
        };
        // No other interpreter is started outside of a sandbox.
        if host_access.image.is_some() || !self.options.pythons.contains(executable) {
            return;
        }
        let (packages, python) = (self.packages.clone(), executable.clone());
        // The executor reports what is wrong with the interpreter.
        let Ok(Ok(found)) = tokio::task::spawn_blocking(move || packages.of(&python)).await else {
            return;
        };
        let is_seen = |package: &BindMount| {
            let seen = |shown: &BindMount| package.from.starts_with(&shown.from);
            package.from.starts_with("/usr") || host_access.shown.iter().any(seen)
        };
        let unseen: Vec<BindMount> = found.into_iter().filter(|package| !is_seen(package)).collect();
        if !unseen.is_empty() {
            path.insert(0, PYTHON_DIR.into());
            host_access.shown.extend(unseen);
        }
    }

    /// The environment of a lease that requests one.
    async fn environment(
        &self,
        request: &LeaseRequest,
        sandbox: Sandbox,
        permissions: Permissions<'_>,
    ) -> Result<Option<Arc<BuiltEnvironment>>, Failure> {
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
        let theirs = theirs.filter(|_| permissions.sandboxes().contains(&Sandbox::Process));
        let pythons: Vec<PathBuf> = self.options.pythons.iter().cloned().chain(theirs).collect();
        let built = self.environments.get(environment, version, pythons);
        let step = dayfly_telemetry::span!("make an environment ready");
        built.instrument(step).await.map(Some)
    }

    /// Wall-clock time after which no token of this lease is valid, in milliseconds.
    fn token_end_ms(&self, lease: &NodeLease, start_by: Duration) -> u64 {
        let tolerance_ms = self.options.skew_tolerance.as_millis() as u64;
        clock::wall_ms()
            .saturating_add(lease.remaining_ms().max(lease.granted.request.duration_ms))
            .saturating_add(start_by.as_millis() as u64)
            .saturating_add(2 * tolerance_ms)
            .saturating_add(MIN_ENDED_MS)
    }

    /// Releases the resources of a lease that has ended completely.
    pub(crate) fn release_lease(&self, lease: &Arc<NodeLease>) {
        let now_ms = clock::wall_ms();
        let state = lease.state();
        // A renewal may have extended it; the longest token counts from the last one.
        let until_ms = self
            .token_end_ms(lease, self.options.start_by)
            .max(lease.token_end_ms());
        let ended = journal::Ended { state, until_ms };
        self.journal
            .end(lease.id(), ended, lease.metered(), lease.granted.origin.is_managed());
        self.leases.end(lease, state, until_ms, now_ms);
        self.repin();
        self.report_due.notify_one();
    }

    /// Reclaims the machine for its owner: refuses new leases, ends the existing ones and all parked executors. Returns
    /// the number of leases when nothing of them is left, or after a time limit.
    pub(crate) async fn reclaim(&self, grace: Duration) -> usize {
        let leases = self.leases.reclaim();
        for lease in &leases {
            lease.recall(grace);
        }
        let parked = self.pool.close();
        let gone = async {
            for lease in &leases {
                lease.wait_until_over(grace + SHUTDOWN_DEADLINE).await;
            }
        };
        tokio::join!(parked, gone);
        leases.len()
    }

    /// Takes leases again.
    pub(crate) fn resume(&self) {
        self.leases.resume();
        self.pool.open();
        self.report_due.notify_one();
    }

    /// Records a system call of a worker that no honest function makes.
    pub(crate) fn incident(&self, lease: &NodeLease, what: String) {
        tracing::warn!(lease = %lease.id(), tenant = %lease.granted.tenant, what, "a hostile system call of a worker was refused");
        if !lease.granted.origin.is_managed() {
            return;
        }
        self.incidents.add(lease.id(), what);
        self.report_due.notify_one();
    }

    /// Records the first use of a lease.
    pub(crate) fn on_first_use(&self, lease: &NodeLease) {
        tracing::debug!(lease = %lease.id(), "first use");
        self.report_due.notify_one();
    }

    /// Keeps processes without own cores off the cores of hot leases, if one began or ended: warm workers, and the
    /// node's own threads. Sets how many calls of warm workers run at once.
    pub(super) fn repin(&self) {
        self.set_core_slots();
        let Some((shared, warm)) = self.leases.changed_shared_cores() else {
            return;
        };
        self.harvest
            .set_shared(harvest::shared(shared.len(), self.leases.capacity().memory_bytes));
        for process in warm {
            affinity::pin(process, &shared);
        }
        if self.options.own_process {
            affinity::pin(std::process::id(), &shared);
        }
    }
}
