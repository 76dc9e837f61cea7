//! Nodes on demand: jobs of a batch system, each with a block of nodes.
//!
//! One thread compares the demand with the existing blocks, follows [`dayfly_scheduling::plan`], and records its jobs
//! in a file, so that the next process continues with them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::tasks::{BlockState, BlockStatus};
use dayfly_scheduling::{Block, BlockTerms, Demand, plan};
use serde::{Deserialize, Serialize};

use crate::provider::{Job, JobState, Provider, Trouble};

/// Interval of the comparison.
const LOOK: Duration = Duration::from_millis(100);
/// First and longest pause after a refusal or a failed job; each further failure doubles it.
const FIRST_WAIT: Duration = Duration::from_secs(2);
const LAST_WAIT: Duration = Duration::from_secs(300);
/// Pause before a job that has not ended is cancelled again.
const TOLD_AGAIN: Duration = Duration::from_secs(30);
/// How long to wait for cancelled jobs at the end.
const LAST_WORDS: Duration = Duration::from_secs(15);
/// How long a node of a complete block may be away before it counts as gone.
const GONE: Duration = Duration::from_secs(10);
/// The record of the jobs, in the endpoint's directory.
const FILE: &str = "blocks.json";

/// Options of the blocks.
#[derive(Debug, Clone)]
pub struct Options {
    /// Name of the endpoint and of the jobs.
    pub name: String,
    /// Bounds.
    pub terms: BlockTerms,
    /// Nodes of one block.
    pub nodes: u32,
    /// Longest duration of a job; zero for no limit.
    pub walltime: Duration,
    /// Interval at which the batch system is asked.
    pub poll: Duration,
    /// A node that has not joined this long after its block began counts as missing.
    pub late: Duration,
    /// Directory of the record.
    pub directory: PathBuf,
}

/// A node that is present.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SiteNode {
    /// Its name: the block's name, a dot, and its number.
    pub name: String,
    /// Number of its leases.
    pub leases: u32,
}

/// The site that the blocks serve.
pub trait Site: Send {
    /// Prepares for a block, and returns the command of each of its nodes.
    fn prepare(&mut self, block: &str, nodes: u32) -> Result<String, Failure>;

    /// Nodes that are present.
    fn nodes(&self) -> Vec<SiteNode>;

    /// Work to do.
    fn demand(&self) -> Demand;

    /// Starts nothing more on a block's nodes; returns when nothing runs there, or after a while.
    fn drain(&mut self, block: &str);

    /// Reports the blocks, and why there are not more if more are wanted.
    fn tell(&mut self, blocks: &[BlockStatus], trouble: Option<&str>);

    /// Cleans up after a block has ended.
    fn clean(&mut self, block: &str);
}

/// The record of the jobs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Memory {
    /// Number of the last block.
    last: u64,
    blocks: Vec<Remembered>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Remembered {
    name: String,
    /// Id of the job; empty while it is being submitted.
    job: String,
    nodes: u32,
    submitted_at_ms: u64,
    /// 0 before the start.
    started_at_ms: u64,
}

/// A recorded block, and what this process knows about it.
struct Known {
    kept: Remembered,
    words: String,
    joined: u32,
    /// Since when it has had fewer nodes than it should.
    lacks_since: Option<Instant>,
    /// Whether any of its nodes, and whether all of them, were ever present.
    was_there: bool,
    was_whole: bool,
    idle_since_ms: Option<u64>,
    told_to_end: Option<Instant>,
}

impl Known {
    fn of(kept: Remembered) -> Self {
        Self {
            was_there: kept.started_at_ms > 0,
            kept,
            words: String::new(),
            joined: 0,
            lacks_since: None,
            was_whole: false,
            idle_since_ms: None,
            told_to_end: None,
        }
    }

    /// Number of nodes to count.
    fn nodes(&self, late: Duration) -> u32 {
        let patience = if self.was_whole { GONE } else { late };
        match self.lacks_since {
            Some(since) if since.elapsed() >= patience => self.joined,
            _ => self.kept.nodes,
        }
    }

    fn state(&self) -> BlockState {
        match self.kept.started_at_ms {
            0 => BlockState::Pending,
            _ => BlockState::Running,
        }
    }
}

enum Order {
    Stop { cancel: bool },
}

