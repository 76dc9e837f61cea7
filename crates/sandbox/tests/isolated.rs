//! Real processes in real sandboxes: what they see, which calls are refused, and what remains of them.

mod common;

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{Ended, Workspace};
use dayfly_sandbox::cgroup::{Hierarchies, Limits};
use dayfly_sandbox::filter::PendingCall;
use dayfly_sandbox::isolation::{BindMount, CODE_DIR};
use dayfly_sandbox::{Precaution, Program, SandboxError};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{WaitId, WaitIdOptions};

#[test]
fn sandbox_sees_only_programs_and_its_code() {
    let place = Workspace::new();
    let ended = place.run(&format!(
        "echo /*; ls /home /root /etc/shadow /var 2>&1 | wc -l; cat {CODE_DIR}/abc; echo; id -un"
    ));
    let lines = ended.lines();
    for hidden in ["/home", "/root", "/var", "/boot", "/srv", "/run"] {
        assert!(!lines[0].split(' ').any(|name| name == hidden), "{}", lines[0]);
    }
    assert_eq!(lines[1..], ["4", "code", "worker"]);
}

#[test]
fn sandbox_cannot_change_host_files() {
    let place = Workspace::new();
    let ended = place.run(&format!(
        "for path in /usr/x /etc/x /x {CODE_DIR}/x /proc/sys/kernel/hostname; do (echo x > $path) 2>/dev/null && echo changed $path; done
         echo mine > /tmp/file && cat /tmp/file && echo mine > /dev/shm/file && echo $HOME && ls /tmp"
    ));
    assert_eq!(ended.lines(), ["mine", "/tmp", "file"]);
    assert!(!Path::new("/tmp/file").exists());
}

#[test]
fn mounts_are_read_only_or_writable_as_requested() {
    let place = Workspace::new();
    let data = place.dir.path().join("data");
    fs::create_dir_all(data.join("out")).unwrap();
    fs::write(data.join("in"), "input").unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(data.join("out"), open).unwrap();
    let mut isolation = place.isolation();
    let shown = |path: PathBuf, writable| BindMount {
        from: path.canonicalize().unwrap(),
        path,
        writable,
    };
    isolation.shown = vec![shown(data.join("out"), true), shown(data.clone(), false)];
    let script = format!(
        "cd {} && cat in && echo && (echo x > new) 2>/dev/null || echo result > out/it",
        data.display()
    );
    assert_eq!(place.run_in(isolation, &script).lines(), ["input"]);
    assert_eq!(fs::read_to_string(data.join("out/it")).unwrap(), "result\n");
    assert!(!data.join("new").exists());
}

#[test]
fn link_created_after_the_check_is_not_followed() {
    let place = Workspace::new();
    let (data, secret) = (place.dir.path().join("data"), place.dir.path().join("secret"));
    fs::create_dir(&secret).unwrap();
    std::os::unix::fs::symlink(&secret, &data).unwrap();
    let mut isolation = place.isolation();
    isolation.shown.push(BindMount {
        path: data.clone(),
        from: data.clone(),
        writable: false,
    });
    let error = place.start(isolation, "/bin/true", &[]).unwrap_err();
    assert!(error.to_string().contains(&data.display().to_string()), "{error}");
}

#[test]
fn impossible_mount_is_refused_by_name() {
    let place = Workspace::new();
    for path in ["/", "relative", "/usr/../etc", "/proc", "/sys/kernel", "/no/such/path"] {
        let mut isolation = place.isolation();
        isolation.shown.push(BindMount {
            path: path.into(),
            from: path.into(),
            writable: false,
        });
        let error = place.start(isolation, "/bin/true", &[]).unwrap_err();
        assert!(
            matches!(&error, SandboxError::NotShown(shown, _) if shown == Path::new(path)),
            "{error}"
        );
    }
}

#[test]
fn sandbox_has_no_privilege_and_sees_own_processes() {
    let place = Workspace::new();
    let ended = place.run(
        "grep -E '^(CapEff|CapPrm|CapInh|CapAmb|NoNewPrivs|Seccomp):' /proc/self/status | tr -d '\\t'; set -- /proc/[0-9]*; echo $#; hostname",
    );
    let lines = ended.lines();
    for none in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert!(lines.contains(&format!("{none}:{:016x}", 0).as_str()), "{lines:?}");
    }
    assert!(
        lines.contains(&"NoNewPrivs:1") && lines.contains(&"Seccomp:2"),
        "{lines:?}"
    );
    // Only the shell.
    assert_eq!(lines[6..], ["1", "dayfly"]);
}

