//! Properties of every store of tasks.

use dayfly_protocol::api::Runtime;
use dayfly_protocol::contents::{Content, Payload};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::exception::Exception;
use dayfly_protocol::executor::Form;
use dayfly_protocol::functions::Resources;
use dayfly_protocol::ids::{CodeHash, ContentHash, EndpointId, FunctionId, TaskId, TenantId};
use dayfly_protocol::tasks::{ResultOrigin, TaskOutcome};

use crate::tasks::{
    EndedTask, FunctionRecord, FunctionSpec, MAX_SHORT_ARGUMENTS, NewTask, TaskInputs, TaskQuery, TaskSpec, TaskStore,
    Tries,
};

/// The tenant of all [`task`]s and [`function`]s.
pub(crate) const TENANT: TenantId = TenantId([1; 16]);
/// The function of all [`task`]s.
pub(crate) const FUNCTION: FunctionId = FunctionId([2; 16]);
/// The endpoint of all [`task`]s.
pub(crate) const ENDPOINT: EndpointId = EndpointId([3; 16]);

/// Returns a function that is shared with all tenants.
pub fn function(id: u8, name: &str) -> FunctionRecord {
    FunctionRecord {
        id: FunctionId([id; 16]),
        tenant: TENANT,
        name: Some(name.into()),
        version: 0,
        hash: CodeHash([5; 32]),
        spec: FunctionSpec {
            description: String::new(),
            source: String::new(),
            form: Form::Source { entry: "f".into() },
            runtime: Runtime::any_python(),
            image: None,
            resources: Resources::default(),
            repeatable: false,
            shared_with: vec!["*".into()],
        },
        registered_at_ms: 7,
    }
}

/// Origin of the results of all [`task`]s.
const RAN: ResultOrigin = ResultOrigin {
    tenant: TENANT,
    function: FUNCTION,
    endpoint: ENDPOINT,
};

/// Returns a newly submitted task.
pub fn task(id: u8, tag: &str) -> NewTask {
    NewTask {
        spec: TaskSpec {
            id: TaskId([id; 16]),
            tenant: TENANT,
            function: FUNCTION,
            endpoint: ENDPOINT,
            tag: tag.into(),
            priority: -3,
            walltime_ms: 0,
            repeatable: true,
            retry_wait_ms: 250,
            deadline_at_ms: 0,
            submitted_at_ms: 11,
            after: Vec::new(),
            with_answers: false,
            memo: None,
        },
        tries: Tries::default(),
        arguments: Payload::Inline(vec![id; 3].into()),
    }
}

/// Returns the end of a [`task`], with its number among all outcomes.
pub(crate) fn ended(id: u8, number: u64, error: Option<Failure>) -> EndedTask {
    EndedTask {
        outcome: TaskOutcome {
            id: TaskId([id; 16]),
            number,
            error,
            raised: false,
            answer: vec![id].into(),
            content: None,
            result: None,
            attempts: 2,
            foreign: Vec::new(),
            ran: Some(RAN),
        },
        waiting_at_ms: 10,
        environment_at_ms: 11,
        started_at_ms: 12,
        ended_at_ms: 13,
        keeps_arguments: false,
    }
}

