//! Collectives in two levels, for ranks that share hosts: within each host, and between one rank of each host.
//!
//! Bytes between hosts travel once, not once for each rank: a host's ranks share its network, and the memory between
//! them is much faster. Source: Karonis et al., "Exploiting Hierarchy in Parallel Computer Networks to Optimize
//! Collective Operation Performance", 2000.

use dayfly_protocol::error::Failure;

use super::{Reduction, Run};
use crate::table::Table;

/// The ranks of a communicator by host.
#[derive(Debug, PartialEq, Eq)]
pub struct Hosts {
    /// The ranks of each host, as ranks of the whole group, in the communicator's order. Hosts are in the order of
    /// their first ranks.
    ranks: Vec<Vec<u32>>,
    /// For each rank of the communicator: its host, and its place among that host's ranks.
    places: Vec<(usize, usize)>,
    /// Whether the ranks of each host are consecutive.
    are_intervals: bool,
}

impl Hosts {
    /// The hosts of a communicator's members. `by_rank` gives, for each rank of the whole group, the lowest rank on its
    /// host. Returns `None` without two levels: if all ranks share one host, or none do.
    pub fn of(members: &[u32], by_rank: &[u32]) -> Option<Self> {
        let mut first: Vec<u32> = Vec::new();
        let mut ranks: Vec<Vec<u32>> = Vec::new();
        let mut places: Vec<(usize, usize)> = Vec::with_capacity(members.len());
        for member in members {
            let of = *by_rank.get(*member as usize)?;
            let host = first.iter().position(|known| *known == of).unwrap_or_else(|| {
                first.push(of);
                ranks.push(Vec::new());
                first.len() - 1
            });
            places.push((host, ranks[host].len()));
            ranks[host].push(*member);
        }
        let are_two_levels = ranks.len() > 1 && ranks.len() < members.len();
        are_two_levels.then(|| Self {
            are_intervals: places.is_sorted_by_key(|(host, _)| *host),
            ranks,
            places,
        })
    }

    /// Whether values may be combined host by host. That changes their order unless each host's ranks are consecutive.
    pub fn allow(&self, by: &Reduction<'_>) -> bool {
        self.are_intervals || by.operation.is_commutative()
    }

    /// One rank of each host: the root on its own host, the first rank on the others.
    fn leaders(&self, root: usize) -> Vec<u32> {
        let mut leaders: Vec<u32> = self.ranks.iter().map(|ranks| ranks[0]).collect();
        let (host, place) = self.places[root];
        leaders[host] = self.ranks[host][place];
        leaders
    }
}

/// This rank's part in both levels.
struct Levels<'a> {
    /// The ranks of this host.
    near: Run<'a>,
    /// Index of the leader among them.
    leader: usize,
    /// The leaders, if this rank is one.
    far: Option<Run<'a>>,
    /// Index of the root's leader among them.
    root: usize,
}

impl<'a> Levels<'a> {
    fn new(run: &Run<'a>, hosts: &'a Hosts, leaders: &'a [u32], root: usize) -> Self {
        let (host, place) = hosts.places[run.rank];
        let near = &hosts.ranks[host];
        let leader = near.iter().position(|rank| *rank == leaders[host]).unwrap_or(0);
        Self {
            near: run.among(near, place),
            leader,
            far: (leader == place).then(|| run.among(leaders, host)),
            root: hosts.places[root].0,
        }
    }
}

/// Every rank signals its leader. When all leaders have met, they signal their ranks.
pub async fn barrier(run: Run<'_>, hosts: &Hosts) -> Result<(), Failure> {
    let leaders = hosts.leaders(0);
    let levels = Levels::new(&run, hosts, &leaders, 0);
    let Some(far) = levels.far else {
        levels.near.send(levels.leader, &[]).await?;
        levels.near.receive(levels.leader, &mut []).await?;
        return Ok(());
    };
    let others = |levels: &Levels<'_>| {
        (0..levels.near.size)
            .filter(|rank| *rank != levels.near.rank)
            .collect::<Vec<_>>()
    };
    for rank in others(&levels) {
        levels.near.receive(rank, &mut []).await?;
    }
    super::barrier(far).await?;
    for rank in others(&levels) {
        levels.near.send(rank, &[]).await?;
    }
    Ok(())
}

/// From the root to the other leaders, then from each leader to its host.
pub async fn bcast(run: Run<'_>, hosts: &Hosts, buffer: &mut [u8], root: usize, table: Table) -> Result<(), Failure> {
    let leaders = hosts.leaders(root);
    let levels = Levels::new(&run, hosts, &leaders, root);
    if let Some(far) = levels.far {
        super::bcast(far, buffer, levels.root, table).await?;
    }
    super::bcast(levels.near, buffer, levels.leader, table).await
}

/// To the leader of each host, then from the leaders to the root.
pub async fn reduce(
    run: Run<'_>,
    hosts: &Hosts,
    buffer: &mut [u8],
    root: usize,
    by: Reduction<'_>,
) -> Result<(), Failure> {
    let leaders = hosts.leaders(root);
    let levels = Levels::new(&run, hosts, &leaders, root);
    super::reduce(levels.near, None, buffer, levels.leader, by).await?;
    match levels.far {
        Some(far) => super::reduce(far, None, buffer, levels.root, by).await,
        None => Ok(()),
    }
}

/// To the leader of each host, among the leaders, then from each leader to its host.
pub async fn allreduce(
    run: Run<'_>,
    hosts: &Hosts,
    own: &[u8],
    buffer: &mut [u8],
    by: Reduction<'_>,
    table: Table,
) -> Result<(), Failure> {
    let leaders = hosts.leaders(0);
    let levels = Levels::new(&run, hosts, &leaders, 0);
    crate::copy::copy(own, buffer);
    super::reduce(levels.near, None, buffer, levels.leader, by).await?;
    if let Some(far) = levels.far {
        let mut host = run.scratch(buffer.len());
        crate::copy::copy(buffer, &mut host);
        super::allreduce(far, &host, buffer, by, table).await?;
    }
    super::bcast(levels.near, buffer, levels.leader, table).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_levels_exist_if_some_ranks_share_hosts() {
        let two = Hosts::of(&[0, 1, 2, 3], &[0, 0, 2, 2]).unwrap();
        assert_eq!(two.ranks, [[0, 1], [2, 3]]);
        assert!(two.are_intervals);
        assert_eq!((two.leaders(0), two.leaders(3)), (vec![0, 2], vec![0, 3]));
        let mixed = Hosts::of(&[0, 1, 2], &[0, 1, 0]).unwrap();
        assert_eq!(mixed.places, [(0, 0), (1, 0), (0, 1)]);
        assert!(!mixed.are_intervals);
        assert_eq!(Hosts::of(&[0, 1, 2], &[0, 0, 0]), None, "one host");
        assert_eq!(Hosts::of(&[0, 1, 2], &[0, 1, 2]), None, "a host for each");
        assert_eq!(Hosts::of(&[0, 1, 2], &[]), None, "nobody knows");
    }

    #[test]
    fn split_communicator_has_its_own_levels() {
        let by_rank = [0, 0, 2, 2];
        assert_eq!(Hosts::of(&[0, 1], &by_rank), None);
        assert_eq!(Hosts::of(&[1, 3], &by_rank), None);
        assert_eq!(Hosts::of(&[3, 2, 1], &by_rank).unwrap().ranks, [vec![3, 2], vec![1]]);
    }
}
