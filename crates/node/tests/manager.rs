//! A node with a real manager: joining, offers, meters, and the manager's disconnection and return.

mod common;

use std::time::Duration;

use common::*;
use dayfly_manager::{Manager, StoreKind};
use dayfly_node::{ManagerLink, Trust};
use dayfly_protocol::api::{
    Event, FunctionProfile, HarvestMode, LeaseRequest, LeaseState, LeaseStatus, Mode, NodeStatus,
};
use dayfly_protocol::error::Code;
use dayfly_protocol::ids::LeaseId;

struct Control {
    /// `None` while it is stopped.
    manager: Option<dayfly_manager::Handle>,
    dir: tempfile::TempDir,
}

async fn start_manager(dir: &tempfile::TempDir, port: u16) -> dayfly_manager::Handle {
    let mut options = dayfly_manager::Options::new(dir.path().join("manager"));
    options.listen = ([127, 0, 0, 1], port).into();
    options.heartbeat = Duration::from_millis(50);
    options.store = StoreKind::Sqlite { most_pages: None };
    Manager::start(options).await.unwrap()
}

fn client(manager: &dayfly_manager::Handle) -> (ureq::Agent, String, String) {
    let authority = ureq::tls::Certificate::from_pem(manager.ca_pem().as_bytes()).unwrap();
    let tls = ureq::tls::TlsConfig::builder()
        .root_certs(ureq::tls::RootCerts::new_with_certs(&[authority]))
        .unversioned_rustls_crypto_provider(std::sync::Arc::new(rustls::crypto::ring::default_provider()))
        .build();
    let config = ureq::Agent::config_builder()
        .tls_config(tls)
        .timeout_global(Some(LIMIT))
        .build();
    let bearer = format!("Bearer {}", manager.connection().token);
    (config.into(), manager.url().to_string(), bearer)
}

