//! `dayfly function register`: registers a function from the command line.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use dayfly_client::{Form, Placement, Runtime};
use dayfly_command::Global;
use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::entry_point::CommandTemplate;
use dayfly_protocol::environment::Environment;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::functions::{FunctionRegistration, FunctionStatus, Resources};

use super::read;
use crate::loans::LoanArguments;
use crate::{connect, output, values};

/// Name of a command in the source made of it.
const COMMAND: &str = "command";

/// Register a function under a name.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly function register extract.py:extract --name extract --memory 2G --walltime 10m
  dayfly function register extract.py:extract --require 'numpy>=2' --require scipy
  dayfly function register --library ./area.so --symbol area
  dayfly function register --command 'convert {source} -resize 64x64 {target}' --name resize
  dayfly function register --image registry.example.org/align:2 --words '--threads {threads} {reads}' --name align --cores 4

A Python function is sent as the text of its file, which may import only packages, and runs in the Python of its workers.
Arguments and results are JSON, also for commands and entry points. Names in braces in these are arguments; those of commands are
quoted for the shell. Registering an unchanged function again keeps its version; a changed function becomes the next version.")]
pub struct Register {
    /// Python file and the function in it
    #[arg(value_name = "FILE:FUNCTION", required_unless_present_any = ["library", "command", "image"])]
    target: Option<String>,
    /// Shared library, instead of a Python file
    #[arg(long, value_name = "FILE", requires = "symbol", conflicts_with = "target")]
    library: Option<PathBuf>,
    /// Function in the library
    #[arg(long, value_name = "NAME", requires = "library", value_parser = NonEmptyStringValueParser::new())]
    symbol: Option<String>,
    /// The function has the checked form of dayfly_function.h, which knows the size of its output and can report errors
    #[arg(long, requires = "library")]
    checked: bool,
    /// Shell command, instead of a Python file; its result is its standard output
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["target", "library"])]
    command: Option<String>,
    /// Container image to run in, by the site's name for it; without another kind of function, the image's entry point
    /// is the function
    #[arg(long, value_name = "IMAGE", value_parser = NonEmptyStringValueParser::new())]
    image: Option<String>,
    /// Arguments of the image's entry point, split as a shell does [default: those of the image]
    #[arg(
        long,
        value_name = "WORDS",
        allow_hyphen_values = true,
        requires = "image",
        conflicts_with_all = ["target", "library", "command"]
    )]
    words: Option<String>,
    /// Name [default: that of the function or symbol; for a command or an image, the last part of its name]
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    name: Option<String>,
    /// Description for people
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    description: String,
    /// Cores of its worker; also a part of one, such as 0.5
    #[arg(long, value_name = "N", default_value = "1", value_parser = values::cores)]
    cores: MilliCores,
    /// Memory of its worker, such as 2G [default: the node's usual share]
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    memory: Option<u64>,
    /// GPUs of its worker; it sees no others
    #[arg(long, value_name = "N", default_value_t = 0)]
    gpus: u16,
    #[command(flatten)]
    loans: LoanArguments,
    /// Time limit of one execution [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    walltime: Option<Duration>,
    /// Number of ranks of one execution, workers of one group that all call the function [default: one worker without a
    /// group]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    ranks: Option<u16>,
    /// Placement of the ranks on nodes: packed, spread, together or fabric
    #[arg(long, value_name = "HOW", default_value = "packed", value_parser = placement)]
    placement: Placement,
    /// Allow another execution after a fault, when the first may have run
    #[arg(long)]
    repeatable: bool,
    /// Tenant that may run it too, team:NAME for the members of a team, or * for all; may be repeated [default: none]
    #[arg(long, value_name = "WHO")]
    share: Vec<String>,
    /// Package that it imports, as a line of a requirements file; may be repeated [default: the packages of the
    /// workers' Python]
    #[arg(long, value_name = "REQUIREMENT", conflicts_with_all = ["library", "image"])]
    require: Vec<String>,
    /// Requirements file, as `dayfly env lock` and `dayfly env capture` write it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["library", "image"])]
    requirements: Option<PathBuf>,
}

