//! `dayfly bench`: what an invocation costs here, beside what this machine can do at best.

mod comm;
mod tasks;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use dayfly_bench::baseline::matching;
use dayfly_bench::busy::Watch;
use dayfly_bench::picture::{Picture, Series};
use dayfly_bench::report::{InvokeReport, Named, Setting};
use dayfly_bench::subject::How;
use dayfly_bench::table::{Table, duration};
use dayfly_bench::{Difference, Plan, Samples, Summary, cold, control, invoke, measure, reclaim, reject};
use dayfly_client::{Client, Runtime, Sandbox, Transport};
use dayfly_protocol::api::Connection;
use dayfly_protocol::error::{Code, Failure};
use serde_json::{Value, json};

use crate::lease::Level;
use crate::values;

/// Measure invocations beside the machine's own limits, in the same run.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly bench invoke                                  hot C function over shared memory
  dayfly bench invoke --transport tcp --mode warm
  dayfly bench invoke --depth 16                       many invocations in flight
  dayfly bench cold --language c --sandbox process     from lease to first result
  dayfly bench reclaim                                 a node given back to its owner, and given again
  dayfly bench reject                                  a warm call that finds no core
  dayfly bench control --nodes 10000                   leases granted each second, with so many nodes registered
  dayfly bench tasks --parsl PYTHON                    durable tasks, beside Parsl in an interpreter that has it
  dayfly bench comm --op allreduce --transport tcp     ranks of a group, beside Open MPI
  dayfly bench comm --language python                  the same from Python, beside mpi4py
  dayfly bench comm --tune --ranks 4 --output here.json   where algorithms should change on this machine
  dayfly bench comm --transport s3 --store s3://bucket through object storage, beside TCP, with predicted time and price
  dayfly bench table --out build/bench                 everything, with a picture

Nothing else should run meanwhile: a measurement that saw a busy machine is refused (--force prints it all the same).")]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// One kind of invocation, one number at a time or many in flight
    Invoke(InvokeArguments),
    /// From the request for a lease to the first result
    Cold(ColdArguments),
    /// From taking a node back to its being empty, and from giving it again to the first call on it
    Reclaim(ReclaimArguments),
    /// How soon a caller hears that a warm worker found no core
    Reject(RejectArguments),
    /// Leases granted each second while thousands of simulated nodes are registered, and what their heartbeats cost
    Control(ControlArguments),
    /// Durable tasks: from submission to result, and how many a second; beside Parsl's
    Tasks(tasks::TasksArguments),
    /// Messages and collectives between ranks, beside those of Open MPI in the same run
    Comm(comm::CommArguments),
    /// Cold, warm and hot over each transport, with a picture of the distributions
    Table(TableArguments),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    Hot,
    Warm,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Language {
    C,
    Python,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    /// uint32_t f(void*, uint32_t, void*): its output is copied once
    Plain,
    /// with capacity and errors: no copy
    Checked,
}

#[derive(Debug, Args)]
struct InvokeArguments {
    /// Transport: shm, tcp, tls or libfabric:PROVIDER[/DOMAIN]
    #[arg(long, default_value = "shm")]
    transport: Transport,
    /// Whether the worker polls or sleeps while it waits
    #[arg(long, value_enum, default_value = "hot")]
    mode: Mode,
    /// Language of the function
    #[arg(long, value_enum, default_value = "c")]
    language: Language,
    /// Form of the C function
    #[arg(long, value_enum, default_value = "checked")]
    form: Form,
    /// Bytes in and out
    #[arg(long, default_value_t = 64)]
    size: usize,
    /// Invocations in flight per worker when the rate is measured
    #[arg(long, default_value_t = 1)]
    depth: u32,
    /// Workers
    #[arg(long, default_value_t = 1)]
    workers: u16,
    /// How isolated the workers are
    #[arg(long, value_enum, default_value = "process")]
    sandbox: Level,
    /// Measured invocations; 0 for as many as take a second or two
    #[arg(long, default_value_t = 0)]
    calls: usize,
    /// Report although the machine was busy
    #[arg(long)]
    force: bool,
    /// Items of a `map`, to be held against the standard library's Pool.map (Python only); 0 for none
    #[arg(long, default_value_t = 0)]
    items: usize,
    /// Python interpreter that has the dayfly module
    #[arg(long, env = "DAYFLY_PYTHON", default_value = "python3")]
    python: String,
}

