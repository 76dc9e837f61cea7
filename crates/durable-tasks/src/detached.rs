//! Work that continues when its caller goes away.

use dayfly_protocol::error::{Code, Failure};

/// Runs `work` to its end, even if the caller is dropped meanwhile.
///
/// # Errors
/// Those of `work`. `Internal` if it panics, or the runtime stops.
pub async fn run_detached<T: Send + 'static>(
    work: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> Result<T, Failure> {
    let done = tokio::spawn(work).await;
    done.map_err(|error| Failure::new(Code::Internal, format!("the request was interrupted: {error}")))?
}
