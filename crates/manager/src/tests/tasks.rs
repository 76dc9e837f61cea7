//! Functions, tasks and endpoints of several tenants, over the real API.

use dayfly_durable_tasks::LOCAL;
use dayfly_protocol::dispatch::{Ended, FromDispatcher, TaskOutput, ToDispatcher};
use dayfly_protocol::functions::FunctionStatus;
use dayfly_protocol::ids::TaskId;
use dayfly_protocol::node_api::Stream;
use dayfly_protocol::tasks::{AcceptedTasks, CancelledTasks, DeletedTasks, TaskOutputPage, TaskStatus};
use dayfly_protocol::tenancy::{AuditEntry, Role};
use serde_json::{Value, json};

use super::tenants::member;
use super::*;

impl Client {
    async fn post<T: serde::de::DeserializeOwned>(&mut self, path: &str, body: &Value) -> T {
        let (status, answer) = self.send("POST", path, &body.to_string()).await;
        assert!(status < 300, "{path}: {answer}");
        serde_json::from_str(&answer).unwrap()
    }

    async fn refusal(&mut self, method: &str, path: &str, body: &Value) -> Code {
        let (status, answer) = self.send(method, path, &body.to_string()).await;
        code(status, &answer)
    }

    async fn function(&mut self, name: &str) -> FunctionStatus {
        // `def f(): pass`
        let given = json!({"name": name, "form": {"form": "source", "entry": "f"}, "code": "ZGVmIGYoKTogcGFzcw=="});
        self.post("/v1/functions", &given).await
    }

    async fn task(&mut self, function: &FunctionStatus, endpoint: &str, tag: &str) -> TaskId {
        let given = json!({"function": function.id, "endpoint": endpoint, "tag": tag, "tasks": [{"call": {}}]});
        self.post::<AcceptedTasks>("/v1/tasks", &given).await.tasks[0]
    }
}

