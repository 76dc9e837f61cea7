//! Nodes of an endpoint's blocks, which join the endpoint's own manager.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dayfly_client::Client;
use dayfly_endpoint::blocks::{Site, SiteNode};
use dayfly_endpoint::provider::{Local, Program, Provider, ProviderError};
use dayfly_endpoint::{ElasticNodes, LendingNode, LendingNodes, NodeLimits, RuntimeCheck};
use dayfly_manager::LendingReport;
use dayfly_node::runtimes;
use dayfly_protocol::api::{JoinToken, NodeState, NodeStatus};
use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::dispatch::FromDispatcher;
use dayfly_protocol::endpoints::BlockStatus;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::NodeId;
use dayfly_scheduling::Demand;
use serde_json::json;
use tokio::sync::mpsc::UnboundedSender;

use super::config::{BlockConfig, Config};
use super::directory::{BLOCKS, STATUS, Status};
use crate::manager::write_private;
use crate::output;

/// The provider of nodes that are processes of this machine.
pub const LOCAL: &str = "local";
/// Providers whose nodes have no access to this machine's files.
pub const APART: [&str; 4] = ["kubernetes", "aws", "google", "azure"];
/// The Python module that controls batch systems and clouds.
const PROVIDERS: &str = "dayfly._providers";
/// Validity of join tokens: a job may wait long in its queue, and its nodes join only when it runs.
const JOIN_WITHIN: Duration = Duration::from_secs(30 * 24 * 3600);
/// A node ends after this time without its endpoint.
const ALONE_FOR: &str = "15m";
/// How long running calls may continue on an idle node that is released: they began while the node was being chosen.
const DRAIN: Duration = Duration::from_secs(10);
/// Interval of queries to a batch system, which serves other users too, and to this machine.
const POLL: Duration = Duration::from_secs(5);
const LOCAL_POLL: Duration = Duration::from_millis(500);
/// Limit for a node to join; the second value includes boot and installation.
const LATE: Duration = Duration::from_secs(120);
const LATE_APART: Duration = Duration::from_secs(15 * 60);
/// Validity of join tokens that other users may read in the node's command.
const JOIN_APART_WITHIN: Duration = Duration::from_secs(24 * 3600);

/// Returns which functions the nodes can run, as far as this machine can determine it.
pub fn suits(config: &Config) -> RuntimeCheck {
    // Interpreters of other machines are unknown here.
    let known = config.node.python.iter().filter(|_| !config.provider.is_apart());
    let pythons: Vec<PathBuf> = known.map(PathBuf::from).collect();
    // Tasks of the owner may access all files.
    let sees_all = !config.is_shared();
    Box::new(move |runtime| runtimes::check_version(runtime, &pythons, |_| sees_all))
}

/// Returns what a manager's nodes could lend, for its dispatcher.
pub fn lending(manager: &dayfly_manager::Handle) -> LendingNodes {
    let manager = manager.clone();
    let lending = move |(node, LendingReport { at, spare, unowned })| LendingNode {
        node,
        at,
        spare,
        unowned,
    };
    Box::new(move || manager.lending().into_iter().map(lending).collect())
}

/// Returns the interval of queries to the provider.
pub fn poll(config: &Config) -> Duration {
    if config.provider.kind == LOCAL {
        LOCAL_POLL
    } else {
        POLL
    }
}

/// Returns the limit for a node to join after its block has started.
pub fn late(config: &Config) -> Duration {
    if config.provider.is_apart() { LATE_APART } else { LATE }
}

/// Returns the provider of a configuration.
pub fn provider(config: &Config, directory: &Path) -> Result<Box<dyn Provider>, Failure> {
    Ok(match config.provider.kind.as_str() {
        LOCAL => Box::new(Local::new(directory.join(BLOCKS))),
        _ => Box::new(program(config, &directory.join(BLOCKS))?),
    })
}

fn program(config: &Config, directory: &Path) -> Result<Program, Failure> {
    let options = serde_json::to_value(&config.provider.options);
    let options = options.map_err(|error| Failure::new(Code::InvalidRequest, format!("provider.options: {error}")))?;
    let python = config.provider.python.to_string_lossy().into_owned();
    let command = vec![python, "-m".into(), PROVIDERS.into()];
    let greeting = json!({ "kind": config.provider.kind, "options": options, "directory": directory });
    Ok(Program::new(command, greeting))
}

/// Checks that the configured provider is available and accepts its options.
pub fn check(config: &Config) -> Result<(), Failure> {
    if config.provider.kind == LOCAL {
        return match config.provider.options.keys().next() {
            None => Ok(()),
            Some(key) => Err(Failure::new(
                Code::InvalidRequest,
                format!("the provider `{LOCAL}` has no option `{key}`; leave it out"),
            )),
        };
    }
    let checked = program(config, &std::env::temp_dir())?.check();
    checked.map_err(|trouble| {
        let words = match trouble {
            ProviderError::Refused(words) => words,
            trouble @ ProviderError::Unreachable(_) => trouble.to_string(),
        };
        let kind = &config.provider.kind;
        Failure::new(
            Code::InvalidRequest,
            format!("the provider `{kind}` cannot be used: {words}"),
        )
    })
}