pub async fn repeated_task_is_stored_once_with_one_outcome(store: &dyn TaskStore) {
    let kept = store.enqueue(vec![task(1, "a"), task(2, "a")]).wait().await;
    assert_eq!(kept, Ok(vec![true, true]));
    let again = store.enqueue(vec![task(2, "b"), task(3, "a")]).wait().await;
    assert_eq!(again, Ok(vec![false, true]));
    let failure = Failure::new(Code::MaybeExecuted, "who knows");
    store
        .end(vec![ended(1, 1, None), ended(2, 2, Some(failure.clone()))], Vec::new())
        .wait()
        .await
        .unwrap();
    store.end(vec![ended(2, 3, None)], Vec::new()).wait().await.unwrap();
    let outcomes = store.outcomes(TENANT, "a".into(), 0, 10).wait().await.unwrap();
    assert_eq!(outcomes.iter().map(|one| one.number).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(outcomes[1].error, Some(failure));
    assert_eq!(store.outcomes(TENANT, "a".into(), 1, 10).wait().await.unwrap().len(), 1);
    assert_eq!(store.outcomes(TENANT, "b".into(), 0, 10).wait().await, Ok(vec![]));
    let left = store.load().wait().await.unwrap();
    assert_eq!(left.last_number, 2);
    assert_eq!(
        left.tasks.iter().map(|one| one.spec.id).collect::<Vec<_>>(),
        [TaskId([3; 16])]
    );
}

pub async fn arguments_of_failed_tasks_are_kept(store: &dyn TaskStore) {
    let content = Content {
        hash: ContentHash([9; 32]),
        bytes: 1 << 40,
    };
    store.keep_content(TENANT, content, 1).wait().await.unwrap();
    let given = |id: u8, arguments: Payload| NewTask {
        arguments,
        ..task(id, "a")
    };
    let long = Payload::Inline(vec![3; MAX_SHORT_ARGUMENTS + 1].into());
    let stored = Payload::Stored(content);
    let tasks = vec![
        task(1, "a"),
        task(2, "a"),
        given(3, long.clone()),
        given(4, long.clone()),
        given(5, stored.clone()),
        given(6, stored.clone()),
        given(7, long.clone()),
    ];
    store.enqueue(tasks).wait().await.unwrap();
    let kept = |id: u8| store.kept_arguments(TaskId([id; 16])).wait();
    assert_eq!(kept(2).await, Ok(None), "it has not ended");
    let failure = Some(Failure::new(Code::FunctionError, "oh"));
    let keeping = |id: u8, error: Option<Failure>| EndedTask {
        keeps_arguments: true,
        ..ended(id, u64::from(id), error)
    };
    let ends = vec![
        keeping(1, None),
        ended(2, 2, failure.clone()),
        ended(3, 3, failure.clone()),
        keeping(4, failure.clone()),
        ended(5, 5, failure.clone()),
        keeping(6, failure.clone()),
        keeping(7, None),
    ];
    store.end(ends, Vec::new()).wait().await.unwrap();
    let short = Payload::Inline(vec![2; 3].into());
    let wanted = [None, Some(short), None, Some(long), None, Some(stored), None, None];
    for (id, wanted) in (1..).zip(wanted) {
        assert_eq!(kept(id).await, Ok(wanted), "{id}");
    }
    let record = |id: u8| store.task(TaskId([id; 16])).wait();
    let sizes = [3, 3, 4097, 4097, 1 << 40, 1 << 40, 4097];
    for (id, bytes) in (1..).zip(sizes) {
        assert_eq!(record(id).await.unwrap().unwrap().argument_bytes, Some(bytes), "{id}");
    }
    assert_eq!(record(2).await.unwrap().unwrap().inline_bytes, 3);
    // The short ones do not count.
    assert_eq!(store.load().wait().await.unwrap().kept_bytes, [(TENANT, 4097)]);
    // A task refers to the content until it is deleted.
    assert_eq!(store.unused_contents(20).wait().await, Ok(vec![]));
    let gone = store
        .delete_tasks(TENANT, vec![TaskId([4; 16])], 9, Vec::new())
        .wait()
        .await
        .unwrap();
    assert_eq!(gone[0].freed_bytes, 4097);
    let step = store.delete_expired(20, TaskId([0; 16])).wait().await.unwrap();
    assert_eq!(step.freed_bytes, []);
    assert_eq!(store.unused_contents(20).wait().await, Ok(vec![(TENANT, content)]));
}

pub async fn exception_is_stored_and_omitted_from_lists(store: &dyn TaskStore) {
    store.enqueue(vec![task(1, "a")]).wait().await.unwrap();
    let failure = Failure::raised(Exception {
        kind: "ValueError".into(),
        message: "late\0".into(),
        traceback: "Traceback\nValueError: late\0".into(),
    });
    let one = ended(1, 1, Some(failure.clone()));
    store.end(vec![one.clone()], Vec::new()).wait().await.unwrap();
    let id = TaskId([1; 16]);
    assert_eq!(store.outcome(id).wait().await, Ok(Some(one.outcome)));
    let record = store.task(id).wait().await.unwrap().expect("the task");
    assert_eq!(record.ended, Some((1, Some(failure.clone()))));
    let query = TaskQuery {
        limit: 10,
        ..TaskQuery::default()
    };
    let listed = store.tasks(query).wait().await.unwrap();
    assert_eq!(
        listed.tasks[0].ended,
        Some((1, Some(failure.clone().without_exception())))
    );
    let outcomes = store.outcomes(TENANT, "a".into(), 0, 10).wait().await.unwrap();
    assert_eq!(outcomes[0].error, Some(failure.without_exception()));
}

pub async fn begun_execution_is_stored_and_returns_requested_inputs(store: &dyn TaskStore) {
    store.enqueue(vec![task(1, "a"), task(2, "a")]).wait().await.unwrap();
    let tries = Tries {
        attempts: 1,
        retries_left: 4,
        faults: 2,
    };
    let begun = vec![(TaskId([1; 16]), tries, false), (TaskId([2; 16]), tries, true)];
    assert_eq!(
        store.begin(begun).wait().await,
        Ok(vec![TaskInputs {
            arguments: Payload::Inline(vec![2; 3].into()),
            ..TaskInputs::default()
        }])
    );
    assert_eq!(store.task(TaskId([1; 16])).wait().await.unwrap().unwrap().tries, tries);
}

pub async fn task_receives_results_of_dependencies_in_order(store: &dyn TaskStore) {
    let mut last = task(9, "a");
    last.spec.after = vec![TaskId([2; 16]), TaskId([1; 16]), TaskId([3; 16])];
    last.spec.with_answers = true;
    let all = vec![task(1, "a"), task(2, "a"), task(3, "a"), last];
    store.enqueue(all).wait().await.unwrap();
    let failure = Failure::new(Code::FunctionError, "oh");
    let ends = vec![ended(1, 1, None), ended(2, 2, None), ended(3, 3, Some(failure.clone()))];
    store.end(ends, Vec::new()).wait().await.unwrap();
    let begun = vec![(TaskId([9; 16]), Tries::default(), true)];
    let inputs = store.begin(begun).wait().await.unwrap().remove(0);
    assert_eq!(inputs.arguments, Payload::Inline(vec![9; 3].into()));
    let answer = |byte: u8| Some(Payload::Inline(vec![byte].into()));
    assert_eq!(inputs.answers, [answer(2), answer(1), None]);
    assert_eq!(inputs.ran, [Some(RAN), Some(RAN), None]);
    let mut left = store.load().wait().await.unwrap();
    left.endings.sort_by_key(|(task, _)| *task);
    let ending = |id, failure| (TaskId([id; 16]), failure);
    assert_eq!(
        left.endings,
        [ending(1, None), ending(2, None), ending(3, Some(failure))]
    );
    assert_eq!(left.tasks[0].spec.after.len(), 3);
    let asked = vec![TaskId([1; 16]), TaskId([9; 16]), TaskId([7; 16])];
    assert_eq!(
        store.endings(asked).wait().await,
        Ok(vec![Some((TENANT, None)), None, None])
    );
}

#[doc(hidden)]
#[macro_export]
macro_rules! store_tests_of_tasks {
    ($open:path) => {
        $crate::conformance_tests!(
            $open,
            tasks,
            repeated_task_is_stored_once_with_one_outcome,
            arguments_of_failed_tasks_are_kept,
            exception_is_stored_and_omitted_from_lists,
            begun_execution_is_stored_and_returns_requested_inputs,
            task_receives_results_of_dependencies_in_order
        );
    };
}
