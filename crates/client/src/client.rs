//! Sources of leases: a manager, or one node directly.

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use dayfly_lease::SigningKey;
use dayfly_protocol::api::{
    Connection, GangRequest, Grant, HarvestMode, LeaseRequest, LeaseStatus, MAX_WAIT_MS, NodeAddress, NodeResize,
    NodeStatus, Placement, Reclaimed,
};
use dayfly_protocol::contents::Content;
use dayfly_protocol::error::Code;
use dayfly_protocol::hello::{TOKEN_BYTES, Token};
use dayfly_protocol::ids::{CodeHash, NodeId};
use dayfly_protocol::node_api::{Request, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use zerocopy::FromBytes;

use crate::allowance::{AllowanceClient, AllowanceOptions};
use crate::contents::{Contents, HeldContents};
use crate::embedded_manager::EmbeddedManager;
use crate::keepalive::Keepalives;
use crate::lease::{Lease, LeaseOptions};
use crate::manager::ManagerClient;
use crate::node::{Control, unexpected};
use crate::random::fill_random;
use crate::tasks::{Tasks, TasksOptions};
use crate::{Error, discovery};

/// Interval at which a node without room is asked again; a node does not report that it has room.
const ROOM_TICK: Duration = Duration::from_millis(20);

/// The right to lease from one node without a manager. The node writes it to `allowance.json`.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct Node {
    /// The signed allowance, in hexadecimal.
    pub token: String,
    /// Seed of the holder's key, in hexadecimal.
    #[serde(rename = "holder_seed")]
    pub seed: String,
    /// Address of the node.
    pub node: NodeAddress,
}

pub(crate) enum Source {
    Manager(Arc<ManagerClient>),
    Node(Box<Node>),
    /// Nodes, under an allowance of their manager.
    Allowance(Box<AllowanceClient>),
    /// A delegated part of another client's lease.
    Part,
}

struct Inner {
    // Declared before `embedded`: connections close before the processes at their other end are stopped.
    source: Arc<Source>,
    embedded: Mutex<Option<EmbeddedManager>>,
    /// Code that nodes have, to avoid sending it or asking about it twice.
    known_code: Mutex<HashSet<(NodeId, CodeHash)>>,
    holder: OnceLock<SigningKey>,
    keepalives: Keepalives,
}

/// A client of a manager, or of one node. Cloning is cheap; all clones share the connection.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

impl Client {
    /// Connects to the first of: the manager at `path` (a connection file, or a state directory), the manager that the
    /// environment variable `DAYFLY_MANAGER` names, the manager that this user runs. If there is none, starts an
    /// embedded manager, which ends with the last clone of this client or with this process.
    pub fn connect(path: Option<&Path>) -> Result<Self, Error> {
        match discovery::find_manager(path)? {
            Some(connection) => Self::over(Source::Manager(Arc::new(ManagerClient::new(&connection)?)), None),
            None => Self::embedded(None),
        }
    }

    /// As [`Client::connect`]; an embedded manager is started with the `dayfly` at `binary`, if given.
    pub fn connect_or_start(path: Option<&Path>, binary: Option<&Path>) -> Result<Self, Error> {
        match discovery::find_manager(path)? {
            Some(connection) => Self::manager_at(&connection),
            None => Self::embedded(binary),
        }
    }

    /// Connects to the manager that a connection file describes.
    pub fn manager_at(connection: &Connection) -> Result<Self, Error> {
        Self::over(Source::Manager(Arc::new(ManagerClient::new(connection)?)), None)
    }

    /// Starts an embedded manager and node, whatever is configured. `binary` is the path of `dayfly`; `None` looks
    /// beside this program and in PATH.
    pub fn embedded(binary: Option<&Path>) -> Result<Self, Error> {
        let (embedded, connection) = EmbeddedManager::start(binary)?;
        Self::over(
            Source::Manager(Arc::new(ManagerClient::new(&connection)?)),
            Some(embedded),
        )
    }

