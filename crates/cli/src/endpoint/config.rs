//! `endpoint.toml`: the configuration that its owner may edit.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dayfly_lease::ledger::MAX_WORKERS;
use dayfly_protocol::endpoints::EndpointSpec;
use dayfly_protocol::error::{Code, Failure};
use dayfly_scheduling::BlockTerms;
use serde::{Deserialize, Serialize};
use toml::Table;

use super::accounts::Map;
use crate::values;

/// Name of the configuration file in the endpoint's directory.
pub const FILE: &str = "endpoint.toml";

/// Configuration of an endpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Description for people.
    pub description: String,
    /// Names of other tenants that may run tasks here; `*` for all.
    pub shared_with: Vec<String>,
    /// Name or address of this machine, under which nodes reach the endpoint.
    pub address: String,
    /// The provider of nodes.
    pub provider: ProviderConfig,
    /// Number and size of blocks.
    pub blocks: BlockConfig,
    /// Settings of the nodes.
    pub node: NodeConfig,
    /// Accounts under which the tasks of tenants run.
    pub accounts: Map,
}

/// `[provider]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProviderConfig {
    /// `local`, a batch system or a cloud.
    pub kind: String,
    /// Python interpreter with the provider's packages; not used for `local`.
    pub python: PathBuf,
    /// Options of the provider.
    pub options: Table,
}

impl ProviderConfig {
    /// Returns whether nodes have no access to this machine's files, so that their command must contain everything.
    pub fn is_apart(&self) -> bool {
        super::nodes::APART.contains(&self.kind.as_str())
    }
}

/// `[blocks]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BlockConfig {
    /// Minimum number of blocks.
    pub min: u32,
    /// Maximum number of blocks.
    pub max: u32,
    /// Nodes per block.
    pub nodes: u32,
    /// Workers per node.
    pub workers_per_node: u16,
    /// GPUs per node, allocated by the batch system or present on the machine.
    pub gpus_per_node: u16,
    /// Maximum duration of a block; zero for no limit.
    #[serde(deserialize_with = "length", serialize_with = "of_length")]
    pub walltime: Duration,
    /// Idle time after which a block is released.
    #[serde(deserialize_with = "length", serialize_with = "of_length")]
    pub idle: Duration,
}

/// `[node]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeConfig {
    /// Path of `dayfly` on the nodes; empty for the path of this program.
    pub program: PathBuf,
    /// Python interpreters on the nodes with the dayfly package, for tasks whose client's interpreter is not installed
    /// there.
    pub python: Vec<String>,
    /// Additional arguments of `dayfly node`.
    pub arguments: Vec<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            description: String::new(),
            shared_with: Vec::new(),
            address: "127.0.0.1".into(),
            provider: ProviderConfig::default(),
            blocks: BlockConfig::default(),
            node: NodeConfig::default(),
            accounts: Map::default(),
        }
    }
}

impl Default for ProviderConfig {
    fn default() -> Self {
        Self {
            kind: super::nodes::LOCAL.into(),
            python: PathBuf::new(),
            options: Table::new(),
        }
    }
}

impl Default for BlockConfig {
    fn default() -> Self {
        Self {
            min: 0,
            max: 1,
            nodes: 1,
            workers_per_node: cores(),
            gpus_per_node: 0,
            walltime: Duration::ZERO,
            idle: Duration::from_secs(120),
        }
    }
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            program: PathBuf::new(),
            python: Vec::new(),
            arguments: Vec::new(),
        }
    }
}

/// Returns the number of cores of this machine.
fn cores() -> u16 {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    u16::try_from(cores).unwrap_or(u16::MAX)
}

/// Parses a duration such as `90s`; an empty text is zero.
pub fn length<'de, D: serde::Deserializer<'de>>(text: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(text)?;
    match text.as_str() {
        "" => Ok(Duration::ZERO),
        text => values::duration(text).map_err(serde::de::Error::custom),
    }
}

/// Formats a duration for [`length`].
pub fn of_length<S: serde::Serializer>(length: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    match length.as_millis() {
        0 => serializer.serialize_str(""),
        ms => serializer.serialize_str(&format!("{ms}ms")),
    }
}

impl Config {
    /// Reads the configuration from an endpoint's directory.
    pub fn read(directory: &Path) -> Result<Self, Failure> {
        let path = directory.join(FILE);
        let wrong = |error: String| {
            let text = format!("{}: {}", path.display(), error.trim_end());
            Failure::new(Code::InvalidRequest, text)
        };
        let text = std::fs::read_to_string(&path).map_err(|error| wrong(error.to_string()))?;
        let config: Self = toml::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        config.check().map_err(wrong)?;
        Ok(config)
    }

