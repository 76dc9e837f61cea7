//! Division of a gang's workers among nodes. All workers are placed at once, or none.

use dayfly_protocol::api::{Capacity, LeaseRequest, MAX_RANKS, Mode, Placement};
use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::ids::NodeId;

use crate::ledger::{LedgerError, MAX_WORKERS, MIN_WORKER_BYTES, validate};
use crate::placement::{PlacementError, View, eligible, in_words};

/// The share of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The node.
    pub node: NodeId,
    /// Workers of the gang on this node.
    pub workers: u16,
    /// Never [`Mode::Auto`]. All shares of a gang have the same mode.
    pub mode: Mode,
    /// Memory of these workers in bytes; 0 for the node's share per worker.
    pub memory_bytes: u64,
}

/// Workers of a gang that fit on a node.
#[derive(Debug, Clone, Copy)]
struct Room {
    node: NodeId,
    workers: u16,
}

/// Divides a gang among nodes, in the order of its ranks. `request.workers` is the size of the whole gang. `spin` (any
/// number) breaks ties between equal nodes, so that they take turns.
///
/// `Packed` uses as few nodes as possible: it fills the largest nodes first and puts the rest on the smallest node that
/// holds it, so that large nodes stay free. `Spread` gives each node one worker in turn. `Fabric` packs the gang on the
/// fabric that needs the fewest nodes; each element of `fabrics` lists the nodes of one fabric.
pub fn divide(
    request: &LeaseRequest,
    placement: Placement,
    nodes: &[View],
    fabrics: &[Vec<NodeId>],
    spin: u64,
) -> Result<Vec<Part>, PlacementError> {
    if request.workers > MAX_RANKS {
        return Err(PlacementError::Invalid(LedgerError::TooLarge {
            what: "ranks",
            asked: request.workers.into(),
            total: MAX_RANKS.into(),
            hint: "",
        }));
    }
    validate(&LeaseRequest {
        workers: request.workers.min(MAX_WORKERS),
        ..request.clone()
    })?;
    let up = eligible(request, nodes)?;
    if placement == Placement::Fabric && fabrics.is_empty() {
        return Err(PlacementError::NoFabric);
    }
    let modes: &[Mode] = match request.mode {
        Mode::Hot => &[Mode::Hot],
        Mode::Warm => &[Mode::Warm],
        Mode::Auto => &[Mode::Hot, Mode::Warm],
    };
    for &mode in modes {
        let rooms = rooms(request, mode, &up, spin, |view| view.free);
        let shares = match placement {
            Placement::Fabric => {
                let on = |fabric: &Vec<NodeId>| share_out(request.workers, placement, mode, on_fabric(&rooms, fabric));
                fabrics.iter().filter_map(on).min_by_key(Vec::len)
            }
            _ => share_out(request.workers, placement, mode, rooms),
        };
        if let Some(shares) = shares {
            return Ok(parts(request, mode, &shares));
        }
    }
    let room = |of: fn(&View) -> Capacity| {
        let best = modes.iter().map(|&mode| {
            let rooms = rooms(request, mode, &up, 0, of);
            let sum = |rooms: &[Room]| rooms.iter().map(|room| usize::from(room.workers)).sum::<usize>();
            match placement {
                Placement::Together => rooms.iter().map(|room| usize::from(room.workers)).max().unwrap_or(0),
                Placement::Packed | Placement::Spread => sum(&rooms),
                Placement::Fabric => fabrics
                    .iter()
                    .map(|fabric| sum(&on_fabric(&rooms, fabric)))
                    .max()
                    .unwrap_or(0),
            }
        });
        best.max().unwrap_or(0)
    };
    let (free, all) = (room(|view| view.free), room(|view| view.capacity));
    let (workers, place) = (request.workers, placement.name());
    let mode = in_words(request.mode);
    let nodes = up.len();
    Err(if all < usize::from(workers) {
        PlacementError::GangTooLarge {
            workers,
            mode,
            place,
            room: all,
            nodes,
        }
    } else {
        PlacementError::NoRoomForGang {
            workers,
            mode,
            place,
            room: free,
            nodes,
        }
    })
}

