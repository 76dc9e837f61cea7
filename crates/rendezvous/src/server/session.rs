//! A connection to the server: a rank from its first message to its end, or a half of the relay.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dayfly_fabric::tls::presented;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::PublicKey;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

use super::{Shared, Unauthenticated, canonical};
use crate::groups::ConnectionId;
use crate::keys;
use crate::messages::{FromRank, Join, MAX_FROM_RANK, RELAY_MAGIC, Seat, ToRank, take_frame, to_frame};

/// First byte of a TLS handshake.
const TLS_FIRST: u8 = 0x16;
const RELAY_FIRST: u8 = RELAY_MAGIC[0];

fn timed_out() -> Failure {
    Failure::new(Code::TimedOut, "the caller did not authenticate in time")
}

fn broken(error: std::io::Error) -> Failure {
    Failure::new(Code::Unreachable, format!("its connection broke: {error}"))
}

/// Determines from the first bytes what a client wants.
pub(super) async fn handle_connection(
    shared: &Arc<Shared>,
    socket: TcpStream,
    from: SocketAddr,
    unauthenticated: Unauthenticated,
    probe: u16,
) -> Result<(), Failure> {
    let deadline = Instant::now() + shared.options.patience;
    socket.set_nodelay(true).map_err(broken)?;
    let mut first = [0];
    let peeked = timeout_at(deadline, socket.peek(&mut first))
        .await
        .map_err(|_| timed_out())?;
    match (peeked.map_err(broken)?, first[0]) {
        (0, _) => Ok(()),
        (_, TLS_FIRST) => serve_rank(shared, socket, canonical(from), unauthenticated, probe, deadline).await,
        (_, RELAY_FIRST) => shared.relay.serve(socket, deadline, unauthenticated).await,
        _ => Err(Failure::new(
            Code::ProtocolViolation,
            "it uses neither TLS nor the relay protocol",
        )),
    }
}

/// Received bytes of a rank. Reading is cancel-safe.
struct Reader<R> {
    from: R,
    received: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// The next message; `None` at the end.
    async fn next<T: for<'a> Deserialize<'a>>(&mut self) -> Result<Option<T>, Failure> {
        loop {
            if let Some(message) = take_frame(&mut self.received, MAX_FROM_RANK)? {
                return Ok(Some(message));
            }
            match self.from.read_buf(&mut self.received).await {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                // A killed process sends no TLS farewell.
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
                Err(error) => return Err(broken(error)),
            }
        }
    }
}

async fn serve_rank(
    shared: &Arc<Shared>,
    socket: TcpStream,
    from: SocketAddr,
    unauthenticated: Unauthenticated,
    probe: u16,
    deadline: Instant,
) -> Result<(), Failure> {
    let accepted = timeout_at(deadline, shared.acceptor.accept(socket)).await;
    let stream = accepted.map_err(|_| timed_out())?.map_err(broken)?;
    let Some(verifier) = presented(stream.get_ref().1.peer_certificates()) else {
        return Err(Failure::new(Code::Unauthorized, "it presented no key"));
    };
    let (reading, mut writing) = tokio::io::split(stream);
    let mut reader = Reader {
        from: reading,
        received: Vec::new(),
    };
    let first = timeout_at(deadline, reader.next()).await.map_err(|_| timed_out())??;
    let joined = match first {
        Some(FromRank::Join(join)) => RankSession::begin(shared, verifier, &join),
        Some(FromRank::Service(request)) => {
            let outcome = shared.registry().groups.service(verifier, request);
            let (response, result) = match outcome {
                Ok(text) => (ToRank::Published { text }, Ok(())),
                Err(failure) => (
                    ToRank::Refused {
                        failure: failure.clone(),
                    },
                    Err(failure),
                ),
            };
            let sent = timeout_at(deadline, async {
                writing.write_all(&to_frame(&response)).await?;
                writing.shutdown().await
            });
            return match sent.await {
                Ok(sent) => sent.map_err(broken).and(result),
                Err(_) => Err(timed_out()),
            };
        }
        Some(_) => Err(Failure::new(
            Code::ProtocolViolation,
            "the first message must be `join`",
        )),
        None => return Ok(()),
    };
    drop(unauthenticated);
    let heartbeat = shared.options.heartbeat;
    let result = match joined {
        Ok((mut session, seat)) => {
            let welcome = ToRank::Seat {
                seat,
                observed: from,
                probe,
                heartbeat_ms: u64::try_from(heartbeat.as_millis()).unwrap_or(u64::MAX),
            };
            let result = match timeout(heartbeat, write_frame(&mut writing, &to_frame(&welcome))).await {
                Ok(Ok(())) => session.serve(&mut reader, &mut writing).await,
                Ok(Err(error)) => Err(broken(error)),
                Err(_) => Err(silent(heartbeat)),
            };
            session.end(&result);
            result
        }
        Err(failure) => Err(failure),
    };
    if let Err(failure) = &result {
        // The rank may not receive it.
        let refused = to_frame(&ToRank::Refused {
            failure: failure.clone(),
        });
        let _ = timeout(heartbeat, async {
            writing.write_all(&refused).await?;
            writing.shutdown().await
        })
        .await;
    }
    result
}

