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

/// The original mask, once [`set_private`] has changed it.
static ORIGINAL: OnceLock<Mode> = OnceLock::new();

/// Makes files of this process private to this user from now on. Keeps the original mask for [`restore_for`].
pub fn set_private() {
    ORIGINAL.get_or_init(|| umask(PRIVATE));
}

/// The original mask; `None` if it is unchanged.
pub fn original() -> Option<Mode> {
    ORIGINAL.get().copied()
}

/// Gives the command the original mask.
pub fn restore_for(command: &mut Command) -> &mut Command {
    let Some(mask) = original() else {
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
