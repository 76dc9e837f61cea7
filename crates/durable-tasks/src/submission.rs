//! Functions and tasks come in.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use dayfly_protocol::api::{MAX_RANKS, Runtime};
use dayfly_protocol::bounds::{self, MAX_FUNCTION_BYTES, MAX_TAG_BYTES};
use dayfly_protocol::contents::{Content, Payload};
use dayfly_protocol::dispatch::Ended;
use dayfly_protocol::encoding::JSON_CALL;
use dayfly_protocol::entry_point::CommandTemplate;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::executor::Form;
use dayfly_protocol::functions::FunctionRegistration;
use dayfly_protocol::ids::{CodeHash, EndpointId, FunctionId, TaskId, TenantId, time_first};
use dayfly_protocol::sharing::TEAM;
use dayfly_protocol::tasks::{AcceptedTasks, MAX_RETRY_WAIT_MS, MAX_TASKS, TaskInput, TaskSubmission};
use dayfly_store::StoreError;
use dayfly_store::system::{now_ms, random, since_boot_ms};
use dayfly_store::tasks::{FunctionRecord, FunctionSpec, NewTask, TaskSpec, Tries};
use sha2::{Digest, Sha256};

use crate::contents::Contents;
use crate::dependencies::{self, Endings};
use crate::live_task::{LiveTask, Stage};
use crate::memo::{Decision, Key};
use crate::outcomes::{cancelled_before, unexecuted};
use crate::state::State;
use crate::{Tasks, function_names};

/// Tasks of all tenants that may wait at a time.
const MAX_WAITING: usize = 10_000_000;

/// Arguments of waiting tasks that are kept in memory; those of others are read again when it is their turn.
const CACHED_BYTES: usize = 64 << 20;

/// Who submits.
#[derive(Debug, Clone)]
pub struct Submitter {
    /// Which tenant.
    pub tenant: TenantId,
    /// Its name.
    pub name: String,
    /// The teams that it is in.
    pub teams: Vec<String>,
}

impl Submitter {
    /// Whether something is shared with it that is shared with these: names of tenants, teams, or `*` for everyone.
    pub(super) fn is_among(&self, shared_with: &[String]) -> bool {
        shared_with.iter().any(|with| match with.strip_prefix(TEAM) {
            Some(team) => self.teams.iter().any(|own| own == team),
            None => with == "*" || *with == self.name,
        })
    }
}

/// A submission that was looked at.
struct Admitted {
    tasks: Vec<NewTask>,
    endpoint: EndpointId,
    /// Sent as soon as they are kept.
    at_once: bool,
}

impl Tasks {
    /// Keeps a function. The same one again is the same.
    pub async fn register(
        &self,
        tenant: TenantId,
        mut given: FunctionRegistration,
    ) -> Result<Arc<FunctionRecord>, Failure> {
        if let Form::EntryPoint { .. } = given.form {
            // Its image need have no Python.
            given.runtime = Runtime::Native;
        }
        given.check_texts()?;
        if given.name.as_deref() == Some("") {
            return Err(Failure::new(
                Code::InvalidRequest,
                "the function's name is empty; leave it out, or give one",
            ));
        }
        function_names::check(given.name.as_deref().unwrap_or_default())?;
        runs(&given)?;
        self.check_shared(&given.shared_with)?;
        let hash = CodeHash(Sha256::digest(&given.code[..]).into());
        let spec = FunctionSpec {
            description: given.description,
            source: given.source,
            form: given.form,
            runtime: given.runtime,
            image: given.image,
            resources: given.resources,
            repeatable: given.repeatable,
            // Who it is shared with may change, and it is the same.
            shared_with: Vec::new(),
        };
        let described = serde_json::to_vec(&(&given.name, &spec))
            .map_err(|error| Failure::new(Code::InvalidRequest, error.to_string()))?;
        if described.len() > MAX_FUNCTION_BYTES {
            let text = format!(
                "what is said of the function has {} bytes; {MAX_FUNCTION_BYTES} are allowed: shorten its environment",
                described.len()
            );
            return Err(Failure::new(Code::TooLarge, text));
        }
        let mut id = Sha256::new();
        for part in [&tenant.0[..], &hash.0, &described] {
            id.update((part.len() as u64).to_le_bytes());
            id.update(part);
        }
        let id = FunctionId(first_half(id));
        self.state().uses.note(id, now_ms());
        if let Some(known) = self.function(id) {
            // What is said last counts; nothing said changes nothing.
            let stays = given.shared_with.is_empty() || known.spec.shared_with == given.shared_with;
            return match stays {
                true => Ok(known),
                false => self.share(tenant, &id.to_string(), given.shared_with).await,
            };
        }
        let spec = FunctionSpec {
            shared_with: given.shared_with,
            ..spec
        };
        let registering = self.changing_functions.read().await;
        let record = FunctionRecord {
            id,
            tenant,
            name: given.name,
            version: 0,
            hash,
            spec,
            registered_at_ms: now_ms(),
        };
        let kept = Arc::new(self.store.register(record, given.code.clone()).wait().await?);
        let mut state = self.state();
        state.codes.insert(id, given.code);
        state.functions.insert(id, Arc::clone(&kept));
        drop(registering);
        Ok(kept)
    }

