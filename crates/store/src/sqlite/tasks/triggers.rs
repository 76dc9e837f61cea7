//! Triggers and their events, in the file of the tasks that they become.

use dayfly_protocol::error::Failure;
use dayfly_protocol::ids::{EndpointId, TenantId, TriggerId};
use dayfly_protocol::triggers::EventState;
use rusqlite::{OptionalExtension, Row, Rows, Transaction, params};

use super::SqliteTasks;
use crate::Pending;
use crate::sqlite::rows::{json, parsed, signed, unsigned};
use crate::tasks::PAGE_BYTES;
use crate::triggers::{EventRecord, NewEvent, NumberedEvent, TriggerRecord, TriggerStore};

/// The tables of triggers and events.
pub const TABLES: &str = "
CREATE TABLE triggers (
    id BLOB PRIMARY KEY, tenant BLOB NOT NULL, name TEXT NOT NULL, spec TEXT NOT NULL, watched_at BLOB, token BLOB NOT NULL,
    created_at_ms INTEGER NOT NULL, expires_at_ms INTEGER NOT NULL, done_until_ms INTEGER NOT NULL,
    events INTEGER NOT NULL DEFAULT 0, started INTEGER NOT NULL DEFAULT 0, refused INTEGER NOT NULL DEFAULT 0,
    UNIQUE (tenant, name)
) WITHOUT ROWID;
CREATE TABLE events (
    trigger_id BLOB NOT NULL, number INTEGER NOT NULL, key TEXT NOT NULL, at_ms INTEGER NOT NULL, event TEXT NOT NULL,
    state INTEGER NOT NULL DEFAULT 0, error TEXT, PRIMARY KEY (trigger_id, number), UNIQUE (trigger_id, key)
) WITHOUT ROWID;
CREATE INDEX events_waiting ON events (trigger_id, number) WHERE state = 0";

/// Most waiting events in one page.
const WAITING: u32 = 1_000;

impl TriggerStore for SqliteTasks {
    fn triggers(&self) -> Pending<Vec<(TriggerRecord, u64)>> {
        self.0.read(|connection| {
            connection
                .prepare(&format!(
                    "SELECT {TRIGGER}, (SELECT count(*) FROM events WHERE trigger_id = id AND state = 0) FROM triggers"
                ))?
                .query_map([], |row| Ok((trigger_of(row)?, unsigned(row, 11)?)))?
                .collect()
        })
    }

    fn trigger(&self, trigger: TriggerRecord) -> Pending<TriggerRecord> {
        self.0.write(true, 1, move |transaction| {
            transaction.execute(
                "INSERT INTO triggers (id, tenant, name, spec, watched_at, token, created_at_ms, expires_at_ms, done_until_ms)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
                 ON CONFLICT (tenant, name) DO UPDATE SET spec = ?4, watched_at = ?5, token = ?6, expires_at_ms = ?8,
                 done_until_ms = ?9",
                params![
                    trigger.id.0,
                    trigger.tenant.0,
                    trigger.name,
                    json(&trigger.spec)?,
                    trigger.watched_at.map(|endpoint| endpoint.0),
                    trigger.token,
                    signed(trigger.created_at_ms),
                    signed(trigger.expires_at_ms),
                    signed(trigger.done_until_ms)
                ],
            )?;
            transaction.query_row(
                &format!("SELECT {TRIGGER} FROM triggers WHERE tenant = ?1 AND name = ?2"),
                params![trigger.tenant.0, trigger.name],
                trigger_of,
            )
        })
    }

    fn remove_trigger(&self, trigger: TriggerId) -> Pending<()> {
        self.0.write(true, 1_000, move |transaction| {
            transaction.execute("DELETE FROM events WHERE trigger_id = ?1", [trigger.0])?;
            transaction.execute("DELETE FROM triggers WHERE id = ?1", [trigger.0])?;
            Ok(())
        })
    }

    fn keep_events(
        &self,
        trigger: TriggerId,
        events: Vec<NewEvent>,
        done_until_ms: Option<u64>,
        most: u64,
    ) -> Pending<Vec<NumberedEvent>> {
        self.0.write(true, events.len() + 1, move |transaction| {
            let counted = transaction
                .prepare_cached("SELECT events FROM triggers WHERE id = ?1")?
                .query_row([trigger.0], |row| unsigned(row, 0))
                .optional()?;
            let Some(mut last) = counted else {
                return Ok(Vec::new());
            };
            let mut numbered = Vec::with_capacity(events.len());
            for event in &events {
                numbered.push(keep(transaction, trigger, event, &mut last)?);
            }
            transaction
                .prepare_cached(
                    "UPDATE triggers SET events = ?2, done_until_ms = coalesce(?3, done_until_ms) WHERE id = ?1",
                )?
                .execute(params![trigger.0, signed(last), done_until_ms.map(signed)])?;
            transaction
                .prepare_cached("DELETE FROM events WHERE trigger_id = ?1 AND number <= ?2 AND state > 0")?
                .execute(params![trigger.0, signed(last.saturating_sub(most))])?;
            Ok(numbered)
        })
    }

