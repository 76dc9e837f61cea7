//! Lists the files at a place that match a pattern.

use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::time::{SystemTime, UNIX_EPOCH};

use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::triggers::{ObservedFile, Watch};
use dayfly_storage::{Objects, StoreUrl};
use globset::{GlobBuilder, GlobMatcher};
use tokio::runtime::Runtime;

/// Most entries of one listing.
const MAX_ENTRIES: usize = 1_000_000;
/// Tolerance in milliseconds for files that arrive when the watch is given. Their time may be earlier by that much: the
/// watch was in transit, Linux marks inodes with the time of its last tick, and S3 has a resolution of a second. A file
/// too many is better than one too few.
const GRAIN_MS: u64 = 250;
const GRAIN_OF_BUCKETS_MS: u64 = 1_250;

/// Paths below a place that match.
struct Pattern {
    glob: GlobMatcher,
    /// Whether subdirectories are included.
    deep: bool,
    /// Whether names with a leading dot are included.
    hidden: bool,
}

impl Pattern {
    fn read(text: &str) -> Result<Self, Failure> {
        let glob = GlobBuilder::new(text).literal_separator(true).build();
        let glob = glob.map_err(|error| {
            let text = format!(
                "the pattern `{text}` cannot be read ({}); write one such as *.tif, or **/*.tif for directories below, too",
                error.kind()
            );
            Failure::new(Code::InvalidRequest, text)
        })?;
        Ok(Self {
            glob: glob.compile_matcher(),
            deep: text.contains('/'),
            hidden: text.split('/').any(|name| name.starts_with('.')),
        })
    }

    fn shows(&self, name: &str) -> bool {
        self.hidden || !name.starts_with('.')
    }

    fn matches(&self, path: &str) -> bool {
        path.split('/').all(|name| self.shows(name)) && self.glob.is_match(path)
    }
}

/// A file, and its inode's last change. A rename changes the inode too, and keeps the modification time.
pub struct FoundFile {
    pub file: ObservedFile,
    pub changed_ns: i128,
}

