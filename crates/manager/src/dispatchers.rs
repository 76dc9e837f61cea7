//! The connections of dispatchers at other hosts: each is a conversation as frames of MessagePack on a WebSocket.

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

use crate::control::stopped;
use crate::http::validity::ENDED;
use crate::token_registry::Validity;

/// A dispatcher has this long to say who it is.
const HELLO_DEADLINE: Duration = Duration::from_secs(10);
/// One that reads nothing for so long is stuck, however slow its network.
const SEND_DEADLINE: Duration = Duration::from_secs(60);
/// Between two pings.
const PING_EVERY: Duration = Duration::from_secs(5);
/// One that answers none for so long is gone.
const SILENCE: Duration = Duration::from_secs(20);

type Frames = SplitStream<WebSocket>;
type Writer = SplitSink<WebSocket, Message>;

/// Why a dispatcher's connection ended.
#[derive(Debug, thiserror::Error)]
enum Over {
    #[error("it went away")]
    Gone,
    #[error("it broke the protocol: {0}")]
    Violation(String),
    #[error("it was refused: {0}")]
    Refused(Failure),
    #[error("it does not read what it is sent")]
    Stuck,
    #[error("its place was taken, or its endpoint removed")]
    Replaced,
    #[error("the manager is stopping")]
    Stopping,
}

/// Serves one dispatcher's connection to its end.
pub async fn serve(
    tasks: Arc<Tasks>,
    id: EndpointId,
    site: Option<ToDispatcher>,
    socket: WebSocket,
    mut validity: Validity,
    mut stopping: watch::Receiver<bool>,
) {
    let (mut writer, mut frames) = socket.split();
    let over = tokio::select! {
        over = converse(tasks, id, site, &mut writer, &mut frames) => over,
        () = validity.ended() => Over::Refused(Failure::new(Code::Unauthorized, ENDED)),
        _ = stopped(&mut stopping) => Over::Stopping,
    };
    if let Over::Refused(failure) = &over {
        let _ = send(&mut writer, ToDispatcher::Refused(failure.clone())).await;
    }
    tracing::info!(endpoint = %id, %over, "a dispatcher's connection ended");
    let _ = tokio::time::timeout(HELLO_DEADLINE, writer.send(Message::Close(None))).await;
}

async fn converse(
    tasks: Arc<Tasks>,
    id: EndpointId,
    site: Option<ToDispatcher>,
    writer: &mut Writer,
    frames: &mut Frames,
) -> Over {
    let mut heard_at = Instant::now();
    let hello = match tokio::time::timeout(HELLO_DEADLINE, receive(frames, &mut heard_at)).await {
        Ok(Ok(hello)) => hello,
        Ok(Err(over)) => return over,
        Err(_) => return Over::Gone,
    };
    let FromDispatcher::Hello { version, instance, .. } = &hello else {
        return Over::Violation("the first message must be `Hello`".into());
    };
    if *version != WIRE_VERSION {
        let text = format!(
            "the endpoint speaks wire version {version} and this manager {WIRE_VERSION} (Dayfly {RELEASE}); install the same release on both"
        );
        return Over::Refused(Failure::new(Code::VersionMismatch, text));
    }
    let conversation = match tasks.connect(id, *instance) {
        Ok(conversation) => conversation,
        Err(failure) => return Over::Refused(failure),
    };
    drop(tasks);
    if let Some(site) = site
        && let Err(over) = send(writer, site).await
    {
        return over;
    }
    let (said, heard) = (conversation.to_manager, conversation.from_manager);
    // The other end of this channel lives as long as the manager.
    let _ = said.send(hello);
    // Apart from each other: a peer that writes much before it reads must not stop both.
    tokio::select! {
        over = write(writer, heard) => over,
        over = read(frames, heard_at, said) => over,
    }
}

async fn write(writer: &mut Writer, mut heard: mpsc::UnboundedReceiver<ToDispatcher>) -> Over {
    let mut pings = tokio::time::interval(PING_EVERY);
    loop {
        let sent = tokio::select! {
            message = heard.recv() => match message {
                Some(message) => send(writer, message).await,
                None => return Over::Replaced,
            },
            _ = pings.tick() => send_frame(writer, Message::Ping(Default::default())).await,
        };
        if let Err(over) = sent {
            return over;
        }
    }
}

async fn read(frames: &mut Frames, mut heard_at: Instant, said: mpsc::UnboundedSender<FromDispatcher>) -> Over {
    loop {
        let silent_at = heard_at + SILENCE;
        let message = tokio::time::timeout_at(silent_at.into(), receive(frames, &mut heard_at)).await;
        match message {
            Ok(Ok(message)) => {
                if said.send(message).is_err() {
                    return Over::Replaced;
                }
            }
            Ok(Err(over)) => return over,
            // Pongs count, too.
            Err(_) if heard_at.elapsed() < SILENCE => {}
            Err(_) => return Over::Gone,
        }
    }
}

async fn receive(frames: &mut Frames, heard_at: &mut Instant) -> Result<FromDispatcher, Over> {
    loop {
        let frame = frames.next().await;
        *heard_at = Instant::now();
        match frame {
            Some(Ok(Message::Binary(bytes))) => {
                return rmp_serde::from_slice(&bytes).map_err(|error| Over::Violation(error.to_string()));
            }
            Some(Ok(Message::Text(_))) => return Err(Over::Violation("text where MessagePack is spoken".into())),
            Some(Ok(Message::Close(_)) | Err(_)) | None => return Err(Over::Gone),
            Some(Ok(_)) => {}
        }
    }
}

async fn send(writer: &mut Writer, message: ToDispatcher) -> Result<(), Over> {
    for part in message.parts() {
        let bytes = rmp_serde::to_vec_named(&part).map_err(|error| Over::Violation(error.to_string()))?;
        send_frame(writer, Message::Binary(bytes.into())).await?;
    }
    Ok(())
}

async fn send_frame(writer: &mut Writer, frame: Message) -> Result<(), Over> {
    match tokio::time::timeout(SEND_DEADLINE, writer.send(frame)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(Over::Gone),
        Err(_) => Err(Over::Stuck),
    }
}