/// The public status of a daemon, kept in a file.
pub struct Board {
    path: PathBuf,
    status: Mutex<Status>,
}

impl Board {
    /// Makes an empty status.
    pub fn new(directory: &Path, manager: String) -> Self {
        Self {
            path: directory.join(STATUS),
            status: Mutex::new(Status {
                pid: std::process::id(),
                manager,
                ..Status::default()
            }),
        }
    }

    fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether there are blocks, running or requested.
    pub fn has_blocks(&self) -> bool {
        !self.status().blocks.is_empty()
    }

    /// Changes the status, and writes the file if it differs.
    pub fn show(&self, change: impl FnOnce(&mut Status)) {
        let mut status = self.status();
        change(&mut status);
        let fresh = self.path.with_extension("new");
        let written = serde_json::to_vec_pretty(&*status)
            .map_err(std::io::Error::from)
            .and_then(|json| std::fs::write(&fresh, json))
            .and_then(|()| std::fs::rename(&fresh, &self.path));
        if let Err(error) = written {
            tracing::error!(path = %self.path.display(), %error, "the status cannot be written");
        }
    }
}

/// Remaining time of nodes, derived from the end of their blocks.
pub struct Lasting {
    manager: dayfly_manager::Handle,
    blocks: BlockConfig,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// End of each block, in milliseconds since the Unix epoch.
    ends_at_ms: HashMap<String, u64>,
    /// Block of each node.
    blocks: HashMap<NodeId, String>,
    /// Cores for workers of all nodes together.
    cores: MilliCores,
}

impl Seen {
    fn left(&self, node: NodeId) -> Option<Duration> {
        let ends_at_ms = self.ends_at_ms.get(self.blocks.get(&node)?)?;
        Some(Duration::from_millis(ends_at_ms.saturating_sub(output::now_ms())))
    }
}

impl Lasting {
    /// For the nodes of this manager, in these blocks.
    pub fn new(manager: dayfly_manager::Handle, blocks: BlockConfig) -> Self {
        Self {
            manager,
            blocks,
            seen: Mutex::default(),
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, blocks: &[BlockStatus]) {
        let ending = blocks.iter().filter(|block| block.ends_at_ms > 0);
        self.seen().ends_at_ms = ending.map(|block| (block.name.clone(), block.ends_at_ms)).collect();
    }
}

impl ElasticNodes for Lasting {
    fn nodes_lasting(&self, needed: Duration) -> Vec<NodeId> {
        let mut nodes = self.manager.nodes();
        nodes.retain(|node| node.state == NodeState::Up);
        // As for all warm leases: the emptiest first, and among those the nodes that could lend most.
        let coverages = self.manager.coverages();
        let coverage = |node: &NodeStatus| coverages.get(&node.address.id).copied().unwrap_or(0);
        nodes.sort_by_key(|node| std::cmp::Reverse((node.free.workers, coverage(node))));
        let mut seen = self.seen();
        seen.cores = nodes.iter().map(|node| node.capacity.workers).sum();
        let of = |node: &NodeStatus| Some((node.address.id, node.address.name.rsplit_once('.')?.0.to_owned()));
        seen.blocks = nodes.iter().filter_map(of).collect();
        let lasts = |node: &NodeId| match seen.left(*node) {
            Some(left) => needed < left,
            // The end of a new block is not known yet.
            None => self.blocks.walltime.is_zero(),
        };
        nodes.iter().map(|node| node.address.id).filter(lasts).collect()
    }

    fn remaining(&self, node: NodeId) -> Option<Duration> {
        self.seen().left(node)
    }

    fn max_lifetime(&self) -> Option<Duration> {
        (!self.blocks.walltime.is_zero()).then_some(self.blocks.walltime)
    }

    fn available_cores(&self) -> MilliCores {
        self.seen().cores
    }

    fn limits(&self) -> NodeLimits {
        NodeLimits {
            nodes: self.blocks.max.saturating_mul(self.blocks.nodes),
            cores: self.blocks.workers_per_node,
            gpus: self.blocks.gpus_per_node,
        }
    }
}

/// Nodes of an endpoint.
pub struct Nodes {
    pub config: Config,
    pub directory: PathBuf,
    /// The manager that the nodes join.
    pub manager: dayfly_manager::Handle,
    pub client: Client,
    pub runtime: tokio::runtime::Handle,
    /// Returns the current demand.
    pub demand: Box<dyn Fn() -> Demand + Send>,
    /// Returns the number of workers leased for tasks.
    pub leased: Box<dyn Fn() -> u32 + Send>,
    /// Channel to the dispatcher.
    pub said: UnboundedSender<FromDispatcher>,
    pub board: Arc<Board>,
    pub lasting: Arc<Lasting>,
}

impl Nodes {
    fn join_file(&self, block: &str, rank: u32) -> PathBuf {
        self.directory.join(BLOCKS).join(format!("{block}.{rank}.json"))
    }

