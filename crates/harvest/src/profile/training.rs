//! Training of one function's models apart from its profile: tens of milliseconds on samples that nobody changes.

use std::sync::Arc;

use super::contest::Contest;
use super::forests::{Forests, Targets};
use super::window::Window;

/// What a training learns from: a copy of the samples. Clones are the same training.
#[derive(Debug, Clone)]
pub struct TrainingJob(Arc<Subject>);

#[derive(Debug)]
struct Subject {
    window: Window,
    seed: u64,
}

/// What a training made.
#[derive(Debug)]
pub struct Trained {
    job: TrainingJob,
    contest: Contest,
    forests: Forests,
}

impl TrainingJob {
    pub(super) fn new(window: &Window, seed: u64) -> Self {
        Self(Arc::new(Subject {
            window: window.clone(),
            seed,
        }))
    }

    /// Trains: the same samples give the same models.
    pub fn train(&self) -> Trained {
        let window = &self.0.window;
        let (contest, forests) = Contest::hold(window, &Targets::new(window), self.0.seed);
        Trained {
            job: self.clone(),
            contest,
            forests,
        }
    }
}

impl Trained {
    /// Whether this training made it.
    pub(super) fn is_of(&self, job: &TrainingJob) -> bool {
        Arc::ptr_eq(&self.job.0, &job.0)
    }

    /// The models, with the samples in their leaves that came while they were trained.
    pub(super) fn fit(self, now: &Window) -> (Contest, Forests) {
        let (before, mut forests) = (self.job.0.window.rows(), self.forests);
        for (slot, row) in now.rows().iter().enumerate() {
            let old = before.get(slot);
            if old != Some(row) {
                forests.replace(slot as u16, old, row);
            }
        }
        (self.contest, forests)
    }
}
