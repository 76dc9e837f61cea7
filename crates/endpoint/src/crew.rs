//! A crew: the workers of one tenant and one runtime, and their tasks.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use dayfly_client::{Client, Error, LeaseOptions, Mode, Output, Sandbox};
use dayfly_protocol::api::{Placement, RendezvousAddress, Runtime};
use dayfly_protocol::dispatch::{Assigned, Attempt, Ended, FromDispatcher, Program};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{NodeId, TenantId};
use dayfly_scheduling::{Demand, Window};
use tokio::runtime::Handle;
use tokio::sync::mpsc::UnboundedSender;

use crate::contents::{Carrier, Fetched, is_apart, stopping};
use crate::crowd::{Crowd, Standing};
use crate::dispatcher::{Options, Places};
use crate::lane::Lane;
use crate::lane::gang::Gang;
use crate::lane::single::Single;

/// Workers to lease at once, even for fewer tasks: more tasks usually follow, and a lease of several costs no more.
const BLOCK: u16 = 4;
/// Pause between attempts to lease without room.
const RETRY: Duration = Duration::from_millis(250);
/// Tasks that are examined for one that fits.
const LOOKED_AT: usize = 64;
/// Relative change of the window that is reported to the manager.
const SAY_ROOM_AT: f64 = 0.2;

/// State that all crews of a dispatcher share.
pub struct Shared {
    pub options: Options,
    pub carrier: Carrier,
    crews: Mutex<Vec<Weak<Crew>>>,
    said: UnboundedSender<FromDispatcher>,
    window: Mutex<(Window, u32)>,
    workers: AtomicU32,
    crowd: Crowd<Key>,
}

impl Shared {
    pub fn new(options: Options, runtime: Handle, said: UnboundedSender<FromDispatcher>) -> Self {
        Self {
            carrier: Carrier::new(Arc::clone(&options.contents), runtime),
            options,
            crews: Mutex::default(),
            said,
            window: Mutex::default(),
            workers: AtomicU32::new(0),
            crowd: Crowd::default(),
        }
    }

    /// Includes a crew's demand from now on.
    pub fn count(&self, crew: &Arc<Crew>) {
        let mut crews = self.crews.lock().unwrap_or_else(PoisonError::into_inner);
        crews.push(Arc::downgrade(crew));
    }

    /// Work to do, of all crews.
    pub fn demand(&self) -> Demand {
        let crews = self.crews.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut demand = Demand::default();
        for crew in crews.iter().filter_map(Weak::upgrade) {
            crew.demand(&mut demand);
        }
        demand
    }

    /// Workers that are leased for tasks.
    pub fn workers(&self) -> u32 {
        self.workers.load(Ordering::Relaxed)
    }

    /// Sends a message to the manager, unless the connection has ended.
    pub fn say(&self, message: FromDispatcher) {
        let _ = self.said.send(message);
    }

    /// Records the durations of executions, and reports a changed window.
    fn learn<'a>(&self, ended: impl Iterator<Item = &'a Ended>) {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        for one in ended.filter(|one| one.begun) {
            window.0.took(one.took_us);
        }
        let workers = self
            .workers
            .load(Ordering::Relaxed)
            .max(self.options.most_workers.into());
        let tasks = window.0.tasks(workers);
        let told = f64::from(window.1);
        if (f64::from(tasks) - told).abs() > told * SAY_ROOM_AT {
            window.1 = tasks;
            self.say(FromDispatcher::Room { tasks });
        }
    }

    /// Cores that are available now for workers of all crews.
    fn there(&self) -> u32 {
        let most = u32::from(self.options.most_workers);
        let there = |places: &Arc<dyn Places>| places.there().min(most);
        self.options.places.as_ref().map_or(most, there)
    }

    fn workers_changed(&self, by: i64, trouble: Option<String>) {
        let change = |count: u32| u32::try_from(i64::from(count) + by).ok();
        let before = self.workers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
        let count = before.ok().and_then(change).unwrap_or_default();
        self.say(FromDispatcher::Workers { count, trouble });
    }
}

