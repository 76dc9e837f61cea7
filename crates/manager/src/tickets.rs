//! Tickets: secrets that open one session in a browser and are then void. They are in memory only.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use dayfly_store::hash;
use dayfly_store::system::random;

use crate::token_registry::TokenHash;

/// Time in which a ticket must be used.
pub const TICKET_LIFE: Duration = Duration::from_secs(600);
/// Tickets at a time. A further one ends the one that expires first.
const MAX_TICKETS: usize = 1_024;

/// The tickets that were not used yet: by the hash of each, when it expires, and the token that it stands for.
#[derive(Default)]
pub struct Tickets(Mutex<HashMap<TokenHash, (Instant, String)>>);

impl Tickets {
    /// Returns a new ticket for this token.
    pub fn issue(&self, token: &str) -> String {
        let ticket = hex::encode(random::<32>());
        let mut tickets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        tickets.retain(|_, (until, _)| *until > now);
        if tickets.len() >= MAX_TICKETS
            && let Some(first) = tickets.iter().min_by_key(|(_, (until, _))| *until).map(|(key, _)| *key)
        {
            tickets.remove(&first);
        }
        tickets.insert(hash(&ticket), (now + TICKET_LIFE, token.to_owned()));
        ticket
    }

    /// Returns the token of a ticket, which is void from now on. `None` if it is unknown, used or expired.
    pub fn redeem(&self, ticket: &str) -> Option<String> {
        let mut tickets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (until, token) = tickets.remove(&hash(ticket))?;
        (until > Instant::now()).then_some(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticket_is_redeemed_once() {
        let tickets = Tickets::default();
        let ticket = tickets.issue("secret");
        assert_eq!(tickets.redeem("another"), None);
        assert_eq!(tickets.redeem(&ticket), Some("secret".into()));
        assert_eq!(tickets.redeem(&ticket), None);
    }

    #[test]
    fn surplus_tickets_end_the_oldest() {
        let tickets = Tickets::default();
        let first = tickets.issue("first");
        for _ in 0..MAX_TICKETS {
            tickets.issue("more");
        }
        assert_eq!(tickets.redeem(&first), None);
    }
}
