//! Tests of properties that only PostgreSQL has: several managers, and a server that fails.

use std::time::Duration;

use dayfly_protocol::tenancy::Quota;

use super::server::{Server, database};
use super::*;
use crate::Change;
use crate::conformance::store::{
    CAPACITY, LEASE, NODE, TENANT, address, bearer, client, load, record, register, under, used,
};
use crate::conformance::tasks::{ended, task};
use crate::tasks::{EndpointRecord, TaskStore};

mod conformance {
    use super::*;
    use crate::postgres::server::Database;

    async fn store() -> Option<(Database, PostgresStore)> {
        let database = database()?;
        let store = database.store(1).await;
        Some((database, store))
    }

    async fn tasks() -> Option<(Database, PostgresTasks)> {
        let database = database()?;
        let tasks = database.tasks(1).await;
        Some((database, tasks))
    }

    crate::store_tests!(store);
    crate::task_store_tests!(tasks);
}

const TIMEOUT: Duration = Duration::from_secs(10);

async fn received(updates: &mut mpsc::Receiver<PeerUpdate>, wanted: impl Fn(&PeerUpdate) -> bool) -> PeerUpdate {
    let search = async {
        loop {
            let one = updates.recv().await.expect("the updates continue");
            if wanted(&one) {
                return one;
            }
        }
    };
    tokio::time::timeout(TIMEOUT, search)
        .await
        .expect("the updates in time")
}

fn offered() -> Change {
    Change::Offered(Box::new(record()))
}

#[tokio::test]
async fn earlier_tables_are_upgraded_once_and_keep_rows() {
    let Some(database) = database() else { return };
    let store = database.store(1).await;
    assert_eq!(register(&store, address(1)).await, 1);
    assert_eq!(
        store.change_leases(under(1, vec![offered()])).wait().await,
        Ok(vec![ChangeResult::Kept])
    );
    drop(store);
    let earlier = "ALTER TABLE dayfly.leases DROP COLUMN functions; ALTER TABLE dayfly.leases DROP COLUMN bearer;
        ALTER TABLE dayfly.leases DROP COLUMN gpus_per_worker; ALTER TABLE dayfly.leases DROP COLUMN loans;
        ALTER TABLE dayfly.leases DROP COLUMN borrowed_core_price; ALTER TABLE dayfly.leases DROP COLUMN borrowed_memory_price;
        ALTER TABLE dayfly.leases DROP COLUMN core_price; ALTER TABLE dayfly.leases DROP COLUMN gpu_price; DROP TABLE dayfly.tasks_owner, dayfly.functions,
        dayfly.endpoints, dayfly.tasks, dayfly.contents, dayfly.triggers, dayfly.events, dayfly.flows, dayfly.teams, dayfly.usage, dayfly.costs,
        dayfly.mark, dayfly.printed, dayfly.task_loans;
        ALTER TABLE dayfly.leases RENAME COLUMN milli_cores_per_worker TO cores_per_worker;
        UPDATE dayfly.leases SET cores_per_worker = 2; ALTER TABLE dayfly.tenants RENAME COLUMN milli_cores TO cores;
        ALTER TABLE dayfly.tenants DROP COLUMN spent_on_tasks; UPDATE dayfly.version SET version = 1;";
    database.execute(earlier).await;
    let (one, other) = tokio::join!(database.store(1), database.store(2));
    // Earlier releases had no GPUs, and no prices of loans, cores and GPUs.
    let kept = LeaseRecord {
        cores_per_worker: dayfly_protocol::cores::MilliCores::new(2_000),
        gpus_per_worker: 0,
        bearer: None,
        prices: dayfly_protocol::tenancy::Prices {
            borrowed_core_per_s: 0,
            borrowed_per_gib_s: 0,
            core_per_s: 0,
            gpu_per_s: 0,
            ..record().prices
        },
        ..record()
    };
    assert_eq!(load(&one).await.leases, vec![kept.clone()]);
    assert_eq!(other.others(None, 0).wait().await.unwrap(), vec![kept]);
    assert_eq!(
        database.tasks(1).await.enqueue(vec![task(1, "a")]).wait().await,
        Ok(vec![true])
    );
}

