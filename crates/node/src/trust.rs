//! Whose code may run as the node's own user, and which levels of isolation other leases may have.
//!
//! The node alone decides this, from its own options and from the tenant in the offer or in the signed allowance. No
//! request and no manager can weaken it.

use std::path::{Path, PathBuf};

use dayfly_protocol::api::{LeaseRequest, NodeSandboxes, Sandbox};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::TenantId;

use crate::Options;
use crate::leases::Origin;

/// Whose code may run as the node's own user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// Only that of the node owner's tenants. All other tenants are isolated, whatever the node's default is.
    Owners(Vec<TenantId>),
    /// That of every tenant. Each tenant can then do everything that the node's user can do.
    AllTenants,
}

/// What one tenant's leases may have on this node.
#[derive(Debug, Clone, Copy)]
pub struct Permissions<'a> {
    options: &'a Options,
    is_trusted: bool,
}

impl<'a> Permissions<'a> {
    /// The rights of a tenant's lease with this origin.
    pub fn of(options: &'a Options, tenant: TenantId, origin: &Origin) -> Self {
        let is_trusted = match (&options.trust, origin) {
            // The allowance is in the node's state directory, which only its own user can read.
            (_, Origin::Node) | (Trust::AllTenants, _) => true,
            (Trust::Owners(owners), Origin::Manager(_) | Origin::Allowance(_)) => owners.contains(&tenant),
        };
        Self { options, is_trusted }
    }

    /// Whether isolated workers may see everything that the node's user sees.
    pub fn sees_all(&self) -> bool {
        self.options.shows_owner_all && self.is_trusted
    }

    /// Permitted levels of isolation; the first is the default.
    pub fn sandboxes(&self) -> Vec<Sandbox> {
        let mut levels = self.options.sandboxes.clone();
        if !self.is_trusted {
            levels.retain(|level| *level != Sandbox::Process);
            if levels.is_empty() {
                levels.push(Sandbox::Isolated);
            }
        }
        levels
    }

    /// The level of a request; `default` is the manager's, for requests that name none.
    pub fn level(&self, request: &LeaseRequest, default: Option<Sandbox>) -> Result<Sandbox, Failure> {
        let levels = self.sandboxes();
        let named = request.wanted_sandbox();
        if named == Some(Sandbox::Process) && !self.is_trusted {
            return Err(Failure::new(
                Code::Forbidden,
                "sandbox `process` runs code as the user of the node, which this node does for its owner's tenant alone; ask for \
                 sandbox `isolated`, or the node's operator to start it with --run-tenants-as-me",
            ));
        }
        // The manager may not know the node's owner; its default for the owner does not apply to others.
        let default = default.filter(|level| self.is_trusted || *level != Sandbox::Process);
        match named.or(default) {
            Some(level) if levels.contains(&level) => Ok(level),
            Some(level) => {
                let allowed: Vec<_> = levels.iter().map(|level| level.name()).collect();
                let text = format!(
                    "the lease asks for sandbox `{level}` and this node allows `{}` only; ask for that",
                    allowed.join(" or ")
                );
                Err(Failure::new(Code::InvalidRequest, text))
            }
            None => levels.first().copied().ok_or_else(|| {
                let text = "this node allows no sandbox at all; start it with --sandbox isolated";
                Failure::new(Code::InvalidRequest, text)
            }),
        }
    }

    /// Whether the host's network may be shared.
    pub fn shares_network(&self) -> bool {
        self.options.share_network || self.sees_all()
    }

    /// Whether isolated workers may read, or with `writable` also write, at this real path.
    pub fn shows(&self, path: &Path, writable: bool) -> bool {
        let named: &[PathBuf] = match writable {
            true => &self.options.writable,
            false => &self.options.readable,
        };
        self.sees_all() || named.iter().any(|named| path.starts_with(named))
    }
}

/// The node's permitted levels and their tenants, for its manager.
pub fn sandboxes(options: &Options) -> NodeSandboxes {
    let of = |is_trusted| Permissions { options, is_trusted }.sandboxes();
    let (owners, of_others) = match &options.trust {
        Trust::Owners(owners) => (owners.clone(), of(false)),
        Trust::AllTenants => (Vec::new(), of(true)),
    };
    NodeSandboxes {
        owners,
        of_owners: of(true),
        of_others,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dayfly_protocol::api::Mode;
    use dayfly_protocol::ids::PublicKey;

    const OWNER: TenantId = TenantId([1; 16]);
    const OTHER: TenantId = TenantId([2; 16]);

    fn options(sandboxes: &[Sandbox], trust: Trust) -> Options {
        let mut options = Options::new("/nowhere");
        options.sandboxes = sandboxes.to_vec();
        options.trust = trust;
        options
    }

    fn request(sandbox: Option<Sandbox>) -> LeaseRequest {
        LeaseRequest {
            sandbox,
            ..LeaseRequest::native(1, Mode::Warm, 1000, PublicKey([0; 32]))
        }
    }

    fn level(
        options: &Options,
        tenant: TenantId,
        named: Option<Sandbox>,
        default: Option<Sandbox>,
    ) -> Result<Sandbox, Code> {
        let level = Permissions::of(options, tenant, &Origin::Manager(1)).level(&request(named), default);
        level.map_err(|failure| failure.code)
    }

    #[test]
    fn other_tenants_are_isolated_where_owners_are_not() {
        let (process, isolated) = (Some(Sandbox::Process), Some(Sandbox::Isolated));
        for sandboxes in [&[Sandbox::Process][..], &[Sandbox::Process, Sandbox::Isolated]] {
            let options = options(sandboxes, Trust::Owners(vec![OWNER]));
            for default in [None, process] {
                assert_eq!(level(&options, OWNER, None, default), Ok(Sandbox::Process));
                assert_eq!(level(&options, OTHER, None, default), Ok(Sandbox::Isolated));
            }
            assert_eq!(level(&options, OWNER, process, None), Ok(Sandbox::Process));
            assert_eq!(level(&options, OTHER, process, process), Err(Code::Forbidden));
            assert_eq!(level(&options, OTHER, isolated, process), Ok(Sandbox::Isolated));
        }
    }

    #[test]
    fn explicit_trust_gives_every_tenant_the_owners_level() {
        let options = options(&[Sandbox::Process], Trust::AllTenants);
        assert_eq!(level(&options, OTHER, None, None), Ok(Sandbox::Process));
        assert_eq!(sandboxes(&options).of(OTHER), [Sandbox::Process]);
    }

    #[test]
    fn stricter_default_of_manager_holds_for_owner() {
        let options = options(&Sandbox::ALL, Trust::Owners(vec![OWNER]));
        let isolated = Some(Sandbox::Isolated);
        assert_eq!(level(&options, OWNER, None, isolated), Ok(Sandbox::Isolated));
    }

    #[test]
    fn whole_host_is_shown_only_to_its_owner() {
        let mut options = options(&Sandbox::ALL, Trust::Owners(vec![OWNER]));
        options.shows_owner_all = true;
        let permissions = |tenant| Permissions::of(&options, tenant, &Origin::Manager(1));
        assert!(permissions(OWNER).shows(Path::new("/home"), true) && permissions(OWNER).shares_network());
        assert!(!permissions(OTHER).shows(Path::new("/home"), false) && !permissions(OTHER).shares_network());
    }
}
