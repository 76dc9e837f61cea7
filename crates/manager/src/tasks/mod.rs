//! Durable tasks: accepted on behalf of clients that may go away, sent to endpoints, and kept until their outcomes are fetched.
//!
//! Everything is in memory but arguments and outcomes, which are in the store; the store has all of it at any time, so that a
//! manager that is started again goes on where it was. A task is written down before its submission is answered, and before it
//! is sent to be executed it is written down that it is, unless it may be executed twice. Its outcome is written down before
//! anybody hears of it.
//!
//! - [`endpoints`]: where they can run, and [`accounts`]: as whom;
//! - [`submit`]: functions and tasks come in, and [`functions`] go;
//! - [`contents`]: arguments and answers that are long;
//! - [`after`]: tasks that come after others;
//! - [`send`]: tasks go to a dispatcher, as many as it has room for;
//! - [`link`]: what a dispatcher says, and [`socket`]: how, if it is at another host;
//! - [`looking`]: what tasks there are, and how many;
//! - [`memo`]: tasks whose answer is known already;
//! - [`cancel`]: tasks end before their time;
//! - [`direct`]: who leases from an endpoint's nodes without tasks;
//! - [`finish`]: outcomes are written down, and told;
//! - [`tag`]: who waits for outcomes;
//! - [`forgetting`]: what their owner does not need goes;
//! - [`sharing`]: who shares with whom, and what it cost;
//! - [`triggers`]: what happens becomes tasks;
//! - [`flows`]: tasks come of other tasks' results.

mod accounts;
mod after;
mod cancel;
mod codes;
mod contents;
mod direct;
mod endpoints;
mod finish;
mod flows;
mod forgetting;
mod functions;
mod link;
mod looking;
mod makers;
mod memo;
mod names;
mod output;
mod questions;
mod send;
mod sharing;
pub mod socket;
mod submit;
mod suits;
mod tag;
#[cfg(test)]
mod tests;
mod triggers;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dayfly_protocol::accounts::Prices;
use dayfly_protocol::blob::Blob;
use dayfly_protocol::contents::Payload;
use dayfly_protocol::dispatch::{Attempt, Ended, ToDispatcher};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{EndpointId, FunctionId, TaskId, TenantId};
use dayfly_protocol::tasks::{BlockStatus, TaskCounts, TaskState, TaskStatus, TaskTimes};
use dayfly_scheduling::Queue;
use tokio::sync::{Notify, RwLock, mpsc, watch};

use crate::control::{booted_at_ms, cautious_ms, since_boot_ms};
use crate::options::ContentOptions;
pub use contents::Contents;
use dayfly_store::accounts::{Usage, UsageKey};
use dayfly_store::system::now_ms;
use dayfly_store::tasks::{EndpointRecord, FunctionRecord, TaskRecord, TaskSnapshot, TaskSpec, TaskStore, Tries};
use dayfly_store::{LOAD_DEADLINE, StoreError};
pub use endpoints::LOCAL;
pub use link::Conversation;
pub use sharing::check_team;
pub use submit::{Submitter, may_run};
use tag::Tag;
pub use triggers::{Heard, Maker, check_trigger_lengths};

/// Arguments of waiting tasks that are kept in memory; those of others are read again when it is their turn.
const CACHED_BYTES: usize = 64 << 20;
/// How often deadlines are looked at.
const DEADLINES: Duration = Duration::from_millis(20);
/// Between two looks for what is not needed any more.
const TIDY: Duration = Duration::from_secs(5);

/// What is known of tenants where the accounts are.
pub trait Tenants: Send + Sync {
    /// Its name, for people.
    fn name(&self, tenant: TenantId) -> String;

    /// Refuses a tenant that is suspended, or has spent its budget.
    fn may_spend(&self, tenant: TenantId) -> Result<(), Failure>;

    /// What a tenant pays.
    fn prices(&self, tenant: TenantId) -> Prices;

    /// What the tasks of tenants cost in all, in billionths: written down, and charged from here on. A total may be said again.
    fn charge(&self, totals: Vec<(TenantId, u64)>);
}

