//! Streamed forwarding of requests about tasks. Contents are too long to buffer, and some requests open WebSockets.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{
    CONNECTION, HOST, HeaderName, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use dayfly_protocol::error::Code;
use dayfly_store::Peer;
use dayfly_telemetry::{self as telemetry, TRACEPARENT};
use hyper::client::conn::http1::SendRequest;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::{CONNECT_LIMIT, FORWARDED, Forwarded, MOVE_PERIOD, open};
use crate::extractors::refuse;
use crate::http::Api;
use crate::token_registry::Validity;

/// How long a request waits for a manager that owns the tasks. Longer than the detection of a dead one.
const OWNER_LIMIT: Duration = Duration::from_secs(15);

/// Headers for one connection only (hop-by-hop).
const HOP_BY_HOP: [HeaderName; 7] = [
    CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Forwards a request to the manager that owns the tasks, unless this one does.
pub async fn forward_to_task_owner(control: &Api, request: Request) -> Forwarded {
    let until = tokio::time::Instant::now() + OWNER_LIMIT;
    loop {
        if control.task_owner().local().is_some() {
            return Forwarded::Local(request);
        }
        if let Some(owner) = control.task_owner().peer()
            && let Some(peer) = control.peers().alive(owner)
            && let Some(sender) = connect(control, &peer).await
        {
            return Forwarded::Done(proxy(control, &peer, sender, request).await);
        }
        if tokio::time::Instant::now() >= until {
            // The handler responds with the reason.
            return Forwarded::Local(request);
        }
        tokio::time::sleep(MOVE_PERIOD).await;
    }
}

async fn connect(control: &Api, peer: &Peer) -> Option<SendRequest<Body>> {
    if let Some(sender) = control.peers().connections().take(peer.key) {
        return Some(sender);
    }
    match tokio::time::timeout(CONNECT_LIMIT, open(peer)).await {
        Ok(Ok(sender)) => Some(sender),
        Ok(Err(why)) => {
            tracing::debug!(
                manager = peer.presence.url,
                why,
                "the manager that has the tasks cannot be reached"
            );
            None
        }
        Err(_) => None,
    }
}

async fn proxy(control: &Api, peer: &Peer, mut sender: SendRequest<Body>, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let client = parts.extensions.remove::<OnUpgrade>();
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut asked = hyper::Request::new(body);
    *asked.method_mut() = parts.method.clone();
    let Ok(uri) = path.parse() else {
        return refuse(Code::InvalidRequest, "the path cannot be read").into_response();
    };
    *asked.uri_mut() = uri;
    let is_upgrade = parts.headers.contains_key(UPGRADE);
    *asked.headers_mut() = end_to_end(&parts.headers, is_upgrade);
    let host = peer.presence.url.trim_start_matches("https://");
    if let Ok(host) = HeaderValue::from_str(host) {
        asked.headers_mut().insert(HOST, host);
    }
    asked.headers_mut().insert(FORWARDED, HeaderValue::from_static("1"));
    if let Some(traceparent) = telemetry::traceparent().and_then(|text| HeaderValue::from_str(&text).ok()) {
        asked.headers_mut().insert(TRACEPARENT, traceparent);
    }
    let mut answer = match sender.send_request(asked).await {
        Ok(answer) => answer,
        Err(error) => {
            tracing::debug!(%error, manager = peer.presence.url, "a forwarded request about tasks failed");
            let text =
                "the manager that has the tasks disconnected; check whether the request had an effect, and try again";
            return refuse(Code::Unreachable, text).into_response();
        }
    };
    let status = answer.status();
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    *response.headers_mut() = end_to_end(answer.headers(), status == StatusCode::SWITCHING_PROTOCOLS);
    match (status, client) {
        (StatusCode::SWITCHING_PROTOCOLS, Some(client)) => {
            let peer_stream = hyper::upgrade::on(&mut answer);
            let validity = control.validity_of_request(&parts.headers);
            tokio::spawn(copy_both(client, peer_stream, validity));
        }
        _ => {
            *response.body_mut() = Body::new(answer.into_body());
            // The connection is idle again once the whole response is read.
            let (control, key) = (control.clone(), peer.key);
            tokio::spawn(async move {
                if sender.ready().await.is_ok() {
                    control.peers().connections().give(key, sender);
                }
            });
        }
    }
    response
}

/// Copies between both sides of an upgraded connection, until one side closes it or the client's token ends.
async fn copy_both(client: OnUpgrade, peer_stream: OnUpgrade, validity: Option<Validity>) {
    let Some(mut validity) = validity else { return };
    let (Ok(client), Ok(peer_stream)) = tokio::join!(client, peer_stream) else {
        return;
    };
    let (mut client, mut peer_stream) = (TokioIo::new(client), TokioIo::new(peer_stream));
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut client, &mut peer_stream) => {}
        () = validity.ended() => {}
    }
}

/// Returns the headers to forward.
fn end_to_end(headers: &HeaderMap, is_upgrade: bool) -> HeaderMap {
    let mut kept = headers.clone();
    for name in HOP_BY_HOP {
        if !(is_upgrade && (name == CONNECTION || name == UPGRADE)) {
            kept.remove(name);
        }
    }
    kept
}
