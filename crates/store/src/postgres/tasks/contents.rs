//! The contents of the content store.

use std::collections::HashMap;

use dayfly_protocol::contents::Content;
use dayfly_protocol::ids::{ContentHash, TaskId, TenantId};

use crate::postgres::connect::Session;
use crate::postgres::faults::Fault;
use crate::postgres::rows::{self, signed, small};
use crate::tasks::{ListedContent, MAX_COUNTED_USES};

/// Unused contents processed in one step.
const UNUSED_STEP: i64 = 500;

/// Records that a content is stored. Returns whether it is new.
pub async fn keep(session: &Session, tenant: TenantId, content: Content, now_ms: u64) -> Result<bool, Fault> {
    let (tenant, hash, now_ms) = (tenant.0.as_slice(), content.hash.0.as_slice(), signed(now_ms));
    let sql = "UPDATE contents SET used_at_ms = $3, going = false WHERE tenant = $1 AND content = $2";
    if session.execute(sql, &[&tenant, &hash, &now_ms]).await? > 0 {
        return Ok(false);
    }
    let sql = "INSERT INTO contents (tenant, content, bytes, used_at_ms, since_ms) VALUES ($1, $2, $3, $4, $4)";
    session
        .execute(sql, &[&tenant, &hash, &signed(content.bytes), &now_ms])
        .await?;
    Ok(true)
}

/// Returns contents that are about to be used.
pub async fn used(
    session: &Session,
    tenant: TenantId,
    hashes: &[ContentHash],
    now_ms: u64,
) -> Result<Vec<Option<Content>>, Fault> {
    let all: Vec<&[u8]> = hashes.iter().map(|hash| hash.0.as_slice()).collect();
    let sql = "UPDATE contents SET used_at_ms = $3 WHERE tenant = $1 AND content = ANY($2) AND NOT going
        RETURNING content, bytes";
    let found = session
        .query(sql, &[&tenant.0.as_slice(), &all, &signed(now_ms)])
        .await?;
    let bytes = |row: &tokio_postgres::Row| Ok((ContentHash(rows::bytes(row, 0)?), rows::unsigned(row, 1)?));
    let known = found.iter().map(bytes).collect::<Result<HashMap<_, _>, Fault>>()?;
    let content = |hash: &ContentHash| {
        known.get(hash).map(|bytes| Content {
            hash: *hash,
            bytes: *bytes,
        })
    };
    Ok(hashes.iter().map(content).collect())
}

/// Returns unused contents. From now on they are unknown.
pub async fn unused(session: &Session, since_ms: u64) -> Result<Vec<(TenantId, Content)>, Fault> {
    let sql = "UPDATE contents SET going = true WHERE (tenant, content) IN
        (SELECT tenant, content FROM contents AS c WHERE going OR (used_at_ms < $1
         AND NOT EXISTS (SELECT FROM tasks WHERE tasks.tenant = c.tenant AND arguments_content = c.content)
         AND NOT EXISTS (SELECT FROM tasks WHERE tasks.tenant = c.tenant AND answer_content = c.content)) LIMIT $2)
        RETURNING tenant, content, bytes";
    let found = session.query(sql, &[&signed(since_ms), &UNUSED_STEP]).await?;
    let one = |row: &tokio_postgres::Row| {
        let content = Content {
            hash: ContentHash(rows::bytes(row, 1)?),
            bytes: rows::unsigned(row, 2)?,
        };
        Ok((TenantId(rows::bytes(row, 0)?), content))
    };
    found.iter().map(one).collect()
}

/// Returns a tenant's contents with hashes after this one.
pub async fn list(
    session: &Session,
    tenant: TenantId,
    after: Option<ContentHash>,
    limit: u32,
) -> Result<Vec<ListedContent>, Fault> {
    const LIST: &str = "SELECT content, bytes, since_ms, used_at_ms,
        (SELECT count(*) FROM (SELECT FROM tasks WHERE tasks.tenant = c.tenant AND arguments_content = c.content
         LIMIT $4) AS uses),
        (SELECT count(*) FROM (SELECT FROM tasks WHERE tasks.tenant = c.tenant AND answer_content = c.content
         LIMIT $4) AS uses),
        coalesce((SELECT id FROM tasks WHERE tasks.tenant = c.tenant AND arguments_content = c.content LIMIT 1),
         (SELECT id FROM tasks WHERE tasks.tenant = c.tenant AND answer_content = c.content LIMIT 1))
        FROM contents AS c WHERE tenant = $1 AND content > $2 AND NOT going ORDER BY content LIMIT $3";
    let after = after.as_ref().map_or(&[][..], |hash| &hash.0);
    let (limit, most_uses) = (i64::from(limit), i64::from(MAX_COUNTED_USES));
    let found = session
        .query(LIST, &[&tenant.0.as_slice(), &after, &limit, &most_uses])
        .await?;
    let one = |row: &tokio_postgres::Row| {
        let task: Option<&[u8]> = row.try_get(6)?;
        Ok(ListedContent {
            content: Content {
                hash: ContentHash(rows::bytes(row, 0)?),
                bytes: rows::unsigned(row, 1)?,
            },
            since_ms: rows::unsigned(row, 2)?,
            used_at_ms: rows::unsigned(row, 3)?,
            arguments_of: small(row, 4)?,
            results_of: small(row, 5)?,
            task: task.map(|_| rows::bytes(row, 6)).transpose()?.map(TaskId),
        })
    };
    found.iter().map(one).collect()
}

/// Deletes unused contents.
pub async fn delete(session: &Session, contents: &[(TenantId, Content)]) -> Result<(), Fault> {
    let tenants: Vec<&[u8]> = contents.iter().map(|(tenant, _)| tenant.0.as_slice()).collect();
    let hashes: Vec<&[u8]> = contents.iter().map(|(_, content)| content.hash.0.as_slice()).collect();
    let sql = "DELETE FROM contents USING unnest($1::BYTEA[], $2::BYTEA[]) AS old (tenant, content)
        WHERE contents.tenant = old.tenant AND contents.content = old.content AND going";
    session.execute(sql, &[&tenants, &hashes]).await?;
    Ok(())
}
