//! `dayfly lease`: leases made from the command line.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use dayfly_client::{Client, LeaseStatus, Mode};
use dayfly_command::Global;
use dayfly_lease::SigningKey;
use dayfly_protocol::api::{Grant, LeaseChange, LeaseRequest, RenewRequest};
use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::id_pattern::IdPattern;
use dayfly_protocol::ids::{LeaseId, NodeId};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::loans::LoanArguments;
use crate::manager::write_private;
use crate::values::Level;
use crate::{connect, output, status, values};

/// Maximum interval of requests while following output.
const FOLLOW: Duration = Duration::from_secs(5);

/// List, create, renew, release and revoke leases, and show what their workers print.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly lease list
  dayfly lease create --workers 2 --for 10m --output lease.json
  dayfly lease output lease.json --follow
  dayfly lease renew 5f0c... --for 1h
  dayfly lease release 5f0c...
  dayfly lease revoke 5f0c... --grace 30s

A lease has 1 to 1,024 workers. Client libraries lease and release automatically; use these commands for inspection and repair.")]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show leases
    List(List),
    /// Lease workers, and print what was granted
    Create(Create),
    /// Show what a lease's workers print
    Output(Output),
    /// Change the remaining duration of a lease, and its terms
    Renew(Renew),
    /// Release leases; their running calls end
    Release(Release),
    /// Revoke a lease of any holder
    Revoke(Revoke),
}

/// Show leases.
#[derive(Debug, Args)]
struct List {
    /// Include leases that ended within the last hour
    #[arg(long)]
    all: bool,
}

/// Whether workers poll or sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Wanted {
    /// Workers that own a core and poll
    Hot,
    /// Workers that sleep until they are woken
    Warm,
    /// Hot if the node has cores to reserve, else warm
    Auto,
}

impl From<Wanted> for Mode {
    fn from(wanted: Wanted) -> Self {
        match wanted {
            Wanted::Hot => Mode::Hot,
            Wanted::Warm => Mode::Warm,
            Wanted::Auto => Mode::Auto,
        }
    }
}

/// Lease workers, and print what was granted.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly lease create --workers 2
  dayfly lease create --workers 1 --mode hot --for 1h --output lease.json
  dayfly lease create --image registry.example.org/tools/solver:1.2
  dayfly invoke --lease lease.json ./area.so area --input hex:0600000007000000

The grant is a credential: its token opens channels to the workers for every holder of its key, `holder_seed` in the JSON. A
lease that is not used soon is revoked.")]
struct Create {
    /// Number of workers, 1 to 1,024
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: u16,
    /// Cores of each worker; a warm worker may have a part of one, such as 0.5, and takes as many places
    #[arg(long, value_name = "N", default_value = "1", value_parser = values::cores)]
    cores_per_worker: MilliCores,
    /// GPUs of each worker; it sees no others
    #[arg(long, value_name = "N", default_value_t = 0)]
    gpus_per_worker: u16,
    /// Memory of the whole lease, such as 512M [default: the node's share for each worker]
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    memory: Option<u64>,
    #[command(flatten)]
    loans: LoanArguments,
    /// Duration from the first use
    #[arg(long = "for", value_name = "DURATION", default_value = "1h", value_parser = values::duration)]
    duration: Duration,
    /// Whether workers poll or sleep
    #[arg(long, value_enum, default_value = "auto")]
    mode: Wanted,
    /// Isolation of the workers [default: the site's default]
    #[arg(long, value_enum)]
    sandbox: Option<Level>,
    /// Container image, by the node owner's name for it [default: the first that the owner allows]
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Id of a node [default: the best match]
    #[arg(long, value_name = "ID")]
    node: Option<NodeId>,
    /// Time after which the lease is released once its last channel is closed; 0s for never
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = values::duration)]
    idle_release: Duration,
    /// File for the grant and its key, readable only by you
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Show what a lease's workers print.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly lease output lease.json
  dayfly lease output lease.json --follow     until the lease is over

Prints the workers' standard output to standard output, and their standard error to standard error. The node keeps the last 256 KiB
of a lease's output, and less for one minute after its end.")]
struct Output {
    /// File from `dayfly lease create --output FILE`
    #[arg(value_name = "FILE")]
    lease: PathBuf,
    /// Follow the output until the lease has ended
    #[arg(long)]
    follow: bool,
    /// Write control characters to a terminal unchanged
    #[arg(long, conflicts_with = "json")]
    raw: bool,
}

/// Change the remaining duration of a lease, and its terms.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly lease renew 5f0c... --for 1h
  dayfly lease renew 5f0c... --for 1h --workers 8 --min-workers 4
  dayfly lease renew 5f0c... --for 1h --mode warm

