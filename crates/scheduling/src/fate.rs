//! Decides whether a task ends, is retried or is requeued after an attempt.

use dayfly_protocol::error::Code;
use dayfly_protocol::tasks::MAX_RETRY_WAIT_MS;

/// What a task's owner allows, and the task's history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Whether it may be executed again when it may have been executed.
    pub repeatable: bool,
    /// Remaining retries after failures of its function.
    pub retries_left: u16,
    /// Executions that faults have cost so far.
    pub faults: u16,
    /// Its owner has cancelled it.
    pub cancelled: bool,
    pub late: bool,
}

/// Most executions that a task may lose to faults: a task that keeps killing its worker is itself the fault.
pub const MAX_FAULTS: u16 = 5;

/// Decision about a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Keep the reported outcome.
    Done,
    /// Requeue the task.
    Again {
        /// It costs a retry: its function failed.
        retry: bool,
        /// It costs a fault: something else failed.
        fault: bool,
    },
    /// End the task with this code in place of the reported one.
    As(Code),
}

/// The wait in milliseconds after another failure of the function: twice the last one, up to a bound.
pub fn next_wait(waited_ms: u32) -> u32 {
    waited_ms.saturating_mul(2).min(MAX_RETRY_WAIT_MS)
}

/// Decides about a task after an execution. `error` is `None` for success; `begun` is whether its function may have
/// begun.
pub fn fate(terms: Terms, error: Option<Code>, begun: bool) -> Fate {
    let Some(code) = error else { return Fate::Done };
    if code != Code::FunctionError && (terms.cancelled || terms.late) {
        return Fate::As(if terms.cancelled {
            Code::Cancelled
        } else {
            Code::DeadlineExceeded
        });
    }
    match code {
        // The function itself failed, or another execution would fail in the same way. The source of an environment may
        // respond at another time.
        Code::FunctionError
        | Code::DeadlineExceeded
        | Code::OutOfMemory
        | Code::OutputOverflow
        | Code::EnvironmentFailed => match terms.retries_left > 0 && !terms.late {
            true => Fate::Again {
                retry: true,
                fault: false,
            },
            false => Fate::Done,
        },
        Code::Cancelled
        | Code::LoadFailed
        | Code::PythonMismatch
        | Code::PayloadTooLarge
        | Code::InvalidRequest
        | Code::TooLarge
        | Code::IsolationUnavailable
        | Code::Forbidden => Fate::Done,
        // No site has what the task needs to run in.
        Code::NotFound if !begun => Fate::Done,
        // It was executed, and its result does not fit in the quota.
        Code::QuotaExceeded if begun => Fate::Done,
        // A fault of the worker, the node, the lease or the dispatcher.
        _ if begun && !terms.repeatable => Fate::As(Code::MaybeExecuted),
        _ if begun && terms.faults + 1 >= MAX_FAULTS => Fate::As(Code::MaybeExecuted),
        _ => Fate::Again {
            retry: false,
            fault: begun,
        },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const AGAIN: Fate = Fate::Again {
        retry: false,
        fault: false,
    };
    const RETRIED: Fate = Fate::Again {
        retry: true,
        fault: false,
    };
    const TERMS: Terms = Terms {
        repeatable: false,
        retries_left: 0,
        faults: 0,
        cancelled: false,
        late: false,
    };

    #[test]
    fn what_was_not_begun_goes_back_and_what_may_have_been_does_not() {
        assert_eq!(fate(TERMS, Some(Code::NotExecuted), false), AGAIN);
        assert_eq!(
            fate(TERMS, Some(Code::MaybeExecuted), true),
            Fate::As(Code::MaybeExecuted)
        );
    }

    #[test]
    fn a_task_whose_answer_is_more_than_its_owner_may_keep_is_not_executed_again() {
        assert_eq!(fate(TERMS, Some(Code::QuotaExceeded), true), Fate::Done);
        assert_eq!(fate(TERMS, Some(Code::QuotaExceeded), false), AGAIN);
    }

    #[test]
    fn what_cannot_be_prepared_for_a_task_ends_it_unless_it_may_be_tried_again() {
        for code in [Code::EnvironmentFailed, Code::NotFound, Code::PythonMismatch] {
            assert_eq!(fate(TERMS, Some(code), false), Fate::Done);
        }
        let terms = Terms {
            retries_left: 1,
            ..TERMS
        };
        assert_eq!(fate(terms, Some(Code::EnvironmentFailed), false), RETRIED);
    }

    #[test]
    fn a_repeatable_task_that_kills_its_workers_ends_at_last() {
        let mut terms = Terms {
            repeatable: true,
            ..TERMS
        };
        let mut executions = 0;
        while let Fate::Again { fault: true, .. } = fate(terms, Some(Code::MaybeExecuted), true) {
            terms.faults += 1;
            executions += 1;
        }
        assert_eq!(executions + 1, MAX_FAULTS);
    }

    #[test]
    fn a_function_that_fails_is_called_again_as_often_as_its_owner_said() {
        let terms = Terms {
            retries_left: 1,
            ..TERMS
        };
        assert_eq!(fate(terms, Some(Code::FunctionError), true), RETRIED);
        assert_eq!(fate(TERMS, Some(Code::FunctionError), true), Fate::Done);
    }

    #[test]
    fn each_rest_is_twice_the_last_one_up_to_an_hour() {
        assert_eq!(next_wait(250), 500);
        assert_eq!(next_wait(MAX_RETRY_WAIT_MS - 1), MAX_RETRY_WAIT_MS);
        assert_eq!(next_wait(u32::MAX), MAX_RETRY_WAIT_MS);
    }

    proptest! {
        #[test]
        fn nothing_that_may_have_been_executed_is_executed_again_unless_its_owner_allows_it(
            code in 0..Code::ALL.len(), cancelled: bool, late: bool, faults in 0u16..10
        ) {
            let terms = Terms { cancelled, late, faults, ..TERMS };
            let fate = fate(terms, Some(Code::ALL[code]), true);
            let repeated = matches!(fate, Fate::Again { .. });
            prop_assert!(!repeated, "{:?}", Code::ALL[code]);
        }
    }
}
