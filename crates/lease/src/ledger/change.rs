//! Changes of what a live lease holds: its renewal with other terms, and the loan of cores whose hot worker sleeps.

use dayfly_protocol::api::{LeaseChange, LeaseRequest, Mode};
use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::ids::LeaseId;

use super::{Ledger, LedgerError, Reservation, check, fraction_of_hot_worker, places_of, validate};

/// Checks the parts of a change that do not depend on the lease.
///
/// # Errors
/// [`LedgerError::Invalid`].
pub fn validate_change(change: &LeaseChange) -> Result<(), LedgerError> {
    let text = match (change.workers, change.min_workers) {
        (Some(0), _) => "a lease of 0 workers; ask for 1 to 1024, or release it",
        (None, Some(_)) => "a least number of workers without a number of workers; ask for both",
        (Some(workers), Some(least)) if least == 0 || least > workers => {
            "the least number of workers is 0 or above the number of workers; ask for 1 to that number"
        }
        _ => return Ok(()),
    };
    Err(LedgerError::Invalid(text.to_owned()))
}

/// What a lease is to hold from now on.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// Its terms: mode, number of workers and memory. GPUs stay.
    pub request: &'a LeaseRequest,
    /// The cores that its workers go on using. The ledger ignores those that the lease does not own.
    pub kept_cores: &'a [u16],
    /// How many cores it is to own.
    pub cores: usize,
}

impl Wanted<'_> {
    fn is_hot(&self) -> bool {
        self.request.mode == Mode::Hot
    }

    fn places(&self) -> MilliCores {
        match self.is_hot() {
            true => MilliCores::ZERO,
            false => places_of(self.request),
        }
    }

    fn warm_workers(&self) -> u32 {
        match self.is_hot() {
            true => 0,
            false => self.request.workers.into(),
        }
    }
}

fn warm_workers_of(reservation: &Reservation) -> u32 {
    match reservation.mode {
        Mode::Hot => 0,
        _ => reservation.workers.into(),
    }
}

impl Ledger {
    /// Checks whether there is room for a change. What a lease holds already stays, even if the node offers less by now.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn check_change(&self, lease: &LeaseId, wanted: &Wanted<'_>) -> Result<(), LedgerError> {
        let request = wanted.request;
        validate(request)?;
        let Some(before) = self.held.get(lease) else {
            return Err(LedgerError::Invalid(format!(
                "lease {lease} holds nothing here; lease again"
            )));
        };
        if wanted.is_hot() {
            if !request.cores_per_worker.is_whole() {
                return Err(fraction_of_hot_worker(request.cores_per_worker));
            }
            if wanted.cores > before.cores.len() {
                let free = (self.free_cores.len() + before.cores.len()) as u64;
                let hint = " or for mode warm, which shares cores";
                check("cores", wanted.cores as u64, free, u64::from(self.offer.cores), hint)?;
            }
        } else {
            let total = MilliCores::from(self.offer.workers);
            let free = self.free_places().plus(before.places);
            if wanted.places() > before.places {
                check("places of warm workers", wanted.places(), free, total, "")?;
            }
            if wanted.warm_workers() > warm_workers_of(before) {
                self.check_warm_workers(wanted.warm_workers(), warm_workers_of(before))?;
            }
        }
        if request.memory_bytes > before.memory_bytes {
            let free = self.free_memory_bytes().saturating_add(before.memory_bytes);
            let total = self.offer.memory_bytes;
            check("bytes of memory", request.memory_bytes, free, total, "")?;
        }
        Ok(())
    }

    /// Changes what a lease holds. Returns the new reservation, whose cores are the kept ones and then the new ones.
    ///
    /// # Errors
    /// [`LedgerError`], without a change to the ledger.
    pub fn change(&mut self, lease: &LeaseId, wanted: &Wanted<'_>) -> Result<Reservation, LedgerError> {
        self.check_change(lease, wanted)?;
        let Some(before) = self.held.get(lease).cloned() else {
            return Err(LedgerError::Invalid(format!("lease {lease} holds nothing here")));
        };
        let is_kept = |core: &&u16| before.cores.contains(core);
        let mut owned: Vec<u16> = wanted.kept_cores.iter().filter(is_kept).copied().collect();
        owned.truncate(wanted.cores);
        let given = before.cores.iter().filter(|core| !owned.contains(core));
        self.free_cores.extend(given);
        while owned.len() < wanted.cores {
            match self.free_cores.pop_last() {
                Some(core) => owned.push(core),
                None => break,
            }
        }
        self.held_places = self.held_places.minus(before.places).plus(wanted.places());
        self.warm_workers = (self.warm_workers + wanted.warm_workers()).saturating_sub(warm_workers_of(&before));
        let memory_bytes = wanted.request.memory_bytes;
        self.held_memory_bytes = (self.held_memory_bytes + memory_bytes).saturating_sub(before.memory_bytes);
        let after = Reservation {
            mode: if wanted.is_hot() { Mode::Hot } else { Mode::Warm },
            workers: wanted.request.workers,
            places: wanted.places(),
            cores: owned,
            memory_bytes,
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
