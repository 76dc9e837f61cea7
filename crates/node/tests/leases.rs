//! Lifetimes of leases: assignment and return of cores, and what a restart remembers.

mod common;

use std::time::Duration;

use common::*;
use dayfly_node::Node;
use dayfly_protocol::api::{LeaseChange, Mode, Runtime};
use dayfly_protocol::error::Code;
use dayfly_protocol::hello::transport;
use dayfly_protocol::node_api::{Request, Response};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn last_core_is_leased_to_exactly_one_client() {
    let site = Site::start().await;
    let hot = || site.lease(|request| request.mode = Mode::Hot);
    let (a, b) = tokio::join!(hot(), hot());
    let (won, lost) = match (a, b) {
        (Ok(grant), Err(failure)) | (Err(failure), Ok(grant)) => (grant, failure),
        other => panic!("{other:?}"),
    };
    assert_eq!(lost.code, Code::NoCapacity);
    let mut control = site.control(token(&won)).await.unwrap();
    assert_eq!(control.ask(Request::Release).await.unwrap(), Response::Done);
    // The core is free when the release has its response.
    assert_eq!(site.handle.status().free, site.handle.status().capacity);
    hot().await.unwrap();
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn released_lease_token_is_refused_after_restart() {
    let site = Site::start().await;
    let grant = site.lease(|_| {}).await.unwrap();
    let channel = site.channel(&grant, 0).await.unwrap();
    let worker = channel.verdict.worker_pid.get();
    let mut control = site.control(token(&grant)).await.unwrap();
    assert_eq!(control.ask(Request::Release).await.unwrap(), Response::Done);
    assert!(!is_alive(worker));
    assert_eq!(site.channel(&grant, 0).await.err().unwrap().code, Code::LeaseEnded);
    let held = site.lease(|_| {}).await.unwrap();
    let Site { dir, handle, holder } = site;
    handle.shutdown().await;
    let handle = Node::start(options(dir.path())).await.unwrap();
    let site = Site { dir, handle, holder };
    for grant in [grant, held] {
        let failure = site
            .knock(site.hello(token(&grant), 0, transport::SHM))
            .await
            .unwrap_err();
        assert_eq!(failure.code, Code::LeaseEnded);
    }
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_lease_is_released_after_its_idle_time() {
    let site = Site::start().await;
    let grant = site.lease(|request| request.idle_release_ms = 50).await.unwrap();
    let channel = site.channel(&grant, 0).await.unwrap();
    assert_eq!(site.handle.status().leases.len(), 1);
    drop(channel);
    until("the release", || site.handle.status().leases.is_empty()).await;
    assert_eq!(site.channel(&grant, 0).await.err().unwrap().code, Code::LeaseEnded);
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unused_grant_ends_at_its_start_by_time() {
    let site = Site::with(|options| options.start_by = Duration::from_millis(50)).await;
    let grant = site.lease(|request| request.mode = Mode::Hot).await.unwrap();
    until("the return", || site.handle.status().leases.is_empty()).await;
    assert_eq!(site.handle.status().free, site.handle.status().capacity);
    assert_eq!(site.channel(&grant, 0).await.err().unwrap().code, Code::LeaseExpired);
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewed_lease_continues_with_new_token() {
    let site = Site::start().await;
    let grant = site.lease(|request| request.duration_ms = 2_000).await.unwrap();
    let _channel = site.channel(&grant, 0).await.unwrap();
    let mut control = site.control(token(&grant)).await.unwrap();
    let renewal = Request::Renew {
        duration_ms: 60_000,
        change: LeaseChange::default(),
    };
    let renewed = match control.ask(renewal).await.unwrap() {
        Response::Renewed(grant) => *grant,
        other => panic!("{other:?}"),
    };
    assert!(renewed.expires_at_ms > grant.expires_at_ms);
    assert!(site.handle.status().leases[0].remaining_ms > 50_000);
    site.control(token(&renewed)).await.unwrap();
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_executor_refuses_lease_and_frees_resources() {
    let site = Site::with(|options| options.executor = Some("/nonexistent/executor".into())).await;
    let failure = site.lease(|_| {}).await.unwrap_err();
    assert_eq!(failure.code, Code::ExecutorFailed);
    assert!(failure.message.contains("/nonexistent/executor"), "{failure}");
    assert_eq!(site.handle.status().free, site.handle.status().capacity);
    site.handle.shutdown().await;
}

/// An interpreter that runs a shell script instead.
fn interpreter(site: &Site, script: &str) -> Runtime {
    use std::os::unix::fs::PermissionsExt;
    let path = site.dir.path().join("python3");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    Runtime::Python {
        version: "3.11.7".into(),
        cloudpickle: "3.1.0".into(),
        executable: Some(path.display().to_string()),
        path: Vec::new(),
        environment: None,
        code: None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_without_dayfly_is_refused_with_its_message() {
    let site = Site::start().await;
    let runtime = interpreter(&site, "echo \"No module named dayfly\" >&2; exit 1");
    let failure = site.lease(|request| request.runtime = runtime).await.unwrap_err();
    assert_eq!(failure.code, Code::ExecutorFailed);
    assert!(failure.message.contains("No module named dayfly"), "{failure}");
    assert_eq!(site.handle.status().free, site.handle.status().capacity);
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoked_lease_ends_for_its_client() {
    let site = Site::start().await;
    let grant = site.lease(|_| {}).await.unwrap();
    let mut channel = site.channel(&grant, 0).await.unwrap();
    assert_eq!(site.handle.revoke(Some(grant.lease)).await, 1);
    let end = blocking(move || channel.receive().unwrap_err().to_string()).await;
    assert!(end.contains("Revoked"), "{end}");
    assert_eq!(site.channel(&grant, 0).await.err().unwrap().code, Code::LeaseEnded);
    site.handle.shutdown().await;
}
