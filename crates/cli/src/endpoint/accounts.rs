//! An endpoint for many tenants: the tasks of each run under an account of this machine, in a daemon of that account.
//!
//! The process that runs as root maps tenants to accounts and starts daemons. It reads no task, and accesses no file of
//! an account. A daemon drops root's privileges first and then locks a directory in the account's home. Only then does
//! it receive the credential for the manager.

mod account;
mod map;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::process::Stdio;
use std::time::Duration;

use dayfly_client::Client;
use dayfly_command::Global;
use dayfly_endpoint::connection::{self, ConnectionState};
use dayfly_protocol::api::Connection;
use dayfly_protocol::dispatch::{FromDispatcher, ToDispatcher};
use dayfly_protocol::endpoints::{AccountRequest, NewEndpoint};
use dayfly_protocol::error::{Code, Failure, Retry};
use dayfly_protocol::ids::TenantId;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use self::account::Account;
pub use self::map::Map;
use super::config::{self, Config};
use super::daemon;
use super::directory::{CREDENTIAL, Directory, LOG};
use super::nodes::Board;
use crate::daemon::{Ending, StateDir};
use crate::manager::write_private;
use crate::output;

/// Limit for a daemon to lock its directory.
const START_DEADLINE: Duration = Duration::from_secs(20);
/// Limit for daemons to release their nodes.
const STOP_DEADLINE: Duration = Duration::from_secs(50);
/// Minimum delay before a daemon that ended is started again.
const REST: Duration = Duration::from_secs(2);
/// Size limit of the data that a daemon receives, in bytes.
const MAX_GIVEN: u64 = 1 << 20;
/// Size limit of a daemon's error output, in bytes.
const MAX_TEXT: u64 = 4 << 10;

/// Data that an account's daemon receives after it has dropped root's privileges.
#[derive(Serialize, Deserialize)]
struct Given {
    connection: Connection,
    config: String,
}

/// Tenant and result of a daemon that ended.
type Ended = (TenantId, Result<(), Failure>);

/// Runs an endpoint for many tenants until it is told to stop.
pub async fn serve(
    name: &str,
    global: &Global,
    state: StateDir,
    config: Config,
    credential: Connection,
    mut ending: Ending,
) -> Result<(), Failure> {
    if !rustix::process::geteuid().is_root() {
        let text = "an endpoint with accounts starts daemons as other users: run it as root, or remove [accounts] from its endpoint.toml";
        return Err(Failure::new(Code::InvalidRequest, text));
    }
    let board = Board::new(state.path(), credential.manager.clone());
    let mut channels = connection::open(connection::Options {
        managers: credential.managers(),
        token: credential.token.clone(),
        outbox: None,
        spec: Some(config.spec()),
    })?;
    let (ended, mut ends) = mpsc::unbounded_channel();
    let mut running = Running {
        map: config.accounts.clone(),
        config: config.for_account()?,
        credential,
        daemons: HashMap::new(),
        ended,
    };
    tokio::select! {
        _ = channels.state.wait_for(|state| *state != ConnectionState::Connecting) => {}
        _ = ending.told() => return Ok(()),
    }
    output::announce(&match global.json {
        true => output::json(&json!({ "ready": true, "endpoint": name, "pid": std::process::id() }))?,
        false => format!("The endpoint {name} runs. Ctrl-C ends it, and the daemons of its accounts."),
    });
    let mut seen = channels.state;
    seen.mark_changed();
    loop {
        tokio::select! {
            message = channels.incoming.recv() => match message {
                Some(ToDispatcher::StartEndpoint { tenant, name, endpoint }) => running.want(tenant, name, endpoint),
                Some(_) => {}
                None => break,
            },
            Some((tenant, result)) = ends.recv() => {
                running.daemons.remove(&tenant);
                if let Err(failure) = result {
                    tracing::warn!(%tenant, %failure, "no daemon for this tenant");
                    // Temporary failures are retried.
                    if failure.code.retry() != Retry::Later {
                        let _ = channels.outgoing.send(FromDispatcher::Unmapped { tenant, failure });
                    }
                }
            },
            changed = seen.changed() => {
                if changed.is_err() {
                    break;
                }
                let text = seen.borrow_and_update().to_string();
                board.show(|status| status.connection = text);
            },
            _ = ending.told() => break,
        }
    }
    tracing::info!(daemons = running.daemons.len(), "ending");
    let end = async {
        running.end();
        while !running.daemons.is_empty()
            && let Some((tenant, _)) = ends.recv().await
        {
            running.daemons.remove(&tenant);
        }
    };
    let _ = tokio::time::timeout(STOP_DEADLINE, ending.orderly(end)).await;
    Ok(())
}

