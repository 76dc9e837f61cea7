//! Submission: checks tasks, and accepts them when they are on the disk.
//!
//! Adds to `State` the admission, which changes live tasks, the endpoint's free room and the tags together.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use dayfly_protocol::bounds::{self, MAX_TAG_BYTES};
use dayfly_protocol::contents::{Content, Payload};
use dayfly_protocol::dispatch::Ended;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::executor::Form;
use dayfly_protocol::ids::{EndpointId, TaskId, TenantId, time_first};
use dayfly_protocol::sharing::TEAM;
use dayfly_protocol::sizes::sized_call;
use dayfly_protocol::tasks::{AcceptedTasks, MAX_RETRY_WAIT_MS, MAX_TASKS, TaskInput, TaskSubmission};
use dayfly_store::StoreError;
use dayfly_store::system::{now_ms, random};
use dayfly_store::tasks::{NewTask, TaskSpec, Tries};
use sha2::{Digest, Sha256};

use crate::Tasks;
use crate::contents::Contents;
use crate::dependencies::{self, Endings};
use crate::live_tasks::LiveTask;
use crate::memo::Key;
use crate::outcomes::{cancelled_before, unexecuted};
use crate::state::State;

/// Maximum number of unfinished tasks of all tenants.
const MAX_LIVE: usize = 10_000_000;

/// The tenant that submits, registers or invites.
#[derive(Debug, Clone)]
pub struct Submitter {
    /// Id of the tenant.
    pub tenant: TenantId,
    /// Its name.
    pub name: String,
    /// Names of the teams that it is in.
    pub teams: Vec<String>,
}

impl Submitter {
    /// Whether it is among these names of tenants and teams. `*` means everyone.
    pub(super) fn is_among(&self, shared_with: &[String]) -> bool {
        shared_with.iter().any(|with| match with.strip_prefix(TEAM) {
            Some(team) => self.teams.iter().any(|own| own == team),
            None => with == "*" || *with == self.name,
        })
    }
}

/// A submission that passed all checks.
struct Admitted {
    tasks: Vec<NewTask>,
    endpoint: EndpointId,
    /// Whether the tasks are sent as soon as they are written.
    at_once: bool,
}

impl Tasks {
    /// Accepts tasks: when this returns they are on the disk, and each will end in exactly one outcome. Idempotent for
    /// tasks with an id or an idempotency key.
    ///
    /// # Errors
    /// `InvalidRequest`, `NotFound`, `QuotaExceeded`, `NoCapacity`, the refusal of an endpoint that cannot run the
    /// function, and those of the store.
    pub async fn submit(
        self: &Arc<Self>,
        by: Submitter,
        mut submission: TaskSubmission,
    ) -> Result<AcceptedTasks, Failure> {
        self.tenants.may_spend(by.tenant)?;
        check_submission(&submission)?;
        submission.endpoint = self.account_endpoint_for(&by, submission.endpoint.take()).await?;
        self.check_compatibility(&by, submission.function, submission.endpoint.as_deref())
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
        // To its end, also if the client disconnects meanwhile.
        let tasks = Arc::clone(self);
        let written = tokio::spawn(async move { tasks.write(by.tenant, admitted).await });
        written
            .await
            .map_err(|error| Failure::new(Code::Internal, format!("accepting tasks failed: {error}")))??;
        self.state().request_daemon(accepted.endpoint, &*self.tenants);
        Ok(accepted)
    }

    async fn admit(
        &self,
        by: &Submitter,
        submission: TaskSubmission,
        ids: &[TaskId],
    ) -> Result<(Option<Admitted>, EndpointId), Failure> {
        let outside = dependencies::outside_dependencies(&submission.tasks, ids)?;
        let mut endings = HashMap::new();
        loop {
            let unknown = {
                let mut state = self.state();
                // A dependency that is live under this lock notifies its dependents when it ends.
                let unknown = state.unknown_endings(by.tenant, &outside, &endings);
                if unknown.is_empty() {
                    return state.admit(by, submission, ids, &endings, &self.contents);
                }
                unknown
            };
            self.find_endings(by.tenant, unknown, &mut endings).await?;
        }
    }

