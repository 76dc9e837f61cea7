//! Properties of deletion in every store of tasks.

use dayfly_protocol::api::{CallResources, LoanPoint, LoanSeries};
use dayfly_protocol::blob::Blob;
use dayfly_protocol::contents::{Content, Payload};
use dayfly_protocol::dispatch::Attempt;
use dayfly_protocol::ids::{ContentHash, EndpointId, TaskId, TenantId};
use dayfly_protocol::node_api::Stream;
use dayfly_protocol::tasks::{OutputPiece, TaskOutcome};

use super::tasks::{ENDPOINT, FUNCTION, TENANT, ended, task};
use crate::tasks::{
    DeletedTask, EndedTask, ListedContent, NewTask, StoredLoans, StoredOutput, TaskQuery, TaskStore, Tries,
};

pub async fn output_is_stored_until_its_task_is_deleted(store: &dyn TaskStore) {
    store
        .enqueue(vec![task(1, "a"), task(2, "a"), task(3, "a")])
        .wait()
        .await
        .unwrap();
    let outcomes = vec![ended(1, 1, None), ended(2, 2, None)];
    store.end(outcomes, Vec::new()).wait().await.unwrap();
    let output = |id: u8, endpoint, text: &str| StoredOutput {
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
    let more = store.keep_output(some, Vec::new()).wait().await.unwrap();
    assert_eq!(sum(more) as usize, packed(1, "early") + packed(2, "two"));
    // The last write wins, and other endpoints' writes are ignored.
    let again = vec![output(1, ENDPOINT, "late\0!"), output(2, EndpointId([8; 16]), "forged")];
    let more = store.keep_output(again, vec![TenantId([9; 16])]).wait().await.unwrap();
    assert_eq!(sum(more), 1);
    // A tenant that has too much keeps its existing output.
    let refused = vec![output(1, ENDPOINT, "later still")];
    assert_eq!(store.keep_output(refused, vec![TENANT]).wait().await, Ok(Vec::new()));
    let all = (packed(1, "late\0!") + packed(2, "two")) as u64;
    assert_eq!(store.load().wait().await.unwrap().kept_bytes, [(TENANT, all)]);
    let read = async |id: u8| store.output(TaskId([id; 16])).wait().await.unwrap();
    let kept = |id: u8, text: &str| Some((7, output(id, ENDPOINT, text).pieces));
    assert_eq!([read(1).await, read(2).await], [kept(1, "late\0!"), kept(2, "two")]);
    assert_eq!([read(3).await, read(9).await], [None, None]);
    let gone = store
        .delete_tasks(TENANT, vec![TaskId([1; 16])], 9, Vec::new())
        .wait()
        .await
        .unwrap();
    assert_eq!((gone.len(), gone[0].freed_bytes as usize), (1, packed(1, "late\0!")));
    assert_eq!([read(1).await, read(2).await], [None, kept(2, "two")]);
    let step = store.delete_expired(14, TaskId([0; 16])).wait().await.unwrap();
    assert_eq!(step.freed_bytes, [(TENANT, packed(2, "two") as u64)]);
    assert_eq!(read(2).await, None);
    assert_eq!(store.load().wait().await.unwrap().kept_bytes, []);
}

pub async fn loans_are_stored_until_their_task_is_deleted(store: &dyn TaskStore) {
    store
        .enqueue((1..=4).map(|id| task(id, "a")).collect())
        .wait()
        .await
        .unwrap();
    let outcomes = vec![ended(1, 1, None), ended(2, 2, None), ended(4, 3, None)];
    let number = outcomes[0].outcome.attempts;
    store.end(outcomes, Vec::new()).wait().await.unwrap();
    let loans = |id: u8, milli_cores| {
        let borrowed = CallResources {
            milli_cores,
            memory_bytes: 1 << 50,
        };
        let point = LoanPoint {
            us: 100_000,
            borrowed,
            ..LoanPoint::default()
        };
        StoredLoans {
            attempt: Attempt {
                task: TaskId([id; 16]),
                number,
            },
            endpoint: ENDPOINT,
            series: LoanSeries::checked(vec![point; 64]).unwrap(),
        }
    };
    let kept = |id: u8, milli_cores| Some(loans(id, milli_cores).series);
    let read = async |id: u8| store.loans(TaskId([id; 16])).wait().await.unwrap();
    // Task 3 has not ended, and task 9 is unknown.
    let first = [1, 2, 3, 9].map(|id| loans(id, 500)).to_vec();
    store.keep_loans(first).wait().await.unwrap();
    assert_eq!([read(1).await, read(2).await], [kept(1, 500), kept(2, 500)]);
    assert_eq!([read(3).await, read(9).await], [None, None]);
    // The last write wins. Those of other endpoints and attempts are ignored.
    let mut other_endpoint = loans(2, 7);
    other_endpoint.endpoint = EndpointId([8; 16]);
    let mut other_attempt = loans(4, 7);
    other_attempt.attempt.number = number + 1;
    let second = vec![loans(1, 900), other_endpoint, other_attempt];
    store.keep_loans(second).wait().await.unwrap();
    assert_eq!([read(1).await, read(2).await], [kept(1, 900), kept(2, 500)]);
    assert_eq!(read(4).await, None);
    let gone = store.delete_tasks(TENANT, vec![TaskId([1; 16])], 9, Vec::new());
    assert_eq!(gone.wait().await.unwrap().len(), 1);
    assert_eq!([read(1).await, read(2).await], [None, kept(2, 500)]);
    store.delete_expired(14, TaskId([0; 16])).wait().await.unwrap();
    assert_eq!(read(2).await, None);
}

pub async fn expired_tasks_are_deleted_and_waiting_ones_kept(store: &dyn TaskStore) {
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
    let step = store.delete_expired(13, TaskId([0; 16])).wait().await.unwrap();
    assert_eq!((step.next, step.functions), (None, vec![FUNCTION]));
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
    store.delete_expired(14, TaskId([0; 16])).wait().await.unwrap();
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

pub async fn owner_deletes_ended_tasks_only(store: &dyn TaskStore) {
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
        .delete_tasks(TENANT, all, 4, vec!["b".into()])
        .wait()
        .await
        .unwrap();
    gone.sort_by_key(|gone| gone.id);
    let was = |task, memo| DeletedTask {
        id: id(task),
        tag: "a".into(),
        memo,
        freed_bytes: 0,
    };
    assert_eq!(gone, [was(1, None), was(2, Some([7; 32]))]);
    for (task, there) in [(1, false), (2, false), (3, true), (4, true), (5, true), (6, true)] {
        assert_eq!(store.task(id(task)).wait().await.unwrap().is_some(), there, "{task}");
    }
}

pub async fn contents_are_listed_with_their_uses(store: &dyn TaskStore) {
    let content = |id: u8| Content {
        hash: ContentHash([id; 32]),
        bytes: u64::from(id),
    };
    let other = TenantId([8; 16]);
    for (tenant, id, at_ms) in [(TENANT, 3, 10), (TENANT, 1, 20), (TENANT, 2, 30), (other, 4, 40)] {
        store.keep_content(tenant, content(id), at_ms).wait().await.unwrap();
    }
    store.keep_content(TENANT, content(3), 50).wait().await.unwrap();
    let given = |id: u8| NewTask {
        arguments: Payload::Stored(content(1)),
        ..task(id, "a")
    };
    store
        .enqueue(vec![given(1), given(2), task(3, "a")])
        .wait()
        .await
        .unwrap();
    let answered = EndedTask {
        outcome: TaskOutcome {
            answer: Blob::default(),
            content: Some(content(2)),
            ..ended(3, 1, None).outcome
        },
        ..ended(3, 1, None)
    };
    store.end(vec![answered], Vec::new()).wait().await.unwrap();
    let all = store.list_contents(TENANT, None, 9).wait().await.unwrap();
    let listed = |one: &ListedContent| {
        (
            one.content,
            one.since_ms,
            one.used_at_ms,
            one.arguments_of,
            one.results_of,
        )
    };
    assert_eq!(
        all.iter().map(listed).collect::<Vec<_>>(),
        [
            (content(1), 20, 20, 2, 0),
            (content(2), 30, 30, 0, 1),
            (content(3), 10, 50, 0, 0)
        ]
    );
    assert!([1, 2].contains(&all[0].task.unwrap().0[0]));
    assert_eq!((all[1].task, all[2].task), (Some(TaskId([3; 16])), None));
    let rest = store.list_contents(TENANT, Some(content(1).hash), 1).wait().await;
    assert_eq!(rest.unwrap(), [all[1]]);
    assert_eq!(store.list_contents(other, None, 9).wait().await.unwrap().len(), 1);
    // One that is being deleted is unknown.
    assert_eq!(store.unused_contents(60).wait().await.unwrap().len(), 2);
    assert_eq!(store.list_contents(TENANT, None, 9).wait().await.unwrap().len(), 2);
}

pub async fn content_is_known_until_it_is_unused(store: &dyn TaskStore) {
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

#[doc(hidden)]
#[macro_export]
macro_rules! store_tests_of_retention {
    ($open:path) => {
        $crate::conformance_tests!(
            $open,
            retention,
            output_is_stored_until_its_task_is_deleted,
            loans_are_stored_until_their_task_is_deleted,
            expired_tasks_are_deleted_and_waiting_ones_kept,
            owner_deletes_ended_tasks_only,
            contents_are_listed_with_their_uses,
            content_is_known_until_it_is_unused
        );
    };
}
