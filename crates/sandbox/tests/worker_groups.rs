//! Control groups of single workers, with real processes: what they use is measured, and what they may use is limited.
//! On a machine where no groups can be made, these tests check only that this is said.

mod common;

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dayfly_sandbox::cgroup::{Group, GroupError, Hierarchies, Limits, Reading, Weight, WorkerGroup};

const MIB: u64 = 1 << 20;

/// The node's groups, or nothing on a machine without the right to make any.
fn hierarchies(name: &str) -> Option<Hierarchies> {
    let made = Hierarchies::make(&format!("test-workers-{name}-{}", std::process::id()));
    match made.check_workers() {
        Ok(()) => Some(made),
        Err(why) => {
            assert!(why.contains("control groups"), "{why}");
            eprintln!("skipped: {why}");
            None
        }
    }
}

/// A process that is ended with the test.
struct Process(Child);

impl Process {
    fn start(command: &mut Command) -> Self {
        Self(command.process_group(0).spawn().unwrap())
    }

    fn shell(script: &str) -> Self {
        Self::start(Command::new("/bin/sh").args(["-c", script]).stdin(Stdio::null()))
    }

    fn python(program: &str) -> Self {
        Self::start(Command::new("python3").args(["-c", program]).stdin(Stdio::piped()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // With everything that it started.
        if let Some(group) = rustix::process::Pid::from_raw(self.0.id() as i32) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

fn admitted(all: &Hierarchies, sandbox: Option<&Group>, process: &Process) -> WorkerGroup {
    let mut group = all.worker_group("worker-0", sandbox).unwrap();
    group.admit(process.0.id()).unwrap();
    group
}

/// Two readings with a time between them, and that time.
fn window(group: &mut WorkerGroup, length: Duration) -> (Reading, Reading, Duration) {
    let (begun, before) = (Instant::now(), group.read().unwrap());
    std::thread::sleep(length);
    (before, group.read().unwrap(), begun.elapsed())
}

#[test]
fn busy_worker_is_limited_to_its_quota() {
    let Some(all) = hierarchies("quota") else { return };
    let process = Process::shell("while :; do :; done");
    let mut group = admitted(&all, None, &process);
    group.limit_cpu(200).unwrap();
    assert_eq!(group.cpu_limit().unwrap(), 200);
    let (before, after, took) = window(&mut group, Duration::from_millis(600));
    let cores = (after.cpu_ns - before.cpu_ns) as f64 / took.as_nanos() as f64;
    assert!((0.01..0.3).contains(&cores), "{cores} cores");
    assert!(after.throttled_periods > before.throttled_periods, "{after:?}");
    assert!(after.throttled_ns > before.throttled_ns, "{after:?}");
    group.limit_cpu(0).unwrap();
    assert_eq!(group.cpu_limit().unwrap(), 0);
}

#[test]
fn idle_worker_uses_nothing_and_waits_for_nothing() {
    let Some(all) = hierarchies("idle") else { return };
    let process = Process::shell("exec sleep 60");
    let mut group = admitted(&all, None, &process);
    std::thread::sleep(Duration::from_millis(100));
    let (before, after, took) = window(&mut group, Duration::from_millis(200));
    assert!(after.cpu_ns - before.cpu_ns < took.as_nanos() as u64 / 20);
    let waited = after.waiting_ns.unwrap() - before.waiting_ns.unwrap();
    assert!(waited < took.as_nanos() as u64 / 20, "waited {waited} ns");
}

#[test]
fn competing_threads_of_a_worker_wait() {
    let Some(all) = hierarchies("waiting") else { return };
    // More threads than this machine has cores.
    let busy = std::thread::available_parallelism().map_or(1, usize::from) + 2;
    let process = Process::shell(&format!(
        "for i in $(seq {busy}); do (while :; do :; done) & done; wait"
    ));
    std::thread::sleep(Duration::from_millis(100));
    let mut group = admitted(&all, None, &process);
    let (before, after, took) = window(&mut group, Duration::from_millis(500));
    let waited = after.waiting_ns.unwrap() - before.waiting_ns.unwrap();
    assert!(waited > took.as_nanos() as u64 / 20, "waited {waited} ns of {took:?}");
}

#[test]
fn memory_before_and_after_joining_is_read() {
    let Some(all) = hierarchies("memory") else { return };
    let mut process = Process::python(
        "import sys
first = bytearray(b'x') * (64 << 20)
print('ready', flush=True)
sys.stdin.readline()
second = bytearray(b'x') * (32 << 20)
sys.stdin.readline()
del first
sys.stdin.readline()",
    );
    let memory_of = |group: &mut WorkerGroup, range: std::ops::Range<u64>| {
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            let reading = group.read().unwrap();
            if range.contains(&(reading.memory_bytes / MIB)) {
                assert!(reading.memory_peak_bytes >= reading.memory_bytes);
                return;
            }
            assert!(
                Instant::now() < until,
                "{} MiB, not {range:?}",
                reading.memory_bytes / MIB
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let line = |process: &mut Process| {
        use std::io::Write;
        process.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    };
    let until = Instant::now() + Duration::from_secs(10);
    let statm = format!("/proc/{}/statm", process.0.id());
    let private_pages = || {
        let text = std::fs::read_to_string(&statm).unwrap();
        let fields: Vec<u64> = text.split_whitespace().map(|field| field.parse().unwrap()).collect();
        fields[1] - fields[2]
    };
    while private_pages() < 64 * MIB / 4096 {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(50));
    let mut group = admitted(&all, None, &process);
    memory_of(&mut group, 64..80);
    line(&mut process);
    memory_of(&mut group, 96..112);
    // It cannot have more of what it brought than it has at all.
    line(&mut process);
    memory_of(&mut group, 32..80);
}

#[test]
fn descendants_of_a_worker_join_with_it() {
    let Some(all) = hierarchies("descendants") else { return };
    let process = Process::shell("(while :; do :; done) & wait");
    std::thread::sleep(Duration::from_millis(100));
    let mut group = admitted(&all, None, &process);
    let (before, after, _) = window(&mut group, Duration::from_millis(200));
    assert!(after.cpu_ns - before.cpu_ns > 10_000_000, "{after:?}");
}

#[test]
fn processes_survive_the_end_of_their_group() {
    let Some(all) = hierarchies("survive") else { return };
    let mut process = Process::shell("exec sleep 60");
    let group = admitted(&all, None, &process);
    drop(group);
    assert!(process.0.try_wait().unwrap().is_none());
    let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", process.0.id())).unwrap();
    assert!(!groups.contains("worker-0"), "{groups}");
}

#[test]
fn vanished_group_is_a_typed_error() {
    let Some(all) = hierarchies("vanished") else { return };
    let process = Process::shell("exec sleep 60");
    let mut group = admitted(&all, None, &process);
    group.read().unwrap();
    drop(process);
    // The node's groups go with everything below them.
    drop(all);
    let error = group.read().unwrap_err();
    assert!(error.is_vanished(), "{error}");
    assert!(matches!(group.limit_cpu(100), Err(GroupError::Vanished(_))));
    assert!(matches!(group.weigh(Weight::new(1)), Err(GroupError::Vanished(_))));
}

#[test]
fn worker_in_a_sandbox_stays_within_both_limits() {
    let Some(all) = hierarchies("nested") else { return };
    let sandbox = all.group("sandbox-0").unwrap();
    sandbox
        .limit(&Limits {
            milli_cores: 300,
            ..Limits::default()
        })
        .unwrap();
    let process = Process::shell("while :; do :; done");
    sandbox.admit(process.0.id() as i32).unwrap();
    let mut group = admitted(&all, Some(&sandbox), &process);
    let (before, after, took) = window(&mut group, Duration::from_millis(500));
    let cores = (after.cpu_ns - before.cpu_ns) as f64 / took.as_nanos() as f64;
    assert!((0.01..0.45).contains(&cores), "{cores} cores");
    // A loan: the sandbox first. Back: the worker first.
    sandbox.limit_cpu(800).unwrap();
    group.limit_cpu(800).unwrap();
    group.weigh(Weight::below_others(1000)).unwrap();
    sandbox
        .weigh(Weight::sum([Weight::of_cores(1000), Weight::below_others(1000)]))
        .unwrap();
    group.limit_cpu(100).unwrap();
    sandbox.limit_cpu(300).unwrap();
    assert_eq!(group.cpu_limit().unwrap(), 100);
    drop(group);
    let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", process.0.id())).unwrap();
    assert!(groups.contains("sandbox-0"), "back in its sandbox: {groups}");
}

/// The value of a file of a worker's group in the hierarchy of processor time.
fn cpu_file_of(process: &Process, name: &str) -> Option<String> {
    let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", process.0.id())).unwrap();
    let path = groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        controllers
            .split(',')
            .any(|c| c == "cpu" || c.is_empty())
            .then_some(path)
    })?;
    ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup"]
        .iter()
        .find_map(|mount| std::fs::read_to_string(format!("{mount}{path}/{name}")).ok())
        .map(|text| text.trim().to_owned())
}

#[test]
fn borrower_gets_what_others_leave() {
    let Some(all) = hierarchies("idle") else { return };
    let process = Process::shell("exec sleep 60");
    let group = admitted(&all, None, &process);
    group.weigh(Weight::of_cores(2000)).unwrap();
    let weight = |name| cpu_file_of(&process, name);
    let full = [weight("cpu.idle"), weight("cpu.shares"), weight("cpu.weight")];
    if full[0].is_none() {
        eprintln!("skipped: this kernel has no idle groups");
        return;
    }
    assert_eq!(full[0].as_deref(), Some("0"));
    group.weigh(Weight::below_others(2000)).unwrap();
    assert_eq!(weight("cpu.idle").as_deref(), Some("1"));
    // Twice, since the kernel refuses weights of idle groups.
    group.weigh(Weight::below_others(2000)).unwrap();
    group.weigh(Weight::of_cores(2000)).unwrap();
    assert_eq!([weight("cpu.idle"), weight("cpu.shares"), weight("cpu.weight")], full);
}

#[test]
fn sandbox_is_idle_only_with_all_its_workers() {
    let (light, full) = (Weight::below_others(1000), Weight::of_cores(1000));
    assert_eq!(Weight::sum([light]), light);
    assert_ne!(Weight::sum([light, full]), Weight::sum([light, light]));
    assert_eq!(Weight::sum([full]), full);
    assert_eq!(Weight::sum([]), Weight::new(1));
}

#[test]
fn memory_kill_in_worker_group_counts_for_sandbox() {
    let Some(all) = hierarchies("kills") else { return };
    let sandbox = all.group("sandbox-0").unwrap();
    sandbox
        .limit(&Limits {
            memory_bytes: 48 << 20,
            ..Limits::default()
        })
        .unwrap();
    let mut process = Process::python("import sys; sys.stdin.readline(); x = bytearray(b'x') * (256 << 20)");
    sandbox.admit(process.0.id() as i32).unwrap();
    let group = admitted(&all, Some(&sandbox), &process);
    assert_eq!(sandbox.memory_kills(), 0);
    drop(process.0.stdin.take());
    assert!(!process.0.wait().unwrap().success());
    assert_eq!(sandbox.memory_kills(), 1);
    drop(group);
    assert_eq!(sandbox.memory_kills(), 1, "also after the group's end");
}

#[test]
fn memory_limit_is_set_and_refused_below_use() {
    let Some(all) = hierarchies("limit") else { return };
    let process =
        Process::python("import sys; sys.stdin.readline(); x = bytearray(b'x') * (64 << 20); sys.stdin.readline()");
    let mut group = admitted(&all, None, &process);
    group.limit_memory(256 << 20).unwrap();
    let mut process = process;
    {
        use std::io::Write;
        process.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }
    let until = Instant::now() + Duration::from_secs(10);
    while group.read().unwrap().memory_bytes < 64 << 20 {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(10));
    }
    let refused = group.limit_memory(16 << 20).unwrap_err();
    assert!(matches!(refused, GroupError::Refused { .. }), "{refused}");
    assert!(process.0.try_wait().unwrap().is_none(), "nothing was ended");
    assert!(refused.is_busy(), "{refused}");
    assert_eq!(group.memory_limit().unwrap(), 256 << 20);
    group.limit_memory(0).unwrap();
    assert_eq!(group.memory_limit().unwrap(), 0);
}

/// A process that takes this much memory after each line of its input, and reports it on its output.
fn taking(steps_mib: &[u64]) -> Process {
    let steps = steps_mib.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    let program = format!(
        "import sys
taken = []
for mib in ({steps},):
    sys.stdin.readline()
    taken.append(bytearray(b'x') * (mib << 20)) if mib else taken.clear()
    print(flush=True)
sys.stdin.readline()"
    );
    Process::start(
        Command::new("python3")
            .args(["-c", &program])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped()),
    )
}

/// Lets such a process take its next step, and waits for that.
fn step(process: &mut Process) {
    use std::io::{Read, Write};
    process.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    let stdout = process.0.stdout.as_mut().unwrap();
    stdout.read_exact(&mut [0]).unwrap();
}

#[test]
fn limit_falls_only_to_what_is_held() {
    let Some(all) = hierarchies("shrink") else { return };
    let mut process = taking(&[96, 0]);
    let group = admitted(&all, None, &process);
    group.limit_memory(256 * MIB).unwrap();
    step(&mut process);
    let limit = group.shrink_memory(32 * MIB).unwrap();
    let held = group.held_memory().unwrap();
    assert!((held..=held + 2 * MIB).contains(&limit), "{limit} {held}");
    assert!(limit >= 96 * MIB, "{limit}");
    assert_eq!(group.memory_limit().unwrap() >> 20, limit >> 20);
    assert_eq!(group.memory_kills().unwrap().count(), 0);
    // It gives everything back.
    step(&mut process);
    assert_eq!(group.shrink_memory(32 * MIB).unwrap(), 32 * MIB);
    assert_eq!(group.memory_limit().unwrap(), 32 * MIB);
    assert!(process.0.try_wait().unwrap().is_none(), "nothing was ended");
}

#[test]
fn cached_files_are_reclaimed_for_a_lower_limit() {
    let Some(all) = hierarchies("cache") else { return };
    let Ok(dir) = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")) else {
        // Elsewhere files may lie in memory, from which nothing is reclaimed.
        eprintln!("left out: not on the machine that built this test");
        return;
    };
    let path = dir.path().join("file");
    std::fs::write(&path, vec![1; 64 << 20]).unwrap();
    // Somebody else has cached it so far.
    let file = std::fs::File::open(&path).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let program = format!(
        "import sys; sys.stdin.readline(); len(open({:?}, 'rb').read(64 << 20)); print(flush=True); sys.stdin.readline()",
        path.display().to_string()
    );
    let mut process = Process::start(
        Command::new("python3")
            .args(["-c", &program])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped()),
    );
    let group = admitted(&all, None, &process);
    step(&mut process);
    let until = Instant::now() + Duration::from_secs(10);
    while group.shrink_memory(24 * MIB).unwrap() > 24 * MIB {
        assert!(Instant::now() < until, "{} bytes held", group.held_memory().unwrap());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(group.held_memory().unwrap() <= 24 * MIB);
}

#[test]
fn memory_kills_of_a_worker_are_counted() {
    let Some(all) = hierarchies("worker-kills") else { return };
    let mut process = taking(&[256]);
    let group = admitted(&all, None, &process);
    let kills = group.memory_kills().unwrap();
    group.limit_memory(48 * MIB).unwrap();
    assert_eq!(kills.count(), 0);
    drop(process.0.stdin.take());
    assert!(!process.0.wait().unwrap().success());
    assert_eq!(kills.count(), 1);
    drop(group);
    assert_eq!(kills.count(), 0, "of a group that is gone");
}

#[test]
fn sandbox_grows_by_what_its_workers_borrow() {
    let Some(all) = hierarchies("loan") else { return };
    let sandbox = all.group("sandbox-0").unwrap();
    let limits = Limits {
        memory_bytes: 64 * MIB,
        ..Limits::default()
    };
    sandbox.limit(&limits).unwrap();
    let mut process = taking(&[96, 0]);
    sandbox.admit(process.0.id() as i32).unwrap();
    let group = admitted(&all, Some(&sandbox), &process);
    group.limit_memory(32 * MIB).unwrap();
    // A loan: the sandbox first. Back: the worker first.
    assert_eq!(sandbox.lend_memory(96 * MIB).unwrap(), 96 * MIB);
    group.limit_memory(128 * MIB).unwrap();
    step(&mut process);
    assert!(group.shrink_memory(32 * MIB).unwrap() > 96 * MIB);
    let borrowed = sandbox.lend_memory(0).unwrap();
    assert!((32 * MIB..96 * MIB).contains(&borrowed), "{borrowed}");
    assert_eq!(sandbox.memory_limit().unwrap() >> 20, (64 * MIB + borrowed) >> 20);
    step(&mut process);
    assert_eq!(group.shrink_memory(32 * MIB).unwrap(), 32 * MIB);
    assert_eq!(sandbox.lend_memory(0).unwrap(), 0);
    assert_eq!(sandbox.memory_limit().unwrap(), 64 * MIB);
    assert_eq!(sandbox.memory_kills(), 0);
    // Without a limit of its own, it gets none.
    let unlimited = all.group("sandbox-1").unwrap();
    assert_eq!(unlimited.lend_memory(MIB).unwrap(), MIB);
    assert_eq!(unlimited.memory_limit().unwrap(), 0);
}

#[test]
fn next_node_clears_raised_limits_of_killed_one() {
    let name = format!("test-workers-killed-{}", std::process::id());
    let all = Hierarchies::make(&name);
    if all.check_workers().is_err() {
        return;
    }
    let mut process = Process::shell("exec sleep 60");
    let group = admitted(&all, None, &process);
    group.limit_cpu(50_000).unwrap();
    group.limit_memory(1 << 40).unwrap();
    // As after kill -9: nothing is dropped.
    std::mem::forget(group);
    std::mem::forget(all);
    let next = Hierarchies::make(&name);
    assert!(
        process.0.try_wait().unwrap().is_some() || process.0.wait().is_ok(),
        "leftovers are ended"
    );
    let group = next.worker_group("worker-0", None).unwrap();
    assert_eq!((group.cpu_limit().unwrap(), group.memory_limit().unwrap()), (0, 0));
}
