//! `dayfly bench comm`: messages and collectives between ranks.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use dayfly_bench::{comm, tune};
use dayfly_comm::cost::Prices;
use dayfly_comm::table::{Table, Tables};
use dayfly_protocol::error::{Code, Failure};
use dayfly_storage::{Kind, Place};

use super::{Language, failure, print};
use crate::values;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CommOp {
    Pingpong,
    Bcast,
    Allreduce,
    Alltoall,
    Allgather,
    Barrier,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CommTransport {
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

impl CommTransport {
    /// The store that it is, if it is one.
    fn kind(self) -> Option<Kind> {
        match self {
            Self::Shm | Self::Tcp => None,
            Self::S3 => Some(Kind::S3),
            Self::Redis => Some(Kind::Redis),
            Self::File => Some(Kind::File),
        }
    }
}

#[derive(Debug, Args)]
pub struct CommArguments {
    /// What ranks do
    #[arg(long, value_enum, default_value = "pingpong")]
    op: CommOp,
    /// What they are called from: python for NumPy's arrays, beside mpi4py over Open MPI
    #[arg(long, value_enum, default_value = "c")]
    language: Language,
    /// Python interpreter that has the dayfly module and mpi4py
    #[arg(long, env = "DAYFLY_PYTHON", default_value = "python3")]
    python: String,
    /// How many there are
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=64))]
    ranks: u16,
    /// What they exchange through
    #[arg(long, value_enum, default_value = "shm")]
    transport: CommTransport,
    /// The store: s3://bucket/prefix, redis://host:port, rediss:// or file:///directory
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// What things cost, to compute the price of an operation: put=, get=, gb-month=, host-hour= and rank-hour=, in one currency
    #[arg(long, value_name = "NAME=PRICE,...", value_delimiter = ',', value_parser = price)]
    prices: Vec<(PriceOf, f64)>,
    /// Rounds in turns, of which the median counts
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// The smallest message
    #[arg(long, value_name = "SIZE", default_value = "8", value_parser = values::size)]
    least: u64,
    /// The largest message
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = values::size)]
    most: u64,
    /// How much larger each is than the one before
    #[arg(long, default_value_t = 2)]
    step: usize,
    /// Measure instead at which sizes collectives of so many ranks should change their algorithms here
    #[arg(long, conflicts_with_all = ["op", "language", "store"])]
    tune: bool,
    /// With --tune: where to write that, for `dayfly run --tables FILE`; what the file says of other numbers of ranks stays
    #[arg(long, value_name = "FILE", requires = "tune")]
    output: Option<PathBuf>,
}

/// Measures, and prints what came of it.
pub fn run(options: &CommArguments, json: bool) -> Result<(), Failure> {
    match options.transport.kind() {
        None if options.tune => {
            let report = tune::run(&comm_plan(options)).map_err(|error| failure(&error))?;
            if let Some(path) = &options.output {
                keep_table(path, options.ranks.into(), report.table)?;
            }
            print(&report, json)
        }
        None => print(&comm::run(&comm_plan(options)).map_err(|error| failure(&error))?, json),
        Some(kind) => {
            let plan = stored_plan(options, kind)?;
            print(&comm::stored::run(&plan).map_err(|error| failure(&error))?, json)
        }
    }
}

/// Adds a table to a file of them, or begins one.
fn keep_table(path: &Path, ranks: u32, table: Table) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(
            Code::InvalidRequest,
            format!("{} cannot be written: {error}", path.display()),
        )
    };
    let mut tables = match std::fs::read_to_string(path) {
        Ok(text) => Tables::from_json(&text)?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Tables::default(),
        Err(error) => return Err(failed(error)),
    };
    tables.0.insert(ranks, table);
    let text =
        serde_json::to_string_pretty(&tables).map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
    std::fs::write(path, text + "\n").map_err(failed)
}

fn comm_op(op: CommOp) -> comm::Op {
    match op {
        CommOp::Pingpong => comm::Op::Pingpong,
        CommOp::Bcast => comm::Op::Bcast,
        CommOp::Allreduce => comm::Op::Allreduce,
        CommOp::Alltoall => comm::Op::Alltoall,
        CommOp::Allgather => comm::Op::Allgather,
        CommOp::Barrier => comm::Op::Barrier,
    }
}

/// What has a price.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum PriceOf {
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

fn prices(said: &[(PriceOf, f64)]) -> Option<Prices> {
    let mut prices = Prices::default();
    for (of, price) in said {
        match of {
            PriceOf::Put => prices.put = *price,
            PriceOf::Get => prices.get = *price,
            PriceOf::GbMonth => prices.gb_month = *price,
            PriceOf::HostHour => prices.host_hour = *price,
            PriceOf::RankHour => prices.rank_hour = *price,
        }
    }
    (!said.is_empty()).then_some(prices)
}

/// What is to be measured through a store.
fn stored_plan(options: &CommArguments, kind: Kind) -> Result<comm::stored::Plan, Failure> {
    let wrong = |text: String| Failure::new(Code::InvalidRequest, text);
    let store = options.store.as_deref();
    let place = Place::parse(store.ok_or_else(|| wrong("name the store by --store URL".into()))?)?;
    if place.kind() != kind {
        return Err(wrong(format!("{place} is not what --transport says")));
    }
    if options.language != Language::C {
        return Err(wrong("stores are measured from programs: --language c".into()));
    }
    let op = comm_op(options.op);
    Ok(comm::stored::Plan {
        op,
        ranks: options.ranks.into(),
        place,
        rounds: options.rounds,
        sizes: comm::Plan::sizes(op, options.least as usize, options.most as usize, options.step),
        prices: prices(&options.prices),
    })
}

fn comm_plan(options: &CommArguments) -> comm::Plan {
    let op = comm_op(options.op);
    let cache = std::env::var_os("DAYFLY_CACHE").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/dayfly")));
    comm::Plan {
        op,
        ranks: options.ranks.into(),
        tcp: options.transport == CommTransport::Tcp,
        rounds: options.rounds,
        sizes: comm::Plan::sizes(op, options.least as usize, options.most as usize, options.step),
        table: Table::default(),
        cache: cache.unwrap_or_else(std::env::temp_dir).join("bench"),
        python: (options.language == Language::Python).then(|| PathBuf::from(&options.python)),
    }
}
