//! Chooses the worker of a task that could use more than it owns, where nodes lend.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_client::Output;
use dayfly_harvest::{Amount, Want};
use dayfly_protocol::dispatch::{Attempt, Ended};
use dayfly_protocol::ids::{FunctionId, NodeId};

use super::task_queue::TaskQueue;
use super::{Task, WorkerKey, WorkerSet, WorkerSetState};
use crate::lease_driver::LeaseDriver;
use crate::lending::{Lending, wanted};

/// Where the next task goes.
#[derive(Debug, PartialEq)]
struct Choice {
    /// Position of the driver.
    driver: usize,
    node: NodeId,
    want: Want,
}

impl WorkerSet {
    /// Gives tasks that could use more than they own to the drivers on whose nodes most of that is covered, while the
    /// next task is such a one and any node could lend to it. `over` receives drivers that accept no more tasks, `back`
    /// the tasks that they returned.
    pub(super) fn assign_covered(
        &self,
        state: &mut WorkerSetState,
        over: &mut Vec<Arc<dyn LeaseDriver>>,
        back: &mut Vec<Task>,
    ) {
        // Ranks borrow all or none, and their nodes are chosen together.
        let may_borrow = self.key.ranks == 0 && self.key.loans.borrow.has_cpu();
        if !may_borrow || state.drivers.len() < 2 || state.tasks.waiting() == 0 {
            return;
        }
        let (lending, now) = (&self.shared.lending, Instant::now());
        if !lending.refresh(now) {
            return;
        }
        let (owned, left) = (owned(&self.key), |driver: &dyn LeaseDriver| self.remaining(driver));
        while let Some(choice) = best_covered(&state.drivers, &state.tasks, lending, (now, owned), left) {
            let driver = &state.drivers[choice.driver];
            let Some(task) = state.tasks.next_for(driver.as_ref(), left(driver.as_ref())) else {
                return;
            };
            let attempt = task.assigned.attempt;
            if let Some(task) = driver.begin(task) {
                back.push(task);
                over.push(Arc::clone(driver));
                return;
            }
            lending.add(now, choice.node, attempt, &choice.want, owned);
        }
    }

    /// Executions that ended, or never began, borrow no more.
    pub(super) fn forget_claims(
        &self,
        driver: &dyn LeaseDriver,
        ended: &[Ended],
        long: &[(Ended, Output)],
        back: &[Task],
    ) {
        if self.key.ranks > 0 || !self.shared.lending.is_any() {
            return;
        }
        let ended = ended.iter().chain(long.iter().map(|(one, _)| one));
        let attempts = ended.map(|one| one.attempt);
        let attempts: Vec<Attempt> = attempts.chain(back.iter().map(|task| task.assigned.attempt)).collect();
        for node in driver.nodes() {
            self.shared.lending.remove(node, &attempts);
        }
    }
}

/// What an execution owns.
fn owned(key: &WorkerKey) -> Amount {
    Amount::new(key.cores.get(), key.memory_bytes)
}

