//! What one node has, and which lease holds it.
//!
//! Hot workers own cores, by number. Warm workers own none: they share what is left, of which at least
//! [`Resources::kept_cores`] cores are never given away, so that clients and daemons have somewhere to run. A warm worker of
//! several cores takes the places of as many single ones.

use std::collections::{BTreeMap, BTreeSet};

use dayfly_protocol::api::{Capacity, LeaseRequest, Mode};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::LeaseId;

/// Most workers of one lease.
pub const MAX_WORKERS: u16 = 1_024;
/// No lease names more host paths.
pub const MAX_FILES: usize = 64;
/// No host path is longer.
const MAX_PATH_BYTES: usize = 4096;
/// A worker gets no less when the request does not say: an empty Python interpreter with NumPy loaded takes 30 MiB.
pub const LEAST_WORKER_BYTES: u64 = 32 << 20;

/// What a node offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resources {
    /// Core numbers as the kernel counts them.
    pub cores: Vec<u16>,
    /// How many of them stay shared, whatever is asked; the lowest-numbered ones.
    pub kept_cores: u16,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Warm workers of one core at most.
    pub workers: u16,
    /// GPUs, as `CUDA_VISIBLE_DEVICES` has them.
    pub gpus: Vec<String>,
}

impl Resources {
    /// What a machine with these cores and this memory offers by default: all but one core, and 16 warm workers a core
    /// (sleeping workers cost memory, not time).
    pub fn of_machine(cores: Vec<u16>, memory_bytes: u64) -> Self {
        let workers = (cores.len() as u64 * 16).min(u64::from(MAX_WORKERS)) as u16;
        Self {
            cores,
            kept_cores: 1,
            memory_bytes,
            workers,
            gpus: Vec::new(),
        }
    }
}

/// What a lease holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    /// Never [`Mode::Auto`].
    pub mode: Mode,
    /// Workers.
    pub workers: u16,
    /// Places of warm workers; 0 when hot.
    pub places: u16,
    /// Cores of its own: `cores_per_worker` for each worker in turn; empty when warm.
    pub cores: Vec<u16>,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// GPUs: `gpus_per_worker` for each worker in turn.
    pub gpus: Vec<String>,
}

/// Why a lease does not fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// More than there is when nobody else is here.
    #[error("the lease asks for {asked} {what} and the node has {total} in all; ask for less{hint}")]
    TooLarge {
        /// Of what.
        what: &'static str,
        /// How much was asked.
        asked: u64,
        /// How much the node has.
        total: u64,
        /// What else may help.
        hint: &'static str,
    },
    /// More than is free now.
    #[error(
        "the lease asks for {asked} {what} of which {free} of {total} are free; try later, elsewhere or ask for less"
    )]
    NoCapacity {
        /// Of what.
        what: &'static str,
        /// How much was asked.
        asked: u64,
        /// How much is free.
        free: u64,
        /// How much the node has.
        total: u64,
    },
    /// Contradicts itself.
    #[error("{0}")]
    Invalid(String),
}

impl LedgerError {
    /// The code under which a peer hears of it.
    pub fn code(&self) -> Code {
        match self {
            Self::TooLarge { .. } => Code::TooLarge,
            Self::NoCapacity { .. } => Code::NoCapacity,
            Self::Invalid(_) => Code::InvalidRequest,
        }
    }
}

impl From<LedgerError> for Failure {
    fn from(error: LedgerError) -> Self {
        Failure::new(error.code(), error.to_string())
    }
}

/// Whether the numbers of a request make sense at all, wherever it may go.
pub fn validate(request: &LeaseRequest) -> Result<(), LedgerError> {
    let invalid = |text: &str| Err(LedgerError::Invalid(text.to_string()));
    if request.workers == 0 {
        return invalid("a lease of 0 workers; ask for 1 to 1024");
    }
    if request.workers > MAX_WORKERS {
        return Err(LedgerError::TooLarge {
            what: "workers",
            asked: request.workers.into(),
            total: MAX_WORKERS.into(),
            hint: " or take several leases",
        });
    }
    if request.cores_per_worker == 0 {
        return invalid("0 cores per worker; ask for at least 1, or for mode warm, which shares cores");
    }
    if request.duration_ms == 0 {
        return invalid("a lease of 0 ms; ask for at least 1 ms");
    }
    if request.files.len() > MAX_FILES {
        return Err(LedgerError::TooLarge {
            what: "host paths",
            asked: request.files.len() as u64,
            total: MAX_FILES as u64,
            hint: "; name a directory above them",
        });
    }
    let longest = request.files.iter().map(|file| file.path.len()).max();
    if longest.is_some_and(|length| length > MAX_PATH_BYTES) {
        return invalid("a host path of more than 4096 bytes");
    }
    Ok(())
}

