//! State of environment builds: their begin, the last line of `uv`, and when a build that failed temporarily is
//! retried.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::EnvironmentHash;
use dayfly_protocol::text;
use rustix::fs::MemfdFlags;

/// First and longest pause after a build that could not reach its index; each further failure doubles it.
const MIN_PAUSE: Duration = Duration::from_secs(10);
const MAX_PAUSE: Duration = Duration::from_secs(5 * 60);
/// Bytes of `uv`'s output that are read from the end, and characters of it in a message.
const TAIL_BYTES: u64 = 1 << 10;
const MAX_MESSAGE_CHARS: usize = 600;
/// Digits of an environment's hash in messages.
const SHOWN_DIGITS: usize = 12;

/// Messages of `uv` for an index that is unreachable or unavailable. Another try may succeed.
const TEMPORARY: [&str; 7] = [
    "error sending request",
    "error decoding response body",
    "client error (Connect)",
    "operation timed out",
    "server error (5",
    "dns error",
    "it took more than",
];

/// The builds of a node.
#[derive(Debug)]
pub struct Builds {
    known: Mutex<HashMap<EnvironmentHash, Build>>,
    /// Time after which a failure of an environment's build is final.
    limit: Duration,
}

/// A build that runs or will be retried.
#[derive(Debug)]
struct Build {
    begun: Instant,
    pause: Duration,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Waits for other builds.
    Queued,
    /// `uv` writes its output here.
    Running { since: Instant, output: File },
    /// Failed temporarily.
    Paused { until: Instant, why: String },
}

