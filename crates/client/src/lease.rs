//! A lease: the right to some workers, until it ends.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use dayfly_fabric::Transport;
use dayfly_lease::SigningKey;
use dayfly_protocol::api::{Grant, HostPath, LeaseRequest, MOST_WAIT_MS, Mode, NodeAddress, Runtime, Sandbox};
use dayfly_protocol::error::Code;
use dayfly_protocol::hello::Token;
use dayfly_protocol::ids::{ChannelId, CodeHash, LeaseId, NodeId, PublicKey, WorkerIndex};
use dayfly_protocol::node_api::{Fate, Request, Response};
use sha2::{Digest, Sha256};

use crate::client::{Source, parse_token};
use crate::keepalive::Keepalive;
use crate::node::{Control, best_transport, is_local, is_on_loopback, unexpected};
use crate::opening::Opening;
use crate::{Channel, ChannelOptions, Client, Error, Pool, PoolOptions, Reader};

/// What to lease.
#[derive(Debug, Clone)]
pub struct LeaseOptions {
    /// Number of workers.
    pub workers: u16,
    /// Cores of each worker.
    pub cores_per_worker: u16,
    /// Memory of the whole lease in bytes; 0 for the node's usual share.
    pub memory_bytes: u64,
    /// GPUs of each worker, which sees no others.
    pub gpus_per_worker: u16,
    /// How long from first use.
    pub duration: Duration,
    /// Polling or sleeping workers.
    pub mode: Mode,
    /// How long a hot worker polls before it sleeps; none for ever.
    pub hot_for: Option<Duration>,
    /// What the workers run.
    pub runtime: Runtime,
    /// How long the lease outlives its last channel; zero for as long as it lasts.
    pub idle_release: Duration,
    /// Wanted node.
    pub node: Option<NodeId>,
    /// How isolated the workers are; none for the site's default.
    pub sandbox: Option<Sandbox>,
    /// For a container, its image as the site names it; none for the site's first.
    pub image: Option<String>,
    /// Whether isolated workers share the host's network, as far as the site allows.
    pub network: bool,
    /// What isolated workers see of the host's files beside programs and libraries, as far as the site allows.
    pub files: Vec<HostPath>,
    /// Whether it is told which call printed what: a call that prints then ends once its node has read all of it.
    pub output_by_call: bool,
    /// How long to wait for a place when there is none.
    pub wait: Duration,
    /// The W3C `traceparent` of the step that asks for it; by default that of the environment variable `TRACEPARENT`.
    pub traceparent: Option<String>,
}

impl LeaseOptions {
    /// Workers for shared libraries: hot if the node has the cores, for a day at most; the node takes them back soon after the
    /// last channel closes, also when this process dies.
    pub fn native(workers: u16) -> Self {
        Self {
            workers,
            cores_per_worker: 1,
            memory_bytes: 0,
            gpus_per_worker: 0,
            duration: Duration::from_secs(24 * 3600),
            mode: Mode::Auto,
            hot_for: None,
            runtime: Runtime::Native,
            idle_release: Duration::from_secs(10),
            node: None,
            sandbox: None,
            image: None,
            network: false,
            files: Vec::new(),
            output_by_call: false,
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
            runtime: self.runtime.clone(),
            sandbox: self.sandbox,
            image: self.image.clone(),
            network: self.network,
            files: self.files.clone(),
            output_by_call: self.output_by_call,
            wait_ms: (self.wait.as_millis() as u64).min(MOST_WAIT_MS),
            holder,
            idle_release_ms: self.idle_release.as_millis() as u64,
            node: self.node,
        }
    }
}

pub(crate) struct Inner {
    /// Keeps an embedded manager alive for as long as one of its leases.
    client: Client,
    pub(crate) source: Arc<Source>,
    grant: Mutex<Grant>,
    token: Mutex<Token>,
    pub(crate) node: NodeAddress,
    pub(crate) holder: SigningKey,
    control: Mutex<Option<Control>>,
    /// Who watches over the node, once something here has led off this host.
    watch: Mutex<Option<Arc<Keepalive>>>,
    /// Code that this lease's isolated workers may load.
    shown_code: Mutex<HashSet<CodeHash>>,
    released: AtomicBool,
    /// Whether it goes back when nobody here uses it any more.
    owned: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A lease. Cheap to clone; it is released when the last clone, channel and pool of it is dropped, unless it came from
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
            owned,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// What was granted.
    pub fn grant(&self) -> Grant {
        lock(&self.inner.grant).clone()
    }

    /// Where its workers are.
    pub fn node(&self) -> NodeId {
        self.inner.node.id
    }

    fn id(&self) -> LeaseId {
        lock(&self.inner.grant).lease
    }

    /// Workers granted.
    pub fn workers(&self) -> u16 {
        lock(&self.inner.grant).workers
    }

