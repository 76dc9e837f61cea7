//! The resources of one node, and the leases that hold them.
//!
//! Hot workers own numbered cores. Warm workers own none: they share the remaining cores. At least
//! [`Resources::kept_cores`] cores are never leased, so that clients and daemons always have cores to run on. A warm
//! worker takes as many places as it owns cores, in thousandths: two workers of half a core take one. Leases get only
//! what the node [offers](Offer), which may be a part of its resources.

mod change;
mod offer;

use std::collections::{BTreeMap, BTreeSet};

use dayfly_protocol::api::{Capacity, LeaseRequest, MAX_POLL_FOR_US, Mode};
use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::LeaseId;

use crate::quantity::Quantity;

pub use change::{Wanted, validate_change};
pub use dayfly_protocol::api::MAX_WORKERS;
pub use offer::{Offer, Shortfall};

/// Most warm workers of a node with fewer places. Workers of a part of a core may outnumber the places.
const MAX_SMALL_WORKERS: u32 = 1_024;
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
    /// Places of warm workers; none for a hot lease.
    pub places: MilliCores,
    /// Exclusive cores, `cores_per_worker` for each worker in turn; empty for a warm lease. Fewer while some are lent, or
    /// when the lease has changed.
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
        asked: Quantity,
        /// The node's total.
        total: Quantity,
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
        asked: Quantity,
        /// Free amount.
        free: Quantity,
        /// The node's total.
        total: Quantity,
    },
    /// An offer exceeds the node's total resources.
    #[error("the node cannot offer {asked} {what}: it was started with {total}; ask for less")]
    BeyondNode {
        /// Name of the resource.
        what: &'static str,
        /// Requested amount.
        asked: u64,
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
            Self::TooLarge { .. } | Self::BeyondNode { .. } => Code::TooLarge,
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
    let cores = request.cores_per_worker.for_worker();
    let cores = cores.map_err(|error| LedgerError::Invalid(error.to_string()))?;
    if request.mode == Mode::Hot && !cores.is_whole() {
        return Err(fraction_of_hot_worker(cores));
    }
    if request.duration_ms == 0 {
        return invalid("a lease of 0 ms; ask for at least 1 ms");
    }
    if request.poll_for_us > MAX_POLL_FOR_US {
        return Err(LedgerError::TooLarge {
            what: "microseconds of polling for warm workers",
            asked: request.poll_for_us.into(),
            total: MAX_POLL_FOR_US.into(),
            hint: ", or for mode hot",
        });
    }
    if request.files.len() > MAX_FILES {
        return Err(LedgerError::TooLarge {
            what: "host paths",
            asked: (request.files.len() as u64).into(),
            total: (MAX_FILES as u64).into(),
            hint: "; name a directory above them",
        });
    }
    let longest = request.files.iter().map(|file| file.path.len()).max();
    if longest.is_some_and(|length| length > MAX_PATH_BYTES) {
        return invalid("a host path of more than 4096 bytes");
    }
    Ok(())
}

fn fraction_of_hot_worker(cores: MilliCores) -> LedgerError {
    LedgerError::Invalid(format!(
        "{cores} cores per worker of a hot lease, whose workers poll on cores of their own; ask for whole cores, or for mode \
         warm"
    ))
}

/// Accounting of one node's resources. Never over-committed: an amount can only be reserved while it is free.
#[derive(Debug, Clone)]
pub struct Ledger {
    resources: Resources,
    offer: Offer,
    free_cores: BTreeSet<u16>,
    /// Cores that are neither offered nor leased.
    withdrawn_cores: BTreeSet<u16>,
    kept: BTreeSet<u16>,
    held_memory_bytes: u64,
    /// Places of the warm workers of all leases.
    held_places: MilliCores,
    /// Warm workers of all leases.
    warm_workers: u32,
    free_gpus: BTreeSet<u16>,
    /// GPUs that are neither offered nor leased.
    withdrawn_gpus: BTreeSet<u16>,
    held: BTreeMap<LeaseId, Reservation>,
}

