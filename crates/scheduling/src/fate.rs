//! What becomes of a task after an execution, or when whoever executed it is gone.

use dayfly_protocol::error::Code;
use dayfly_protocol::tasks::MOST_RETRY_WAIT_MS;

/// What a task's owner allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Whether it may be executed again when it may have been executed.
    pub repeatable: bool,
    /// How often it may yet be executed again because its function failed.
    pub retries_left: u16,
    /// Executions that faults have cost so far.
    pub faults: u16,
    /// Its owner wants its end.
    pub cancelled: bool,
    /// Its deadline has passed.
    pub late: bool,
}

/// Executions that a task may lose to faults: one that keeps killing its worker is itself the fault.
pub const MOST_FAULTS: u16 = 5;

/// What becomes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It has its outcome, as it was told.
    Done,
    /// Back into the queue. Whether this costs one of its retries, and whether one of its faults.
    Again {
        /// Its function failed.
        retry: bool,
        /// Somebody else did.
        fault: bool,
    },
    /// It ends with this code in place of what was told.
    As(Code),
}

/// How long a task rests whose function failed again after it had rested so long, in milliseconds.
pub fn next_wait(waited_ms: u32) -> u32 {
    waited_ms.saturating_mul(2).min(MOST_RETRY_WAIT_MS)
}

/// What becomes of a task whose execution ended so: none for well. `begun` is whether its function may have been begun.
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
        // The function itself, and whatever executing it again would end in as well. Where an environment comes from may answer
        // again.
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
        // No site has what it is to run in.
        Code::NotFound if !begun => Fate::Done,
        // It was executed, and its answer has no place.
        Code::QuotaExceeded if begun => Fate::Done,
        // A fault: of the worker, the node, the lease or the dispatcher.
        _ if begun && !terms.repeatable => Fate::As(Code::MaybeExecuted),
        _ if begun && terms.faults + 1 >= MOST_FAULTS => Fate::As(Code::MaybeExecuted),
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
        assert_eq!(executions + 1, MOST_FAULTS);
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
        assert_eq!(next_wait(MOST_RETRY_WAIT_MS - 1), MOST_RETRY_WAIT_MS);
        assert_eq!(next_wait(u32::MAX), MOST_RETRY_WAIT_MS);
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
