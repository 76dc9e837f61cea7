//! The thread that trains models: tens of milliseconds, in which no window must be late.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use dayfly_harvest::FunctionId;
use dayfly_harvest::profile::{Trained, TrainingJob};

/// The thread, and what it trains. One training runs at a time; other functions wait in their profiles.
#[derive(Debug)]
pub(super) struct Trainer {
    jobs: Option<SyncSender<TrainingJob>>,
    thread: Option<JoinHandle<()>>,
    running: Option<FunctionId>,
}

impl Trainer {
    /// Starts the thread, which passes the models of each training to `done`.
    pub fn start(done: impl Fn(Trained) + Send + 'static) -> std::io::Result<Self> {
        let (jobs, inbox) = sync_channel::<TrainingJob>(1);
        let thread = std::thread::Builder::new()
            .name("dayfly-training".into())
            .spawn(move || inbox.iter().for_each(|job| done(job.train())))?;
        Ok(Self {
            jobs: Some(jobs),
            thread: Some(thread),
            running: None,
        })
    }

    /// Whether a training runs.
    pub fn is_busy(&self) -> bool {
        self.running.is_some()
    }

    /// Begins a training of a function's models, unless one runs.
    pub fn begin(&mut self, function: FunctionId, job: TrainingJob) {
        let has_begun = self.jobs.as_ref().is_some_and(|jobs| jobs.try_send(job).is_ok());
        self.running = has_begun.then_some(function);
    }

    /// The function whose training has ended.
    pub fn end(&mut self) -> Option<FunctionId> {
        self.running.take()
    }
}

impl Drop for Trainer {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