#[test]
fn sandbox_without_network_has_only_loopback() {
    let place = Workspace::new();
    let ended = place.python(
        "import socket
print([name for _, name in socket.if_nameindex()])
server = socket.create_server(('127.0.0.1', 0))
socket.create_connection(server.getsockname(), 5)
print('talks to itself')
try:
    socket.create_connection(('192.0.2.1', 80), 5)
except OSError as error:
    print('and to nobody else')",
    );
    assert_eq!(ended.lines(), ["['lo']", "talks to itself", "and to nobody else"]);
}

#[test]
fn watch_closes_after_the_last_filtered_process() {
    let place = Workspace::new();
    let mut child = place.start(place.isolation(), "/bin/sh", &["-c", "sleep 60"]).unwrap();
    let watch = child.watch.take().unwrap();
    assert_ne!(watch.pending(), PendingCall::Closed);
    rustix::process::pidfd_send_signal(&child.pidfd, rustix::process::Signal::KILL).unwrap();
    rustix::process::waitid(WaitId::PidFd(child.pidfd.as_fd()), WaitIdOptions::EXITED).unwrap();
    // A process's filter is released when the process is reaped.
    let mut waiting = [PollFd::new(&watch, PollFlags::IN)];
    let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut waiting, Some(&limit)).unwrap(), 1);
    assert_eq!(watch.pending(), PendingCall::Closed);
}

#[test]
fn hostile_system_calls_are_refused_and_recorded() {
    let place = Workspace::new();
    let ended = place.python(
        "import ctypes, socket
c = ctypes.CDLL(None, use_errno=True)
print(c.ptrace(0, 0, 0, 0), c.mount(b'none', b'/tmp', b'tmpfs', 0, None), c.unshare(0x10000000))
print(c.syscall(250, 0, 0, 0, 0))
# The kernel looks at the lower half of an ioctl's number only.
print(c.syscall(16, 0, ctypes.c_ulong(0x100005412), b'x'))
try:
    socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)
except OSError as error:
    print('no raw socket')
try:
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 9)
except OSError as error:
    print('no netlink')
import threading
thread = threading.Thread(target=print, args=['threads work'])
thread.start(); thread.join()
import subprocess
print(subprocess.run(['/bin/echo', 'so do programs'], capture_output=True, text=True).stdout.strip())",
    );
    assert_eq!(
        ended.lines(),
        [
            "-1 -1 -1",
            "-1",
            "-1",
            "no raw socket",
            "no netlink",
            "threads work",
            "so do programs"
        ]
    );
    let expected = ["ptrace", "mount", "unshare", "keyctl", "ioctl TIOCSTI"];
    assert_eq!(ended.refused[..5], expected, "{:?}", ended.refused);
    assert_eq!(
        ended.refused[5..],
        ["socket of a forbidden kind", "socket of a forbidden kind"]
    );
}

#[test]
fn recorded_refusals_are_bounded() {
    let place = Workspace::new();
    let ended = place.python(
        "import ctypes
c = ctypes.CDLL(None)
print(sum(c.ptrace(0, 0, 0, 0) == -1 for _ in range(10000)))",
    );
    assert_eq!(ended.lines(), ["10000"]);
    let recorded = ended.refused.len();
    assert!(
        (1..=dayfly_sandbox::filter::MAX_RECORDS as usize).contains(&recorded),
        "{recorded}"
    );
}

#[test]
fn sandbox_ends_with_its_first_process() {
    let place = Workspace::new();
    let marker = format!("{}", 987_000_000 + std::process::id());
    let ended = place.run(&format!("(setsid sleep {marker} &) ; (trap '' TERM HUP INT; exec setsid sleep {marker}) & sleep 0.05; kill -9 $$; exit 3"));
    assert!(ended.status == Some(3) || ended.signal.is_some());
    let alive = |entry: fs::DirEntry| {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&marker)
    };
    let left = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter(|_| true)
        .map(alive)
        .filter(|alive| *alive);
    assert_eq!(left.count(), 0);
}

#[test]
fn sandbox_dies_with_its_starting_thread() {
    let place = Workspace::new();
    let child = place.start(place.isolation(), "/bin/sleep", &["1000"]).unwrap();
    drop(place.spawner);
    let mut waiting = [PollFd::new(&child.pidfd, PollFlags::IN)];
    let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut waiting, Some(&limit)), Ok(1));
}

#[test]
fn temporary_files_are_bounded() {
    let place = Workspace::new();
    let ended = place.run("head -c 64M /dev/zero > /tmp/big 2>/dev/null || echo full; stat -c %s /tmp/big");
    let lines = ended.lines();
    assert_eq!(lines[0], "full");
    assert!(lines[1].parse::<u64>().unwrap() <= 16 << 20);
}

