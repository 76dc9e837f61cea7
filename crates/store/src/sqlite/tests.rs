//! Tests of properties that only SQLite has: its file.

use dayfly_protocol::api::Sandbox;
use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::tenancy::Role;
use tempfile::TempDir;

use super::*;
use crate::Change;
use crate::conformance::store::{
    LEASE, address, bearer, booked, changed, load, only_lease, record, register, under, used,
};

mod conformance {
    use super::*;

    async fn store() -> Option<(TempDir, SqliteStore)> {
        let directory = tempfile::tempdir().unwrap();
        let store = open(directory.path());
        Some((directory, store))
    }

    async fn tasks() -> Option<((), SqliteTasks)> {
        Some(((), SqliteTasks::open(None, None, false).unwrap()))
    }

    crate::store_tests!(store);
    crate::task_store_tests!(tasks);
}

fn open(directory: &Path) -> SqliteStore {
    SqliteStore::open(&directory.join("manager.db"), None, false).unwrap()
}

#[tokio::test]
async fn reopened_file_has_everything() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    register(&store, address(1)).await;
    changed(&store, vec![Change::Offered(Box::new(record()))]).await;
    store
        .keep(bearer(1, BearerKind::Client(Role::Administrator), None))
        .wait()
        .await
        .unwrap();
    booked(&store, 3, vec![(LEASE, used(10, 1))]).await;
    let before = load(&store).await;
    drop(store);
    assert_eq!(load(&open(directory.path())).await, before);
}

#[tokio::test]
async fn file_refuses_a_second_manager() {
    let directory = tempfile::tempdir().unwrap();
    let _first = open(directory.path());
    let second = SqliteStore::open(&directory.path().join("manager.db"), None, false);
    assert!(matches!(second.err(), Some(StoreError::InUse(_))));
}

#[tokio::test]
async fn file_of_later_release_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("manager.db");
    let other = rusqlite::Connection::open(&path).unwrap();
    other.pragma_update(None, "user_version", 99).unwrap();
    drop(other);
    assert_eq!(
        SqliteStore::open(&path, None, false).err(),
        Some(StoreError::Schema { found: 99, known: 11 })
    );
}

#[tokio::test]
async fn earlier_file_is_upgraded_and_keeps_rows() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("manager.db");
    let store = SqliteStore::open(&path, None, false).unwrap();
    register(&store, address(1)).await;
    changed(&store, vec![Change::Offered(Box::new(record()))]).await;
    let operator = bearer(1, BearerKind::Client(Role::Administrator), None);
    store.keep(operator).wait().await.unwrap();
    drop(store);
    // The first release had no isolation levels, and one operator instead of tenants.
    let earlier = rusqlite::Connection::open(&path).unwrap();
    let undo = "DROP INDEX leases_by_grant; DROP INDEX leases_by_bearer; ALTER TABLE leases DROP COLUMN bearer; DROP TABLE tenants; DROP TABLE site; DROP TABLE audit;
        ALTER TABLE leases DROP COLUMN allocation_price; ALTER TABLE leases DROP COLUMN computing_price;
        ALTER TABLE leases DROP COLUMN polling_price; ALTER TABLE bearers DROP COLUMN name;
        ALTER TABLE bearers DROP COLUMN read_only; UPDATE bearers SET role = 'operator';
        ALTER TABLE leases DROP COLUMN functions; ALTER TABLE leases DROP COLUMN loans; ALTER TABLE leases DROP COLUMN borrowed_core_price;
        ALTER TABLE leases DROP COLUMN core_price; ALTER TABLE leases DROP COLUMN gpu_price; ALTER TABLE leases DROP COLUMN borrowed_memory_price; ALTER TABLE leases DROP COLUMN gpus_per_worker; ALTER TABLE leases DROP COLUMN image; ALTER TABLE leases DROP COLUMN sandbox; ALTER TABLE nodes DROP COLUMN reclaimed; UPDATE leases SET milli_cores_per_worker = 2; ALTER TABLE leases RENAME COLUMN milli_cores_per_worker TO cores_per_worker;
        PRAGMA user_version = 1;";
    earlier.execute_batch(undo).unwrap();
    drop(earlier);
    let store = SqliteStore::open(&path, None, false).unwrap();
    let expected = LeaseRecord {
        sandbox: Sandbox::Process,
        cores_per_worker: MilliCores::new(2_000),
        gpus_per_worker: 0,
        prices: Prices::default(),
        bearer: None,
        ..record()
    };
    assert_eq!(only_lease(&store).await, expected);
    let operator = Bearer {
        name: "connection.json".into(),
        ..bearer(1, BearerKind::Client(Role::Administrator), None)
    };
    assert_eq!(load(&store).await.bearers, vec![operator]);
}

#[tokio::test]
async fn full_disk_keeps_no_partial_write_and_recovers() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("manager.db");
    let store = SqliteStore::open(&path, Some(24), false).unwrap();
    register(&store, address(1)).await;
    let granted = |n: u32| {
        let mut lease = [0; 16];
        lease[..4].copy_from_slice(&n.to_le_bytes());
        Change::Offered(Box::new(LeaseRecord {
            lease: LeaseId(lease),
            ..record()
        }))
    };
    let mut written = 0;
    let error = loop {
        let pair = vec![granted(written), granted(written + 1)];
        match store.change_leases(under(1, pair)).wait().await {
            Ok(_) => written += 2,
            Err(error) => break error,
        }
        assert!(written < 10_000, "the limit of pages was never met");
    };
    assert_eq!(error, StoreError::Full);
    assert_eq!(load(&store).await.leases.len() as u32, written);
    drop(store);
    let roomy = SqliteStore::open(&path, Some(1_000), false).unwrap();
    assert_eq!(load(&roomy).await.leases.len() as u32, written);
    changed(&roomy, vec![granted(written)]).await;
}
