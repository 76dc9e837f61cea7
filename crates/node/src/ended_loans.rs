//! What the last measured calls of a lease had over time, for the lease's holder to fetch with its output.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dayfly_protocol::node_api::{CallLoans, EndedLoans};
use tokio::sync::watch;

/// Calls that are kept: those that end while a holder reconnects.
const MAX_KEPT: usize = 64;
/// Points in one response, of about 300 bytes.
const MAX_RESPONSE_POINTS: usize = 1024;

/// The last measured calls that have ended.
#[derive(Debug)]
pub struct EndedCalls {
    kept: Mutex<VecDeque<CallLoans>>,
    /// Calls in total.
    count: watch::Sender<u64>,
}

impl Default for EndedCalls {
    fn default() -> Self {
        Self {
            kept: Mutex::default(),
            count: watch::channel(0).0,
        }
    }
}

impl EndedCalls {
    fn kept(&self) -> MutexGuard<'_, VecDeque<CallLoans>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a call.
    pub fn add(&self, call: CallLoans) {
        let mut kept = self.kept();
        if kept.len() == MAX_KEPT {
            kept.pop_front();
        }
        kept.push_back(call);
        self.count.send_modify(|count| *count += 1);
    }

    /// Calls from number `from` on, as far as they are kept and fit in a response.
    pub fn read(&self, from: u64) -> EndedLoans {
        let kept = self.kept();
        let count = *self.count.borrow();
        let first = count - kept.len() as u64;
        let start = from.clamp(first, count);
        let skip = usize::try_from(start - first).unwrap_or(usize::MAX);
        let mut points = 0;
        let calls = kept.iter().skip(skip).take_while(|call| {
            points += call.series.points().len();
            points <= MAX_RESPONSE_POINTS
        });
        let calls: Vec<CallLoans> = calls.cloned().collect();
        EndedLoans {
            next: start + calls.len() as u64,
            calls,
        }
    }

    /// Waits until there is a call from number `from` on.
    pub async fn wait(&self, from: u64) {
        // The sender lives as long as this.
        let _ = self.count.subscribe().wait_for(|count| *count > from).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dayfly_protocol::api::{LoanPoint, LoanSeries, MAX_LOAN_POINTS};
    use dayfly_protocol::ids::WorkerIndex;
    use dayfly_protocol::node_api::Printer;

    use super::*;

    fn call(sequence: u32, points: usize) -> CallLoans {
        let point = LoanPoint {
            us: 100_000,
            ..LoanPoint::default()
        };
        CallLoans {
            by: Printer {
                worker: WorkerIndex(0),
                sequence,
            },
            series: LoanSeries::checked(vec![point; points]).unwrap(),
        }
    }

    fn sequences(read: &EndedLoans) -> Vec<u32> {
        read.calls.iter().map(|call| call.by.sequence).collect()
    }

    #[test]
    fn each_call_is_read_once_in_order() {
        let ended = EndedCalls::default();
        assert!(ended.read(0).is_empty());
        (0..3).for_each(|sequence| ended.add(call(sequence, 1)));
        let read = ended.read(0);
        assert_eq!((sequences(&read), read.next), (vec![0, 1, 2], 3));
        assert_eq!(sequences(&ended.read(1)), [1, 2]);
        let read = ended.read(u64::MAX);
        assert_eq!((sequences(&read), read.next), (vec![], 3));
    }

    #[test]
    fn earliest_calls_are_dropped_beyond_the_bound() {
        let ended = EndedCalls::default();
        (0..1_000).for_each(|sequence| ended.add(call(sequence, MAX_LOAN_POINTS)));
        let (mut from, mut seen) = (0, Vec::new());
        loop {
            let read = ended.read(from);
            if read.calls.is_empty() {
                break;
            }
            assert!(read.calls.len() * MAX_LOAN_POINTS <= MAX_RESPONSE_POINTS);
            assert!(serde_json::to_vec(&read).unwrap().len() < 512 << 10);
            seen.extend(sequences(&read));
            from = read.next;
        }
        assert_eq!(seen, (1_000 - MAX_KEPT as u32..1_000).collect::<Vec<_>>());
        assert_eq!(from, 1_000);
    }

    #[tokio::test]
    async fn waiting_reader_is_woken_by_an_end() {
        let ended = Arc::new(EndedCalls::default());
        ended.add(call(0, 1));
        let waiting = tokio::spawn({
            let ended = Arc::clone(&ended);
            async move { ended.wait(1).await }
        });
        tokio::task::yield_now().await;
        ended.add(call(1, 1));
        tokio::time::timeout(std::time::Duration::from_secs(20), waiting)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(sequences(&ended.read(1)), [1]);
    }
}
