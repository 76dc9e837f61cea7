//! The audit log: who changed what, and its trimming.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dayfly_protocol::error::Failure;
use dayfly_protocol::ids::TenantId;
use dayfly_protocol::tenancy::AuditEntry;
use dayfly_protocol::text;
use dayfly_store::system::now_ms;
use dayfly_store::{AUDIT_STEP, AuditPage, AuditTrim, Bearer, Store, TrimResult};
use tokio::sync::Notify;

use crate::cluster::millis;
use crate::control::Control;
use crate::extractors::Caller;
use crate::options::Options;
use crate::shutdown::stopped;

/// Entries of one page.
pub const MAX_ENTRIES: u32 = 1_000;
/// Bytes of an entry's subject.
const MAX_SUBJECT_BYTES: usize = 256;
/// Bytes of an entry's details.
const MAX_DETAILS_BYTES: usize = 4 << 10;
/// Period of trimming.
const TRIM_PERIOD: Duration = Duration::from_secs(3600);
/// Trim after this many new entries without waiting for the period. They take some 40 MiB at most.
const TRIM_AFTER_ENTRIES: u64 = 10_000;

/// The audit log.
pub struct AuditLog {
    store: Arc<dyn Store>,
    /// How long entries are kept.
    kept_for: Duration,
    /// How many bytes of entries are kept.
    max_bytes: u64,
    /// Entries that this manager has added.
    added: AtomicU64,
    /// Notified when so many entries were added that the log should be trimmed.
    trim_due: Notify,
}

/// Returns the id with which a token is shown and revoked: a part of its hash, which reveals nothing about the token.
pub fn token_id(bearer: &Bearer) -> String {
    hex::encode(&bearer.hash[..8])
}

/// Returns the details of an action as JSON. Long details are cut to their beginning and end.
fn details_text(details: &impl serde::Serialize) -> String {
    let whole = serde_json::to_string(details).unwrap_or_default();
    if whole.len() <= MAX_DETAILS_BYTES {
        return whole;
    }
    // A quarter leaves room for quotes, which are escaped once more.
    let part = text::bounded(&whole, MAX_DETAILS_BYTES / 4);
    serde_json::json!({ "bytes": whole.len(), "cut": part }).to_string()
}

impl AuditLog {
    /// Returns the log in a store.
    pub fn new(store: Arc<dyn Store>, options: &Options) -> Self {
        Self {
            store,
            kept_for: options.keep_audit,
            max_bytes: options.most_audit_bytes,
            added: AtomicU64::new(0),
            trim_due: Notify::new(),
        }
    }

    /// Writes an entry. Call it before the action, so that no action lacks an entry.
    pub async fn record(
        &self,
        caller: &Caller,
        action: &str,
        subject: impl ToString,
        details: &impl serde::Serialize,
    ) -> Result<(), Failure> {
        let by = (caller.bearer.tenant, token_id(&caller.bearer));
        self.record_for(by, action, subject, details).await
    }

    /// Writes an entry for a tenant and a token, or a text in place of a token's id.
    pub async fn record_for(
        &self,
        (tenant, token): (TenantId, String),
        action: &str,
        subject: impl ToString,
        details: &impl serde::Serialize,
    ) -> Result<(), Failure> {
        let entry = AuditEntry {
            number: 0,
            at_ms: now_ms(),
            tenant,
            token,
            action: action.into(),
            subject: text::bounded(&subject.to_string(), MAX_SUBJECT_BYTES),
            details: details_text(details),
        };
        self.store.audit(entry).wait().await?;
        if (self.added.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(TRIM_AFTER_ENTRIES) {
            self.trim_due.notify_one();
        }
        Ok(())
    }

    /// Returns a page of entries.
    pub async fn page(&self, page: AuditPage) -> Result<Vec<AuditEntry>, Failure> {
        let limit = page.limit.clamp(1, MAX_ENTRIES);
        Ok(self.store.audited(AuditPage { limit, ..page }).wait().await?)
    }

    /// Removes entries that are too old or exceed the size limit. Returns their number.
    async fn trim(&self) -> Result<u64, Failure> {
        let mut trim = AuditTrim {
            above: 0,
            step: AUDIT_STEP,
            up_to: self.store.audit_surplus(self.max_bytes).wait().await?,
            before_ms: now_ms().saturating_sub(millis(self.kept_for)),
        };
        let mut removed = 0;
        loop {
            let TrimResult { entries, next } = self.store.trim_audit(trim).wait().await?;
            removed += entries;
            match next {
                Some(next) => trim.above = next,
                None => return Ok(removed),
            }
        }
    }
}

/// Trims the audit log until the manager stops.
pub async fn run_trimming(control: Arc<Control>) {
    let mut stopping = control.shutdown().subscribe();
    let mut ticks = tokio::time::interval(TRIM_PERIOD);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = control.audit().trim_due.notified() => {}
            _ = stopped(&mut stopping) => return,
        }
        match control.audit().trim().await {
            Ok(0) => {}
            Ok(entries) => tracing::info!(entries, "removed old entries of the audit log"),
            Err(error) => tracing::warn!(%error, "cannot trim the audit log; trying again in an hour"),
        }
    }
}
