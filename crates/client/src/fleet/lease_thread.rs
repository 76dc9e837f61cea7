//! The thread of a fleet that leases workers and gives them back, as `dayfly_lease::fleet` decides.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dayfly_lease::fleet::{Bounds, HeldLease, Planner, Step};
use dayfly_protocol::error::{Code, Retry};

use super::Shared;
use super::member::{Response, in_thread};
use crate::pool::Occupancy;
use crate::random::fill_random;
use crate::{CallError, Error};

/// Interval of the thread while the fleet has calls or changes.
pub const TICK: Duration = Duration::from_millis(5);
/// Interval without calls. A queued call ends it early.
const IDLE_TICK: Duration = Duration::from_millis(50);

/// Starts the thread.
pub fn start(shared: &Arc<Shared>) -> Result<JoinHandle<()>, Error> {
    let options = &shared.options;
    let driver = Driver {
        shared: Arc::clone(shared),
        planner: Planner::new(Bounds {
            min: options.min,
            max: options.max,
            lease_workers: options.lease.workers,
            patience_ms: options.patience.as_millis() as u64,
            idle_ms: options.idle.as_millis() as u64,
        }),
        began: Instant::now(),
        without_workers_since: None,
        was_growing: false,
    };
    let thread = std::thread::Builder::new().name("dayfly-fleet".into());
    thread.spawn(move || driver.run()).map_err(|error| {
        Error::new(
            Code::OutOfMemory,
            format!("no thread can be started to lease workers: {error}"),
        )
    })
}

struct Driver {
    shared: Arc<Shared>,
    planner: Planner,
    began: Instant,
    /// Since when calls have waited without any worker.
    without_workers_since: Option<Instant>,
    was_growing: bool,
}

impl Driver {
    fn run(mut self) {
        self.shared.backlog.set_thread();
        loop {
            if self.shared.state().is_closed {
                return;
            }
            self.take_responses();
            let occupancy = self.shared.pool.occupancy();
            let held = self.held(&occupancy);
            let steps = self.planner.plan(self.now_ms(), occupancy.calls, &held);
            for step in steps {
                match step {
                    Step::Request { workers } => self.shared.begin_request(workers),
                    Step::GiveBack { key } => self.shared.give_back(key),
                }
            }
            let is_growing = self.planner.requested() > 0;
            if std::mem::replace(&mut self.was_growing, is_growing) != is_growing {
                self.shared.pool.set_growing(is_growing);
            }
            self.end_hopeless_calls(&occupancy, &held);
            self.release_retired();
            self.renew();
            let is_busy =
                occupancy.calls > 0 || self.planner.requested() > 0 || held.iter().any(|held| held.is_retiring);
            if occupancy.calls > 0 {
                self.shared.pool.tend();
            }
            self.shared
                .backlog
                .sleep(if is_busy { TICK } else { IDLE_TICK }, !is_busy);
        }
    }

    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    fn take_responses(&mut self) {
        let now_ms = self.now_ms();
        let mut state = self.shared.state();
        for response in std::mem::take(&mut state.responses) {
            match response {
                Response::Granted { requested } => {
                    self.planner.on_granted(requested);
                    state.refusal = None;
                }
                Response::Refused { requested, error } => {
                    let mut random = [0; 8];
                    // Without random bytes fleets only retry more in step.
                    let _ = fill_random(&mut random);
                    self.planner.on_refused(now_ms, requested, u64::from_le_bytes(random));
                    state.refusal = Some(error);
                }
            }
        }
    }

    /// The leases with workers in the pool. Leases without any are lost, and are given back.
    fn held(&self, occupancy: &Occupancy) -> Vec<HeldLease> {
        let mut state = self.shared.state();
        let mut held = Vec::new();
        for (key, lease) in &mut state.leases {
            let member = occupancy.members.iter().find(|member| member.key == *key);
            let workers = member.map_or(0, |member| member.workers);
            lease.is_retiring |= workers == 0 && member.is_some() && !lease.is_opening;
            if member.is_none() && !lease.is_retiring {
                // Its request has no response yet.
                continue;
            }
            let idle = member.and_then(|member| member.idle).filter(|_| !lease.is_opening);
            held.push(HeldLease {
                key: *key,
                workers: if lease.is_opening {
                    lease.lease.workers()
                } else {
                    workers
                },
                idle_ms: idle.map(|idle| idle.as_millis() as u64),
                is_retiring: lease.is_retiring,
            });
        }
        held
    }

    /// Ends waiting calls if no worker can be leased, now or for too long.
    fn end_hopeless_calls(&mut self, occupancy: &Occupancy, held: &[HeldLease]) {
        let has_workers = held.iter().any(|lease| lease.workers > 0 && !lease.is_retiring);
        if has_workers || !occupancy.has_queue {
            self.without_workers_since = None;
            return;
        }
        let since = *self.without_workers_since.get_or_insert_with(Instant::now);
        let Some(refusal) = self.shared.state().refusal.clone() else {
            return;
        };
        // A larger request may be too large where a smaller one is not.
        let is_final = is_final(refusal.code()) && self.planner.requested() == 0;
        if is_final || since.elapsed() >= self.shared.options.wait {
            let text = format!("the fleet has no worker, and can lease none: {refusal}");
            self.shared.pool.fail_queued(&CallError::new(refusal.code(), text));
        }
    }

    /// Releases leases that are to be given back and have no calls.
    fn release_retired(&self) {
        let retiring: Vec<u64> = {
            let state = self.shared.state();
            let retiring = state
                .leases
                .iter()
                .filter(|(_, held)| held.is_retiring && !held.is_opening);
            retiring.map(|(key, _)| *key).collect()
        };
        for key in retiring {
            self.shared.pool.retire(key);
            if !self.shared.pool.remove(key) {
                continue;
            }
            if let Some(held) = self.shared.state().leases.remove(&key) {
                // Without a thread, the node takes the workers back itself.
                let _ = in_thread("dayfly-fleet-release", move || held.release());
            }
        }
    }

    fn renew(&self) {
        let now = Instant::now();
        let due: Vec<_> = {
            let mut state = self.shared.state();
            let due = state
                .leases
                .iter_mut()
                .filter(|(_, held)| !held.is_retiring && held.renew_at <= now);
            due.map(|(key, held)| {
                // Until the renewal has ended.
                held.renew_at = now + self.shared.options.lease.duration;
                (*key, held.lease.clone())
            })
            .collect()
        };
        for (key, lease) in due {
            self.shared.begin_renewal(key, lease);
        }
    }
}

/// Whether another request will be refused for the same reason. A lease that ended while its workers were being started
/// is no such reason.
fn is_final(code: Code) -> bool {
    code.retry() == Retry::Never && !matches!(code, Code::LeaseEnded | Code::LeaseExpired | Code::NotFound)
}
