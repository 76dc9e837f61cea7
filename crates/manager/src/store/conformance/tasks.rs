//! What every store of tasks does.

use mayfly_protocol::api::Runtime;
use mayfly_protocol::blob::Blob;
use mayfly_protocol::contents::{Content, Payload};
use mayfly_protocol::error::{Code, Failure};
use mayfly_protocol::executor::Form;
use mayfly_protocol::ids::{CodeHash, ContentHash, EndpointId, FunctionId, TaskId, TenantId};
use mayfly_protocol::tasks::{EndpointSpec, Resources, TaskOutcome};

use crate::store::tasks::{
    EndedTask, EndpointRecord, FunctionRecord, FunctionSpec, Given, NewTask, PAGE_BYTES, TaskQuery, TaskSpec,
    TaskStore, Tries,
};

pub const TENANT: TenantId = TenantId([1; 16]);
pub const FUNCTION: FunctionId = FunctionId([2; 16]);
pub const ENDPOINT: EndpointId = EndpointId([3; 16]);

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
        },
        tries: Tries::default(),
        arguments: Payload::Here(vec![id; 3].into()),
    }
}

pub fn ended(id: u8, number: u64, error: Option<Failure>) -> EndedTask {
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
        },
        waiting_at_ms: 10,
        environment_at_ms: 11,
        started_at_ms: 12,
        ended_at_ms: 13,
    }
}

