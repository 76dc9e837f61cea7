//! The directories of control groups: made, filled, emptied and removed.

use std::fs::File;
use std::io::{Result, Write};
use std::path::Path;
use std::time::Duration;

use super::Controller;
use super::mounts::DAEMON_LEAF;

/// Tries to remove a group whose last process is dying.
pub(super) const REMOVE_TRIES: u32 = 200;
/// Most passes to move processes that fork meanwhile.
pub(super) const MOVE_PASSES: u32 = 20;

/// Writes a file of a group.
pub(super) fn write(path: &Path, text: &str) -> Result<()> {
    File::options().write(true).open(path)?.write_all(text.as_bytes())
}

/// Version 2 permits no group with processes of its own to enable controllers. So the node moves into a group beside
/// its sandboxes, with everything that it has started before. That works if no other process is in the group that it
/// was started in, as under a service manager that delegates.
pub(super) fn make_unified(own: &Path, path: &Path, controllers: &mut Vec<Controller>) -> Result<()> {
    std::fs::create_dir(path)?;
    let seat = own.join(DAEMON_LEAF);
    match std::fs::create_dir(&seat) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    move_to_leaf(own, &seat)?;
    controllers.retain(|controller| hand_down(own, *controller) && hand_down(path, *controller));
    Ok(())
}

/// Lets the groups below a group of version 2, which has no processes, use a controller. Returns whether they may.
pub(super) fn hand_down(group: &Path, controller: Controller) -> bool {
    let text = format!("+{}", controller.name());
    write(&group.join("cgroup.subtree_control"), &text).is_ok()
}

/// Moves this process and its descendants from one group to another.
fn move_to_leaf(own: &Path, seat: &Path) -> Result<()> {
    let door = seat.join("cgroup.procs");
    write(&door, "0")?;
    for _ in 0..MOVE_PASSES {
        let listed = std::fs::read_to_string(own.join("cgroup.procs"))?;
        let ours = listed.lines().filter(|pid| is_below_us(pid));
        // A process that was forked meanwhile is found by the next pass; one that has ended needs no move.
        let moved = ours.filter(|pid| write(&door, pid).is_ok()).count();
        if moved == 0 {
            break;
        }
    }
    Ok(())
}

/// Whether this process is an ancestor of another.
fn is_below_us(pid: &str) -> bool {
    let parent = |pid: &str| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The program's name, in parentheses, may contain anything.
        let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.to_string();
        (parent != "0").then_some(parent)
    };
    let own = std::process::id().to_string();
    std::iter::successors(parent(pid), |pid| parent(pid)).any(|pid| pid == own)
}

/// Removes empty groups of other nodes that are older than `older`. A killed node could not remove them, and may never
/// return under its name. The kernel refuses to remove a group with processes.
pub(super) fn remove_stale(place: &Path, older: Duration) {
    for node in groups_in(place).filter(|entry| entry.file_name().to_string_lossy().starts_with("dayfly-")) {
        remove_empty(&node, older);
    }
}

/// Removes a group, after those below it, if all are empty and older than `older`.
fn remove_empty(entry: &std::fs::DirEntry, older: Duration) {
    let modified = entry.metadata().and_then(|metadata| metadata.modified());
    if !modified.is_ok_and(|at| at.elapsed().is_ok_and(|age| age >= older)) {
        return;
    }
    for below in groups_in(&entry.path()) {
        remove_empty(&below, older);
    }
    let _ = std::fs::remove_dir(entry.path());
}

/// The groups directly below a group.
pub(super) fn groups_in(path: &Path) -> impl Iterator<Item = std::fs::DirEntry> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
}

/// Ends all processes in a group, and removes it with the groups below.
pub(super) fn remove_tree(path: &Path) {
    if !path.is_dir() {
        return;
    }
    for below in groups_in(path) {
        remove_tree(&below.path());
    }
    for _ in 0..REMOVE_TRIES {
        if std::fs::remove_dir(path).is_ok() || !path.is_dir() {
            return;
        }
        let text = std::fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
        for pid in text
            .lines()
            .filter_map(|line| rustix::process::Pid::from_raw(line.parse().ok()?))
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Moves the processes that are in a group, not those in groups below it, to the group `home`, and then removes it.
/// Returns whether it is gone. A process that is moved keeps running. Tries so many times, and waits after the first
/// [`MOVE_PASSES`].
pub(super) fn remove_emptied(path: &Path, home: &Path, tries: u32) -> bool {
    let door = home.join("cgroup.procs");
    for attempt in 0..tries {
        if std::fs::remove_dir(path).is_ok() || !path.is_dir() {
            return true;
        }
        let listed = std::fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
        for pid in listed.lines() {
            // A process that has just ended needs no move.
            let _ = write(&door, pid);
        }
        if attempt >= MOVE_PASSES {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    false
}
