//! Lets isolated workers without a network be ranks of groups.
//!
//! Their sandbox contains a socket that leads to a [connector](dayfly_comm::connector), a process of the node outside.
//! The node starts the connector when a rank first connects, and passes it the listening socket itself, so the node
//! reads no bytes from the sandbox. If the node is root, the connector runs as a user that owns nothing. It runs in the
//! control groups of its lease, and ends with the sandbox.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use dayfly_comm::connector::{ConnectorConfig, SOCKET};
use dayfly_fabric::descriptors;
use dayfly_protocol::ids::LeaseId;
use dayfly_protocol::node_api::Stream;
use dayfly_sandbox::Program;
use dayfly_sandbox::cgroup::Group;
use dayfly_sandbox::isolation::{CODE_DIR, HELPER_USER};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Signal;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

use crate::executor_sandbox::ExecutorSandbox;
use crate::executors::{drain, reap_child, start_child};
use crate::leases::NodeLease;
use crate::node::Node;
use crate::{Output, descriptor_watch};

/// Ranks that may wait in the socket's queue.
const BACKLOG: i32 = 256;
/// Most groups at a time: for each worker of a lease, and in addition. A rank of `dayfly run` belongs to two.
const MAX_GROUPS_PER_WORKER: u32 = 4;
const MAX_GROUPS: u32 = 4;
/// Pause before a connector that ended is replaced, so that a sandbox cannot occupy the node by ending it.
const RESTART_PAUSE: Duration = Duration::from_millis(200);

/// The socket in a sandbox, and its service. Dropping it ends both.
#[derive(Debug)]
pub struct Connector {
    _open: oneshot::Sender<()>,
}

/// Serves the connector's socket of a lease's sandbox; `None` if the sandbox has the host's network.
pub fn open(node: &Arc<Node>, lease: &NodeLease, sandbox: &ExecutorSandbox) -> std::io::Result<Option<Connector>> {
    let Some(listener) = sandbox.connector_socket() else {
        return Ok(None);
    };
    let listener = descriptor_watch::watch(listener.try_clone()?)?;
    let (open, closed) = oneshot::channel::<()>();
    let workers = u32::from(lease.terms().workers);
    let lease = Lease {
        id: lease.id(),
        max_groups: match node.options.connectors {
            true => MAX_GROUPS + MAX_GROUPS_PER_WORKER * workers,
            false => 0,
        },
        group: Arc::downgrade(sandbox.group()),
    };
    let mine = node.clone();
    node.tasks.spawn_until_closing(async move {
        tokio::select! {
            () = serve(&mine, &lease, listener) => {}
            _ = closed => {}
        }
    });
    Ok(Some(Connector { _open: open }))
}

struct Lease {
    id: LeaseId,
    max_groups: u32,
    group: Weak<Group>,
}

/// Listens in the directory that a sandbox sees.
pub fn listen(dir: &Path) -> std::io::Result<OwnedFd> {
    let dir: OwnedFd = std::fs::File::open(dir)?.into();
    let name = SOCKET.strip_prefix(CODE_DIR).unwrap_or(SOCKET);
    // The path may be long, and a socket's address has room for only about a hundred bytes.
    let path = format!("/proc/self/fd/{}{name}", dir.as_raw_fd());
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path.as_str())?)?;
    // The sandbox's user owns nothing and needs the permission; the directory keeps other users out.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Starts a connector whenever a rank connects and none runs.
async fn serve(node: &Arc<Node>, lease: &Lease, listener: AsyncFd<OwnedFd>) {
    loop {
        let Ok(mut ready) = listener.readable().await else {
            return;
        };
        if !has_connection(ready.get_inner()) {
            ready.clear_ready();
            continue;
        }
        match ConnectorProcess::start(node, lease, listener.get_ref()).await {
            Ok(process) => process.ended().await,
            Err(error) => tracing::warn!(lease = %lease.id, error, "isolated ranks cannot join groups"),
        }
        tokio::time::sleep(RESTART_PAUSE).await;
    }
}

fn has_connection(listener: &OwnedFd) -> bool {
    let mut waiting = [PollFd::new(listener, PollFlags::IN)];
    poll(&mut waiting, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// A running connector. Dropping it ends it.
struct ConnectorProcess {
    pid: i32,
    pidfd: OwnedFd,
    /// Closes when the node dies. That ends the connector even if the parent-death signal does not.
    control: OwnedFd,
    readers: tokio::task::JoinSet<()>,
}

impl ConnectorProcess {
    async fn start(node: &Node, lease: &Lease, listener: &OwnedFd) -> Result<Self, String> {
        let program = Program {
            program: node.options.connector_path(),
            otherwise: None,
            arguments: vec!["connector".into()],
            environment: Vec::new(),
            isolation: None,
        };
        let child = start_child(node.pool.spawner().clone(), program)
            .await
            .map_err(|failure| failure.message)?;
        let mut process = Self {
            pid: child.pid,
            pidfd: child.pidfd,
            control: child.control,
            readers: tokio::task::JoinSet::new(),
        };
        let begun = process.begin(node, lease, listener, [child.output, child.errors]);
        begun.map_err(|error| error.to_string())?;
        Ok(process)
    }

    fn begin(
        &mut self,
        node: &Node,
        lease: &Lease,
        listener: &OwnedFd,
        [output, errors]: [OwnedFd; 2],
    ) -> std::io::Result<()> {
        // Always to the log, wherever workers' output goes: this is the node's own output.
        let output = descriptor_watch::watch(output)?;
        self.readers
            .spawn(drain(output, Arc::default(), Stream::Out, None, Output::Log));
        let errors = descriptor_watch::watch(errors)?;
        self.readers
            .spawn(drain(errors, Arc::default(), Stream::Err, None, Output::Log));
        if let Some(group) = lease.group.upgrade() {
            group.admit(self.pid)?;
        }
        let config = ConnectorConfig {
            managers: node.trusted.all(),
            permitted: node.options.rendezvous.clone(),
            max_groups: lease.max_groups,
            user: rustix::process::geteuid().is_root().then_some(HELPER_USER),
        };
        let config = serde_json::to_vec(&config)?;
        descriptors::send(&self.control, &config, &[listener.as_fd()]).map(drop)
    }

    /// Waits until it has ended by itself.
    async fn ended(&self) {
        // Use a copy: the original is needed to end the process in any case.
        let watched = self.pidfd.try_clone().and_then(descriptor_watch::watch);
        if let Ok(watched) = watched {
            let _ = watched.readable().await;
        }
    }
}

impl Drop for ConnectorProcess {
    fn drop(&mut self) {
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
        reap_child(self.pid, self.pidfd.as_fd());
        self.readers.abort_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_is_directly_in_the_code_directory() {
        let name = SOCKET.strip_prefix(CODE_DIR).and_then(|name| name.strip_prefix('/'));
        assert!(name.is_some_and(|name| !name.contains('/')), "{SOCKET}");
    }
}
