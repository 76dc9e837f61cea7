//! Properties of the functions and endpoints of every store of tasks.

use dayfly_protocol::blob::Blob;
use dayfly_protocol::endpoints::EndpointSpec;
use dayfly_protocol::ids::FunctionId;

use super::tasks::{ENDPOINT, TENANT, function};
use crate::tasks::{EndpointRecord, FunctionRecord, FunctionSpec, TaskStore};

pub async fn last_dispatcher_process_is_stored(store: &dyn TaskStore) {
    let endpoint = EndpointRecord {
        id: ENDPOINT,
        name: "here".into(),
        tenant: TENANT,
        spec: EndpointSpec::default(),
        of: None,
    };
    store.endpoint(endpoint.clone()).wait().await.unwrap();
    assert_eq!(store.load().wait().await.unwrap().instances, []);
    store.instance(ENDPOINT, u64::MAX).wait().await.unwrap();
    store.instance(ENDPOINT, u64::MAX - 1).wait().await.unwrap();
    // Changing the endpoint's settings does not change its process.
    store.endpoint(endpoint).wait().await.unwrap();
    assert_eq!(store.load().wait().await.unwrap().instances, [(ENDPOINT, u64::MAX - 1)]);
    store.remove_endpoint(ENDPOINT).wait().await.unwrap();
    assert_eq!(store.load().wait().await.unwrap().endpoints, []);
}

pub async fn function_is_stored_once_with_version_by_name(store: &dyn TaskStore) {
    let code = || Blob::from(b"def f(): pass".to_vec());
    assert_eq!(
        store.register(function(1, "f"), code()).wait().await.unwrap().version,
        1
    );
    assert_eq!(
        store.register(function(2, "f"), code()).wait().await.unwrap().version,
        2
    );
    assert_eq!(
        store.register(function(1, "f"), code()).wait().await.unwrap().version,
        1
    );
    assert_eq!(
        store.register(function(3, "g"), code()).wait().await.unwrap().version,
        1
    );
    assert_eq!(store.code(FunctionId([2; 16])).wait().await, Ok(Some(code())));
    assert_eq!(store.code(FunctionId([9; 16])).wait().await, Ok(None));
    assert_eq!(store.load().wait().await.unwrap().functions.len(), 3);
}

pub async fn changed_function_leaves_other_functions_unchanged(store: &dyn TaskStore) {
    let kept = store.register(function(1, "f"), Blob::default()).wait().await.unwrap();
    store.register(function(2, "f"), Blob::default()).wait().await.unwrap();
    let spec = FunctionSpec {
        shared_with: vec!["team:ours".into(), "ann".into()],
        ..kept.spec.clone()
    };
    let unknown = (FunctionId([9; 16]), spec.clone());
    store
        .change(vec![(kept.id, spec.clone()), unknown])
        .wait()
        .await
        .unwrap();
    let mut functions = store.load().wait().await.unwrap().functions;
    functions.sort_by_key(|function| function.id);
    assert_eq!(functions[0], FunctionRecord { spec, ..kept });
    assert_eq!((functions.len(), &functions[1].spec), (2, &function(2, "f").spec));
}

pub async fn removed_function_leaves_version_count_of_its_name(store: &dyn TaskStore) {
    for (id, name) in [(1, "f"), (2, "f"), (3, "g")] {
        store
            .register(function(id, name), Blob::default())
            .wait()
            .await
            .unwrap();
    }
    let unknown = FunctionId([9; 16]);
    store
        .remove_functions(vec![FunctionId([1; 16]), unknown])
        .wait()
        .await
        .unwrap();
    assert_eq!(store.code(FunctionId([1; 16])).wait().await, Ok(None));
    let mut left = store.load().wait().await.unwrap().functions;
    left.sort_by_key(|function| function.id);
    assert_eq!(left.iter().map(|one| one.id.0[0]).collect::<Vec<_>>(), [2, 3]);
    let again = store.register(function(1, "f"), Blob::default()).wait().await.unwrap();
    assert_eq!(again.version, 3);
}

#[doc(hidden)]
#[macro_export]
macro_rules! store_tests_of_functions {
    ($open:path) => {
        $crate::conformance_tests!(
            $open,
            functions,
            last_dispatcher_process_is_stored,
            function_is_stored_once_with_version_by_name,
            changed_function_leaves_other_functions_unchanged,
            removed_function_leaves_version_count_of_its_name
        );
    };
}
