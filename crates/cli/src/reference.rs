//! Generates docs/reference/cli.md from the commands.

use std::fmt::Write;
use std::path::Path;

use clap::{Command, CommandFactory};
use dayfly_command::exit;
use dayfly_protocol::error::Code;

use crate::Cli;

const HEAD: &str = "# The command line

Generated from the commands by `make generate`. Each command prints the same with `--help`.

## Conventions

Results go to standard output, all other output to standard error. With `--json`, a command prints one line of JSON, a daemon one
line when it is ready, and `dayfly top` one line per interval. Tables are coloured only on a terminal, and not if `NO_COLOR` is
set.

An error is `error [code]: what happened and what to do`, with `--json` `{\"error\": {\"code\": ..., \"message\": ...}}`. Each code
has its section in [errors.md](../errors.md).

";

const TAIL: &str = "
| variable | meaning |
|---|---|
| `DAYFLY_MANAGER` | connection file of the manager, or its state directory, for clients and commands |
| `DAYFLY_LOG` | as `--log` |
| `DAYFLY_BIN` | the `dayfly` program that client libraries start if they find no manager |
| `DAYFLY_EXECUTOR` | the executor of shared libraries, if it is not beside `dayfly` |
| `DAYFLY_PYTHON` | the Python interpreter of `dayfly invoke`, `dayfly run`, `dayfly sql`, `dayfly env` and `dayfly bench` |
| `DAYFLY_WARM_POOL` | as `--warm-pool` |
| `DAYFLY_FABRIC` | as `--fabric` |
| `DAYFLY_JOIN_TOKEN` | as `--token` of `dayfly node` |
| `XDG_STATE_HOME` | parent of the state directory `dayfly`; default: `~/.local/state` |

";

fn page() -> String {
    let mut page = HEAD.to_owned();
    page += "| exit status | meaning | codes |\n|---|---|---|\n| 0 | success | |\n";
    let meanings = [
        "the function, the command or Dayfly failed",
        "wrong usage",
        "no response, or not in time",
        "the request was refused",
    ];
    for (meaning, status) in meanings.iter().zip(1..) {
        let codes: Vec<_> = Code::ALL
            .iter()
            .filter(|code| exit::status(**code) == status)
            .map(|code| format!("`{}`", code.name()))
            .collect();
        let _ = writeln!(page, "| {status} | {meaning} | {} |", codes.join(", "));
    }
    page += TAIL;
    let mut command = without_values(Cli::command());
    command.build();
    describe(&mut command, &mut page);
    page
}

/// Hides the values of environment variables, so that the page does not depend on the environment.
fn without_values(command: Command) -> Command {
    let names: Vec<_> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    let command = command.mut_args(|argument| argument.hide_env_values(true));
    names
        .into_iter()
        .fold(command, |command, name| command.mut_subcommand(name, without_values))
}

fn describe(command: &mut Command, page: &mut String) {
    let name = command.get_bin_name().unwrap_or(command.get_name()).to_owned();
    let help = command.render_long_help().to_string();
    let help = help.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
    let _ = write!(page, "## {name}\n\n```text\n{}\n```\n\n", help.trim());
    let shown = |sub: &&mut Command| sub.get_name() != "help" && !sub.is_hide_set();
    for sub in command.get_subcommands_mut().filter(shown) {
        describe(sub, page);
    }
    while page.ends_with("\n\n") {
        page.pop();
    }
    page.push('\n');
}

#[test]
fn committed_reference_matches_the_commands() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/cli.md");
    let page = format!("{}\n", page().trim_end());
    if std::env::var_os("DAYFLY_REGENERATE").is_some() {
        std::fs::write(&path, &page).expect("the page can be written");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == page, "docs/reference/cli.md is stale; run `make generate`");
}

#[test]
fn every_command_has_help_for_a_newcomer() {
    Cli::command().debug_assert();
    for command in Cli::command().get_subcommands() {
        let name = command.get_name();
        assert!(command.get_about().is_some(), "{name} says what it does");
        if name != "help" {
            assert!(command.get_after_help().is_some(), "{name} shows how it is used");
        }
    }
}
