//! Sessions of browsers: a cookie that scripts cannot read and that stands for a token, and the ways to get it.
//!
//! The cookie is `HttpOnly`, `Secure` and `SameSite=Strict`. [`authorize`] turns it into the header of any other client,
//! so that little other code knows of it. It refuses requests that another page sent: the browser must call a request one of
//! the same origin, and a change needs a header that only a script of that origin can set.

use std::time::Duration;

use axum::extract::{Request, State as Shared};
use axum::http::header::{
    AUTHORIZATION, CONTENT_SECURITY_POLICY, COOKIE, HOST, ORIGIN, SET_COOKIE, UPGRADE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{AppendHeaders, IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use dayfly_protocol::api::ErrorBody;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::tenancy::{SessionRequest, SessionTicket, TokenStatus};
use dayfly_protocol::text::encoded;
use dayfly_store::system::now_ms;
use serde::Deserialize;
use utoipa::IntoParams;

use super::Api;
use crate::extractors::{Call, JsonBody, QueryOf, Read, Refusal, refuse};
use crate::oidc::{BrowserLogin, LOGIN_LIMIT};
use crate::tickets::TICKET_LIFE;

/// Name of the session's cookie. Browsers keep one with this prefix only if it is secure and of this host alone.
const SESSION: &str = "__Host-dayfly";
/// Name of the cookie of a login that has begun.
const LOGIN: &str = "__Host-dayfly-login";
/// Header that a script must set to change something.
const CHANGE_HEADER: &str = "dayfly-console";
/// Header in which a browser names the page that sent a request.
const FETCH_SITE: &str = "sec-fetch-site";
/// Policy of a response that is no page: a browser that opens it runs nothing.
const INERT: &str = "default-src 'none'; frame-ancestors 'none'; sandbox";

/// Routes of sessions.
pub fn routes() -> Router<Api> {
    Router::new()
        .route("/v1/session", get(show_session).post(open_session).delete(end_session))
        .route("/v1/session/tickets", post(create_ticket))
        .route("/v1/session/login", get(begin_login))
        .route("/v1/session/callback", get(end_login))
}

/// Gives a request with the session's cookie, and without a token of its own, the header of any other client. A cookie
/// without a session stands for nothing.
pub async fn authorize(Shared(control): Shared<Api>, mut request: Request, next: Next) -> Response {
    if request.headers().contains_key(AUTHORIZATION) {
        return next.run(request).await;
    }
    let Some(secret) = session_cookie(request.headers()) else {
        return next.run(request).await;
    };
    if let Err(refusal) = check_sender(request.method(), request.headers()) {
        return refusal.into_response();
    }
    if let Some(token) = control.token_of_session(secret)
        && let Ok(value) = HeaderValue::from_str(&format!("Bearer {token}"))
    {
        request.headers_mut().insert(AUTHORIZATION, value);
    }
    let mut response = next.run(request).await;
    // A tenant's bytes must not become a page of this origin.
    let headers = response.headers_mut();
    headers
        .entry(CONTENT_SECURITY_POLICY)
        .or_insert(HeaderValue::from_static(INERT));
    headers
        .entry(X_CONTENT_TYPE_OPTIONS)
        .or_insert(HeaderValue::from_static("nosniff"));
    response
}

/// Checks that a page of this origin sent a request with a cookie.
fn check_sender(method: &Method, headers: &HeaderMap) -> Result<(), Refusal> {
    let refused = |why: &str| {
        Err(refuse(
            Code::Forbidden,
            format!("a request with a session's cookie {why}"),
        ))
    };
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    // `none`: the person typed the address, or followed a bookmark.
    if text(FETCH_SITE).is_some_and(|site| !matches!(site, "same-origin" | "none")) && !is_navigation(method, headers) {
        return refused("must come from a page of this manager");
    }
    let is_own = match (text(ORIGIN.as_str()), text(HOST.as_str())) {
        (Some(origin), Some(host)) => Some(
            origin
                .split_once("://")
                .is_some_and(|(_, rest)| rest.eq_ignore_ascii_case(host)),
        ),
        (None, _) => None,
        (Some(_), None) => Some(false),
    };
    if is_own == Some(false) {
        return refused("must come from a page of this manager");
    }
    let is_socket = headers.contains_key(UPGRADE);
    if is_socket && is_own.is_none() {
        return refused("must name its origin to open a WebSocket");
    }
    let changes = !matches!(*method, Method::GET | Method::HEAD);
    if changes && !headers.contains_key(CHANGE_HEADER) {
        return refused("needs the header `Dayfly-Console` to change something");
    }
    Ok(())
}

/// Whether a person follows a link from elsewhere. It shows a page and changes nothing.
fn is_navigation(method: &Method, headers: &HeaderMap) -> bool {
    let mode = headers.get("sec-fetch-mode").and_then(|mode| mode.to_str().ok());
    *method == Method::GET && mode == Some("navigate")
}

/// Returns the secret in the session's cookie.
pub fn session_cookie(headers: &HeaderMap) -> Option<&str> {
    cookie(headers, SESSION)
}

/// Returns the value of a cookie.
fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let all = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = all
        .flat_map(|text| text.split(';'))
        .filter_map(|pair| pair.trim().split_once('='));
    pairs
        .find(|(known, value)| *known == name && !value.is_empty())
        .map(|(_, value)| value)
}

fn set_cookie(name: &str, value: &str, life: Duration, same_site: &str) -> (axum::http::HeaderName, String) {
    let seconds = life.as_secs();
    let text = format!("{name}={value}; Path=/; Secure; HttpOnly; SameSite={same_site}; Max-Age={seconds}");
    (SET_COOKIE, text)
}

/// Opens a session with this token. Returns its cookie.
async fn begin_session(
    control: &Api,
    token: &str,
    status: &TokenStatus,
) -> Result<(axum::http::HeaderName, String), Failure> {
    let (secret, life) = control.begin_session(token, status).await?;
    Ok(set_cookie(SESSION, &secret, life, "Strict"))
}

/// Opens a session of a browser with a token or a ticket: a cookie that stands for the token. Needs no token.
#[utoipa::path(post, path = "/v1/session", request_body = SessionRequest,
    responses((status = 200, body = TokenStatus), (status = "default", body = ErrorBody)))]
