//! Tests of the crate with a store in a file. The tests play the dispatcher.

use std::path::Path;

use dayfly_protocol::api::{CallResources, LoanPoint, Runtime};
use dayfly_protocol::dispatch::{Assigned, Attempt, Ended, FromDispatcher, TaskOutput, ToDispatcher};
use dayfly_protocol::error::Code;
use dayfly_protocol::executor::Form;
use dayfly_protocol::functions::{FunctionRegistration, Resources};
use dayfly_protocol::id_pattern::IdPattern;
use dayfly_protocol::ids::{FunctionId, TaskId};
use dayfly_protocol::node_api::Stream;
use dayfly_protocol::tasks::{
    AcceptedTasks, Cancellation, CancelledTasks, DeletedTasks, TaskDeletion, TaskInput, TaskOptions, TaskOutcome,
    TaskState, TaskSubmission,
};
use dayfly_storage::StoreUrl;
use dayfly_store::SqliteTasks;
use dayfly_store::tasks::FunctionRecord;

use dayfly_store::StoreError;

use super::*;

const TENANT: TenantId = TenantId([1; 16]);
const TIMEOUT: Duration = Duration::from_secs(30);

struct OpenAccounts;

impl Tenants for OpenAccounts {
    fn name(&self, tenant: TenantId) -> String {
        tenant.to_string()
    }

    fn may_spend(&self, _: TenantId) -> Result<(), Failure> {
        Ok(())
    }

    fn prices(&self, _: TenantId) -> Prices {
        Prices::default()
    }

    fn charge(&self, _: Vec<(TenantId, u64)>) {}
}

/// The tasks of a manager, and the dispatcher of its only endpoint.
struct Site {
    tasks: Arc<Tasks>,
    dispatcher: Conversation,
}

impl Site {
    /// Starts with the state in this directory.
    async fn start(directory: &Path) -> Self {
        let path = directory.join("tasks.db");
        let until = std::time::Instant::now() + TIMEOUT;
        let store = loop {
            match SqliteTasks::open(Some(&path), None, false) {
                // The last manager is closing the store.
                Err(StoreError::InUse(_)) if std::time::Instant::now() < until => tokio::task::yield_now().await,
                opened => break opened.unwrap(),
            }
        };
        let contents = ContentOptions {
            place: StoreUrl::parse(&format!("file://{}", directory.display())).unwrap(),
            most_bytes: 1 << 30,
            retention: Duration::from_secs(7 * 24 * 3600),
        };
        let tasks = Tasks::start(Arc::new(store), &contents, Box::new(OpenAccounts))
            .await
            .unwrap();
        let dispatcher = tasks.attach(LOCAL).await.unwrap();
        Self { tasks, dispatcher }
    }

    async fn register(&self, name: Option<&str>, shared_with: &[&str]) -> Arc<FunctionRecord> {
        let given = FunctionRegistration {
            name: name.map(str::to_owned),
            description: String::new(),
            source: String::new(),
            form: Form::Source { entry: "f".into() },
            runtime: Runtime::any_python(),
            image: None,
            code: b"def f(x): return x".to_vec().into(),
            resources: Resources::default(),
            repeatable: false,
            shared_with: shared_with.iter().map(|one| (*one).to_owned()).collect(),
        };
        self.tasks.register(TENANT, given).await.unwrap()
    }

    /// Submits one memoized call for each of these arguments.
    async fn submit(&self, function: FunctionId, tag: &str, arguments: &[u8]) -> Vec<TaskId> {
        let input = |byte: &u8| TaskInput {
            arguments: vec![*byte].into(),
            ..TaskInput::default()
        };
        let submission = TaskSubmission {
            function,
            endpoint: None,
            tag: tag.into(),
            options: TaskOptions {
                memoize: true,
                ..TaskOptions::default()
            },
            tasks: arguments.iter().map(input).collect(),
        };
        let accepted: AcceptedTasks = self
            .tasks
            .submit(self.tasks.submitter(TENANT), submission)
            .await
            .unwrap();
        accepted.tasks
    }

