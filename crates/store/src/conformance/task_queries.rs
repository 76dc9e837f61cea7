//! Properties of the queries of every store of tasks.

use dayfly_protocol::contents::Payload;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{EndpointId, FunctionId, TaskId, TenantId};
use dayfly_protocol::tasks::{TaskCounts, TaskOutcome, TaskTimes};

use super::tasks::{FUNCTION, TENANT, ended, task};
use crate::tasks::{
    EndedTask, IdQuery, LIST_STEP, Memoized, OutcomeFilter, PAGE_BYTES, TALLY_STEP, TaskQuery, TaskStore,
};

pub async fn ids_are_found_by_prefix_and_suffix(store: &dyn TaskStore) {
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
        let wanted = IdQuery {
            tenant,
            digits: digits.into(),
            from: TaskId([0; 16]),
            before: TaskId([0xff; 16]),
        };
        let (mut found, next) = store.find_ids(wanted).wait().await.unwrap();
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

pub async fn memoized_results_are_found_latest_first(store: &dyn TaskStore) {
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

pub async fn long_page_of_outcomes_ends_early(store: &dyn TaskStore) {
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

pub async fn tasks_are_found_by_tag_endpoint_and_function(store: &dyn TaskStore) {
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

pub async fn tasks_are_found_by_outcome_in_steps(store: &dyn TaskStore) {
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
    assert_eq!(found(Some(OutcomeFilter::Any), None, 9).await, [4, 2, 1]);
    assert_eq!(found(Some(OutcomeFilter::Any), Some(4), 9).await, [2, 1]);
    assert_eq!(found(Some(OutcomeFilter::Any), None, 1).await, [4]);
    assert_eq!(found(Some(OutcomeFilter::Succeeded), None, 9).await, [4, 1]);
    assert_eq!(found(Some(OutcomeFilter::Failed), None, 9).await, [2]);
    // More tasks than one step examines, one of them of another tenant.
    let id = |number: u32| TaskId(u128::from(number).to_be_bytes());
    let many = (1..=2 * LIST_STEP).map(|number| {
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

pub async fn outcomes_of_tag_are_counted_with_times(store: &dyn TaskStore) {
    let id = |number: u32| TaskId(u128::from(number).to_be_bytes());
    let all = TALLY_STEP + 10;
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
    let last = u64::from(TALLY_STEP) + 1;
    assert_eq!(tally("a", 0, 99_999).await, (sum(0..=TALLY_STEP as usize), Some(last)));
    assert_eq!(
        tally("a", last, 99_999).await,
        (sum(TALLY_STEP as usize + 1..=all as usize - 1), None)
    );
    assert_eq!(tally("b", 0, 99_999).await.0.done, 1);
    assert_eq!(tally("c", 0, 99_999).await, (TaskCounts::default(), None));
}

#[doc(hidden)]
#[macro_export]
macro_rules! store_tests_of_task_queries {
    ($open:path) => {
        $crate::conformance_tests!(
            $open,
            task_queries,
            ids_are_found_by_prefix_and_suffix,
            memoized_results_are_found_latest_first,
            long_page_of_outcomes_ends_early,
            tasks_are_found_by_tag_endpoint_and_function,
            tasks_are_found_by_outcome_in_steps,
            outcomes_of_tag_are_counted_with_times
        );
    };
}