#[tokio::test]
async fn endpoint_owner_sees_and_cancels_its_tasks() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let mut astro = member(&manager, "astro", Role::User).await;
    let mut bio = member(&manager, "bio", Role::User).await;
    let mut operator = member(&manager, "ops", Role::Operator).await;
    let site = json!({"name": "site", "shared_with": ["bio"]});
    astro.post::<Value>("/v1/endpoints", &site).await;
    let function = bio.function("f").await;
    let task = bio.task(&function, "site", "a").await;
    let everybodys = "/v1/tasks?endpoint=site&everybody=true";
    assert_eq!(astro.get::<Vec<TaskStatus>>("/v1/tasks?endpoint=site").await, []);
    let seen = astro.get::<Vec<TaskStatus>>(everybodys).await;
    assert_eq!((seen[0].id, seen[0].owner.as_str()), (task, "bio"));
    assert_eq!(bio.refusal("GET", everybodys, &json!({})).await, Code::Forbidden);
    assert_eq!(
        astro.refusal("GET", "/v1/tasks?everybody=true", &json!({})).await,
        Code::Forbidden
    );
    assert_eq!(
        astro.refusal("DELETE", "/v1/endpoints/site", &json!({})).await,
        Code::InvalidRequest
    );
    let cancel = "/v1/tasks/cancel";
    let all = json!({"endpoint": "site", "everybody": true});
    assert_eq!(bio.refusal("POST", cancel, &all).await, Code::Forbidden);
    assert_eq!(
        astro
            .refusal("POST", cancel, &json!({"tag": "a", "everybody": true}))
            .await,
        Code::Forbidden
    );
    let own = astro.post::<CancelledTasks>(cancel, &json!({"endpoint": "site"})).await;
    assert_eq!(own, CancelledTasks::default());
    let ended = CancelledTasks {
        ended: 1,
        ..CancelledTasks::default()
    };
    assert_eq!(astro.post::<CancelledTasks>(cancel, &all).await, ended);
    let path = format!("/v1/tasks/{task}/outcome?wait_ms=10000");
    bio.get::<Value>(&path).await;
    let seen = astro.get::<Vec<TaskStatus>>(everybodys).await;
    let error = seen[0].error.clone().expect("why it ended");
    assert_eq!(
        (error.code, error.message.as_str()),
        (Code::Cancelled, "told to the task's owner")
    );
    // Nor does a search reveal the message.
    let found = |text: &str| format!("/v1/tasks?endpoint=site&everybody=true&text={text}");
    assert_eq!(astro.get::<Vec<TaskStatus>>(&found("CANCELLED")).await.len(), 1);
    let own = bio.get::<Vec<TaskStatus>>("/v1/tasks?text=cancelled").await;
    let message = own[0].error.clone().expect("why it ended").message;
    let words = message.split(|c: char| !c.is_ascii_alphabetic());
    let word = words
        .filter(|word| !"cancelled".contains(word))
        .max_by_key(|word| word.len())
        .unwrap();
    let by_word = format!("/v1/tasks?text={word}");
    assert_eq!(bio.get::<Vec<TaskStatus>>(&by_word).await.len(), 1, "{message}");
    assert_eq!(astro.get::<Vec<TaskStatus>>(&found(word)).await, []);
    let (task, tag) = (
        bio.task(&function, "site", "b").await,
        json!({"tag": "b", "everybody": true}),
    );
    assert_eq!(operator.post::<CancelledTasks>(cancel, &tag).await, ended);
    let path = format!("/v1/tasks/{task}/outcome?wait_ms=10000");
    bio.get::<Value>(&path).await;
    let forgotten = astro
        .post::<DeletedTasks>("/v1/tasks/forget", &json!({"tag": "b", "tasks": [task]}))
        .await;
    assert_eq!(forgotten, DeletedTasks { forgotten: 0, left: 0 });
    let forgotten = bio.post::<DeletedTasks>("/v1/tasks/forget", &json!({"tag": "b"})).await;
    assert_eq!(forgotten, DeletedTasks { forgotten: 1, left: 0 });
    assert_eq!(bio.refusal("GET", &path, &json!({})).await, Code::NotFound);
    let (status, _) = astro.send("DELETE", "/v1/endpoints/site", "").await;
    assert_eq!(status, 200);
}

#[tokio::test]
async fn text_selects_tasks_and_retry_repeats_them() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let mut astro = member(&manager, "astro", Role::User).await;
    let mut bio = member(&manager, "bio", Role::User).await;
    astro
        .post::<Value>("/v1/endpoints", &json!({"name": "site", "shared_with": []}))
        .await;
    let function = astro.function("resize").await;
    let (one, two) = (
        astro.task(&function, "site", "Album").await,
        astro.task(&function, "site", "other").await,
    );
    let listed = async |client: &mut Client, query: &str| {
        let listed = client.get::<Vec<TaskStatus>>(&format!("/v1/tasks?{query}")).await;
        listed.iter().map(|status| status.id).collect::<Vec<_>>()
    };
    // Two ids of one millisecond are in any order.
    let (first, last) = (one.min(two), one.max(two));
    assert_eq!(listed(&mut astro, "text=album").await, [one]);
    assert_eq!(listed(&mut astro, "text=RESI&state=queued").await, [last, first]);
    assert_eq!(listed(&mut astro, "text=resi&limit=1").await, [last]);
    assert_eq!(
        listed(&mut astro, &format!("text=resi&limit=1&before={last}")).await,
        [first]
    );
    assert_eq!(
        listed(&mut astro, &format!("text={}", &one.to_string()[20..])).await,
        [one]
    );
    assert_eq!(listed(&mut astro, "text=nothing").await, []);
    assert_eq!(listed(&mut bio, "text=resi").await, []);
    astro
        .post::<CancelledTasks>("/v1/tasks/cancel", &json!({"tag": "Album"}))
        .await;
    astro
        .get::<Value>(&format!("/v1/tasks/{one}/outcome?wait_ms=10000"))
        .await;
    assert_eq!(listed(&mut astro, "text=cancelled").await, [one]);
    let again: AcceptedTasks = astro.post(&format!("/v1/tasks/{one}/retry"), &json!({})).await;
    assert_eq!(listed(&mut astro, "tag=Album&state=queued").await, again.tasks);
    let retry = |task: TaskId| format!("/v1/tasks/{task}/retry");
    assert_eq!(bio.refusal("POST", &retry(one), &json!({})).await, Code::NotFound);
    assert_eq!(
        astro.refusal("POST", &retry(two), &json!({})).await,
        Code::InvalidRequest
    );
    let long = format!("/v1/tasks?text={}", "x".repeat(257));
    assert_eq!(astro.refusal("GET", &long, &json!({})).await, Code::InvalidRequest);
}

