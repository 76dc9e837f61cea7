//! Loops shared between this program and the workers of a standalone node. Uses real processes.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dayfly_client::offload::Reason;
use dayfly_client::{CallOptions, Client, Form, FunctionId, LeaseOptions, Mode, Offload, Pool};

mod support;

/// A standalone node and a pool of its workers.
struct Site {
    node: Option<Child>,
    pool: Pool,
    sleep: FunctionId,
    _home: tempfile::TempDir,
}

impl Site {
    fn start(workers: u16) -> Self {
        let home = tempfile::tempdir().unwrap();
        let state = home.path().join("node");
        let mut node = Command::new(support::dayfly())
            .args(["node", "--standalone", "--sandbox", "process", "--json", "--parent"])
            .arg(std::process::id().to_string())
            .arg("--state-dir")
            .arg(&state)
            .env_remove("DAYFLY_MANAGER")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(node.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        let client = Client::node(&state.join("allowance.json")).unwrap();
        let lease = client.lease(LeaseOptions {
            mode: Mode::Warm,
            hot_for: Some(Duration::ZERO),
            ..LeaseOptions::native(workers)
        });
        let lease = lease.unwrap();
        let code = lease
            .put_code(&support::compile(include_str!("support/functions.c")))
            .unwrap();
        let pool = lease.pool(Default::default()).unwrap();
        let symbol = "sleep_ms".into();
        let sleep = pool.register(code, Form::Plain { symbol }).unwrap();
        Self {
            node: Some(node),
            pool,
            sleep,
            _home: home,
        }
    }
}

fn kill(mut node: Child) {
    let _ = node.kill();
    let _ = node.wait();
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Some(node) = self.node.take() {
            kill(node);
        }
    }
}

/// Calls that sleep for 2 ms or less, and return how long.
fn inputs(count: u32) -> Vec<[u8; 4]> {
    (0..count).map(|index| (2 - index % 2).to_le_bytes()).collect()
}

fn sleep_here(input: &[u8]) -> Vec<u8> {
    let ms = u32::from_le_bytes(input.try_into().unwrap());
    std::thread::sleep(Duration::from_millis(ms.into()));
    input.to_vec()
}

#[test]
fn shared_loop_is_faster_with_the_same_results() {
    let site = Site::start(2);
    let (offload, inputs) = (Offload::new(), inputs(60));
    let mut fastest = Duration::MAX;
    let mut last = None;
    for _ in 0..8 {
        let begun = Instant::now();
        let shared = offload
            .share(&site.pool, site.sleep, &inputs, CallOptions::default(), sleep_here)
            .unwrap();
        fastest = fastest.min(begun.elapsed());
        assert_eq!(shared.outputs, inputs);
        last = Some(shared.split);
    }
    let split = last.unwrap();
    assert_eq!(split.reason, Reason::Divided);
    assert!((25..=45).contains(&split.remote_total()), "{split:?}");
    // Alone the loop sleeps for 90 ms.
    assert!(fastest < Duration::from_millis(70), "{fastest:?}");
}

#[test]
fn killed_node_in_a_step_changes_no_result() {
    let mut site = Site::start(2);
    let (offload, inputs) = (Offload::new(), inputs(60));
    let options = CallOptions {
        idempotent: true,
        ..CallOptions::default()
    };
    for _ in 0..3 {
        offload
            .share(&site.pool, site.sleep, &inputs, options, sleep_here)
            .unwrap();
    }
    let mut node = site.node.take();
    let mut computed = 0;
    let shared = offload.share(&site.pool, site.sleep, &inputs, options, |input| {
        computed += 1;
        if computed == 5
            && let Some(node) = node.take()
        {
            kill(node);
        }
        sleep_here(input)
    });
    assert_eq!(shared.unwrap().outputs, inputs);
    // Nothing is left to send to.
    let shared = offload
        .share(&site.pool, site.sleep, &inputs, options, sleep_here)
        .unwrap();
    assert_eq!(shared.outputs, inputs);
}
