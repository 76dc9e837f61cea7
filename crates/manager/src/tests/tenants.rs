//! Tenants, tokens, quotas, budgets, bills and the audit log, over the real API.

use dayfly_protocol::error::Failure;
use dayfly_protocol::tenancy::{
    AuditEntry, BillPage, NewToken, Prices, Quota, Role, Tenant, TenantSpec, TokenRequest, TokenStatus,
};
use dayfly_store::{SqliteStore, Store, hash};

use super::*;

pub const PRICES: Prices = Prices {
    allocation_per_gib_s: 0,
    computing_per_s: 1_000_000,
    polling_per_s: 0,
    core_per_s: 0,
    gpu_per_s: 0,
    borrowed_core_per_s: 0,
    borrowed_per_gib_s: 0,
};

impl Client {
    pub async fn put<T: serde::de::DeserializeOwned>(&mut self, path: &str, body: &impl serde::Serialize) -> T {
        let (status, answer) = self.send("PUT", path, &serde_json::to_string(body).unwrap()).await;
        assert_eq!(status, 200, "{answer}");
        serde_json::from_str(&answer).unwrap()
    }

    async fn refused(&mut self, method: &str, path: &str, body: &impl serde::Serialize) -> Failure {
        let (status, answer) = self.send(method, path, &serde_json::to_string(body).unwrap()).await;
        code(status, &answer);
        serde_json::from_str::<ErrorBody>(&answer).unwrap().error
    }

    async fn token(&mut self, request: &TokenRequest) -> NewToken {
        let (status, answer) = self
            .send("POST", "/v1/tokens", &serde_json::to_string(request).unwrap())
            .await;
        assert_eq!(status, 201, "{answer}");
        serde_json::from_str(&answer).unwrap()
    }

    pub async fn tenant(&mut self, name: &str, change: impl FnOnce(&mut TenantSpec)) -> Tenant {
        let mut spec = TenantSpec::default();
        change(&mut spec);
        self.put(&format!("/v1/tenants/{name}"), &spec).await
    }
}

fn wanted(tenant: Option<&str>, role: Role) -> TokenRequest {
    TokenRequest {
        tenant: tenant.map(Into::into),
        name: format!("for-{role}"),
        role,
        read_only: false,
        valid_for_ms: 60_000,
    }
}

/// Returns a client with a token of this tenant. Makes the tenant if it does not exist.
pub async fn member(manager: &Handle, tenant: &str, role: Role) -> Client {
    let mut own = Client::new(manager).await;
    if !own
        .get::<Vec<Tenant>>("/v1/tenants")
        .await
        .iter()
        .any(|known| known.name == tenant)
    {
        own.tenant(tenant, |_| {}).await;
    }
    let longer = TokenRequest {
        valid_for_ms: 120_000,
        ..wanted(Some(tenant), role)
    };
    let made = own.token(&longer).await;
    let mut client = Client::new(manager).await;
    client.token = made.token;
    client
}

fn meters(sequence: u64, lease: LeaseId, computing_us: u64) -> NodeMessage {
    let usage = Usage {
        computing_us,
        calls: 1,
        ..Usage::default()
    };
    NodeMessage::Meters {
        sequence,
        usage: vec![(lease, usage.into())],
    }
}

#[tokio::test]
async fn each_role_has_its_own_permissions_only() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let node = FakeNode::join(&manager, 1, Manner::Honest).await;
    let (mut user, mut operator, mut administrator) = (
        member(&manager, "astro", Role::User).await,
        member(&manager, "ops", Role::Operator).await,
        member(&manager, "bosses", Role::Administrator).await,
    );
    let resume = format!("/v1/nodes/{}", node.id);
    let join = JoinTokenRequest { valid_for_ms: 1_000 };
    for (client, least) in [
        (&mut user, Role::User),
        (&mut operator, Role::Operator),
        (&mut administrator, Role::Administrator),
    ] {
        client.lease(&request(Mode::Warm)).await.unwrap();
        for (method, path, body, takes) in [
            ("PUT", resume.as_str(), "{}".to_owned(), Role::Operator),
            (
                "POST",
                "/v1/nodes/join-tokens",
                serde_json::to_string(&join).unwrap(),
                Role::Operator,
            ),
            ("PUT", "/v1/tenants/new", "{}".into(), Role::Administrator),
            (
                "PUT",
                "/v1/prices",
                serde_json::to_string(&PRICES).unwrap(),
                Role::Administrator,
            ),
            ("GET", "/v1/audit", String::new(), Role::Administrator),
        ] {
            let (status, answer) = client.send(method, path, &body).await;
            if least >= takes {
                assert!(status < 300, "{least} {method} {path}: {answer}");
            } else {
                assert_eq!(code(status, &answer), Code::Forbidden, "{least} {method} {path}");
            }
        }
    }
}

