//! Actions of the policy, applied to the groups of workers.

use dayfly_harvest::{Action, Event, Resource};
use dayfly_protocol::ids::{Incarnation, WorkerIndex};
use dayfly_sandbox::cgroup::GroupError;

use super::{Driver, WorkerKey};
use crate::harvest::worker::Others;

impl Driver {
    /// Applies an action. Returns the event of a refused one.
    pub(super) fn apply(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::Limit {
                call,
                resource: Resource::Cpu,
                units,
            } => {
                let key = *self.calls.get(&call)?;
                let raising = self.workers.get(&key).is_some_and(|worker| units > worker.limit());
                let error = self.limit_cpu(key, units).err()?;
                tracing::warn!(lease = %key.lease, %error, raising, "a worker's limit could not be changed");
                Some(Event::Refused {
                    call,
                    resource: Resource::Cpu,
                    raising,
                })
            }
            Action::EndCall { call } => {
                let key = *self.calls.get(&call)?;
                if let Some(worker) = self.workers.get(&key) {
                    worker.kill_borrower(key);
                }
                None
            }
            Action::Limit {
                call,
                resource: Resource::Memory,
                units,
            } => self.limit_memory(call, units),
            Action::Reclaim { call, by_us, .. } => self.reclaim_memory(call, by_us),
        }
    }

    /// Changes a worker's limit of processor time, which is never below what it owns.
    pub(super) fn limit_cpu(&mut self, key: WorkerKey, milli_cores: u64) -> Result<(), GroupError> {
        let others = self.others_of(key);
        match self.workers.get_mut(&key) {
            Some(worker) if milli_cores > 0 || worker.has_loans() => worker.limit_cpu(milli_cores, &others),
            _ => Ok(()),
        }
    }

    /// The other measured workers of a lease.
    pub(super) fn others_of(&self, key: WorkerKey) -> Others {
        let first = WorkerKey {
            worker: WorkerIndex(0),
            incarnation: Incarnation(0),
            ..key
        };
        let same = self
            .workers
            .range(first..)
            .take_while(|(other, _)| other.lease == key.lease);
        let others = same.filter(|(other, _)| **other != key);
        others.fold(Others::default(), |sum, (_, worker)| Others {
            borrowed: sum.borrowed.saturating_add(worker.borrowed()),
            light: sum.light + u64::from(worker.is_light()),
            memory: sum.memory.saturating_add(worker.borrowed_memory()),
        })
    }
}