/// Returns the nodes that fit at least one worker, those that fit the most first.
fn rooms(request: &LeaseRequest, mode: Mode, up: &[&View], spin: u64, of: fn(&View) -> Capacity) -> Vec<Room> {
    let worker_bytes = match request.memory_bytes {
        0 => MIN_WORKER_BYTES,
        all => all.div_ceil(request.workers.into()),
    };
    let mut rooms: Vec<Room> = up
        .iter()
        .map(|view| {
            let capacity = of(view);
            let places = match mode {
                Mode::Hot if !request.cores_per_worker.is_whole() => MilliCores::ZERO,
                Mode::Hot => capacity.cores.into(),
                _ => capacity.workers,
            };
            let places = places.holds(request.cores_per_worker);
            let places = match request.gpus_per_worker {
                0 => places,
                gpus => places.min((capacity.gpus / gpus).into()),
            };
            let fed = capacity.memory_bytes / worker_bytes.max(1);
            let workers = places.min(MAX_WORKERS.into()).min(fed) as u16;
            Room {
                node: view.node,
                workers,
            }
        })
        .filter(|room| room.workers > 0)
        .collect();
    rooms.sort_by_key(|room| room.node);
    let count = rooms.len().max(1) as u64;
    rooms.rotate_left((spin % count) as usize);
    // The sort is stable, so that the rotation breaks ties.
    rooms.sort_by_key(|room| std::cmp::Reverse(room.workers));
    rooms
}

fn on_fabric(rooms: &[Room], fabric: &[NodeId]) -> Vec<Room> {
    rooms
        .iter()
        .filter(|room| fabric.contains(&room.node))
        .copied()
        .collect()
}

/// Returns the workers for each node, or `None` if not all fit.
fn share_out(workers: u16, placement: Placement, mode: Mode, rooms: Vec<Room>) -> Option<Vec<Room>> {
    let room: usize = rooms.iter().map(|room| usize::from(room.workers)).sum();
    if room < usize::from(workers) {
        return None;
    }
    match placement {
        Placement::Together => {
            let mut fitting = rooms.iter().filter(|room| room.workers >= workers);
            // As for single leases: hot gangs go where they leave the fewest cores, warm ones where the most workers
            // are free.
            let room = match mode {
                Mode::Hot => fitting.next_back(),
                _ => fitting.next(),
            };
            room.map(|room| vec![Room { workers, ..*room }])
        }
        Placement::Packed | Placement::Fabric => Some(packed(workers, rooms)),
        Placement::Spread => Some(spread(workers, rooms)),
    }
}

fn packed(workers: u16, mut rooms: Vec<Room>) -> Vec<Room> {
    let (mut shares, mut left) = (Vec::new(), workers);
    while left > 0 && !rooms.is_empty() {
        // The rooms are in descending order, so the last one that fits is the smallest.
        let last = rooms.iter().rposition(|room| room.workers >= left);
        let room = rooms.remove(last.unwrap_or(0));
        let workers = room.workers.min(left);
        left -= workers;
        shares.push(Room { workers, ..room });
    }
    shares
}

fn spread(workers: u16, rooms: Vec<Room>) -> Vec<Room> {
    let mut shares: Vec<Room> = rooms.iter().map(|room| Room { workers: 0, ..*room }).collect();
    let mut left = workers;
    // Each round places at least one worker, because all of them fit.
    while left > 0 {
        for (share, room) in shares.iter_mut().zip(&rooms) {
            if left > 0 && share.workers < room.workers {
                share.workers += 1;
                left -= 1;
            }
        }
    }
    shares.retain(|share| share.workers > 0);
    shares
}

