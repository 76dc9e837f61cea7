//! `dayfly run`: runs a program or a function on many ranks that exchange messages.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Args;
use dayfly_client::{Placement, Sandbox};
use dayfly_comm::Channel;
use dayfly_command::Global;
use dayfly_protocol::error::Failure;

use crate::values::Level;
use crate::{python, values};

/// Run a script, a folder, a program or a function on many ranks that exchange messages.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly run --ranks 4 train.py --epochs 3
  dayfly run --ranks 2 ./solver input.dat
  dayfly run --ranks 8 mymodule:work
  dayfly run --ranks 4 --store s3://bucket/runs --channel stored train.py

Each rank is a worker; all ranks start, or none. A script, a folder with `__main__.py` or a program is sent to the nodes. In Python,
`from dayfly import MPI` is mpi4py, which dayfly[mpi] installs, with the ranks as MPI.COMM_WORLD; in C use
dfly_group_join(NULL, &group), in C++ a dayfly::group. Output is printed as it arrives, with the rank before each line. The exit
status is that of the first rank that failed.")]
pub struct Arguments {
    /// Number of ranks
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    ranks: u16,
    /// Time limit of the whole run [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    timeout: Option<Duration>,
    /// Placement of the ranks on nodes
    #[arg(long, value_enum, default_value_t = Place::Packed)]
    placement: Place,
    /// Maximum duration of the workers' lease; then the run ends, or restarts [default: one day]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    duration: Option<Duration>,
    /// Location of the ranks' checkpoints: a directory that all nodes can access, or s3://bucket/prefix
    #[arg(long, value_name = "PLACE")]
    checkpoint: Option<PathBuf>,
    /// Maximum number of restarts from the last checkpoint, after the loss of a node, a lease or a rank
    #[arg(long, value_name = "N", default_value_t = 0)]
    restarts: u32,
    /// Algorithms of the collectives: a file from `dayfly bench comm --tune`
    #[arg(long, value_name = "FILE")]
    tables: Option<PathBuf>,
    /// Store for ranks without a direct connection: s3://bucket/prefix, redis://host:port, rediss:// or
    /// file:///directory
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// How ranks exchange messages
    #[arg(long, value_enum, default_value_t = Exchange::Direct)]
    channel: Exchange,
    /// libfabric provider between hosts that have it, such as verbs; messages are then not encrypted
    #[arg(long, value_name = "PROVIDER[/DOMAIN]")]
    fabric: Option<String>,
    /// Connect two ranks when one first needs the other, instead of all ranks at the start
    #[arg(long)]
    lazy_connect: bool,
    /// Isolation of the ranks [default: the site's default]
    #[arg(long, value_enum, value_name = "LEVEL")]
    sandbox: Option<Level>,
    /// Let isolated ranks use the host's network, if the site allows it; otherwise their node joins the group for them
    #[arg(long)]
    network: bool,
    /// Print lines of output without the rank
    #[arg(long)]
    no_label: bool,
    /// Python interpreter with the dayfly package
    #[arg(
        long,
        value_name = "PATH",
        env = "DAYFLY_PYTHON",
        default_value = "python3",
        hide_env_values = true
    )]
    python: PathBuf,
    /// A script, a folder with __main__.py or a program, local or at s3://bucket/path, or module:function
    target: OsString,
    /// Arguments of the program
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Exchange {
    /// The best available connection; the store, if there is one, for ranks without a connection
    Direct,
    /// Only the store
    Stored,
}

impl From<Exchange> for Channel {
    fn from(exchange: Exchange) -> Self {
        match exchange {
            Exchange::Direct => Self::Direct,
            Exchange::Stored => Self::Stored,
        }
    }
}

/// Placement of ranks.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub enum Place {
    /// On as few nodes as possible
    Packed,
    /// Evenly on as many nodes as possible
    Spread,
    /// On one node
    Together,
    /// On nodes of one fabric, as few of them as possible
    Fabric,
}

impl From<Place> for Placement {
    fn from(place: Place) -> Self {
        match place {
            Place::Packed => Self::Packed,
            Place::Spread => Self::Spread,
            Place::Together => Self::Together,
            Place::Fabric => Self::Fabric,
        }
    }
}

/// Runs the program. Returns its exit status.
pub fn run(arguments: &Arguments, global: &Global) -> Result<ExitCode, Failure> {
    let mut command = Command::new(&arguments.python);
    command
        .args(["-m", "dayfly._run_command", "--ranks"])
        .arg(arguments.ranks.to_string())
        .args(["--placement", Placement::from(arguments.placement).name()]);
    for (name, length) in [("--timeout", arguments.timeout), ("--duration", arguments.duration)] {
        if let Some(length) = length {
            command.arg(name).arg(length.as_secs_f64().to_string());
        }
    }
    if let Some(place) = &arguments.checkpoint {
        command.arg("--checkpoint").arg(place);
    }
    if let Some(file) = &arguments.tables {
        command.arg("--tables").arg(file);
    }
    if let Some(store) = &arguments.store {
        command.arg("--store").arg(store);
    }
    if let Some(fabric) = &arguments.fabric {
        command.arg("--fabric").arg(fabric);
    }
    command.args(["--channel", Channel::from(arguments.channel).name()]);
    command.arg("--restarts").arg(arguments.restarts.to_string());
    if let Some(sandbox) = arguments.sandbox {
        command.arg("--sandbox").arg(Sandbox::from(sandbox).name());
    }
    let switches = [
        ("--lazy-connect", arguments.lazy_connect),
        ("--network", arguments.network),
        ("--no-label", arguments.no_label),
        ("--json", global.json),
    ];
    command.args(switches.iter().filter(|(_, set)| *set).map(|(name, _)| name));
    command.arg("--").arg(&arguments.target).args(&arguments.arguments);
    let status = python::started(command, &arguments.python, global)?;
    Ok(python::exit_code(status))
}
