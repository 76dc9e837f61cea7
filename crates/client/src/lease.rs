//! A lease: the signed, time-limited right to some workers.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use dayfly_fabric::Transport;
use dayfly_lease::SigningKey;
use dayfly_protocol::api::{
    Grant, HostPath, LeaseChange, LeaseRequest, LoanTerms, MAX_WAIT_MS, Mode, NodeAddress, Runtime, Sandbox,
    are_numbers_of,
};
use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::error::Code;
use dayfly_protocol::hello::Token;
use dayfly_protocol::ids::{ChannelId, CodeHash, LeaseId, NodeId, PublicKey, WorkerIndex};
use dayfly_protocol::node_api::{ChannelStatus, Request, Response};
use sha2::{Digest, Sha256};

use crate::client::{Source, parse_token};
use crate::keepalive::Keepalive;
use crate::node::{Control, best_transport, is_local, is_on_loopback, unexpected};
use crate::open_request::OpenRequest;
use crate::pool::Follower;
use crate::{Channel, ChannelOptions, Client, Error, OutputReader, Pool, PoolOptions};

/// Longest wait of a renewal for the workers that it added.
const OPENING_LIMIT: Duration = Duration::from_secs(15);

/// What to lease.
#[derive(Debug, Clone)]
pub struct LeaseOptions {
    pub workers: u16,
    pub cores_per_worker: MilliCores,
    /// Memory of the whole lease in bytes; 0 for the node's usual share.
    pub memory_bytes: u64,
    /// GPUs of each worker. A worker sees no others.
    pub gpus_per_worker: u16,
    /// Duration from the first use.
    pub duration: Duration,
    /// Whether workers are hot or warm.
    pub mode: Mode,
    /// How long a hot worker polls before it becomes warm; `None` without end.
    pub hot_for: Option<Duration>,
    /// How long a warm worker polls after a call before it sleeps; at most 10 ms.
    pub poll_for: Duration,
    pub runtime: Runtime,
    /// How long the lease outlives its last channel; zero for its whole duration.
    pub idle_release: Duration,
    /// The node to lease from; `None` for any.
    pub node: Option<NodeId>,
    /// Isolation of the workers; `None` for the site's default.
    pub sandbox: Option<Sandbox>,
    /// Image of a container, by the site's name for it; `None` for the site's first.
    pub image: Option<String>,
    /// Whether isolated workers share the host's network, if the site allows it.
    pub network: bool,
    /// Host paths that isolated workers see beside programs and libraries, if the site allows them.
    pub files: Vec<HostPath>,
    /// Whether output is attributed to calls. A call that prints then ends only when the node has read all its output.
    pub output_by_call: bool,
    /// What the calls of warm workers lend and borrow, where the node harvests.
    pub loans: LoanTerms,
    /// How long to wait for room.
    pub wait: Duration,
    /// W3C `traceparent` of the requesting step; the default is the environment variable `TRACEPARENT`.
    pub traceparent: Option<String>,
}

impl LeaseOptions {
    /// Workers for shared libraries: hot if the node has the cores, for at most a day. The node takes them back soon
    /// after the last channel closes, also when this process dies.
    pub fn native(workers: u16) -> Self {
        Self {
            workers,
            cores_per_worker: MilliCores::ONE,
            memory_bytes: 0,
            gpus_per_worker: 0,
            duration: Duration::from_secs(24 * 3600),
            mode: Mode::Auto,
            hot_for: None,
            poll_for: Duration::ZERO,
            runtime: Runtime::Native,
            idle_release: Duration::from_secs(10),
            node: None,
            sandbox: None,
            image: None,
            network: false,
            files: Vec::new(),
            output_by_call: false,
            loans: LoanTerms::default(),
            wait: Duration::ZERO,
            traceparent: None,
        }
    }

