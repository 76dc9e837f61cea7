//! The web console: its files, embedded when it was built. Without them, the small page stands in its place.

use axum::Router;
use axum::extract::Path;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use dayfly_protocol::error::Code;

use super::{Api, observability};
use crate::extractors::refuse;

include!(concat!(env!("OUT_DIR"), "/console.rs"));

/// The console runs only its own scripts, connects only to this manager, cannot be embedded, and cannot turn text into
/// markup.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";
/// Names of these files contain a hash of their contents.
const HASHED: &str = "assets/";

/// Routes of the console and of the small page.
pub fn routes() -> Router<Api> {
    Router::new()
        .route("/", get(start))
        .route("/console", get(|| async { Redirect::permanent("/console/") }))
        .route("/console/", get(|| async { file("index.html") }))
        .route(
            "/console/{*file}",
            get(|Path(name): Path<String>| async move { file(&name) }),
        )
        .route("/page/", get(observability::page))
        .route("/page/{file}", get(observability::part))
}

/// Returns the console's address if the console was built, else the small page.
async fn start() -> Response {
    if FILES.is_empty() {
        return observability::page().await;
    }
    Redirect::to("/console/").into_response()
}

fn file(name: &str) -> Response {
    if FILES.is_empty() {
        let text = "this manager was built without the web console, which needs Node.js and npm; install them and run \
                    `make build`, or open /page/";
        return refuse(Code::NotFound, text).into_response();
    }
    let Some((name, bytes)) = FILES.iter().find(|(known, _)| *known == name) else {
        return refuse(Code::NotFound, "the console has no such file").into_response();
    };
    let caching = if name.starts_with(HASHED) {
        "public, max-age=31536000, immutable"
    } else {
        "no-cache"
    };
    let headers: [(HeaderName, &str); 5] = [
        (CONTENT_TYPE, content_type(name)),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, caching),
    ];
    (StatusCode::OK, headers, *bytes).into_response()
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("md") => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}
