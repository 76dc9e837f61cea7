//! Extractors of the HTTP API.
//!
//! [`Call`] is what almost every handler takes: it authenticates the caller, checks the role, and reads path, query and
//! body, with a [`Refusal`] as the error of each. Its type parameters name the access, the path, the query and the
//! body.

mod body;

use std::convert::Infallible;
use std::marker::PhantomData;
use std::time::Duration;

use axum::Json;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use dayfly_protocol::api::ErrorBody;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{EndpointId, TenantId};
use dayfly_protocol::tasks;
use dayfly_protocol::tenancy::Role;
use dayfly_store::{Bearer, BearerKind};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use utoipa::IntoParams;

pub use self::body::{Document, JsonBody, RequestBody};
use crate::control::Control;
use crate::http::Api;
use crate::principal::Principal;
use crate::token_registry::{TokenHash, is_stored};

/// Bytes of a body, unless a route permits more. A lease request with a long module path has some kilobytes.
pub const MAX_BODY_BYTES: usize = 64 << 10;
/// Longest grace for running calls. Instead of a longer one, let the leases expire.
const MAX_GRACE: Duration = Duration::from_secs(24 * 3600);

/// A failure as a response.
#[derive(Debug)]
pub struct Refusal(Failure);

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        refusal.0
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self(failure)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let is_unauthorized = self.0.code == Code::Unauthorized;
        let mut response = (status, Json(ErrorBody { error: self.0 })).into_response();
        if is_unauthorized {
            response
                .headers_mut()
                .insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Returns a refusal with this code and message.
pub fn refuse(code: Code, message: impl Into<String>) -> Refusal {
    Refusal(Failure::new(code, message))
}

/// A client with a valid token.
pub struct Caller {
    /// Its token.
    pub bearer: Bearer,
    /// The token's role.
    pub role: Role,
}

impl Caller {
    /// Checks that the caller has at least this role.
    ///
    /// # Errors
    /// `Forbidden` otherwise.
    pub fn is(&self, role: Role) -> Result<(), Failure> {
        if self.role >= role {
            return Ok(());
        }
        Err(Failure::new(
            Code::Forbidden,
            format!(
                "this requires the role {role}, and your token has {}; ask an administrator",
                self.role
            ),
        ))
    }

    /// Checks that the caller has at least this role and a token that may change something.
    ///
    /// # Errors
    /// `Forbidden` otherwise.
    pub fn changes_as(&self, role: Role) -> Result<(), Failure> {
        self.is(role)?;
        if self.bearer.read_only {
            return Err(Failure::new(
                Code::Forbidden,
                "your token is read-only; use one that is not",
            ));
        }
        Ok(())
    }

    /// Returns the caller as a requester of leases.
    pub fn principal(&self) -> Principal {
        Principal {
            tenant: self.bearer.tenant,
            bearer: is_stored(&self.bearer).then_some(self.bearer.hash),
            until_ms: self.bearer.expires_at_ms,
        }
    }

    /// Whether the caller may see what this tenant owns.
    pub fn sees(&self, tenant: TenantId) -> bool {
        self.bearer.tenant == tenant || self.role >= Role::Operator
    }

    /// Whether the caller may make and revoke this tenant's tokens.
    pub fn governs(&self, tenant: TenantId) -> bool {
        self.bearer.tenant == tenant || self.role >= Role::Administrator
    }
}

/// Returns the bearer token in these headers.
pub fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let header = headers.get(AUTHORIZATION)?.to_str().ok()?;
    header.strip_prefix("Bearer ").map(str::trim)
}

fn authenticate(parts: &Parts, control: &Control) -> Result<Bearer, Refusal> {
    let token = bearer_token(&parts.headers).ok_or_else(|| {
        refuse(
            Code::Unauthorized,
            "the request has no bearer token; log in with `dayfly login`, or send `Authorization: Bearer` with the token in \
             connection.json",
        )
    })?;
    control.authenticate(token).ok_or_else(|| {
        refuse(
            Code::Unauthorized,
            "this bearer token is unknown or has expired; read connection.json again, or log in again",
        )
    })
}

