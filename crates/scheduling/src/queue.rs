//! The queue of an endpoint's tasks.
//!
//! Tenants share an endpoint by the time that their tasks take. Each tenant has a virtual time, which grows with the
//! cost of its tasks; the tenant with the lowest virtual time is next (start-time fair queueing). A tenant that returns
//! after a pause starts at the current virtual time, and gets no credit for unused time. Within a tenant the higher
//! priority goes first, then the earlier task. So a priority cannot overtake other tenants.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use dayfly_protocol::ids::TenantId;

/// Assumed cost of a tenant's first tasks, in microseconds.
const FIRST_GUESS_US: u64 = 1_000;
/// Weight of the past in the mean cost: one part in this many is new.
const WEIGHT: u64 = 8;

#[derive(Debug)]
struct TenantQueue<T> {
    waiting: BTreeMap<Reverse<i8>, VecDeque<T>>,
    length: usize,
    virtual_us: u64,
    mean_us: u64,
}

impl<T> TenantQueue<T> {
    fn new(virtual_us: u64) -> Self {
        Self {
            waiting: BTreeMap::new(),
            length: 0,
            virtual_us,
            mean_us: FIRST_GUESS_US,
        }
    }
}

/// Tasks that wait for an endpoint.
#[derive(Debug)]
pub struct Queue<T> {
    by_tenant: BTreeMap<TenantId, TenantQueue<T>>,
    /// Virtual time of the tenant that was served last.
    now_us: u64,
    length: usize,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self {
            by_tenant: BTreeMap::new(),
            now_us: 0,
            length: 0,
        }
    }
}

