//! What every request goes through: who asks, with which body, about which lease, and how it is told no.

use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use dayfly_protocol::api::ErrorBody;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{EndpointId, NodeId, TenantId};
use dayfly_protocol::tasks;
use dayfly_protocol::tenancy::Role;
use dayfly_store::{Bearer, BearerKind};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::control::Control;
use crate::http::Api;
use crate::principal::Principal;
use crate::token_registry::is_stored;

/// No request of this API comes near it; a lease request with a long module path has some kilobytes.
pub const MAX_BODY_BYTES: usize = 64 << 10;

/// A failure as a response.
#[derive(Debug)]
pub struct Refusal(Failure);

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self(failure)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let unauthorized = self.0.code == Code::Unauthorized;
        let mut response = (status, Json(ErrorBody { error: self.0 })).into_response();
        if unauthorized {
            response
                .headers_mut()
                .insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// A refusal with a sentence.
pub fn refuse(code: Code, message: impl Into<String>) -> Refusal {
    Refusal(Failure::new(code, message))
}

/// Whoever uses the API as a client.
pub struct Caller {
    /// What was presented.
    pub bearer: Bearer,
    /// What that allows.
    pub role: Role,
}

impl Caller {
    /// An error unless the caller has this role or a greater one.
    pub fn is(&self, role: Role) -> Result<(), Failure> {
        if self.role >= role {
            return Ok(());
        }
        Err(Failure::new(
            Code::Forbidden,
            format!(
                "this takes the role {role}, and your token has {}; ask an administrator",
                self.role
            ),
        ))
    }

    /// The same, for whoever wants to change something.
    pub fn changes_as(&self, role: Role) -> Result<(), Failure> {
        self.is(role)?;
        if self.bearer.read_only {
            return Err(Failure::new(
                Code::Forbidden,
                "your token is for looking only; use one that is not",
            ));
        }
        Ok(())
    }

    /// For whom, and with which token, it asks for leases.
    pub fn principal(&self) -> Principal {
        Principal {
            tenant: self.bearer.tenant,
            bearer: is_stored(&self.bearer).then_some(self.bearer.hash),
            until_ms: self.bearer.expires_at_ms,
        }
    }

    /// Whether it may look at what this tenant has.
    pub fn sees(&self, tenant: TenantId) -> bool {
        self.bearer.tenant == tenant || self.role >= Role::Operator
    }

    /// Whether it may make and revoke this tenant's tokens.
    pub fn governs(&self, tenant: TenantId) -> bool {
        self.bearer.tenant == tenant || self.role >= Role::Administrator
    }
}

/// A bearer that may be a node.
pub struct NodeBearer(pub Bearer);

/// The bearer token that these headers show.
pub fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let header = headers.get(AUTHORIZATION)?.to_str().ok()?;
    header.strip_prefix("Bearer ").map(str::trim)
}

fn bearer(parts: &Parts, control: &Control) -> Result<Bearer, Refusal> {
    let token = bearer_token(&parts.headers).ok_or_else(|| {
        refuse(
            Code::Unauthorized,
            "no bearer token; log in with `dayfly login`, or send `Authorization: Bearer` with the one in connection.json",
        )
    })?;
    control.authenticate(token).ok_or_else(|| {
        refuse(
            Code::Unauthorized,
            "this bearer token is unknown or has expired; take it anew from connection.json, or log in anew",
        )
    })
}

impl FromRequestParts<Api> for Caller {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, control: &Api) -> Result<Self, Refusal> {
        let bearer = bearer(parts, control)?;
        match bearer.kind {
            BearerKind::Client(role) => Ok(Self { bearer, role }),
            BearerKind::Join | BearerKind::Node | BearerKind::Endpoint => Err(refuse(
                Code::Unauthorized,
                "this token is a node's or an endpoint's; use the one in connection.json",
            )),
        }
    }
}