impl FromRequestParts<Api> for Caller {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, control: &Api) -> Result<Self, Refusal> {
        let bearer = authenticate(parts, control)?;
        match bearer.kind {
            BearerKind::Client(role) => Ok(Self { bearer, role }),
            BearerKind::Join | BearerKind::Node | BearerKind::Endpoint | BearerKind::Session => Err(refuse(
                Code::Unauthorized,
                "this token belongs to a node or an endpoint; use the token in connection.json",
            )),
        }
    }
}

/// A token with which a node may connect.
pub struct NodeBearer(pub Bearer);

impl FromRequestParts<Api> for NodeBearer {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, control: &Api) -> Result<Self, Refusal> {
        let bearer = authenticate(parts, control)?;
        if !matches!(bearer.kind, BearerKind::Join | BearerKind::Node) {
            return Err(refuse(
                Code::Unauthorized,
                "a node joins with a join token, not with the token of a client or an endpoint",
            ));
        }
        Ok(Self(bearer))
    }
}

/// The token of an endpoint.
pub struct EndpointBearer {
    /// The endpoint.
    pub endpoint: EndpointId,
    /// Hash of its token.
    pub hash: TokenHash,
}

impl FromRequestParts<Api> for EndpointBearer {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, control: &Api) -> Result<Self, Refusal> {
        let bearer = authenticate(parts, control)?;
        let endpoint = (bearer.kind == BearerKind::Endpoint).then(|| bearer.name.parse().ok());
        let hash = bearer.hash;
        endpoint
            .flatten()
            .map(|endpoint| Self { endpoint, hash })
            .ok_or_else(|| {
                refuse(
                    Code::Unauthorized,
                    "an endpoint connects with the token of its registration; set it up again",
                )
            })
    }
}

/// What a caller needs for a request.
pub trait Access {
    /// Checks the caller's role.
    fn check(caller: &Caller) -> Result<(), Failure>;
}

/// Any client may read.
pub struct Read;
/// Users may change something.
pub struct Write;
/// Operators may read.
pub struct OperatorRead;
/// Operators may change something.
pub struct OperatorWrite;
/// Administrators may read.
pub struct AdministratorRead;
/// Administrators may change something.
pub struct AdministratorWrite;

impl Access for Read {
    fn check(_: &Caller) -> Result<(), Failure> {
        Ok(())
    }
}

impl Access for Write {
    fn check(caller: &Caller) -> Result<(), Failure> {
        caller.changes_as(Role::User)
    }
}

impl Access for OperatorRead {
    fn check(caller: &Caller) -> Result<(), Failure> {
        caller.is(Role::Operator)
    }
}

impl Access for OperatorWrite {
    fn check(caller: &Caller) -> Result<(), Failure> {
        caller.changes_as(Role::Operator)
    }
}

impl Access for AdministratorRead {
    fn check(caller: &Caller) -> Result<(), Failure> {
        caller.is(Role::Administrator)
    }
}

impl Access for AdministratorWrite {
    fn check(caller: &Caller) -> Result<(), Failure> {
        caller.changes_as(Role::Administrator)
    }
}

/// The parameters of a path.
pub struct PathOf<P>(pub P);

impl<P: DeserializeOwned + Send> FromRequestParts<Api> for PathOf<P> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, control: &Api) -> Result<Self, Refusal> {
        match Path::from_request_parts(parts, control).await {
            Ok(Path(path)) => Ok(Self(path)),
            Err(rejection) => Err(refuse(Code::InvalidRequest, rejection.body_text())),
        }
    }
}

/// The parameters after the question mark.
pub struct QueryOf<Q>(pub Q);

impl<Q: DeserializeOwned> FromRequestParts<Api> for QueryOf<Q> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, control: &Api) -> Result<Self, Refusal> {
        match Query::from_request_parts(parts, control).await {
            Ok(Query(query)) => Ok(Self(query)),
            Err(rejection) => Err(refuse(Code::InvalidRequest, rejection.body_text())),
        }
    }
}