fn placement(text: &str) -> Result<Placement, String> {
    let all = [
        Placement::Packed,
        Placement::Spread,
        Placement::Together,
        Placement::Fabric,
    ];
    let found = all.into_iter().find(|placement| placement.name() == text);
    found.ok_or_else(|| format!("`{text}` is none of packed, spread, together and fabric"))
}

fn wrong(text: impl Into<String>) -> Failure {
    Failure::new(Code::InvalidRequest, text)
}

/// The parts of a registration that depend on the kind of function.
#[derive(Debug, PartialEq, Eq)]
struct Kind {
    form: Form,
    runtime: Runtime,
    code: Vec<u8>,
    /// Source for people to read.
    source: String,
    /// Its name in the code.
    name: String,
}

pub fn register(wanted: &Register, global: &Global) -> Result<FunctionStatus, Failure> {
    let registration = wanted.registration()?;
    let client = connect::manager(global)?;
    client.post("/v1/functions", &registration).map_err(|error| error.0)
}

impl Register {
    fn registration(&self) -> Result<FunctionRegistration, Failure> {
        let mut kind = self.kind()?;
        if let Some(named) = self.environment()?
            && let Runtime::Python { environment, .. } = &mut kind.runtime
        {
            *environment = Some(named);
        }
        let walltime_ms = u32::try_from(self.walltime.unwrap_or_default().as_millis())
            .map_err(|_| wrong("--walltime is too long; 49 days are allowed"))?;
        Ok(FunctionRegistration {
            name: Some(self.name.clone().unwrap_or(kind.name)),
            description: self.description.clone(),
            source: kind.source,
            form: kind.form,
            runtime: kind.runtime,
            image: self.image.clone(),
            code: kind.code.into(),
            resources: Resources {
                cores: self.cores,
                memory_bytes: self.memory.unwrap_or_default(),
                gpus: self.gpus,
                walltime_ms,
                ranks: self.ranks.unwrap_or_default(),
                placement: self.placement,
                loans: self.loans.terms(),
            },
            repeatable: self.repeatable,
            shared_with: self.share.clone(),
        })
    }

    fn kind(&self) -> Result<Kind, Failure> {
        match (&self.target, &self.library, &self.command, &self.image) {
            (Some(target), ..) => of_source(target),
            (_, Some(library), ..) => of_library(library, self.symbol.as_deref().unwrap_or_default(), self.checked),
            (_, _, Some(command), _) => of_command(command),
            (_, _, _, Some(image)) => of_image(image, self.words.as_deref()),
            // The command line requires one of them.
            (None, None, None, None) => Err(wrong("name a FILE:FUNCTION, a --library, a --command or an --image")),
        }
    }

    fn environment(&self) -> Result<Option<Environment>, Failure> {
        let mut requirements = self.require.clone();
        if let Some(file) = &self.requirements {
            requirements.extend(of_file(file)?);
        }
        if requirements.is_empty() && self.requirements.is_none() {
            return Ok(None);
        }
        let environment = Environment {
            python: String::new(),
            requirements,
        };
        environment.check()?;
        Ok(Some(environment))
    }
}

/// Reads a function in a Python file.
fn of_source(target: &str) -> Result<Kind, Failure> {
    let (file, entry) = target
        .rsplit_once(':')
        .filter(|(file, _)| !file.is_empty())
        .ok_or_else(|| {
            wrong(format!(
                "`{target}` names no function; write FILE:FUNCTION, such as extract.py:extract"
            ))
        })?;
    let text = read::text(Path::new(file))?;
    read::defines(&text, file, entry)?;
    Ok(Kind {
        form: Form::Source { entry: entry.into() },
        runtime: Runtime::any_python(),
        code: text.clone().into_bytes(),
        source: text,
        name: entry.into(),
    })
}

/// Reads a symbol of a shared library. Only workers can check that the library exports it.
fn of_library(file: &Path, symbol: &str, checked: bool) -> Result<Kind, Failure> {
    let code = read::bytes(file)?;
    if !code.starts_with(b"\x7fELF") {
        return Err(wrong(format!("{} is no shared library", file.display())));
    }
    let (name, symbol) = (symbol.to_owned(), symbol.to_owned());
    Ok(Kind {
        form: match checked {
            true => Form::Checked { symbol },
            false => Form::Plain { symbol },
        },
        runtime: Runtime::Native,
        code,
        source: String::new(),
        name,
    })
}

