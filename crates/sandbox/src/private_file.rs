//! Files and directories with secrets of daemons and their clients: only this user can read them.

use std::ffi::OsString;
use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Permissions of users other than the owner and the group.
const OTHERS: u32 = 0o007;

/// Writes a file that only this user can read. Replaces an existing file atomically, also when power fails.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut part = OsString::from(path);
    part.push(".new");
    // A leftover of a crash may have another mode; a new file certainly has this one.
    match std::fs::remove_file(&part) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let write = || {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&part)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&part, path)
    };
    write().inspect_err(|_| {
        let _ = std::fs::remove_file(&part);
    })
}

/// Makes a directory, and those above it, that only this user can enter. Restricts an existing one. If its mode cannot
/// be changed, returns an error unless it is closed to all users outside its group.
pub fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    match std::fs::set_permissions(path, Permissions::from_mode(0o700)) {
        Err(error) if is_unchangeable(&error) && path.metadata()?.permissions().mode() & OTHERS == 0 => Ok(()),
        closed => closed,
    }
}

/// Whether a mode cannot be changed: the file belongs to another user, or is on a network file system that does not
/// trust root, or on a file system that is read-only or has no modes.
pub fn is_unchangeable(error: &io::Error) -> bool {
    let kinds = [
        ErrorKind::PermissionDenied,
        ErrorKind::ReadOnlyFilesystem,
        ErrorKind::Unsupported,
    ];
    kinds.contains(&error.kind())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn readable_file_is_replaced_by_a_private_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        for leftover in ["secret", "secret.new"] {
            let leftover = directory.path().join(leftover);
            std::fs::write(&leftover, "old").unwrap();
            std::fs::set_permissions(&leftover, Permissions::from_mode(0o644)).unwrap();
        }
        write(&path, b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(mode(&path), 0o600);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn failed_write_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        std::fs::create_dir(&path).unwrap();
        assert!(write(&path, b"new").is_err());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn existing_directory_becomes_private() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/b");
        make_directory(&path).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        make_directory(&path).unwrap();
        assert_eq!(mode(&path), 0o700);
        assert_eq!(mode(&directory.path().join("a")), 0o700);
    }
}
