//! `dayfly function register`: a function without a program that registers it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use dayfly_client::{Form, Placement, Runtime};
use dayfly_protocol::entry_point::Words;
use dayfly_protocol::environment::Environment;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::tasks::{FunctionRegistration, FunctionStatus, Resources};

use super::read;
use crate::{Global, connect, output, values};

/// What a command is called in the source that is made of it.
const COMMAND: &str = "command";

/// Keep a function, to be run by its name.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly function register extract.py:extract --name extract --memory 2G --walltime 10m
  dayfly function register extract.py:extract --require 'numpy>=2' --require scipy
  dayfly function register --library ./area.so --symbol area
  dayfly function register --command 'convert {source} -resize 64x64 {target}' --name resize
  dayfly function register --image registry.example.org/align:2 --words '--threads {threads} {reads}' --name align --cores 4

A Python function goes along as the text of its file, which must need nothing beside it but packages, and runs in whatever Python its
workers have; it is called in JSON, and so are commands and entry points. What stands in braces in these is an argument; a
command's are quoted for the shell. The same function under the same name is the same version, another one is the next.")]
pub struct Register {
    /// A Python file, and the function in it
    #[arg(value_name = "FILE:FUNCTION", required_unless_present_any = ["library", "command", "image"])]
    target: Option<String>,
    /// Shared library, instead
    #[arg(long, value_name = "FILE", requires = "symbol", conflicts_with = "target")]
    library: Option<PathBuf>,
    /// The function in it
    #[arg(long, value_name = "NAME", requires = "library", value_parser = NonEmptyStringValueParser::new())]
    symbol: Option<String>,
    /// It is of the form that is told how much room there is and can report an error, as dayfly_function.h declares it
    #[arg(long, requires = "library")]
    checked: bool,
    /// Command for the shell, instead: answers what it writes on standard output
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["target", "library"])]
    command: Option<String>,
    /// Container image that it runs in, as the site names it; by itself, the program that the image begins with is the function
    #[arg(long, value_name = "IMAGE", value_parser = NonEmptyStringValueParser::new())]
    image: Option<String>,
    /// Words behind those that the image begins with, split as a shell would [default: those of the image itself]
    #[arg(
        long,
        value_name = "WORDS",
        allow_hyphen_values = true,
        requires = "image",
        conflicts_with_all = ["target", "library", "command"]
    )]
    words: Option<String>,
    /// Its name [default: that of the function or symbol; of a command or an image, its own last part]
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    name: Option<String>,
    /// What it does, for people
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    description: String,
    /// Cores of its worker
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    cores: u16,
    /// Memory of its worker, such as 2G [default: the node's usual share]
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    memory: Option<u64>,
    /// GPUs of its worker, which sees no others
    #[arg(long, value_name = "N", default_value_t = 0)]
    gpus: u16,
    /// How long one execution may take [default: as long as it takes]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    walltime: Option<Duration>,
    /// Workers that one execution has at once, as ranks of one group: each calls the function [default: one, without a group]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    ranks: Option<u16>,
    /// On which nodes the ranks run: packed, spread, together or fabric
    #[arg(long, value_name = "HOW", default_value = "packed", value_parser = placement)]
    placement: Placement,
    /// It may be executed again after a fault, when it may have been executed already
    #[arg(long)]
    repeatable: bool,
    /// A tenant that may run it too, team:NAME for those of a team, or * for everyone; may be repeated [default: nobody]
    #[arg(long, value_name = "WHO")]
    share: Vec<String>,
    /// Package that it imports, as a line of a requirements file; may be repeated [default: what the workers' Python has]
    #[arg(long, value_name = "REQUIREMENT", conflicts_with_all = ["library", "image"])]
    require: Vec<String>,
    /// Requirements file of such packages, as `dayfly env lock` and `dayfly env capture` write it
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

/// What is registered, as far as its kind says it.
#[derive(Debug, PartialEq, Eq)]
struct Kind {
    form: Form,
    runtime: Runtime,
    code: Vec<u8>,
    /// For people.
    source: String,
    /// What it calls itself.
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
            // The command line is not taken without one of them.
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

/// A function in a file of Python's.
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

/// A symbol of a shared library. Whether it has that, the workers find out.
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

/// A command for the shell: the source of a `dayfly.Command`.
fn of_command(command: &str) -> Result<Kind, Failure> {
    let first = command.split_whitespace().next();
    let first = first.ok_or_else(|| wrong("--command is empty"))?;
    let quoted = output::json(&command)?;
    // Braces mean the same in the words of an entry point.
    Words::read(format!("[{quoted}]").as_bytes()).map_err(|why| wrong(format!("--command: {why}")))?;
    let text = format!("import dayfly\n\n{COMMAND} = dayfly.Command({quoted})\n");
    Ok(Kind {
        form: Form::Source { entry: COMMAND.into() },
        runtime: Runtime::any_python(),
        code: text.clone().into_bytes(),
        source: text,
        name: last_part(first).into(),
    })
}

/// The program that an image begins with.
fn of_image(image: &str, words: Option<&str>) -> Result<Kind, Failure> {
    let wrong = |why: String| wrong(format!("--words: {why}"));
    let code = output::json(&read::words(words.unwrap_or_default()).map_err(wrong)?)?.into_bytes();
    Words::read(&code).map_err(wrong)?;
    Ok(Kind {
        form: Form::EntryPoint { name: image.into() },
        runtime: Runtime::Native,
        code,
        source: words.unwrap_or_default().into(),
        name: last_part(image.split(['@', ',']).next().unwrap_or(image)).into(),
    })
}

/// Of a path or an image's name: what it is called without where it is, and without a tag.
fn last_part(text: &str) -> &str {
    let last = text.trim_end_matches('/').rsplit('/').next().unwrap_or(text);
    match last.split_once(':') {
        Some((name, _)) if !name.is_empty() => name,
        _ => last,
    }
}

/// The packages of a requirements file.
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
    fn a_command_becomes_a_source_whose_text_is_the_same_in_python() {
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
    fn an_image_by_itself_is_the_program_that_it_begins_with() {
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
    fn a_name_is_taken_from_the_end_of_where_something_is() {
        for (text, name) in [
            ("/usr/bin/convert", "convert"),
            ("host:5000/a/tool:1", "tool"),
            ("/images/tool/", "tool"),
        ] {
            assert_eq!(last_part(text), name);
        }
    }
}
