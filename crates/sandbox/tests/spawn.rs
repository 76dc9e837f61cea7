//! The environment of a started process, and its end.

use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use dayfly_sandbox::{Child, Program, SandboxError, Spawner};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{WaitId, WaitIdOptions};

fn sh(script: &str) -> Program {
    Program {
        program: "sh".into(),
        otherwise: None,
        arguments: vec!["-c".into(), script.into()],
        environment: vec![("DAYFLY_TEST".into(), Some("set".into())), ("HOME".into(), None)],
        isolation: None,
    }
}

fn wait(fd: &OwnedFd) {
    let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
    let mut waiting = [PollFd::new(fd, PollFlags::IN)];
    assert_eq!(poll(&mut waiting, Some(&limit)).unwrap(), 1, "nothing came");
}

/// Its whole output, and its exit status.
fn finish(child: Child) -> (String, Option<i32>) {
    wait(&child.pidfd);
    let status = rustix::process::waitid(WaitId::PidFd(child.pidfd.as_fd()), WaitIdOptions::EXITED).unwrap();
    // Another test's child may hold a copy of the pipe until it runs its program.
    rustix::io::ioctl_fionbio(&child.output, false).unwrap();
    let mut text = String::new();
    std::fs::File::from(child.output).read_to_string(&mut text).unwrap();
    (text, status.and_then(|status| status.exit_status()))
}

#[test]
fn child_has_four_descriptors_and_its_own_session() {
    let spawner = Spawner::new().unwrap();
    // A descriptor that a careless library of the host program leaves open across exec.
    let file = std::fs::File::open("/dev/null").unwrap();
    let leak = rustix::io::fcntl_dupfd_cloexec(&file, 20).unwrap();
    rustix::io::fcntl_setfd(&leak, rustix::io::FdFlags::empty()).unwrap();
    let script = "echo /proc/$$/fd/*; echo $$ $(cut -d' ' -f5,6 /proc/$$/stat); echo $DAYFLY_TEST-${HOME-none}; exit 3";
    let child = spawner.spawn(sh(script)).unwrap();
    let pid = child.pid;
    let (text, status) = finish(child);
    let lines: Vec<_> = text.lines().collect();
    let open: Vec<_> = lines[0]
        .split(' ')
        .map(|path| path.rsplit('/').next().unwrap())
        .collect();
    // The shell reads the list through a descriptor of its own.
    assert_eq!(open[..4], ["0", "1", "2", "3"]);
    assert!(open.len() <= 5, "{open:?}");
    assert!(!open.contains(&leak.as_raw_fd().to_string().as_str()), "{open:?}");
    assert_eq!(lines[1], format!("{pid} {pid} {pid}"));
    assert_eq!(lines[2], "set-none");
    assert_eq!(status, Some(3));
}

#[test]
fn control_socket_is_descriptor_three() {
    let spawner = Spawner::new().unwrap();
    let child = spawner
        .spawn(sh("echo ready >&3; dd bs=64 count=1 status=none <&3"))
        .unwrap();
    wait(&child.control);
    let mut packet = [0; 64];
    let length = rustix::io::read(&child.control, &mut packet).unwrap();
    assert_eq!(&packet[..length], b"ready\n");
    rustix::io::write(&child.control, b"go\n").unwrap();
    assert_eq!(finish(child).0, "go\n");
}

#[test]
fn program_that_cannot_start_leaves_no_process() {
    let spawner = Spawner::new().unwrap();
    let start = |program: &str| {
        let program = Program {
            program: program.into(),
            otherwise: None,
            arguments: Vec::new(),
            environment: Vec::new(),
            isolation: None,
        };
        spawner.spawn(program).unwrap_err()
    };
    assert!(matches!(start("no-such-program-anywhere"), SandboxError::NotFound(_)));
    assert!(matches!(start("/no/such/program"), SandboxError::NotFound(_)));
    // A file, but not a program.
    let error = start("/etc/hostname");
    assert!(error.to_string().contains("/etc/hostname"), "{error}");
    assert!(matches!(error, SandboxError::Exec { .. }));
}

#[test]
fn children_die_with_their_starting_thread() {
    let spawner = Spawner::new().unwrap();
    let child = spawner.spawn(sh("while :; do sleep 1000; done")).unwrap();
    drop(spawner);
    wait(&child.pidfd);
    let status = rustix::process::waitid(WaitId::PidFd(child.pidfd.as_fd()), WaitIdOptions::EXITED);
    assert_eq!(status.unwrap().unwrap().terminating_signal(), Some(9));
}

#[test]
fn starting_a_process_takes_about_a_millisecond() {
    let spawner = Spawner::new().unwrap();
    let best = (0..20)
        .map(|_| {
            let begun = Instant::now();
            let child = spawner.spawn(sh(":")).unwrap();
            let took = begun.elapsed();
            finish(child);
            took
        })
        .min()
        .unwrap();
    // The best of twenty, so that a busy machine does not matter.
    assert!(best < Duration::from_millis(5), "{best:?}");
}
