//! What tasks and nodes lend and borrow, over the real API: who may see it.

use dayfly_durable_tasks::LOCAL;
use dayfly_protocol::dispatch::{Attempt, Ended, FromDispatcher, TaskOutput, ToDispatcher};
use dayfly_protocol::ids::TaskId;
use dayfly_protocol::tasks::AcceptedTasks;
use dayfly_protocol::tenancy::Role;
use serde_json::{Value, json};

use super::tenants::member;
use super::*;

/// Submits a task to the manager's own endpoint.
async fn submit(client: &mut Client) -> TaskId {
    let function = json!({"name": "f", "form": {"form": "source", "entry": "f"}, "code": "ZGVmIGYoKTogcGFzcw=="});
    let (_, function) = client.send("POST", "/v1/functions", &function.to_string()).await;
    let function: Value = serde_json::from_str(&function).unwrap();
    let given = json!({"function": function["id"], "endpoint": LOCAL, "tag": "a", "tasks": [{"call": {}}]});
    let (_, accepted) = client.send("POST", "/v1/tasks", &given.to_string()).await;
    serde_json::from_str::<AcceptedTasks>(&accepted).unwrap().tasks[0]
}

fn measured(attempt: Attempt) -> FromDispatcher {
    let cores = |milli_cores| CallResources {
        milli_cores,
        memory_bytes: 1 << 30,
    };
    let point = LoanPoint {
        us: 2_000_000,
        owned: cores(1_000),
        used: cores(1_500),
        lent: CallResources::default(),
        borrowed: cores(500),
    };
    let series = LoanSeries::checked(vec![point; 2]).unwrap();
    FromDispatcher::Printed(vec![TaskOutput::of_loans(attempt, series)])
}

#[tokio::test]
async fn owner_of_a_task_sees_its_loans() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let mut dispatcher = manager.attach(LOCAL).await.unwrap();
    let mut owner = member(&manager, "astro", Role::User).await;
    let mut other = member(&manager, "bio", Role::User).await;
    let mut operator = member(&manager, "ops", Role::Operator).await;
    let task = submit(&mut owner).await;
    dispatcher.to_manager.send(FromDispatcher::Credit { tasks: 1 }).unwrap();
    let sent = async {
        loop {
            if let Some(ToDispatcher::Tasks(tasks)) = dispatcher.from_manager.recv().await {
                return tasks[0].attempt;
            }
        }
    };
    let attempt = tokio::time::timeout(TIMEOUT, sent).await.expect("a task in time");
    let path = format!("/v1/tasks/{task}/loans");
    let (status, body) = owner.send("GET", &path, "").await;
    assert_eq!(code(status, &body), Code::NotFound);
    assert!(body.contains("when it has ended"), "{body}");
    let ended = Ended {
        begun: true,
        ..Ended::unexecuted(attempt, None)
    };
    for one in [measured(attempt), FromDispatcher::Ended(vec![ended])] {
        dispatcher.to_manager.send(one).unwrap();
    }
    owner
        .get::<Value>(&format!("/v1/tasks/{task}/outcome?wait_ms=10000"))
        .await;
    for client in [&mut owner, &mut operator] {
        let loans: TaskLoans = client.get(&path).await;
        assert_eq!((loans.task, loans.us, loans.points.len()), (task, 4_000_000, 2));
        let sums = loans.sums;
        assert_eq!((sums.used.core_us, sums.borrowed.core_us), (6_000_000, 2_000_000));
        assert_eq!((sums.owned.mib_s, sums.lent), (4_096, SeriesSum::default()));
    }
    let (status, body) = other.send("GET", &path, "").await;
    assert_eq!(code(status, &body), Code::NotFound);
    assert!(body.contains("you have no task"), "{body}");
}

#[tokio::test]
async fn present_use_of_nodes_is_for_operators() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let mut operator = member(&manager, "ops", Role::Operator).await;
    let mut user = member(&manager, "astro", Role::User).await;
    let node = FakeNode::join(&manager, 1, Manner::Silent).await;
    let now = HarvestedNow {
        used: CallResources {
            milli_cores: 700,
            memory_bytes: 1,
        },
        ..HarvestedNow::default()
    };
    let mut status = HarvestStatus::new(HarvestMode::On, None);
    status.now = Some(now);
    let heartbeat = NodeMessage::Heartbeat {
        free: ledger(2).free(),
        clock_ms: now_ms(),
        harvest: Some(Box::new(status)),
        pools: None,
    };
    node.say.send(heartbeat).unwrap();
    let begun = Instant::now();
    let seen = loop {
        let nodes: Vec<NodeStatus> = operator.get("/v1/nodes").await;
        if let Some(harvest) = &nodes[0].harvest {
            break harvest.now;
        }
        assert!(begun.elapsed() < TIMEOUT, "no heartbeat");
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!(seen, Some(now));
    let nodes: Vec<NodeStatus> = user.get("/v1/nodes").await;
    let harvest = nodes[0].harvest.as_ref().expect("the rest of it");
    assert_eq!((harvest.mode, harvest.now), (HarvestMode::On, None));
}