pub(crate) async fn open_session(
    Shared(control): Shared<Api>,
    headers: HeaderMap,
    JsonBody(request): JsonBody<SessionRequest>,
) -> Result<Response, Refusal> {
    check_sender(&Method::GET, &headers)?;
    let token = match (request.token, request.ticket) {
        (Some(token), None) => token,
        (None, Some(ticket)) => control.tickets().redeem(&ticket).ok_or_else(|| {
            let text = "this address was used already or has expired; run `dayfly page` again";
            refuse(Code::Unauthorized, text)
        })?,
        _ => {
            return Err(refuse(
                Code::InvalidRequest,
                "a session needs either a token or a ticket; send one of them",
            ));
        }
    };
    let status = control.client_token(&token).ok_or_else(|| {
        let text = "this token is unknown, has expired, or belongs to a node or an endpoint; use another one";
        refuse(Code::Unauthorized, text)
    })?;
    let cookies = AppendHeaders([begin_session(&control, &token, &status).await?]);
    Ok((cookies, Json(status)).into_response())
}

/// Returns the properties of the caller's own token.
#[utoipa::path(get, path = "/v1/session", security(("bearer" = [])),
    responses((status = 200, body = TokenStatus), (status = "default", body = ErrorBody)))]
pub(crate) async fn show_session(call: Call<Read>) -> Result<Json<TokenStatus>, Refusal> {
    Ok(Json(call.control.status_of_token(&call.caller.bearer)?))
}

/// Ends a session: its cookie is void from now on. Also revokes a token that was made for this session; its leases continue.
#[utoipa::path(delete, path = "/v1/session", security(("bearer" = [])),
    responses((status = 204), (status = "default", body = ErrorBody)))]
pub(crate) async fn end_session(call: Call<Read>) -> Result<Response, Refusal> {
    if let Some(secret) = session_cookie(&call.headers) {
        call.control.forget_session(secret).await?;
    }
    call.control.end_session(&call.caller).await?;
    let cookies = AppendHeaders([set_cookie(SESSION, "", Duration::ZERO, "Strict")]);
    Ok((StatusCode::NO_CONTENT, cookies).into_response())
}

/// Makes a ticket: a secret that opens one session with the caller's token, within ten minutes.
#[utoipa::path(post, path = "/v1/session/tickets", security(("bearer" = [])),
    responses((status = 201, body = SessionTicket), (status = "default", body = ErrorBody)))]
pub(crate) async fn create_ticket(call: Call<Read>) -> Result<(StatusCode, Json<SessionTicket>), Refusal> {
    let token = crate::extractors::bearer_token(&call.headers)
        .ok_or_else(|| refuse(Code::Internal, "the request lost its token; report this"))?;
    let ticket = SessionTicket {
        ticket: call.control.tickets().issue(token),
        manager: call.control.url().to_owned(),
        expires_at_ms: now_ms().saturating_add(TICKET_LIFE.as_millis() as u64),
    };
    Ok((StatusCode::CREATED, Json(ticket)))
}

/// Returns the address at which the identity provider sends a browser back.
fn callback_of(headers: &HeaderMap) -> Result<String, Refusal> {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let host = host.ok_or_else(|| refuse(Code::InvalidRequest, "the request names no host"))?;
    Ok(format!("https://{host}/v1/session/callback"))
}

