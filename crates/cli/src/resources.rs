//! Options for the resources that a node offers.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use dayfly_client::Choice;
use dayfly_lease::ledger::{MAX_WORKERS, Resources};
use dayfly_node::images::Reference;
use dayfly_node::{Options, Trust, options};
use dayfly_protocol::api::{Borrow, HarvestMode, MAX_FABRIC_NAME, RendezvousAddress, Sandbox};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::TenantId;

use crate::values::Level;
use crate::{interpreter, loans, values};

/// Options shared by `dayfly up` and `dayfly node`.
#[derive(Debug, Args)]
pub struct NodeArguments {
    /// Name of the node, for people [default: the host name]
    #[arg(long)]
    name: Option<String>,
    /// Cores that hot workers may own; at least one is left for clients and daemons [default: all but one]
    #[arg(long, value_name = "N")]
    cores: Option<u16>,
    /// Memory that leases may use, such as 2G [default: three quarters of the machine's]
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    memory: Option<u64>,
    /// Maximum number of warm workers of one core; two of half a core count as one [default: 16 per core]
    #[arg(
        long,
        value_name = "N",
        env = "DAYFLY_WARM_WORKERS",
        hide_env_values = true,
        value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_WORKERS))
    )]
    workers: Option<u16>,
    /// GPUs that leases may use, separated by commas, with names as in CUDA_VISIBLE_DEVICES; `none` for none [default:
    /// those of the variable, or those in /dev]. If there are any, workers see only the GPUs that they requested
    #[arg(long, value_name = "LIST", value_parser = gpus)]
    gpus: Option<Gpus>,
    /// Maximum number of concurrent calls of warm workers, per shared core; 0 for no limit. A call that finds no free
    /// core goes to another worker, and runs anyway if no worker has one
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        env = "DAYFLY_CALLS_PER_CORE",
        hide_env_values = true
    )]
    calls_per_core: u16,
    /// Python interpreter with the dayfly package, for functions whose clients bring none; may be repeated [default:
    /// the one that this program was installed with, else python3 on the PATH, if it has the package]
    #[arg(long, value_name = "EXE")]
    python: Vec<PathBuf>,
    /// Number of idle executors of each kind that are started before a lease needs them
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        env = "DAYFLY_WARM_POOL",
        hide_env_values = true
    )]
    warm_pool: u8,
    /// Whether cores that long calls own and do not use are lent to other long calls of warm workers: `on` lends them
    /// and takes them back as soon as their owner needs them, `watch` only measures. Both need control groups, and hold
    /// each such worker to the cores that it owns
    #[arg(
        long,
        value_name = "MODE",
        default_value = "off",
        value_parser = harvest_mode(),
        env = "DAYFLY_HARVEST",
        hide_env_values = true
    )]
    harvest: HarvestMode,
    /// Lend between calls of one tenant only
    #[arg(long, env = "DAYFLY_HARVEST_WITHIN_TENANT", hide_env_values = true)]
    harvest_within_tenant: bool,
    /// The most that calls on this node may borrow: none, cpu, or cpu,memory
    #[arg(
        long,
        value_name = "WHAT",
        default_value = "cpu,memory",
        value_parser = loans::borrow(),
        hide_short_help = true
    )]
    harvest_borrow: Borrow,
    /// Record events and actions of --harvest in `harvest.jsonl` in the state directory, up to this size
    #[arg(long, value_name = "SIZE", value_parser = values::size, hide_short_help = true)]
    harvest_log: Option<u64>,
    /// Allowed isolation of workers; may be repeated, the first is the default of leases. Level `process` applies to
    /// the owner's tenant only: other tenants' code is always isolated [default: `isolated` for a node, which runs
    /// other tenants' code; for `dayfly up` `process`, and `isolated` for leases that request it]
    #[arg(long, value_enum, value_name = "LEVEL")]
    sandbox: Vec<Level>,
    /// Give all tenants the levels of --sandbox. At level `process`, every holder of a token can then run code as this
    /// node's user, who can read the administrator's token. Use it only if all tenants are that user
    #[arg(long)]
    run_tenants_as_me: bool,
    /// Container image that leases may use, which also allows the level `container`: a name in the storage of Podman or
    /// Charliecloud, or the path of a root file system (a directory, or a .sqfs or .sif file); may be repeated, the
    /// first is the default of leases. The node pulls no images [default: none]
    #[arg(long, value_name = "IMAGE")]
    image: Vec<String>,
    /// Directory for the Python environments that leases name; nodes may share it, also over a network file system
    /// [default: `dayfly/environments` in the user's cache]
    #[arg(
        long,
        value_name = "DIR",
        env = "DAYFLY_ENVIRONMENTS",
        hide_env_values = true,
        overrides_with = "environments"
    )]
    environments: Option<PathBuf>,
    /// The program `uv`, which builds environments from wheels, with its own configuration of package indexes [default:
    /// the one beside the Python interpreter, else on the PATH]
    #[arg(long, value_name = "EXE")]
    uv: Option<PathBuf>,
    /// Time limit for a package index to accept a connection, or to send more data; `UV_HTTP_TIMEOUT` and
    /// `UV_HTTP_CONNECT_TIMEOUT` take precedence
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = values::duration)]
    index_timeout: Duration,
    /// Time limit for the build of an environment; connections to the index are retried until then
    #[arg(long, value_name = "DURATION", default_value = "30m", value_parser = values::duration)]
    environment_limit: Duration,
    /// Directory that leases may make readable for isolated workers; may be repeated
    #[arg(long, value_name = "DIR")]
    readable: Vec<PathBuf>,
    /// Directory that leases may make writable for isolated workers; may be repeated
    #[arg(long, value_name = "DIR")]
    writable: Vec<PathBuf>,
    /// Directory on disk into which queries over data frames write what does not fit into the memory of their lease;
    /// every executor has a private directory there, which ends with it [default: none, and such queries fail]
    #[arg(long, value_name = "DIR", env = "DAYFLY_NODE_SPILL", hide_env_values = true)]
    spill: Option<PathBuf>,
    /// Most bytes there of one worker's queries. Other code of workers is not bounded: give the directory a file system
    /// of its own [default: no bound]
    #[arg(long, value_name = "SIZE", value_parser = values::size, requires = "spill")]
    spill_size: Option<u64>,
    /// Allow isolated workers to share the host's network if their lease requests it
    #[arg(long)]
    share_network: bool,
    /// Refuse groups to isolated workers without the host's network: the node opens no connections for them
    #[arg(long)]
    no_groups: bool,
    /// Rendezvous where they may meet other ranks, besides their manager's: the address and the key that `dayfly
    /// rendezvous` prints, joined by `=`; may be repeated
    #[arg(long, value_name = "ADDR:PORT=KEY", value_parser = place)]
    rendezvous: Vec<RendezvousAddress>,
    /// Address of the Prometheus endpoint (GET /metrics), without encryption and authentication; port 0 for any free
    /// port
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,
    /// Send payloads unencrypted beyond the loopback interface: only on a trusted network
    #[arg(long)]
    trust_fabric: bool,
    /// Fabric for workers with the host's network: a libfabric provider, with its domain if there are several (tcp,
    /// verbs, cxi/cxi0); may be repeated, the first is the default of clients. Payloads are not encrypted: use it only
    /// on a trusted network
    #[arg(
        long,
        value_name = "PROVIDER[/DOMAIN]",
        value_delimiter = ',',
        env = "DAYFLY_FABRIC",
        hide_env_values = true
    )]
    fabric: Vec<Choice>,
    /// Fabric of this node, by the site's name (an island, a switch, a partition); may be repeated. Gangs may request
    /// nodes of one fabric [default: the providers of --fabric]
    #[arg(long, value_name = "NAME", value_parser = fabric_name)]
    on_fabric: Vec<String>,
}

