//! `dayfly sql`: executes the command of the Python package `dayfly-frames`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::{Args, ValueEnum};
use dayfly_client::{Placement, Sandbox};
use dayfly_command::Global;
use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::error::{Code, Failure};

use crate::run::Place;
use crate::values::Level;
use crate::{python, values};

/// Exits with [`python::NO_PACKAGE`] in an interpreter without the package.
const PROBE: &str =
    "import importlib.util, sys; sys.exit(91 if importlib.util.find_spec('dayfly_frames') is None else 0)";

/// Query files with SQL on leased workers.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly sql --table trips=trips/ 'SELECT zone, count(*) FROM trips GROUP BY zone'
  dayfly sql --ranks 4 --table 'trips=trips/*.parquet' --table zones=zones.csv       a prompt
  dayfly sql --table trips=trips/ --file query.sql --format csv > result.csv
  dayfly sql --table trips=trips/ --output far.parquet 'SELECT * FROM trips WHERE distance > 50'

Each rank is a worker, and reads a part of the files, which it must see under the same path. The format of a table is that of its
files: .parquet, .csv, .ndjson, .jsonl, .json (one object a line), .arrow, .ipc or .feather. The SQL is that of DataFusion; EXPLAIN
shows the plan of the ranks. Without a query, statements come from standard input; on a terminal, there is a prompt.
Needs the package dayfly-frames in the Python interpreter.")]
pub struct Arguments {
    /// Number of ranks
    #[arg(long, short = 'n', value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    ranks: u16,
    /// Table: a file, a directory, or a pattern in quotes; may be repeated
    #[arg(long, value_name = "NAME=PATH")]
    table: Vec<String>,
    /// File with statements, each ended by a semicolon; - for standard input
    #[arg(long, value_name = "FILE", conflicts_with = "query")]
    file: Option<PathBuf>,
    /// Format of results [default: that of --output's suffix, else a table; with --json an array of objects]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// File for the result of one statement, which replaces the file when it is complete
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Maximum number of rows that a table shows
    #[arg(long, value_name = "N", default_value_t = 40)]
    rows: u32,
    /// Print how long each statement took, on standard error
    #[arg(long)]
    timing: bool,
    /// Cores of each rank [default: 1]
    #[arg(long, value_name = "N", value_parser = values::cores)]
    cores: Option<MilliCores>,
    /// Memory of all ranks together, such as 2G [default: the node's share for each rank]
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    memory: Option<u64>,
    /// Placement of the ranks on nodes
    #[arg(long, value_enum, default_value_t = Place::Packed)]
    placement: Place,
    /// What happens to statements whose ranks are lost
    #[arg(long, value_enum, default_value_t = Recover::Auto)]
    recover: Recover,
    /// Duration of the workers' lease, which is renewed until the command ends [default: one day]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    duration: Option<Duration>,
    /// Isolation of the ranks [default: the site's default]
    #[arg(long, value_enum, value_name = "LEVEL")]
    sandbox: Option<Level>,
    /// Python interpreter with the package dayfly-frames
    #[arg(
        long,
        value_name = "PATH",
        env = "DAYFLY_PYTHON",
        default_value = "python3",
        hide_env_values = true
    )]
    python: PathBuf,
    /// Statements, separated by semicolons
    query: Option<OsString>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    /// A table for people, with a bounded number of rows
    Table,
    /// Comma-separated values, with a header
    Csv,
    /// An array of objects
    Json,
    /// One JSON object a line
    Ndjson,
    /// A file of Parquet
    Parquet,
}

impl Format {
    fn name(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::Csv => "csv",
            Self::Json => "json",
            Self::Ndjson => "ndjson",
            Self::Parquet => "parquet",
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Recover {
    /// As tasks for statements that read about 4 GiB or more; others run again on the ranks that are left
    Auto,
    /// The statement runs again on other ranks
    Query,
    /// Ranks keep what they have computed, and only what a lost rank had runs again
    Tasks,
}

impl Recover {
    fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Query => "query",
            Self::Tasks => "tasks",
        }
    }
}

/// Replaces this process by the command of the package. Returns only when that fails.
pub fn run(arguments: &Arguments, global: &Global) -> Failure {
    if let Err(failure) = check_package(&arguments.python) {
        return failure;
    }
    let mut command = Command::new(&arguments.python);
    // Without the working directory among the places of modules.
    command.args(["-P", "-m", "dayfly_frames", "sql"]);
    let mut option = |name: &str, value: OsString| {
        command.arg(name).arg(value);
    };
    option("--ranks", arguments.ranks.to_string().into());
    option("--placement", Placement::from(arguments.placement).name().into());
    option("--recover", arguments.recover.name().into());
    option("--rows", arguments.rows.to_string().into());
    for table in &arguments.table {
        option("--table", table.into());
    }
    if let Some(file) = &arguments.file {
        option("--file", file.into());
    }
    if let Some(format) = arguments.format {
        option("--format", format.name().into());
    }
    if let Some(file) = &arguments.output {
        option("--output", file.into());
    }
    if let Some(cores) = arguments.cores {
        option("--cores", cores.to_string().into());
    }
    if let Some(bytes) = arguments.memory {
        option("--memory", bytes.to_string().into());
    }
    if let Some(duration) = arguments.duration {
        option("--duration", duration.as_secs_f64().to_string().into());
    }
    if let Some(sandbox) = arguments.sandbox {
        option("--sandbox", Sandbox::from(sandbox).name().into());
    }
    let switches = [("--timing", arguments.timing), ("--json", global.json)];
    command.args(switches.iter().filter(|(_, set)| *set).map(|(name, _)| name));
    if let Some(query) = &arguments.query {
        command.arg("--").arg(query);
    }
    // As this very process, it alone gets the signals of the terminal.
    python::replace(command, &arguments.python, global)
}

fn check_package(python: &Path) -> Result<(), Failure> {
    let mut probe = Command::new(python);
    probe.args(["-P", "-c", PROBE]).stdin(Stdio::null());
    let status = probe.status().map_err(|error| python::not_started(python, &error))?;
    if status.code() == Some(python::NO_PACKAGE) {
        let text = format!(
            "frames are in the package dayfly-frames: install its wheel, which `make build` builds. {} has none; name \
             another interpreter by --python",
            python.display()
        );
        return Err(Failure::new(Code::NotFound, text));
    }
    Ok(())
}
