//! `endpoint.toml`: what its owner may change.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dayfly_lease::ledger::MAX_WORKERS;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::tasks::EndpointSpec;
use dayfly_scheduling::BlockTerms;
use serde::{Deserialize, Serialize};
use toml::Table;

use super::accounts::Map;
use crate::values;

/// The configuration, in the endpoint's directory.
pub const FILE: &str = "endpoint.toml";

/// What an endpoint is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// For people.
    pub description: String,
    /// Names of tenants that may run tasks here too; `*` for everyone.
    pub shared_with: Vec<String>,
    /// Where nodes reach this endpoint: a name or an address of this machine.
    pub address: String,
    /// How it gets nodes.
    pub provider: ProviderConfig,
    /// How many nodes.
    pub blocks: BlockConfig,
    /// What nodes are.
    pub node: NodeConfig,
    /// Whose tasks run as which account.
    pub accounts: Map,
}

/// `[provider]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProviderConfig {
    /// `local`, a batch system or a cloud.
    pub kind: String,
    /// A Python that has what they are asked by, for all but `local`.
    pub python: PathBuf,
    /// For the provider.
    pub options: Table,
}

impl ProviderConfig {
    /// Whether nodes see no file of this machine's: all that they need comes with their command.
    pub fn is_apart(&self) -> bool {
        super::nodes::APART.contains(&self.kind.as_str())
    }
}

/// `[blocks]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BlockConfig {
    /// There are always so many.
    pub min: u32,
    /// There are never more.
    pub max: u32,
    /// Nodes of each.
    pub nodes: u32,
    /// Workers on each node.
    pub workers_per_node: u16,
    /// GPUs of each node, which its batch system gives it or which are simply there.
    pub gpus_per_node: u16,
    /// How long a block may last at most; nothing for no limit.
    #[serde(deserialize_with = "length", serialize_with = "of_length")]
    pub walltime: Duration,
    /// A block that has nothing to do for so long goes.
    #[serde(deserialize_with = "length", serialize_with = "of_length")]
    pub idle: Duration,
}

/// `[node]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeConfig {
    /// `dayfly` there; this program if it is empty.
    pub program: PathBuf,
    /// Python interpreters there that have the dayfly package, for tasks whose client's own is not there.
    pub python: Vec<String>,
    /// More arguments of `dayfly node`.
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

/// Cores of this machine.
fn cores() -> u16 {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    u16::try_from(cores).unwrap_or(u16::MAX)
}

/// Such as `90s`; nothing for none.
pub fn length<'de, D: serde::Deserializer<'de>>(text: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(text)?;
    match text.as_str() {
        "" => Ok(Duration::ZERO),
        text => values::duration(text).map_err(serde::de::Error::custom),
    }
}

/// The other way.
pub fn of_length<S: serde::Serializer>(length: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    match length.as_millis() {
        0 => serializer.serialize_str(""),
        ms => serializer.serialize_str(&format!("{ms}ms")),
    }
}

impl Config {
    /// Reads it from an endpoint's directory.
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

    /// What the daemon of an account does, as TOML.
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

    /// Whether it can be done; why not.
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

    /// How many blocks there are to be.
    pub fn terms(&self) -> BlockTerms {
        BlockTerms {
            min: self.blocks.min,
            max: self.blocks.max,
            workers: self.blocks.nodes.saturating_mul(self.blocks.workers_per_node.into()),
            idle_ms: u64::try_from(self.blocks.idle.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// Workers that it may have at a time.
    pub fn most_workers(&self) -> u16 {
        let most = self.terms().workers.saturating_mul(self.blocks.max);
        u16::try_from(most).unwrap_or(u16::MAX)
    }

    /// What the manager is told that the endpoint is.
    pub fn spec(&self) -> EndpointSpec {
        EndpointSpec {
            description: self.description.clone(),
            provider: self.provider.kind.clone(),
            shared_with: self.shared_with.clone(),
            accounts: !self.accounts.is_empty(),
        }
    }

    /// Whether others' functions run here.
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
    fn what_is_left_out_is_as_it_mostly_is() {
        assert_eq!(read(""), Ok(Config::default()));
        let config = read(
            "[provider]\nkind = \"slurm\"\n[provider.options]\npartition = \"idle\"\n\
             [blocks]\nmax = 4\nnodes = 2\nworkers_per_node = 8\nwalltime = \"1h30m\"",
        )
        .expect("a configuration");
        assert_eq!(config.blocks.walltime, Duration::from_secs(5_400));
        assert_eq!((config.terms().workers, config.most_workers()), (16, 64));
        assert_eq!(config.provider.options["partition"].as_str(), Some("idle"));
    }

    #[test]
    fn the_daemon_of_an_account_does_the_same_for_one() {
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
    fn mistakes_are_named() {
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