    /// Leases from one node directly. `allowance` is the `allowance.json` that the node wrote.
    pub fn node(allowance: &Path) -> Result<Self, Error> {
        let unusable = |error: String| {
            Error::new(
                Code::InvalidRequest,
                format!("{} is no usable allowance: {error}", allowance.display()),
            )
        };
        let text = std::fs::read_to_string(allowance).map_err(|error| unusable(error.to_string()))?;
        let node = serde_json::from_str(&text).map_err(|error| unusable(error.to_string()))?;
        Self::over(Source::Node(Box::new(node)), None)
    }

    pub(crate) fn over(source: Source, embedded: Option<EmbeddedManager>) -> Result<Self, Error> {
        Ok(Self {
            inner: Arc::new(Inner {
                source: Arc::new(source),
                embedded: Mutex::new(embedded),
                known_code: Mutex::default(),
                holder: OnceLock::new(),
                keepalives: Keepalives::default(),
            }),
        })
    }

    pub(crate) fn known_code(&self) -> &Mutex<HashSet<(NodeId, CodeHash)>> {
        &self.inner.known_code
    }

    pub(crate) fn keepalives(&self) -> &Keepalives {
        &self.inner.keepalives
    }

    fn embedded_manager(&self) -> MutexGuard<'_, Option<EmbeddedManager>> {
        self.inner.embedded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends an embedded manager with all its leases, or gives an allowance back, even if clones of this client or
    /// leases remain.
    pub fn stop(&self) {
        if let Source::Allowance(allowance) = &*self.inner.source {
            allowance.stop();
        }
        drop(self.embedded_manager().take());
    }

    /// Whether this client started its manager.
    pub fn is_embedded(&self) -> bool {
        self.embedded_manager().is_some()
    }

    /// Describes the connection for a user.
    pub fn describe(&self) -> String {
        match &*self.inner.source {
            Source::Manager(manager) if self.embedded_manager().is_some() => {
                format!("embedded manager at {}", manager.url())
            }
            Source::Manager(manager) => format!("manager at {}", manager.url()),
            Source::Node(node) => format!("node {}", node.node.name),
            Source::Allowance(allowance) => format!("nodes of the manager at {}", allowance.manager().url()),
            Source::Part => "a part of a lease".into(),
        }
    }

    /// Opens a session of durable tasks under one tag. Returns an error without a manager.
    pub fn tasks(&self, options: TasksOptions) -> Result<Tasks, Error> {
        match &*self.inner.source {
            Source::Manager(manager) => Tasks::open(Arc::clone(manager), options),
            _ => Err(Error::new(
                Code::InvalidRequest,
                "durable tasks need a manager; connect to one instead of a node",
            )),
        }
    }

    /// Reads a content of this tenant from the manager's content store.
    pub fn read_content(&self, content: Content) -> Result<Vec<u8>, Error> {
        match &*self.inner.source {
            Source::Manager(manager) => Contents::new(Arc::clone(manager)).read(content),
            _ => Err(no_contents()),
        }
    }

    /// Stores bytes as a content of this tenant in the manager's content store.
    pub fn store_content(&self, bytes: &[u8]) -> Result<Content, Error> {
        match &*self.inner.source {
            Source::Manager(manager) => Contents::new(Arc::clone(manager)).store(bytes),
            _ => Err(no_contents()),
        }
    }

    /// Contents of an endpoint's tasks. The client needs an endpoint's token.
    pub fn held_contents(&self) -> Result<HeldContents, Error> {
        match &*self.inner.source {
            Source::Manager(manager) => Ok(HeldContents::new(Arc::clone(manager))),
            _ => Err(no_contents()),
        }
    }

    /// Leases workers. Waits at most [`LeaseOptions::wait`] for room; then the error is [`Code::NoCapacity`].
    pub fn lease(&self, options: LeaseOptions) -> Result<Lease, Error> {
        let holder = self.holder()?;
        let mut request = options.request(holder.public());
        let grant = self.until_room(options.wait, |wait_ms| {
            request.wait_ms = wait_ms;
            self.ask_for(&request, options.traceparent.as_deref())
        })?;
        Lease::new(self.clone(), self.inner.source.clone(), grant, holder, true)
    }

    /// Leases a gang: all workers or none, on one node or several. [`LeaseOptions::workers`] and
    /// [`LeaseOptions::memory_bytes`] are totals. Returns the leases in the order of the gang's ranks.
    pub fn gang(&self, options: LeaseOptions, placement: Placement) -> Result<Vec<Lease>, Error> {
        self.gang_among(options, placement, Vec::new())
    }

