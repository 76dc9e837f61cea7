//! Discovery of the configured manager: by argument, environment or state directory.

use std::path::{Path, PathBuf};

use dayfly_protocol::api::Connection;
use dayfly_protocol::error::Code;

use crate::{Error, former_name};

/// Environment variable with the path of a connection file, or of the state directory that contains one.
pub const MANAGER_VARIABLE: &str = "DAYFLY_MANAGER";
const CONNECTION_FILE: &str = "connection.json";

/// Default state directory of `dayfly up`: `$XDG_STATE_HOME/dayfly`, else `~/.local/state/dayfly`.
pub fn default_state_dir() -> Option<PathBuf> {
    let named = |variable: &str| {
        std::env::var_os(variable)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    named("XDG_STATE_HOME")
        .or_else(|| Some(named("HOME")?.join(".local/state")))
        .map(|base| base.join("dayfly"))
}

/// Returns the configured manager: `argument`, else `DAYFLY_MANAGER`, else the connection file in the default state
/// directory. Returns `None` if none of them exists.
///
/// # Errors
/// The named file cannot be read or parsed, or a state directory exists only under the program's former name.
pub fn find_manager(argument: Option<&Path>) -> Result<Option<Connection>, Error> {
    if let Some(path) = argument {
        return read(path).map(Some);
    }
    if let Some(path) = std::env::var_os(MANAGER_VARIABLE).filter(|value| !value.is_empty()) {
        return read(Path::new(&path)).map(Some);
    }
    let Some(dir) = default_state_dir() else {
        return Ok(None);
    };
    let path = dir.join(CONNECTION_FILE);
    if path.exists() {
        return read(&path).map(Some);
    }
    match former_name::beside(&dir).filter(|former| former.join(CONNECTION_FILE).exists()) {
        Some(former) => Err(Error::new(Code::Unreachable, former_name::message(&former, &dir))),
        None => Ok(None),
    }
}

fn read(path: &Path) -> Result<Connection, Error> {
    let path = if path.is_dir() {
        path.join(CONNECTION_FILE)
    } else {
        path.to_owned()
    };
    let text = std::fs::read_to_string(&path).map_err(|error| {
        Error::new(
            Code::Unreachable,
            format!(
                "no manager's connection file can be read at {}: {error}. Start one with `dayfly up`, or name the \
                 file or its directory by {MANAGER_VARIABLE}",
                path.display()
            ),
        )
    })?;
    serde_json::from_str(&text).map_err(|error| {
        Error::new(
            Code::InvalidRequest,
            format!("{} is not a manager's connection file: {error}", path.display()),
        )
    })
}
