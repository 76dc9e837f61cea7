//! Workers on many nodes behind one queue.
//!
//! A [`Fleet`] holds leases on as many nodes as it needs. Their workers serve one [`Pool`], so a call costs what it
//! costs in a pool of one lease. A thread leases more workers while calls wait, and gives leases back that have been
//! idle; `dayfly_lease::fleet` decides. Calls stay in the fleet's queue until a worker has room, and a worker with long
//! calls gets one at a time, so the loss of a node moves the queue at once.

mod lease_thread;
mod member;

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dayfly_protocol::error::Code;
use dayfly_protocol::executor::Form;
use dayfly_protocol::ids::{CodeHash, NodeId};
use sha2::{Digest, Sha256};

use crate::pool::Backlog;
use crate::{Client, Error, FunctionId, LeaseOptions, Pool, PoolOptions};
use member::{Held, Response};

/// How long the end of a fleet waits for requests of leases that are under way.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// Bounds and times of a fleet, and the terms of its leases.
#[derive(Debug, Clone)]
pub struct FleetOptions {
    /// Terms of each lease. [`LeaseOptions::workers`] is the most workers of one lease, and
    /// [`LeaseOptions::memory_bytes`] is for that many. [`LeaseOptions::wait`] is unused.
    pub lease: LeaseOptions,
    /// Workers that the fleet holds also without calls.
    pub min: u32,
    /// Most workers.
    pub max: u32,
    /// How long calls must have waited before the fleet grows.
    pub patience: Duration,
    /// How long the workers of a lease must have been idle before the fleet gives it back.
    pub idle: Duration,
    /// How long calls wait while the fleet cannot lease any worker. Then they end with the reason.
    pub wait: Duration,
    /// Options of the pool.
    pub pool: PoolOptions,
}

impl FleetOptions {
    /// Between `min` and `max` workers for shared libraries, at most four for each lease. A lease is given back after
    /// ten seconds without calls.
    pub fn native(min: u32, max: u32) -> Self {
        Self {
            lease: LeaseOptions::native(4),
            min,
            max,
            patience: Duration::from_millis(10),
            idle: Duration::from_secs(10),
            wait: Duration::from_secs(60),
            pool: PoolOptions::default(),
        }
    }
}

/// What a fleet holds at the moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetStatus {
    /// Workers that serve calls or are being repaired.
    pub workers: u32,
    /// Node of each lease, including leases whose workers are being started or given back.
    pub nodes: Vec<NodeId>,
    /// Why the last request for a lease was refused; `None` after a grant.
    pub refusal: Option<Error>,
}

