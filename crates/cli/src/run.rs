//! `dayfly run`: a program, or a function, on many ranks that talk to each other.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Args;
use dayfly_client::{Placement, Sandbox};
use dayfly_comm::Channel;
use dayfly_protocol::error::Failure;

use crate::values::Level;
use crate::{Global, python, values};

/// Run a script, a folder, a program or a function on many ranks that talk to each other.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly run --ranks 4 train.py --epochs 3
  dayfly run --ranks 2 ./solver input.dat
  dayfly run --ranks 8 mymodule:work
  dayfly run --ranks 4 --store s3://bucket/runs --channel stored train.py

Each rank is a worker: all of them or none. A script, a folder with `__main__.py` or a program is sent along. In it,
`from dayfly import MPI` gives MPI.COMM_WORLD, with the names of mpi4py; in C that is dfly_group_join(NULL, &group), in C++ a
dayfly::group. Its output appears as it comes, with the rank before each line; the exit status is that of the first rank that
failed.")]
pub struct Arguments {
    /// How many
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    ranks: u16,
    /// How long all of it may take [default: for ever]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    timeout: Option<Duration>,
    /// On which nodes the ranks run
    #[arg(long, value_enum, default_value_t = Place::Packed)]
    placement: Place,
    /// Longest that its workers are leased; then it ends, or starts again [default: a day]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    duration: Option<Duration>,
    /// Where the ranks save checkpoints: a directory that every node reaches, or s3://bucket/prefix
    #[arg(long, value_name = "PLACE")]
    checkpoint: Option<PathBuf>,
    /// How often it is started again, from its last checkpoint, after a node, a lease or a rank was lost
    #[arg(long, value_name = "N", default_value_t = 0)]
    restarts: u32,
    /// Which algorithms collectives use: a file that `dayfly bench comm --tune` wrote
    #[arg(long, value_name = "FILE")]
    tables: Option<PathBuf>,
    /// Store for ranks that reach each other in no other way: s3://bucket/prefix, redis://host:port, rediss:// or file:///directory
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// What ranks exchange through
    #[arg(long, value_enum, default_value_t = Exchange::Direct)]
    channel: Exchange,
    /// Provider of libfabric between hosts that have it, such as verbs; nothing is encrypted then
    #[arg(long, value_name = "PROVIDER[/DOMAIN]")]
    fabric: Option<String>,
    /// Connect two ranks when one of them first needs the other, instead of all with all at the start
    #[arg(long)]
    lazily: bool,
    /// How isolated the ranks are [default: as the site has it]
    #[arg(long, value_enum, value_name = "LEVEL")]
    sandbox: Option<Level>,
    /// Let isolated ranks use the host's network, where the site grants it; without it their node joins for them
    #[arg(long)]
    network: bool,
    /// Leave lines as they are, without their ranks
    #[arg(long)]
    no_label: bool,
    /// Interpreter with the dayfly package
    #[arg(
        long,
        value_name = "PATH",
        env = "DAYFLY_PYTHON",
        default_value = "python3",
        hide_env_values = true
    )]
    python: PathBuf,
    /// A script, a folder with __main__.py or a program, here or at s3://bucket/path, or module:function
    target: OsString,
    /// Its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Exchange {
    /// The best connection that there is; the store, if there is one, where there is no other
    Direct,
    /// The store alone
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

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Place {
    /// On as few nodes as possible
    Packed,
    /// Evenly over as many nodes as possible
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

/// Runs it. Its own exit status is ours.
pub fn run(arguments: &Arguments, global: &Global) -> Result<ExitCode, Failure> {
    let mut command = Command::new(&arguments.python);
    command
        .args(["-m", "dayfly._launch", "--ranks"])
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
        ("--lazily", arguments.lazily),
        ("--network", arguments.network),
        ("--no-label", arguments.no_label),
        ("--json", global.json),
    ];
    command.args(switches.iter().filter(|(_, set)| *set).map(|(name, _)| name));
    command.arg("--").arg(&arguments.target).args(&arguments.arguments);
    let status = python::started(command, &arguments.python, global)?;
    Ok(python::exit_code(status))
}