impl FoundFile {
    fn of(path: String, metadata: &Metadata) -> Self {
        let nanoseconds = |seconds: i64, more: i64| i128::from(seconds) * 1_000_000_000 + i128::from(more);
        let modified_ns = nanoseconds(metadata.mtime(), metadata.mtime_nsec());
        let file = ObservedFile {
            path,
            bytes: metadata.len(),
            modified_at_ms: u64::try_from(modified_ns / 1_000_000).unwrap_or_default(),
            version: format!("{modified_ns}-{}", metadata.len()),
        };
        Self {
            file,
            changed_ns: nanoseconds(metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// Result of a listing.
#[derive(Default)]
pub struct Listing {
    pub found: Vec<FoundFile>,
    /// Why it is incomplete, if it is.
    pub trouble: Option<Failure>,
}

impl Listing {
    /// Records that something below the place cannot be read. A file that vanished since its name was read is no
    /// trouble.
    fn record_error(&mut self, directory: &str, error: &io::Error) {
        if self.trouble.is_none() && error.kind() != ErrorKind::NotFound {
            self.trouble = Some(failed(directory, error));
        }
    }
}

fn failed(directory: &str, error: &io::Error) -> Failure {
    let (code, advice) = match error.kind() {
        ErrorKind::NotFound => (Code::NotFound, "there is no such directory; make it, or name another"),
        ErrorKind::PermissionDenied => (
            Code::Forbidden,
            "the endpoint's user may not read it; let that user, or name another",
        ),
        ErrorKind::NotADirectory => (Code::InvalidRequest, "it is no directory; name one"),
        ErrorKind::InvalidData => (Code::InvalidRequest, "rename that file, or it is left out"),
        _ => (Code::StoreFailed, "see the error of the file system"),
    };
    Failure::new(code, format!("looking into {directory} failed: {advice} ({error})"))
}

/// Whether a place is given as a bucket.
pub fn is_bucket(place: &str) -> bool {
    place.starts_with("s3://")
}

/// A place, and the pattern of its files.
pub struct FileSource {
    pub root: String,
    /// The bucket, if the place is one.
    pub objects: Option<Objects>,
    pattern: Pattern,
    since_ns: i128,
}

impl FileSource {
    /// The source of a watch that was received at `given`.
    pub fn of(watch: &Watch, given: SystemTime) -> Result<Self, Failure> {
        let place = &watch.place;
        let (objects, grain_ms) = if is_bucket(place) {
            (Some(Objects::open(&StoreUrl::parse(place)?)?), GRAIN_OF_BUCKETS_MS)
        } else if place.starts_with('/') {
            (None, GRAIN_MS)
        } else {
            let text = "the place is neither a directory's path from the root, such as /data/in, nor s3://bucket/prefix; name one";
            return Err(Failure::new(Code::InvalidRequest, text));
        };
        Ok(Self {
            root: place.trim_end_matches('/').into(),
            objects,
            pattern: Pattern::read(&watch.pattern)?,
            since_ns: watch.within_ms.map_or(i128::MIN, |within_ms| {
                let since_epoch = given.duration_since(UNIX_EPOCH).unwrap_or_default();
                let now_ms = i128::try_from(since_epoch.as_millis()).unwrap_or(i128::MAX);
                (now_ms - i128::from(within_ms) - i128::from(grain_ms)).saturating_mul(1_000_000)
            }),
        })
    }

    /// Lists the matching files that arrived since the watch counts. Blocks.
    pub fn list(&self, runtime: &Runtime) -> Result<Listing, Failure> {
        let Some(objects) = &self.objects else {
            return self.list_directories();
        };
        let listed = runtime.block_on(objects.list_info("", MAX_ENTRIES))?;
        let found = listed
            .into_iter()
            .filter(|one| self.pattern.matches(&one.name))
            .map(|one| FoundFile {
                changed_ns: i128::from(one.modified_at_ms) * 1_000_000,
                file: ObservedFile {
                    path: format!("{}/{}", self.root, one.name),
                    bytes: one.bytes,
                    modified_at_ms: one.modified_at_ms,
                    version: one.version,
                },
            });
        Ok(Listing {
            found: found.filter(|found| found.changed_ns >= self.since_ns).collect(),
            trouble: None,
        })
    }

    /// Lists regular files. Symbolic links are left out: they may lead anywhere and form cycles.
    fn list_directories(&self) -> Result<Listing, Failure> {
        let root = &self.root;
        let mut listing = Listing::default();
        let mut entries = 0;
        // Relative to the root, with a slash at the end.
        let mut directories = vec![String::new()];
        while let Some(directory) = directories.pop() {
            let read = match fs::read_dir(format!("{root}/{directory}")) {
                Ok(read) => read,
                Err(error) if directory.is_empty() => return Err(failed(root, &error)),
                Err(error) => {
                    listing.record_error(&format!("{root}/{directory}"), &error);
                    continue;
                }
            };
            for entry in read {
                entries += 1;
                if entries > MAX_ENTRIES {
                    let text = format!(
                        "there are more than {MAX_ENTRIES} files in {root}; name a directory with fewer, or delete some"
                    );
                    return Err(Failure::new(Code::TooLarge, text));
                }
                let entered = entry.and_then(|entry| {
                    let name = entry.file_name().into_string().map_err(|name| {
                        let text = format!("the name of {} is not UTF-8", name.display());
                        io::Error::new(ErrorKind::InvalidData, text)
                    })?;
                    let (kind, path) = (entry.file_type()?, format!("{directory}{name}"));
                    if kind.is_dir() && self.pattern.deep && self.pattern.shows(&name) {
                        directories.push(path + "/");
                    } else if kind.is_file() && self.pattern.matches(&path) {
                        let found = FoundFile::of(format!("{root}/{path}"), &entry.metadata()?);
                        if found.changed_ns >= self.since_ns {
                            listing.found.push(found);
                        }
                    }
                    Ok(())
                });
                if let Err(error) = entered {
                    listing.record_error(&format!("{root}/{directory}"), &error);
                }
            }
        }
        Ok(listing)
    }
}