    pub(crate) fn request(&self, holder: PublicKey) -> LeaseRequest {
        LeaseRequest {
            workers: self.workers,
            cores_per_worker: self.cores_per_worker,
            memory_bytes: self.memory_bytes,
            gpus_per_worker: self.gpus_per_worker,
            duration_ms: self.duration.as_millis() as u64,
            mode: self.mode,
            hot_for_ms: self
                .hot_for
                .map_or(u32::MAX, |limit| limit.as_millis().min(u128::from(u32::MAX - 1)) as u32),
            poll_for_us: u32::try_from(self.poll_for.as_micros()).unwrap_or(u32::MAX),
            runtime: self.runtime.clone(),
            sandbox: self.sandbox,
            image: self.image.clone(),
            network: self.network,
            files: self.files.clone(),
            output_by_call: self.output_by_call,
            loans: self.loans,
            is_gang: false,
            wait_ms: (self.wait.as_millis() as u64).min(MAX_WAIT_MS),
            holder,
            idle_release_ms: self.idle_release.as_millis() as u64,
            node: self.node,
        }
    }
}

pub(crate) struct Inner {
    /// Keeps an embedded manager alive while one of its leases exists.
    client: Client,
    pub(crate) source: Arc<Source>,
    grant: Mutex<Grant>,
    token: Mutex<Token>,
    pub(crate) node: NodeAddress,
    pub(crate) holder: SigningKey,
    control: Mutex<Option<Control>>,
    /// Watches the node; set when a connection leaves this host.
    watch: Mutex<Option<Arc<Keepalive>>>,
    /// Code that this lease's isolated workers may load.
    shown_code: Mutex<HashSet<CodeHash>>,
    released: AtomicBool,
    /// Pools over the lease's workers.
    followers: Mutex<Vec<Follower>>,
    /// Held during a renewal, so that pools follow the last one.
    renewal: Mutex<()>,
    /// Whether the lease is released when it is dropped.
    owned: bool,
}

