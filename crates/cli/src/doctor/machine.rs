//! The kernel, the processors, memory, limits and the disk.

use std::path::{Path, PathBuf};

use dayfly_node::options::memory_bytes;
use dayfly_sandbox::private_file;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::{Finding, State};
use crate::output::size;

/// The oldest kernel with all system calls that starting a worker takes: `close_range` is the youngest.
const MIN_KERNEL: (u32, u32) = (5, 9);
/// From this kernel on, workers can be isolated from each other: it takes `mount_setattr`.
const MIN_ISOLATING_KERNEL: (u32, u32) = (5, 12);
/// The kernels with Landlock.
const MIN_LANDLOCK_KERNEL: (u32, u32) = (5, 13);
/// Each connection and each worker needs several descriptors, so fewer limit a manager to some hundred nodes.
const MIN_DESCRIPTORS: u64 = 4096;
/// Threads of a node and of a few workers.
const MIN_PROCESSES: u64 = 512;
/// Less space fills with the first results of tasks.
const MIN_FREE_BYTES: u64 = 1 << 30;

pub fn check() -> Vec<Finding> {
    vec![kernel(), processors(), descriptors(), processes(), disk()]
}

fn kernel() -> Finding {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    kernel_of(&release)
}

fn kernel_of(release: &str) -> Finding {
    let found = format!("Linux {release}");
    let upgrade = |(major, minor)| format!("run Linux {major}.{minor} or later");
    match version(release) {
        Some(version) if version < MIN_KERNEL => {
            let found = format!("{found} lacks system calls that start workers");
            Finding::new("kernel", State::Broken, found, upgrade(MIN_KERNEL))
        }
        Some(version) if version < MIN_ISOLATING_KERNEL => {
            let found = format!("{found}: workers see the machine as the node's user does");
            Finding::new("kernel", State::Limited, found, upgrade(MIN_ISOLATING_KERNEL))
        }
        Some(version) if version < MIN_LANDLOCK_KERNEL => {
            let found = format!("{found}: without Landlock, the second fence around files");
            Finding::new("kernel", State::Limited, found, upgrade(MIN_LANDLOCK_KERNEL))
        }
        _ => Finding::works("kernel", found),
    }
}

/// Major and minor version of a release such as `6.1.0-31-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Some((major, minor)),
        _ => None,
    }
}

fn processors() -> Finding {
    let all = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let all = all.lines().filter(|line| line.starts_with("processor")).count();
    let usable = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = size(memory_bytes());
    let found = format!(
        "{usable} of {} cores for this process, {} of memory",
        all.max(usable),
        memory
    );
    Finding::works("processors", found)
}

fn descriptors() -> Finding {
    let most = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let found = match most {
        u64::MAX => "no limit".to_owned(),
        most => format!("at most {most} for a daemon"),
    };
    if most >= MIN_DESCRIPTORS {
        return Finding::works("open files", found);
    }
    let remedy = format!(
        "raise the hard limit (`ulimit -Hn`) to {MIN_DESCRIPTORS} or more, as LimitNOFILE= of a systemd unit does"
    );
    Finding::new(
        "open files",
        State::Limited,
        format!("{found}, enough for a few workers"),
        remedy,
    )
}

fn processes() -> Finding {
    let most = getrlimit(Resource::Nproc).current.unwrap_or(u64::MAX);
    let found = match most {
        u64::MAX => "no limit".to_owned(),
        most => format!("at most {most} of this user"),
    };
    if most >= MIN_PROCESSES {
        return Finding::works("processes", found);
    }
    let remedy = format!("raise the limit (`ulimit -u`) to {MIN_PROCESSES} or more");
    Finding::new(
        "processes",
        State::Limited,
        format!("{found}, threads included"),
        remedy,
    )
}

/// Whether daemons can keep their state.
fn disk() -> Finding {
    const NAME: &str = "state directory";
    let Some(dir) = dayfly_client::default_state_dir() else {
        let found = "neither HOME nor XDG_STATE_HOME is set";
        return Finding::new(
            NAME,
            State::Limited,
            found,
            "set one, or name a directory with --state-dir",
        );
    };
    let above = existing(&dir);
    let shown = dir.display();
    if let Err(error) = write_in(&above) {
        let found = format!("{shown} cannot be written: {error}");
        let remedy = "name a directory of yours on a local disk with --state-dir, or in XDG_STATE_HOME";
        return Finding::new(NAME, State::Limited, found, remedy);
    }
    match rustix::fs::statvfs(&above) {
        Ok(disk) if disk.f_bavail.saturating_mul(disk.f_frsize) < MIN_FREE_BYTES => {
            let found = format!("{shown} has {} left", size(disk.f_bavail.saturating_mul(disk.f_frsize)));
            Finding::new(
                NAME,
                State::Limited,
                found,
                "free some space, or name another disk with --state-dir",
            )
        }
        Ok(disk) => {
            let free = size(disk.f_bavail.saturating_mul(disk.f_frsize));
            Finding::works(NAME, format!("{shown}, {free} free"))
        }
        Err(_) => Finding::works(NAME, shown.to_string()),
    }
}

/// The path, or the first of the directories above it that is there.
fn existing(path: &Path) -> PathBuf {
    let mut above = path.ancestors().filter(|above| above.is_dir());
    above.next().unwrap_or(Path::new("/")).to_owned()
}

fn write_in(dir: &Path) -> std::io::Result<()> {
    let probe = dir.join(format!(".dayfly-doctor-{}", std::process::id()));
    let written = private_file::write(&probe, b"");
    match std::fs::remove_file(&probe) {
        Err(error) if error.raw_os_error() != Some(Errno::NOENT.raw_os_error()) => written.and(Err(error)),
        _ => written,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_told_by_their_release() {
        let states =
            ["6.1.0-31-amd64", "5.12.3", "5.10.0-8.el8", "4.18.0", "strange"].map(|release| kernel_of(release).state);
        assert_eq!(
            states,
            [
                State::Works,
                State::Limited,
                State::Limited,
                State::Broken,
                State::Works
            ]
        );
    }

    #[test]
    fn directory_above_a_missing_one_is_found() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(existing(&dir.path().join("a/b")), dir.path());
        write_in(dir.path()).expect("written");
        assert_eq!(std::fs::read_dir(dir.path()).expect("read").count(), 0);
    }
}
