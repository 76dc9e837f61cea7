//! Copies of kept rows on other ranks, which are read when a rank is lost.

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::common::{DataFusionError, Result as QueryResult, internal_err};
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::runtime_env::RuntimeEnv;
use dayfly_protocol::error::{Code, Failure};
use futures_util::TryStreamExt;
use futures_util::future::try_join_all;

use super::node::does_not_fit;
use super::{FrameId, Location, Part, Store};
use crate::exchange::{Exchange, compact, copied_parts, kept_rows};

/// Checks that so many ranks can have each row.
///
/// # Errors
/// [`Code::InvalidRequest`] if there are fewer ranks.
pub fn check(replicas: usize, left: usize) -> QueryResult<()> {
    if (1..=left.max(1)).contains(&replicas) {
        return Ok(());
    }
    let message = format!(
        "{replicas} ranks cannot have each kept row: the session has {left}; lease more ranks, or keep at least one and \
         at most {left} replicas"
    );
    Err(DataFusionError::External(
        Failure::new(Code::InvalidRequest, message).into(),
    ))
}

/// Has other ranks of `left` copy kept parts, and adds the copies to the parts. Each row is on so many ranks then.
///
/// # Errors
/// Of a rank that is lost, or has no room for its copies.
pub async fn copy(
    exchange: &Arc<Exchange>,
    id: FrameId,
    parts: &mut [Part],
    left: &[u32],
    replicas: usize,
) -> QueryResult<()> {
    let mut wanted: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (number, part) in parts.iter().enumerate() {
        for rank in ranks_for(part.location.rank, number, left, replicas - 1) {
            wanted.entry(rank).or_default().push(number);
        }
    }
    let copied = wanted.iter().map(|(rank, numbers)| {
        let sources = numbers.iter().map(|number| parts[*number].location);
        copied_parts(exchange, *rank, id, sources.collect())
    });
    let copied = try_join_all(copied).await?;
    for ((rank, numbers), copies) in wanted.into_iter().zip(copied) {
        if copies.len() != numbers.len() {
            return internal_err!("rank {rank} reports copies of other parts");
        }
        for (part, number) in numbers.into_iter().zip(copies) {
            parts[part].copies.push(Location { rank, number });
        }
    }
    Ok(())
}

/// The ranks that copy a part. Parts of one rank are copied by different ranks, which share its work when it is lost.
fn ranks_for(own: u32, number: usize, left: &[u32], copies: usize) -> Vec<u32> {
    let others: Vec<_> = left.iter().copied().filter(|rank| *rank != own).collect();
    let chosen = others.iter().cycle().skip(number % others.len().max(1));
    chosen.take(copies.min(others.len())).copied().collect()
}

/// Copies parts of other ranks to this one. Returns their numbers here.
///
/// # Errors
/// [`Code::OutOfMemory`] if the copies do not fit; of a rank that is lost.
pub async fn take(store: &Store, environment: &RuntimeEnv, id: FrameId, parts: &[Location]) -> QueryResult<Vec<u32>> {
    let mut numbers = Vec::with_capacity(parts.len());
    for part in parts {
        let memory = MemoryConsumer::new("copy of a kept frame").register(&environment.memory_pool);
        let mut rows = kept_rows(store.exchange(), part.rank, id, part.number);
        let mut batches = Vec::new();
        while let Some(batch) = rows.try_next().await? {
            // The copies have as many batches as the part: who has read some of these goes on with the next one.
            let (batch, bytes) = compact(&batch)?;
            memory.try_grow(bytes).map_err(|_| does_not_fit(store.rank()))?;
            batches.push(batch);
        }
        numbers.push(store.put(id, batches, memory));
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::error::failure_of;

    proptest! {
        #[test]
        fn copies_are_on_different_ranks(
            left in prop::collection::btree_set(0u32..9, 1..8),
            own in 0usize..8,
            number in 0usize..20,
            replicas in 1usize..9,
        ) {
            let left: Vec<_> = left.into_iter().collect();
            let own = left[own % left.len()];
            prop_assume!(replicas <= left.len());
            let mut ranks: BTreeSet<_> = ranks_for(own, number, &left, replicas - 1).into_iter().collect();
            prop_assert!(ranks.insert(own));
            prop_assert_eq!(ranks.len(), replicas);
            prop_assert!(ranks.iter().all(|rank| left.contains(rank)));
        }
    }

    #[test]
    fn parts_of_a_rank_have_copies_everywhere() {
        let ranks: BTreeSet<_> = (0..6)
            .flat_map(|number| ranks_for(1, number, &[0, 1, 2, 3], 1))
            .collect();
        assert_eq!(ranks, BTreeSet::from([0, 2, 3]));
    }

    #[test]
    fn more_replicas_than_ranks_are_refused() {
        for (replicas, left) in [(2, 1), (0, 3), (4, 3)] {
            let failure = failure_of(&check(replicas, left).unwrap_err());
            assert_eq!(failure.code, Code::InvalidRequest);
        }
        assert!(check(1, 0).is_ok() && check(3, 3).is_ok());
    }
}
