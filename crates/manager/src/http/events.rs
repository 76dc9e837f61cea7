//! The handler for watchers of events.

use std::time::Duration;

use axum::extract::State as Shared;
use axum::extract::ws::{CloseFrame, Message, WebSocket};
use axum::http::HeaderMap;
use axum::response::Response;
use dayfly_protocol::api::{ErrorBody, Event};
use dayfly_protocol::tenancy::Role;
use tokio::sync::broadcast::error::RecvError;

use super::{Api, SOCKET_BUFFER_BYTES, validity};
use crate::events::SiteEvent;
use crate::extractors::{Caller, Refusal, Upgrade};
use crate::shutdown::stopped;
use crate::token_registry::Validity;

/// Period of pings to a watcher, by which both sides detect a dead connection.
const PING_PERIOD: Duration = Duration::from_secs(20);
/// A watcher that does not read for this long is disconnected.
const SEND_LIMIT: Duration = Duration::from_secs(5);

/// Watches events: a WebSocket on which each message is an `Event`. Events of other tenants' leases are for operators
/// only.
#[utoipa::path(get, path = "/v1/events", security(("bearer" = [])),
    responses((status = 101, description = "WebSocket of Event", body = dayfly_protocol::api::Event),
        (status = "default", body = ErrorBody)))]
pub(crate) async fn watch_events(
    caller: Caller,
    headers: HeaderMap,
    Shared(control): Shared<Api>,
    Upgrade(upgrade): Upgrade,
) -> Result<Response, Refusal> {
    // Subscribe before the response, so that no later event is missed.
    let events = control.events().subscribe();
    let validity = control.validity_of_request(&headers).ok_or_else(validity::ended)?;
    // Watchers send only pongs and a close.
    let upgrade = upgrade
        .max_message_size(1024)
        .max_frame_size(1024)
        .read_buffer_size(SOCKET_BUFFER_BYTES)
        .write_buffer_size(0);
    Ok(upgrade.on_upgrade(move |socket| watch(control, caller, events, validity, socket)))
}

/// Whether the caller may see an event.
fn may_see(caller: &Caller, published: &SiteEvent) -> bool {
    match published.event {
        Event::Lease { .. } | Event::Incident { .. } => published
            .tenant
            .map_or(caller.role >= Role::Operator, |tenant| caller.sees(tenant)),
        _ => true,
    }
}

async fn watch(
    control: Api,
    caller: Caller,
    mut events: tokio::sync::broadcast::Receiver<SiteEvent>,
    mut validity: Validity,
    mut socket: WebSocket,
) {
    let mut stopping = control.shutdown().subscribe();
    let mut pings = tokio::time::interval(PING_PERIOD);
    loop {
        let message = tokio::select! {
            event = events.recv() => match event {
                Ok(published) if !may_see(&caller, &published) => continue,
                Ok(published) => match serde_json::to_string(&published.event) {
                    Ok(text) => Message::text(text),
                    Err(_) => break,
                },
                Err(RecvError::Lagged(_)) => {
                    let reason = "events were lost because you read too slowly; list the state again and reconnect".into();
                    let close = Message::Close(Some(CloseFrame { code: 1013, reason }));
                    let _ = tokio::time::timeout(SEND_LIMIT, socket.send(close)).await;
                    break;
                }
                Err(RecvError::Closed) => break,
            },
            _ = pings.tick() => Message::Ping(Default::default()),
            received = socket.recv() => match received {
                Some(Ok(Message::Close(_)) | Err(_)) | None => break,
                Some(Ok(_)) => continue,
            },
            () = validity.ended() => Message::Close(Some(CloseFrame { code: 1008, reason: validity::ENDED.into() })),
            _ = stopped(&mut stopping) => Message::Close(None),
        };
        let last = matches!(message, Message::Close(_));
        let sent = tokio::time::timeout(SEND_LIMIT, socket.send(message)).await;
        if last || !matches!(sent, Ok(Ok(()))) {
            break;
        }
    }
}
