//! The part of [`Dispatch`] for a fleet: workers of many leases, which come and go.

use super::super::members::Backlog;
use super::*;

/// The leases of a fleet.
pub struct Members {
    backlog: Arc<Backlog>,
    /// Whether workers may still come, so that calls wait for them.
    is_open: bool,
    /// Whether workers are being opened.
    is_growing: bool,
}

impl Members {
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    pub fn close(&mut self) {
        self.is_open = false;
    }

    pub fn report_backlog(&self) {
        self.backlog.report();
    }
}

/// The workers of one lease of a fleet.
#[derive(Debug, Clone, Copy)]
pub struct Member {
    pub key: u64,
    /// Workers that are not lost.
    pub workers: u16,
    /// How long all of them have been idle; `None` if one of them has a call.
    pub idle: Option<Duration>,
}

impl Dispatch {
    /// A dispatch without workers. Calls wait until [`Dispatch::add_worker`].
    pub fn without_lease(options: PoolOptions, backlog: Arc<Backlog>) -> Self {
        Self {
            lease: None,
            members: Some(Members {
                backlog,
                is_open: true,
                is_growing: false,
            }),
            options,
            workers: Vec::new(),
            functions: Vec::new(),
            calls: CallTable::default(),
            repairs: Vec::new(),
            delegations: Vec::new(),
            is_rejectable: false,
            first_rest_end: None,
            copied: CopiedBytes::default(),
            is_disconnected: false,
        }
    }

    /// Adds a worker, which takes queued calls at once. Returns the channel if the pool is closed.
    pub fn add_worker(&mut self, place: Place, channel: Channel) -> Option<Channel> {
        if !self.members.as_ref().is_some_and(Members::is_open) {
            return Some(channel);
        }
        let mut worker = Worker::new(place, channel);
        worker.last_completion = Some(Instant::now());
        match self.workers.iter_mut().find(|other| other.place.is_none()) {
            Some(vacant) => *vacant = worker,
            None => self.workers.push(worker),
        }
        self.on_members_changed();
        self.assign_queued();
        None
    }

    /// Sends the workers of a lease no more calls.
    pub fn retire(&mut self, key: u64) {
        for worker in self.workers.iter_mut().filter(|worker| worker.is_of(key)) {
            worker.is_retiring = true;
        }
        self.on_members_changed();
    }

    /// Removes the workers of a lease if they have no calls. Returns their channels, to be closed, or `None` if some
    /// have calls.
    pub fn remove(&mut self, key: u64) -> Option<Vec<Channel>> {
        let mut workers = self.workers.iter().filter(|worker| worker.is_of(key));
        if !workers.all(Worker::is_idle) {
            return None;
        }
        let mut channels = Vec::new();
        for worker in self.workers.iter_mut().filter(|worker| worker.is_of(key)) {
            worker.place = None;
            worker.is_retiring = true;
            worker.loaded.clear();
            worker.rooms.clear();
            channels.extend(worker.channel.take());
        }
        Some(channels)
    }

    /// The workers of each lease.
    pub fn members(&self) -> Vec<Member> {
        let mut members: Vec<Member> = Vec::new();
        for worker in &self.workers {
            let Some(place) = &worker.place else { continue };
            let found = members.iter().position(|member| member.key == place.key);
            let at = found.unwrap_or_else(|| {
                members.push(Member {
                    key: place.key,
                    workers: 0,
                    idle: Some(Duration::MAX),
                });
                members.len() - 1
            });
            let member = &mut members[at];
            member.workers += u16::from(worker.final_error.is_none());
            let since = worker.last_completion.filter(|_| worker.is_idle());
            member.idle = member.idle.zip(since).map(|(idle, since)| idle.min(since.elapsed()));
        }
        members
    }

    /// Sets whether workers are being opened, so that sleeping drivers look for them often.
    pub fn set_growing(&mut self, is_growing: bool) {
        if let Some(members) = &mut self.members {
            members.is_growing = is_growing;
        }
    }

    /// Whether channels are being opened or repaired.
    pub fn is_changing(&self) -> bool {
        self.is_repairing() || self.members.as_ref().is_some_and(|members| members.is_growing)
    }

    /// Ends all queued calls with an error, because no worker can be leased.
    pub fn fail_queued(&mut self, error: &CallError) {
        while let Some(id) = self.calls.pop_front() {
            if self.calls.waiting(id).is_some() {
                self.calls.end(id, Err(error.clone()));
            }
        }
    }

    fn on_members_changed(&mut self) {
        let mut available = self.workers.iter().filter(|worker| worker.is_available());
        self.is_rejectable = self.remaining_workers() > 1 && available.any(|worker| worker.is_warm);
    }
}
