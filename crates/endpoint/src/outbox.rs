//! A file of outcomes that no manager has stored yet, while there is no connection. They survive the end of the
//! endpoint's process.
//!
//! The file does not survive a crash of the machine: nothing is synced.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use dayfly_protocol::dispatch::{Ended, MAX_FRAME_BYTES};

/// The outbox of one endpoint.
pub struct Outbox {
    path: PathBuf,
    /// Open while it is not empty.
    file: Option<File>,
}

impl Outbox {
    /// Opens the outbox at this path, and returns the outcomes that an earlier process left in it.
    pub fn open(path: PathBuf) -> (Self, Vec<Ended>) {
        let left = match File::open(&path) {
            Ok(file) => read(file),
            Err(_) => Vec::new(),
        };
        let mut outbox = Self { path, file: None };
        if !left.is_empty() {
            tracing::info!(outcomes = left.len(), "outcomes of an earlier process are sent first");
            outbox.replace(&left);
        }
        (outbox, left)
    }

    /// Replaces the contents by these outcomes, which are in doubt after a broken connection.
    pub fn replace(&mut self, ended: &[Ended]) {
        if ended.is_empty() {
            return self.clear();
        }
        // Renamed when it is complete, so that each outcome is always in one of the two files.
        let fresh = self.path.with_extension("new");
        let _ = std::fs::remove_file(&fresh);
        self.file = None;
        let kept = self
            .write(&fresh, ended)
            .and_then(|()| std::fs::rename(&fresh, &self.path));
        self.log_error(kept);
    }

    /// Appends outcomes.
    pub fn append(&mut self, ended: &[Ended]) {
        if ended.is_empty() {
            return;
        }
        let kept = self.write(&self.path.clone(), ended);
        self.log_error(kept);
    }

    fn log_error(&self, kept: std::io::Result<()>) {
        if let Err(error) = kept {
            let path = self.path.display();
            tracing::error!(%path, %error, "outcomes are kept in memory only; they are lost if this endpoint ends before its manager is reachable");
        }
    }

    /// Appends to the open file, or creates the file at this path.
    fn write(&mut self, path: &Path, ended: &[Ended]) -> std::io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                let mut options = OpenOptions::new();
                let file = options.create(true).append(true).mode(0o600).open(path)?;
                none.insert(file)
            }
        };
        let mut frames = Vec::new();
        for one in ended {
            let bytes = rmp_serde::to_vec_named(one).map_err(std::io::Error::other)?;
            let length = u32::try_from(bytes.len()).map_err(std::io::Error::other)?;
            frames.extend_from_slice(&length.to_le_bytes());
            frames.extend_from_slice(&bytes);
        }
        file.write_all(&frames)
    }

    /// Removes all outcomes.
    pub fn clear(&mut self) {
        self.file = None;
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::error!(path = %self.path.display(), %error, "stored outcomes cannot be removed from the outbox; they will be sent again");
            }
            _ => {}
        }
    }

    /// Whether it contains no outcomes.
    pub fn is_empty(&self) -> bool {
        self.file.is_none()
    }
}

/// Reads all complete outcomes; the last one may be truncated.
fn read(mut file: File) -> Vec<Ended> {
    let mut found = Vec::new();
    let mut length = [0; 4];
    while file.read_exact(&mut length).is_ok() {
        let length = u32::from_le_bytes(length) as usize;
        if length > MAX_FRAME_BYTES {
            break;
        }
        let mut bytes = vec![0; length];
        if file.read_exact(&mut bytes).is_err() {
            break;
        }
        match rmp_serde::from_slice(&bytes) {
            Ok(ended) => found.push(ended),
            Err(_) => break,
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use dayfly_protocol::dispatch::Attempt;
    use dayfly_protocol::ids::TaskId;

    use super::*;

    fn ended(task: u8) -> Ended {
        let attempt = Attempt {
            task: TaskId([task; 16]),
            number: 1,
        };
        Ended {
            answer: dayfly_protocol::contents::Payload::Inline(vec![task; 100].into()),
            ..Ended::unexecuted(attempt, None)
        }
    }

    #[test]
    fn outcomes_are_returned_until_they_are_cleared() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("outbox");
        let (mut outbox, left) = Outbox::open(path.clone());
        assert_eq!(left, []);
        outbox.replace(&[ended(1), ended(2)]);
        outbox.append(&[ended(3)]);
        let all = [ended(1), ended(2), ended(3)];
        assert_eq!(Outbox::open(path.clone()).1, all);
        // The connection broke again, and the manager stored one outcome meanwhile.
        outbox.replace(&all[1..]);
        assert_eq!(Outbox::open(path.clone()).1, all[1..]);
        outbox.clear();
        assert!(outbox.is_empty() && !path.exists());
        assert_eq!(Outbox::open(path).1, []);
    }

    #[test]
    fn truncated_or_damaged_outcome_ends_reading() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("outbox");
        let (mut outbox, _) = Outbox::open(path.clone());
        outbox.append(&[ended(1), ended(2)]);
        let whole = std::fs::read(&path).unwrap();
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            let found = Outbox::open(path.clone()).1;
            assert!(found.len() < 2 && found.iter().all(|one| *one == ended(1)), "{length}");
            std::fs::remove_file(&path).ok();
        }
        std::fs::write(&path, [0xff; 64]).unwrap();
        assert_eq!(Outbox::open(path).1, []);
    }
}
