//! Updates between managers as database notifications, which are delivered when their transaction commits, in the order
//! of the commits. A manager that reconnects reads the full state.

use std::time::Duration;

use dayfly_protocol::ids::PublicKey;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::connect::{Address, Session};
use super::faults::Fault;
use super::reader::read_all;
use super::{FIRST_WAIT, LAST_WAIT};
use crate::PeerUpdate;

/// Sends a notification.
pub const NOTIFY: &str = "SELECT pg_notify('dayfly', $1)";
/// Most bytes of a notification. PostgreSQL accepts less than 8,000 bytes.
const MAX_BYTES: usize = 7_900;
/// How often a quiet connection is checked.
const PULSE: Duration = Duration::from_secs(5);

#[derive(Serialize, Deserialize)]
struct Payload {
    from: PublicKey,
    /// `None` if the updates are too long; the receiver then reads the full state.
    updates: Option<Vec<PeerUpdate>>,
}

/// Returns the notifications for the updates, in order.
pub fn payloads(from: PublicKey, updates: &[PeerUpdate]) -> Vec<String> {
    let written = |updates: Option<&[PeerUpdate]>| {
        let updates = updates.map(<[PeerUpdate]>::to_vec);
        // These types can always be serialized.
        serde_json::to_string(&Payload { from, updates }).unwrap_or_default()
    };
    let mut all = Vec::new();
    let mut rest = updates;
    while !rest.is_empty() {
        let mut many = rest.len();
        let mut payload = written(Some(rest));
        while payload.len() > MAX_BYTES && many > 1 {
            many /= 2;
            payload = written(Some(&rest[..many]));
        }
        if payload.len() > MAX_BYTES {
            payload = written(None);
        }
        all.push(payload);
        rest = &rest[many..];
    }
    all
}

/// Receives notifications until the receiver of the updates is closed.
pub async fn listen(address: Address, me: PublicKey, updates: mpsc::Sender<PeerUpdate>) {
    let mut wait = FIRST_WAIT;
    while !updates.is_closed() {
        let begun = tokio::time::Instant::now();
        let Err(fault) = receive(&address, me, &updates).await else {
            return;
        };
        tracing::warn!(why = %fault.to_error(), "changes of the other managers are not received");
        if begun.elapsed() > LAST_WAIT {
            wait = FIRST_WAIT;
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(LAST_WAIT);
    }
}

/// Receives notifications over one connection until it ends.
async fn receive(address: &Address, me: PublicKey, updates: &mpsc::Sender<PeerUpdate>) -> Result<(), Fault> {
    let (notifications, mut payloads) = mpsc::unbounded_channel();
    let session = Session::open(address, Some(notifications)).await?;
    session.batch("LISTEN dayfly").await?;
    // From here on no notification is missed. Read the state from before.
    let mut everything = true;
    loop {
        if std::mem::take(&mut everything) {
            // Of leases, include the live ones, because their bearers may have changed too.
            let snapshot = read_all(&session, me, u64::MAX).await?;
            if updates.send(PeerUpdate::Everything(Box::new(snapshot))).await.is_err() {
                return Ok(());
            }
        }
        let payload = match tokio::time::timeout(PULSE, payloads.recv()).await {
            Ok(Some(payload)) => payload,
            Ok(None) => return Err(Fault::Lost("the connection ended".into())),
            Err(_) if updates.is_closed() => return Ok(()),
            Err(_) => {
                let pulse = tokio::time::timeout(PULSE, session.batch("SELECT 1")).await;
                pulse.map_err(|_| Fault::Lost("it does not respond".into()))??;
                continue;
            }
        };
        let Ok(payload) = serde_json::from_str::<Payload>(&payload) else {
            // From another release: it may matter, and its effect can be read from the tables.
            everything = true;
            continue;
        };
        // Include this manager's own updates in commit order, because the state read above may be older. Omit only its
        // own events.
        let own = payload.from == me;
        match payload.updates {
            None => everything = true,
            Some(all) => {
                for one in all
                    .into_iter()
                    .filter(|one| !own || !matches!(one, PeerUpdate::Event(..)))
                {
                    if updates.send(one).await.is_err() {
                        return Ok(());
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use dayfly_protocol::ids::TenantId;

    use super::*;

    #[test]
    fn updates_are_split_into_short_payloads_in_order() {
        let me = PublicKey([1; 32]);
        let updates: Vec<PeerUpdate> = (0..1_000).map(|n| PeerUpdate::Spent(TenantId([7; 16]), n)).collect();
        let payloads = payloads(me, &updates);
        assert!(payloads.len() > 1 && payloads.iter().all(|payload| payload.len() <= MAX_BYTES));
        let heard = payloads
            .iter()
            .map(|payload| serde_json::from_str::<Payload>(payload).unwrap());
        let heard: Vec<PeerUpdate> = heard.flat_map(|payload| payload.updates.unwrap()).collect();
        assert_eq!(heard, updates);
    }

    #[test]
    fn too_long_update_makes_receivers_reload() {
        let long = PeerUpdate::Event(
            dayfly_protocol::api::Event::NodeSuspended {
                node: dayfly_protocol::ids::NodeId([1; 16]),
                for_ms: 1,
                why: "x".repeat(10_000),
            },
            None,
        );
        let payloads = payloads(PublicKey([1; 32]), &[long]);
        assert_eq!(payloads.len(), 1);
        assert!(serde_json::from_str::<Payload>(&payloads[0]).unwrap().updates.is_none());
    }
}
