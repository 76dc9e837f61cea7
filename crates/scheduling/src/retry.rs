//! Decides whether a task ends, is retried or is requeued after an attempt.

use dayfly_protocol::error::Code;
use dayfly_protocol::tasks::MAX_RETRY_WAIT_MS;

/// Attempts of one task so far, and what its owner allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryState {
    /// Whether it may run again after an attempt that may have run.
    pub is_repeatable: bool,
    /// Remaining retries after failures of its function.
    pub retries_left: u16,
    /// Attempts lost to faults so far.
    pub faults: u16,
    /// Whether its owner has cancelled it.
    pub is_cancelled: bool,
    /// Whether its deadline has passed.
    pub is_late: bool,
}

/// Most attempts that a task may lose to faults. A task that keeps killing its worker is itself the fault.
pub const MAX_FAULTS: u16 = 5;

/// Decision about a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Keep the reported outcome.
    Keep,
    /// Requeue the task.
    Requeue {
        /// Whether it costs a retry: its function failed.
        retry: bool,
        /// Whether it counts as a fault: something else failed.
        fault: bool,
    },
    /// End the task with this code in place of the reported one.
    EndAs(Code),
}

/// The wait in milliseconds after another failure of the function: twice the last one, up to a bound.
pub fn next_wait(waited_ms: u32) -> u32 {
    waited_ms.saturating_mul(2).min(MAX_RETRY_WAIT_MS)
}

/// Decides about a task after an attempt. `error` is `None` after a success. `begun` is whether its function may have
/// begun.
pub fn decide(state: RetryState, error: Option<Code>, begun: bool) -> Decision {
    let Some(code) = error else { return Decision::Keep };
    if code != Code::FunctionError && (state.is_cancelled || state.is_late) {
        return Decision::EndAs(if state.is_cancelled {
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
        | Code::EnvironmentFailed => match state.retries_left > 0 && !state.is_late {
            true => Decision::Requeue {
                retry: true,
                fault: false,
            },
            false => Decision::Keep,
        },
        Code::Cancelled
        | Code::LoadFailed
        | Code::PythonMismatch
        | Code::PayloadTooLarge
        | Code::InvalidRequest
        | Code::TooLarge
        | Code::IsolationUnavailable
        | Code::Forbidden => Decision::Keep,
        // No site has what the task needs to run in.
        Code::NotFound if !begun => Decision::Keep,
        // It was executed, and its result does not fit in the quota.
        Code::QuotaExceeded if begun => Decision::Keep,
        // Its own code says more than that it may have been executed.
        Code::MemoryReturned if !state.is_repeatable || state.faults + 1 >= MAX_FAULTS => Decision::Keep,
        // A fault of the worker, the node, the lease or the dispatcher.
        _ if begun && !state.is_repeatable => Decision::EndAs(Code::MaybeExecuted),
        _ if begun && state.faults + 1 >= MAX_FAULTS => Decision::EndAs(Code::MaybeExecuted),
        _ => Decision::Requeue {
            retry: false,
            fault: begun,
        },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const REQUEUED: Decision = Decision::Requeue {
        retry: false,
        fault: false,
    };
    const RETRIED: Decision = Decision::Requeue {
        retry: true,
        fault: false,
    };
    const STATE: RetryState = RetryState {
        is_repeatable: false,
        retries_left: 0,
        faults: 0,
        is_cancelled: false,
        is_late: false,
    };

    #[test]
    fn only_unbegun_task_is_requeued() {
        assert_eq!(decide(STATE, Some(Code::NotExecuted), false), REQUEUED);
        assert_eq!(
            decide(STATE, Some(Code::MaybeExecuted), true),
            Decision::EndAs(Code::MaybeExecuted)
        );
    }

    #[test]
    fn call_that_held_borrowed_memory_keeps_its_code() {
        let code = Some(Code::MemoryReturned);
        assert_eq!(decide(STATE, code, true), Decision::Keep);
        let mut state = RetryState {
            is_repeatable: true,
            ..STATE
        };
        let again = Decision::Requeue {
            retry: false,
            fault: true,
        };
        while state.faults + 1 < MAX_FAULTS {
            assert_eq!(decide(state, code, true), again);
            state.faults += 1;
        }
        assert_eq!(decide(state, code, true), Decision::Keep);
    }

    #[test]
    fn result_over_quota_is_not_retried() {
        assert_eq!(decide(STATE, Some(Code::QuotaExceeded), true), Decision::Keep);
        assert_eq!(decide(STATE, Some(Code::QuotaExceeded), false), REQUEUED);
    }

    #[test]
    fn failed_preparation_ends_task_without_retries() {
        for code in [Code::EnvironmentFailed, Code::NotFound, Code::PythonMismatch] {
            assert_eq!(decide(STATE, Some(code), false), Decision::Keep);
        }
        let state = RetryState {
            retries_left: 1,
            ..STATE
        };
        assert_eq!(decide(state, Some(Code::EnvironmentFailed), false), RETRIED);
    }

    #[test]
    fn repeatable_task_ends_after_max_faults() {
        let mut state = RetryState {
            is_repeatable: true,
            ..STATE
        };
        let mut executions = 0;
        while let Decision::Requeue { fault: true, .. } = decide(state, Some(Code::MaybeExecuted), true) {
            state.faults += 1;
            executions += 1;
        }
        assert_eq!(executions + 1, MAX_FAULTS);
    }

    #[test]
    fn failed_function_is_retried_while_retries_remain() {
        let state = RetryState {
            retries_left: 1,
            ..STATE
        };
        assert_eq!(decide(state, Some(Code::FunctionError), true), RETRIED);
        assert_eq!(decide(STATE, Some(Code::FunctionError), true), Decision::Keep);
    }

    #[test]
    fn retry_wait_doubles_up_to_its_bound() {
        assert_eq!(next_wait(250), 500);
        assert_eq!(next_wait(MAX_RETRY_WAIT_MS - 1), MAX_RETRY_WAIT_MS);
        assert_eq!(next_wait(u32::MAX), MAX_RETRY_WAIT_MS);
    }

    proptest! {
        #[test]
        fn unrepeatable_begun_task_is_never_requeued(
            code in 0..Code::ALL.len(), is_cancelled: bool, is_late: bool, faults in 0u16..10
        ) {
            let state = RetryState { is_cancelled, is_late, faults, ..STATE };
            let decision = decide(state, Some(Code::ALL[code]), true);
            let repeated = matches!(decision, Decision::Requeue { .. });
            prop_assert!(!repeated, "{:?}", Code::ALL[code]);
        }
    }
}
