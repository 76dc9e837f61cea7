//! Teams, and the cost of tasks.

use dayfly_protocol::ids::{EndpointId, FunctionId, TenantId};
use rusqlite::{Row, Transaction, params};

use super::SqliteTasks;
use crate::Pending;
use crate::sqlite::rows::{json, parsed, signed, unsigned};
use crate::teams::{TeamRecord, TeamStore, Usage, UsageKey};

/// The tables of teams and usage.
pub const TABLES: &str = "
CREATE TABLE teams (
    name TEXT PRIMARY KEY, owner BLOB NOT NULL, spec TEXT NOT NULL, removed INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE usage (
    day INTEGER NOT NULL, tenant BLOB NOT NULL, function BLOB NOT NULL, endpoint BLOB NOT NULL, tasks INTEGER NOT NULL,
    failed INTEGER NOT NULL, took_us INTEGER NOT NULL, PRIMARY KEY (day, tenant, function, endpoint)
) WITHOUT ROWID";

/// Adds costs to the tables.
pub const COSTS: &str = "
ALTER TABLE usage ADD COLUMN cost INTEGER NOT NULL DEFAULT 0;
CREATE TABLE costs (tenant BLOB PRIMARY KEY, total INTEGER NOT NULL) WITHOUT ROWID";

impl TeamStore for SqliteTasks {
    fn teams(&self) -> Pending<Vec<TeamRecord>> {
        self.0.read(|connection| {
            connection
                .prepare("SELECT name, owner, spec, removed FROM teams")?
                .query_map([], team_of)?
                .collect()
        })
    }

    fn team(&self, team: TeamRecord) -> Pending<TeamRecord> {
        self.0.write(true, 1, move |transaction| {
            transaction.execute(
                "INSERT INTO teams (name, owner, spec, removed) VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT (name) DO UPDATE SET spec = ?3, removed = ?4 WHERE owner = ?2",
                params![team.name, team.owner.0, json(&team.spec)?, team.removed],
            )?;
            transaction.query_row(
                "SELECT name, owner, spec, removed FROM teams WHERE name = ?1",
                [&team.name],
                team_of,
            )
        })
    }

    fn usage(&self, from: u32, until: u32, tenant: Option<TenantId>, most: u32) -> Pending<Vec<(UsageKey, Usage)>> {
        self.0.read(move |connection| {
            connection
                .prepare_cached(
                    "SELECT day, tenant, function, endpoint, tasks, failed, took_us, cost FROM usage
                     WHERE day >= ?1 AND day < ?2 AND (?3 IS NULL OR tenant = ?3)
                     ORDER BY day, tenant, function, endpoint LIMIT ?4",
                )?
                .query_map(params![from, until, tenant.map(|tenant| tenant.0), most], used)?
                .collect()
        })
    }

    fn delete_usage(&self, before: u32) -> Pending<()> {
        self.0.write(false, 1, move |transaction| {
            transaction
                .prepare_cached("DELETE FROM usage WHERE day < ?1")?
                .execute([before])?;
            Ok(())
        })
    }
}

/// Adds usage, in the transaction of the tasks' outcomes.
pub fn add_usage(transaction: &Transaction<'_>, usage: &[(UsageKey, Usage)]) -> rusqlite::Result<()> {
    let mut add = transaction.prepare_cached(
        "INSERT INTO usage (day, tenant, function, endpoint, tasks, failed, took_us, cost) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
         ON CONFLICT DO UPDATE SET tasks = tasks + ?5, failed = failed + ?6, took_us = min(took_us + ?7, 1 << 62),
         cost = min(cost + ?8, 1 << 62)",
    )?;
    let mut cost = transaction.prepare_cached(
        "INSERT INTO costs (tenant, total) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET total = min(total + ?2, 1 << 62)",
    )?;
    for (key, usage) in usage {
        add.execute(params![
            key.day,
            key.tenant.0,
            key.function.0,
            key.endpoint.0,
            signed(usage.tasks),
            signed(usage.failed),
            signed(usage.took_us.min(1 << 61)),
            signed(usage.cost.min(1 << 61))
        ])?;
        if usage.cost > 0 {
            cost.execute(params![key.tenant.0, signed(usage.cost.min(1 << 61))])?;
        }
    }
    Ok(())
}

fn team_of(row: &Row<'_>) -> rusqlite::Result<TeamRecord> {
    Ok(TeamRecord {
        name: row.get(0)?,
        owner: TenantId(row.get(1)?),
        spec: parsed(row, 2)?,
        removed: row.get(3)?,
    })
}

fn used(row: &Row<'_>) -> rusqlite::Result<(UsageKey, Usage)> {
    let key = UsageKey {
        day: row.get(0)?,
        tenant: TenantId(row.get(1)?),
        function: FunctionId(row.get(2)?),
        endpoint: EndpointId(row.get(3)?),
    };
    let usage = Usage {
        tasks: unsigned(row, 4)?,
        failed: unsigned(row, 5)?,
        took_us: unsigned(row, 6)?,
        cost: unsigned(row, 7)?,
    };
    Ok((key, usage))
}
