//! Many workers at one manager. The dispatchers are fakes: each reports a number of workers, and takes a task for each.
//! Their connections, the manager, its disk and its HTTP API are real.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_client::{Client, Form, Runtime};
use dayfly_endpoint::connection::{self, ManagerChannels};
use dayfly_manager::{Manager, Options};
use dayfly_protocol::api::Connection;
use dayfly_protocol::dispatch::{Attempt, Ended, FromDispatcher, ToDispatcher};
use dayfly_protocol::endpoints::{EndpointRegistration, EndpointSpec, EndpointStatus, NewEndpoint};
use dayfly_protocol::functions::{FunctionRegistration, FunctionStatus, Resources};
use dayfly_protocol::tasks::{AcceptedTasks, TaskCounts, TaskInput, TaskOptions, TaskSubmission};
use tokio::sync::Semaphore;

const ENDPOINTS: u32 = 64;
const WORKERS: u32 = 2_048;
const LIMIT: Duration = Duration::from_secs(100);

/// Takes a task for each worker, and ends all tasks when `end` permits it.
async fn pretend(mut channels: ManagerChannels, end: Arc<Semaphore>) {
    let said = channels.outgoing;
    let say = |message| said.send(message).expect("a connection");
    say(FromDispatcher::Workers {
        count: WORKERS,
        trouble: None,
    });
    say(FromDispatcher::Credit { tasks: WORKERS });
    let mut running: Vec<Attempt> = Vec::new();
    while running.len() < WORKERS as usize {
        match channels.incoming.recv().await.expect("a manager") {
            ToDispatcher::Tasks(tasks) => {
                let attempts: Vec<Attempt> = tasks.iter().map(|task| task.attempt).collect();
                running.extend(&attempts);
                say(FromDispatcher::Running(attempts));
            }
            _ => continue,
        }
    }
    let _may = end.acquire().await.expect("word that it may");
    let done = |attempt| Ended {
        begun: true,
        took_us: 1_000,
        ..Ended::unexecuted(attempt, None)
    };
    say(FromDispatcher::Ended(running.into_iter().map(done).collect()));
    // Wait until the manager has received all outcomes.
    while let Some(message) = channels.incoming.recv().await {
        if let ToDispatcher::Tasks(_) = message {
            panic!("a task that nobody submitted");
        }
    }
}

fn set_up(client: &Client, name: &str, connection: &Connection) -> connection::Options {
    let registration = EndpointRegistration {
        name: name.into(),
        spec: EndpointSpec::default(),
    };
    let new: NewEndpoint = client.post("/v1/endpoints", &registration).expect("an endpoint");
    connection::Options {
        managers: connection.managers(),
        token: new.token,
        outbox: None,
        spec: None,
    }
}

fn wait_for(client: &Client, what: &str, wanted: impl Fn(&TaskCounts) -> bool) {
    let until = Instant::now() + LIMIT;
    loop {
        let counts: TaskCounts = client.get("/v1/tasks/counts").expect("counts");
        if wanted(&counts) {
            return;
        }
        assert!(Instant::now() < until, "{what}: {counts:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn each_of_131072_workers_runs_a_task() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("threads");
    let directory = tempfile::tempdir().expect("a directory");
    let mut options = Options::new(directory.path());
    options.listen = "127.0.0.1:0".parse().expect("an address");
    let manager = runtime.block_on(Manager::start(options)).expect("a manager");
    let client = Client::manager_at(manager.connection()).expect("a client");
    let function = FunctionRegistration {
        image: None,
        name: None,
        description: String::new(),
        source: String::new(),
        form: Form::Source { entry: "f".into() },
        runtime: Runtime::any_python(),
        resources: Resources::default(),
        repeatable: false,
        shared_with: Vec::new(),
        code: b"def f(): pass".to_vec().into(),
    };
    let function: FunctionStatus = client.post("/v1/functions", &function).expect("a function");
    let end = Arc::new(Semaphore::new(0));
    let _guard = runtime.enter();
    let names: Vec<String> = (0..ENDPOINTS).map(|number| format!("site-{number}")).collect();
    let mut pretending = Vec::new();
    for name in &names {
        let options = set_up(&client, name, manager.connection());
        let channels = connection::open(options).expect("a connection");
        pretending.push(runtime.spawn(pretend(channels, Arc::clone(&end))));
    }
    let all = u64::from(ENDPOINTS * WORKERS);
    let begun = Instant::now();
    for name in &names {
        let submission = TaskSubmission {
            function: function.id,
            endpoint: Some(name.clone()),
            tag: "all".into(),
            tasks: vec![TaskInput::default(); WORKERS as usize],
            options: TaskOptions::default(),
        };
        let accepted: AcceptedTasks = client.post("/v1/tasks", &submission).expect("accepted");
        assert_eq!(accepted.tasks.len(), WORKERS as usize);
    }
    wait_for(&client, "all run", |counts| counts.running == all);
    let running = begun.elapsed();
    let endpoints: Vec<EndpointStatus> = client.get("/v1/endpoints").expect("endpoints");
    assert_eq!(endpoints.iter().map(|one| u64::from(one.workers)).sum::<u64>(), all);
    end.add_permits(ENDPOINTS as usize);
    wait_for(&client, "all have ended", |counts| counts.done == all);
    let counts: TaskCounts = client.get("/v1/tasks/counts").expect("counts");
    assert_eq!(
        (counts.failed, counts.running, counts.queued, counts.waiting),
        (0, 0, 0, 0)
    );
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let memory = status
        .lines()
        .find(|line| line.starts_with("VmHWM"))
        .unwrap_or_default();
    eprintln!(
        "{all} workers at {ENDPOINTS} endpoints: all have a task after {:.2} s, all have ended after {:.2} s; {memory}",
        running.as_secs_f64(),
        begun.elapsed().as_secs_f64()
    );
    pretending.into_iter().for_each(|one| one.abort());
    runtime.block_on(manager.shutdown());
}