impl FromRequestParts<Api> for NodeBearer {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, control: &Api) -> Result<Self, Refusal> {
        let bearer = bearer(parts, control)?;
        if !matches!(bearer.kind, BearerKind::Join | BearerKind::Node) {
            return Err(refuse(
                Code::Unauthorized,
                "a node joins with a join token, not with a client's or an endpoint's",
            ));
        }
        Ok(Self(bearer))
    }
}

/// A bearer that is an endpoint's, and which.
pub struct EndpointBearer {
    /// The endpoint that it speaks for.
    pub endpoint: EndpointId,
    /// SHA-256 of its token.
    pub hash: [u8; 32],
}

impl FromRequestParts<Api> for EndpointBearer {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, control: &Api) -> Result<Self, Refusal> {
        let bearer = bearer(parts, control)?;
        let named = (bearer.kind == BearerKind::Endpoint).then(|| bearer.name.parse().ok());
        let hash = bearer.hash;
        named.flatten().map(|endpoint| Self { endpoint, hash }).ok_or_else(|| {
            refuse(
                Code::Unauthorized,
                "an endpoint connects with the token that it was registered with; set it up anew",
            )
        })
    }
}

/// Reads a JSON body, whose faults are told like every other.
async fn read_json<T: serde::de::DeserializeOwned>(
    request: Request,
    control: &Api,
    too_long: impl FnOnce() -> Refusal,
    ask_for_type: &str,
) -> Result<T, Refusal> {
    let typed = request
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let is_json = typed.is_some_and(|typed| {
        let essence = typed.split(';').next().unwrap_or_default().trim();
        essence.eq_ignore_ascii_case("application/json") || essence.to_ascii_lowercase().ends_with("+json")
    });
    if !is_json {
        return Err(refuse(Code::InvalidRequest, ask_for_type));
    }
    let bytes = Bytes::from_request(request, control).await.map_err(|_| too_long())?;
    // Ours are objects; a list of an object's values would be read, too.
    if bytes.trim_ascii_start().starts_with(b"[") {
        return Err(refuse(Code::InvalidRequest, "the body is a list; send an object"));
    }
    let rejection = match Json::<T>::from_bytes(&bytes) {
        Ok(Json(body)) => return Ok(body),
        Err(rejection) => rejection,
    };
    // JSON has one kind of number: 3.0 is 3. Looked at where reading failed alone, since bodies may be long.
    if let Ok(mut value) = serde_json::from_slice(&bytes)
        && make_whole(&mut value)
    {
        let read = serde_json::from_value(value);
        return read.map_err(|error| {
            refuse(
                Code::InvalidRequest,
                format!("the body is not what it should be: {error}"),
            )
        });
    }
    Err(refuse(Code::InvalidRequest, rejection.body_text()))
}

/// Writes numbers without a fraction as integers. Whether there was one that was not.
fn make_whole(value: &mut serde_json::Value) -> bool {
    use serde_json::Value;
    match value {
        Value::Number(number) if number.is_f64() => {
            let whole = number.as_f64().filter(|real| real.fract() == 0.0);
            let integer = match whole {
                // Those that there are exactly.
                Some(whole) if (0.0..u64::MAX as f64).contains(&whole) => Value::from(whole as u64),
                Some(whole) if (i64::MIN as f64..0.0).contains(&whole) => Value::from(whole as i64),
                _ => return false,
            };
            *value = integer;
            true
        }
        // All of them: not only until the first.
        Value::Array(values) => values.iter_mut().fold(false, |any, value| make_whole(value) | any),
        Value::Object(fields) => fields.values_mut().fold(false, |any, value| make_whole(value) | any),
        _ => false,
    }
}

/// A JSON body.
pub struct Body<T>(pub T);

impl<T: serde::de::DeserializeOwned> FromRequest<Api> for Body<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, control: &Api) -> Result<Self, Refusal> {
        let too_long = || refuse(Code::PayloadTooLarge, "the body is longer than this request may have");
        let ask_for_type = "send the body with `Content-Type: application/json`";
        read_json(request, control, too_long, ask_for_type).await.map(Self)
    }
}

/// The body of a request about tasks, as JSON or as MessagePack.
pub struct Document<T>(pub T);

