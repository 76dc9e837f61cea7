//! Allgather.

use std::ops::Range;

use dayfly_protocol::error::Failure;

use super::gather::{copy, outside};
use super::{Run, apart, block};
use crate::table::Table;

/// Bruck's algorithm \[B\] for short blocks, in `ceil(log2(size))` rounds; a ring for long ones \[TRG\].
pub async fn allgather(run: Run<'_>, own: &[u8], into: &mut [u8], table: Table) -> Result<(), Failure> {
    let length = own.len();
    if run.size > 2 && into.len() < table.allgather_ring {
        return bruck(run, own, into).await;
    }
    allgatherv(run, own, into, |rank| block(rank, length)).await
}

/// A ring: in each round every rank passes on the block that it received in the last round.
pub async fn allgatherv(
    run: Run<'_>,
    own: &[u8],
    into: &mut [u8],
    blocks: impl Fn(usize) -> Range<usize>,
) -> Result<(), Failure> {
    let size = run.size;
    if size == 2 {
        return swap(run, own, into, blocks).await;
    }
    copy(own, into.get_mut(blocks(run.rank)).ok_or_else(outside)?)?;
    let (next, previous) = ((run.rank + 1) % size, (run.rank + size - 1) % size);
    for round in 0..size - 1 {
        let sent = blocks((run.rank + size - round) % size);
        let received = blocks((run.rank + 2 * size - round - 1) % size);
        let (sent, received) = apart(into, sent, received)?;
        run.exchange(next, &*sent, previous, received).await?;
    }
    Ok(())
}

/// Two ranks: each copies its own block while the blocks are on their way.
async fn swap(
    run: Run<'_>,
    own: &[u8],
    into: &mut [u8],
    blocks: impl Fn(usize) -> Range<usize>,
) -> Result<(), Failure> {
    let other = 1 - run.rank;
    let (mine, theirs) = apart(into, blocks(run.rank), blocks(other))?;
    let send = run.send(other, own);
    let receive = run.receive(other, theirs);
    copy(own, mine)?;
    receive.await?;
    send.await?;
    Ok(())
}

/// Every rank collects the blocks of the ranks after it, first its own, twice as many after each round.
async fn bruck(run: Run<'_>, own: &[u8], into: &mut [u8]) -> Result<(), Failure> {
    let (size, length) = (run.size, own.len());
    let mut collected = run.scratch(into.len());
    collected[..length].copy_from_slice(own);
    let mut have = 1;
    while have < size {
        let count = have.min(size - have);
        let (to, from) = ((run.rank + size - have) % size, (run.rank + have) % size);
        let (sent, received) = collected.split_at_mut(have * length);
        run.exchange(to, &sent[..count * length], from, &mut received[..count * length])
            .await?;
        have += count;
    }
    let (last, first) = into.split_at_mut(run.rank * length);
    first.copy_from_slice(&collected[..first.len()]);
    last.copy_from_slice(&collected[first.len()..]);
    Ok(())
}
