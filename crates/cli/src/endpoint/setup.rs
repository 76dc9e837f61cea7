//! Setup and removal of an endpoint on this machine.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use dayfly_client::encoded;
use dayfly_command::Global;
use dayfly_protocol::api::{Connection, ManagerStatus};
use dayfly_protocol::endpoints::{EndpointRegistration, EndpointStatus, NewEndpoint};
use dayfly_protocol::error::{Code, Failure};
use serde_json::json;
use toml::Value;

use super::config::{self, BlockConfig, Config};
use super::directory::{self, CREDENTIAL, Directory};
use super::nodes::{self, APART, LOCAL};
use crate::manager::write_private;
use crate::{connect, output, values};

/// Set up an endpoint on this machine.
#[derive(Debug, Args)]
#[command(
    name = "setup",
    after_help = "Examples:
  dayfly endpoint setup mine                      nodes are processes of this machine
  dayfly endpoint setup cluster --provider slurm --option partition=idle --walltime 1h --nodes-per-block 2 --max-blocks 4
  dayfly endpoint setup shared --share-with alice --share-with bob
  dayfly endpoint setup site --account '*@example.org=*' --provider slurm      each tenant under its own account; as root

Registers the endpoint with the manager of --manager, and writes endpoint.toml into a new directory; you can edit this file.
Batch systems are controlled through Parsl's providers, which require `pip install 'parsl>=2026.10'`; --option sets their options
(https://parsl.readthedocs.io). Clouds require `pip install boto3` for Amazon EC2, `google-auth requests` for Google Compute
Engine, `azure-identity requests` for Microsoft Azure."
)]
pub struct Arguments {
    /// Name of the endpoint, for you and others
    name: String,
    /// Provider of nodes: local, slurm, pbs, torque, lsf, grid-engine, htcondor, kubernetes, aws, google or azure
    #[arg(long, value_name = "KIND", default_value = LOCAL)]
    provider: String,
    /// Option of the provider, such as partition=idle or account=p123; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = option)]
    option: Vec<(String, Value)>,
    /// Python interpreter with the provider's packages [default: the one that this program was installed with]
    #[arg(
        long,
        value_name = "EXE",
        env = "DAYFLY_PYTHON",
        hide_env_values = true,
        default_value = "python3"
    )]
    python: PathBuf,
    /// Minimum number of blocks (pilot jobs)
    #[arg(long, value_name = "N", default_value_t = 0)]
    min_blocks: u32,
    /// Maximum number of blocks
    #[arg(long, value_name = "N", default_value_t = 1)]
    max_blocks: u32,
    /// Nodes per block
    #[arg(long, value_name = "N", default_value_t = 1)]
    nodes_per_block: u32,
    /// Workers per node [default: the number of cores of this machine]
    #[arg(long, value_name = "N")]
    workers_per_node: Option<u16>,
    /// GPUs per node; request them from a batch system with --option
    #[arg(long, value_name = "N", default_value_t = 0)]
    gpus_per_node: u16,
    /// Maximum duration of a block [default: no limit for local blocks, else one hour]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    walltime: Option<Duration>,
    /// Idle time after which a block is released
    #[arg(long, value_name = "DURATION", value_parser = values::duration, default_value = "2m")]
    idle: Duration,
    /// Name or address of this machine for its nodes [default: its host name; the loopback address for local nodes]
    #[arg(long, value_name = "HOST")]
    address: Option<String>,
    /// Tenant whose tasks may run here too, or * for all tenants; may be repeated. The tasks run under your account
    #[arg(long, value_name = "TENANT")]
    share_with: Vec<String>,
    /// Run the tasks of TENANT under ACCOUNT of this machine; may be repeated. `*` stands for the same text in both,
    /// such as '*@example.org=*'. Requires root
    #[arg(long, value_name = "TENANT=ACCOUNT", value_parser = account)]
    account: Vec<(String, String)>,
    /// Description for people
    #[arg(long, value_name = "TEXT", default_value = "")]
    description: String,
}