#[derive(Debug, Args)]
struct ColdArguments {
    /// Language of the function
    #[arg(long, value_enum, default_value = "c")]
    language: Language,
    /// How isolated the worker is
    #[arg(long, value_enum, default_value = "process")]
    sandbox: Level,
    /// Image of a container: a name or a path
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Cold starts to measure
    #[arg(long, default_value_t = 40)]
    calls: usize,
    /// Start from executors that the node keeps parked
    #[arg(long)]
    pool: bool,
    /// Measure also how many starts a second so many clients side by side get; 0 for none
    #[arg(long, value_name = "CLIENTS", default_value_t = 0)]
    parallel: usize,
    /// Report although the machine was busy
    #[arg(long)]
    force: bool,
    /// Python interpreter that has the dayfly module
    #[arg(long, env = "DAYFLY_PYTHON", default_value = "python3")]
    python: String,
}

#[derive(Debug, Args)]
struct ReclaimArguments {
    /// Warm workers that are there when the node is taken back
    #[arg(long, default_value_t = 100)]
    workers: u16,
    /// How isolated they are
    #[arg(long, value_enum, default_value = "isolated")]
    sandbox: Level,
    /// How often to measure
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// Report although the machine was busy
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
struct RejectArguments {
    /// Calls of each kind
    #[arg(long, default_value_t = 2_000)]
    calls: usize,
    /// How isolated the workers are
    #[arg(long, value_enum, default_value = "process")]
    sandbox: Level,
    /// Report although the machine was busy
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
struct ControlArguments {
    /// Simulated nodes, each with a connection of its own to a real manager
    #[arg(long, default_value_t = 10_000)]
    nodes: u32,
    /// Clients that ask for leases, each one after the other
    #[arg(long, default_value_t = 8)]
    clients: u32,
    /// How long each part is measured
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = values::duration)]
    each: Duration,
    /// The manager's store, as of `dayfly manager`; a database must be empty [default: SQLite in a directory that is removed]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Report although the machine was busy
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
struct TableArguments {
    /// Directory for latency.png, latency.svg and bench.json
    #[arg(long, default_value = "build/bench")]
    out: PathBuf,
    /// Report although the machine was busy
    #[arg(long)]
    force: bool,
    /// Python interpreter that has the dayfly module; without one, Python is left out and the table says so
    #[arg(long, env = "DAYFLY_PYTHON", default_value = "python3")]
    python: String,
}

fn failure(error: &dayfly_bench::Error) -> Failure {
    Failure::new(error.code(), error.to_string())
}

/// An embedded manager and node of the benchmark's own, so that nobody else's leases are in the way, and its process id.
fn own_manager(pool: usize) -> Result<(Client, Vec<u32>), Failure> {
    // SAFETY: this process has one thread so far.
    unsafe { std::env::set_var("DAYFLY_WARM_POOL", pool.to_string()) };
    let binary = std::env::current_exe().map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
    let client = Client::embedded(Some(&binary)).map_err(|error| error.0)?;
    Ok((client, children()))
}

/// Has the benchmark's own node offer the fabric that is to be measured.
fn offer(transport: Transport) {
    if let Transport::Libfabric(choice) = transport {
        // SAFETY: this process has one thread so far.
        unsafe { std::env::set_var("DAYFLY_FABRIC", choice.to_string()) };
    }
}

/// Processes below this one.
fn children() -> Vec<u32> {
    let text = std::fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Runs the measurement and prints its result.
pub fn run(arguments: &Arguments, json: bool) -> Result<(), Failure> {
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
        What::Tasks(options) => print(&tasks::run(options)?, json),
        What::Table(options) => table(options, json),
    }
}

/// A manager without nodes, in a process and a directory of its own that end with it.
struct BareManager {
    child: Child,
    dir: PathBuf,
    connection: Connection,
}

impl BareManager {
    fn start(store: Option<&str>) -> Result<Self, Failure> {
        let wrong = |what: &str, error: &dyn std::fmt::Display| {
            Failure::new(Code::Internal, format!("the measured manager {what}: {error}"))
        };
        let dir = std::env::temp_dir().join(format!("dayfly-bench-{}", std::process::id()));
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&dir)
            .map_err(|error| wrong("has no directory", &error))?;
        let binary = std::env::current_exe().map_err(|error| wrong("is not to be found", &error))?;
        let mut child = Command::new(binary)
            .args([
                "manager",
                "--listen",
                "127.0.0.1:0",
                "--heartbeat",
                "1s",
                "--json",
                "--log",
                "error",
            ])
            .arg("--state-dir")
            .arg(&dir)
            .args(store.iter().flat_map(|store| ["--store", store]))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| wrong("does not start", &error))?;
        let mut ready = String::new();
        if let Some(out) = &mut child.stdout {
            // Its one line, or none when it ends; what it says then stands above.
            let _ = BufReader::new(out).read_line(&mut ready);
        }
        let mut manager = Self {
            child,
            connection: Connection {
                manager: String::new(),
                ca_pem: String::new(),
                token: String::new(),
                others: Vec::new(),
            },
            dir,
        };
        let file = std::fs::read(manager.dir.join("connection.json")).map_err(|error| wrong("is not ready", &error))?;
        manager.connection = serde_json::from_slice(&file).map_err(|error| wrong("makes no sense", &error))?;
        Ok(manager)
    }
}