    fn room(&self, tasks: u32) {
        self.dispatcher
            .to_manager
            .send(FromDispatcher::Credit { tasks })
            .unwrap();
    }

    /// Receives the next tasks.
    async fn sent(&mut self, count: usize) -> Vec<Assigned> {
        let mut all = Vec::new();
        while all.len() < count {
            let heard = tokio::time::timeout(TIMEOUT, self.dispatcher.from_manager.recv()).await;
            if let ToDispatcher::Tasks(tasks) = heard.expect("tasks in time").expect("a manager") {
                all.extend(tasks);
            }
        }
        all
    }

    /// Executes a task, which returns its arguments.
    fn execute(&self, task: &Assigned) {
        let ended = Ended {
            begun: true,
            answer: task.arguments.clone(),
            ..Ended::unexecuted(task.attempt, None)
        };
        self.dispatcher
            .to_manager
            .send(FromDispatcher::Ended(vec![ended]))
            .unwrap();
    }

    async fn outcome(&self, task: TaskId) -> TaskOutcome {
        self.tasks
            .outcome(task, TIMEOUT)
            .await
            .unwrap()
            .expect("an outcome in time")
    }

    async fn cancel(&self, tasks: Vec<TaskId>) {
        let what = Cancellation {
            tasks: tasks.clone(),
            ..Cancellation::default()
        };
        self.tasks.cancel(&TaskScope::of(TENANT), what).await;
        for task in tasks {
            self.outcome(task).await;
        }
    }
}

#[tokio::test]
async fn identical_tasks_run_once_also_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let site = Site::start(directory.path()).await;
    let function = site.register(None, &[]).await.id;
    let tasks = site.submit(function, "a", &[1, 1, 2, 1]).await;
    drop(site);
    let mut site = Site::start(directory.path()).await;
    site.room(10);
    let sent = site.sent(2).await;
    assert_eq!(
        sent.iter().map(|task| task.attempt.task).collect::<Vec<_>>(),
        [tasks[0], tasks[2]]
    );
    sent.iter().for_each(|task| site.execute(task));
    for (task, answer, attempts) in [(0, 1, 1), (1, 1, 0), (2, 2, 1), (3, 1, 0)] {
        let outcome = site.outcome(tasks[task]).await;
        assert_eq!(
            (&outcome.answer[..], outcome.attempts),
            (&[answer][..], attempts),
            "{task}"
        );
    }
    drop(site);
    let mut site = Site::start(directory.path()).await;
    let again = site.submit(function, "b", &[2, 1]).await;
    assert_eq!(site.outcome(again[0]).await.answer[..], [2]);
    // A deleted result is not reused.
    let what = TaskDeletion {
        tasks: again.clone(),
        tag: Some("a".into()),
    };
    let waiting = site.submit(function, "a", &[3]).await;
    let forgotten = site.tasks.delete_tasks(TENANT, what).await;
    assert_eq!(forgotten, Ok(DeletedTasks { forgotten: 6, left: 1 }));
    assert!(site.tasks.status(tasks[0]).await.unwrap().is_none());
    assert!(site.tasks.status(waiting[0]).await.unwrap().is_some());
    let known = site.tasks.outcomes(TENANT, "a", 0, Duration::ZERO, 10).await.unwrap();
    assert_eq!(known.outcomes, []);
    let anew = site.submit(function, "c", &[1]).await;
    site.room(10);
    let sent = site.sent(2).await;
    assert_eq!(
        sent.iter().map(|task| task.attempt.task).collect::<Vec<_>>(),
        [waiting[0], anew[0]]
    );
}

#[tokio::test]
async fn restarted_manager_reruns_task_without_known_result() {
    let directory = tempfile::tempdir().unwrap();
    let mut site = Site::start(directory.path()).await;
    let function = site.register(None, &[]).await.id;
    site.room(1);
    let tasks = site.submit(function, "a", &[1, 1]).await;
    assert_eq!(site.sent(1).await[0].attempt.task, tasks[0]);
    drop(site);
    // Its dispatcher ended with it: the first task may have been executed, and the second has no result to wait for.
    let mut site = Site::start(directory.path()).await;
    assert_eq!(site.outcome(tasks[0]).await.code(), Some(Code::MaybeExecuted));
    site.room(1);
    let sent = site.sent(1).await;
    assert_eq!(sent[0].attempt.task, tasks[1]);
    site.execute(&sent[0]);
    assert_eq!(site.outcome(tasks[1]).await.answer[..], [1]);
}