impl Ledger {
    /// Returns the ledger of a node without leases, which offers all of its resources.
    pub fn new(resources: Resources) -> Self {
        let all: BTreeSet<u16> = resources.cores.iter().copied().collect();
        let kept: BTreeSet<u16> = all.iter().copied().take(resources.kept_cores.max(1).into()).collect();
        let free_cores: BTreeSet<u16> = all.difference(&kept).copied().collect();
        Self {
            offer: Offer {
                cores: count(&free_cores),
                memory_bytes: resources.memory_bytes,
                workers: resources.workers,
                gpus: count(&resources.gpus),
            },
            free_cores,
            withdrawn_cores: BTreeSet::new(),
            kept,
            held_memory_bytes: 0,
            held_places: MilliCores::ZERO,
            warm_workers: 0,
            free_gpus: (0..count(&resources.gpus)).collect(),
            withdrawn_gpus: BTreeSet::new(),
            held: BTreeMap::new(),
            resources,
        }
    }

    /// Resources that leases may hold together.
    pub fn capacity(&self) -> Capacity {
        self.offer.into()
    }

    /// Resources that are free now.
    pub fn free(&self) -> Capacity {
        Capacity {
            cores: count(&self.free_cores),
            memory_bytes: self.free_memory_bytes(),
            workers: self.free_places(),
            gpus: count(&self.free_gpus),
        }
    }

    fn free_memory_bytes(&self) -> u64 {
        self.offer.memory_bytes.saturating_sub(self.held_memory_bytes)
    }

    fn free_places(&self) -> MilliCores {
        MilliCores::from(self.offer.workers).minus(self.held_places)
    }

    /// Whether the node has GPUs, offered or not.
    pub fn has_gpus(&self) -> bool {
        !self.resources.gpus.is_empty()
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
            let total = MilliCores::from(self.offer.workers);
            check(
                "places of warm workers",
                places_of(request),
                self.free_places(),
                total,
                "",
            )?;
            self.check_warm_workers(request.workers.into(), 0)?;
        }
        check(
            "GPUs",
            gpus_of(request),
            self.free_gpus.len() as u64,
            u64::from(self.offer.gpus),
            "",
        )?;
        let memory_bytes = self.memory_for(request, mode)?;
        // All checks have passed. Nothing fails from here on, so a reservation is never partial.
        let mut cores = Vec::new();
        let mut places = MilliCores::ZERO;
        if mode == Mode::Hot {
            // Take the highest numbers first, because interrupts and daemons tend to use the low ones.
            for _ in 0..places_of(request).whole_part() {
                cores.extend(self.free_cores.pop_last());
            }
        } else {
            places = places_of(request);
            self.held_places = self.held_places.plus(places);
            self.warm_workers += u32::from(request.workers);
        }
        let taken = (0..gpus_of(request)).filter_map(|_| self.free_gpus.pop_first());
        let gpus = taken
            .filter_map(|gpu| self.resources.gpus.get(usize::from(gpu)).cloned())
            .collect();
        self.held_memory_bytes += memory_bytes;
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
        self.held_memory_bytes -= reservation.memory_bytes;
        self.held_places = self.held_places.minus(reservation.places);
        if reservation.mode != Mode::Hot {
            self.warm_workers -= u32::from(reservation.workers);
        }
        let named = |gpu: &String| self.resources.gpus.iter().position(|one| one == gpu);
        let given = reservation.gpus.iter().filter_map(named);
        self.free_gpus.extend(given.filter_map(|at| u16::try_from(at).ok()));
        self.settle();
        Some(reservation)
    }

    fn check_cores(&self, request: &LeaseRequest) -> Result<(), LedgerError> {
        if !request.cores_per_worker.is_whole() {
            return Err(fraction_of_hot_worker(request.cores_per_worker));
        }
        let free = MilliCores::from(self.free_cores.len() as u32);
        let total = MilliCores::from(self.offer.cores);
        let hint = " or for mode warm, which shares cores";
        check("cores", places_of(request), free, total, hint)
    }

    /// Bounds the processes of workers that own a part of a core. `held` are those that the lease has already.
    fn check_warm_workers(&self, asked: u32, held: u32) -> Result<(), LedgerError> {
        let total = MAX_SMALL_WORKERS.max(self.offer.workers.into());
        let free = total.saturating_sub(self.warm_workers) + held;
        check("warm workers", asked, free, total, "")
    }

    /// Number of calls of warm workers that may run at once on the shared cores: one for each core, and more if smaller
    /// workers fit on them together.
    pub fn calls_at_once(&self) -> u32 {
        let warm = self
            .held
            .values()
            .filter(|held| held.mode != Mode::Hot && held.workers > 0);
        let mut sizes: Vec<(u64, u32)> = warm
            .map(|held| (held.places.get() / u64::from(held.workers), held.workers.into()))
            .filter(|(size, _)| *size < MilliCores::ONE.get())
            .collect();
        sizes.sort_unstable();
        let mut room = MilliCores::from(self.shared_cores().len() as u32);
        let mut fitting = 0;
        for (size, workers) in sizes {
            let size = MilliCores::new(size);
            let some = workers.min(u32::try_from(room.holds(size)).unwrap_or(u32::MAX));
            room = room.minus(size * some);
            fitting += some;
        }
        // The rest of the cores is for whole workers.
        fitting + room.whole_part()
    }

    fn memory_for(&self, request: &LeaseRequest, mode: Mode) -> Result<u64, LedgerError> {
        let (total, free) = (self.offer.memory_bytes, self.free_memory_bytes());
        if request.memory_bytes > 0 {
            check("bytes of memory", request.memory_bytes, free, total, "")?;
            return Ok(request.memory_bytes);
        }
        let least = MIN_WORKER_BYTES * u64::from(request.workers);
        check("bytes of memory", least, free, total, "")?;
        let all_cores = MilliCores::from(u32::from(self.offer.cores) + u32::from(count(&self.kept)));
        let share = share(request, mode, total, all_cores, self.offer.workers.into());
        Ok(share.clamp(least, free))
    }
}

