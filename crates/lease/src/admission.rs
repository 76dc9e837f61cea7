//! Limits on unauthenticated connections: a bound on their total number and a bound for each source.
//!
//! A server spends resources (a descriptor, a task, a handshake) before it knows its peer. These limits depend on where
//! the peer connects from, so a source that exhausts its own share does not lock out other sources.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Counts unauthenticated connections by source.
#[derive(Debug)]
pub struct Admission<K: Hash + Eq + Copy> {
    most: usize,
    most_of_one: usize,
    counts: Arc<Mutex<Counts<K>>>,
}

#[derive(Debug)]
struct Counts<K> {
    of: HashMap<K, usize>,
    total: usize,
}

/// The right to one unauthenticated connection. Dropping it frees the place.
#[derive(Debug)]
pub struct Place<K: Hash + Eq + Copy> {
    from: K,
    counts: Arc<Mutex<Counts<K>>>,
}

fn lock<K>(counts: &Mutex<Counts<K>>) -> MutexGuard<'_, Counts<K>> {
    // Ignore poisoning: no panic can happen between two changes that belong together.
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<K: Hash + Eq + Copy> Admission<K> {
    /// Returns limits of `most` places in total and `most_of_one` for each source.
    pub fn new(most: usize, most_of_one: usize) -> Self {
        Self {
            most,
            most_of_one,
            counts: Arc::new(Mutex::new(Counts {
                of: HashMap::new(),
                total: 0,
            })),
        }
    }

    /// Returns a place for a connection from this source, or `None` if a limit is reached.
    pub fn admit(&self, from: K) -> Option<Place<K>> {
        let mut counts = lock(&self.counts);
        if counts.total >= self.most {
            return None;
        }
        let own = counts.of.entry(from).or_default();
        if *own >= self.most_of_one {
            return None;
        }
        *own += 1;
        counts.total += 1;
        let counts = Arc::clone(&self.counts);
        Some(Place { from, counts })
    }
}

/// Places and a bounded queue for connections that find none. Many ranks behind one address connect at once, and each
/// occupies its place only briefly.
#[derive(Debug)]
pub struct Queue<K: Hash + Eq + Copy> {
    places: Admission<K>,
    waiting: Admission<K>,
}

impl<K: Hash + Eq + Copy> Queue<K> {
    /// Returns a queue in front of `places`. `waiting` limits the connections that wait.
    pub fn new(places: Admission<K>, waiting: Admission<K>) -> Self {
        Self { places, waiting }
    }

    /// Returns a place for a connection from this source. Retries `looks` times, with a pause before each. Returns
    /// `None` if there is still no place, or if too many connections wait.
    pub async fn enter<P: Future>(&self, from: K, looks: u32, pause: impl Fn() -> P) -> Option<Place<K>> {
        if let Some(place) = self.places.admit(from) {
            return Some(place);
        }
        let _waiting = self.waiting.admit(from)?;
        for _ in 0..looks {
            pause().await;
            if let Some(place) = self.places.admit(from) {
                return Some(place);
            }
        }
        None
    }
}

impl<K: Hash + Eq + Copy> Drop for Place<K> {
    fn drop(&mut self) {
        let mut counts = lock(&self.counts);
        counts.total = counts.total.saturating_sub(1);
        if let Some(own) = counts.of.get_mut(&self.from) {
            *own = own.saturating_sub(1);
            if *own == 0 {
                counts.of.remove(&self.from);
            }
        }
    }
}

/// Returns the source of an address: the address itself, or for IPv6 its /64 network, because one host may use every
/// address in it.
pub fn place_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::future::{pending, ready};
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_origin_gets_at_most_its_share() {
        let door = Admission::new(5, 2);
        let own: Vec<_> = (0..3).filter_map(|_| door.admit(1)).collect();
        assert_eq!(own.len(), 2);
        let others: Vec<_> = (2..9).filter_map(|from| door.admit(from)).collect();
        assert_eq!(others.len(), 3, "as many as there are in all");
        drop(own);
        assert!(door.admit(1).is_some() && door.admit(9).is_some());
    }

    /// Returns the output of a future if it is ready within `times` polls.
    fn polled<T>(times: usize, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        (0..times).find_map(|_| match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        })
    }

    #[test]
    fn newcomer_waits_for_a_place() {
        let queue = Queue::new(Admission::new(4, 1), Admission::new(4, 1));
        let held = RefCell::new(polled(1, queue.enter(1, 0, || ready(()))).unwrap());
        assert!(held.borrow().is_some());
        // The place becomes free during the second pause.
        let pauses = Cell::new(0);
        let pause = || {
            pauses.set(pauses.get() + 1);
            if pauses.get() == 2 {
                held.borrow_mut().take();
            }
            ready(())
        };
        assert!(polled(1, queue.enter(1, 5, pause)).unwrap().is_some());
        assert_eq!(pauses.get(), 2);
    }

    #[test]
    fn waiting_ends_after_the_last_attempt() {
        let queue = Queue::new(Admission::new(4, 0), Admission::new(4, 1));
        assert!(polled(1, queue.enter(1, 5, || ready(()))).unwrap().is_none());
        let waiting = lock(&queue.waiting.counts);
        assert_eq!(waiting.total, 0);
    }

    #[test]
    fn one_origin_queues_at_most_its_share() {
        let queue = Queue::new(Admission::new(4, 0), Admission::new(2, 1));
        let mut first = pin!(queue.enter(1, 1, pending::<()>));
        assert!(polled(1, first.as_mut()).is_none(), "it waits");
        assert!(polled(1, queue.enter(1, 1, pending::<()>)).unwrap().is_none());
        assert!(polled(1, queue.enter(2, 1, pending::<()>)).is_none(), "another waits");
    }

    #[test]
    fn addresses_of_one_host_are_one_origin() {
        let place = |text: &str| place_of(text.parse().unwrap());
        assert_eq!(place("2001:db8::1"), place("2001:db8::ffff:1:2"));
        assert_ne!(place("2001:db8::1"), place("2001:db8:0:1::1"));
        assert_eq!(place("::ffff:192.0.2.1"), place("192.0.2.1"));
        assert_ne!(place("192.0.2.1"), place("192.0.2.2"));
    }

    proptest! {
        #[test]
        fn counts_equal_the_places_in_use(steps in prop::collection::vec((any::<bool>(), 0..4u8), 0..100)) {
            let door = Admission::new(8, 3);
            let mut standing: Vec<(u8, Place<u8>)> = Vec::new();
            for (comes, from) in steps {
                if comes {
                    let own = standing.iter().filter(|(other, _)| *other == from).count();
                    let admitted = door.admit(from);
                    prop_assert_eq!(admitted.is_some(), own < 3 && standing.len() < 8);
                    standing.extend(admitted.map(|place| (from, place)));
                } else if let Some(at) = standing.iter().position(|(other, _)| *other == from) {
                    drop(standing.remove(at));
                }
            }
            drop(standing);
            let counts = lock(&door.counts);
            prop_assert_eq!((counts.total, counts.of.len()), (0, 0));
        }
    }
}