#[tokio::test]
async fn unused_function_is_removed_by_owner_or_operator() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let mut astro = member(&manager, "astro", Role::User).await;
    let mut bio = member(&manager, "bio", Role::User).await;
    let mut operator = member(&manager, "ops", Role::Operator).await;
    astro.post::<Value>("/v1/endpoints", &json!({"name": "site"})).await;
    let function = astro.function("f").await;
    let by_id = format!("/v1/functions/{}", function.id);
    assert_eq!(bio.refusal("DELETE", &by_id, &json!({})).await, Code::NotFound);
    assert_eq!(
        operator.refusal("DELETE", "/v1/functions/f", &json!({})).await,
        Code::NotFound
    );
    let trigger = json!({
        "name": "hook", "source": {"kind": "webhook"}, "function": function.id, "endpoint": "site"
    });
    astro.post::<Value>("/v1/triggers", &trigger).await;
    assert_eq!(
        astro.refusal("DELETE", "/v1/functions/f", &json!({})).await,
        Code::InvalidRequest
    );
    let (status, _) = astro.send("DELETE", "/v1/triggers/hook", "").await;
    assert_eq!(status, 200);
    let flow = json!({"steps": [{"name": "one", "function": function.id, "endpoint": "site"}]});
    let flow = astro.post::<Value>("/v1/flows", &flow).await;
    let id = flow["id"].as_str().expect("an id").to_owned();
    assert_eq!(
        astro.refusal("DELETE", "/v1/functions/f", &json!({})).await,
        Code::InvalidRequest
    );
    astro.post::<Value>(&format!("/v1/flows/{id}/cancel"), &json!({})).await;
    let until = Instant::now() + TIMEOUT;
    let removed = loop {
        let (status, answer) = operator.send("DELETE", &by_id, "").await;
        if status == 200 {
            break answer;
        }
        // Its last tasks may be ending.
        assert_eq!(code(status, &answer), Code::InvalidRequest);
        assert!(Instant::now() < until, "{answer}");
    };
    let removed: Vec<FunctionStatus> = serde_json::from_str(&removed).unwrap();
    assert_eq!(removed, [function]);
    assert_eq!(astro.get::<Vec<FunctionStatus>>("/v1/functions").await, []);
}

