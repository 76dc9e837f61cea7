//! The node's socket, seen from inside a sandbox.
//!
//! A lease whose workers use what was delegated to them gets a socket of its own in the directory that its sandbox sees. Whoever
//! connects there is believed no more than anybody else; but what a sandbox does to its own door keeps nobody else out.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use tokio::net::UnixListener;
use tokio::sync::oneshot;

use crate::listener::Gate;
use crate::node::Node;

/// Its name in the sandbox's directory.
pub const DOOR: &str = "node.sock";
/// Connections from one sandbox whose hello is not verified yet, and control connections that are open at once.
const MOST_UNVERIFIED: usize = 32;
const MOST_CONTROL: usize = 256;

/// An open door. Dropping it closes it.
#[derive(Debug)]
pub struct Door {
    _open: oneshot::Sender<()>,
}

/// Listens in this directory.
pub fn open(node: &Arc<Node>, dir: &Path) -> std::io::Result<Door> {
    let dir: OwnedFd = std::fs::File::open(dir)?.into();
    // However long the path is: a socket's address has room for a hundred bytes only.
    let path = format!("/proc/self/fd/{}/{DOOR}", dir.as_raw_fd());
    if let Err(error) = std::fs::remove_file(&path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let listener = UnixListener::bind(&path)?;
    // The sandbox's user owns nothing, and so is nobody's friend here; the directory keeps everybody else out.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777))?;
    let (open, closed) = oneshot::channel::<()>();
    let (mine, gate) = (node.clone(), Gate::new(MOST_UNVERIFIED, MOST_CONTROL));
    node.background(async move {
        tokio::select! {
            () = gate.accept_unix(&mine, listener) => {}
            _ = closed => {}
        }
    });
    Ok(Door { _open: open })
}
