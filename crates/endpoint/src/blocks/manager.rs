//! Follows the plan of [`dayfly_scheduling::plan`]: submits and cancels jobs, and reports the blocks.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dayfly_protocol::endpoints::{BlockState, BlockStatus};
use dayfly_protocol::error::Failure;
use dayfly_scheduling::{Block, plan};

use super::backoff::Backoff;
use super::job_file::{BlockRecord, JobFile};
use super::site_block::SiteBlock;
use super::{Options, Site, UPDATE_INTERVAL};
use crate::provider::{Job, JobState, Provider, ProviderError};

/// How long to wait for cancelled jobs at the end.
const STOP_LIMIT: Duration = Duration::from_secs(15);

/// Wall clock at the start of this process plus monotonic time since, so that a clock change ends no block.
fn now_ms() -> u64 {
    static BEGAN: LazyLock<(Duration, Instant)> = LazyLock::new(|| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        (since, Instant::now())
    });
    u64::try_from((BEGAN.0 + BEGAN.1.elapsed()).as_millis()).unwrap_or(u64::MAX)
}

/// The blocks of a site.
pub struct BlockManager {
    options: Options,
    provider: Box<dyn Provider>,
    site: Box<dyn Site>,
    blocks: Vec<SiteBlock>,
    last: u64,
    /// The last report to the site.
    reported: Option<(Vec<BlockStatus>, Option<String>)>,
    /// Why the state of the existing blocks is unknown.
    unreachable: Option<String>,
    pub(super) backoff: Backoff,
    /// When the batch system was queried last.
    polled_at: Option<Instant>,
}

impl BlockManager {
    /// A manager that continues with the record.
    pub fn new(options: Options, provider: Box<dyn Provider>, site: Box<dyn Site>) -> Result<Self, Failure> {
        let file = JobFile::read(&options.directory)?;
        Ok(Self {
            blocks: file.blocks.into_iter().map(SiteBlock::of).collect(),
            last: file.last,
            reported: None,
            unreachable: None,
            backoff: Backoff::default(),
            polled_at: None,
            options,
            provider,
            site,
        })
    }

    /// Compares the demand with the blocks, and submits and cancels blocks.
    pub fn update(&mut self) {
        let now_ms = now_ms();
        self.update_from_nodes(now_ms);
        if self.polled_at.is_none_or(|at| at.elapsed() >= self.options.poll) {
            self.poll(now_ms);
        }
        let demand = self.site.demand();
        let Options { late, walltime, .. } = self.options;
        let workers = self.options.terms.workers / self.options.nodes.max(1);
        let view = |block: &SiteBlock| block.plan_view(workers, late, walltime, now_ms);
        let blocks: Vec<Block> = self.blocks.iter().map(view).collect();
        let plan = plan(self.options.terms, &blocks, demand, now_ms);
        self.cancel(&plan.cancel, true);
        self.cancel(&self.overdue(now_ms), false);
        if self.backoff.is_over() {
            for _ in 0..plan.submit {
                if !self.submit() {
                    break;
                }
            }
        }
        if plan.submit == 0 {
            // The refused block is not wanted any more.
            self.backoff.clear_reason();
        }
        self.report();
    }

    /// Blocks whose time is over. A batch system may notice that later, and this machine never does.
    fn overdue(&self, now_ms: u64) -> Vec<usize> {
        let is_over = |block: &SiteBlock| {
            let ends_at_ms = block.ends_at_ms(self.options.walltime);
            ends_at_ms > 0 && ends_at_ms <= now_ms && !block.is_cancelled()
        };
        let over = self.blocks.iter().enumerate().filter(|(_, block)| is_over(block));
        over.map(|(at, _)| at).collect()
    }

    /// Notices from its nodes that a block has begun, earlier than from the batch system.
    fn update_from_nodes(&mut self, now_ms: u64) {
        let mut present: HashMap<String, (u32, u32)> = HashMap::new();
        for node in self.site.nodes() {
            if let Some((block, _)) = node.name.rsplit_once('.') {
                let (joined, leases) = present.entry(block.to_owned()).or_default();
                *joined += 1;
                *leases += node.leases;
            }
        }
        let mut changed = false;
        for block in &mut self.blocks {
            let (joined, leases) = present.get(&block.record().name).copied().unwrap_or_default();
            if joined > 0 {
                self.backoff.reset();
            }
            changed |= block.set_nodes(joined, leases, now_ms);
        }
        if changed {
            self.save();
        }
    }

    fn poll(&mut self, now_ms: u64) {
        self.polled_at = Some(Instant::now());
        let mut overdue = Vec::new();
        for block in self.blocks.iter_mut().filter(|block| block.is_overdue()) {
            block.set_cancelled();
            overdue.push(block.record().job.clone());
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
            Err(trouble) => return self.record_unreachable(&trouble),
        };
        self.unreachable = None;
        let (mut over, mut changed) = (Vec::new(), false);
        self.blocks.retain_mut(|block| {
            match states.remove(&block.record().job) {
                Some(JobState::Live(state, message)) => {
                    block.set_message(message);
                    changed |= state == BlockState::Running && block.set_started(now_ms);
                    return true;
                }
                // Its submission was interrupted: its nodes show that there is a job.
                None if block.record().job.is_empty() && block.joined() > 0 => return true,
                Some(JobState::Ended(message)) => block.set_message(message),
                None => {}
            }
            over.push((
                block.record().clone(),
                block.had_nodes() || block.is_cancelled(),
                block.message().to_owned(),
            ));
            false
        });
        if !over.is_empty() || changed {
            self.save();
        }
        for (block, is_expected, message) in over {
            tracing::info!(
                block = block.name,
                job = block.job,
                status = message,
                "a block has ended"
            );
            if !is_expected {
                let message = if message.is_empty() {
                    String::new()
                } else {
                    format!(" ({message})")
                };
                self.backoff.fail(format!(
                    "job {} ended{message} before any of its nodes joined; see `dayfly endpoint logs {} --block {}`",
                    block.job, self.options.name, block.name
                ));
            }
            self.site.clean_up(&block.name);
        }
    }

