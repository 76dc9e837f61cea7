//! Files that triggers wait for: one thread lists one place after the other, and reports new files.
//!
//! [`Sight`] lists a place, and [`Seen`] decides which files to report. Nothing here is durable: files that the manager
//! does not note are reported again, and a manager that reconnects receives all of them again. It identifies files by
//! their keys.

mod sight;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant, SystemTime};

use dayfly_protocol::dispatch::FromDispatcher;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::TriggerId;
use dayfly_protocol::triggers::{FileSeen, MAX_FILES, Watch};
use tokio::runtime::{Builder, Runtime};

use sight::{Found, Sight, is_bucket};

/// Time after which an unnoted file is reported again.
const AGAIN: Duration = Duration::from_secs(30);
/// Most unnoted files of one place. Further files wait, so that a full manager does not receive more and more.
const MAX_TOLD: usize = 10 * MAX_FILES;
/// Default intervals between two listings.
const EVERY: Duration = Duration::from_secs(1);
const EVERY_OF_BUCKETS: Duration = Duration::from_secs(10);
/// How long to wait for a listing at the end.
const LAST_LOOK: Duration = Duration::from_secs(1);

type Say = Arc<dyn Fn(FromDispatcher) + Send + Sync>;

/// Lists places while there are watches, until it is dropped.
pub struct Watcher {
    say: Say,
    thread: Option<Thread>,
}

enum Order {
    /// With the time when it was received.
    Watch(Vec<Watch>, SystemTime),
    Noted(TriggerId, Vec<String>),
}

impl Watcher {
    /// A watcher that reports by `say`. It starts no thread yet.
    pub fn new(say: impl Fn(FromDispatcher) + Send + Sync + 'static) -> Self {
        Self {
            say: Arc::new(say),
            thread: None,
        }
    }

    /// Replaces all watches. Files are reported again.
    pub fn watch(&mut self, watches: Vec<Watch>) {
        if self.thread.is_none() && !watches.is_empty() {
            match Thread::start(Arc::clone(&self.say)) {
                Ok(thread) => self.thread = Some(thread),
                Err(failure) => {
                    for watch in &watches {
                        let (trigger, trouble) = (watch.trigger, Some(failure.clone()));
                        (self.say)(FromDispatcher::Watching { trigger, trouble });
                    }
                }
            }
        }
        self.order(Order::Watch(watches, SystemTime::now()));
    }

    /// Stops reporting these files, given by their keys.
    pub fn noted(&mut self, trigger: TriggerId, files: Vec<String>) {
        self.order(Order::Noted(trigger, files));
    }