    /// Whether the workers poll.
    pub fn is_hot(&self) -> bool {
        lock(&self.inner.grant).mode == Mode::Hot
    }

    /// The transport that a channel of this lease uses unless told otherwise.
    pub fn best_transport(&self) -> Transport {
        best_transport(&self.inner.node)
    }

    /// Makes code known to the node, if it is not yet, and answers its hash.
    pub fn put_code(&self, code: &[u8]) -> Result<CodeHash, Error> {
        let hash = CodeHash(Sha256::digest(code).into());
        let known = (self.inner.node.id, hash);
        // Isolated workers see only what was named on their own lease.
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

    /// Opens a channel to one worker.
    pub fn channel(&self, worker: WorkerIndex, options: &ChannelOptions) -> Result<Channel, Error> {
        Channel::open(self, worker, options, &Opening::default())
    }

    /// Opens a channel to every worker and spreads calls over them.
    pub fn pool(&self, options: PoolOptions) -> Result<Pool, Error> {
        Pool::open(self, options)
    }

    /// Makes the lease last `duration` from now.
    pub fn renew(&self, duration: Duration) -> Result<(), Error> {
        let grant = match &*self.inner.source {
            Source::Manager(manager) => manager.renew(self.id(), duration)?,
            Source::Direct(direct) => direct.manager().renew(self.id(), duration)?,
            Source::Node(_) | Source::Part => {
                let request = Request::Renew {
                    duration_ms: duration.as_millis() as u64,
                };
                match self.inner.with_control(|control| control.ask(&request))? {
                    Response::Renewed(grant) => *grant,
                    other => return Err(unexpected("a renewal", &other)),
                }
            }
        };
        *lock(&self.inner.token) = parse_token(&grant.token)?;
        *lock(&self.inner.grant) = grant;
        Ok(())
    }

    /// Reads what the workers print, from the beginning, as far as their node keeps it: the last 256 KiB.
    pub fn printed(&self) -> Result<Reader, Error> {
        let node = self.inner.node.clone();
        let watch = self.inner.keepalive(is_local(&node))?;
        Ok(Reader::new(node, self.inner.token(), self.inner.holder.clone(), watch))
    }

    /// Gives the workers back. Channels end; calls that run are ended. When neither the manager nor the node can be reached, that
    /// is an error, and the node takes the workers back by itself, [`LeaseOptions::idle_release`] after the last channel.
    pub fn release(&self) -> Result<(), Error> {
        self.inner.release()
    }
}

impl Inner {
    pub(crate) fn token(&self) -> Token {
        *lock(&self.token)
    }

    /// Runs `request` over the lease's control connection, once more over a fresh one if the old one broke.
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

    /// The watch over the lease's node, for a connection that leaves this host.
    pub(crate) fn keepalive(&self, unix: bool) -> Result<Option<Arc<Keepalive>>, Error> {
        if unix || is_on_loopback(&self.node) {
            return Ok(None);
        }
        let watch = self.client.keepalives().of(&self.node, &self.token(), &self.holder)?;
        *lock(&self.watch) = Some(watch.clone());
        Ok(Some(watch))
    }

    /// Tells the node that this client has given a channel up.
    pub(crate) fn close(&self, channel: ChannelId) -> Result<(), Error> {
        self.with_control(|control| control.ask(&Request::Close { channel }))
            .map(drop)
    }

    /// What became of a channel.
    pub(crate) fn fate(&self, channel: ChannelId) -> Result<Fate, Error> {
        match self.with_control(|control| control.ask(&Request::Fate { channel }))? {
            Response::Fate(fate) => Ok(fate),
            other => Err(unexpected("a fate", &other)),
        }
    }

    fn release(&self) -> Result<(), Error> {
        if self.released.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let by_node = || match self.with_control(|control| control.ask(&Request::Release)) {
            // It is as gone as it could be.
            Err(over) if matches!(over.code(), Code::LeaseEnded | Code::LeaseExpired) => Ok(()),
            done => done.map(drop),
        };
        match &*self.source {
            Source::Manager(manager) => match manager.release(lock(&self.grant).lease) {
                // Its node can end it as well, and tells the manager when that is back. Nobody waits for a node that is gone too.
                Err(gone) if gone.code() == Code::Unreachable => by_node().map_err(|_| gone),
                done => done,
            },
            Source::Node(_) => by_node(),
            Source::Direct(direct) => match by_node() {
                Err(gone) if gone.code() == Code::Unreachable => {
                    let lease = lock(&self.grant).lease;
                    direct.manager().release(lease).map_err(|_| gone)
                }
                done => done,
            },
            // It goes back to whoever delegated it when that takes it back.
            Source::Part => Ok(()),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.owned {
            // A lease that is gone already, or a node that is, needs no release; nobody is left to hear of another failure.
            let _ = self.release();
        }
    }
}