    async fn write(&self, tenant: TenantId, admitted: Admitted) -> Result<(), Failure> {
        let Admitted {
            tasks,
            endpoint,
            at_once,
        } = admitted;
        let ids: Vec<TaskId> = tasks.iter().map(|task| task.spec.id).collect();
        let written = self.store.enqueue(tasks).wait().await;
        let known = self.accept(endpoint, at_once, ids, written)?;
        self.check_owner(tenant, &known).await
    }

    /// Sends or queues the tasks that the store has written. Returns those that it had before. `written` states for each
    /// task whether it is new.
    fn accept(
        &self,
        endpoint: EndpointId,
        at_once: bool,
        ids: Vec<TaskId>,
        written: Result<Vec<bool>, StoreError>,
    ) -> Result<Vec<TaskId>, Failure> {
        let mut state = self.state();
        let new = match &written {
            Ok(new) => new.clone(),
            Err(_) => vec![false; ids.len()],
        };
        let of = |wanted: bool| {
            let both = ids.iter().zip(&new).filter(move |(_, new)| **new == wanted);
            both.map(|(id, _)| *id).collect::<Vec<_>>()
        };
        let (accepted, others) = (of(true), of(false));
        for id in &others {
            // These tasks had ended before, or they would have been live at admission.
            state.tasks.remove(*id);
        }
        if at_once {
            state.release_room(endpoint, others.len());
        }
        if at_once && state.endpoints.is_up(endpoint) {
            self.assign(&mut state, endpoint, &accepted, Vec::new());
        } else {
            let ended = state.enqueue_accepted(endpoint, &accepted, at_once);
            self.end(&mut state, ended, None);
        }
        written?;
        Ok(others)
    }

    /// Refuses tasks in the store that belong to other tenants.
    async fn check_owner(&self, tenant: TenantId, tasks: &[TaskId]) -> Result<(), Failure> {
        for task in tasks {
            let record = self.store.task(*task).wait().await?;
            if record.is_some_and(|record| record.spec.tenant != tenant) {
                return Err(taken(*task));
            }
        }
        Ok(())
    }
}

fn check_submission(submission: &TaskSubmission) -> Result<(), Failure> {
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
    Ok(())
}

/// Encodes a call in JSON as the arguments that a worker reads.
fn encode(task: &mut TaskInput) -> Result<(), Failure> {
    if task.content.is_some() && (task.call.is_some() || !task.arguments.is_empty()) {
        let text = "a task has a `content` and `arguments` or a `call`; give one of them";
        return Err(Failure::new(Code::InvalidRequest, text));
    }
    if task.with_answers && task.call.is_some() {
        return Err(dependencies::takes_no_results());
    }
    let Some(call) = task.call.take() else { return Ok(()) };
    if !task.arguments.is_empty() {
        let text = "a task has `arguments` and a `call`; give one of them";
        return Err(Failure::new(Code::InvalidRequest, text));
    }
    let bytes = serde_json::to_vec(&call).map_err(|error| Failure::new(Code::InvalidRequest, error.to_string()))?;
    task.arguments = sized_call(bytes, &call.arguments, &call.keywords).into();
    Ok(())
}

fn taken(task: TaskId) -> Failure {
    Failure::new(
        Code::InvalidRequest,
        format!("the id {task} belongs to another task; choose ids at random, or leave them out"),
    )
}

