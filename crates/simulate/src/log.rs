//! Records of nodes ([`dayfly_harvest::record`]), decided again by the same policy: it must decide the same.

use dayfly_harvest::record::{Entry, Header};
use dayfly_harvest::{Action, Engine, Predictor};
use serde::de::DeserializeOwned;

/// Bytes of one line at most: an event has at most as many actions as there are running calls.
pub const MAX_LINE_BYTES: usize = 16 << 20;

/// Why a log cannot be decided again.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ReplayError {
    /// A line is not an entry, or the first line is no header.
    #[error(
        "Line {line}, column {column} of the log is not what a record has there: {reason}. Give a file that `dayfly node` recorded, or remove the line."
    )]
    Line {
        /// Number of the line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What is wrong.
        reason: String,
    },
    /// A line is longer than [`MAX_LINE_BYTES`].
    #[error("Line {line} of the log has more than {MAX_LINE_BYTES} bytes. Give a file that `dayfly node` recorded.")]
    TooLong {
        /// Number of the line, from 1.
        line: usize,
    },
    /// The policy decides something else.
    #[error(
        "Line {line} of the log differs. Recorded: {recorded} Decided now: {decided} Replay with the version and the options of \
         the node that recorded it."
    )]
    Differs {
        /// Number of the line, from 1.
        line: usize,
        /// Actions of the log.
        recorded: String,
        /// Actions of this policy.
        decided: String,
    },
}

/// Decides the events of a log again, by its own rules, with the predictor for its header. Returns the number of events.
///
/// # Errors
///
/// [`ReplayError`] for the first line that is no entry, or whose actions differ.
pub fn replay(text: &[u8], predictor: impl FnOnce(&Header) -> Box<dyn Predictor + Send>) -> Result<usize, ReplayError> {
    let (mut engine, mut predictor) = (None, Some(predictor));
    let mut events = 0;
    for (index, bytes) in text.split(|byte| *byte == b'\n').enumerate() {
        let line = index + 1;
        if bytes.len() > MAX_LINE_BYTES {
            return Err(ReplayError::TooLong { line });
        }
        if bytes.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let Some(engine) = &mut engine else {
            let header: Header = parsed(bytes, line)?;
            engine = predictor
                .take()
                .map(|predictor| Engine::new(header.rules, predictor(&header)));
            continue;
        };
        let entry: Entry = parsed(bytes, line)?;
        let decided = engine.handle(entry.now_us, &entry.event);
        let (recorded, decided) = (text_of(&entry.actions), text_of(&decided));
        if recorded != decided {
            return Err(ReplayError::Differs {
                line,
                recorded,
                decided,
            });
        }
        events += 1;
    }
    Ok(events)
}

fn parsed<T: DeserializeOwned>(bytes: &[u8], line: usize) -> Result<T, ReplayError> {
    serde_json::from_slice(bytes).map_err(|error| ReplayError::Line {
        line,
        column: error.column().max(1),
        reason: error.to_string(),
    })
}

fn text_of(actions: &[Action]) -> String {
    serde_json::to_string(actions).unwrap_or_else(|error| error.to_string())
}
