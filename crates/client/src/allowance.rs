//! Leasing directly from nodes, under an allowance of the manager.
//!
//! A thread receives from the manager which nodes have room, and renewed tokens. A lease asks those nodes in random
//! order, each once in a round. The manager takes no part in it.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use dayfly_lease::SigningKey;
use dayfly_lease::allowance::{Candidates, pause_ms};
use dayfly_protocol::api::{Allowance, AllowanceRequest, Grant, LeaseRequest, NodeAddress, Sandbox};
use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::error::Code;
use dayfly_protocol::hello::Token;
use dayfly_protocol::ids::{AllowanceId, NodeId};
use dayfly_protocol::node_api::{Request, Response};

use crate::client::parse_token;
use crate::manager::ManagerClient;
use crate::node::{Control, unexpected};
use crate::random::fill_random;
use crate::{Client, Error};

/// Limit for the manager's response that the list has not changed.
const LIST_WAIT: Duration = Duration::from_secs(10);
/// Pause after a failed request to the manager.
const RETRY: Duration = Duration::from_millis(500);
/// Most idle connections that are kept.
const MAX_IDLE: usize = 64;

/// Bounds of leasing directly from nodes.
#[derive(Debug, Clone, Copy)]
pub struct AllowanceOptions {
    /// Workers of all leases together.
    pub workers: u32,
    /// Cores of all leases together; 0 for one core per worker.
    pub cores: MilliCores,
    /// Memory of all leases together, in bytes; 0 leaves it to the nodes.
    pub memory_bytes: u64,
    /// Most workers on one node; 0 leaves it to the manager.
    pub workers_per_node: u16,
    /// Longest duration of a lease.
    pub duration: Duration,
    /// Isolation of the workers; `None` for the site's default.
    pub sandbox: Option<Sandbox>,
}

impl AllowanceOptions {
    /// `workers` workers, for leases of at most a day.
    pub fn workers(workers: u32) -> Self {
        Self {
            workers,
            cores: MilliCores::ZERO,
            memory_bytes: 0,
            workers_per_node: 0,
            duration: Duration::from_secs(24 * 3600),
            sandbox: None,
        }
    }
}

/// An allowance in use.
pub struct AllowanceClient {
    shared: Arc<Shared>,
    /// Keeps an embedded manager alive.
    _of: Client,
}

struct Shared {
    manager: Arc<ManagerClient>,
    request: AllowanceRequest,
    holder: SigningKey,
    state: Mutex<State>,
    /// Notified when the list of nodes changes.
    changed: Condvar,
}

struct State {
    allowance: AllowanceId,
    token: Token,
    version: u64,
    addresses: HashMap<NodeId, NodeAddress>,
    candidates: Candidates,
    /// Idle connections, with the token that each was opened with.
    idle: Vec<(NodeId, Token, Control)>,
    over: bool,
}

impl Drop for AllowanceClient {
    fn drop(&mut self) {
        self.stop();
    }
}

fn now_ms(since: Instant) -> u64 {
    since.elapsed().as_millis() as u64
}

