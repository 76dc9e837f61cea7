//! The options of `dayfly bench comm`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::Language;
use crate::values;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CommOp {
    Pingpong,
    Bcast,
    Allreduce,
    Alltoall,
    Allgather,
    Barrier,
    Post,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CommTransport {
    /// Shared memory
    Shm,
    /// TCP on the loopback
    Tcp,
    /// A store that speaks S3, beside TCP
    S3,
    /// A Redis server, beside TCP
    Redis,
    /// A directory, beside TCP
    File,
}

#[derive(Debug, Args)]
pub struct CommArguments {
    /// Operation of the ranks
    #[arg(long, value_enum, default_value = "pingpong")]
    pub op: CommOp,
    /// Language of the ranks; python uses mpi4py with arrays of NumPy, beside mpi4py over Open MPI
    #[arg(long, value_enum, default_value = "c")]
    pub language: Language,
    /// Python interpreter that has the dayfly module and mpi4py
    #[arg(long, env = "DAYFLY_PYTHON", default_value = "python3")]
    pub python: String,
    /// Number of ranks
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=64))]
    pub ranks: u16,
    /// Transport between the ranks
    #[arg(long, value_enum, default_value = "shm")]
    pub transport: CommTransport,
    /// The store: s3://bucket/prefix, redis://host:port, rediss:// or file:///directory
    #[arg(long, value_name = "URL")]
    pub store: Option<String>,
    /// Prices, to compute the cost of an operation: put=, get=, gb-month=, host-hour= and rank-hour=, in one currency
    #[arg(long, value_name = "NAME=PRICE,...", value_delimiter = ',', value_parser = price)]
    pub prices: Vec<(PriceOf, f64)>,
    /// Number of rounds; the median counts
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Minimum size of a message
    #[arg(long, value_name = "SIZE", default_value = "8", value_parser = values::size)]
    pub least: u64,
    /// Maximum size of a message
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = values::size)]
    pub most: u64,
    /// Factor from one size to the next
    #[arg(long, default_value_t = 2)]
    pub step: usize,
    /// Measure instead the sizes at which collectives of this number of ranks should change their algorithm here
    #[arg(long, conflicts_with_all = ["op", "language", "store"])]
    pub tune: bool,
    /// With --tune: the file to write, for `dayfly run --tables FILE`; its tables for other numbers of ranks stay
    #[arg(long, value_name = "FILE", requires = "tune")]
    pub output: Option<PathBuf>,
}

/// The priced resources.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum PriceOf {
    Put,
    Get,
    GbMonth,
    HostHour,
    RankHour,
}

fn price(text: &str) -> Result<(PriceOf, f64), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=PRICE")?;
    let price = value
        .parse::<f64>()
        .ok()
        .filter(|price| price.is_finite() && *price >= 0.0);
    Ok((
        PriceOf::from_str(name, false)?,
        price.ok_or("a price is a number, and not negative")?,
    ))
}