#[tokio::test]
async fn audit_log_records_all_changes_of_tasks() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let mut own = Client::new(&manager).await;
    own.post::<Value>("/v1/endpoints", &json!({"name": "site"})).await;
    let function = own.function("f").await;
    let send = async |own: &mut Client, method: &str, path: &str, body: Value| {
        let (status, answer) = own.send(method, path, &body.to_string()).await;
        assert!(status < 300, "{method} {path}: {answer}");
    };
    send(&mut own, "PUT", "/v1/teams/ours", json!({"members": ["ann"]})).await;
    send(
        &mut own,
        "PUT",
        "/v1/functions/f/sharing",
        json!({"shared_with": ["team:ours"]}),
    )
    .await;
    let trigger = json!({"name": "hook", "source": {"kind": "webhook"}, "function": function.id, "endpoint": "site"});
    send(&mut own, "POST", "/v1/triggers", trigger).await;
    send(&mut own, "DELETE", "/v1/triggers/hook", json!({})).await;
    let id = "00000000000000000000000000000007";
    let flow = json!({"id": id, "steps": [{"name": "one", "function": function.id, "endpoint": "site"}]});
    send(&mut own, "POST", "/v1/flows", flow).await;
    send(&mut own, "POST", &format!("/v1/flows/{id}/cancel"), json!({})).await;
    send(&mut own, "POST", "/v1/tasks/cancel", json!({"tag": "a"})).await;
    send(&mut own, "POST", "/v1/tasks/forget", json!({"tag": "a"})).await;
    let function = own.function("g").await;
    send(&mut own, "DELETE", &format!("/v1/functions/{}", function.id), json!({})).await;
    send(&mut own, "DELETE", "/v1/teams/ours", json!({})).await;
    send(&mut own, "DELETE", "/v1/endpoints/site", json!({})).await;
    let entries = own.get::<Vec<AuditEntry>>("/v1/audit").await;
    let actions: Vec<_> = entries
        .iter()
        .map(|entry| (entry.action.as_str(), entry.subject.as_str()))
        .collect();
    let removed = function.id.to_string();
    assert_eq!(
        actions,
        [
            ("endpoint.register", "site"),
            ("function.register", "f"),
            ("team.set", "ours"),
            ("function.share", "f"),
            ("trigger.set", "hook"),
            ("trigger.remove", "hook"),
            ("flow.start", id),
            ("flow.cancel", id),
            ("task.cancel", "a"),
            ("task.forget", "a"),
            ("function.register", "g"),
            ("function.remove", &removed),
            ("team.remove", "ours"),
            ("endpoint.remove", "site"),
        ]
    );
    assert!(entries.iter().all(|entry| !entry.token.is_empty()));
}

#[tokio::test]
async fn output_just_before_a_stop_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let mut dispatcher = manager.attach(LOCAL).await.unwrap();
    let mut client = Client::new(&manager).await;
    let function = client.function("f").await;
    let task = client.task(&function, LOCAL, "a").await;
    dispatcher.to_manager.send(FromDispatcher::Credit { tasks: 1 }).unwrap();
    let sent = async {
        loop {
            if let Some(ToDispatcher::Tasks(tasks)) = dispatcher.from_manager.recv().await {
                return tasks[0].attempt;
            }
        }
    };
    let attempt = tokio::time::timeout(TIMEOUT, sent).await.expect("a task in time");
    let printed = TaskOutput {
        attempt,
        stream: Stream::Out,
        bytes: b"last words".to_vec().into(),
        loans: None,
    };
    let ended = Ended {
        begun: true,
        ..Ended::unexecuted(attempt, None)
    };
    for one in [
        FromDispatcher::Printed(vec![printed]),
        FromDispatcher::Ended(vec![ended]),
    ] {
        dispatcher.to_manager.send(one).unwrap();
    }
    client
        .get::<Value>(&format!("/v1/tasks/{task}/outcome?wait_ms=10000"))
        .await;
    manager.shutdown().await;
    drop((client, dispatcher, manager));
    let begun = Instant::now();
    let manager = loop {
        // The earlier manager may be closing.
        match Manager::start(options(directory.path())).await {
            Ok(manager) => break manager,
            Err(error) => assert!(begun.elapsed() < TIMEOUT, "{error}"),
        }
        tokio::task::yield_now().await;
    };
    let printed: TaskOutputPage = Client::new(&manager)
        .await
        .get(&format!("/v1/tasks/{task}/output"))
        .await;
    let bytes: Vec<u8> = printed.pieces.iter().flat_map(|piece| piece.bytes.to_vec()).collect();
    assert_eq!(bytes, b"last words");
    manager.shutdown().await;
}