Idle workers are given back first. Without room for the change, the lease stays as it is.")]
struct Renew {
    /// Id, or at least six digits of its beginning or end
    #[arg(value_name = "ID", value_parser = values::id)]
    lease: IdPattern,
    /// Duration from now
    #[arg(long = "for", value_name = "DURATION", value_parser = values::duration)]
    duration: Duration,
    /// Number of workers, 1 to 1,024 [default: unchanged]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Option<u16>,
    /// Fewest workers to accept if there is no room for all [default: all]
    #[arg(long, value_name = "N", requires = "workers", value_parser = clap::value_parser!(u16).range(1..=1024))]
    min_workers: Option<u16>,
    /// Whether workers poll or sleep [default: unchanged]
    #[arg(long, value_enum)]
    mode: Option<Wanted>,
    /// How long a hot worker polls before it sleeps [default: unchanged]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    hot_for: Option<Duration>,
    /// How long a warm worker polls before it sleeps, at most 10ms [default: unchanged]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    poll_for: Option<Duration>,
}

/// Release leases; their running calls end.
#[derive(Debug, Args)]
struct Release {
    /// Ids, or at least six digits of their beginning or end; may be several
    #[arg(required = true, value_name = "ID", value_parser = values::id)]
    leases: Vec<IdPattern>,
}

/// Revoke a lease of any holder.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly lease revoke 5f0c...
  dayfly lease revoke 5f0c... --grace 30s     running calls may continue for 30 seconds

Notifies its clients at once; no new call begins. Returns when the lease has ended and its last bill is recorded. Only operators
may revoke another tenant's lease.")]
struct Revoke {
    /// Id, or at least six digits of its beginning or end
    #[arg(value_name = "ID", value_parser = values::id)]
    lease: IdPattern,
    /// How long running calls may continue
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = values::duration)]
    grace: Duration,
}

/// Content of the file from `lease create --output`: everything that is needed to use the lease.
#[derive(Serialize, Deserialize)]
struct Kept {
    grant: Grant,
    holder_seed: String,
}

/// Reads a file from `lease create --output`.
pub fn read(path: &Path) -> Result<(Grant, [u8; 32]), Failure> {
    let unusable = |why: String| {
        let text = format!(
            "{} is no lease: {why}; make one by `dayfly lease create --output FILE`",
            path.display()
        );
        Failure::new(Code::InvalidRequest, text)
    };
    let text = std::fs::read_to_string(path).map_err(|error| unusable(error.to_string()))?;
    let kept: Kept = serde_json::from_str(&text).map_err(|error| unusable(error.to_string()))?;
    let mut seed = [0; 32];
    hex::decode_to_slice(&kept.holder_seed, &mut seed).map_err(|error| unusable(error.to_string()))?;
    Ok((kept.grant, seed))
}

pub fn run(arguments: &Arguments, global: &Global) -> Result<(), Failure> {
    match &arguments.what {
        What::List(wanted) => list(wanted, global),
        What::Create(wanted) => create(wanted, global),
        What::Output(wanted) => show_output(wanted, global),
        What::Renew(wanted) => renew(wanted, global),
        What::Release(wanted) => release(wanted, global),
        What::Revoke(wanted) => revoke(wanted, global),
    }
}

/// Reports how a grant differs from the request.
fn show_notice(grant: &Grant) {
    if let Some(notice) = &grant.notice {
        eprintln!("Note: {}.", output::plain(notice));
    }
}

fn list(wanted: &List, global: &Global) -> Result<(), Failure> {
    let client = connect::manager(global)?;
    let mut leases = client.leases().map_err(|error| error.0)?;
    leases.retain(|lease| wanted.all || lease.state.is_live());
    output::line(&if global.json {
        output::json(&leases)?
    } else if leases.is_empty() {
        "No leases.".into()
    } else {
        let nodes = client.nodes().map_err(|error| error.0)?;
        status::lease_table(&leases, &nodes).text(output::colours(&std::io::stdout()))
    });
    Ok(())
}