    /// Returns the configuration of an account's daemon, as TOML.
    pub fn for_account(&self) -> Result<String, Failure> {
        let own = Self {
            shared_with: Vec::new(),
            accounts: Map {
                map: BTreeMap::new(),
                ..self.accounts.clone()
            },
            ..self.clone()
        };
        toml::to_string(&own).map_err(|error| Failure::new(Code::Internal, error.to_string()))
    }

    /// Checks the configuration. The error is a message for people.
    pub fn check(&self) -> Result<(), String> {
        self.accounts.check()?;
        let BlockConfig {
            min,
            max,
            nodes,
            workers_per_node,
            walltime,
            ..
        } = &self.blocks;
        if max < min || *max == 0 {
            return Err(format!(
                "blocks.max is {max} and blocks.min {min}; give at least 1, and at least min"
            ));
        }
        if *nodes == 0 || *workers_per_node == 0 {
            return Err("blocks.nodes and blocks.workers_per_node must be at least 1".into());
        }
        if *workers_per_node > MAX_WORKERS {
            return Err(format!(
                "blocks.workers_per_node is {workers_per_node}; a node has {MAX_WORKERS} at most"
            ));
        }
        if self.provider.is_apart() && *nodes != 1 {
            return Err(format!(
                "blocks.nodes is {nodes}, and a block of the provider `{}` is one node; ask for more blocks, by blocks.max",
                self.provider.kind
            ));
        }
        if self.provider.kind != super::nodes::LOCAL && walltime.is_zero() {
            return Err("a batch system wants to know blocks.walltime, such as \"1h\"".into());
        }
        Ok(())
    }

    /// Returns the limits of the blocks.
    pub fn terms(&self) -> BlockTerms {
        BlockTerms {
            min: self.blocks.min,
            max: self.blocks.max,
            workers: self.blocks.nodes.saturating_mul(self.blocks.workers_per_node.into()),
            idle_ms: u64::try_from(self.blocks.idle.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// Returns the maximum number of concurrent workers.
    pub fn max_workers(&self) -> u16 {
        let most = self.terms().workers.saturating_mul(self.blocks.max);
        u16::try_from(most).unwrap_or(u16::MAX)
    }

    /// Returns the description of the endpoint for the manager.
    pub fn spec(&self) -> EndpointSpec {
        EndpointSpec {
            description: self.description.clone(),
            provider: self.provider.kind.clone(),
            shared_with: self.shared_with.clone(),
            accounts: !self.accounts.is_empty(),
        }
    }

    /// Returns whether other tenants' functions run here.
    pub fn is_shared(&self) -> bool {
        !self.shared_with.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config, String> {
        let config: Config = toml::from_str(text).map_err(|error| error.to_string())?;
        config.check().map(|()| config)
    }

    #[test]
    fn omitted_settings_have_defaults() {
        assert_eq!(read(""), Ok(Config::default()));
        let config = read(
            "[provider]\nkind = \"slurm\"\n[provider.options]\npartition = \"idle\"\n\
             [blocks]\nmax = 4\nnodes = 2\nworkers_per_node = 8\nwalltime = \"1h30m\"",
        )
        .expect("a configuration");
        assert_eq!(config.blocks.walltime, Duration::from_secs(5_400));
        assert_eq!((config.terms().workers, config.max_workers()), (16, 64));
        assert_eq!(config.provider.options["partition"].as_str(), Some("idle"));
    }

    #[test]
    fn account_daemon_has_the_same_settings() {
        let config = read(
            "shared_with = [\"*\"]\n[provider]\nkind = \"slurm\"\n[provider.options]\npartition = \"idle\"\n\
             [blocks]\nwalltime = \"90m\"\n[accounts.map]\n\"*@example.org\" = \"*\"",
        )
        .expect("a configuration");
        assert_eq!(config.accounts.account("a@example.org").as_deref(), Ok("a"));
        let own = read(&config.for_account().expect("TOML")).expect("a configuration");
        assert!(own.accounts.is_empty() && !own.is_shared());
        assert_eq!((own.provider, own.blocks), (config.provider, config.blocks));
    }

    #[test]
    fn configuration_errors_are_named() {
        for (text, words) in [
            ("[blocks]\nmax = 0", "blocks.max"),
            ("[blocks]\nmin = 3\nmax = 2", "blocks.min"),
            ("[blocks]\nwalltim = \"1h\"", "walltim"),
            ("[blocks]\nwalltime = \"an hour\"", "no duration"),
            ("[provider]\nkind = \"slurm\"", "blocks.walltime"),
            ("[provider]\nkind = \"aws\"\n[blocks]\nnodes = 2", "is one node"),
            ("[provider]\nkind = \"google\"\n[blocks]\nnodes = 2", "is one node"),
            ("[provider]\nkind = \"azure\"\n[blocks]\nnodes = 2", "is one node"),
            ("[accounts.map]\na = \"root\"", "accounts.map"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(words), "{error}");
        }
    }
}
