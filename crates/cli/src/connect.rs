//! Selects the manager of a command.

use std::path::{Path, PathBuf};

use dayfly_client::{Client, MANAGER_VARIABLE, default_state_dir, find_manager, former_name};
use dayfly_command::Global;
use dayfly_protocol::error::{Code, Failure};

/// Returns the state directory: the named one, else the default.
pub fn state_dir(named: Option<&Path>) -> Result<PathBuf, Failure> {
    if named.is_none()
        && let Some(usual) = default_state_dir()
        && let Some(former) = former_name::beside(&usual)
    {
        return Err(Failure::new(Code::StoreFailed, former_name::message(&former, &usual)));
    }
    let dir = named.map(Path::to_owned).or_else(default_state_dir).ok_or_else(|| {
        Failure::new(
            Code::InvalidRequest,
            "there is no home directory to keep state in; name a directory by --state-dir",
        )
    })?;
    std::path::absolute(&dir).map_err(|error| {
        Failure::new(
            Code::InvalidRequest,
            format!("{} is no usable path: {error}", dir.display()),
        )
    })
}

/// Returns the client of the configured manager or of the one that this user runs; `None` without one.
pub fn find(global: &Global) -> Result<Option<Client>, Failure> {
    let found = find_manager(global.manager.as_deref()).and_then(|found| {
        let client = |connection| Client::manager_at(&connection);
        found.map(client).transpose()
    });
    found.map_err(|error| error.0)
}

/// As [`find`], but errors without a manager.
pub fn manager(global: &Global) -> Result<Client, Failure> {
    find(global)?.ok_or_else(|| {
        Failure::new(
            Code::Unreachable,
            format!(
                "no manager is running. Start one with `dayfly up`, or name the connection file of another by --manager \
                 or {MANAGER_VARIABLE}"
            ),
        )
    })
}
