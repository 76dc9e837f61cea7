//! Gather and scatter of blocks of any length.

use std::ops::Range;

use dayfly_protocol::error::{Code, Failure};

use super::{Op, Run};

/// The root receives all blocks at once, each directly into its place.
pub async fn gather(
    run: Run<'_>,
    own: &[u8],
    into: &mut [u8],
    blocks: impl Fn(usize) -> Range<usize>,
    root: usize,
) -> Result<(), Failure> {
    if run.rank != root {
        run.send(root, own).await?;
        return Ok(());
    }
    let mut parts = carve(into, run.size, &blocks)?;
    let mut receives: Vec<Op<'_>> = Vec::with_capacity(run.size);
    for (rank, part) in &mut parts {
        if *rank == root {
            copy(own, part)?;
        } else {
            receives.push(run.receive(*rank, part));
        }
    }
    for receive in receives {
        receive.await?;
    }
    Ok(())
}

/// The root sends all blocks at once.
pub async fn scatter(
    run: Run<'_>,
    all: &[u8],
    into: &mut [u8],
    blocks: impl Fn(usize) -> Range<usize>,
    root: usize,
) -> Result<(), Failure> {
    if run.rank != root {
        run.receive(root, into).await?;
        return Ok(());
    }
    let mut sends: Vec<Op<'_>> = Vec::with_capacity(run.size);
    for rank in 0..run.size {
        let part = all.get(blocks(rank)).ok_or_else(outside)?;
        if rank == root {
            copy(part, into)?;
        } else {
            sends.push(run.send(rank, part));
        }
    }
    for send in sends {
        send.await?;
    }
    Ok(())
}

pub fn outside() -> Failure {
    Failure::new(
        Code::InvalidRequest,
        "the blocks of a buffer overlap, or lie outside of it; give each rank a range of its own",
    )
}

/// Copies a rank's own block. Returns an error if the lengths differ.
pub fn copy(from: &[u8], into: &mut [u8]) -> Result<(), Failure> {
    if from.len() != into.len() {
        return Err(Failure::new(
            Code::InvalidRequest,
            format!(
                "a rank's own block has {} bytes, and its place {}",
                from.len(),
                into.len()
            ),
        ));
    }
    crate::copy::copy(from, into);
    Ok(())
}

/// Splits a buffer into the blocks of all ranks, with their ranks.
fn carve(
    mut buffer: &mut [u8],
    size: usize,
    blocks: impl Fn(usize) -> Range<usize>,
) -> Result<Vec<(usize, &mut [u8])>, Failure> {
    let mut order: Vec<(usize, Range<usize>)> = (0..size).map(|rank| (rank, blocks(rank))).collect();
    order.sort_by_key(|(_, range)| (range.start, range.end));
    let mut parts = Vec::with_capacity(size);
    let mut cut = 0;
    for (rank, range) in order {
        let skip = range.start.checked_sub(cut).ok_or_else(outside)?;
        let length = range.end.checked_sub(range.start).ok_or_else(outside)?;
        let rest = std::mem::take(&mut buffer)
            .split_at_mut_checked(skip)
            .ok_or_else(outside)?
            .1;
        let (part, rest) = rest.split_at_mut_checked(length).ok_or_else(outside)?;
        parts.push((rank, part));
        buffer = rest;
        cut = range.end;
    }
    Ok(parts)
}
