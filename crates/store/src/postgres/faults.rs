//! What an error of the database's means for whoever asked.

use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use crate::StoreError;

/// Why something could not be done.
#[derive(Debug, Clone)]
pub enum Fault {
    /// The connection is of no use any more; whether it was done is not known. Another connection may do it.
    Lost(String),
    /// Another manager was in the way: the same succeeds a moment later.
    Again(String),
    /// It cannot be done.
    Refused(StoreError),
}

impl Fault {
    /// For whoever waits no longer.
    pub fn told(&self) -> StoreError {
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

/// What an error means.
pub fn fault(error: &Error) -> Fault {
    let Some(said) = error.as_db_error() else {
        // The cause is the interesting half: "error connecting to server" says nothing yet.
        let cause = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
        return Fault::Lost(cause);
    };
    let code = said.code();
    let text = said.message().to_owned();
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
        // A server that became a standby: the next connection goes to the one that takes writes.
        | &SqlState::READ_ONLY_SQL_TRANSACTION => Fault::Lost(text),
        other if other.code().starts_with("08") => Fault::Lost(text),
        other => Fault::Refused(StoreError::Broken(format!("{text} ({})", other.code()))),
    }
}
