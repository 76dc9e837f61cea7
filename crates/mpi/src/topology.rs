//! Topologies: grids and graphs of ranks.

mod functions;

use std::ffi::c_int;
use std::sync::{Arc, OnceLock};

use crate::comm_create;
use crate::communicator::{self, CommObject, get_intra, make};
use crate::error::{Error, Result, class};
use crate::handle::{Comm, PROC_NULL, UNDEFINED};
use crate::interface;
use crate::pointer::{In, Out};

/// The topology of a communicator.
#[derive(Clone)]
pub enum Topology {
    Grid(Grid),
    /// All ranks' neighbours: where each list ends, and all lists.
    Graph {
        ends: Vec<usize>,
        edges: Vec<c_int>,
    },
    /// The neighbours of this rank.
    Distributed {
        sources: Vec<c_int>,
        source_weights: Vec<c_int>,
        targets: Vec<c_int>,
        target_weights: Vec<c_int>,
        is_weighted: bool,
    },
}

/// A Cartesian grid; the last dimension varies fastest.
#[derive(Clone)]
pub struct Grid {
    pub sizes: Vec<c_int>,
    pub wraps: Vec<bool>,
}

fn wrong(code: c_int, text: impl Into<String>) -> Error {
    Error::new(code, text)
}

impl Grid {
    fn ranks(&self) -> c_int {
        self.sizes.iter().product()
    }

    fn coordinates(&self, rank: c_int) -> Vec<c_int> {
        let mut rest = rank;
        let mut all: Vec<c_int> = self
            .sizes
            .iter()
            .rev()
            .map(|size| (rest % size, rest /= size).0)
            .collect();
        all.reverse();
        all
    }

    /// The rank at these coordinates; `None` outside of a dimension that does not wrap.
    fn rank(&self, coordinates: &[c_int]) -> Option<c_int> {
        let mut rank = 0;
        for ((size, wraps), at) in self.sizes.iter().zip(&self.wraps).zip(coordinates) {
            if !wraps && !(0..*size).contains(at) {
                return None;
            }
            rank = rank * size + at.rem_euclid(*size);
        }
        Some(rank)
    }

    /// The ranks before and after one along a dimension.
    fn shifted(&self, rank: c_int, dimension: usize, distance: c_int) -> (c_int, c_int) {
        let at = |distance: c_int| {
            let mut coordinates = self.coordinates(rank);
            coordinates[dimension] += distance;
            self.rank(&coordinates).unwrap_or(PROC_NULL)
        };
        (at(-distance), at(distance))
    }
}

/// The neighbours of a rank: those that it receives from, and those that it sends to.
pub fn neighbours(comm: &CommObject) -> Result<(Vec<c_int>, Vec<c_int>)> {
    let own = comm.rank() as c_int;
    match comm.topology.get() {
        Some(Topology::Grid(grid)) => {
            let pairs = (0..grid.sizes.len()).map(|dimension| grid.shifted(own, dimension, 1));
            let all: Vec<c_int> = pairs.flat_map(|(before, after)| [before, after]).collect();
            Ok((all.clone(), all))
        }
        Some(Topology::Graph { ends, edges }) => {
            let all = of_node(ends, edges, own)?.to_vec();
            Ok((all.clone(), all))
        }
        Some(Topology::Distributed { sources, targets, .. }) => Ok((sources.clone(), targets.clone())),
        None => Err(no_topology()),
    }
}

fn of_node<'a>(ends: &[usize], edges: &'a [c_int], rank: c_int) -> Result<&'a [c_int]> {
    let at = usize::try_from(rank).ok().filter(|at| *at < ends.len());
    let at = at.ok_or_else(|| wrong(class::RANK, format!("the graph has no rank {rank}")))?;
    let start = if at == 0 { 0 } else { ends[at - 1] };
    Ok(&edges[start..ends[at]])
}

fn no_topology() -> Error {
    wrong(class::TOPOLOGY, "the communicator has no such topology")
}

fn grid(comm: Comm) -> Result<(Arc<CommObject>, Grid)> {
    let object = communicator::get(comm)?;
    match object.topology.get() {
        Some(Topology::Grid(grid)) => Ok((object.clone(), grid.clone())),
        _ => Err(no_topology()),
    }
}

