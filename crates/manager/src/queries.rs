//! Queries of data frames that their clients report while they run.
//!
//! They are kept in the memory of the manager that owns the tasks, which all others forward requests about queries to.
//! Each report has the whole state of its query. So after a restart, or with another owner, a running query is known
//! again with its next report, a second later. Nothing is written to the store.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{QueryId, TenantId};
use dayfly_protocol::queries::{QueryInstruction, QueryReport, QueryState, QueryStatus};

/// Most queries of one tenant. Beyond it, the tenant's query that ended first is forgotten.
const MAX_QUERIES_OF_TENANT: usize = 64;
/// Most queries of all tenants: 64 MiB of the longest reports.
const MAX_QUERIES: usize = 1_024;
/// A query whose client has been silent for this long is lost. Clients report every second.
const MAX_SILENCE_MS: u64 = 15_000;
/// How long a query is kept after its last report, in milliseconds.
const MAX_AGE_MS: u64 = 3_600_000;

/// The queries of all tenants.
#[derive(Debug, Default)]
pub struct KnownQueries(Mutex<BTreeMap<QueryId, Kept>>);

#[derive(Debug)]
struct Kept {
    tenant: TenantId,
    report: QueryReport,
    started_at_ms: u64,
    reported_at_ms: u64,
    is_cancelling: bool,
}

/// A query, and the tenant that it belongs to.
pub type Owned = (TenantId, QueryStatus);

impl Kept {
    fn silence_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.reported_at_ms)
    }

    fn state(&self, now_ms: u64) -> QueryState {
        match self.report.state {
            QueryState::Running if self.silence_ms(now_ms) > MAX_SILENCE_MS => QueryState::Lost,
            state => state,
        }
    }

    /// The status without stages and ranks. The caller adds the tenant's name.
    fn summary(&self, id: QueryId, now_ms: u64) -> QueryStatus {
        let (report, state) = (&self.report, self.state(now_ms));
        let since_report_ms = match state {
            QueryState::Running => self.silence_ms(now_ms),
            _ => 0,
        };
        QueryStatus {
            id,
            tenant: String::new(),
            text: report.text.clone(),
            state,
            error: report.error.clone(),
            is_cancelling: self.is_cancelling && state == QueryState::Running,
            started_at_ms: self.started_at_ms,
            elapsed_ms: report.elapsed_ms.saturating_add(since_report_ms),
            reported_at_ms: self.reported_at_ms,
            leases: report.leases.clone(),
            total: report.total(),
            skew: report.skew(),
            lost_runs: report.lost_runs,
            cost: report.cost,
            stages: Vec::new(),
            ranks: Vec::new(),
        }
    }

    fn status(&self, id: QueryId, now_ms: u64) -> QueryStatus {
        QueryStatus {
            stages: self.report.stages.clone(),
            ranks: self.report.ranks.clone(),
            ..self.summary(id, now_ms)
        }
    }
}

impl KnownQueries {
    /// Locks the queries, and forgets old ones.
    fn known(&self, now_ms: u64) -> MutexGuard<'_, BTreeMap<QueryId, Kept>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, kept| kept.silence_ms(now_ms) <= MAX_AGE_MS);
        known
    }

    /// Keeps a report of a tenant's query in place of the one before. A query that has ended stays as it is.
    ///
    /// # Errors
    /// `InvalidRequest` if the report exceeds a bound, `Forbidden` if the query is another tenant's, `QuotaExceeded` if
    /// too many other queries run.
    pub fn report(
        &self,
        tenant: TenantId,
        id: QueryId,
        report: QueryReport,
        now_ms: u64,
    ) -> Result<QueryInstruction, Failure> {
        report.check()?;
        let mut known = self.known(now_ms);
        let cancel = match known.get_mut(&id) {
            Some(kept) if kept.tenant != tenant => {
                let text = "the query belongs to another tenant; report yours under an id of its own";
                return Err(Failure::new(Code::Forbidden, text));
            }
            Some(kept) => {
                if kept.report.state == QueryState::Running {
                    (kept.report, kept.reported_at_ms) = (report, now_ms);
                }
                kept.is_cancelling && kept.report.state == QueryState::Running
            }
            None => {
                make_room(&mut known, tenant, now_ms)?;
                let kept = Kept {
                    tenant,
                    started_at_ms: now_ms.saturating_sub(report.elapsed_ms),
                    reported_at_ms: now_ms,
                    is_cancelling: false,
                    report,
                };
                known.insert(id, kept);
                false
            }
        };
        Ok(QueryInstruction { cancel })
    }

    /// Returns a query with its stages and ranks.
    pub fn get(&self, id: QueryId, now_ms: u64) -> Option<Owned> {
        let known = self.known(now_ms);
        known.get(&id).map(|kept| (kept.tenant, kept.status(id, now_ms)))
    }

    /// Returns the queries of the tenants that `sees` accepts, in this state if one is given. Running ones are first,
    /// and the latest of them.
    pub fn list(&self, sees: impl Fn(TenantId) -> bool, state: Option<QueryState>, now_ms: u64) -> Vec<Owned> {
        let known = self.known(now_ms);
        let seen = known.iter().filter(|(_, kept)| sees(kept.tenant));
        let seen = seen.filter(|(_, kept)| state.is_none_or(|state| kept.state(now_ms) == state));
        let mut listed: Vec<Owned> = seen
            .map(|(id, kept)| (kept.tenant, kept.summary(*id, now_ms)))
            .collect();
        listed.sort_by_key(|(_, status)| {
            let has_ended = status.state != QueryState::Running;
            (has_ended, Reverse(status.started_at_ms), status.id)
        });
        listed
    }

    /// Has the response to the next report of a query say that its client is to cancel it. Returns the query. One that
    /// has ended stays as it is.
    pub fn cancel(&self, id: QueryId, now_ms: u64) -> Option<Owned> {
        let mut known = self.known(now_ms);
        let kept = known.get_mut(&id)?;
        kept.is_cancelling = true;
        Some((kept.tenant, kept.status(id, now_ms)))
    }

    /// Forgets all queries: another manager has them.
    pub fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Makes room for one more query of a tenant: forgets the query that ended first, of this tenant if it has as many as it
