//! The options of `dayfly bench`. The program `dayfly-bench` measures.

mod comm;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use dayfly_fabric::Transport;

pub use self::comm::{CommArguments, CommOp, CommTransport, PriceOf};
use crate::values::{self, Level};

/// Measure invocations beside the machine's own limits, in the same run.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly bench invoke                                  hot C function over shared memory
  dayfly bench invoke --transport tcp --mode warm
  dayfly bench invoke --depth 16                       many invocations in flight
  dayfly bench cold --language c --sandbox process     from lease to first result
  dayfly bench reclaim                                 a node given back to its owner, and given again
  dayfly bench reject                                  a warm call that finds no core
  dayfly bench fleet                                   what a fleet adds to a call of one lease
  dayfly bench offload --explain                       a loop shared with a leased worker
  dayfly bench control --nodes 10000                   leases granted each second, with so many nodes registered
  dayfly bench tasks --parsl PYTHON                    durable tasks, beside Parsl in an interpreter that has it
  dayfly bench frames --only paper-join-2              a join across ranks, beside other engines
  dayfly bench comm --op allreduce --transport tcp     ranks of a group, beside Open MPI
  dayfly bench comm --language python                  the same by mpi4py, beside mpi4py over Open MPI
  dayfly bench comm --tune --ranks 4 --output here.json   where algorithms should change on this machine
  dayfly bench comm --transport s3 --store s3://bucket through object storage, beside TCP, with predicted time and price
  dayfly bench apps --only jacobi                      an MPI program with a leased worker, beside MPI alone
  dayfly bench table --out build/bench                 everything, with a picture

Nothing else should run meanwhile: a measurement that saw a busy machine is refused (--force prints it all the same).")]
pub struct Arguments {
    #[command(subcommand)]
    pub what: What,
}

