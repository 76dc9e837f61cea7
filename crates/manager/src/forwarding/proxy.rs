//! Passing a request through to another manager as it comes, and its answer as it comes: contents are long, and some answers are
//! conversations.

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

use super::{CONNECT_DEADLINE, FORWARDED, MOVE_TICK, Passed, open};
use crate::extractors::refuse;
use crate::http::Api;
use crate::token_registry::Validity;

/// How long a request waits for a manager that has the tasks: longer than it takes to notice that one has died.
const PATIENCE: Duration = Duration::from_secs(15);

/// What is said between two neighbours alone.
const OF_ONE_CONNECTION: [HeaderName; 7] = [
    CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Lets the manager that has the tasks answer; that may be this one.
pub async fn forward_to_task_owner(control: &Api, request: Request) -> Passed {
    let until = tokio::time::Instant::now() + PATIENCE;
    loop {
        if control.task_owner.mine().is_some() {
            return Passed::Mine(request);
        }
        if let Some(owner) = control.task_owner.another()
            && let Some(peer) = control.peers.alive(owner)
            && let Some(road) = road_to(control, &peer).await
        {
            return Passed::Answered(pass(control, &peer, road, request).await);
        }
        if tokio::time::Instant::now() >= until {
            // Whoever answers says why there is nothing to answer.
            return Passed::Mine(request);
        }
        tokio::time::sleep(MOVE_TICK).await;
    }
}

async fn road_to(control: &Api, peer: &Peer) -> Option<SendRequest<Body>> {
    if let Some(road) = control.peers.connections.take(peer.key) {
        return Some(road);
    }
    match tokio::time::timeout(CONNECT_DEADLINE, open(peer)).await {
        Ok(Ok(road)) => Some(road),
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

async fn pass(control: &Api, peer: &Peer, mut road: SendRequest<Body>, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let here = parts.extensions.remove::<OnUpgrade>();
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut asked = hyper::Request::new(body);
    *asked.method_mut() = parts.method.clone();
    let Ok(uri) = path.parse() else {
        return refuse(Code::InvalidRequest, "the path cannot be read").into_response();
    };
    *asked.uri_mut() = uri;
    let is_upgrade = parts.headers.contains_key(UPGRADE);
    *asked.headers_mut() = between(&parts.headers, is_upgrade);
    let host = peer.presence.url.trim_start_matches("https://");
    if let Ok(host) = HeaderValue::from_str(host) {
        asked.headers_mut().insert(HOST, host);
    }
    asked.headers_mut().insert(FORWARDED, HeaderValue::from_static("1"));
    if let Some(traceparent) = telemetry::traceparent().and_then(|text| HeaderValue::from_str(&text).ok()) {
        asked.headers_mut().insert(TRACEPARENT, traceparent);
    }
    let mut answer = match road.send_request(asked).await {
        Ok(answer) => answer,
        Err(error) => {
            tracing::debug!(%error, manager = peer.presence.url, "a request about tasks was not answered");
            let text = "the manager that has the tasks went away; see whether the request had an effect, and try again";
            return refuse(Code::Unreachable, text).into_response();
        }
    };
    let status = answer.status();
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    *response.headers_mut() = between(answer.headers(), status == StatusCode::SWITCHING_PROTOCOLS);
    match (status, here) {
        (StatusCode::SWITCHING_PROTOCOLS, Some(here)) => {
            let there = hyper::upgrade::on(&mut answer);
            let validity = control.validity_of_request(&parts.headers);
            tokio::spawn(converse(here, there, validity));
        }
        _ => {
            *response.body_mut() = Body::new(answer.into_body());
            // It is free again when all of the answer has come through.
            let (control, key) = (control.clone(), peer.key);
            tokio::spawn(async move {
                if road.ready().await.is_ok() {
                    control.peers.connections.give(key, road);
                }
            });
        }
    }
    response
}

/// Carries what both ends of an upgraded connection say, until one of them ends it, or the token ends with which it was opened.
async fn converse(here: OnUpgrade, there: OnUpgrade, validity: Option<Validity>) {
    let Some(mut validity) = validity else { return };
    let (Ok(here), Ok(there)) = tokio::join!(here, there) else {
        return;
    };
    let (mut here, mut there) = (TokioIo::new(here), TokioIo::new(there));
    // Its end is theirs: both notice it, and neither of them needs to hear why.
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut here, &mut there) => {}
        () = validity.ended() => {}
    }
}

/// Headers that go on to the next.
fn between(headers: &HeaderMap, is_upgrade: bool) -> HeaderMap {
    let mut kept = headers.clone();
    for name in OF_ONE_CONNECTION {
        if !(is_upgrade && (name == CONNECTION || name == UPGRADE)) {
            kept.remove(name);
        }
    }
    kept
}