    /// Says who may run a function of a tenant's, beside that: one version by its id, or all that have a name. Answers the last.
    pub async fn share(
        &self,
        tenant: TenantId,
        which: &str,
        shared_with: Vec<String>,
    ) -> Result<Arc<FunctionRecord>, Failure> {
        self.check_shared(&shared_with)?;
        let _changing = self.changing_functions.write().await;
        let functions = self.own_functions_named(tenant, which)?;
        let changed = |function: &Arc<FunctionRecord>| {
            let mut changed = FunctionRecord::clone(function);
            changed.spec.shared_with.clone_from(&shared_with);
            Arc::new(changed)
        };
        let changed: Vec<_> = functions.iter().map(changed).collect();
        let last = changed.last().cloned().ok_or_else(|| {
            let text = format!("you have no function `{which:.80}`");
            Failure::new(Code::NotFound, text)
        })?;
        let specs = changed.iter().map(|function| (function.id, function.spec.clone()));
        self.store.change(specs.collect()).wait().await?;
        let mut state = self.state();
        for function in changed {
            state.functions.insert(function.id, function);
        }
        Ok(last)
    }

    /// Accepts tasks: when this returns they are on the disk, and will end in one outcome each.
    pub async fn submit(
        self: &Arc<Self>,
        by: Submitter,
        mut submission: TaskSubmission,
    ) -> Result<AcceptedTasks, Failure> {
        self.tenants.may_spend(by.tenant)?;
        bounds::check("the tag", &submission.tag, MAX_TAG_BYTES)?;
        if submission.options.retry_wait_ms > MAX_RETRY_WAIT_MS {
            let text = format!(
                "retry_wait_ms is {}; {MAX_RETRY_WAIT_MS} are allowed, which is an hour",
                submission.options.retry_wait_ms
            );
            return Err(Failure::new(Code::InvalidRequest, text));
        }
        if submission.tasks.is_empty() || submission.tasks.len() > MAX_TASKS {
            let count = submission.tasks.len();
            return Err(Failure::new(
                Code::InvalidRequest,
                format!("a submission of {count} tasks; submit 1 to {MAX_TASKS} at once"),
            ));
        }
        submission.endpoint = self.below(&by, submission.endpoint.take()).await?;
        self.suits(&by, submission.function, submission.endpoint.as_deref())
            .await?;
        let ids = ids_of(by.tenant, &submission.tasks)?;
        for task in &mut submission.tasks {
            encode(task)?;
        }
        let wanted: Vec<Content> = submission.tasks.iter().filter_map(|task| task.content).collect();
        if !wanted.is_empty() {
            self.contents.check(by.tenant, &wanted).await?;
        }
        let (admitted, endpoint) = self.admit(&by, submission, &ids).await?;
        let accepted = AcceptedTasks { tasks: ids, endpoint };
        let Some(admitted) = admitted else {
            return Ok(accepted);
        };
        // To its end, also when whoever asked goes away meanwhile.
        let tasks = Arc::clone(self);
        let kept = tokio::spawn(async move { tasks.keep(by.tenant, admitted).await });
        kept.await
            .map_err(|error| Failure::new(Code::Internal, format!("accepting tasks failed: {error}")))??;
        self.state().want(accepted.endpoint, &*self.tenants);
        Ok(accepted)
    }

