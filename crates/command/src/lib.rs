//! What the programs `dayfly` and `dayfly-bench` share, so that both parse, log and fail alike.
//!
//! - [`global`]: the options of every command; [`values`]: durations, sizes and sandboxes as people write them.
//! - [`bench`], [`simulate`]: the options of `dayfly bench` and `dayfly simulate`, without what measures and simulates.
//! - [`logging`], [`exit`], [`colours`]: logs, errors and exit statuses, colours on a terminal.
//! - [`beside`]: finds the other program.

pub mod bench;
pub mod exit;
pub mod global;
pub mod logging;
pub mod simulate;
pub mod values;

use std::io::IsTerminal;
use std::path::PathBuf;

pub use global::Global;

/// Whether a stream shows colours: a terminal does, unless `NO_COLOR` is set.
pub fn colours(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// The path of a program of Dayfly in the directory of the running program. Returns the bare name, which is looked
/// for on the `PATH`, when there is none.
pub fn beside(name: &str) -> PathBuf {
    let running = std::env::current_exe().ok();
    let beside = running.and_then(|running| Some(running.parent()?.join(name)));
    beside.filter(|path| path.is_file()).unwrap_or_else(|| name.into())
}
