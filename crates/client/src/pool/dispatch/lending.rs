//! Workers that are delegated for a while.

use std::ops::Range;

use super::*;
use crate::Delegation;

/// The error when delegation leaves no worker for a call.
pub(super) fn delegated(worker: Option<WorkerIndex>) -> CallError {
    let text = match worker {
        Some(worker) => format!("worker {} is delegated; take it back first", worker.0),
        None => "every worker is delegated; take some back, or keep one".into(),
    };
    CallError::new(Code::WorkerBusy, text)
}

impl Dispatch {
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    pub fn note_lent(&mut self, delegation: Delegation, workers: Range<u16>) {
        self.lent.push((delegation, workers));
    }

    pub fn forget_lent(&mut self, delegation: &Delegation) -> Option<Range<u16>> {
        let found = self.lent.iter().position(|(lent, _)| lent.is_same(delegation))?;
        Some(self.lent.swap_remove(found).1)
    }

    /// Sets `count` adjacent workers aside, from the end of the list. They get no more calls. Returns their indices.
    pub fn set_aside(&mut self, count: u16) -> Result<Range<u16>, Error> {
        let is_here = |worker: &Worker| !worker.lent && worker.gone.is_none();
        let count = usize::from(count);
        let starts = (0..=self.workers.len().saturating_sub(count)).rev();
        let found = (count > 0 && count <= self.workers.len()).then_some(starts);
        let start = found
            .into_iter()
            .flatten()
            .find(|start| self.workers[*start..start + count].iter().all(is_here));
        let Some(start) = start else {
            let here = self.workers.iter().filter(|worker| is_here(worker)).count();
            let text = format!(
                "{count} workers in a row cannot be delegated: {here} of {} are here; ask for fewer, or take some back",
                self.workers.len()
            );
            return Err(Error::new(Code::InvalidRequest, text));
        };
        for worker in &mut self.workers[start..start + count] {
            worker.lent = true;
        }
        // Calls for one of these workers only must end now.
        self.feed();
        Ok(start as u16..(start + count) as u16)
    }

    /// Whether these workers have no outstanding calls.
    pub fn is_idle(&self, workers: &Range<u16>) -> bool {
        let mut range = workers.clone();
        range.all(|index| {
            let worker = &self.workers[usize::from(index)];
            worker.in_flight.is_empty() && worker.parked.is_empty() && worker.broken.is_none()
        })
    }

    /// Closes the channels of workers that were set aside.
    pub fn let_go(&mut self, workers: &Range<u16>) {
        for index in workers.clone() {
            let worker = &mut self.workers[usize::from(index)];
            worker.channel = None;
            worker.loaded.clear();
            worker.rooms.clear();
        }
    }

    /// Takes workers back that were set aside. Each gets a channel through a repair.
    pub fn take_up(&mut self, workers: &Range<u16>) {
        for index in workers.clone() {
            let index = usize::from(index);
            let Some(worker) = self.workers.get_mut(index).filter(|worker| worker.lent) else {
                continue;
            };
            worker.lent = false;
            if worker.channel.is_some() || worker.broken.is_some() || worker.gone.is_some() {
                continue;
            }
            let opening = Arc::<Opening>::default();
            worker.broken = Some(Broken {
                error: LinkError::PeerGone,
                in_flight: VecDeque::new(),
                parked: VecDeque::new(),
                opening: Arc::clone(&opening),
            });
            self.repairs.push(Repair {
                index,
                channel: None,
                lease: self.lease.clone(),
                options: self.options.channel,
                opening,
            });
        }
        self.feed();
    }
}