    fn order(&self, order: Order) {
        if let Some(thread) = &self.thread {
            // The thread ends early only by a panic, which was printed to standard error.
            let _ = thread.orders.send(order);
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if let Some(Thread { orders, ended }) = self.thread.take() {
            drop(orders);
            // With a limit: a listing may take long, and a dead file system never returns.
            let _ = ended.recv_timeout(LAST_LOOK);
        }
    }
}

struct Thread {
    /// Dropping it ends the thread.
    orders: Sender<Order>,
    /// Closed when the thread has ended.
    ended: Receiver<()>,
}

impl Thread {
    fn start(say: Say) -> Result<Self, Failure> {
        let impossible =
            |error: io::Error| Failure::new(Code::Internal, format!("no thread to look for files: {error}"));
        let runtime = Builder::new_current_thread().enable_all().build().map_err(impossible)?;
        let (orders, to_do) = channel();
        let (ending, ended) = channel::<()>();
        let thread = std::thread::Builder::new().name("dayfly-watch".into());
        let body = move || {
            look_on(runtime, to_do, &*say);
            drop(ending);
        };
        thread.spawn(body).map_err(impossible)?;
        Ok(Self { orders, ended })
    }
}

/// Lists places when they are due, until the sender of orders is dropped.
fn look_on(runtime: Runtime, orders: Receiver<Order>, say: &dyn Fn(FromDispatcher)) {
    // Bucket clients must be created and dropped inside the runtime.
    let _entered = runtime.enter();
    let mut looks: Vec<Look> = Vec::new();
    loop {
        let next = (0..looks.len()).min_by_key(|at| looks[*at].next);
        let order = match next {
            Some(at) => orders.recv_timeout(looks[at].next.saturating_duration_since(Instant::now())),
            None => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match (order, next) {
            (Ok(Order::Watch(watches, given)), _) => {
                looks = watches.into_iter().map(|watch| Look::new(watch, given)).collect();
            }
            (Ok(Order::Noted(trigger, files)), _) => {
                for look in looks.iter_mut().filter(|look| look.trigger == trigger) {
                    look.seen.note(&files);
                }
            }
            (Err(RecvTimeoutError::Timeout), Some(at)) => {
                looks[at].look(&runtime, say);
                looks[at].next = Instant::now() + looks[at].every;
            }
            (Err(_), _) => return,
        }
    }
}

/// One place, and the known files there.
struct Look {
    trigger: TriggerId,
    of_bucket: bool,
    every: Duration,
    sight: Result<Sight, Failure>,
    seen: Seen,
    /// The last reported trouble, if any report was sent.
    said: Option<Option<Failure>>,
    next: Instant,
}

impl Look {
    fn new(watch: Watch, given: SystemTime) -> Self {
        let of_bucket = is_bucket(&watch.place);
        let every = match watch.every_ms {
            0 if of_bucket => EVERY_OF_BUCKETS,
            0 => EVERY,
            every_ms => Duration::from_millis(every_ms.into()),
        };
        Self {
            trigger: watch.trigger,
            of_bucket,
            every,
            sight: Sight::of(&watch, given),
            seen: Seen::default(),
            said: None,
            next: Instant::now(),
        }
    }

    /// Lists the place once, and reports changes.
    fn look(&mut self, runtime: &Runtime, say: &dyn Fn(FromDispatcher)) {
        let listed = self.sight.as_ref().map_err(Failure::clone);
        let (found, trouble) = match listed.and_then(|sight| sight.list(runtime)) {
            Ok(listing) => (Some(listing.found), listing.trouble),
            Err(failure) => (None, Some(failure)),
        };
        let trigger = self.trigger;
        if !self.has_said(trouble.as_ref()) {
            self.said = Some(trouble.clone());
            say(FromDispatcher::Watching { trigger, trouble });
        }
        // After a failed listing the known files stay as they are.
        let arrived = found.map(|found| self.seen.look(found, !self.of_bucket, Instant::now()));
        for files in arrived.unwrap_or_default().chunks(MAX_FILES) {
            let files = files.to_vec();
            say(FromDispatcher::Arrived { trigger, files });
        }
    }

    fn has_said(&self, trouble: Option<&Failure>) -> bool {
        match (&self.said, trouble) {
            // A bucket's messages contain request numbers, so compare the codes.
            (Some(Some(said)), Some(trouble)) if self.of_bucket => said.code == trouble.code,
            (said, trouble) => said.as_ref().is_some_and(|said| said.as_ref() == trouble),
        }
    }
}

/// Known files, by their paths.
#[derive(Default)]
struct Seen {
    files: HashMap<String, Known>,
}

struct Known {
    version: String,
    state: State,
}

enum State {
    /// It may still be written; with the inode's change time at the last listing.
    Fresh(i128),
    /// Reported at this time.
    Told(Instant),
    Noted,
}

impl Seen {
    /// Returns the files to report now, the oldest first. With `settles`, a file is reported once two listings found
    /// the same version; otherwise files appear complete. Files that are not found are forgotten.
    fn look(&mut self, found: Vec<Found>, settles: bool, now: Instant) -> Vec<FileSeen> {
        let is_due = |at: Instant| now.saturating_duration_since(at) >= AGAIN;
        let mut before = std::mem::take(&mut self.files);
        let unanswered = before
            .values()
            .filter(|known| matches!(known.state, State::Told(at) if !is_due(at)));
        let mut room = MAX_TOLD.saturating_sub(unanswered.count());
        let mut told = Vec::new();
        for Found { file, changed_ns } in found {
            let known = before.remove(&file.path).filter(|known| known.version == file.version);
            let (is_ready, state) = match known.map(|known| known.state) {
                Some(State::Noted) => (false, State::Noted),
                Some(State::Told(at)) => (is_due(at), State::Told(at)),
                Some(State::Fresh(changed)) => (!settles || changed == changed_ns, State::Fresh(changed_ns)),
                None => (!settles, State::Fresh(changed_ns)),
            };
            let tells = is_ready && room > 0;
            let known = Known {
                version: file.version.clone(),
                state: if tells { State::Told(now) } else { state },
            };
            self.files.insert(file.path.clone(), known);
            if tells {
                room -= 1;
                told.push(file);
            }
        }
        told.sort_by(|a, b| (a.modified_at_ms, &a.path).cmp(&(b.modified_at_ms, &b.path)));
        told
    }

    /// Marks these keys as noted.
    fn note(&mut self, keys: &[String]) {
        for key in keys {
            // A path may contain an @, and so may a bucket's version.
            for (at, _) in key.match_indices('@') {
                if let Some(known) = self.files.get_mut(&key[..at])
                    && known.version == key[at + 1..]
                {
                    known.state = State::Noted;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::fs::{self, File};
    use std::io::Write;
    use std::path::Path;

    use dayfly_storage::{Objects, Place};

    use super::*;

    const TRIGGER: TriggerId = TriggerId([7; 16]);

    fn found(path: &str, version: &str, changed_ns: i128) -> Found {
        let file = FileSeen {
            path: path.into(),
            bytes: 1,
            modified_at_ms: 1,
            version: version.into(),
        };
        Found { file, changed_ns }
    }

    fn keys(files: &[FileSeen]) -> Vec<String> {
        files.iter().map(FileSeen::key).collect()
    }

    fn watch(place: &str, pattern: &str) -> Watch {
        Watch {
            trigger: TRIGGER,
            place: place.into(),
            pattern: pattern.into(),
            within_ms: None,
            every_ms: 100,
        }
    }

    fn at(directory: &Path, pattern: &str) -> Look {
        Look::new(watch(directory.to_str().unwrap(), pattern), SystemTime::now())
    }

    /// The messages of one listing.
    fn says(look: &mut Look) -> Vec<FromDispatcher> {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let said = RefCell::new(Vec::new());
        look.look(&runtime, &|message| said.borrow_mut().push(message));
        said.into_inner()
    }

    /// The files that one listing reports, by their paths below the place.
    fn tells(look: &mut Look) -> Vec<String> {
        let root = format!("{}/", look.sight.as_ref().unwrap().root);
        let said = says(look).into_iter().flat_map(|message| match message {
            FromDispatcher::Arrived { files, .. } => files,
            _ => Vec::new(),
        });
        let mut paths: Vec<_> = said
            .map(|file| file.path.strip_prefix(&root).unwrap().to_owned())
            .collect();
        paths.sort();
        paths
    }

    /// The troubles that one listing reports.
    fn troubles(look: &mut Look) -> Vec<Option<Code>> {
        let said = says(look).into_iter().filter_map(|message| match message {
            FromDispatcher::Watching { trouble, .. } => Some(trouble.map(|trouble| trouble.code)),
            _ => None,
        });
        said.collect()
    }

    #[test]
    fn a_file_is_told_once_two_looks_saw_the_same_of_it_and_an_object_at_once() {
        let (mut files, mut objects, now) = (Seen::default(), Seen::default(), Instant::now());
        assert_eq!(keys(&objects.look(vec![found("a", "1", 0)], false, now)), ["a@1"]);
        assert!(objects.look(vec![found("a", "1", 0)], false, now).is_empty());
        assert!(files.look(vec![found("a", "1", 1)], true, now).is_empty());
        assert!(files.look(vec![found("a", "2", 2)], true, now).is_empty());
        // The same length, with the modification time set back.
        assert!(files.look(vec![found("a", "2", 3)], true, now).is_empty());
        assert_eq!(keys(&files.look(vec![found("a", "2", 3)], true, now)), ["a@2"]);
        assert!(files.look(vec![found("a", "2", 3)], true, now).is_empty());
    }

    #[test]
    fn what_is_not_noted_is_told_again_after_a_while_and_what_is_noted_never() {
        let (mut seen, now) = (Seen::default(), Instant::now());
        let there = || vec![found("a@b", "1", 0), found("c", "x@y", 0)];
        assert_eq!(keys(&seen.look(there(), false, now)), ["a@b@1", "c@x@y"]);
        assert!(seen.look(there(), false, now + AGAIN / 2).is_empty());
        seen.note(&["c@x@y".into(), "a@b@2".into(), "gone@1".into(), "nonsense".into()]);
        assert_eq!(keys(&seen.look(there(), false, now + AGAIN)), ["a@b@1"]);
        assert!(seen.look(there(), false, now + AGAIN * 3 / 2).is_empty());
        seen.note(&["a@b@1".into()]);
        assert!(seen.look(there(), false, now + AGAIN * 9).is_empty());
    }

    #[test]
    fn a_file_that_changes_is_another_and_one_whose_inode_alone_does_is_not() {
        let (mut seen, now) = (Seen::default(), Instant::now());
        seen.look(vec![found("a", "1", 1)], true, now);
        assert_eq!(keys(&seen.look(vec![found("a", "1", 1)], true, now)), ["a@1"]);
        seen.note(&["a@1".into()]);
        for _ in 0..2 {
            assert!(seen.look(vec![found("a", "1", 2)], true, now + AGAIN).is_empty());
        }
        assert!(seen.look(vec![found("a", "2", 3)], true, now).is_empty());
        assert_eq!(keys(&seen.look(vec![found("a", "2", 3)], true, now)), ["a@2"]);
    }

    #[test]
    fn what_is_gone_is_forgotten() {
        let (mut seen, now) = (Seen::default(), Instant::now());
        seen.look(vec![found("a", "1", 0), found("b", "1", 0)], false, now);
        seen.look(vec![found("b", "1", 0)], false, now);
        assert_eq!(seen.files.len(), 1);
        assert_eq!(keys(&seen.look(vec![found("a", "1", 0)], false, now)), ["a@1"]);
    }

    #[test]
    fn while_many_are_not_noted_no_more_are_told() {
        let (mut seen, now) = (Seen::default(), Instant::now());
        let there = || {
            (0..MAX_TOLD + 5)
                .map(|at| found(&at.to_string(), "1", 0))
                .collect::<Vec<_>>()
        };
        let told = keys(&seen.look(there(), false, now));
        assert_eq!(told.len(), MAX_TOLD);
        assert!(seen.look(there(), false, now).is_empty());
        seen.note(&told[..2]);
        assert_eq!(seen.look(there(), false, now).len(), 2);
        seen.note(&told[2..]);
        assert_eq!(seen.look(there(), false, now).len(), 3);
    }

    #[test]
    fn a_pattern_without_a_slash_means_the_top_and_one_without_a_dot_means_what_is_not_hidden() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        for below in ["deep/deeper", ".git", "name.tif"] {
            fs::create_dir_all(root.join(below)).unwrap();
        }
        let files = [
            "a.tif",
            "b.txt",
            ".c.tif",
            "deep/d.tif",
            "deep/deeper/e.tif",
            "deep/.f.tif",
            ".git/g.tif",
        ];
        for file in files {
            fs::write(root.join(file), file).unwrap();
        }
        std::os::unix::fs::symlink(root.join("deep"), root.join("loop")).unwrap();
        std::os::unix::fs::symlink(root.join("a.tif"), root.join("link.tif")).unwrap();
        let cases: [(&str, &[&str]); 7] = [
            ("*", &["a.tif", "b.txt"]),
            ("*.tif", &["a.tif"]),
            (".*", &[".c.tif"]),
            ("**/*.tif", &["a.tif", "deep/d.tif", "deep/deeper/e.tif"]),
            ("deep/*", &["deep/d.tif"]),
            ("*/{d,e}.tif", &["deep/d.tif"]),
            (".git/*", &[".git/g.tif"]),
        ];
        for (pattern, expected) in cases {
            let mut look = at(root, pattern);
            assert!(tells(&mut look).is_empty(), "{pattern}");
            assert_eq!(tells(&mut look), expected, "{pattern}");
        }
    }

    #[test]
    fn a_file_counts_from_when_it_came_however_long_ago_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let old = File::create(directory.path().join(".old")).unwrap();
        old.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1))
            .unwrap();
        fs::rename(directory.path().join(".old"), directory.path().join("old")).unwrap();
        let place = directory.path().to_str().unwrap();
        // Longer than the granularity of file times.
        std::thread::sleep(Duration::from_millis(300));
        for (within_ms, expected) in [(Some(60_000), 1), (Some(0), 0)] {
            let watch = Watch {
                within_ms,
                ..watch(place, "*")
            };
            let mut look = Look::new(watch, SystemTime::now());
            tells(&mut look);
            assert_eq!(tells(&mut look).len(), expected);
        }
    }

    #[test]
    fn a_file_that_grows_is_told_when_it_is_at_rest_and_again_when_it_grew_again() {
        let directory = tempfile::tempdir().unwrap();
        let mut look = at(directory.path(), "*");
        let mut file = File::create(directory.path().join("a")).unwrap();
        let mut versions = Vec::new();
        for _ in 0..2 {
            for _ in 0..3 {
                file.write_all(b"more").unwrap();
                assert!(tells(&mut look).is_empty());
            }
            let said = says(&mut look);
            let [FromDispatcher::Arrived { trigger, files }] = &said[..] else {
                panic!("{said:?}");
            };
            assert_eq!((*trigger, files.len()), (TRIGGER, 1));
            look.seen.note(&keys(files));
            assert!(says(&mut look).is_empty());
            versions.push((files[0].bytes, files[0].version.clone()));
        }
        assert_eq!((versions[0].0, versions[1].0), (12, 24));
        assert_ne!(versions[0].1, versions[1].1);
    }

    #[test]
    fn trouble_is_told_once_and_so_is_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("in");
        let mut look = at(&place, "*");
        assert_eq!(troubles(&mut look), [Some(Code::NotFound)]);
        assert!(troubles(&mut look).is_empty());
        fs::write(&place, "").unwrap();
        assert_eq!(troubles(&mut look), [Some(Code::InvalidRequest)]);
        assert!(troubles(&mut look).is_empty());
        fs::remove_file(&place).unwrap();
        fs::create_dir(&place).unwrap();
        assert_eq!(troubles(&mut look), [None::<Code>]);
        assert!(troubles(&mut look).is_empty());
    }

    #[test]
    fn a_name_that_cannot_be_told_is_trouble_and_keeps_no_other_file_from_being_told() {
        use std::os::unix::ffi::OsStrExt;
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("a"), "").unwrap();
        fs::write(directory.path().join(std::ffi::OsStr::from_bytes(b"\xfc")), "").unwrap();
        let mut look = at(directory.path(), "*");
        assert_eq!(troubles(&mut look), [Some(Code::InvalidRequest)]);
        assert_eq!(tells(&mut look), ["a"]);
    }

