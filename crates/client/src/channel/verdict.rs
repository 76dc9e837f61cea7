//! What a broken channel means for a call: whether it ran, and why the channel ended.

use dayfly_protocol::error::Code;
use dayfly_protocol::node_api::{ChannelStatus, End};
use dayfly_protocol::slot::has_begun;

use crate::error::CallError;

/// The error of call `sequence` on a channel with this fate.
pub(crate) fn verdict_on(fate: &ChannelStatus, sequence: u32) -> CallError {
    let worker = fate.worker.0;
    let cause = match fate.end {
        None => "its channel broke".to_owned(),
        Some(End::Exited { status }) => format!("its function ended the process with exit status {status}"),
        Some(End::Signalled { signal }) => {
            format!("its process crashed with signal {signal} ({})", signal_name(signal))
        }
        Some(End::OutOfMemory) => {
            "its lease's memory was used up; lease with more memory, or work on less at a time".to_owned()
        }
        Some(End::MemoryReturned) => {
            "its function held borrowed memory that its owner needed; lease more memory of its \
                                      own, or borrow none (`borrow`: `cpu`)"
                .to_owned()
        }
        Some(End::Deadline) => "a call ran past its deadline".to_owned(),
        Some(End::Cancelled) => "a running call was cancelled".to_owned(),
        Some(End::ExecutorDied) => "its executor was killed".to_owned(),
        Some(End::Expired) => "the lease expired; renew it in time, or lease for longer".to_owned(),
        Some(End::Released) => "the lease was released".to_owned(),
        Some(End::Revoked) => "the lease was revoked by an operator".to_owned(),
        Some(End::Retired) => "the lease was renewed with fewer workers".to_owned(),
        Some(End::DelegationRevoked) => "the delegator took its part of the lease back".to_owned(),
        Some(End::ClientGone) => "the node saw this client go away".to_owned(),
        Some(End::Violation) => "its node saw it violate the protocol, or take what belongs to others".to_owned(),
    };
    if !has_begun(fate.started, sequence) {
        let code = match fate.end {
            Some(End::Expired) => Code::LeaseExpired,
            Some(End::Released | End::Revoked | End::DelegationRevoked) => Code::LeaseEnded,
            _ => Code::NotExecuted,
        };
        return CallError::new(
            code,
            format!("worker {worker} ended before it began this call: {cause}. It was not executed"),
        );
    }
    let was_running = fate.started == sequence && fate.finished != sequence;
    let code = match fate.end {
        Some(End::Deadline) if was_running => Code::DeadlineExceeded,
        Some(End::Cancelled) if was_running => Code::Cancelled,
        Some(End::MemoryReturned) if was_running => Code::MemoryReturned,
        _ => Code::MaybeExecuted,
    };
    CallError::new(
        code,
        format!("worker {worker} ended during this call: {cause}. It may have been executed, in part or whole"),
    )
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGSEGV => "SIGSEGV: memory that is not the function's to touch, such as output beyond its room",
        libc::SIGABRT => "SIGABRT",
        libc::SIGFPE => "SIGFPE: arithmetic such as a division by zero",
        libc::SIGILL => "SIGILL",
        libc::SIGBUS => "SIGBUS",
        libc::SIGKILL => "SIGKILL: killed from outside, perhaps for want of memory",
        libc::SIGTERM => "SIGTERM",
        _ => "see `man 7 signal`",
    }
}

#[cfg(test)]
mod tests {
    use dayfly_protocol::ids::{Incarnation, WorkerIndex};

    use super::*;

    #[test]
    fn call_that_held_borrowed_memory_has_own_code() {
        let fate = |started, finished| ChannelStatus {
            worker: WorkerIndex(0),
            incarnation: Incarnation(1),
            started,
            finished,
            end: Some(End::MemoryReturned),
        };
        let running = verdict_on(&fate(3, 2), 3);
        assert_eq!(running.code(), Code::MemoryReturned);
        assert!(running.to_string().contains("lease more memory"), "{running}");
        // Another one may have ended before its worker did, or did not begin.
        assert_eq!(verdict_on(&fate(3, 3), 3).code(), Code::MaybeExecuted);
        assert_eq!(verdict_on(&fate(3, 3), 4).code(), Code::NotExecuted);
    }
}