    fn cancel(&mut self, which: &[usize], drained: bool) {
        for at in which {
            let Some(block) = self.blocks.get_mut(*at) else {
                continue;
            };
            block.set_cancelled();
            let BlockRecord { name, job, .. } = block.record().clone();
            tracing::info!(block = name, job, "a block is being cancelled");
            if drained && block.joined() > 0 {
                self.site.drain(&name);
            }
            // A job whose submission was interrupted has no id to cancel it by.
            let named: &[String] = if job.is_empty() { &[] } else { &[job] };
            if !named.is_empty()
                && let Err(trouble) = self.provider.cancel(named)
            {
                self.record_unreachable(&trouble);
            }
        }
        if !which.is_empty() {
            // Ask for their state soon.
            self.polled_at = None;
        }
    }

    fn submit(&mut self) -> bool {
        self.last += 1;
        let name = format!("{}-{}", self.options.name, self.last);
        let nodes = self.options.nodes;
        let command = match self.site.prepare(&name, nodes) {
            Ok(command) => command,
            Err(failure) => {
                self.backoff.fail(failure.to_string());
                return false;
            }
        };
        self.blocks.push(SiteBlock::of(BlockRecord {
            name: name.clone(),
            job: String::new(),
            nodes,
            submitted_at_ms: now_ms(),
            started_at_ms: 0,
        }));
        // Record the block first, so that the nodes of a lost job are recognized.
        self.save();
        let job = Job {
            name: name.clone(),
            command,
            nodes,
            walltime_s: self.options.walltime.as_secs(),
        };
        match self.provider.submit(&job) {
            Ok(job) => {
                tracing::info!(block = name, job, nodes, "a block was submitted");
                if let Some(block) = self.blocks.last_mut() {
                    block.set_job(job);
                }
                self.save();
                self.backoff.clear_reason();
                true
            }
            Err(trouble) => {
                self.blocks.pop();
                self.save();
                self.site.clean_up(&name);
                if let ProviderError::Unreachable(_) = trouble {
                    self.record_unreachable(&trouble);
                }
                self.backoff.fail(trouble.to_string());
                false
            }
        }
    }

    fn record_unreachable(&mut self, trouble: &ProviderError) {
        let reason = trouble.to_string();
        if self.unreachable.as_ref() != Some(&reason) {
            tracing::warn!(reason, "the state of the blocks is unknown");
            self.unreachable = Some(reason);
        }
    }

    fn save(&self) {
        let file = JobFile {
            last: self.last,
            blocks: self.blocks.iter().map(|block| block.record().clone()).collect(),
        };
        file.write(&self.options.directory);
    }

    /// Sends a report to the site if anything has changed.
    fn report(&mut self) {
        let walltime = self.options.walltime;
        let blocks: Vec<BlockStatus> = self.blocks.iter().map(|block| block.status(walltime)).collect();
        // A report about waiting blocks includes the reason.
        let pending = |block: &&BlockStatus| block.state == BlockState::Pending && !block.words.is_empty();
        let waits = match blocks.iter().all(|block| block.state == BlockState::Pending) {
            true => blocks.iter().find(pending),
            false => None,
        };
        let waits = waits.map(|block| format!("job {} waits: {}", block.job, block.words));
        let refused = self.backoff.reason().map(str::to_owned);
        let trouble = refused.or(self.unreachable.clone()).or(waits);
        let now = (blocks, trouble);
        if self.reported.as_ref() != Some(&now) {
            self.site.report(&now.0, now.1.as_deref());
            self.reported = Some(now);
        }
    }

    #[cfg(test)]
    pub fn blocks(&self) -> &[SiteBlock] {
        &self.blocks
    }

    /// Ids of all jobs, except those whose submission was interrupted.
    fn jobs(&self) -> Vec<String> {
        let jobs = self.blocks.iter().map(|block| block.record().job.clone());
        jobs.filter(|job| !job.is_empty()).collect()
    }

    /// Ends the work. `cancel` cancels all jobs, and waits a moment for their ends.
    pub fn stop(mut self, cancel: bool) {
        if !cancel {
            return;
        }
        let jobs = self.jobs();
        if !jobs.is_empty()
            && let Err(trouble) = self.provider.cancel(&jobs)
        {
            tracing::error!(%trouble, ?jobs, "jobs cannot be cancelled");
            return;
        }
        // Their nodes send last messages to the manager meanwhile.
        let until = Instant::now() + STOP_LIMIT;
        let is_there = |states: HashMap<String, JobState>| {
            states
                .values()
                .any(|state| matches!(state, JobState::Live(BlockState::Running, _)))
        };
        while Instant::now() < until && self.provider.status(&jobs).is_ok_and(is_there) {
            std::thread::sleep(UPDATE_INTERVAL);
        }
        for block in std::mem::take(&mut self.blocks) {
            self.site.clean_up(&block.record().name);
        }
        self.save();
        self.report();
    }
}