    #[test]
    fn a_place_that_is_none_and_a_pattern_that_is_none_are_trouble() {
        for (place, pattern) in [
            ("data/in", "*"),
            ("file:///data", "*"),
            ("redis://host", "*"),
            ("s3://", "*"),
            ("/data", "["),
        ] {
            let mut look = Look::new(watch(place, pattern), SystemTime::now());
            assert_eq!(troubles(&mut look), [Some(Code::InvalidRequest)], "{place} {pattern}");
            assert!(troubles(&mut look).is_empty(), "{place} {pattern}");
        }
    }

    #[test]
    fn an_object_is_told_by_its_place_in_the_bucket() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("deep")).unwrap();
        for file in ["a.tif", "b.txt", "deep/c.tif"] {
            fs::write(directory.path().join(file), file).unwrap();
        }
        let mut look = at(directory.path(), "**/*.tif");
        let sight = look.sight.as_mut().unwrap();
        look.of_bucket = true;
        sight.root = "s3://bucket/in".into();
        sight.objects = Some(Objects::open(&Place::of_directory(directory.path()).unwrap()).unwrap());
        let said = says(&mut look);
        let [
            FromDispatcher::Watching { trouble: None, .. },
            FromDispatcher::Arrived { files, .. },
        ] = &said[..]
        else {
            panic!("{said:?}");
        };
        let mut files: Vec<_> = files.iter().map(|file| (file.path.as_str(), file.bytes)).collect();
        files.sort_unstable();
        assert_eq!(files, [("s3://bucket/in/a.tif", 5), ("s3://bucket/in/deep/c.tif", 10)]);
    }

    #[test]
    fn a_watcher_tells_until_it_is_dropped_and_everything_anew_when_it_is_told_anew_what_to_watch() {
        let directory = tempfile::tempdir().unwrap();
        let (said, hears) = std::sync::mpsc::channel();
        let mut watcher = Watcher::new(move |message| said.send(message).unwrap());
        watcher.watch(Vec::new());
        watcher.noted(TRIGGER, vec!["nothing@1".into()]);
        assert!(watcher.thread.is_none());
        fs::write(directory.path().join("a"), "").unwrap();
        let next = || hears.recv_timeout(Duration::from_secs(20)).unwrap();
        for _ in 0..2 {
            watcher.watch(vec![watch(directory.path().to_str().unwrap(), "*")]);
            let (trigger, trouble) = (TRIGGER, None);
            assert_eq!(next(), FromDispatcher::Watching { trigger, trouble });
            let FromDispatcher::Arrived { files, .. } = next() else {
                panic!("it has told of a");
            };
            watcher.noted(TRIGGER, keys(&files));
        }
        drop(watcher);
        let last = hears.recv_timeout(Duration::from_secs(20));
        assert_eq!(last, Err(RecvTimeoutError::Disconnected));
    }
}
