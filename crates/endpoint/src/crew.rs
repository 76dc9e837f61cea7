//! The workers of one tenant and one runtime.

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

/// Workers that are leased at once, however few tasks there are: more follow at once mostly, and a lease of several costs no more.
const BLOCK: u16 = 4;
/// Between two attempts to lease where there is no room.
const RETRY: Duration = Duration::from_millis(250);
/// Tasks that are looked at for one that fits.
const LOOKED_AT: usize = 64;
/// By what part the room must have changed to be told anew.
const SAY_ROOM_AT: f64 = 0.2;

/// What all crews of a dispatcher share.
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

    /// A crew's demand counts from now on.
    pub fn count(&self, crew: &Arc<Crew>) {
        let mut crews = self.crews.lock().unwrap_or_else(PoisonError::into_inner);
        crews.push(Arc::downgrade(crew));
    }

    /// What workers would do all that there is to do at once.
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

    /// Tells the manager. One that is gone hears nothing, and needs not.
    pub fn say(&self, message: FromDispatcher) {
        let _ = self.said.send(message);
    }

    /// Executions took so long: there may be room for more, or should be for fewer.
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

    /// Cores that there are now for workers of all crews.
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

/// What workers must have in common to be of one crew.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key {
    pub tenant: TenantId,
    /// Whether the endpoint is another's, whose files, processes and network its workers have nothing to do with: also where the
    /// site runs its owner's functions without a sandbox.
    guest: bool,
    /// Whose functions they call: what another tenant's leave behind in a worker would have a hand in the results of one's own.
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

/// A task, and what it runs.
pub struct Task {
    pub program: Arc<Program>,
    pub assigned: Assigned,
    /// Its arguments, where they are stored apart and were read.
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

    /// Whether something is to be read before a worker can have it.
    fn is_apart(&self) -> bool {
        self.fetched.is_none() && is_apart(&self.assigned)
    }
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Task>,
    /// Those whose arguments are being read.
    fetching: HashMap<Attempt, Task>,
    lanes: Vec<Arc<dyn Lane>>,
    /// Whether a thread is leasing.
    leasing: bool,
    standing: Standing,
    closed: bool,
}

impl State {
    /// Takes those of these executions out that no lane has.
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
    /// Whether there would be, were it not for others.
    is_full: bool,
}

impl Refusal {
    /// There is nothing that anybody could give up.
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

/// The workers of one tenant and one runtime, and the tasks that wait for them.
pub struct Crew {
    key: Key,
    client: Client,
    pub shared: Arc<Shared>,
    state: Mutex<State>,
    closing: Condvar,
}

/// Takes the next task that a lane is to be given, whose node will be there for so long: the first, or, where that takes too long
/// for it, one that does not.
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

    /// More tasks.
    pub fn take(self: &Arc<Self>, tasks: Vec<Task>) {
        let mut state = self.state();
        for task in tasks {
            self.line_up(&mut state, task, VecDeque::push_back);
        }
        self.feed(&mut state);
    }

    /// A task waits for a worker, once its arguments are here.
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
        // Else it was cancelled meanwhile.
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

