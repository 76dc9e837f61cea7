//! Pages and trimming of the audit log.

/// Entries of the audit log that one step of trimming examines.
pub const AUDIT_STEP: u32 = 10_000;

/// Approximate bytes of an entry besides its subject and details.
pub const AUDIT_ENTRY_BYTES: u64 = 100;

/// One step of trimming the audit log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditTrim {
    /// Examines entries with greater numbers.
    pub above: u64,
    /// Most entries to examine.
    pub step: u32,
    /// Deletes entries up to this number.
    pub up_to: u64,
    /// Deletes entries from before this time, in milliseconds since the Unix epoch.
    pub before_ms: u64,
}

/// Result of one step of trimming the audit log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TrimResult {
    /// Number of deleted entries.
    pub entries: u64,
    /// Where the next step begins, if there may be more entries.
    pub next: Option<u64>,
}

/// Selects entries of the audit log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditPage {
    /// Entries with greater numbers than this.
    pub above: u64,
    /// Entries with smaller numbers than this: the last of them. `None` for the first entries after `above`.
    pub before: Option<u64>,
    /// Most entries.
    pub limit: u32,
}

impl AuditPage {
    /// Returns the upper bound within the range of a database's integers.
    pub(crate) fn below(&self) -> i64 {
        let most = i64::MAX as u64;
        self.before.unwrap_or(most).min(most) as i64
    }
}
