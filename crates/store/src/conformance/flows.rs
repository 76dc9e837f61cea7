//! Properties of every store of flows.

use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::flows::{FlowRequest, FlowState, StepStatus};
use dayfly_protocol::ids::{FlowId, TenantId};

use crate::flows::FlowRecord;
use crate::tasks::TaskStore;

fn flow(id: u8) -> FlowRecord {
    FlowRecord {
        id: FlowId([id; 16]),
        tenant: TenantId([1; 16]),
        request: FlowRequest {
            id: None,
            name: format!("the {id}th"),
            steps: Vec::new(),
            input: serde_json::json!({ "a": [1, 2.5, null] }),
        },
        state: FlowState::Running,
        error: None,
        steps: Vec::new(),
        started_at_ms: id.into(),
        ended_at_ms: 0,
    }
}

pub async fn flow_is_stored_once_and_expires_after_ending(store: &dyn TaskStore) {
    assert_eq!(store.keep_flow(flow(1)).wait().await, Ok((flow(1), true)));
    let other = FlowRecord {
        id: FlowId([1; 16]),
        ..flow(2)
    };
    assert_eq!(store.keep_flow(other).wait().await, Ok((flow(1), false)));
    store.keep_flow(flow(2)).wait().await.unwrap();
    let failure = Failure::new(Code::FunctionError, "oh");
    let step = StepStatus {
        name: "a".into(),
        state: FlowState::Failed,
        tasks: 3,
        done: 2,
        function: None,
        from: None,
        map: false,
    };
    store
        .end_flow(FlowId([1; 16]), Some(failure.clone()), vec![step.clone()], 9)
        .wait()
        .await
        .unwrap();
    store.end_flow(FlowId([1; 16]), None, vec![], 10).wait().await.unwrap();
    let ended = FlowRecord {
        state: FlowState::Failed,
        error: Some(failure),
        steps: vec![step],
        ended_at_ms: 9,
        ..flow(1)
    };
    assert_eq!(store.flow(FlowId([1; 16])).wait().await, Ok(Some(ended)));
    assert_eq!(store.live_flows().wait().await, Ok(vec![flow(2)]));
    let listed = store.flows(TenantId([1; 16]), 9).wait().await.unwrap();
    let shown = listed
        .iter()
        .map(|flow| (flow.id, flow.request.name.as_str(), flow.state));
    let expected = [
        (FlowId([2; 16]), "the 2th", FlowState::Running),
        (FlowId([1; 16]), "the 1th", FlowState::Failed),
    ];
    assert_eq!(shown.collect::<Vec<_>>(), expected);
    assert_eq!(store.flows(TenantId([2; 16]), 9).wait().await, Ok(vec![]));
    store.delete_flows(10).wait().await.unwrap();
    assert_eq!(store.flow(FlowId([1; 16])).wait().await, Ok(None));
}

#[doc(hidden)]
#[macro_export]
macro_rules! store_tests_of_flows {
    ($open:path) => {
        $crate::conformance_tests!($open, flows, flow_is_stored_once_and_expires_after_ending);
    };
}
