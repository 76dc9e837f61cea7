//! Flows, in the database of their tasks.

use dayfly_protocol::error::Failure;
use dayfly_protocol::flows::{FlowRequest, FlowState, StepStatus};
use dayfly_protocol::ids::{FlowId, TenantId};
use futures_util::FutureExt;
use tokio_postgres::Row;

use super::{PostgresTasks, json_failure, missing, text};
use crate::Pending;
use crate::flows::{FlowRecord, FlowStore};
use crate::postgres::connect::Session;
use crate::postgres::faults::Fault;
use crate::postgres::rows::{self, json, signed};

impl FlowStore for PostgresTasks {
    fn live_flows(&self) -> Pending<Vec<FlowRecord>> {
        self.read((), |session, ()| {
            async {
                let sql = "SELECT id, tenant, error, started_at_ms, ended_at_ms, request, steps FROM flows
                    WHERE ended_at_ms = 0";
                let found = session.query(sql, &[]).await?;
                found.iter().map(flow_of).collect()
            }
            .boxed()
        })
    }

    fn keep_flow(&self, flow: FlowRecord) -> Pending<(FlowRecord, bool)> {
        self.write(flow, |session, flow| {
            async {
                let sql = "INSERT INTO flows (id, tenant, name, request, started_at_ms) VALUES ($1, $2, $3, $4, $5)
                    ON CONFLICT (id) DO NOTHING";
                let (id, tenant) = (flow.id.0.as_slice(), flow.tenant.0.as_slice());
                let (name, request) = (flow.request.name.as_bytes(), json(&flow.request));
                let started_at_ms = signed(flow.started_at_ms);
                let new = session
                    .execute(sql, &[&id, &tenant, &name, &request, &started_at_ms])
                    .await?;
                if new > 0 {
                    return Ok((flow.clone(), true));
                }
                Ok((one(session, flow.id).await?.ok_or_else(missing)?, false))
            }
            .boxed()
        })
    }

    fn end_flow(&self, flow: FlowId, error: Option<Failure>, steps: Vec<StepStatus>, ended_at_ms: u64) -> Pending<()> {
        self.write(
            (flow, error, steps, ended_at_ms),
            |session, (flow, error, steps, at_ms)| {
                async {
                    let sql =
                        "UPDATE flows SET error = $2, steps = $3, ended_at_ms = $4 WHERE id = $1 AND ended_at_ms = 0";
                    let error = error.as_ref().map(json);
                    let id = flow.0.as_slice();
                    session
                        .execute(sql, &[&id, &error, &json(steps), &signed(*at_ms)])
                        .await?;
                    Ok(())
                }
                .boxed()
            },
        )
    }

    fn flow(&self, flow: FlowId) -> Pending<Option<FlowRecord>> {
        self.read(flow, |session, flow| one(session, *flow).boxed())
    }

    fn flows(&self, tenant: TenantId, limit: u32) -> Pending<Vec<FlowRecord>> {
        self.read((tenant, limit), |session, (tenant, limit)| {
            async {
                let sql = "SELECT id, tenant, error, started_at_ms, ended_at_ms, name FROM flows WHERE tenant = $1
                    ORDER BY started_at_ms DESC LIMIT $2";
                let found = session.query(sql, &[&tenant.0.as_slice(), &i64::from(*limit)]).await?;
                let listed = |row: &Row| {
                    let request = FlowRequest {
                        id: None,
                        name: text(row, 5)?,
                        steps: Vec::new(),
                        input: serde_json::Value::Null,
                    };
                    record(row, request, Vec::new())
                };
                found.iter().map(listed).collect()
            }
            .boxed()
        })
    }

    fn delete_flows(&self, ended_before_ms: u64) -> Pending<()> {
        self.write(ended_before_ms, |session, before_ms| {
            async {
                let sql = "DELETE FROM flows WHERE ended_at_ms > 0 AND ended_at_ms < $1";
                session.execute(sql, &[&signed(*before_ms)]).await?;
                Ok(())
            }
            .boxed()
        })
    }
}

async fn one(session: &Session, flow: FlowId) -> Result<Option<FlowRecord>, Fault> {
    let sql = "SELECT id, tenant, error, started_at_ms, ended_at_ms, request, steps FROM flows WHERE id = $1";
    let found = session.query(sql, &[&flow.0.as_slice()]).await?;
    found.first().map(flow_of).transpose()
}

fn flow_of(row: &Row) -> Result<FlowRecord, Fault> {
    record(row, rows::parsed(row, 5)?, rows::parsed(row, 6)?)
}

/// Decodes the first columns of a flow.
fn record(row: &Row, request: FlowRequest, steps: Vec<StepStatus>) -> Result<FlowRecord, Fault> {
    let error = json_failure(row, 2)?;
    let ended_at_ms = rows::unsigned(row, 4)?;
    Ok(FlowRecord {
        id: FlowId(rows::bytes(row, 0)?),
        tenant: TenantId(rows::bytes(row, 1)?),
        request,
        state: match (ended_at_ms, &error) {
            (0, _) => FlowState::Running,
            (_, None) => FlowState::Done,
            (_, Some(_)) => FlowState::Failed,
        },
        error,
        steps,
        started_at_ms: rows::unsigned(row, 3)?,
        ended_at_ms,
    })
}
