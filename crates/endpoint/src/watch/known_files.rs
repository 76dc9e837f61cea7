//! The known files of a place: decides which of them to report.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use dayfly_protocol::triggers::{MAX_FILES, ObservedFile};

use super::file_source::FoundFile;

/// Time after which an unnoted file is reported again.
const REPORT_INTERVAL: Duration = Duration::from_secs(30);
/// Most unnoted files of one place. Further files wait, so that a full manager does not receive more and more.
const MAX_UNNOTED: usize = 10 * MAX_FILES;

/// Known files, by their paths.
#[derive(Default)]
pub struct KnownFiles {
    files: HashMap<String, KnownFile>,
}

struct KnownFile {
    version: String,
    state: FileState,
}

enum FileState {
    /// It may still be written; with the inode's change time at the last listing.
    Fresh(i128),
    /// Reported at this time.
    Reported(Instant),
    Noted,
}

impl KnownFiles {
    /// Returns the files to report now, the oldest first. With `settles`, a file is reported once two listings found
    /// the same version; otherwise files appear complete. Files that are not found are forgotten.
    pub fn update(&mut self, found: Vec<FoundFile>, settles: bool, now: Instant) -> Vec<ObservedFile> {
        let is_due = |at: Instant| now.saturating_duration_since(at) >= REPORT_INTERVAL;
        let mut before = std::mem::take(&mut self.files);
        let unnoted = before
            .values()
            .filter(|known| matches!(known.state, FileState::Reported(at) if !is_due(at)));
        let mut room = MAX_UNNOTED.saturating_sub(unnoted.count());
        let mut reported = Vec::new();
        for FoundFile { file, changed_ns } in found {
            let known = before.remove(&file.path).filter(|known| known.version == file.version);
            let (is_ready, state) = match known.map(|known| known.state) {
                Some(FileState::Noted) => (false, FileState::Noted),
                Some(FileState::Reported(at)) => (is_due(at), FileState::Reported(at)),
                Some(FileState::Fresh(changed)) => (!settles || changed == changed_ns, FileState::Fresh(changed_ns)),
                None => (!settles, FileState::Fresh(changed_ns)),
            };
            let tells = is_ready && room > 0;
            let known = KnownFile {
                version: file.version.clone(),
                state: if tells { FileState::Reported(now) } else { state },
            };
            self.files.insert(file.path.clone(), known);
            if tells {
                room -= 1;
                reported.push(file);
            }
        }
        reported.sort_by(|a, b| (a.modified_at_ms, &a.path).cmp(&(b.modified_at_ms, &b.path)));
        reported
    }

    /// Marks these keys as noted.
    pub fn note(&mut self, keys: &[String]) {
        for key in keys {
            // A path may contain an @, and so may a bucket's version.
            for (at, _) in key.match_indices('@') {
                if let Some(known) = self.files.get_mut(&key[..at])
                    && known.version == key[at + 1..]
                {
                    known.state = FileState::Noted;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, version: &str, changed_ns: i128) -> FoundFile {
        let file = ObservedFile {
            path: path.into(),
            bytes: 1,
            modified_at_ms: 1,
            version: version.into(),
        };
        FoundFile { file, changed_ns }
    }

    fn keys(files: &[ObservedFile]) -> Vec<String> {
        files.iter().map(ObservedFile::key).collect()
    }

    #[test]
    fn file_is_reported_after_two_equal_listings() {
        let (mut files, mut objects, now) = (KnownFiles::default(), KnownFiles::default(), Instant::now());
        assert_eq!(keys(&objects.update(vec![found("a", "1", 0)], false, now)), ["a@1"]);
        assert!(objects.update(vec![found("a", "1", 0)], false, now).is_empty());
        assert!(files.update(vec![found("a", "1", 1)], true, now).is_empty());
        assert!(files.update(vec![found("a", "2", 2)], true, now).is_empty());
        // The same length, with the modification time set back.
        assert!(files.update(vec![found("a", "2", 3)], true, now).is_empty());
        assert_eq!(keys(&files.update(vec![found("a", "2", 3)], true, now)), ["a@2"]);
        assert!(files.update(vec![found("a", "2", 3)], true, now).is_empty());
    }

    #[test]
    fn unnoted_file_is_reported_again_noted_never() {
        let (mut seen, now) = (KnownFiles::default(), Instant::now());
        let there = || vec![found("a@b", "1", 0), found("c", "x@y", 0)];
        assert_eq!(keys(&seen.update(there(), false, now)), ["a@b@1", "c@x@y"]);
        assert!(seen.update(there(), false, now + REPORT_INTERVAL / 2).is_empty());
        seen.note(&["c@x@y".into(), "a@b@2".into(), "gone@1".into(), "nonsense".into()]);
        assert_eq!(keys(&seen.update(there(), false, now + REPORT_INTERVAL)), ["a@b@1"]);
        assert!(seen.update(there(), false, now + REPORT_INTERVAL * 3 / 2).is_empty());
        seen.note(&["a@b@1".into()]);
        assert!(seen.update(there(), false, now + REPORT_INTERVAL * 9).is_empty());
    }

    #[test]
    fn changed_contents_are_reported_changed_inode_is_not() {
        let (mut seen, now) = (KnownFiles::default(), Instant::now());
        seen.update(vec![found("a", "1", 1)], true, now);
        assert_eq!(keys(&seen.update(vec![found("a", "1", 1)], true, now)), ["a@1"]);
        seen.note(&["a@1".into()]);
        for _ in 0..2 {
            assert!(
                seen.update(vec![found("a", "1", 2)], true, now + REPORT_INTERVAL)
                    .is_empty()
            );
        }
        assert!(seen.update(vec![found("a", "2", 3)], true, now).is_empty());
        assert_eq!(keys(&seen.update(vec![found("a", "2", 3)], true, now)), ["a@2"]);
    }

    #[test]
    fn missing_files_are_forgotten() {
        let (mut seen, now) = (KnownFiles::default(), Instant::now());
        seen.update(vec![found("a", "1", 0), found("b", "1", 0)], false, now);
        seen.update(vec![found("b", "1", 0)], false, now);
        assert_eq!(seen.files.len(), 1);
        assert_eq!(keys(&seen.update(vec![found("a", "1", 0)], false, now)), ["a@1"]);
    }

    #[test]
    fn unnoted_files_are_limited() {
        let (mut seen, now) = (KnownFiles::default(), Instant::now());
        let there = || {
            (0..MAX_UNNOTED + 5)
                .map(|at| found(&at.to_string(), "1", 0))
                .collect::<Vec<_>>()
        };
        let reported = keys(&seen.update(there(), false, now));
        assert_eq!(reported.len(), MAX_UNNOTED);
        assert!(seen.update(there(), false, now).is_empty());
        seen.note(&reported[..2]);
        assert_eq!(seen.update(there(), false, now).len(), 2);
        seen.note(&reported[2..]);
        assert_eq!(seen.update(there(), false, now).len(), 3);
    }
}