/// The tasks of one manager.
pub struct Tasks {
    state: Mutex<State>,
    store: Arc<dyn TaskStore>,
    /// Long arguments and answers.
    pub contents: Arc<Contents>,
    finishing: mpsc::UnboundedSender<finish::Finishing>,
    trouble: Mutex<Option<StoreError>>,
    /// How many bytes each tenant's flows have in memory.
    flow_bytes: Mutex<HashMap<TenantId, usize>>,
    /// Held by whoever makes functions known, and, alone, by whoever changes or removes some, in the books and here.
    changing_functions: RwLock<()>,
    /// Held by whoever writes what tasks printed: one at a time.
    keeping_printed: tokio::sync::Mutex<()>,
    tenants: Box<dyn Tenants>,
    /// A task and its outcome are forgotten so long after its end.
    kept: Duration,
}

#[derive(Default)]
struct State {
    functions: HashMap<FunctionId, Arc<FunctionRecord>>,
    /// Functions' code, as far as it was used lately.
    codes: codes::Codes,
    uses: functions::Uses,
    live: HashMap<TaskId, Live>,
    /// The same ones by the ends of their ids.
    live_ends: BTreeSet<([u8; 3], TaskId)>,
    /// Who waits for the end of a task.
    later: HashMap<TaskId, Vec<TaskId>>,
    endpoints: HashMap<EndpointId, Endpoint>,
    tags: HashMap<TenantId, HashMap<Arc<str>, Arc<Tag>>>,
    /// When they are, in milliseconds since the machine was booted.
    deadlines: BinaryHeap<Reverse<(u64, TaskId)>>,
    /// When tasks that wait for their next execution line up again, likewise.
    rests: BinaryHeap<Reverse<(u64, TaskId)>>,
    memo: memo::Memo,
    /// How many tasks of each tenant ended since the manager started.
    ended: HashMap<TenantId, TaskCounts>,
    cached_bytes: usize,
    triggers: triggers::Triggers,
    flows: flows::Flows,
    teams: sharing::Teams,
    /// What tasks cost since that was written down last.
    usage: HashMap<UsageKey, Usage>,
    /// What tasks of each tenant cost in all, as far as it is written down, in billionths.
    costs: HashMap<TenantId, u64>,
    /// When the manager started. Wall clock.
    started_at_ms: u64,
    /// Tasks that have ended, and whose output is not in the store as it is in memory.
    unkept: HashSet<(EndpointId, TaskId)>,
    /// Those that are being written there now.
    keeping: HashSet<(EndpointId, TaskId)>,
    /// Bumped whenever tasks have printed.
    printed: watch::Sender<u64>,
    /// The greatest number that was given to an outcome.
    last_number: u64,
    /// The greatest one that is told.
    published: u64,
}

/// Where a task is that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Being written down for the first time.
    Accepting,
    Queued,
    /// Waits for the end of tasks that come before.
    Depending,
    /// Waits for the answer of a task that is the same.
    Following,
    /// Waits for a while, since its function failed.
    Resting,
    /// Being written down as sent.
    Beginning,
    /// At its dispatcher.
    Sent,
    /// At its dispatcher, which said that its environment is being built.
    Building,
    /// At its dispatcher, which said that it has been running for a while.
    Running,
    /// Its outcome is being written down.
    Ending,
}

impl Place {
    /// Whether no dispatcher has it, nor is about to.
    fn is_unsent(self) -> bool {
        matches!(self, Self::Queued | Self::Depending | Self::Following | Self::Resting)
    }
}

/// A task that has not ended.
struct Live {
    tenant: TenantId,
    function: Arc<FunctionRecord>,
    endpoint: EndpointId,
    tag: Arc<Tag>,
    priority: i8,
    repeatable: bool,
    cancelled: bool,
    late: bool,
    /// What it may be answered by, if its owner wants that, and whether others may follow it.
    memo: Option<memo::Key>,
    leads: bool,
    place: Place,
    tries: Tries,
    walltime_ms: u32,
    /// How long it rests when its function fails next.
    retry_wait_ms: u32,
    /// When the machine was booted, by the wall clock as it was when the task came: see [`Live::time_ms`].
    booted_at_ms: u64,
    deadline_at_ms: u64,
    submitted_at_ms: u64,
    waiting_at_ms: u64,
    environment_at_ms: u64,
    /// How the build of its environment went, as last heard.
    building: Option<Arc<str>>,
    started_at_ms: u64,
    arguments: Option<Payload>,
    /// What of them is in the store of tasks, and counts as its tenant's until it has ended.
    inline: Option<contents::Inline>,
    /// What goes along with them.
    answers: Vec<Payload>,
    /// Tasks before it that have not ended, and why it is not to be executed when one of them ended.
    before: after::Before,
}

