//! Conversion of rows to records.

use dayfly_protocol::api::{LeaseState, Mode, Sandbox, Usage};
use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::ids::{LeaseId, NodeId, PublicKey, TenantId};
use dayfly_protocol::tenancy::Prices;
use rusqlite::Row;

use crate::{LeaseRecord, TenantRecord};

/// Columns in the order in which [`tenant_of`] reads them.
pub const TENANT: &str = "id, name, spec, spent, spent_on_tasks";

/// Decodes [`TENANT`].
pub fn tenant_of(row: &Row<'_>) -> rusqlite::Result<TenantRecord> {
    Ok(TenantRecord {
        id: TenantId(row.get(0)?),
        name: row.get(1)?,
        spec: parsed(row, 2)?,
        spent: unsigned(row, 3)?,
        spent_on_tasks: unsigned(row, 4)?,
    })
}

/// Columns in the order in which [`lease_of`] reads them.
pub const LEASE: &str = "id, tenant, node, holder, state, workers, milli_cores_per_worker, hot, memory_bytes,
    duration_ms, granted_at_ms, expires_at_ms, ended_at_ms, computing_us, polling_us, allocated_us, calls, failures, sandbox,
    allocation_price, computing_price, polling_price, image, functions, gpus_per_worker, bearer, loans,
    borrowed_core_price, borrowed_memory_price, core_price, gpu_price";

/// Decodes [`LEASE`].
pub fn lease_of(row: &Row<'_>) -> rusqlite::Result<LeaseRecord> {
    Ok(LeaseRecord {
        lease: LeaseId(row.get(0)?),
        tenant: TenantId(row.get(1)?),
        node: NodeId(row.get(2)?),
        holder: PublicKey(row.get(3)?),
        state: LeaseState::from_name(row.get_ref(4)?.as_str()?).unwrap_or(LeaseState::Lost),
        workers: row.get(5)?,
        cores_per_worker: MilliCores::new(unsigned(row, 6)?),
        mode: if row.get(7)? { Mode::Hot } else { Mode::Warm },
        memory_bytes: unsigned(row, 8)?,
        duration_ms: unsigned(row, 9)?,
        granted_at_ms: unsigned(row, 10)?,
        expires_at_ms: unsigned(row, 11)?,
        ended_at_ms: unsigned(row, 12)?,
        usage: Usage {
            computing_us: unsigned(row, 13)?,
            polling_us: unsigned(row, 14)?,
            allocated_us: unsigned(row, 15)?,
            calls: unsigned(row, 16)?,
            failures: unsigned(row, 17)?,
        },
        // An unknown level of a later release counts as isolated, which permits nothing.
        sandbox: Sandbox::from_number(row.get(18)?).unwrap_or(Sandbox::Isolated),
        prices: Prices {
            allocation_per_gib_s: unsigned(row, 19)?,
            computing_per_s: unsigned(row, 20)?,
            polling_per_s: unsigned(row, 21)?,
            borrowed_core_per_s: unsigned(row, 27)?,
            borrowed_per_gib_s: unsigned(row, 28)?,
            core_per_s: unsigned(row, 29)?,
            gpu_per_s: unsigned(row, 30)?,
        },
        image: row.get(22)?,
        functions: parsed(row, 23)?,
        gpus_per_worker: row.get(24)?,
        bearer: row.get(25)?,
        loans: parsed(row, 26)?,
    })
}

/// Converts to SQLite's signed integers. No real count comes near the difference.
pub fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Decodes a non-negative number.
pub fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    Ok(row.get::<_, i64>(column)?.unsigned_abs())
}

/// Encodes a value as JSON.
pub fn json(value: &impl serde::Serialize) -> rusqlite::Result<String> {
    serde_json::to_string(value).map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
}

/// Decodes a JSON column.
pub fn parsed<T: serde::de::DeserializeOwned>(row: &Row<'_>, column: usize) -> rusqlite::Result<T> {
    serde_json::from_str(row.get_ref(column)?.as_str()?).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, Box::new(error))
    })
}
