//! What goes wrong between ranks.

use datafusion::arrow::error::ArrowError;
use datafusion::common::DataFusionError;
use dayfly_comm::post::PostError;
use dayfly_protocol::error::{Code, Failure};

/// Why an exchange between ranks failed.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The post failed: a rank was lost, or the exchange was revoked.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A rank executed a task that failed.
    #[error("rank {rank}: {}", failure.message)]
    Task {
        /// The rank.
        rank: u32,
        /// Its failure.
        failure: Failure,
    },
    /// A rank sent what it must not.
    #[error("rank {rank} sent {what}")]
    Violation {
        /// The rank.
        rank: u32,
        /// What it sent.
        what: String,
    },
    /// A batch has more buffers than a message may have parts.
    #[error("a batch of {columns} columns has too many buffers for one message; select fewer columns")]
    TooWide {
        /// Its columns.
        columns: usize,
    },
    /// A batch cannot be copied.
    #[error("a batch cannot be sent: {0}")]
    Batch(#[from] ArrowError),
    /// The address is not that of a rank.
    #[error("{0} is not the address of a rank")]
    Address(String),
}

impl ExchangeError {
    /// The failure with its stable code.
    pub fn to_failure(&self) -> Failure {
        let code = match self {
            Self::Post(error) => error.code(),
            Self::Task { failure, .. } => failure.code,
            Self::Violation { .. } => Code::ProtocolViolation,
            Self::TooWide { .. } | Self::Batch(_) => Code::TooLarge,
            Self::Address(_) => Code::InvalidRequest,
        };
        Failure::new(code, self.to_string())
    }
}

impl From<ExchangeError> for DataFusionError {
    fn from(error: ExchangeError) -> Self {
        Self::External(Box::new(error))
    }
}
