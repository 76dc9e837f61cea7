//! Bodies of the manager's HTTP API about queries of data frames, which their clients report while they run.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::bounds::{self, MAX_MESSAGE_BYTES};
use crate::error::{Code, Failure};
use crate::ids::{LeaseId, QueryId};
use crate::named::named_enum;

/// Longest text of a query.
pub const MAX_QUERY_TEXT_BYTES: usize = 4 << 10;
/// Most stages, and most ranks, of one report.
pub const MAX_QUERY_PARTS: usize = 512;
/// Most leases of one query.
pub const MAX_QUERY_LEASES: usize = 512;
/// Longest body of a report: 200 bytes for each part, and texts of escaped characters.
pub const MAX_REPORT_BYTES: usize = 320 << 10;

named_enum! {
    /// State of a query.
    QueryState, "a query state" {
        /// Its client reports that it runs.
        Running = "running",
        /// It has returned all rows.
        Done = "done",
        /// It has ended with an error.
        Failed = "failed",
        /// Its client, or a request to the manager, has ended it.
        Cancelled = "cancelled",
        /// Its client reports no more.
        Lost = "lost",
    }
}

/// What tasks of a query have done. Tasks that run count as tasks alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct QueryWork {
    /// Number of tasks.
    pub tasks: u32,
    /// Number of tasks that have ended.
    pub ended: u32,
    /// Rows that they have sent on.
    pub rows: u64,
    /// Bytes that they have received from other tasks.
    pub received_bytes: u64,
    /// Bytes that did not fit into memory, and went to disk.
    pub spilled_bytes: u64,
    /// Time that cores have computed, in microseconds.
    pub core_us: u64,
}

impl QueryWork {
    /// Returns the sum of both.
    pub fn plus(self, other: Self) -> Self {
        Self {
            tasks: self.tasks.saturating_add(other.tasks),
            ended: self.ended.saturating_add(other.ended),
            rows: self.rows.saturating_add(other.rows),
            received_bytes: self.received_bytes.saturating_add(other.received_bytes),
            spilled_bytes: self.spilled_bytes.saturating_add(other.spilled_bytes),
            core_us: self.core_us.saturating_add(other.core_us),
        }
    }
}

/// The part of a query that one stage or one rank has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueryPart {
    /// Number of the stage or of the rank.
    pub number: u32,
    /// What its tasks have done.
    #[serde(flatten)]
    pub work: QueryWork,
}

/// `PUT /v1/queries/{id}`: what the client of a query knows of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueryReport {
    /// The SQL text, or a description of the plan.
    pub text: String,
    /// State of the query; never `lost`.
    pub state: QueryState,
    /// Why it has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Time since it began, in milliseconds.
    pub elapsed_ms: u64,
    /// Leases of its ranks.
    #[serde(default)]
    pub leases: Vec<LeaseId>,
    /// What the tasks of each stage have done.
    #[serde(default)]
    pub stages: Vec<QueryPart>,
    /// What the tasks of each rank have done.
    #[serde(default)]
    pub ranks: Vec<QueryPart>,
    /// Runs of the query, or of its tasks, that were lost with their ranks.
    #[serde(default)]
    pub lost_runs: u32,
    /// What the leases of its ranks cost in this time, in billionths of the site's unit, if the client knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<u64>,
}

impl QueryReport {
    /// Checks the state, and the lengths of texts and lists.
    ///
    /// # Errors
    /// `InvalidRequest`.
    pub fn check(&self) -> Result<(), Failure> {
        if self.state == QueryState::Lost {
            let text = "a client cannot report its query as lost; report it as failed or cancelled";
            return Err(Failure::new(Code::InvalidRequest, text));
        }
        bounds::check("the query's text", &self.text, MAX_QUERY_TEXT_BYTES)?;
        bounds::check(
            "the query's error",
            self.error.as_deref().unwrap_or_default(),
            MAX_MESSAGE_BYTES,
        )?;
        check_count("stages", self.stages.len(), MAX_QUERY_PARTS)?;
        check_count("ranks", self.ranks.len(), MAX_QUERY_PARTS)?;
        check_count("leases", self.leases.len(), MAX_QUERY_LEASES)
    }

    /// What all its ranks have done.
    pub fn total(&self) -> QueryWork {
        let works = self.ranks.iter().map(|part| part.work);
        works.fold(QueryWork::default(), QueryWork::plus)
    }

    /// Core time of the rank with most, over the mean; `None` before a task has ended.
    pub fn skew(&self) -> Option<f64> {
        let times = || self.ranks.iter().map(|part| part.work.core_us as f64);
        let mean = times().sum::<f64>() / self.ranks.len() as f64;
        (mean > 0.0).then(|| times().fold(0.0, f64::max) / mean)
    }
}