#[test]
fn limits_cover_all_processes_of_a_sandbox() {
    let place = Workspace::new();
    let hierarchies = Hierarchies::make(&format!("test-{}-limits", std::process::id()));
    let missing = hierarchies.missing();
    if !missing.is_empty() {
        // They are reported as missing; then there is nothing to test, unless the variable requires them.
        assert!(
            std::env::var_os("DAYFLY_TEST_CGROUPS").is_none(),
            "{missing:?} are missing"
        );
        eprintln!("no control of {missing:?} on this machine");
        return;
    }
    let group = Arc::new(hierarchies.group("one").unwrap());
    group
        .limit(&Limits {
            milli_cores: 500,
            memory_bytes: 64 << 20,
            tasks: 16,
        })
        .unwrap();
    let mut isolation = place.isolation();
    isolation.group = Some(group.clone());
    let program = "import os, sys, time
forked = 0
try:
    for _ in range(100):
        pid = os.fork()
        if pid == 0:
            time.sleep(60); os._exit(0)
        forked += 1
except OSError:
    print('forked', forked < 16)
start, used = time.monotonic(), time.process_time()
while time.monotonic() - start < 1.0:
    pass
print('half a core', (time.process_time() - used) < 0.7)
sys.stdout.flush()
hog = bytearray(256 << 20)
print('had its memory')";
    let ended = Ended::of(place.start(isolation, "/usr/bin/python3", &["-c", program]).unwrap());
    assert_eq!(
        ended.output.lines().collect::<Vec<_>>(),
        ["forked True", "half a core True"]
    );
    assert_eq!(ended.signal, Some(9));
    assert_eq!(group.memory_kills(), 1);
}

#[test]
fn earlier_children_do_not_prevent_limits() {
    let place = Workspace::new();
    // A node first starts executors that are not isolated; they and their children are in its own group.
    let earlier = place.spawner.spawn(Program {
        program: "sh".into(),
        otherwise: None,
        arguments: vec!["-c".into(), "echo here; sleep 60 & wait".into()],
        environment: Vec::new(),
        isolation: None,
    });
    let earlier = earlier.unwrap();
    let mut waiting = [PollFd::new(&earlier.output, PollFlags::IN)];
    let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut waiting, Some(&limit)), Ok(1));
    let missing = Hierarchies::make(&format!("test-{}-earlier", std::process::id())).missing();
    assert!(
        std::env::var_os("DAYFLY_TEST_CGROUPS").is_none() || missing.is_empty(),
        "{missing:?} are missing"
    );
    // The earlier process still runs.
    assert_eq!(
        rustix::event::poll(
            &mut [PollFd::new(&earlier.pidfd, PollFlags::IN)],
            Some(&Timespec { tv_sec: 0, tv_nsec: 0 })
        ),
        Ok(0)
    );
    let group = rustix::process::Pid::from_raw(earlier.pid).unwrap();
    rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
    rustix::process::waitid(WaitId::PidFd(earlier.pidfd.as_fd()), WaitIdOptions::EXITED).unwrap();
}

#[test]
fn process_limit_without_control_group_counts_the_user() {
    let place = Workspace::new();
    let mut isolation = place.isolation();
    isolation.most_tasks = 12;
    isolation.number = 4711;
    let program = "import os, time
forked = 0
try:
    for _ in range(100):
        if os.fork() == 0:
            time.sleep(60); os._exit(0)
        forked += 1
except OSError:
    pass
print(forked < 12)";
    let ended = Ended::of(place.start(isolation, "/usr/bin/python3", &["-c", program]).unwrap());
    assert_eq!(ended.lines(), ["True"]);
}

#[test]
fn this_machine_supports_every_precaution() {
    // This tests the machine, not the sandbox: a precaution that is skipped here is tested nowhere.
    let place = Workspace::new();
    let child = place.start(place.isolation(), "/bin/true", &[]).unwrap();
    assert_eq!(child.skipped, Vec::<Precaution>::new());
    assert_eq!(Ended::of(child).status, Some(0));
}

#[test]
fn sandbox_works_without_root() {
    if !rustix::process::geteuid().is_root() {
        // Then all other tests show it.
        return;
    }
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = dir.path().join("tests");
    fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    // A directory in which it may make files.
    let temporary = dir.path().join("tmp");
    fs::create_dir(&temporary).unwrap();
    fs::set_permissions(&temporary, fs::Permissions::from_mode(0o1777)).unwrap();
    let done = std::process::Command::new(copy)
        .args([
            "--skip",
            "limits_cover_all",
            "--skip",
            "this_machine",
            "--skip",
            "process_limit_without",
            "--skip",
            "earlier_children",
        ])
        .current_dir("/")
        .env_remove("RUST_BACKTRACE")
        .env("TMPDIR", &temporary)
        .uid(65_534)
        .gid(65_534)
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
}

#[test]
fn missing_program_is_named() {
    let place = Workspace::new();
    let error = place.start(place.isolation(), "/no/such/program", &[]).unwrap_err();
    assert!(error.to_string().contains("/no/such/program"), "{error}");
}
