//! Control connections: framed requests of verified peers, with responses in order.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::time::Duration;

use dayfly_lease::quantity::Quantity;
use dayfly_lease::token;
use dayfly_protocol::api::{LeaseRequest, LeaseState, Mode};
use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::hello::{Hello, Token, kind, transport};
use dayfly_protocol::ids::{CodeHash, Incarnation, PublicKey};
use dayfly_protocol::node_api::{EndedLoans, MAX_CODE_BYTES, MAX_FRAME_BYTES, Request, Response};
use sha2::{Digest, Sha256};

use crate::leases::NodeLease;
use crate::listener::Connection;
use crate::node::{Node, random};

/// Limit for the rest of a frame that has begun, and for each piece of code.
const FRAME_DEADLINE: Duration = Duration::from_secs(5);
/// Longest wait for the end of a released lease, which takes milliseconds.
const RELEASE_DEADLINE: Duration = Duration::from_secs(5);
/// Longest wait of a request for output.
const MAX_WAIT: Duration = Duration::from_secs(10);
/// Longest wait of a lease request for its executor.
const EXECUTOR_TIMEOUT: Duration = Duration::from_secs(12);

/// Serves a control connection to its end.
pub async fn serve(node: &Arc<Node>, hello: &Hello, mut connection: Connection) {
    let encrypted = hello.transport == transport::TLS;
    if connection.is_exposed() && !encrypted && !node.options.trust_fabric {
        let text = "this site allows no requests in clear off the loopback; use a client that asks for TLS";
        let refusal = token::refuse(&Failure::new(Code::TransportRefused, text));
        let _ = connection.send_verdict(&refusal).await;
        return;
    }
    let nothing = PublicKey([0; 32]);
    let verdict = token::accept(&hello.channel, Incarnation(0), 0, 0, nothing, &node.key);
    if connection.send_verdict(&verdict).await.is_err() {
        return;
    }
    if encrypted {
        connection = match connection.encrypt(node, &hello.token.holder).await {
            Ok(connection) => connection,
            Err(error) => return tracing::debug!(%error, "a control connection could not be encrypted"),
        };
    }
    loop {
        let (response, go_on) = match next_frame(&mut connection).await {
            Ok(Some(frame)) => match serde_json::from_slice::<Request>(&frame) {
                Ok(request) => serve_one(node, hello, &mut connection, request).await,
                Err(error) => (violation(&format!("the request is malformed: {error}")), false),
            },
            Ok(None) => return,
            Err(failure) => (Response::Failed(failure), false),
        };
        if write_frame(&mut connection, &response).await.is_err() || !go_on {
            return;
        }
    }
}

fn violation(text: &str) -> Response {
    Response::Failed(Failure::new(
        Code::ProtocolViolation,
        format!("{text}; use a client of this release"),
    ))
}

/// The next frame; `None` when the peer closes the connection, between frames or within one.
async fn next_frame(connection: &mut Connection) -> Result<Option<Vec<u8>>, Failure> {
    let mut length = [0; 4];
    // A connection may be idle between frames, so the first byte has no limit; the rest has.
    if connection.read_exact(&mut length[..1]).await.is_err() {
        return Ok(None);
    }
    let rest = async {
        connection.read_exact(&mut length[1..]).await.ok()?;
        let length = u32::from_le_bytes(length);
        if length > MAX_FRAME_BYTES {
            return Some(Err(Failure::new(
                Code::PayloadTooLarge,
                format!("a frame of {length} bytes where {MAX_FRAME_BYTES} are allowed; send less"),
            )));
        }
        let mut frame = vec![0; length as usize];
        connection.read_exact(&mut frame).await.ok()?;
        Some(Ok(frame))
    };
    match tokio::time::timeout(FRAME_DEADLINE, rest).await {
        Ok(Some(frame)) => frame.map(Some),
        Ok(None) => Ok(None),
        Err(_) => Err(Failure::new(
            Code::TimedOut,
            format!(
                "half a frame came and no more for {} s; connect again",
                FRAME_DEADLINE.as_secs()
            ),
        )),
    }
}

async fn write_frame(connection: &mut Connection, response: &Response) -> std::io::Result<()> {
    let body = serde_json::to_vec(response)?;
    let mut frame = (body.len() as u32).to_le_bytes().to_vec();
    frame.extend(body);
    tokio::time::timeout(FRAME_DEADLINE, connection.write_all(&frame))
        .await
        .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
}

