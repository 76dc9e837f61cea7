//! Conversion of rows to records, and of records to parameters.

use dayfly_lease::quota::Held;
use dayfly_protocol::api::{LeaseState, Mode, Sandbox, Usage};
use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::ids::{LeaseId, NodeId, PublicKey, TenantId};
use dayfly_protocol::tenancy::Prices;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::faults::Fault;
use crate::{Bearer, BearerKind, LeaseRecord, NodeRecord, StoreError, TenantRecord};

/// Owned parameters of a statement.
pub type Params = Vec<Box<dyn ToSql + Sync + Send>>;

/// Columns in the order in which [`lease`] reads them.
macro_rules! lease_columns {
    () => {
        "id, tenant, node, holder, state, workers, milli_cores_per_worker, hot, memory_bytes, duration_ms, granted_at_ms, \
         expires_at_ms, ended_at_ms, computing_us, polling_us, allocated_us, calls, failures, sandbox, \
         allocation_price, computing_price, polling_price, image, functions, gpus_per_worker, bearer, loans, \
         borrowed_core_price, borrowed_memory_price, core_price, gpu_price"
    };
}
pub(super) use lease_columns;

/// Columns in the order in which [`node`] reads them.
macro_rules! node_columns {
    () => {
        "address, capacity, epoch, booked, reclaimed, manager"
    };
}
pub(super) use node_columns;

/// Inserts a lease, from [`lease_parameters`].
pub const INSERT_LEASE: &str = concat!(
    "INSERT INTO leases (",
    lease_columns!(),
    ") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31)"
);

/// Updates the columns of a lease that may change, from [`lease_changes`].
pub const UPDATE_LEASE: &str = "UPDATE leases SET state = $2, hot = $3, duration_ms = $4, expires_at_ms = $5, \
    ended_at_ms = $6, computing_us = $7, polling_us = $8, allocated_us = $9, calls = $10, failures = $11, image = $12, functions = $13, sandbox = $14, loans = $15, \
    workers = $16, memory_bytes = $17 WHERE id = $1";

/// Changes the bearer of a lease, from its id and the bearer. Separate from [`UPDATE_LEASE`], because revoking or
/// replacing a bearer changes it without the lock of the lease's node.
pub const REBIND_LEASE: &str = "UPDATE leases SET bearer = $2 WHERE id = $1";

/// Moves the live leases of one bearer to another one, or to none. Locks them in the order of all writers.
pub const REBIND_LEASES: &str = "UPDATE leases SET bearer = $2 WHERE id IN (SELECT id FROM leases WHERE bearer = $1 \
    AND ended_at_ms = 0 ORDER BY id FOR UPDATE)";

/// Converts to PostgreSQL's signed integers. No real count comes near the difference.
pub fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn damaged(what: impl std::fmt::Display) -> Fault {
    Fault::Refused(StoreError::Broken(format!(
        "the database holds something that is not Dayfly's: {what}"
    )))
}

/// Decodes a non-negative number.
pub fn unsigned(row: &Row, column: usize) -> Result<u64, Fault> {
    Ok(row.try_get::<_, i64>(column)?.unsigned_abs())
}

/// Decodes a number of a smaller type.
pub fn small<T: TryFrom<u64>>(row: &Row, column: usize) -> Result<T, Fault> {
    T::try_from(unsigned(row, column)?).map_err(|_| damaged("a number that is too large"))
}

/// Decodes an id, a key or a hash.
pub fn bytes<const N: usize>(row: &Row, column: usize) -> Result<[u8; N], Fault> {
    let bytes: &[u8] = row.try_get(column)?;
    bytes.try_into().map_err(|_| damaged("an id of the wrong length"))
}

/// Decodes a JSON column.
pub fn parsed<T: serde::de::DeserializeOwned>(row: &Row, column: usize) -> Result<T, Fault> {
    serde_json::from_str(row.try_get(column)?).map_err(damaged)
}

/// Encodes a value as JSON.
pub fn json(value: &impl serde::Serialize) -> String {
    // These types can always be serialized.
    serde_json::to_string(value).unwrap_or_default()
}

/// Decodes [`lease_columns`].
pub fn lease(row: &Row) -> Result<LeaseRecord, Fault> {
    Ok(LeaseRecord {
        lease: LeaseId(bytes(row, 0)?),
        tenant: TenantId(bytes(row, 1)?),
        node: NodeId(bytes(row, 2)?),
        holder: PublicKey(bytes(row, 3)?),
        state: LeaseState::from_name(row.try_get(4)?).unwrap_or(LeaseState::Lost),
        workers: small(row, 5)?,
        cores_per_worker: MilliCores::new(unsigned(row, 6)?),
        mode: if row.try_get(7)? { Mode::Hot } else { Mode::Warm },
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
        sandbox: Sandbox::from_number(small(row, 18)?).unwrap_or(Sandbox::Isolated),
        prices: Prices {
            allocation_per_gib_s: unsigned(row, 19)?,
            computing_per_s: unsigned(row, 20)?,
            polling_per_s: unsigned(row, 21)?,
            borrowed_core_per_s: unsigned(row, 27)?,
            borrowed_per_gib_s: unsigned(row, 28)?,
            core_per_s: unsigned(row, 29)?,
            gpu_per_s: unsigned(row, 30)?,
        },
        image: row.try_get(22)?,
        functions: parsed(row, 23)?,
        gpus_per_worker: small(row, 24)?,
        bearer: match row.try_get::<_, Option<&[u8]>>(25)? {
            Some(_) => Some(bytes(row, 25)?),
            None => None,
        },
        loans: parsed(row, 26)?,
    })
}

