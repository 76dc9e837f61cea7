//! One lease of a fleet: its request, the start of its workers, and its end.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use dayfly_protocol::ids::WorkerIndex;
use dayfly_protocol::node_api::{Request, Response as NodeResponse};

use super::{Shared, State};
use crate::node::{Control, is_local};
use crate::pool::Place;
use crate::{Error, Lease};

/// How long one request waits for a recall.
const RECALL_WAIT: Duration = Duration::from_secs(10);
/// Pause before a renewal is repeated that failed, at least.
const RENEWAL_RETRY: Duration = Duration::from_millis(500);

/// A lease of a fleet.
pub struct Held {
    pub lease: Lease,
    /// Whether its workers are being started.
    pub is_opening: bool,
    /// Whether its node has all code of the fleet.
    pub has_code: bool,
    /// Whether it is to be released as soon as its calls have ended.
    pub is_retiring: bool,
    pub renew_at: Instant,
    /// The connection that waits for a recall.
    recall: Option<Arc<OwnedFd>>,
}

impl Held {
    fn new(lease: Lease, duration: Duration) -> Self {
        Self {
            lease,
            is_opening: true,
            has_code: false,
            is_retiring: false,
            renew_at: Instant::now() + duration / 2,
            recall: None,
        }
    }

    /// Releases the lease. Blocks.
    pub fn release(self) {
        if let Some(connection) = &self.recall {
            let _ = rustix::net::shutdown(connection, rustix::net::Shutdown::Both);
        }
        // A node that cannot be reached takes its workers back itself.
        let _ = self.lease.release();
    }
}

/// The response to a request for a lease.
pub enum Response {
    /// The first worker serves.
    Granted {
        requested: u16,
    },
    Refused {
        requested: u16,
        error: Error,
    },
}

/// Runs `work` in a thread of its own. Returns whether it was started.
pub fn in_thread(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.into()).spawn(work).map(drop)
}

impl Shared {
    /// Requests a lease and starts its workers, in a thread of its own.
    pub fn begin_request(self: &Arc<Self>, workers: u16) {
        self.state().requests += 1;
        let shared = Arc::clone(self);
        let started = in_thread("dayfly-fleet-lease", move || {
            let opened = shared.open_lease(workers);
            shared.end_request(workers, opened.err());
        });
        if let Err(error) = started {
            let text = format!("no thread can be started to lease workers: {error}");
            self.end_request(
                workers,
                Some(Error::new(dayfly_protocol::error::Code::OutOfMemory, text)),
            );
        }
    }

    fn end_request(&self, requested: u16, error: Option<Error>) {
        let mut state = self.state();
        state.requests -= 1;
        if let Some(error) = error {
            state.responses.push(Response::Refused { requested, error });
        }
        drop(state);
        self.changed.notify_all();
        self.backlog.wake();
    }

    /// Leases workers and adds them to the pool one by one. Returns an error if none could be started.
    fn open_lease(self: &Arc<Self>, requested: u16) -> Result<(), Error> {
        let mut options = self.options.lease.clone();
        options.memory_bytes = options.memory_bytes * u64::from(requested) / u64::from(options.workers);
        options.workers = requested;
        options.wait = Duration::ZERO;
        let lease = self.client.lease(options)?;
        let key = {
            let mut state = self.state();
            if state.is_closed {
                // Dropping the lease releases it.
                return Ok(());
            }
            state.last_key += 1;
            let key = state.last_key;
            state
                .leases
                .insert(key, Held::new(lease.clone(), self.options.lease.duration));
            key
        };
        let opened = self
            .send_code(key, &lease)
            .and_then(|()| self.open_workers(key, &lease, requested));
        if let Some(held) = self.state().leases.get_mut(&key) {
            held.is_opening = false;
        }
        match opened {
            Ok(()) => {
                self.watch_recall(key, &lease);
                Ok(())
            }
            Err(error) => {
                self.give_back(key);
                Err(error)
            }
        }
    }

