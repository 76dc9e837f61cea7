//! Working directories of workers. Each worker begins in its own, which is removed after the worker's end.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The working directories of one executor's workers.
pub struct Scratch {
    root: PathBuf,
}

impl Scratch {
    /// Makes their root below the directory for temporary files. `None` if the node was started in a chosen directory,
    /// where workers then begin, or if none can be made.
    pub fn new() -> Option<Self> {
        Self::below(&std::env::temp_dir(), &std::env::current_dir().ok()?)
    }

    fn below(temporary: &Path, here: &Path) -> Option<Self> {
        if here != Path::new("/") {
            return None;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let root = temporary.join(format!("dayfly-work-{}-{:x}", std::process::id(), now.as_nanos()));
        private(&root).then_some(Self { root })
    }

    fn path(&self, worker: u16, incarnation: u32) -> PathBuf {
        self.root.join(format!("{worker}-{incarnation}"))
    }

    /// Makes a worker's directory; `None` on failure.
    pub fn make(&self, worker: u16, incarnation: u32) -> Option<PathBuf> {
        let path = self.path(worker, incarnation);
        private(&path).then_some(path)
    }

    /// Removes the directory of a worker that has ended.
    pub fn remove(&self, worker: u16, incarnation: u32) {
        // If processes still write there, the root's removal removes it.
        let _ = std::fs::remove_dir_all(self.path(worker, incarnation));
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

/// Makes a directory with mode 0700. Returns whether it is new.
fn private(path: &Path) -> bool {
    DirBuilder::new().mode(0o700).create(path).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_directory_is_removed_with_its_worker() {
        let temporary = std::env::temp_dir().join(format!("dayfly-scratch-test-{}", std::process::id()));
        std::fs::create_dir(&temporary).unwrap();
        assert!(Scratch::below(&temporary, Path::new("/home")).is_none());
        assert!(Scratch::below(&temporary.join("none"), Path::new("/")).is_none());
        let scratch = Scratch::below(&temporary, Path::new("/")).unwrap();
        let (first, second) = (scratch.make(0, 1).unwrap(), scratch.make(1, 1).unwrap());
        assert_ne!(first, second);
        std::fs::write(first.join("written"), "by a task").unwrap();
        assert_eq!(scratch.make(0, 1), None);
        scratch.remove(0, 1);
        assert!(!first.exists() && second.exists());
        drop(scratch);
        std::fs::remove_dir(&temporary).unwrap();
    }
}
