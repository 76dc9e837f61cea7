//! A layer that ends waiting requests and long responses when their token ends. WebSockets check that themselves.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State as Shared};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use dayfly_protocol::error::Code;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use hyper::body::{Frame, SizeHint};

use super::Api;
use crate::connection::ConnectionState;
use crate::extractors::{Refusal, refuse};
use crate::token_registry::Validity;

/// A longer response, or one of unknown length, is cut off when its token ends. Shorter ones are sent at once.
const MAX_WHOLE_BYTES: u64 = 64 << 10;

/// Time limit for the body of a request without a valid token.
const BODY_LIMIT: Duration = Duration::from_secs(10);

/// Message for a client whose token ended.
pub const ENDED: &str = "the token was revoked or has expired; use another one, or log in anew";

/// Returns the refusal for a token that ended.
pub fn ended() -> Refusal {
    refuse(Code::Unauthorized, ENDED)
}

/// Refuses a request whose token ends while it waits, and cuts off a long response.
pub async fn end_with_token(Shared(control): Shared<Api>, request: Request, next: Next) -> Response {
    // A client that revokes its own token gets the result.
    let path = request.uri().path();
    let revokes = request.method() == Method::DELETE && (path.starts_with("/v1/tokens/") || path == "/v1/session");
    let validity = control.validity_of_request(request.headers());
    if let (Some(_), Some(connection)) = (&validity, request.extensions().get::<Arc<ConnectionState>>()) {
        connection.set_authenticated();
    }
    let Some(mut validity) = validity.filter(|_| !revokes) else {
        return next.run(request.map(limited)).await;
    };
    let response = tokio::select! {
        biased;
        response = next.run(request) => response,
        () = validity.ended() => return ended().into_response(),
    };
    if response
        .body()
        .size_hint()
        .exact()
        .is_some_and(|bytes| bytes <= MAX_WHOLE_BYTES)
    {
        return response;
    }
    response.map(|body| Body::new(CutOff::new(body, validity)))
}

/// Limits the time of a body from an unauthenticated client.
fn limited(body: Body) -> Body {
    if body.is_end_stream() {
        return body;
    }
    let end = tokio::time::sleep(BODY_LIMIT).boxed();
    let why = "the body of the request was too slow";
    Body::new(CutOff { body, end, why })
}

/// A body that fails at a certain event.
struct CutOff {
    body: Body,
    end: BoxFuture<'static, ()>,
    why: &'static str,
}

impl CutOff {
    fn new(body: Body, mut validity: Validity) -> Self {
        let end = async move { validity.ended().await }.boxed();
        Self { body, end, why: ENDED }
    }
}

impl HttpBody for CutOff {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.end.poll_unpin(context).is_ready() {
            return Poll::Ready(Some(Err(axum::Error::new(std::io::Error::other(self.why)))));
        }
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
