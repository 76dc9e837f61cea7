//! `dayfly manager`: a manager without a node, and join tokens for nodes.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use dayfly_command::Global;
use dayfly_manager::{Manager, Options, StoreKind, oidc};
use dayfly_protocol::error::{Code, Failure};
use dayfly_sandbox::private_file;
use serde_json::json;

use crate::contents::ContentArguments;
use crate::daemon::{self, Ending, StateDir};
use crate::resources::levels;
use crate::values::Level;
use crate::{connect, output, up, values};

/// Minimum heartbeat interval. Nodes would have no time for other work at shorter ones.
const SHORTEST_HEARTBEAT: Duration = Duration::from_millis(50);

/// Start a manager without a node, or make tokens for nodes to join it.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "Examples:
  dayfly manager --listen 0.0.0.0:7070 --host-name head.example.org
  dayfly manager join-token --output join.json      then, with this file on another machine:
  dayfly node --join join.json --listen-tcp 0.0.0.0:7071
  dayfly manager --store postgresql://dayfly@db.example.org/dayfly?sslrootcert=db.pem --host-name head2.example.org
                       one of several managers that share this database

Nodes connect to the manager; it needs no connection to a node. Leases continue while the manager is down or restarts.")]
pub struct Arguments {
    #[command(subcommand)]
    what: Option<What>,
    /// Address to listen on; port 0 for any free port
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7070")]
    listen: SocketAddr,
    /// Database shared by several managers: postgresql://USER@HOST/DATABASE, with ?sslrootcert=FILE if it is on another
    /// machine [default: a file in the state directory]
    #[arg(long, value_name = "URL", env = "DAYFLY_STORE", hide_env_values = true)]
    store: Option<String>,
    /// State directory [default: $XDG_STATE_HOME/dayfly, or ~/.local/state/dayfly]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Name or address under which others reach this machine; may be repeated, the first is given to clients
    #[arg(long, value_name = "NAME")]
    host_name: Vec<String>,
    /// Interval of the nodes' heartbeats; a node is lost after three missing ones
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = values::duration)]
    heartbeat: Duration,
    /// Identity provider for `dayfly login`: a JSON file that names an OpenID Connect provider and who may log in, see
    /// docs/guides/running.md
    #[arg(long, value_name = "FILE")]
    oidc: Option<PathBuf>,
    #[command(flatten)]
    contents: ContentArguments,
    /// Allowed isolation of workers, where their nodes allow it too; may be repeated, the first is the default of
    /// leases
    #[arg(long, value_enum, value_name = "LEVEL", default_values = ["isolated", "container"])]
    sandbox: Vec<Level>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Make a single-use token for a node to join
    JoinToken(JoinToken),
}

/// Make a single-use token for a node to join.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly manager join-token --output join.json      a file for `dayfly node --join`
  dayfly manager join-token | ssh node7 dayfly node --join -

The output contains the token, the manager's address and its certificate authority. Keep it secret until it has been used.")]
struct JoinToken {
    /// Time until the token expires unused
    #[arg(long = "for", value_name = "DURATION", default_value = "1h", value_parser = values::duration)]
    valid_for: Duration,
    /// File for the token, readable only by you [default: standard output]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub fn run(arguments: &Arguments, global: &Global) -> Result<(), Failure> {
    match &arguments.what {
        Some(What::JoinToken(wanted)) => join_token(wanted, global),
        None => daemon::run(serve(arguments, global)),
    }
}

async fn serve(arguments: &Arguments, global: &Global) -> Result<(), Failure> {
    let mut ending = Ending::new(None)?;
    let state = StateDir::take(&connect::state_dir(arguments.state_dir.as_deref())?)?;
    let mut options = Options::new(state.path());
    options.listen = arguments.listen;
    options.names = up::names(arguments.listen, &arguments.host_name);
    options.sandboxes = levels(&arguments.sandbox);
    if arguments.heartbeat < SHORTEST_HEARTBEAT {
        let text = format!(
            "--heartbeat of less than {} ms; give more",
            SHORTEST_HEARTBEAT.as_millis()
        );
        return Err(Failure::new(Code::InvalidRequest, text));
    }
    options.heartbeat = arguments.heartbeat;
    arguments.contents.apply(&mut options)?;
    options.oidc = arguments.oidc.as_deref().map(oidc::Site::read).transpose()?;
    if let Some(url) = &arguments.store {
        options.store = StoreKind::Postgres { url: url.clone() };
    }
    let manager = tokio::select! {
        manager = Manager::start(options) => manager?,
        _ = ending.told() => return Ok(()),
    };
    tokio::spawn(daemon::log_leases(manager.events()));
    let connection = manager.connection_path().display();
    output::announce(&if global.json {
        output::json(&json!({
            "ready": true,
            "manager": manager.url(),
            "connection": manager.connection_path(),
            "state_dir": state.path(),
            "pid": std::process::id(),
        }))?
    } else {
        format!(
            "The manager is ready.\n\n  manager  {}\n  state    {}\n\n\
             Add a node:\n  dayfly manager join-token --manager {connection} --output join.json\n  \
             dayfly node --join join.json          on the node, with that file\n\n\
             Clients need {connection}, or a copy of it, as DAYFLY_MANAGER. Ctrl-C ends it.",
            manager.url(),
            state.path().display(),
        )
    });
    ending.told().await;
    tracing::info!("ending");
    ending.orderly(manager.shutdown()).await;
    Ok(())
}

fn join_token(wanted: &JoinToken, global: &Global) -> Result<(), Failure> {
    let client = connect::manager(global)?;
    let body = json!({ "valid_for_ms": wanted.valid_for.as_millis() as u64 });
    let token: serde_json::Value = client.post("/v1/nodes/join-tokens", &body).map_err(|error| error.0)?;
    let Some(path) = &wanted.output else {
        output::line(&output::json(&token)?);
        return Ok(());
    };
    write_private(path, &output::json(&token)?)?;
    output::line(&if global.json {
        output::json(&json!({ "output": path, "expires_at_ms": token.get("expires_at_ms") }))?
    } else {
        format!("{0} lets one node join, with `dayfly node --join {0}`.", path.display())
    });
    Ok(())
}

/// Writes a secret to a file that only this user can read.
pub fn write_private(path: &Path, text: &str) -> Result<(), Failure> {
    private_file::write(path, format!("{text}\n").as_bytes()).map_err(|error| {
        Failure::new(
            Code::StoreFailed,
            format!("{} cannot be written: {error}; choose another place", path.display()),
        )
    })
}
