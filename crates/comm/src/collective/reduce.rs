//! Reductions to one rank and to all.
//!
//! The result depends on the values, the number of ranks and which of them share hosts, not on timing. An operation
//! that is not commutative combines the values in the order of the ranks.

use std::ops::Range;

use dayfly_protocol::error::Failure;

use super::{Run, share};
use crate::datatype::Datatype;
use crate::operation::Operation;
use crate::table::Table;

/// The operation and the elements of a reduction.
#[derive(Debug, Clone, Copy)]
pub struct Reduction<'a> {
    pub operation: &'a Operation,
    pub datatype: Datatype,
    /// Bytes to receive and combine at a time.
    pub piece: usize,
}

impl Reduction<'_> {
    /// `into = into op other` if `other` comes from a higher rank, else `into = other op into`.
    pub fn merge(&self, into: &mut [u8], other: &mut [u8], other_is_higher: bool) {
        match other_is_higher {
            true => self.operation.combine_into_left(into, other, self.datatype),
            false => self.operation.combine(other, into, self.datatype),
        }
    }

    fn element(&self) -> usize {
        self.operation.element_bytes(self.datatype)
    }

    /// `piece` rounded down to whole elements, at least one.
    fn step(&self) -> usize {
        let element = self.element();
        (self.piece / element).max(1) * element
    }

    /// Sends one part of a buffer to a rank piece by piece, while it combines another part with what that rank sends.
    async fn exchange(
        &self,
        run: &Run<'_>,
        peer: usize,
        buffer: &mut [u8],
        sent: Range<usize>,
        kept: Range<usize>,
    ) -> Result<(), Failure> {
        let step = self.step();
        let mut scratch = run.scratch(step.min(kept.len()));
        let rounds = sent.len().div_ceil(step).max(kept.len().div_ceil(step));
        for round in 0..rounds {
            let part =
                |of: &Range<usize>| (of.start + round * step).min(of.end)..(of.start + (round + 1) * step).min(of.end);
            let (sent, kept) = (part(&sent), part(&kept));
            let incoming = &mut scratch[..kept.len()];
            run.exchange(peer, &buffer[sent], peer, incoming).await?;
            self.merge(&mut buffer[kept], incoming, peer > run.rank);
        }
        Ok(())
    }

    /// Combines a buffer with the bytes that a rank sends.
    async fn fold_from(&self, run: &Run<'_>, peer: usize, buffer: &mut [u8]) -> Result<(), Failure> {
        let mut scratch = run.scratch(self.step().min(buffer.len()));
        for part in buffer.chunks_mut(self.step()) {
            let incoming = &mut scratch[..part.len()];
            run.receive(peer, incoming).await?;
            self.merge(part, incoming, peer > run.rank);
        }
        Ok(())
    }

    /// `into = own op` the bytes that a rank sends, which arrive in `into`.
    async fn fold_over(&self, run: &Run<'_>, peer: usize, own: &[u8], into: &mut [u8]) -> Result<(), Failure> {
        for (own, part) in own.chunks(self.step()).zip(into.chunks_mut(self.step())) {
            run.receive(peer, part).await?;
            self.operation.combine(own, part, self.datatype);
        }
        Ok(())
    }

    /// The sending side of [`Reduction::fold_from`].
    async fn fold_to(&self, run: &Run<'_>, peer: usize, buffer: &[u8]) -> Result<(), Failure> {
        for part in buffer.chunks(self.step()) {
            run.send(peer, part).await?;
        }
        Ok(())
    }
}

/// A binomial tree. The result is in the root's `buffer`; the others are overwritten. The elements of this rank are `own`,
/// or without it those in `buffer`. With it, `buffer` is used at the root only.
pub async fn reduce(
    run: Run<'_>,
    own: Option<&[u8]>,
    buffer: &mut [u8],
    root: usize,
    by: Reduction<'_>,
) -> Result<(), Failure> {
    // If order matters, rank 0 is the top of the tree, so that each branch is an interval of ranks.
    let top = if by.operation.is_commutative() { root } else { 0 };
    let relative = (run.rank + run.size - top) % run.size;
    let absolute = |relative: usize| (relative + top) % run.size;
    let has_children = relative & 1 == 0 && relative + 1 < run.size;
    // Where this rank combines what its children send.
    let mut scratch;
    let mut sum: Option<&mut [u8]> = match own {
        None => Some(&mut *buffer),
        Some(_) if run.rank == root && top == root => Some(&mut *buffer),
        Some(own) if has_children => {
            scratch = run.scratch(own.len());
            Some(&mut scratch)
        }
        Some(_) => None,
    };
    let mut is_filled = own.is_none();
    let mut mask = 1;
    while mask < run.size {
        if relative & mask != 0 {
            let sent = sum.as_deref().or(own).unwrap_or_default();
            by.fold_to(&run, absolute(relative - mask), sent).await?;
            break;
        }
        if relative + mask < run.size
            && let Some(sum) = sum.as_deref_mut()
        {
            let child = absolute(relative + mask);
            match own {
                // The children of a rank come after it, if order matters.
                Some(own) if !is_filled => by.fold_over(&run, child, own, sum).await?,
                _ => by.fold_from(&run, child, sum).await?,
            }
            is_filled = true;
        }
        mask *= 2;
    }
    if !is_filled && let (Some(own), Some(sum)) = (own, sum.as_deref_mut()) {
        crate::copy::copy(own, sum);
    }
    if top != root && run.rank == top {
        let sent = sum.as_deref().or(own).unwrap_or_default();
        run.send(root, sent).await?;
    } else if top != root && run.rank == root {
        run.receive(top, buffer).await?;
    }
    Ok(())
}

