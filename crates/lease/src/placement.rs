//! Chooses the nodes to which a lease is offered, and their order. Only the node allocates, and it may refuse.

use dayfly_protocol::api::{Capacity, LeaseRequest, Mode};
use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::NodeId;

use crate::ledger::{LedgerError, fits_hot, gpus_of, places_of, validate};

/// A node, as placement knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// Id of the node.
    pub node: NodeId,
    /// Whether it takes leases: it is connected, sends heartbeats and is not leaving.
    pub up: bool,
    /// Total resources.
    pub capacity: Capacity,
    /// Free resources, as last reported.
    pub free: Capacity,
    /// How much of what the lease's calls may want above what they own the node could lend, in hundredths. 0 where nothing
    /// is lent, or nothing is wanted.
    pub coverage_percent: u8,
}

/// Why a lease cannot be placed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// The request is invalid.
    #[error(transparent)]
    Invalid(#[from] LedgerError),
    /// No node is connected.
    #[error("no node is connected to this manager; start one with `dayfly node`, or wait for one to come back")]
    NoNodes,
    /// The requested node is not connected.
    #[error("node {0} is not connected to this manager; `dayfly status` lists those that are")]
    UnknownNode(NodeId),
    /// A gang must run on one fabric, and no node reports a fabric.
    #[error(
        "no node of this manager says which fabric it is on; start nodes with --on-fabric NAME (or --fabric), or ask for another placement"
    )]
    NoFabric,
    /// The request would fit on a node with nothing leased.
    #[error(
        "no node has {workers} {mode} workers of {cores_per_worker} cores{gpus} with {memory_bytes} bytes free now ({nodes} up); try later or ask for less"
    )]
    NoCapacity {
        /// Requested workers.
        workers: u16,
        /// Requested mode.
        mode: &'static str,
        /// Requested cores of each worker.
        cores_per_worker: MilliCores,
        /// Requested GPUs for the message; empty for none.
        gpus: String,
        /// Requested memory.
        memory_bytes: u64,
        /// Nodes that are up.
        nodes: usize,
    },
    /// The request exceeds the capacity of every node.
    #[error(
        "{workers} {mode} workers of {cores_per_worker} cores{gpus} with {memory_bytes} bytes are more than any node has \
         (the largest: {} cores, {} warm workers, {} bytes, {} GPUs); ask for less or split the lease",
        largest.cores, largest.workers, largest.memory_bytes, largest.gpus
    )]
    TooLarge {
        /// Requested workers.
        workers: u16,
        /// Requested mode.
        mode: &'static str,
        /// Requested cores of each worker.
        cores_per_worker: MilliCores,
        /// Requested GPUs for the message; empty for none.
        gpus: String,
        /// Requested memory.
        memory_bytes: u64,
        /// The largest amount of each resource on any node.
        largest: Capacity,
    },
    /// The gang would fit if nothing were leased.
    #[error(
        "a gang of {workers} {mode} workers, {place}, finds no room now: there is room for {room} on {nodes} nodes; try later, \
         wait for room, or ask for fewer"
    )]
    NoRoomForGang {
        /// Requested workers.
        workers: u16,
        /// Requested mode.
        mode: &'static str,
        /// Requested placement, for the message.
        place: &'static str,
        /// Workers that would fit now.
        room: usize,
        /// Nodes that are up.
        nodes: usize,
    },
    /// The gang exceeds the capacity of all nodes together.
    #[error(
        "a gang of {workers} {mode} workers, {place}, is too large: when nobody else is there, there is room for {room} on \
         {nodes} nodes; ask for fewer"
    )]
    GangTooLarge {
        /// Requested workers.
        workers: u16,
        /// Requested mode.
        mode: &'static str,
        /// Requested placement, for the message.
        place: &'static str,
        /// Workers that would fit if nothing were leased.
        room: usize,
        /// Nodes that are up.
        nodes: usize,
    },
}

impl PlacementError {
    /// The error code that a client receives.
    pub fn code(&self) -> Code {
        match self {
            Self::Invalid(error) => error.code(),
            Self::NoNodes | Self::NoCapacity { .. } | Self::NoRoomForGang { .. } => Code::NoCapacity,
            Self::UnknownNode(_) | Self::NoFabric => Code::NotFound,
            Self::TooLarge { .. } | Self::GangTooLarge { .. } => Code::TooLarge,
        }
    }
}