#[tokio::test]
async fn moved_node_keeps_leases_and_refuses_former_manager() {
    let Some(database) = database() else { return };
    let (a, b) = (database.store(1).await, database.store(2).await);
    assert_eq!(register(&a, address(1)).await, 1);
    assert_eq!(
        a.change_leases(under(1, vec![offered()])).wait().await,
        Ok(vec![ChangeResult::Kept])
    );
    let moved = b.register(address(2), CAPACITY, 0).wait().await.unwrap().unwrap();
    assert_eq!((moved.epoch, moved.leases), (2, Some(vec![record()])));
    let ended = Change::Ended {
        lease: LEASE,
        state: dayfly_protocol::api::LeaseState::Lost,
        at_ms: 5,
    };
    assert_eq!(
        a.change_leases(under(1, vec![ended.clone()])).wait().await,
        Ok(vec![ChangeResult::Stale])
    );
    assert_eq!(
        b.change_leases(under(2, vec![ended])).wait().await,
        Ok(vec![ChangeResult::Kept])
    );
    // The manager that keeps the node knows its leases from memory.
    let again = b.register(address(2), CAPACITY, 0).wait().await.unwrap().unwrap();
    assert_eq!((again.epoch, again.leases), (3, None));
    assert_eq!((load(&a).await.leases.len(), load(&b).await.leases.len()), (0, 1));
}

#[tokio::test]
async fn entry_booked_by_two_managers_is_charged_once() {
    let Some(database) = database() else { return };
    let (a, b) = (database.store(1).await, database.store(2).await);
    register(&a, address(1)).await;
    a.tenant(TENANT, "astro".into(), TenantSpec::default())
        .wait()
        .await
        .unwrap();
    a.change_leases(under(1, vec![offered()])).wait().await.unwrap();
    register(&b, address(1)).await;
    // The acknowledgement was lost: the node repeats the booking to the next manager while the first one is still
    // writing it.
    let bring = |store: &PostgresStore, sequence| {
        store.book(NODE, sequence, vec![(LEASE, used(10 * sequence, sequence).into())])
    };
    for sequence in 1..=50 {
        let (first, second) = tokio::join!(bring(&a, sequence).wait(), bring(&b, sequence).wait());
        assert_eq!(
            (first.unwrap().sequence, second.unwrap().sequence),
            (sequence, sequence)
        );
    }
    assert_eq!(load(&b).await.tenants[0].spent, 500);
}

#[tokio::test]
async fn quota_holds_over_managers_under_concurrent_requests() {
    let Some(database) = database() else { return };
    let (a, b) = (database.store(1).await, database.store(2).await);
    let spec = TenantSpec {
        quota: Quota {
            workers: Some(20),
            ..Quota::default()
        },
        ..TenantSpec::default()
    };
    a.tenant(TENANT, "astro".into(), spec).wait().await.unwrap();
    let mine = |n: u8| NodeAddress {
        id: NodeId([n; 16]),
        ..address(n.into())
    };
    register(&a, mine(1)).await;
    register(&b, mine(2)).await;
    let offer = |store: &PostgresStore, node: u8, n: u8| {
        let lease = LeaseId([n; 16]);
        let node = NodeId([node; 16]);
        // Two workers each.
        let change = Change::Offered(Box::new(LeaseRecord {
            lease,
            node,
            ..record()
        }));
        store.change_leases(vec![OwnedChange { node, epoch: 1, change }]).wait()
    };
    let asked = (0..30).flat_map(|n| [offer(&a, 1, 100 + n), offer(&b, 2, 200 + n)]);
    let answers = futures_util::future::join_all(asked).await;
    let kept = |answer: &Result<Vec<ChangeResult>, StoreError>| answer.as_ref().unwrap()[0] == ChangeResult::Kept;
    assert_eq!(answers.iter().filter(|answer| kept(answer)).count(), 10);
    let over = answers
        .iter()
        .filter(|answer| matches!(answer.as_ref().unwrap()[0], ChangeResult::OverQuota(_)));
    assert_eq!(over.count(), 50);
    let held = a.held().unwrap().wait().await.unwrap();
    assert_eq!((held[0].1.leases, held[0].1.workers), (10, 20));
    // A lease that ends makes room for one at the other manager.
    let first = load(&a)
        .await
        .leases
        .into_iter()
        .chain(load(&b).await.leases)
        .next()
        .unwrap();
    let (holder, other) = if first.node == NodeId([1; 16]) {
        (&a, (&b, 2))
    } else {
        (&b, (&a, 1))
    };
    let change = Change::Refused { lease: first.lease };
    let node = first.node;
    let owned = OwnedChange { node, epoch: 1, change };
    assert_eq!(
        holder.change_leases(vec![owned]).wait().await,
        Ok(vec![ChangeResult::Kept])
    );
    assert_eq!(offer(other.0, other.1, 250).await, Ok(vec![ChangeResult::Kept]));
    assert!(matches!(
        offer(&a, 1, 150).await.unwrap()[0],
        ChangeResult::OverQuota(_)
    ));
}

