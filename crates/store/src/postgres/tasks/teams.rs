//! Teams, and the cost of tasks.

use dayfly_protocol::ids::{EndpointId, FunctionId, TenantId};
use futures_util::FutureExt;
use tokio_postgres::Row;

use super::{PostgresTasks, missing};
use crate::Pending;
use crate::postgres::connect::Session;
use crate::postgres::faults::Fault;
use crate::postgres::rows::{self, json, signed, small};
use crate::teams::{TeamRecord, TeamStore, Usage, UsageKey};

impl TeamStore for PostgresTasks {
    fn teams(&self) -> Pending<Vec<TeamRecord>> {
        self.read((), |session, ()| {
            async {
                let found = session
                    .query("SELECT name, owner, spec, removed FROM teams", &[])
                    .await?;
                found.iter().map(team_of).collect()
            }
            .boxed()
        })
    }

    fn team(&self, team: TeamRecord) -> Pending<TeamRecord> {
        self.write(team, |session, team| {
            async {
                let sql = "INSERT INTO teams (name, owner, spec, removed) VALUES ($1, $2, $3, $4)
                    ON CONFLICT (name) DO UPDATE SET spec = $3, removed = $4 WHERE teams.owner = $2";
                let owner = team.owner.0.as_slice();
                session
                    .execute(sql, &[&team.name, &owner, &json(&team.spec), &team.removed])
                    .await?;
                let sql = "SELECT name, owner, spec, removed FROM teams WHERE name = $1";
                let kept = session.query(sql, &[&team.name]).await?;
                team_of(kept.first().ok_or_else(missing)?)
            }
            .boxed()
        })
    }

    fn usage(&self, from: u32, until: u32, tenant: Option<TenantId>, most: u32) -> Pending<Vec<(UsageKey, Usage)>> {
        self.read((from, until, tenant, most), |session, (from, until, tenant, most)| {
            async {
                let sql = "SELECT day, tenant, function, endpoint, tasks, failed, took_us, cost FROM usage
                    WHERE day >= $1 AND day < $2 AND ($3::BYTEA IS NULL OR tenant = $3)
                    ORDER BY day, tenant, function, endpoint LIMIT $4";
                let tenant = tenant.as_ref().map(|tenant| tenant.0.as_slice());
                let (from, until, most) = (i64::from(*from), i64::from(*until), i64::from(*most));
                let found = session.query(sql, &[&from, &until, &tenant, &most]).await?;
                found.iter().map(used).collect()
            }
            .boxed()
        })
    }

    fn delete_usage(&self, before: u32) -> Pending<()> {
        self.write(before, |session, before| {
            async {
                session
                    .execute("DELETE FROM usage WHERE day < $1", &[&i64::from(*before)])
                    .await?;
                Ok(())
            }
            .boxed()
        })
    }
}

/// Adds usage, in the transaction of the tasks' outcomes.
pub async fn add_usage(session: &Session, usage: &[(UsageKey, Usage)]) -> Result<(), Fault> {
    const ADD: &str = "INSERT INTO usage AS known (day, tenant, function, endpoint, tasks, failed, took_us, cost)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (day, tenant, function, endpoint) DO UPDATE
        SET tasks = known.tasks + $5, failed = known.failed + $6, took_us = least(known.took_us + $7, 1::BIGINT << 62),
        cost = least(known.cost + $8, 1::BIGINT << 62)";
    const COST: &str = "INSERT INTO costs AS known (tenant, total) VALUES ($1, $2)
        ON CONFLICT (tenant) DO UPDATE SET total = least(known.total + $2, 1::BIGINT << 62)";
    let add = |(key, usage): &(UsageKey, Usage)| {
        let (key, usage) = (*key, *usage);
        async move {
            let (tenant, function, endpoint) = (
                key.tenant.0.as_slice(),
                key.function.0.as_slice(),
                key.endpoint.0.as_slice(),
            );
            let (tasks, failed) = (signed(usage.tasks), signed(usage.failed));
            let took_us = signed(usage.took_us.min(1 << 61));
            let cost = signed(usage.cost.min(1 << 61));
            let day = i64::from(key.day);
            session
                .execute(
                    ADD,
                    &[&day, &tenant, &function, &endpoint, &tasks, &failed, &took_us, &cost],
                )
                .await?;
            if cost > 0 {
                session.execute(COST, &[&tenant, &cost]).await?;
            }
            Ok::<(), Fault>(())
        }
    };
    futures_util::future::try_join_all(usage.iter().map(add)).await?;
    Ok(())
}

fn team_of(row: &Row) -> Result<TeamRecord, Fault> {
    Ok(TeamRecord {
        name: row.try_get(0)?,
        owner: TenantId(rows::bytes(row, 1)?),
        spec: rows::parsed(row, 2)?,
        removed: row.try_get(3)?,
    })
}

fn used(row: &Row) -> Result<(UsageKey, Usage), Fault> {
    let key = UsageKey {
        day: small(row, 0)?,
        tenant: TenantId(rows::bytes(row, 1)?),
        function: FunctionId(rows::bytes(row, 2)?),
        endpoint: EndpointId(rows::bytes(row, 3)?),
    };
    let usage = Usage {
        tasks: rows::unsigned(row, 4)?,
        failed: rows::unsigned(row, 5)?,
        took_us: rows::unsigned(row, 6)?,
        cost: rows::unsigned(row, 7)?,
    };
    Ok((key, usage))
}