impl<T: serde::de::DeserializeOwned> FromRequest<Api> for Document<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, control: &Api) -> Result<Self, Refusal> {
        let packed = names(request.headers().get(CONTENT_TYPE));
        let too_long = || {
            let text = "the body is longer than this request may have; submit in several parts";
            refuse(Code::PayloadTooLarge, text)
        };
        if packed {
            let bytes = Bytes::from_request(request, control).await;
            let bytes = bytes.map_err(|_| too_long())?;
            let read = rmp_serde::from_slice(&bytes);
            return read.map(Self).map_err(|error| {
                refuse(
                    Code::InvalidRequest,
                    format!("the body is not what it should be: {error}"),
                )
            });
        }
        let ask_for_type = "send the body with `Content-Type: application/json`, or `application/msgpack`";
        read_json(request, control, too_long, ask_for_type).await.map(Self)
    }
}

fn names(header: Option<&HeaderValue>) -> bool {
    header.is_some_and(|value| value.as_bytes().starts_with(tasks::MESSAGE_PACK.as_bytes()))
}

/// Whether the answer is wanted as MessagePack.
pub struct Packed(bool);

impl<S: Send + Sync> FromRequestParts<S> for Packed {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(Self(names(parts.headers.get(ACCEPT))))
    }
}

impl Packed {
    /// Whether it is.
    pub fn is(&self) -> bool {
        self.0
    }

    /// The answer, as it is wanted.
    pub fn answer<T: serde::Serialize>(&self, answer: T) -> Response {
        if !self.0 {
            return Json(answer).into_response();
        }
        match rmp_serde::to_vec_named(&answer) {
            Ok(bytes) => ([(CONTENT_TYPE, tasks::MESSAGE_PACK)], bytes).into_response(),
            Err(error) => refuse(Code::Internal, format!("an answer cannot be written: {error}")).into_response(),
        }
    }
}

/// What the variable part of a path names.
pub fn named<T>(path: Result<Path<T>, PathRejection>) -> Result<T, Refusal> {
    match path {
        Ok(Path(named)) => Ok(named),
        Err(rejection) => Err(refuse(Code::InvalidRequest, rejection.body_text())),
    }
}

/// The end of a path that names a node.
pub type NodePath = Result<Path<NodeId>, PathRejection>;

/// The end of a path that is a name.
pub type NamePath = Result<Path<String>, PathRejection>;

/// The longest grace: whoever wants more may as well wait for the leases' own end.
const MAX_GRACE: Duration = Duration::from_secs(24 * 3600);

/// What follows the path of `DELETE /v1/nodes/{id}` and `POST /v1/leases/{id}/revoke`.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Grace {
    /// Seconds that running calls may go on for; none by default.
    #[serde(default)]
    #[param(minimum = 0, maximum = 86_400)]
    grace: f64,
}

/// What follows the question mark.
pub fn asked<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, Refusal> {
    match query {
        Ok(Query(query)) => Ok(query),
        Err(rejection) => Err(refuse(Code::InvalidRequest, rejection.body_text())),
    }
}

/// The grace that a request names.
pub fn grace(query: Result<Query<Grace>, QueryRejection>) -> Result<Duration, Refusal> {
    let wanted = asked(query)?.grace;
    match Duration::try_from_secs_f64(wanted) {
        Ok(grace) if grace <= MAX_GRACE => Ok(grace),
        _ => Err(refuse(
            Code::InvalidRequest,
            format!("a grace of {wanted} s; give 0 to {} seconds", MAX_GRACE.as_secs()),
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_number_without_a_fraction_is_an_integer_wherever_it_stands() {
        let mut value = json!({ "a": 3.0, "b": [1.0, 2.5, { "c": -4e2 }], "d": "5.0", "e": 1e300 });
        assert!(make_whole(&mut value));
        assert_eq!(
            value,
            json!({ "a": 3, "b": [1, 2.5, { "c": -400 }], "d": "5.0", "e": 1e300 })
        );
        assert!(!make_whole(&mut json!({ "a": 3, "b": 2.5 })));
    }
}
