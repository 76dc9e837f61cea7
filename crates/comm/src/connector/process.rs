//! The connector as a process. Its node starts it when a rank of a lease connects, and ends it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use dayfly_fabric::descriptors;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::executor::MAX_PACKET_BYTES;
use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal};

use super::config::ConnectorConfig;
use super::serve;

/// Memory limit: a base, and an addition for each group.
const MEMORY_BYTES: u64 = 128 << 20;
const GROUP_MEMORY_BYTES: u64 = 64 << 20;

/// Serves the listener that arrives with the node's [`ConnectorConfig`] over `control`, until the node closes
/// `control`.
///
/// # Errors
/// When the node sends anything else, or a system call fails.
pub fn run(control: OwnedFd) -> Result<(), Failure> {
    let mut packet = vec![0; MAX_PACKET_BYTES];
    let (length, mut files) = descriptors::receive(&control, &mut packet).map_err(failed)?;
    let config = serde_json::from_slice::<ConnectorConfig>(&packet[..length]);
    let (Ok(config), Some(listener)) = (config, files.pop()) else {
        let text = "a connector is started by its node, not by hand";
        return Err(Failure::new(Code::InvalidRequest, text));
    };
    settle(&config).map_err(failed)?;
    serve(&listener, config, control.as_fd()).map_err(failed)
}

fn failed(error: io::Error) -> Failure {
    Failure::new(Code::Internal, format!("the connector cannot work: {error}"))
}

/// Drops privileges and sets limits, before any rank is served.
fn settle(config: &ConnectorConfig) -> io::Result<()> {
    if let Some(user) = config.user {
        let done = |result: libc::c_int| match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        };
        // SAFETY: system calls with plain numbers; this process has one thread.
        unsafe {
            done(libc::setgroups(0, std::ptr::null()))?;
            done(libc::setresgid(user, user, user))?;
            done(libc::setresuid(user, user, user))?;
        }
    }
    // A change of user resets it. If the node died before, the control socket shows it.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    rustix::thread::set_no_new_privs(true)?;
    let limit = |resource, most: u64| {
        let most = Some(
            rustix::process::getrlimit(resource)
                .maximum
                .map_or(most, |maximum| maximum.min(most)),
        );
        let limit = Rlimit {
            current: most,
            maximum: most,
        };
        rustix::process::setrlimit(resource, limit).map_err(io::Error::from)
    };
    limit(Resource::Core, 0)?;
    limit(
        Resource::Data,
        MEMORY_BYTES + u64::from(config.max_groups) * GROUP_MEMORY_BYTES,
    )?;
    // Each rank has a socket to each other rank.
    let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
    let all = Rlimit {
        current: maximum,
        maximum,
    };
    Ok(rustix::process::setrlimit(Resource::Nofile, all)?)
}