impl Drop for BareManager {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
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

fn python(interpreter: &str, what: &str) -> Command {
    let mut command = Command::new(interpreter);
    command.args(["-m", "dayfly._bench", what]).stdin(Stdio::null());
    if let Ok(binary) = std::env::current_exe() {
        command.env("DAYFLY_BIN", binary);
    }
    command
}

/// Round trips of a Python function that does nothing, between two measurements of the raw baseline.
fn measure_python(options: &InvokeArguments) -> Result<(InvokeReport, serde_json::Map<String, Value>), Failure> {
    let how = how(options);
    let (transport, hot) = (how.transport.to_string(), how.hot);
    let mut raw = matching(how.transport, hot, how.size.min(112)).map_err(|error| failure(&error))?;
    let plan = Plan::of_calls(if hot && transport == "shm" { 200_000 } else { 10_000 });
    let watch = Watch::start(&[]);
    let mut baseline = Samples::with_capacity(0);
    let mut add = |samples: Samples| samples.sorted_ns().into_iter().for_each(|ns| baseline.push_ns(ns));
    add(measure(&mut *raw, plan).map_err(|error| failure(&error))?);
    let mut command = python(&options.python, "invoke");
    command.args(["--transport", &transport, "--mode", if hot { "hot" } else { "warm" }]);
    command.args(["--sandbox", how.sandbox.name()]);
    let numbers = [
        ("--size", options.size),
        ("--workers", options.workers.into()),
        ("--calls", options.calls),
        ("--items", options.items),
    ];
    for (name, value) in numbers {
        command.arg(name).arg(value.to_string());
    }
    let more = ask(command)?;
    add(measure(&mut *raw, plan).map_err(|error| failure(&error))?);
    // The measurement's own processes have ended by now and count as foreign; nothing else is judged here.
    let noise = watch
        .finish()
        .judge(true)
        .map_err(|busy| failure(&dayfly_bench::Error::from(busy)))?;
    let samples = more
        .get("samples_ns")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_f64);
    let invoke = Summary::of(samples);
    let setting = Setting {
        transport,
        mode: if hot { "hot" } else { "warm" }.into(),
        language: "python".into(),
        size: options.size as u64,
        depth: options.depth,
        workers: options.workers.into(),
        sandbox: how.sandbox.name().into(),
    };
    let latency = baseline.summary();
    let named = Named {
        name: raw.name().to_owned(),
        about: raw.about(),
        latency,
        per_s: None,
        bytes_per_s: None,
        share: None,
    };
    let per_s = match options.depth {
        0 | 1 => 1e9 / invoke.p50_ns.max(1.0),
        _ => more.get("futures_per_s").and_then(Value::as_f64).unwrap_or_default(),
    };
    let difference = Difference::between(&latency, &invoke, &[]);
    Ok((
        InvokeReport::new(setting, invoke, named, difference, per_s, noise),
        more,
    ))
}

/// Runs a measurement in Python and reads the JSON object that it prints.
fn ask(mut command: Command) -> Result<serde_json::Map<String, Value>, Failure> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| no_python(&command, &error.to_string()))?;
    if !output.status.success() {
        return Err(no_python(&command, &format!("it ended with {}", output.status)));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| no_python(&command, &error.to_string()))
}

fn no_python(command: &Command, text: &str) -> Failure {
    let program = command.get_program().to_string_lossy().into_owned();
    Failure::new(
        Code::ExecutorFailed,
        format!(
            "the measurement in Python by `{program}` failed: {text}. Name an interpreter that has the dayfly module by --python"
        ),
    )
}

/// Code, form and input of a function.
type Described = (Vec<u8>, dayfly_client::Form, Vec<u8>);

/// The runtime of an interpreter and a pickled function for it, as its `dayfly._bench describe` tells.
fn describe_python(interpreter: &str) -> Result<(Runtime, Described), Failure> {
    let command = python(interpreter, "describe");
    let unusable = no_python(&command, "its description makes no sense");
    let described = ask(command)?;
    let parse = || -> Option<_> {
        let runtime = serde_json::from_value(described.get("runtime")?.clone()).ok()?;
        let form = serde_json::from_value(described.get("form")?.clone()).ok()?;
        let bytes = |name: &str| decode(described.get(name)?.as_str()?);
        Some((runtime, (bytes("code")?, form, bytes("input")?)))
    };
    parse().ok_or(unusable)
}