fn text(bytes: &[u8]) -> Box<dyn ToSql + Sync + Send> {
    Box::new(bytes.to_vec())
}

fn number(value: impl Into<u64>) -> Box<dyn ToSql + Sync + Send> {
    Box::new(signed(value.into()))
}

/// Returns the usage, in the order of both statements.
fn used(usage: &Usage) -> Params {
    vec![
        number(usage.computing_us),
        number(usage.polling_us),
        number(usage.allocated_us),
        number(usage.calls),
        number(usage.failures),
    ]
}

/// Returns the parameters of [`INSERT_LEASE`].
pub fn lease_parameters(record: &LeaseRecord) -> Params {
    let mut parameters = vec![
        text(&record.lease.0),
        text(&record.tenant.0),
        text(&record.node.0),
        text(&record.holder.0),
        Box::new(record.state.name()),
        number(record.workers),
        number(record.cores_per_worker.get()),
        Box::new(record.mode == Mode::Hot),
        number(record.memory_bytes),
        number(record.duration_ms),
        number(record.granted_at_ms),
        number(record.expires_at_ms),
        number(record.ended_at_ms),
    ];
    parameters.extend(used(&record.usage));
    parameters.extend([
        number(record.sandbox.number()),
        number(record.prices.allocation_per_gib_s),
        number(record.prices.computing_per_s),
        number(record.prices.polling_per_s),
        Box::new(record.image.clone()),
        Box::new(json(&record.functions)),
        number(record.gpus_per_worker),
        Box::new(record.bearer.map(|hash| hash.to_vec())),
        Box::new(json(&record.loans)),
        number(record.prices.borrowed_core_per_s),
        number(record.prices.borrowed_per_gib_s),
        number(record.prices.core_per_s),
        number(record.prices.gpu_per_s),
    ]);
    parameters
}

/// Returns the parameters of [`UPDATE_LEASE`].
pub fn lease_changes(record: &LeaseRecord) -> Params {
    let mut parameters = vec![
        text(&record.lease.0),
        Box::new(record.state.name()),
        Box::new(record.mode == Mode::Hot),
        number(record.duration_ms),
        number(record.expires_at_ms),
        number(record.ended_at_ms),
    ];
    parameters.extend(used(&record.usage));
    parameters.push(Box::new(record.image.clone()));
    parameters.push(Box::new(json(&record.functions)));
    parameters.push(number(record.sandbox.number()));
    parameters.push(Box::new(json(&record.loans)));
    parameters.push(number(record.workers));
    parameters.push(number(record.memory_bytes));
    parameters
}

/// Returns the parameters of [`REBIND_LEASE`].
pub fn lease_bearer(record: &LeaseRecord) -> Params {
    vec![text(&record.lease.0), Box::new(record.bearer.map(|hash| hash.to_vec()))]
}

/// Decodes [`node_columns`].
pub fn node(row: &Row) -> Result<NodeRecord, Fault> {
    Ok(NodeRecord {
        address: parsed(row, 0)?,
        capacity: parsed(row, 1)?,
        epoch: unsigned(row, 2)?,
        booked: unsigned(row, 3)?,
        reclaimed: row.try_get(4)?,
        manager: Some(PublicKey(bytes(row, 5)?)),
    })
}

/// Decodes `hash, role, tenant, node, expires_at_ms, name, read_only`.
pub fn bearer(row: &Row) -> Result<Bearer, Fault> {
    let node = match row.try_get::<_, Option<&[u8]>>(3)? {
        Some(_) => Some(NodeId(bytes(row, 3)?)),
        None => None,
    };
    Ok(Bearer {
        hash: bytes(row, 0)?,
        kind: BearerKind::from_name(row.try_get(1)?),
        tenant: TenantId(bytes(row, 2)?),
        node,
        expires_at_ms: unsigned(row, 4)?,
        name: row.try_get(5)?,
        read_only: row.try_get(6)?,
    })
}

/// Columns in the order in which [`tenant`] reads them.
macro_rules! tenant_columns {
    () => {
        "id, name, spec, spent, spent_on_tasks"
    };
}
pub(super) use tenant_columns;

/// Decodes [`tenant_columns`].
pub fn tenant(row: &Row) -> Result<TenantRecord, Fault> {
    Ok(TenantRecord {
        id: TenantId(bytes(row, 0)?),
        name: row.try_get(1)?,
        spec: parsed(row, 2)?,
        spent: unsigned(row, 3)?,
        spent_on_tasks: unsigned(row, 4)?,
    })
}

/// Decodes `leases, workers, milli_cores, memory_bytes`, from column `first` on.
pub fn held(row: &Row, first: usize) -> Result<Held, Fault> {
    Ok(Held {
        leases: small(row, first)?,
        workers: small(row, first + 1)?,
        cores: MilliCores::new(unsigned(row, first + 2)?),
        memory_bytes: unsigned(row, first + 3)?,
    })
}