/// Returns the bytes of memory that a lease without a memory request would get, on a node with this capacity and these
/// free resources.
pub fn share_of(request: &LeaseRequest, capacity: &Capacity, free: &Capacity) -> u64 {
    let hot = request.mode != Mode::Warm && fits_hot(request, free.cores);
    let mode = if hot { Mode::Hot } else { Mode::Warm };
    // Include the one core that is never leased.
    let all_cores = MilliCores::from(capacity.cores).plus(MilliCores::ONE);
    let share = share(request, mode, capacity.memory_bytes, all_cores, capacity.workers);
    share
        .min(free.memory_bytes)
        .max(MIN_WORKER_BYTES * u64::from(request.workers))
}

/// Returns a lease's share of the memory in bytes: its share of all cores if hot, or of all warm workers. The cores
/// that are never leased count too, because their memory is left for warm leases when every other core is hot.
fn share(request: &LeaseRequest, mode: Mode, memory_bytes: u64, all_cores: MilliCores, all_workers: MilliCores) -> u64 {
    let all = match mode {
        Mode::Hot => all_cores,
        _ => all_workers,
    };
    let (asked, all) = (places_of(request).get(), all.get().max(1));
    (u128::from(memory_bytes) * u128::from(asked) / u128::from(all)).min(u128::from(memory_bytes)) as u64
}

fn count<T>(all: impl IntoIterator<Item = T>) -> u16 {
    u16::try_from(all.into_iter().count()).unwrap_or(u16::MAX)
}

pub(crate) fn gpus_of(request: &LeaseRequest) -> u64 {
    u64::from(request.workers) * u64::from(request.gpus_per_worker)
}

/// Cores of all workers.
pub(crate) fn places_of(request: &LeaseRequest) -> MilliCores {
    request.cores_per_worker * request.workers.into()
}

/// Whether its workers can be hot with this many free cores.
pub(crate) fn fits_hot(request: &LeaseRequest, free: u16) -> bool {
    request.cores_per_worker.is_whole() && places_of(request) <= free.into()
}

fn check<T: Into<Quantity>>(
    what: &'static str,
    asked: T,
    free: T,
    total: T,
    hint: &'static str,
) -> Result<(), LedgerError> {
    let (asked, free, total) = (asked.into(), free.into(), total.into());
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
#[path = "ledger/change_tests.rs"]
mod change_tests;
#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
