//! A layer that exchanges versions in a header of every request and response.

use axum::extract::Request;
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use dayfly_protocol::version::{VERSION_HEADER, check_version, own_version};

use crate::extractors::refuse;

/// Refuses clients, nodes and endpoints with another wire version. Names the own version in the response.
pub async fn exchange(request: Request, next: Next) -> Response {
    let theirs = request.headers().get(VERSION_HEADER);
    let checked = match (theirs, request.uri().path()) {
        // Any version may request the version.
        (None, _) | (_, "/v1/version") => Ok(()),
        (Some(theirs), path) => {
            let them = match path {
                "/v1/nodes/connect" => "the node",
                "/v1/endpoints/connect" => "the endpoint",
                _ => "the client",
            };
            check_version(theirs.to_str().unwrap_or_default(), them, "this manager")
        }
    };
    let mut response = match checked {
        Ok(()) => next.run(request).await,
        Err(failure) => refuse(failure.code, failure.message).into_response(),
    };
    if let Ok(value) = HeaderValue::from_str(&own_version()) {
        response.headers_mut().insert(VERSION_HEADER, value);
    }
    response
}