/// The thread that manages the blocks.
pub struct Handle {
    orders: Sender<Order>,
    thread: JoinHandle<()>,
}

impl Handle {
    /// Stops the thread. `cancel` ends all jobs; otherwise they go on.
    pub fn stop(self, cancel: bool) {
        // The thread may have ended by a panic, which was printed to standard error.
        let _ = self.orders.send(Order::Stop { cancel });
        let _ = self.thread.join();
    }
}

/// Starts to manage blocks, beginning with those that an earlier process recorded.
pub fn start(options: Options, provider: Box<dyn Provider>, site: Box<dyn Site>) -> Result<Handle, Failure> {
    let (orders, ordered) = channel();
    let mut keeper = Keeper::new(options, provider, site)?;
    let run = move || {
        loop {
            keeper.look();
            match ordered.recv_timeout(LOOK) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Order::Stop { cancel }) => return keeper.stop(cancel),
                Err(RecvTimeoutError::Disconnected) => return keeper.stop(false),
            }
        }
    };
    let thread = std::thread::Builder::new().name("dayfly-blocks".into()).spawn(run);
    let impossible = |error| Failure::new(Code::Internal, format!("no thread for blocks: {error}"));
    Ok(Handle {
        orders,
        thread: thread.map_err(impossible)?,
    })
}

fn read(path: &Path) -> Result<Memory, Failure> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Memory::default()),
        text => text.map_err(|error| error.to_string()),
    };
    text.and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string()))
        .map_err(|error| {
            let path = path.display();
            let text = format!("{path} cannot be read: {error}; look for jobs of this endpoint, and remove the file");
            Failure::new(Code::StoreFailed, text)
        })
}

/// Wall clock at the start of this process plus monotonic time since, so that a clock change ends no block.
fn now_ms() -> u64 {
    static BEGAN: LazyLock<(Duration, Instant)> = LazyLock::new(|| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        (since, Instant::now())
    });
    u64::try_from((BEGAN.0 + BEGAN.1.elapsed()).as_millis()).unwrap_or(u64::MAX)
}

struct Keeper {
    options: Options,
    provider: Box<dyn Provider>,
    site: Box<dyn Site>,
    blocks: Vec<Known>,
    last: u64,
    /// The last report to the site.
    told: Option<(Vec<BlockStatus>, Option<String>)>,
    /// Why there are not more blocks, and why the state of the existing ones is unknown.
    refused: Option<String>,
    unreachable: Option<String>,
    wait: Duration,
    not_before: Option<Instant>,
    /// When the batch system was asked last.
    asked: Option<Instant>,
}

impl Keeper {
    /// A keeper that continues with the record.
    fn new(options: Options, provider: Box<dyn Provider>, site: Box<dyn Site>) -> Result<Self, Failure> {
        let memory = read(&options.directory.join(FILE))?;
        Ok(Self {
            blocks: memory.blocks.into_iter().map(Known::of).collect(),
            last: memory.last,
            told: None,
            refused: None,
            unreachable: None,
            wait: FIRST_WAIT,
            not_before: None,
            asked: None,
            options,
            provider,
            site,
        })
    }

    fn look(&mut self) {
        let now_ms = now_ms();
        self.see_nodes(now_ms);
        if self.asked.is_none_or(|asked| asked.elapsed() >= self.options.poll) {
            self.ask(now_ms);
        }
        let demand = self.site.demand();
        let blocks: Vec<Block> = self.blocks.iter().map(|known| self.seen(known, now_ms)).collect();
        let plan = plan(self.options.terms, &blocks, demand, now_ms);
        self.cancel(&plan.cancel, true);
        self.cancel(&self.overdue(now_ms), false);
        let may_submit = self.not_before.is_none_or(|at| Instant::now() >= at);
        if may_submit {
            for _ in 0..plan.submit {
                if !self.submit() {
                    break;
                }
            }
        }
        if plan.submit == 0 {
            // The refused block is not wanted any more.
            self.refused = None;
        }
        self.tell();
    }

    /// End of a block in milliseconds since the Unix epoch; 0 for never, or unknown.
    fn ends_at_ms(&self, known: &Known) -> u64 {
        let length = u64::try_from(self.options.walltime.as_millis()).unwrap_or(u64::MAX);
        match (known.kept.started_at_ms, length) {
            (0, _) | (_, 0) => 0,
            (started_at_ms, length) => started_at_ms.saturating_add(length),
        }
    }

