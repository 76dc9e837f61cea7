//! `dayfly invoke`: calls a function from the command line.

use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use dayfly_client::{
    CallId, CallOptions, Client, Form, FunctionId, LeaseOptions, Pool, PoolOptions, Sandbox, Transport,
};
use dayfly_command::Global;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::text::is_unsafe;
use serde_json::{Value, json};

use crate::lease::Wanted;
use crate::values::Level;
use crate::{connect, output, python, values};

/// Number of calls queued per worker while several workers are kept busy.
const AHEAD: usize = 16;

/// Call a function of a shared library or of a Python module.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cc -shared -fPIC -o area.so area.c
  dayfly invoke ./area.so area --input hex:0600000007000000
  dayfly invoke ./resize.so resize --input @photo.jpg --output small.jpg --form checked
  dayfly invoke ./area.so area --input hex:0600000007000000 --repeat 10000
  dayfly invoke math:sqrt --args '[2.0]'              a Python callable; needs the dayfly package

A function of the plain form is `uint32_t f(void *in, uint32_t size, void *out)` and returns the length of its output in bytes.
The checked form, declared in dayfly_function.h, also gets the size of its output, and can report an error.
If no manager is running, one is started for this call and stopped afterwards.")]
pub struct Arguments {
    /// Shared library, or module:function of Python
    #[arg(value_name = "LIBRARY|MODULE:FUNCTION")]
    target: String,
    /// Symbol of the shared library
    symbol: Option<String>,
    /// Input: a text, @FILE, @- for standard input, or hex:0123...
    #[arg(long, value_name = "INPUT", default_value = "", hide_default_value = true)]
    input: String,
    /// Arguments of a Python function: a JSON list, or a JSON object of keyword arguments
    #[arg(long, value_name = "JSON", conflicts_with_all = ["input", "symbol"])]
    args: Option<String>,
    /// Form of the C function
    #[arg(long, value_enum, default_value = "plain")]
    form: Shape,
    /// File for the output [default: standard output, as hex:... unless it is text]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Number of calls; prints their times
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    repeat: u64,
    /// Use the lease in a file from `dayfly lease create --output FILE`, and keep it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["workers", "mode", "sandbox", "image", "args"])]
    lease: Option<PathBuf>,
    /// Number of workers to lease
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: u16,
    /// Whether workers poll or sleep
    #[arg(long, value_enum, default_value = "auto")]
    mode: Wanted,
    /// Isolation of the workers [default: the site's default]
    #[arg(long, value_enum)]
    sandbox: Option<Level>,
    /// Container image, by the node owner's name for it [default: the first that the owner allows]
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Transport: shm, tcp, tls, libfabric or libfabric:PROVIDER[/DOMAIN] [default: the fastest available]
    #[arg(long)]
    transport: Option<Transport>,
    /// Time limit of a call; longer calls are stopped
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    deadline: Option<Duration>,
    /// Python interpreter with the dayfly module
    #[arg(
        long,
        value_name = "EXE",
        env = "DAYFLY_PYTHON",
        hide_env_values = true,
        default_value = "python3"
    )]
    python: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Shape {
    /// uint32_t f(void *, uint32_t, void *)
    Plain,
    /// Form of dayfly_function.h: knows the size of its output, and can report errors
    Checked,
}

fn wrong(text: impl Into<String>) -> Failure {
    Failure::new(Code::InvalidRequest, text)
}

