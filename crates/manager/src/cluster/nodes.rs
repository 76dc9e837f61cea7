//! All nodes, in an order that sampling uses, and the numbers of requests to them.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use dayfly_lease::allowance::mix;
use dayfly_lease::placement::View;
use dayfly_protocol::api::{Capacity, FreeNode, HarvestMode, LearntProfile};
use dayfly_protocol::cores::MIN_WORKER_CORES;
use dayfly_protocol::ids::{LeaseId, NodeId, PublicKey};
use dayfly_protocol::node_messages::ManagerMessage;
use dayfly_store::{LeaseRecord, NodeRecord};
use tokio::sync::oneshot;

use super::node::{Entry, Node, ReclaimReport, Reply};
use super::pools::{LeaseDemand, LendingReport};

/// Number of nodes in a sample for placement.
pub(super) const SAMPLE: usize = 32;
/// Nodes in one list for an allowance. If there are more, each list begins at a random one, so that clients spread.
const MAX_LISTED: usize = 256;

/// A node that was asked for profiles.
pub struct AskedNode {
    /// Its id.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// What it does with idle resources.
    pub mode: HarvestMode,
    /// Where its response arrives.
    pub response: oneshot::Receiver<Vec<LearntProfile>>,
}

/// Every node that ever registered.
#[derive(Default)]
pub struct Nodes {
    by_id: HashMap<NodeId, Node>,
    /// All ids in a fixed order, to sample from.
    order: Vec<NodeId>,
    last_request: u64,
}

impl Nodes {
    /// Returns the nodes as stored, none of them connected.
    pub(super) fn from_records(records: Vec<NodeRecord>, now: Instant) -> Self {
        let mut nodes = Self::default();
        for record in records {
            nodes.insert(record.address.id, Node::from_record(record, now));
        }
        nodes
    }

    /// Returns the node with this id.
    pub fn get(&self, id: &NodeId) -> Option<&Node> {
        self.by_id.get(id)
    }

    /// Returns the node with this id.
    pub fn get_mut(&mut self, id: &NodeId) -> Option<&mut Node> {
        self.by_id.get_mut(id)
    }

    /// Iterates over all nodes, in no particular order.
    pub fn values(&self) -> impl Iterator<Item = &Node> {
        self.by_id.values()
    }

