//! The connections of dispatchers on other hosts: messages in MessagePack on a WebSocket.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::ws::{Message, WebSocket};
use dayfly_durable_tasks::Tasks;
use dayfly_protocol::WIRE_VERSION;
use dayfly_protocol::dispatch::{FromDispatcher, ToDispatcher};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::EndpointId;
use dayfly_protocol::version::RELEASE;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use tokio::sync::{mpsc, watch};

use crate::http::validity::ENDED;
use crate::shutdown::stopped;
use crate::token_registry::Validity;

/// Time limit for a dispatcher's hello.
const HELLO_LIMIT: Duration = Duration::from_secs(10);
/// A dispatcher that does not read for this long is stuck, even on a slow network.
const SEND_LIMIT: Duration = Duration::from_secs(60);
/// Period of pings.
const PING_PERIOD: Duration = Duration::from_secs(5);
/// A dispatcher that sends nothing for this long, not even pongs, is lost.
const MAX_SILENCE: Duration = Duration::from_secs(20);

type Frames = SplitStream<WebSocket>;
type Writer = SplitSink<WebSocket, Message>;

/// Why a dispatcher's connection ended.
#[derive(Debug, thiserror::Error)]
enum CloseReason {
    #[error("the connection broke")]
    Gone,
    #[error("the dispatcher violated the protocol: {0}")]
    Violation(String),
    #[error("the dispatcher was refused: {0}")]
    Refused(Failure),
    #[error("the dispatcher does not read its messages")]
    Stuck,
    #[error("a new connection replaced it, or the endpoint was removed")]
    Replaced,
    #[error("the manager is stopping")]
    Stopping,
}

/// Serves a dispatcher's connection until it ends.
pub async fn serve(
    tasks: Arc<Tasks>,
    id: EndpointId,
    site: Option<ToDispatcher>,
    socket: WebSocket,
    mut validity: Validity,
    mut stopping: watch::Receiver<bool>,
) {
    let (mut writer, mut frames) = socket.split();
    let reason = tokio::select! {
        reason = converse(tasks, id, site, &mut writer, &mut frames) => reason,
        () = validity.ended() => CloseReason::Refused(Failure::new(Code::Unauthorized, ENDED)),
        _ = stopped(&mut stopping) => CloseReason::Stopping,
    };
    if let CloseReason::Refused(failure) = &reason {
        let _ = send(&mut writer, ToDispatcher::Refused(failure.clone())).await;
    }
    tracing::info!(endpoint = %id, %reason, "a dispatcher's connection ended");
    let _ = tokio::time::timeout(HELLO_LIMIT, writer.send(Message::Close(None))).await;
}

async fn converse(
    tasks: Arc<Tasks>,
    id: EndpointId,
    site: Option<ToDispatcher>,
    writer: &mut Writer,
    frames: &mut Frames,
) -> CloseReason {
    let mut heard_at = Instant::now();
    let hello = match tokio::time::timeout(HELLO_LIMIT, receive(frames, &mut heard_at)).await {
        Ok(Ok(hello)) => hello,
        Ok(Err(reason)) => return reason,
        Err(_) => return CloseReason::Gone,
    };
    let FromDispatcher::Hello { version, instance, .. } = &hello else {
        return CloseReason::Violation("the first message must be `Hello`".into());
    };
    if *version != WIRE_VERSION {
        let text = format!(
            "the endpoint has wire version {version} and this manager {WIRE_VERSION} (Dayfly {RELEASE}); install the same release on both"
        );
        return CloseReason::Refused(Failure::new(Code::VersionMismatch, text));
    }
    let conversation = match tasks.connect(id, *instance) {
        Ok(conversation) => conversation,
        Err(failure) => return CloseReason::Refused(failure),
    };
    drop(tasks);
    if let Some(site) = site
        && let Err(reason) = send(writer, site).await
    {
        return reason;
    }
    let (said, heard) = (conversation.to_manager, conversation.from_manager);
    // The receiver lives as long as the manager.
    let _ = said.send(hello);
    // Concurrently: a peer that writes much before it reads must not block both directions.
    tokio::select! {
        reason = write(writer, heard) => reason,
        reason = read(frames, heard_at, said) => reason,
    }
}

async fn write(writer: &mut Writer, mut heard: mpsc::UnboundedReceiver<ToDispatcher>) -> CloseReason {
    let mut pings = tokio::time::interval(PING_PERIOD);
    loop {
        let sent = tokio::select! {
            message = heard.recv() => match message {
                Some(message) => send(writer, message).await,
                None => return CloseReason::Replaced,
            },
            _ = pings.tick() => send_frame(writer, Message::Ping(Default::default())).await,
        };
        if let Err(reason) = sent {
            return reason;
        }
    }
}

async fn read(frames: &mut Frames, mut heard_at: Instant, said: mpsc::UnboundedSender<FromDispatcher>) -> CloseReason {
    loop {
        let silent_at = heard_at + MAX_SILENCE;
        let message = tokio::time::timeout_at(silent_at.into(), receive(frames, &mut heard_at)).await;
        match message {
            Ok(Ok(message)) => {
                if said.send(message).is_err() {
                    return CloseReason::Replaced;
                }
            }
            Ok(Err(reason)) => return reason,
            // A pong arrived meanwhile.
            Err(_) if heard_at.elapsed() < MAX_SILENCE => {}
            Err(_) => return CloseReason::Gone,
        }
    }
}

async fn receive(frames: &mut Frames, heard_at: &mut Instant) -> Result<FromDispatcher, CloseReason> {
    loop {
        let frame = frames.next().await;
        *heard_at = Instant::now();
        match frame {
            Some(Ok(Message::Binary(bytes))) => {
                return rmp_serde::from_slice(&bytes).map_err(|error| CloseReason::Violation(error.to_string()));
            }
            Some(Ok(Message::Text(_))) => {
                return Err(CloseReason::Violation("a text message instead of MessagePack".into()));
            }
            Some(Ok(Message::Close(_)) | Err(_)) | None => return Err(CloseReason::Gone),
            Some(Ok(_)) => {}
        }
    }
}

async fn send(writer: &mut Writer, message: ToDispatcher) -> Result<(), CloseReason> {
    for part in message.parts() {
        let bytes = rmp_serde::to_vec_named(&part).map_err(|error| CloseReason::Violation(error.to_string()))?;
        send_frame(writer, Message::Binary(bytes.into())).await?;
    }
    Ok(())
}

async fn send_frame(writer: &mut Writer, frame: Message) -> Result<(), CloseReason> {
    match tokio::time::timeout(SEND_LIMIT, writer.send(frame)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(CloseReason::Gone),
        Err(_) => Err(CloseReason::Stuck),
    }
}
