//! File creation masks. A daemon's own files are private to its user; the programs that it starts for that user get the
//! mask that the daemon was started with.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::OnceLock;

use rustix::fs::Mode;
use rustix::process::umask;

/// The daemon's own mask: only its user can read its files.
const PRIVATE: Mode = Mode::from_raw_mode(0o077);
/// Mask of isolated processes.
pub(crate) const ISOLATED: libc::mode_t = 0o022;

/// The original mask, once [`keep_private`] has changed it.
static STARTED_WITH: OnceLock<Mode> = OnceLock::new();

/// Makes files of this process private to this user from now on. Keeps the original mask for [`hand_back`].
pub fn keep_private() {
    STARTED_WITH.get_or_init(|| umask(PRIVATE));
}

/// The original mask; `None` if it is unchanged.
pub fn started_with() -> Option<Mode> {
    STARTED_WITH.get().copied()
}

/// Gives the command the original mask.
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
