//! `dayfly simulate`: harvesting in virtual time.

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use dayfly_command::simulate::Arguments;
use dayfly_harvest::profile::{Options as ProfileOptions, Profiles};
use dayfly_harvest::record::{Entry, Header};
use dayfly_harvest::{Amount, FunctionId, Sample, Trains};
use dayfly_protocol::error::{Code, Failure};
use dayfly_simulate::cluster::{self, MAX_CORES, Options};
use dayfly_simulate::functions::Functions;
use dayfly_simulate::generate::Generator;
use dayfly_simulate::history;
use dayfly_simulate::log::replay;
use dayfly_simulate::policy::Policy;
use dayfly_simulate::report::Report;
use dayfly_simulate::study::Study;
use dayfly_simulate::trace::{NamedText, Recorded, Trace};
use serde::Serialize;
use serde_json::json;

/// Calls of each function that a policy has learned from when a generated trace begins.
const HISTORY: usize = 100;
/// Bytes of a trace or a log at most.
const MAX_FILE_BYTES: u64 = 4 << 30;

pub fn run(arguments: &Arguments, json: bool) -> Result<(), Failure> {
    if let Some(log) = &arguments.source.replay {
        return decide_again(log, json);
    }
    if let Some(path) = &arguments.source.train_freyr {
        return train(path, arguments, json);
    }
    if let Some(directory) = &arguments.source.figures {
        return draw(directory, arguments.seed, json);
    }
    let trace = read(arguments)?;
    let options = options(arguments, trace.recorded())?;
    let history = history_of(arguments, &trace);
    let study = Study::new(trace.calls(), &history, options.clone()).map_err(|error| wrong(&error))?;
    if arguments.compare {
        return compare(&study, trace.recorded(), json);
    }
    let (report, outcome) = study.run(options.policy, &mut clock()).map_err(|error| wrong(&error))?;
    if let Some(path) = &arguments.events {
        let rules = options.policy.rules().unwrap_or_default();
        write_log(
            path,
            &Header {
                rules,
                trains: Trains::AtOnce,
            },
            outcome.logs.first().map_or(&[], Vec::as_slice),
        )?;
    }
    crate::print(
        &Simulated {
            report,
            recorded: trace.recorded().copied(),
        },
        json,
    )
}

/// The figures of a simulation and, for the record of a node, what happened there.
#[derive(Debug, Serialize)]
struct Simulated {
    #[serde(flatten)]
    report: Report,
    #[serde(skip_serializing_if = "Option::is_none")]
    recorded: Option<Recorded>,
}

impl std::fmt::Display for Simulated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.report.fmt(f)?;
        match &self.recorded {
            Some(recorded) => write!(f, "\n{}", on_the_node(recorded)),
            None => Ok(()),
        }
    }
}

fn on_the_node(recorded: &Recorded) -> String {
    format!(
        "on the node: {} calls, P99 {:.3} s, median {:.3} s, completion {:.3} s",
        recorded.calls, recorded.p99_s, recorded.p50_s, recorded.completion_s
    )
}

fn train(path: &Path, arguments: &Arguments, json: bool) -> Result<(), Failure> {
    let episodes = arguments.episodes;
    let seed = arguments.seed;
    let command = format!("dayfly simulate --train-freyr FILE --episodes {episodes} --seed {seed}");
    let trained =
        dayfly_simulate::training::train(Functions::measured(), &options(arguments, None)?, episodes, &command)
            .map_err(|error| wrong(&error))?;
    std::fs::write(path, trained.weights.to_json()).map_err(|error| unwritable(path, &error))?;
    if json {
        println!("{}", json!({ "episodes": trained.episodes.len() }));
    } else {
        println!(
            "{} episodes; the weights are in {}",
            trained.episodes.len(),
            path.display()
        );
    }
    Ok(())
}

fn draw(directory: &Path, seed: u64, json: bool) -> Result<(), Failure> {
    // Before minutes of simulation.
    std::fs::create_dir_all(directory).map_err(|error| unwritable(directory, &error))?;
    let figures =
        dayfly_simulate::figures::figures(Functions::measured(), seed, &mut clock()).map_err(|error| wrong(&error))?;
    let mut paths = Vec::new();
    for figure in figures {
        let path = directory.join(format!("{}.svg", figure.name));
        std::fs::write(&path, figure.svg).map_err(|error| unwritable(&path, &error))?;
        paths.push(path.display().to_string());
    }
    if json {
        println!("{}", json!({ "figures": paths }));
    } else {
        paths.iter().for_each(|path| println!("{path}"));
    }
    Ok(())
}

fn wrong(error: &dyn std::error::Error) -> Failure {
    Failure::new(Code::InvalidRequest, error.to_string())
}