/// Sends a browser to the site's identity provider. Needs no token.
#[utoipa::path(get, path = "/v1/session/login",
    responses((status = 303, description = "The provider's address"), (status = "default", body = ErrorBody)))]
pub(crate) async fn begin_login(Shared(control): Shared<Api>, headers: HeaderMap) -> Result<Response, Refusal> {
    let back = callback_of(&headers)?;
    let login = BrowserLogin::begin();
    let address = control.provider()?.address_for(&login, &back).await?;
    // Not strict: the provider's page sends the browser back.
    let cookies = AppendHeaders([set_cookie(LOGIN, &login.sealed(), LOGIN_LIMIT, "Lax")]);
    Ok((cookies, Redirect::to(&address)).into_response())
}

/// What the identity provider sends back with a browser.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
pub(crate) struct Returned {
    /// A code that stands for the person.
    code: String,
    /// The state that the login began with.
    state: String,
    /// Why the provider refused.
    error: Option<String>,
    /// The same in words.
    error_description: Option<String>,
}

/// Ends a login at the identity provider: opens a session for the person, and sends the browser to the console. Needs no
/// token.
#[utoipa::path(get, path = "/v1/session/callback", params(Returned),
    responses((status = 303, description = "The console's address"), (status = "default", body = ErrorBody)))]
pub(crate) async fn end_login(
    Shared(control): Shared<Api>,
    headers: HeaderMap,
    QueryOf(returned): QueryOf<Returned>,
) -> Response {
    let over = set_cookie(LOGIN, "", Duration::ZERO, "Lax");
    match log_in(&control, &headers, returned).await {
        Ok(cookie) => (AppendHeaders([over, cookie]), Redirect::to("/console/")).into_response(),
        Err(failure) => {
            let address = format!("/console/#/login?error={}", encoded(&failure.message));
            (AppendHeaders([over]), Redirect::to(&address)).into_response()
        }
    }
}

async fn log_in(
    control: &Api,
    headers: &HeaderMap,
    returned: Returned,
) -> Result<(axum::http::HeaderName, String), Failure> {
    let begun = cookie(headers, LOGIN).and_then(BrowserLogin::unsealed);
    let begun = begun.filter(|begun| begun.state == returned.state).ok_or_else(|| {
        let text = "this browser began no such login, or too long ago; log in again";
        Failure::new(Code::Unauthorized, text)
    })?;
    if let Some(error) = returned.error {
        let why = returned.error_description.unwrap_or(error);
        let text = format!("the provider does not let you in: {why:.300}; log in again");
        return Err(Failure::new(Code::Unauthorized, text));
    }
    let back = callback_of(headers).map_err(Failure::from)?;
    let id_token = control.provider()?.exchange(&begun, &returned.code, &back).await?;
    let new = control.log_in(&id_token, Some(&begun.nonce)).await?;
    begin_session(control, &new.token, &new.status).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| {
            (
                axum::http::HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        });
        pairs.collect()
    }

    #[test]
    fn cookie_is_found_among_others() {
        let sent = headers(&[("cookie", "a=1; __Host-dayfly=secret; __Host-dayfly-login=x")]);
        assert_eq!(cookie(&sent, SESSION), Some("secret"));
        assert_eq!(cookie(&sent, LOGIN), Some("x"));
        assert_eq!(cookie(&headers(&[("cookie", "__Host-dayfly=")]), SESSION), None);
    }

    #[test]
    fn request_of_another_origin_is_refused() {
        let check = |method, pairs: &[_]| check_sender(&method, &headers(pairs)).is_ok();
        let own = ("origin", "https://here:7070");
        let other = ("origin", "https://here:9999");
        let host = ("host", "here:7070");
        let change = ("dayfly-console", "1");
        assert!(check(Method::GET, &[host]));
        assert!(check(Method::POST, &[host, own, change]));
        assert!(check(Method::POST, &[host, change]));
        assert!(!check(Method::POST, &[host, own]));
        assert!(!check(Method::POST, &[host, other, change]));
        assert!(!check(Method::POST, &[host, ("origin", "null"), change]));
        assert!(!check(Method::GET, &[host, ("sec-fetch-site", "same-site")]));
        assert!(!check(
            Method::POST,
            &[
                host,
                change,
                ("sec-fetch-site", "cross-site"),
                ("sec-fetch-mode", "navigate")
            ]
        ));
        // A WebSocket is a GET that no preflight precedes.
        assert!(!check(Method::GET, &[host, ("upgrade", "websocket")]));
        assert!(!check(Method::GET, &[host, other, ("upgrade", "websocket")]));
        assert!(check(Method::GET, &[host, own, ("upgrade", "websocket")]));
        // A link on another page opens the console.
        let link = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
        assert!(check(Method::GET, &[host, link[0], link[1]]));
    }
}