    async fn admit(
        &self,
        by: &Submitter,
        submission: TaskSubmission,
        ids: &[TaskId],
    ) -> Result<(Option<Admitted>, EndpointId), Failure> {
        let before = dependencies::before(&submission.tasks, ids)?;
        let mut endings = HashMap::new();
        loop {
            let unknown = {
                let mut state = self.state();
                // Those that have not ended are here: whoever ends meanwhile tells those that wait for it.
                let unknown = state.unknown(by.tenant, &before, &endings);
                if unknown.is_empty() {
                    return state.admit(by, submission, ids, &endings, &self.contents);
                }
                unknown
            };
            self.learn_endings(by.tenant, unknown, &mut endings).await?;
        }
    }

    async fn keep(&self, tenant: TenantId, admitted: Admitted) -> Result<(), Failure> {
        let Admitted {
            tasks,
            endpoint,
            at_once,
        } = admitted;
        let ids: Vec<TaskId> = tasks.iter().map(|task| task.spec.id).collect();
        let kept = self.store.enqueue(tasks).wait().await;
        let known = self.accept(endpoint, at_once, ids, kept)?;
        self.own(tenant, &known).await
    }

    /// Tasks are on the disk, or are not: goes on with those that are, and answers those that were there before.
    fn accept(
        &self,
        endpoint: EndpointId,
        at_once: bool,
        ids: Vec<TaskId>,
        kept: Result<Vec<bool>, StoreError>,
    ) -> Result<Vec<TaskId>, Failure> {
        let mut state = self.state();
        let new = match &kept {
            Ok(new) => new.clone(),
            Err(_) => vec![false; ids.len()],
        };
        let of = |wanted: bool| {
            let both = ids.iter().zip(&new).filter(move |(_, new)| **new == wanted);
            both.map(|(id, _)| *id).collect::<Vec<_>>()
        };
        let (accepted, others) = (of(true), of(false));
        for id in &others {
            // It ended before, or else it would have been found alive.
            state.drop_unaccepted(*id);
        }
        if at_once {
            state.give_room(endpoint, others.len());
        }
        let connected = state
            .endpoints
            .get(&endpoint)
            .is_some_and(|endpoint| endpoint.link.is_some());
        if at_once && connected {
            self.assign(&mut state, endpoint, &accepted, Vec::new());
        } else {
            let ended = state.enqueue(endpoint, &accepted, at_once);
            self.end(&mut state, ended, None);
        }
        kept?;
        Ok(others)
    }

    /// An error if one of these tasks is somebody else's.
    async fn own(&self, tenant: TenantId, tasks: &[TaskId]) -> Result<(), Failure> {
        for task in tasks {
            let record = self.store.task(*task).wait().await?;
            if record.is_some_and(|record| record.spec.tenant != tenant) {
                return Err(taken(*task));
            }
        }
        Ok(())
    }
}

