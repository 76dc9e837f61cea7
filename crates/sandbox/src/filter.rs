//! The system call filter of sandboxed processes.
//!
//! It is an allow-list. It contains what ordinary programs, language runtimes and numerical libraries need, and nothing
//! that changes the machine, inspects other processes or reaches the parts of the kernel with the most vulnerabilities.
//! All other calls return "not implemented", which the C library and language runtimes can handle.
//!
//! On kernels from 5.0 on, a refused call waits until the node has been notified, so the attempt is recorded with its
//! name. [`Watch`] bounds that: after [`MAX_RECORDS`] records the node stops listening, and the kernel alone refuses
//! from then on.

mod allowed;
mod refusal;

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

use allowed::ALLOWED;
#[cfg(target_arch = "x86_64")]
use allowed::ALLOWED_ON_X86;
pub use refusal::{PendingCall, Refusal, Watch};

/// Most recorded calls of one sandbox.
pub const MAX_RECORDS: u32 = 64;

/// Placeholder in a compiled filter for the action that notifies the node, which the compiler does not know.
const PLACEHOLDER: u16 = 0x4446;

/// As in `linux/netlink.h`.
const NETLINK_RDMA: i32 = 20;

/// The filters of both kinds of process.
#[derive(Debug)]
pub(crate) struct Filters {
    /// For a process with only its own loopback.
    pub alone: Filter,
    /// For a process with the host's network.
    pub networked: Filter,
}

/// A filter in two forms.
#[derive(Debug)]
pub(crate) struct Filter {
    /// Refuses, and notifies the node.
    pub watched: Vec<libc::sock_filter>,
    /// Refuses, if notification is impossible.
    pub silent: Vec<libc::sock_filter>,
}

/// Compiles the filters. Fails on a processor that the compiler does not know.
pub(crate) fn compile() -> Result<Filters, String> {
    Ok(Filters {
        alone: compile_for(false)?,
        networked: compile_for(true)?,
    })
}

fn compile_for(network: bool) -> Result<Filter, String> {
    let program = |mismatch| -> Result<Vec<libc::sock_filter>, String> {
        let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(|error| error.to_string())?;
        let filter =
            SeccompFilter::new(rules(network)?, mismatch, SeccompAction::Allow, arch).map_err(|e| e.to_string())?;
        let program = BpfProgram::try_from(filter).map_err(|error| error.to_string())?;
        Ok(program.iter().map(patched).collect())
    };
    Ok(Filter {
        watched: program(SeccompAction::Trace(u32::from(PLACEHOLDER)))?,
        silent: program(SeccompAction::Errno(libc::ENOSYS as u32))?,
    })
}

fn patched(step: &seccompiler::sock_filter) -> libc::sock_filter {
    let is_placeholder = u32::from(step.code) == libc::BPF_RET | libc::BPF_K
        && step.k == libc::SECCOMP_RET_TRACE | u32::from(PLACEHOLDER);
    libc::sock_filter {
        code: step.code,
        jt: step.jt,
        jf: step.jf,
        k: if is_placeholder {
            libc::SECCOMP_RET_USER_NOTIF
        } else {
            step.k
        },
    }
}

/// New namespaces would give a process privileges within them, which expose much of the kernel.
const NEW_NAMESPACES: u64 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWCGROUP) as u64;

fn rules(network: bool) -> Result<BTreeMap<i64, Vec<SeccompRule>>, String> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    #[cfg(target_arch = "x86_64")]
    rules.extend(ALLOWED_ON_X86.iter().map(|call| (*call, Vec::new())));
    // Compare 32-bit values if the kernel takes the argument as 32 bits. Otherwise bits in the upper half would pass
    // the filter, and the kernel would ignore them.
    let when = |argument, length, operator, value| -> Result<SeccompRule, String> {
        let condition = SeccompCondition::new(argument, length, operator, value);
        SeccompRule::new(vec![condition.map_err(|error| error.to_string())?]).map_err(|error| error.to_string())
    };
    rules.insert(
        libc::SYS_clone,
        vec![when(
            0,
            SeccompCmpArgLen::Qword,
            SeccompCmpOp::MaskedEq(NEW_NAMESPACES),
            0,
        )?],
    );
    // Functions get no packet sockets, no raw sockets and no rare families. Of netlink they get the part that lists
    // network interfaces, which MPI libraries and many others use.
    let mut sockets = Vec::new();
    let mut allow = |family, argument, operator, value| -> Result<(), String> {
        let conditions: Result<Vec<_>, _> = [
            SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, family as u64),
            SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value as u64),
        ]
        .into_iter()
        .collect();
        sockets.push(
            conditions
                .and_then(SeccompRule::new)
                .map_err(|error| error.to_string())?,
        );
        Ok(())
    };
    for family in [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6] {
        for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_SEQPACKET] {
            allow(family, 1, SeccompCmpOp::MaskedEq(0xf), kind)?;
        }
    }
    allow(libc::AF_NETLINK, 2, SeccompCmpOp::Eq, libc::NETLINK_ROUTE)?;
    if network {
        // The part that lists RDMA devices, for libfabric; changing them requires privileges over the host's network.
        allow(libc::AF_NETLINK, 2, SeccompCmpOp::Eq, NETLINK_RDMA)?;
    }
    rules.insert(libc::SYS_socket, sockets);
    // TIOCSTI types into another user's terminal.
    rules.insert(
        libc::SYS_ioctl,
        vec![when(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, libc::TIOCSTI)?],
    );
    // Personalities other than the usual ones weaken address space randomization.
    rules.insert(
        libc::SYS_personality,
        vec![
            when(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, 0)?,
            when(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, 0xffff_ffff)?,
        ],
    );
    // A process may read and lower its own limits, not those of others.
    rules.insert(
        libc::SYS_prlimit64,
        vec![when(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, 0)?],
    );
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use super::refusal::HOSTILE;
    use super::*;

    #[test]
    fn only_the_watched_filter_notifies_the_node() {
        let Filters { alone, networked } = compile().unwrap();
        for filter in [alone, networked] {
            let asks =
                |program: &[libc::sock_filter]| program.iter().any(|step| step.k == libc::SECCOMP_RET_USER_NOTIF);
            assert!(asks(&filter.watched));
            assert!(!asks(&filter.silent));
            let left = |step: &libc::sock_filter| step.k == libc::SECCOMP_RET_TRACE | u32::from(PLACEHOLDER);
            assert!(!filter.watched.iter().any(left), "a placeholder was left behind");
        }
    }

    #[test]
    fn hostile_calls_are_not_allowed() {
        let conditional = [libc::SYS_clone, libc::SYS_socket, libc::SYS_ioctl, libc::SYS_prlimit64];
        for (call, name) in HOSTILE {
            let listed = ALLOWED.contains(call) || rules(true).unwrap().get(call).is_some_and(Vec::is_empty);
            assert!(!listed, "{name} is on both lists");
            assert!(
                rules(true).unwrap().contains_key(call) == conditional.contains(call),
                "{name}"
            );
        }
    }
}