/// A communicator of the first ranks with a topology.
fn with_topology(object: &Arc<CommObject>, ranks: c_int, topology: Topology) -> Result<Comm> {
    let size = object.size() as c_int;
    if ranks > size {
        return Err(wrong(
            class::ARG,
            format!("the topology has {ranks} ranks, and the communicator {size}"),
        ));
    }
    let own = object.rank();
    let color = ((own as c_int) < ranks).then_some(0);
    let Some(part) = comm_create::split_local(object, color, own.into())? else {
        return Ok(Comm::NULL);
    };
    let mut new = CommObject::new(Some(part), object.handler());
    new.topology = OnceLock::from(topology);
    Ok(make(new))
}

fn is_unweighted(weights: In<c_int>) -> bool {
    weights.address() == interface::unweighted()
}

fn weights_of(weights: In<c_int>, count: usize) -> Result<Vec<c_int>> {
    match is_unweighted(weights) || weights.address() == interface::no_weights() {
        true => Ok(vec![1; count]),
        false => Ok(weights.slice(count)?.to_vec()),
    }
}

fn check_ranks(ranks: &[c_int], size: u32) -> Result<()> {
    match ranks
        .iter()
        .find(|rank| **rank != PROC_NULL && !(0..size as c_int).contains(*rank))
    {
        Some(rank) => Err(wrong(
            class::RANK,
            format!("there is no rank {rank} in a communicator of {size}"),
        )),
        None => Ok(()),
    }
}

/// Balanced sizes of the free dimensions of a grid.
fn balance(nodes: c_int, sizes: &mut [c_int]) -> Result<()> {
    let fixed: c_int = sizes.iter().filter(|size| **size > 0).product();
    let free = sizes.iter().filter(|size| **size == 0).count();
    if nodes < 1 || sizes.iter().any(|size| *size < 0) || nodes % fixed != 0 || (free == 0 && fixed != nodes) {
        return Err(wrong(
            class::DIMS,
            format!("{nodes} ranks do not fit into these dimensions"),
        ));
    }
    let mut rest = nodes / fixed;
    let mut factors = Vec::new();
    let mut factor = 2;
    while rest > 1 {
        match rest % factor {
            0 => {
                factors.push(factor);
                rest /= factor;
            }
            _ => factor += 1,
        }
    }
    // The greatest factors first, each to the smallest dimension.
    let mut found = vec![1; free];
    for factor in factors.into_iter().rev() {
        if let Some(smallest) = found.iter_mut().min() {
            *smallest *= factor;
        }
    }
    found.sort_unstable_by(|one, other| other.cmp(one));
    let places = sizes.iter_mut().filter(|size| **size == 0);
    places.zip(found).for_each(|(size, found)| *size = found);
    Ok(())
}

fn adjacent(
    comm: Comm,
    sources: Vec<c_int>,
    source_weights: Vec<c_int>,
    targets: Vec<c_int>,
    target_weights: Vec<c_int>,
    is_weighted: bool,
) -> Result<Comm> {
    let object = get_intra(comm)?;
    check_ranks(&sources, object.size())?;
    check_ranks(&targets, object.size())?;
    let topology = Topology::Distributed {
        sources,
        source_weights,
        targets,
        target_weights,
        is_weighted,
    };
    with_topology(&object, object.size() as c_int, topology)
}

/// Tells every rank the edges that others have of it.
fn spread(object: &CommObject, edges: &[[c_int; 3]]) -> Result<Vec<[c_int; 3]>> {
    let local = object.local()?;
    let own = (edges.len() as u64).to_ne_bytes();
    let mut counts = vec![0; 8 * local.size() as usize];
    local.allgather(&own, &mut counts)?;
    let mut end = 0;
    let ranges: Vec<_> = counts
        .as_chunks::<8>()
        .0
        .iter()
        .map(|count| {
            let start = end;
            end += u64::from_ne_bytes(*count) as usize * 12;
            start..end
        })
        .collect();
    let bytes: Vec<u8> = edges.iter().flatten().flat_map(|word| word.to_ne_bytes()).collect();
    let mut all = vec![0; end];
    local.allgatherv(&bytes, &mut all, &ranges)?;
    let words: Vec<c_int> = all
        .as_chunks::<4>()
        .0
        .iter()
        .map(|word| c_int::from_ne_bytes(*word))
        .collect();
    Ok(words.as_chunks::<3>().0.to_vec())
}

/// The place of this rank in a topology of so many ranks: its own.
fn place(object: &CommObject, ranks: c_int, rank: Out<c_int>) -> Result<()> {
    if ranks < 1 || ranks > object.size() as c_int {
        return Err(wrong(
            class::ARG,
            format!("a topology of {ranks} ranks does not fit into the communicator"),
        ));
    }
    let own = object.rank() as c_int;
    rank.check()?.set(if own < ranks { own } else { UNDEFINED });
    Ok(())
}