/// Makes the source of a `dayfly.Command` from a shell command.
fn of_command(command: &str) -> Result<Kind, Failure> {
    let first = command.split_whitespace().next();
    let first = first.ok_or_else(|| wrong("--command is empty"))?;
    let quoted = output::json(&command)?;
    // Braces have the same meaning in the arguments of an entry point.
    CommandTemplate::parse(format!("[{quoted}]").as_bytes()).map_err(|why| wrong(format!("--command: {why}")))?;
    let text = format!("import dayfly\n\n{COMMAND} = dayfly.Command({quoted})\n");
    Ok(Kind {
        form: Form::Source { entry: COMMAND.into() },
        runtime: Runtime::any_python(),
        code: text.clone().into_bytes(),
        source: text,
        name: last_part(first).into(),
    })
}

/// Makes a function of an image's entry point.
fn of_image(image: &str, words: Option<&str>) -> Result<Kind, Failure> {
    let wrong = |why: String| wrong(format!("--words: {why}"));
    let code = output::json(&read::words(words.unwrap_or_default()).map_err(wrong)?)?.into_bytes();
    CommandTemplate::parse(&code).map_err(wrong)?;
    Ok(Kind {
        form: Form::EntryPoint { name: image.into() },
        runtime: Runtime::Native,
        code,
        source: words.unwrap_or_default().into(),
        name: last_part(image.split(['@', ',']).next().unwrap_or(image)).into(),
    })
}

/// Returns the last part of a path or an image name, without its tag.
fn last_part(text: &str) -> &str {
    let last = text.trim_end_matches('/').rsplit('/').next().unwrap_or(text);
    match last.split_once(':') {
        Some((name, _)) if !name.is_empty() => name,
        _ => last,
    }
}

/// Reads the packages of a requirements file.
fn of_file(file: &Path) -> Result<Vec<String>, Failure> {
    let name = file.display();
    if file
        .extension()
        .is_some_and(|extension| extension == "toml" || extension == "lock")
    {
        let text = format!("{name} is no requirements file; `dayfly env lock {name}` makes one of it");
        return Err(wrong(text));
    }
    let requirements = read::requirements(&read::text(file)?);
    match requirements.iter().find(|line| line.starts_with('-')) {
        Some(option) => Err(wrong(format!(
            "{name} has the option `{option:.80}`, which nodes do not take; `dayfly env lock` makes a file of packages alone"
        ))),
        None => Ok(requirements),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_source_is_the_same_as_in_python() {
        let kind = of_command("/usr/bin/convert {source} -comment \"ä\\n\" {target}").unwrap();
        assert_eq!(kind.name, "convert");
        assert_eq!(
            kind.source,
            "import dayfly\n\ncommand = dayfly.Command(\"/usr/bin/convert {source} -comment \\\"ä\\\\n\\\" {target}\")\n"
        );
        for wrong in ["", "  ", "echo {", "echo {0}", "echo {a!r}"] {
            let refused = of_command(wrong).unwrap_err();
            assert!(refused.message.starts_with("--command"), "{wrong}: {refused:?}");
        }
    }

    #[test]
    fn image_alone_means_its_entry_point() {
        let kind = of_image("registry.example.org/align:2", None).unwrap();
        assert_eq!((&kind.code[..], kind.name.as_str()), (&b"[]"[..], "align"));
        let kind = of_image("align@sha256:00", Some("--threads {threads} '{reads}'")).unwrap();
        assert_eq!(
            (&kind.code[..], kind.name.as_str()),
            (&br#"["--threads","{threads}","{reads}"]"#[..], "align")
        );
        for wrong in ["'", "{a", "{a b}"] {
            let refused = of_image("align", Some(wrong)).unwrap_err();
            assert!(refused.message.starts_with("--words: "), "{wrong}: {refused:?}");
        }
    }

    #[test]
    fn name_is_last_part_of_a_location() {
        for (text, name) in [
            ("/usr/bin/convert", "convert"),
            ("host:5000/a/tool:1", "tool"),
            ("/images/tool/", "tool"),
        ] {
            assert_eq!(last_part(text), name);
        }
    }
}