/// Serves one request. Returns the response, and whether the connection can be used further.
async fn serve_one(node: &Arc<Node>, hello: &Hello, connection: &mut Connection, request: Request) -> (Response, bool) {
    let token = &hello.token;
    let served = match request {
        Request::PutCode { hash, length } => {
            let (response, go_on) = put_code(node, connection, hash, length).await;
            let shown = match &response {
                Response::Done => show_code(node, token, hash),
                _ => Ok(()),
            };
            return (shown.map_or_else(Response::Failed, |()| response), go_on);
        }
        Request::HasCode { hash } => {
            let present = node.options.code_dir().join(hash.to_string()).is_file();
            let shown = if present { show_code(node, token, hash) } else { Ok(()) };
            shown.map(|()| Response::Code { present })
        }
        Request::Ping => Ok(Response::Done),
        Request::Lease(request) => grant_lease(node, hello, *request).await,
        of_lease => serve_lease_request(node, token, of_lease).await,
    };
    (served.unwrap_or_else(Response::Failed), true)
}

/// Shows code to the lease's isolated workers. A holder may name any code whose hash it knows.
fn show_code(node: &Node, token: &Token, hash: CodeHash) -> Result<(), Failure> {
    if token.kind != kind::LEASE {
        return Ok(());
    }
    let shown = node.lease(token)?.show_code(&node.options.code_dir(), hash);
    shown.map_err(|error| {
        let text = format!(
            "the code cannot be shown to the lease's workers: {error}; make room in the node's state directory"
        );
        Failure::new(Code::StoreFailed, text)
    })
}

async fn grant_lease(node: &Arc<Node>, hello: &Hello, request: LeaseRequest) -> Result<Response, Failure> {
    let token = &hello.token;
    if token.kind != kind::ALLOWANCE {
        return Err(Failure::new(
            Code::Unauthorized,
            "a lease's token permits no further lease; use the allowance, or the manager",
        ));
    }
    check_allowance(token, &request)?;
    let grant = node.grant_directly(hello, request, EXECUTOR_TIMEOUT).await?;
    Ok(Response::Granted(Box::new(grant)))
}

/// Returns an error unless an allowance covers a request.
fn check_allowance(allowance: &Token, request: &LeaseRequest) -> Result<(), Failure> {
    let own_cores = match request.mode {
        Mode::Hot => request.cores_per_worker * u32::from(request.workers),
        _ => MilliCores::ZERO,
    };
    let checks: [(&str, Quantity, Quantity); 4] = [
        ("workers", request.workers.into(), allowance.workers.get().into()),
        (
            "cores",
            own_cores.into(),
            MilliCores::new(allowance.milli_cores.get().into()).into(),
        ),
        (
            "bytes of memory",
            request.memory_bytes.into(),
            // A manager's allowance may leave memory to its nodes.
            match allowance.memory_bytes.get() {
                0 => u64::MAX,
                most => most,
            }
            .into(),
        ),
        (
            "milliseconds",
            request.duration_ms.into(),
            allowance.duration_ms.get().into(),
        ),
    ];
    match checks.into_iter().find(|(_, asked, most)| asked > most) {
        Some((what, asked, most)) => Err(Failure::new(
            Code::TooLarge,
            format!("the lease asks for {asked} {what} and the allowance permits {most}; ask for less"),
        )),
        None => Ok(()),
    }
}

async fn serve_lease_request(node: &Arc<Node>, token: &Token, request: Request) -> Result<Response, Failure> {
    if token.kind != kind::LEASE {
        return Err(Failure::new(
            Code::Unauthorized,
            "an allowance permits leasing only; connect with the lease's own token",
        ));
    }
    match request {
        Request::Renew { duration_ms, change } => {
            let lease = lease_of_holder(node, token)?;
            if lease.granted.origin.is_managed() {
                return Err(Failure::new(
                    Code::InvalidRequest,
                    "this lease belongs to a manager; renew it there",
                ));
            }
            node.renew(&lease, duration_ms, &change)?;
            Ok(Response::Renewed(Box::new(node.grant(&lease))))
        }
        Request::Release => {
            let lease = lease_of_holder(node, token)?;
            lease.end(LeaseState::Released);
            lease.wait_until_over(RELEASE_DEADLINE).await;
            Ok(Response::Done)
        }
        Request::Cancel { channel, sequence } => node.lease(token)?.cancel(channel, sequence).map(|()| Response::Done),
        Request::Close { channel } => {
            node.lease(token)?.on_client_gone(channel);
            Ok(Response::Done)
        }
        Request::ChannelStatus { channel } => node
            .live_or_recent_lease(token)?
            .channel_status(channel)
            .map(Response::ChannelStatus),
        Request::Output {
            from,
            wait_ms,
            loans_from,
        } => {
            let lease = require_holder(node.live_or_recent_lease(token)?, token)?;
            let (printed, mut over) = (lease.output(), lease.over.subscribe());
            tokio::select! {
                () = printed.wait(from, MAX_WAIT.min(Duration::from_millis(wait_ms.into()))) => {}
                () = ended_call(&lease, loans_from) => {}
                _ = over.wait_for(|over| *over) => {}
            }
            // Read this flag first: then the output that is read next is complete.
            let is_over = *lease.over.borrow();
            let (from, pieces) = lease.output().read(from);
            let loans = loans_from.map_or_else(EndedLoans::default, |from| lease.ended_loans().read(from));
            let over = is_over && pieces.is_empty() && loans.calls.is_empty();
            Ok(Response::Output {
                from,
                pieces,
                over,
                loans,
            })
        }
        Request::Delegate {
            holder,
            first,
            workers,
            duration_ms,
        } => {
            let lease = node.lease(token)?;
            let grant = node.delegate(&lease, &token.holder, holder, first, workers, duration_ms)?;
            Ok(Response::Delegated(Box::new(grant)))
        }
        Request::RevokeDelegation { holder } => {
            let lease = node.lease(token)?;
            lease.take_back(&token.holder, &holder).map(|()| Response::Done)
        }
        Request::AwaitRecall { wait_ms } => {
            let lease = node.live_or_recent_lease(token)?;
            let limit = MAX_WAIT.min(Duration::from_millis(wait_ms.into()));
            let is_recalled = lease.wait_until_recalled(limit).await;
            Ok(Response::Recall { is_recalled })
        }
        Request::NodeSocket => {
            let lease = lease_of_holder(node, token)?;
            let shown = node.open_sandbox_socket(&lease).map_err(|error| {
                let text = format!("the node's socket cannot be shown to the lease's workers: {error}; report this");
                Failure::new(Code::Internal, text)
            });
            shown.map(|path| Response::NodeSocket { path })
        }
        Request::Lease(_) | Request::HasCode { .. } | Request::PutCode { .. } | Request::Ping => Err(Failure::new(
            Code::Internal,
            "the node did not handle a request; report this",
        )),
    }
}

