//! `dayfly function`: the functions that durable tasks run.

mod duplicator;
mod profile;
mod read;
mod register;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use dayfly_client::encoded;
use dayfly_command::Global;
use dayfly_protocol::api::{Borrow, Runtime};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::functions::FunctionStatus;
use dayfly_protocol::sharing::FunctionSharing;

use crate::output::Align::{Left, Right};
use crate::{connect, output};

/// Register and show the functions that durable tasks run.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly function register extract.py:extract --name extract
  dayfly function register --command 'convert {source} {target}' --name convert
  dayfly function list
  dayfly function show simulate
  dayfly function show simulate --source > simulate.py
  dayfly function show ann/simulate        a function that ann shares with you
  dayfly function diff simulate            compares the latest version with the one before
  dayfly function diff simulate 2 5
  dayfly function profile simulate         what nodes learnt about its calls, and what it lends
  dayfly function share simulate --with ann --with team:astro
  dayfly function share simulate           ends all sharing
  dayfly function remove simulate

Functions with the same name are versions of one function; the name alone means the latest version. A name without an owner is your
own function; `ann/simulate` is one of the tenant ann. Each version has an id: `ann/simulate@ID`, or the id alone, runs exactly that
version or fails. Functions are registered here, by `client.register` in Python, and by clients that submit tasks. `dayfly task run`
calls them.")]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Register a function under a name
    Register(Box<register::Register>),
    /// Show the functions that you may run, with all their versions
    List,
    /// Show a function
    Show(Show),
    /// Show how the source of a function differs between two of its versions
    Diff(Diff),
    /// Show what nodes learnt about your calls of a function, and why it lends or does not
    Profile(profile::Profile),
    /// Set who may run a function of yours
    Share(Share),
    /// Remove a function of yours that is no longer in use
    Remove(Remove),
}

/// Remove a function of yours. Its tasks and flows must have ended, and its triggers must be removed first; outcomes
/// are kept. Operators may remove any tenant's function by its id.
#[derive(Debug, Args)]
struct Remove {
    /// Name, for all versions, or the id of one version
    #[arg(value_name = "NAME_OR_ID", value_parser = NonEmptyStringValueParser::new())]
    function: String,
}

/// Set who may run a function of yours, in place of the current tenants. Accepted tasks continue.
#[derive(Debug, Args)]
struct Share {
    /// Name, for all versions, or the id of one version
    #[arg(value_name = "NAME_OR_ID", value_parser = NonEmptyStringValueParser::new())]
    function: String,
    /// Tenant, team:NAME for the members of a team, or * for all; may be repeated [default: only you]
    #[arg(long, value_name = "WHO")]
    with: Vec<String>,
}

/// Show how the source of a function differs between two of its versions.
#[derive(Debug, Args)]
struct Diff {
    /// Name, or OWNER/NAME for another tenant's function
    #[arg(value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    function: String,
    /// First version to compare [default: the one before --to]
    #[arg(value_name = "FROM")]
    from: Option<u32>,
    /// Second version to compare [default: the latest]
    #[arg(value_name = "TO")]
    to: Option<u32>,
    /// Owner, if the function is another tenant's: the same as OWNER/NAME
    #[arg(long, value_name = "TENANT")]
    owner: Option<String>,
}

/// Show a function.
#[derive(Debug, Args)]
struct Show {
    /// Id, or name for the latest version; OWNER/NAME for another tenant's function, NAME@ID for exactly that version
    #[arg(value_name = "NAME_OR_ID", value_parser = NonEmptyStringValueParser::new())]
    function: String,
    /// Print only its source
    #[arg(long)]
    source: bool,
}

pub fn run(arguments: &Arguments, global: &Global) -> Result<(), Failure> {
    match &arguments.what {
        What::Register(wanted) => told(&register::register(wanted, global)?, global),
        What::List => list(global),
        What::Show(wanted) => show(wanted, global),
        What::Diff(wanted) => diff(wanted, global),
        What::Profile(wanted) => profile::run(wanted, global),
        What::Share(wanted) => share(wanted, global),
        What::Remove(wanted) => remove(wanted, global),
    }
}

fn told(function: &FunctionStatus, global: &Global) -> Result<(), Failure> {
    output::line(&if global.json {
        output::json(function)?
    } else {
        described(function)
    });
    Ok(())
}

fn list(global: &Global) -> Result<(), Failure> {
    let client = connect::manager(global)?;
    let functions: Vec<FunctionStatus> = client.get("/v1/functions").map_err(|error| error.0)?;
    output::line(&if global.json {
        output::json(&functions)?
    } else if functions.is_empty() {
        "No functions.".into()
    } else {
        table(&functions).text(output::colours(&std::io::stdout()))
    });
    Ok(())
}

