//! A world over sockets that this process has inherited, for measurements: `dayfly bench comm --language python` connects
//! its ranks itself, so that both transports are measured on one host.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use dayfly_comm::{Communicator, LostRanks, Options, PeerConnection, Route};

use crate::error::{Error, Result, class};

/// Variable with the transport (`shm` or `tcp`), the rank, and for each rank the descriptor of the socket to it. That of
/// the rank itself is negative. Messages are not encrypted.
const VARIABLE: &str = "DAYFLY_BENCH_RANK";

/// The world that the variable describes; `None` if it is not set.
pub fn world() -> Result<Option<Communicator>> {
    let Ok(text) = std::env::var(VARIABLE) else {
        return Ok(None);
    };
    let malformed = || Error::new(class::ARG, format!("{VARIABLE} does not describe a rank: {text}"));
    let mut words = text.split_whitespace();
    let is_remote = match words.next() {
        Some("tcp") => true,
        Some("shm") => false,
        _ => return Err(malformed()),
    };
    let rank = words.next().and_then(|word| word.parse().ok()).ok_or_else(malformed)?;
    let sockets: Vec<RawFd> = words
        .map(|word| word.parse().map_err(|_| malformed()))
        .collect::<Result<_>>()?;
    let size = u32::try_from(sockets.len()).map_err(|_| malformed())?;
    let connections = sockets
        .into_iter()
        .map(|socket| connection(socket, is_remote))
        .collect();
    Ok(Some(Communicator::form(
        rank,
        size,
        connections,
        Arc::new(LostRanks::default()),
        Options::default(),
    )?))
}

fn connection(socket: RawFd, is_remote: bool) -> Option<PeerConnection> {
    // SAFETY: whoever set the variable passed the descriptor to this process, for this alone.
    let owned = (socket >= 0).then(|| unsafe { OwnedFd::from_raw_fd(socket) })?;
    Some(match is_remote {
        true => PeerConnection::Remote {
            socket: owned.into(),
            session: None,
            route: Route::Direct,
        },
        false => PeerConnection::Local(owned.into()),
    })
}