    /// Blocks whose time is over. A batch system may notice that later, and this machine never does.
    fn overdue(&self, now_ms: u64) -> Vec<usize> {
        let is_over = |known: &Known| {
            let ends_at_ms = self.ends_at_ms(known);
            ends_at_ms > 0 && ends_at_ms <= now_ms && known.told_to_end.is_none()
        };
        let over = self.blocks.iter().enumerate().filter(|(_, known)| is_over(known));
        over.map(|(at, _)| at).collect()
    }

    fn seen(&self, known: &Known, now_ms: u64) -> Block {
        match (known.told_to_end, known.kept.started_at_ms) {
            (Some(_), _) => Block::Running {
                workers: 0,
                idle_since_ms: None,
                ends_at_ms: now_ms,
            },
            (None, 0) => Block::Pending,
            (None, _) => Block::Running {
                workers: self.options.terms.workers / self.options.nodes.max(1) * known.nodes(self.options.late),
                idle_since_ms: known.idle_since_ms,
                ends_at_ms: self.ends_at_ms(known),
            },
        }
    }

    /// Notices from its nodes that a block has begun, earlier than from the batch system.
    fn see_nodes(&mut self, now_ms: u64) {
        let mut there: HashMap<String, (u32, u32)> = HashMap::new();
        for node in self.site.nodes() {
            if let Some((block, _)) = node.name.rsplit_once('.') {
                let (joined, leases) = there.entry(block.to_owned()).or_default();
                *joined += 1;
                *leases += node.leases;
            }
        }
        let mut changed = false;
        for known in &mut self.blocks {
            let (joined, leases) = there.get(&known.kept.name).copied().unwrap_or_default();
            known.joined = joined;
            if joined > 0 {
                known.was_there = true;
                (self.wait, self.not_before) = (FIRST_WAIT, None);
                if known.kept.started_at_ms == 0 {
                    known.kept.started_at_ms = now_ms;
                    changed = true;
                }
            }
            known.was_whole |= joined >= known.kept.nodes;
            known.lacks_since = match known.kept.started_at_ms > 0 && joined < known.kept.nodes {
                true => known.lacks_since.or_else(|| Some(Instant::now())),
                false => None,
            };
            known.idle_since_ms = match (known.kept.started_at_ms, leases) {
                (1.., 0) => known.idle_since_ms.or(Some(now_ms)),
                _ => None,
            };
        }
        if changed {
            self.remember();
        }
    }

    fn ask(&mut self, now_ms: u64) {
        self.asked = Some(Instant::now());
        let again = |known: &&mut Known| known.told_to_end.is_some_and(|told| told.elapsed() > TOLD_AGAIN);
        let mut overdue = Vec::new();
        for known in self.blocks.iter_mut().filter(again) {
            known.told_to_end = Some(Instant::now());
            overdue.push(known.kept.job.clone());
        }
        if !overdue.is_empty() {
            // Its state is read below, and it is cancelled again if necessary.
            let _ = self.provider.cancel(&overdue);
        }
        let jobs = self.jobs();
        // A submission without a response may have made a job, which the provider looks for now.
        if jobs.is_empty() && self.unreachable.is_none() {
            return;
        }
        let mut states = match self.provider.status(&jobs) {
            Ok(states) => states,
            Err(trouble) => return self.fail(&trouble),
        };
        self.unreachable = None;
        let (mut over, mut changed) = (Vec::new(), false);
        self.blocks.retain_mut(|known| {
            match states.remove(&known.kept.job) {
                Some(JobState::Live(state, words)) => {
                    known.words = words;
                    if state == BlockState::Running && known.kept.started_at_ms == 0 {
                        known.kept.started_at_ms = now_ms;
                        changed = true;
                    }
                    return true;
                }
                // Its submission was interrupted: its nodes show that there is a job.
                None if known.kept.job.is_empty() && known.joined > 0 => return true,
                Some(JobState::Ended(words)) => known.words = words,
                None => {}
            }
            over.push((
                known.kept.clone(),
                known.was_there,
                known.told_to_end.is_some(),
                known.words.clone(),
            ));
            false
        });
        if !over.is_empty() || changed {
            self.remember();
        }
        for (block, was_there, was_told, words) in over {
            tracing::info!(block = block.name, job = block.job, words, "a block is over");
            if !was_there && !was_told {
                let words = if words.is_empty() {
                    String::new()
                } else {
                    format!(" ({words})")
                };
                self.hold_off(format!(
                    "job {} ended{words} before a node of it was there; see `dayfly endpoint logs {} --block {}`",
                    block.job, self.options.name, block.name
                ));
            }
            self.site.clean(&block.name);
        }
    }

