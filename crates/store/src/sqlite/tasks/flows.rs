//! Flows, in the file of their tasks.

use dayfly_protocol::error::Failure;
use dayfly_protocol::flows::{FlowState, StepStatus};
use dayfly_protocol::ids::{FlowId, TenantId};
use rusqlite::types::ValueRef;
use rusqlite::{OptionalExtension, Row, params};

use super::SqliteTasks;
use crate::Pending;
use crate::flows::{FlowRecord, FlowStore};
use crate::sqlite::rows::{json, parsed, signed, unsigned};

/// The tables of flows.
pub const TABLES: &str = "
CREATE TABLE flows (
    id BLOB PRIMARY KEY, tenant BLOB NOT NULL, request TEXT NOT NULL, error TEXT, steps TEXT NOT NULL DEFAULT '[]',
    started_at_ms INTEGER NOT NULL, ended_at_ms INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX flows_by_tenant ON flows (tenant, started_at_ms);
CREATE INDEX flows_by_end ON flows (ended_at_ms)";

impl FlowStore for SqliteTasks {
    fn live_flows(&self) -> Pending<Vec<FlowRecord>> {
        self.0.read(|connection| {
            connection
                .prepare(&format!("SELECT {FLOW} FROM flows WHERE ended_at_ms = 0"))?
                .query_map([], flow_of)?
                .collect()
        })
    }

    fn keep_flow(&self, flow: FlowRecord) -> Pending<(FlowRecord, bool)> {
        self.0.write(true, 1, move |transaction| {
            let new = transaction
                .prepare_cached(
                    "INSERT INTO flows (id, tenant, request, started_at_ms) VALUES (?1, ?2, ?3, ?4) ON CONFLICT (id) DO NOTHING",
                )?
                .execute(params![
                    flow.id.0,
                    flow.tenant.0,
                    json(&flow.request)?,
                    signed(flow.started_at_ms)
                ])?;
            if new > 0 {
                return Ok((flow.clone(), true));
            }
            let kept = transaction
                .prepare_cached(&format!("SELECT {FLOW} FROM flows WHERE id = ?1"))?
                .query_row([flow.id.0], flow_of)?;
            Ok((kept, false))
        })
    }

    fn end_flow(&self, flow: FlowId, error: Option<Failure>, steps: Vec<StepStatus>, ended_at_ms: u64) -> Pending<()> {
        self.0.write(true, 1, move |transaction| {
            let error = error.as_ref().map(json).transpose()?;
            transaction
                .prepare_cached(
                    "UPDATE flows SET error = ?2, steps = ?3, ended_at_ms = ?4 WHERE id = ?1 AND ended_at_ms = 0",
                )?
                .execute(params![flow.0, error, json(&steps)?, signed(ended_at_ms)])?;
            Ok(())
        })
    }

    fn flow(&self, flow: FlowId) -> Pending<Option<FlowRecord>> {
        self.0.read(move |connection| {
            connection
                .prepare_cached(&format!("SELECT {FLOW} FROM flows WHERE id = ?1"))?
                .query_row([flow.0], flow_of)
                .optional()
        })
    }

    fn flows(&self, tenant: TenantId, limit: u32) -> Pending<Vec<FlowRecord>> {
        self.0.read(move |connection| {
            connection
                .prepare_cached(
                    "SELECT id, tenant, json_object('name', request ->> 'name', 'steps', json('[]')), error, '[]', started_at_ms,
                     ended_at_ms FROM flows WHERE tenant = ?1 ORDER BY started_at_ms DESC LIMIT ?2",
                )?
                .query_map(params![tenant.0, limit], flow_of)?
                .collect()
        })
    }

    fn delete_flows(&self, ended_before_ms: u64) -> Pending<()> {
        self.0.write(false, 1, move |transaction| {
            transaction
                .prepare_cached("DELETE FROM flows WHERE ended_at_ms > 0 AND ended_at_ms < ?1")?
                .execute([signed(ended_before_ms)])?;
            Ok(())
        })
    }
}

const FLOW: &str = "id, tenant, request, error, steps, started_at_ms, ended_at_ms";

fn flow_of(row: &Row<'_>) -> rusqlite::Result<FlowRecord> {
    let error: Option<Failure> = match row.get_ref(3)? {
        ValueRef::Null => None,
        _ => Some(parsed(row, 3)?),
    };
    let ended_at_ms = unsigned(row, 6)?;
    Ok(FlowRecord {
        id: FlowId(row.get(0)?),
        tenant: TenantId(row.get(1)?),
        request: parsed(row, 2)?,
        state: match (ended_at_ms, &error) {
            (0, _) => FlowState::Running,
            (_, None) => FlowState::Done,
            (_, Some(_)) => FlowState::Failed,
        },
        error,
        steps: parsed(row, 4)?,
        started_at_ms: unsigned(row, 5)?,
        ended_at_ms,
    })
}
