//! The file with a record of events and actions, from which the decisions can be repeated.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use dayfly_harvest::record::{Entry, Header};
use dayfly_harvest::{Rules, Trains};
use serde::Serialize;

/// A record to make. An earlier one at that path is replaced.
#[derive(Debug)]
pub struct RecordingFile {
    pub path: PathBuf,
    /// Its bound. Later events are not recorded: without its beginning, a record cannot be repeated.
    pub max_bytes: u64,
}

/// The record.
#[derive(Debug)]
pub(super) struct Recording {
    file: BufWriter<File>,
    path: PathBuf,
    left: u64,
}

impl Recording {
    /// Begins the record.
    pub fn begin(target: &RecordingFile, rules: Rules, trains: Trains) -> std::io::Result<Self> {
        let mut recording = Self {
            file: BufWriter::new(File::create(&target.path)?),
            path: target.path.clone(),
            left: target.max_bytes,
        };
        recording.line(&Header { rules, trains })?;
        Ok(recording)
    }

    /// Adds an event. Returns false when the record is full, or cannot be written.
    pub fn add(&mut self, entry: &Entry) -> bool {
        match self.line(entry) {
            Ok(true) => true,
            Ok(false) => {
                tracing::warn!(path = %self.path.display(), "the record of harvesting is full and ends here");
                let _ = self.file.flush();
                false
            }
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "the record of harvesting ends here");
                false
            }
        }
    }

    /// Writes the added entries.
    pub fn flush(&mut self) {
        let _ = self.file.flush();
    }

    fn line(&mut self, value: &impl Serialize) -> std::io::Result<bool> {
        let mut bytes = serde_json::to_vec(value)?;
        bytes.push(b'\n');
        let Some(left) = self.left.checked_sub(bytes.len() as u64) else {
            return Ok(false);
        };
        self.left = left;
        self.file.write_all(&bytes)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use dayfly_harvest::Event;

    use super::*;

    fn tick(now_us: u64) -> Entry {
        Entry {
            now_us,
            event: Event::Tick,
            actions: Vec::new(),
        }
    }

    #[test]
    fn full_record_ends_between_two_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record");
        let rules = Rules::default();
        let trains = Trains::OnRequest;
        let header = serde_json::to_vec(&Header { rules, trains }).unwrap().len() as u64 + 1;
        let target = RecordingFile {
            path: path.clone(),
            max_bytes: header + 100,
        };
        let mut recording = Recording::begin(&target, rules, trains).unwrap();
        let added = (0..10).take_while(|n| recording.add(&tick(*n))).count();
        recording.flush();
        let text = std::fs::read_to_string(path).unwrap();
        assert!((1..10).contains(&added));
        assert_eq!(text.lines().count(), added + 1);
        assert!(text.ends_with('\n'));
        assert_eq!(
            text.lines().nth(1),
            Some(r#"{"now_us":0,"event":{"event":"tick"},"actions":[]}"#)
        );
    }
}
