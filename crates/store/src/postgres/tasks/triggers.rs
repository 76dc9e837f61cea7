//! Triggers and their events, in the database of the tasks that they become.

use std::collections::HashMap;

use dayfly_protocol::error::Failure;
use dayfly_protocol::ids::{EndpointId, TenantId, TriggerId};
use dayfly_protocol::triggers::EventState;
use futures_util::FutureExt;
use tokio_postgres::Row;

use super::{PostgresTasks, json_failure, missing, optional, text};
use crate::Pending;
use crate::postgres::connect::Session;
use crate::postgres::faults::Fault;
use crate::postgres::rows::{self, json, signed};
use crate::tasks::PAGE_BYTES;
use crate::triggers::{EventRecord, NewEvent, NumberedEvent, TriggerRecord, TriggerStore};

/// Most waiting events in one page.
const WAITING: i64 = 1_000;

/// Selects the columns that [`trigger_of`] decodes, followed by more columns.
macro_rules! trigger {
    ($more:literal) => {
        concat!(
            "SELECT id, tenant, name, spec, watched_at, token, created_at_ms, expires_at_ms, done_until_ms, started, refused",
            $more
        )
    };
}

/// Selects the columns that [`event_of`] decodes, until the page is full.
macro_rules! events {
    ($which:literal, $order:literal) => {
        concat!(
            "SELECT number, key, at_ms, event, state, error FROM (SELECT *, sum(octet_length(event)) OVER (ORDER BY number ",
            $order,
            ") - octet_length(event) AS before FROM (SELECT * FROM events WHERE trigger_id = $1 AND ",
            $which,
            " ORDER BY number ",
            $order,
            " LIMIT $2) AS first) AS events WHERE before < $3 ORDER BY number ",
            $order
        )
    };
}

impl TriggerStore for PostgresTasks {
    fn triggers(&self) -> Pending<Vec<(TriggerRecord, u64)>> {
        self.read((), |session, ()| {
            async {
                const ALL: &str =
                    trigger!(", (SELECT count(*) FROM events WHERE trigger_id = id AND state = 0) FROM triggers");
                let found = session.query(ALL, &[]).await?;
                let one = |row: &Row| Ok((trigger_of(row)?, rows::unsigned(row, 11)?));
                found.iter().map(one).collect()
            }
            .boxed()
        })
    }

    fn trigger(&self, trigger: TriggerRecord) -> Pending<TriggerRecord> {
        self.write(trigger, |session, trigger| set(session, trigger).boxed())
    }

    fn remove_trigger(&self, trigger: TriggerId) -> Pending<()> {
        self.write(trigger, |session, trigger| {
            async {
                let id = trigger.0.as_slice();
                session
                    .execute("DELETE FROM events WHERE trigger_id = $1", &[&id])
                    .await?;
                session.execute("DELETE FROM triggers WHERE id = $1", &[&id]).await?;
                Ok(())
            }
            .boxed()
        })
    }

    fn keep_events(
        &self,
        trigger: TriggerId,
        events: Vec<NewEvent>,
        done_until_ms: Option<u64>,
        most: u64,
    ) -> Pending<Vec<NumberedEvent>> {
        let given = (trigger, events, done_until_ms, most);
        self.write(given, |session, (trigger, events, done_until_ms, most)| {
            keep(session, *trigger, events, *done_until_ms, *most).boxed()
        })
    }

    fn waiting_events(&self, trigger: TriggerId) -> Pending<Vec<EventRecord>> {
        self.read(trigger, |session, trigger| {
            async {
                const WAIT: &str = events!("state = 0", "ASC");
                let most = PAGE_BYTES as i64;
                let found = session.query(WAIT, &[&trigger.0.as_slice(), &WAITING, &most]).await?;
                found.iter().map(event_of).collect()
            }
            .boxed()
        })
    }

    fn settle_events(&self, trigger: TriggerId, numbers: Vec<u64>, refusal: Option<Failure>) -> Pending<()> {
        self.write((trigger, numbers, refusal), |session, (trigger, numbers, refusal)| {
            async {
                const SETTLE: &str = "WITH settled AS (UPDATE events SET state = $3, error = $4
                    WHERE trigger_id = $1 AND number = ANY($2) AND state = 0 RETURNING number)
                    UPDATE triggers SET started = started + CASE WHEN $3 = 1 THEN (SELECT count(*) FROM settled) ELSE 0 END,
                    refused = refused + CASE WHEN $3 = 2 THEN (SELECT count(*) FROM settled) ELSE 0 END WHERE id = $1";
                let state: i64 = if refusal.is_none() { 1 } else { 2 };
                let error = refusal.as_ref().map(json);
                let numbers: Vec<i64> = numbers.iter().map(|number| signed(*number)).collect();
                session.execute(SETTLE, &[&trigger.0.as_slice(), &numbers, &state, &error])
                    .await?;
                Ok(())
            }
            .boxed()
        })
    }

    fn events(&self, trigger: TriggerId, before: u64, limit: u32) -> Pending<Vec<EventRecord>> {
        self.read((trigger, before, limit), |session, (trigger, before, limit)| {
            async {
                const PAGE: &str = events!("number < $4", "DESC");
                let (limit, most) = (i64::from(*limit), PAGE_BYTES as i64);
                let found = session
                    .query(PAGE, &[&trigger.0.as_slice(), &limit, &most, &signed(*before)])
                    .await?;
                found.iter().map(event_of).collect()
            }
            .boxed()
        })
    }
}

