//! Opens a channel: waits for its worker, makes its memory or passes its connection on, and sends the verdict.

use std::os::fd::AsFd;
use std::sync::Arc;

use dayfly_fabric::fence;
use dayfly_fabric::shm::ChannelMemory;
use dayfly_lease::token;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::hello::{Hello, Verdict, options, transport};
use dayfly_protocol::ids::{PublicKey, WorkerIndex};

use crate::leases::{NodeLease, OpenedChannel};
use crate::listener::Connection;
use crate::node::Node;

/// Key in the verdict of a transport without TLS.
const NO_KEY: PublicKey = PublicKey([0; 32]);

/// Opens the channel that a verified hello requests, or refuses it.
pub async fn open(node: &Arc<Node>, hello: &Hello, mut connection: Connection) {
    if let Err(failure) = try_open(node, hello, &mut connection).await {
        let _ = connection.send_verdict(&token::refuse(&failure)).await;
    }
    // This closes our last copy of the connection; the channel has its own.
}

async fn try_open(node: &Arc<Node>, hello: &Hello, connection: &mut Connection) -> Result<(), Failure> {
    let lease = lease_of(node, hello, connection)?;
    loop {
        lease.worker_free(WorkerIndex(hello.worker.get())).await?;
        let opened = if hello.transport == transport::SHM {
            open_shm(node, &lease, hello, connection)
        } else {
            open_stream(node, &lease, hello, connection).await
        };
        match opened {
            // Another hello was faster. The next wait for the worker notices whether that client is still there.
            Err(failure) if failure.code == Code::WorkerBusy => {}
            Err(failure) => return Err(failure),
            Ok(first) => {
                if first {
                    node.on_first_use(&lease);
                }
                return Ok(());
            }
        }
    }
}

fn lease_of(node: &Arc<Node>, hello: &Hello, connection: &Connection) -> Result<Arc<NodeLease>, Failure> {
    let lease = node.lease(&hello.token)?;
    match (hello.transport, connection) {
        (transport::SHM, Connection::Tcp(..)) => {
            return Err(Failure::new(
                Code::TransportRefused,
                "shared memory is available only on the node's Unix socket; ask for tcp or tls",
            ));
        }
        (transport::LIBFABRIC, Connection::Unix(..)) => {
            return Err(Failure::new(
                Code::TransportRefused,
                "libfabric is opened over the node's TCP port; connect to that",
            ));
        }
        (transport::LIBFABRIC, _) if node.options.fabrics.is_empty() => {
            return Err(Failure::new(
                Code::TransportRefused,
                "this node offers no fabric; ask for tcp or tls, or its operator to offer one (`--fabric`)",
            ));
        }
        (transport::LIBFABRIC, _) if !lease.granted.kind.has_network() => {
            return Err(Failure::new(
                Code::TransportRefused,
                "libfabric opens network devices itself, and this lease's isolated workers have no network; lease with the \
                 host's network, or ask for tcp or tls",
            ));
        }
        (transport::TCP, _) if connection.is_exposed() && !node.options.trust_fabric => {
            return Err(Failure::new(
                Code::TransportRefused,
                "this site allows no payloads in clear off the loopback; ask for tls",
            ));
        }
        _ => {}
    }
    Ok(lease)
}

fn verdict(node: &Node, lease: &NodeLease, hello: &Hello, begun: OpenedChannel, key: PublicKey) -> Verdict {
    let promised = if lease.never_sleeps() {
        options::WORKER_NEVER_SLEEPS as u16
    } else {
        0
    };
    token::accept(&hello.channel, begun.incarnation, begun.pid, promised, key, &node.key)
}

fn broken(error: std::io::Error) -> Failure {
    Failure::new(
        Code::Unreachable,
        format!("the client did not take the verdict: {error}"),
    )
}

/// Passes the memory to the worker first, so that the client cannot be ahead of it.
fn open_shm(node: &Node, lease: &Arc<NodeLease>, hello: &Hello, connection: &Connection) -> Result<bool, Failure> {
    let no_memory = |error: std::io::Error| {
        Failure::new(
            Code::OutOfMemory,
            format!("there is no memory for the channel: {error}; ask for a smaller one"),
        )
    };
    let memory = ChannelMemory::create(hello.geometry()).map_err(no_memory)?;
    let file = memory.file().as_fd().try_clone_to_owned().map_err(no_memory)?;
    let socket = copy(connection).map_err(broken)?;
    let begun = lease.begin(hello, socket, Some(memory))?;
    let answer = verdict(node, lease, hello, begun, NO_KEY);
    if let Err(error) = connection.send_verdict_with(&answer, file.as_fd()) {
        lease.abandon(hello);
        tracing::debug!(channel = %hello.channel, %error, "a client went away before its verdict");
    }
    Ok(begun.first)
}

/// Sends the verdict to the client before the worker gets the connection: the worker would take it for a message.
async fn open_stream(
    node: &Node,
    lease: &Arc<NodeLease>,
    hello: &Hello,
    connection: &mut Connection,
) -> Result<bool, Failure> {
    let socket = copy(connection).map_err(broken)?;
    let worker_socket = copy(connection).map_err(broken)?;
    if let (Connection::Tcp(_, peer), false) = (&*connection, lease.granted.kind.has_network()) {
        // A worker without a network could connect the socket to other hosts.
        fence::keep_to_peer(&worker_socket, *peer).map_err(|error| {
            let text = format!("the connection cannot be kept to its client: {error}; ask for shared memory");
            Failure::new(Code::TransportRefused, text)
        })?;
    }
    let key = match hello.transport {
        transport::TLS | transport::LIBFABRIC => lease.executor_key()?.public(),
        _ => NO_KEY,
    };
    let begun = lease.begin(hello, socket, None)?;
    let answer = verdict(node, lease, hello, begun, key);
    if let Err(error) = connection.send_verdict(&answer).await {
        lease.abandon(hello);
        tracing::debug!(channel = %hello.channel, %error, "a client went away before its verdict");
        return Ok(begun.first);
    }
    // From here on the client notices an error by the end of its connection.
    if let Err(failure) = lease.hand_over(hello, worker_socket, &node.options.fabrics) {
        tracing::debug!(channel = %hello.channel, %failure, "a channel could not be handed over");
    }
    Ok(begun.first)
}

fn copy(connection: &Connection) -> std::io::Result<std::os::fd::OwnedFd> {
    match connection {
        Connection::Unix(stream) => stream.as_fd().try_clone_to_owned(),
        Connection::Tcp(stream, _) => stream.as_fd().try_clone_to_owned(),
        Connection::Tls(_) => Err(std::io::ErrorKind::Unsupported.into()),
    }
}
