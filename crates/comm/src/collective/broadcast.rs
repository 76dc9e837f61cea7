//! Barrier and broadcast.

use dayfly_protocol::error::Failure;

use super::{Run, apart, share};
use crate::table::Table;

/// Dissemination \[HFM\]: after round `k` every rank has a signal from the 2^k ranks before it.
pub async fn barrier(run: Run<'_>) -> Result<(), Failure> {
    let mut distance = 1;
    while distance < run.size {
        let to = (run.rank + distance) % run.size;
        let from = (run.rank + run.size - distance) % run.size;
        run.exchange(to, &[], from, &mut []).await?;
        distance *= 2;
    }
    Ok(())
}

/// A binomial tree. Long messages are scattered along the tree and then gathered around a ring \[TRG\].
pub async fn bcast(run: Run<'_>, buffer: &mut [u8], root: usize, table: Table) -> Result<(), Failure> {
    if run.size > 2 && buffer.len() >= table.bcast_scatter {
        return scatter_and_gather(run, buffer, root).await;
    }
    let relative = (run.rank + run.size - root) % run.size;
    let mut mask = 1;
    while mask < run.size {
        if relative & mask != 0 {
            run.receive((run.rank + run.size - mask) % run.size, buffer).await?;
            break;
        }
        mask *= 2;
    }
    while mask > 1 {
        mask /= 2;
        if relative + mask < run.size {
            run.send((run.rank + mask) % run.size, buffer).await?;
        }
    }
    Ok(())
}

/// Every rank receives its share and those of its children from its parent in the tree; then all shares go around a
/// ring.
async fn scatter_and_gather(run: Run<'_>, buffer: &mut [u8], root: usize) -> Result<(), Failure> {
    let (size, length) = (run.size, buffer.len());
    let relative = (run.rank + size - root) % size;
    let shares =
        |from: usize, to: usize| share(from, size, length, 1).start..share(to.min(size) - 1, size, length, 1).end;
    let mut mask = 1;
    while mask < size {
        if relative & mask != 0 {
            let parent = (run.rank + size - mask) % size;
            run.receive(parent, &mut buffer[shares(relative, relative + mask)])
                .await?;
            break;
        }
        mask *= 2;
    }
    while mask > 1 {
        mask /= 2;
        if relative + mask < size {
            let child = (run.rank + mask) % size;
            run.send(child, &buffer[shares(relative + mask, relative + 2 * mask)])
                .await?;
        }
    }
    let (next, previous) = ((run.rank + 1) % size, (run.rank + size - 1) % size);
    for round in 0..size - 1 {
        let sent = share((relative + size - round) % size, size, length, 1);
        let received = share((relative + 2 * size - round - 1) % size, size, length, 1);
        let (sent, received) = apart(buffer, sent, received)?;
        run.exchange(next, sent, previous, received).await?;
    }
    Ok(())
}
