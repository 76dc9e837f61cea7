//! The program `dayfly-bench`: measures invocations beside the limits of the machine, and simulates harvesting.
//!
//! `dayfly bench` and `dayfly simulate` execute it with its whole command line, so that `dayfly` contains no fonts and no plotting.
//! The options are in `crates/command`, the measurements in this crate's library.

mod apps;
mod cold;
mod comm;
mod frames;
mod harvest;
mod manager;
mod python;
mod simulate;
mod table;
mod tasks;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use dayfly_bench::subject::How;
use dayfly_bench::{control, fleet, invoke, offload, reclaim, reject};
use dayfly_command::bench::{Arguments, Form, InvokeArguments, Language, Mode, What};
use dayfly_command::logging::{self, Telling};
use dayfly_command::{Global, exit};
use dayfly_protocol::error::{Code, Failure};
use serde_json::json;

use crate::cold::measure_cold;
use crate::manager::{BareManager, offer, own_manager};
use crate::python::measure_python;

/// The measurements of `dayfly bench` and `dayfly simulate`, which start this program with its own arguments.
#[derive(Debug, Parser)]
#[command(name = "dayfly", version, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure invocations beside the machine's own limits, in the same run
    Bench(Arguments),
    /// Simulate what harvesting idle resources would give, before it is switched on
    Simulate(dayfly_command::simulate::Arguments),
}

fn main() -> ExitCode {
    let Cli { global, command } = Cli::parse();
    let telling = Telling {
        level: "warn",
        service: None,
    };
    let measured = logging::start(&global, telling).and_then(|_exporter| match &command {
        Command::Bench(arguments) => run(arguments, global.json),
        Command::Simulate(arguments) => simulate::run(arguments, global.json),
    });
    match measured {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => exit::report(&failure, global.json),
    }
}

fn failure(error: &dayfly_bench::Error) -> Failure {
    Failure::new(error.code(), error.to_string())
}

/// Runs the measurement and prints its result.
fn run(arguments: &Arguments, json: bool) -> Result<(), Failure> {
    match &arguments.what {
        What::Invoke(options) if options.language == Language::Python => {
            let (report, more) = measure_python(options)?;
            if !json {
                println!("{report}");
                for (name, value) in more.iter().filter(|(name, _)| name.as_str() != "samples_ns") {
                    println!("  {name}: {value}");
                }
                return Ok(());
            }
            let mut report = json!(report);
            if let Some(object) = report.as_object_mut() {
                object.extend(more.into_iter().filter(|(name, _)| name != "samples_ns"));
            }
            println!("{report}");
            Ok(())
        }
        What::Invoke(options) => {
            offer(options.transport);
            let (client, mine) = own_manager(1)?;
            let (report, _) = invoke::run(&client, &mine, &invoke_options(options)).map_err(|error| failure(&error))?;
            print(&report, json)
        }
        What::Cold(options) => {
            let report = measure_cold(options)?;
            print(&report, json)
        }
        What::Reclaim(options) => {
            // SAFETY: this process has one thread so far.
            unsafe { std::env::set_var("DAYFLY_WARM_WORKERS", options.workers.to_string()) };
            let (client, mine) = own_manager(1)?;
            let options = reclaim::Options {
                workers: options.workers,
                sandbox: options.sandbox.into(),
                rounds: options.rounds,
                force: options.force,
            };
            print(
                &reclaim::run(&client, &mine, options).map_err(|error| failure(&error))?,
                json,
            )
        }
        What::Reject(options) => {
            let (client, mine) = own_manager(1)?;
            let options = reject::Options {
                calls: options.calls,
                sandbox: options.sandbox.into(),
                force: options.force,
            };
            print(
                &reject::run(&client, &mine, options).map_err(|error| failure(&error))?,
                json,
            )
        }
        What::Fleet(options) => {
            let (client, mine) = own_manager(1)?;
            let options = fleet::Options {
                calls: options.calls,
                size: options.size.into(),
                force: options.force,
            };
            print(
                &fleet::run(&client, &mine, options).map_err(|error| failure(&error))?,
                json,
            )
        }
        What::Offload(options) => {
            let (client, mine) = own_manager(1)?;
            let options = offload::Options {
                calls: options.calls,
                work: std::time::Duration::from_micros(options.work_us.into()),
                size: options.size,
                steps: options.steps,
                workers: options.workers,
                hot: options.mode == Mode::Hot,
                explain: options.explain,
                force: options.force,
            };
            print(
                &offload::run(&client, &mine, options).map_err(|error| failure(&error))?,
                json,
            )
        }
        What::Comm(options) => comm::run(options, json),
        What::Control(options) => {
            let manager = BareManager::start(options.store.as_deref())?;
            let options = control::Options {
                nodes: options.nodes,
                clients: options.clients,
                each: options.each,
                force: options.force,
            };
            let report = control::run(&manager.connection, manager.child.id(), options);
            print(&report.map_err(|error| failure(&error))?, json)
        }
        What::Frames(options) => print(&frames::run(options)?, json),
        What::Harvest(options) => print(&harvest::run(options)?, json),
        What::Tasks(options) => print(&tasks::run(options)?, json),
        What::Apps(options) => print(&apps::run(options)?, json),
        What::Table(options) => table::run(options, json),
    }
}

fn print(report: &(impl serde::Serialize + std::fmt::Display), json: bool) -> Result<(), Failure> {
    if json {
        let text = serde_json::to_string(report).map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
        println!("{text}");
    } else {
        println!("{report}");
    }
    Ok(())
}

fn how(options: &InvokeArguments) -> How {
    How {
        transport: options.transport,
        hot: options.mode == Mode::Hot,
        size: options.size,
        plain: options.form == Form::Plain,
        sandbox: options.sandbox.into(),
    }
}

fn invoke_options(options: &InvokeArguments) -> invoke::Options {
    invoke::Options {
        how: how(options),
        depth: options.depth,
        workers: options.workers,
        calls: options.calls,
        force: options.force,
    }
}
