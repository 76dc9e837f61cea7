//! The API's description, made from the code. The committed copy is docs/reference/openapi.json.

use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi};

use crate::http;

struct BearerScheme;

impl Modify for BearerScheme {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let scheme = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
        document
            .components
            .get_or_insert_default()
            .add_security_scheme("bearer", scheme);
    }
}

#[derive(OpenApi)]
#[openapi(
    info(title = "Mayfly manager", description = "Leases on workers, the nodes that hold them, and who pays."),
    paths(
        http::version,
        http::health,
        http::list_managers,
        http::show_rendezvous,
        http::create_lease,
        http::create_gang,
        http::list_leases,
        http::show_lease,
        http::renew_lease,
        http::release_lease,
        http::revoke_lease,
        http::allowances::create_allowance,
        http::allowances::watch_allowance,
        http::allowances::end_allowance,
        http::list_nodes,
        http::reclaim_node,
        http::resume_node,
        http::create_join_token,
        http::connect_node,
        http::accounts::list_tenants,
        http::accounts::set_tenant,
        http::accounts::list_tokens,
        http::accounts::create_token,
        http::accounts::revoke_token,
        http::login::login_info,
        http::login::log_in,
        http::accounts::show_prices,
        http::accounts::set_prices,
        http::accounts::show_bill,
        http::accounts::show_audit,
        http::tasks::register_function,
        http::tasks::list_functions,
        http::tasks::show_function,
        http::tasks::show_code,
        http::tasks::submit_tasks,
        http::tasks::list_tasks,
        http::tasks::count_tasks,
        http::tasks::cancel_tasks,
        http::tasks::show_task,
        http::tasks::show_outcome,
        http::tasks::list_outcomes,
        http::tasks::list_endpoints,
        http::watch_events,
        http::seeing::metrics,
        http::seeing::history,
        http::openapi
    ),
    modifiers(&BearerScheme)
)]
struct Description;

/// The description.
pub fn document() -> utoipa::openapi::OpenApi {
    Description::openapi()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    #[test]
    fn the_committed_description_is_what_the_code_says() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/openapi.json");
        let now = super::document().to_pretty_json().unwrap() + "\n";
        if std::env::var_os("MAYFLY_REGENERATE").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &now).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == now,
            "docs/reference/openapi.json is stale; run `MAYFLY_REGENERATE=1 cargo test -p mayfly-manager openapi`"
        );
    }
}