    /// Gives the lanes what they have room for, and leases more where that is not all.
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
        // One without workers is to have some as soon as it may.
        let wants = state.lanes.is_empty() || self.wanted(state).is_some();
        if state.waiting.is_empty() || state.leasing || state.closed || !wants {
            return;
        }
        // What the next one needs; others may do with less.
        let needed_ms = state.waiting.front().map_or(0, |task| task.assigned.walltime_ms);
        state.leasing = true;
        let crew = Arc::clone(self);
        let leasing = move || crew.lease(Duration::from_millis(needed_ms.into()));
        if let Err(error) = std::thread::Builder::new().name("dayfly-lease".into()).spawn(leasing) {
            tracing::error!(%error, "no thread to lease with");
            state.leasing = false;
        }
    }

    /// How many workers to lease, if it is to have more than it has.
    fn wanted(&self, state: &State) -> Option<u16> {
        let (workers, most) = (state.workers(), self.most());
        match self.key.ranks {
            0 => {
                let tasks = u32::try_from(state.waiting.len()).unwrap_or(u32::MAX);
                let wanted = tasks.max(BLOCK.into()).min(most.saturating_sub(workers));
                let wanted = u16::try_from(wanted).unwrap_or(u16::MAX);
                (wanted > 0).then_some(wanted)
            }
            // One gang may always be.
            ranks => (most > 0 && (workers == 0 || workers + u32::from(ranks) <= most)).then_some(ranks),
        }
    }

    /// Cores that a worker is counted for: where it has GPUs, as many as no other can have who wants GPUs, too.
    fn cores(&self) -> u16 {
        let own = self.key.cores.max(1);
        match &self.shared.options.places {
            Some(places) => places.most().cores_beside(self.key.gpus).max(own),
            None => own,
        }
    }

    /// Workers that it may have.
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

    /// Has lanes end where others find no room and this crew has more than its share.
    fn make_room(&self, state: &mut State) {
        if !self.shared.crowd.is_crowded() {
            return;
        }
        let most = self.most();
        while state.workers() > most
            // Of one node before those of the next: whoever waits may need much at one place.
            && let Some(lane) = state.lanes.iter().min_by_key(|lane| (lane.nodes(), lane.workers())).cloned()
        {
            self.remove(state, &lane);
        }
    }

    /// Counts this crew among those that have tasks or workers, if it does.
    fn count(&self, state: &mut State) {
        let has_any = !state.waiting.is_empty() || !state.lanes.is_empty();
        let active = has_any && !state.closed;
        self.shared.crowd.count(&mut state.standing, active);
    }

    /// Since when it has found no room, if it does not.
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
            // What nobody has nobody can give up.
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
                    // Where nodes come when they are needed, whoever gets them says why there are none.
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

    /// What waits for a worker waits for its environment.
    fn tell_building(&self, how: &str) {
        let state = self.state();
        let attempts: Vec<Attempt> = state.waiting.iter().map(|task| task.assigned.attempt).collect();
        drop(state);
        self.shared.say(FromDispatcher::Building {
            attempts,
            how: how.into(),
        });
        // Those who look after the endpoint see it, too, until there are workers.
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
                // It was looked at whether the site can have room at all.
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
                // The node has gone just now; with an image it may be that which is not there.
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
            // In an image they are in a container anyway.
            sandbox: (self.key.guest && self.key.image.is_none()).then_some(Sandbox::Isolated),
            cores_per_worker: self.key.cores,
            memory_bytes: self.key.memory_bytes.saturating_mul(workers.into()),
            gpus_per_worker: self.key.gpus,
            output_by_call: true,
            ..LeaseOptions::native(workers)
        }
    }

    /// For how long what a lane leads to will be there; none for ever.
    fn left(&self, lane: &dyn Lane) -> Option<Duration> {
        let places = self.shared.options.places.as_ref()?;
        lane.nodes().into_iter().filter_map(|node| places.left(node)).min()
    }

    /// Waits before the next attempt. True if there is to be none: nobody waits, or waiting is in vain.
    fn give_up(self: &Arc<Self>, error: &Error) -> bool {
        let mut state = self.state();
        if error.retry() == dayfly_client::Retry::Never {
            // What these tasks ask for they will never get.
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

    /// Adds what this crew could use.
    fn demand(&self, demand: &mut Demand) {
        let state = self.state();
        let running: usize = state.lanes.iter().map(|lane| lane.running()).sum();
        let tasks = (state.waiting.len() + state.fetching.len() + running) as u64;
        let cores = u64::from(self.cores()) * u64::from(self.key.ranks.max(1));
        demand.workers += (tasks * cores).min(self.shared.options.most_workers.into());
        let longest = state.waiting.iter().map(|task| task.assigned.walltime_ms).max();
        demand.longest_ms = demand.longest_ms.max(longest.unwrap_or_default().into());
    }

    /// Executions ended on a lane. Those that never began there go elsewhere.
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
            // Until its answer is stored, a task shows as running, also one that took too little time to be told before.
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

    /// A lane gets no more tasks.
    fn remove(&self, state: &mut State, lane: &Arc<dyn Lane>) {
        let before = state.lanes.len();
        state.lanes.retain(|other| !Arc::ptr_eq(other, lane));
        if state.lanes.len() < before {
            lane.retire();
            self.shared.workers_changed(-i64::from(lane.workers()), None);
        }
    }

    /// Whether a lane that has been idle for so long, or whose lease is over, should end.
    pub fn lets_go(&self, lane: &Arc<dyn Lane>, idle: Duration) -> bool {
        let mut state = self.state();
        let is_awaited = self.shared.crowd.is_crowded() && state.waiting.is_empty();
        if (idle >= self.shared.options.idle || is_awaited) && lane.running() == 0 {
            self.remove(&mut state, lane);
            self.count(&mut state);
        }
        lane.is_retired() && lane.running() == 0
    }

    /// Ends these executions, if they are here.
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

    /// Ends those of these executions that no worker has been given, and returns them.
    pub fn withdraw(&self, attempts: &[Attempt]) -> Vec<Attempt> {
        let wanted: HashSet<Attempt> = attempts.iter().copied().collect();
        let mut state = self.state();
        let mut withdrawn = state.withdraw(&wanted);
        // Lanes tell of the end of theirs themselves.
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

    /// Ends all of it.
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
