//! Who made an answer: the owner of its function, and the owner of the endpoint that it ran at.
//!
//! Either can answer what they like, also what runs code in whoever unpickles it. So whoever reads an answer is told of those who are
//! not the task's own tenant, by the manager, and not by the answer. The manager's own endpoint is nobody's, and trusted as it is.

use dayfly_protocol::contents::Payload;
use dayfly_protocol::encoding::RESULT_PRODUCERS;
use dayfly_protocol::ids::{EndpointId, TenantId};
use dayfly_protocol::tasks::{ResultOrigin, TaskOutcome};
use dayfly_store::tasks::{FunctionRecord, Given};
use sha2::{Digest, Sha256};

use crate::endpoints::NOBODY;
use crate::memo::computes;
use crate::state::State;
use crate::{Tasks, Tenants};

impl State {
    /// The other tenants that may have made an answer, by their names; an empty one where that is not known any more.
    pub(super) fn foreign(&self, ran: Option<ResultOrigin>, tenants: &dyn Tenants) -> Vec<String> {
        let Some(ran) = ran else { return vec![String::new()] };
        let function = self.functions.get(&ran.function).map(|function| function.tenant);
        let makers = [function, self.run_by(ran.endpoint, ran.tenant)];
        let others = makers.into_iter().filter(|maker| *maker != Some(ran.tenant));
        let mut names: Vec<String> = others
            .map(|maker| maker.map_or_else(String::new, |tenant| tenants.name(tenant)))
            .collect();
        names.dedup();
        names
    }

    /// Who runs an endpoint, as a task's tenant sees it. The endpoint of an account is run by whoever has the one above it.
    fn run_by(&self, endpoint: EndpointId, tenant: TenantId) -> Option<TenantId> {
        let record = &self.endpoints.get(&endpoint)?.record;
        let owner = match record.of {
            Some(of) => self.endpoints.get(&of.endpoint)?.record.tenant,
            None => record.tenant,
        };
        Some(if owner == NOBODY { tenant } else { owner })
    }

    /// What a memoized answer depends on of a function, and of who makes it: what others answered is not the answer of one's own.
    pub(super) fn computed_by(&self, function: &FunctionRecord, tenant: TenantId, endpoint: EndpointId) -> [u8; 32] {
        let computes = computes(function);
        let runs_it = self.run_by(endpoint, tenant);
        if function.tenant == tenant && runs_it == Some(tenant) {
            return computes;
        }
        let runs_it = runs_it.unwrap_or(NOBODY);
        Sha256::new()
            .chain_update(computes)
            .chain_update(function.tenant.0)
            .chain_update(runs_it.0)
            .finalize()
            .into()
    }
}

impl Tasks {
    /// An outcome from the books, with who may have made it.
    pub(super) fn with_makers(&self, mut outcome: TaskOutcome) -> TaskOutcome {
        outcome.foreign = self.state().foreign(outcome.ran, &*self.tenants);
        outcome
    }

    /// Tells a worker who made the answers that go along to it, where that is not the task's own tenant.
    pub(super) fn mark(&self, given: &mut Given) {
        if given.answers.is_empty() {
            return;
        }
        let makers: Vec<Vec<String>> = {
            let state = self.state();
            let foreign = |ran: &Option<ResultOrigin>| ran.map(|ran| state.foreign(Some(ran), &*self.tenants));
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
