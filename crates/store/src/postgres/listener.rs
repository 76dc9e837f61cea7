//! News between managers as database notifications, which are delivered when their transaction commits, in the order of
//! the commits. A manager that reconnects reads the full state.

use std::time::Duration;

use dayfly_protocol::ids::PublicKey;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::connect::{Address, Link};
use super::faults::Fault;
use super::reader::read_all;
use super::{FIRST_WAIT, LAST_WAIT};
use crate::News;

/// Sends a notification.
pub const NOTIFY: &str = "SELECT pg_notify('dayfly', $1)";
/// Most bytes of a notification. PostgreSQL accepts less than 8,000 bytes.
const MAX_BYTES: usize = 7_900;
/// How often a quiet connection is checked.
const PULSE: Duration = Duration::from_secs(5);

#[derive(Serialize, Deserialize)]
struct Payload {
    from: PublicKey,
    /// `None` if the news are too long; the receiver then reads the full state.
    news: Option<Vec<News>>,
}

/// Returns the notifications for the news, in order.
pub fn payloads(from: PublicKey, news: &[News]) -> Vec<String> {
    let written = |news: Option<&[News]>| {
        let news = news.map(<[News]>::to_vec);
        // These types can always be serialized.
        serde_json::to_string(&Payload { from, news }).unwrap_or_default()
    };
    let mut all = Vec::new();
    let mut rest = news;
    while !rest.is_empty() {
        let mut many = rest.len();
        let mut payload = written(Some(rest));
        while payload.len() > MAX_BYTES && many > 1 {
            many /= 2;
            payload = written(Some(&rest[..many]));
        }
        if payload.len() > MAX_BYTES {
            payload = written(None);
        }
        all.push(payload);
        rest = &rest[many..];
    }
    all
}

/// Receives notifications until the receiver of the news is closed.
pub async fn listen(address: Address, me: PublicKey, news: mpsc::Sender<News>) {
    let mut wait = FIRST_WAIT;
    while !news.is_closed() {
        let begun = tokio::time::Instant::now();
        let Err(fault) = hear(&address, me, &news).await else {
            return;
        };
        tracing::warn!(why = %fault.told(), "news of the other managers are not heard");
        if begun.elapsed() > LAST_WAIT {
            wait = FIRST_WAIT;
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(LAST_WAIT);
    }
}

/// Receives notifications over one connection until it ends.
async fn hear(address: &Address, me: PublicKey, news: &mpsc::Sender<News>) -> Result<(), Fault> {
    let (heard, mut payloads) = mpsc::unbounded_channel();
    let link = Link::open(address, Some(heard)).await?;
    link.batch("LISTEN dayfly").await?;
    // From here on no notification is missed. Read the state from before.
    let mut everything = true;
    loop {
        if std::mem::take(&mut everything) {
            // Of leases, include the live ones, because their bearers may have changed too.
            let snapshot = read_all(&link, me, u64::MAX).await?;
            if news.send(News::Everything(Box::new(snapshot))).await.is_err() {
                return Ok(());
            }
        }
        let payload = match tokio::time::timeout(PULSE, payloads.recv()).await {
            Ok(Some(payload)) => payload,
            Ok(None) => return Err(Fault::Lost("the connection ended".into())),
            Err(_) if news.is_closed() => return Ok(()),
            Err(_) => {
                let pulse = tokio::time::timeout(PULSE, link.batch("SELECT 1")).await;
                pulse.map_err(|_| Fault::Lost("it does not answer".into()))??;
                continue;
            }
        };
        let Ok(payload) = serde_json::from_str::<Payload>(&payload) else {
            // From another release: it may matter, and its effect can be read from the tables.
            everything = true;
            continue;
        };
        // Include this manager's own news in commit order, because the state read above may be older. Omit only its own
        // events.
        let own = payload.from == me;
        match payload.news {
            None => everything = true,
            Some(all) => {
                for one in all.into_iter().filter(|one| !own || !matches!(one, News::Event(..))) {
                    if news.send(one).await.is_err() {
                        return Ok(());
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use dayfly_protocol::ids::TenantId;

    use super::*;

    #[test]
    fn news_are_sent_in_order_in_payloads_that_are_short_enough() {
        let me = PublicKey([1; 32]);
        let news: Vec<News> = (0..1_000).map(|n| News::Spent(TenantId([7; 16]), n)).collect();
        let payloads = payloads(me, &news);
        assert!(payloads.len() > 1 && payloads.iter().all(|payload| payload.len() <= MAX_BYTES));
        let heard = payloads
            .iter()
            .map(|payload| serde_json::from_str::<Payload>(payload).unwrap());
        let heard: Vec<News> = heard.flat_map(|payload| payload.news.unwrap()).collect();
        assert_eq!(heard, news);
    }

    #[test]
    fn what_is_too_long_is_read_by_everybody_instead() {
        let long = News::Event(
            dayfly_protocol::api::Event::NodeSuspended {
                node: dayfly_protocol::ids::NodeId([1; 16]),
                for_ms: 1,
                why: "x".repeat(10_000),
            },
            None,
        );
        let payloads = payloads(PublicKey([1; 32]), &[long]);
        assert_eq!(payloads.len(), 1);
        assert!(serde_json::from_str::<Payload>(&payloads[0]).unwrap().news.is_none());
    }
}
