//! `dayfly doctor`: what this machine lets Dayfly do, what it does not, and what to do about it.

mod isolation;
mod machine;
mod software;

use std::fmt;
use std::io::stdout;
use std::process::ExitCode;

use clap::Args;
use dayfly_command::{Global, colours};
use dayfly_protocol::error::Failure;
use serde::Serialize;

use crate::output::{self, Align, Table};

/// Check this machine.
#[derive(Debug, Args)]
#[command(after_help = "Each line is about one thing:
  works    it is as Dayfly wants it
  limited  Dayfly runs, without what the line says
  absent   an optional thing is not here
  broken   Dayfly cannot run without it; then the exit status is 1

Run it as the user who shall run the daemon: rights and limits differ between users.")]
pub struct Arguments {}

/// How well something works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Works,
    Limited,
    Absent,
    Broken,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            Self::Works => "works",
            Self::Limited => "limited",
            Self::Absent => "absent",
            Self::Broken => "broken",
        }
    }

    /// The escape sequence of its colour on a terminal.
    fn colour(self) -> &'static str {
        match self {
            Self::Works => "\x1b[32m",
            Self::Limited => "\x1b[33m",
            Self::Absent => "\x1b[2m",
            Self::Broken => "\x1b[31m",
        }
    }
}

/// What a check found.
#[derive(Debug, Serialize)]
struct Finding {
    /// Name of the check.
    name: &'static str,
    state: State,
    /// What is there, or is not.
    found: String,
    /// What to do, unless it works.
    remedy: Option<String>,
}

impl Finding {
    fn works(name: &'static str, found: impl Into<String>) -> Self {
        Self {
            name,
            state: State::Works,
            found: found.into(),
            remedy: None,
        }
    }

    /// Anything but a success, with its remedy.
    fn new(name: &'static str, state: State, found: impl fmt::Display, remedy: impl Into<String>) -> Self {
        Self {
            name,
            state,
            found: found.to_string(),
            remedy: Some(remedy.into()),
        }
    }
}

pub fn run(_: &Arguments, global: &Global) -> Result<ExitCode, Failure> {
    let mut findings = machine::check();
    findings.extend(isolation::check());
    findings.extend(software::check());
    let is_broken = findings.iter().any(|finding| finding.state == State::Broken);
    output::line(&match global.json {
        true => output::json(&serde_json::json!({ "works": !is_broken, "checks": findings }))?,
        false => text(&findings, colours(&stdout())),
    });
    Ok(match is_broken {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

/// A table of the findings, then the remedies.
fn text(findings: &[Finding], coloured: bool) -> String {
    let mut table = Table::new(&[("STATE", Align::Left), ("CHECK", Align::Left), ("FOUND", Align::Left)]);
    for finding in findings {
        table.row([finding.state.name().into(), finding.name.into(), finding.found.clone()]);
    }
    let mut text = String::new();
    // The heading comes before the findings.
    let states = std::iter::once(None).chain(findings.iter().map(|finding| Some(finding.state)));
    for (line, state) in table.text(coloured).lines().zip(states) {
        match state.filter(|_| coloured) {
            Some(state) => {
                let (name, rest) = line.split_at(state.name().len().min(line.len()));
                text += &format!("{}{name}\x1b[0m{rest}\n", state.colour());
            }
            None => text += &format!("{line}\n"),
        }
    }
    let mut remedies = findings
        .iter()
        .filter_map(|finding| Some((finding.name, finding.remedy.as_ref()?)));
    if let Some(first) = remedies.next() {
        text += "\nWhat to do:\n";
        for (name, remedy) in std::iter::once(first).chain(remedies) {
            text += &format!("  {name}: {}\n", output::plain(remedy));
        }
    }
    text.truncate(text.trim_end().len());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedies_follow_the_table() {
        let findings = [
            Finding::works("kernel", "Linux 6.1"),
            Finding::new("Python", State::Absent, "no python3", "install it"),
        ];
        let lines: Vec<String> = text(&findings, false).lines().map(str::to_owned).collect();
        assert_eq!(lines[1], "works   kernel  Linux 6.1");
        assert_eq!(lines[2], "absent  Python  no python3");
        assert_eq!(lines[4..], ["What to do:", "  Python: install it"]);
    }

    #[test]
    fn states_are_coloured_on_a_terminal() {
        let shown = text(&[Finding::works("kernel", "Linux 6.1")], true);
        assert!(shown.ends_with("\x1b[32mworks\x1b[0m  kernel  Linux 6.1"), "{shown:?}");
        assert!(!shown.contains("What to do"));
    }
}
