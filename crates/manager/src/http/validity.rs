//! What a token began ends with it: requests that wait, and answers that are still being sent. WebSockets watch by themselves.

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

/// A body that is longer, or has no known length, is cut off when its reader's token ends. Shorter ones are sent at once.
const MAX_AT_ONCE_BYTES: u64 = 64 << 10;

/// The body of a request without a token that is good has this long.
const BODY_DEADLINE: Duration = Duration::from_secs(10);

/// For whoever was connected with a token that is good no longer.
pub const ENDED: &str = "the token was revoked or has expired; use another one, or log in anew";

/// Refuses what was opened with a token that ended meanwhile.
pub fn ended() -> Refusal {
    refuse(Code::Unauthorized, ENDED)
}

/// Answers a request that is still waiting when its token ends, and cuts off a long answer.
pub async fn end_with_token(Shared(control): Shared<Api>, request: Request, next: Next) -> Response {
    // Whoever revokes their own token shall read what came of it.
    let revokes = request.method() == Method::DELETE && request.uri().path().starts_with("/v1/tokens/");
    let validity = control.validity_of_request(request.headers());
    if let (Some(_), Some(visitor)) = (&validity, request.extensions().get::<Arc<ConnectionState>>()) {
        visitor.show();
    }
    let Some(mut validity) = validity.filter(|_| !revokes) else {
        return next.run(request.map(in_time)).await;
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
        .is_some_and(|bytes| bytes <= MAX_AT_ONCE_BYTES)
    {
        return response;
    }
    response.map(|body| Body::new(CutOff::new(body, validity)))
}

/// A body that must be there in time, since nobody who is known sends it.
fn in_time(body: Body) -> Body {
    if body.is_end_stream() {
        return body;
    }
    let end = tokio::time::sleep(BODY_DEADLINE).boxed();
    let why = "the body of the request did not come in time";
    Body::new(CutOff { body, end, why })
}

/// A body that fails when its time is over, such as when its reader's token ends.
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
