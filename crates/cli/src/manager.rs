//! `dayfly manager`: the control plane alone, and tokens with which nodes join it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use dayfly_manager::{Manager, Options, StoreKind, oidc};
use dayfly_protocol::error::{Code, Failure};
use dayfly_sandbox::private;
use serde_json::json;

use crate::contents::ContentArguments;
use crate::daemon::{self, Ending, StateDir};
use crate::resources::levels;
use crate::values::Level;
use crate::{Global, connect, output, up, values};

/// Nodes that are asked more often have no time for anything else.
const SHORTEST_HEARTBEAT: Duration = Duration::from_millis(50);

/// Start a manager alone, or make tokens with which nodes join it.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "Examples:
  dayfly manager --listen 0.0.0.0:7070 --host-name head.example.org
  dayfly manager join-token --output join.json      then, on another machine, with that file:
  dayfly node --join join.json --listen-tcp 0.0.0.0:7071
  dayfly manager --store postgresql://dayfly@db.example.org/dayfly?sslrootcert=db.pem --host-name head2.example.org
                       one of several managers, which share that database and know each other by it

The manager never needs to reach a node: nodes open the connection. Leases go on while it is down or restarted.")]
pub struct Arguments {
    #[command(subcommand)]
    what: Option<What>,
    /// Where to listen; port 0 for any
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7070")]
    listen: SocketAddr,
    /// Database that several managers share: postgresql://USER@HOST/DATABASE, with ?sslrootcert=FILE where it is on another
    /// machine [default: a file in the state directory]
    #[arg(long, value_name = "URL", env = "DAYFLY_STORE", hide_env_values = true)]
    store: Option<String>,
    /// Where to keep state [default: $XDG_STATE_HOME/dayfly, or ~/.local/state/dayfly]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Name or address under which others reach this machine; may be repeated, the first one is handed out
    #[arg(long, value_name = "NAME")]
    host_name: Vec<String>,
    /// How often nodes send heartbeats; three that are missing make a lost node
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = values::duration)]
    heartbeat: Duration,
    /// With whom people log in (`dayfly login`): a JSON file that names an OpenID Connect provider and who is let in, see
    /// docs/guides/running.md
    #[arg(long, value_name = "FILE")]
    oidc: Option<PathBuf>,
    #[command(flatten)]
    contents: ContentArguments,
    /// How isolated workers may be, as far as their nodes allow it too; may be repeated, the first is for leases that name none
    #[arg(long, value_enum, value_name = "LEVEL", default_values = ["isolated", "container"])]
    sandbox: Vec<Level>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Make a token with which one node may join, once
    JoinToken(JoinToken),
}

/// Make a token with which one node may join, once.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly manager join-token --output join.json      a file for `dayfly node --join`
  dayfly manager join-token | ssh node7 dayfly node --join -

What is printed holds the token, the manager's address and its certificate authority: keep it secret until it is used.")]
struct JoinToken {
    /// How long it may lie unused
    #[arg(long = "for", value_name = "DURATION", default_value = "1h", value_parser = values::duration)]
    valid_for: Duration,
    /// Write it into this file, for you alone, instead of printing it
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

/// Writes a secret for this user alone.
pub fn write_private(path: &Path, text: &str) -> Result<(), Failure> {
    private::write(path, format!("{text}\n").as_bytes()).map_err(|error| {
        Failure::new(
            Code::StoreFailed,
            format!("{} cannot be written: {error}; choose another place", path.display()),
        )
    })
}
