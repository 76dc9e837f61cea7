//! Files that triggers wait for: one thread lists one place after the other, and reports new files.
//!
//! [`FileSource`] lists a place, and [`KnownFiles`] decides which files to report. Nothing here is durable: files that
//! the manager does not note are reported again, and a manager that reconnects receives all of them again. It
//! identifies files by their keys.

mod file_source;
mod known_files;

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant, SystemTime};

use dayfly_protocol::dispatch::FromDispatcher;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::TriggerId;
use dayfly_protocol::triggers::{MAX_FILES, Watch};
use tokio::runtime::{Builder, Runtime};

use self::file_source::{FileSource, is_bucket};
use self::known_files::KnownFiles;

/// Default intervals between two listings.
const LIST_INTERVAL: Duration = Duration::from_secs(1);
const BUCKET_LIST_INTERVAL: Duration = Duration::from_secs(10);
/// How long to wait for a listing at the end.
const END_LIMIT: Duration = Duration::from_secs(1);

type Reporter = Arc<dyn Fn(FromDispatcher) + Send + Sync>;

/// Lists places while there are watches, until it is dropped.
pub struct Watcher {
    report: Reporter,
    thread: Option<Thread>,
}

enum Command {
    /// With the time when it was received.
    Watch(Vec<Watch>, SystemTime),
    Noted(TriggerId, Vec<String>),
}

impl Watcher {
    /// A watcher that reports by `report`. It starts no thread yet.
    pub fn new(report: impl Fn(FromDispatcher) + Send + Sync + 'static) -> Self {
        Self {
            report: Arc::new(report),
            thread: None,
        }
    }

    /// Replaces all watches. Files are reported again.
    pub fn watch(&mut self, watches: Vec<Watch>) {
        if self.thread.is_none() && !watches.is_empty() {
            match Thread::start(Arc::clone(&self.report)) {
                Ok(thread) => self.thread = Some(thread),
                Err(failure) => {
                    for watch in &watches {
                        let (trigger, trouble) = (watch.trigger, Some(failure.clone()));
                        (self.report)(FromDispatcher::Watching { trigger, trouble });
                    }
                }
            }
        }
        self.send(Command::Watch(watches, SystemTime::now()));
    }

    /// Stops reporting these files, given by their keys.
    pub fn noted(&mut self, trigger: TriggerId, files: Vec<String>) {
        self.send(Command::Noted(trigger, files));
    }