    fn waiting_events(&self, trigger: TriggerId) -> Pending<Vec<EventRecord>> {
        self.0.read(move |connection| {
            let mut statement = connection.prepare_cached(&format!(
                "SELECT {EVENT} FROM events WHERE trigger_id = ?1 AND state = 0 ORDER BY number LIMIT ?2"
            ))?;
            page(statement.query(params![trigger.0, WAITING])?)
        })
    }

    fn settle_events(&self, trigger: TriggerId, numbers: Vec<u64>, refusal: Option<Failure>) -> Pending<()> {
        self.0.write(true, numbers.len(), move |transaction| {
            let (state, error) = match &refusal {
                None => (1, None),
                Some(failure) => (2, Some(json(failure)?)),
            };
            let mut settled = 0;
            let mut settle = transaction.prepare_cached(
                "UPDATE events SET state = ?3, error = ?4 WHERE trigger_id = ?1 AND number = ?2 AND state = 0",
            )?;
            for number in &numbers {
                settled += settle.execute(params![trigger.0, signed(*number), state, error])?;
            }
            let counted = if refusal.is_none() { "started" } else { "refused" };
            transaction
                .prepare_cached(&format!("UPDATE triggers SET {counted} = {counted} + ?2 WHERE id = ?1"))?
                .execute(params![trigger.0, settled as i64])?;
            Ok(())
        })
    }

    fn events(&self, trigger: TriggerId, before: u64, limit: u32) -> Pending<Vec<EventRecord>> {
        self.0.read(move |connection| {
            let mut statement = connection.prepare_cached(&format!(
                "SELECT {EVENT} FROM events WHERE trigger_id = ?1 AND number < ?2 ORDER BY number DESC LIMIT ?3"
            ))?;
            page(statement.query(params![trigger.0, signed(before), limit])?)
        })
    }
}

/// Returns events until the page is full.
fn page(mut rows: Rows<'_>) -> rusqlite::Result<Vec<EventRecord>> {
    let (mut found, mut bytes) = (Vec::new(), 0);
    while bytes < PAGE_BYTES
        && let Some(row) = rows.next()?
    {
        let event = event_of(row)?;
        bytes += event.event.event.len();
        found.push(event);
    }
    Ok(found)
}

/// Stores an event. Returns its number, which is the next one if its key is new.
fn keep(
    transaction: &Transaction<'_>,
    trigger: TriggerId,
    event: &NewEvent,
    last: &mut u64,
) -> rusqlite::Result<NumberedEvent> {
    let known = transaction
        .prepare_cached("SELECT number, at_ms FROM events WHERE trigger_id = ?1 AND key = ?2")?
        .query_row(params![trigger.0, event.key], |row| {
            Ok((unsigned(row, 0)?, unsigned(row, 1)?, false))
        })
        .optional()?;
    if let Some(known) = known {
        return Ok(known);
    }
    *last += 1;
    transaction
        .prepare_cached("INSERT INTO events (trigger_id, number, key, at_ms, event) VALUES (?1, ?2, ?3, ?4, ?5)")?
        .execute(params![
            trigger.0,
            signed(*last),
            event.key,
            signed(event.at_ms),
            event.event
        ])?;
    Ok((*last, event.at_ms, true))
}

const TRIGGER: &str =
    "id, tenant, name, spec, watched_at, token, created_at_ms, expires_at_ms, done_until_ms, started, refused";

fn trigger_of(row: &Row<'_>) -> rusqlite::Result<TriggerRecord> {
    Ok(TriggerRecord {
        id: TriggerId(row.get(0)?),
        tenant: TenantId(row.get(1)?),
        name: row.get(2)?,
        spec: parsed(row, 3)?,
        watched_at: row.get::<_, Option<_>>(4)?.map(EndpointId),
        token: row.get(5)?,
        created_at_ms: unsigned(row, 6)?,
        expires_at_ms: unsigned(row, 7)?,
        done_until_ms: unsigned(row, 8)?,
        started: unsigned(row, 9)?,
        refused: unsigned(row, 10)?,
    })
}

const EVENT: &str = "number, key, at_ms, event, state, error";

fn event_of(row: &Row<'_>) -> rusqlite::Result<EventRecord> {
    let state = EventState::ALL.get(row.get::<_, usize>(4)?);
    Ok(EventRecord {
        number: unsigned(row, 0)?,
        event: NewEvent {
            key: row.get(1)?,
            at_ms: unsigned(row, 2)?,
            event: row.get(3)?,
        },
        state: state.copied().unwrap_or(EventState::Refused),
        error: match row.get_ref(5)? {
            rusqlite::types::ValueRef::Null => None,
            _ => Some(parsed(row, 5)?),
        },
    })
}