/// What workers must have in common to belong to one crew.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key {
    pub tenant: TenantId,
    /// Whether the endpoint belongs to another tenant. Then workers are isolated from its files, processes and network,
    /// even if the site runs its owner's functions without a sandbox.
    guest: bool,
    /// Owner of the functions. Another tenant's function could leave something in a worker that affects this owner's
    /// results.
    owner: TenantId,
    runtime: Runtime,
    image: Option<String>,
    cores: u16,
    memory_bytes: u64,
    gpus: u16,
    ranks: u16,
    placement: Placement,
}

impl Key {
    pub fn of(tenant: TenantId, guest: bool, program: &Program) -> Self {
        Self {
            tenant,
            guest,
            owner: program.owner.unwrap_or(tenant),
            runtime: program.runtime.clone(),
            image: program.image.clone(),
            cores: program.resources.cores,
            memory_bytes: program.resources.memory_bytes,
            gpus: program.resources.gpus,
            ranks: program.resources.ranks,
            placement: program.resources.placement,
        }
    }
}

/// A task and its program.
pub struct Task {
    pub program: Arc<Program>,
    pub assigned: Assigned,
    /// Its arguments, if they were read from a content store.
    pub fetched: Option<Fetched>,
}

impl Task {
    pub fn new(program: Arc<Program>, assigned: Assigned) -> Self {
        Self {
            program,
            assigned,
            fetched: None,
        }
    }

    /// Whether inputs have to be read before a worker can have it.
    fn is_apart(&self) -> bool {
        self.fetched.is_none() && is_apart(&self.assigned)
    }
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Task>,
    /// Tasks whose inputs are being read.
    fetching: HashMap<Attempt, Task>,
    lanes: Vec<Arc<dyn Lane>>,
    /// Whether a thread is leasing.
    leasing: bool,
    standing: Standing,
    closed: bool,
}

impl State {
    /// Removes those of these executions that no lane has, and returns them.
    fn withdraw(&mut self, wanted: &HashSet<Attempt>) -> Vec<Attempt> {
        let mut withdrawn = Vec::new();
        let mut keeps = |task: &Task| {
            let attempt = task.assigned.attempt;
            let is_wanted = wanted.contains(&attempt);
            if is_wanted {
                withdrawn.push(attempt);
            }
            !is_wanted
        };
        self.waiting.retain(&mut keeps);
        self.fetching.retain(|_, task| keeps(task));
        withdrawn
    }

    fn workers(&self) -> u32 {
        self.lanes.iter().map(|lane| u32::from(lane.workers())).sum()
    }
}

/// Why there are no workers.
struct Refusal {
    error: Error,
    /// Whether other crews hold the room.
    is_full: bool,
}

