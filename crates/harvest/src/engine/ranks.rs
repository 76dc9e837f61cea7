//! Groups: the ranks wait for each other, so that one that lends too much, or borrows alone, helps nobody.

use super::Engine;
use crate::amount::Resource;
use crate::demand::CallId;

impl Engine {
    /// The ranks of a call's group on this node, if all of them run.
    fn complete_group(&self, id: CallId) -> Option<Vec<CallId>> {
        let group = self.calls.get(&id)?.group?;
        let members = self.groups.get(&group.id)?;
        (members.len() as u64 == u64::from(group.size)).then(|| members.iter().copied().collect())
    }

    /// Each rank offers what the one that can spare least does.
    pub(super) fn offer_ranks(&mut self, id: CallId) {
        let Some(members) = self.complete_group(id) else { return };
        for resource in Resource::ALL {
            let spare = members.iter().map(|member| self.spare(*member, resource)).min();
            for member in &members {
                self.put(*member, resource, spare.unwrap_or(0));
            }
        }
    }

    /// A rank took its units back, so all of them do.
    pub(super) fn recall_group(&mut self, id: CallId, resource: Resource) {
        for member in self.other_ranks(id) {
            self.recall(member, resource);
        }
    }

    /// A rank lost what it borrowed, so nobody of them keeps any.
    pub(super) fn lose_ranks(&mut self, id: CallId, resource: Resource) {
        if self.calls.get(&id).is_none_or(|call| call.group.is_none()) {
            return;
        }
        self.give_back(id, resource, u64::MAX);
        for member in self.other_ranks(id) {
            self.give_back(member, resource, u64::MAX);
            self.note_wanting(member);
        }
    }

    /// A rank ends. The others neither lend nor borrow without it.
    pub(super) fn leave_group(&mut self, id: CallId) {
        let others = self.other_ranks(id);
        for resource in Resource::ALL {
            for member in &others {
                self.recall(*member, resource);
                self.give_back(*member, resource, u64::MAX);
            }
        }
        let Some(group) = self.calls.get(&id).and_then(|call| call.group) else {
            return;
        };
        if let Some(members) = self.groups.get_mut(&group.id) {
            members.remove(&id);
            if members.is_empty() {
                self.groups.remove(&group.id);
            }
        }
    }

    fn other_ranks(&self, id: CallId) -> Vec<CallId> {
        let group = self.calls.get(&id).and_then(|call| call.group);
        let members = group.and_then(|group| self.groups.get(&group.id));
        members
            .into_iter()
            .flatten()
            .copied()
            .filter(|member| *member != id)
            .collect()
    }

    /// Lends to groups: the same to each rank, if it can be had for all.
    pub(super) fn distribute_to_groups(&mut self, resource: Resource) {
        let groups: Vec<_> = self
            .groups
            .values()
            .filter_map(|members| members.first().copied())
            .collect();
        for first in groups {
            let Some(members) = self.complete_group(first) else {
                continue;
            };
            let missing = members.iter().map(|member| {
                let wants = self.wanting.contains(member);
                self.calls
                    .get(member)
                    .filter(|_| wants)
                    .map_or(0, |call| call.missing(resource))
            });
            let each = missing.min().unwrap_or(0);
            let all = each.saturating_mul(members.len() as u64);
            if each < self.rules.min_loan.get(resource).max(1) || self.available_to(first, resource) < all {
                continue;
            }
            let got: Vec<_> = members
                .iter()
                .map(|member| self.grant(*member, resource, each))
                .collect();
            if got.iter().any(|got| *got < each) {
                for member in &members {
                    self.give_back(*member, resource, u64::MAX);
                    self.note_wanting(*member);
                }
            }
        }
    }
}
