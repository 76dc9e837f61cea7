//! Changes of leases, within a transaction.

use dayfly_protocol::api::{Metered, Mode};
use dayfly_protocol::ids::{LeaseId, NodeId, TenantId};
use rusqlite::{OptionalExtension, Transaction, params};

use super::rows::{LEASE, json, lease_of, signed, unsigned};
use crate::{Change, ChangeResult, OwnedChange};

/// Applies a change, if it is of the present epoch.
pub fn apply(transaction: &Transaction<'_>, owned: &OwnedChange) -> rusqlite::Result<ChangeResult> {
    const LIVE: &str = "state IN ('granted', 'active')";
    let epoch = transaction
        .prepare_cached("SELECT epoch FROM nodes WHERE id = ?1")?
        .query_row([owned.node.0], |row| unsigned(row, 0))
        .optional()?;
    if epoch != Some(owned.epoch) {
        return Ok(ChangeResult::Stale);
    }
    match &owned.change {
        Change::Offered(record) => transaction
            .prepare_cached(
                "INSERT INTO leases (id, tenant, node, holder, state, workers, milli_cores_per_worker, hot, memory_bytes,
                 duration_ms, granted_at_ms, expires_at_ms, sandbox, allocation_price, computing_price, polling_price,
                 gpus_per_worker, bearer, borrowed_core_price, borrowed_memory_price, core_price,
                 gpu_price)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18,
                 ?19, ?20, ?21, ?22)
                 ON CONFLICT (id) DO NOTHING",
            )?
            .execute(params![
                record.lease.0,
                record.tenant.0,
                record.node.0,
                record.holder.0,
                record.state.name(),
                record.workers,
                signed(record.cores_per_worker.get()),
                record.mode == Mode::Hot,
                signed(record.memory_bytes),
                signed(record.duration_ms),
                signed(record.granted_at_ms),
                signed(record.expires_at_ms),
                record.sandbox.number(),
                signed(record.prices.allocation_per_gib_s),
                signed(record.prices.computing_per_s),
                signed(record.prices.polling_per_s),
                record.gpus_per_worker,
                record.bearer,
                signed(record.prices.borrowed_core_per_s),
                signed(record.prices.borrowed_per_gib_s),
                signed(record.prices.core_per_s),
                signed(record.prices.gpu_per_s)
            ])?,
        Change::Taken {
            lease,
            mode,
            image,
            sandbox,
        } => transaction
            .prepare_cached(&format!(
                "UPDATE leases SET hot = ?2, image = ?3, sandbox = ?4 WHERE id = ?1 AND {LIVE}"
            ))?
            .execute(params![lease.0, *mode == Mode::Hot, image, sandbox.number()])?,
        Change::Refused { lease } => transaction
            .prepare_cached(&format!("DELETE FROM leases WHERE id = ?1 AND {LIVE}"))?
            .execute(params![lease.0])?,
        Change::Active { lease, expires_at_ms } => transaction
            .prepare_cached(&format!(
                "UPDATE leases SET state = 'active', expires_at_ms = ?2 WHERE id = ?1 AND {LIVE}"
            ))?
            .execute(params![lease.0, signed(*expires_at_ms)])?,
        Change::Renewed {
            lease,
            duration_ms,
            expires_at_ms,
            bearer,
            workers,
            mode,
            memory_bytes,
        } => transaction
            .prepare_cached(&format!(
                "UPDATE leases SET duration_ms = ?2, expires_at_ms = ?3, bearer = ?4, workers = ?5, hot = ?6,
                 memory_bytes = ?7 WHERE id = ?1 AND {LIVE}"
            ))?
            .execute(params![
                lease.0,
                signed(*duration_ms),
                signed(*expires_at_ms),
                bearer,
                workers,
                *mode == Mode::Hot,
                signed(*memory_bytes)
            ])?,
        Change::Ended { lease, state, at_ms } => transaction
            .prepare_cached(&format!(
                "UPDATE leases SET state = ?2, ended_at_ms = ?3 WHERE id = ?1 AND {LIVE}"
            ))?
            .execute(params![lease.0, state.name(), signed(*at_ms)])?,
    };
    Ok(ChangeResult::Kept)
}

/// Raises the usage of a lease of this node. Returns the tenant that pays, and the cost of the difference.
pub fn charge(
    transaction: &Transaction<'_>,
    node: NodeId,
    lease: LeaseId,
    used: Metered,
) -> rusqlite::Result<Option<(TenantId, u64)>> {
    let before = transaction
        .prepare_cached(&format!("SELECT {LEASE} FROM leases WHERE id = ?1 AND node = ?2"))?
        .query_row(params![lease.0, node.0], lease_of)
        .optional()?;
    let Some(before) = before else { return Ok(None) };
    let mut after = before.clone();
    after.book(used);
    transaction
        .prepare_cached(
            "UPDATE leases SET computing_us = ?2, polling_us = ?3, allocated_us = ?4, calls = ?5, failures = ?6,
             functions = ?7, loans = ?8
             WHERE id = ?1",
        )?
        .execute(params![
            lease.0,
            signed(after.usage.computing_us),
            signed(after.usage.polling_us),
            signed(after.usage.allocated_us),
            signed(after.usage.calls),
            signed(after.usage.failures),
            json(&after.functions)?,
            json(&after.loans)?
        ])?;
    let amount = after.cost().total().saturating_sub(before.cost().total());
    Ok(Some((after.tenant, amount)))
}

/// Moves the live leases of one bearer to another one, or to none.
pub fn rebind(transaction: &Transaction<'_>, from: [u8; 32], to: Option<[u8; 32]>) -> rusqlite::Result<()> {
    transaction
        .prepare_cached("UPDATE leases SET bearer = ?2 WHERE bearer = ?1 AND ended_at_ms = 0")?
        .execute(params![from, to])?;
    Ok(())
}