    fn cancel(&mut self, which: &[usize], drained: bool) {
        for at in which {
            let Some(known) = self.blocks.get_mut(*at) else {
                continue;
            };
            known.told_to_end = Some(Instant::now());
            let Remembered { name, job, .. } = known.kept.clone();
            tracing::info!(block = name, job, "a block is told to end");
            if drained && known.joined > 0 {
                self.site.drain(&name);
            }
            // A job whose submission was interrupted has no id to cancel it by.
            let named: &[String] = if job.is_empty() { &[] } else { &[job] };
            if !named.is_empty()
                && let Err(trouble) = self.provider.cancel(named)
            {
                self.fail(&trouble);
            }
        }
        if !which.is_empty() {
            // Ask for their state soon.
            self.asked = None;
        }
    }

    fn submit(&mut self) -> bool {
        self.last += 1;
        let name = format!("{}-{}", self.options.name, self.last);
        let nodes = self.options.nodes;
        let command = match self.site.prepare(&name, nodes) {
            Ok(command) => command,
            Err(failure) => {
                self.hold_off(failure.to_string());
                return false;
            }
        };
        self.blocks.push(Known::of(Remembered {
            name: name.clone(),
            job: String::new(),
            nodes,
            submitted_at_ms: now_ms(),
            started_at_ms: 0,
        }));
        // Record the block first, so that the nodes of a lost job are recognized.
        self.remember();
        let job = Job {
            name: name.clone(),
            command,
            nodes,
            walltime_s: self.options.walltime.as_secs(),
        };
        match self.provider.submit(&job) {
            Ok(job) => {
                tracing::info!(block = name, job, nodes, "a block was submitted");
                if let Some(known) = self.blocks.last_mut() {
                    known.kept.job = job;
                }
                self.remember();
                self.refused = None;
                true
            }
            Err(trouble) => {
                self.blocks.pop();
                self.remember();
                self.site.clean(&name);
                if let Trouble::Unreachable(_) = trouble {
                    self.fail(&trouble);
                }
                self.hold_off(trouble.to_string());
                false
            }
        }
    }

    fn hold_off(&mut self, words: String) {
        tracing::warn!(words, retry_s = self.wait.as_secs(), "no more nodes");
        self.refused = Some(words);
        self.not_before = Some(Instant::now() + self.wait);
        self.wait = (self.wait * 2).min(LAST_WAIT);
    }

    fn fail(&mut self, trouble: &Trouble) {
        let words = trouble.to_string();
        if self.unreachable.as_ref() != Some(&words) {
            tracing::warn!(words, "blocks");
            self.unreachable = Some(words);
        }
    }

    fn remember(&self) {
        let memory = Memory {
            last: self.last,
            blocks: self.blocks.iter().map(|known| known.kept.clone()).collect(),
        };
        let path = self.options.directory.join(FILE);
        let fresh = path.with_extension("new");
        let written = serde_json::to_vec_pretty(&memory)
            .map_err(std::io::Error::from)
            .and_then(|json| std::fs::write(&fresh, json))
            .and_then(|()| std::fs::rename(&fresh, &path));
        if let Err(error) = written {
            tracing::error!(path = %path.display(), %error, "jobs cannot be remembered");
        }
    }

