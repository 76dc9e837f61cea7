//! What a change makes of a lease's record, where records are not changed by SQL.

use dayfly_lease::State;

use super::{Change, LeaseRecord};

/// The lease that a change is about.
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

/// The record afterwards; none if there is none then. What has ended stays as it is.
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
            record.state = State::Active;
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