fn account(text: &str) -> Result<(String, String), String> {
    let (tenant, account) = text
        .rsplit_once('=')
        .ok_or_else(|| format!("`{text}` names no account; write one such as alice=alice, or '*@example.org=*'"))?;
    Ok((tenant.into(), account.into()))
}

fn option(text: &str) -> Result<(String, Value), String> {
    let (key, value) = text
        .split_once('=')
        .ok_or_else(|| format!("`{text}` is no option; write one such as partition=idle"))?;
    // `4` and `true` become a number and a truth value, all else text.
    let value = match value.parse::<i64>() {
        Ok(number) => Value::Integer(number),
        Err(_) => match value {
            "true" | "false" => Value::Boolean(value == "true"),
            text => Value::String(text.into()),
        },
    };
    Ok((key.into(), value))
}

pub fn run(arguments: &Arguments, global: &Global) -> Result<(), Failure> {
    let directory = Directory::of(&arguments.name)?;
    if directory.path().join(config::FILE).exists() {
        let text = format!(
            "the endpoint `{}` is set up already: change {}, or remove it by `dayfly endpoint remove {}`",
            arguments.name,
            directory.path().join(config::FILE).display(),
            arguments.name
        );
        return Err(Failure::new(Code::InvalidRequest, text));
    }
    let text = arguments.text();
    let config: Config = toml::from_str(&text).map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
    config.check().map_err(|why| Failure::new(Code::InvalidRequest, why))?;
    // Report a missing batch system or an unknown option now rather than later.
    nodes::check(&config)?;
    let client = connect::manager(global)?;
    let registration = EndpointRegistration {
        name: arguments.name.clone(),
        spec: config.spec(),
    };
    let new: NewEndpoint = client.post("/v1/endpoints", &registration).map_err(|error| error.0)?;
    let managers: Vec<ManagerStatus> = client.get("/v1/managers").map_err(|error| error.0)?;
    let mut managers = managers.into_iter().map(|manager| manager.address);
    let asked = managers.next().ok_or_else(|| {
        let text = "the manager does not say who it is; install the same release there and here";
        Failure::new(Code::VersionMismatch, text)
    })?;
    let connection = Connection {
        // The manager's address as reached from this machine.
        manager: client.manager_url().map_err(|error| error.0)?,
        ca_pem: asked.ca_pem,
        token: new.token,
        others: managers.collect(),
    };
    directory.make()?;
    write_private(&directory.path().join(CREDENTIAL), &output::json(&connection)?)?;
    write_private(&directory.path().join(config::FILE), text.trim_end())?;
    let file = directory.path().join(config::FILE);
    output::line(&match global.json {
        true => output::json(&json!({ "endpoint": new.status, "configuration": file }))?,
        false => format!(
            "The endpoint {0} is set up, for the manager {1}.\n\n  configuration  {2}\n\n\
             Start it:\n  dayfly endpoint start {0}",
            arguments.name,
            connection.manager,
            file.display()
        ),
    });
    Ok(())
}