    fn tell(&mut self) {
        let status = |known: &Known| BlockStatus {
            name: known.kept.name.clone(),
            job: known.kept.job.clone(),
            state: known.state(),
            nodes: known.kept.nodes,
            joined: known.joined,
            submitted_at_ms: known.kept.submitted_at_ms,
            ends_at_ms: self.ends_at_ms(known),
            words: known.words.clone(),
        };
        let blocks: Vec<BlockStatus> = self.blocks.iter().map(status).collect();
        // A report about waiting blocks includes the reason.
        let pending = |block: &&BlockStatus| block.state == BlockState::Pending && !block.words.is_empty();
        let waits = match blocks.iter().all(|block| block.state == BlockState::Pending) {
            true => blocks.iter().find(pending),
            false => None,
        };
        let waits = waits.map(|block| format!("job {} waits: {}", block.job, block.words));
        let trouble = self.refused.clone().or(self.unreachable.clone()).or(waits);
        let now = (blocks, trouble);
        if self.told.as_ref() != Some(&now) {
            self.site.tell(&now.0, now.1.as_deref());
            self.told = Some(now);
        }
    }

    /// Ids of all jobs, except those whose submission was interrupted.
    fn jobs(&self) -> Vec<String> {
        let jobs = self.blocks.iter().map(|known| known.kept.job.clone());
        jobs.filter(|job| !job.is_empty()).collect()
    }

    fn stop(mut self, cancel: bool) {
        if !cancel {
            return;
        }
        let jobs = self.jobs();
        if !jobs.is_empty()
            && let Err(trouble) = self.provider.cancel(&jobs)
        {
            tracing::error!(%trouble, ?jobs, "jobs that were left cannot be ended");
            return;
        }
        // Their nodes send last messages to the manager meanwhile.
        let until = Instant::now() + LAST_WORDS;
        let is_there = |states: HashMap<String, JobState>| {
            states
                .values()
                .any(|state| matches!(state, JobState::Live(BlockState::Running, _)))
        };
        while Instant::now() < until && self.provider.status(&jobs).is_ok_and(is_there) {
            std::thread::sleep(LOOK);
        }
        for known in std::mem::take(&mut self.blocks) {
            self.site.clean(&known.kept.name);
        }
        self.remember();
        self.tell();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// A test's batch system and site.
    #[derive(Default)]
    struct World {
        jobs: HashMap<String, JobState>,
        submitted: u32,
        refuses: Option<Trouble>,
        silent: bool,
        nodes: Vec<SiteNode>,
        workers: u64,
        told: Option<(Vec<BlockStatus>, Option<String>)>,
        drained: Vec<String>,
    }

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<World>>);

    impl Shared {
        fn world(&self) -> std::sync::MutexGuard<'_, World> {
            self.0.lock().expect("a world")
        }

        fn trouble(&self) -> Option<String> {
            self.world().told.clone().and_then(|(_, trouble)| trouble)
        }