#[tokio::test]
async fn managers_receive_changes_of_other_managers() {
    let Some(database) = database() else { return };
    let (a, b) = (database.store(1).await, database.store(2).await);
    let mut updates = b.peer_updates().expect("taken once");
    assert!(b.peer_updates().is_none());
    received(&mut updates, |updates| matches!(updates, PeerUpdate::Everything(_))).await;
    let tenant = a
        .tenant(TENANT, "astro".into(), TenantSpec::default())
        .wait()
        .await
        .unwrap();
    received(&mut updates, |updates| *updates == PeerUpdate::Tenant(tenant.clone())).await;
    let laptop = client(7, "laptop");
    a.keep(laptop.clone()).wait().await.unwrap();
    received(&mut updates, |updates| *updates == PeerUpdate::Bearer(laptop.clone())).await;
    a.revoke(laptop.hash, RevokedLeases::End).wait().await.unwrap();
    received(&mut updates, |updates| *updates == PeerUpdate::Revoked(laptop.hash)).await;
    register(&a, address(1)).await;
    let owned = |updates: &PeerUpdate| matches!(updates, PeerUpdate::Node(node) if node.manager == Some(PublicKey([1; 32])) && node.epoch == 1);
    received(&mut updates, owned).await;
    a.change_leases(under(1, vec![offered()])).wait().await.unwrap();
    a.book(NODE, 1, vec![(LEASE, used(10, 1).into())]).wait().await.unwrap();
    received(&mut updates, |updates| *updates == PeerUpdate::Spent(TENANT, 10)).await;
    let event = PeerUpdate::Event(dayfly_protocol::api::Event::NodeUp { node: NODE }, Some(TENANT));
    Store::publish(&a, vec![event.clone()]);
    received(&mut updates, |updates| *updates == event).await;
}

#[tokio::test]
async fn reconnected_listener_reads_bearers_of_live_leases() {
    let Some(database) = database() else { return };
    let a = database.store(1).await;
    let (old, new) = (client(1, "laptop"), client(2, "laptop"));
    a.keep(old).wait().await.unwrap();
    register(&a, address(1)).await;
    a.change_leases(under(1, vec![offered()])).wait().await.unwrap();
    a.keep(new.clone()).wait().await.unwrap();
    drop(a);
    let a = database.store(1).await;
    let mut updates = a.peer_updates().expect("taken once");
    let has_new = |updates: &PeerUpdate| match updates {
        PeerUpdate::Everything(all) => all.leases.len() == 1 && all.leases[0].bearer == Some(new.hash),
        _ => false,
    };
    received(&mut updates, has_new).await;
}