/// Returns the parser of what a node harvests.
pub fn harvest_mode() -> impl TypedValueParser<Value = HarvestMode> {
    PossibleValuesParser::new(HarvestMode::ALL.map(HarvestMode::name)).try_map(|name| name.parse::<HarvestMode>())
}

fn fabric_name(name: &str) -> Result<String, String> {
    if name.is_empty() || name.len() > MAX_FABRIC_NAME || name.chars().any(char::is_control) {
        return Err(format!(
            "a fabric's name has 1 to {MAX_FABRIC_NAME} bytes and no control characters"
        ));
    }
    Ok(name.into())
}

impl NodeArguments {
    /// Returns a node's options. The caller sets its addresses and its owner.
    pub fn options(&self, state_dir: PathBuf) -> Result<Options, Failure> {
        let mut options = Options::new(state_dir);
        if let Some(name) = &self.name {
            options.name = name.clone();
        }
        if self.cores.is_some() || self.memory.is_some() || self.workers.is_some() || self.gpus.is_some() {
            options.resources = Some(self.resources()?);
        }
        options.pythons = self
            .python
            .iter()
            .map(|python| on_path(python.as_path(), "--python"))
            .collect::<Result<_, _>>()?;
        if options.pythons.is_empty() {
            match interpreter::own() {
                Ok(python) => options.pythons.push(python),
                Err(why) => tracing::warn!(
                    "this node runs Python functions only in interpreters that its clients bring: {why}; install the dayfly \
                     package, or name an interpreter that has it by --python"
                ),
            }
        }
        options.building.uv = self.uv.as_deref().map(|uv| on_path(uv, "--uv")).transpose()?;
        options.building.index_timeout = self.index_timeout;
        options.building.limit = self.environment_limit;
        if let Some(dir) = &self.environments {
            let absolute = std::path::absolute(dir).map_err(|error| {
                Failure::new(
                    Code::InvalidRequest,
                    format!("--environments {}: {error}", dir.display()),
                )
            })?;
            options.environments = Some(absolute);
        }
        options.warm_native = self.warm_pool.into();
        options.warm_python = self.warm_pool.into();
        options.metrics = self.metrics;
        options.calls_per_core = self.calls_per_core;
        options.harvest = self.harvest;
        options.harvest_within_tenant = self.harvest_within_tenant;
        options.harvest_borrow = self.harvest_borrow;
        options.harvest_log_bytes = self.harvest_log.unwrap_or(0);
        options.trust_fabric = self.trust_fabric;
        options.fabrics = self.fabric.clone();
        options.on_fabrics = self.on_fabric.clone();
        let mut sandboxes = self.sandboxes();
        if !sandboxes.is_empty() {
            if self.has_images() && !sandboxes.contains(&Sandbox::Container) {
                sandboxes.push(Sandbox::Container);
            }
            options.sandboxes = sandboxes;
        }
        for image in &self.image {
            Reference::parse(image)
                .map_err(|error| Failure::new(Code::InvalidRequest, format!("--image {image}: {error}")))?;
        }
        if self.run_tenants_as_me {
            options.trust = Trust::AllTenants;
        }
        options.images.clone_from(&self.image);
        options.share_network = self.share_network;
        options.connectors = !self.no_groups;
        options.rendezvous = self.rendezvous.clone();
        options.readable = directories(&self.readable, "--readable")?;
        options.writable = directories(&self.writable, "--writable")?;
        let spill = self.spill.as_slice();
        options.spill = directories(spill, "--spill")?.pop();
        options.spill_bytes = self.spill_size;
        options.own_process = true;
        Ok(options)
    }