impl State {
    /// Checks a submission, and adds its tasks, which the store is about to write. Returns no `Admitted` if none is
    /// new.
    fn admit(
        &mut self,
        by: &Submitter,
        submission: TaskSubmission,
        ids: &[TaskId],
        endings: &Endings,
        contents: &Arc<Contents>,
    ) -> Result<(Option<Admitted>, EndpointId), Failure> {
        let function = self.functions.find_for(by, submission.function)?;
        let endpoint = self.endpoints.find_for(by, submission.endpoint.as_deref())?;
        let options = submission.options;
        if self.tasks.len() + ids.len() > MAX_LIVE {
            return Err(Failure::new(
                Code::NoCapacity,
                format!("{MAX_LIVE} tasks wait already; submit more when some have ended"),
            ));
        }
        let mut new = Vec::with_capacity(ids.len());
        for (id, input) in ids.iter().zip(submission.tasks) {
            match self.tasks.get(*id) {
                None => new.push((*id, input)),
                Some(live) if live.tenant() == by.tenant => {}
                Some(_) => return Err(taken(*id)),
            }
        }
        if new.is_empty() {
            return Ok((None, endpoint));
        }
        let waits = new.iter().any(|(_, input)| !input.after.is_empty());
        if new.iter().any(|(_, input)| input.with_answers) && !matches!(function.spec.form, Form::Python { .. }) {
            return Err(dependencies::takes_no_results());
        }
        let inline: usize = new.iter().map(|(_, input)| input.arguments.len()).sum();
        let mut inline = contents.hold(by.tenant, inline)?;
        let at = self.endpoints.get_mut(endpoint);
        let at_once = at.is_some_and(|at| {
            // A memoized result is looked up when the task is accepted.
            let at_once = !options.memoize && !waits && at.takes_at_once(by.tenant, function.id, new.len());
            at.add_held(if at_once { new.len() as u32 } else { 0 });
            at_once
        });
        let submitted_at_ms = now_ms();
        self.functions.note_use(function.id, submitted_at_ms);
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
        let computes = options.memoize.then(|| self.maker_hash(&function, by.tenant, endpoint));
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
            // Arguments that go with results are read with them when the task is sent.
            let is_kept = (at_once || self.tasks.can_cache(given.inline_bytes())) && !spec.with_answers;
            let live = LiveTask::accepting(
                spec.clone(),
                Arc::clone(&function),
                Arc::clone(&tag),
                tries,
                is_kept.then(|| given.clone()),
                inline.split(given.inline_bytes()),
            );
            self.tasks.insert(id, live);
            self.set_dependencies(id, &spec.after, endings);
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

    fn release_room(&mut self, endpoint: EndpointId, count: usize) {
        if let Some(endpoint) = self.endpoints.get_mut(endpoint) {
            endpoint.release(count);
        }
    }

    /// Queues accepted tasks. Returns the ends of those that were cancelled meanwhile, or whose result is known.
    fn enqueue_accepted(&mut self, endpoint: EndpointId, tasks: &[TaskId], was_at_once: bool) -> Vec<Ended> {
        let mut ended = Vec::new();
        for task in tasks {
            let Some(live) = self.tasks.get_mut(*task) else {
                continue;
            };
            live.accept(was_at_once);
            if let Some(failure) = live.dependencies().failure() {
                ended.push(unexecuted(*task, Some(failure), Payload::default()));
            } else if live.dependencies().is_awaited() && !live.is_cancelled() {
                live.depend();
            } else if live.is_cancelled() {
                ended.push(unexecuted(*task, Some(cancelled_before()), Payload::default()));
            } else {
                ended.extend(self.enqueue(*task));
            }
        }
        if was_at_once {
            self.release_room(endpoint, tasks.len());
        }
        ended
    }
}

/// Refuses a name for `what`, such as `a team`, that cannot be a part of a path. `max` is in bytes.
pub(super) fn check_name(what: &str, name: &str, max: usize) -> Result<(), Failure> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let begins = name.starts_with(|first: char| first.is_ascii_alphabetic());
    if begins && name.len() <= max && name.chars().all(fits) {
        return Ok(());
    }
    let text = format!(
        "`{name:.80}` is no name for {what}: take letters, digits, `-`, `_` and `.`, a letter first, {max} at most"
    );
    Err(Failure::new(Code::InvalidRequest, text))
}

/// The id of each task: the given one, or that of its key, or a new one, which begins with the time.
fn ids_of(tenant: TenantId, tasks: &[TaskInput]) -> Result<Vec<TaskId>, Failure> {
    let mut seen = HashSet::with_capacity(tasks.len());
    let mut fresh = u128::from_be_bytes(time_first(now_ms(), random()));
    let mut ids = Vec::with_capacity(tasks.len());
    for task in tasks {
        let id = match (&task.id, &task.key) {
            (Some(id), None) => *id,
            (None, Some(key)) => {
                bounds::check("an idempotency key", key, MAX_TAG_BYTES)?;
                id_of_key(tenant, key)
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

fn id_of_key(tenant: TenantId, key: &str) -> TaskId {
    let mut hash = Sha256::new();
    hash.update(b"dayfly task key");
    hash.update(tenant.0);
    hash.update(key);
    TaskId(first_half(hash))
}

/// The first 16 bytes of a hash.
pub(super) fn first_half(hash: Sha256) -> [u8; 16] {
    let whole: [u8; 32] = hash.finalize().into();
    let mut half = [0; 16];
    half.copy_from_slice(&whole[..16]);
    half
}
