//! The tests that every store must pass. Each function tests one property, which its name states.
//!
//! A store in another crate enables the feature `conformance` for its tests, and names a function that opens an empty
//! store:
//!
//! ```ignore
//! async fn open() -> Option<(TempDir, MyStore)> { ... }
//! dayfly_store::store_tests!(open);
//! ```

pub mod accounting;
pub mod flows;
pub mod functions;
pub mod retention;
pub mod store;
pub mod task_queries;
pub mod tasks;
pub mod teams;
pub mod triggers;

pub use crate::postgres::server::{Database, database as postgres_database};

/// Tests a [`Store`](crate::Store), with a `#[tokio::test]` for each property.
///
/// The argument is the path of an `async fn() -> Option<(Guard, impl Store)>`. It returns an empty store, or `None`
/// where the store cannot run. The guard is dropped after the store.
#[macro_export]
macro_rules! store_tests {
    ($open:path) => {
        $crate::store_tests_of_store!($open);
        $crate::store_tests_of_accounting!($open);
    };
}

/// Tests a [`TaskStore`](crate::tasks::TaskStore), like [`store_tests`](crate::store_tests).
#[macro_export]
macro_rules! task_store_tests {
    ($open:path) => {
        $crate::store_tests_of_teams!($open);
        $crate::store_tests_of_flows!($open);
        $crate::store_tests_of_functions!($open);
        $crate::store_tests_of_retention!($open);
        $crate::store_tests_of_task_queries!($open);
        $crate::store_tests_of_tasks!($open);
        $crate::store_tests_of_triggers!($open);
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! conformance_tests {
    ($open:path, $module:ident, $($name:ident),*) => {
        $(#[tokio::test] async fn $name() {
            if let Some((_guard, store)) = $open().await {
                $crate::conformance::$module::$name(&store).await;
            }
        })*
    };
}
