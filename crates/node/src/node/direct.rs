//! Leases that this node grants under allowances.

use dayfly_lease::allowance::{cap_of, within_cap};
use dayfly_lease::quota::Held;
use dayfly_lease::{Reservation, token};
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
                Origin::Allowance(Arc::new(Direct {
                    allowance: id,
                    cap: cap_of(allowance),
                    hello: *hello,
                }))
            }
        };
        let id = LeaseId(random()?);
        let start_by = self.options.start_by;
        let wanted = Wanted {
            request,
            default_sandbox,
        };
        let run = self
            .take_lease(id, allowance.tenant, origin, wanted, start_by, patience)
            .await?;
        // Inform the manager at once.
        self.news.notify_one();
        Ok(self.grant(&run))
    }

    /// Handles a message that nothing more may start under an allowance for `for_ms` milliseconds; 0 lifts that.
    pub(crate) fn exhausted(&self, allowance: AllowanceId, for_ms: u64) {
        let mut books = self.books();
        match for_ms {
            0 => books.exhausted.remove(&allowance),
            _ => books
                .exhausted
                .insert(allowance, clock::wall_ms().saturating_add(for_ms)),
        };
    }

    /// Journals that a lease is about to start.
    pub(super) fn journal_start(&self, run: &Run, until_ms: u64) -> Result<(), Failure> {
        let Granted {
            origin,
            request,
            reservation,
            ..
        } = &run.granted;
        let start = origin.direct().map(|direct| DirectStart {
            hello: hex::encode(direct.hello.as_bytes()),
            holder: request.holder,
            workers: reservation.workers,
            cores_per_worker: request.cores_per_worker,
            mode: reservation.mode,
            sandbox: run.sandbox(),
            image: run.image(),
            memory_bytes: reservation.memory_bytes,
            duration_ms: request.duration_ms,
            started_at_ms: clock::wall_ms(),
        });
        self.journal.start(run.id(), until_ms, origin.is_managed(), start)
    }
}

impl Books {
    /// Returns an error unless a lease with this reservation may be held under an allowance.
    pub(super) fn permits(
        &self,
        direct: &Direct,
        request: &LeaseRequest,
        reservation: &Reservation,
    ) -> Result<(), Failure> {
        if self.exhausted.contains_key(&direct.allowance) {
            return Err(Failure::new(
                Code::QuotaExceeded,
                "this allowance is used up, on all nodes together; release a lease, or ask for a larger one",
            ));
        }
        if request.gpus_per_worker > 0 {
            let text = "the lease asks for GPUs, which an allowance does not cover; lease from the manager";
            return Err(Failure::new(Code::InvalidRequest, text));
        }
        let under_it = self.leases.values().filter(|run| {
            let other = run.granted.origin.direct();
            other.is_some_and(|other| other.allowance == direct.allowance)
        });
        let held = under_it.fold(Held::default(), |sum, run| sum.plus(run.held()));
        let cores = request.cores_per_worker.max(1);
        let wanted = Held::by_one(reservation.workers, cores, reservation.memory_bytes);
        within_cap(&direct.cap, &held, &wanted)
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
