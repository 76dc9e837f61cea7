//! Queries of data frames, over the real API: who may report, see and cancel them.

use dayfly_protocol::queries::{QueryInstruction, QueryPart, QueryReport, QueryState, QueryStatus, QueryWork};
use dayfly_protocol::tenancy::{AuditEntry, Role, TokenRequest};

use super::tenants::member;
use super::*;

const ID: &str = "0199c0ffee0000000000000000000001";

fn report(state: QueryState) -> QueryReport {
    let part = |number, core_us| QueryPart {
        number,
        work: QueryWork {
            tasks: 2,
            ended: 1,
            rows: 10,
            core_us,
            ..QueryWork::default()
        },
    };
    QueryReport {
        text: "SELECT zone, count(*) FROM trips GROUP BY zone".into(),
        state,
        error: None,
        elapsed_ms: 1_500,
        leases: vec![LeaseId([5; 16])],
        stages: vec![part(1, 40)],
        ranks: vec![part(0, 30), part(1, 10)],
        lost_runs: 1,
        cost: None,
    }
}

fn path() -> String {
    format!("/v1/queries/{ID}")
}

async fn told(client: &mut Client, report: &QueryReport) -> QueryInstruction {
    let (status, body) = client
        .send("PUT", &path(), &serde_json::to_string(report).unwrap())
        .await;
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

async fn refusal(client: &mut Client, method: &str, path: &str, body: &str) -> Code {
    let (status, answer) = client.send(method, path, body).await;
    code(status, &answer)
}

#[tokio::test]
async fn tenant_sees_its_queries_and_operators_all() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let mut astro = member(&manager, "astro", Role::User).await;
    let mut bio = member(&manager, "bio", Role::User).await;
    let mut operator = member(&manager, "ops", Role::Operator).await;
    let running = report(QueryState::Running);
    assert!(!told(&mut astro, &running).await.cancel);
    for client in [&mut astro, &mut operator] {
        let listed: Vec<QueryStatus> = client.get("/v1/queries").await;
        assert_eq!((listed.len(), listed[0].tenant.as_str()), (1, "astro"));
        assert_eq!((listed[0].total.tasks, listed[0].skew), (4, Some(1.5)));
        assert!(listed[0].stages.is_empty() && listed[0].ranks.is_empty());
        let shown: QueryStatus = client.get("/v1/queries/...000000000001").await;
        assert_eq!(
            (shown.stages, shown.ranks),
            (running.stages.clone(), running.ranks.clone())
        );
        assert!(
            client
                .get::<Vec<QueryStatus>>("/v1/queries?state=done")
                .await
                .is_empty()
        );
    }
    assert!(bio.get::<Vec<QueryStatus>>("/v1/queries").await.is_empty());
    for method in ["GET", "DELETE"] {
        assert_eq!(refusal(&mut bio, method, &path(), "").await, Code::NotFound);
    }
    // Nor can another tenant, or an operator, report it.
    let done = serde_json::to_string(&report(QueryState::Done)).unwrap();
    for client in [&mut bio, &mut operator] {
        assert_eq!(refusal(client, "PUT", &path(), &done).await, Code::Forbidden);
    }
    assert_eq!(astro.get::<QueryStatus>(&path()).await.state, QueryState::Running);
}

#[tokio::test]
async fn cancellation_is_told_to_the_client() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let mut astro = member(&manager, "astro", Role::User).await;
    let mut operator = member(&manager, "ops", Role::Operator).await;
    told(&mut astro, &report(QueryState::Running)).await;
    let (status, body) = operator.send("DELETE", &path(), "").await;
    assert_eq!(status, 200, "{body}");
    assert!(serde_json::from_str::<QueryStatus>(&body).unwrap().is_cancelling);
    assert!(told(&mut astro, &report(QueryState::Running)).await.cancel);
    assert!(!told(&mut astro, &report(QueryState::Cancelled)).await.cancel);
    let ended: QueryStatus = astro.get(&path()).await;
    assert_eq!((ended.state, ended.is_cancelling), (QueryState::Cancelled, false));
    let audit: Vec<AuditEntry> = Client::new(&manager).await.get("/v1/audit").await;
    let entry = audit.iter().find(|entry| entry.action == "query.cancel");
    assert_eq!(entry.map(|entry| entry.subject.as_str()), Some(ID));
}

#[tokio::test]
async fn wrong_reports_get_typed_errors() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let mut client = Client::new(&manager).await;
    let good = serde_json::to_string(&report(QueryState::Running)).unwrap();
    let long = QueryReport {
        text: "x".repeat(5_000),
        ..report(QueryState::Running)
    };
    let long = serde_json::to_string(&long).unwrap();
    for (path, body, expected) in [
        (path(), "{}", Code::InvalidRequest),
        (path(), "[]", Code::InvalidRequest),
        (path(), "no json", Code::InvalidRequest),
        (path(), &good.replace("running", "asleep"), Code::InvalidRequest),
        (path(), &good.replace("running", "lost"), Code::InvalidRequest),
        (path(), &good.replace("1500", "-1"), Code::InvalidRequest),
        (path(), &long, Code::InvalidRequest),
        ("/v1/queries/nine".to_owned(), &good, Code::InvalidRequest),
    ] {
        assert_eq!(refusal(&mut client, "PUT", &path, body).await, expected, "{body:.80}");
    }
    assert!(client.get::<Vec<QueryStatus>>("/v1/queries").await.is_empty());
    for (path, expected) in [
        ("/v1/queries?state=asleep", Code::InvalidRequest),
        ("/v1/queries/nine", Code::InvalidRequest),
        (&*path(), Code::NotFound),
    ] {
        assert_eq!(refusal(&mut client, "GET", path, "").await, expected, "{path}");
    }
    // A token that may only read reports and cancels nothing.
    let reader = TokenRequest {
        tenant: None,
        name: "reader".into(),
        role: Role::User,
        read_only: true,
        valid_for_ms: 60_000,
    };
    told(&mut client, &report(QueryState::Running)).await;
    let (_, made) = client
        .send("POST", "/v1/tokens", &serde_json::to_string(&reader).unwrap())
        .await;
    client.token = serde_json::from_str::<serde_json::Value>(&made).unwrap()["token"]
        .as_str()
        .unwrap()
        .to_owned();
    for (method, body) in [("PUT", good.as_str()), ("DELETE", "")] {
        assert_eq!(refusal(&mut client, method, &path(), body).await, Code::Forbidden);
    }
    assert_eq!(client.get::<Vec<QueryStatus>>("/v1/queries").await.len(), 1);
}