/// Workers on many nodes behind one queue. Usable from any thread. Dropping it releases all leases, and calls that have
/// not ended end with [`Code::LeaseEnded`].
///
/// [`CallOptions::worker`](crate::CallOptions::worker) and
/// [`CallOptions::incarnation`](crate::CallOptions::incarnation) are refused, because the workers change.
///
/// ```no_run
/// use dayfly_client::{CallOptions, Client, FleetOptions, Form};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = Client::connect(None)?;
/// let fleet = client.fleet(FleetOptions::native(0, 64))?;
/// let code = fleet.put_code(&std::fs::read("libsquare.so")?)?;
/// let square = fleet.register(code, Form::Plain { symbol: "square".into() })?;
/// let output = fleet.pool().call(square, &2.0f64.to_le_bytes(), CallOptions::default())?;
/// assert_eq!(output.as_slice(), &4.0f64.to_le_bytes());
/// # Ok(())
/// # }
/// ```
pub struct Fleet {
    shared: Arc<Shared>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

struct Shared {
    client: Client,
    options: FleetOptions,
    pool: Arc<Pool>,
    backlog: Arc<Backlog>,
    state: Mutex<State>,
    /// Notified when a request for a lease has ended.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    leases: BTreeMap<u64, Held>,
    /// Number of the last lease.
    last_key: u64,
    /// Code that every node of the fleet gets.
    code: Vec<(CodeHash, Arc<[u8]>)>,
    /// Responses to requests for leases that the thread has not taken in.
    responses: Vec<Response>,
    /// Requests under way, including the start of their workers.
    requests: usize,
    refusal: Option<Error>,
    is_closed: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Client {
    /// Opens a fleet. Returns at once; the first worker serves while others are started.
    pub fn fleet(&self, options: FleetOptions) -> Result<Fleet, Error> {
        Fleet::open(self.clone(), options)
    }
}

impl Fleet {
    fn open(client: Client, options: FleetOptions) -> Result<Self, Error> {
        if options.max == 0 || options.max < options.min || options.lease.workers == 0 {
            return Err(Error::new(
                Code::InvalidRequest,
                format!(
                    "a fleet of {} to {} workers, at most {} for each lease: ask for at least one, and not for fewer than \
                     the minimum",
                    options.min, options.max, options.lease.workers
                ),
            ));
        }
        let backlog = Arc::<Backlog>::default();
        let shared = Arc::new(Shared {
            client,
            pool: Arc::new(Pool::without_lease(options.pool, Arc::clone(&backlog))),
            options,
            backlog,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let thread = lease_thread::start(&shared)?;
        Ok(Self {
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// The pool of the fleet's workers. After the end of the fleet its calls end with [`Code::LeaseEnded`].
    pub fn pool(&self) -> &Arc<Pool> {
        &self.shared.pool
    }

    /// Sends code to all nodes of the fleet, also to those that join later. The fleet keeps a copy. Returns its hash.
    pub fn put_code(&self, code: &[u8]) -> Result<CodeHash, Error> {
        let hash = CodeHash(Sha256::digest(code).into());
        let nodes: Vec<_> = {
            let mut state = self.shared.state();
            if state.code.iter().any(|(known, _)| *known == hash) {
                return Ok(hash);
            }
            state.code.push((hash, code.into()));
            let ready = state.leases.iter().filter(|(_, held)| held.has_code);
            ready.map(|(key, held)| (*key, held.lease.clone())).collect()
        };
        std::thread::scope(|scope| {
            let sent = nodes
                .iter()
                .map(|(key, lease)| (key, scope.spawn(|| lease.put_code(code))));
            for (key, sent) in sent.collect::<Vec<_>>() {
                if !matches!(sent.join(), Ok(Ok(_))) {
                    // Its workers cannot run the function.
                    self.shared.give_back(*key);
                }
            }
        });
        Ok(hash)
    }

    /// Registers a function of code from [`Fleet::put_code`]. Workers load it at its first call.
    pub fn register(&self, hash: CodeHash, form: Form) -> Result<FunctionId, Error> {
        self.shared.pool.register(hash, form)
    }

    /// What the fleet holds at the moment.
    pub fn status(&self) -> FleetStatus {
        let members = self.shared.pool.occupancy().members;
        let state = self.shared.state();
        FleetStatus {
            workers: members.iter().map(|member| u32::from(member.workers)).sum(),
            nodes: state.leases.values().map(|held| held.lease.node()).collect(),
            refusal: state.refusal.clone(),
        }
    }

    /// Waits at most `limit` until the fleet has so many workers. Returns whether it has.
    pub fn wait_for_workers(&self, workers: u32, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        loop {
            if self.status().workers >= workers {
                return true;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let state = self.shared.state();
            let _ = self.shared.changed.wait_timeout(state, left.min(lease_thread::TICK));
        }
    }

    /// Releases all leases. Calls that have not ended end with [`Code::LeaseEnded`]; outcomes can still be taken.
    pub fn close(&self) {
        self.shared.state().is_closed = true;
        self.shared.backlog.wake();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
        self.shared.pool.disconnect();
        let leases = std::mem::take(&mut self.shared.state().leases);
        std::thread::scope(|scope| {
            for held in leases.into_values() {
                scope.spawn(|| held.release());
            }
        });
        // A request under way releases its lease itself.
        let state = self.shared.state();
        let _ = self
            .shared
            .changed
            .wait_timeout_while(state, CLOSE_LIMIT, |state| state.requests > 0);
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.close();
    }
}
