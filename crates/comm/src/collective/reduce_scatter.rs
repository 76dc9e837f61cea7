//! Reduce-scatter.

use std::ops::Range;

use dayfly_protocol::error::Failure;

use super::gather::{copy, outside, scatter};
use super::{Reduction, Run, reduce};

/// Pairwise exchange: in round `k` every rank sends the block of the rank `k` after it, and combines a received block
/// with its own \[TRG\]. If order matters: a reduction, then a scatter.
pub async fn reduce_scatter(
    run: Run<'_>,
    from: &[u8],
    into: &mut [u8],
    blocks: impl Fn(usize) -> Range<usize>,
    by: Reduction<'_>,
) -> Result<(), Failure> {
    let size = run.size;
    if !by.operation.is_commutative() {
        let mut all = run.scratch(from.len());
        all.copy_from_slice(from);
        reduce(run, None, &mut all, 0, by).await?;
        return scatter(run, &all, into, blocks, 0).await;
    }
    copy(from.get(blocks(run.rank)).ok_or_else(outside)?, into)?;
    let mut scratch = run.scratch(into.len());
    for round in 1..size {
        let (next, previous) = ((run.rank + round) % size, (run.rank + size - round) % size);
        let outgoing = from.get(blocks(next)).ok_or_else(outside)?;
        run.exchange(next, outgoing, previous, &mut scratch).await?;
        by.merge(into, &mut scratch, previous > run.rank);
    }
    Ok(())
}
