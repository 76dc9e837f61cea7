//! Calls, and what becomes of them when something dies.

mod common;

use common::*;
use mayfly_protocol::slot::Status;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_function_of_a_library_is_called_over_shared_memory() {
    let site = Site::start().await;
    let grant = site.lease(|_| {}).await.unwrap();
    let hash = site.put_library(&grant).await;
    let channel = site.channel(&grant, 0).await.unwrap();
    assert_eq!(channel.verdict.incarnation.get(), 1);
    let (mut channel, echo) = channel.load(hash, "echo").await;
    for round in 0..100u8 {
        let (next, result) = channel.call(echo, 0, &[round; 40]).await;
        assert_eq!(result.unwrap(), (Status::Ok, vec![round; 40]));
        channel = next;
    }
    drop(channel);
    site.handle.shutdown().await;
}