/// Refuses a function that no worker could ever run, for what it is to run in.
fn runs(given: &FunctionRegistration) -> Result<(), Failure> {
    let ranks = given.resources.ranks;
    if ranks > MAX_RANKS {
        let text = format!("a function of {ranks} ranks; {MAX_RANKS} are allowed");
        return Err(Failure::new(Code::TooLarge, text));
    }
    if ranks > 0 && !matches!(given.form, Form::Python { .. } | Form::Source { .. }) {
        let text = "ranks are called through Python: register a Python function, or a `dayfly.Command` for a program";
        return Err(Failure::new(Code::LoadFailed, text));
    }
    if let Form::EntryPoint { .. } = given.form {
        if given.image.is_none() {
            let text = "an entry point is that of a container image; name the image";
            return Err(Failure::new(Code::LoadFailed, text));
        }
        CommandTemplate::parse(&given.code).map_err(|text| Failure::new(Code::LoadFailed, text))?;
    }
    if let Some(image) = &given.image {
        if image.is_empty() {
            let text = "the image's name is empty; leave it out, or name one";
            return Err(Failure::new(Code::InvalidRequest, text));
        }
        if given.runtime.environment().is_some() {
            let text = "an image brings what functions import; name an image or an environment";
            return Err(Failure::new(Code::EnvironmentFailed, text));
        }
    }
    let Some(environment) = given.runtime.environment() else {
        return Ok(());
    };
    environment.check()?;
    match &given.form {
        Form::Python { python, .. } if !environment.python.is_empty() && environment.python != *python => {
            Err(Failure::new(
                Code::PythonMismatch,
                format!(
                    "the function is pickled by Python {python} and its environment is to have {}, which do not read each other's \
                     functions; leave the environment's version out, or register the function as source (source=True)",
                    environment.python
                ),
            ))
        }
        _ => Ok(()),
    }
}

/// A call in JSON becomes what a worker takes it from.
fn encode(task: &mut TaskInput) -> Result<(), Failure> {
    if task.content.is_some() && (task.call.is_some() || !task.arguments.is_empty()) {
        let text = "a task has a `content` and `arguments` or a `call`; give one of them";
        return Err(Failure::new(Code::InvalidRequest, text));
    }
    if task.with_answers && task.call.is_some() {
        return Err(dependencies::no_answers());
    }
    let Some(call) = task.call.take() else { return Ok(()) };
    if !task.arguments.is_empty() {
        let text = "a task has `arguments` and a `call`; give one of them";
        return Err(Failure::new(Code::InvalidRequest, text));
    }
    let bytes = serde_json::to_vec(&call).map_err(|error| Failure::new(Code::InvalidRequest, error.to_string()))?;
    task.arguments = [bytes, vec![JSON_CALL]].concat().into();
    Ok(())
}

fn taken(task: TaskId) -> Failure {
    Failure::new(
        Code::InvalidRequest,
        format!("the id {task} is another task's; make ids at random, or leave them out"),
    )
}