#[tokio::test]
async fn tenant_sees_its_own_and_operator_sees_all() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let node = FakeNode::join(&manager, 1, Manner::Honest).await;
    let mut astro = member(&manager, "astro", Role::User).await;
    let mut bio = member(&manager, "bio", Role::User).await;
    let mut operator = member(&manager, "ops", Role::Operator).await;
    let mut seen = websocket(&manager, "/v1/events", &bio.token).await.unwrap();
    let theirs = astro.lease(&request(Mode::Warm)).await.unwrap().lease;
    let own = bio.lease(&request(Mode::Warm)).await.unwrap().lease;
    let first = loop {
        let message = seen.next().await.unwrap().unwrap();
        if message.is_text() {
            break message.into_text().unwrap();
        }
    };
    assert_eq!(
        serde_json::from_str::<Event>(&first).unwrap(),
        lease_event(own, node.id, LeaseState::Granted),
        "another tenant's event was seen"
    );
    let path = format!("/v1/leases/{theirs}");
    let renew = RenewRequest {
        duration_ms: 1_000,
        change: LeaseChange::default(),
    };
    assert_eq!(bio.refused("GET", &path, &()).await.code, Code::NotFound);
    assert_eq!(bio.refused("DELETE", &path, &()).await.code, Code::NotFound);
    assert_eq!(
        bio.refused("POST", &format!("{path}/renew"), &renew).await.code,
        Code::NotFound
    );
    assert_eq!(
        bio.refused("POST", &format!("{path}/revoke"), &()).await.code,
        Code::NotFound
    );
    let refusal = bio.refused("GET", "/v1/bill?tenant=astro", &()).await;
    assert!(refusal.message.contains("`astro`"), "{refusal}");
    assert_eq!(bio.get::<Vec<LeaseStatus>>("/v1/leases").await.len(), 1);
    assert_eq!(bio.get::<BillPage>("/v1/bill").await.lines.len(), 1);
    assert_eq!(bio.get::<Vec<Tenant>>("/v1/tenants").await[0].leases, 1);
    let tokens = bio.get::<Vec<TokenStatus>>("/v1/tokens").await;
    assert_eq!(
        tokens.iter().map(|token| token.tenant.as_str()).collect::<Vec<_>>(),
        ["bio"]
    );
    assert_eq!(operator.get::<Vec<LeaseStatus>>("/v1/leases").await.len(), 2);
    assert_eq!(operator.get::<BillPage>("/v1/bill").await.lines.len(), 2);
    assert_eq!(
        operator.get::<BillPage>("/v1/bill?tenant=astro").await.lines[0].lease,
        theirs
    );
    assert_eq!(operator.refused("DELETE", &path, &()).await.code, Code::Forbidden);
    let (status, answer) = operator.send("POST", &format!("{path}/revoke"), "").await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(astro.state(theirs).await, LeaseState::Revoked);
}

