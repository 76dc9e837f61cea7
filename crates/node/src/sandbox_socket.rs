//! The node's socket inside a sandbox.
//!
//! A lease whose workers use delegated workers gets a socket of its own in the directory that its sandbox sees.
//! Connections to it are verified like all others. A sandbox that blocks its own socket affects no one else.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use tokio::net::UnixListener;
use tokio::sync::oneshot;

use crate::listener::Gate;
use crate::node::Node;

/// Name of the socket in the sandbox's directory.
pub const SOCKET_NAME: &str = "node.sock";
/// Bounds for one sandbox: connections without a verified hello, and open control connections.
const MAX_UNVERIFIED: usize = 32;
const MAX_CONTROL: usize = 256;

/// The open socket. Dropping it closes it.
#[derive(Debug)]
pub struct SandboxSocket {
    _open: oneshot::Sender<()>,
}

/// Listens in this directory.
pub fn open(node: &Arc<Node>, dir: &Path) -> std::io::Result<SandboxSocket> {
    let dir: OwnedFd = std::fs::File::open(dir)?.into();
    // The path may be long, and a socket's address has room for only about a hundred bytes.
    let path = format!("/proc/self/fd/{}/{SOCKET_NAME}", dir.as_raw_fd());
    if let Err(error) = std::fs::remove_file(&path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let listener = UnixListener::bind(&path)?;
    // The sandbox's user owns nothing and needs the permission; the directory keeps other users out.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777))?;
    let (open, closed) = oneshot::channel::<()>();
    let (mine, gate) = (node.clone(), Gate::new(MAX_UNVERIFIED, MAX_CONTROL));
    node.tasks.spawn_until_closing(async move {
        tokio::select! {
            () = gate.accept_unix(&mine, listener) => {}
            _ = closed => {}
        }
    });
    Ok(SandboxSocket { _open: open })
}