/// Writes all bytes, including those that TLS holds back when the socket is full.
async fn write_frame(writing: &mut (impl AsyncWrite + Unpin), frame: &[u8]) -> std::io::Result<()> {
    writing.write_all(frame).await?;
    writing.flush().await
}

fn silent(heartbeat: Duration) -> Failure {
    Failure::new(
        Code::RankLost,
        format!(
            "it was silent for {} ms: its host hangs or is cut off",
            heartbeat.as_millis()
        ),
    )
}

/// A rank's connection while it belongs to a group.
struct RankSession {
    shared: Arc<Shared>,
    conn: ConnectionId,
    mailbox: mpsc::UnboundedReceiver<Arc<[u8]>>,
    ended: bool,
}

impl RankSession {
    fn begin(shared: &Arc<Shared>, verifier: PublicKey, join: &Join) -> Result<(Self, Seat), Failure> {
        let conn = shared.connections.fetch_add(1, Ordering::Relaxed);
        let nonce = keys::random()?;
        let (sender, mailbox) = mpsc::unbounded_channel();
        let mut registry = shared.registry();
        let seat = registry.groups.join(conn, verifier, join, nonce)?;
        registry.mailboxes.insert(conn, sender);
        drop(registry);
        let session = Self {
            shared: shared.clone(),
            conn,
            mailbox,
            ended: false,
        };
        Ok((session, seat))
    }

    /// Serves until the rank leaves, its connection ends, or it is silent.
    async fn serve<R, W>(&mut self, reader: &mut Reader<R>, writing: &mut W) -> Result<(), Failure>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let heartbeat = self.shared.options.heartbeat;
        let mut last_message = Instant::now();
        loop {
            let frame: Arc<[u8]> = tokio::select! {
                message = timeout_at(last_message + heartbeat, reader.next()) => {
                    last_message = Instant::now();
                    match message.map_err(|_| silent(heartbeat))?? {
                        Some(message) => match self.handle(message)? {
                            Some(reply) => to_frame(&reply).into(),
                            None if self.ended => return Ok(()),
                            None => continue,
                        },
                        None => return Err(Failure::new(Code::RankLost, "its process ended, or its connection was cut")),
                    }
                }
                frame = self.mailbox.recv() => match frame {
                    Some(frame) => frame,
                    None => return Ok(()),
                },
            };
            let begun = Instant::now();
            match timeout(heartbeat, write_frame(writing, &frame)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return self.read_farewell(reader, error).await,
                Err(_) => return Err(silent(heartbeat)),
            }
            // Nothing was read during the write.
            last_message += begun.elapsed();
        }
    }

    /// A rank that takes no more bytes may have announced that it leaves.
    async fn read_farewell<R>(&mut self, reader: &mut Reader<R>, error: std::io::Error) -> Result<(), Failure>
    where
        R: AsyncRead + Unpin,
    {
        let until = Instant::now() + self.shared.options.heartbeat;
        while let Ok(Ok(Some(message))) = timeout_at(until, reader.next()).await {
            if matches!(message, FromRank::Leave { .. }) {
                return self.handle(message).map(drop);
            }
        }
        Err(broken(error))
    }

    fn handle(&mut self, message: FromRank) -> Result<Option<ToRank>, Failure> {
        let mut registry = self.shared.registry();
        match message {
            FromRank::Join(_) | FromRank::Service(_) => {
                Err(Failure::new(Code::ProtocolViolation, "it has joined already"))
            }
            FromRank::Card(card) => {
                let deliveries = registry.groups.card(self.conn, card)?;
                registry.deliver(deliveries);
                Ok(None)
            }
            FromRank::Ping => {
                let (missing, missing_count) = registry.groups.missing(self.conn)?;
                Ok(Some(ToRank::Pong { missing, missing_count }))
            }
            FromRank::Call { to } => {
                let deliveries = registry.groups.call(self.conn, to)?;
                registry.deliver(deliveries);
                Ok(None)
            }
            FromRank::Relay { to } => {
                let (nonce, from, to) = registry.groups.pair(self.conn, to)?;
                let ticket = self.shared.relay.ticket(nonce, from, to).map(hex::encode);
                Ok(Some(ToRank::Ticket { to, ticket }))
            }
            FromRank::Leave { reason } => {
                let deliveries = registry.groups.leave(self.conn, reason.as_deref());
                registry.mailboxes.remove(&self.conn);
                registry.deliver(deliveries);
                self.ended = true;
                Ok(None)
            }
        }
    }

    fn end(&mut self, result: &Result<(), Failure>) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let reason = match result {
            Ok(()) => "its connection to the rendezvous ended",
            Err(failure) => &failure.message,
        };
        let mut registry = self.shared.registry();
        registry.mailboxes.remove(&self.conn);
        let deliveries = registry.groups.lose(self.conn, reason);
        registry.deliver(deliveries);
    }
}

impl Drop for RankSession {
    /// The task may be dropped at any time.
    fn drop(&mut self) {
        self.end(&Ok(()));
    }
}