pub fn run(arguments: &Arguments, global: &Global) -> Result<(), Failure> {
    if let Some((module, function)) = python_target(arguments) {
        return python::invoke(
            &arguments.python,
            module,
            function,
            arguments.args.as_deref().unwrap_or("[]"),
            arguments.sandbox.map(Sandbox::from),
            arguments.image.as_deref(),
            global,
        );
    }
    if arguments.args.is_some() {
        return Err(wrong(
            "--args is for Python functions, named as MODULE:FUNCTION; a C function takes --input",
        ));
    }
    let symbol = arguments.symbol.clone().ok_or_else(|| {
        wrong(format!(
            "name the symbol to call after {0}; `nm -D {0}` lists what it exports",
            arguments.target
        ))
    })?;
    let code = std::fs::read(&arguments.target)
        .map_err(|error| wrong(format!("the library {} cannot be read: {error}", arguments.target)))?;
    let input = read_input(&arguments.input)?;
    let form = match arguments.form {
        Shape::Plain => Form::Plain { symbol },
        Shape::Checked => Form::Checked { symbol },
    };

    let begun = Instant::now();
    let kept = arguments.lease.as_deref().map(crate::lease::read).transpose()?;
    let client = match kept {
        // A lease from a file belongs to an existing manager, which an embedded one would not know.
        Some(_) => connect::manager(global)?,
        None => connect_or_start(global)?,
    };
    let connected = Instant::now();
    let lease = match kept {
        Some((grant, seed)) => client.lease_granted(grant, seed),
        None => {
            let mut wanted = LeaseOptions::native(arguments.workers);
            wanted.mode = arguments.mode.into();
            wanted.sandbox = arguments.sandbox.map(Into::into);
            wanted.image.clone_from(&arguments.image);
            client.lease(wanted)
        }
    };
    let lease = lease.map_err(|error| error.0)?;
    let hash = lease.put_code(&code).map_err(|error| error.0)?;
    let mut how = PoolOptions::default();
    how.channel.transport = arguments.transport;
    let pool = lease.pool(how).map_err(|error| error.0)?;
    let function = pool.register(hash, form).map_err(|error| error.0)?;
    let deadline_ms = arguments
        .deadline
        .map_or(0, |limit| limit.as_millis().clamp(1, u128::from(u32::MAX)) as u32);
    let options = CallOptions {
        deadline_ms,
        ..CallOptions::default()
    };
    let call = || pool.call(function, &input, options).map_err(|error| error.failure);
    let result = call()?.as_slice().to_vec();
    let cold = connected.elapsed();

    let mut report = json!({
        "client": client.describe(),
        "connect_ms": (connected - begun).as_secs_f64() * 1e3,
        "cold_ms": cold.as_secs_f64() * 1e3,
        "transport": pool.transport().to_string(),
        "mode": if lease.is_hot() { "hot" } else { "warm" },
        "workers": lease.workers(),
        "calls": arguments.repeat,
    });
    if arguments.repeat > 1 {
        let more = arguments.repeat - 1;
        let measured = if lease.workers() == 1 {
            one_by_one(more, call)?
        } else {
            side_by_side(&pool, function, &input, options, more, lease.workers().into())?
        };
        merge(&mut report, measured);
    }
    if arguments.lease.is_none() {
        lease.release().map_err(|error| error.0)?;
    }
    tell(&result, report, arguments.output.as_deref(), global)
}

/// Returns module and function if the target names these and not a file.
fn python_target(arguments: &Arguments) -> Option<(&str, &str)> {
    if arguments.symbol.is_some() || Path::new(&arguments.target).exists() {
        return None;
    }
    let (module, function) = arguments.target.split_once(':')?;
    let named = |text: &str| !text.is_empty() && !text.contains('/');
    (named(module) && named(function)).then_some((module, function))
}

/// Returns the running manager, or starts one for this call.
fn connect_or_start(global: &Global) -> Result<Client, Failure> {
    if let Some(client) = connect::find(global)? {
        return Ok(client);
    }
    let binary = std::env::current_exe().map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
    Client::embedded(Some(&binary)).map_err(|error| error.0)
}

fn read_input(text: &str) -> Result<Vec<u8>, Failure> {
    if let Some(digits) = text.strip_prefix("hex:") {
        let digits: String = digits.split_whitespace().collect();
        return hex::decode(digits).map_err(|error| wrong(format!("--input {text} is not hexadecimal: {error}")));
    }
    let Some(path) = text.strip_prefix('@') else {
        return Ok(text.as_bytes().to_vec());
    };
    let mut bytes = Vec::new();
    let read = match path {
        "-" => std::io::stdin().lock().read_to_end(&mut bytes).map(|_| ()),
        path => std::fs::read(path).map(|read| bytes = read),
    };
    read.map_err(|error| wrong(format!("the input {path} cannot be read: {error}")))?;
    Ok(bytes)
}