async fn set(session: &Session, trigger: &TriggerRecord) -> Result<TriggerRecord, Fault> {
    const SET: &str =
        "INSERT INTO triggers (id, tenant, name, spec, watched_at, token, created_at_ms, expires_at_ms, done_until_ms)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (tenant, name) DO UPDATE SET spec = $4, watched_at = $5,
        token = $6, expires_at_ms = $8, done_until_ms = $9";
    let tenant = trigger.tenant.0.as_slice();
    let watched_at = trigger.watched_at.as_ref().map(|endpoint| endpoint.0.as_slice());
    session
        .execute(
            SET,
            &[
                &trigger.id.0.as_slice(),
                &tenant,
                &trigger.name,
                &json(&trigger.spec),
                &watched_at,
                &trigger.token.as_slice(),
                &signed(trigger.created_at_ms),
                &signed(trigger.expires_at_ms),
                &signed(trigger.done_until_ms),
            ],
        )
        .await?;
    const KEPT: &str = trigger!(" FROM triggers WHERE tenant = $1 AND name = $2");
    let kept = session.query(KEPT, &[&tenant, &trigger.name]).await?;
    trigger_of(kept.first().ok_or_else(missing)?)
}

async fn keep(
    session: &Session,
    trigger: TriggerId,
    events: &[NewEvent],
    done_until_ms: Option<u64>,
    most: u64,
) -> Result<Vec<NumberedEvent>, Fault> {
    let id = trigger.0.as_slice();
    let counted = session
        .query("SELECT events FROM triggers WHERE id = $1", &[&id])
        .await?;
    let Some(counted) = counted.first() else {
        return Ok(Vec::new());
    };
    let mut last = rows::unsigned(counted, 0)?;
    let keys: Vec<&[u8]> = events.iter().map(|event| event.key.as_bytes()).collect();
    let sql = "SELECT key, number, at_ms FROM events WHERE trigger_id = $1 AND key = ANY($2)";
    let found = session.query(sql, &[&id, &keys]).await?;
    let known = |row: &Row| Ok((text(row, 0)?, (rows::unsigned(row, 1)?, rows::unsigned(row, 2)?)));
    let mut known = found.iter().map(known).collect::<Result<HashMap<_, _>, Fault>>()?;
    let mut numbered: Vec<NumberedEvent> = Vec::with_capacity(events.len());
    let mut new = Vec::new();
    for event in events {
        if let Some((number, at_ms)) = known.get(&event.key) {
            numbered.push((*number, *at_ms, false));
            continue;
        }
        last += 1;
        known.insert(event.key.clone(), (last, event.at_ms));
        numbered.push((last, event.at_ms, true));
        new.push((last, event));
    }
    if !new.is_empty() {
        const INSERT: &str = "INSERT INTO events (trigger_id, number, key, at_ms, event)
            SELECT $1, * FROM unnest($2::BIGINT[], $3::BYTEA[], $4::BIGINT[], $5::TEXT[])";
        let numbers: Vec<i64> = new.iter().map(|(number, _)| signed(*number)).collect();
        let keys: Vec<&[u8]> = new.iter().map(|(_, event)| event.key.as_bytes()).collect();
        let times: Vec<i64> = new.iter().map(|(_, event)| signed(event.at_ms)).collect();
        let descriptions: Vec<&str> = new.iter().map(|(_, event)| event.event.as_str()).collect();
        session
            .execute(INSERT, &[&id, &numbers, &keys, &times, &descriptions])
            .await?;
    }
    let sql = "UPDATE triggers SET events = $2, done_until_ms = coalesce($3, done_until_ms) WHERE id = $1";
    session
        .execute(sql, &[&id, &signed(last), &done_until_ms.map(signed)])
        .await?;
    let sql = "DELETE FROM events WHERE trigger_id = $1 AND number <= $2 AND state > 0";
    session.execute(sql, &[&id, &signed(last.saturating_sub(most))]).await?;
    Ok(numbered)
}

fn trigger_of(row: &Row) -> Result<TriggerRecord, Fault> {
    Ok(TriggerRecord {
        id: TriggerId(rows::bytes(row, 0)?),
        tenant: TenantId(rows::bytes(row, 1)?),
        name: row.try_get(2)?,
        spec: rows::parsed(row, 3)?,
        watched_at: optional(row, 4)?.map(EndpointId),
        token: rows::bytes(row, 5)?,
        created_at_ms: rows::unsigned(row, 6)?,
        expires_at_ms: rows::unsigned(row, 7)?,
        done_until_ms: rows::unsigned(row, 8)?,
        started: rows::unsigned(row, 9)?,
        refused: rows::unsigned(row, 10)?,
    })
}

fn event_of(row: &Row) -> Result<EventRecord, Fault> {
    let state = usize::try_from(rows::unsigned(row, 4)?).ok();
    let state = state.and_then(|state| EventState::ALL.get(state));
    Ok(EventRecord {
        number: rows::unsigned(row, 0)?,
        event: NewEvent {
            key: text(row, 1)?,
            at_ms: rows::unsigned(row, 2)?,
            event: row.try_get(3)?,
        },
        state: state.copied().unwrap_or(EventState::Refused),
        error: json_failure(row, 5)?,
    })
}