    fn send(&self, command: Command) {
        if let Some(thread) = &self.thread {
            // The thread ends early only by a panic, which was printed to standard error.
            let _ = thread.commands.send(command);
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if let Some(Thread { commands, ended }) = self.thread.take() {
            drop(commands);
            // With a limit: a listing may take long, and a dead file system never returns.
            let _ = ended.recv_timeout(END_LIMIT);
        }
    }
}

struct Thread {
    /// Dropping it ends the thread.
    commands: Sender<Command>,
    /// Closed when the thread has ended.
    ended: Receiver<()>,
}

impl Thread {
    fn start(report: Reporter) -> Result<Self, Failure> {
        let impossible = |error: io::Error| Failure::new(Code::Internal, format!("no thread to list files: {error}"));
        let runtime = Builder::new_current_thread().enable_all().build().map_err(impossible)?;
        let (commands, to_do) = channel();
        let (ending, ended) = channel::<()>();
        let thread = std::thread::Builder::new().name("dayfly-watch".into());
        let body = move || {
            watch_places(runtime, to_do, &*report);
            drop(ending);
        };
        thread.spawn(body).map_err(impossible)?;
        Ok(Self { commands, ended })
    }
}

/// Lists places when they are due, until the sender of commands is dropped.
fn watch_places(runtime: Runtime, commands: Receiver<Command>, report: &dyn Fn(FromDispatcher)) {
    // Bucket clients must be created and dropped inside the runtime.
    let _entered = runtime.enter();
    let mut places: Vec<PlaceWatch> = Vec::new();
    loop {
        let next = (0..places.len()).min_by_key(|at| places[*at].next);
        let command = match next {
            Some(at) => commands.recv_timeout(places[at].next.saturating_duration_since(Instant::now())),
            None => commands.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match (command, next) {
            (Ok(Command::Watch(watches, given)), _) => {
                places = watches.into_iter().map(|watch| PlaceWatch::new(watch, given)).collect();
            }
            (Ok(Command::Noted(trigger, files)), _) => {
                for place in places.iter_mut().filter(|place| place.trigger == trigger) {
                    place.files.note(&files);
                }
            }
            (Err(RecvTimeoutError::Timeout), Some(at)) => {
                places[at].list(&runtime, report);
                places[at].next = Instant::now() + places[at].every;
            }
            (Err(_), _) => return,
        }
    }
}

/// One place, and the known files there.
struct PlaceWatch {
    trigger: TriggerId,
    of_bucket: bool,
    every: Duration,
    source: Result<FileSource, Failure>,
    files: KnownFiles,
    /// The last reported trouble, if any report was sent.
    reported: Option<Option<Failure>>,
    next: Instant,
}

impl PlaceWatch {
    fn new(watch: Watch, given: SystemTime) -> Self {
        let of_bucket = is_bucket(&watch.place);
        let every = match watch.every_ms {
            0 if of_bucket => BUCKET_LIST_INTERVAL,
            0 => LIST_INTERVAL,
            every_ms => Duration::from_millis(every_ms.into()),
        };
        Self {
            trigger: watch.trigger,
            of_bucket,
            every,
            source: FileSource::of(&watch, given),
            files: KnownFiles::default(),
            reported: None,
            next: Instant::now(),
        }
    }

    /// Lists the place once, and reports changes.
    fn list(&mut self, runtime: &Runtime, report: &dyn Fn(FromDispatcher)) {
        let listed = self.source.as_ref().map_err(Failure::clone);
        let (found, trouble) = match listed.and_then(|source| source.list(runtime)) {
            Ok(listing) => (Some(listing.found), listing.trouble),
            Err(failure) => (None, Some(failure)),
        };
        let trigger = self.trigger;
        if !self.is_reported(trouble.as_ref()) {
            self.reported = Some(trouble.clone());
            report(FromDispatcher::Watching { trigger, trouble });
        }
        // After a failed listing the known files stay as they are.
        let arrived = found.map(|found| self.files.update(found, !self.of_bucket, Instant::now()));
        for files in arrived.unwrap_or_default().chunks(MAX_FILES) {
            let files = files.to_vec();
            report(FromDispatcher::Arrived { trigger, files });
        }
    }

    fn is_reported(&self, trouble: Option<&Failure>) -> bool {
        match (&self.reported, trouble) {
            // A bucket's messages contain request numbers, so compare the codes.
            (Some(Some(said)), Some(trouble)) if self.of_bucket => said.code == trouble.code,
            (said, trouble) => said.as_ref().is_some_and(|said| said.as_ref() == trouble),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::fs::{self, File};
    use std::io::Write;
    use std::path::Path;

    use dayfly_protocol::triggers::ObservedFile;
    use dayfly_storage::{Objects, StoreUrl};

    use super::*;

    const TRIGGER: TriggerId = TriggerId([7; 16]);

    fn keys(files: &[ObservedFile]) -> Vec<String> {
        files.iter().map(ObservedFile::key).collect()
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

    fn at(directory: &Path, pattern: &str) -> PlaceWatch {
        PlaceWatch::new(watch(directory.to_str().unwrap(), pattern), SystemTime::now())
    }

    /// The messages of one listing.
    fn messages(place: &mut PlaceWatch) -> Vec<FromDispatcher> {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let said = RefCell::new(Vec::new());
        place.list(&runtime, &|message| said.borrow_mut().push(message));
        said.into_inner()
    }

    /// The files that one listing reports, by their paths below the place.
    fn reported_files(place: &mut PlaceWatch) -> Vec<String> {
        let root = format!("{}/", place.source.as_ref().unwrap().root);
        let said = messages(place).into_iter().flat_map(|message| match message {
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
    fn reported_troubles(place: &mut PlaceWatch) -> Vec<Option<Code>> {
        let said = messages(place).into_iter().filter_map(|message| match message {
            FromDispatcher::Watching { trouble, .. } => Some(trouble.map(|trouble| trouble.code)),
            _ => None,
        });
        said.collect()
    }

    #[test]
    fn patterns_select_depth_and_hidden_files() {
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
            let mut watched = at(root, pattern);
            assert!(reported_files(&mut watched).is_empty(), "{pattern}");
            assert_eq!(reported_files(&mut watched), expected, "{pattern}");
        }
    }

    #[test]
    fn file_age_counts_from_its_arrival() {
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
            let mut watched = PlaceWatch::new(watch, SystemTime::now());
            reported_files(&mut watched);
            assert_eq!(reported_files(&mut watched).len(), expected);
        }
    }

    #[test]
    fn growing_file_is_reported_each_time_it_settles() {
        let directory = tempfile::tempdir().unwrap();
        let mut watched = at(directory.path(), "*");
        let mut file = File::create(directory.path().join("a")).unwrap();
        let mut versions = Vec::new();
        for _ in 0..2 {
            for _ in 0..3 {
                file.write_all(b"more").unwrap();
                assert!(reported_files(&mut watched).is_empty());
            }
            let said = messages(&mut watched);
            let [FromDispatcher::Arrived { trigger, files }] = &said[..] else {
                panic!("{said:?}");
            };
            assert_eq!((*trigger, files.len()), (TRIGGER, 1));
            watched.files.note(&keys(files));
            assert!(messages(&mut watched).is_empty());
            versions.push((files[0].bytes, files[0].version.clone()));
        }
        assert_eq!((versions[0].0, versions[1].0), (12, 24));
        assert_ne!(versions[0].1, versions[1].1);
    }

    #[test]
    fn trouble_and_its_end_are_reported_once() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("in");
        let mut watched = at(&place, "*");
        assert_eq!(reported_troubles(&mut watched), [Some(Code::NotFound)]);
        assert!(reported_troubles(&mut watched).is_empty());
        fs::write(&place, "").unwrap();
        assert_eq!(reported_troubles(&mut watched), [Some(Code::InvalidRequest)]);
        assert!(reported_troubles(&mut watched).is_empty());
        fs::remove_file(&place).unwrap();
        fs::create_dir(&place).unwrap();
        assert_eq!(reported_troubles(&mut watched), [None::<Code>]);
        assert!(reported_troubles(&mut watched).is_empty());
    }

    #[test]
    fn invalid_file_name_hides_no_other_file() {
        use std::os::unix::ffi::OsStrExt;
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("a"), "").unwrap();
        fs::write(directory.path().join(std::ffi::OsStr::from_bytes(b"\xfc")), "").unwrap();
        let mut watched = at(directory.path(), "*");
        assert_eq!(reported_troubles(&mut watched), [Some(Code::InvalidRequest)]);
        assert_eq!(reported_files(&mut watched), ["a"]);
    }

    #[test]
    fn invalid_place_or_pattern_is_refused() {
        for (place, pattern) in [
            ("data/in", "*"),
            ("file:///data", "*"),
            ("redis://host", "*"),
            ("s3://", "*"),
            ("/data", "["),
        ] {
            let mut watched = PlaceWatch::new(watch(place, pattern), SystemTime::now());
            assert_eq!(
                reported_troubles(&mut watched),
                [Some(Code::InvalidRequest)],
                "{place} {pattern}"
            );
            assert!(reported_troubles(&mut watched).is_empty(), "{place} {pattern}");
        }
    }

    #[test]
    fn object_is_reported_by_its_path_in_bucket() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("deep")).unwrap();
        for file in ["a.tif", "b.txt", "deep/c.tif"] {
            fs::write(directory.path().join(file), file).unwrap();
        }
        let mut watched = at(directory.path(), "**/*.tif");
        let source = watched.source.as_mut().unwrap();
        watched.of_bucket = true;
        source.root = "s3://bucket/in".into();
        source.objects = Some(Objects::open(&StoreUrl::of_directory(directory.path()).unwrap()).unwrap());
        let said = messages(&mut watched);
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
    fn new_watches_report_all_files_again() {
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