/// Returns an error for numbers of workers that no lease has.
fn check_numbers(grant: &Grant) -> Result<(), Error> {
    match are_numbers_of(&grant.numbers, grant.workers) {
        true => Ok(()),
        false => Err(Error::new(
            Code::Internal,
            format!(
                "the numbers of the {} workers of a grant are wrong; report this",
                grant.workers
            ),
        )),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A lease. Cloning is cheap. It is released when its last clone, channel and pool is dropped, except a lease from
/// [`Client::lease_granted`].
#[derive(Clone)]
pub struct Lease {
    pub(crate) inner: Arc<Inner>,
}

impl Lease {
    pub(crate) fn new(
        client: Client,
        source: Arc<Source>,
        grant: Grant,
        holder: SigningKey,
        owned: bool,
    ) -> Result<Self, Error> {
        check_numbers(&grant)?;
        let inner = Inner {
            client,
            source,
            token: Mutex::new(parse_token(&grant.token)?),
            node: grant.node.clone(),
            grant: Mutex::new(grant),
            holder,
            control: Mutex::new(None),
            watch: Mutex::new(None),
            shown_code: Mutex::default(),
            released: AtomicBool::new(false),
            followers: Mutex::default(),
            renewal: Mutex::default(),
            owned,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The current grant, with its renewals.
    pub fn grant(&self) -> Grant {
        lock(&self.inner.grant).clone()
    }

    /// Id of the node with the workers.
    pub fn node(&self) -> NodeId {
        self.inner.node.id
    }

    fn id(&self) -> LeaseId {
        lock(&self.inner.grant).lease
    }

    /// Number of granted workers.
    pub fn workers(&self) -> u16 {
        lock(&self.inner.grant).workers
    }

    /// Numbers of the granted workers. They are not those from 0 on if a renewal gave workers back.
    pub fn numbers(&self) -> Vec<u16> {
        let grant = lock(&self.inner.grant);
        match grant.numbers.is_empty() {
            true => (0..grant.workers).collect(),
            false => grant.numbers.clone(),
        }
    }

    /// The terms that its pools follow.
    pub(crate) fn pool_terms(&self) -> (Vec<u16>, bool) {
        (self.numbers(), self.is_hot())
    }

    pub(crate) fn add_follower(&self, follower: Follower) {
        let mut followers = lock(&self.inner.followers);
        followers.retain(Follower::exists);
        followers.push(follower);
    }

    /// Whether the workers poll.
    pub fn is_hot(&self) -> bool {
        lock(&self.inner.grant).mode == Mode::Hot
    }

    /// The default transport of this lease's channels.
    pub fn best_transport(&self) -> Transport {
        best_transport(&self.inner.node)
    }

    /// Sends code to the node unless the node has it. Returns its hash.
    pub fn put_code(&self, code: &[u8]) -> Result<CodeHash, Error> {
        let hash = CodeHash(Sha256::digest(code).into());
        let known = (self.inner.node.id, hash);
        // Isolated workers see only code that was named on their own lease.
        let isolated = lock(&self.inner.grant).sandbox != Sandbox::Process;
        let is_known = match isolated {
            true => lock(&self.inner.shown_code).contains(&hash),
            false => lock(self.inner.client.known_code()).contains(&known),
        };
        if is_known {
            return Ok(hash);
        }
        self.inner
            .with_control(|control| match control.ask(&Request::HasCode { hash })? {
                Response::Code { present: true } => Ok(()),
                _ => control.put_code(hash, code),
            })?;
        match isolated {
            true => lock(&self.inner.shown_code).insert(hash),
            false => lock(self.inner.client.known_code()).insert(known),
        };
        Ok(hash)
    }

    /// Opens a channel to one worker. Waits until the worker has started.
    pub fn channel(&self, worker: WorkerIndex, options: &ChannelOptions) -> Result<Channel, Error> {
        Channel::open(self, worker, options, &OpenRequest::default())
    }

    /// Opens a channel to every worker and returns a pool over them.
    pub fn pool(&self, options: PoolOptions) -> Result<Pool, Error> {
        Pool::open(self, options)
    }

    /// Extends the lease to `duration` from now.
    pub fn renew(&self, duration: Duration) -> Result<(), Error> {
        self.renew_with(duration, &LeaseChange::default())
    }

    /// Extends the lease to `duration` from now, and changes its mode, its polling or its number of workers. Pools over
    /// the lease then use its present workers: this returns when the added ones serve. Workers are given back idle ones
    /// first, and calls that they had not begun go to others.
    ///
    /// # Errors
    /// [`Code::NoCapacity`], [`Code::TooLarge`] or [`Code::QuotaExceeded`] if there is no room; with
    /// [`LeaseChange::min_workers`], fewer workers may be granted than asked for ([`Lease::workers`]).
    /// [`Code::InvalidRequest`] for a change that the lease cannot have. The lease then stays as it is.
    pub fn renew_with(&self, duration: Duration, change: &LeaseChange) -> Result<(), Error> {
        let _alone = lock(&self.inner.renewal);
        let grant = match &*self.inner.source {
            Source::Manager(manager) => manager.renew(self.id(), duration, change)?,
            Source::Allowance(allowance) => allowance.manager().renew(self.id(), duration, change)?,
            Source::Node(_) | Source::Part => {
                let request = Request::Renew {
                    duration_ms: duration.as_millis() as u64,
                    change: *change,
                };
                match self.inner.with_control(|control| control.ask(&request))? {
                    Response::Renewed(grant) => *grant,
                    other => return Err(unexpected("a request for a renewal", &other)),
                }
            }
        };
        check_numbers(&grant)?;
        *lock(&self.inner.token) = parse_token(&grant.token)?;
        *lock(&self.inner.grant) = grant;
        if !change.is_none() {
            // Not under the lock, because pools are opened meanwhile.
            let followers = lock(&self.inner.followers).clone();
            let may_sleep = change.mode.is_some() || change.hot_for_ms.is_some();
            for follower in &followers {
                follower.follow_lease(may_sleep, OPENING_LIMIT);
            }
        }
        Ok(())
    }

    /// Reads the workers' output from the beginning, as far as the node keeps it: the last 256 KiB.
    pub fn output(&self) -> Result<OutputReader, Error> {
        let node = self.inner.node.clone();
        let watch = self.inner.keepalive(is_local(&node))?;
        Ok(OutputReader::new(
            node,
            self.inner.token(),
            self.inner.holder.clone(),
            watch,
        ))
    }

    /// Gives the workers back. Channels and running calls end. Returns an error when neither the manager nor the node
    /// can be reached; the node then takes the workers back [`LeaseOptions::idle_release`] after the last channel.
    pub fn release(&self) -> Result<(), Error> {
        self.inner.release()
    }
}

impl Inner {
    pub(crate) fn token(&self) -> Token {
        *lock(&self.token)
    }

    /// Runs `request` over the control connection, and repeats it over a new one if the connection broke.
    pub(crate) fn with_control<T>(
        &self,
        mut request: impl FnMut(&mut Control) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut control = lock(&self.control);
        if let Some(open) = control.as_mut() {
            match request(open) {
                Err(error) if error.code() == Code::Unreachable => *control = None,
                result => return result,
            }
        }
        let mut fresh = Control::open(&self.node, &self.token(), &self.holder)?;
        if let Some(watch) = self.keepalive(is_local(&self.node))? {
            watch.guard(fresh.end());
        }
        let result = request(&mut fresh);
        *control = Some(fresh);
        result
    }

    /// The watch of the lease's node; `None` for a connection that stays on this host.
    pub(crate) fn keepalive(&self, unix: bool) -> Result<Option<Arc<Keepalive>>, Error> {
        if unix || is_on_loopback(&self.node) {
            return Ok(None);
        }
        let watch = self.client.keepalives().of(&self.node, &self.token(), &self.holder)?;
        *lock(&self.watch) = Some(watch.clone());
        Ok(Some(watch))
    }

    /// Reports to the node that this client closed a channel.
    pub(crate) fn close(&self, channel: ChannelId) -> Result<(), Error> {
        self.with_control(|control| control.ask(&Request::Close { channel }))
            .map(drop)
    }

    /// The fate of a channel, as its node knows it.
    pub(crate) fn fate(&self, channel: ChannelId) -> Result<ChannelStatus, Error> {
        match self.with_control(|control| control.ask(&Request::ChannelStatus { channel }))? {
            Response::ChannelStatus(fate) => Ok(fate),
            other => Err(unexpected("a request for a channel's fate", &other)),
        }
    }

    fn release(&self) -> Result<(), Error> {
        if self.released.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let by_node = || match self.with_control(|control| control.ask(&Request::Release)) {
            // The lease has ended already.
            Err(over) if matches!(over.code(), Code::LeaseEnded | Code::LeaseExpired) => Ok(()),
            done => done.map(drop),
        };
        match &*self.source {
            Source::Manager(manager) => match manager.release(lock(&self.grant).lease) {
                // The node can end it as well, and reports that to the manager later. Do not wait for a node that is
                // gone too.
                Err(gone) if gone.code() == Code::Unreachable => by_node().map_err(|_| gone),
                done => done,
            },
            Source::Node(_) => by_node(),
            Source::Allowance(allowance) => match by_node() {
                Err(gone) if gone.code() == Code::Unreachable => {
                    let lease = lock(&self.grant).lease;
                    allowance.manager().release(lease).map_err(|_| gone)
                }
                done => done,
            },
            // It returns to its delegator when that takes it back.
            Source::Part => Ok(()),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.owned {
            // A drop cannot report an error.
            let _ = self.release();
        }
    }
}
