//! Decides how many blocks of nodes a site has: as many as its tasks can use, between bounds, and none that idles for
//! long.

/// Bounds of a site's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockTerms {
    /// Minimum number of blocks.
    pub min: u32,
    /// Maximum number of blocks.
    pub max: u32,
    /// Workers of one block.
    pub workers: u32,
    /// An idle block is cancelled after this time, in milliseconds.
    pub idle_ms: u64,
}

/// State of an existing block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Block {
    /// In the batch system's queue.
    Pending,
    /// On its nodes.
    Running {
        /// Workers that it has room for: fewer than a whole block's if it has lost nodes.
        workers: u32,
        /// Since when nothing has been leased there; `None` while something is.
        idle_since_ms: Option<u64>,
        /// When the batch system ends it; 0 for never.
        ends_at_ms: u64,
    },
}

/// Work to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Demand {
    /// Workers that could do all of it at once.
    pub workers: u64,
    /// Longest walltime of a waiting task in milliseconds; 0 if none waits or none states it.
    pub longest_ms: u64,
}

/// Changes to the blocks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Number of blocks to submit.
    pub submit: u32,
    /// Indices of the blocks to cancel.
    pub cancel: Vec<usize>,
}

/// Computes the changes from the existing blocks and the demand.
pub fn plan(terms: BlockTerms, blocks: &[Block], demand: Demand, now_ms: u64) -> Plan {
    let most = u64::from(terms.max);
    let least = u64::from(terms.min).min(most);
    // A block that ends before the longest task could is useless to it.
    let is_useful = |block: &Block| match block {
        Block::Pending => true,
        Block::Running { ends_at_ms, .. } => *ends_at_ms == 0 || now_ms.saturating_add(demand.longest_ms) < *ends_at_ms,
    };
    let workers_of = |block: &Block| match block {
        Block::Pending => u64::from(terms.workers),
        Block::Running { workers, .. } => u64::from(*workers),
    };
    let useful = || blocks.iter().filter(|block| is_useful(block));
    let (mut count, mut workers) = (useful().count() as u64, useful().map(workers_of).sum::<u64>());
    let missing = demand
        .workers
        .saturating_sub(workers)
        .div_ceil(terms.workers.max(1).into());
    let missing = missing.max(least.saturating_sub(count));
    let room = most.saturating_sub(blocks.len() as u64);
    let submit = missing.min(room);
    let is_idle = |block: &Block| match block {
        // A pending block that is not needed can be cancelled at once.
        Block::Pending => true,
        Block::Running { idle_since_ms, .. } => {
            idle_since_ms.is_some_and(|since_ms| now_ms.saturating_sub(since_ms) >= terms.idle_ms)
        }
    };
    // Cancel pending blocks first, the latest of them before the others.
    let mut idle: Vec<usize> = (0..blocks.len()).filter(|at| is_idle(&blocks[*at])).collect();
    idle.sort_by_key(|at| (blocks[*at] != Block::Pending, std::cmp::Reverse(*at)));
    idle.retain(|at| {
        let its = workers_of(&blocks[*at]);
        let is_surplus = is_useful(&blocks[*at]) && count > least && workers - its >= demand.workers;
        if is_surplus {
            (count, workers) = (count - 1, workers - its);
        }
        is_surplus
    });
    if missing > room && submit == 0 {
        // Replace a block that has lost nodes by a whole one.
        let is_broken = |block: &Block| match block {
            Block::Pending => false,
            Block::Running {
                workers, idle_since_ms, ..
            } => *workers < terms.workers && idle_since_ms.is_some() && is_useful(block),
        };
        idle.extend((0..blocks.len()).find(|at| is_broken(&blocks[*at])));
    }
    Plan {
        submit: u32::try_from(submit).unwrap_or(u32::MAX),
        cancel: idle,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TERMS: BlockTerms = BlockTerms {
        min: 0,
        max: 4,
        workers: 10,
        idle_ms: 1_000,
    };

    const BUSY: Block = Block::Running {
        workers: TERMS.workers,
        idle_since_ms: None,
        ends_at_ms: 0,
    };

    fn idle(since_ms: u64) -> Block {
        Block::Running {
            workers: TERMS.workers,
            idle_since_ms: Some(since_ms),
            ends_at_ms: 0,
        }
    }

    fn demand(workers: u64) -> Demand {
        Demand { workers, longest_ms: 0 }
    }

    #[test]
    fn block_count_follows_demand_within_bounds() {
        assert_eq!(plan(TERMS, &[], demand(0), 0), Plan::default());
        assert_eq!(plan(TERMS, &[], demand(1), 0).submit, 1);
        assert_eq!(plan(TERMS, &[BUSY], demand(25), 0).submit, 2);
        assert_eq!(plan(TERMS, &[Block::Pending, BUSY], demand(1_000_000), 0).submit, 2);
        assert_eq!(plan(BlockTerms { min: 2, ..TERMS }, &[], demand(0), 0).submit, 2);
    }

    #[test]
    fn idle_blocks_are_cancelled_after_pending_ones() {
        assert_eq!(plan(TERMS, &[idle(500)], demand(0), 1_000).cancel, [0; 0]);
        assert_eq!(plan(TERMS, &[idle(0), BUSY], demand(1), 1_000).cancel, [0]);
        assert_eq!(
            plan(TERMS, &[idle(0), Block::Pending, Block::Pending], demand(11), 1_000).cancel,
            [2]
        );
        assert_eq!(
            plan(BlockTerms { min: 1, ..TERMS }, &[idle(0)], demand(0), 9_000).cancel,
            [0; 0]
        );
    }

    #[test]
    fn block_that_ends_too_early_is_not_counted() {
        let ending = Block::Running {
            workers: TERMS.workers,
            idle_since_ms: None,
            ends_at_ms: 5_000,
        };
        let long = Demand {
            workers: 1,
            longest_ms: 10_000,
        };
        assert_eq!(plan(TERMS, &[ending], demand(1), 0).submit, 0);
        assert_eq!(plan(TERMS, &[ending], long, 0).submit, 1);
    }

    #[test]
    fn block_with_lost_nodes_is_counted_and_replaced() {
        let broken = |idle_since_ms| Block::Running {
            workers: 5,
            idle_since_ms,
            ends_at_ms: 0,
        };
        assert_eq!(plan(TERMS, &[broken(None)], demand(10), 0).submit, 1);
        assert_eq!(plan(TERMS, &[broken(Some(0))], demand(5), 0), Plan::default());
        let one = BlockTerms { max: 1, ..TERMS };
        assert_eq!(plan(one, &[broken(Some(0))], demand(10), 0).cancel, [0]);
        assert_eq!(plan(one, &[broken(None)], demand(10), 0), Plan::default());
        assert_eq!(plan(one, &[idle(0)], demand(20), 500), Plan::default());
    }

    fn block() -> impl Strategy<Value = Block> {
        let lengths = prop_oneof![Just(0), 0..10_000u64];
        let workers = prop_oneof![Just(TERMS.workers), 0..TERMS.workers];
        let running = (workers, proptest::option::of(0..3_000u64), lengths);
        let running = running.prop_map(|(workers, idle_since_ms, ends_at_ms)| Block::Running {
            workers,
            idle_since_ms,
            ends_at_ms,
        });
        prop_oneof![Just(Block::Pending), running]
    }

    proptest! {
        #[test]
        fn plan_keeps_bounds_and_cancels_no_busy_block(
            blocks in proptest::collection::vec(block(), 0..8),
            workers in 0..200u64,
            longest_ms in 0..5_000u64,
            (min, more) in (0..3u32, 0..5u32),
        ) {
            let terms = BlockTerms { min, max: min + more, ..TERMS };
            let plan = plan(terms, &blocks, Demand { workers, longest_ms }, 3_000);
            let before = u32::try_from(blocks.len()).unwrap();
            prop_assert!(plan.submit == 0 || before + plan.submit <= terms.max);
            prop_assert!(plan.submit == 0 || plan.cancel.is_empty());
            for at in &plan.cancel {
                let busy = matches!(blocks[*at], Block::Running { idle_since_ms: None, .. });
                prop_assert!(!busy);
            }
            let is_whole = |at: &&usize| match blocks[**at] {
                Block::Pending => true,
                Block::Running { workers, .. } => workers == terms.workers,
            };
            let left = before - u32::try_from(plan.cancel.iter().filter(is_whole).count()).unwrap();
            prop_assert!(left == before || left >= terms.min);
        }
    }
}
