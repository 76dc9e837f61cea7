//! Profiles of functions, with fake nodes that learnt.

use dayfly_protocol::call_samples::CallSample;
use dayfly_protocol::tenancy::Role;

use super::tenants::member;
use super::*;

pub(super) fn learnt(function: &str, reason: &str) -> LearntProfile {
    LearntProfile {
        function: function.into(),
        samples: 30,
        samples_needed: 21,
        model: ProfileModel::Histogram,
        scores: None,
        owned: CallResources::default(),
        high: None,
        lends: CallResources::default(),
        reason: reason.into(),
    }
}

fn heartbeat(mode: HarvestMode, why: Option<&str>) -> NodeMessage {
    NodeMessage::Heartbeat {
        free: ledger(2).free(),
        clock_ms: now_ms(),
        harvest: Some(Box::new(HarvestStatus::new(mode, why.map(str::to_owned)))),
        pools: None,
    }
}

/// Reports harvesting of a node that sends no heartbeats of its own, and waits until the manager knows it.
pub(super) async fn harvest(node: &FakeNode, client: &mut Client, mode: HarvestMode, why: Option<&str>) {
    node.say.send(heartbeat(mode, why)).unwrap();
    let knows = async {
        let known = |status: &NodeStatus| status.address.id == node.id && status.harvest.is_some();
        while !client.get::<Vec<NodeStatus>>("/v1/nodes").await.iter().any(known) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, knows)
        .await
        .expect("the heartbeat in time");
}

/// Responds to the next request for profiles. Returns whose profiles of what were asked for.
pub(super) async fn respond(
    node: &mut FakeNode,
    profiles: Vec<LearntProfile>,
) -> (dayfly_protocol::ids::TenantId, String) {
    let asked = node
        .hears(|message| matches!(message, ManagerMessage::Profiles { .. }))
        .await;
    let ManagerMessage::Profiles {
        request,
        tenant,
        function,
    } = asked
    else {
        unreachable!()
    };
    node.say.send(NodeMessage::Profiles { request, profiles }).unwrap();
    (tenant, function)
}

async fn refusal(client: &mut Client, path: &str) -> dayfly_protocol::error::Failure {
    let (_, body) = client.send("GET", path, "").await;
    serde_json::from_str::<ErrorBody>(&body)
        .unwrap_or_else(|_| panic!("{body}"))
        .error
}

#[tokio::test]
async fn each_node_reports_its_own_profile() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let (mut one, mut two) = (
        FakeNode::join(&manager, 1, Manner::Silent).await,
        FakeNode::join(&manager, 2, Manner::Silent).await,
    );
    let mut client = Client::new(&manager).await;
    harvest(&one, &mut client, HarvestMode::Watch, None).await;
    harvest(&two, &mut client, HarvestMode::On, None).await;
    let hostile = vec![
        learnt("m.f@12345678", "It lends.\n\u{1b}[2J"),
        learnt("other@12345678", "It is another function."),
    ];
    let (rows, of_one, _) = tokio::join!(
        client.get::<Vec<FunctionProfile>>("/v1/functions/f/profile"),
        respond(&mut one, hostile),
        respond(&mut two, vec![learnt("m.f@87654321", "It lends nothing.")]),
    );
    assert_eq!(of_one.1, "f");
    let shown: Vec<_> = rows
        .iter()
        .map(|row| (row.node, row.mode, row.learnt.function.as_str()))
        .collect();
    assert_eq!(
        shown,
        [
            (one.id, HarvestMode::Watch, "m.f@12345678"),
            (two.id, HarvestMode::On, "m.f@87654321")
        ]
    );
    assert!(!rows[0].learnt.reason.contains('\u{1b}'), "{rows:?}");
}