/// Calls sequentially, and returns the times of the calls.
fn one_by_one<T>(calls: u64, call: impl Fn() -> Result<T, Failure>) -> Result<Value, Failure> {
    let begun = Instant::now();
    let mut took = Vec::with_capacity(calls.min(1 << 20) as usize);
    for number in 0..calls {
        let at = Instant::now();
        call()?;
        // The first million calls are a sufficient sample, and fit into memory.
        if number < 1 << 20 {
            took.push(at.elapsed());
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    took.sort_unstable();
    let at = |share: f64| {
        let index = ((took.len() as f64 * share).ceil() as usize).clamp(1, took.len()) - 1;
        took[index].as_secs_f64() * 1e6
    };
    Ok(json!({
        "latency_us": { "min": at(0.0), "p50": at(0.5), "p99": at(0.99), "max": at(1.0) },
        "calls_per_s": calls as f64 / seconds,
    }))
}

/// Keeps every worker busy, and returns the number of calls per second.
fn side_by_side(
    pool: &Pool,
    function: FunctionId,
    input: &[u8],
    options: CallOptions,
    calls: u64,
    workers: usize,
) -> Result<Value, Failure> {
    let begun = Instant::now();
    let mut running: std::collections::VecDeque<CallId> = std::collections::VecDeque::new();
    let take = |call| pool.wait(call, None).map(|_| ()).map_err(|error| error.failure);
    for _ in 0..calls {
        if running.len() >= workers * AHEAD
            && let Some(oldest) = running.pop_front()
        {
            take(oldest)?;
        }
        running.push_back(pool.submit(function, input, options).map_err(|error| error.0)?);
    }
    running.into_iter().try_for_each(take)?;
    Ok(json!({ "calls_per_s": calls as f64 / begun.elapsed().as_secs_f64() }))
}

fn merge(into: &mut Value, from: Value) {
    if let (Value::Object(into), Value::Object(from)) = (into, from) {
        into.extend(from);
    }
}

/// Returns the output as text, if a terminal can show it.
pub fn as_text(result: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(result).ok()?;
    text.chars()
        .all(|c| !is_unsafe(c) || matches!(c, '\n' | '\r' | '\t'))
        .then_some(text)
}

fn tell(result: &[u8], mut report: Value, file: Option<&Path>, global: &Global) -> Result<(), Failure> {
    if let Some(path) = file {
        std::fs::write(path, result).map_err(|error| {
            Failure::new(
                Code::StoreFailed,
                format!("the output {} cannot be written: {error}", path.display()),
            )
        })?;
    }
    if global.json {
        merge(&mut report, json!({ "output_bytes": result.len() }));
        match file {
            Some(path) => merge(&mut report, json!({ "output": path })),
            None => merge(
                &mut report,
                json!({ "output_hex": hex::encode(result), "output_text": as_text(result) }),
            ),
        }
        output::line(&output::json(&report)?);
        return Ok(());
    }
    match (file, as_text(result)) {
        (Some(_), _) => {}
        (None, Some(text)) => output::line(text.strip_suffix('\n').unwrap_or(text)),
        (None, None) => output::line(&format!("hex:{}", hex::encode(result))),
    }
    let number = |pointer: &str| report.pointer(pointer).and_then(Value::as_f64);
    // On standard error, and only at a terminal or if figures were requested.
    if std::io::stderr().is_terminal() || number("/calls_per_s").is_some() {
        let text = |name: &str| report.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let mut line = format!(
            "{} bytes, {}, {}; first call {:.1} ms with its lease",
            result.len(),
            text("transport"),
            text("mode"),
            number("/cold_ms").unwrap_or_default()
        );
        if let (Some(p50), Some(p99)) = (number("/latency_us/p50"), number("/latency_us/p99")) {
            line += &format!("; then p50 {p50:.1} us, p99 {p99:.1} us");
        }
        if let Some(rate) = number("/calls_per_s") {
            line += &format!("; {rate:.0} calls/s");
        }
        eprintln!("{line}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_strings_files_or_hexadecimal() {
        assert_eq!(read_input("abc"), Ok(b"abc".to_vec()));
        assert_eq!(read_input("hex:0aFF 10"), Ok(vec![0x0a, 0xff, 0x10]));
        assert_eq!(read_input("hex:0").expect_err("odd").code, Code::InvalidRequest);
        assert_eq!(
            read_input("@/no/such/file").expect_err("missing").code,
            Code::InvalidRequest
        );
    }

    #[test]
    fn only_printable_bytes_count_as_text() {
        assert_eq!(as_text("größer\n".as_bytes()), Some("größer\n"));
        assert_eq!(as_text(b"\x1b[2J"), None);
        assert_eq!(as_text(b"\xff"), None);
        assert_eq!(as_text(b"a\0"), None);
    }
}
