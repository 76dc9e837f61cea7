//! Reports to the manager what it does not know: starts and ends of leases, usage, and incidents.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use dayfly_manager_connection::Socket;
use dayfly_protocol::api::LeaseState;
use dayfly_protocol::ids::LeaseId;
use dayfly_protocol::node_messages::NodeMessage;

use super::{Disconnect, send};
use crate::leases::Durations;
use crate::node::Node;

/// Shortest interval between entries of ended leases. Each entry costs the manager a sync of its disk, which a burst of
/// short leases would otherwise make all others wait for.
const ENTRY_INTERVAL: Duration = Duration::from_millis(50);

/// What the manager knows from this connection.
pub struct Reported {
    started: HashSet<LeaseId>,
    active: HashSet<LeaseId>,
    /// Number of the last journal entry.
    entry: u64,
    pub next_entry: tokio::time::Instant,
    pub entry_waits: bool,
    pub durations: Durations,
}

impl Default for Reported {
    fn default() -> Self {
        Self {
            started: HashSet::new(),
            active: HashSet::new(),
            entry: 0,
            next_entry: tokio::time::Instant::now(),
            entry_waits: false,
            durations: Durations::default(),
        }
    }
}

/// Sends what the manager does not know from this connection.
pub async fn report(node: &Node, socket: &mut Socket, reported: &mut Reported) -> Result<(), Disconnect> {
    report_starts(node, socket, reported).await?;
    for lease in node.active_leases() {
        if reported.active.insert(lease) {
            send(socket, &NodeMessage::LeaseActive { lease }).await?;
        }
    }
    let now = tokio::time::Instant::now();
    reported.entry_waits = now < reported.next_entry;
    if !reported.entry_waits
        && let Some((sequence, usage)) = node.journal.next_entry()
        && sequence > reported.entry
    {
        send(socket, &NodeMessage::Meters { sequence, usage }).await?;
        reported.entry = sequence;
        reported.next_entry = now + ENTRY_INTERVAL;
    }
    for (lease, what) in node.incidents.take() {
        send(socket, &NodeMessage::Incident { lease, what }).await?;
    }
    for (lease, state) in node.journal.unreported_ends() {
        report_end(node, socket, reported, lease, state).await?;
    }
    Ok(())
}

/// Reports leases that were granted under allowances. Ended ones come first, each with its end, so that consecutive
/// leases do not appear as concurrent.
async fn report_starts(node: &Node, socket: &mut Socket, reported: &mut Reported) -> Result<(), Disconnect> {
    let mut starts = node.journal.unreported_starts();
    if starts.is_empty() {
        reported.started.clear();
        return Ok(());
    }
    reported
        .started
        .retain(|reported| starts.iter().any(|(lease, _)| lease == reported));
    let ends: HashMap<LeaseId, LeaseState> = node.journal.unreported_ends().into_iter().collect();
    starts.sort_by_key(|(lease, start)| (!ends.contains_key(lease), start.started_at_ms));
    for (lease, start) in starts {
        if reported.started.insert(lease) {
            let start = Box::new(start);
            send(socket, &NodeMessage::Started { lease, start }).await?;
            if let Some(state) = ends.get(&lease) {
                report_end(node, socket, reported, lease, *state).await?;
            }
        }
    }
    Ok(())
}

async fn report_end(
    node: &Node,
    socket: &mut Socket,
    reported: &mut Reported,
    lease: LeaseId,
    state: LeaseState,
) -> Result<(), Disconnect> {
    send(socket, &NodeMessage::LeaseEnded { lease, state }).await?;
    node.journal.end_reported(lease);
    reported.active.remove(&lease);
    Ok(())
}
