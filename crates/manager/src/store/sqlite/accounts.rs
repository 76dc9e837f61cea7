//! Teams, and what tasks cost.

use mayfly_protocol::ids::{EndpointId, FunctionId, TenantId};
use rusqlite::{Row, Transaction, params};

use super::tasks::SqliteTasks;
use super::{json, parsed, signed, unsigned};
use crate::store::Pending;
use crate::store::accounts::{SharingStore, TeamRecord, Usage, UsageKey};

/// The tables.
pub const TABLES: &str = "
CREATE TABLE teams (
    name TEXT PRIMARY KEY, owner BLOB NOT NULL, spec TEXT NOT NULL, removed INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE usage (
    day INTEGER NOT NULL, tenant BLOB NOT NULL, function BLOB NOT NULL, endpoint BLOB NOT NULL, tasks INTEGER NOT NULL,
    failed INTEGER NOT NULL, took_us INTEGER NOT NULL, PRIMARY KEY (day, tenant, function, endpoint)
) WITHOUT ROWID";

impl SharingStore for SqliteTasks {
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
                    "SELECT day, tenant, function, endpoint, tasks, failed, took_us FROM usage
                     WHERE day >= ?1 AND day < ?2 AND (?3 IS NULL OR tenant = ?3)
                     ORDER BY day, tenant, function, endpoint LIMIT ?4",
                )?
                .query_map(params![from, until, tenant.map(|tenant| tenant.0), most], used)?
                .collect()
        })
    }

    fn forget_usage(&self, before: u32) -> Pending<()> {
        self.0.write(false, 1, move |transaction| {
            transaction
                .prepare_cached("DELETE FROM usage WHERE day < ?1")?
                .execute([before])?;
            Ok(())
        })
    }
}

/// Adds what tasks cost, together with their ends.
pub fn add_usage(transaction: &Transaction<'_>, usage: &[(UsageKey, Usage)]) -> rusqlite::Result<()> {
    let mut add = transaction.prepare_cached(
        "INSERT INTO usage (day, tenant, function, endpoint, tasks, failed, took_us) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
         ON CONFLICT DO UPDATE SET tasks = tasks + ?5, failed = failed + ?6, took_us = min(took_us + ?7, 1 << 62)",
    )?;
    for (key, usage) in usage {
        add.execute(params![
            key.day,
            key.tenant.0,
            key.function.0,
            key.endpoint.0,
            signed(usage.tasks),
            signed(usage.failed),
            signed(usage.took_us.min(1 << 61))
        ])?;
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
    };
    Ok((key, usage))
}

#[cfg(test)]
mod tests {
    use mayfly_protocol::tasks::TeamSpec;

    use super::*;
    use crate::store::tasks::TaskStore;

    #[tokio::test]
    async fn a_team_changes_for_its_owner_alone() {
        let store = SqliteTasks::open(None, None).unwrap();
        let team = |owner: u8, member: &str| TeamRecord {
            name: "astro".into(),
            owner: TenantId([owner; 16]),
            spec: TeamSpec {
                description: String::new(),
                members: vec![member.into()],
            },
            removed: false,
        };
        assert_eq!(store.team(team(1, "alice")).wait().await, Ok(team(1, "alice")));
        assert_eq!(store.team(team(2, "bob")).wait().await, Ok(team(1, "alice")));
        assert_eq!(store.team(team(1, "carol")).wait().await, Ok(team(1, "carol")));
        assert_eq!(store.teams().wait().await, Ok(vec![team(1, "carol")]));
        let removed = TeamRecord {
            removed: true,
            ..team(1, "carol")
        };
        store.team(removed.clone()).wait().await.unwrap();
        assert_eq!(store.team(team(2, "bob")).wait().await, Ok(removed));
    }

    #[tokio::test]
    async fn what_tasks_cost_is_added_up_by_day_tenant_function_and_endpoint() {
        let store = SqliteTasks::open(None, None).unwrap();
        let key = |day, tenant| UsageKey {
            day,
            tenant: TenantId([tenant; 16]),
            function: FunctionId([3; 16]),
            endpoint: EndpointId([4; 16]),
        };
        let usage = |tasks| Usage {
            tasks,
            failed: 1,
            took_us: 10 * tasks,
        };
        let some = vec![(key(7, 1), usage(2)), (key(7, 2), usage(5))];
        store.end(Vec::new(), some).wait().await.unwrap();
        store
            .end(Vec::new(), vec![(key(7, 1), usage(3)), (key(8, 1), usage(1))])
            .wait()
            .await
            .unwrap();
        let both = Usage { failed: 2, ..usage(5) };
        let all = store.usage(0, u32::MAX, None, 9).wait().await.unwrap();
        assert_eq!(all, [(key(7, 1), both), (key(7, 2), usage(5)), (key(8, 1), usage(1))]);
        let own = store.usage(7, 8, Some(TenantId([1; 16])), 9).wait().await.unwrap();
        assert_eq!(own, [(key(7, 1), both)]);
        store.forget_usage(8).wait().await.unwrap();
        assert_eq!(
            store.usage(0, u32::MAX, None, 9).wait().await.unwrap(),
            [(key(8, 1), usage(1))]
        );
    }
}