#[tokio::test]
async fn token_is_shown_once_within_its_makers_rights() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let mut own = Client::new(&manager).await;
    let mut user = member(&manager, "astro", Role::User).await;
    own.tenant("bio", |_| {}).await;
    let refusal = user.refused("POST", "/v1/tokens", &wanted(None, Role::Operator)).await;
    assert_eq!(refusal.code, Code::Forbidden, "{refusal}");
    let refusal = user
        .refused("POST", "/v1/tokens", &wanted(Some("bio"), Role::User))
        .await;
    assert_eq!(refusal.code, Code::NotFound, "{refusal}");
    for taken in ["connection.json", "login.ada"] {
        let name = taken.into();
        let request = TokenRequest {
            name,
            ..wanted(None, Role::User)
        };
        let refusal = user.refused("POST", "/v1/tokens", &request).await;
        assert_eq!(refusal.code, Code::Forbidden, "{refusal}");
    }
    for bad in [
        TokenRequest {
            name: "two words".into(),
            ..wanted(None, Role::User)
        },
        TokenRequest {
            valid_for_ms: 0,
            ..wanted(None, Role::User)
        },
        TokenRequest {
            valid_for_ms: u64::MAX,
            ..wanted(None, Role::User)
        },
    ] {
        assert_eq!(
            user.refused("POST", "/v1/tokens", &bad).await.code,
            Code::InvalidRequest,
            "{bad:?}"
        );
    }
    // The caller's own token is valid for two minutes.
    let longer = TokenRequest {
        valid_for_ms: 121_000,
        ..wanted(None, Role::User)
    };
    let refusal = user.refused("POST", "/v1/tokens", &longer).await;
    assert_eq!(refusal.code, Code::Forbidden, "{refusal}");
    let reader = TokenRequest {
        name: "reader".into(),
        read_only: true,
        ..wanted(None, Role::User)
    };
    let made = user.token(&reader).await;
    assert_eq!((made.status.tenant.as_str(), made.status.read_only), ("astro", true));
    let mut reading = Client::new(&manager).await;
    reading.token = made.token.clone();
    assert!(reading.get::<Vec<LeaseStatus>>("/v1/leases").await.is_empty());
    let refusal = reading.refused("POST", "/v1/leases", &request(Mode::Warm)).await;
    assert_eq!(refusal.code, Code::Forbidden, "{refusal}");
    assert_eq!(
        reading.refused("POST", "/v1/tokens", &reader).await.code,
        Code::Forbidden
    );
    // A new token of the same name replaces the old one at once.
    let again = user.token(&reader).await;
    assert_eq!(reading.refused("GET", "/v1/leases", &()).await.code, Code::Unauthorized);
    reading.token = again.token;
    let (status, answer) = user
        .send("DELETE", &format!("/v1/tokens/{}", again.status.id), "")
        .await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(reading.refused("GET", "/v1/leases", &()).await.code, Code::Unauthorized);
    let file = std::fs::read(directory.path().join("manager.db")).unwrap();
    let wal = std::fs::read(directory.path().join("manager.db-wal")).unwrap_or_default();
    let kept = [file, wal].concat();
    assert!(
        !kept.windows(made.token.len()).any(|part| part == made.token.as_bytes()),
        "a secret was kept"
    );
}

/// Replaces the member's token by one of the same name.
async fn replace_token(own: &mut Client) -> String {
    let longer = TokenRequest {
        valid_for_ms: 240_000,
        ..wanted(Some("astro"), Role::User)
    };
    own.token(&longer).await.token
}