    /// Iterates over all nodes, always in the same order.
    pub fn in_order(&self) -> impl Iterator<Item = Entry<'_>> {
        self.order.iter().filter_map(|id| Some((id, self.by_id.get(id)?)))
    }

    /// Number of connected nodes.
    pub fn connected(&self) -> usize {
        self.values().filter(|node| node.is_connected()).count()
    }

    /// Current epoch of a node, or 0 for an unknown one.
    pub fn epoch(&self, id: NodeId) -> u64 {
        self.by_id.get(&id).map_or(0, Node::epoch)
    }

    /// The other manager that owns a node, if any.
    pub fn owner_of(&self, id: NodeId) -> Option<PublicKey> {
        self.by_id.get(&id).and_then(Node::owner)
    }

    /// Adds a node or replaces it.
    pub(super) fn insert(&mut self, id: NodeId, node: Node) {
        if self.by_id.insert(id, node).is_none() {
            self.order.push(id);
        }
    }

    /// Returns the views of all nodes for the placement of a lease with this demand, or of the one that is named.
    pub fn views(&self, only: Option<NodeId>, demand: Option<&LeaseDemand>) -> Vec<View> {
        let view = |node: &Node| node.view(demand);
        match only {
            Some(id) => self.by_id.get(&id).map(view).into_iter().collect(),
            None => self.in_order().map(|(_, node)| view(node)).collect(),
        }
    }

    /// Returns the views of all nodes, or of the one that is named, as if they offered all that they have.
    pub fn full_views(&self, only: Option<NodeId>) -> Vec<View> {
        match only {
            Some(id) => self.by_id.get(&id).map(Node::full_view).into_iter().collect(),
            None => self.in_order().map(|(_, node)| node.full_view()).collect(),
        }
    }

    /// Returns the nodes of each fabric.
    pub fn fabrics(&self) -> Vec<Vec<NodeId>> {
        let mut fabrics: BTreeMap<&str, Vec<NodeId>> = BTreeMap::new();
        for (id, node) in self.in_order() {
            for fabric in &node.address().fabrics {
                fabrics.entry(fabric).or_default().push(*id);
            }
        }
        fabrics.into_values().collect()
    }

    /// Returns the views of a random sample of nodes. The best of a few nodes is nearly as good as the best of all (the
    /// power of d choices), at a cost that does not grow with their number. Returns `None` if all nodes are hardly more
    /// than a sample.
    pub fn sample(&self, random: u64, demand: Option<&LeaseDemand>) -> Option<Vec<View>> {
        let all = self.order.len();
        if all <= SAMPLE * 2 {
            return None;
        }
        let mut views = Vec::with_capacity(SAMPLE);
        let mut state = random;
        for _ in 0..SAMPLE {
            state = mix(state);
            let index = (u128::from(state) * all as u128) >> 64;
            let id = self.order.get(index as usize);
            views.extend(id.and_then(|id| self.by_id.get(id)).map(|node| node.view(demand)));
        }
        views.sort_by_key(|view| view.node);
        views.dedup_by_key(|view| view.node);
        Some(views)
    }

    /// Iterates over what the nodes that lend could lend, as they last reported it.
    pub fn lending(&self) -> impl Iterator<Item = (NodeId, &LendingReport)> {
        self.by_id
            .iter()
            .filter_map(|(id, node)| Some((*id, node.pools().last()?)))
    }

    /// Returns how much of what a lease with this demand may want each node that lends could lend, in hundredths.
    pub fn coverages(&self, demand: &LeaseDemand) -> HashMap<NodeId, u8> {
        let lending = self.by_id.values().filter(|node| node.pools().last().is_some());
        lending
            .map(|node| (node.address().id, node.pools().coverage_percent(demand)))
            .collect()
    }

    /// Returns the free resources of all nodes in service, added up.
    pub fn free_in_service(&self) -> Capacity {
        let mut free = Capacity::default();
        for node in self.values().filter(|node| node.is_in_service()) {
            let more = node.free();
            free.cores = free.cores.saturating_add(more.cores);
            free.memory_bytes = free.memory_bytes.saturating_add(more.memory_bytes);
            free.workers = free.workers.plus(more.workers);
            free.gpus = free.gpus.saturating_add(more.gpus);
        }
        free
    }

    /// Iterates over the nodes that have free resources for leases.
    pub fn with_room(&self) -> impl Iterator<Item = Entry<'_>> {
        self.in_order().filter(|(_, node)| {
            let free = node.free();
            node.accepts_leases() && free.memory_bytes > 0 && (free.cores > 0 || free.workers >= MIN_WORKER_CORES)
        })
    }

    /// Lists nodes with free resources, those with most of them first. If there are many, lists [`MAX_LISTED`] from a
    /// random one on.
    pub fn list_with_room(&self, random: u64) -> Vec<FreeNode> {
        let all: Vec<_> = self.with_room().collect();
        let start = if all.len() > MAX_LISTED {
            (random % all.len() as u64) as usize
        } else {
            0
        };
        let some = all.iter().cycle().skip(start).take(all.len().min(MAX_LISTED));
        let mut rooms: Vec<FreeNode> = some
            .map(|(_, node)| FreeNode {
                node: node.address().clone(),
                free: node.free(),
            })
            .collect();
        rooms.sort_by_key(|room| std::cmp::Reverse((room.free.cores, room.free.workers)));
        rooms
    }

    /// Sends a message to all connected nodes. A node that misses it receives it when it reconnects.
    pub fn send_to_all(&self, message: &ManagerMessage) {
        for (_, node) in self.in_order() {
            node.send(message.clone());
        }
    }

    /// Sends a message to one node. A node that misses it receives it when it reconnects.
    pub fn send_to(&self, id: &NodeId, message: ManagerMessage) {
        if let Some(node) = self.by_id.get(id) {
            node.send(message);
        }
    }

    fn next_request(&mut self) -> u64 {
        self.last_request += 1;
        self.last_request
    }

    /// Sends a request, made from its number and the connection's epoch. Returns the number and where the response
    /// arrives, or `None` if the node is not connected.
    pub fn request(
        &mut self,
        id: NodeId,
        offer: Option<LeaseRecord>,
        message: impl FnOnce(u64, u64) -> ManagerMessage,
    ) -> Option<(u64, oneshot::Receiver<Reply>)> {
        let number = self.next_request();
        let response = self.by_id.get_mut(&id)?.request(number, offer, message)?;
        Some((number, response))
    }

    /// Asks up to `most` connected nodes that measure calls for profiles, with messages made from the requests' numbers.
    pub fn ask_profiles(&mut self, most: usize, message: impl Fn(u64) -> ManagerMessage) -> Vec<AskedNode> {
        let ids: Vec<NodeId> = self.order.to_vec();
        let asked = ids.into_iter().filter_map(|id| {
            let mode = self.by_id.get(&id)?.harvests()?;
            let number = self.next_request();
            let node = self.by_id.get_mut(&id)?;
            let response = node.ask_profiles(number, message(number))?;
            Some(AskedNode {
                node: id,
                name: node.address().name.clone(),
                mode,
                response,
            })
        });
        asked.take(most).collect()
    }

    /// Reclaims a node with a message made from the request's number. Returns `None` for an unknown node; otherwise the
    /// number and where the report arrives, if the node is connected.
    pub fn reclaim(
        &mut self,
        id: NodeId,
        message: impl FnOnce(u64) -> ManagerMessage,
    ) -> Option<Option<(u64, oneshot::Receiver<ReclaimReport>)>> {
        let number = self.next_request();
        let node = self.by_id.get_mut(&id)?;
        Some(node.reclaim(number, message(number)).map(|report| (number, report)))
    }

    /// Records that the node may hold a lease whose offer it never answered, and sends it a message made from a request
    /// number. If the message is lost, the node's own time limit for unused grants ends the lease.
    pub fn mark_uncertain(&mut self, id: NodeId, lease: LeaseId, message: impl FnOnce(u64) -> ManagerMessage) {
        let number = self.next_request();
        if let Some(node) = self.by_id.get_mut(&id) {
            node.mark_uncertain(lease);
            node.send(message(number));
        }
    }

    /// Returns the node that sent a message on the connection with this epoch, or `None` if that connection is over.
    pub fn on_message(&mut self, id: NodeId, epoch: u64, now: Instant) -> Option<&mut Node> {
        let node = self.by_id.get_mut(&id)?;
        node.seen(epoch, now).then_some(node)
    }

    /// Disconnects nodes that have been silent for longer than `limit`. Returns their ids.
    pub fn disconnect_silent(&mut self, now: Instant, limit: Duration) -> Vec<NodeId> {
        let mut lost = Vec::new();
        for (id, node) in &mut self.by_id {
            if node.is_connected() && now.saturating_duration_since(node.last_seen()) > limit {
                node.disconnect();
                lost.push(*id);
            }
        }
        lost
    }

    /// Disconnects all nodes. Returns how many were connected.
    pub fn disconnect_all(&mut self) -> usize {
        self.by_id.values_mut().map(|node| usize::from(node.disconnect())).sum()
    }

    /// Ends suspensions whose time is over. Returns the nodes that are in service again.
    pub fn tick(&mut self, now_ms: u64) -> Vec<NodeId> {
        let nodes = self.by_id.iter_mut();
        nodes
            .filter_map(|(id, node)| node.tick(now_ms).then_some(*id))
            .collect()
    }
}