impl Refusal {
    /// A refusal that no crew could resolve by giving up room.
    fn of_none(text: &str) -> Self {
        Self {
            error: Error::new(Code::NoCapacity, text),
            is_full: false,
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self {
            is_full: error.code() == Code::NoCapacity,
            error,
        }
    }
}

/// The workers of one tenant and one runtime, and their waiting tasks.
pub struct Crew {
    key: Key,
    client: Client,
    pub shared: Arc<Shared>,
    state: Mutex<State>,
    closing: Condvar,
}

/// Takes the next task for a lane whose node remains for `left`: the first that fits, unless the lane does not take it.
fn next_for(waiting: &mut VecDeque<Task>, lane: &dyn Lane, left: Option<Duration>) -> Option<Task> {
    let fits = |task: &Assigned| left.is_none_or(|left| Duration::from_millis(task.walltime_ms.into()) < left);
    let at = waiting.iter().take(LOOKED_AT).position(|task| fits(&task.assigned))?;
    if !lane.takes(&waiting.get(at)?.program) {
        return None;
    }
    waiting.remove(at)
}

impl Crew {
    pub fn new(key: Key, client: Client, shared: Arc<Shared>) -> Arc<Self> {
        Arc::new(Self {
            key,
            client,
            shared,
            state: Mutex::default(),
            closing: Condvar::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds tasks.
    pub fn take(self: &Arc<Self>, tasks: Vec<Task>) {
        let mut state = self.state();
        for task in tasks {
            self.line_up(&mut state, task, VecDeque::push_back);
        }
        self.feed(&mut state);
    }

    /// Queues a task for a worker, after its inputs are read.
    fn line_up(self: &Arc<Self>, state: &mut State, task: Task, push: impl Fn(&mut VecDeque<Task>, Task)) {
        if !task.is_apart() {
            return push(&mut state.waiting, task);
        }
        let attempt = task.assigned.attempt;
        let crew = Arc::clone(self);
        let done = move |fetched| crew.fetched(attempt, fetched);
        self.shared.carrier.fetch(&task.assigned, done);
        state.fetching.insert(attempt, task);
    }

    fn fetched(self: &Arc<Self>, attempt: Attempt, fetched: Result<Fetched, Failure>) {
        let mut state = self.state();
        // Otherwise it was cancelled meanwhile.
        let Some(mut task) = state.fetching.remove(&attempt) else {
            return;
        };
        match fetched {
            Ok(fetched) => {
                task.fetched = Some(fetched);
                state.waiting.push_back(task);
                self.feed(&mut state);
            }
            Err(failure) => self
                .shared
                .say(FromDispatcher::Ended(vec![Ended::unexecuted(attempt, Some(failure))])),
        }
    }

    /// Gives tasks to lanes with room, and leases more workers if tasks remain.
    fn feed(self: &Arc<Self>, state: &mut State) {
        let (mut over, mut back) = (Vec::new(), Vec::new());
        for lane in &state.lanes {
            let left = self.left(lane.as_ref());
            while let Some(task) = next_for(&mut state.waiting, lane.as_ref(), left) {
                if let Some(task) = lane.begin(task) {
                    back.push(task);
                    over.push(Arc::clone(lane));
                    break;
                }
            }
        }
        for lane in over {
            self.remove(state, &lane);
        }
        for task in back {
            self.line_up(state, task, VecDeque::push_front);
        }
        self.make_room(state);
        self.count(state);
        // A crew without workers leases as soon as it may.
        let wants = state.lanes.is_empty() || self.wanted(state).is_some();
        if state.waiting.is_empty() || state.leasing || state.closed || !wants {
            return;
        }
        // Lease for the next task; others may need less.
        let needed_ms = state.waiting.front().map_or(0, |task| task.assigned.walltime_ms);
        state.leasing = true;
        let crew = Arc::clone(self);
        let leasing = move || crew.lease(Duration::from_millis(needed_ms.into()));
        if let Err(error) = std::thread::Builder::new().name("dayfly-lease".into()).spawn(leasing) {
            tracing::error!(%error, "no thread to lease with");
            state.leasing = false;
        }
    }

    /// Number of workers to lease, if the crew may have more.
    fn wanted(&self, state: &State) -> Option<u16> {
        let (workers, most) = (state.workers(), self.most());
        match self.key.ranks {
            0 => {
                let tasks = u32::try_from(state.waiting.len()).unwrap_or(u32::MAX);
                let wanted = tasks.max(BLOCK.into()).min(most.saturating_sub(workers));
                let wanted = u16::try_from(wanted).unwrap_or(u16::MAX);
                (wanted > 0).then_some(wanted)
            }
            // One gang is always allowed.
            ranks => (most > 0 && (workers == 0 || workers + u32::from(ranks) <= most)).then_some(ranks),
        }
    }

    /// Cores to count for a worker. A worker with GPUs counts all cores that other GPU workers cannot use.
    fn cores(&self) -> u16 {
        let own = self.key.cores.max(1);
        match &self.shared.options.places {
            Some(places) => places.most().cores_beside(self.key.gpus).max(own),
            None => own,
        }
    }

    /// Most workers of this crew.
    fn most(&self) -> u32 {
        let shared = &self.shared;
        let cores = match shared.crowd.is_crowded() {
            true => shared.crowd.share(&self.key, shared.there()),
            false => shared.options.most_workers.into(),
        };
        match cores {
            0 => 0,
            cores => (cores / u32::from(self.cores())).max(1),
        }
    }

    /// Retires lanes while other crews find no room and this one has more than its share.
    fn make_room(&self, state: &mut State) {
        if !self.shared.crowd.is_crowded() {
            return;
        }
        let most = self.most();
        while state.workers() > most
            // Empty one node before the next: a waiting crew may need much room at one place.
            && let Some(lane) = state.lanes.iter().min_by_key(|lane| (lane.nodes(), lane.workers())).cloned()
        {
            self.remove(state, &lane);
        }
    }

    /// Counts this crew as active if it has tasks or workers.
    fn count(&self, state: &mut State) {
        let has_any = !state.waiting.is_empty() || !state.lanes.is_empty();
        let active = has_any && !state.closed;
        self.shared.crowd.count(&mut state.standing, active);
    }

    /// Records since when the crew has found no room; `None` if it finds some.
    fn starve(&self, state: &mut State, since: Option<Instant>) {
        let has = state.workers().saturating_mul(self.cores().into());
        let shared = &self.shared;
        shared
            .crowd
            .starve(&self.key, &mut state.standing, since, has, shared.there());
    }

    /// Leases until there are workers, or no task waits any more.
    fn lease(self: Arc<Self>, needed: Duration) {
        let (mut told, mut part, mut starved) = (None, 1, None);
        loop {
            let wanted = self.wanted(&self.state()).map(|wanted| match self.key.ranks {
                0 => (wanted / part).max(1),
                ranks => ranks,
            });
            // Room that no crew holds cannot be given up.
            let is_held = self.shared.crowd.holds_any();
            let opened = match wanted {
                Some(wanted) => self.open(wanted, needed),
                None => Err(Refusal::of_none("others are to have workers first")),
            };
            match opened {
                Ok(lane) => {
                    let workers = lane.workers();
                    let mut state = self.state();
                    state.leasing = false;
                    self.starve(&mut state, None);
                    if state.closed {
                        return;
                    }
                    self.shared.workers_changed(workers.into(), None);
                    state.lanes.push(Arc::clone(&lane));
                    self.shared.crowd.takes();
                    self.feed(&mut state);
                    drop(state);
                    lane.run(&self);
                    self.shared.crowd.gives();
                    return;
                }
                Err(Refusal { error, is_full }) => {
                    let code = error.code();
                    let is_less_room = matches!(code, Code::NoCapacity | Code::QuotaExceeded | Code::TooLarge);
                    if is_less_room && self.key.ranks == 0 && wanted.is_some_and(|wanted| wanted > 1) {
                        part *= 2;
                        continue;
                    }
                    part = 1;
                    starved = (is_full && is_held).then(|| starved.unwrap_or_else(Instant::now));
                    self.starve(&mut self.state(), starved);
                    if code == Code::EnvironmentBuilding {
                        self.tell_building(&error.0.message);
                        if self.give_up(&error) {
                            return;
                        }
                        continue;
                    }
                    let words = error.to_string();
                    // Nodes on demand: their manager reports why there are none.
                    let comes = code == Code::NoCapacity && self.shared.options.places.is_some();
                    if !comes && told.as_ref() != Some(&words) {
                        tracing::warn!(tenant = %self.key.tenant, error = words, "no workers");
                        self.shared.workers_changed(0, Some(words.clone()));
                        told = Some(words);
                    }
                    if self.give_up(&error) {
                        return;
                    }
                }
            }
        }
    }

    /// Reports that waiting tasks wait for their environment.
    fn tell_building(&self, how: &str) {
        let state = self.state();
        let attempts: Vec<Attempt> = state.waiting.iter().map(|task| task.assigned.attempt).collect();
        drop(state);
        self.shared.say(FromDispatcher::Building {
            attempts,
            how: how.into(),
        });
        // The endpoint's administrators see it too, until there are workers.
        self.shared.workers_changed(0, Some(how.into()));
    }

    fn open(&self, workers: u16, needed: Duration) -> Result<Arc<dyn Lane>, Refusal> {
        let Some(places) = &self.shared.options.places else {
            let opened = match self.key.ranks {
                0 => self.open_at(workers, None),
                _ => self.open_gang(workers, Vec::new()),
            };
            return opened.map_err(Refusal::from);
        };
        let mut refusal = Refusal::of_none("no node is there for as long as the task may take; one is asked for");
        if self.key.ranks > 0 {
            let among = places.lasting(needed);
            return match among.is_empty() {
                true => Err(refusal),
                // The site as a whole has enough room; that was checked before.
                false => self.open_gang(workers, among).map_err(|error| match error.code() {
                    Code::TooLarge => {
                        Refusal::of_none("the nodes that are there have no room for all ranks; more are asked for")
                    }
                    _ => error.into(),
                }),
            };
        }
        for node in places.lasting(needed) {
            match self.open_at(workers, Some(node)) {
                Err(error) if error.code() == Code::NoCapacity => refusal = error.into(),
                // The node has just left. With an image, the missing thing may be the image.
                Err(error) if error.code() == Code::NotFound && self.key.image.is_none() => {}
                done => return done.map_err(Refusal::from),
            }
        }
        Err(refusal)
    }

    fn open_at(&self, workers: u16, node: Option<NodeId>) -> Result<Arc<dyn Lane>, Error> {
        let options = LeaseOptions {
            node,
            ..self.options(workers)
        };
        Ok(Arc::new(Single::open(self.client.lease(options)?)?))
    }

    fn open_gang(&self, ranks: u16, among: Vec<NodeId>) -> Result<Arc<dyn Lane>, Error> {
        let leases = self.client.gang_among(self.options(ranks), self.key.placement, among)?;
        let rendezvous: RendezvousAddress = self.client.get("/v1/rendezvous")?;
        Ok(Arc::new(Gang::open(leases, rendezvous)?))
    }

    fn options(&self, workers: u16) -> LeaseOptions {
        LeaseOptions {
            mode: Mode::Warm,
            runtime: self.key.runtime.clone(),
            image: self.key.image.clone(),
            // An image implies a container.
            sandbox: (self.key.guest && self.key.image.is_none()).then_some(Sandbox::Isolated),
            cores_per_worker: self.key.cores,
            memory_bytes: self.key.memory_bytes.saturating_mul(workers.into()),
            gpus_per_worker: self.key.gpus,
            output_by_call: true,
            ..LeaseOptions::native(workers)
        }
    }

    /// How long a lane's nodes remain; `None` without end.
    fn left(&self, lane: &dyn Lane) -> Option<Duration> {
        let places = self.shared.options.places.as_ref()?;
        lane.nodes().into_iter().filter_map(|node| places.left(node)).min()
    }

    /// Waits before the next attempt. Returns true if there should be none: no task waits, or waiting is useless.
    fn give_up(self: &Arc<Self>, error: &Error) -> bool {
        let mut state = self.state();
        if error.retry() == dayfly_client::Retry::Never {
            // These tasks can never get what they request.
            let never = |task: Task| Ended::unexecuted(task.assigned.attempt, Some(error.0.clone()));
            let ended = state.waiting.drain(..).map(never);
            let ended: Vec<_> = ended.collect();
            self.shared.say(FromDispatcher::Ended(ended));
        } else {
            let until = Instant::now() + RETRY;
            while !state.closed {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                state = match self.closing.wait_timeout(state, left) {
                    Ok((state, _)) => state,
                    Err(poisoned) => poisoned.into_inner().0,
                };
            }
        }
        let done = state.closed || state.waiting.is_empty();
        if done {
            state.leasing = false;
            self.starve(&mut state, None);
            self.count(&mut state);
        }
        done
    }

    /// Adds this crew's demand.
    fn demand(&self, demand: &mut Demand) {
        let state = self.state();
        let running: usize = state.lanes.iter().map(|lane| lane.running()).sum();
        let tasks = (state.waiting.len() + state.fetching.len() + running) as u64;
        let cores = u64::from(self.cores()) * u64::from(self.key.ranks.max(1));
        demand.workers += (tasks * cores).min(self.shared.options.most_workers.into());
        let longest = state.waiting.iter().map(|task| task.assigned.walltime_ms).max();
        demand.longest_ms = demand.longest_ms.max(longest.unwrap_or_default().into());
    }

    /// Handles ended executions of a lane. Those that never began are queued again.
    pub fn ended(
        self: &Arc<Self>,
        lane: &Arc<dyn Lane>,
        ended: Vec<Ended>,
        long: Vec<(Ended, Output)>,
        back: Vec<Task>,
    ) {
        self.shared.learn(ended.iter().chain(long.iter().map(|(one, _)| one)));
        if !ended.is_empty() {
            self.shared.say(FromDispatcher::Ended(ended));
        }
        if !long.is_empty() {
            // A task shows as running until its result is stored, even if it was too short to be reported before.
            let attempts = long.iter().map(|(one, _)| one.attempt).collect();
            self.shared.say(FromDispatcher::Running(attempts));
        }
        for (ended, output) in long {
            let shared = Arc::clone(&self.shared);
            let done = move |ended| shared.say(FromDispatcher::Ended(vec![ended]));
            self.shared.carrier.store(self.key.tenant, ended, output, done);
        }
        let mut state = self.state();
        if !back.is_empty() {
            lane.retire();
        }
        for task in back.into_iter().rev() {
            self.line_up(&mut state, task, VecDeque::push_front);
        }
        if lane.is_retired() {
            self.remove(&mut state, lane);
        }
        self.feed(&mut state);
    }

    /// Removes a lane: it gets no more tasks.
    fn remove(&self, state: &mut State, lane: &Arc<dyn Lane>) {
        let before = state.lanes.len();
        state.lanes.retain(|other| !Arc::ptr_eq(other, lane));
        if state.lanes.len() < before {
            lane.retire();
            self.shared.workers_changed(-i64::from(lane.workers()), None);
        }
    }

    /// Whether a lane should end, after this idle time or because its lease is over.
    pub fn lets_go(&self, lane: &Arc<dyn Lane>, idle: Duration) -> bool {
        let mut state = self.state();
        let is_awaited = self.shared.crowd.is_crowded() && state.waiting.is_empty();
        if (idle >= self.shared.options.idle || is_awaited) && lane.running() == 0 {
            self.remove(&mut state, lane);
            self.count(&mut state);
        }
        lane.is_retired() && lane.running() == 0
    }

    /// Ends those of these executions that this crew has.
    pub fn cancel(&self, attempts: &[Attempt]) {
        let wanted: HashSet<Attempt> = attempts.iter().copied().collect();
        let mut state = self.state();
        let withdrawn = state.withdraw(&wanted);
        for lane in &state.lanes {
            lane.cancel(&wanted);
        }
        drop(state);
        self.tell_cancelled(&withdrawn);
    }

    /// Ends those of these executions that no worker has, and returns them.
    pub fn withdraw(&self, attempts: &[Attempt]) -> Vec<Attempt> {
        let wanted: HashSet<Attempt> = attempts.iter().copied().collect();
        let mut state = self.state();
        let mut withdrawn = state.withdraw(&wanted);
        // Lanes report the end of their executions themselves.
        let from_lanes: Vec<Attempt> = state.lanes.iter().flat_map(|lane| lane.withdraw(&wanted)).collect();
        drop(state);
        self.tell_cancelled(&withdrawn);
        withdrawn.extend(from_lanes);
        withdrawn
    }

    fn tell_cancelled(&self, attempts: &[Attempt]) {
        if attempts.is_empty() {
            return;
        }
        let failure = Failure::new(Code::Cancelled, "the task was cancelled before it began");
        let ended = |attempt: &Attempt| Ended::unexecuted(*attempt, Some(failure.clone()));
        self.shared
            .say(FromDispatcher::Ended(attempts.iter().map(ended).collect()));
    }

    /// Ends the crew, its tasks and its lanes.
    pub fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        let unexecuted = |task: Task| Ended::unexecuted(task.assigned.attempt, Some(stopping()));
        let fetching = std::mem::take(&mut state.fetching).into_values();
        let back: Vec<Ended> = state.waiting.drain(..).chain(fetching).map(unexecuted).collect();
        if !back.is_empty() {
            self.shared.say(FromDispatcher::Ended(back));
        }
        for lane in state.lanes.drain(..) {
            lane.close();
        }
        self.starve(&mut state, None);
        self.count(&mut state);
        self.closing.notify_all();
    }
}