impl From<PlacementError> for Failure {
    fn from(error: PlacementError) -> Self {
        Failure::new(error.code(), error.to_string())
    }
}

/// Returns the nodes that should be able to take the lease, best first. Hot leases go where they leave the fewest free
/// cores, so that large nodes stay free. Warm leases go where the most workers are free, so that load spreads; among such
/// nodes, where the most could be lent to them. `spin` (any number) breaks ties, so that equal nodes take turns.
pub fn choose(request: &LeaseRequest, nodes: &[View], spin: u64) -> Result<Vec<NodeId>, PlacementError> {
    validate(request)?;
    let up = eligible(request, nodes)?;
    let mut fitting: Vec<(&View, Mode)> = up
        .iter()
        .filter_map(|view| mode_on(request, view.free).map(|mode| (*view, mode)))
        .collect();
    if fitting.is_empty() {
        return Err(refusal(request, &up));
    }
    let count = fitting.len() as u64;
    fitting.sort_by_key(|(view, _)| view.node);
    fitting.rotate_left((spin % count) as usize);
    // The sort is stable, so that the rotation breaks ties. Every hot placement precedes any warm one.
    fitting.sort_by_key(|(view, mode)| match mode {
        Mode::Hot => (0, view.free.cores.into(), 0),
        _ => (1, u64::MAX - view.free.workers.get(), u8::MAX - view.coverage_percent),
    });
    Ok(fitting.into_iter().map(|(view, _)| view.node).collect())
}

/// Returns the nodes that may be asked, whatever they have free; at least one.
pub(crate) fn eligible<'a>(request: &LeaseRequest, nodes: &'a [View]) -> Result<Vec<&'a View>, PlacementError> {
    let up: Vec<&View> = nodes
        .iter()
        .filter(|view| view.up && request.node.is_none_or(|id| id == view.node))
        .collect();
    if up.is_empty() {
        return Err(request
            .node
            .map_or(PlacementError::NoNodes, PlacementError::UnknownNode));
    }
    Ok(up)
}

/// Returns the mode's name for messages.
pub(crate) fn in_words(mode: Mode) -> &'static str {
    match mode {
        Mode::Hot => "hot",
        Mode::Warm => "warm",
        Mode::Auto => "hot or warm",
    }
}

/// Returns the mode in which a request would run with these resources, or `None` if it does not fit.
pub(crate) fn mode_on(request: &LeaseRequest, capacity: Capacity) -> Option<Mode> {
    if request.memory_bytes > capacity.memory_bytes || gpus_of(request) > capacity.gpus.into() {
        return None;
    }
    let hot = fits_hot(request, capacity.cores);
    let warm = places_of(request) <= capacity.workers;
    match request.mode {
        Mode::Hot | Mode::Auto if hot => Some(Mode::Hot),
        Mode::Warm | Mode::Auto if warm => Some(Mode::Warm),
        _ => None,
    }
}

fn refusal(request: &LeaseRequest, up: &[&View]) -> PlacementError {
    let (workers, cores_per_worker, memory_bytes) = (request.workers, request.cores_per_worker, request.memory_bytes);
    let mode = in_words(request.mode);
    let gpus = match request.gpus_per_worker {
        0 => String::new(),
        gpus => format!(" and {gpus} GPUs"),
    };
    if up.iter().any(|view| mode_on(request, view.capacity).is_some()) {
        return PlacementError::NoCapacity {
            workers,
            mode,
            cores_per_worker,
            gpus,
            memory_bytes,
            nodes: up.len(),
        };
    }
    let most = |of: fn(&Capacity) -> u64| up.iter().map(|view| of(&view.capacity)).max().unwrap_or(0);
    let largest = Capacity {
        cores: most(|c| c.cores.into()) as u16,
        memory_bytes: most(|c| c.memory_bytes),
        workers: MilliCores::new(most(|c| c.workers.get())),
        gpus: most(|c| c.gpus.into()) as u16,
    };
    PlacementError::TooLarge {
        workers,
        mode,
        cores_per_worker,
        gpus,
        memory_bytes,
        largest,
    }
}

