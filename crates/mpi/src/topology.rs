//! Topologies: grids and graphs of ranks.

use std::ffi::c_int;
use std::sync::OnceLock;

use crate::communicator::{self, CommObject, get_intra, make};
use crate::datatype::count_of;
use crate::error::{Error, Result, class};
use crate::face::mpi;
use crate::handle::{Comm, Info, PROC_NULL, UNDEFINED};
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

fn grid(comm: Comm) -> Result<(std::sync::Arc<CommObject>, Grid)> {
    let object = communicator::get(comm)?;
    match object.topology.get() {
        Some(Topology::Grid(grid)) => Ok((object.clone(), grid.clone())),
        _ => Err(no_topology()),
    }
}

/// A communicator of the first ranks with a topology.
fn with_topology(object: &CommObject, ranks: c_int, topology: Topology) -> Result<Comm> {
    let size = object.size() as c_int;
    if ranks > size {
        return Err(wrong(
            class::ARG,
            format!("the topology has {ranks} ranks, and the communicator {size}"),
        ));
    }
    let own = object.rank();
    let color = ((own as c_int) < ranks).then_some(0);
    let Some(part) = object.local()?.split(color, own.into())? else {
        return Ok(Comm::NULL);
    };
    let mut new = CommObject::new(Some(part), object.handler());
    new.topology = OnceLock::from(topology);
    Ok(make(new))
}

/// Weights that stand for none, by the address of their array.
static UNWEIGHTED: c_int = 0;
static NO_WEIGHTS: c_int = 0;

/// A pointer that C programs compare with.
#[repr(transparent)]
pub struct Marker(*const c_int);

// SAFETY: it is never written, and what it points to is a constant.
unsafe impl Sync for Marker {}

/// `MPI_UNWEIGHTED`.
#[unsafe(export_name = "MPI_UNWEIGHTED")]
pub static UNWEIGHTED_MARKER: Marker = Marker(&raw const UNWEIGHTED);
/// `MPI_WEIGHTS_EMPTY`.
#[unsafe(export_name = "MPI_WEIGHTS_EMPTY")]
pub static NO_WEIGHTS_MARKER: Marker = Marker(&raw const NO_WEIGHTS);

fn is_unweighted(weights: In<c_int>) -> bool {
    weights.address() == UNWEIGHTED_MARKER.0 as usize
}

