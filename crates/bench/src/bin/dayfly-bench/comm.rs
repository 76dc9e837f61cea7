//! `dayfly bench comm`: messages and collectives between ranks.

use std::path::{Path, PathBuf};

use dayfly_bench::{comm, tune};
use dayfly_comm::cost::Prices;
use dayfly_comm::table::{Table, Tables};
use dayfly_command::bench::{CommArguments, CommOp, CommTransport, Language, PriceOf};
use dayfly_protocol::error::{Code, Failure};
use dayfly_storage::{Kind, StoreUrl};

use crate::{failure, print};

/// Measures and prints the result.
pub fn run(options: &CommArguments, json: bool) -> Result<(), Failure> {
    match kind(options.transport) {
        None if options.tune => {
            let report = tune::run(&comm_plan(options)).map_err(|error| failure(&error))?;
            if let Some(path) = &options.output {
                keep_table(path, options.ranks.into(), report.table)?;
            }
            print(&report, json)
        }
        None if options.op == CommOp::Post => {
            if options.language != Language::C {
                return Err(wrong("posts are measured from programs: --language c"));
            }
            print(
                &comm::post::run(&comm_plan(options)).map_err(|error| failure(&error))?,
                json,
            )
        }
        Some(_) if options.op == CommOp::Post => {
            Err(wrong("posts are measured over shm and tcp: choose a --transport"))
        }
        None => print(&comm::run(&comm_plan(options)).map_err(|error| failure(&error))?, json),
        Some(kind) => {
            let plan = stored_plan(options, kind)?;
            print(&comm::stored::run(&plan).map_err(|error| failure(&error))?, json)
        }
    }
}

/// Adds a table to a file of tables, or creates the file.
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

fn wrong(text: &str) -> Failure {
    Failure::new(Code::InvalidRequest, text)
}

/// Returns the kind of store of a transport; `None` for shared memory and TCP.
fn kind(transport: CommTransport) -> Option<Kind> {
    match transport {
        CommTransport::Shm | CommTransport::Tcp => None,
        CommTransport::S3 => Some(Kind::S3),
        CommTransport::Redis => Some(Kind::Redis),
        CommTransport::File => Some(Kind::File),
    }
}

fn comm_op(op: CommOp) -> comm::Op {
    match op {
        CommOp::Pingpong => comm::Op::Pingpong,
        CommOp::Bcast => comm::Op::Bcast,
        CommOp::Allreduce => comm::Op::Allreduce,
        // A post is measured beside it.
        CommOp::Alltoall | CommOp::Post => comm::Op::Alltoall,
        CommOp::Allgather => comm::Op::Allgather,
        CommOp::Barrier => comm::Op::Barrier,
    }
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

/// Returns the plan of a measurement through a store.
fn stored_plan(options: &CommArguments, kind: Kind) -> Result<comm::stored::Plan, Failure> {
    let store = options.store.as_deref();
    let place = StoreUrl::parse(store.ok_or_else(|| wrong("name the store by --store URL"))?)?;
    if place.kind() != kind {
        return Err(wrong(&format!("{place} is not what --transport says")));
    }
    if options.language != Language::C {
        return Err(wrong("stores are measured from programs: --language c"));
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