impl<T> Queue<T> {
    /// Number of waiting tasks.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether no task waits.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    fn of_tenant(&mut self, tenant: TenantId) -> &mut TenantQueue<T> {
        let now_us = self.now_us;
        let own = self.by_tenant.entry(tenant).or_insert_with(|| TenantQueue::new(now_us));
        if own.length == 0 {
            own.virtual_us = own.virtual_us.max(now_us);
        }
        own
    }

    /// The queue of this tenant and priority; counts one more task.
    fn slot(&mut self, tenant: TenantId, priority: i8) -> &mut VecDeque<T> {
        self.length += 1;
        let own = self.of_tenant(tenant);
        own.length += 1;
        own.waiting.entry(Reverse(priority)).or_default()
    }

    /// Appends a task, behind those of equal priority.
    pub fn push(&mut self, tenant: TenantId, priority: i8, task: T) {
        self.slot(tenant, priority).push_back(task);
    }

    /// Puts a task back that could not be sent, before those of equal priority.
    pub fn put_back(&mut self, tenant: TenantId, priority: i8, task: T) {
        self.slot(tenant, priority).push_front(task);
    }

    /// Takes the next task.
    pub fn pop(&mut self) -> Option<T> {
        self.pop_except(&[])
    }

    /// Tenants with waiting tasks.
    pub fn tenants(&self) -> impl Iterator<Item = TenantId> {
        let waiting = self.by_tenant.iter().filter(|(_, own)| own.length > 0);
        waiting.map(|(tenant, _)| *tenant)
    }

    /// Takes the next task of a tenant that is not among `held_up`.
    pub fn pop_except(&mut self, held_up: &[TenantId]) -> Option<T> {
        let mut by_tenant = self.by_tenant.iter_mut();
        let waiting = by_tenant
            .by_ref()
            .filter(|(tenant, own)| own.length > 0 && !held_up.contains(tenant));
        let own = waiting.map(|(_, own)| own).min_by_key(|own| own.virtual_us)?;
        self.now_us = self.now_us.max(own.virtual_us);
        own.virtual_us += own.mean_us.max(1);
        own.length -= 1;
        self.length -= 1;
        let mut first = own.waiting.first_entry()?;
        let task = first.get_mut().pop_front();
        if first.get().is_empty() {
            first.remove();
        }
        task
    }

    /// Records that a task of this tenant took `took_us` microseconds.
    pub fn record(&mut self, tenant: TenantId, took_us: u64) {
        if let Some(own) = self.by_tenant.get_mut(&tenant) {
            own.mean_us = (own.mean_us * (WEIGHT - 1) + took_us) / WEIGHT;
        }
    }

    /// Drops tenants without waiting tasks.
    pub fn drop_idle(&mut self) {
        let now_us = self.now_us;
        // Keep a tenant that used more than its share until the others catch up.
        self.by_tenant
            .retain(|_, own| own.length > 0 || own.virtual_us > now_us);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tenant(n: u8) -> TenantId {
        TenantId([n; 16])
    }

    #[test]
    fn tasks_are_ordered_by_priority_then_age() {
        let mut queue = Queue::default();
        for (priority, task) in [(0, "a"), (5, "b"), (0, "c"), (5, "d"), (-3, "e")] {
            queue.push(tenant(1), priority, task);
        }
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, ["b", "d", "a", "c", "e"]);
        assert!(queue.is_empty());
    }

    #[test]
    fn excluded_tenant_delays_no_other_tenant() {
        let mut queue = Queue::default();
        for (who, task) in [(1, "a"), (2, "b"), (1, "c")] {
            queue.push(tenant(who), 0, task);
        }
        assert_eq!(queue.tenants().collect::<Vec<_>>(), [tenant(1), tenant(2)]);
        assert_eq!(queue.pop_except(&[tenant(1)]), Some("b"));
        assert_eq!((queue.pop_except(&[tenant(1)]), queue.len()), (None, 2));
        assert_eq!((queue.pop(), queue.pop()), (Some("a"), Some("c")));
    }

    #[test]
    fn returned_task_is_next_of_its_priority() {
        let mut queue = Queue::default();
        queue.push(tenant(1), 0, 1);
        queue.push(tenant(1), 0, 2);
        let first = queue.pop().unwrap();
        queue.put_back(tenant(1), 0, first);
        assert_eq!(queue.pop(), Some(1));
    }

    #[test]
    fn new_tenant_does_not_wait_behind_a_backlog() {
        let mut queue = Queue::default();
        for n in 0..1_000_000 {
            queue.push(tenant(1), 100, n);
        }
        for _ in 0..1_000 {
            queue.pop();
        }
        queue.push(tenant(2), -100, -1);
        assert!((0..2).any(|_| queue.pop() == Some(-1)));
    }

    #[test]
    fn paused_tenant_gets_no_credit() {
        let mut queue = Queue::default();
        for n in 0..1_000 {
            queue.push(tenant(1), 0, (1, n));
            queue.push(tenant(2), 0, (2, n));
        }
        while queue.pop().is_some() {}
        // One tenant works alone for a long time.
        for n in 0..1_000 {
            queue.push(tenant(1), 0, (1, n));
            queue.pop();
        }
        for n in 0..100 {
            queue.push(tenant(1), 0, (1, n));
            queue.push(tenant(2), 0, (2, n));
        }
        let first: Vec<_> = (0..20).filter_map(|_| queue.pop()).collect();
        let ones = first.iter().filter(|(who, _)| *who == 1).count();
        assert!((8..=12).contains(&ones), "{ones} of 20");
    }

    #[test]
    fn tenants_share_time_and_not_tasks() {
        let mut queue = Queue::default();
        for n in 0..10_000 {
            queue.push(tenant(1), 0, (1, n));
            queue.push(tenant(2), 0, (2, n));
        }
        let mut spent = [0u64; 2];
        for _ in 0..5_000 {
            let (who, _) = queue.pop().unwrap();
            let cost = [100, 900][who - 1];
            spent[who - 1] += cost;
            queue.record(tenant(who as u8), cost);
        }
        let share = spent[0] as f64 / (spent[0] + spent[1]) as f64;
        assert!((0.45..0.55).contains(&share), "{spent:?}");
    }

    proptest! {
        #[test]
        fn each_pushed_task_is_popped_once(
            tasks in prop::collection::vec((0u8..4, any::<i8>(), any::<bool>()), 0..300)
        ) {
            let mut queue = Queue::default();
            let mut seen = Vec::new();
            for (index, (who, priority, pop)) in tasks.iter().enumerate() {
                queue.push(tenant(*who), *priority, index);
                if *pop {
                    seen.extend(queue.pop());
                    queue.drop_idle();
                }
            }
            seen.extend(std::iter::from_fn(|| queue.pop()));
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..tasks.len()).collect::<Vec<_>>());
            prop_assert_eq!(queue.len(), 0);
        }
    }
}
