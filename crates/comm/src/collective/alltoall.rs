//! All-to-all exchange.

use std::ops::Range;

use dayfly_protocol::error::Failure;

use super::gather::{copy, outside};
use super::{Run, block};
use crate::table::{BRUCK_RANKS, Table};

/// Bruck's algorithm \[B\] for very short blocks among many ranks, pairwise exchange otherwise \[TRG\].
pub async fn alltoall(run: Run<'_>, from: &[u8], into: &mut [u8], table: Table) -> Result<(), Failure> {
    let length = from.len() / run.size;
    if run.size >= BRUCK_RANKS && length < table.alltoall_pairwise {
        return bruck(run, from, into).await;
    }
    alltoallv(run, from, into, |rank| block(rank, length), |rank| block(rank, length)).await
}

/// Pairwise exchange: in round `k` every rank sends to the rank `k` after it and receives from the rank `k` before it.
pub async fn alltoallv(
    run: Run<'_>,
    from: &[u8],
    into: &mut [u8],
    sent: impl Fn(usize) -> Range<usize>,
    received: impl Fn(usize) -> Range<usize>,
) -> Result<(), Failure> {
    let size = run.size;
    for round in 1..size {
        let (next, previous) = ((run.rank + round) % size, (run.rank + size - round) % size);
        let outgoing = from.get(sent(next)).ok_or_else(outside)?;
        if round > 1 {
            let incoming = into.get_mut(received(previous)).ok_or_else(outside)?;
            run.exchange(next, outgoing, previous, incoming).await?;
            continue;
        }
        // The own block is copied while the other ranks prepare.
        let parts = into.get_disjoint_mut([received(previous), received(run.rank)]);
        let Ok([incoming, own]) = parts else {
            return Err(outside());
        };
        let send = run.send(next, outgoing);
        let receive = run.receive(previous, incoming);
        copy(from.get(sent(run.rank)).ok_or_else(outside)?, own)?;
        receive.await?;
        send.await?;
    }
    if size == 1 {
        let own = from.get(sent(0)).ok_or_else(outside)?;
        copy(own, into.get_mut(received(0)).ok_or_else(outside)?)?;
    }
    Ok(())
}

/// Blocks travel by the bits of their distance: in round `k` each block with that bit in its distance moves 2^k ranks.
async fn bruck(run: Run<'_>, from: &[u8], into: &mut [u8]) -> Result<(), Failure> {
    let (size, length) = (run.size, from.len() / run.size);
    let mut turning = run.scratch(from.len());
    // Block `d` has `d` ranks left to go.
    for distance in 0..size {
        turning[block(distance, length)].copy_from_slice(&from[block((run.rank + distance) % size, length)]);
    }
    let mut packed = run.scratch(from.len());
    let mut unpacked = run.scratch(from.len());
    let mut bit = 1;
    while bit < size {
        let mut count = 0;
        for distance in (0..size).filter(|distance| distance & bit != 0) {
            packed[block(count, length)].copy_from_slice(&turning[block(distance, length)]);
            count += 1;
        }
        let (to, source) = ((run.rank + bit) % size, (run.rank + size - bit) % size);
        let bytes = count * length;
        run.exchange(to, &packed[..bytes], source, &mut unpacked[..bytes])
            .await?;
        for (at, distance) in (0..size).filter(|distance| distance & bit != 0).enumerate() {
            turning[block(distance, length)].copy_from_slice(&unpacked[block(at, length)]);
        }
        bit *= 2;
    }
    for distance in 0..size {
        into[block((run.rank + size - distance) % size, length)].copy_from_slice(&turning[block(distance, length)]);
    }
    Ok(())
}