/// A clock for the time of decisions.
fn clock() -> impl FnMut() -> u64 {
    let begin = Instant::now();
    move || u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

fn decide_again(path: &Path, json: bool) -> Result<(), Failure> {
    let text = read_file(path)?;
    let profiles = |header: &Header| {
        let options = ProfileOptions {
            trains: header.trains,
            ..ProfileOptions::default()
        };
        Box::new(Profiles::new(options)) as Box<_>
    };
    let events = replay(&text, profiles).map_err(|error| wrong(&error))?;
    if json {
        println!("{}", json!({ "events": events, "same": true }));
    } else {
        println!("{events} events: the same decisions");
    }
    Ok(())
}

fn read_file(path: &Path) -> Result<Vec<u8>, Failure> {
    let refuse = |error: std::io::Error| {
        let text = format!(
            "{} cannot be read: {error}. Give a file that you may read.",
            path.display()
        );
        Failure::new(Code::NotFound, text)
    };
    let length = std::fs::metadata(path).map_err(refuse)?.len();
    if length > MAX_FILE_BYTES {
        let text = format!("{} has more than {MAX_FILE_BYTES} bytes. Split it.", path.display());
        return Err(Failure::new(Code::TooLarge, text));
    }
    std::fs::read(path).map_err(refuse)
}

fn read(arguments: &Arguments) -> Result<Trace, Failure> {
    let functions = Functions::measured();
    if let Some(kind) = &arguments.source.generate {
        let generator: Generator = kind.parse().map_err(|error| wrong(&error))?;
        return Ok(generator.generate(functions, arguments.seed));
    }
    let mut texts = Vec::new();
    for path in &arguments.source.trace {
        texts.push((path.display().to_string(), read_file(path)?));
    }
    let files: Vec<_> = texts.iter().map(|(name, bytes)| NamedText { name, bytes }).collect();
    Trace::read(&files, functions, arguments.seed).map_err(|error| wrong(&error))
}

/// What each kind of trace runs on: the clusters of LIBRA's evaluation (section 8.2.1).
fn options(arguments: &Arguments, recorded: Option<&Recorded>) -> Result<Options, Failure> {
    let kind = arguments.source.generate.as_deref().unwrap_or_default();
    let (nodes, cores) = match kind.split('-').next() {
        Some("multi") => (4, 32),
        Some("scaling") => (50, 24),
        _ => (1, 72),
    };
    let milli_cores = match (arguments.cores, recorded) {
        (None, Some(recorded)) => recorded.capacity.milli_cores,
        (given, _) => u64::from(given.unwrap_or(cores)).saturating_mul(1_000),
    };
    let memory = match (arguments.memory, recorded) {
        (Some(bytes), _) => bytes,
        (None, Some(recorded)) => recorded.capacity.memory_bytes,
        (None, None) => (milli_cores / 1_000) << 30,
    };
    let cores = milli_cores / 1_000;
    if cores > MAX_CORES {
        let text = format!("--cores {cores} is more than {MAX_CORES}; give fewer, and more --nodes");
        return Err(Failure::new(Code::InvalidRequest, text));
    }
    let nodes = arguments.nodes.unwrap_or(nodes);
    if arguments.events.is_some() && nodes != 1 {
        // Nodes learn from each other here, so that the log of one of several cannot be decided again by itself.
        let text = format!("--events with {nodes} nodes; give --nodes 1");
        return Err(Failure::new(Code::InvalidRequest, text));
    }
    if arguments.events.is_some() && arguments.policy != Policy::Dayfly.name() {
        let text = "--events with another policy than dayfly, which is what --replay decides by; remove --policy";
        return Err(Failure::new(Code::InvalidRequest, text));
    }
    let micros = |duration: std::time::Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    Ok(Options {
        nodes,
        capacity: Amount::new(milli_cores, memory),
        shards: arguments.shards,
        policy: arguments.policy.parse().map_err(|error| wrong(&error))?,
        scheduler: cluster::scheduler_named(&arguments.scheduler).map_err(|error| wrong(&error))?,
        seed: arguments.seed,
        cold_start_us: match (arguments.cold_start, recorded) {
            (Some(given), _) => micros(given),
            (None, Some(_)) => 0,
            (None, None) => Options::default().cold_start_us,
        },
        heartbeat_us: micros(arguments.heartbeat),
        logs: arguments.events.is_some(),
        ..cluster::Options::default()
    })
}

fn history_of(arguments: &Arguments, trace: &Trace) -> Vec<(FunctionId, Sample)> {
    // A log is decided again by a policy that has learned nothing before it.
    let learned = arguments.source.generate.is_some() && arguments.events.is_none();
    let calls = if learned { HISTORY } else { 0 };
    let calls = arguments.history.unwrap_or(calls);
    history::history(trace, Functions::measured(), calls, arguments.seed)
}

fn compare(study: &Study<'_>, recorded: Option<&Recorded>, json: bool) -> Result<(), Failure> {
    let reports = Policy::ALL
        .into_iter()
        .map(|policy| study.run(policy, &mut clock()).map(|(report, _)| report))
        .collect::<Result<Vec<Report>, _>>()
        .map_err(|error| wrong(&error))?;
    if json {
        let mut all = json!({ "policies": reports });
        if let Some(recorded) = recorded {
            all["recorded"] = json!(recorded);
        }
        println!("{all}");
        return Ok(());
    }
    println!(
        "{:<13}{:>10}{:>10}{:>10}{:>13}{:>12}{:>8}{:>9}{:>13}",
        "policy", "p99 s", "p50 s", "mean s", "completion s", "slowed by %", "cpu %", "memory %", "idle core-s"
    );
    for report in reports {
        println!(
            "{:<13}{:>10.3}{:>10.3}{:>10.3}{:>13.3}{:>12.2}{:>8.2}{:>9.2}{:>13.3}",
            report.policy.name(),
            report.p99_s,
            report.p50_s,
            report.mean_s,
            report.completion_s,
            report.worst_degradation.unwrap_or(0.0) * 100.0,
            report.cpu_use * 100.0,
            report.memory_use * 100.0,
            report.idle_core_s
        );
    }
    if let Some(recorded) = recorded {
        println!("{}", on_the_node(recorded));
    }
    Ok(())
}

fn write_log(path: &Path, header: &Header, entries: &[Entry]) -> Result<(), Failure> {
    let write = || {
        let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
        serde_json::to_writer(&mut file, header)?;
        file.write_all(b"\n")?;
        for entry in entries {
            serde_json::to_writer(&mut file, entry)?;
            file.write_all(b"\n")?;
        }
        file.flush()
    };
    write().map_err(|error| unwritable(path, &error))
}

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    let text = format!(
        "{} cannot be written: {error}. Give a path that you may write.",
        path.display()
    );
    Failure::new(Code::Internal, text)
}