#[tokio::test]
async fn dispatcher_decides_which_sent_tasks_are_withdrawn() {
    let directory = tempfile::tempdir().unwrap();
    let mut site = Site::start(directory.path()).await;
    let function = site.register(None, &[]).await.id;
    site.room(2);
    let tasks = site.submit(function, "a", &[1, 2, 3]).await;
    let sent = site.sent(2).await;
    let what = Cancellation {
        tasks: tasks.clone(),
        only_waiting: true,
        ..Cancellation::default()
    };
    let cancelling = tokio::spawn({
        let tasks = Arc::clone(&site.tasks);
        async move { tasks.cancel(&TaskScope::of(TENANT), what).await }
    });
    let number = loop {
        let heard = tokio::time::timeout(TIMEOUT, site.dispatcher.from_manager.recv()).await;
        if let ToDispatcher::Withdraw { number, attempts } = heard.expect("in time").expect("a manager") {
            assert_eq!(attempts.len(), 2);
            break number;
        }
    };
    let withdrawn = FromDispatcher::Withdrawn {
        number,
        attempts: vec![sent[0].attempt],
    };
    site.dispatcher.to_manager.send(withdrawn).unwrap();
    let cancelled = CancelledTasks {
        ended: 2,
        told: 0,
        running: 1,
    };
    assert_eq!(cancelling.await.unwrap(), cancelled);
    assert_eq!(site.outcome(tasks[2]).await.code(), Some(Code::Cancelled));
    site.execute(&sent[1]);
    assert_eq!(site.outcome(tasks[1]).await.answer[..], [2]);
    // The dispatcher ends before it reports the end of the withdrawn task, which was certainly not executed.
    site.dispatcher = site.tasks.attach(LOCAL).await.unwrap();
    assert_eq!(site.outcome(tasks[0]).await.code(), Some(Code::Cancelled));
}

#[tokio::test]
async fn unneeded_function_is_removed_and_its_results_stay() {
    let directory = tempfile::tempdir().unwrap();
    let site = Site::start(directory.path()).await;
    let function = site.register(Some("f"), &[]).await;
    let tasks = site.submit(function.id, "a", &[1]).await;
    let remove = |site: &Site, which: &str| {
        let (tasks, which) = (Arc::clone(&site.tasks), which.to_owned());
        async move { tasks.remove_function(TENANT, false, which).await }
    };
    let refusal = remove(&site, "f").await.unwrap_err();
    assert_eq!(refusal.code, Code::InvalidRequest);
    assert!(refusal.message.contains("1 task "), "{refusal}");
    site.cancel(tasks.clone()).await;
    assert_eq!(remove(&site, "g").await.unwrap_err().code, Code::NotFound);
    assert_eq!(remove(&site, "f").await.unwrap()[..], *std::slice::from_ref(&function));
    assert_eq!(remove(&site, "f").await.unwrap_err().code, Code::NotFound);
    assert_eq!(site.tasks.code(function.id).await.unwrap_err().code, Code::NotFound);
    let (_, status) = site.tasks.status(tasks[0]).await.unwrap().expect("the task");
    assert_eq!(
        (status.function, status.name.as_str(), status.state),
        (function.id, "", TaskState::Done)
    );
    drop(site);
    let site = Site::start(directory.path()).await;
    assert_eq!(site.tasks.functions(), []);
    let again = site.register(Some("f"), &[]).await;
    assert_eq!((again.id, again.version), (function.id, 1));
    let (_, status) = site.tasks.status(tasks[0]).await.unwrap().expect("the task");
    assert_eq!(status.name, "f");
}

