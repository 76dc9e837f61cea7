//! Usage errors: reports what is wrong on the command line without naming hidden options.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
pub use dayfly_command::exit::report;
use dayfly_protocol::error::{Code, Failure};

/// Removes suggestions of hidden options and commands from an error. clap suggests from all that exist.
fn forget_hidden(error: &mut clap::Error, arguments: &[OsString], mut command: &Command) {
    for word in arguments {
        let word = word.to_string_lossy();
        command = command.find_subcommand(&*word).unwrap_or(command);
    }
    let is_hidden_option = |text: &str| {
        let name = text.trim_start_matches('-').split([' ', '=']).next();
        let mut options = command.get_arguments();
        options.any(|option| (option.is_hide_set() || option.is_hide_short_help_set()) && option.get_long() == name)
    };
    let is_hidden_command = |name: &str| command.find_subcommand(name).is_some_and(Command::is_hide_set);
    let hidden_option = forget(error, ContextKind::SuggestedArg, is_hidden_option);
    let hidden_command = forget(error, ContextKind::SuggestedSubcommand, is_hidden_command);
    if hidden_option || hidden_command {
        // clap's usage line contains the suggestion.
        let usage = command.clone().render_usage();
        error.insert(ContextKind::Usage, ContextValue::StyledStr(usage));
    }
}

/// Removes hidden suggestions of one kind. Returns whether there were any.
fn forget(error: &mut clap::Error, kind: ContextKind, is_hidden: impl Fn(&str) -> bool) -> bool {
    match error.remove(kind) {
        Some(ContextValue::String(text)) if is_hidden(&text) => true,
        Some(ContextValue::Strings(mut texts)) => {
            let all = texts.len();
            texts.retain(|text| !is_hidden(text));
            let left = texts.len();
            if left > 0 {
                error.insert(kind, ContextValue::Strings(texts));
            }
            left < all
        }
        Some(other) => {
            error.insert(kind, other);
            false
        }
        None => false,
    }
}

/// Reports a usage error, or prints the requested help. Returns the exit status.
pub fn usage(mut error: clap::Error, arguments: &[OsString], command: &Command) -> ExitCode {
    forget_hidden(&mut error, arguments, command);
    let json = arguments.iter().any(|argument| argument == "--json");
    if json && !matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        let text = error.render().to_string();
        let text = text.strip_prefix("error: ").unwrap_or(&text).trim();
        return report(&Failure::new(Code::InvalidRequest, text), true);
    }
    let _ = error.print();
    ExitCode::from(error.exit_code() as u8)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    #[test]
    fn hidden_options_and_commands_are_never_suggested() {
        let mut all = Cli::command();
        all.build();
        let mut commands = vec![(vec!["dayfly".to_owned()], &all)];
        let mut tried = 0;
        while let Some((words, command)) = commands.pop() {
            let hidden = command.get_arguments().filter(|option| option.is_hide_set());
            let options = hidden.filter_map(|option| Some(format!("--{}x", option.get_long()?)));
            let names = command.get_subcommands().filter(|one| one.is_hide_set());
            let names = names.map(|one| format!("{}x", one.get_name()));
            for misspelt in options.chain(names) {
                let line: Vec<OsString> = words.iter().chain([&misspelt]).map(OsString::from).collect();
                let Err(mut error) = Cli::command().try_get_matches_from(&line) else {
                    continue;
                };
                forget_hidden(&mut error, &line, &all);
                let said = error.render().to_string();
                let hidden = format!("'{}'", misspelt.trim_end_matches('x'));
                assert!(!said.contains(&hidden), "{line:?}: {said}");
                tried += 1;
            }
            for next in command.get_subcommands() {
                let next_words = words.iter().cloned().chain([next.get_name().to_owned()]);
                commands.push((next_words.collect(), next));
            }
        }
        assert!(tried > 3, "{tried}");
    }

    #[test]
    fn visible_options_are_suggested() {
        let line: Vec<OsString> = ["dayfly", "up", "--lisen"].map(OsString::from).to_vec();
        let mut error = Cli::command().try_get_matches_from(&line).expect_err("no such option");
        forget_hidden(&mut error, &line, &Cli::command());
        assert!(error.render().to_string().contains("--listen"));
    }
}
