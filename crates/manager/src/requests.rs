//! What every request goes through: who asks, with which body, about which lease, and how it is told no.

use std::time::Duration;

use axum::Json;
use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use mayfly_protocol::api::ErrorBody;
use mayfly_protocol::error::{Code, Failure};
use mayfly_protocol::ids::{LeaseId, NodeId};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::control::Control;
use crate::http::Api;
use crate::store::{Bearer, Role};

/// No request of this API comes near it; a lease request with a long module path has some kilobytes.
pub const MOST_BODY_BYTES: usize = 64 << 10;

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

/// A bearer that may use the API.
pub struct Operator(pub Bearer);

/// A bearer that may be a node.
pub struct NodeBearer(pub Bearer);

fn bearer(parts: &Parts, control: &Control) -> Result<Bearer, Refusal> {
    let header = parts.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = header.and_then(|value| value.strip_prefix("Bearer "));
    let token = token.ok_or_else(|| {
        refuse(
            Code::Unauthorized,
            "no bearer token; send `Authorization: Bearer` with the one in connection.json",
        )
    })?;
    control.authenticate(token.trim()).ok_or_else(|| {
        refuse(
            Code::Unauthorized,
            "this bearer token is unknown or has expired; take it anew from connection.json",
        )
    })
}

impl FromRequestParts<Api> for Operator {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, control: &Api) -> Result<Self, Refusal> {
        let bearer = bearer(parts, control)?;
        if bearer.role != Role::Operator {
            return Err(refuse(
                Code::Unauthorized,
                "this token is a node's; use the one in connection.json",
            ));
        }
        Ok(Self(bearer))
    }
}

impl FromRequestParts<Api> for NodeBearer {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, control: &Api) -> Result<Self, Refusal> {
        let bearer = bearer(parts, control)?;
        if bearer.role == Role::Operator {
            return Err(refuse(
                Code::Unauthorized,
                "a node joins with a join token, not with the operator's",
            ));
        }
        Ok(Self(bearer))
    }
}

/// A JSON body, whose faults are told like every other.
pub struct Body<T>(pub T);

impl<T: serde::de::DeserializeOwned> FromRequest<Api> for Body<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, control: &Api) -> Result<Self, Refusal> {
        match Json::<T>::from_request(request, control).await {
            Ok(Json(body)) => Ok(Self(body)),
            Err(rejection) if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE => Err(refuse(
                Code::PayloadTooLarge,
                format!("the body has more than {MOST_BODY_BYTES} bytes"),
            )),
            Err(JsonRejection::MissingJsonContentType(_)) => Err(refuse(
                Code::InvalidRequest,
                "send the body with `Content-Type: application/json`",
            )),
            Err(rejection) => Err(refuse(Code::InvalidRequest, rejection.body_text())),
        }
    }
}

/// The lease that a path names.
pub fn lease_id(path: LeasePath) -> Result<LeaseId, Refusal> {
    match path {
        Ok(Path(lease)) => Ok(lease),
        Err(rejection) => Err(refuse(Code::InvalidRequest, rejection.body_text())),
    }
}

/// The end of a path that names a lease.
pub type LeasePath = Result<Path<LeaseId>, PathRejection>;

/// The node that a path names.
pub fn node_id(path: NodePath) -> Result<NodeId, Refusal> {
    match path {
        Ok(Path(node)) => Ok(node),
        Err(rejection) => Err(refuse(Code::InvalidRequest, rejection.body_text())),
    }
}

/// The end of a path that names a node.
pub type NodePath = Result<Path<NodeId>, PathRejection>;

/// What follows the path of `DELETE /v1/nodes/{id}`.
#[derive(Debug, Default, Deserialize, IntoParams)]
pub struct Grace {
    /// Seconds that running calls may go on for; none by default.
    #[serde(default)]
    grace: f64,
}

/// The grace that a request names.
pub fn grace(query: Result<Query<Grace>, QueryRejection>) -> Result<Duration, Refusal> {
    let wanted = query
        .map_err(|rejection| refuse(Code::InvalidRequest, rejection.body_text()))?
        .0
        .grace;
    Duration::try_from_secs_f64(wanted).map_err(|_| {
        refuse(
            Code::InvalidRequest,
            format!("a grace of {wanted} s; give a number of seconds, 0 or more"),
        )
    })
}