impl Arguments {
    /// Returns the text of the configuration, with comments on the settings.
    fn text(&self) -> String {
        let is_local = self.provider == LOCAL;
        let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        let address = match &self.address {
            Some(address) => address.clone(),
            None if is_local => "127.0.0.1".into(),
            None => host(),
        };
        let walltime = match self.walltime {
            Some(walltime) => format!("{}s", walltime.as_secs()),
            None if is_local => String::new(),
            None => "1h".into(),
        };
        let mut options = String::new();
        for (key, value) in &self.option {
            // Writing to a string does not fail.
            let _ = writeln!(options, "{key} = {value}");
        }
        // Without an explicit list, every tenant with an account may use the endpoint.
        let everybody = ["*".to_owned()];
        let share_with = match self.share_with.is_empty() && !self.account.is_empty() {
            true => &everybody[..],
            false => &self.share_with,
        };
        let shared: Vec<_> = share_with.iter().map(|name| Value::String(name.clone())).collect();
        let quoted = |text: &str| Value::String(text.into()).to_string();
        let mut accounts = String::new();
        for (tenant, account) in &self.account {
            let _ = writeln!(accounts, "{} = {}", quoted(tenant), quoted(account));
        }
        let workers = self.workers_per_node.unwrap_or(BlockConfig::default().workers_per_node);
        let gpus = self.gpus_per_node;
        format!(
            "# The endpoint {name}. Changes take effect at its next start.\n\
             description = {description}\n\
             # Tenants whose tasks may run here too, under the owner's account; \"*\" for all.\n\
             shared_with = {shared}\n\
             # Name or address of this machine for its nodes.\n\
             address = {address}\n\n\
             [provider]\n\
             # local, a batch system (controlled through Parsl's provider), or aws, google or azure.\n\
             kind = {kind}\n\
             # Python interpreter with the provider's packages.\n\
             python = {python}\n\n\
             # Options of the provider, such as partition, account, scheduler_options, worker_init.\n\
             [provider.options]\n{options}\n\
             # A block is one job of the batch system. The number of blocks follows the demand, between min and max.\n\
             [blocks]\n\
             min = {min}\n\
             max = {max}\n\
             nodes = {nodes}\n\
             workers_per_node = {workers}\n\
             gpus_per_node = {gpus}\n\
             walltime = {walltime}\n\
             # Idle time after which a block is released.\n\
             idle = \"{idle}s\"\n\n\
             [node]\n\
             # Path of dayfly on the nodes, if it differs from this machine's (for pods and instances: if it is not on their PATH).\n\
             program = \"\"\n\
             # Python interpreters on the nodes with the dayfly package, for clients whose own is not installed there.\n\
             python = [{interpreter}]\n\
             # Additional arguments of `dayfly node`.\n\
             arguments = []\n\n\
             # Accounts of this machine under which the tasks of tenants run, each in a separate daemon. If empty, all tasks run under\n\
             # the account of this endpoint's owner. `*` stands for the same text in both: \"*@example.org\" = \"*\".\n\
             [accounts.map]\n{accounts}\n\
             [accounts]\n\
             # Idle time after which an account's daemon ends, until there is work for it.\n\
             idle = \"10m\"\n\
             # Minimum user id of an account.\n\
             least_uid = 1000\n",
            name = self.name,
            description = quoted(&self.description),
            shared = Value::Array(shared),
            address = quoted(&address),
            kind = quoted(&self.provider),
            python = quoted(&self.python.to_string_lossy()),
            min = self.min_blocks,
            max = self.max_blocks,
            nodes = self.nodes_per_block,
            walltime = quoted(&walltime),
            idle = self.idle.as_secs(),
            interpreter = match self.python.is_absolute() {
                // The image's own interpreter, because that of this machine is not available there.
                _ if APART.contains(&self.provider.as_str()) => quoted("python3"),
                true => quoted(&self.python.to_string_lossy()),
                false => String::new(),
            },
        )
    }
}

/// Removes an endpoint: first from its manager, then from this machine.
pub fn remove(name: &str, global: &Global) -> Result<(), Failure> {
    let directory = Directory::of(name)?;
    if let Some(pid) = directory::holder(&directory)? {
        let text =
            format!("the endpoint `{name}` runs, as process {pid}; stop it first, by `dayfly endpoint stop {name}`");
        return Err(Failure::new(Code::InvalidRequest, text));
    }
    let client = connect::manager(global)?;
    let removed = client.delete::<Option<EndpointStatus>>(&format!("/v1/endpoints/{}", encoded(name)));
    match removed {
        Ok(_) => {}
        // The manager no longer has it, but its directory remains.
        Err(error) if error.code() == Code::NotFound && directory.path().exists() => {}
        Err(error) => return Err(error.0),
    }
    directory.remove()?;
    output::line(&match global.json {
        true => output::json(&json!({ "removed": name }))?,
        false => format!("The endpoint {name} is gone."),
    });
    Ok(())
}
