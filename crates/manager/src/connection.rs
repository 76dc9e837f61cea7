//! Unauthenticated connections: they get little time and few places. See [`dayfly_lease::admission`].

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

/// An unauthenticated connection is closed if it sends no request for this long.
pub const IDLE_LIMIT: Duration = Duration::from_secs(5);
/// Limit on an unauthenticated request, including the reading of its response, in multiples of [`IDLE_LIMIT`]. A login
/// waits for the identity provider.
const MAX_BUSY_PERIODS: u32 = 6;

/// Origin of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// Address of the peer, over TCP.
    Address(IpAddr),
    /// User id of the peer, over the local socket.
    User(u32),
}

/// State of one connection.
#[derive(Debug, Default)]
pub struct ConnectionState {
    is_authenticated: AtomicBool,
    authenticated: Notify,
    /// Number of requests that have begun.
    begun: AtomicU64,
    /// Number of requests that have not ended.
    running: AtomicUsize,
}

impl ConnectionState {
    /// Records that a request had a valid token.
    pub fn set_authenticated(&self) {
        if !self.is_authenticated.swap(true, Ordering::Relaxed) {
            self.authenticated.notify_one();
        }
    }

    fn is_authenticated(&self) -> bool {
        self.is_authenticated.load(Ordering::Relaxed)
    }

    /// Returns when the connection must be closed. Once it is authenticated, frees its place and never returns.
    pub async fn timed_out(&self, place: Option<Place<Origin>>) {
        let (mut begun, mut busy_periods) = (0, 0);
        while !self.is_authenticated() {
            tokio::select! {
                () = self.authenticated.notified() => break,
                () = tokio::time::sleep(IDLE_LIMIT) => {}
            }
            let now = self.begun.load(Ordering::Relaxed);
            busy_periods = match self.running.load(Ordering::Relaxed) {
                0 if now == begun => return,
                0 => 0,
                _ => busy_periods + 1,
            };
            if busy_periods >= MAX_BUSY_PERIODS {
                return;
            }
            begun = now;
        }
        drop(place);
        std::future::pending().await
    }
}

/// The router for one connection.
pub struct ConnectionService {
    router: TowerToHyperService<Router>,
    state: Arc<ConnectionState>,
}

impl ConnectionService {
    /// Returns a service that records the connection's requests in its state.
    pub fn new(router: Router, state: Arc<ConnectionState>) -> Self {
        Self {
            router: TowerToHyperService::new(router),
            state,
        }
    }
}

impl Service<hyper::Request<Incoming>> for ConnectionService {
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response, Infallible>>;

    fn call(&self, mut request: hyper::Request<Incoming>) -> Self::Future {
        let running = RunningRequest::new(&self.state);
        request.extensions_mut().insert(Arc::clone(&self.state));
        let response = self.router.call(request);
        Box::pin(async move {
            let response = response.await?;
            if running.0.is_authenticated() {
                return Ok(response);
            }
            Ok(response.map(|body| {
                Body::new(TrackedBody {
                    body,
                    _running: running,
                })
            }))
        })
    }
}

/// Counts a request until it is dropped.
struct RunningRequest(Arc<ConnectionState>);

impl RunningRequest {
    fn new(state: &Arc<ConnectionState>) -> Self {
        state.begun.fetch_add(1, Ordering::Relaxed);
        state.running.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(state))
    }
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of a response. Its request ends when the body is sent.
struct TrackedBody {
    body: Body,
    _running: RunningRequest,
}

impl HttpBody for TrackedBody {
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
    async fn silent_connection_closes_authenticated_one_frees_its_place() {
        let admission = Admission::new(1, 1);
        let place = || admission.admit(Origin::User(7));
        let silent = ConnectionState::default();
        silent.timed_out(place()).await;
        let known = ConnectionState::default();
        known.set_authenticated();
        let mut staying = std::pin::pin!(known.timed_out(place()));
        assert!(tokio::time::timeout(IDLE_LIMIT * 10, staying.as_mut()).await.is_err());
        assert!(place().is_some(), "the place is free although the connection stays");
    }

    #[tokio::test(start_paused = true)]
    async fn unauthenticated_connection_stays_until_a_request_takes_long() {
        let connection = Arc::new(ConnectionState::default());
        let stays = |for_times: u32| tokio::time::timeout(IDLE_LIMIT * for_times, connection.timed_out(None));
        let asking = async {
            for _ in 0..20 {
                drop(RunningRequest::new(&connection));
                tokio::time::sleep(IDLE_LIMIT / 2).await;
            }
        };
        tokio::select! {
            () = asking => {}
            () = connection.timed_out(None) => panic!("the connection was closed"),
        }
        let _endless = RunningRequest::new(&connection);
        assert!(stays(MAX_BUSY_PERIODS - 1).await.is_err());
        assert!(stays(MAX_BUSY_PERIODS + 1).await.is_ok());
    }
}
