//! Classification of the database's errors.

use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use crate::StoreError;

/// Why an operation failed.
#[derive(Debug, Clone)]
pub enum Fault {
    /// The connection is lost, and whether the operation took effect is unknown. It may be repeated over another
    /// connection.
    Lost(String),
    /// Another manager interfered. The same operation may succeed a moment later.
    Again(String),
    /// The operation cannot succeed.
    Refused(StoreError),
}

impl Fault {
    /// Returns the error for a caller that stops waiting.
    pub fn to_error(&self) -> StoreError {
        match self {
            Self::Lost(why) => StoreError::Unreachable(why.clone()),
            Self::Again(why) => StoreError::Broken(why.clone()),
            Self::Refused(error) => error.clone(),
        }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        fault(&error)
    }
}

/// Classifies an error.
pub fn fault(error: &Error) -> Fault {
    let Some(reported) = error.as_db_error() else {
        // The cause is more useful: "error connecting to server" alone explains nothing.
        let cause = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
        return Fault::Lost(cause);
    };
    let code = reported.code();
    let text = reported.message().to_owned();
    match code {
        &SqlState::DISK_FULL => Fault::Refused(StoreError::Full),
        &SqlState::T_R_SERIALIZATION_FAILURE | &SqlState::T_R_DEADLOCK_DETECTED | &SqlState::LOCK_NOT_AVAILABLE => {
            Fault::Again(text)
        }
        &SqlState::ADMIN_SHUTDOWN
        | &SqlState::CRASH_SHUTDOWN
        | &SqlState::CANNOT_CONNECT_NOW
        | &SqlState::TOO_MANY_CONNECTIONS
        | &SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT
        // The server has become a standby. The next connection goes to the server that accepts writes.
        | &SqlState::READ_ONLY_SQL_TRANSACTION => Fault::Lost(text),
        other if other.code().starts_with("08") => Fault::Lost(text),
        other => Fault::Refused(StoreError::Broken(format!("{text} ({})", other.code()))),
    }
}