#[tokio::test]
async fn missing_profile_is_explained() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let mut node = FakeNode::join(&manager, 1, Manner::Silent).await;
    let mut client = Client::new(&manager).await;
    let path = "/v1/functions/f/profile";
    let nobody = refusal(&mut client, path).await;
    assert_eq!(nobody.code, Code::NotFound);
    assert!(nobody.message.contains("--harvest watch"), "{nobody}");
    harvest(
        &node,
        &mut client,
        HarvestMode::Watch,
        Some("It has no control groups."),
    )
    .await;
    let unable = refusal(&mut client, path).await;
    assert!(unable.message.contains("no control groups"), "{unable}");
    node.say.send(heartbeat(HarvestMode::Watch, None)).unwrap();
    // Only a node that can measure is asked.
    let (nothing, _) = tokio::join!(
        async {
            loop {
                let nothing = refusal(&mut client, path).await;
                if nothing.message.contains("yet") {
                    break nothing;
                }
            }
        },
        respond(&mut node, Vec::new())
    );
    assert_eq!(nothing.code, Code::NotFound);
    let long = refusal(&mut client, &format!("/v1/functions/{}/profile", "f".repeat(300))).await;
    assert_eq!(long.code, Code::InvalidRequest);
}

#[tokio::test]
async fn tenant_sees_only_its_own_profiles() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let mut node = FakeNode::join(&manager, 1, Manner::Silent).await;
    let mut own = Client::new(&manager).await;
    let mut astro = member(&manager, "astro", Role::User).await;
    let mut bio = member(&manager, "bio", Role::User).await;
    harvest(&node, &mut own, HarvestMode::Watch, None).await;
    let profile = || vec![learnt("f@12345678", "It lends nothing.")];
    let path = "/v1/functions/f/profile";
    let (rows, (astros, _)) = tokio::join!(astro.get::<Vec<FunctionProfile>>(path), respond(&mut node, profile()));
    assert_eq!(rows.len(), 1);
    let (_, (bios, _)) = tokio::join!(bio.get::<Vec<FunctionProfile>>(path), respond(&mut node, profile()));
    assert_ne!(astros, bios);
    let of_astro = "/v1/functions/f/profile?tenant=astro";
    let foreign = refusal(&mut bio, of_astro).await;
    assert_eq!(foreign.code, Code::NotFound);
    let (_, (asked, _)) = tokio::join!(own.get::<Vec<FunctionProfile>>(of_astro), respond(&mut node, profile()));
    assert_eq!(asked, astros);
}

#[tokio::test]
async fn samples_reach_nodes_with_a_lease_only() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let one = FakeNode::join(&manager, 1, Manner::Honest).await;
    let mut two = FakeNode::join(&manager, 2, Manner::Honest).await;
    let mut client = Client::new(&manager).await;
    let mut lease_on = async |node: &FakeNode| {
        let wanted = LeaseRequest {
            node: Some(node.id),
            ..request(Mode::Warm)
        };
        client.lease(&wanted).await.unwrap().lease
    };
    let (first, second) = (lease_on(&one).await, lease_on(&two).await);
    let sample = |duration_us| CallSample {
        duration_us,
        ..CallSample::default()
    };
    let report = |lease, duration_us| NodeMessage::Samples {
        lease,
        function: "f@1".into(),
        samples: vec![sample(duration_us)],
    };
    let wanted = |lease| NodeMessage::SamplesWanted {
        lease,
        function: "f@1".into(),
    };
    // A node reports and asks for nothing of the leases of others.
    for message in [report(first, 5), wanted(first), report(second, 7), wanted(second)] {
        two.say.send(message).unwrap();
    }
    let is_samples = |message: &ManagerMessage| matches!(message, ManagerMessage::Samples { .. });
    let ManagerMessage::Samples { samples, function, .. } = two.hears(is_samples).await else {
        unreachable!()
    };
    assert_eq!((function.as_str(), samples.as_slice()), ("f@1", &[sample(7)][..]));
    one.say.send(report(first, 9)).unwrap();
    let both = async {
        loop {
            two.say.send(wanted(second)).unwrap();
            if let ManagerMessage::Samples { samples, .. } = two.hears(is_samples).await
                && samples == [sample(7), sample(9)]
            {
                break;
            }
        }
    };
    tokio::time::timeout(TIMEOUT, both).await.expect("both samples in time");
}
