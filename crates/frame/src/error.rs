//! Failures of queries, with codes.

use std::error::Error;

use datafusion::common::DataFusionError;
use dayfly_protocol::error::{Code, Failure};

use crate::exchange::ExchangeError;

/// Returns the failure of a query: the code of its first cause, and DataFusion's message.
pub fn failure_of(error: &DataFusionError) -> Failure {
    let root = error.find_root();
    let message = root.strip_backtrace();
    match root {
        DataFusionError::External(cause) => {
            external(cause.as_ref()).unwrap_or_else(|| Failure::new(Code::Internal, message))
        }
        DataFusionError::ResourcesExhausted(_) => Failure::new(Code::OutOfMemory, message),
        DataFusionError::ObjectStore(cause) => {
            let is_missing = matches!(**cause, datafusion::object_store::Error::NotFound { .. });
            Failure::new(if is_missing { Code::NotFound } else { Code::StoreFailed }, message)
        }
        // Frames are written through object stores; only what spills goes to the disk by itself.
        DataFusionError::IoError(_) | DataFusionError::ArrowError(..) if is_full(root) => Failure::new(
            Code::SpillFull,
            format!(
                "the disk into which the query spills is full: lease more memory or more ranks, or free space on it. \
                 {message}"
            ),
        ),
        DataFusionError::IoError(cause) => {
            let is_missing = cause.kind() == std::io::ErrorKind::NotFound;
            Failure::new(if is_missing { Code::NotFound } else { Code::StoreFailed }, message)
        }
        DataFusionError::Internal(_) | DataFusionError::ExecutionJoin(_) => Failure::new(Code::Internal, message),
        // The query, or the data that it reads.
        _ => Failure::new(Code::InvalidRequest, message),
    }
}

/// Whether a disk had no room left.
fn is_full(error: &(dyn Error + 'static)) -> bool {
    let kinds = [std::io::ErrorKind::StorageFull, std::io::ErrorKind::QuotaExceeded];
    std::iter::successors(Some(error), |error: &&(dyn Error + 'static)| (*error).source()).any(|error| {
        let error = error.downcast_ref::<std::io::Error>();
        error.is_some_and(|error| kinds.contains(&error.kind()))
    })
}

fn external(cause: &(dyn Error + 'static)) -> Option<Failure> {
    let mut cause = Some(cause);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<ExchangeError>() {
            return Some(error.to_failure());
        }
        if let Some(failure) = error.downcast_ref::<Failure>() {
            return Some(failure.clone());
        }
        if let Some(error) = error.downcast_ref::<DataFusionError>() {
            return Some(failure_of(error));
        }
        cause = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_has_the_code_of_its_cause() {
        let lost = ExchangeError::Task {
            rank: 3,
            failure: Failure::new(Code::RankLost, "rank 2 is lost"),
        };
        let wrapped = DataFusionError::from(lost).context("while joining");
        let failure = failure_of(&wrapped);
        assert_eq!(failure.code, Code::RankLost);
        assert_eq!(failure.message, "rank 3: rank 2 is lost");
        let full = DataFusionError::ResourcesExhausted("no memory".into());
        assert_eq!(failure_of(&full).code, Code::OutOfMemory);
        let disk = std::io::Error::from(std::io::ErrorKind::StorageFull);
        assert_eq!(failure_of(&DataFusionError::IoError(disk)).code, Code::SpillFull);
        let unknown = DataFusionError::Plan("no such column".into());
        assert_eq!(failure_of(&unknown).code, Code::InvalidRequest);
    }
}