fn weights_of(weights: In<c_int>, count: usize) -> Result<Vec<c_int>> {
    match is_unweighted(weights) || weights.address() == NO_WEIGHTS_MARKER.0 as usize {
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

mpi! {
    fn MPI_Topo_test (comm: Comm, kind: Out<c_int>) [comm] {
        kind.check()?.set(match communicator::get(comm)?.topology.get() {
            Some(Topology::Graph { .. }) => 1,
            Some(Topology::Grid(_)) => 2,
            Some(Topology::Distributed { .. }) => 3,
            None => UNDEFINED,
        });
        Ok(())
    }

    fn MPI_Cart_create (
        comm: Comm, dimensions: c_int, sizes: In<c_int>, wraps: In<c_int>, _reorder: c_int, new: Out<Comm>
    ) [comm] {
        let object = get_intra(comm)?;
        let number = count_of(dimensions.into())?;
        let sizes = sizes.slice(number)?.to_vec();
        if sizes.iter().any(|size| *size < 1) {
            return Err(wrong(class::DIMS, "a dimension of a grid is less than 1"));
        }
        let wraps = wraps.slice(number)?.iter().map(|wraps| *wraps != 0).collect();
        let grid = Grid { sizes, wraps };
        new.check()?.set(with_topology(&object, grid.ranks(), Topology::Grid(grid))?);
        Ok(())
    }

    fn MPI_Cartdim_get (comm: Comm, dimensions: Out<c_int>) [comm] {
        dimensions.check()?.set(grid(comm)?.1.sizes.len() as c_int);
        Ok(())
    }

    fn MPI_Cart_get (
        comm: Comm, room: c_int, sizes: Out<c_int>, wraps: Out<c_int>, coordinates: Out<c_int>
    ) [comm] {
        let (object, grid) = grid(comm)?;
        let own = grid.coordinates(object.rank() as c_int);
        for at in 0..grid.sizes.len().min(count_of(room.into())?) {
            sizes.set_at(at, grid.sizes[at]);
            wraps.set_at(at, grid.wraps[at].into());
            coordinates.set_at(at, own[at]);
        }
        Ok(())
    }

    fn MPI_Cart_rank (comm: Comm, coordinates: In<c_int>, rank: Out<c_int>) [comm] {
        let (_, grid) = grid(comm)?;
        let found = grid.rank(coordinates.slice(grid.sizes.len())?);
        rank.check()?.set(found.ok_or_else(|| wrong(class::ARG, "the coordinates are outside of the grid"))?);
        Ok(())
    }

    fn MPI_Cart_coords (comm: Comm, rank: c_int, room: c_int, coordinates: Out<c_int>) [comm] {
        let (_, grid) = grid(comm)?;
        if !(0..grid.ranks()).contains(&rank) {
            return Err(wrong(class::RANK, format!("the grid has no rank {rank}")));
        }
        for (at, coordinate) in grid.coordinates(rank).into_iter().take(count_of(room.into())?).enumerate() {
            coordinates.set_at(at, coordinate);
        }
        Ok(())
    }

    fn MPI_Cart_shift (
        comm: Comm, dimension: c_int, distance: c_int, source: Out<c_int>, target: Out<c_int>
    ) [comm] {
        let (object, grid) = grid(comm)?;
        let at = usize::try_from(dimension).ok().filter(|at| *at < grid.sizes.len());
        let at = at.ok_or_else(|| wrong(class::DIMS, format!("the grid has no dimension {dimension}")))?;
        let (before, after) = grid.shifted(object.rank() as c_int, at, distance);
        source.set(before);
        target.set(after);
        Ok(())
    }

    fn MPI_Cart_sub (comm: Comm, remain: In<c_int>, new: Out<Comm>) [comm] {
        let (object, grid) = grid(comm)?;
        let remain = remain.slice(grid.sizes.len())?;
        let own = grid.coordinates(object.rank() as c_int);
        let (mut color, mut key) = (0, 0);
        let mut part = Grid { sizes: Vec::new(), wraps: Vec::new() };
        for (at, remains) in remain.iter().enumerate() {
            let (number, size) = if *remains != 0 { (&mut key, grid.sizes[at]) } else { (&mut color, grid.sizes[at]) };
            *number = *number * i64::from(size) + i64::from(own[at]);
            if *remains != 0 {
                part.sizes.push(size);
                part.wraps.push(grid.wraps[at]);
            }
        }
        let Some(local) = object.local()?.split(Some(color as u32), key)? else {
            return Ok(());
        };
        let mut object = CommObject::new(Some(local), object.handler());
        object.topology = OnceLock::from(Topology::Grid(part));
        new.check()?.set(make(object));
        Ok(())
    }

    fn MPI_Cart_map (comm: Comm, dimensions: c_int, sizes: In<c_int>, _wraps: In<c_int>, rank: Out<c_int>) [comm] {
        let object = get_intra(comm)?;
        let all: c_int = sizes.slice(count_of(dimensions.into())?)?.iter().product();
        place(&object, all, rank)
    }

    fn MPI_Graph_map (comm: Comm, nodes: c_int, _ends: In<c_int>, _edges: In<c_int>, rank: Out<c_int>) [comm] {
        place(&*get_intra(comm)?, nodes, rank)
    }

    fn MPI_Dims_create (nodes: c_int, dimensions: c_int, sizes: Out<c_int>) [()] {
        balance(nodes, sizes.slice(count_of(dimensions.into())?)?)
    }

    fn MPI_Graph_create (
        comm: Comm, nodes: c_int, ends: In<c_int>, edges: In<c_int>, _reorder: c_int, new: Out<Comm>
    ) [comm] {
        let object = get_intra(comm)?;
        let ends: Vec<usize> =
            ends.slice(count_of(nodes.into())?)?.iter().map(|end| count_of((*end).into())).collect::<Result<_>>()?;
        if ends.windows(2).any(|pair| pair[0] > pair[1]) {
            return Err(wrong(class::ARG, "the ends of the lists of neighbours decrease"));
        }
        let edges = edges.slice(ends.last().copied().unwrap_or(0))?.to_vec();
        check_ranks(&edges, nodes as u32)?;
        let made = match nodes {
            0 => Comm::NULL,
            _ => with_topology(&object, nodes, Topology::Graph { ends, edges })?,
        };
        new.check()?.set(made);
        Ok(())
    }

    fn MPI_Graphdims_get (comm: Comm, nodes: Out<c_int>, count: Out<c_int>) [comm] {
        match communicator::get(comm)?.topology.get() {
            Some(Topology::Graph { ends, edges }) => {
                nodes.set(ends.len() as c_int);
                count.set(edges.len() as c_int);
                Ok(())
            }
            _ => Err(no_topology()),
        }
    }

    fn MPI_Graph_get (comm: Comm, nodes: c_int, count: c_int, ends_out: Out<c_int>, edges_out: Out<c_int>) [comm] {
        match communicator::get(comm)?.topology.get() {
            Some(Topology::Graph { ends, edges }) => {
                for (at, end) in ends.iter().take(count_of(nodes.into())?).enumerate() {
                    ends_out.set_at(at, *end as c_int);
                }
                for (at, edge) in edges.iter().take(count_of(count.into())?).enumerate() {
                    edges_out.set_at(at, *edge);
                }
                Ok(())
            }
            _ => Err(no_topology()),
        }
    }

    fn MPI_Graph_neighbors_count (comm: Comm, rank: c_int, count: Out<c_int>) [comm] {
        match communicator::get(comm)?.topology.get() {
            Some(Topology::Graph { ends, edges }) => {
                count.check()?.set(of_node(ends, edges, rank)?.len() as c_int);
                Ok(())
            }
            _ => Err(no_topology()),
        }
    }

    fn MPI_Graph_neighbors (comm: Comm, rank: c_int, room: c_int, all: Out<c_int>) [comm] {
        match communicator::get(comm)?.topology.get() {
            Some(Topology::Graph { ends, edges }) => {
                for (at, edge) in of_node(ends, edges, rank)?.iter().take(count_of(room.into())?).enumerate() {
                    all.set_at(at, *edge);
                }
                Ok(())
            }
            _ => Err(no_topology()),
        }
    }

    fn MPI_Dist_graph_create_adjacent (
        comm: Comm, source_count: c_int, sources: In<c_int>, source_weights: In<c_int>, target_count: c_int,
        targets: In<c_int>, target_weights: In<c_int>, _info: Info, _reorder: c_int, new: Out<Comm>
    ) [comm] {
        let (ins, outs) = (count_of(source_count.into())?, count_of(target_count.into())?);
        let is_weighted = !is_unweighted(source_weights);
        let weights = (weights_of(source_weights, ins)?, weights_of(target_weights, outs)?);
        let (sources, targets) = (sources.slice(ins)?.to_vec(), targets.slice(outs)?.to_vec());
        new.check()?.set(adjacent(comm, sources, weights.0, targets, weights.1, is_weighted)?);
        Ok(())
    }

    fn MPI_Dist_graph_create (
        comm: Comm, count: c_int, sources: In<c_int>, degrees: In<c_int>, targets: In<c_int>, weights: In<c_int>,
        _info: Info, _reorder: c_int, new: Out<Comm>
    ) [comm] {
        let object = get_intra(comm)?;
        let number = count_of(count.into())?;
        let (sources, degrees) = (sources.slice(number)?, degrees.slice(number)?);
        let all: Result<Vec<usize>> = degrees.iter().map(|degree| count_of((*degree).into())).collect();
        let total = all?.into_iter().sum();
        let (targets, values) = (targets.slice(total)?, weights_of(weights, total)?);
        let mut edges = Vec::with_capacity(total);
        for (source, degree) in sources.iter().zip(degrees) {
            for _ in 0..*degree {
                let at = edges.len();
                edges.push([*source, targets[at], values[at]]);
            }
        }
        let own = object.rank() as c_int;
        let all = spread(&object, &edges)?;
        let (mut ins, mut outs) = (Vec::new(), Vec::new());
        for [source, target, weight] in all {
            if target == own {
                ins.push((source, weight));
            }
            if source == own {
                outs.push((target, weight));
            }
        }
        let ((sources, source_weights), (targets, target_weights)) = (ins.into_iter().unzip(), outs.into_iter().unzip());
        let is_weighted = !is_unweighted(weights);
        new.check()?.set(adjacent(comm, sources, source_weights, targets, target_weights, is_weighted)?);
        Ok(())
    }

    fn MPI_Dist_graph_neighbors_count (comm: Comm, ins: Out<c_int>, outs: Out<c_int>, weighted: Out<c_int>) [comm] {
        match communicator::get(comm)?.topology.get() {
            Some(Topology::Distributed { sources, targets, is_weighted, .. }) => {
                ins.set(sources.len() as c_int);
                outs.set(targets.len() as c_int);
                weighted.set((*is_weighted).into());
                Ok(())
            }
            _ => Err(no_topology()),
        }
    }

    fn MPI_Dist_graph_neighbors (
        comm: Comm, in_room: c_int, ins: Out<c_int>, in_weights: Out<c_int>, out_room: c_int, outs: Out<c_int>,
        out_weights: Out<c_int>
    ) [comm] {
        match communicator::get(comm)?.topology.get() {
            Some(Topology::Distributed { sources, source_weights, targets, target_weights, is_weighted }) => {
                let write = |room: c_int, from: &[c_int], into: Out<c_int>| {
                    for (at, value) in from.iter().take(room.max(0) as usize).enumerate() {
                        into.set_at(at, *value);
                    }
                };
                write(in_room, sources, ins);
                write(out_room, targets, outs);
                if *is_weighted {
                    write(in_room, source_weights, in_weights);
                    write(out_room, target_weights, out_weights);
                }
                Ok(())
            }
            _ => Err(no_topology()),
        }
    }
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
