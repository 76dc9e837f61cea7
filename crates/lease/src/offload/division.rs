//! Division of calls between a program and channels whose times are known.

use std::collections::BTreeMap;

/// The program's side.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Local {
    /// Calls to divide.
    pub calls: u64,
    /// Time of one call on one thread of the program, in seconds.
    pub seconds: f64,
    /// Threads that compute; at least 1.
    pub threads: u32,
}

/// A channel, with its times for these calls in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Route {
    /// Routes with the same link share its bandwidth.
    pub link: u32,
    /// `o`: the program's work to send or to receive.
    pub overhead: f64,
    /// `L`: latency in one direction.
    pub latency: f64,
    /// Time for the bytes of one call.
    pub transfer: f64,
    /// `g`: least time between two calls.
    pub gap: f64,
    /// How long the function runs on the worker.
    pub run: f64,
    /// How much longer one call of a sequence may take.
    pub margin: f64,
}

impl Route {
    fn fixed(&self) -> f64 {
        2.0 * (self.latency + self.overhead) + self.transfer + self.margin
    }

    fn service(&self) -> f64 {
        self.run.max(self.gap).max(self.transfer)
    }

    /// When the last of `calls` calls has returned.
    pub fn finish(&self, calls: u64) -> f64 {
        match calls {
            0 => 0.0,
            calls => self.fixed() + calls as f64 * self.service(),
        }
    }

    /// Calls that return within `seconds`, `most` at most.
    fn calls_within(&self, seconds: f64, most: u64) -> u64 {
        count((seconds - self.fixed()) / self.service(), most)
    }

    fn is_usable(&self) -> bool {
        let times = [
            self.overhead,
            self.latency,
            self.transfer,
            self.gap,
            self.run,
            self.margin,
        ];
        times.iter().all(|time| time.is_finite() && *time >= 0.0)
    }
}

/// The whole number below `value`, between 0 and `most`; 0 for no number.
fn count(value: f64, most: u64) -> u64 {
    // The conversion saturates, and NaN becomes 0.
    (value.floor() as u64).min(most)
}

/// The calls of each side and their predicted times.
#[derive(Debug, Clone, PartialEq)]
pub struct Division {
    /// Calls of the program.
    pub local: u64,
    /// Calls of each route, in the order of the routes.
    pub remote: Vec<u64>,
    /// When the program has computed its calls and sent and received the others, in seconds.
    pub local_seconds: f64,
    /// When the last call has returned, in seconds.
    pub remote_seconds: f64,
}

/// Sends the most calls of which all return before the local work is done. The program keeps one call at least.
pub fn divide(local: Local, routes: &[Route]) -> Division {
    let overhead = routes
        .iter()
        .filter(|route| route.is_usable())
        .map(|route| route.overhead);
    let overhead = overhead.fold(0.0, f64::max);
    let threads = f64::from(local.threads.max(1));
    let finish = |sent: u64| ((local.calls - sent) as f64 * local.seconds + 2.0 * overhead * sent as f64) / threads;
    let none = Division {
        local: local.calls,
        remote: vec![0; routes.len()],
        local_seconds: finish(0),
        remote_seconds: 0.0,
    };
    // Sending would cost the program more than computing.
    if !(local.seconds.is_finite() && local.seconds > 2.0 * overhead) {
        return none;
    }
    let most = local.calls.saturating_sub(1);
    // The more is sent, the sooner the local work is done, and the fewer calls return by then.
    let (mut sent, mut above) = (0, most.saturating_add(1));
    while above - sent > 1 {
        let middle = sent + (above - sent) / 2;
        let room: u64 = capacities(routes, finish(middle), most)
            .iter()
            .fold(0, |sum, room| sum.saturating_add(*room));
        if room >= middle {
            sent = middle;
        } else {
            above = middle;
        }
    }
    if sent == 0 {
        return none;
    }
    let remote = assign(routes, finish(sent), sent, most);
    Division {
        local: local.calls - sent,
        local_seconds: finish(sent),
        remote_seconds: remote_seconds(routes, &remote),
        remote,
    }
}

/// When the last call of these has returned, in seconds.
pub fn remote_seconds(routes: &[Route], calls: &[u64]) -> f64 {
    let own = routes.iter().zip(calls).map(|(route, calls)| route.finish(*calls));
    let shared = links(routes).into_values().map(|link| {
        let sent: u64 = link.routes.iter().map(|at| calls[*at]).sum();
        if sent == 0 {
            0.0
        } else {
            link.fixed + sent as f64 * link.transfer
        }
    });
    own.chain(shared).fold(0.0, f64::max)
}

/// Routes that share bandwidth.
struct Shared {
    /// Least time besides the transfers.
    fixed: f64,
    /// Time for the bytes of one call when no other is under way: the least of any route.
    transfer: f64,
    routes: Vec<usize>,
}

fn links(routes: &[Route]) -> BTreeMap<u32, Shared> {
    let mut links = BTreeMap::new();
    for (at, route) in routes.iter().enumerate().filter(|(_, route)| route.is_usable()) {
        let link = links.entry(route.link).or_insert(Shared {
            fixed: f64::INFINITY,
            transfer: f64::INFINITY,
            routes: Vec::new(),
        });
        link.fixed = link.fixed.min(2.0 * (route.latency + route.overhead));
        link.transfer = link.transfer.min(route.transfer);
        link.routes.push(at);
    }
    links
}

/// Calls that each route can return within `seconds`, when all are used.
fn capacities(routes: &[Route], seconds: f64, most: u64) -> Vec<u64> {
    let mut room: Vec<u64> = routes
        .iter()
        .map(|route| {
            if route.is_usable() {
                route.calls_within(seconds, most)
            } else {
                0
            }
        })
        .collect();
    for link in links(routes).into_values() {
        if link.transfer > 0.0 {
            let limit = count((seconds - link.fixed) / link.transfer, most);
            shrink(&mut room, &link.routes, limit);
        }
    }
    room
}

/// Lowers the counts at `places` in proportion, to `limit` together.
fn shrink(counts: &mut [u64], places: &[usize], limit: u64) {
    let total: u128 = places.iter().map(|at| u128::from(counts[*at])).sum();
    if total <= u128::from(limit) {
        return;
    }
    // Rounding the running total makes the sum exact.
    let (mut before, mut given) = (0u128, 0u128);
    for at in places {
        before += u128::from(counts[*at]);
        let until = before * u128::from(limit) / total;
        counts[*at] = (until - given) as u64;
        given = until;
    }
}

/// Gives `sent` calls to routes that have room for as many within `seconds`, so that the last returns early.
fn assign(routes: &[Route], seconds: f64, sent: u64, most: u64) -> Vec<u64> {
    let room = |seconds: f64| {
        let room = capacities(routes, seconds, most);
        let total = room.iter().fold(0u64, |sum, room| sum.saturating_add(*room));
        (total >= sent).then_some(room)
    };
    let (mut early, mut late) = (0.0, seconds);
    let mut found = capacities(routes, seconds, most);
    for _ in 0..32 {
        let middle = early + (late - early) / 2.0;
        match room(middle) {
            Some(room) => {
                found = room;
                late = middle;
            }
            None => early = middle,
        }
    }
    let all: Vec<usize> = (0..routes.len()).collect();
    shrink(&mut found, &all, sent);
    found
}
