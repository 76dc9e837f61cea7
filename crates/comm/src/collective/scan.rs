//! Prefix reductions.

use dayfly_protocol::error::Failure;

use super::{Reduction, Run};

/// Recursive doubling. The reduction over all values received so far travels beside the result.
pub async fn scan(run: Run<'_>, buffer: &mut [u8], by: Reduction<'_>) -> Result<(), Failure> {
    let mut all = run.scratch(buffer.len());
    all.copy_from_slice(buffer);
    let mut scratch = run.scratch(buffer.len());
    let mut mask = 1;
    while mask < run.size {
        let peer = run.rank ^ mask;
        if peer < run.size {
            run.exchange(peer, &all, peer, &mut scratch).await?;
            if peer < run.rank {
                by.merge(buffer, &mut scratch, false);
            }
            by.merge(&mut all, &mut scratch, peer > run.rank);
        }
        mask *= 2;
    }
    Ok(())
}

/// As [`scan`], without the rank's own value. Rank 0's buffer stays unchanged.
pub async fn exscan(run: Run<'_>, own: &[u8], into: &mut [u8], by: Reduction<'_>) -> Result<(), Failure> {
    let mut all = run.scratch(own.len());
    all.copy_from_slice(own);
    let mut scratch = run.scratch(own.len());
    let (mut mask, mut heard) = (1, false);
    while mask < run.size {
        let peer = run.rank ^ mask;
        if peer < run.size {
            run.exchange(peer, &all, peer, &mut scratch).await?;
            if peer < run.rank && heard {
                by.merge(into, &mut scratch, false);
            } else if peer < run.rank {
                into.copy_from_slice(&scratch);
                heard = true;
            }
            by.merge(&mut all, &mut scratch, peer > run.rank);
        }
        mask *= 2;
    }
    Ok(())
}