impl Builds {
    pub fn new(limit: Duration) -> Self {
        Self {
            known: Mutex::default(),
            limit,
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<EnvironmentHash, Build>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues the build of an environment. Returns the last failure while its pause lasts.
    pub fn queue(&self, hash: EnvironmentHash) -> Result<(), Failure> {
        let now = Instant::now();
        let mut known = self.known();
        let build = known.entry(hash).or_insert_with(|| Build {
            begun: now,
            pause: MIN_PAUSE,
            stage: Stage::Queued,
        });
        if let Stage::Paused { until, .. } = &build.stage {
            if *until > now {
                return Err(building(build.describe(hash)));
            }
            build.stage = Stage::Queued;
        }
        Ok(())
    }

    /// Records that the build runs. Returns the file for `uv`'s output.
    pub fn run(&self, hash: EnvironmentHash) -> std::io::Result<File> {
        let output = File::from(rustix::fs::memfd_create("uv", MemfdFlags::CLOEXEC)?);
        if let Some(build) = self.known().get_mut(&hash) {
            let (since, output) = (Instant::now(), output.try_clone()?);
            build.stage = Stage::Running { since, output };
        }
        Ok(output)
    }

    /// Forgets a build that succeeded or failed permanently.
    pub fn end(&self, hash: EnvironmentHash) {
        self.known().remove(&hash);
    }

    /// Forgets builds that no lease requested again. Call it about once a minute.
    pub fn forget(&self) {
        let is_asked_for = |build: &Build| match &build.stage {
            Stage::Paused { until, .. } => until.elapsed() < MAX_PAUSE,
            Stage::Queued | Stage::Running { .. } => true,
        };
        self.known().retain(|_, build| is_asked_for(build));
    }

    /// Records a failure with `uv`'s output. A temporary failure is retried after a pause; any other, or one after the
    /// limit, is final.
    pub fn fail(&self, hash: EnvironmentHash, output: &str) -> Failure {
        let mut known = self.known();
        let is_temporary = TEMPORARY.iter().any(|known| output.contains(known));
        let tried = known.get_mut(&hash).filter(|build| build.begun.elapsed() < self.limit);
        if let (true, Some(build)) = (is_temporary, tried) {
            build.stage = Stage::Paused {
                until: Instant::now() + build.pause,
                why: format!("cannot reach the index: {}", bounded(output)),
            };
            build.pause = (build.pause * 2).min(MAX_PAUSE);
            return building(build.describe(hash));
        }
        known.remove(&hash);
        let text = format!("environment {} cannot be built: {}", short(hash), bounded(output));
        Failure::new(Code::EnvironmentFailed, text)
    }

    /// The error for a lease that waits for a build.
    pub fn pending(&self, hash: Option<EnvironmentHash>) -> Failure {
        let known = self.known();
        let told = hash.and_then(|hash| known.get(&hash).map(|build| build.describe(hash)));
        building(told.unwrap_or_else(|| "the environment is being examined".into()))
    }
}

impl Build {
    fn describe(&self, hash: EnvironmentHash) -> String {
        let hash = short(hash);
        match &self.stage {
            Stage::Queued => format!("environment {hash}: queued behind other builds"),
            Stage::Running { since, output } => {
                let since = since.elapsed().as_secs();
                match last_line(output) {
                    line if line.is_empty() => format!("environment {hash}: building since {since} s"),
                    line => format!("environment {hash}: building since {since} s: {line}"),
                }
            }
            Stage::Paused { until, why } => {
                let left = until.saturating_duration_since(Instant::now());
                format!(
                    "environment {hash}: failed: {why}; will try again at {} UTC",
                    time_of_day_after(left)
                )
            }
        }
    }
}

fn building(text: String) -> Failure {
    Failure::new(Code::EnvironmentBuilding, text)
}

fn short(hash: EnvironmentHash) -> String {
    hash.to_string().chars().take(SHOWN_DIGITS).collect()
}

/// The end of a program's output, in one line.
fn bounded(output: &str) -> String {
    let lines: Vec<String> = output.lines().map(sanitized).filter(|line| !line.is_empty()).collect();
    let all = lines.join("; ");
    let too_long = all.chars().count().saturating_sub(MAX_MESSAGE_CHARS);
    match too_long {
        0 => all,
        _ => format!("...{}", all.chars().skip(too_long).collect::<String>()),
    }
}

fn sanitized(line: &str) -> String {
    text::line(line.trim(), text::MAX_FIELD_BYTES)
}

/// The last line of a file that is still being written.
fn last_line(output: &File) -> String {
    let length = output.metadata().map_or(0, |metadata| metadata.len());
    let from = length.saturating_sub(TAIL_BYTES);
    let mut tail = vec![0; (length - from) as usize];
    // An unreadable part is left out.
    let read = output.read_at(&mut tail, from).unwrap_or(0);
    let text = String::from_utf8_lossy(&tail[..read]).into_owned();
    text.lines()
        .rev()
        .map(sanitized)
        .find(|line| !line.is_empty())
        .unwrap_or_default()
}

/// The time of day after `left`, in UTC.
fn time_of_day_after(left: Duration) -> String {
    let at = SystemTime::now() + left;
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs() % (24 * 3600);
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const HASH: EnvironmentHash = EnvironmentHash([7; 32]);
    const UNREACHABLE: &str =
        "error: Failed to fetch: `http://127.0.0.1:9/simple/six/`\n  Caused by: error sending request for url";

    #[test]
    fn running_build_reports_its_duration_and_last_line() {
        let builds = Builds::new(Duration::from_secs(60));
        builds.queue(HASH).unwrap();
        assert!(builds.pending(Some(HASH)).message.contains("queued"));
        let mut output = builds.run(HASH).unwrap();
        writeln!(output, "Resolved 3 packages\nPrepared\x1b[2m 1 package").unwrap();
        let told = builds.pending(Some(HASH));
        assert_eq!(told.code, Code::EnvironmentBuilding);
        assert!(
            told.message
                .contains("building since 0 s: Prepared\\u{1b}[2m 1 package"),
            "{told}"
        );
    }

    #[test]
    fn unreachable_index_is_retried_after_a_pause() {
        let builds = Builds::new(Duration::from_secs(60));
        builds.queue(HASH).unwrap();
        let failure = builds.fail(HASH, UNREACHABLE);
        assert_eq!(failure.code, Code::EnvironmentBuilding);
        for part in ["failed: cannot reach the index", "127.0.0.1:9", "will try again at "] {
            assert!(failure.message.contains(part), "{failure}");
        }
        assert_eq!(builds.queue(HASH).unwrap_err().code, Code::EnvironmentBuilding);
    }

    #[test]
    fn build_fails_permanently_after_limit_or_permanent_error() {
        let builds = Builds::new(Duration::ZERO);
        builds.queue(HASH).unwrap();
        assert_eq!(builds.fail(HASH, UNREACHABLE).code, Code::EnvironmentFailed);
        let builds = Builds::new(Duration::from_secs(60));
        builds.queue(HASH).unwrap();
        let failure = builds.fail(HASH, "six was not found in the package registry");
        assert_eq!(failure.code, Code::EnvironmentFailed);
        assert_eq!(builds.queue(HASH), Ok(()));
    }

    #[test]
    fn long_error_is_cut_at_its_beginning() {
        let told = bounded(&format!("{}\nthe end", "x".repeat(5_000)));
        assert!(told.starts_with("...") && told.ends_with("; the end") && told.len() <= MAX_MESSAGE_CHARS + 3);
    }
}