/// Recursive doubling for short buffers and where order matters. For long buffers Rabenseifner's algorithm: recursive
/// halving, after which every rank has the result of one part, then recursive doubling to collect the other parts
/// \[TRG\].
///
/// If the number of ranks is not a power of two, some pairs of ranks act as one.
pub async fn allreduce(
    run: Run<'_>,
    own: &[u8],
    buffer: &mut [u8],
    by: Reduction<'_>,
    table: Table,
) -> Result<(), Failure> {
    if run.size == 2 && by.operation.is_commutative() {
        return match own.len() < table.allreduce_halving {
            true => swap(run, own, buffer, by).await,
            false => halve(run, own, buffer, by).await,
        };
    }
    crate::copy::copy(own, buffer);
    let power = 1 << run.size.ilog2();
    let paired = run.size - power;
    // The first ranks act in pairs; the even one of each pair stands aside.
    let standing = match run.rank {
        rank if rank >= 2 * paired => rank - paired,
        rank if rank % 2 == 1 => {
            by.fold_from(&run, rank - 1, buffer).await?;
            rank / 2
        }
        rank => {
            by.fold_to(&run, rank + 1, buffer).await?;
            run.receive(rank + 1, buffer).await?;
            return Ok(());
        }
    };
    let rank_of = |standing: usize| match standing < paired {
        true => 2 * standing + 1,
        false => standing + paired,
    };
    if by.operation.is_commutative() && buffer.len() >= table.allreduce_halving {
        rabenseifner(&run, standing, power, rank_of, buffer, by).await?;
    } else {
        let mut scratch = run.scratch(buffer.len());
        let mut mask = 1;
        while mask < power {
            let peer = rank_of(standing ^ mask);
            run.exchange(peer, buffer, peer, &mut scratch).await?;
            by.merge(buffer, &mut scratch, standing & mask == 0);
            mask *= 2;
        }
    }
    if run.rank < 2 * paired {
        run.send(run.rank - 1, buffer).await?;
    }
    Ok(())
}

async fn rabenseifner(
    run: &Run<'_>,
    standing: usize,
    power: usize,
    rank_of: impl Fn(usize) -> usize,
    buffer: &mut [u8],
    by: Reduction<'_>,
) -> Result<(), Failure> {
    let length = buffer.len();
    let shares = |from: usize, count: usize| {
        let of = |number| share(number, power, length, by.element());
        of(from).start..of(from + count - 1).end
    };
    // This rank owns `count` shares from `from` on.
    let (mut from, mut count) = (0, power);
    while count > 1 {
        count /= 2;
        let upper = standing & count != 0;
        let (low, high) = (shares(from, count), shares(from + count, count));
        let (sent, kept) = if upper { (low, high) } else { (high, low) };
        by.exchange(run, rank_of(standing ^ count), buffer, sent, kept).await?;
        from += if upper { count } else { 0 };
    }
    while count < power {
        let upper = standing & count != 0;
        let theirs = if upper { from - count } else { from + count };
        let (sent, received) = super::apart(buffer, shares(from, count), shares(theirs, count))?;
        let peer = rank_of(standing ^ count);
        run.exchange(peer, sent, peer, received).await?;
        from = from.min(theirs);
        count *= 2;
    }
    Ok(())
}

/// Two ranks, a short buffer: each receives the other's buffer and combines.
async fn swap(run: Run<'_>, own: &[u8], buffer: &mut [u8], by: Reduction<'_>) -> Result<(), Failure> {
    let peer = 1 - run.rank;
    run.exchange(peer, own, peer, buffer).await?;
    by.operation.combine(own, buffer, by.datatype);
    Ok(())
}

/// Two ranks, a long buffer: each combines one half and receives the other.
async fn halve(run: Run<'_>, own: &[u8], buffer: &mut [u8], by: Reduction<'_>) -> Result<(), Failure> {
    let peer = 1 - run.rank;
    let half = |rank| share(rank, 2, own.len(), by.element());
    let (mine, theirs) = (half(run.rank), half(peer));
    combine_half(
        &run,
        &own[theirs.clone()],
        &own[mine.clone()],
        &mut buffer[mine.clone()],
        by,
    )
    .await?;
    let (sent, received) = super::apart(buffer, mine, theirs)?;
    run.exchange(peer, sent, peer, received).await
}

/// Sends `sent`, and combines received bytes with `with` in `into`, in pieces that stay in the cache. The next piece is
/// received while one is combined.
async fn combine_half(
    run: &Run<'_>,
    sent: &[u8],
    with: &[u8],
    into: &mut [u8],
    by: Reduction<'_>,
) -> Result<(), Failure> {
    let (peer, step) = (1 - run.rank, by.step());
    let (mut sent, mut with, mut into) = (sent.chunks(step), with.chunks(step), into.chunks_mut(step));
    let mut begin = || {
        let send = sent.next().map(|part| run.send(peer, part));
        let receive = into.next().map(|part| run.receive_part(peer, part));
        (send, receive)
    };
    let (mut send, mut receive) = begin();
    while send.is_some() || receive.is_some() {
        let next = begin();
        if let (Some(receive), Some(with)) = (receive, with.next()) {
            by.operation.combine(with, receive.await?, by.datatype);
        }
        if let Some(send) = send {
            send.await?;
        }
        (send, receive) = next;
    }
    Ok(())
}
