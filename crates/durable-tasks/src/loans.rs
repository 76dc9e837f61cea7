//! What tasks owned, used, lent and borrowed: in memory until the task has ended and the store has it.
//!
//! As the last output, it arrives shortly before or after the task's end. So it is written apart from the outcome, a
//! moment later.
//!
//! Adds to `State` the steps that need the live tasks.

use std::collections::{BTreeMap, HashMap};

use dayfly_protocol::api::{LoanSeries, TaskLoans};
use dayfly_protocol::dispatch::{Attempt, TaskOutput};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{EndpointId, TaskId};
use dayfly_protocol::tasks::TaskStatus;
use dayfly_store::StoreError;
use dayfly_store::tasks::StoredLoans;

use crate::Tasks;
use crate::state::State;

/// Points that are kept of all tasks of an endpoint: 5 MiB.
const MAX_POINTS: usize = 65_536;
/// Maximum number of series in one write.
const MAX_BATCH: usize = 256;

/// The series that the store does not have.
#[derive(Debug, Default)]
pub struct UnwrittenLoans {
    by_endpoint: HashMap<EndpointId, EndpointLoans>,
}

/// The series of an endpoint's tasks.
#[derive(Debug, Default)]
struct EndpointLoans {
    known: HashMap<TaskId, KnownLoans>,
    /// Tasks in the order of their series, in which they are evicted.
    order: BTreeMap<u64, TaskId>,
    next: u64,
    points: usize,
}

#[derive(Debug)]
struct KnownLoans {
    /// Number of the attempt.
    number: u16,
    /// Its place in the order.
    place: u64,
    series: LoanSeries,
}

impl EndpointLoans {
    /// Keeps a series, unless that of a later attempt is known.
    fn add(&mut self, attempt: Attempt, series: LoanSeries) {
        let known = self.known.get(&attempt.task);
        if known.is_some_and(|known| known.number > attempt.number) {
            return;
        }
        self.remove(attempt.task);
        self.points += series.points().len();
        let place = self.next;
        self.next += 1;
        self.order.insert(place, attempt.task);
        let known = KnownLoans {
            number: attempt.number,
            place,
            series,
        };
        self.known.insert(attempt.task, known);
        while self.points > MAX_POINTS
            && let Some(oldest) = self.order.values().next().copied()
        {
            self.remove(oldest);
        }
    }

    fn remove(&mut self, task: TaskId) {
        if let Some(known) = self.known.remove(&task) {
            self.points -= known.series.points().len();
            self.order.remove(&known.place);
        }
    }
}

impl UnwrittenLoans {
    fn get(&self, task: TaskId, attempts: u16) -> Option<&LoanSeries> {
        let mut found = self.by_endpoint.values().filter_map(|loans| loans.known.get(&task));
        found.find(|known| known.number == attempts).map(|known| &known.series)
    }
}

impl State {
    /// A dispatcher reports what executions lent and borrowed. Ignores those at other endpoints, and impossible ones.
    pub fn on_loans(&mut self, id: EndpointId, reported: &mut [TaskOutput]) {
        for one in reported {
            let Some(series) = one.loans.take().and_then(LoanSeries::within_bounds) else {
                continue;
            };
            let live = self.tasks.get(one.attempt.task);
            if live.is_none_or(|live| live.endpoint() == id) {
                let loans = self.loans.by_endpoint.entry(id).or_default();
                loans.add(one.attempt, series);
            }
        }
    }

    /// Some series of tasks that have ended.
    fn unwritten_loans(&self) -> Vec<StoredLoans> {
        let all = self.loans.by_endpoint.iter();
        let all = all.flat_map(|(endpoint, loans)| loans.order.values().map(move |task| (*endpoint, *task, loans)));
        let ended = all.filter(|(_, task, _)| !self.tasks.contains(*task));
        let some = ended.take(MAX_BATCH).filter_map(|(endpoint, task, loans)| {
            let known = loans.known.get(&task)?;
            Some(StoredLoans {
                attempt: Attempt {
                    task,
                    number: known.number,
                },
                endpoint,
                series: known.series.clone(),
            })
        });
        some.collect()
    }

    /// Drops series that are written.
    fn drop_loans(&mut self, written: &[StoredLoans]) {
        for one in written {
            if let Some(loans) = self.loans.by_endpoint.get_mut(&one.endpoint) {
                loans.remove(one.attempt.task);
            }
        }
        self.loans.by_endpoint.retain(|_, loans| !loans.known.is_empty());
    }
}

impl Tasks {
    /// Returns what the last execution of a task owned, used, lent and borrowed.
    ///
    /// # Errors
    /// `NotFound` with the reason if that is not known.
    pub async fn loans(&self, task: &TaskStatus) -> Result<TaskLoans, Failure> {
        let unwritten = self.state().loans.get(task.id, task.attempts).cloned();
        let found = match unwritten {
            None => self.store.loans(task.id).wait().await?,
            found => found,
        };
        found.map(|series| series.of_task(task.id)).ok_or_else(|| unknown(task))
    }

    /// Writes what ended tasks lent and borrowed, as far as the store does not have it.
    pub(super) async fn write_loans(&self) -> Result<(), StoreError> {
        loop {
            let some = self.state().unwritten_loans();
            if some.is_empty() {
                return Ok(());
            }
            self.store.keep_loans(some.clone()).wait().await?;
            self.state().drop_loans(&some);
        }
    }
}

/// Why the loans of a task are not known.
fn unknown(task: &TaskStatus) -> Failure {
    let id = task.id;
    let text = match (task.ended_at_ms, task.attempts) {
        (0, _) => format!("what task {id} lends and borrows is known when it has ended; ask again then"),
        (_, 0) => format!("task {id} was not executed, so it lent and borrowed nothing"),
        _ => format!(
            "the last execution of task {id} was not measured. Nodes with `--harvest watch` or `on` measure executions \
             of 20 ms and more on one worker, from the second one of a worker on"
        ),
    };
    Failure::new(Code::NotFound, text)
}

#[cfg(test)]
mod tests {
    use dayfly_protocol::api::{LoanPoint, MAX_LOAN_POINTS};

    use super::*;

    fn series(points: usize) -> LoanSeries {
        let point = LoanPoint {
            us: 1,
            ..LoanPoint::default()
        };
        LoanSeries::checked(vec![point; points]).unwrap()
    }

    fn attempt(task: u32, number: u16) -> Attempt {
        let mut id = [0; 16];
        id[..4].copy_from_slice(&task.to_be_bytes());
        Attempt {
            task: TaskId(id),
            number,
        }
    }

    #[test]
    fn series_of_last_attempt_is_kept() {
        let mut loans = EndpointLoans::default();
        for (number, points, kept) in [(1, 1, 1), (2, 2, 2), (1, 3, 2), (2, 4, 4)] {
            loans.add(attempt(7, number), series(points));
            assert_eq!(loans.known[&attempt(7, 0).task].series.points().len(), kept, "{number}");
            assert_eq!((loans.order.len(), loans.points), (1, kept));
        }
    }

    #[test]
    fn earliest_series_are_evicted_beyond_the_bound() {
        let mut loans = EndpointLoans::default();
        for task in 0..2_000 {
            loans.add(attempt(task, 1), series(MAX_LOAN_POINTS));
        }
        assert_eq!(
            (loans.points, loans.known.len()),
            (MAX_POINTS, MAX_POINTS / MAX_LOAN_POINTS)
        );
        assert_eq!(loans.order.len(), loans.known.len());
        assert!(!loans.known.contains_key(&attempt(0, 1).task) && loans.known.contains_key(&attempt(1_999, 1).task));
    }
}
