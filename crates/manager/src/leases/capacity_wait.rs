//! Requests that wait until a lease may be granted.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dayfly_protocol::api::{Event, LeaseRequest, MAX_WAIT_MS};
use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::LeaseId;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

use crate::events::{Events, SiteEvent};

/// Period in which a request that waits for an image or an environment tries again.
const PREPARATION_PERIOD: Duration = Duration::from_millis(500);

/// Thousandths of a core that all waiting requests ask for.
#[derive(Clone, Default)]
pub struct WaitingWorkers(Arc<AtomicU64>);

impl WaitingWorkers {
    /// The current number of workers with one core, rounded up.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed).div_ceil(MilliCores::ONE.get())
    }

    /// Counts these cores until the guard is dropped.
    fn add(&self, cores: MilliCores) -> WaitingGuard {
        self.0.fetch_add(cores.get(), Ordering::Relaxed);
        WaitingGuard(self.clone(), cores.get())
    }
}

struct WaitingGuard(WaitingWorkers, u64);

impl Drop for WaitingGuard {
    fn drop(&mut self) {
        self.0.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

/// The wait of one request for free resources.
pub struct CapacityWait {
    /// Subscribed before each attempt, so that no event after it is missed.
    events: Receiver<SiteEvent>,
    until: Instant,
    has_image: bool,
    /// Leases that this request took and gave back. Their end frees nothing that the request did not have.
    own: HashSet<LeaseId>,
    wanted: MilliCores,
    waiting: WaitingWorkers,
}

impl CapacityWait {
    /// Begins to wait for a request.
    pub fn new(request: &LeaseRequest, events: &Events, waiting: &WaitingWorkers) -> Self {
        Self {
            events: events.subscribe(),
            until: Instant::now() + Duration::from_millis(request.wait_ms.min(MAX_WAIT_MS)),
            has_image: request.image.is_some(),
            own: HashSet::new(),
            wanted: request.cores_per_worker * u32::from(request.workers),
            waiting: waiting.clone(),
        }
    }

    /// Ignores the end of these leases, which the request gives back.
    pub fn ignore(&mut self, leases: impl IntoIterator<Item = LeaseId>) {
        self.own.extend(leases);
    }

    /// After an attempt with this failure, waits until another one may succeed. Returns false if no attempt should
    /// follow: the failure is of another kind, or the request's time is over.
    pub async fn may_retry(&mut self, failure: &Failure) -> bool {
        let may_pass = matches!(failure.code, Code::NoCapacity | Code::EnvironmentBuilding);
        if !may_pass || Instant::now() >= self.until {
            return false;
        }
        let _guard = self.waiting.add(self.wanted);
        let freed = async {
            loop {
                match self.events.recv().await.map(|published| published.event) {
                    Ok(Event::NodeUp { .. } | Event::NodeResized { .. }) | Err(RecvError::Lagged(_)) => return true,
                    Ok(Event::Lease { lease, state, .. }) if !state.is_live() && !self.own.remove(&lease) => {
                        return true;
                    }
                    Ok(_) => {}
                    Err(RecvError::Closed) => return false,
                }
            }
        };
        // No event reports that an image is unpacked or an environment is built.
        let soon = Instant::now() + PREPARATION_PERIOD;
        let limit = if self.has_image || failure.code == Code::EnvironmentBuilding {
            soon.min(self.until)
        } else {
            self.until
        };
        match tokio::time::timeout_at(limit, freed).await {
            Ok(may_retry) => may_retry,
            Err(_) => limit < self.until,
        }
    }
}