#[tokio::test]
async fn lease_follows_a_token_replaced_during_its_offer() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let mut node = FakeNode::join(&manager, 1, Manner::Silent).await;
    let mut own = Client::new(&manager).await;
    let mut astro = member(&manager, "astro", Role::User).await;
    let mut events = manager.events();
    let asking = tokio::spawn(async move { astro.lease(&request(Mode::Hot)).await });
    let heard = node
        .hears(|message| matches!(message, ManagerMessage::Offer { .. }))
        .await;
    let ManagerMessage::Offer {
        request: number, lease, ..
    } = heard
    else {
        unreachable!()
    };
    let answer = |request| NodeMessage::Answer {
        request,
        refused: None,
        mode: Some(Mode::Hot),
        image: None,
        sandbox: None,
        terms: None,
    };
    let second = replace_token(&mut own).await;
    // The connection ended with its token, and the request continues.
    assert_eq!(asking.await.unwrap().err(), Some(Code::Unauthorized));
    node.say.send(answer(number)).unwrap();
    event(&mut events, lease_event(lease, node.id, LeaseState::Granted)).await;
    let mut astro = Client::new(&manager).await;
    astro.token = second;
    let path = format!("/v1/leases/{lease}");
    let before: LeaseStatus = own.get(&path).await;
    let renew = format!("{path}/renew");
    let asking = tokio::spawn(async move { astro.send("POST", &renew, r#"{"duration_ms":120000}"#).await });
    let heard = node
        .hears(|message| matches!(message, ManagerMessage::Renew { .. }))
        .await;
    let ManagerMessage::Renew { request: number, .. } = heard else {
        unreachable!()
    };
    let third = replace_token(&mut own).await;
    assert_eq!(asking.await.unwrap().0, 401);
    node.say.send(answer(number)).unwrap();
    let renewed = async {
        while own.get::<LeaseStatus>(&path).await.expires_at_ms <= before.expires_at_ms {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TIMEOUT, renewed)
        .await
        .expect("the renewal in time");
    manager.shutdown().await;
    drop((own, node, manager));
    // The manager closes its database when its tasks end.
    let begun = Instant::now();
    let store = loop {
        match SqliteStore::open(&directory.path().join("manager.db"), None, false) {
            Ok(store) => break store,
            Err(error) => assert!(begun.elapsed() < TIMEOUT, "{error}"),
        }
        tokio::task::yield_now().await;
    };
    let kept = store.load(0).wait().await.unwrap();
    let kept = kept.leases.iter().find(|kept| kept.lease == lease).unwrap();
    assert_eq!(
        (kept.state, kept.bearer),
        (dayfly_protocol::api::LeaseState::Granted, Some(hash(&third)))
    );
}

#[tokio::test]
async fn quota_holds_under_concurrent_requests() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let _node = FakeNode::join(&manager, 1, Manner::Honest).await;
    let mut own = Client::new(&manager).await;
    let mut first = member(&manager, "astro", Role::User).await;
    own.tenant("astro", |spec| {
        spec.quota = Quota {
            leases: Some(3),
            workers: Some(4),
            ..Quota::default()
        }
    })
    .await;
    let mut asking = Vec::new();
    for _ in 0..10 {
        let mut client = Client::new(&manager).await;
        client.token = first.token.clone();
        asking.push(tokio::spawn(async move { client.lease(&request(Mode::Warm)).await }));
    }
    let mut granted = Vec::new();
    for asked in asking {
        match asked.await.unwrap() {
            Ok(grant) => granted.push(grant.lease),
            Err(code) => assert_eq!(code, Code::QuotaExceeded),
        }
    }
    assert_eq!(granted.len(), 3);
    let refusal = first.refused("POST", "/v1/leases", &request(Mode::Warm)).await;
    assert!(refusal.message.contains("`astro` holds 3 leases"), "{refusal}");
    let (status, _) = first.send("DELETE", &format!("/v1/leases/{}", granted[0]), "").await;
    assert_eq!(status, 200);
    let two = LeaseRequest {
        workers: 3,
        ..request(Mode::Warm)
    };
    let refusal = first.refused("POST", "/v1/leases", &two).await;
    assert!(refusal.message.contains("workers"), "{refusal}");
    first.lease(&request(Mode::Warm)).await.unwrap();
    // Other tenants are not affected.
    own.lease(&request(Mode::Warm)).await.unwrap();
}

#[tokio::test]
async fn usage_is_billed_at_the_grants_prices() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let mut node = FakeNode::join(&manager, 1, Manner::Honest).await;
    let mut own = Client::new(&manager).await;
    let mut astro = member(&manager, "astro", Role::User).await;
    own.put::<Prices>("/v1/prices", &PRICES).await;
    let lease = astro.lease(&request(Mode::Warm)).await.unwrap().lease;
    let dearer = Prices {
        computing_per_s: 9_000_000,
        ..PRICES
    };
    own.put::<Prices>("/v1/prices", &dearer).await;
    own.tenant("astro", |spec| {
        spec.prices = Some(Prices {
            computing_per_s: 2_000_000,
            ..PRICES
        })
    })
    .await;
    let later = astro.lease(&request(Mode::Warm)).await.unwrap().lease;
    for message in [
        meters(1, lease, 40),
        meters(2, later, 30),
        meters(2, later, 30),
        meters(3, lease, 100),
    ] {
        node.say.send(message).unwrap();
    }
    node.hears(|message| *message == ManagerMessage::Booked { sequence: 3 })
        .await;
    let bill = astro.get::<BillPage>("/v1/bill").await;
    let sums: Vec<_> = bill
        .lines
        .iter()
        .map(|line| (line.lease, line.computing, line.total))
        .collect();
    assert_eq!(sums, [(lease, 100, 100), (later, 60, 60)]);
    assert_eq!((bill.next, bill.lines[0].tenant_name.as_str()), (None, "astro"));
    manager.shutdown().await;
    drop((node, own, astro, manager));
    let manager = restart(directory.path()).await;
    let mut own = Client::new(&manager).await;
    let tenants = own.get::<Vec<Tenant>>("/v1/tenants").await;
    let astro = tenants.iter().find(|tenant| tenant.name == "astro").unwrap();
    assert_eq!((astro.spent, astro.leases), (160, 2));
    assert_eq!(own.get::<BillPage>("/v1/bill?tenant=astro").await.lines, bill.lines);
    assert_eq!(own.get::<Prices>("/v1/prices").await, dearer);
}

#[tokio::test]
async fn tenant_over_budget_or_suspended_loses_its_leases() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let mut node = FakeNode::join(&manager, 1, Manner::Honest).await;
    let mut own = Client::new(&manager).await;
    let mut astro = member(&manager, "astro", Role::User).await;
    own.put::<Prices>("/v1/prices", &PRICES).await;
    let with_budget = |budget| move |spec: &mut TenantSpec| spec.budget = Some(budget);
    own.tenant("astro", with_budget(50)).await;
    let lease = astro.lease(&request(Mode::Warm)).await.unwrap().lease;
    let mut events = manager.events();
    node.say.send(meters(1, lease, 49)).unwrap();
    node.hears(|message| *message == ManagerMessage::Booked { sequence: 1 })
        .await;
    assert_eq!(astro.state(lease).await, LeaseState::Granted);
    node.say.send(meters(2, lease, 51)).unwrap();
    event(&mut events, lease_event(lease, node.id, LeaseState::Revoked)).await;
    node.hears(|message| matches!(message, ManagerMessage::End { lease: ended, .. } if *ended == lease))
        .await;
    let refusal = astro.refused("POST", "/v1/leases", &request(Mode::Warm)).await;
    assert_eq!(refusal.code, Code::QuotaExceeded);
    assert!(refusal.message.contains("spent 51 of its budget of 50"), "{refusal}");
    let tenant = own.tenant("astro", with_budget(1_000)).await;
    assert_eq!(tenant.spent, 51);
    let lease = astro.lease(&request(Mode::Warm)).await.unwrap().lease;
    own.tenant("astro", |spec| spec.suspended = true).await;
    event(&mut events, lease_event(lease, node.id, LeaseState::Revoked)).await;
    let refusal = astro.refused("POST", "/v1/leases", &request(Mode::Warm)).await;
    assert!(refusal.message.contains("suspended"), "{refusal}");
    assert_eq!(
        astro.get::<BillPage>("/v1/bill").await.lines.len(),
        2,
        "it may still look"
    );
}

