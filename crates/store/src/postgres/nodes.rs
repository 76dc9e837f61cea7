//! Nodes and managers: registration, takeover and presence.

use std::time::Duration;

use dayfly_protocol::api::{Capacity, NodeAddress};
use dayfly_protocol::ids::PublicKey;

use super::connect::Session;
use super::faults::Fault;
use super::publish;
use super::rows::{self, json, lease_columns, node_columns, signed};
use crate::{AdoptedNodes, NodeRegistration, Peer, PeerUpdate, Presence};

/// Registers a node for this manager, with its leases if it comes from another one.
pub async fn register(
    session: &Session,
    me: PublicKey,
    address: &NodeAddress,
    capacity: Capacity,
    ended_after_ms: u64,
) -> Result<Option<NodeRegistration>, Fault> {
    let id = address.id.0.as_slice();
    let owner = me.0.as_slice();
    // The row exists and is locked until the transaction ends, even if other managers want it.
    let sql = "INSERT INTO nodes (id, key, address, capacity, epoch, manager) VALUES ($1, $2, $3, $4, 0, $5)
        ON CONFLICT (id) DO NOTHING";
    let (key, json_address) = (address.key.0.as_slice(), json(address));
    let capacity = json(&capacity);
    let is_new = session
        .execute(sql, &[&id, &key, &json_address, &capacity, &owner])
        .await?
        > 0;
    let known = session
        .query("SELECT key, manager FROM nodes WHERE id = $1 FOR UPDATE", &[&id])
        .await?;
    let Some(known) = known.first() else { return Ok(None) };
    if rows::bytes(known, 0)? != address.key.0 {
        return Ok(None);
    }
    let moved = !is_new && rows::bytes(known, 1)? != me.0;
    let sql = concat!(
        "UPDATE nodes SET address = $2, capacity = $3, manager = $4, epoch = epoch + 1 WHERE id = $1 RETURNING ",
        node_columns!()
    );
    let updated = session.query(sql, &[&id, &json_address, &capacity, &owner]).await?;
    let Some(row) = updated.first() else { return Ok(None) };
    let record = rows::node(row)?;
    let leases = match moved {
        true => {
            let sql = concat!(
                "SELECT ",
                lease_columns!(),
                " FROM leases WHERE node = $1 AND (ended_at_ms = 0 OR ended_at_ms >= $2)"
            );
            let found = session.query(sql, &[&id, &signed(ended_after_ms)]).await?;
            Some(found.iter().map(rows::lease).collect::<Result<_, _>>()?)
        }
        false => None,
    };
    publish(session, me, &[PeerUpdate::Node(record.clone())]).await?;
    Ok(Some(NodeRegistration {
        epoch: record.epoch,
        booked: record.booked,
        reclaimed: record.reclaimed,
        leases,
    }))
}

/// Takes over the nodes of a silent manager.
pub async fn adopt(
    session: &Session,
    me: PublicKey,
    from: PublicKey,
    silent: Duration,
    since_ms: u64,
) -> Result<AdoptedNodes, Fault> {
    let silent_ms = signed(u64::try_from(silent.as_millis()).unwrap_or(u64::MAX));
    let sql = concat!(
        "UPDATE nodes SET manager = $1, epoch = epoch + 1 WHERE manager = $2 AND NOT EXISTS (SELECT FROM managers
        WHERE key = $2 AND seen > now() - $3::BIGINT * INTERVAL '1 millisecond') RETURNING ",
        node_columns!()
    );
    let adopted = session
        .query(sql, &[&me.0.as_slice(), &from.0.as_slice(), &silent_ms])
        .await?;
    let nodes = adopted.iter().map(rows::node).collect::<Result<Vec<_>, _>>()?;
    if nodes.is_empty() {
        return Ok(AdoptedNodes::default());
    }
    let ids: Vec<Vec<u8>> = nodes.iter().map(|node| node.address.id.0.to_vec()).collect();
    let sql = concat!(
        "SELECT ",
        lease_columns!(),
        " FROM leases WHERE node = ANY($1) AND (ended_at_ms = 0 OR ended_at_ms >= $2)"
    );
    let found = session.query(sql, &[&ids, &signed(since_ms)]).await?;
    let leases = found.iter().map(rows::lease).collect::<Result<_, _>>()?;
    let updates: Vec<PeerUpdate> = nodes.iter().cloned().map(PeerUpdate::Node).collect();
    publish(session, me, &updates).await?;
    Ok(AdoptedNodes { nodes, leases })
}

/// Records that this manager is alive, and returns the others.
pub async fn present(session: &Session, me: PublicKey, presence: &Presence) -> Result<Vec<Peer>, Fault> {
    session
        .execute(
            "INSERT INTO managers (key, url, ca_pem, free, seen) VALUES ($1, $2, $3, $4, now())
         ON CONFLICT (key) DO UPDATE SET url = $2, ca_pem = $3, free = $4, seen = now()",
            &[&me.0.as_slice(), &presence.url, &presence.ca_pem, &json(&presence.free)],
        )
        .await?;
    let sql =
        "SELECT key, url, ca_pem, free, greatest(0, 1000 * extract(epoch FROM now() - seen))::BIGINT FROM managers
        WHERE key <> $1 ORDER BY key";
    let found = session.query(sql, &[&me.0.as_slice()]).await?;
    let peer = |row: &tokio_postgres::Row| {
        Ok(Peer {
            key: PublicKey(rows::bytes(row, 0)?),
            presence: Presence {
                url: row.try_get(1)?,
                ca_pem: row.try_get(2)?,
                free: rows::parsed(row, 3)?,
            },
            silent_ms: rows::unsigned(row, 4)?,
        })
    };
    found.iter().map(peer).collect()
}