pub async fn a_task_is_kept_once_and_has_one_outcome_whatever_is_said_again(store: &dyn TaskStore) {
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

pub async fn what_begins_is_written_down_and_its_arguments_are_read_where_they_are_wanted(store: &dyn TaskStore) {
    store.enqueue(vec![task(1, "a"), task(2, "a")]).wait().await.unwrap();
    let tries = Tries {
        attempts: 1,
        retries_left: 4,
        faults: 2,
    };
    let begun = vec![(TaskId([1; 16]), tries, false), (TaskId([2; 16]), tries, true)];
    assert_eq!(
        store.begin(begun).wait().await,
        Ok(vec![Given {
            arguments: Payload::Here(vec![2; 3].into()),
            answers: Vec::new(),
        }])
    );
    assert_eq!(store.task(TaskId([1; 16])).wait().await.unwrap().unwrap().tries, tries);
}

pub async fn a_task_is_given_the_answers_of_those_before_it_in_their_order(store: &dyn TaskStore) {
    let mut last = task(9, "a");
    last.spec.after = vec![TaskId([2; 16]), TaskId([1; 16]), TaskId([3; 16])];
    last.spec.with_answers = true;
    let all = vec![task(1, "a"), task(2, "a"), task(3, "a"), last];
    store.enqueue(all).wait().await.unwrap();
    let failure = Failure::new(Code::FunctionError, "oh");
    let ends = vec![ended(1, 1, None), ended(2, 2, None), ended(3, 3, Some(failure.clone()))];
    store.end(ends, Vec::new()).wait().await.unwrap();
    let begun = vec![(TaskId([9; 16]), Tries::default(), true)];
    let given = store.begin(begun).wait().await.unwrap().remove(0);
    assert_eq!(given.arguments, Payload::Here(vec![9; 3].into()));
    let answer = |byte: u8| Some(Payload::Here(vec![byte].into()));
    assert_eq!(given.answers, [answer(2), answer(1), None]);
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

pub async fn a_name_has_versions_and_a_function_is_kept_once(store: &dyn TaskStore) {
    let code = || Blob::from(b"def f(): pass".to_vec());
    assert_eq!(
        store.register(function(1, "f"), code()).wait().await.unwrap().version,
        1
    );
    assert_eq!(
        store.register(function(2, "f"), code()).wait().await.unwrap().version,
        2
    );
    assert_eq!(
        store.register(function(1, "f"), code()).wait().await.unwrap().version,
        1
    );
    assert_eq!(
        store.register(function(3, "g"), code()).wait().await.unwrap().version,
        1
    );
    assert_eq!(store.code(FunctionId([2; 16])).wait().await, Ok(Some(code())));
    assert_eq!(store.code(FunctionId([9; 16])).wait().await, Ok(None));
    assert_eq!(store.load().wait().await.unwrap().functions.len(), 3);
}

pub async fn what_is_said_of_a_function_changes_and_nothing_else_does(store: &dyn TaskStore) {
    let kept = store.register(function(1, "f"), Blob::default()).wait().await.unwrap();
    store.register(function(2, "f"), Blob::default()).wait().await.unwrap();
    let spec = FunctionSpec {
        shared_with: vec!["team:ours".into(), "ann".into()],
        ..kept.spec.clone()
    };
    let unknown = (FunctionId([9; 16]), spec.clone());
    store
        .change(vec![(kept.id, spec.clone()), unknown])
        .wait()
        .await
        .unwrap();
    let mut functions = store.load().wait().await.unwrap().functions;
    functions.sort_by_key(|function| function.id);
    assert_eq!(functions[0], FunctionRecord { spec, ..kept });
    assert_eq!((functions.len(), &functions[1].spec), (2, &function(2, "f").spec));
}

pub async fn what_ended_long_ago_is_forgotten_and_what_waits_is_not(store: &dyn TaskStore) {
    store
        .enqueue((1..=5).map(|id| task(id, "a")).collect())
        .wait()
        .await
        .unwrap();
    store
        .end(vec![ended(1, 1, None), ended(2, 2, None)], Vec::new())
        .wait()
        .await
        .unwrap();
    assert_eq!(store.forget(13, TaskId([0; 16])).wait().await, Ok(None));
    assert_eq!(
        store
            .tasks(TaskQuery {
                limit: 10,
                ..TaskQuery::default()
            })
            .wait()
            .await
            .unwrap()
            .len(),
        5
    );
    store.forget(14, TaskId([0; 16])).wait().await.unwrap();
    let left = store
        .tasks(TaskQuery {
            limit: 10,
            ..TaskQuery::default()
        })
        .wait()
        .await
        .unwrap();
    assert_eq!(left.iter().map(|one| one.spec.id.0[0]).collect::<Vec<_>>(), [5, 4, 3]);
}

pub async fn an_answer_of_outcomes_ends_when_it_is_long_and_the_next_one_goes_on(store: &dyn TaskStore) {
    let all: Vec<u8> = (1..=4).collect();
    store
        .enqueue(all.iter().map(|id| task(*id, "a\0b")).collect())
        .wait()
        .await
        .unwrap();
    let long = |id: &u8| EndedTask {
        outcome: TaskOutcome {
            answer: vec![*id; PAGE_BYTES / 2].into(),
            ..ended(*id, u64::from(*id), None).outcome
        },
        ..ended(*id, 0, None)
    };
    store
        .end(all.iter().map(long).collect(), Vec::new())
        .wait()
        .await
        .unwrap();
    let first = store.outcomes(TENANT, "a\0b".into(), 0, 9).wait().await.unwrap();
    assert_eq!(first.iter().map(|one| one.number).collect::<Vec<_>>(), [1, 2]);
    let rest = store.outcomes(TENANT, "a\0b".into(), 2, 9).wait().await.unwrap();
    assert_eq!(rest, [long(&3).outcome, long(&4).outcome]);
}

pub async fn a_task_is_found_by_whose_it_is_and_where_with_all_that_was_said_of_it(store: &dyn TaskStore) {
    let failure = Failure::new(Code::FunctionError, "a \0 in a text");
    let mut other = task(2, "b");
    other.spec.endpoint = EndpointId([8; 16]);
    store
        .enqueue(vec![task(1, "a"), other.clone(), task(3, "a")])
        .wait()
        .await
        .unwrap();
    store
        .end(vec![ended(3, 1, Some(failure.clone()))], Vec::new())
        .wait()
        .await
        .unwrap();
    let found = async |query: TaskQuery| {
        let found = store.tasks(TaskQuery { limit: 9, ..query }).wait().await.unwrap();
        found.iter().map(|one| one.spec.id.0[0]).collect::<Vec<_>>()
    };
    let by = TaskQuery::default;
    assert_eq!(
        found(TaskQuery {
            tag: Some("a".into()),
            ..by()
        })
        .await,
        [3, 1]
    );
    assert_eq!(
        found(TaskQuery {
            endpoint: Some(EndpointId([8; 16])),
            ..by()
        })
        .await,
        [2]
    );
    assert_eq!(
        found(TaskQuery {
            tenant: Some(TenantId([9; 16])),
            ..by()
        })
        .await,
        [0; 0]
    );
    assert_eq!(
        found(TaskQuery {
            before: Some(TaskId([3; 16])),
            ..by()
        })
        .await,
        [2, 1]
    );
    let known = store.task(TaskId([2; 16])).wait().await.unwrap().unwrap();
    assert_eq!((known.spec, known.ended), (other.spec, None));
    let known = store.task(TaskId([3; 16])).wait().await.unwrap().unwrap();
    assert_eq!(known.ended, Some((1, Some(failure))));
    assert_eq!((known.waiting_at_ms, known.environment_at_ms), (10, 11));
    assert_eq!((known.started_at_ms, known.ended_at_ms), (12, 13));
}

pub async fn a_content_is_known_until_nobody_needs_it(store: &dyn TaskStore) {
    let content = |id: u8| Content {
        hash: ContentHash([id; 32]),
        bytes: u64::from(id) << 40,
    };
    for (id, at_ms) in [(1, 10), (2, 10), (3, 30)] {
        assert_eq!(store.keep_content(TENANT, content(id), at_ms).wait().await, Ok(true));
    }
    assert_eq!(store.keep_content(TENANT, content(1), 10).wait().await, Ok(false));
    let given = NewTask {
        arguments: Payload::Stored(content(1)),
        ..task(1, "a")
    };
    store.enqueue(vec![given]).wait().await.unwrap();
    let begun = vec![(TaskId([1; 16]), Tries::default(), true)];
    let arguments = store.begin(begun).wait().await.unwrap().remove(0).arguments;
    assert_eq!(arguments, Payload::Stored(content(1)));
    assert_eq!(store.load().wait().await.unwrap().contents, [(TENANT, 6 << 40)]);
    // The first is a task's, and the last was used lately.
    assert_eq!(store.unused_contents(20).wait().await, Ok(vec![(TENANT, content(2))]));
    let hashes = vec![content(3).hash, content(2).hash, content(1).hash];
    let known = store.use_contents(TENANT, hashes, 40).wait().await;
    assert_eq!(known, Ok(vec![Some(content(3)), None, Some(content(1))]));
    // Stored again before it is deleted, it stays.
    assert_eq!(store.keep_content(TENANT, content(2), 40).wait().await, Ok(false));
    store.drop_contents(vec![(TENANT, content(2))]).wait().await.unwrap();
    assert_eq!(
        store.use_contents(TENANT, vec![content(2).hash], 40).wait().await,
        Ok(vec![Some(content(2))])
    );
    let answered = EndedTask {
        outcome: TaskOutcome {
            answer: Blob::default(),
            content: Some(content(2)),
            ..ended(1, 1, None).outcome
        },
        ..ended(1, 1, None)
    };
    store.end(vec![answered.clone()], Vec::new()).wait().await.unwrap();
    assert_eq!(store.outcome(TaskId([1; 16])).wait().await, Ok(Some(answered.outcome)));
    let mut unused = store.unused_contents(50).wait().await.unwrap();
    unused.sort_by_key(|(_, content)| content.bytes);
    assert_eq!(unused, [(TENANT, content(1)), (TENANT, content(3))]);
    store.drop_contents(unused).wait().await.unwrap();
    assert_eq!(store.load().wait().await.unwrap().contents, [(TENANT, 2 << 40)]);
}

pub async fn the_process_that_tasks_went_to_last_is_known(store: &dyn TaskStore) {
    let endpoint = EndpointRecord {
        id: ENDPOINT,
        name: "here".into(),
        tenant: TENANT,
        spec: EndpointSpec::default(),
        of: None,
    };
    store.endpoint(endpoint.clone()).wait().await.unwrap();
    assert_eq!(store.load().wait().await.unwrap().instances, []);
    store.instance(ENDPOINT, u64::MAX).wait().await.unwrap();
    store.instance(ENDPOINT, u64::MAX - 1).wait().await.unwrap();
    // What it is told to be is another matter.
    store.endpoint(endpoint).wait().await.unwrap();
    assert_eq!(store.load().wait().await.unwrap().instances, [(ENDPOINT, u64::MAX - 1)]);
    store.remove_endpoint(ENDPOINT).wait().await.unwrap();
    assert_eq!(store.load().wait().await.unwrap().endpoints, []);
}

task_suite!(
    the_process_that_tasks_went_to_last_is_known,
    a_task_is_kept_once_and_has_one_outcome_whatever_is_said_again,
    what_begins_is_written_down_and_its_arguments_are_read_where_they_are_wanted,
    a_task_is_given_the_answers_of_those_before_it_in_their_order,
    a_name_has_versions_and_a_function_is_kept_once,
    what_is_said_of_a_function_changes_and_nothing_else_does,
    what_ended_long_ago_is_forgotten_and_what_waits_is_not,
    an_answer_of_outcomes_ends_when_it_is_long_and_the_next_one_goes_on,
    a_task_is_found_by_whose_it_is_and_where_with_all_that_was_said_of_it,
    a_content_is_known_until_nobody_needs_it
);
