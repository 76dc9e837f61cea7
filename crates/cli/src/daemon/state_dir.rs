//! A daemon's state directory: private to its user, and used by one daemon at a time.

use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use dayfly_protocol::error::{Code, Failure};
use dayfly_sandbox::private_file::is_unchangeable;
use dayfly_sandbox::umask;
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

/// Present in every directory that a daemon has used.
const LOCK: &str = "lock";
/// A directory with one of these files is a state directory.
const OWN_FILES: [&str; 4] = [LOCK, "endpoint.toml", "manager.db", "node.key"];
/// Present in every new file system.
const LOST_AND_FOUND: &str = "lost+found";
/// Permissions of all users but the owner.
const OTHERS: u32 = 0o077;
/// Permissions of all users but the owner and the group.
const STRANGERS: u32 = 0o007;
/// The sticky bit: the directory is shared by many users, as /tmp is.
const STICKY: u32 = 0o1000;

/// A locked state directory that no other user can access.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    was_empty: bool,
    /// The lock is held while this file is open. The kernel releases it when the process is killed.
    _lock: File,
}

impl StateDir {
    /// Creates the directory if necessary, and locks it. All files that this process makes from now on are private.
    pub fn take(path: &Path) -> Result<Self, Failure> {
        umask::set_private();
        let unusable = |error: std::io::Error| unusable(path, &error);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(unusable)?;
        let was_empty = std::fs::read_dir(path).map_err(unusable)?.next().is_none();
        make_private(path)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        // In a directory of another user, the lock may be that user's symbolic link.
        options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
        let mut lock = options.open(path.join(LOCK)).map_err(unusable)?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut holder = String::new();
                let _ = lock.read_to_string(&mut holder);
                return Err(Failure::new(
                    Code::AddressInUse,
                    format!(
                        "the state directory {} is in use by process {}; stop that one, or choose another by --state-dir",
                        path.display(),
                        holder.trim()
                    ),
                ));
            }
            Err(error) => return Err(unusable(error.into())),
        }
        let mut sign = || {
            lock.set_len(0)?;
            lock.rewind()?;
            writeln!(lock, "{}", std::process::id())
        };
        sign().map_err(unusable)?;
        Ok(Self {
            path: path.to_owned(),
            was_empty,
            _lock: lock,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the directory if this process made all of its content.
    pub fn remove(self) {
        if self.was_empty {
            // The process that created it may be removing it too.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

fn unusable(path: &Path, error: &std::io::Error) -> Failure {
    let text = "check its owner and mode, or choose another by --state-dir";
    let path = path.display();
    Failure::new(
        Code::StoreFailed,
        format!("the state directory {path} cannot be used: {error}; {text}"),
    )
}

/// Removes other users' access to the directory and to files that an earlier release left readable. Errors if the
/// directory is not the daemon's to close.
fn make_private(path: &Path) -> Result<(), Failure> {
    let user = rustix::process::geteuid().as_raw();
    make_private_for(user, path, |directory, mode| {
        directory.set_permissions(Permissions::from_mode(mode))
    })
}

/// As [`make_private`], for a given user and a function that changes a directory's mode.
fn make_private_for(
    user: u32,
    path: &Path,
    change_mode: impl Fn(&File, u32) -> std::io::Result<()>,
) -> Result<(), Failure> {
    let failed = |error: std::io::Error| unusable(path, &error);
    // By descriptor, so that the checked directory is the changed one.
    let directory = File::open(path).map_err(failed)?;
    let found = directory.metadata().map_err(failed)?;
    if found.mode() & OTHERS != 0 {
        if let Some(why) = not_ours(path, &found).map_err(failed)? {
            let text = format!(
                "{why}; name a directory below it by --state-dir, or run `chmod 700 {}` if it is for Dayfly alone",
                path.display()
            );
            return Err(exposed(path, found.mode(), &text));
        }
        // Keep the setgid bit: a directory with a group quota keeps its group.
        let changed = change_mode(&directory, found.mode() & 0o7700 | 0o700);
        let why = match changed {
            Err(error) if is_unchangeable(&error) => error.to_string(),
            Err(error) => return Err(failed(error)),
            // Some file systems without modes report success.
            Ok(()) => "its file system has no modes".to_owned(),
        };
        // Trust the mode in the file system over the result of the call.
        let mode = directory.metadata().map_err(failed)?.mode();
        if mode & STRANGERS != 0 {
            let text = format!(
                "its mode cannot be changed: {why}; name a directory below it by --state-dir, have its owner run `chmod 700 {}`, \
                 or mount a file system without modes with umask=077",
                path.display()
            );
            return Err(exposed(path, mode, &text));
        }
        let was = format!("{:04o}", found.mode() & 0o7777);
        if mode & OTHERS == 0 {
            tracing::warn!(directory = %path.display(), was, "others could enter the state directory; it has mode 0700 now");
        } else {
            tracing::warn!(
                directory = %path.display(), mode = was, why,
                "the group of the state directory can enter it, and its mode cannot be changed"
            );
        }
    }
    if found.uid() != user {
        tracing::warn!(
            directory = %path.display(), owner = found.uid(),
            "the state directory belongs to another user, who can read and replace what is in it"
        );
    }
    for entry in std::fs::read_dir(path).map_err(failed)? {
        narrow(&entry.map_err(failed)?.path()).map_err(failed)?;
    }
    Ok(())
}

fn exposed(path: &Path, mode: u32, why: &str) -> Failure {
    let (path, mode) = (path.display(), mode & 0o7777);
    let text = format!("the state directory {path} has mode {mode:04o}, so that others can enter it, and {why}");
    Failure::new(Code::StateExposed, text)
}

/// Returns why a directory must keep its permissions; `None` if a daemon may close it.
fn not_ours(path: &Path, found: &Metadata) -> std::io::Result<Option<&'static str>> {
    if found.mode() & STICKY != 0 {
        return Ok(Some("it is shared by many users"));
    }
    let home = std::env::var_os("HOME").and_then(|home| Path::new(&home).canonicalize().ok());
    if home.is_some_and(|home| path.canonicalize().is_ok_and(|path| path == home)) {
        return Ok(Some("it is a home directory"));
    }
    let mut is_empty = true;
    for entry in std::fs::read_dir(path)? {
        let name = entry?.file_name();
        if OWN_FILES.iter().any(|own| name == *own) {
            return Ok(None);
        }
        is_empty &= name == LOST_AND_FOUND;
    }
    Ok((!is_empty).then_some("it holds other things than Dayfly's"))
}

/// Removes other users' permissions on a file or directory of this user.
fn narrow(path: &Path) -> std::io::Result<()> {
    let found = match path.symlink_metadata() {
        // Such as the socket of a daemon that is ending.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    let is_kept = found.is_file() || found.is_dir();
    if !is_kept || found.mode() & OTHERS == 0 || found.uid() != rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    match std::fs::set_permissions(path, Permissions::from_mode(found.mode() & 0o7700)) {
        // Other users cannot enter the directory.
        Err(error) if is_unchangeable(&error) => Ok(()),
        narrowed => narrowed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open_directory(files: &[&str]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for file in files {
            let path = directory.path().join(file);
            std::fs::write(&path, "x").unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        }
        std::fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
        directory
    }

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().mode() & 0o7777
    }

    #[test]
    fn readable_state_is_made_private() {
        let directory = open_directory(&["manager.db", "connection.json"]);
        make_private(directory.path()).unwrap();
        assert_eq!(mode(directory.path()), 0o700);
        assert_eq!(mode(&directory.path().join("manager.db")), 0o600);
        assert_eq!(mode(&directory.path().join("connection.json")), 0o600);
    }

    #[test]
    fn open_empty_directory_is_made_private() {
        let directory = open_directory(&[]);
        make_private(directory.path()).unwrap();
        assert_eq!(mode(directory.path()), 0o700);
    }

    #[test]
    fn directory_with_other_files_is_refused() {
        let directory = open_directory(&["letter.txt"]);
        let refused = make_private(directory.path()).unwrap_err();
        assert_eq!(refused.code, Code::StateExposed);
        assert!(refused.message.contains("chmod 700"), "{refused}");
        assert_eq!(mode(directory.path()), 0o755);
        assert_eq!(mode(&directory.path().join("letter.txt")), 0o644);
    }

    #[test]
    fn directory_shared_by_many_is_refused() {
        let directory = open_directory(&["lock"]);
        std::fs::set_permissions(directory.path(), Permissions::from_mode(0o1777)).unwrap();
        let refused = make_private(directory.path()).unwrap_err();
        assert_eq!(refused.code, Code::StateExposed);
        assert_eq!(mode(directory.path()), 0o1777);
    }

    /// As [`make_private_for`] if the mode of the directory cannot be changed.
    fn make_private_without_modes(directory: &Path, mode: u32, errno: Errno) -> Result<(), Failure> {
        std::fs::set_permissions(directory, Permissions::from_mode(mode)).unwrap();
        let user = rustix::process::geteuid().as_raw();
        make_private_for(user, directory, |_, _| Err(errno.into()))
    }

    #[test]
    fn private_read_only_directory_is_accepted() {
        let directory = open_directory(&[]);
        for errno in [Errno::PERM, Errno::ROFS, Errno::NOTSUP] {
            make_private_without_modes(directory.path(), 0o2770, errno).unwrap();
            assert_eq!(mode(directory.path()), 0o2770);
        }
    }

    #[test]
    fn open_read_only_directory_is_refused_with_advice() {
        let directory = open_directory(&[]);
        let refused = make_private_without_modes(directory.path(), 0o2777, Errno::PERM).unwrap_err();
        assert_eq!(refused.code, Code::StateExposed);
        for advice in ["--state-dir", "chmod 700", "umask=077"] {
            assert!(refused.message.contains(advice), "{refused}");
        }
        // Some file systems report success without a change.
        let user = rustix::process::geteuid().as_raw();
        let refused = make_private_for(user, directory.path(), |_, _| Ok(())).unwrap_err();
        assert_eq!(refused.code, Code::StateExposed);
    }

    #[test]
    fn directory_whose_mode_cannot_change_is_unusable() {
        let directory = open_directory(&[]);
        let refused = make_private_without_modes(directory.path(), 0o770, Errno::IO).unwrap_err();
        assert_eq!(refused.code, Code::StoreFailed);
    }

    #[test]
    fn root_takes_directory_of_another_owner() {
        let directory = open_directory(&["manager.db"]);
        // As for root: another user's directory, whose mode it may change.
        let root = rustix::process::geteuid().as_raw() + 1;
        let change_mode = |directory: &File, mode| directory.set_permissions(Permissions::from_mode(mode));
        make_private_for(root, directory.path(), change_mode).unwrap();
        assert_eq!(mode(directory.path()), 0o700);
        make_private_for(root, directory.path(), |_, _| unreachable!("nobody else can enter it")).unwrap();
    }
}
