//! The resources of one node, and the leases that hold them.
//!
//! Hot workers own numbered cores. Warm workers own none: they share the remaining cores. At least
//! [`Resources::kept_cores`] cores are never leased, so that clients and daemons always have cores to run on. A warm
//! worker of several cores takes as many places as single-core workers would.

use std::collections::{BTreeMap, BTreeSet};

use dayfly_protocol::api::{Capacity, LeaseRequest, Mode};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::LeaseId;

/// Most workers of one lease.
pub const MAX_WORKERS: u16 = 1_024;
/// Most host paths of a lease.
pub const MAX_FILES: usize = 64;
/// Longest host path, in bytes.
const MAX_PATH_BYTES: usize = 4096;
/// Least default memory of a worker: an empty Python interpreter with NumPy takes 30 MiB.
pub const MIN_WORKER_BYTES: u64 = 32 << 20;

/// Resources that a node offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resources {
    /// Core numbers of the kernel.
    pub cores: Vec<u16>,
    /// Number of cores that always stay shared; those with the lowest numbers.
    pub kept_cores: u16,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Most single-core warm workers.
    pub workers: u16,
    /// GPUs in the syntax of `CUDA_VISIBLE_DEVICES`.
    pub gpus: Vec<String>,
}

impl Resources {
    /// Returns the defaults for a host: all cores but one, and 16 warm workers per core, because sleeping workers use
    /// memory but no CPU.
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

/// Resources that a lease holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    /// Never [`Mode::Auto`].
    pub mode: Mode,
    /// Number of workers.
    pub workers: u16,
    /// Places of warm workers; 0 for a hot lease.
    pub places: u16,
    /// Exclusive cores, `cores_per_worker` for each worker in turn; empty for a warm lease.
    pub cores: Vec<u16>,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// GPUs, `gpus_per_worker` for each worker in turn.
    pub gpus: Vec<String>,
}

/// Why a lease is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// The request exceeds the node's total resources.
    #[error("the lease asks for {asked} {what} and the node has {total} in all; ask for less{hint}")]
    TooLarge {
        /// Name of the resource.
        what: &'static str,
        /// Requested amount.
        asked: u64,
        /// The node's total.
        total: u64,
        /// Additional advice for the message.
        hint: &'static str,
    },
    /// The request exceeds the free resources.
    #[error(
        "the lease asks for {asked} {what} of which {free} of {total} are free; try later, elsewhere or ask for less"
    )]
    NoCapacity {
        /// Name of the resource.
        what: &'static str,
        /// Requested amount.
        asked: u64,
        /// Free amount.
        free: u64,
        /// The node's total.
        total: u64,
    },
    /// The request is malformed or contradicts itself.
    #[error("{0}")]
    Invalid(String),
}

impl LedgerError {
    /// The error code that a peer receives.
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

/// Checks the parts of a request that do not depend on a node.
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

/// Accounting of one node's resources. Never over-committed: an amount can only be reserved while it is free.
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
    /// Returns the ledger of a node without leases.
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

    /// Resources of the node when no lease holds any.
    pub fn capacity(&self) -> Capacity {
        Capacity {
            cores: self.leasable_cores(),
            memory_bytes: self.resources.memory_bytes,
            workers: self.resources.workers,
            gpus: count(&self.resources.gpus),
        }
    }

    /// Resources that are free now.
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

    /// Returns the resources that a lease holds, if any.
    pub fn held(&self, lease: &LeaseId) -> Option<&Reservation> {
        self.held.get(lease)
    }

    /// Number of leases that hold resources.
    pub fn leases(&self) -> usize {
        self.held.len()
    }

    /// Reserves everything that the request asks for, or nothing.
    ///
    /// # Errors
    /// [`LedgerError`], without a change to the ledger.
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
        // All checks have passed. Nothing fails from here on, so a reservation is never partial.
        let mut cores = Vec::new();
        let mut places = 0;
        if mode == Mode::Hot {
            // Take the highest numbers first, because interrupts and daemons tend to use the low ones.
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

    /// Frees all resources of a lease and returns them, or `None` if it holds none.
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
        let least = MIN_WORKER_BYTES * u64::from(request.workers);
        check("bytes of memory", least, self.free_memory_bytes, total, "")?;
        let all_cores = self.resources.cores.len() as u64;
        let share = share(request, mode, total, all_cores, self.resources.workers.into());
        Ok(share.clamp(least, self.free_memory_bytes))
    }
}

/// Returns the bytes of memory that a lease without a memory request would get, on a node with this capacity and these
/// free resources.
pub fn share_of(request: &LeaseRequest, capacity: &Capacity, free: &Capacity) -> u64 {
    let hot = request.mode != Mode::Warm && cores_of(request) <= u64::from(free.cores);
    let mode = if hot { Mode::Hot } else { Mode::Warm };
    // Include the one core that is never leased.
    let all_cores = u64::from(capacity.cores) + 1;
    let share = share(request, mode, capacity.memory_bytes, all_cores, capacity.workers.into());
    share
        .min(free.memory_bytes)
        .max(MIN_WORKER_BYTES * u64::from(request.workers))
}

/// Returns a lease's share of the memory in bytes: its share of all cores if hot, or of all warm workers. The cores
/// that are never leased count too, because their memory is left for warm leases when every other core is hot.
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

pub(crate) fn gpus_of(request: &LeaseRequest) -> u64 {
    u64::from(request.workers) * u64::from(request.gpus_per_worker)
}

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