#[cfg(test)]
mod tests {

    use dayfly_protocol::ids::PublicKey;
    use proptest::prelude::*;

    use super::*;

    fn request(workers: u16, mode: Mode) -> LeaseRequest {
        LeaseRequest::native(workers, mode, 1_000, PublicKey([0; 32]))
    }

    fn view(n: u8, free_cores: u16, free_workers: u16) -> View {
        let capacity = Capacity {
            cores: 8,
            memory_bytes: 1 << 30,
            workers: MilliCores::from(64_u16),
            gpus: 0,
        };
        let free = Capacity {
            cores: free_cores,
            workers: free_workers.into(),
            ..capacity
        };
        View {
            node: NodeId([n; 16]),
            up: true,
            capacity,
            free,
            coverage_percent: 0,
        }
    }

    fn lending(view: View, coverage_percent: u8) -> View {
        View {
            coverage_percent,
            ..view
        }
    }

    fn ids(numbers: &[u8]) -> Vec<NodeId> {
        numbers.iter().map(|&n| NodeId([n; 16])).collect()
    }

    #[test]
    fn hot_lease_takes_the_tightest_node() {
        let nodes = [view(1, 8, 64), view(2, 2, 64), view(3, 1, 64)];
        assert_eq!(choose(&request(2, Mode::Hot), &nodes, 0), Ok(ids(&[2, 1])));
    }

    #[test]
    fn warm_lease_takes_the_freest_node() {
        let nodes = [view(1, 0, 3), view(2, 0, 60), view(3, 0, 30)];
        assert_eq!(choose(&request(1, Mode::Warm), &nodes, 0), Ok(ids(&[2, 3, 1])));
    }

    #[test]
    fn auto_prefers_a_hot_place() {
        let nodes = [view(1, 0, 64), view(2, 4, 0)];
        assert_eq!(choose(&request(2, Mode::Auto), &nodes, 0), Ok(ids(&[2, 1])));
    }

    #[test]
    fn equal_nodes_take_turns() {
        let nodes = [view(1, 4, 64), view(2, 4, 64)];
        assert_eq!(choose(&request(1, Mode::Hot), &nodes, 0), Ok(ids(&[1, 2])));
        assert_eq!(choose(&request(1, Mode::Hot), &nodes, 1), Ok(ids(&[2, 1])));
    }

    #[test]
    fn equally_free_nodes_go_by_what_they_lend() {
        let nodes = [
            view(1, 4, 30),
            lending(view(2, 4, 30), 20),
            lending(view(3, 4, 30), 90),
            lending(view(4, 4, 29), 100),
        ];
        for spin in 0..8 {
            assert_eq!(choose(&request(1, Mode::Warm), &nodes, spin), Ok(ids(&[3, 2, 1, 4])));
        }
    }

    #[test]
    fn hot_lease_ignores_what_nodes_lend() {
        let nodes = [view(1, 2, 64), lending(view(2, 4, 64), 100)];
        assert_eq!(choose(&request(1, Mode::Hot), &nodes, 0), Ok(ids(&[1, 2])));
        assert_eq!(choose(&request(1, Mode::Auto), &nodes, 0), Ok(ids(&[1, 2])));
    }

    #[test]
    fn lost_node_is_never_chosen() {
        let nodes = [View {
            up: false,
            ..view(1, 8, 64)
        }];
        assert_eq!(choose(&request(1, Mode::Hot), &nodes, 0), Err(PlacementError::NoNodes));
    }

    #[test]
    fn full_node_differs_from_too_large_request() {
        let nodes = [view(1, 0, 0)];
        assert_eq!(
            choose(&request(8, Mode::Hot), &nodes, 0).unwrap_err().code(),
            Code::NoCapacity
        );
        let error = choose(&request(9, Mode::Hot), &nodes, 0).unwrap_err();
        assert_eq!(error.code(), Code::TooLarge);
        assert!(error.to_string().contains("the largest: 8 cores"), "{error}");
    }

