//! The options of `dayfly simulate`. The program `dayfly-bench` simulates.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::values;

/// Simulate what harvesting idle resources would give, before it is switched on.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly simulate --generate single                        our policy on 165 calls, one node of 72 cores
  dayfly simulate --generate single --compare              all policies beside each other
  dayfly simulate --generate multi-120 --scheduler hash    another scheduler, four nodes of 32 cores
  dayfly simulate --trace calls.csv --nodes 8 --cores 64   a site's own trace
  dayfly simulate --trace invocation.csv --trace duration.csv --trace memory.csv   a day of Azure Functions 2019
  dayfly simulate --trace harvest.jsonl --compare          what a node recorded, under all policies
  dayfly simulate --replay harvest.jsonl                   decide the events of a node again
  dayfly simulate --figures figures                        drawings of all policies, schedulers and thresholds

Virtual time: ten thousand calls take about a second. Nothing is started and no manager is needed. The same trace, options and seed
give the same figures. `worst_degradation` compares each call with the same call without harvesting.")]
pub struct Arguments {
    #[command(flatten)]
    pub source: Source,
    /// Policy: dayfly, default (harvests nothing), oracle (knows each call's demand), libra, freyr, no-safeguard,
    /// no-profiler, neither, histogram or forest
    #[arg(long, default_value = "dayfly")]
    pub policy: String,
    /// Scheduler: dayfly, hash, round-robin, shortest-queue or min-worker-set
    #[arg(long, default_value = "dayfly")]
    pub scheduler: String,
    /// Nodes [default: 1; 4 for multi, 50 for scaling]
    #[arg(long)]
    pub nodes: Option<usize>,
    /// Cores of each node [default: 72; 32 for multi, 24 for scaling; those of the node for its record]
    #[arg(long)]
    pub cores: Option<u32>,
    /// Memory of each node, such as 64G [default: 1G for each core; that of the node for its record]
    #[arg(long, value_parser = values::size)]
    pub memory: Option<u64>,
    /// Schedulers that share nothing
    #[arg(long, default_value_t = 1)]
    pub shards: usize,
    /// Seed of all that is drawn
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Earlier calls of each function that the policy has learned from [default: 100 for generated traces, 0 for others]
    #[arg(long, value_name = "CALLS")]
    pub history: Option<usize>,
    /// Time until a new worker begins its first call [default: 6ms; 0s for the record of a node, whose calls had workers]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub cold_start: Option<Duration>,
    /// Interval of the nodes' heartbeats
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = values::duration)]
    pub heartbeat: Duration,
    /// Traces that --train-freyr trains on
    #[arg(long, value_name = "NUMBER", default_value_t = 500)]
    pub episodes: u64,
    /// All policies in one table
    #[arg(long, conflicts_with_all = ["replay", "events"])]
    pub compare: bool,
    /// Write the events and decisions of the node to a file, which --replay reads; with one node only
    #[arg(long, value_name = "FILE", conflicts_with_all = ["replay", "history"])]
    pub events: Option<PathBuf>,
}

/// What is simulated.
#[derive(Debug, Args)]
#[group(required = true)]
pub struct Source {
    /// Trace: one call a line, the record of a node (--harvest-log), arrivals of a language model's service, or the three
    /// files of Azure Functions 2019
    #[arg(long, value_name = "FILE", conflicts_with_all = ["generate", "replay"])]
    pub trace: Vec<PathBuf>,
    /// Trace of ten measured functions: single, single-related, single-unrelated, multi-RPM (calls a minute) or scaling-CALLS
    #[arg(long, value_name = "KIND", conflicts_with = "replay")]
    pub generate: Option<String>,
    /// Decide the events of a node's log again, and check that the decisions are the same
    #[arg(long, value_name = "LOG")]
    pub replay: Option<PathBuf>,
    /// Train the policy freyr on generated traces of other seeds, and write its weights to a file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["trace", "generate", "replay"])]
    pub train_freyr: Option<PathBuf>,
    /// Draw figures 6 to 14 and 16 of LIBRA from simulations, one SVG file each, in a directory
    #[arg(long, value_name = "DIR", conflicts_with_all = ["trace", "generate", "replay", "train_freyr"])]
    pub figures: Option<PathBuf>,
}
