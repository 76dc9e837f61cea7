//! The OpenAPI description, generated from the handlers. The committed copy is docs/reference/openapi.json.

use serde_json::Value;
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
    info(title = "Dayfly manager", description = "Leases on workers, the nodes that hold them, and who pays."),
    paths(
        http::version,
        http::health,
        http::list_managers,
        http::groups::show_rendezvous,
        http::groups::list_groups,
        http::leases::create_lease,
        http::leases::create_gang,
        http::leases::list_leases,
        http::leases::show_lease,
        http::leases::renew_lease,
        http::leases::release_lease,
        http::leases::revoke_lease,
        http::allowances::create_allowance,
        http::allowances::watch_allowance,
        http::allowances::end_allowance,
        http::nodes::list_nodes,
        http::nodes::reclaim_node,
        http::nodes::resume_node,
        http::nodes::resize_node,
        http::nodes::switch_harvest,
        http::nodes::create_join_token,
        http::nodes::connect_node,
        http::tenants::list_tenants,
        http::tenants::set_tenant,
        http::tokens::list_tokens,
        http::tokens::create_token,
        http::tokens::revoke_token,
        http::login::login_info,
        http::login::log_in,
        http::session::open_session,
        http::session::show_session,
        http::session::end_session,
        http::session::create_ticket,
        http::session::begin_login,
        http::session::end_login,
        http::tenants::show_prices,
        http::tenants::set_prices,
        http::tenants::show_bill,
        http::audit::show_audit,
        http::functions::register_function,
        http::functions::list_functions,
        http::functions::show_function,
        http::functions::show_code,
        http::functions::share_function,
        http::functions::remove_function,
        http::profiles::show_profile,
        http::tasks::submit_tasks,
        http::tasks::list_tasks,
        http::tasks::count_tasks,
        http::tasks::cancel_tasks,
        http::tasks::forget_tasks,
        http::tasks::show_task,
        http::tasks::retry_task,
        http::tasks::show_outcome,
        http::tasks::show_output,
        http::tasks::show_loans,
        http::tasks::list_outcomes,
        http::contents::show_usage,
        http::contents::list_contents,
        http::contents::store_unnamed,
        http::contents::store_content,
        http::contents::show_content,
        http::contents::show_argument,
        http::contents::store_result,
        http::endpoints::list_endpoints,
        http::endpoints::register_endpoint,
        http::endpoints::remove_endpoint,
        http::endpoints::invite,
        http::endpoints::connect_endpoint,
        http::endpoints::create_account,
        http::triggers::set_trigger,
        http::triggers::list_triggers,
        http::triggers::show_trigger,
        http::triggers::remove_trigger,
        http::triggers::pause_trigger,
        http::triggers::resume_trigger,
        http::triggers::list_events,
        http::triggers::fire_trigger,
        http::triggers::call_hook,
        http::flows::start_flow,
        http::flows::list_flows,
        http::flows::show_flow,
        http::flows::cancel_flow,
        http::teams::list_teams,
        http::teams::set_team,
        http::teams::remove_team,
        http::teams::show_task_usage,
        http::queries::list_queries,
        http::queries::show_query,
        http::queries::report_query,
        http::queries::cancel_query,
        http::events::watch_events,
        http::observability::metrics,
        http::observability::history,
        http::openapi
    ),
    modifiers(&BearerScheme)
)]
struct Description;

/// Returns the OpenAPI description.
pub fn document() -> Value {
    let mut document = serde_json::to_value(Description::openapi()).unwrap_or_default();
    add_bounds(&mut document);
    document
}

/// Adds the bounds of each integer type. A body with a larger number is refused.
fn add_bounds(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            let most = match fields.get("format").and_then(Value::as_str) {
                Some("u-int8") => Some(u64::from(u8::MAX)),
                Some("int8") => Some(i8::MAX as u64),
                Some("u-int16") => Some(u64::from(u16::MAX)),
                Some("u-int32") => Some(u64::from(u32::MAX)),
                Some("u-int64") => Some(u64::MAX),
                _ => None,
            };
            if let Some(most) = most {
                fields.entry("maximum").or_insert(most.into());
            }
            if fields.get("format").and_then(Value::as_str) == Some("int8") {
                fields.entry("minimum").or_insert(i8::MIN.into());
            }
            fields.values_mut().for_each(add_bounds);
        }
        Value::Array(values) => values.iter_mut().for_each(add_bounds),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::Value;

    /// Collects integers without a maximum.
    fn unbounded(value: &Value, found: &mut Vec<Value>) {
        match value {
            Value::Object(fields) => {
                if fields.get("type") == Some(&"integer".into()) && !fields.contains_key("maximum") {
                    found.push(value.clone());
                }
                fields.values().for_each(|value| unbounded(value, found));
            }
            Value::Array(values) => values.iter().for_each(|value| unbounded(value, found)),
            _ => {}
        }
    }

    #[test]
    fn every_integer_has_a_maximum() {
        let mut found = Vec::new();
        unbounded(&super::document(), &mut found);
        assert_eq!(found, Vec::<Value>::new());
    }

    #[test]
    fn committed_description_matches_the_handlers() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/openapi.json");
        let now = serde_json::to_string_pretty(&super::document()).unwrap() + "\n";
        if std::env::var_os("DAYFLY_REGENERATE").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &now).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == now,
            "docs/reference/openapi.json is stale; run `DAYFLY_REGENERATE=1 cargo test -p dayfly-manager openapi`"
        );
    }
}