/// Whose tasks are meant.
#[derive(Debug, Clone)]
pub struct Whose {
    /// One tenant's; none for everybody's.
    tenant: Option<TenantId>,
    /// Those at these endpoints; none for all.
    at: Option<HashSet<EndpointId>>,
}

impl Whose {
    /// A tenant's own.
    pub fn of(tenant: TenantId) -> Self {
        let tenant = Some(tenant);
        Self { tenant, at: None }
    }

    fn has(&self, live: &Live) -> bool {
        self.tenant.is_none_or(|tenant| tenant == live.tenant)
            && self.at.as_ref().is_none_or(|at| at.contains(&live.endpoint))
    }
}

/// An endpoint and its dispatcher.
struct Endpoint {
    record: EndpointRecord,
    link: Option<Link>,
    /// Connections that its dispatcher has made.
    links: u64,
    /// The process that said last what it has.
    instance: Option<u64>,
    queue: Queue<TaskId>,
    /// How many tasks the dispatcher wants at a time, and how many it has.
    room: u32,
    held: u32,
    workers: u32,
    blocks: Vec<BlockStatus>,
    /// Why it has not got more nodes, and why not more workers.
    block_trouble: Option<String>,
    trouble: Option<String>,
    done: u64,
    failed: u64,
    times: TaskTimes,
    outputs: output::Outputs,
    /// Wakes whoever sends.
    wake: Arc<Notify>,
}

/// The connection of a dispatcher.
struct Link {
    number: u64,
    /// Of which process.
    instance: u64,
    /// Whether it keeps outcomes until it is told that they are written down, as one does that may connect again.
    keeps: bool,
    outgoing: mpsc::UnboundedSender<ToDispatcher>,
    tenants: HashSet<TenantId>,
    programs: HashSet<FunctionId>,
    /// What it was asked, or has said, that it can run.
    suits: HashMap<FunctionId, suits::Suit>,
    /// Who waits for what to lease with from its site itself.
    invites: direct::Invites,
    /// Who waits to know which tasks it had not begun.
    withdrawals: cancel::Withdrawals,
}

impl Endpoint {
    fn new(record: EndpointRecord) -> Self {
        Self {
            record,
            link: None,
            links: 0,
            instance: None,
            queue: Queue::default(),
            room: 0,
            held: 0,
            workers: 0,
            blocks: Vec::new(),
            block_trouble: None,
            trouble: None,
            done: 0,
            failed: 0,
            times: TaskTimes::default(),
            outputs: output::Outputs::default(),
            wake: Arc::default(),
        }
    }

    fn state(&self) -> &'static str {
        if self.link.is_some() { "up" } else { "down" }
    }
}

impl Live {
    fn state(&self) -> TaskState {
        match self.place {
            Place::Accepting | Place::Beginning => TaskState::Queued,
            place if place.is_unsent() => TaskState::Queued,
            Place::Sent => TaskState::Waiting,
            Place::Building => TaskState::Environment,
            _ => TaskState::Running,
        }
    }

    /// Whether a dispatcher has it.
    fn is_out(&self) -> bool {
        matches!(self.place, Place::Sent | Place::Building | Place::Running)
    }

    fn attempt(&self, id: TaskId) -> Attempt {
        self.tries.attempt(id)
    }

    /// What time it is by the clock that it was submitted by, however that was set since: a task takes as long as it takes, and has as
    /// long as it was given.
    fn time_ms(&self, since_boot_ms: u64) -> u64 {
        self.booted_at_ms + since_boot_ms
    }

    /// When its deadline is, since the machine was booted; none if it has none.
    fn deadline_since_boot_ms(&self) -> Option<u64> {
        (self.deadline_at_ms > 0).then(|| self.deadline_at_ms.saturating_sub(self.booted_at_ms))
    }

    /// What it is counted with.
    fn usage_key(&self, now_ms: u64) -> UsageKey {
        UsageKey {
            day: sharing::day_of(now_ms),
            tenant: self.tenant,
            function: self.function.id,
            endpoint: self.endpoint,
        }
    }
}

