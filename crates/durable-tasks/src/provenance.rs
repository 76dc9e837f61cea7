//! Provenance: the makers of a result, who are the owner of its function and the owner of the endpoint that it ran at.
//!
//! Either maker can return anything, also bytes that run code in the process that unpickles them. So the manager names
//! the makers other than the task's own tenant to the reader of a result. The result itself does not name them. Every
//! tenant trusts the manager's own endpoint.
//!
//! Adds to `State` the search for makers, which needs functions and endpoints.

use dayfly_protocol::contents::Payload;
use dayfly_protocol::encoding::RESULT_PRODUCERS;
use dayfly_protocol::ids::{EndpointId, TenantId};
use dayfly_protocol::tasks::{ResultOrigin, TaskOutcome};
use dayfly_store::tasks::{FunctionRecord, TaskInputs};
use sha2::{Digest, Sha256};

use crate::endpoints::NOBODY;
use crate::memo::computation_hash;
use crate::state::State;
use crate::{Tasks, Tenants};

impl State {
    /// Names of the other tenants that may have made a result. An empty name stands for a maker that is unknown.
    pub fn foreign_makers(&self, ran: Option<ResultOrigin>, tenants: &dyn Tenants) -> Vec<String> {
        let Some(ran) = ran else { return vec![String::new()] };
        let function = self.functions.get(ran.function).map(|function| function.tenant);
        let makers = [function, self.endpoints.operator(ran.endpoint, ran.tenant)];
        let others = makers.into_iter().filter(|maker| *maker != Some(ran.tenant));
        let mut names: Vec<String> = others
            .map(|maker| maker.map_or_else(String::new, |tenant| tenants.name(tenant)))
            .collect();
        names.dedup();
        names
    }

    /// The hash of all that a memoized result depends on except the arguments: the function's computation, and its
    /// makers. So a result that other tenants made never replaces a tenant's own.
    pub fn maker_hash(&self, function: &FunctionRecord, tenant: TenantId, endpoint: EndpointId) -> [u8; 32] {
        let computation = computation_hash(function);
        let operator = self.endpoints.operator(endpoint, tenant);
        if function.tenant == tenant && operator == Some(tenant) {
            return computation;
        }
        let operator = operator.unwrap_or(NOBODY);
        Sha256::new()
            .chain_update(computation)
            .chain_update(function.tenant.0)
            .chain_update(operator.0)
            .finalize()
            .into()
    }
}

impl Tasks {
    /// Adds the foreign makers to an outcome from the store.
    pub(super) fn with_foreign_makers(&self, mut outcome: TaskOutcome) -> TaskOutcome {
        outcome.foreign = self.state().foreign_makers(outcome.ran, &*self.tenants);
        outcome
    }

    /// Appends the foreign makers of the results that a task is given, if there are any.
    pub(super) fn add_makers(&self, given: &mut TaskInputs) {
        if given.answers.is_empty() {
            return;
        }
        let makers: Vec<Vec<String>> = {
            let state = self.state();
            let foreign = |ran: &Option<ResultOrigin>| ran.map(|ran| state.foreign_makers(Some(ran), &*self.tenants));
            given.ran.iter().map(|ran| foreign(ran).unwrap_or_default()).collect()
        };
        if makers.iter().all(Vec::is_empty) {
            return;
        }
        let mut bytes = serde_json::to_vec(&makers).unwrap_or_default();
        bytes.push(RESULT_PRODUCERS);
        given.answers.push(Some(Payload::Inline(bytes.into())));
    }
}
