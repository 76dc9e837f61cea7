//! `dayfly env`: the packages that Python functions import where they run.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::{Args, Subcommand};
use dayfly_command::Global;
use dayfly_node::runtimes;
use dayfly_protocol::api::Runtime;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::functions::FunctionStatus;
use serde::Serialize;

use crate::output::Align::{Left, Right};
use crate::{connect, output, python, values};

/// Digits of a hash in a table.
const SHORT_DIGITS: usize = 12;
/// Maximum number of function names in a row.
const SHOWN_FUNCTIONS: usize = 4;

/// Capture, lock, build and show the Python environments of functions.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly env capture > requirements.txt                 the installed packages, with exact versions
  dayfly env lock 'numpy>=2' scipy > requirements.txt   exact versions of these and their dependencies, with hashes
  dayfly env build requirements.txt --endpoint cluster  build the environment on one of its nodes now
  dayfly env list                                       the environments of the functions that you may run
  dayfly env show 860a6d41e07b                          one of these, as a requirements file

A function names its environment when it is registered (`client.register(f, environment=\"requirements.txt\")` in Python);
a node builds the environment for the first lease or task that needs it, and keeps it for others with the same content.")]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
    /// Python interpreter with the dayfly package
    #[arg(
        long,
        global = true,
        value_name = "PATH",
        env = "DAYFLY_PYTHON",
        default_value = "python3",
        hide_env_values = true
    )]
    python: PathBuf,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show the environments of the functions that you may run
    List,
    /// Show an environment as a requirements file
    Show {
        /// First digits of the hash, as `dayfly env list` shows them
        environment: String,
    },
    /// Print the packages installed in a Python interpreter, as a requirements file
    Capture {
        /// Package to leave out; may be repeated
        #[arg(long, value_name = "NAME")]
        without: Vec<String>,
    },
    /// Resolve packages and their dependencies to exact versions with hashes, and print a requirements file
    Lock {
        /// Requirements, or a file that contains them
        #[arg(required = true, value_name = "REQUIREMENT|FILE")]
        requirements: Vec<String>,
        /// Python version, such as 3.12 [default: that of --python]
        #[arg(long, value_name = "VERSION")]
        version: Option<String>,
    },
    /// Build an environment at an endpoint now, and show its packages
    Build(Build),
}

#[derive(Debug, Args)]
struct Build {
    /// Requirements, or a file that contains them: requirements.txt, pylock.toml or uv.lock
    #[arg(required = true, value_name = "REQUIREMENT|FILE")]
    requirements: Vec<String>,
    /// Python version, such as 3.12 [default: that of --python]
    #[arg(long, value_name = "VERSION")]
    version: Option<String>,
    /// Endpoint, as `dayfly endpoint list` shows it [default: the manager's own, or the only one]
    #[arg(long, value_name = "NAME")]
    endpoint: Option<String>,
    /// Time limit
    #[arg(long, value_name = "DURATION", default_value = "30m", value_parser = values::duration)]
    wait: Duration,
}

/// An environment and the functions that use it.
#[derive(Debug, Serialize)]
struct Known {
    hash: String,
    python: String,
    requirements: Vec<String>,
    functions: Vec<String>,
}