impl State {
    /// Looks at a submission, and notes its tasks as about to be accepted. None of them is new: then there is nothing to do.
    fn admit(
        &mut self,
        by: &Submitter,
        submission: TaskSubmission,
        ids: &[TaskId],
        endings: &Endings,
        contents: &Arc<Contents>,
    ) -> Result<(Option<Admitted>, EndpointId), Failure> {
        let function = self.function_for(by, submission.function)?;
        let endpoint = self.endpoint_for(by, submission.endpoint.as_deref())?;
        let options = submission.options;
        if self.live.len() + ids.len() > MAX_WAITING {
            return Err(Failure::new(
                Code::NoCapacity,
                format!("{MAX_WAITING} tasks wait already; submit more when some have ended"),
            ));
        }
        let mut new = Vec::with_capacity(ids.len());
        for (id, input) in ids.iter().zip(submission.tasks) {
            match self.live.get(id) {
                None => new.push((*id, input)),
                Some(live) if live.tenant == by.tenant => {}
                Some(_) => return Err(taken(*id)),
            }
        }
        if new.is_empty() {
            return Ok((None, endpoint));
        }
        let waits = new.iter().any(|(_, input)| !input.after.is_empty());
        if new.iter().any(|(_, input)| input.with_answers) && !matches!(function.spec.form, Form::Python { .. }) {
            return Err(dependencies::no_answers());
        }
        let inline: usize = new.iter().map(|(_, input)| input.arguments.len()).sum();
        let mut inline = contents.hold(by.tenant, inline)?;
        let at = self.endpoints.get_mut(&endpoint);
        let at_once = at.is_some_and(|at| {
            // What may be answered from memory is looked up when it is accepted.
            let at_once = !options.memoize && !waits && at.takes_at_once(by.tenant, function.id, new.len());
            at.held += if at_once { new.len() as u32 } else { 0 };
            at_once
        });
        let submitted_at_ms = now_ms();
        self.uses.note(function.id, submitted_at_ms);
        let deadline_at_ms = match options.deadline_ms {
            0 => 0,
            length => submitted_at_ms.saturating_add(length),
        };
        let tries = Tries {
            attempts: u16::from(at_once),
            retries_left: options.retries,
            faults: 0,
        };
        let walltime_ms = match options.walltime_ms {
            0 => function.spec.resources.walltime_ms,
            given => given,
        };
        let tag = self.tag(by.tenant, &submission.tag);
        let computes = options
            .memoize
            .then(|| self.computed_by(&function, by.tenant, endpoint));
        let mut tasks = Vec::with_capacity(new.len());
        for (id, input) in new {
            let mut spec = TaskSpec {
                id,
                tenant: by.tenant,
                function: function.id,
                endpoint,
                tag: submission.tag.clone(),
                priority: options.priority,
                walltime_ms,
                repeatable: options.repeatable.unwrap_or(function.spec.repeatable),
                retry_wait_ms: options.retry_wait_ms,
                deadline_at_ms,
                submitted_at_ms,
                after: input.after,
                with_answers: input.with_answers,
                memo: None,
            };
            let given = Payload::of(input.arguments, input.content);
            spec.memo = computes.map(|computes| Key::of(computes, &spec, &given).0);
            let fits = self.cached_bytes + given.inline_bytes() <= CACHED_BYTES;
            // With answers, all of it is read when it is its turn.
            let arguments = ((fits || at_once) && !spec.with_answers).then(|| given.clone());
            self.cached_bytes += arguments.as_ref().map_or(0, Payload::inline_bytes);
            let mut live = LiveTask::new(
                spec.clone(),
                Arc::clone(&function),
                Arc::clone(&tag),
                tries,
                Stage::Accepting,
                arguments,
            );
            live.inline = inline.split(given.inline_bytes());
            self.live_on(id, live);
            self.wait_for(id, &spec.after, endings);
            tasks.push(NewTask {
                spec,
                tries,
                arguments: given,
            });
        }
        let admitted = Admitted {
            tasks,
            endpoint,
            at_once,
        };
        Ok((Some(admitted), endpoint))
    }

    pub(super) fn function_for(&self, by: &Submitter, id: FunctionId) -> Result<Arc<FunctionRecord>, Failure> {
        let found = self.functions.get(&id).filter(|function| may_run(function, by));
        found.cloned().ok_or_else(|| {
            Failure::new(
                Code::NotFound,
                format!("there is no function {id} that you may run; register it, or ask its owner to share it"),
            )
        })
    }

    /// A task that was not accepted after all.
    fn drop_unaccepted(&mut self, id: TaskId) {
        if let Some(live) = self.live_no_more(id) {
            self.cached_bytes -= live.arguments.map_or(0, |arguments| arguments.inline_bytes());
        }
    }

    fn give_room(&mut self, endpoint: EndpointId, count: usize) {
        if let Some(endpoint) = self.endpoints.get_mut(&endpoint) {
            endpoint.held = endpoint.held.saturating_sub(u32::try_from(count).unwrap_or(u32::MAX));
        }
    }