fn create(wanted: &Create, global: &Global) -> Result<(), Failure> {
    let client = connect::manager(global)?;
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(|error| Failure::new(Code::Internal, format!("no random bytes: {error}")))?;
    let holder = SigningKey::from_seed(seed).public();
    let request = LeaseRequest {
        cores_per_worker: wanted.cores_per_worker,
        memory_bytes: wanted.memory.unwrap_or(0),
        gpus_per_worker: wanted.gpus_per_worker,
        loans: wanted.loans.terms(),
        sandbox: wanted.sandbox.map(Into::into),
        image: wanted.image.clone(),
        idle_release_ms: wanted.idle_release.as_millis() as u64,
        node: wanted.node,
        ..LeaseRequest::native(
            wanted.workers,
            wanted.mode.into(),
            wanted.duration.as_millis() as u64,
            holder,
        )
    };
    let grant: Grant = client.post("/v1/leases", &request).map_err(|error| error.0)?;
    show_notice(&grant);
    let whole = output::json(&Kept {
        grant: grant.clone(),
        holder_seed: hex::encode(seed),
    })?;
    if let Some(path) = &wanted.output
        && let Err(failure) = write_private(path, &whole)
    {
        // Without its file the lease cannot be used.
        let _ = client.release(grant.lease);
        return Err(failure);
    }
    if global.json {
        output::line(&whole);
        return Ok(());
    }
    let kept = wanted
        .output
        .as_ref()
        .map_or_else(String::new, |path| format!("\n  kept in  {}", path.display()));
    output::line(&format!(
        "Lease {}\n  workers  {} {}\n  memory   {}\n  node     {} ({})\n  lasts    {} from first use{kept}\n\n\
         Give it back by `dayfly lease release {}`.",
        grant.lease,
        grant.workers,
        status::mode(grant.mode),
        output::size(grant.memory_bytes),
        output::plain(&grant.node.name),
        grant.node.id,
        output::span(grant.duration_ms),
        grant.lease,
    ));
    Ok(())
}

fn show_output(wanted: &Output, global: &Global) -> Result<(), Failure> {
    let (grant, seed) = read(&wanted.lease)?;
    let client = connect::manager(global)?;
    let lease = client.lease_granted(grant, seed).map_err(|error| error.0)?;
    let mut reader = lease.output().map_err(|error| error.0)?;
    let mut printer = output::Printer::new(global.json, wanted.raw);
    let (wait, mut missed) = (if wanted.follow { FOLLOW } else { Duration::ZERO }, 0);
    loop {
        let printed = reader.next(wait).map_err(|error| error.0)?;
        if reader.missed() > missed && !global.json {
            eprintln!("({} bytes are not kept any more)", reader.missed() - missed);
            missed = reader.missed();
        }
        let nothing = printed.is_empty();
        let pieces = printed.into_iter().map(|piece| (piece.stream, piece.bytes));
        // The reader may have closed its end.
        if !printer.show(pieces)? {
            return Ok(());
        }
        if reader.is_over() || nothing && !wanted.follow {
            return Ok(());
        }
    }
}

/// Returns the full id of a lease.
fn whole(given: &IdPattern, client: &Client) -> Result<LeaseId, Failure> {
    given.full_id().map_or_else(
        || {
            let found: Result<LeaseStatus, _> = client.get(&format!("/v1/leases/{given}"));
            found.map(|lease| lease.lease).map_err(|error| error.0)
        },
        Ok,
    )
}

fn renew(wanted: &Renew, global: &Global) -> Result<(), Failure> {
    let client = connect::manager(global)?;
    let body = RenewRequest {
        duration_ms: wanted.duration.as_millis() as u64,
        change: LeaseChange {
            workers: wanted.workers,
            min_workers: wanted.min_workers,
            mode: wanted.mode.map(Into::into),
            hot_for_ms: wanted
                .hot_for
                .map(|length| u32::try_from(length.as_millis()).unwrap_or(u32::MAX)),
            poll_for_us: wanted
                .poll_for
                .map(|length| u32::try_from(length.as_micros()).unwrap_or(u32::MAX)),
        },
    };
    let grant: Grant = client
        .post(&format!("/v1/leases/{}/renew", whole(&wanted.lease, &client)?), &body)
        .map_err(|error| error.0)?;
    show_notice(&grant);
    output::line(&if global.json {
        output::json(&grant)?
    } else {
        format!(
            "Lease {} lasts {} from now, with {} {}.",
            grant.lease,
            output::span(grant.duration_ms),
            grant.workers,
            status::mode(grant.mode),
        )
    });
    Ok(())
}

fn revoke(wanted: &Revoke, global: &Global) -> Result<(), Failure> {
    let client = connect::manager(global)?;
    let lease = whole(&wanted.lease, &client)?;
    let revoked = client.revoke(lease, wanted.grace).map_err(|error| error.0)?;
    output::line(&match global.json {
        true => output::json(&revoked)?,
        false => format!("Lease {} has ended as {}.", revoked.lease, revoked.state),
    });
    Ok(())
}

fn release(wanted: &Release, global: &Global) -> Result<(), Failure> {
    let client = connect::manager(global)?;
    let leases = wanted.leases.iter().map(|given| whole(given, &client));
    let leases = leases.collect::<Result<Vec<LeaseId>, Failure>>()?;
    for lease in &leases {
        client.release(*lease).map_err(|error| error.0)?;
        if !global.json {
            output::line(&format!("Lease {lease} is released."));
        }
    }
    if global.json {
        output::line(&output::json(&json!({ "released": leases }))?);
    }
    Ok(())
}
