//! The functions of topologies.

use std::ffi::c_int;
use std::sync::OnceLock;

use super::{
    Grid, Topology, adjacent, balance, check_ranks, grid, is_unweighted, no_topology, of_node, place, spread,
    weights_of, with_topology, wrong,
};
use crate::comm_create;
use crate::communicator::{self, CommObject, get_intra, make};
use crate::datatype::count_of;
use crate::error::{Result, class};
use crate::face::mpi;
use crate::handle::{Comm, Info, UNDEFINED};
use crate::interface::topology as kinds;
use crate::pointer::{In, Out};

mpi! {
    fn MPI_Topo_test (comm: Comm, kind: Out<c_int>) [comm] {
        kind.check()?.set(match communicator::get(comm)?.topology.get() {
            Some(Topology::Graph { .. }) => kinds::GRAPH,
            Some(Topology::Grid(_)) => kinds::CART,
            Some(Topology::Distributed { .. }) => kinds::DIST_GRAPH,
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
        for (at, coordinate) in own.into_iter().take(count_of(room.into())?).enumerate() {
            sizes.set_at(at, grid.sizes[at]);
            wraps.set_at(at, grid.wraps[at].into());
            coordinates.set_at(at, coordinate);
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
        let Some(local) = comm_create::split_local(&object, Some(color as u32), key)? else {
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