impl Control {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let manager = start_manager(&dir, 0).await;
        Self {
            manager: Some(manager),
            dir,
        }
    }

    fn manager(&self) -> &dayfly_manager::Handle {
        self.manager.as_ref().unwrap()
    }

    async fn stop(&mut self) {
        self.manager.take().unwrap().shutdown().await;
    }

    async fn site(&self) -> Site {
        self.harvesting(HarvestMode::Off).await
    }

    async fn harvesting(&self, mode: HarvestMode) -> Site {
        let join = self.manager().join_token(Duration::from_secs(60)).await.unwrap();
        let owner = self.manager().owner().unwrap();
        let site = Site::with(|options| {
            options.trust = Trust::Owners(vec![owner]);
            options.harvest = mode;
            options.manager = Some(ManagerLink {
                url: join.manager,
                ca_pem: join.ca_pem,
                join_token: Some(join.token),
                others: join.others,
            });
        })
        .await;
        until("the registration", || site.handle.status().manager_connected).await;
        site
    }

    async fn lease(&self, request: LeaseRequest) -> dayfly_protocol::api::Grant {
        let (agent, url, bearer) = client(self.manager());
        blocking(move || {
            let post = agent.post(format!("{url}/v1/leases")).header("authorization", bearer);
            post.send_json(&request).unwrap().body_mut().read_json().unwrap()
        })
        .await
    }

    async fn release(&self, lease: LeaseId) {
        let (agent, url, bearer) = client(self.manager());
        blocking(move || {
            let delete = agent
                .delete(format!("{url}/v1/leases/{lease}"))
                .header("authorization", bearer);
            delete.call().unwrap();
        })
        .await;
    }

    async fn status(&self, lease: LeaseId) -> LeaseStatus {
        let (agent, url, bearer) = client(self.manager());
        blocking(move || {
            let get = agent
                .get(format!("{url}/v1/leases/{lease}"))
                .header("authorization", bearer);
            get.call().unwrap().body_mut().read_json().unwrap()
        })
        .await
    }

    /// The response to a GET request; `None` if it is no success.
    async fn get<T: serde::de::DeserializeOwned + Send + 'static>(&self, path: &str) -> Option<T> {
        let (agent, url, bearer) = client(self.manager());
        let path = path.to_owned();
        blocking(move || {
            let get = agent.get(format!("{url}{path}")).header("authorization", bearer);
            get.call().ok()?.body_mut().read_json().ok()
        })
        .await
    }

    /// Calls a function of milliseconds on a node so many times, in a lease that ends afterwards.
    async fn call_on(&self, site: &Site, ms: u32, times: usize) -> LeaseId {
        let grant = self
            .lease(LeaseRequest {
                node: Some(site.node()),
                mode: Mode::Warm,
                ..request(&site.holder)
            })
            .await;
        let hash = site.put_library(&grant).await;
        let channel = site.channel(&grant, 0).await.unwrap();
        let (mut channel, burn) = channel.load(hash, "burn").await;
        for _ in 0..times {
            let (next, result) = channel.call(burn, 0, &ms.to_le_bytes()).await;
            result.unwrap();
            channel = next;
        }
        grant.lease
    }

    async fn until(&self, lease: LeaseId, what: &str, is: impl Fn(&LeaseStatus) -> bool) {
        let begun = std::time::Instant::now();
        loop {
            let status = self.status(lease).await;
            if is(&status) {
                return;
            }
            assert!(begun.elapsed() < LIMIT, "{what} did not come about: {status:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn managed_lease_is_used_metered_and_ended() {
    let mut control = Control::start().await;
    let site = control.site().await;
    let grant = control.lease(request(&site.holder)).await;
    assert_eq!(grant.node.id, site.handle.address().id);
    let hash = site.put_library(&grant).await;
    let channel = site.channel(&grant, 0).await.unwrap();
    let (channel, echo) = channel.load(hash, "echo").await;
    let (channel, result) = channel.call(echo, 0, b"managed").await;
    assert_eq!(result.unwrap().1, b"managed");
    control
        .until(grant.lease, "the first use", |status| {
            status.state == LeaseState::Active
        })
        .await;
    control
        .until(grant.lease, "the booking", |status| status.usage.calls == 2)
        .await;
    drop(channel);
    control.release(grant.lease).await;
    until("the end", || site.handle.status().leases.is_empty()).await;
    assert_eq!(site.channel(&grant, 0).await.err().unwrap().code, Code::LeaseEnded);
    site.handle.shutdown().await;
    control.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usage_without_manager_is_booked_after_reconnect() {
    let mut control = Control::start().await;
    let site = control.site().await;
    let (kept, released) = (
        control.lease(request(&site.holder)).await,
        control.lease(request(&site.holder)).await,
    );
    let hash = site.put_library(&kept).await;
    let channel = site.channel(&kept, 0).await.unwrap();
    let port = control.manager().address().port();
    control.stop().await;
    until("the connection's end", || !site.handle.status().manager_connected).await;
    let (channel, echo) = channel.load(hash, "echo").await;
    let (_channel, result) = channel.call(echo, 0, b"alone").await;
    assert_eq!(result.unwrap().1, b"alone");
    let mut direct = site.control(token(&released)).await.unwrap();
    direct.ask(dayfly_protocol::node_api::Request::Release).await.unwrap();
    control.manager = Some(start_manager(&control.dir, port).await);
    control
        .until(kept.lease, "the booking", |status| {
            status.state == LeaseState::Active && status.usage.calls == 2
        })
        .await;
    control
        .until(released.lease, "the news of the release", |status| {
            status.state == LeaseState::Released
        })
        .await;
    site.handle.shutdown().await;
    control.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_node_reports_lease_ends_and_usage() {
    let mut control = Control::start().await;
    let site = control.site().await;
    let grant = control.lease(request(&site.holder)).await;
    let hash = site.put_library(&grant).await;
    let channel = site.channel(&grant, 0).await.unwrap();
    let (channel, echo) = channel.load(hash, "echo").await;
    let (_channel, result) = channel.call(echo, 0, b"last").await;
    assert_eq!(result.unwrap().1, b"last");
    let mut events = control.manager().events();
    let node = site.handle.address().id;
    site.handle.shutdown().await;
    let mut heard = Vec::new();
    while heard.last() != Some(&Event::NodeLeft { node }) {
        heard.push(tokio::time::timeout(LIMIT, events.recv()).await.unwrap().unwrap().event);
    }
    assert!(!heard.contains(&Event::NodeLost { node }), "{heard:?}");
    let status = control.status(grant.lease).await;
    assert_eq!((status.state, status.usage.calls), (LeaseState::Revoked, 2));
    control.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn warm_leases_go_to_the_node_that_lends() {
    let mut control = Control::start().await;
    let idle = control.site().await;
    let lender = control.harvesting(HarvestMode::On).await;
    if let Some(why) = lender.handle.status().harvest.why {
        eprintln!("skipped: {why}");
        return;
    }
    let lending = || control.manager().lending();
    until("its heartbeat", || !lending().is_empty()).await;
    let (node, report) = lending().remove(0);
    assert_eq!((lending().len(), node), (1, lender.node()));
    // No call runs: all of its shared cores are there, and nobody owns them.
    assert!(
        report.unowned.milli_cores >= 1_000 && report.spare.cpu.at(0) == 0,
        "{report:?}"
    );
    let workers = || control.manager().nodes().into_iter().map(|node| node.free.workers);
    for _ in 0..6 {
        // A heartbeat that was on its way at the release still counts the lease.
        until("equally many free workers", || {
            workers().all(|free| Some(free) == workers().max())
        })
        .await;
        let grant = control.lease(request(&lender.holder)).await;
        assert_eq!(grant.node.id, lender.node());
        control.release(grant.lease).await;
    }
    // Where the other node has more free workers, it comes first.
    let held = control.lease(request(&lender.holder)).await;
    let other = control.lease(request(&lender.holder)).await;
    assert_ne!(held.node.id, other.node.id);
    lender.handle.switch_harvest(HarvestMode::Watch).unwrap();
    until("the next heartbeat", || lending().is_empty()).await;
    for site in [idle, lender] {
        site.handle.shutdown().await;
    }
    control.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_part_of_call_reaches_manager() {
    let mut control = Control::start().await;
    let site = control.harvesting(HarvestMode::On).await;
    if let Some(why) = site.handle.status().harvest.why {
        eprintln!("skipped: {why}");
        return;
    }
    let grant = control.lease(request(&site.holder)).await;
    let hash = site.put_library(&grant).await;
    let channel = site.channel(&grant, 0).await.unwrap();
    let (mut channel, nap) = channel.load(hash, "nap").await;
    let owned = || {
        let mut lending = control.manager().lending();
        lending.pop().map_or(0, |(_, report)| report.spare.cpu.at(0))
    };
    let calls = async {
        // Its first calls lend nothing: they show what it uses.
        for _ in 0..60 {
            let result;
            (channel, result) = channel.call(nap, 0, &300u32.to_le_bytes()).await;
            result.unwrap();
        }
    };
    tokio::select! {
        () = until("a report while it sleeps", || owned() > 0) => {}
        () = calls => panic!("nothing of what it owned was reported"),
    }
    assert!(owned() <= 1_000, "it owns one core");
    site.handle.shutdown().await;
    control.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_learns_from_calls_of_another_node() {
    let mut control = Control::start().await;
    let (one, two) = (
        control.harvesting(HarvestMode::Watch).await,
        control.harvesting(HarvestMode::Watch).await,
    );
    if let Some(why) = one.handle.status().harvest.why {
        eprintln!("skipped: {why}");
        return;
    }
    let lease = control.call_on(&one, 40, 14).await;
    let begun = std::time::Instant::now();
    loop {
        let nodes: Vec<NodeStatus> = control.get("/v1/nodes").await.unwrap();
        let samples = |node: &NodeStatus| node.harvest.as_ref().map_or(0, |status| status.samples);
        if nodes.iter().any(|node| samples(node) >= 8) {
            break;
        }
        assert!(begun.elapsed() < LIMIT, "{nodes:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The node has sent its samples before it responds to this.
    control.release(lease).await;
    control.call_on(&two, 40, 2).await;
    let begun = std::time::Instant::now();
    loop {
        let rows: Vec<FunctionProfile> = control.get("/v1/functions/burn/profile").await.unwrap_or_default();
        // It has at most one sample of its own: no worker's first call is measured.
        if rows.iter().any(|row| row.node == two.node() && row.learnt.samples >= 8) {
            break;
        }
        assert!(begun.elapsed() < LIMIT, "{rows:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(two.handle.status().harvest.samples <= 1, "only own calls are counted");
    for site in [one, two] {
        site.handle.shutdown().await;
    }
    control.stop().await;
}
