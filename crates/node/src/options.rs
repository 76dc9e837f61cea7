//! Configuration of a node.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use dayfly_fabric::Choice;
use dayfly_lease::ledger::Resources;
use dayfly_protocol::api::{Borrow, HarvestMode, ManagerAddress, RendezvousAddress, Sandbox};
use dayfly_protocol::executor::VISIBLE_GPUS;

use crate::environments::Settings;
use crate::trust::Trust;

/// Configuration of a node.
#[derive(Debug, Clone)]
pub struct Options {
    /// Directory of key, journal, code and sockets; made with mode 0700 if it is missing.
    pub state_dir: PathBuf,
    /// Name, for users.
    pub name: String,
    /// The Unix socket; `None` for `<state_dir>/node.sock`.
    pub unix: Option<PathBuf>,
    /// TCP address to listen on, port 0 for any; `None` for clients of this host only.
    pub listen_tcp: Option<SocketAddr>,
    /// `address:port` for clients, if it differs from the listening address; port 0 for the listening port.
    pub advertised_tcp: Option<String>,
    /// Address for Prometheus, in clear and without authentication; `None` serves no metrics.
    pub metrics: Option<SocketAddr>,
    /// Resources to lease; `None` for the whole machine, except one core for clients and daemons.
    pub resources: Option<Resources>,
    /// The executor of shared libraries; `None` for `DAYFLY_EXECUTOR`, or else `dayfly-executor` beside this program.
    pub executor: Option<PathBuf>,
    /// Python interpreters with the `dayfly` module; each gets a warm pool.
    pub pythons: Vec<PathBuf>,
    /// Parked executors of shared libraries.
    pub warm_native: usize,
    /// Parked executors of each Python interpreter in use.
    pub warm_python: usize,
    /// The manager; `None` for a node that grants its own leases.
    pub manager: Option<ManagerLink>,
    /// Permitted levels of isolation; the first is the default.
    pub sandboxes: Vec<Sandbox>,
    /// Whose leases may have level `process`; all others are isolated.
    pub trust: Trust,
    /// Whether leases of its owner may see the host's files and network from level `isolated`, and have any image. For
    /// a node that serves one program of that user.
    pub shows_owner_all: bool,
    /// Permitted images of containers.
    pub images: Vec<String>,
    /// Directory of environments, which nodes of one user may share; `None` for `dayfly/environments` in the user's
    /// cache.
    pub environments: Option<PathBuf>,
    /// Configuration of their builds.
    pub building: Settings,
    /// Whether isolated workers may share the host's network.
    pub share_network: bool,
    /// Whether isolated workers without a network may be ranks of groups, which this node joins for them.
    pub connectors: bool,
    /// Further rendezvous for such ranks, beside those of the site's managers.
    pub rendezvous: Vec<RendezvousAddress>,
    /// The `dayfly` program that joins for them; `None` for the one beside this program.
    pub connector: Option<PathBuf>,
    /// Directories below which leases may have isolated workers read.
    pub readable: Vec<PathBuf>,
    /// Directories below which leases may have isolated workers write.
    pub writable: Vec<PathBuf>,
    /// Bound on temporary files of an isolated executor in bytes, in each of its two places; they count as its memory.
    pub scratch_bytes: u64,
    /// Directory on disk for what queries of workers cannot hold in memory; `None` for none.
    pub spill: Option<PathBuf>,
    /// Most bytes there of each worker, by its own count; `None` for no bound.
    pub spill_bytes: Option<u64>,
    /// Most concurrent calls of warm workers for each shared core; 0 for no bound.
    pub calls_per_core: u16,
    /// What becomes of resources that calls own and do not use.
    pub harvest: HarvestMode,
    /// Whether calls borrow from calls of their own tenant only.
    pub harvest_within_tenant: bool,
    /// The most that calls may borrow, whatever they request.
    pub harvest_borrow: Borrow,
    /// Most bytes of the record of harvesting's events and actions, `harvest.jsonl` in the state directory, from which
    /// `dayfly-simulate` can repeat the decisions; 0 for no record.
    pub harvest_log_bytes: u64,
    /// Whether payloads may travel in clear beyond the loopback interface.
    pub trust_fabric: bool,
    /// Trusted fabrics: providers of libfabric that workers with the host's network may use.
    pub fabrics: Vec<Choice>,
    /// The site's names of its fabrics; the providers' names if empty.
    pub on_fabrics: Vec<String>,
    /// Tolerated difference between clocks.
    pub skew_tolerance: Duration,
    /// Most remembered hellos of all tenants together, so that none opens two connections.
    pub max_hellos: usize,
    /// How long a call that runs when its lease expires may go on.
    pub grace: Duration,
    /// How long a grant may stay unused.
    pub start_by: Duration,
    /// Destination of the output of executors and their workers.
    pub output: Output,
    /// Whether the process belongs to the node alone. The node then adopts orphans of dead executors and ends them, and
    /// keeps its own threads off the cores of hot leases.
    pub own_process: bool,
}

/// Destination of the output of executors and their workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// The log.
    Log,
    /// Standard output and standard error of this process, unchanged.
    Own,
}

