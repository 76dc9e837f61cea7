//! The program `dayfly`: the daemons, and the commands for people and scripts.
//!
//! Each command has one file. Shared modules: [`daemon`] (state directories, signals, the parent), [`connect`] (which
//! manager), [`output`] (tables and JSON), [`values`] (ids, amounts), [`exit`] (usage errors). The crate
//! `crates/command` contains what `dayfly-bench` shares with this program.

mod bench;
mod bill;
mod completions;
mod connect;
mod connector;
mod contents;
mod daemon;
mod doctor;
mod endpoint;
mod env;
mod exit;
mod flow;
mod function;
mod interpreter;
mod invoke;
mod lease;
mod loans;
mod login;
mod manager;
mod manual;
mod node;
mod output;
mod page;
mod python;
mod queries;
mod reach;
#[cfg(test)]
mod reference;
mod rendezvous;
mod resources;
mod run;
mod sql;
mod status;
mod task;
mod team;
mod tenant;
mod token;
mod top;
mod trigger;
mod up;
mod usage;
mod values;
mod version;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use dayfly_command::Global;
use dayfly_command::logging::{self, Telling};
use dayfly_protocol::error::Failure;

/// Lease workers, and invoke functions on them in microseconds.
#[derive(Debug, Parser)]
#[command(name = "dayfly", version, max_term_width = 100)]
#[command(after_help = "A first session, in two terminals:
  dayfly up                                  a manager and a node on this machine
  dayfly status                              nodes, free resources and leases
  dayfly invoke ./area.so area --input 'hex:0600000007000000'

Exit status: 0 success, 1 failure, 2 wrong usage, 3 unreachable (is it running?), 4 refused (limits, rights, versions).
Errors go to standard error as `error [code]: message`; docs/errors.md explains each code.")]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a manager and a node on this machine
    Up(up::Arguments),
    /// Start a manager without a node, or make tokens for nodes to join it
    Manager(manager::Arguments),
    /// Start a node that joins a manager, or a standalone one
    Node(node::Arguments),
    /// Show nodes, free resources and leases
    Status(status::Arguments),
    /// Show the activity of leases, and of nodes that harvest, live
    Top(top::Arguments),
    /// Print the address of the manager's web page
    Page(page::Arguments),
    /// List, create, renew, release and revoke leases
    Lease(lease::Arguments),
    /// Submit, follow and cancel durable tasks, and fetch their outcomes
    Task(task::Arguments),
    /// Register and show the functions that durable tasks run
    Function(function::Arguments),
    Env(env::Arguments),
    /// Show, set up and run endpoints, the places where durable tasks run
    Endpoint(endpoint::Arguments),
    /// Start functions at set times, when files arrive, and at requests of other programs
    Trigger(trigger::Arguments),
    /// Pass the results of functions to other functions, as tasks
    Flow(flow::Arguments),
    /// Group tenants, to share functions and endpoints with them
    Team(team::Arguments),
    /// Show the resources that durable tasks used, by function, tenant, endpoint or day
    Usage(usage::Arguments),
    /// Show and make tenants, and set their quotas and budgets
    Tenant(tenant::Arguments),
    /// Show, make and revoke the tokens with which people and programs use the manager
    Token(token::Arguments),
    /// Log in with your institution's identity provider
    Login(login::Arguments),
    /// Show what leases cost
    Bill(bill::Arguments),
    /// Show or set the site's prices
    Prices(tenant::PricesArguments),
    /// Show who changed accounts, prices, nodes and other tenants' leases
    Audit(bill::AuditArguments),
    /// Call a function of a shared library or of a Python module
    Invoke(invoke::Arguments),
    /// Run a program or a function on many ranks that exchange messages
    Run(run::Arguments),
    /// Query files with SQL on leased workers
    Sql(sql::Arguments),
    /// Show the queries of data frames that run or have run, and cancel them
    Queries(queries::Arguments),
    /// Start a rendezvous for the ranks of groups, without a manager
    Rendezvous(rendezvous::Arguments),
    /// Join groups for the isolated ranks of a lease; started by a node
    #[command(hide = true)]
    Connector(connector::Arguments),
    /// Measure invocations, and compare them with the machine's limits in the same run
    Bench(dayfly_command::bench::Arguments),
    /// Simulate what harvesting idle resources would give, before it is switched on
    Simulate(dayfly_command::simulate::Arguments),
    /// Check what this machine lets Dayfly do, and say what to do about the rest
    Doctor(doctor::Arguments),
    /// Print the release of this program
    Version(version::Arguments),
    /// Print completions for a shell
    Completions(completions::Arguments),
    #[command(hide = true)]
    Manual(manual::Arguments),
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => return exit::usage(error, &arguments, &Cli::command()),
    };
    match run(&cli) {
        Ok(status) => status,
        Err(failure) => exit::report(&failure, cli.global.json),
    }
}

fn run(cli: &Cli) -> Result<ExitCode, Failure> {
    let global = &cli.global;
    let (level, service) = match &cli.command {
        Command::Up(arguments) => (arguments.log_level(), Some("dayfly-up")),
        Command::Manager(_) => ("info", Some("dayfly-manager")),
        Command::Node(_) => ("info", Some("dayfly-node")),
        Command::Endpoint(arguments) => arguments.logging(),
        Command::Rendezvous(_) => ("info", None),
        _ => ("warn", None),
    };
    let _exporter = logging::start(global, Telling { level, service })?;
    match &cli.command {
        Command::Up(arguments) => up::run(arguments, global),
        Command::Manager(arguments) => manager::run(arguments, global),
        Command::Node(arguments) => node::run(arguments, global),
        Command::Status(arguments) => status::run(arguments, global),
        Command::Top(arguments) => top::run(arguments, global),
        Command::Page(arguments) => page::run(arguments, global),
        Command::Lease(arguments) => lease::run(arguments, global),
        Command::Task(arguments) => task::run(arguments, global),
        Command::Function(arguments) => function::run(arguments, global),
        Command::Env(arguments) => return env::run(arguments, global),
        Command::Endpoint(arguments) => endpoint::run(arguments, global),
        Command::Trigger(arguments) => trigger::run(arguments, global),
        Command::Flow(arguments) => flow::run(arguments, global),
        Command::Team(arguments) => team::run(arguments, global),
        Command::Usage(arguments) => usage::run(arguments, global),
        Command::Tenant(arguments) => tenant::run(arguments, global),
        Command::Token(arguments) => token::run(arguments, global),
        Command::Login(arguments) => login::run(arguments, global),
        Command::Bill(arguments) => bill::run(arguments, global),
        Command::Prices(arguments) => tenant::prices(arguments, global),
        Command::Audit(arguments) => bill::audit(arguments, global),
        Command::Invoke(arguments) => invoke::run(arguments, global),
        Command::Run(arguments) => return run::run(arguments, global),
        Command::Sql(arguments) => return Err(sql::run(arguments, global)),
        Command::Queries(arguments) => queries::run(arguments, global),
        Command::Rendezvous(arguments) => rendezvous::run(arguments, global),
        Command::Connector(_) => connector::run(),
        Command::Bench(_) | Command::Simulate(_) => return Err(bench::run().into()),
        Command::Doctor(arguments) => return doctor::run(arguments, global),
        Command::Version(arguments) => version::run(arguments, global),
        Command::Completions(arguments) => completions::run(arguments, global),
        Command::Manual(arguments) => manual::run(arguments, global),
    }
    .map(|()| ExitCode::SUCCESS)
}
