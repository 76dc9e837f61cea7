//! Properties of every store of tasks.

use dayfly_protocol::api::Runtime;
use dayfly_protocol::blob::Blob;
use dayfly_protocol::contents::{Content, Payload};
use dayfly_protocol::endpoints::EndpointSpec;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::exception::Exception;
use dayfly_protocol::executor::Form;
use dayfly_protocol::functions::Resources;
use dayfly_protocol::ids::{CodeHash, ContentHash, EndpointId, FunctionId, TaskId, TenantId};
use dayfly_protocol::node_api::Stream;
use dayfly_protocol::tasks::{OutputPiece, ResultOrigin, TaskCounts, TaskOutcome, TaskTimes};

use crate::tasks::{
    EndedTask, EndpointRecord, FunctionRecord, FunctionSpec, Given, Gone, How, KeptOutput, LOOK, Like, Memoized,
    NewTask, PAGE_BYTES, TALLIED, TaskQuery, TaskSpec, TaskStore, Tries,
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

pub async fn exception_is_kept_and_left_out_of_lists(store: &dyn TaskStore) {
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

pub async fn ids_are_found_by_beginning_and_end_within_one_tenant(store: &dyn TaskStore) {
    let with_end = |first: u8, last: u8, tenant: TenantId| {
        let mut new = task(first, "a");
        new.spec.id.0[15] = last;
        new.spec.tenant = tenant;
        new
    };
    let other = TenantId([9; 16]);
    let tasks = vec![with_end(1, 7, TENANT), with_end(2, 7, TENANT), with_end(3, 7, other)];
    let ids: Vec<TaskId> = tasks.iter().map(|task| task.spec.id).collect();
    store.enqueue(tasks).wait().await.unwrap();
    let found = async |tenant, digits: &str| {
        let like = Like {
            tenant,
            digits: digits.into(),
            from: TaskId([0; 16]),
            before: TaskId([0xff; 16]),
        };
        let (mut found, next) = store.like(like).wait().await.unwrap();
        assert_eq!(next, None);
        found.sort_unstable();
        found
    };
    assert_eq!(found(Some(TENANT), "010101").await, [ids[0]]);
    assert_eq!(found(Some(TENANT), "020207").await, [ids[1]]);
    assert_eq!(found(Some(TENANT), "07").await, [ids[0], ids[1]]);
    assert_eq!(found(None, "07").await, ids);
    assert_eq!(found(Some(other), "010101").await, []);
}

pub async fn printed_output_is_kept_until_its_task_is_forgotten(store: &dyn TaskStore) {
    store
        .enqueue(vec![task(1, "a"), task(2, "a"), task(3, "a")])
        .wait()
        .await
        .unwrap();
    let outcomes = vec![ended(1, 1, None), ended(2, 2, None)];
    store.end(outcomes, Vec::new()).wait().await.unwrap();
    let output = |id: u8, endpoint, text: &str| KeptOutput {
        task: TaskId([id; 16]),
        endpoint,
        first: 7,
        pieces: vec![OutputPiece {
            stream: Stream::Err,
            bytes: text.as_bytes().to_vec().into(),
        }],
    };
    let some = vec![
        output(1, ENDPOINT, "early"),
        output(2, ENDPOINT, "two"),
        output(3, ENDPOINT, "live"),
    ];
    let packed = |id: u8, text: &str| output(id, ENDPOINT, text).packed().len();
    let sum = |more: Vec<(TenantId, i64)>| {
        assert!(more.iter().all(|(tenant, _)| *tenant == TENANT));
        more.iter().map(|(_, bytes)| *bytes).sum::<i64>()
    };
    let more = store.keep_printed(some, Vec::new()).wait().await.unwrap();
    assert_eq!(sum(more) as usize, packed(1, "early") + packed(2, "two"));
    // The last write wins, and other endpoints' writes are ignored.
    let again = vec![output(1, ENDPOINT, "late\0!"), output(2, EndpointId([8; 16]), "forged")];
    let more = store.keep_printed(again, vec![TenantId([9; 16])]).wait().await.unwrap();
    assert_eq!(sum(more), 1);
    // A tenant that has too much keeps its existing output.
    let refused = vec![output(1, ENDPOINT, "later still")];
    assert_eq!(store.keep_printed(refused, vec![TENANT]).wait().await, Ok(Vec::new()));
    let all = (packed(1, "late\0!") + packed(2, "two")) as u64;
    assert_eq!(store.load().wait().await.unwrap().printed, [(TENANT, all)]);
    let read = async |id: u8| store.printed(TaskId([id; 16])).wait().await.unwrap();
    let kept = |id: u8, text: &str| Some((7, output(id, ENDPOINT, text).pieces));
    assert_eq!([read(1).await, read(2).await], [kept(1, "late\0!"), kept(2, "two")]);
    assert_eq!([read(3).await, read(9).await], [None, None]);
    let gone = store
        .forget_these(TENANT, vec![TaskId([1; 16])], 9, Vec::new())
        .wait()
        .await
        .unwrap();
    assert_eq!((gone.len(), gone[0].printed_bytes as usize), (1, packed(1, "late\0!")));
    assert_eq!([read(1).await, read(2).await], [None, kept(2, "two")]);
    let passed = store.forget(14, TaskId([0; 16])).wait().await.unwrap();
    assert_eq!(passed.printed, [(TENANT, packed(2, "two") as u64)]);
    assert_eq!(read(2).await, None);
    assert_eq!(store.load().wait().await.unwrap().printed, []);
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
            arguments: Payload::Inline(vec![2; 3].into()),
            ..Given::default()
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
    assert_eq!(given.arguments, Payload::Inline(vec![9; 3].into()));
    let answer = |byte: u8| Some(Payload::Inline(vec![byte].into()));
    assert_eq!(given.answers, [answer(2), answer(1), None]);
    assert_eq!(given.ran, [Some(RAN), Some(RAN), None]);
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
    let passed = store.forget(13, TaskId([0; 16])).wait().await.unwrap();
    assert_eq!((passed.next, passed.functions), (None, vec![FUNCTION]));
    assert_eq!(
        store
            .tasks(TaskQuery {
                limit: 10,
                ..TaskQuery::default()
            })
            .wait()
            .await
            .unwrap()
            .tasks
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
    assert_eq!(
        left.tasks.iter().map(|one| one.spec.id.0[0]).collect::<Vec<_>>(),
        [5, 4, 3]
    );
}

pub async fn what_its_owner_forgets_is_gone_and_what_has_not_ended_is_not(store: &dyn TaskStore) {
    let mut memoized = task(2, "a");
    memoized.spec.memo = Some([7; 32]);
    let mut others = task(5, "a");
    others.spec.tenant = TenantId([9; 16]);
    let all = vec![task(1, "a"), memoized, task(3, "b"), task(4, "a"), others, task(6, "a")];
    store.enqueue(all).wait().await.unwrap();
    let ends = [(1, 1), (2, 2), (3, 3), (5, 4), (6, 5)].map(|(id, number)| ended(id, number, None));
    store.end(ends.to_vec(), Vec::new()).wait().await.unwrap();
    let id = |id: u8| TaskId([id; 16]);
    let found = async |after, up_to, most| {
        store
            .ended(TENANT, "a".into(), after, up_to, most)
            .wait()
            .await
            .unwrap()
    };
    assert_eq!(found(0, 9, 9).await, [(1, id(1)), (2, id(2)), (5, id(6))]);
    assert_eq!(found(1, 4, 9).await, [(2, id(2))]);
    assert_eq!(found(0, 9, 1).await, [(1, id(1))]);
    let all: Vec<TaskId> = (1..=7).map(id).collect();
    let mut gone = store
        .forget_these(TENANT, all, 4, vec!["b".into()])
        .wait()
        .await
        .unwrap();
    gone.sort_by_key(|gone| gone.id);
    let was = |task, memo| Gone {
        id: id(task),
        tag: "a".into(),
        memo,
        printed_bytes: 0,
    };
    assert_eq!(gone, [was(1, None), was(2, Some([7; 32]))]);
    for (task, there) in [(1, false), (2, false), (3, true), (4, true), (5, true), (6, true)] {
        assert_eq!(store.task(id(task)).wait().await.unwrap().is_some(), there, "{task}");
    }
}

pub async fn answers_that_others_may_have_are_found_the_last_first(store: &dyn TaskStore) {
    let memoized = |id: u8| {
        let mut task = task(id, "a");
        task.spec.memo = Some([id; 32]);
        task
    };
    let all = (1..=4).map(memoized).chain([task(5, "a")]).collect();
    store.enqueue(all).wait().await.unwrap();
    assert_eq!(store.load().wait().await.unwrap().tasks[0].spec, memoized(1).spec);
    let failure = Failure::new(Code::FunctionError, "oh");
    let old = EndedTask {
        ended_at_ms: 5,
        ..ended(1, 1, None)
    };
    let ends = vec![
        old,
        ended(2, 2, None),
        ended(3, 3, Some(failure)),
        ended(4, 4, None),
        ended(5, 5, None),
    ];
    store.end(ends, Vec::new()).wait().await.unwrap();
    let answer = |id: u8, ended_at_ms| Memoized {
        memo: [id; 32],
        answer: Payload::Inline(vec![id].into()),
        ended_at_ms,
    };
    let found = async |since_ms, most, bytes| store.memoized(since_ms, most, bytes).wait().await.unwrap();
    assert_eq!(found(0, 9, 9).await, [answer(4, 13), answer(2, 13), answer(1, 5)]);
    assert_eq!(found(6, 9, 9).await, [answer(4, 13), answer(2, 13)]);
    assert_eq!(found(0, 1, 9).await, [answer(4, 13)]);
    assert_eq!(found(0, 9, 1).await, [answer(4, 13)]);
}

pub async fn a_function_that_is_removed_is_gone_and_its_name_counts_on_from_those_that_are_there(
    store: &dyn TaskStore,
) {
    for (id, name) in [(1, "f"), (2, "f"), (3, "g")] {
        store
            .register(function(id, name), Blob::default())
            .wait()
            .await
            .unwrap();
    }
    let unknown = FunctionId([9; 16]);
    store
        .remove_functions(vec![FunctionId([1; 16]), unknown])
        .wait()
        .await
        .unwrap();
    assert_eq!(store.code(FunctionId([1; 16])).wait().await, Ok(None));
    let mut left = store.load().wait().await.unwrap().functions;
    left.sort_by_key(|function| function.id);
    assert_eq!(left.iter().map(|one| one.id.0[0]).collect::<Vec<_>>(), [2, 3]);
    let again = store.register(function(1, "f"), Blob::default()).wait().await.unwrap();
    assert_eq!(again.version, 3);
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
        assert_eq!(found.next, None);
        found.tasks.iter().map(|one| one.spec.id.0[0]).collect::<Vec<_>>()
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
    for (functions, ids) in [
        (vec![], vec![]),
        (vec![FUNCTION], vec![3, 2, 1]),
        (vec![FunctionId([9; 16]), FUNCTION], vec![3, 2, 1]),
    ] {
        let functions = Some(functions);
        assert_eq!(found(TaskQuery { functions, ..by() }).await, ids);
    }
    let known = store.task(TaskId([2; 16])).wait().await.unwrap().unwrap();
    assert_eq!((known.spec, known.ended), (other.spec, None));
    let known = store.task(TaskId([3; 16])).wait().await.unwrap().unwrap();
    assert_eq!(known.ended, Some((1, Some(failure))));
    assert_eq!((known.waiting_at_ms, known.environment_at_ms), (10, 11));
    assert_eq!((known.started_at_ms, known.ended_at_ms), (12, 13));
}

pub async fn tasks_are_found_by_how_they_ended_and_some_are_looked_at_at_a_time(store: &dyn TaskStore) {
    let failure = Failure::new(Code::FunctionError, "oh");
    store
        .enqueue((1..=6).map(|id| task(id, "a")).collect())
        .wait()
        .await
        .unwrap();
    let ends = vec![ended(1, 1, None), ended(2, 2, Some(failure.clone())), ended(4, 3, None)];
    store.end(ends, Vec::new()).wait().await.unwrap();
    let found = async |ended, before: Option<u8>, limit| {
        let query = TaskQuery {
            ended,
            before: before.map(|id| TaskId([id; 16])),
            limit,
            ..TaskQuery::default()
        };
        let page = store.tasks(query).wait().await.unwrap();
        assert_eq!(page.next, None);
        page.tasks.iter().map(|one| one.spec.id.0[0]).collect::<Vec<_>>()
    };
    assert_eq!(found(None, None, 9).await, [6, 5, 4, 3, 2, 1]);
    assert_eq!(found(Some(How::Somehow), None, 9).await, [4, 2, 1]);
    assert_eq!(found(Some(How::Somehow), Some(4), 9).await, [2, 1]);
    assert_eq!(found(Some(How::Somehow), None, 1).await, [4]);
    assert_eq!(found(Some(How::Well), None, 9).await, [4, 1]);
    assert_eq!(found(Some(How::Failed), None, 9).await, [2]);
    // More tasks than one step examines, one of them of another tenant.
    let id = |number: u32| TaskId(u128::from(number).to_be_bytes());
    let many = (1..=2 * LOOK).map(|number| {
        let mut one = task(0, "b");
        one.spec.id = id(number);
        one.spec.tenant = TenantId([if number == 5 { 9 } else { 1 }; 16]);
        one
    });
    store.enqueue(many.collect()).wait().await.unwrap();
    let mut query = TaskQuery {
        tenant: Some(TenantId([9; 16])),
        limit: 1,
        ..TaskQuery::default()
    };
    let mut looks = 0;
    let last = loop {
        let page = store.tasks(query.clone()).wait().await.unwrap();
        looks += 1;
        match page.next {
            Some(next) => query.before = Some(next),
            None => break page,
        }
        assert_eq!(page.tasks, []);
    };
    assert_eq!((looks, last.tasks[0].spec.id), (3, id(5)));
}

pub async fn what_ended_of_a_tag_is_counted_up_to_a_number_with_its_times(store: &dyn TaskStore) {
    let id = |number: u32| TaskId(u128::from(number).to_be_bytes());
    let all = TALLIED + 10;
    let new = |number: u32| {
        let mut one = task(0, if number == 3 { "b" } else { "a" });
        one.spec.id = id(number);
        one.spec.submitted_at_ms = 1_000;
        one
    };
    store.enqueue((1..=all + 1).map(new).collect()).wait().await.unwrap();
    let failure = || Failure::new(Code::FunctionError, "oh");
    let end = |number: u32| {
        // Tasks that skipped one of the states, and one with a clock that is behind.
        let marks = match number {
            1 => [0, 0, 0, 1_500],
            2 => [1_100, 0, 1_300, 1_200],
            _ => [1_100, 1_200, 1_400, 1_900],
        };
        let [waiting_at_ms, environment_at_ms, started_at_ms, ended_at_ms] = marks;
        let mut one = ended(0, number.into(), (number == 2).then(failure));
        one.outcome.id = id(number);
        EndedTask {
            waiting_at_ms,
            environment_at_ms,
            started_at_ms,
            ended_at_ms,
            ..one
        }
    };
    let ends: Vec<EndedTask> = (1..=all).map(end).collect();
    let sum = |numbers: std::ops::RangeInclusive<usize>| {
        let mut counts = TaskCounts::default();
        for one in ends[numbers].iter().filter(|one| one.outcome.number != 3) {
            let marks = [1_000, one.waiting_at_ms, one.environment_at_ms, one.started_at_ms];
            counts.done += 1;
            counts.failed += u64::from(one.outcome.error.is_some());
            counts.times.add(TaskTimes::between(marks, one.ended_at_ms));
        }
        counts
    };
    store.end(ends.clone(), Vec::new()).wait().await.unwrap();
    let tally = async |tag: &str, after, up_to| store.tally(TENANT, tag.into(), after, up_to).wait().await.unwrap();
    assert_eq!(tally("a", 0, 2).await, (sum(0..=1), None));
    assert_eq!(tally("a", 1, 4).await, (sum(1..=3), None));
    let last = u64::from(TALLIED) + 1;
    assert_eq!(tally("a", 0, 99_999).await, (sum(0..=TALLIED as usize), Some(last)));
    assert_eq!(
        tally("a", last, 99_999).await,
        (sum(TALLIED as usize + 1..=all as usize - 1), None)
    );
    assert_eq!(tally("b", 0, 99_999).await.0.done, 1);
    assert_eq!(tally("c", 0, 99_999).await, (TaskCounts::default(), None));
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
    // A task refers to the first content, and the last was used recently.
    assert_eq!(store.unused_contents(20).wait().await, Ok(vec![(TENANT, content(2))]));
    let hashes = vec![content(3).hash, content(2).hash, content(1).hash];
    let known = store.use_contents(TENANT, hashes, 40).wait().await;
    assert_eq!(known, Ok(vec![Some(content(3)), None, Some(content(1))]));
    // A content that is stored again before it is deleted stays.
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
    // Changing the endpoint's settings does not change its process.
    store.endpoint(endpoint).wait().await.unwrap();
    assert_eq!(store.load().wait().await.unwrap().instances, [(ENDPOINT, u64::MAX - 1)]);
    store.remove_endpoint(ENDPOINT).wait().await.unwrap();
    assert_eq!(store.load().wait().await.unwrap().endpoints, []);
}

#[doc(hidden)]
#[macro_export]
macro_rules! store_tests_of_tasks {
    ($open:path) => {
        $crate::conformance_tests!(
            $open,
            tasks,
            the_process_that_tasks_went_to_last_is_known,
            a_task_is_kept_once_and_has_one_outcome_whatever_is_said_again,
            exception_is_kept_and_left_out_of_lists,
            printed_output_is_kept_until_its_task_is_forgotten,
            ids_are_found_by_beginning_and_end_within_one_tenant,
            what_begins_is_written_down_and_its_arguments_are_read_where_they_are_wanted,
            a_task_is_given_the_answers_of_those_before_it_in_their_order,
            a_name_has_versions_and_a_function_is_kept_once,
            what_is_said_of_a_function_changes_and_nothing_else_does,
            what_ended_long_ago_is_forgotten_and_what_waits_is_not,
            what_its_owner_forgets_is_gone_and_what_has_not_ended_is_not,
            answers_that_others_may_have_are_found_the_last_first,
            a_function_that_is_removed_is_gone_and_its_name_counts_on_from_those_that_are_there,
            an_answer_of_outcomes_ends_when_it_is_long_and_the_next_one_goes_on,
            a_task_is_found_by_whose_it_is_and_where_with_all_that_was_said_of_it,
            tasks_are_found_by_how_they_ended_and_some_are_looked_at_at_a_time,
            what_ended_of_a_tag_is_counted_up_to_a_number_with_its_times,
            a_content_is_known_until_nobody_needs_it
        );
    };
}