#[derive(Debug, Subcommand)]
pub enum What {
    /// One kind of invocation, one at a time or many in flight
    Invoke(InvokeArguments),
    /// From the request for a lease to the first result
    Cold(ColdArguments),
    /// From a reclaim of a node until it is empty, and from its return until the first call on it
    Reclaim(ReclaimArguments),
    /// The time until a caller learns that a warm worker found no core
    Reject(RejectArguments),
    /// What a fleet adds to a call, beside the pool of one lease
    Fleet(FleetArguments),
    /// A loop shared between this program and leased workers, beside the same loop without them
    Offload(OffloadArguments),
    /// Leases granted per second with thousands of registered simulated nodes, and the cost of their heartbeats
    Control(ControlArguments),
    /// Durable tasks, from submission to result and per second, beside those of Parsl
    Tasks(TasksArguments),
    /// What lending idle cores gives the borrower and costs the lender, beside the same calls without it
    Harvest(HarvestArguments),
    /// Joins and queries across ranks, beside other engines in the same run
    Frames(FramesArguments),
    /// Messages and collectives between ranks, beside those of Open MPI in the same run
    Comm(CommArguments),
    /// Applications with leased workers, beside the same applications without, in the same run
    Apps(AppsArguments),
    /// Cold, warm and hot over each transport, with a picture of the distributions
    Table(TableArguments),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    Hot,
    Warm,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Language {
    C,
    Python,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// uint32_t f(void*, uint32_t, void*), whose output is copied once
    Plain,
    /// With capacity and errors, without a copy
    Checked,
}

#[derive(Debug, Args)]
pub struct InvokeArguments {
    /// Transport: shm, tcp, tls or libfabric:PROVIDER[/DOMAIN]
    #[arg(long, default_value = "shm")]
    pub transport: Transport,
    /// Whether the worker polls or sleeps while it waits
    #[arg(long, value_enum, default_value = "hot")]
    pub mode: Mode,
    /// Language of the function
    #[arg(long, value_enum, default_value = "c")]
    pub language: Language,
    /// Form of the C function
    #[arg(long, value_enum, default_value = "checked")]
    pub form: Form,
    /// Bytes in and out
    #[arg(long, default_value_t = 64)]
    pub size: usize,
    /// Invocations in flight per worker when the rate is measured
    #[arg(long, default_value_t = 1)]
    pub depth: u32,
    /// Workers
    #[arg(long, default_value_t = 1)]
    pub workers: u16,
    /// Sandbox of the workers
    #[arg(long, value_enum, default_value = "process")]
    pub sandbox: Level,
    /// Measured invocations; 0 for as many as take a second or two
    #[arg(long, default_value_t = 0)]
    pub calls: usize,
    /// Report even if the machine was busy
    #[arg(long)]
    pub force: bool,
    /// Items of a `map`, to compare with the standard library's Pool.map (Python only); 0 for none
    #[arg(long, default_value_t = 0)]
    pub items: usize,
    /// Python interpreter that has the dayfly module
    #[arg(long, env = "DAYFLY_PYTHON", default_value = "python3")]
    pub python: String,
}

#[derive(Debug, Args)]
pub struct ColdArguments {
    /// Language of the function
    #[arg(long, value_enum, default_value = "c")]
    pub language: Language,
    /// Sandbox of the worker
    #[arg(long, value_enum, default_value = "process")]
    pub sandbox: Level,
    /// Image of a container: a name or a path
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<String>,
    /// Cold starts to measure
    #[arg(long, default_value_t = 40)]
    pub calls: usize,
    /// Start from the node's warm pool of executors
    #[arg(long)]
    pub pool: bool,
    /// Also measure the starts per second of this number of concurrent clients; 0 for none
    #[arg(long, value_name = "CLIENTS", default_value_t = 0)]
    pub parallel: usize,
    /// Report even if the machine was busy
    #[arg(long)]
    pub force: bool,
    /// Python interpreter that has the dayfly module
    #[arg(long, env = "DAYFLY_PYTHON", default_value = "python3")]
    pub python: String,
}

#[derive(Debug, Args)]
pub struct ReclaimArguments {
    /// Warm workers on the node at the reclaim
    #[arg(long, default_value_t = 100)]
    pub workers: u16,
    /// Sandbox of the workers
    #[arg(long, value_enum, default_value = "isolated")]
    pub sandbox: Level,
    /// Number of rounds
    #[arg(long, default_value_t = 10)]
    pub rounds: usize,
    /// Report even if the machine was busy
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Args)]
pub struct RejectArguments {
    /// Calls of each kind
    #[arg(long, default_value_t = 2_000)]
    pub calls: usize,
    /// Sandbox of the workers
    #[arg(long, value_enum, default_value = "process")]
    pub sandbox: Level,
    /// Report even if the machine was busy
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Args)]
pub struct FleetArguments {
    /// Calls of each kind
    #[arg(long, default_value_t = 1_000_000)]
    pub calls: usize,
    /// Bytes of input and output
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(..=1024))]
    pub size: u16,
    /// Report even if the machine was busy
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Args)]
pub struct OffloadArguments {
    /// Calls of each step of the loop
    #[arg(long, default_value_t = 200)]
    pub calls: usize,
    /// Computing time of a call, in microseconds
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub work_us: u32,
    /// Bytes of a call's input
    #[arg(long, default_value_t = 1024)]
    pub size: usize,
    /// Steps with and without workers, in turns
    #[arg(long, default_value_t = 100)]
    pub steps: usize,
    /// Leased workers
    #[arg(long, default_value_t = 1)]
    pub workers: u16,
    /// Whether workers poll or sleep
    #[arg(long, value_enum, default_value = "hot")]
    pub mode: Mode,
    /// Also print the measured times of the network and of the function, and why the calls are divided as they are
    #[arg(long)]
    pub explain: bool,
    /// Report even if the machine was busy
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Args)]
pub struct ControlArguments {
    /// Simulated nodes, each with its own connection to a real manager
    #[arg(long, default_value_t = 10_000)]
    pub nodes: u32,
    /// Concurrent clients; each requests one lease after another
    #[arg(long, default_value_t = 8)]
    pub clients: u32,
    /// Duration of each part
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = values::duration)]
    pub each: Duration,
    /// The manager's store, as of `dayfly manager`; a database must be empty [default: SQLite in a directory that is removed]
    #[arg(long, value_name = "URL")]
    pub store: Option<String>,
    /// Report even if the machine was busy
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Args)]
pub struct TasksArguments {
    /// Tasks in one measurement of the rate
    #[arg(long, default_value_t = 20_000)]
    pub tasks: usize,
    /// Tasks in one measurement of the latency, one after another
    #[arg(long, default_value_t = 500)]
    pub calls: usize,
    /// Number of rounds, in turns with Parsl
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Bytes of each task's argument
    #[arg(long, default_value_t = 0)]
    pub size: usize,
    /// Workers of Parsl; Dayfly has one for each core
    #[arg(long, default_value_t = 2)]
    pub workers: u16,
    /// Python interpreter that has Parsl; without one, Dayfly alone is measured
    #[arg(long, value_name = "PYTHON", env = "DAYFLY_PARSL_PYTHON")]
    pub parsl: Option<String>,
    /// Report even if the machine was busy
    #[arg(long)]
    pub force: bool,
    /// Python interpreter that has the dayfly module
    #[arg(long, env = "DAYFLY_PYTHON", default_value = "python3")]
    pub python: String,
}

