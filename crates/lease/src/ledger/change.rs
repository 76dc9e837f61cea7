//! Changes of what a live lease holds: its renewal with other terms, and the loan of cores whose hot worker sleeps.

use dayfly_protocol::api::{LeaseRequest, Mode};
use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::ids::LeaseId;

use super::{Ledger, LedgerError, Reservation, check, fraction_of_hot_worker, places_of, validate};

impl Ledger {
    /// Changes what a lease holds to what `wanted` asks for: its mode, number of workers and memory. `kept` are the
    /// cores that its workers go on using, and `cores` is how many it is to own. Returns the new reservation, whose
    /// cores are the kept ones and then the new ones. GPUs stay.
    ///
    /// # Errors
    /// [`LedgerError`], without a change to the ledger.
    pub fn change(
        &mut self,
        lease: &LeaseId,
        wanted: &LeaseRequest,
        kept: &[u16],
        cores: usize,
    ) -> Result<Reservation, LedgerError> {
        validate(wanted)?;
        let Some(before) = self.held.get(lease).cloned() else {
            return Err(LedgerError::Invalid(format!(
                "lease {lease} holds nothing here; lease again"
            )));
        };
        let is_hot = wanted.mode == Mode::Hot;
        let kept: Vec<u16> = kept
            .iter()
            .copied()
            .filter(|core| before.cores.contains(core))
            .collect();
        let (places, warm_workers) = match is_hot {
            true => (MilliCores::ZERO, 0),
            false => (places_of(wanted), u32::from(wanted.workers)),
        };
        let warm_before = match before.mode {
            Mode::Hot => 0,
            _ => u32::from(before.workers),
        };
        if is_hot {
            if !wanted.cores_per_worker.is_whole() {
                return Err(fraction_of_hot_worker(wanted.cores_per_worker));
            }
            if cores > before.cores.len() {
                let free = (self.free_cores.len() + before.cores.len()) as u64;
                let hint = " or for mode warm, which shares cores";
                check("cores", cores as u64, free, u64::from(self.offer.cores), hint)?;
            }
        } else {
            let total = MilliCores::from(self.offer.workers);
            let free = self.free_places().plus(before.places);
            // What a lease holds already stays, even if the node offers less by now.
            if places > before.places {
                check("places of warm workers", places, free, total, "")?;
            }
            if warm_workers > warm_before {
                self.check_warm_workers(warm_workers, warm_before)?;
            }
        }
        if wanted.memory_bytes > before.memory_bytes {
            let free = self.free_memory_bytes() + before.memory_bytes;
            check(
                "bytes of memory",
                wanted.memory_bytes,
                free,
                self.offer.memory_bytes,
                "",
            )?;
        }
        // All checks have passed.
        self.free_cores
            .extend(before.cores.iter().filter(|core| !kept.contains(core)));
        let mut owned = kept;
        owned.truncate(cores);
        while owned.len() < cores {
            match self.free_cores.pop_last() {
                Some(core) => owned.push(core),
                None => break,
            }
        }
        self.held_places = self.held_places.minus(before.places).plus(places);
        self.warm_workers = (self.warm_workers + warm_workers).saturating_sub(warm_before);
        self.held_memory_bytes = (self.held_memory_bytes + wanted.memory_bytes).saturating_sub(before.memory_bytes);
        let after = Reservation {
            mode: if is_hot { Mode::Hot } else { Mode::Warm },
            workers: wanted.workers,
            places,
            cores: owned,
            memory_bytes: wanted.memory_bytes,
            gpus: before.gpus,
        };
        self.held.insert(*lease, after.clone());
        self.settle();
        Ok(after)
    }

    /// Frees cores of a hot lease for other leases, until [`Ledger::take_back`]. Ignores cores that it does not own.
    pub fn lend(&mut self, lease: &LeaseId, cores: &[u16]) {
        let Some(held) = self.held.get_mut(lease) else { return };
        let (lent, rest): (Vec<u16>, Vec<u16>) = held.cores.iter().partition(|core| cores.contains(core));
        held.cores = rest;
        self.free_cores.extend(lent);
        self.settle();
    }

    /// Gives a hot lease as many cores as `lent` has, the same ones if they are free. Returns them, or `None`, without a
    /// change, if there are not as many free cores.
    pub fn take_back(&mut self, lease: &LeaseId, lent: &[u16]) -> Option<Vec<u16>> {
        if self.free_cores.len() < lent.len() {
            return None;
        }
        let held = self.held.get_mut(lease).filter(|held| held.mode == Mode::Hot)?;
        let mut taken: Vec<u16> = lent
            .iter()
            .copied()
            .filter(|core| self.free_cores.remove(core))
            .collect();
        while taken.len() < lent.len() {
            taken.push(self.free_cores.pop_last()?);
        }
        held.cores.extend(&taken);
        Some(taken)
    }

    /// Number of free cores.
    pub fn free_core_count(&self) -> usize {
        self.free_cores.len()
    }
}
