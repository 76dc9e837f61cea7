//! What this node signs: grants of its leases, and the allowance to lease.

use super::*;

/// An allowance in the state directory is worth something for this long; it is written anew at every start.
const ALLOWANCE_MS: u64 = 366 * 24 * 3_600_000;

impl Node {
    /// Whoever may sign tokens for this node.
    pub(crate) fn trusted(&self) -> Vec<PublicKey> {
        self.trusted.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn start_by_ms(&self) -> u64 {
        self.options.start_by.as_millis() as u64
    }

    /// A signed grant of a lease that this node holds.
    pub(crate) fn grant(&self, run: &Run) -> Grant {
        let now_ms = clock::wall_ms();
        let granted = &run.granted;
        let expires_at_ms = now_ms
            .saturating_add(run.remaining_ms())
            .saturating_add(self.start_by_ms());
        run.promised(expires_at_ms.saturating_add(2 * self.options.skew_tolerance.as_millis() as u64));
        let token = Claims {
            workers: granted.reservation.workers,
            cores: granted.request.cores_per_worker,
            memory_bytes: granted.reservation.memory_bytes,
            sandbox: run.sandbox(),
            lease: Some(run.id()),
            tenant: granted.tenant,
            node: self.address.id,
            holder: run.holder(),
            epoch: granted.epoch,
            not_before_ms: now_ms,
            expires_at_ms,
            duration_ms: run.remaining_ms(),
        }
        .sign(&self.key);
        Grant {
            lease: run.id(),
            token: hex::encode(token.as_bytes()),
            node: self.address.clone(),
            workers: granted.reservation.workers,
            mode: granted.reservation.mode,
            sandbox: run.sandbox(),
            image: run.image(),
            memory_bytes: granted.reservation.memory_bytes,
            duration_ms: run.remaining_ms(),
            expires_at_ms,
        }
    }

    pub(super) fn allowance(&self, holder: PublicKey) -> Token {
        let now_ms = clock::wall_ms();
        let capacity = self.books().ledger.capacity();
        Claims {
            workers: capacity.workers.max(capacity.cores),
            cores: capacity.cores,
            memory_bytes: capacity.memory_bytes,
            sandbox: Sandbox::Process,
            lease: None,
            tenant: TenantId([0; 16]),
            node: self.address.id,
            holder,
            epoch: 0,
            not_before_ms: now_ms,
            expires_at_ms: now_ms.saturating_add(ALLOWANCE_MS),
            duration_ms: ALLOWANCE_MS,
        }
        .sign(&self.key)
    }

    /// Leaves the right to lease in the state directory, for clients of the same user.
    pub(super) fn write_allowance(&self) -> Result<(), NodeError> {
        let path = self.options.state_dir.join("allowance.json");
        let seed: [u8; 32] = random().map_err(|failure| NodeError::System(std::io::Error::other(failure)))?;
        let token = self.allowance(SigningKey::from_seed(seed).public());
        let text = serde_json::json!({
            "token": hex::encode(token.as_bytes()),
            "holder_seed": hex::encode(seed),
            "node": self.address,
        });
        write_private(&path, text.to_string().as_bytes()).map_err(|error| NodeError::State { path, error })
    }
}
