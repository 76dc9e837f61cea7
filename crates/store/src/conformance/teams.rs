//! Properties of every store of teams and of the cost of tasks.

use dayfly_protocol::ids::{EndpointId, FunctionId, TenantId};
use dayfly_protocol::sharing::TeamSpec;

use crate::tasks::TaskStore;
use crate::teams::{TeamRecord, Usage, UsageKey};

pub async fn only_its_owner_changes_a_team(store: &dyn TaskStore) {
    let team = |owner: u8, member: &str| TeamRecord {
        name: "astro".into(),
        owner: TenantId([owner; 16]),
        spec: TeamSpec {
            description: String::new(),
            members: vec![member.into()],
        },
        removed: false,
    };
    assert_eq!(store.team(team(1, "alice")).wait().await, Ok(team(1, "alice")));
    assert_eq!(store.team(team(2, "bob")).wait().await, Ok(team(1, "alice")));
    assert_eq!(store.team(team(1, "carol")).wait().await, Ok(team(1, "carol")));
    assert_eq!(store.teams().wait().await, Ok(vec![team(1, "carol")]));
    let removed = TeamRecord {
        removed: true,
        ..team(1, "carol")
    };
    store.team(removed.clone()).wait().await.unwrap();
    assert_eq!(store.team(team(2, "bob")).wait().await, Ok(removed));
}

pub async fn usage_is_summed_by_day_tenant_function_endpoint(store: &dyn TaskStore) {
    let key = |day, tenant| UsageKey {
        day,
        tenant: TenantId([tenant; 16]),
        function: FunctionId([3; 16]),
        endpoint: EndpointId([4; 16]),
    };
    let usage = |tasks| Usage {
        tasks,
        failed: 1,
        took_us: 10 * tasks,
        cost: 100 * tasks,
    };
    let some = vec![(key(7, 1), usage(2)), (key(7, 2), usage(5))];
    store.end(Vec::new(), some).wait().await.unwrap();
    store
        .end(Vec::new(), vec![(key(7, 1), usage(3)), (key(8, 1), usage(1))])
        .wait()
        .await
        .unwrap();
    let both = Usage { failed: 2, ..usage(5) };
    let all = store.usage(0, u32::MAX, None, 9).wait().await.unwrap();
    assert_eq!(all, [(key(7, 1), both), (key(7, 2), usage(5)), (key(8, 1), usage(1))]);
    let own = store.usage(7, 8, Some(TenantId([1; 16])), 9).wait().await.unwrap();
    assert_eq!(own, [(key(7, 1), both)]);
    let costs = |totals: [(u8, u64); 2]| totals.map(|(tenant, total)| (TenantId([tenant; 16]), total));
    let mut totals = store.load().wait().await.unwrap().costs;
    totals.sort_unstable();
    assert_eq!(totals, costs([(1, 600), (2, 500)]));
    store.delete_usage(8).wait().await.unwrap();
    // The totals stay, because charges are computed from them.
    let mut totals = store.load().wait().await.unwrap().costs;
    totals.sort_unstable();
    assert_eq!(totals, costs([(1, 600), (2, 500)]));
    assert_eq!(
        store.usage(0, u32::MAX, None, 9).wait().await.unwrap(),
        [(key(8, 1), usage(1))]
    );
}

#[doc(hidden)]
#[macro_export]
macro_rules! store_tests_of_teams {
    ($open:path) => {
        $crate::conformance_tests!(
            $open,
            teams,
            only_its_owner_changes_a_team,
            usage_is_summed_by_day_tenant_function_endpoint
        );
    };
}