    /// Puts accepted tasks behind others. Answers those that were cancelled meanwhile, or whose answer is known.
    fn enqueue(&mut self, id: EndpointId, tasks: &[TaskId], was_at_once: bool) -> Vec<Ended> {
        let mut ended = Vec::new();
        for task in tasks {
            let Some(live) = self.live.get_mut(task) else { continue };
            live.place = Stage::Queued;
            if was_at_once {
                live.tries.attempts -= 1;
            }
            if let Some(failure) = live.before.failure() {
                ended.push(unexecuted(*task, Some(failure), Payload::default()));
            } else if live.before.is_awaited() && !live.cancelled {
                live.place = Stage::Depending;
            } else if live.cancelled {
                ended.push(unexecuted(*task, Some(cancelled_before()), Payload::default()));
            } else {
                ended.extend(self.line_up(*task));
            }
        }
        if was_at_once {
            self.give_room(id, tasks.len());
        }
        ended
    }

    /// A task waits for its turn, or for the answer of another that is the same, or has it already.
    pub(super) fn line_up(&mut self, task: TaskId) -> Option<Ended> {
        let live = self.live.get_mut(&task)?;
        let turn = live
            .memo
            .map_or(Decision::Execute, |key| self.memo.comes(key, task, since_boot_ms()));
        match turn {
            Decision::Answered(answer) => return Some(unexecuted(task, None, answer)),
            Decision::Follow => live.place = Stage::Following,
            Decision::Execute => {
                live.place = Stage::Queued;
                live.leads = live.memo.is_some();
                if let Some(endpoint) = self.endpoints.get_mut(&live.endpoint) {
                    endpoint.queue.push(live.tenant, live.priority, task);
                    endpoint.wake.notify_one();
                }
            }
        }
        None
    }
}

/// Whether somebody may run a function.
pub fn may_run(function: &FunctionRecord, by: &Submitter) -> bool {
    function.tenant == by.tenant || by.is_among(&function.spec.shared_with)
}

/// Refuses what is no name for something, such as `a team`, whose name stands in paths.
pub(super) fn plainly_named(what: &str, name: &str, most: usize) -> Result<(), Failure> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let begins = name.starts_with(|first: char| first.is_ascii_alphabetic());
    if begins && name.len() <= most && name.chars().all(fits) {
        return Ok(());
    }
    let text = format!(
        "`{name:.80}` is no name for {what}: take letters, digits, `-`, `_` and `.`, a letter first, {most} at most"
    );
    Err(Failure::new(Code::InvalidRequest, text))
}

/// The id of each task: given, or of its key, or new; new ones begin with the time.
fn ids_of(tenant: TenantId, tasks: &[TaskInput]) -> Result<Vec<TaskId>, Failure> {
    let mut seen = HashSet::with_capacity(tasks.len());
    let mut fresh = u128::from_be_bytes(time_first(now_ms(), random()));
    let mut ids = Vec::with_capacity(tasks.len());
    for task in tasks {
        let id = match (&task.id, &task.key) {
            (Some(id), None) => *id,
            (None, Some(key)) => {
                bounds::check("an idempotency key", key, MAX_TAG_BYTES)?;
                of_key(tenant, key)
            }
            (None, None) => {
                fresh += 1;
                TaskId(fresh.to_be_bytes())
            }
            (Some(_), Some(_)) => {
                let text = "a task has an id and an idempotency key; give one of them";
                return Err(Failure::new(Code::InvalidRequest, text));
            }
        };
        if !seen.insert(id) {
            let text = format!("the submission has two tasks with the id {id}, or with the same key");
            return Err(Failure::new(Code::InvalidRequest, text));
        }
        ids.push(id);
    }
    Ok(ids)
}

fn of_key(tenant: TenantId, key: &str) -> TaskId {
    let mut hash = Sha256::new();
    hash.update(b"dayfly task key");
    hash.update(tenant.0);
    hash.update(key);
    TaskId(first_half(hash))
}

pub(super) fn first_half(hash: Sha256) -> [u8; 16] {
    let whole: [u8; 32] = hash.finalize().into();
    let mut half = [0; 16];
    half.copy_from_slice(&whole[..16]);
    half
}
