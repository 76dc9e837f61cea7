//! File creation masks: a daemon's own files are its user's alone, and what it starts for that user has the mask that the daemon
//! was started with.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::OnceLock;

use rustix::fs::Mode;
use rustix::process::umask;

/// Of the daemon itself: nobody but its user reads what it writes.
const PRIVATE: Mode = Mode::from_raw_mode(0o077);
/// Of isolated processes, which are nobody's.
pub(crate) const ISOLATED: libc::mode_t = 0o022;

/// What the process was started with, once it has a mask of its own.
static STARTED_WITH: OnceLock<Mode> = OnceLock::new();

/// Lets nobody but this user read the files that this process makes from now on. The mask of before is kept for
/// [`hand_back`].
pub fn keep_private() {
    STARTED_WITH.get_or_init(|| umask(PRIVATE));
}

/// The mask that the process was started with; none where it still has it.
pub fn started_with() -> Option<Mode> {
    STARTED_WITH.get().copied()
}

/// Runs the command with the mask that this process was started with.
pub fn hand_back(command: &mut Command) -> &mut Command {
    let Some(mask) = started_with() else {
        return command;
    };
    // SAFETY: one system call, which allocates nothing and cannot fail.
    unsafe {
        command.pre_exec(move || {
            umask(mask);
            Ok(())
        })
    }
}