fn check_count(what: &str, count: usize, max: usize) -> Result<(), Failure> {
    if count <= max {
        return Ok(());
    }
    let text = format!("the report names {count} {what}; {max} are allowed");
    Err(Failure::new(Code::InvalidRequest, text))
}

/// The response to a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueryInstruction {
    /// Whether the client is to cancel the query.
    pub cancel: bool,
}

/// A query, as in `GET /v1/queries`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QueryStatus {
    /// Id of the query.
    pub id: QueryId,
    /// Name of its tenant.
    pub tenant: String,
    /// The SQL text, or a description of the plan.
    pub text: String,
    /// State of the query.
    pub state: QueryState,
    /// Why it has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whether its client has been, or will be, asked to cancel it.
    pub is_cancelling: bool,
    /// When it began, in milliseconds since the Unix epoch.
    pub started_at_ms: u64,
    /// How long it has run, in milliseconds; of a lost one, until its last report.
    pub elapsed_ms: u64,
    /// When its client reported last, in milliseconds since the Unix epoch.
    pub reported_at_ms: u64,
    /// Leases of its ranks.
    pub leases: Vec<LeaseId>,
    /// What all its ranks have done.
    pub total: QueryWork,
    /// Core time of the rank with most, over the mean; absent before a task has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skew: Option<f64>,
    /// Runs of the query, or of its tasks, that were lost with their ranks.
    pub lost_runs: u32,
    /// What the leases of its ranks cost in this time, in billionths of the site's unit, if the client knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<u64>,
    /// What the tasks of each stage have done. Only in responses about one query.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<QueryPart>,
    /// What the tasks of each rank have done. Only in responses about one query.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<QueryPart>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(number: u32, core_us: u64) -> QueryPart {
        let work = QueryWork {
            tasks: 1,
            core_us,
            ..QueryWork::default()
        };
        QueryPart { number, work }
    }

    fn report(ranks: Vec<QueryPart>) -> QueryReport {
        QueryReport {
            text: "SELECT 1".into(),
            state: QueryState::Running,
            error: None,
            elapsed_ms: 1,
            leases: Vec::new(),
            stages: Vec::new(),
            ranks,
            lost_runs: 0,
            cost: None,
        }
    }

    #[test]
    fn skew_compares_the_slowest_rank() {
        assert_eq!(report(vec![rank(0, 30), rank(1, 10)]).skew(), Some(1.5));
        assert_eq!(report(vec![rank(0, 0), rank(1, 0)]).skew(), None);
        assert_eq!(report(Vec::new()).skew(), None);
    }

    #[test]
    fn totals_of_hostile_reports_are_cut() {
        let total = report(vec![rank(0, u64::MAX), rank(0, 5)]).total();
        assert_eq!((total.tasks, total.core_us), (2, u64::MAX));
    }

    #[test]
    fn reports_beyond_a_bound_are_refused() {
        let refused = |change: fn(&mut QueryReport)| {
            let mut changed = report(Vec::new());
            change(&mut changed);
            changed.check().expect_err("a bound").message
        };
        assert_eq!(report(vec![rank(0, 1); MAX_QUERY_PARTS]).check(), Ok(()));
        assert!(refused(|report| report.text = "x".repeat(5_000)).contains("text has 5000 bytes"));
        assert!(refused(|report| report.error = Some("x".repeat(5_000))).contains("error has 5000 bytes"));
        assert!(refused(|report| report.ranks = vec![rank(0, 1); 513]).contains("513 ranks"));
        assert!(refused(|report| report.stages = vec![rank(0, 1); 513]).contains("513 stages"));
        assert!(refused(|report| report.leases = vec![LeaseId([0; 16]); 513]).contains("513 leases"));
        assert!(refused(|report| report.state = QueryState::Lost).contains("lost"));
    }

    #[test]
    fn longest_report_fits_its_bound() {
        let most = QueryPart {
            number: u32::MAX,
            work: QueryWork {
                tasks: u32::MAX,
                ended: u32::MAX,
                rows: u64::MAX,
                received_bytes: u64::MAX,
                spilled_bytes: u64::MAX,
                core_us: u64::MAX,
            },
        };
        let mut longest = report(vec![most; MAX_QUERY_PARTS]);
        longest.stages = longest.ranks.clone();
        longest.leases = vec![LeaseId([255; 16]); MAX_QUERY_LEASES];
        longest.text = "\u{1}".repeat(MAX_QUERY_TEXT_BYTES);
        longest.error = Some("\u{1}".repeat(MAX_MESSAGE_BYTES));
        let json = serde_json::to_string(&longest).unwrap();
        assert!(json.len() <= MAX_REPORT_BYTES, "{}", json.len());
        assert_eq!(serde_json::from_str::<QueryReport>(&json).unwrap(), longest);
    }
}