#[tokio::test]
async fn last_registration_decides_who_shares_a_function() {
    let directory = tempfile::tempdir().unwrap();
    let site = Site::start(directory.path()).await;
    let shared = async |with: &[&str]| {
        let function = site.register(Some("f"), with).await;
        assert_eq!(function.version, 1);
        function.spec.shared_with.clone()
    };
    assert_eq!(shared(&["ann"]).await, ["ann"]);
    site.tasks.share(TENANT, "f", Vec::new()).await.unwrap();
    assert_eq!(shared(&["ann"]).await, ["ann"]);
    assert_eq!(shared(&["bob", "ann"]).await, ["bob", "ann"]);
    // An empty list changes nothing.
    assert_eq!(shared(&[]).await, ["bob", "ann"]);
}

#[tokio::test]
async fn code_outside_the_cache_is_read_and_sent() {
    let directory = tempfile::tempdir().unwrap();
    let site = Site::start(directory.path()).await;
    let function = site.register(None, &[]).await.id;
    drop(site);
    let mut site = Site::start(directory.path()).await;
    assert_eq!(site.tasks.state().functions.code(function), None);
    site.submit(function, "a", &[1]).await;
    site.room(1);
    let heard = async {
        loop {
            if let Some(ToDispatcher::Program(program)) = site.dispatcher.from_manager.recv().await {
                return program;
            }
        }
    };
    let program = tokio::time::timeout(TIMEOUT, heard).await.expect("it in time");
    assert_eq!((program.id, &program.code[..]), (function, &b"def f(x): return x"[..]));
    assert!(site.tasks.state().functions.code(function).is_some());
}

impl Site {
    fn print(&self, attempt: Attempt, text: &str) {
        let printed = TaskOutput {
            attempt,
            stream: Stream::Out,
            bytes: text.as_bytes().to_vec().into(),
            loans: None,
        };
        self.dispatcher
            .to_manager
            .send(FromDispatcher::Printed(vec![printed]))
            .unwrap();
    }

