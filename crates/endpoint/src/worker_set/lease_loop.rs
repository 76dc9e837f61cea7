//! Leases workers for a worker set. This `impl` runs on a thread of its own, because requests for leases block.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_client::{Error, LeaseOptions, Mode, Sandbox};
use dayfly_protocol::api::MeetingPlace;
use dayfly_protocol::dispatch::{Ended, FromDispatcher};
use dayfly_protocol::error::Code;
use dayfly_protocol::ids::NodeId;

use super::{Task, WorkerSet};
use crate::lease_driver::LeaseDriver;
use crate::lease_driver::gang::GangDriver;
use crate::lease_driver::single::SingleDriver;

/// Pause between attempts to lease without room.
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// Why there are no workers.
struct Refusal {
    error: Error,
    /// Whether other worker sets hold the room.
    is_full: bool,
}

impl Refusal {
    /// A refusal that no worker set could resolve by giving up room.
    fn without_room(text: &str) -> Self {
        Self {
            error: Error::new(Code::NoCapacity, text),
            is_full: false,
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self {
            is_full: error.code() == Code::NoCapacity,
            error,
        }
    }
}

impl WorkerSet {
    /// Leases until there are workers, or no task waits any more.
    pub(super) fn lease(self: Arc<Self>, needed: Duration) {
        let (mut reported, mut part, mut waiting_since) = (None, 1, None);
        loop {
            let wanted = self.workers_to_lease(&self.state()).map(|wanted| match self.key.ranks {
                0 => (wanted / part).max(1),
                ranks => ranks,
            });
            // Room that no worker set holds cannot be given up.
            let is_held = self.shared.fair_share.has_leases();
            let opened = match wanted {
                Some(wanted) => self.open(wanted, needed),
                None => Err(Refusal::without_room("other worker sets get workers first")),
            };
            match opened {
                Ok(driver) => {
                    let workers = driver.workers();
                    let mut state = self.state();
                    state.leasing = false;
                    self.record_wait(&mut state, None);
                    if state.closed {
                        return;
                    }
                    self.shared.workers_changed(workers.into(), None);
                    state.drivers.push(Arc::clone(&driver));
                    self.shared.fair_share.add_lease();
                    self.assign_tasks(&mut state);
                    drop(state);
                    driver.run(&self);
                    self.shared.fair_share.remove_lease();
                    return;
                }
                Err(Refusal { error, is_full }) => {
                    let code = error.code();
                    let is_less_room = matches!(code, Code::NoCapacity | Code::QuotaExceeded | Code::TooLarge);
                    if is_less_room && self.key.ranks == 0 && wanted.is_some_and(|wanted| wanted > 1) {
                        part *= 2;
                        continue;
                    }
                    part = 1;
                    waiting_since = (is_full && is_held).then(|| waiting_since.unwrap_or_else(Instant::now));
                    self.record_wait(&mut self.state(), waiting_since);
                    if code == Code::EnvironmentBuilding {
                        self.report_building(&error.0.message);
                        if self.pause_or_stop(&error) {
                            return;
                        }
                        continue;
                    }
                    let text = error.to_string();
                    // Nodes on demand: their manager reports why there are none.
                    let is_awaited = code == Code::NoCapacity && self.shared.options.elastic_nodes.is_some();
                    if !is_awaited && reported.as_ref() != Some(&text) {
                        tracing::warn!(tenant = %self.key.tenant, error = text, "no workers");
                        self.shared.workers_changed(0, Some(text.clone()));
                        reported = Some(text);
                    }
                    if self.pause_or_stop(&error) {
                        return;
                    }
                }
            }
        }
    }

    /// Reports that waiting tasks wait for their environment.
    fn report_building(&self, how: &str) {
        let attempts = self.state().tasks.waiting_attempts();
        self.shared.send(FromDispatcher::Building {
            attempts,
            how: how.into(),
        });
        // The endpoint's administrators see it too, until there are workers.
        self.shared.workers_changed(0, Some(how.into()));
    }

    fn open(&self, workers: u16, needed: Duration) -> Result<Arc<dyn LeaseDriver>, Refusal> {
        let Some(elastic_nodes) = &self.shared.options.elastic_nodes else {
            let opened = match self.key.ranks {
                0 => self.open_at(workers, None),
                _ => self.open_gang(workers, Vec::new()),
            };
            return opened.map_err(Refusal::from);
        };
        let mut refusal = Refusal::without_room("no node remains for as long as the task may take; one was requested");
        if self.key.ranks > 0 {
            let among = elastic_nodes.nodes_lasting(needed);
            return match among.is_empty() {
                true => Err(refusal),
                // The site as a whole has enough room; that was checked before.
                false => self.open_gang(workers, among).map_err(|error| match error.code() {
                    Code::TooLarge => {
                        Refusal::without_room("the present nodes have no room for all ranks; more were requested")
                    }
                    _ => error.into(),
                }),
            };
        }
        for node in elastic_nodes.nodes_lasting(needed) {
            match self.open_at(workers, Some(node)) {
                Err(error) if error.code() == Code::NoCapacity => refusal = error.into(),
                // The node has just left. With an image, the missing thing may be the image.
                Err(error) if error.code() == Code::NotFound && self.key.image.is_none() => {}
                done => return done.map_err(Refusal::from),
            }
        }
        Err(refusal)
    }

    fn open_at(&self, workers: u16, node: Option<NodeId>) -> Result<Arc<dyn LeaseDriver>, Error> {
        let options = LeaseOptions {
            node,
            ..self.lease_options(workers)
        };
        Ok(Arc::new(SingleDriver::open(self.client.lease(options)?)?))
    }

    fn open_gang(&self, ranks: u16, among: Vec<NodeId>) -> Result<Arc<dyn LeaseDriver>, Error> {
        let leases = self
            .client
            .gang_among(self.lease_options(ranks), self.key.placement, among)?;
        let place: MeetingPlace = self.client.get("/v1/rendezvous")?;
        Ok(Arc::new(GangDriver::open(leases, place)?))
    }

    fn lease_options(&self, workers: u16) -> LeaseOptions {
        LeaseOptions {
            mode: Mode::Warm,
            runtime: self.key.runtime.clone(),
            image: self.key.image.clone(),
            // An image implies a container.
            sandbox: (self.key.guest && self.key.image.is_none()).then_some(Sandbox::Isolated),
            cores_per_worker: self.key.cores,
            memory_bytes: self.key.memory_bytes.saturating_mul(workers.into()),
            gpus_per_worker: self.key.gpus,
            output_by_call: true,
            loans: self.key.loans,
            ..LeaseOptions::native(workers)
        }
    }

    /// Waits before the next attempt. Returns true if there should be none: no task waits, or waiting is useless.
    fn pause_or_stop(self: &Arc<Self>, error: &Error) -> bool {
        let mut state = self.state();
        if error.retry() == dayfly_client::Retry::Never {
            // These tasks can never get what they request.
            let never = |task: Task| Ended::unexecuted(task.assigned.attempt, Some(error.0.clone()));
            let ended = state.tasks.drain_waiting().into_iter().map(never).collect();
            self.shared.send(FromDispatcher::Ended(ended));
        } else {
            let until = Instant::now() + RETRY_PAUSE;
            while !state.closed {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                state = match self.closing.wait_timeout(state, left) {
                    Ok((state, _)) => state,
                    Err(poisoned) => poisoned.into_inner().0,
                };
            }
        }
        let done = state.closed || state.tasks.waiting() == 0;
        if done {
            state.leasing = false;
            self.record_wait(&mut state, None);
            self.update_activity(&mut state);
        }
        done
    }
}