fn table(functions: &[FunctionStatus]) -> output::Table {
    let mut table = output::Table::new(&[
        ("FUNCTION", Left),
        ("VERSION", Right),
        ("OWNER", Left),
        ("RUNTIME", Left),
        ("SHARED WITH", Left),
        ("REGISTERED", Left),
        ("ID", Left),
    ]);
    for function in functions {
        table.row([
            name(function),
            version(function),
            function.owner.clone(),
            runtime(function),
            shared(function),
            output::time(function.registered_at_ms),
            function.id.to_string(),
        ]);
    }
    table
}

fn show(wanted: &Show, global: &Global) -> Result<(), Failure> {
    let client = connect::manager(global)?;
    let path = format!("/v1/functions/{}", encoded(&wanted.function));
    let function: FunctionStatus = client.get(&path).map_err(|error| error.0)?;
    output::line(&if global.json {
        output::json(&function)?
    } else if wanted.source {
        source(&function)?
    } else {
        described(&function)
    });
    Ok(())
}

fn diff(wanted: &Diff, global: &Global) -> Result<(), Failure> {
    let client = connect::manager(global)?;
    let named = match &wanted.owner {
        Some(owner) => format!("{owner}/{}", wanted.function),
        None => wanted.function.clone(),
    };
    let path = format!("/v1/functions/{}", encoded(&named));
    let found: FunctionStatus = client.get(&path).map_err(|error| error.0)?;
    let mut versions: Vec<FunctionStatus> = client.get("/v1/functions").map_err(|error| error.0)?;
    versions.retain(|function| function.name == found.name && function.owner == found.owner);
    let called = name(&found);
    versions.sort_by_key(|function| function.version);
    let of = |version: u32| {
        let found = versions.iter().find(|function| function.version == version);
        found.ok_or_else(|| {
            let there: Vec<String> = versions.iter().map(|function| function.version.to_string()).collect();
            let text = format!(
                "there is no version {version} of `{called}`; there are {}",
                there.join(", ")
            );
            Failure::new(Code::NotFound, text)
        })
    };
    let last = versions.last().map_or(0, |function| function.version);
    let to = of(wanted.to.unwrap_or(last))?;
    let from = of(wanted.from.unwrap_or_else(|| to.version.saturating_sub(1)))?;
    let texts = [
        lines(&from.source).join("\n") + "\n",
        lines(&to.source).join("\n") + "\n",
    ];
    let changes = similar::TextDiff::from_lines(&texts[0], &texts[1]);
    let [before, after] = [from, to].map(|function| format!("{called} v{}", function.version));
    let text = changes.unified_diff().header(&before, &after).to_string();
    output::line(&match (global.json, text.is_empty()) {
        (true, _) => output::json(&serde_json::json!({ "from": from.version, "to": to.version, "diff": text }))?,
        (false, true) => format!("The source is the same in {before} and {after}."),
        (false, false) => text.trim_end_matches('\n').into(),
    });
    Ok(())
}

fn share(wanted: &Share, global: &Global) -> Result<(), Failure> {
    let client = connect::manager(global)?;
    let path = format!("/v1/functions/{}/sharing", encoded(&wanted.function));
    let sharing = FunctionSharing {
        shared_with: wanted.with.clone(),
    };
    let function: FunctionStatus = client.put(&path, &sharing).map_err(|error| error.0)?;
    output::line(&if global.json {
        output::json(&function)?
    } else if function.shared_with.is_empty() {
        format!("Nobody but you may run {}.", name(&function))
    } else {
        format!("{} is shared with {}.", name(&function), shared(&function))
    });
    Ok(())
}

fn remove(wanted: &Remove, global: &Global) -> Result<(), Failure> {
    let client = connect::manager(global)?;
    let path = format!("/v1/functions/{}", encoded(&wanted.function));
    let gone: Vec<FunctionStatus> = client.delete(&path).map_err(|error| error.0)?;
    output::line(&if global.json {
        output::json(&gone)?
    } else {
        let versions = output::count(gone.len() as u64, "version");
        format!("{versions} of {} gone.", gone.last().map(name).unwrap_or_default())
    });
    Ok(())
}

fn source(function: &FunctionStatus) -> Result<String, Failure> {
    if function.source.is_empty() {
        let text = format!("{} was registered without its source", name(function));
        return Err(Failure::new(Code::NotFound, text));
    }
    Ok(lines(&function.source).join("\n"))
}