/// may, otherwise of the tenant with most queries.
///
/// # Errors
/// `QuotaExceeded` if none of these has ended.
fn make_room(known: &mut BTreeMap<QueryId, Kept>, tenant: TenantId, now_ms: u64) -> Result<(), Failure> {
    let mut counts: HashMap<TenantId, usize> = HashMap::new();
    for kept in known.values() {
        *counts.entry(kept.tenant).or_default() += 1;
    }
    let is_tenant_full = counts.get(&tenant).copied().unwrap_or(0) >= MAX_QUERIES_OF_TENANT;
    if !is_tenant_full && known.len() < MAX_QUERIES {
        return Ok(());
    }
    let is_ended = |kept: &Kept| kept.state(now_ms) != QueryState::Running;
    let candidates = known
        .iter()
        .filter(|(_, kept)| is_ended(kept) && (!is_tenant_full || kept.tenant == tenant));
    let first = candidates.min_by_key(|(_, kept)| (Reverse(counts.get(&kept.tenant)), kept.reported_at_ms));
    match first.map(|(id, _)| *id) {
        Some(id) => {
            known.remove(&id);
            Ok(())
        }
        None => Err(Failure::new(
            Code::QuotaExceeded,
            format!(
                "{MAX_QUERIES_OF_TENANT} queries of your tenant, or {MAX_QUERIES} of all tenants, are reported as running; \
                 this one is shown once another has ended"
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use dayfly_protocol::queries::QueryPart;

    use super::*;

    const ASTRO: TenantId = TenantId([1; 16]);
    const BIO: TenantId = TenantId([2; 16]);
    const START_MS: u64 = 1_000_000;

    fn id(number: usize) -> QueryId {
        QueryId((number as u128).to_be_bytes())
    }

    fn report(state: QueryState, elapsed_ms: u64) -> QueryReport {
        QueryReport {
            text: "SELECT 1".into(),
            state,
            error: None,
            elapsed_ms,
            leases: Vec::new(),
            stages: Vec::new(),
            ranks: vec![QueryPart {
                number: 0,
                work: Default::default(),
            }],
            lost_runs: 0,
            cost: None,
        }
    }

    fn states(queries: &KnownQueries, now_ms: u64) -> Vec<(QueryId, QueryState)> {
        let listed = queries.list(|_| true, None, now_ms);
        listed.iter().map(|(_, status)| (status.id, status.state)).collect()
    }

    #[test]
    fn running_queries_are_listed_first() {
        let queries = KnownQueries::default();
        for (number, state) in [QueryState::Running, QueryState::Done, QueryState::Running]
            .into_iter()
            .enumerate()
        {
            let now_ms = START_MS + number as u64;
            queries.report(ASTRO, id(number), report(state, 0), now_ms).unwrap();
        }
        let expected = [
            (id(2), QueryState::Running),
            (id(0), QueryState::Running),
            (id(1), QueryState::Done),
        ];
        assert_eq!(states(&queries, START_MS + 5), expected);
        let done = queries.list(|_| true, Some(QueryState::Done), START_MS + 5);
        assert_eq!(done.len(), 1);
        assert!(queries.list(|tenant| tenant == BIO, None, START_MS + 5).is_empty());
    }

    #[test]
    fn silent_query_is_lost_until_it_reports() {
        let queries = KnownQueries::default();
        queries
            .report(ASTRO, id(0), report(QueryState::Running, 500), START_MS)
            .unwrap();
        let later_ms = START_MS + MAX_SILENCE_MS;
        let (_, status) = queries.get(id(0), later_ms).unwrap();
        assert_eq!(
            (status.state, status.elapsed_ms),
            (QueryState::Running, 500 + MAX_SILENCE_MS)
        );
        let (_, status) = queries.get(id(0), later_ms + 1).unwrap();
        assert_eq!((status.state, status.elapsed_ms), (QueryState::Lost, 500));
        assert_eq!(status.started_at_ms, START_MS - 500);
        queries
            .report(ASTRO, id(0), report(QueryState::Running, 20_000), later_ms + 2)
            .unwrap();
        assert_eq!(states(&queries, later_ms + 3), [(id(0), QueryState::Running)]);
        assert!(states(&queries, later_ms + 3 + MAX_AGE_MS).is_empty());
    }

    #[test]
    fn ended_query_stays_as_reported() {
        let queries = KnownQueries::default();
        for state in [QueryState::Running, QueryState::Failed, QueryState::Running] {
            queries.report(ASTRO, id(0), report(state, 7), START_MS).unwrap();
        }
        assert_eq!(states(&queries, START_MS), [(id(0), QueryState::Failed)]);
        queries.cancel(id(0), START_MS).unwrap();
        let late = queries.report(ASTRO, id(0), report(QueryState::Running, 8), START_MS);
        assert_eq!(late, Ok(QueryInstruction { cancel: false }));
    }

    #[test]
    fn cancellation_reaches_the_next_report() {
        let queries = KnownQueries::default();
        let running = || queries.report(ASTRO, id(0), report(QueryState::Running, 7), START_MS);
        assert_eq!(running(), Ok(QueryInstruction { cancel: false }));
        let (tenant, status) = queries.cancel(id(0), START_MS).unwrap();
        assert!(tenant == ASTRO && status.is_cancelling && status.ranks.len() == 1);
        assert_eq!(running(), Ok(QueryInstruction { cancel: true }));
        assert!(queries.cancel(id(1), START_MS).is_none());
    }

    #[test]
    fn other_tenant_cannot_overwrite_a_query() {
        let queries = KnownQueries::default();
        queries
            .report(ASTRO, id(0), report(QueryState::Running, 7), START_MS)
            .unwrap();
        let refused = queries.report(BIO, id(0), report(QueryState::Done, 9), START_MS);
        assert_eq!(refused.unwrap_err().code, Code::Forbidden);
        assert_eq!(states(&queries, START_MS), [(id(0), QueryState::Running)]);
    }

    #[test]
    fn full_tenant_forgets_its_first_ended() {
        let queries = KnownQueries::default();
        queries
            .report(BIO, id(9_999), report(QueryState::Done, 1), START_MS)
            .unwrap();
        for number in 0..=MAX_QUERIES_OF_TENANT {
            let state = if number == 3 {
                QueryState::Done
            } else {
                QueryState::Running
            };
            queries.report(ASTRO, id(number), report(state, 0), START_MS).unwrap();
        }
        assert!(queries.get(id(3), START_MS).is_none() && queries.get(id(9_999), START_MS).is_some());
        let refused = queries.report(ASTRO, id(500), report(QueryState::Running, 0), START_MS);
        assert_eq!(refused.unwrap_err().code, Code::QuotaExceeded);
        // Lost ones are displaced as well.
        let later_ms = START_MS + MAX_SILENCE_MS + 1;
        queries
            .report(ASTRO, id(500), report(QueryState::Running, 0), later_ms)
            .unwrap();
        let own = queries.list(|tenant| tenant == ASTRO, None, later_ms);
        assert_eq!(own.len(), MAX_QUERIES_OF_TENANT);
    }

    #[test]
    fn full_site_displaces_the_largest_tenant() {
        let queries = KnownQueries::default();
        queries
            .report(BIO, id(0), report(QueryState::Done, 0), START_MS)
            .unwrap();
        for number in 1..MAX_QUERIES {
            let tenant = TenantId([10 + (number / 60) as u8; 16]);
            queries
                .report(
                    tenant,
                    id(number),
                    report(QueryState::Done, 0),
                    START_MS + number as u64,
                )
                .unwrap();
        }
        queries
            .report(ASTRO, id(5_000), report(QueryState::Running, 0), START_MS + 5_000)
            .unwrap();
        let listed = states(&queries, START_MS + 5_000);
        assert_eq!(listed.len(), MAX_QUERIES);
        assert!(listed.contains(&(id(0), QueryState::Done)) && listed.contains(&(id(5_000), QueryState::Running)));
    }
}