struct Running {
    map: Map,
    /// Configuration of the daemons, as TOML.
    config: String,
    credential: Connection,
    /// Stop channels of the running daemons.
    daemons: HashMap<TenantId, mpsc::UnboundedSender<()>>,
    ended: mpsc::UnboundedSender<Ended>,
}

impl Running {
    fn want(&mut self, tenant: TenantId, name: String, endpoint: String) {
        if self.daemons.contains_key(&tenant) {
            return;
        }
        let (stop, stopped) = mpsc::unbounded_channel();
        self.daemons.insert(tenant, stop);
        let daemon = Daemon {
            tenant,
            name,
            endpoint,
            map: self.map.clone(),
            config: self.config.clone(),
            credential: self.credential.clone(),
        };
        let ended = self.ended.clone();
        tokio::spawn(async move {
            let result = daemon.run(stopped).await;
            if result.is_ok() {
                tokio::time::sleep(REST).await;
            }
            // The receiver only goes away when the process ends.
            let _ = ended.send((tenant, result));
        });
    }

    fn end(&self) {
        for stop in self.daemons.values() {
            // The daemon may already have ended.
            let _ = stop.send(());
        }
    }
}

/// The daemon of an account, from start to end.
struct Daemon {
    tenant: TenantId,
    name: String,
    endpoint: String,
    map: Map,
    config: String,
    credential: Connection,
}

impl Daemon {
    async fn run(self, mut stopped: mpsc::UnboundedReceiver<()>) -> Result<(), Failure> {
        let account = self.map.account(&self.name)?;
        let account = Account::find(&account, self.map.least_uid()).await.map_err(|why| {
            let name = &self.name;
            let text = format!("`{name}` is `{account}` at this endpoint, which cannot be: {why}; ask its operator");
            Failure::new(Code::Forbidden, text)
        })?;
        let mut child = self.start(&account)?;
        let ready = tokio::time::timeout(START_DEADLINE, ready(&mut child)).await;
        match ready.unwrap_or_else(|_| Err("it does not start".into())) {
            Ok(true) => {}
            Ok(false) => {
                tracing::info!(account = account.name, "an earlier daemon has not ended yet");
                let _ = child.wait().await;
                return Ok(());
            }
            Err(why) => {
                let _ = child.kill().await;
                let text = format!("the daemon of the account {} did not start: {why}", account.name);
                return Err(Failure::new(Code::ExecutorFailed, text));
            }
        }
        // No other daemon of this account runs now, so its token can be replaced.
        let (request, credential) = (AccountRequest { tenant: self.tenant }, self.credential.clone());
        let asked = tokio::task::spawn_blocking(move || -> Result<NewEndpoint, Failure> {
            let client = Client::manager_at(&credential).map_err(|error| error.0)?;
            client.post("/v1/endpoints/accounts", &request).map_err(|error| error.0)
        });
        let asked = asked
            .await
            .unwrap_or_else(|error| Err(Failure::new(Code::Internal, error.to_string())));
        let new = match asked {
            Ok(new) => new,
            Err(failure) => {
                let _ = child.kill().await;
                return Err(failure);
            }
        };
        let given = Given {
            connection: Connection {
                token: new.token,
                ..self.credential.clone()
            },
            config: self.config.clone(),
        };
        let mut json = serde_json::to_vec(&given).map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
        json.push(b'\n');
        if let Some(mut stdin) = child.stdin.take() {
            // A daemon that has ended reports this with its status.
            let _ = stdin.write_all(&json).await;
        }
        tracing::info!(
            tenant = new.status.owner,
            account = account.name,
            endpoint = self.endpoint,
            pid = child.id(),
            "a daemon runs"
        );
        let status = tokio::select! {
            status = child.wait() => status,
            _ = stopped.recv() => {
                let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
                if let Some(pid) = pid {
                    // The process may already have ended.
                    let _ = kill_process(pid, Signal::TERM);
                }
                child.wait().await
            }
        };
        match status {
            Ok(status) if status.success() => tracing::info!(account = account.name, "its daemon ended"),
            Ok(status) => tracing::warn!(account = account.name, %status, "its daemon ended"),
            Err(error) => tracing::warn!(account = account.name, %error, "its daemon is lost"),
        }
        Ok(())
    }