fn described(function: &FunctionStatus) -> String {
    let resources = &function.resources;
    let mut needs = output::cores(resources.cores);
    if resources.gpus > 0 {
        needs += &format!(", {}", output::count(resources.gpus.into(), "GPU"));
    }
    if resources.ranks > 0 {
        needs = format!(
            "{} of {needs}, {}",
            output::count(resources.ranks.into(), "rank"),
            resources.placement.name()
        );
    }
    if resources.memory_bytes > 0 {
        needs += &format!(", {}", output::size(resources.memory_bytes));
    }
    if !resources.loans.lend {
        needs += ", lends nothing";
    }
    if resources.loans.borrow != Borrow::default() {
        needs += &format!(", borrows {}", resources.loans.borrow);
    }
    if resources.walltime_ms > 0 {
        needs += &format!(", {} at most", output::span(resources.walltime_ms.into()));
    }
    let mut text = format!(
        "Function {}\n  version     {}\n  id          {}\n  pinned as   {}\n  owner       {}\n  shared with {}\n  runtime     {}\n  \
         needs       {needs}\n  repeatable  {}\n  code        SHA-256 {}\n  registered  {} UTC",
        name(function),
        version(function),
        function.id,
        pinned(function),
        function.owner,
        shared(function),
        runtime(function),
        if function.repeatable { "yes" } else { "no" },
        function.hash,
        output::time(function.registered_at_ms),
    );
    if !function.description.is_empty() {
        text += &format!("\n\n{}", lines(&function.description).join("\n"));
    }
    text
}

/// Returns its name, or the name in its code.
fn name(function: &FunctionStatus) -> String {
    output::plain(function.name.as_deref().unwrap_or(function.form.name()))
}

/// Returns the reference that runs exactly this version.
fn pinned(function: &FunctionStatus) -> String {
    match &function.name {
        None => function.id.to_string(),
        Some(name) => output::plain(&format!("{}/{name}@{}", function.owner, function.id)),
    }
}

fn version(function: &FunctionStatus) -> String {
    match function.version {
        0 => "-".into(),
        version => version.to_string(),
    }
}

fn runtime(function: &FunctionStatus) -> String {
    match &function.runtime {
        Runtime::Native => "native".into(),
        Runtime::Python { version, .. } => format!("Python {}", output::plain(version)),
    }
}

fn shared(function: &FunctionStatus) -> String {
    match &function.shared_with[..] {
        [] => "-".into(),
        with if with.iter().any(|name| name == "*") => "everyone".into(),
        with => output::plain(&with.join(", ")),
    }
}

/// Returns the lines of a foreign text, with tabs kept.
fn lines(text: &str) -> Vec<String> {
    let line = |line: &str| line.split('\t').map(output::plain).collect::<Vec<_>>().join("\t");
    text.lines().map(|text| line(text).trim_end().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use dayfly_protocol::executor::Form;
    use dayfly_protocol::functions::Resources;
    use dayfly_protocol::ids::{CodeHash, FunctionId};

    use super::*;

    fn function() -> FunctionStatus {
        FunctionStatus {
            id: FunctionId([7; 16]),
            name: Some("area".into()),
            version: 3,
            owner: "astro".into(),
            description: "What two sides enclose.\n\nFast.".into(),
            source: "def area(a, b):\n\treturn a * b\x1b[2J\n".into(),
            hash: CodeHash([9; 32]),
            form: Form::Plain { symbol: "f".into() },
            runtime: Runtime::Native,
            image: None,
            resources: Resources::default(),
            repeatable: false,
            shared_with: Vec::new(),
            registered_at_ms: 0,
        }
    }

    #[test]
    fn function_without_name_is_shown_by_symbol() {
        let (named, mut unnamed) = (function(), function());
        (unnamed.name, unnamed.version) = (None, 0);
        assert_eq!((name(&named), version(&named)), ("area".into(), "3".into()));
        assert_eq!((name(&unnamed), version(&unnamed)), ("f".into(), "-".into()));
        let text = described(&named);
        assert!(
            text.contains("needs       1 core\n") && text.ends_with("\n\nWhat two sides enclose.\n\nFast."),
            "{text}"
        );
    }

    #[test]
    fn version_is_shown_with_its_pins() {
        let text = described(&function());
        let pin = format!("pinned as   astro/area@{}\n", FunctionId([7; 16]));
        assert!(text.contains(&pin), "{text}");
    }

    #[test]
    fn source_keeps_lines_and_is_escaped() {
        let mut function = function();
        assert_eq!(
            source(&function),
            Ok("def area(a, b):\n\treturn a * b\\u{1b}[2J".into())
        );
        function.source.clear();
        assert_eq!(source(&function).map_err(|failure| failure.code), Err(Code::NotFound));
    }

    #[test]
    fn sharing_with_everyone_is_one_word() {
        let mut function = function();
        assert_eq!(shared(&function), "-");
        function.shared_with = vec!["astro".into(), "bio".into()];
        assert_eq!(shared(&function), "astro, bio");
        function.shared_with.push("*".into());
        assert_eq!(shared(&function), "everyone");
    }
}