/// One node's books. Never over-committed: every amount held is an amount that was free.
#[derive(Debug, Clone)]
pub struct Ledger {
    resources: Resources,
    free_cores: BTreeSet<u16>,
    kept: BTreeSet<u16>,
    free_memory_bytes: u64,
    free_workers: u16,
    free_gpus: BTreeSet<u16>,
    held: BTreeMap<LeaseId, Reservation>,
}

impl Ledger {
    /// Books of a node with nothing leased.
    pub fn new(resources: Resources) -> Self {
        let all: BTreeSet<u16> = resources.cores.iter().copied().collect();
        let kept: BTreeSet<u16> = all.iter().copied().take(resources.kept_cores.max(1).into()).collect();
        Self {
            free_cores: all.difference(&kept).copied().collect(),
            kept,
            free_memory_bytes: resources.memory_bytes,
            free_workers: resources.workers,
            free_gpus: (0..count(&resources.gpus)).collect(),
            held: BTreeMap::new(),
            resources,
        }
    }

    /// What leases could take from an empty node.
    pub fn capacity(&self) -> Capacity {
        Capacity {
            cores: self.leasable_cores(),
            memory_bytes: self.resources.memory_bytes,
            workers: self.resources.workers,
            gpus: count(&self.resources.gpus),
        }
    }

    /// What leases could take now.
    pub fn free(&self) -> Capacity {
        Capacity {
            cores: self.free_cores.len() as u16,
            memory_bytes: self.free_memory_bytes,
            workers: self.free_workers,
            gpus: count(&self.free_gpus),
        }
    }

    /// Cores that warm workers, executors' parents and daemons may use: all that no hot lease owns.
    pub fn shared_cores(&self) -> Vec<u16> {
        self.kept.union(&self.free_cores).copied().collect()
    }

    /// What a lease holds.
    pub fn held(&self, lease: &LeaseId) -> Option<&Reservation> {
        self.held.get(lease)
    }

    /// Leases that hold something.
    pub fn leases(&self) -> usize {
        self.held.len()
    }

    /// Takes what the request asks for, all of it or nothing.
    pub fn reserve(&mut self, lease: LeaseId, request: &LeaseRequest) -> Result<&Reservation, LedgerError> {
        validate(request)?;
        if self.held.contains_key(&lease) {
            return Err(LedgerError::Invalid(format!(
                "lease {lease} is held already; draw a new id"
            )));
        }
        let mode = match request.mode {
            Mode::Auto if self.check_cores(request).is_ok() && self.memory_for(request, Mode::Hot).is_ok() => Mode::Hot,
            Mode::Auto => Mode::Warm,
            asked => asked,
        };
        if mode == Mode::Hot {
            self.check_cores(request)?;
        } else {
            check(
                "places of warm workers",
                cores_of(request),
                self.free_workers.into(),
                self.resources.workers.into(),
                "",
            )?;
        }
        check(
            "GPUs",
            gpus_of(request),
            self.free_gpus.len() as u64,
            self.resources.gpus.len() as u64,
            "",
        )?;
        let memory_bytes = self.memory_for(request, mode)?;
        // Everything fits: from here on nothing fails, so that nothing is half taken.
        let mut cores = Vec::new();
        let mut places = 0;
        if mode == Mode::Hot {
            // The highest numbers first: interrupts and daemons tend to sit on the low ones.
            for _ in 0..cores_of(request) {
                cores.extend(self.free_cores.pop_last());
            }
        } else {
            places = cores_of(request) as u16;
            self.free_workers -= places;
        }
        let taken = (0..gpus_of(request)).filter_map(|_| self.free_gpus.pop_first());
        let gpus = taken
            .filter_map(|gpu| self.resources.gpus.get(usize::from(gpu)).cloned())
            .collect();
        self.free_memory_bytes -= memory_bytes;
        let reservation = Reservation {
            mode,
            workers: request.workers,
            places,
            cores,
            memory_bytes,
            gpus,
        };
        Ok(self.held.entry(lease).or_insert(reservation))
    }