    fn start(&self, account: &Account) -> Result<Child, Failure> {
        let failed = |error: std::io::Error| {
            let text = format!("the daemon of the account {} cannot be started: {error}", account.name);
            Failure::new(Code::ExecutorFailed, text)
        };
        let mut command = std::process::Command::new(std::env::current_exe().map_err(failed)?);
        command
            .args(["endpoint", "account", "--log", "info", "--parent"])
            .arg(std::process::id().to_string())
            .args(["--", &self.endpoint])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        account.runs(&mut command);
        let mut command = Command::from(command);
        command.kill_on_drop(false).spawn().map_err(failed)
    }
}

/// Waits until a daemon has locked its directory (true), or reports that another one has (false). Errors with its
/// output.
async fn ready(child: &mut Child) -> Result<bool, String> {
    let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Err("it has no output".into());
    };
    let mut line = String::new();
    let read = BufReader::new(stdout).take(MAX_TEXT).read_line(&mut line).await;
    match line.trim() {
        READY if read.is_ok() => return Ok(true),
        BUSY if read.is_ok() => return Ok(false),
        _ => {}
    }
    let mut said = Vec::new();
    let _ = stderr.take(MAX_TEXT).read_to_end(&mut said).await;
    Err(String::from_utf8_lossy(&said).trim().to_owned())
}

/// First line of a daemon that has locked its directory.
const READY: &str = "ready";
/// First line of a daemon whose directory is locked by another.
const BUSY: &str = "busy";

/// Runs the daemon of this account, started by a process that runs as root.
pub fn run(name: &str, parent: u32, global: &Global) -> Result<(), Failure> {
    if rustix::process::getuid().is_root() || rustix::process::geteuid().is_root() {
        let text = "the daemon of an account does not run as root; it is started by `dayfly endpoint run`";
        return Err(Failure::new(Code::Forbidden, text));
    }
    let directory = Directory::of(name)?;
    directory.make()?;
    let state = match StateDir::take(directory.path()) {
        Err(failure) if failure.code == Code::AddressInUse => {
            output::announce(BUSY);
            return Ok(());
        }
        state => state?,
    };
    let failed = |error: std::io::Error| Failure::new(Code::StoreFailed, format!("the daemon cannot start: {error}"));
    output::announce(READY);
    let mut given = String::new();
    let read = std::io::stdin().take(MAX_GIVEN).read_to_string(&mut given);
    read.map_err(failed)?;
    let given: Given = serde_json::from_str(&given).map_err(|error| {
        Failure::new(
            Code::InvalidRequest,
            format!("what the daemon was given cannot be read: {error}"),
        )
    })?;
    write_private(&directory.path().join(CREDENTIAL), &output::json(&given.connection)?)?;
    write_private(&directory.path().join(config::FILE), given.config.trim_end())?;
    let log = std::fs::File::options()
        .create(true)
        .append(true)
        .open(directory.path().join(LOG))
        .map_err(failed)?;
    std::io::stdout().flush().map_err(failed)?;
    rustix::stdio::dup2_stdout(&log).map_err(|error| failed(error.into()))?;
    rustix::stdio::dup2_stderr(&log).map_err(|error| failed(error.into()))?;
    daemon::run_in(name, state, Some(parent), global)
}