fn decode(hex: &str) -> Option<Vec<u8>> {
    (0..hex.len() / 2)
        .map(|at| u8::from_str_radix(hex.get(2 * at..2 * at + 2)?, 16).ok())
        .collect()
}

/// Executors parked for `bench cold --pool`.
const C_POOL: usize = 8;
const PYTHON_POOL: usize = 4;

fn measure_cold(options: &ColdArguments) -> Result<dayfly_bench::report::ColdReport, Failure> {
    let (runtime, function) = match options.language {
        Language::C => (Runtime::Native, None),
        Language::Python => describe_python(&options.python).map(|(runtime, function)| (runtime, Some(function)))?,
    };
    let pool = match (options.pool, options.language) {
        (false, _) => 0,
        (true, Language::C) => C_POOL,
        (true, Language::Python) => PYTHON_POOL,
    };
    let (client, mine) = own_manager(pool)?;
    let options = cold::Options {
        runtime,
        function,
        calls: options.calls,
        pool,
        parallel: options.parallel,
        sandbox: options.sandbox.into(),
        image: options.image.clone(),
        force: options.force,
    };
    cold::run(&client, &mine, &options).map_err(|error| failure(&error))
}

fn table(options: &TableArguments, json: bool) -> Result<(), Failure> {
    std::fs::create_dir_all(&options.out).map_err(|error| {
        Failure::new(
            Code::StoreFailed,
            format!("{} cannot be made: {error}", options.out.display()),
        )
    })?;
    let quiet = Watch::look(std::time::Duration::from_millis(300), &[]);
    quiet
        .judge(options.force)
        .map_err(|busy| failure(&dayfly_bench::Error::from(busy)))?;
    let mut rows = Table::new(
        "An invocation of 64 bytes in and out",
        &["", "p50", "p99", "p99.9", "baseline p50", "difference"],
    );
    let mut all = Vec::new();
    let mut series: Vec<Series> = Vec::new();
    for language in [Language::C, Language::Python] {
        for pool in [false, true] {
            let cold = ColdArguments {
                language,
                sandbox: Level::Process,
                image: None,
                parallel: 0,
                calls: 15,
                pool,
                force: options.force,
                python: options.python.clone(),
            };
            let name = format!(
                "cold, {}{}",
                if language == Language::C { "C" } else { "Python" },
                if pool { ", warm pool" } else { "" }
            );
            match measure_cold(&cold) {
                Ok(report) => {
                    let ns = |ms: f64| duration(ms * 1e6);
                    rows.row([
                        name,
                        ns(report.total.p50_ms),
                        ns(report.total.p99_ms),
                        String::new(),
                        duration(report.baseline.latency.p50_ns),
                        ns(report.overhead_p50_ms),
                    ]);
                    all.push(json!(report));
                }
                Err(error) if language == Language::Python => {
                    rows.row([name, format!("left out: {}", error.code.name())])
                }
                Err(error) => return Err(error),
            }
        }
    }
    let (client, mine) = own_manager(1)?;
    for transport in [Transport::Shm, Transport::Tcp, Transport::Tls] {
        for hot in [false, true] {
            let how = How {
                transport,
                hot,
                size: 64,
                plain: false,
                sandbox: Sandbox::Process,
            };
            let options = invoke::Options {
                how,
                depth: 1,
                workers: 1,
                calls: 0,
                force: options.force,
            };
            let (report, pair) = invoke::run(&client, &mine, &options).map_err(|error| failure(&error))?;
            let name = format!("{}, {transport}, C", if hot { "hot" } else { "warm" });
            rows.row([
                name,
                duration(report.invoke.p50_ns),
                duration(report.invoke.p99_ns),
                duration(report.invoke.p999_ns),
                duration(report.baseline.latency.p50_ns),
                duration(report.difference.overhead_p50_ns),
            ]);
            series.extend(pair);
            all.push(json!(report));
        }
    }
    let picture = Picture {
        title: "Latency of an invocation, 64 bytes in and out".into(),
        subtitle: "each beside the raw limit of this machine in the same run".into(),
        series,
    };
    let (png, svg) = picture
        .write(&options.out, "latency")
        .map_err(|error| failure(&error))?;
    let all = json!({ "rows": all, "png": png, "svg": svg });
    let written = options.out.join("bench.json");
    std::fs::write(&written, format!("{all:#}\n")).map_err(|error| {
        Failure::new(
            Code::StoreFailed,
            format!("{} cannot be written: {error}", written.display()),
        )
    })?;
    if json {
        println!("{all}");
    } else {
        println!("{rows}\n  picture: {} and {}", png.display(), svg.display());
    }
    Ok(())
}
