//! The connection to one other rank while it is being made.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::connect::plan::{Step, Target};
use crate::{PeerConnection, Route};

/// Pause after a failed dial; each further failure doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The connection to one other rank while it is being made.
pub struct Pair {
    pub steps: Vec<Step>,
    pub pauses: Vec<Duration>,
    /// Last result of each target.
    pub notes: BTreeMap<String, String>,
    pub attempts: Vec<u64>,
    pub chosen: bool,
    /// When its steps began.
    pub begun: Option<Instant>,
    /// On demand: by when the pair must be connected, and when the other rank was called.
    pub until: Option<Instant>,
    pub called: Option<Instant>,
    pub connected: bool,
    pub connection: Option<PeerConnection>,
}

impl Pair {
    /// A pair whose steps have not begun.
    pub fn new(steps: Vec<Step>) -> Self {
        Self {
            pauses: vec![FIRST_PAUSE; steps.len()],
            steps,
            notes: BTreeMap::new(),
            attempts: Vec::new(),
            chosen: false,
            begun: None,
            until: None,
            called: None,
            connected: false,
            connection: None,
        }
    }

    /// The attempts and their results; only their number if `cautious`.
    pub fn describe_attempts(&self, cautious: bool) -> String {
        if cautious {
            return format!("{} routes tried", self.notes.len());
        }
        let tried: Vec<String> = self
            .notes
            .iter()
            .map(|(target, why)| format!("{target}: {why}"))
            .collect();
        match tried.len() {
            0 => "nothing could be tried".into(),
            _ => tried.join("; "),
        }
    }
}

impl Step {
    /// Name of the target in messages.
    pub(super) fn name(&self) -> String {
        match (&self.target, self.route) {
            (Target::Local(_), _) => "a socket of the host".into(),
            (Target::Address(address), Route::Punched) => format!("{address} by simultaneous open"),
            (Target::Address(address), _) => address.to_string(),
            (Target::Relay, _) => "the relay".into(),
            (Target::Store, _) => "the store".into(),
        }
    }
}
