//! Bodies of requests: JSON, or for tasks MessagePack as well.

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::header::CONTENT_TYPE;
use dayfly_protocol::error::Code;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Refusal, is_message_pack, refuse};
use crate::http::Api;

/// A body that [`super::Call`] reads.
pub trait RequestBody: Sized {
    /// Reads and parses the body, within the limit of the route.
    fn read(request: Request, control: &Api) -> impl Future<Output = Result<Self, Refusal>> + Send;
}

/// No body is read.
impl RequestBody for () {
    async fn read(_: Request, _: &Api) -> Result<Self, Refusal> {
        Ok(())
    }
}

/// The body as a stream.
impl RequestBody for Body {
    async fn read(request: Request, _: &Api) -> Result<Self, Refusal> {
        Ok(request.into_body())
    }
}

/// A JSON object.
pub struct JsonBody<T>(pub T);

impl<T: DeserializeOwned> RequestBody for JsonBody<T> {
    async fn read(request: Request, control: &Api) -> Result<Self, Refusal> {
        let too_long = || refuse(Code::PayloadTooLarge, "the body exceeds the maximum of this request");
        let wrong_type = "send the body with `Content-Type: application/json`";
        read_json(request, control, too_long, wrong_type).await.map(Self)
    }
}

impl<T: DeserializeOwned> FromRequest<Api> for JsonBody<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, control: &Api) -> Result<Self, Refusal> {
        Self::read(request, control).await
    }
}

/// An object in JSON or MessagePack.
pub struct Document<T>(pub T);

impl<T: DeserializeOwned> RequestBody for Document<T> {
    async fn read(request: Request, control: &Api) -> Result<Self, Refusal> {
        let too_long = || {
            let text = "the body exceeds the maximum of this request; submit in several parts";
            refuse(Code::PayloadTooLarge, text)
        };
        if is_message_pack(request.headers().get(CONTENT_TYPE)) {
            let bytes = Bytes::from_request(request, control).await;
            let bytes = bytes.map_err(|_| too_long())?;
            return rmp_serde::from_slice(&bytes)
                .map(Self)
                .map_err(|error| not_expected(&error));
        }
        let wrong_type = "send the body with `Content-Type: application/json`, or `application/msgpack`";
        read_json(request, control, too_long, wrong_type).await.map(Self)
    }
}

impl<T: DeserializeOwned> FromRequest<Api> for Document<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, control: &Api) -> Result<Self, Refusal> {
        Self::read(request, control).await
    }
}

fn not_expected(error: &dyn std::fmt::Display) -> Refusal {
    let text = format!("the body does not have the expected form: {error}");
    refuse(Code::InvalidRequest, text)
}

/// Reads a JSON object.
async fn read_json<T: DeserializeOwned>(
    request: Request,
    control: &Api,
    too_long: impl FnOnce() -> Refusal + Send,
    wrong_type: &str,
) -> Result<T, Refusal> {
    let content_type = request
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let is_json = content_type.is_some_and(|content_type| {
        let essence = content_type.split(';').next().unwrap_or_default().trim();
        essence.eq_ignore_ascii_case("application/json") || essence.to_ascii_lowercase().ends_with("+json")
    });
    if !is_json {
        return Err(refuse(Code::InvalidRequest, wrong_type));
    }
    let bytes = Bytes::from_request(request, control).await.map_err(|_| too_long())?;
    // Serde would accept a list of the object's values.
    if bytes.trim_ascii_start().starts_with(b"[") {
        return Err(refuse(Code::InvalidRequest, "the body is a list; send an object"));
    }
    let rejection = match Json::<T>::from_bytes(&bytes) {
        Ok(Json(body)) => return Ok(body),
        Err(rejection) => rejection,
    };
    // JSON has one kind of number: 3.0 is 3. Convert only after a failure, since bodies may be long.
    if let Ok(mut value) = serde_json::from_slice(&bytes)
        && make_integers(&mut value)
    {
        return serde_json::from_value(value).map_err(|error| not_expected(&error));
    }
    Err(refuse(Code::InvalidRequest, rejection.body_text()))
}

/// Replaces real numbers without a fraction by integers. Returns whether there were any.
fn make_integers(value: &mut Value) -> bool {
    match value {
        Value::Number(number) if number.is_f64() => {
            let whole = number.as_f64().filter(|real| real.fract() == 0.0);
            let integer = match whole {
                // Numbers that an integer represents exactly.
                Some(whole) if (0.0..u64::MAX as f64).contains(&whole) => Value::from(whole as u64),
                Some(whole) if (i64::MIN as f64..0.0).contains(&whole) => Value::from(whole as i64),
                _ => return false,
            };
            *value = integer;
            true
        }
        // `fold` and not `any`, which would stop at the first.
        Value::Array(values) => values.iter_mut().fold(false, |any, value| make_integers(value) | any),
        Value::Object(fields) => fields.values_mut().fold(false, |any, value| make_integers(value) | any),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn whole_numbers_become_integers_at_any_depth() {
        let mut value = json!({ "a": 3.0, "b": [1.0, 2.5, { "c": -4e2 }], "d": "5.0", "e": 1e300 });
        assert!(make_integers(&mut value));
        assert_eq!(
            value,
            json!({ "a": 3, "b": [1, 2.5, { "c": -400 }], "d": "5.0", "e": 1e300 })
        );
        assert!(!make_integers(&mut json!({ "a": 3, "b": 2.5 })));
    }
}