impl Tasks {
    /// All of it, over what the store remembers.
    pub async fn start(
        store: Arc<dyn TaskStore>,
        contents: &ContentOptions,
        tenants: Box<dyn Tenants>,
    ) -> Result<Arc<Self>, Failure> {
        let mut snapshot = store.load().within(LOAD_DEADLINE).await?;
        let mut used: HashMap<TenantId, u64> = std::mem::take(&mut snapshot.contents).into_iter().collect();
        let inline = snapshot.tasks.iter().map(|task| (task.spec.tenant, task.inline_bytes));
        for (tenant, bytes) in inline.chain(snapshot.printed.iter().copied()) {
            let used = used.entry(tenant).or_default();
            *used = used.saturating_add(bytes);
        }
        tenants.charge(snapshot.costs.clone());
        let kept = contents.kept;
        let contents = Arc::new(Contents::open(contents, Arc::clone(&store), used)?);
        let (finishing, finished) = mpsc::unbounded_channel();
        let mut state = State::remembered(snapshot, &contents);
        state.triggers = triggers::Triggers::remembered(store.triggers().within(LOAD_DEADLINE).await?);
        let flows = store.live_flows().within(LOAD_DEADLINE).await?;
        state.teams = sharing::Teams::remembered(store.teams().within(LOAD_DEADLINE).await?);
        let tasks = Arc::new(Self {
            state: Mutex::new(state),
            store,
            contents,
            finishing,
            trouble: Mutex::default(),
            flow_bytes: Mutex::default(),
            changing_functions: RwLock::default(),
            keeping_printed: tokio::sync::Mutex::default(),
            tenants,
            kept,
        });
        tasks.recall().await?;
        tasks.end_those_that_cannot_be();
        tasks.line_up_those_that_may_follow();
        tokio::spawn(finish::run(Arc::downgrade(&tasks), finished));
        tokio::spawn(keep_time(Arc::downgrade(&tasks)));
        tokio::spawn(output::keep(Arc::downgrade(&tasks)));
        tokio::spawn(contents::keep_swept(Arc::downgrade(&tasks)));
        tokio::spawn(triggers::run(Arc::downgrade(&tasks)));
        tasks.go_on_with_flows(flows);
        Ok(tasks)
    }