    /// Waits until the task's output ends with `end`, and returns all of it.
    async fn printed(&self, task: TaskId, end: &str) -> String {
        let (_, status) = self.tasks.status(task).await.unwrap().unwrap();
        let begun = std::time::Instant::now();
        loop {
            let printed = self.tasks.output(&status, 0, TIMEOUT).await.unwrap();
            let bytes: Vec<u8> = printed.pieces.iter().flat_map(|piece| piece.bytes.to_vec()).collect();
            let text = String::from_utf8(bytes).unwrap();
            if text.ends_with(end) {
                return text;
            }
            assert!(begun.elapsed() < TIMEOUT, "{text}");
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn printed_output_is_counted_and_joined_after_restart() {
    let directory = tempfile::tempdir().unwrap();
    let mut site = Site::start(directory.path()).await;
    let function = site.register(None, &[]).await.id;
    let task = site.submit(function, "a", &[1]).await[0];
    site.room(1);
    let sent = site.sent(1).await.remove(0);
    site.print(sent.attempt, "early ");
    site.execute(&sent);
    site.outcome(task).await;
    site.tasks.write_output().await.unwrap();
    let kept = site.tasks.contents.usage(TENANT).bytes;
    assert!(kept > 6);
    drop(site);
    let site = Site::start(directory.path()).await;
    assert_eq!(site.tasks.contents.usage(TENANT).bytes, kept);
    // This output arrives after the task's end and after a restart.
    site.print(sent.attempt, "late");
    assert_eq!(site.printed(task, "late").await, "early late");
    site.tasks.write_output().await.unwrap();
    drop(site);
    let site = Site::start(directory.path()).await;
    assert_eq!(site.printed(task, "late").await, "early late");
    let what = TaskDeletion {
        tasks: vec![task],
        tag: None,
    };
    assert_eq!(site.tasks.delete_tasks(TENANT, what).await.unwrap().forgotten, 1);
    assert_eq!(site.tasks.contents.usage(TENANT).bytes, 0);
}

impl Site {
    /// Reports a series with this amount for an attempt.
    fn report_loans(&self, attempt: Attempt, borrowed: u64) {
        let point = LoanPoint {
            us: 100_000,
            borrowed: CallResources {
                milli_cores: borrowed,
                memory_bytes: 0,
            },
            ..LoanPoint::default()
        };
        // Dispatchers send it as any series; the manager checks it.
        let series = serde_json::to_value([point]).and_then(serde_json::from_value).unwrap();
        let reported = TaskOutput::of_loans(attempt, series);
        self.dispatcher
            .to_manager
            .send(FromDispatcher::Printed(vec![reported]))
            .unwrap();
    }

    async fn loans(&self, task: TaskId) -> Result<u64, Failure> {
        let (_, status) = self.tasks.status(task).await.unwrap().unwrap();
        let found = self.tasks.loans(&status).await;
        found.map(|loans| loans.sums.borrowed.core_us)
    }

    /// Waits until the task's loans have this sum.
    async fn has_borrowed(&self, task: TaskId, core_us: u64) {
        let begun = std::time::Instant::now();
        while self.loans(task).await.ok() != Some(core_us) {
            assert!(begun.elapsed() < TIMEOUT, "{:?}", self.loans(task).await);
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn loans_before_and_after_the_end_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    let mut site = Site::start(directory.path()).await;
    let function = site.register(None, &[]).await.id;
    let tasks = site.submit(function, "a", &[1, 2, 3]).await;
    site.room(3);
    let sent = site.sent(3).await;
    site.report_loans(sent[0].attempt, 500);
    sent.iter().for_each(|task| site.execute(task));
    for task in &tasks {
        site.outcome(*task).await;
    }
    site.report_loans(sent[1].attempt, 250);
    for impossible in [u64::MAX, 1 << 40] {
        site.report_loans(sent[2].attempt, impossible);
    }
    site.has_borrowed(tasks[0], 50_000).await;
    site.has_borrowed(tasks[1], 25_000).await;
    site.tasks.write_output().await.unwrap();
    site.has_borrowed(tasks[0], 50_000).await;
    let unknown = site.loans(tasks[2]).await.unwrap_err();
    assert_eq!(unknown.code, Code::NotFound);
    assert!(unknown.message.contains("--harvest watch"), "{unknown}");
    drop(site);
    let site = Site::start(directory.path()).await;
    assert_eq!(site.loans(tasks[0]).await, Ok(50_000));
    assert_eq!(site.loans(tasks[1]).await, Ok(25_000));
}

#[tokio::test]
async fn reason_for_unknown_loans_fits_the_task() {
    let directory = tempfile::tempdir().unwrap();
    let site = Site::start(directory.path()).await;
    let function = site.register(None, &[]).await.id;
    let task = site.submit(function, "a", &[1]).await[0];
    let reason = site.loans(task).await.unwrap_err();
    assert!(reason.message.contains("when it has ended"), "{reason}");
    site.cancel(vec![task]).await;
    let reason = site.loans(task).await.unwrap_err();
    assert!(reason.message.contains("was not executed"), "{reason}");
}

#[tokio::test]
async fn waiting_task_is_found_by_either_id_end() {
    let directory = tempfile::tempdir().unwrap();
    let site = Site::start(directory.path()).await;
    let function = site.register(None, &[]).await.id;
    let task = site.submit(function, "a", &[1]).await[0];
    let id = task.to_string();
    let resolved = async |digits: &str, tenant| {
        let given = digits.parse::<IdPattern>().unwrap();
        site.tasks.resolve(&given, tenant).await.map_err(|failure| failure.code)
    };
    for part in [&id[..], &id[..30], &id[26..], &id[15..]] {
        assert_eq!(resolved(part, Some(TENANT)).await, Ok(task), "{part}");
    }
    assert_eq!(resolved(&id[15..], None).await, Ok(task));
    assert_eq!(resolved(&id[15..], Some(TenantId([9; 16]))).await, Err(Code::NotFound));
    let ends = |site: &Site| site.tasks.state().tasks.indexed_ends();
    assert_eq!(ends(&site), 1);
    site.cancel(vec![task]).await;
    assert_eq!(ends(&site), 0);
    assert_eq!(resolved(&id[26..], Some(TENANT)).await, Ok(task));
}