#[tokio::test]
async fn nodes_of_silent_manager_are_adopted_once() {
    let Some(database) = database() else { return };
    let (a, b, c) = (
        database.store(1).await,
        database.store(2).await,
        database.store(3).await,
    );
    let presence = |n: u8| Presence {
        url: format!("https://m{n}:7070"),
        ca_pem: "-".into(),
        free: CAPACITY,
    };
    let peers = |store: &PostgresStore, n| store.present(presence(n)).unwrap().wait();
    assert_eq!(peers(&a, 1).await, Ok(vec![]));
    let seen = peers(&b, 2).await.unwrap();
    assert_eq!((seen.len(), &seen[0].presence), (1, &presence(1)));
    register(&a, address(1)).await;
    a.change_leases(under(1, vec![offered()])).wait().await.unwrap();
    let adopt = |store: &PostgresStore, silent| store.adopt(PublicKey([1; 32]), silent, 0).wait();
    assert_eq!(adopt(&b, TIMEOUT).await, Ok(AdoptedNodes::default()), "it lives");
    // A database's clock advances between two transactions.
    let (first, second) = tokio::join!(adopt(&b, Duration::ZERO), adopt(&c, Duration::ZERO));
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_eq!(first.nodes.len() + second.nodes.len(), 1);
    let heir = if first.nodes.is_empty() { second } else { first };
    assert_eq!((heir.nodes[0].epoch, heir.leases), (2, vec![record()]));
    assert_eq!(
        a.change_leases(under(1, vec![Change::Refused { lease: LEASE }]))
            .wait()
            .await,
        Ok(vec![ChangeResult::Stale])
    );
}

#[tokio::test]
async fn restarted_server_loses_and_repeats_no_write() {
    let Ok(mut server) = Server::start(&[]) else { return };
    let database = super::server::Database::on(&server);
    let (a, b) = (database.store(1).await, database.store(2).await);
    let mut updates = b.peer_updates().unwrap();
    register(&a, address(1)).await;
    a.tenant(TENANT, "astro".into(), TenantSpec::default())
        .wait()
        .await
        .unwrap();
    a.change_leases(under(1, vec![offered()])).wait().await.unwrap();
    for (round, how) in ["stop", "kill", "stop", "kill"].into_iter().enumerate() {
        let sequence = 10 * round as u64;
        let booked: Vec<_> = (1..=5)
            .map(|n| a.book(NODE, sequence + n, vec![(LEASE, used(10 * (sequence + n), 1).into())]))
            .collect();
        let down = tokio::task::spawn_blocking(move || {
            server.send(how);
            server
        });
        let later: Vec<_> = (6..=10)
            .map(|n| a.book(NODE, sequence + n, vec![(LEASE, used(10 * (sequence + n), 1).into())]))
            .collect();
        server = down.await.unwrap();
        let entry = AuditEntry {
            number: 0,
            at_ms: 1,
            tenant: TENANT,
            token: String::new(),
            action: "a".into(),
            subject: round.to_string(),
            details: String::new(),
        };
        let audit = a.audit(entry);
        server.send("start");
        for pending in booked.into_iter().chain(later) {
            pending.wait().await.unwrap();
        }
        audit.wait().await.unwrap();
        let total = 10 * (sequence + 10);
        assert_eq!(load(&a).await.tenants[0].spent, total);
        received(&mut updates, |updates| match updates {
            PeerUpdate::Spent(_, spent) => *spent == total,
            PeerUpdate::Everything(all) => all.tenants.first().is_some_and(|tenant| tenant.spent == total),
            _ => false,
        })
        .await;
    }
    let entries = a
        .audited(AuditPage {
            above: 0,
            before: None,
            limit: 100,
        })
        .wait()
        .await
        .unwrap();
    assert_eq!(entries.len(), 4, "each is written once");
}