/// The driver with an idle worker on whose node most of what its next task wants is covered, the first among equals.
/// `None` if no node covers anything, or the next tasks are short.
fn best_covered(
    drivers: &[Arc<dyn LeaseDriver>],
    tasks: &TaskQueue,
    lending: &Lending,
    (now, owned): (Instant, Amount),
    left: impl Fn(&dyn LeaseDriver) -> Option<Duration>,
) -> Option<Choice> {
    let mut best: Option<(u8, Choice)> = None;
    // Most of them would get the same task.
    let mut known: Option<(FunctionId, Option<u64>)> = None;
    for (index, driver) in drivers.iter().enumerate() {
        // Room for what the task owns comes first.
        if driver.running() >= usize::from(driver.workers()) {
            continue;
        }
        let Some(task) = tasks.peek_for(driver.as_ref(), left(driver.as_ref())) else {
            continue;
        };
        let id = task.program.id;
        let mean_us = match known {
            Some((function, mean_us)) if function == id => mean_us,
            _ => drivers.iter().filter_map(|driver| driver.mean_us(&task.program)).max(),
        };
        known = Some((id, mean_us));
        let (Some(want), Some(&node)) = (wanted(mean_us), driver.nodes().first()) else {
            continue;
        };
        let percent = lending.coverage_percent(now, node, &want, owned);
        if percent > best.as_ref().map_or(0, |(most, _)| *most) {
            let choice = Choice {
                driver: index,
                node,
                want,
            };
            best = Some((percent, choice));
        }
    }
    best.map(|(_, choice)| choice)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use dayfly_protocol::api::Runtime;
    use dayfly_protocol::contents::Payload;
    use dayfly_protocol::dispatch::{Assigned, Program};
    use dayfly_protocol::executor::Form;
    use dayfly_protocol::functions::Resources;
    use dayfly_protocol::ids::{CodeHash, TenantId};

    use super::*;
    use crate::lending::LendingNode;
    use crate::lending::tests::{OWNED, attempt, lending};

    struct FakeDriver {
        node: u8,
        workers: u16,
        running: AtomicUsize,
        mean_us: Option<u64>,
    }

    impl LeaseDriver for FakeDriver {
        fn workers(&self) -> u16 {
            self.workers
        }

        fn nodes(&self) -> Vec<NodeId> {
            vec![NodeId([self.node; 16])]
        }

        fn accepts(&self, _: &Program) -> bool {
            true
        }

        fn mean_us(&self, _: &Program) -> Option<u64> {
            self.mean_us
        }

        fn running(&self) -> usize {
            self.running.load(Ordering::Relaxed)
        }

        fn is_retired(&self) -> bool {
            false
        }

        fn retire(&self) {}

        fn close(&self) {}

        fn begin(&self, _: Task) -> Option<Task> {
            self.running.fetch_add(1, Ordering::Relaxed);
            None
        }

        fn cancel(&self, _: &HashSet<Attempt>) {}

        fn withdraw(&self, _: &HashSet<Attempt>) -> Vec<Attempt> {
            Vec::new()
        }

        fn run(self: Arc<Self>, _: &Arc<WorkerSet>) {}
    }

    /// A driver with two workers on each of the nodes 1 and 2.
    fn drivers(mean_us: Option<u64>) -> Vec<Arc<dyn LeaseDriver>> {
        let driver = |node| FakeDriver {
            node,
            workers: 2,
            running: AtomicUsize::new(0),
            mean_us,
        };
        [1, 2].map(|node| Arc::new(driver(node)) as Arc<dyn LeaseDriver>).into()
    }

    fn queue(tasks: u8) -> TaskQueue {
        let program = Arc::new(Program {
            id: FunctionId([0; 16]),
            owner: None,
            hash: CodeHash([0; 32]),
            form: Form::Plain { symbol: "f".into() },
            runtime: Runtime::Native,
            image: None,
            resources: Resources::default(),
            code: Vec::new().into(),
        });
        let mut queue = TaskQueue::default();
        for n in 0..tasks {
            let assigned = Assigned {
                attempt: attempt(n),
                function: program.id,
                tenant: TenantId([0; 16]),
                arguments: Payload::Inline(Vec::new().into()),
                answers: Vec::new(),
                walltime_ms: 0,
                repeatable: false,
            };
            queue.push_back(Task::new(Arc::clone(&program), assigned));
        }
        queue
    }

    /// The nodes to which tasks go until none of them covers anything, with what each node lends in thousandths of a core.
    fn chosen(mean_us: Option<u64>, lent: [u64; 2], tasks: u8) -> Vec<u8> {
        let now = Instant::now();
        let nodes: Vec<LendingNode> = (1..=2).map(|n| lending(n, now, lent[usize::from(n) - 1])).collect();
        let lends = Lending::new(Box::new(move || nodes.clone()));
        assert!(lends.refresh(now));
        let (drivers, mut queue, mut chosen) = (drivers(mean_us), queue(tasks), Vec::new());
        while let Some(choice) = best_covered(&drivers, &queue, &lends, (now, OWNED), |_| None) {
            let driver = &drivers[choice.driver];
            let task = queue.next_for(driver.as_ref(), None).unwrap();
            lends.add(now, choice.node, task.assigned.attempt, &choice.want, OWNED);
            assert!(driver.begin(task).is_none());
            chosen.push(choice.node.0[0]);
        }
        chosen
    }

    #[test]
    fn tasks_go_where_a_node_lends() {
        assert_eq!(chosen(None, [0, 4_000], 5), [2, 2], "there are two workers");
        assert_eq!(chosen(Some(1_000_000), [0, 4_000], 1), [2]);
        assert_eq!(chosen(None, [300, 4_000], 5), [2, 2, 1]);
    }

    #[test]
    fn own_placements_leave_less_for_the_next_task() {
        assert_eq!(chosen(None, [600, 1_500], 5), [2, 1, 2]);
        assert_eq!(
            chosen(None, [4_000, 4_000], 5),
            [1, 1, 2, 2],
            "the first among equals, as without lending"
        );
    }

    #[test]
    fn short_tasks_and_empty_pools_choose_nothing() {
        assert!(chosen(Some(5_000), [0, 4_000], 3).is_empty());
        assert!(chosen(None, [0, 0], 3).is_empty());
        assert!(chosen(None, [0, 4_000], 0).is_empty());
    }
}
