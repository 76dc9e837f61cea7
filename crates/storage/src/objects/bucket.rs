//! Buckets of S3-compatible services, and the classification of their errors.

use std::fmt::Display;
use std::time::Duration;

use dayfly_protocol::error::{Code, Failure};
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::client::HttpError;
use object_store::{BackoffConfig, ClientConfigKey, ClientOptions, RetryConfig};

use crate::store_url::StoreUrl;
use crate::{CONNECT, TIMEOUT};

/// Time limit of one request, including the transfer of its object.
const REQUEST: Duration = Duration::from_secs(60);
/// Most repetitions of a request within [`TIMEOUT`].
const RETRIES: usize = 8;

/// Returns the client of a bucket, with settings from the environment variables `AWS_*`.
pub(super) fn bucket(place: &StoreUrl) -> Result<AmazonS3, Failure> {
    let name = place.parsed().host_str().unwrap_or_default();
    open_bucket(name, AmazonS3Builder::from_env(), place)
}

/// Returns the client of a bucket, with the settings of a builder, and with limits of time and repetitions. `place` names
/// it in errors.
///
/// # Errors
/// [`Code::InvalidRequest`] if a setting is wrong, or the endpoint is not encrypted and no setting allows that.
pub fn open_bucket(name: &str, builder: AmazonS3Builder, place: &dyn Display) -> Result<AmazonS3, Failure> {
    let wrong = |text: String| {
        Failure::new(
            Code::InvalidRequest,
            format!("the store {place} cannot be opened: {text}"),
        )
    };
    let endpoint = builder
        .get_config_value(&AmazonS3ConfigKey::Endpoint)
        .unwrap_or_default();
    let allowed = builder.get_config_value(&AmazonS3ConfigKey::Client(ClientConfigKey::AllowHttp));
    let http = allowed.is_some_and(|text| matches!(text.as_str(), "true" | "1" | "yes" | "on"));
    if endpoint.starts_with("http://") && !http {
        return Err(wrong(format!(
            "{endpoint} is not encrypted; set AWS_ALLOW_HTTP=true if that is meant, or name an https:// endpoint"
        )));
    }
    let options = ClientOptions::new()
        .with_allow_http(http)
        .with_connect_timeout(CONNECT)
        .with_timeout(REQUEST);
    let retry = RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(50),
            max_backoff: Duration::from_secs(2),
            base: 2.0,
        },
        max_retries: RETRIES,
        retry_timeout: TIMEOUT,
    };
    let builder = builder
        .with_bucket_name(name)
        .with_client_options(options)
        .with_retry(retry);
    builder.build().map_err(|error| wrong(full_text(&error)))
}

/// The error code of S3 for a missing bucket.
pub(super) const MISSING_BUCKET: &str = "NoSuchBucket";

/// Returns an error and its chain of causes.
pub(super) fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}

/// Returns an error and its chain of causes in one line.
pub(super) fn full_text(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    for cause in causes(error).skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether the request got no response.
pub(super) fn is_network_error(error: &(dyn std::error::Error + 'static)) -> bool {
    causes(error).any(|cause| cause.is::<HttpError>())
}
