//! What can be chosen about a node.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use dayfly_fabric::Choice;
use dayfly_lease::ledger::Resources;
use dayfly_protocol::api::{ManagerAddress, RendezvousAddress, Sandbox};
use dayfly_protocol::executor::VISIBLE_GPUS;

use crate::environments::Settings;
use crate::trust::Trust;

/// What can be chosen about a node.
#[derive(Debug, Clone)]
pub struct Options {
    /// Key, journal, code and sockets; made with mode 0700 when missing.
    pub state_dir: PathBuf,
    /// Its name, for people.
    pub name: String,
    /// The Unix socket; `<state_dir>/node.sock` when none is given.
    pub unix: Option<PathBuf>,
    /// Where to listen for everybody else, port 0 for any; none for clients of this host only.
    pub listen_tcp: Option<SocketAddr>,
    /// `address:port` that clients are told, where it differs from what is listened on; port 0 for the one that is listened on.
    pub advertised_tcp: Option<String>,
    /// Where to answer Prometheus, in clear, whoever asks; none to answer nobody.
    pub metrics: Option<SocketAddr>,
    /// What leases may take; none for the whole machine, less the core that clients and daemons share.
    pub resources: Option<Resources>,
    /// The executor of shared libraries; none for `DAYFLY_EXECUTOR`, or else `dayfly-executor` beside this program.
    pub executor: Option<PathBuf>,
    /// Python interpreters that have the `dayfly` module; each gets a warm pool.
    pub pythons: Vec<PathBuf>,
    /// Executors of shared libraries that wait for a lease.
    pub warm_native: usize,
    /// Executors of each Python interpreter in use that wait for a lease.
    pub warm_python: usize,
    /// Whose leases it takes; none for a node that grants its own.
    pub manager: Option<ManagerLink>,
    /// Levels of isolation that leases may have here; the first is for those that name none.
    pub sandboxes: Vec<Sandbox>,
    /// Whose leases may have level `process`; everybody else's are isolated.
    pub trust: Trust,
    /// Whether leases of its owner may see the host's files and network from level `isolated`, and have any image: for a node that
    /// serves one program of that user's.
    pub shows_owner_all: bool,
    /// Images that containers may be of.
    pub images: Vec<String>,
    /// Where environments are built and kept, which nodes of one user may share; none for `dayfly/environments` in the user's
    /// cache.
    pub environments: Option<PathBuf>,
    /// How they are built.
    pub building: Settings,
    /// Whether isolated workers may share the host's network.
    pub share_network: bool,
    /// Whether isolated workers without a network may be ranks of groups, which this node joins for them.
    pub connectors: bool,
    /// Where such ranks may meet, beside where a manager of this site says.
    pub rendezvous: Vec<RendezvousAddress>,
    /// The program that joins for them, which is `dayfly`; none for the one beside this program.
    pub connector: Option<PathBuf>,
    /// Directories below which leases may have isolated workers read.
    pub readable: Vec<PathBuf>,
    /// Directories below which leases may have isolated workers write.
    pub writable: Vec<PathBuf>,
    /// Most bytes of temporary files of an isolated executor, in each of its two places; they count as its memory.
    pub scratch_bytes: u64,
    /// Calls of warm workers that may run at once, for each core that they share; 0 for any number.
    pub calls_per_core: u16,
    /// Whether payloads may travel in clear off the loopback.
    pub trust_fabric: bool,
    /// Fabrics on which everybody is trusted: providers of libfabric's that workers with the host's network may use.
    pub fabrics: Vec<Choice>,
    /// What its site calls the fabrics that it is on; those providers if it is not said.
    pub on_fabrics: Vec<String>,
    /// How far clocks may differ.
    pub skew_tolerance: Duration,
    /// Hellos of all tenants together that it remembers, so that none opens two connections.
    pub most_hellos: usize,
    /// How long a call that runs when its lease expires may go on.
    pub grace: Duration,
    /// How long a grant may lie unused.
    pub start_by: Duration,
    /// Where that goes what executors and their workers print.
    pub output: Output,
    /// Whether the process is the node's alone: it then adopts orphans of dead executors and ends them, and keeps its
    /// own threads off the cores of hot leases.
    pub own_process: bool,
}

/// Where that goes what executors and their workers print.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Into the log.
    Log,
    /// To the standard output and error of this process, as they print it.
    Own,
}

/// How to reach the manager.
#[derive(Debug, Clone)]
pub struct ManagerLink {
    /// `https://address:port`.
    pub url: String,
    /// Certificate authority of the manager, PEM.
    pub ca_pem: String,
    /// Join token for the first connection; the credential that it is exchanged for is kept in the state directory.
    pub join_token: Option<String>,
    /// The site's other managers, of which each will do as well. Those that it hears of later are kept in the state directory.
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
            calls_per_core: 1,
            trust_fabric: false,
            fabrics: Vec::new(),
            on_fabrics: Vec::new(),
            skew_tolerance: Duration::from_millis(dayfly_lease::token::DEFAULT_SKEW_TOLERANCE_MS),
            most_hellos: dayfly_lease::replay::DEFAULT_CAPACITY,
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

/// For environments, in the user's cache.
fn cache() -> Option<PathBuf> {
    let absolute = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(cache.join("dayfly/environments"))
}

/// A program of Dayfly's beside this one, or else wherever it is found.
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

/// All of the machine's memory.
pub fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram as u64 * u64::from(info.mem_unit.max(1))
}

/// The GPUs that this process may use: those that its environment names, as a batch system sets it, or else those of NVIDIA that
/// there are.
fn gpus() -> Vec<String> {
    if let Ok(named) = std::env::var(VISIBLE_GPUS) {
        // What is no GPU hides those behind it.
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
