//! What a node offers to leases: all of its resources, or a part while its owner uses the rest.

use std::collections::BTreeSet;

use dayfly_protocol::api::{Capacity, Mode, NodeResize};
use dayfly_protocol::cores::MilliCores;
use serde::{Deserialize, Serialize};

use super::{Ledger, LedgerError, Reservation, count};

/// Resources that leases may hold together. The cores that are never leased come in addition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Cores of hot workers.
    pub cores: u16,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Most single-core warm workers.
    pub workers: u16,
    /// Number of GPUs.
    pub gpus: u16,
}

impl From<Offer> for Capacity {
    fn from(offer: Offer) -> Self {
        Self {
            cores: offer.cores,
            memory_bytes: offer.memory_bytes,
            workers: offer.workers.into(),
            gpus: offer.gpus,
        }
    }
}

/// By how much leases exceed the offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shortfall {
    /// Cores of hot workers.
    pub cores: u16,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Places of warm workers.
    pub places: MilliCores,
    /// Number of GPUs.
    pub gpus: u16,
}

impl Shortfall {
    /// Whether the leases fit into the offer.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the end of this lease would help.
    pub fn is_helped_by(&self, held: &Reservation) -> bool {
        let helps = |short: u64, held: u64| short > 0 && held > 0;
        helps(self.cores.into(), held.cores.len() as u64)
            || helps(self.memory_bytes, held.memory_bytes)
            || helps(self.places.get(), held.places.get())
            || helps(self.gpus.into(), held.gpus.len() as u64)
    }

    /// What remains after the end of this lease.
    #[must_use]
    pub fn without(self, held: &Reservation) -> Self {
        Self {
            cores: self.cores.saturating_sub(count(&held.cores)),
            memory_bytes: self.memory_bytes.saturating_sub(held.memory_bytes),
            places: self.places.minus(held.places),
            gpus: self.gpus.saturating_sub(count(&held.gpus)),
        }
    }
}

impl Ledger {
    /// What the node offers.
    pub fn offer(&self) -> Offer {
        self.offer
    }

    /// Changes what the node offers, within its resources. Free resources leave at once, cores with the highest numbers
    /// first, and leased ones when their leases end: see [`Ledger::shortfall`].
    ///
    /// # Errors
    /// [`LedgerError::BeyondNode`] if the node has less, without a change.
    pub fn change_offer(&mut self, change: NodeResize) -> Result<(), LedgerError> {
        let most = self.most();
        let cores = change.cores.unwrap_or(self.offer.cores);
        let offer = Offer {
            cores,
            memory_bytes: change.memory_bytes.unwrap_or(self.offer.memory_bytes),
            workers: change.workers.unwrap_or_else(|| match change.cores {
                Some(cores) => self.workers_for(cores),
                None => self.offer.workers,
            }),
            gpus: change.gpus.unwrap_or(self.offer.gpus),
        };
        within("cores", offer.cores.into(), most.cores.into())?;
        within("bytes of memory", offer.memory_bytes, most.memory_bytes)?;
        within("places of warm workers", offer.workers.into(), most.workers.into())?;
        within("GPUs", offer.gpus.into(), most.gpus.into())?;
        self.offer = offer;
        self.settle();
        Ok(())
    }

    /// By how much leases exceed the offer since it became smaller. Nothing is free before they have ended.
    pub fn shortfall(&self) -> Shortfall {
        let hot = self.held.values().filter(|held| held.mode == Mode::Hot);
        let gpus = self.held.values().map(|held| held.gpus.len()).sum::<usize>();
        let cores = hot.map(|held| held.cores.len()).sum::<usize>();
        Shortfall {
            cores: (cores as u64).saturating_sub(self.offer.cores.into()) as u16,
            memory_bytes: self.held_memory_bytes.saturating_sub(self.offer.memory_bytes),
            places: self.held_places.minus(self.offer.workers.into()),
            gpus: (gpus as u64).saturating_sub(self.offer.gpus.into()) as u16,
        }
    }

    /// What the node could offer.
    pub fn full_capacity(&self) -> Capacity {
        self.most().into()
    }

    /// All resources of the node.
    fn most(&self) -> Offer {
        let all: BTreeSet<_> = self.resources.cores.iter().collect();
        Offer {
            cores: count(all).saturating_sub(count(&self.kept)),
            memory_bytes: self.resources.memory_bytes,
            workers: self.resources.workers,
            gpus: count(&self.resources.gpus),
        }
    }

    /// Places of warm workers that belong to so many cores: in proportion, the kept ones included.
    fn workers_for(&self, cores: u16) -> u16 {
        let (most, kept) = (self.most(), u64::from(count(&self.kept)));
        let all = (u64::from(most.cores) + kept).max(1);
        let places = u64::from(most.workers) * (u64::from(cores) + kept) / all;
        places.min(most.workers.into()) as u16
    }

    /// Moves free cores and GPUs so that no more are free or leased than the node offers.
    pub(super) fn settle(&mut self) {
        let leased: usize = self.held.values().map(|held| held.cores.len()).sum();
        let wanted = usize::from(self.offer.cores).saturating_sub(leased);
        balance(&mut self.free_cores, &mut self.withdrawn_cores, wanted);
        let leased: usize = self.held.values().map(|held| held.gpus.len()).sum();
        let wanted = usize::from(self.offer.gpus).saturating_sub(leased);
        balance(&mut self.free_gpus, &mut self.withdrawn_gpus, wanted);
    }
}

/// Makes `wanted` numbers free, as far as there are so many. The highest ones are withdrawn first.
fn balance(free: &mut BTreeSet<u16>, withdrawn: &mut BTreeSet<u16>, wanted: usize) {
    while free.len() > wanted
        && let Some(number) = free.pop_last()
    {
        withdrawn.insert(number);
    }
    while free.len() < wanted
        && let Some(number) = withdrawn.pop_first()
    {
        free.insert(number);
    }
}

fn within(what: &'static str, asked: u64, total: u64) -> Result<(), LedgerError> {
    match asked > total {
        true => Err(LedgerError::BeyondNode { what, asked, total }),
        false => Ok(()),
    }
}

#[cfg(test)]
#[path = "offer_tests.rs"]
mod tests;