    #[test]
    fn requested_node_is_the_only_candidate() {
        let nodes = [view(1, 8, 64), view(2, 8, 64)];
        let wanted = LeaseRequest {
            node: Some(NodeId([2; 16])),
            ..request(1, Mode::Hot)
        };
        assert_eq!(choose(&wanted, &nodes, 0), Ok(ids(&[2])));
        let missing = LeaseRequest {
            node: Some(NodeId([9; 16])),
            ..wanted
        };
        assert_eq!(choose(&missing, &nodes, 0).unwrap_err().code(), Code::NotFound);
    }

    #[test]
    fn part_of_core_needs_part_of_place() {
        let quarters = LeaseRequest {
            cores_per_worker: MilliCores::new(250),
            ..request(5, Mode::Auto)
        };
        assert_eq!(
            mode_on(&quarters, view(1, 8, 2).free),
            Some(Mode::Warm),
            "parts of cores are shared"
        );
        assert_eq!(mode_on(&quarters, view(1, 8, 1).free), None);
        let hot = LeaseRequest {
            mode: Mode::Hot,
            ..quarters
        };
        let refused = choose(&hot, &[view(1, 8, 64)], 0).unwrap_err();
        assert_eq!(refused.code(), Code::InvalidRequest);
        assert!(
            refused.to_string().contains("whole cores, or for mode warm"),
            "{refused}"
        );
    }

    /// The choice as it is where nobody lends.
    fn without_lending(request: &LeaseRequest, nodes: &[View], spin: u64) -> Vec<NodeId> {
        let mut fitting: Vec<&View> = nodes
            .iter()
            .filter(|view| mode_on(request, view.free).is_some())
            .collect();
        fitting.sort_by_key(|view| view.node);
        let count = fitting.len().max(1) as u64;
        fitting.rotate_left((spin % count) as usize);
        fitting.sort_by_key(|view| match mode_on(request, view.free) {
            Some(Mode::Hot) => (0, u64::from(view.free.cores)),
            _ => (1, u64::MAX - view.free.workers.get()),
        });
        fitting.into_iter().map(|view| view.node).collect()
    }

    proptest! {
        #[test]
        fn lending_only_breaks_ties(
            sizes in proptest::collection::vec((0..3u16, 0..4u16, 0..101u8), 0..8), mode in 0..3usize, spin in any::<u64>(),
        ) {
            let lends = |(n, &(c, w, percent)): (usize, &(u16, u16, u8))| lending(view(n as u8, c, w), percent);
            let nodes: Vec<View> = sizes.iter().enumerate().map(lends).collect();
            let none: Vec<View> = nodes.iter().map(|view| lending(*view, 0)).collect();
            let request = request(1, [Mode::Hot, Mode::Warm, Mode::Auto][mode]);
            let before = without_lending(&request, &none, spin);
            prop_assert_eq!(choose(&request, &none, spin).unwrap_or_default(), before.clone());
            let same: Vec<View> = nodes.iter().map(|view| lending(*view, 77)).collect();
            prop_assert_eq!(choose(&request, &same, spin).unwrap_or_default(), before.clone());
            let after = choose(&request, &nodes, spin).unwrap_or_default();
            // Position by position, a node with as much room as before.
            let room = |id: &NodeId| {
                let free = nodes[usize::from(id.0[0])].free;
                let mode = mode_on(&request, free);
                (mode, if mode == Some(Mode::Hot) { free.cores.into() } else { free.workers })
            };
            prop_assert_eq!(after.iter().map(room).collect::<Vec<_>>(), before.iter().map(room).collect::<Vec<_>>());
        }

        #[test]
        fn chosen_nodes_have_room(
            sizes in proptest::collection::vec((0..9u16, 0..65u16), 0..8),
            workers in 1..20u16,
            hot in any::<bool>(),
            spin in any::<u64>(),
        ) {
            let nodes: Vec<View> = sizes.iter().enumerate().map(|(n, &(c, w))| view(n as u8, c, w)).collect();
            let mode = if hot { Mode::Hot } else { Mode::Warm };
            if let Ok(chosen) = choose(&request(workers, mode), &nodes, spin) {
                prop_assert!(!chosen.is_empty());
                for id in chosen {
                    let free = nodes[id.0[0] as usize].free;
                    let room = if hot { free.cores.into() } else { free.workers };
                    prop_assert!(MilliCores::from(workers) <= room);
                }
            }
        }
    }
}