#[derive(Debug, Args)]
pub struct HarvestArguments {
    /// Number of rounds: the lender's calls twice in each mode, and the borrower's once
    #[arg(long, default_value_t = 6)]
    pub rounds: usize,
    /// Number of lenders that suddenly need their core
    #[arg(long, default_value_t = 12)]
    pub bursts: usize,
    /// Only this function of the lender's; may be repeated [default: all ten]
    #[arg(long, value_name = "FUNCTION")]
    pub only: Vec<String>,
    /// Report even if the machine was busy
    #[arg(long)]
    pub force: bool,
    /// Python interpreter that has the dayfly module, NumPy and Pillow
    #[arg(long, env = "DAYFLY_PYTHON", default_value = "python3")]
    pub python: String,
}

#[derive(Debug, Args)]
pub struct FramesArguments {
    /// Only this row, such as paper-join-2 or tpch-sf1; may be repeated [default: all but those of many minutes]
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,
    /// Little data and few runs: whether it works, not how fast
    #[arg(long)]
    pub quick: bool,
    /// Report even if the machine was busy
    #[arg(long)]
    pub force: bool,
    /// Python interpreter that has the package dayfly-frames, PyArrow, and the engines to compare with
    #[arg(long, env = "DAYFLY_PYTHON", default_value = "python3")]
    pub python: String,
}

/// The applications of `dayfly bench apps`.
const APPS: [&str; 9] = [
    "thumbnails",
    "recognition",
    "blackscholes",
    "matmul",
    "jacobi",
    "scan",
    "payload",
    "workers",
    "cold",
];

#[derive(Debug, Args)]
pub struct AppsArguments {
    /// Only this application; may be repeated [default: all]
    #[arg(long, value_name = "NAME", value_parser = APPS)]
    pub only: Vec<String>,
    /// Small inputs and few rounds: whether it works, not how fast
    #[arg(long)]
    pub quick: bool,
    /// Directory for apps.json and apps.svg
    #[arg(long, value_name = "DIR", default_value = "build/apps")]
    pub out: PathBuf,
    /// Directory of the measuring programs, in a checkout of Dayfly
    #[arg(long, value_name = "DIR", default_value = "benches/apps")]
    pub suite: PathBuf,
    /// Report even if the machine was busy
    #[arg(long)]
    pub force: bool,
    /// Python interpreter that has the dayfly module, NumPy, Pillow, scikit-learn, scikit-image and uvicorn
    #[arg(long, env = "DAYFLY_PYTHON", default_value = "python3")]
    pub python: String,
}

#[derive(Debug, Args)]
pub struct TableArguments {
    /// Directory for latency.png, latency.svg and bench.json
    #[arg(long, default_value = "build/bench")]
    pub out: PathBuf,
    /// Report even if the machine was busy
    #[arg(long)]
    pub force: bool,
    /// Python interpreter that has the dayfly module; without one, the table has no row for Python, and a note
    #[arg(long, env = "DAYFLY_PYTHON", default_value = "python3")]
    pub python: String,
}