    /// Another manager has them from now on: dispatchers are cut off, and go there.
    pub fn close(&self) {
        for endpoint in self.state().endpoints.values_mut() {
            endpoint.link = None;
            endpoint.wake.notify_one();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long outcomes are kept.
    fn kept_ms(&self) -> u64 {
        u64::try_from(self.kept.as_millis()).unwrap_or(u64::MAX)
    }

    /// A tenant may have got what it needs to go on.
    pub fn go_on_for(&self, tenant: TenantId) {
        if self.tenants.may_spend(tenant).is_ok() {
            for endpoint in self.state().endpoints.values() {
                endpoint.wake.notify_one();
            }
        }
    }

    /// What the store said, while it cannot write.
    pub fn trouble(&self) -> Option<StoreError> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A function that was registered.
    pub fn function(&self, id: FunctionId) -> Option<Arc<FunctionRecord>> {
        self.state().functions.get(&id).cloned()
    }

    /// Every function.
    pub fn functions(&self) -> Vec<Arc<FunctionRecord>> {
        self.state().functions.values().cloned().collect()
    }

    /// A function's code.
    pub async fn code(&self, id: FunctionId) -> Result<Blob, Failure> {
        if let Some(code) = self.state().codes.get(id) {
            return Ok(code);
        }
        let code = self.store.code(id).wait().await?;
        let code = code.ok_or_else(|| Failure::new(Code::NotFound, format!("there is no function {id}")))?;
        self.state().codes.insert(id, code.clone());
        Ok(code)
    }

    /// Whose task it is, wherever it is in its life.
    pub async fn status(&self, id: TaskId) -> Result<Option<(TenantId, TaskStatus)>, Failure> {
        if let Some(found) = self.state().shown_live(id, &*self.tenants) {
            return Ok(Some(found));
        }
        let record = self.store.task(id).wait().await?;
        Ok(record.map(|record| (record.spec.tenant, self.state().shown(&record, &*self.tenants))))
    }

    /// Whose task it is that an endpoint has: it may read what is long of it, and keep the answer. It knows no hashes but those
    /// that it was sent, and of what it has itself.
    pub fn held(&self, endpoint: EndpointId, id: TaskId) -> Result<TenantId, Failure> {
        let state = self.state();
        let held = state
            .live
            .get(&id)
            .filter(|live| live.endpoint == endpoint && live.is_out());
        held.map(|live| live.tenant).ok_or_else(|| {
            let text = format!("this endpoint does not have the task {id}, or not any more");
            Failure::new(Code::NotFound, text)
        })
    }

    /// Tasks that have rested line up again.
    fn look_at_rests(&self, since_boot_ms: u64) {
        let mut state = self.state();
        while let Some(Reverse((at_ms, id))) = state.rests.peek().copied()
            && at_ms <= since_boot_ms
        {
            state.rests.pop();
            let live = state.live.get_mut(&id);
            let Some(live) = live.filter(|live| live.place == Place::Resting) else {
                continue;
            };
            live.place = Place::Queued;
            let (endpoint, tenant, priority) = (live.endpoint, live.tenant, live.priority);
            if let Some(endpoint) = state.endpoints.get_mut(&endpoint) {
                endpoint.queue.put_back(tenant, priority, id);
                endpoint.wake.notify_one();
            }
        }
    }

    /// Tasks that reached their deadline end.
    fn look_at_deadlines(&self, since_boot_ms: u64) {
        let mut state = self.state();
        let (mut ended, mut unheard) = (Vec::new(), Vec::new());
        while let Some(Reverse((at_ms, id))) = state.deadlines.peek().copied()
            && at_ms <= since_boot_ms
        {
            state.deadlines.pop();
            let Some(live) = state.live.get_mut(&id) else { continue };
            live.late = true;
            let (endpoint, attempt, place) = (live.endpoint, live.attempt(id), live.place);
            match place {
                place if place.is_unsent() => ended.push((id, Some(late()))),
                Place::Sent | Place::Building | Place::Running if !state.is_up(endpoint) => {
                    unheard.push(given_up(attempt, late()));
                }
                Place::Sent | Place::Building | Place::Running => {
                    state.tell(endpoint, ToDispatcher::Cancel(vec![attempt]))
                }
                // What is on its way is looked at when it arrives.
                _ => {}
            }
        }
        self.end_unexecuted(&mut state, ended);
        self.end(&mut state, unheard, None);
    }

    fn tidy(&self) {
        let mut state = self.state();
        for endpoint in state.endpoints.values_mut() {
            endpoint.queue.tidy();
        }
        for tags in state.tags.values_mut() {
            tags.retain(|_, tag| Arc::strong_count(tag) > 1 || tag.is_fresh());
        }
        state.tags.retain(|_, tags| !tags.is_empty());
        state.want_all(None, &*self.tenants);
    }
}

/// The end of an execution whose dispatcher is away: what it says when it is back comes too late.
fn given_up(attempt: Attempt, failure: Failure) -> Ended {
    Ended {
        begun: true,
        ..Ended::unexecuted(attempt, Some(failure))
    }
}

/// The outcome of a task that was cancelled before it began.
fn cancelled_before() -> Failure {
    Failure::new(Code::Cancelled, "the task was cancelled before it began")
}

/// The outcome of a task whose deadline passed.
fn late() -> Failure {
    Failure::new(
        Code::DeadlineExceeded,
        "the task's deadline passed before it ended; allow more time, or more workers",
    )
}

impl State {
    fn remembered(snapshot: TaskSnapshot, contents: &Arc<Contents>) -> Self {
        let mut state = Self {
            last_number: snapshot.last_number,
            published: snapshot.last_number,
            started_at_ms: now_ms(),
            costs: snapshot.costs.into_iter().collect(),
            ..Self::default()
        };
        let functions = snapshot.functions.into_iter();
        state.functions = functions.map(|function| (function.id, Arc::new(function))).collect();
        let endpoints = snapshot.endpoints.into_iter();
        state.endpoints = endpoints.map(|record| (record.id, Endpoint::new(record))).collect();
        for (id, instance) in snapshot.instances {
            if let Some(endpoint) = state.endpoints.get_mut(&id) {
                endpoint.instance = Some(instance);
            }
        }
        let after: Vec<_> = snapshot
            .tasks
            .iter()
            .filter(|record| !record.spec.after.is_empty() && record.tries.attempts == 0)
            .map(|record| (record.spec.id, record.spec.after.clone()))
            .collect();
        for record in snapshot.tasks {
            state.remember(record, contents);
        }
        let endings = snapshot.endings.into_iter().collect();
        for (task, before) in after {
            state.wait_for(task, &before, &endings);
        }
        state
    }

    /// A task that had not ended when the manager did.
    fn remember(&mut self, record: TaskRecord, contents: &Arc<Contents>) {
        let inline = contents.held(record.spec.tenant, record.inline_bytes);
        let TaskRecord { spec, tries, .. } = record;
        let Some(function) = self.functions.get(&spec.function).cloned() else {
            tracing::error!(task = %spec.id, function = %spec.function, "a task without its function is left alone");
            return;
        };
        let tag = self.tag(spec.tenant, &spec.tag);
        let Some(endpoint) = self.endpoints.get_mut(&spec.endpoint) else {
            tracing::error!(task = %spec.id, endpoint = %spec.endpoint, "a task without its endpoint is left alone");
            return;
        };
        // What was sent may be with its dispatcher still, which will say so.
        let place = match (tries.attempts, spec.memo) {
            (0, None) => Place::Queued,
            // It lines up once it is known which others are the same.
            (0, Some(_)) => Place::Depending,
            _ => Place::Sent,
        };
        if place == Place::Queued {
            endpoint.queue.push(spec.tenant, spec.priority, spec.id);
        }
        let id = spec.id;
        let live = Live::new(spec, function, tag, tries, place, None);
        self.live_on(
            id,
            Live {
                inline: Some(inline),
                ..live
            },
        );
    }

    /// One more that has not ended.
    fn live_on(&mut self, id: TaskId, live: Live) {
        if let Some(at_ms) = live.deadline_since_boot_ms() {
            self.deadlines.push(Reverse((at_ms, id)));
        }
        self.live_ends.insert((looking::end_of(id), id));
        self.live.insert(id, live);
    }

    /// A task has ended, or was not kept.
    fn live_no_more(&mut self, id: TaskId) -> Option<Live> {
        self.live_ends.remove(&(looking::end_of(id), id));
        self.live.remove(&id)
    }

    fn tag(&mut self, tenant: TenantId, name: &str) -> Arc<Tag> {
        let tags = self.tags.entry(tenant).or_default();
        if let Some(tag) = tags.get(name) {
            return Arc::clone(tag);
        }
        let tag = Arc::new(Tag::new(name, self.published));
        tags.insert(name.into(), Arc::clone(&tag));
        tag
    }

    fn is_up(&self, endpoint: EndpointId) -> bool {
        let endpoint = self.endpoints.get(&endpoint);
        endpoint.is_some_and(|endpoint| endpoint.link.is_some())
    }

    /// Tells a dispatcher, if it is connected: one that is not will ask.
    fn tell(&self, endpoint: EndpointId, message: ToDispatcher) {
        let link = self
            .endpoints
            .get(&endpoint)
            .and_then(|endpoint| endpoint.link.as_ref());
        if let Some(link) = link {
            // Its end is noticed by whoever listens to it.
            let _ = link.outgoing.send(message);
        }
    }

    fn endpoint_name(&self, id: EndpointId) -> String {
        self.endpoints
            .get(&id)
            .map_or_else(|| id.to_string(), |endpoint| endpoint.record.name.clone())
    }

    fn function_name(&self, id: FunctionId) -> String {
        self.functions
            .get(&id)
            .map_or_else(String::new, |function| name_of(function))
    }

    fn shown_live(&self, id: TaskId, tenants: &dyn Tenants) -> Option<(TenantId, TaskStatus)> {
        let live = self.live.get(&id)?;
        let status = TaskStatus {
            id,
            owner: tenants.name(live.tenant),
            function: live.function.id,
            name: name_of(&live.function),
            endpoint: self.endpoint_name(live.endpoint),
            tag: live.tag.name().into(),
            state: live.state(),
            error: None,
            building: match live.place {
                Place::Building => live.building.as_deref().map(Into::into),
                _ => None,
            },
            attempts: live.tries.attempts,
            priority: live.priority,
            submitted_at_ms: live.submitted_at_ms,
            waiting_at_ms: live.waiting_at_ms,
            environment_at_ms: live.environment_at_ms,
            started_at_ms: live.started_at_ms,
            ended_at_ms: 0,
            raw: !live.function.spec.form.speaks_json(),
        };
        Some((live.tenant, status))
    }

    fn shown(&self, record: &TaskRecord, tenants: &dyn Tenants) -> TaskStatus {
        if let (None, Some((_, status))) = (&record.ended, self.shown_live(record.spec.id, tenants)) {
            return status;
        }
        TaskStatus {
            id: record.spec.id,
            owner: tenants.name(record.spec.tenant),
            function: record.spec.function,
            name: self.function_name(record.spec.function),
            endpoint: self.endpoint_name(record.spec.endpoint),
            tag: record.spec.tag.clone(),
            state: if record.ended.is_some() {
                TaskState::Done
            } else {
                TaskState::Queued
            },
            error: record.ended.as_ref().and_then(|(_, error)| error.clone()),
            building: None,
            attempts: record.tries.attempts,
            priority: record.spec.priority,
            submitted_at_ms: record.spec.submitted_at_ms,
            waiting_at_ms: record.waiting_at_ms,
            environment_at_ms: record.environment_at_ms,
            started_at_ms: record.started_at_ms,
            ended_at_ms: record.ended_at_ms,
            raw: self
                .functions
                .get(&record.spec.function)
                .is_some_and(|function| !function.spec.form.speaks_json()),
        }
    }
}

impl Live {
    fn new(
        spec: TaskSpec,
        function: Arc<FunctionRecord>,
        tag: Arc<Tag>,
        tries: Tries,
        place: Place,
        arguments: Option<Payload>,
    ) -> Self {
        Self {
            tenant: spec.tenant,
            function,
            endpoint: spec.endpoint,
            tag,
            priority: spec.priority,
            repeatable: spec.repeatable,
            cancelled: false,
            late: false,
            memo: spec.memo.map(memo::Key),
            leads: false,
            place,
            tries,
            walltime_ms: spec.walltime_ms,
            retry_wait_ms: spec.retry_wait_ms,
            booted_at_ms: booted_at_ms(),
            deadline_at_ms: spec.deadline_at_ms,
            submitted_at_ms: spec.submitted_at_ms,
            waiting_at_ms: 0,
            environment_at_ms: 0,
            building: None,
            started_at_ms: 0,
            arguments,
            inline: None,
            answers: Vec::new(),
            before: after::Before::default(),
        }
    }
}

/// A length of time, for people.
fn told(length: Duration) -> String {
    match length.as_secs() {
        seconds if seconds >= 2 * 24 * 3600 => format!("{} days", seconds / (24 * 3600)),
        seconds if seconds >= 2 * 3600 => format!("{} hours", seconds / 3600),
        seconds => format!("{seconds} s"),
    }
}

/// A function's name, for people.
pub fn name_of(function: &FunctionRecord) -> String {
    let name = function.name.clone();
    name.unwrap_or_else(|| function.spec.form.name().to_owned())
}

async fn keep_time(tasks: std::sync::Weak<Tasks>) {
    let mut deadlines = tokio::time::interval(DEADLINES);
    let mut tidy = tokio::time::interval(TIDY);
    let mut forget_from = Some(TaskId([0; 16]));
    let mut walk = functions::Walk::new(now_ms());
    loop {
        tokio::select! {
            _ = deadlines.tick() => match tasks.upgrade() {
                Some(tasks) => {
                    let since_boot_ms = since_boot_ms();
                    tasks.look_at_rests(since_boot_ms);
                    tasks.look_at_deadlines(since_boot_ms);
                }
                None => return,
            },
            _ = tidy.tick() => {
                let Some(tasks) = tasks.upgrade() else { return };
                tasks.tidy();
                let now_ms = cautious_ms();
                let before = now_ms.saturating_sub(tasks.kept_ms());
                let from = forget_from.unwrap_or(TaskId([0; 16]));
                // A store that cannot write has more urgent work; the next turn tries again.
                forget_from = Some(from);
                if let Ok(passed) = tasks.store.forget(before, from).wait().await {
                    let printed = passed.printed.iter().map(|(tenant, bytes)| (*tenant, -(*bytes as i64)));
                    tasks.contents.count(printed);
                    let whole;
                    (forget_from, whole) = walk.passed(passed, dayfly_store::system::now_ms());
                    if let Some(whole) = whole {
                        tasks.forget_unused_functions(whole).await;
                    }
                }
                let _ = tasks.store.forget_flows(before).wait().await;
                let _ = tasks.store.forget_usage(sharing::forgotten_before(now_ms)).wait().await;
            }
        }
    }
}

/// What is ended: the task, and why not well.
type Ending = (TaskId, Option<Failure>);