pub fn run(arguments: &Arguments, global: &Global) -> Result<ExitCode, Failure> {
    let words = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
    let given = match &arguments.what {
        What::List => return list(global),
        What::Show { environment } => return show(environment, global),
        What::Capture { without } => {
            let named = without.iter().flat_map(|name| ["--without".into(), name.clone()]);
            words(&["capture"]).into_iter().chain(named).collect()
        }
        What::Lock { requirements, version } => {
            let mut given = words(&["lock"]);
            given.extend(version.iter().flat_map(|version| ["--version".into(), version.clone()]));
            [given, words(&["--"]), requirements.clone()].concat()
        }
        What::Build(wanted) => {
            let mut given = words(&["build", "--wait", &wanted.wait.as_secs_f64().to_string()]);
            given.extend(
                wanted
                    .version
                    .iter()
                    .flat_map(|version| ["--version".into(), version.clone()]),
            );
            given.extend(
                wanted
                    .endpoint
                    .iter()
                    .flat_map(|name| ["--endpoint".into(), name.clone()]),
            );
            given.extend(global.json.then(|| "--json".into()));
            [given, words(&["--"]), wanted.requirements.clone()].concat()
        }
    };
    let mut command = Command::new(&arguments.python);
    command.args(["-m", "dayfly._env_command"]).args(given);
    let status = python::started(command, &arguments.python, global)?;
    Ok(python::exit_code(status))
}

/// Returns the environments of functions, by hash.
fn known(global: &Global) -> Result<Vec<Known>, Failure> {
    let client = connect::manager(global)?;
    let functions: Vec<FunctionStatus> = client.get("/v1/functions").map_err(|error| error.0)?;
    let mut known: BTreeMap<String, Known> = BTreeMap::new();
    for function in functions {
        let Runtime::Python {
            version,
            environment: Some(environment),
            ..
        } = &function.runtime
        else {
            continue;
        };
        let python = runtimes::python_of(environment, version).to_owned();
        let entry = known.entry(environment.hash(&python).to_string());
        let entry = entry.or_insert_with_key(|hash| Known {
            hash: hash.clone(),
            python,
            requirements: environment.requirements.clone(),
            functions: Vec::new(),
        });
        entry
            .functions
            .push(function.name.unwrap_or_else(|| function.form.name().to_owned()));
    }
    let mut known: Vec<Known> = known.into_values().collect();
    for one in &mut known {
        one.functions.sort_unstable();
        one.functions.dedup();
    }
    Ok(known)
}

fn list(global: &Global) -> Result<ExitCode, Failure> {
    let known = known(global)?;
    output::line(&if global.json {
        output::json(&known)?
    } else if known.is_empty() {
        "No function names an environment.".into()
    } else {
        let mut table = output::Table::new(&[
            ("ENVIRONMENT", Left),
            ("PYTHON", Left),
            ("REQUIREMENTS", Right),
            ("FUNCTIONS", Left),
        ]);
        for one in &known {
            table.row([
                one.hash.chars().take(SHORT_DIGITS).collect(),
                if one.python.is_empty() {
                    "any".into()
                } else {
                    output::plain(&one.python)
                },
                one.requirements.len().to_string(),
                functions(&one.functions),
            ]);
        }
        table.text(output::colours(&std::io::stdout()))
    });
    Ok(ExitCode::SUCCESS)
}

fn functions(names: &[String]) -> String {
    let shown = output::plain(&names[..names.len().min(SHOWN_FUNCTIONS)].join(", "));
    match names.len().saturating_sub(SHOWN_FUNCTIONS) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn show(wanted: &str, global: &Global) -> Result<ExitCode, Failure> {
    let mut known = known(global)?;
    known.retain(|one| !wanted.is_empty() && one.hash.starts_with(wanted));
    let [one] = &known[..] else {
        let text = match known.len() {
            0 => format!("no function that you may run has an environment `{wanted}`; see `dayfly env list`"),
            several => format!("{several} environments begin with `{wanted}`; name more of its hash"),
        };
        return Err(Failure::new(Code::NotFound, text));
    };
    output::line(&match global.json {
        true => output::json(one)?,
        false => {
            let lines: Vec<String> = one.requirements.iter().map(|line| output::plain(line)).collect();
            lines.join("\n")
        }
    });
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_functions_are_counted_not_named() {
        let names: Vec<String> = ["a", "b", "c", "d", "e", "f"].map(String::from).to_vec();
        assert_eq!(functions(&names[..2]), "a, b");
        assert_eq!(functions(&names), "a, b, c, d and 2 more");
    }
}