        /// Joins a node of each job, with this many leases.
        fn join(&self, blocks: &[&str], leases: u32) {
            let node = |block: &&str| SiteNode {
                name: format!("{block}.0"),
                leases,
            };
            self.world().nodes = blocks.iter().map(node).collect();
        }
    }

    impl Provider for Shared {
        fn submit(&mut self, _: &Job) -> Result<String, Trouble> {
            let mut world = self.world();
            if let Some(trouble) = world.refuses.clone() {
                return Err(trouble);
            }
            world.submitted += 1;
            let name = world.submitted.to_string();
            let waits = JobState::Live(BlockState::Pending, "Priority".into());
            world.jobs.insert(name.clone(), waits);
            Ok(name)
        }

        fn status(&mut self, jobs: &[String]) -> Result<HashMap<String, JobState>, Trouble> {
            let world = self.world();
            if world.silent {
                return Err(Trouble::Unreachable("no controller".into()));
            }
            let known = jobs
                .iter()
                .filter_map(|job| Some((job.clone(), world.jobs.get(job)?.clone())));
            Ok(known.collect())
        }

        fn cancel(&mut self, jobs: &[String]) -> Result<(), Trouble> {
            let mut world = self.world();
            for job in jobs {
                world.jobs.insert(job.clone(), JobState::Ended("cancelled".into()));
            }
            Ok(())
        }
    }

    impl Site for Shared {
        fn prepare(&mut self, _: &str, _: u32) -> Result<String, Failure> {
            Ok("true".into())
        }

        fn nodes(&self) -> Vec<SiteNode> {
            self.world().nodes.clone()
        }

        fn demand(&self) -> Demand {
            Demand {
                workers: self.world().workers,
                longest_ms: 0,
            }
        }

        fn drain(&mut self, block: &str) {
            self.world().drained.push(block.into());
        }

        fn tell(&mut self, blocks: &[BlockStatus], trouble: Option<&str>) {
            self.world().told = Some((blocks.to_vec(), trouble.map(str::to_owned)));
        }

        fn clean(&mut self, _: &str) {}
    }

    fn keeper(shared: &Shared, directory: &Path, walltime: Duration) -> Keeper {
        let options = Options {
            name: "site".into(),
            terms: BlockTerms {
                min: 0,
                max: 2,
                workers: 4,
                idle_ms: 0,
            },
            nodes: 1,
            walltime,
            poll: Duration::ZERO,
            late: Duration::from_secs(120),
            directory: directory.into(),
        };
        Keeper::new(options, Box::new(shared.clone()), Box::new(shared.clone())).expect("a keeper")
    }

    #[test]
    fn what_the_batch_system_says_is_told_until_it_is_over() {
        let (shared, directory) = (Shared::default(), tempfile::tempdir().expect("a directory"));
        let mut keeper = keeper(&shared, directory.path(), Duration::ZERO);
        shared.world().workers = 1;
        shared.world().refuses = Some(Trouble::Refused("no such partition".into()));
        keeper.look();
        assert_eq!(shared.trouble().as_deref(), Some("no such partition"));
        // It is not asked again at once, and the refusal is not forgotten.
        shared.world().refuses = None;
        keeper.look();
        assert_eq!(shared.world().submitted, 0);
        keeper.not_before = None;
        keeper.look();
        keeper.look();
        assert_eq!(shared.trouble().as_deref(), Some("job 1 waits: Priority"));
        shared.world().silent = true;
        keeper.look();
        let silent = shared.trouble();
        assert_eq!(
            silent.as_deref(),
            Some("the batch system cannot be asked: no controller")
        );
        shared.world().silent = false;
        shared.join(&["site-2"], 1);
        keeper.look();
        assert_eq!(shared.trouble(), None);
    }

    #[test]
    fn blocks_are_found_again_and_go_when_they_idle() {
        let (shared, directory) = (Shared::default(), tempfile::tempdir().expect("a directory"));
        shared.world().workers = 8;
        keeper(&shared, directory.path(), Duration::ZERO).look();
        assert_eq!(shared.world().submitted, 2);
        let mut second = keeper(&shared, directory.path(), Duration::ZERO);
        shared.join(&["site-1", "site-2"], 1);
        second.look();
        assert_eq!(shared.world().submitted, 2);
        shared.world().workers = 0;
        second.look();
        assert!(shared.world().drained.is_empty(), "both hold leases");
        shared.join(&["site-1", "site-2"], 0);
        second.look();
        assert_eq!(shared.world().drained.len(), 2);
        shared.join(&[], 0);
        second.look();
        assert!(second.blocks.is_empty());
    }

    #[test]
    fn a_block_ends_when_its_time_is_over_and_another_takes_its_place() {
        let (shared, directory) = (Shared::default(), tempfile::tempdir().expect("a directory"));
        let mut keeper = keeper(&shared, directory.path(), Duration::from_millis(1));
        shared.world().workers = 1;
        keeper.look();
        shared.join(&["site-1"], 1);
        keeper.look();
        std::thread::sleep(Duration::from_millis(2));
        keeper.look();
        assert!(matches!(shared.world().jobs["1"], JobState::Ended(_)));
        shared.join(&[], 0);
        keeper.look();
        assert!(shared.world().submitted >= 2);
        assert!(keeper.blocks.iter().all(|known| known.kept.job != "1"));
    }

    #[test]
    fn a_job_that_comes_to_nothing_is_not_submitted_again_and_again() {
        let (shared, directory) = (Shared::default(), tempfile::tempdir().expect("a directory"));
        let mut keeper = keeper(&shared, directory.path(), Duration::ZERO);
        shared.world().workers = 1;
        keeper.look();
        let ended = JobState::Ended("FAILED exit 127".into());
        shared.world().jobs.insert("1".into(), ended);
        keeper.look();
        keeper.look();
        assert_eq!(shared.world().submitted, 1);
        let trouble = shared.trouble().expect("trouble");
        assert!(
            trouble.contains("FAILED exit 127") && trouble.contains("--block site-1"),
            "{trouble}"
        );
    }
}