    /// Gives back everything that a lease holds; none when it holds nothing (any more).
    pub fn release(&mut self, lease: &LeaseId) -> Option<Reservation> {
        let reservation = self.held.remove(lease)?;
        self.free_cores.extend(&reservation.cores);
        self.free_memory_bytes += reservation.memory_bytes;
        self.free_workers += reservation.places;
        let named = |gpu: &String| self.resources.gpus.iter().position(|one| one == gpu);
        let given = reservation.gpus.iter().filter_map(named);
        self.free_gpus.extend(given.filter_map(|at| u16::try_from(at).ok()));
        Some(reservation)
    }

    fn leasable_cores(&self) -> u16 {
        (self.resources.cores.iter().collect::<BTreeSet<_>>().len() - self.kept.len()) as u16
    }

    fn check_cores(&self, request: &LeaseRequest) -> Result<(), LedgerError> {
        let total = self.leasable_cores().into();
        check(
            "cores",
            cores_of(request),
            self.free_cores.len() as u64,
            total,
            " or for mode warm, which shares cores",
        )
    }

    fn memory_for(&self, request: &LeaseRequest, mode: Mode) -> Result<u64, LedgerError> {
        let total = self.resources.memory_bytes;
        if request.memory_bytes > 0 {
            check(
                "bytes of memory",
                request.memory_bytes,
                self.free_memory_bytes,
                total,
                "",
            )?;
            return Ok(request.memory_bytes);
        }
        let least = LEAST_WORKER_BYTES * u64::from(request.workers);
        check("bytes of memory", least, self.free_memory_bytes, total, "")?;
        let all_cores = self.resources.cores.len() as u64;
        let share = share(request, mode, total, all_cores, self.resources.workers.into());
        Ok(share.clamp(least, self.free_memory_bytes))
    }
}

/// What a lease that names no memory would get on a node with this capacity, of which this is free.
pub fn share_of(request: &LeaseRequest, capacity: &Capacity, free: &Capacity) -> u64 {
    let hot = request.mode != Mode::Warm && cores_of(request) <= u64::from(free.cores);
    let mode = if hot { Mode::Hot } else { Mode::Warm };
    // One more than can be leased: the core that is kept.
    let all_cores = u64::from(capacity.cores) + 1;
    let share = share(request, mode, capacity.memory_bytes, all_cores, capacity.workers.into());
    share
        .min(free.memory_bytes)
        .max(LEAST_WORKER_BYTES * u64::from(request.workers))
}

/// A lease's part of the memory: its part of all cores (the kept ones too, for theirs is what warm leases find when
/// every other core is hot), or of the warm workers.
fn share(request: &LeaseRequest, mode: Mode, memory_bytes: u64, all_cores: u64, all_workers: u64) -> u64 {
    let (asked, all) = match mode {
        Mode::Hot => (cores_of(request), all_cores),
        _ => (cores_of(request), all_workers),
    };
    (u128::from(memory_bytes) * u128::from(asked) / u128::from(all.max(1))).min(u128::from(memory_bytes)) as u64
}

fn count<T>(all: impl IntoIterator<Item = T>) -> u16 {
    u16::try_from(all.into_iter().count()).unwrap_or(u16::MAX)
}

/// GPUs of all workers together.
pub(crate) fn gpus_of(request: &LeaseRequest) -> u64 {
    u64::from(request.workers) * u64::from(request.gpus_per_worker)
}

/// Cores of all workers together.
pub(crate) fn cores_of(request: &LeaseRequest) -> u64 {
    u64::from(request.workers) * u64::from(request.cores_per_worker)
}

fn check(what: &'static str, asked: u64, free: u64, total: u64, hint: &'static str) -> Result<(), LedgerError> {
    if asked > total {
        return Err(LedgerError::TooLarge {
            what,
            asked,
            total,
            hint,
        });
    }
    if asked > free {
        return Err(LedgerError::NoCapacity {
            what,
            asked,
            free,
            total,
        });
    }
    Ok(())
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
