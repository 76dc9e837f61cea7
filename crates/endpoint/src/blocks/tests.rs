use std::sync::{Arc, Mutex};

use std::collections::HashMap;
use std::path::Path;

use dayfly_protocol::endpoints::BlockState;

use super::manager::BlockManager;
use super::*;
use crate::provider::{Job, JobState, ProviderError};

/// A test's batch system and site.
#[derive(Default)]
struct Fake {
    jobs: HashMap<String, JobState>,
    submitted: u32,
    refuses: Option<ProviderError>,
    silent: bool,
    nodes: Vec<SiteNode>,
    workers: u64,
    told: Option<(Vec<BlockStatus>, Option<String>)>,
    drained: Vec<String>,
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Fake>>);

impl Shared {
    fn fake(&self) -> std::sync::MutexGuard<'_, Fake> {
        self.0.lock().expect("a fake")
    }

    fn trouble(&self) -> Option<String> {
        self.fake().told.clone().and_then(|(_, trouble)| trouble)
    }

    /// Joins a node of each job, with this many leases.
    fn join(&self, blocks: &[&str], leases: u32) {
        let node = |block: &&str| SiteNode {
            name: format!("{block}.0"),
            leases,
        };
        self.fake().nodes = blocks.iter().map(node).collect();
    }
}

impl Provider for Shared {
    fn submit(&mut self, _: &Job) -> Result<String, ProviderError> {
        let mut fake = self.fake();
        if let Some(trouble) = fake.refuses.clone() {
            return Err(trouble);
        }
        fake.submitted += 1;
        let name = fake.submitted.to_string();
        let waits = JobState::Live(BlockState::Pending, "Priority".into());
        fake.jobs.insert(name.clone(), waits);
        Ok(name)
    }

    fn status(&mut self, jobs: &[String]) -> Result<HashMap<String, JobState>, ProviderError> {
        let fake = self.fake();
        if fake.silent {
            return Err(ProviderError::Unreachable("no controller".into()));
        }
        let block = jobs
            .iter()
            .filter_map(|job| Some((job.clone(), fake.jobs.get(job)?.clone())));
        Ok(block.collect())
    }

    fn cancel(&mut self, jobs: &[String]) -> Result<(), ProviderError> {
        let mut fake = self.fake();
        for job in jobs {
            fake.jobs.insert(job.clone(), JobState::Ended("cancelled".into()));
        }
        Ok(())
    }
}

impl Site for Shared {
    fn prepare(&mut self, _: &str, _: u32) -> Result<String, Failure> {
        Ok("true".into())
    }

    fn nodes(&self) -> Vec<SiteNode> {
        self.fake().nodes.clone()
    }

    fn demand(&self) -> Demand {
        Demand {
            workers: self.fake().workers,
            longest_ms: 0,
        }
    }

    fn drain(&mut self, block: &str) {
        self.fake().drained.push(block.into());
    }

    fn report(&mut self, blocks: &[BlockStatus], trouble: Option<&str>) {
        self.fake().told = Some((blocks.to_vec(), trouble.map(str::to_owned)));
    }

    fn clean_up(&mut self, _: &str) {}
}

fn manager(shared: &Shared, directory: &Path, walltime: Duration) -> BlockManager {
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
    BlockManager::new(options, Box::new(shared.clone()), Box::new(shared.clone())).expect("a manager")
}

#[test]
fn trouble_is_reported_until_it_is_over() {
    let (shared, directory) = (Shared::default(), tempfile::tempdir().expect("a directory"));
    let mut manager = manager(&shared, directory.path(), Duration::ZERO);
    shared.fake().workers = 1;
    shared.fake().refuses = Some(ProviderError::Refused("no such partition".into()));
    manager.update();
    assert_eq!(shared.trouble().as_deref(), Some("no such partition"));
    // It is not asked again at once, and the refusal is not forgotten.
    shared.fake().refuses = None;
    manager.update();
    assert_eq!(shared.fake().submitted, 0);
    manager.backoff.reset();
    manager.update();
    manager.update();
    assert_eq!(shared.trouble().as_deref(), Some("job 1 waits: Priority"));
    shared.fake().silent = true;
    manager.update();
    let silent = shared.trouble();
    assert_eq!(
        silent.as_deref(),
        Some("the batch system cannot be asked: no controller")
    );
    shared.fake().silent = false;
    shared.join(&["site-2"], 1);
    manager.update();
    assert_eq!(shared.trouble(), None);
}

#[test]
fn recorded_blocks_continue_and_idle_ones_are_cancelled() {
    let (shared, directory) = (Shared::default(), tempfile::tempdir().expect("a directory"));
    shared.fake().workers = 8;
    manager(&shared, directory.path(), Duration::ZERO).update();
    assert_eq!(shared.fake().submitted, 2);
    let mut second = manager(&shared, directory.path(), Duration::ZERO);
    shared.join(&["site-1", "site-2"], 1);
    second.update();
    assert_eq!(shared.fake().submitted, 2);
    shared.fake().workers = 0;
    second.update();
    assert!(shared.fake().drained.is_empty(), "both hold leases");
    shared.join(&["site-1", "site-2"], 0);
    second.update();
    assert_eq!(shared.fake().drained.len(), 2);
    shared.join(&[], 0);
    second.update();
    assert!(second.blocks().is_empty());
}

#[test]
fn expired_block_is_cancelled_and_replaced() {
    let (shared, directory) = (Shared::default(), tempfile::tempdir().expect("a directory"));
    let mut manager = manager(&shared, directory.path(), Duration::from_millis(1));
    shared.fake().workers = 1;
    manager.update();
    shared.join(&["site-1"], 1);
    manager.update();
    std::thread::sleep(Duration::from_millis(2));
    manager.update();
    assert!(matches!(shared.fake().jobs["1"], JobState::Ended(_)));
    shared.join(&[], 0);
    manager.update();
    assert!(shared.fake().submitted >= 2);
    assert!(manager.blocks().iter().all(|block| block.record().job != "1"));
}

#[test]
fn failed_job_is_not_resubmitted_at_once() {
    let (shared, directory) = (Shared::default(), tempfile::tempdir().expect("a directory"));
    let mut manager = manager(&shared, directory.path(), Duration::ZERO);
    shared.fake().workers = 1;
    manager.update();
    let ended = JobState::Ended("FAILED exit 127".into());
    shared.fake().jobs.insert("1".into(), ended);
    manager.update();
    manager.update();
    assert_eq!(shared.fake().submitted, 1);
    let trouble = shared.trouble().expect("trouble");
    assert!(
        trouble.contains("FAILED exit 127") && trouble.contains("--block site-1"),
        "{trouble}"
    );
}