    /// Sends all code of the fleet to a node, also code that is added meanwhile.
    fn send_code(&self, key: u64, lease: &Lease) -> Result<(), Error> {
        let mut sent = 0;
        loop {
            let missing = {
                let mut state = self.state();
                if state.code.len() == sent {
                    if let Some(held) = state.leases.get_mut(&key) {
                        held.has_code = true;
                    }
                    return Ok(());
                }
                state.code[sent..].to_vec()
            };
            for (_, code) in missing {
                lease.put_code(&code)?;
                sent += 1;
            }
        }
    }

    fn open_workers(&self, key: u64, lease: &Lease, requested: u16) -> Result<(), Error> {
        let mut first_error = None;
        let mut is_serving = false;
        for index in 0..lease.workers() {
            if self.state().is_closed {
                break;
            }
            let channel = match lease.channel(WorkerIndex(index), &self.options.pool.channel) {
                Ok(channel) => channel,
                Err(error) => {
                    first_error.get_or_insert(error);
                    continue;
                }
            };
            let place = Place {
                lease: lease.clone(),
                index,
                key,
            };
            self.pool.add_worker(place, channel);
            if !is_serving {
                is_serving = true;
                self.state().responses.push(Response::Granted { requested });
                self.changed.notify_all();
                self.backlog.wake();
            }
        }
        match first_error {
            Some(error) if !is_serving => Err(error),
            _ => Ok(()),
        }
    }

    /// Sends a lease no more calls once its node takes it back, so that they do not begin too late.
    fn watch_recall(self: &Arc<Self>, key: u64, lease: &Lease) {
        let (shared, lease) = (Arc::downgrade(self), lease.clone());
        // Without a thread, a recall is noticed when the channels end.
        let _ = in_thread("dayfly-fleet-recall", move || {
            if await_recall(&shared, key, &lease).unwrap_or(false)
                && let Some(shared) = shared.upgrade()
            {
                shared.give_back(key);
            }
        });
    }

    /// Sends a lease no more calls, and releases it when its calls have ended.
    pub fn give_back(&self, key: u64) {
        if let Some(held) = self.state().leases.get_mut(&key) {
            held.is_retiring = true;
        }
        self.pool.retire(key);
        self.backlog.wake();
    }

    /// Renews a lease in a thread of its own.
    pub fn begin_renewal(self: &Arc<Self>, key: u64, lease: Lease) {
        let duration = self.options.lease.duration;
        let shared = Arc::clone(self);
        let _ = in_thread("dayfly-fleet-renewal", move || {
            let pause = match lease.renew(duration) {
                Ok(()) => duration / 2,
                Err(_) => (duration / 16).max(RENEWAL_RETRY),
            };
            if let Some(held) = shared.state().leases.get_mut(&key) {
                held.renew_at = Instant::now() + pause;
            }
        });
    }
}

/// Waits until the node takes a lease back. Returns false if the lease was released.
fn await_recall(shared: &Weak<Shared>, key: u64, lease: &Lease) -> Result<bool, Error> {
    let inner = &lease.inner;
    let mut control = Control::open(&inner.node, &inner.token(), &inner.holder)?;
    if let Some(watch) = inner.keepalive(is_local(&inner.node))? {
        watch.guard(control.end());
    }
    let set_connection = |state: &mut State| {
        let held = state.leases.get_mut(&key);
        held.map(|held| held.recall = Some(Arc::clone(control.end()))).is_some()
    };
    let is_held = shared
        .upgrade()
        .is_some_and(|shared| set_connection(&mut shared.state()));
    if !is_held {
        return Ok(false);
    }
    control.wait_longer(RECALL_WAIT)?;
    loop {
        let request = Request::AwaitRecall {
            wait_ms: RECALL_WAIT.as_millis() as u32,
        };
        match control.ask(&request)? {
            NodeResponse::Recall { is_recalled: false } => {}
            NodeResponse::Recall { is_recalled: true } => return Ok(true),
            other => return Err(crate::node::unexpected("a request for a recall", &other)),
        }
    }
}