#[tokio::test]
async fn unreachable_database_is_reported_by_the_deadline() {
    let Ok(mut server) = Server::start(&[]) else { return };
    let database = super::server::Database::on(&server);
    let a = database.store(1).await;
    register(&a, address(1)).await;
    server.send("stop");
    let begun = std::time::Instant::now();
    let (written, read) = tokio::join!(a.keep(bearer(1, BearerKind::Join, None)).wait(), a.load(0).wait());
    assert!(
        matches!(written, Err(StoreError::Unreachable(_) | StoreError::Slow)),
        "{written:?}"
    );
    assert!(
        matches!(read, Err(StoreError::Unreachable(_) | StoreError::Slow)),
        "{read:?}"
    );
    assert!(begun.elapsed() < Duration::from_secs(12), "{:?}", begun.elapsed());
    let none = PostgresStore::open(&database.url, PublicKey([2; 32])).await.err();
    assert!(matches!(none, Some(StoreError::Unreachable(_))), "{none:?}");
    server.send("start");
    a.keep(bearer(2, BearerKind::Join, None)).wait().await.unwrap();
    let kept: Vec<[u8; 32]> = load(&a).await.bearers.iter().map(|bearer| bearer.hash).collect();
    assert_eq!(kept, [[2; 32]], "what was given up was not written later");
}

#[tokio::test]
async fn tables_of_later_release_are_refused() {
    let Some(database) = database() else { return };
    let a = database.store(1).await;
    a.write_separately(|session| async move { Ok(session.batch("UPDATE version SET version = 99").await?) }.boxed())
        .wait()
        .await
        .unwrap();
    let found = PostgresStore::open(&database.url, PublicKey([2; 32])).await.err();
    assert_eq!(
        found,
        Some(StoreError::Schema {
            found: 99,
            known: super::schema::SCHEMA
        })
    );
}

#[tokio::test]
async fn managers_starting_at_once_create_tables_once() {
    let Some(database) = database() else { return };
    let stores = futures_util::future::join_all((1..=8).map(|n| database.store(n))).await;
    let named = stores.iter().enumerate().map(|(n, store)| {
        store
            .tenant(TenantId([n as u8; 16]), "default".into(), TenantSpec::default())
            .wait()
    });
    let tenants = futures_util::future::join_all(named).await;
    assert!(
        tenants.iter().all(|tenant| tenant == &tenants[0]),
        "a name has one id for all"
    );
}

#[tokio::test]
async fn former_task_owner_writes_nothing_after_takeover() {
    let Some(database) = database() else { return };
    let (a, b) = (database.shared_tasks(1), database.shared_tasks(2));
    let alive = database.store(1).await;
    let presence = || Presence {
        url: "https://a".into(),
        ca_pem: String::new(),
        free: CAPACITY,
    };
    alive.present(presence()).unwrap().wait().await.unwrap();
    assert_eq!(b.owner().wait().await.unwrap().manager, None);
    let first = a.take(None, TIMEOUT).await.unwrap().expect("nobody has them");
    first.set_contents([7; 16]).wait().await.unwrap();
    first.enqueue(vec![task(1, "a"), task(2, "a")]).wait().await.unwrap();
    first.end(vec![ended(1, 1, None)], Vec::new()).wait().await.unwrap();
    // It is alive and has the tasks.
    assert!(b.take(Some([7; 16]), TIMEOUT).await.unwrap().is_none());
    assert_eq!(b.owner().wait().await.unwrap().manager, Some(PublicKey([1; 32])));
    // A manager with another content store could not give tasks their arguments.
    assert!(b.take(Some([8; 16]), Duration::ZERO).await.unwrap().is_none());
    let second = b
        .take(Some([7; 16]), Duration::ZERO)
        .await
        .unwrap()
        .expect("it is silent");
    assert_eq!((first.epoch(), second.epoch()), (1, 2));
    assert_eq!(first.enqueue(vec![task(3, "a")]).wait().await, Err(StoreError::Moved));
    assert_eq!(
        first.end(vec![ended(2, 2, None)], Vec::new()).wait().await,
        Err(StoreError::Moved)
    );
    let left = second.load().wait().await.unwrap();
    assert_eq!((left.last_number, left.tasks.len()), (1, 1));
    second.end(vec![ended(2, 2, None)], Vec::new()).wait().await.unwrap();
    // Once released, the tasks go to the next manager at once.
    second.release().wait().await.unwrap();
    assert_eq!(second.enqueue(vec![task(4, "a")]).wait().await, Err(StoreError::Moved));
    let third = a.take(Some([7; 16]), TIMEOUT).await.unwrap().expect("nobody has them");
    assert_eq!(third.load().wait().await.unwrap().last_number, 2);
}