    /// As [`Client::gang`], on the given nodes only. An empty list allows every node.
    pub fn gang_among(
        &self,
        options: LeaseOptions,
        placement: Placement,
        among: Vec<NodeId>,
    ) -> Result<Vec<Lease>, Error> {
        let Source::Manager(manager) = &*self.inner.source else {
            // One node cannot divide a gang, and an allowance leases from one node at a time.
            return Ok(vec![self.lease(options)?]);
        };
        let holder = self.holder()?;
        let mut request = GangRequest {
            lease: options.request(holder.public()),
            placement,
            among,
        };
        let grants = self.until_room(options.wait, |wait_ms| {
            request.lease.wait_ms = wait_ms;
            manager.gang(&request, options.traceparent.as_deref())
        })?;
        let leased = grants
            .into_iter()
            .map(|grant| Lease::new(self.clone(), self.inner.source.clone(), grant, holder.clone(), true));
        leased.collect()
    }

    /// Repeats `ask` until there is room or `wait` is over. `ask` receives the milliseconds that a manager may wait.
    fn until_room<T>(&self, wait: Duration, mut ask: impl FnMut(u64) -> Result<T, Error>) -> Result<T, Error> {
        let until = Instant::now() + wait;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match ask((left.as_millis() as u64).min(MAX_WAIT_MS)) {
                // A manager waits for room itself, for a limited time; a node does not.
                Err(error)
                    if matches!(error.code(), Code::NoCapacity | Code::EnvironmentBuilding) && !left.is_zero() =>
                {
                    if matches!(*self.inner.source, Source::Node(_)) {
                        std::thread::sleep(left.min(ROOM_TICK));
                    }
                }
                asked => return asked,
            }
        }
    }

    fn ask_for(&self, request: &LeaseRequest, traceparent: Option<&str>) -> Result<Grant, Error> {
        match &*self.inner.source {
            Source::Manager(manager) => manager.lease(request, traceparent),
            Source::Node(node) => {
                let mut control = Control::open(&node.node, &parse_token(&node.token)?, &node.key()?)?;
                match control.ask(&Request::Lease(Box::new(request.clone())))? {
                    Response::Granted(grant) => Ok(*grant),
                    other => Err(unexpected("a request for a lease", &other)),
                }
            }
            Source::Allowance(allowance) => allowance.lease(request, Duration::from_millis(request.wait_ms)),
            Source::Part => Err(Error::new(
                Code::InvalidRequest,
                "a delegated part of a lease cannot lease workers; delegate a part of it",
            )),
        }
    }

    /// Returns a client that leases directly from nodes, within `options`. The manager learns of its leases afterwards.
    /// The allowance ends with the last clone of that client; leases go on.
    pub fn allowance(&self, options: &AllowanceOptions) -> Result<Self, Error> {
        let manager = Arc::clone(self.manager()?);
        let allowance = AllowanceClient::allow(self.clone(), manager, options, self.holder()?)?;
        let client = Self::over(Source::Allowance(Box::new(allowance)), None)?;
        // Use one key for the allowance and the leases under it.
        let _ = client.inner.holder.set(self.holder()?);
        Ok(client)
    }

    /// Opens a lease that was granted before, perhaps to another process. `holder_seed` is the seed of the key in the
    /// grant. The lease outlives its last clone; only [`Lease::release`] gives it back.
    pub fn lease_granted(&self, grant: Grant, holder_seed: [u8; 32]) -> Result<Lease, Error> {
        let holder = SigningKey::from_seed(holder_seed);
        Lease::new(self.clone(), self.inner.source.clone(), grant, holder, false)
    }

    /// The key that this client's leases name. It never leaves this process.
    fn holder(&self) -> Result<SigningKey, Error> {
        if self.inner.holder.get().is_none() {
            let mut seed = [0; 32];
            fill_random(&mut seed)?;
            // If two threads get here at once, the first key is kept.
            let _ = self.inner.holder.set(SigningKey::from_seed(seed));
        }
        let key = self.inner.holder.get().cloned();
        key.ok_or_else(|| Error::new(Code::Internal, "the client has no key; report this"))
    }

    fn manager(&self) -> Result<&Arc<ManagerClient>, Error> {
        match &*self.inner.source {
            Source::Manager(manager) => Ok(manager),
            Source::Allowance(allowance) => Ok(allowance.manager()),
            Source::Node(_) | Source::Part => Err(Error::new(
                Code::InvalidRequest,
                "this client uses a node directly, and the request needs a manager; connect to one",
            )),
        }
    }

    /// Lists the manager's nodes.
    pub fn nodes(&self) -> Result<Vec<NodeStatus>, Error> {
        self.manager()?.nodes()
    }

    /// Takes a node back for its owner: no new leases; existing leases end, and running calls get `grace`. Returns when
    /// the node is empty and its last usage is booked.
    pub fn reclaim_node(&self, node: NodeId, grace: Duration) -> Result<Reclaimed, Error> {
        self.manager()?.reclaim_node(node, grace)
    }

    /// Changes what a node offers to leases, within what it was started with. Running calls of leases that have to end may
    /// go on for `grace`. Returns when no lease holds more than the node offers.
    pub fn resize_node(&self, node: NodeId, change: &NodeResize, grace: Duration) -> Result<NodeStatus, Error> {
        self.manager()?.resize_node(node, change, grace)
    }

    /// Opens a reclaimed node to leases again.
    pub fn resume_node(&self, node: NodeId) -> Result<NodeStatus, Error> {
        self.manager()?.resume_node(node)
    }

    /// Switches what a node does with resources that calls own and do not use, until the node ends.
    pub fn switch_harvest(&self, node: NodeId, mode: HarvestMode) -> Result<NodeStatus, Error> {
        self.manager()?.switch_harvest(node, mode)
    }

    /// Lists the manager's leases.
    pub fn leases(&self) -> Result<Vec<LeaseStatus>, Error> {
        self.manager()?.leases()
    }

    /// Releases a lease by its id.
    pub fn release(&self, lease: dayfly_protocol::ids::LeaseId) -> Result<(), Error> {
        self.manager()?.release(lease)
    }

    /// Revokes a lease; running calls get `grace`. Returns when the lease has ended.
    pub fn revoke(&self, lease: dayfly_protocol::ids::LeaseId, grace: Duration) -> Result<LeaseStatus, Error> {
        self.manager()?.revoke(lease, grace)
    }

    /// URL of the manager that responded last.
    pub fn manager_url(&self) -> Result<String, Error> {
        Ok(self.manager()?.url())
    }

    /// `GET` of any path of the manager's API.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.manager()?.get(path)
    }

    /// `POST` to any path of the manager's API, with a JSON body.
    pub fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, Error> {
        self.manager()?.post(path, body)
    }

    /// `PUT` to any path of the manager's API, with a JSON body.
    pub fn put<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, Error> {
        self.manager()?.put(path, body)
    }

    /// `DELETE` of any path of the manager's API.
    pub fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.manager()?.delete(path, Duration::ZERO)
    }
}

impl Node {
    fn key(&self) -> Result<SigningKey, Error> {
        parse_seed(&self.seed)
    }
}

/// Parses the seed of a key: 64 hexadecimal digits.
pub(crate) fn parse_seed(text: &str) -> Result<SigningKey, Error> {
    let mut seed = [0; 32];
    hex::decode_to_slice(text, &mut seed)
        .map_err(|_| Error::new(Code::InvalidRequest, "the key's seed is not 64 hexadecimal digits"))?;
    Ok(SigningKey::from_seed(seed))
}

pub(crate) fn parse_token(text: &str) -> Result<Token, Error> {
    let mut bytes = [0; TOKEN_BYTES];
    hex::decode_to_slice(text, &mut bytes).map_err(|_| {
        Error::new(
            Code::InvalidRequest,
            format!("a token has {} hexadecimal digits", TOKEN_BYTES * 2),
        )
    })?;
    Token::read_from_bytes(&bytes).map_err(|_| Error::new(Code::InvalidRequest, "the token is too short"))
}

fn no_contents() -> Error {
    Error::new(
        Code::InvalidRequest,
        "the content store needs a manager; connect to one instead of a node",
    )
}