    /// Returns the shell command of a node. With a token for nodes that have no other access to it.
    fn command(&self, block: &str, token: Option<&JoinToken>) -> Result<String, Failure> {
        let node = &self.config.node;
        let program = match (node.program.as_os_str().is_empty(), token) {
            (false, _) => node.program.clone(),
            // Found on the node's `PATH`.
            (true, Some(_)) => "dayfly".into(),
            (true, None) => std::env::current_exe().map_err(|error| {
                let text = format!("this program does not know where it is: {error}");
                Failure::new(Code::Internal, text)
            })?,
        };
        let mut words = vec![quoted(&program.to_string_lossy()), "node".into()];
        let join = self.directory.join(BLOCKS).join(block);
        words.push(match token {
            Some(_) => "--join -".into(),
            None => format!("--join {}.\"$DAYFLY_RANK\".json", quoted(&join.to_string_lossy())),
        });
        words.push(format!("--name {}.\"$DAYFLY_RANK\"", quoted(block)));
        words.push(format!("--state-dir \"$state\" --ephemeral --alone-for {ALONE_FOR}"));
        if !node.arguments.iter().any(|argument| argument.starts_with("--workers")) {
            words.push(format!("--workers {}", self.config.blocks.workers_per_node));
        }
        words.push(match (self.is_local(), token) {
            (true, _) => "--listen-tcp 127.0.0.1:0".into(),
            (false, None) => "--listen-tcp 0.0.0.0:0 --host-name \"$(hostname)\"".into(),
            // Pods and instances may have no resolvable names.
            (false, Some(_)) => "--listen-tcp 0.0.0.0:0 --host-name \"${addresses%% *}\"".into(),
        });
        if !self.config.is_shared() {
            // Only tenants of the owner use this node.
            words.push("--sandbox process --sandbox isolated --run-tenants-as-me".into());
        }
        words.extend(node.python.iter().map(|python| format!("--python {}", quoted(python))));
        words.extend(node.arguments.iter().map(|argument| quoted(argument)));
        let (words, state) = (
            words.join(" "),
            "state=$(mktemp -d \"${TMPDIR:-/tmp}/dayfly-XXXXXXXX\")",
        );
        Ok(match token {
            None => format!("{state} && exec {words}"),
            Some(token) => format!(
                "addresses=$(hostname -I) && {state} && exec {words} <<'DAYFLY'\n{}\nDAYFLY\n",
                output::json(token)?
            ),
        })
    }

    fn is_local(&self) -> bool {
        self.config.provider.kind == LOCAL
    }
}

/// Quotes a word for the shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

impl Site for Nodes {
    fn prepare(&mut self, block: &str, nodes: u32) -> Result<String, Failure> {
        if self.config.provider.is_apart() {
            let token = self.runtime.block_on(self.manager.join_token(JOIN_APART_WITHIN))?;
            return self.command(block, Some(&token));
        }
        for rank in 0..nodes {
            let token = self.runtime.block_on(self.manager.join_token(JOIN_WITHIN))?;
            write_private(&self.join_file(block, rank), &output::json(&token)?)?;
        }
        self.command(block, None)
    }

    fn nodes(&self) -> Vec<SiteNode> {
        let nodes = self
            .manager
            .nodes()
            .into_iter()
            .filter(|node| node.state == NodeState::Up);
        let seen = nodes.map(|node| SiteNode {
            name: node.address.name,
            leases: node.leases,
        });
        seen.collect()
    }

    fn demand(&self) -> Demand {
        let Demand { workers, longest_ms } = (self.demand)();
        // Includes leases that tenants make directly.
        let leased = self.manager.demanded_workers().saturating_sub((self.leased)().into());
        Demand {
            workers: workers + leased,
            longest_ms,
        }
    }

    fn drain(&mut self, block: &str) {
        for node in self.manager.nodes() {
            let its = node
                .address
                .name
                .rsplit_once('.')
                .is_some_and(|(name, _)| name == block);
            if its
                && node.state == NodeState::Up
                && let Err(error) = self.client.reclaim_node(node.address.id, DRAIN)
            {
                tracing::warn!(node = node.address.name, %error, "a node that goes cannot be told to take nothing more");
            }
        }
    }

    fn report(&mut self, blocks: &[BlockStatus], trouble: Option<&str>) {
        self.lasting.set(blocks);
        let (blocks, trouble) = (blocks.to_vec(), trouble.map(str::to_owned));
        // The receiver goes away when the endpoint ends.
        let _ = self.said.send(FromDispatcher::Blocks {
            blocks: blocks.clone(),
            trouble: trouble.clone(),
        });
        self.board
            .show(|status| (status.blocks, status.trouble) = (blocks, trouble));
    }

    fn clean_up(&mut self, block: &str) {
        // The block's tokens have expired or must be revoked.
        for rank in 0.. {
            if std::fs::remove_file(self.join_file(block, rank)).is_err() {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_shell_quoting() {
        for word in ["plain", "with space", "it's", "$HOME `x` \"y\" \\"] {
            let output = std::process::Command::new("/bin/sh")
                .args(["-c", &format!("printf %s {}", quoted(word))])
                .output()
                .expect("a shell");
            assert_eq!(String::from_utf8_lossy(&output.stdout), word);
        }
    }
}