#[tokio::test]
async fn killed_server_loses_and_repeats_no_task() {
    let Ok(mut server) = Server::start(&[]) else { return };
    let database = super::server::Database::on(&server);
    let tasks = std::sync::Arc::new(database.tasks(1).await);
    let writers: Vec<_> = (0..4u8)
        .map(|writer| {
            let tasks = tasks.clone();
            tokio::spawn(async move {
                for number in 0..200u8 {
                    let mut one = task(0, "a");
                    one.spec.id.0[..2].copy_from_slice(&[writer, number]);
                    // A known task would have been written twice.
                    assert_eq!(tasks.enqueue(vec![one]).wait().await, Ok(vec![true]));
                }
            })
        })
        .collect();
    for how in ["kill", "stop", "kill"] {
        tokio::time::sleep(Duration::from_millis(30)).await;
        let restarted = tokio::task::spawn_blocking(move || {
            server.send(how);
            server.send("start");
            server
        });
        server = restarted.await.unwrap();
    }
    for writer in writers {
        writer.await.unwrap();
    }
    assert_eq!(tasks.load().wait().await.unwrap().tasks.len(), 800);
}

#[tokio::test]
async fn refused_write_fails_without_its_group() {
    let Some(database) = database() else { return };
    let tasks = database.tasks(1).await;
    // PostgreSQL's texts cannot contain a zero byte. Names of endpoints are checked before.
    let broken = EndpointRecord {
        id: dayfly_protocol::ids::EndpointId([1; 16]),
        name: "\0".into(),
        tenant: TENANT,
        spec: dayfly_protocol::endpoints::EndpointSpec::default(),
        of: None,
    };
    let first = tasks.enqueue(vec![task(1, "a")]);
    let refused = tasks.endpoint(broken);
    let last = tasks.enqueue(vec![task(1, "a"), task(2, "a")]);
    assert!(matches!(refused.wait().await, Err(StoreError::Broken(_))));
    assert_eq!(first.wait().await, Ok(vec![true]));
    assert_eq!(last.wait().await, Ok(vec![false, true]));
}

#[tokio::test]
async fn tables_of_former_name_are_refused_with_command() {
    let Some(database) = database() else { return };
    drop(database.store(1).await);
    database.execute("ALTER SCHEMA dayfly RENAME TO mayfly").await;
    let refused = database.try_store(1).await.err().unwrap();
    assert_eq!(refused, StoreError::Former);
    let message = refused.to_string();
    let command = message.split('`').nth(1).unwrap();
    database.execute(command).await;
    drop(database.store(1).await);
}

#[tokio::test]
async fn older_or_other_database_is_refused() {
    let Some(database) = database() else { return };
    let directory = tempfile::tempdir().unwrap();
    let open = async |accept_loss| database.store(1).await.compare(directory.path(), accept_loss).await;
    for _ in 0..3 {
        open(false).await.unwrap();
    }
    database.execute("UPDATE dayfly.mark SET commits = 1").await;
    let older = open(false).await.unwrap_err();
    assert!(
        matches!(&older, StoreError::Lost(what) if what.contains("commit 1 of 3")),
        "{older}"
    );
    open(true).await.unwrap();
    open(false).await.unwrap();
    database.execute("DROP SCHEMA dayfly CASCADE").await;
    let another = open(false).await.unwrap_err();
    assert!(
        matches!(&another, StoreError::Lost(what) if what.contains("another one")),
        "{another}"
    );
    open(true).await.unwrap();
    open(false).await.unwrap();
}