#[tokio::test]
async fn audit_log_records_every_change() {
    let directory = tempfile::tempdir().unwrap();
    let manager = start(directory.path()).await;
    let mut own = Client::new(&manager).await;
    let mut boss = member(&manager, "bosses", Role::Administrator).await;
    boss.put::<Prices>("/v1/prices", &PRICES).await;
    boss.refused("PUT", "/v1/tenants/no%20name", &TenantSpec::default())
        .await;
    let entries = own.get::<Vec<AuditEntry>>("/v1/audit").await;
    let actions: Vec<_> = entries
        .iter()
        .map(|entry| (entry.action.as_str(), entry.subject.as_str()))
        .collect();
    assert_eq!(
        actions,
        [
            ("tenant.set", "bosses"),
            ("token.create", "for-administrator"),
            ("prices.set", "site")
        ]
    );
    let tokens = own.get::<Vec<TokenStatus>>("/v1/tokens").await;
    let bosses = tokens.iter().find(|token| token.tenant == "bosses").unwrap();
    assert_eq!(entries[2].token, bosses.id);
    assert_eq!(serde_json::from_str::<Prices>(&entries[2].details).unwrap(), PRICES);
    assert_eq!(own.get::<Vec<AuditEntry>>("/v1/audit?above=2").await, entries[2..]);
    manager.shutdown().await;
    drop((own, boss, manager));
    let manager = restart(directory.path()).await;
    let mut own = Client::new(&manager).await;
    assert_eq!(own.get::<Vec<AuditEntry>>("/v1/audit").await, entries);
}
