//! The contents of the content store.

use dayfly_protocol::contents::Content;
use dayfly_protocol::ids::{ContentHash, TaskId, TenantId};
use rusqlite::{Connection, OptionalExtension, Transaction, params};

use crate::sqlite::rows::{signed, unsigned};
use crate::tasks::{ListedContent, MAX_COUNTED_USES};

/// Unused contents processed in one step.
pub const UNUSED_STEP: u32 = 500;

/// Records that a content is stored. Returns whether it is new.
pub fn keep(transaction: &Transaction<'_>, tenant: TenantId, content: Content, now_ms: u64) -> rusqlite::Result<bool> {
    let known = transaction
        .prepare_cached("UPDATE contents SET used_at_ms = ?3, going = 0 WHERE tenant = ?1 AND content = ?2")?
        .execute(params![tenant.0, content.hash.0, signed(now_ms)])?;
    if known > 0 {
        return Ok(false);
    }
    transaction
        .prepare_cached(
            "INSERT INTO contents (tenant, content, bytes, used_at_ms, since_ms) VALUES (?1, ?2, ?3, ?4, ?4)",
        )?
        .execute(params![tenant.0, content.hash.0, signed(content.bytes), signed(now_ms)])?;
    Ok(true)
}

/// Returns contents that are about to be used.
pub fn used(
    transaction: &Transaction<'_>,
    tenant: TenantId,
    hashes: &[ContentHash],
    now_ms: u64,
) -> rusqlite::Result<Vec<Option<Content>>> {
    let mut used = transaction.prepare_cached(
        "UPDATE contents SET used_at_ms = ?3 WHERE tenant = ?1 AND content = ?2 AND NOT going RETURNING bytes",
    )?;
    let find = |hash: &ContentHash| {
        let found = used.query_row(params![tenant.0, hash.0, signed(now_ms)], |row| unsigned(row, 0));
        Ok(found.optional()?.map(|bytes| Content { hash: *hash, bytes }))
    };
    hashes.iter().map(find).collect()
}

/// Returns unused contents. From now on they are unknown.
pub fn unused(transaction: &Transaction<'_>, unused_since_ms: u64) -> rusqlite::Result<Vec<(TenantId, Content)>> {
    let unused = "used_at_ms < ?1
        AND NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.tenant = c.tenant AND arguments_content = c.content)
        AND NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.tenant = c.tenant AND answer_content = c.content)";
    transaction
        .prepare_cached(&format!(
            "UPDATE contents SET going = 1 WHERE (tenant, content) IN
             (SELECT tenant, content FROM contents AS c WHERE going OR ({unused}) LIMIT ?2)
             RETURNING tenant, content, bytes"
        ))?
        .query_map(params![signed(unused_since_ms), UNUSED_STEP], |row| {
            let content = Content {
                hash: ContentHash(row.get(1)?),
                bytes: unsigned(row, 2)?,
            };
            Ok((TenantId(row.get(0)?), content))
        })?
        .collect()
}

/// Returns a tenant's contents with hashes after this one.
pub fn list(
    connection: &Connection,
    tenant: TenantId,
    after: Option<ContentHash>,
    limit: u32,
) -> rusqlite::Result<Vec<ListedContent>> {
    let uses = |column: &str| {
        let those = format!("FROM tasks WHERE tasks.tenant = c.tenant AND {column} = c.content");
        format!("(SELECT count(*) FROM (SELECT 1 {those} LIMIT {MAX_COUNTED_USES})), (SELECT id {those} LIMIT 1)")
    };
    let (arguments, answers) = (uses("arguments_content"), uses("answer_content"));
    connection
        .prepare_cached(&format!(
            "SELECT content, bytes, since_ms, used_at_ms, {arguments}, {answers} FROM contents AS c
             WHERE tenant = ?1 AND content > ?2 AND NOT going ORDER BY content LIMIT ?3"
        ))?
        .query_map(
            params![tenant.0, after.as_ref().map_or(&[][..], |hash| &hash.0), limit],
            |row| {
                let task: Option<[u8; 16]> = row.get(5)?;
                let other: Option<[u8; 16]> = row.get(7)?;
                Ok(ListedContent {
                    content: Content {
                        hash: ContentHash(row.get(0)?),
                        bytes: unsigned(row, 1)?,
                    },
                    since_ms: unsigned(row, 2)?,
                    used_at_ms: unsigned(row, 3)?,
                    arguments_of: row.get(4)?,
                    results_of: row.get(6)?,
                    task: task.or(other).map(TaskId),
                })
            },
        )?
        .collect()
}

/// Deletes unused contents.
pub fn delete(transaction: &Transaction<'_>, contents: &[(TenantId, Content)]) -> rusqlite::Result<()> {
    let mut drop = transaction.prepare_cached("DELETE FROM contents WHERE tenant = ?1 AND content = ?2 AND going")?;
    for (tenant, content) in contents {
        drop.execute(params![tenant.0, content.hash.0])?;
    }
    Ok(())
}
