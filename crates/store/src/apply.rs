//! Application of a change to a lease's record, for stores that do not use SQL for it.

use dayfly_protocol::api::LeaseState;

use super::{Change, LeaseRecord};

/// Returns the lease that a change concerns.
pub fn lease_of(change: &Change) -> dayfly_protocol::ids::LeaseId {
    match change {
        Change::Offered(record) => record.lease,
        Change::Taken { lease, .. }
        | Change::Refused { lease }
        | Change::Active { lease, .. }
        | Change::Renewed { lease, .. }
        | Change::Ended { lease, .. } => *lease,
    }
}

/// Returns the changed record, or `None` if the lease does not exist afterwards. An ended lease stays unchanged.
pub fn apply(record: Option<LeaseRecord>, change: &Change) -> Option<LeaseRecord> {
    let Some(mut record) = record else {
        return match change {
            Change::Offered(record) => Some((**record).clone()),
            _ => None,
        };
    };
    if !record.state.is_live() {
        return Some(record);
    }
    match change {
        Change::Offered(_) => {}
        Change::Refused { .. } => return None,
        Change::Taken {
            mode, image, sandbox, ..
        } => {
            record.mode = *mode;
            record.sandbox = *sandbox;
            record.image.clone_from(image);
        }
        Change::Active { expires_at_ms, .. } => {
            record.state = LeaseState::Active;
            record.expires_at_ms = *expires_at_ms;
        }
        Change::Renewed {
            duration_ms,
            expires_at_ms,
            bearer,
            ..
        } => {
            record.duration_ms = *duration_ms;
            record.expires_at_ms = *expires_at_ms;
            record.bearer = *bearer;
        }
        Change::Ended { state, at_ms, .. } => {
            record.state = *state;
            record.ended_at_ms = *at_ms;
        }
    }
    Some(record)
}
