//! The tokens that a node signs: grants of its leases, and its allowance. This `impl` has all uses of the node's key.

use dayfly_lease::ledger::MAX_WORKERS;
use dayfly_protocol::api::worker_bound;
use dayfly_sandbox::isolation::CODE_DIR;

use super::*;

/// Validity of the allowance in the state directory, in milliseconds; it is written anew at every start.
const ALLOWANCE_MS: u64 = 366 * 24 * 3_600_000;

impl Node {
    fn start_by_ms(&self) -> u64 {
        self.options.start_by.as_millis() as u64
    }

    /// A signed grant of a lease on this node.
    pub(crate) fn grant(&self, lease: &NodeLease) -> Grant {
        let terms = lease.held_terms();
        // The token permits the highest number.
        let bound = worker_bound(&terms.numbers, terms.workers);
        let grant = self.grant_to(lease, lease.holder(), bound, lease.remaining_ms());
        Grant {
            workers: terms.workers,
            numbers: terms.numbers,
            ..grant
        }
    }

    /// A signed grant of some workers of a lease, for this key and duration. The node itself knows which workers.
    pub(crate) fn grant_to(&self, lease: &NodeLease, holder: PublicKey, workers: u16, duration_ms: u64) -> Grant {
        let now_ms = clock::wall_ms();
        let (granted, terms) = (&lease.granted, lease.held_terms());
        let expires_at_ms = now_ms.saturating_add(duration_ms).saturating_add(self.start_by_ms());
        lease.extend_token_end(expires_at_ms.saturating_add(2 * self.options.skew_tolerance.as_millis() as u64));
        let token = Claims {
            workers,
            cores: granted.request.cores_per_worker,
            memory_bytes: terms.memory_bytes,
            sandbox: lease.sandbox(),
            lease: Some(lease.id()),
            tenant: granted.tenant,
            node: self.address.id,
            holder,
            epoch: granted.origin.epoch(),
            not_before_ms: now_ms,
            expires_at_ms,
            duration_ms,
        }
        .sign(&self.key);
        Grant {
            lease: lease.id(),
            token: hex::encode(token.as_bytes()),
            node: self.address.clone(),
            workers,
            numbers: Vec::new(),
            mode: terms.mode,
            sandbox: lease.sandbox(),
            image: lease.image(),
            memory_bytes: terms.memory_bytes,
            duration_ms,
            expires_at_ms,
            notice: None,
        }
    }

    /// Delegates a part of `by`'s workers to another key.
    pub(crate) fn delegate(
        &self,
        lease: &NodeLease,
        by: &PublicKey,
        to: PublicKey,
        first: u16,
        workers: u16,
        duration_ms: u64,
    ) -> Result<Grant, Failure> {
        let part = lease.delegate(by, to, first, workers, duration_ms)?;
        let until_ms = part.until_ms.unwrap_or(u64::MAX).saturating_sub(clock::now_ms());
        Ok(self.grant_to(lease, to, workers, until_ms.min(lease.remaining_ms())))
    }

    /// Shows this node's socket to a lease's workers. Returns its path there.
    pub(crate) fn open_sandbox_socket(self: &Arc<Self>, lease: &NodeLease) -> std::io::Result<String> {
        if lease.sandbox() == Sandbox::Process {
            return Ok(self.options.unix_path().display().to_string());
        }
        if let Some(dir) = lease.request_socket() {
            let socket = sandbox_socket::open(self, &dir)?;
            lease.set_socket(&dir, socket);
        }
        Ok(format!("{CODE_DIR}/{}", sandbox_socket::SOCKET_NAME))
    }

    pub(super) fn allowance(&self, holder: PublicKey) -> Token {
        let now_ms = clock::wall_ms();
        let capacity = self.leases.capacity();
        Claims {
            workers: MAX_WORKERS,
            cores: capacity.cores.into(),
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

    /// Writes the right to lease into the state directory, for clients of the same user.
    pub(super) fn write_allowance(&self) -> Result<(), NodeError> {
        let path = self.options.state_dir.join("allowance.json");
        let seed: [u8; 32] = random().map_err(|failure| NodeError::System(std::io::Error::other(failure)))?;
        let token = self.allowance(SigningKey::from_seed(seed).public());
        let text = serde_json::json!({
            "token": hex::encode(token.as_bytes()),
            "holder_seed": hex::encode(seed),
            "node": self.address,
        });
        private_file::write(&path, text.to_string().as_bytes()).map_err(|error| NodeError::State { path, error })
    }
}