fn random() -> Result<u64, Error> {
    let mut bytes = [0; 8];
    fill_random(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

impl AllowanceClient {
    /// Requests an allowance from a manager.
    pub fn allow(
        client: Client,
        manager: Arc<ManagerClient>,
        options: &AllowanceOptions,
        holder: SigningKey,
    ) -> Result<Self, Error> {
        let request = AllowanceRequest {
            holder: holder.public(),
            workers: options.workers,
            cores: options.cores,
            memory_bytes: options.memory_bytes,
            workers_per_node: options.workers_per_node,
            duration_ms: options.duration.as_millis() as u64,
            sandbox: options.sandbox,
        };
        let allowance = manager.allow(&request)?;
        let mut state = State {
            allowance: allowance.allowance,
            token: parse_token(&allowance.token)?,
            version: 0,
            addresses: HashMap::new(),
            candidates: Candidates::default(),
            idle: Vec::new(),
            over: false,
        };
        state.update(allowance)?;
        let shared = Arc::new(Shared {
            manager,
            request,
            holder,
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let follower = Arc::downgrade(&shared);
        let thread = std::thread::Builder::new().name("dayfly-allowance".into());
        thread.spawn(move || follow_nodes(&follower)).map_err(|error| {
            Error::new(
                Code::OutOfMemory,
                format!("no thread can be started to follow the list of nodes: {error}"),
            )
        })?;
        Ok(Self { shared, _of: client })
    }

    /// Gives the allowance back; leases under it go on.
    pub fn stop(&self) {
        let mut state = self.shared.state();
        if std::mem::replace(&mut state.over, true) {
            return;
        }
        state.idle.clear();
        let allowance = state.allowance;
        drop(state);
        // Without the manager's help it expires within a minute.
        let _ = self.shared.manager.disallow(allowance);
    }

    /// The manager that signed the allowance.
    pub fn manager(&self) -> &Arc<ManagerClient> {
        &self.shared.manager
    }

    /// Leases from any node with room. Waits at most `wait` for room.
    pub fn lease(&self, request: &LeaseRequest, wait: Duration) -> Result<Grant, Error> {
        let began = since_start();
        let until = Instant::now() + wait;
        let mut rounds = 0;
        loop {
            let refusal = match self.round(request, began)? {
                Ok(grant) => return Ok(grant),
                Err(refusal) => refusal,
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(refusal);
            }
            let pause = Duration::from_millis(pause_ms(rounds, random()?)).min(left);
            rounds += 1;
            let state = self.shared.state();
            let version = state.version;
            let _ = self
                .shared
                .changed
                .wait_timeout_while(state, pause, |state| state.version == version);
        }
    }

    /// Asks each candidate node once. Returns the grant, or the reason why no node granted one.
    fn round(&self, request: &LeaseRequest, began: Instant) -> Result<Result<Grant, Error>, Error> {
        let nodes = {
            let mut state = self.shared.state();
            state.candidates.round(request, random()?, now_ms(began))
        };
        let mut refusal = Error::new(
            Code::NoCapacity,
            "no node that this allowance is for is known to have room; wait for some (`wait`), or ask for less",
        );
        for node in nodes {
            match self.ask(node, request) {
                Ok(grant) => return Ok(Ok(grant)),
                Err(error) => {
                    let mut state = self.shared.state();
                    match error.code() {
                        Code::NoCapacity | Code::TooLarge | Code::EnvironmentBuilding => {
                            state.candidates.full(node, now_ms(began))
                        }
                        Code::Unreachable | Code::TimedOut | Code::ExecutorFailed | Code::StoreFailed => {
                            state.candidates.gone(node, now_ms(began));
                        }
                        // Every other node would refuse too.
                        Code::QuotaExceeded => return Ok(Err(error)),
                        _ => return Err(error),
                    }
                    refusal = error;
                }
            }
        }
        Ok(Err(refusal))
    }

    fn ask(&self, node: NodeId, request: &LeaseRequest) -> Result<Grant, Error> {
        let (address, token, idle) = {
            let mut state = self.shared.state();
            let address = state.addresses.get(&node).cloned();
            // A list that arrived meanwhile contains only nodes with room.
            let address =
                address.ok_or_else(|| Error::new(Code::NoCapacity, "the node has no room any more, or has left"))?;
            let token = state.token;
            // A connection is valid as long as its token.
            state.idle.retain(|(_, used, _)| *used == token);
            let found = state.idle.iter().position(|(of, ..)| *of == node);
            (address, token, found.map(|found| state.idle.swap_remove(found).2))
        };
        let request = Request::Lease(Box::new(request.clone()));
        let mut control = match idle {
            Some(control) => control,
            None => Control::open(&address, &token, &self.shared.holder)?,
        };
        let response = match control.ask(&request) {
            // A kept connection may have ended before this request was sent on it.
            Err(error) if error.code() == Code::Unreachable => {
                control = Control::open(&address, &token, &self.shared.holder)?;
                control.ask(&request)
            }
            response => response,
        };
        let mut state = self.shared.state();
        if state.idle.len() < MAX_IDLE && !response.as_ref().is_err_and(|error| error.code() == Code::Unreachable) {
            state.idle.push((node, token, control));
        }
        drop(state);
        match response? {
            Response::Granted(grant) => Ok(*grant),
            other => Err(unexpected("a request for a lease", &other)),
        }
    }
}

/// A common clock for all rounds.
fn since_start() -> Instant {
    static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    *START
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn update(&mut self, list: Allowance) -> Result<(), Error> {
        self.token = parse_token(&list.token)?;
        self.allowance = list.allowance;
        self.version = list.version;
        self.candidates
            .update(list.nodes.iter().map(|room| (room.node.id, room.free)).collect());
        self.addresses = list.nodes.into_iter().map(|room| (room.node.id, room.node)).collect();
        Ok(())
    }
}

/// Receives lists of nodes until the allowance is dropped or given back.
fn follow_nodes(shared: &Weak<Shared>) {
    loop {
        let Some(shared) = shared.upgrade() else { return };
        let (allowance, version, over) = {
            let state = shared.state();
            (state.allowance, state.version, state.over)
        };
        if over {
            return;
        }
        let list = match shared.manager.allowance(allowance, version, LIST_WAIT) {
            // A restarted manager does not know the allowance; request it again.
            Err(error) if error.code() == Code::NotFound && !shared.state().over => {
                shared.manager.allow(&shared.request)
            }
            list => list,
        };
        let updated = list.and_then(|list| shared.state().update(list));
        if updated.is_ok() {
            shared.changed.notify_all();
        } else {
            // The last list may still be correct and its token valid.
            let state = shared.state();
            let _ = shared.changed.wait_timeout_while(state, RETRY, |state| !state.over);
        }
    }
}
