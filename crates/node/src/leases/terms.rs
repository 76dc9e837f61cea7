//! The terms of a lease, and their origin.

use std::sync::Arc;

use dayfly_lease::quota::Held;
use dayfly_protocol::api::LeaseRequest;
use dayfly_protocol::hello::Hello;
use dayfly_protocol::ids::{AllowanceId, LeaseId, TenantId};

use crate::executors::ExecutorKind;

/// Who granted a lease.
#[derive(Debug, Clone)]
pub enum Origin {
    /// This node, under an allowance of its own.
    Node,
    /// Its manager, in this epoch.
    Manager(u64),
    /// This node, under an allowance of its manager.
    Allowance(Arc<PresentedAllowance>),
}

/// An allowance of the manager, as a client presented it.
#[derive(Debug)]
pub struct PresentedAllowance {
    /// Its id.
    pub id: AllowanceId,
    /// Bound of what may be leased on this node under it.
    pub cap: Held,
    /// The hello, as evidence for the manager.
    pub hello: Hello,
}

impl Origin {
    /// The manager's epoch of the grant; 0 for a grant of this node.
    pub fn epoch(&self) -> u64 {
        match self {
            Self::Manager(epoch) => *epoch,
            Self::Node | Self::Allowance(_) => 0,
        }
    }

    /// Whether a manager accounts for the lease.
    pub fn is_managed(&self) -> bool {
        !matches!(self, Self::Node)
    }

    /// The allowance of the manager, if the lease has one.
    pub fn allowance(&self) -> Option<&Arc<PresentedAllowance>> {
        match self {
            Self::Allowance(allowance) => Some(allowance),
            Self::Node | Self::Manager(_) => None,
        }
    }
}

/// The terms of a granted lease. What a renewal may change is in [`CurrentTerms`](super::CurrentTerms).
#[derive(Debug, Clone)]
pub struct GrantedTerms {
    pub id: LeaseId,
    pub tenant: TenantId,
    pub origin: Origin,
    pub request: LeaseRequest,
    pub kind: ExecutorKind,
}