fn parts(request: &LeaseRequest, mode: Mode, shares: &[Room]) -> Vec<Part> {
    let memory_of = |workers: u16| request.memory_bytes.div_ceil(request.workers.into()) * u64::from(workers);
    shares
        .iter()
        .map(|share| Part {
            node: share.node,
            workers: share.workers,
            mode,
            memory_bytes: memory_of(share.workers),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use dayfly_protocol::error::Code;
    use dayfly_protocol::ids::PublicKey;
    use proptest::prelude::*;

    use super::*;

    fn gang(workers: u16, mode: Mode) -> LeaseRequest {
        LeaseRequest::native(workers, mode, 1_000, PublicKey([0; 32]))
    }

    fn view(n: u8, free_cores: u16, free_workers: u16) -> View {
        let capacity = Capacity {
            cores: 8,
            memory_bytes: 4 << 30,
            workers: MilliCores::from(64_u16),
            gpus: 4,
        };
        View {
            node: NodeId([n; 16]),
            up: true,
            capacity,
            free: Capacity {
                cores: free_cores,
                workers: free_workers.into(),
                ..capacity
            },
            coverage_percent: 0,
        }
    }

    /// Returns node and number of workers of each part.
    fn shares(parts: &[Part]) -> Vec<(u8, u16)> {
        parts.iter().map(|part| (part.node.0[0], part.workers)).collect()
    }

    fn divided(workers: u16, placement: Placement, nodes: &[View]) -> Vec<(u8, u16)> {
        shares(&divide(&gang(workers, Mode::Hot), placement, nodes, &[], 0).unwrap())
    }

    #[test]
    fn packed_gang_takes_the_fewest_nodes() {
        let nodes = [view(1, 8, 64), view(2, 3, 64), view(3, 6, 64), view(4, 2, 64)];
        assert_eq!(divided(2, Placement::Packed, &nodes), [(4, 2)]);
        assert_eq!(divided(8, Placement::Packed, &nodes), [(1, 8)]);
        assert_eq!(divided(10, Placement::Packed, &nodes), [(1, 8), (4, 2)]);
        assert_eq!(divided(19, Placement::Packed, &nodes), [(1, 8), (3, 6), (2, 3), (4, 2)]);
    }

    #[test]
    fn gang_of_small_workers_fills_thousandths() {
        let thirds = LeaseRequest {
            cores_per_worker: MilliCores::new(333),
            ..gang(5, Mode::Auto)
        };
        let nodes = [view(1, 8, 1), view(2, 8, 1)];
        let parts = divide(&thirds, Placement::Packed, &nodes, &[], 0).unwrap();
        assert_eq!(shares(&parts), [(1, 3), (2, 2)]);
        assert!(parts.iter().all(|part| part.mode == Mode::Warm));
        let hot = LeaseRequest {
            mode: Mode::Hot,
            ..thirds
        };
        let refused = divide(&hot, Placement::Packed, &nodes, &[], 0).unwrap_err();
        assert_eq!(refused.code(), Code::InvalidRequest);
    }

    #[test]
    fn spread_gang_takes_every_node_in_turn() {
        let nodes = [view(1, 8, 64), view(2, 1, 64), view(3, 4, 64)];
        assert_eq!(divided(2, Placement::Spread, &nodes), [(1, 1), (3, 1)]);
        assert_eq!(divided(7, Placement::Spread, &nodes), [(1, 3), (3, 3), (2, 1)]);
    }

    #[test]
    fn one_node_gang_is_placed_like_a_lease() {
        let nodes = [view(1, 8, 3), view(2, 4, 60)];
        assert_eq!(divided(4, Placement::Together, &nodes), [(2, 4)]);
        let warm = divide(&gang(3, Mode::Warm), Placement::Together, &nodes, &[], 0).unwrap();
        assert_eq!(shares(&warm), [(2, 3)]);
        let refused = divide(&gang(9, Mode::Hot), Placement::Together, &nodes, &[], 0).unwrap_err();
        assert_eq!(refused.code(), Code::TooLarge);
    }

    #[test]
    fn fabric_gang_takes_the_fabric_with_fewest_nodes() {
        let nodes = [
            view(1, 2, 64),
            view(2, 2, 64),
            view(3, 3, 64),
            view(4, 1, 64),
            view(5, 8, 64),
        ];
        let on = |nodes: &[u8]| nodes.iter().map(|n| NodeId([*n; 16])).collect::<Vec<_>>();
        let fabrics = [on(&[1, 2]), on(&[3, 4]), on(&[1])];
        let of_one = |workers| divide(&gang(workers, Mode::Hot), Placement::Fabric, &nodes, &fabrics, 0);
        assert_eq!(shares(&of_one(3).unwrap()), [(3, 3)]);
        let four = shares(&of_one(4).unwrap());
        assert!(four == [(3, 3), (4, 1)] || four == [(1, 2), (2, 2)], "{four:?}");
        let refused = of_one(5).unwrap_err();
        assert!(refused.to_string().contains("room for 4"), "{refused}");
        assert_eq!(refused.code(), Code::NoCapacity, "they have eight cores each");
        let none = divide(&gang(1, Mode::Hot), Placement::Fabric, &nodes, &[], 0).unwrap_err();
        assert!(none.to_string().contains("--on-fabric"), "{none}");
    }

    #[test]
    fn all_parts_of_a_gang_have_one_mode() {
        let nodes = [view(1, 2, 64), view(2, 2, 64)];
        let hot = divide(&gang(4, Mode::Auto), Placement::Packed, &nodes, &[], 0).unwrap();
        assert!(hot.iter().all(|part| part.mode == Mode::Hot));
        let warm = divide(&gang(5, Mode::Auto), Placement::Packed, &nodes, &[], 0).unwrap();
        assert_eq!((shares(&warm), warm[0].mode), (vec![(2, 5)], Mode::Warm));
    }

    #[test]
    fn gang_without_room_differs_from_too_large_gang() {
        let nodes = [view(1, 1, 0), view(2, 2, 0)];
        let full = divide(&gang(16, Mode::Hot), Placement::Packed, &nodes, &[], 0).unwrap_err();
        assert_eq!(full.code(), Code::NoCapacity);
        assert!(full.to_string().contains("room for 3"), "{full}");
        let large = divide(&gang(17, Mode::Hot), Placement::Packed, &nodes, &[], 0).unwrap_err();
        assert_eq!(large.code(), Code::TooLarge);
        assert!(large.to_string().contains("room for 16"), "{large}");
        let none = divide(&gang(1, Mode::Hot), Placement::Packed, &[], &[], 0).unwrap_err();
        assert_eq!(none, PlacementError::NoNodes);
        let absurd = divide(&gang(MAX_RANKS + 1, Mode::Hot), Placement::Packed, &nodes, &[], 0).unwrap_err();
        assert_eq!(absurd.code(), Code::TooLarge);
    }

    #[test]
    fn memory_is_divided_like_the_workers() {
        let request = LeaseRequest {
            memory_bytes: 6 << 30,
            ..gang(6, Mode::Warm)
        };
        let parts = divide(&request, Placement::Packed, &[view(1, 0, 64), view(2, 0, 64)], &[], 0).unwrap();
        assert_eq!(shares(&parts), [(1, 4), (2, 2)], "4 GiB a node hold four");
        assert_eq!(parts[0].memory_bytes, 4 << 30);
        assert_eq!(parts[1].memory_bytes, 2 << 30);
    }

    proptest! {
        #[test]
        fn gang_is_divided_whole_and_fits(
            cores in proptest::collection::vec(0..9u16, 1..10),
            workers in 1..80u16,
            placement in proptest::sample::select(&Placement::ALL[..]),
            spin in any::<u64>(),
        ) {
            let nodes: Vec<View> = cores.iter().enumerate().map(|(n, &free)| view(n as u8, free, 0)).collect();
            let room: u16 = match placement {
                Placement::Together => *cores.iter().max().unwrap(),
                _ => cores.iter().sum(),
            };
            let all = [nodes.iter().map(|view| view.node).collect()];
            match divide(&gang(workers, Mode::Hot), placement, &nodes, &all, spin) {
                Err(_) => prop_assert!(room < workers),
                Ok(parts) => {
                    prop_assert_eq!(parts.iter().map(|part| part.workers).sum::<u16>(), workers);
                    for part in &parts {
                        prop_assert!(part.workers > 0 && part.workers <= cores[usize::from(part.node.0[0])]);
                    }
                    let mut distinct: Vec<_> = parts.iter().map(|part| part.node).collect();
                    distinct.sort();
                    distinct.dedup();
                    prop_assert_eq!(distinct.len(), parts.len());
                    if matches!(placement, Placement::Packed | Placement::Fabric) {
                        let mut largest = cores.clone();
                        largest.sort_by_key(|free| std::cmp::Reverse(*free));
                        let without_last: u16 = largest[..parts.len() - 1].iter().sum();
                        prop_assert!(without_last < workers, "fewer nodes would have done");
                    }
                    if placement == Placement::Spread {
                        let most = parts.iter().map(|part| part.workers).max().unwrap();
                        for (n, &free) in cores.iter().enumerate() {
                            let share = parts.iter().find(|part| usize::from(part.node.0[0]) == n);
                            let workers = share.map_or(0, |part| part.workers);
                            prop_assert!(workers == free || workers + 1 >= most);
                        }
                    }
                }
            }
        }
    }
}