/// How to reach the manager.
#[derive(Debug, Clone)]
pub struct ManagerLink {
    /// `https://address:port`.
    pub url: String,
    /// Certificate authority of the manager, in PEM.
    pub ca_pem: String,
    /// Join token for the first connection; it is exchanged for a credential, which is kept in the state directory.
    pub join_token: Option<String>,
    /// The site's other managers, any of which can serve the node. Later ones are kept in the state directory.
    pub others: Vec<ManagerAddress>,
}

impl Options {
    /// A node of the whole machine, on the Unix socket only, without a manager.
    pub fn new(state_dir: impl Into<PathBuf>) -> Self {
        Self {
            state_dir: state_dir.into(),
            name: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            unix: None,
            listen_tcp: None,
            advertised_tcp: None,
            metrics: None,
            resources: None,
            executor: None,
            pythons: Vec::new(),
            warm_native: 1,
            warm_python: 1,
            manager: None,
            sandboxes: Sandbox::ALL.to_vec(),
            trust: Trust::Owners(Vec::new()),
            shows_owner_all: false,
            images: Vec::new(),
            environments: None,
            building: Settings::default(),
            share_network: false,
            connectors: true,
            rendezvous: Vec::new(),
            connector: None,
            readable: Vec::new(),
            writable: Vec::new(),
            scratch_bytes: 1 << 30,
            spill: None,
            spill_bytes: None,
            calls_per_core: 1,
            harvest: HarvestMode::Off,
            harvest_within_tenant: false,
            harvest_borrow: Borrow::CpuAndMemory,
            harvest_log_bytes: 0,
            trust_fabric: false,
            fabrics: Vec::new(),
            on_fabrics: Vec::new(),
            skew_tolerance: Duration::from_millis(dayfly_lease::token::DEFAULT_SKEW_TOLERANCE_MS),
            max_hellos: dayfly_lease::replay::DEFAULT_CAPACITY,
            grace: Duration::from_secs(1),
            start_by: Duration::from_millis(dayfly_lease::state::DEFAULT_START_BY_MS),
            output: Output::Log,
            own_process: false,
        }
    }

    pub(crate) fn unix_path(&self) -> PathBuf {
        self.unix.clone().unwrap_or_else(|| self.state_dir.join("node.sock"))
    }

    pub(crate) fn code_dir(&self) -> PathBuf {
        self.state_dir.join("code")
    }

    pub(crate) fn executor_path(&self) -> PathBuf {
        if let Some(path) = &self.executor {
            return path.clone();
        }
        if let Some(path) = std::env::var_os("DAYFLY_EXECUTOR") {
            return path.into();
        }
        beside("dayfly-executor")
    }

    pub(crate) fn environments_dir(&self) -> PathBuf {
        let named = self.environments.clone();
        named
            .or_else(cache)
            .unwrap_or_else(|| self.state_dir.join("environments"))
    }

    pub(crate) fn connector_path(&self) -> PathBuf {
        self.connector.clone().unwrap_or_else(|| beside("dayfly"))
    }

    pub(crate) fn resources(&self) -> Resources {
        self.resources.clone().unwrap_or_else(machine)
    }
}

/// The user's cache directory, for environments.
fn cache() -> Option<PathBuf> {
    let absolute = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(cache.join("dayfly/environments"))
}

/// A program of Dayfly: beside this one, or from `PATH`.
fn beside(name: &str) -> PathBuf {
    let here = std::env::current_exe().ok();
    let beside = here.and_then(|exe| Some(exe.parent()?.join(name)));
    beside.filter(|path| path.is_file()).unwrap_or_else(|| name.into())
}

/// The cores that this process may use, and three quarters of the memory.
pub fn machine() -> Resources {
    let cores = rustix::thread::sched_getaffinity(None).map_or_else(
        |_| vec![0],
        |set| {
            (0..rustix::thread::CpuSet::MAX_CPU)
                .filter(|core| set.is_set(*core))
                .map(|core| core as u16)
                .collect()
        },
    );
    Resources {
        gpus: gpus(),
        ..Resources::of_machine(cores, memory_bytes() / 4 * 3)
    }
}

/// The machine's memory in bytes.
pub fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram as u64 * u64::from(info.mem_unit.max(1))
}

/// The GPUs that this process may use: those in its environment, as a batch system sets them, or else all of NVIDIA's.
fn gpus() -> Vec<String> {
    if let Ok(named) = std::env::var(VISIBLE_GPUS) {
        // An invalid name hides the GPUs after it.
        let is_one = |name: &&str| !name.is_empty() && !name.starts_with('-') && *name != "NoDevFiles";
        return named
            .split(',')
            .map(str::trim)
            .take_while(is_one)
            .map(str::to_owned)
            .collect();
    }
    let number = |entry: std::io::Result<std::fs::DirEntry>| {
        let name = entry.ok()?.file_name();
        name.to_str()?.strip_prefix("nvidia")?.parse::<u16>().ok()
    };
    let mut numbers: Vec<u16> = std::fs::read_dir("/dev")
        .into_iter()
        .flatten()
        .filter_map(number)
        .collect();
    numbers.sort_unstable();
    numbers.into_iter().map(|number| number.to_string()).collect()
}
