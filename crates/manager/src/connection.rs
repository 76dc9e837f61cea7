//! Connections that have shown no token that is good. They get little time and few places; see [`dayfly_lease::admission`].

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use dayfly_lease::admission::Place;
use futures_util::future::BoxFuture;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use tokio::sync::Notify;

/// A connection without a token must send a whole request within each such time, and is closed after one without.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// So many such times a request without a token may take to be answered, reading the answer included: a login asks a provider.
const MAX_BUSY: u32 = 6;

/// Where somebody connects from: an address, or a user of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// By TCP.
    Address(IpAddr),
    /// By the local socket.
    User(u32),
}

/// What is known of one connection.
#[derive(Debug, Default)]
pub struct ConnectionState {
    is_known: AtomicBool,
    shown: Notify,
    /// Requests that began, ever, and those that are not over.
    begun: AtomicU64,
    busy: AtomicUsize,
}

impl ConnectionState {
    /// It has shown a token that is good.
    pub fn show(&self) {
        if !self.is_known.swap(true, Ordering::Relaxed) {
            self.shown.notify_one();
        }
    }

    fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Relaxed)
    }

    /// Returns when the connection is to be closed. Gives its place to others once it is known, and then never returns.
    pub async fn outstays(&self, place: Option<Place<Origin>>) {
        let (mut begun, mut busy_for) = (0, 0);
        while !self.is_known() {
            tokio::select! {
                () = self.shown.notified() => break,
                () = tokio::time::sleep(PATIENCE) => {}
            }
            let now = self.begun.load(Ordering::Relaxed);
            busy_for = match self.busy.load(Ordering::Relaxed) {
                0 if now == begun => return,
                0 => 0,
                _ => busy_for + 1,
            };
            if busy_for >= MAX_BUSY {
                return;
            }
            begun = now;
        }
        drop(place);
        std::future::pending().await
    }
}

/// The router, for one connection.
pub struct ConnectionService {
    router: TowerToHyperService<Router>,
    visitor: Arc<ConnectionState>,
}

impl ConnectionService {
    /// Answers requests of this visitor.
    pub fn new(router: Router, visitor: Arc<ConnectionState>) -> Self {
        Self {
            router: TowerToHyperService::new(router),
            visitor,
        }
    }
}

impl Service<hyper::Request<Incoming>> for ConnectionService {
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response, Infallible>>;

    fn call(&self, mut request: hyper::Request<Incoming>) -> Self::Future {
        let busy = Busy::new(&self.visitor);
        request.extensions_mut().insert(Arc::clone(&self.visitor));
        let answer = self.router.call(request);
        Box::pin(async move {
            let response = answer.await?;
            if busy.0.is_known() {
                return Ok(response);
            }
            Ok(response.map(|body| Body::new(Watched { body, _busy: busy })))
        })
    }
}

/// A request that is not over.
struct Busy(Arc<ConnectionState>);

impl Busy {
    fn new(visitor: &Arc<ConnectionState>) -> Self {
        visitor.begun.fetch_add(1, Ordering::Relaxed);
        visitor.busy.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(visitor))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An answer whose request is over when it is sent.
struct Watched {
    body: Body,
    _busy: Busy,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use dayfly_lease::admission::Admission;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn silent_visitor_is_sent_away_and_a_known_one_makes_room() {
        let door = Admission::new(1, 1);
        let place = || door.admit(Origin::User(7));
        let silent = ConnectionState::default();
        silent.outstays(place()).await;
        let known = ConnectionState::default();
        known.show();
        let mut staying = std::pin::pin!(known.outstays(place()));
        assert!(tokio::time::timeout(PATIENCE * 10, staying.as_mut()).await.is_err());
        assert!(place().is_some(), "while it stays");
    }

    #[tokio::test(start_paused = true)]
    async fn visitor_who_sends_requests_stays_until_one_takes_too_long() {
        let visitor = Arc::new(ConnectionState::default());
        let stays = |for_times: u32| tokio::time::timeout(PATIENCE * for_times, visitor.outstays(None));
        let asking = async {
            for _ in 0..20 {
                drop(Busy::new(&visitor));
                tokio::time::sleep(PATIENCE / 2).await;
            }
        };
        tokio::select! {
            () = asking => {}
            () = visitor.outstays(None) => panic!("it was sent away"),
        }
        let _endless = Busy::new(&visitor);
        assert!(stays(MAX_BUSY - 1).await.is_err());
        assert!(stays(MAX_BUSY + 1).await.is_ok());
    }
}
