//! Properties of every store of triggers.

use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{EndpointId, FunctionId, TenantId, TriggerId};
use dayfly_protocol::tasks::TaskOptions;
use dayfly_protocol::triggers::{EventSource, EventState, TriggerSpec};

use crate::tasks::TaskStore;
use crate::triggers::{EventRecord, NewEvent, TriggerRecord};

const ID: TriggerId = TriggerId([7; 16]);

fn trigger(id: u8, name: &str) -> TriggerRecord {
    TriggerRecord {
        id: TriggerId([id; 16]),
        tenant: TenantId([1; 16]),
        name: name.into(),
        spec: TriggerSpec {
            description: format!("the {id}th"),
            source: EventSource::Webhook {},
            function: FunctionId([2; 16]),
            endpoint: None,
            options: TaskOptions::default(),
            then: Vec::new(),
            keywords: serde_json::Map::default(),
            paused: false,
        },
        watched_at: Some(EndpointId([3; 16])),
        token: [id; 32],
        created_at_ms: id.into(),
        expires_at_ms: 99,
        done_until_ms: 5,
        started: 0,
        refused: 0,
    }
}

fn event(key: &str) -> NewEvent {
    NewEvent {
        key: key.into(),
        at_ms: 10,
        event: format!("{{\"key\": \"{key}\"}}"),
    }
}

pub async fn recreated_trigger_keeps_id_age_and_history(store: &dyn TaskStore) {
    assert_eq!(store.trigger(trigger(7, "a")).wait().await, Ok(trigger(7, "a")));
    store.keep_events(ID, vec![event("x")], None, 100).wait().await.unwrap();
    let changed = store.trigger(trigger(8, "a")).wait().await.unwrap();
    assert_eq!((changed.id, changed.created_at_ms), (ID, 7));
    assert_eq!((changed.token, &changed.spec), ([8; 32], &trigger(8, "a").spec));
    assert_eq!(store.triggers().wait().await, Ok(vec![(changed, 1)]));
    store.remove_trigger(ID).wait().await.unwrap();
    assert_eq!(store.triggers().wait().await, Ok(vec![]));
    assert_eq!(store.events(ID, u64::MAX, 9).wait().await, Ok(vec![]));
    // Events of a deleted trigger are not stored.
    assert_eq!(
        store.keep_events(ID, vec![event("y")], None, 100).wait().await,
        Ok(vec![])
    );
}

pub async fn event_is_stored_once_by_key_and_settled(store: &dyn TaskStore) {
    store.trigger(trigger(7, "a")).wait().await.unwrap();
    let kept = store.keep_events(ID, vec![event("x"), event("y"), event("x")], Some(40), 100);
    assert_eq!(
        kept.wait().await,
        Ok(vec![(1, 10, true), (2, 10, true), (1, 10, false)])
    );
    let later = NewEvent {
        at_ms: 20,
        ..event("y")
    };
    let kept = store.keep_events(ID, vec![later, event("z")], None, 100);
    assert_eq!(kept.wait().await, Ok(vec![(2, 10, false), (3, 10, true)]));
    let numbers = |events: Vec<EventRecord>| events.iter().map(|event| event.number).collect::<Vec<_>>();
    assert_eq!(numbers(store.waiting_events(ID).wait().await.unwrap()), [1, 2, 3]);
    let refusal = Failure::new(Code::NotFound, "no such function");
    store.settle_events(ID, vec![1, 3], None).wait().await.unwrap();
    store
        .settle_events(ID, vec![2, 3], Some(refusal.clone()))
        .wait()
        .await
        .unwrap();
    assert_eq!(store.waiting_events(ID).wait().await, Ok(vec![]));
    let all = store.events(ID, u64::MAX, 9).wait().await.unwrap();
    let states: Vec<_> = all.iter().map(|event| (event.number, event.state)).collect();
    assert_eq!(
        states,
        [
            (3, EventState::Started),
            (2, EventState::Refused),
            (1, EventState::Started)
        ]
    );
    assert_eq!((&all[1].error, &all[2].error), (&Some(refusal), &None));
    assert_eq!(numbers(store.events(ID, 3, 1).wait().await.unwrap()), [2]);
    let (record, waiting) = store.triggers().wait().await.unwrap().remove(0);
    assert_eq!((record.started, record.refused, waiting), (2, 1, 0));
    assert_eq!(record.done_until_ms, 40);
}

#[doc(hidden)]
#[macro_export]
macro_rules! store_tests_of_triggers {
    ($open:path) => {
        $crate::conformance_tests!(
            $open,
            triggers,
            recreated_trigger_keeps_id_age_and_history,
            event_is_stored_once_by_key_and_settled
        );
    };
}
