//! Directories on disk for what workers cannot hold in memory, one for each executor.

use std::ffi::OsString;
use std::fs::Permissions;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use dayfly_sandbox::Isolation;
use dayfly_sandbox::isolation::BindMount;

/// Where an isolated executor sees its directory.
const INSIDE: &str = "/dayfly/spill";
/// Variable that tells workers of it.
const DIRECTORY_VARIABLE: &str = "DAYFLY_SPILL";
/// Variable with the most bytes that a worker may write there.
const BYTES_VARIABLE: &str = "DAYFLY_SPILL_BYTES";

/// Makes the directories.
#[derive(Debug)]
pub struct SpillFactory {
    dir: PathBuf,
    bytes: Option<u64>,
    next: AtomicU32,
}

impl SpillFactory {
    /// `name` is unique among the nodes of this host. Removes what an earlier process of the node left.
    pub fn new(parent: &Path, name: &str, bytes: Option<u64>) -> std::io::Result<Self> {
        let dir = parent.join(format!("dayfly-{name}"));
        match remove_tree(&dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // Isolated workers enter their own directories by mounts.
        private(&dir)?;
        Ok(Self {
            dir,
            bytes,
            next: AtomicU32::new(0),
        })
    }

    /// Makes a directory for an executor, shows it to it, and tells it by variables.
    pub fn make(
        &self,
        isolation: Option<&mut Isolation>,
        environment: &mut Vec<(OsString, Option<OsString>)>,
    ) -> std::io::Result<SpillDir> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let made = SpillDir(self.dir.join(number.to_string()));
        private(&made.0)?;
        let seen = match isolation {
            Some(isolation) => {
                if let Some(user) = isolation.host_user() {
                    chown(&made.0, Some(user), Some(user))?;
                }
                isolation.shown.push(BindMount {
                    path: INSIDE.into(),
                    from: made.0.clone(),
                    writable: true,
                });
                Path::new(INSIDE)
            }
            None => made.0.as_path(),
        };
        environment.push((DIRECTORY_VARIABLE.into(), Some(seen.into())));
        if let Some(bytes) = self.bytes {
            environment.push((BYTES_VARIABLE.into(), Some(bytes.to_string().into())));
        }
        Ok(made)
    }
}

impl Drop for SpillFactory {
    fn drop(&mut self) {
        // Fails if an executor still has its directory; the next start of the node removes it then.
        let _ = std::fs::remove_dir(&self.dir);
    }
}

/// The directory of one executor. Dropping it removes it.
#[derive(Debug)]
pub struct SpillDir(PathBuf);

impl Drop for SpillDir {
    fn drop(&mut self) {
        if let Err(error) = remove_tree(&self.0) {
            tracing::warn!(directory = %self.0.display(), %error, "what workers spilled cannot be removed");
        }
    }
}

/// Removes a directory that a worker may have filled with malice: its depth needs no open files and no stack, and closed
/// directories are opened. Nothing writes there any more.
fn remove_tree(dir: &Path) -> std::io::Result<()> {
    let mut number = 0_u64;
    loop {
        let mut is_empty = true;
        for entry in std::fs::read_dir(dir)? {
            is_empty = false;
            let entry = entry?;
            if !entry.file_type()?.is_dir() {
                std::fs::remove_file(entry.path())?;
                continue;
            }
            std::fs::set_permissions(entry.path(), Permissions::from_mode(0o700))?;
            for inner in std::fs::read_dir(entry.path())? {
                let inner = inner?;
                if inner.file_type()?.is_dir() {
                    // One level up, where the next round finds it. A directory is only moved by who may write to it.
                    std::fs::set_permissions(inner.path(), Permissions::from_mode(0o700))?;
                    let free = loop {
                        number += 1;
                        let free = dir.join(format!("moved-{number}"));
                        if free.symlink_metadata().is_err() {
                            break free;
                        }
                    };
                    std::fs::rename(inner.path(), free)?;
                } else {
                    std::fs::remove_file(inner.path())?;
                }
            }
            std::fs::remove_dir(entry.path())?;
        }
        if is_empty {
            return std::fs::remove_dir(dir);
        }
    }
}

fn private(dir: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().mode(0o700).create(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a deep tree of directories, with links out of it, files, and a closed directory at its end.
    fn fill_with_malice(dir: &Path) {
        let mut at = std::fs::File::open(dir).unwrap();
        for _ in 0..3_000 {
            rustix::fs::mkdirat(&at, "moved-1", 0o700.into()).unwrap();
            rustix::fs::symlinkat("/etc", &at, "link").unwrap();
            at = rustix::fs::openat(&at, "moved-1", rustix::fs::OFlags::DIRECTORY, 0.into())
                .unwrap()
                .into();
        }
        rustix::fs::mkdirat(&at, "closed", 0.into()).unwrap();
    }

    #[test]
    fn directories_are_private_and_leave_nothing() {
        let parent = tempfile::tempdir().unwrap();
        let left = parent.path().join("dayfly-a/7");
        std::fs::create_dir_all(&left).unwrap();
        let factory = SpillFactory::new(parent.path(), "a", Some(5)).unwrap();
        assert!(!left.exists());
        let mut environment = Vec::new();
        let made = factory.make(None, &mut environment).unwrap();
        let [(_, Some(directory)), (_, Some(bytes))] = environment.as_slice() else {
            panic!("{environment:?}");
        };
        assert_eq!(bytes, "5");
        let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(directory).unwrap());
        assert_eq!(mode & 0o777, 0o700);
        std::fs::write(Path::new(directory).join("spilled"), "rows").unwrap();
        fill_with_malice(Path::new(directory));
        drop(made);
        assert!(!Path::new(directory).exists());
        drop(factory);
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
    }
}
