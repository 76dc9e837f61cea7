//! Refused system calls that no honest function makes, until the manager is informed.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use dayfly_protocol::ids::LeaseId;

/// Most incidents that wait for the manager.
const MAX_INCIDENTS: usize = 1024;

/// Incidents in the order of their arrival.
#[derive(Debug, Default)]
pub(crate) struct Incidents {
    waiting: Mutex<VecDeque<(LeaseId, String)>>,
}

impl Incidents {
    /// Adds an incident. Drops the oldest one if too many wait.
    pub fn add(&self, lease: LeaseId, what: String) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() == MAX_INCIDENTS {
            waiting.pop_front();
        }
        waiting.push_back((lease, what));
    }

    /// Removes all incidents.
    pub fn take(&self) -> VecDeque<(LeaseId, String)> {
        std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
