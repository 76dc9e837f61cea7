//! What a node offers of its resources (`impl Node`).

use dayfly_lease::placement::View;
use dayfly_protocol::api::Capacity;

use super::Node;

impl Node {
    /// Its resources.
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Its free resources, as far as known.
    pub fn free(&self) -> Capacity {
        self.free
    }

    /// Notes what it offers now, and what it could offer.
    pub fn on_capacity(&mut self, capacity: Capacity, free: Capacity, most: Capacity) {
        self.capacity = capacity;
        self.free = free;
        self.most = Some(most);
    }

    /// The node as if it offered all that it has, and nothing of it were leased.
    pub fn full_view(&self) -> View {
        let most = self.most.unwrap_or(self.capacity);
        View {
            capacity: most,
            free: most,
            ..self.view(None)
        }
    }
}
