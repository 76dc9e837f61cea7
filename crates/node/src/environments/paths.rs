//! The files of an environment.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use dayfly_protocol::ids::EnvironmentHash;
use dayfly_sandbox::isolation::BindMount;
use rustix::fs::{FlockOperation, flock};

/// The paths of an environment.
pub struct Paths {
    pub root: PathBuf,
    pub lock: PathBuf,
    pub note: PathBuf,
}

impl Paths {
    pub fn new(dir: &Path, hash: EnvironmentHash) -> Self {
        Self {
            root: dir.join(hash.to_string()),
            lock: dir.join(format!("{hash}.lock")),
            note: dir.join(format!("{hash}.json")),
        }
    }

    pub fn is_complete(&self) -> bool {
        self.note.is_file() && self.root.is_dir()
    }

    /// Removes the note first: an environment without a note is incomplete.
    pub fn remove(&self) {
        let _ = std::fs::remove_file(&self.note);
        if let Err(error) = std::fs::remove_dir_all(&self.root)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(path = %self.root.display(), %error, "an environment cannot be removed");
        }
    }

    /// Records that it is used now.
    pub fn touch(&self) {
        let touched = File::options()
            .append(true)
            .open(&self.note)
            .and_then(|note| note.set_modified(SystemTime::now()));
        if let Err(error) = touched {
            tracing::debug!(path = %self.note.display(), %error, "an environment's last use cannot be noted");
        }
    }
}

/// Links the packages that every worker needs into an environment, from where the node has them now. Packages of the
/// environment itself stay.
pub fn link_packages(root: &Path, minor: &str, packages: &[BindMount]) -> std::io::Result<()> {
    let modules = root.join(format!("lib/python{minor}/site-packages"));
    for shown in packages {
        let Some(name) = shown.path.file_name() else { continue };
        let link = modules.join(name);
        match std::fs::read_link(&link) {
            Ok(target) if target == shown.from => continue,
            Ok(_) => {}
            Err(_) if link.exists() => continue,
            Err(_) => {}
        }
        // Replace it in one step, since others may import it meanwhile.
        let fresh = modules.join(format!(".{}-{}", name.to_string_lossy(), std::process::id()));
        let _ = std::fs::remove_file(&fresh);
        std::os::unix::fs::symlink(&shown.from, &fresh)?;
        std::fs::rename(&fresh, &link)?;
    }
    Ok(())
}

/// Locks or unlocks a file. Returns false if another process holds the lock.
pub fn lock_file(file: &File, how: FlockOperation) -> std::io::Result<bool> {
    match rustix::io::retry_on_intr(|| flock(file, how)) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