impl From<Infallible> for Refusal {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// An authenticated request of a client: the access `A` that it needs, its path `P`, its query `Q` and its body `B`,
/// each `()` if the handler does not need it.
///
/// The caller is authenticated first. Then the body is read within its limit, so that the connection can be used again
/// after a refusal. Then the access, the path, the query and the body are checked, in this order.
pub struct Call<A, P = (), Q = (), B = ()> {
    /// The client.
    pub caller: Caller,
    /// The manager.
    pub control: Api,
    /// Parameters of the path.
    pub path: P,
    /// Parameters after the question mark.
    pub query: Q,
    /// The body.
    pub body: B,
    /// Format of the response.
    pub format: ResponseFormat,
    /// The headers.
    pub headers: HeaderMap,
    access: PhantomData<A>,
}

impl<A, P, Q, B> FromRequest<Api> for Call<A, P, Q, B>
where
    A: Access,
    P: FromRequestParts<Api, Rejection: Into<Refusal>> + Send,
    Q: FromRequestParts<Api, Rejection: Into<Refusal>> + Send,
    B: RequestBody,
{
    type Rejection = Refusal;

    async fn from_request(request: Request, control: &Api) -> Result<Self, Refusal> {
        let (mut parts, body) = request.into_parts();
        let caller = Caller::from_request_parts(&mut parts, control).await?;
        let path = P::from_request_parts(&mut parts, control).await.map_err(Into::into);
        let query = Q::from_request_parts(&mut parts, control).await.map_err(Into::into);
        let format = ResponseFormat::of(&parts.headers);
        let headers = parts.headers.clone();
        let body = B::read(Request::from_parts(parts, body), control).await;
        A::check(&caller)?;
        Ok(Self {
            caller,
            control: control.clone(),
            path: path?,
            query: query?,
            body: body?,
            format,
            headers,
            access: PhantomData,
        })
    }
}

/// Whether a header names MessagePack.
fn is_message_pack(header: Option<&HeaderValue>) -> bool {
    header.is_some_and(|value| value.as_bytes().starts_with(tasks::MESSAGE_PACK.as_bytes()))
}

/// Format of a response: JSON, or MessagePack if the client accepts that.
#[derive(Debug, Clone, Copy)]
pub struct ResponseFormat {
    is_message_pack: bool,
}

impl ResponseFormat {
    fn of(headers: &HeaderMap) -> Self {
        Self {
            is_message_pack: is_message_pack(headers.get(ACCEPT)),
        }
    }

    /// Whether the response is MessagePack.
    pub fn is_message_pack(&self) -> bool {
        self.is_message_pack
    }

    /// Returns a response with this body.
    pub fn respond<T: serde::Serialize>(&self, body: T) -> Response {
        if !self.is_message_pack {
            return Json(body).into_response();
        }
        match rmp_serde::to_vec_named(&body) {
            Ok(bytes) => ([(CONTENT_TYPE, tasks::MESSAGE_PACK)], bytes).into_response(),
            Err(error) => refuse(Code::Internal, format!("cannot serialise the response: {error}")).into_response(),
        }
    }

    /// Returns a response to a request that made something.
    pub fn created<T: serde::Serialize>(&self, body: T) -> Response {
        (StatusCode::CREATED, self.respond(body)).into_response()
    }
}

impl<S: Send + Sync> FromRequestParts<S> for ResponseFormat {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::of(&parts.headers))
    }
}

/// A WebSocket upgrade.
pub struct Upgrade(pub WebSocketUpgrade);

impl FromRequestParts<Api> for Upgrade {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, control: &Api) -> Result<Self, Refusal> {
        let upgrade = WebSocketUpgrade::from_request_parts(parts, control).await;
        upgrade
            .map(Self)
            .map_err(|rejection| refuse(Code::InvalidRequest, rejection.body_text()))
    }
}

/// Query of `DELETE /v1/nodes/{id}` and `POST /v1/leases/{id}/revoke`.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Grace {
    /// Seconds for which running calls may continue. Default: 0.
    #[serde(default)]
    #[param(minimum = 0, maximum = 86_400)]
    grace: f64,
}

impl Grace {
    /// Returns the grace.
    ///
    /// # Errors
    /// `InvalidRequest` unless it is between 0 and [`MAX_GRACE`].
    pub fn duration(&self) -> Result<Duration, Refusal> {
        match Duration::try_from_secs_f64(self.grace) {
            Ok(grace) if grace <= MAX_GRACE => Ok(grace),
            _ => Err(refuse(
                Code::InvalidRequest,
                format!(
                    "the grace is {} s; give 0 to {} seconds",
                    self.grace,
                    MAX_GRACE.as_secs()
                ),
            )),
        }
    }
}