/// The lease of a token, for operations that only its holder may request.
fn lease_of_holder(node: &Node, token: &Token) -> Result<Arc<NodeLease>, Failure> {
    require_holder(node.lease(token)?, token)
}

/// Waits until a measured call from this number on has ended, if such calls are wanted.
async fn ended_call(lease: &NodeLease, from: Option<u64>) {
    match from {
        Some(from) => lease.ended_loans().wait(from).await,
        None => std::future::pending().await,
    }
}

fn require_holder(lease: Arc<NodeLease>, token: &Token) -> Result<Arc<NodeLease>, Failure> {
    if lease.holder() != token.holder {
        return Err(Failure::new(
            Code::Unauthorized,
            "a delegated part of a lease may only be used and delegated further; ask the holder of the lease",
        ));
    }
    Ok(lease)
}

/// Receives code into a temporary file while it computes the hash, and moves the file into place if the hash is right.
async fn put_code(node: &Node, connection: &mut Connection, hash: CodeHash, length: u64) -> (Response, bool) {
    if length > MAX_CODE_BYTES {
        let text = format!("code of {length} bytes where {MAX_CODE_BYTES} are allowed; send less");
        return (Response::Failed(Failure::new(Code::PayloadTooLarge, text)), false);
    }
    let place = node.options.code_dir().join(hash.to_string());
    let part = match random::<8>() {
        Ok(bytes) => node.options.code_dir().join(format!("part-{}", hex::encode(bytes))),
        Err(failure) => return (Response::Failed(failure), false),
    };
    let stored = |error: std::io::Error| {
        Failure::new(
            Code::StoreFailed,
            format!("the node cannot keep the code: {error}; make room in its state directory"),
        )
    };
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&part)
        .map_err(stored);
    let mut hasher = Sha256::new();
    let mut chunk = vec![0; (256 << 10).min(length.max(1) as usize)];
    let mut left = length;
    while left > 0 {
        let wanted = chunk.len().min(left as usize);
        let read = tokio::time::timeout(FRAME_DEADLINE, connection.read(&mut chunk[..wanted])).await;
        let Ok(Ok(count @ 1..)) = read else {
            let _ = std::fs::remove_file(&part);
            let text = format!("the code ended {left} bytes early; send it again");
            return (Response::Failed(Failure::new(Code::InvalidRequest, text)), false);
        };
        hasher.update(&chunk[..count]);
        left -= count as u64;
        // Read bytes that cannot be stored too, so that the peer reads the response.
        if let Ok(open) = &mut file
            && let Err(error) = open.write_all(&chunk[..count])
        {
            file = Err(stored(error));
        }
    }
    let found = CodeHash(hasher.finalize().into());
    let kept = file.and_then(|file| {
        if found != hash {
            return Err(Failure::new(
                Code::HashMismatch,
                format!("the code was announced as {hash} and is {found}; send it again"),
            ));
        }
        use std::os::unix::fs::PermissionsExt;
        file.set_permissions(std::fs::Permissions::from_mode(0o555))
            .and_then(|()| std::fs::rename(&part, &place))
            .map_err(stored)
    });
    match kept {
        Ok(()) => (Response::Done, true),
        Err(failure) => {
            let _ = std::fs::remove_file(&part);
            (Response::Failed(failure), true)
        }
    }
}