    /// Makes a tenant one of the node's owner, unless all tenants are trusted as the owner anyway.
    pub fn own(options: &mut Options, owner: Option<TenantId>) {
        if let Trust::Owners(owners) = &mut options.trust {
            owners.extend(owner);
        }
    }

    /// Returns the named levels, if any.
    pub fn sandboxes(&self) -> Vec<Sandbox> {
        levels(&self.sandbox)
    }

    /// Returns whether there are images for containers.
    pub fn has_images(&self) -> bool {
        !self.image.is_empty()
    }

    fn resources(&self) -> Result<Resources, Failure> {
        let mut resources = options::machine();
        if let Some(cores) = self.cores {
            let most = (resources.cores.len() as u16).saturating_sub(1);
            if cores > most {
                return Err(Failure::new(
                    Code::InvalidRequest,
                    format!(
                        "--cores {cores} is too much: this machine lets us use {}, of which one stays with clients and \
                         daemons; give at most {most}",
                        resources.cores.len()
                    ),
                ));
            }
            resources.kept_cores = resources.cores.len() as u16 - cores;
        }
        if let Some(memory) = self.memory {
            let all = options::memory_bytes();
            if memory > all {
                let text = format!(
                    "--memory {memory} is more than the machine's {}",
                    crate::output::size(all)
                );
                return Err(Failure::new(Code::InvalidRequest, text));
            }
            resources.memory_bytes = memory;
        }
        if let Some(workers) = self.workers {
            resources.workers = workers;
        }
        if let Some(Gpus(named)) = &self.gpus {
            resources.gpus = named.clone();
        }
        Ok(resources)
    }
}

/// Names of GPUs.
#[derive(Debug, Clone)]
struct Gpus(Vec<String>);

fn gpus(text: &str) -> Result<Gpus, String> {
    if text == "none" {
        return Ok(Gpus(Vec::new()));
    }
    let named: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
    let is_name = |name: &String| {
        let fits = |letter: char| letter.is_ascii_alphanumeric() || "-_./:".contains(letter);
        (1..=64).contains(&name.len()) && name.chars().all(fits) && !name.starts_with('-')
    };
    if !named.iter().all(is_name) || named.len() > 1_024 {
        return Err("name GPUs by number or UUID with commas between, or `none`".into());
    }
    if (1..named.len()).any(|at| named[..at].contains(&named[at])) {
        return Err("a GPU is named twice".into());
    }
    Ok(Gpus(named))
}

/// Parses a rendezvous with its key.
fn place(text: &str) -> Result<RendezvousAddress, String> {
    let (address, key) = text
        .rsplit_once('=')
        .ok_or("give an address and a key, as HOST:PORT=KEY")?;
    Ok(RendezvousAddress {
        address: address.into(),
        key: key.parse().map_err(|error| format!("the key: {error}"))?,
        voucher: String::new(),
    })
}

/// Returns each level once, in the given order.
pub fn levels(named: &[Level]) -> Vec<Sandbox> {
    let mut levels: Vec<Sandbox> = Vec::new();
    for level in named.iter().copied().map(Sandbox::from) {
        if !levels.contains(&level) {
            levels.push(level);
        }
    }
    levels
}

/// Resolves symbolic links in directories, because the paths that leases request are compared with the result.
fn directories(named: &[PathBuf], option: &str) -> Result<Vec<PathBuf>, Failure> {
    let real = |path: &PathBuf| {
        path.canonicalize()
            .map_err(|error| Failure::new(Code::InvalidRequest, format!("{option} {}: {error}", path.display())))
    };
    named.iter().map(real).collect()
}

fn on_path(program: &Path, option: &str) -> Result<PathBuf, Failure> {
    interpreter::on_path(program).ok_or_else(|| {
        let text = format!("{option} {}: there is no such program", program.display());
        Failure::new(Code::InvalidRequest, text)
    })
}
