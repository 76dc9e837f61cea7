//! Exports spans to an OpenTelemetry collector, by OTLP over HTTP.

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use dayfly_protocol::error::{Code, Failure};
use opentelemetry::trace::TracerProvider;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::Subscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::registry::LookupSpan;

use crate::TARGET;

/// How long a daemon that stops waits for the collector to receive the remaining spans.
const FLUSH_LIMIT: Duration = Duration::from_secs(2);
/// Time limit of one export. The exporter's own limit, `OTEL_EXPORTER_OTLP_TIMEOUT`, may be shorter.
const POST_LIMIT: Duration = Duration::from_secs(10);

/// Exports spans until it is dropped. Remaining spans are then sent within two seconds.
#[derive(Debug)]
pub struct Exporter(SdkTracerProvider);

impl Drop for Exporter {
    fn drop(&mut self) {
        // An unreachable collector has been logged before.
        let _ = self.0.shutdown_with_timeout(FLUSH_LIMIT);
    }
}

/// Whether the environment configures a collector.
fn is_wanted() -> bool {
    let set = |name: &str| std::env::var(name).is_ok_and(|value| !value.is_empty());
    let says = |name: &str, word: &str| std::env::var(name).is_ok_and(|value| value.eq_ignore_ascii_case(word));
    (set("OTEL_EXPORTER_OTLP_ENDPOINT") || set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"))
        && !says("OTEL_SDK_DISABLED", "true")
        && !says("OTEL_TRACES_EXPORTER", "none")
}

/// Returns the exporter of the spans of `service` and the layer that feeds it, or `None` if
/// `OTEL_EXPORTER_OTLP_ENDPOINT` is not set. The other OpenTelemetry variables apply as well: for headers, sampling,
/// limits and attributes.
///
/// # Errors
/// `InvalidRequest` if the variables are invalid.
pub fn layer<S>(service: &'static str) -> Result<Option<(impl Layer<S>, Exporter)>, Failure>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    if !is_wanted() {
        return Ok(None);
    }
    let wrong = |text: String| {
        let advice = "see to the OTEL_EXPORTER_OTLP variables, or unset them";
        Failure::new(
            Code::InvalidRequest,
            format!("traces cannot be exported: {text}; {advice}"),
        )
    };
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(Poster::new().map_err(wrong)?)
        .build()
        .map_err(|error| wrong(error.to_string()))?;
    let mut resource = Resource::builder();
    if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
        resource = resource.with_service_name(service);
    }
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(resource.build())
        .build();
    let layer = tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("dayfly"))
        .with_location(false)
        .with_threads(false)
        .with_tracked_inactivity(false)
        .with_filter(filter_fn(|metadata| metadata.is_span() && metadata.target() == TARGET));
    Ok(Some((layer, Exporter(provider))))
}

/// The exporter's HTTP client. It may block, because the exporter has a separate thread.
#[derive(Debug)]
struct Poster(ureq::Agent);

impl Poster {
    fn new() -> Result<Self, String> {
        let mut tls = ureq::tls::TlsConfig::builder().provider(ureq::tls::TlsProvider::Rustls);
        let named = [
            "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
            "OTEL_EXPORTER_OTLP_CERTIFICATE",
        ];
        if let Some(path) = named.iter().find_map(std::env::var_os) {
            let path = Path::new(&path);
            let text = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
            let certificate = ureq::tls::Certificate::from_pem(&text);
            let certificate = certificate.map_err(|error| format!("{}: {error}", path.display()))?;
            tls = tls.root_certs(ureq::tls::RootCerts::new_with_certs(&[certificate]));
        }
        let config = ureq::Agent::config_builder()
            .tls_config(tls.build())
            .timeout_global(Some(POST_LIMIT))
            .http_status_as_error(false)
            .build();
        Ok(Self(config.into()))
    }
}

#[async_trait]
impl HttpClient for Poster {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (parts, body) = request.into_parts();
        let mut answer = self.0.run(Request::from_parts(parts, body.as_ref()))?;
        let bytes = answer.body_mut().read_to_vec()?;
        let mut response = Response::new(Bytes::from(bytes));
        *response.status_mut() = answer.status();
        Ok(response)
    }
}
