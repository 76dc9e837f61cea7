//! Leases that a node grants under allowances. This `impl` is apart, since leases of the manager need none of it.

use dayfly_lease::allowance::cap_of;
use dayfly_lease::token;
use dayfly_protocol::hello::Hello;
use dayfly_protocol::node_api::DirectStart;

use super::*;

impl Node {
    /// Grants a lease under the allowance in a verified hello, which is this node's own or its manager's.
    pub(crate) async fn grant_directly(
        self: &Arc<Self>,
        hello: &Hello,
        request: LeaseRequest,
        patience: Duration,
    ) -> Result<Grant, Failure> {
        let allowance = &hello.token;
        let mut default_sandbox = None;
        let origin = match token::allowance_of(allowance) {
            // A manager's key is trusted too, but its signature never grants the rights of this node's own user.
            None if allowance.issuer != self.key.id() => {
                let text = "the allowance is not signed by this node; ask for a lease from its manager";
                return Err(Failure::new(Code::Unauthorized, text));
            }
            None => Origin::Node,
            Some(id) => {
                if self.options.manager.is_none() {
                    return Err(Failure::new(
                        Code::Unauthorized,
                        "this node has no manager whose allowances it takes; use its own (`allowance.json`)",
                    ));
                }
                default_sandbox = Some(sandbox_under(allowance, request.wanted_sandbox())?);
                Origin::Allowance(Arc::new(PresentedAllowance {
                    id,
                    cap: cap_of(allowance),
                    hello: *hello,
                }))
            }
        };
        let id = LeaseId(random()?);
        let start_by = self.options.start_by;
        let wanted = RequestedLease {
            request,
            default_sandbox,
        };
        let lease = self
            .take_lease(id, allowance.tenant, origin, wanted, start_by, patience)
            .await?;
        // Inform the manager at once.
        self.report_due.notify_one();
        Ok(self.grant(&lease))
    }

    /// Journals that a lease is about to start.
    pub(super) fn journal_start(&self, lease: &NodeLease, until_ms: u64) -> Result<(), Failure> {
        let GrantedTerms { origin, request, .. } = &lease.granted;
        let reservation = lease.reservation();
        let start = origin.allowance().map(|allowance| DirectStart {
            hello: hex::encode(allowance.hello.as_bytes()),
            holder: request.holder,
            workers: reservation.workers,
            cores_per_worker: request.cores_per_worker,
            mode: reservation.mode,
            sandbox: lease.sandbox(),
            image: lease.image(),
            memory_bytes: reservation.memory_bytes,
            duration_ms: request.duration_ms,
            started_at_ms: clock::wall_ms(),
        });
        self.journal.start(lease.id(), until_ms, origin.is_managed(), start)
    }
}

/// Isolation of a lease under an allowance, which names one.
fn sandbox_under(allowance: &Token, asked: Option<Sandbox>) -> Result<Sandbox, Failure> {
    let named = Sandbox::from_number(allowance.sandbox).ok_or_else(|| {
        Failure::new(
            Code::ProtocolViolation,
            "the allowance names no sandbox; ask for another one",
        )
    })?;
    match asked {
        Some(asked) if asked != named => Err(Failure::new(
            Code::InvalidRequest,
            format!("the lease asks for sandbox `{asked}` and its allowance is for `{named}`; ask for that"),
        )),
        _ => Ok(named),
    }
}
