//! Samples of the parts of a sort: one rank collects them, and cuts ranges once all are there.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::common::{Result, internal_datafusion_err};
use dayfly_protocol::error::{Code, Failure};
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};

use super::Exchange;
use super::channel::{Lane, RankChannel};
use super::requests::{Report, Request, encoded};
use super::server::Kind;
use crate::ranges::{Cuts, Sample, SortId, cut};

/// Most parts and most ranges of a sort.
const MAX_PARTS: u64 = 1 << 16;
/// Most sorts whose cuts are kept: a task that runs again asks for them.
const MAX_KEPT_SORTS: usize = 256;

/// A lane of another rank.
type Place = (u32, u32);

/// The sample of one part of a sort.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Part {
    pub sort: SortId,
    /// Its number, from 0.
    pub number: u64,
    /// Parts of the sort.
    pub count: u64,
    pub ranges: u64,
    pub sample: Sample,
}

/// The sorts whose ranges a rank cuts.
#[derive(Debug, Default)]
pub struct Sorts(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    open: HashMap<SortId, Open>,
    cut: HashMap<SortId, Arc<Cuts>>,
    /// The sorts that are cut, the oldest first.
    order: VecDeque<SortId>,
}

/// The cuts of a sort, and the lanes that wait for them.
type Known = (Arc<Cuts>, Vec<Place>);

/// A sort some samples of which are missing.
#[derive(Debug)]
struct Open {
    ranges: u64,
    samples: Vec<Option<Sample>>,
    waiting: Vec<Place>,
}

impl Sorts {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the sample of a part, which waits for the cuts on a lane. Returns them with the lanes that wait, once they are
    /// known.
    ///
    /// # Errors
    /// Of a part that is beyond the bounds, or differs from other parts of the sort.
    fn add(&self, place: Place, part: Part) -> Result<Option<Known>, Failure> {
        let violation = |what: &str| Failure::new(Code::ProtocolViolation, format!("a sample of a sort {what}"));
        let are_bounded = (1..=MAX_PARTS).contains(&part.count) && (1..=MAX_PARTS).contains(&part.ranges);
        if !are_bounded || part.number >= part.count || !part.sample.is_bounded() {
            return Err(violation("is beyond the bounds"));
        }
        let mut state = self.lock();
        if let Some(cuts) = state.cut.get(&part.sort) {
            return Ok(Some((Arc::clone(cuts), vec![place])));
        }
        let open = state.open.entry(part.sort).or_insert_with(|| Open {
            ranges: part.ranges,
            samples: vec![None; part.count as usize],
            waiting: Vec::new(),
        });
        if open.samples.len() as u64 != part.count || open.ranges != part.ranges {
            return Err(violation("states other numbers than those before it"));
        }
        open.waiting.push(place);
        open.samples[part.number as usize].get_or_insert(part.sample);
        if open.samples.iter().any(Option::is_none) {
            return Ok(None);
        }
        let Some(complete) = state.open.remove(&part.sort) else {
            return Ok(None);
        };
        let samples: Vec<_> = complete.samples.into_iter().flatten().collect();
        let cuts = Arc::new(cut(&samples, complete.ranges as usize));
        state.keep(part.sort, Arc::clone(&cuts));
        Ok(Some((cuts, complete.waiting)))
    }

    /// Nobody waits on some lanes any more. A sort for which nobody waits is forgotten.
    fn leave(&self, has_left: impl Fn(Place) -> bool) {
        self.lock().open.retain(|_, open| {
            open.waiting.retain(|place| !has_left(*place));
            !open.waiting.is_empty()
        });
    }
}

impl State {
    fn keep(&mut self, sort: SortId, cuts: Arc<Cuts>) {
        self.cut.insert(sort, cuts);
        self.order.push_back(sort);
        if self.order.len() > MAX_KEPT_SORTS
            && let Some(oldest) = self.order.pop_front()
        {
            self.cut.remove(&oldest);
        }
    }
}

impl Exchange {
    /// Takes the sample of a part, and sends the cuts to those who wait once they are known.
    pub fn take_sample(&self, from: u32, lane: u32, part: Part) {
        let (response, places) = match self.sorts.add((from, lane), part) {
            Ok(None) => return,
            Ok(Some((cuts, places))) => {
                let report = Report::Cuts(Cuts::clone(&cuts));
                (vec![Kind::Report.part(), encoded(&report)], places)
            }
            Err(failure) => (vec![Kind::Error.part(), encoded(&failure)], vec![(from, lane)]),
        };
        for (rank, lane) in places {
            // A rank that is lost needs no word.
            let _ = self.send(rank, lane, response.clone());
        }
    }

    /// A part does not wait for cuts any more.
    pub fn leave_sort(&self, from: u32, lane: u32) {
        self.sorts.leave(|place| place == (from, lane));
    }

    /// No part of a lost rank waits for cuts any more.
    pub fn leave_sorts_of(&self, lost: u32) {
        self.sorts.leave(|(rank, _)| rank == lost);
    }
}

/// Sends the sample of a part to the rank that cuts ranges, and waits for the cuts: until all parts have sent theirs, or
/// the query ends.
///
/// # Errors
/// If the rank is lost, or sends what are no cuts.
pub async fn cuts_of(exchange: &Arc<Exchange>, rank: u32, part: Part) -> Result<Cuts> {
    let ranges = part.ranges;
    let lane = Lane::new(exchange, rank, 1).remove(0);
    RankChannel::new(exchange, rank).ask(&Request::Sample {
        lane: lane.number(),
        part,
    })?;
    let mut cuts =
        lane.into_stream(
            move |parts| match rmp_serde::from_slice(parts.first().map_or(&[][..], |part| part)) {
                Ok(Report::Cuts(cuts)) if (cuts.count() as u64) < ranges && cuts.are_in_order() => Ok(cuts),
                Ok(_) => Err("no cuts of a sort".to_owned()),
                Err(error) => Err(error.to_string()),
            },
        );
    let cuts = cuts.next().await;
    cuts.unwrap_or_else(|| Err(internal_datafusion_err!("rank {rank} sends no cuts of a sort")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(number: u64, keys: &[u8]) -> Part {
        Part {
            sort: [1; 16],
            number,
            count: 2,
            ranges: 3,
            sample: Sample {
                rows: keys.len() as u64,
                keys: keys.iter().map(|key| vec![*key]).collect(),
            },
        }
    }

    #[test]
    fn last_sample_brings_cuts_to_all() {
        let sorts = Sorts::default();
        assert!(sorts.add((1, 10), part(0, &[1, 2, 3])).unwrap().is_none());
        let (cuts, places) = sorts.add((2, 20), part(1, &[4, 5, 6])).unwrap().unwrap();
        assert_eq!(places, [(1, 10), (2, 20)]);
        assert_eq!(cuts.count(), 2);
        // Another run of a part gets the same.
        let (again, places) = sorts.add((3, 30), part(0, &[9])).unwrap().unwrap();
        assert_eq!((again, places), (cuts, vec![(3, 30)]));
    }

    #[test]
    fn sort_without_waiting_parts_is_forgotten() {
        let sorts = Sorts::default();
        assert!(sorts.add((1, 10), part(0, &[1])).unwrap().is_none());
        sorts.leave(|place| place == (1, 11));
        assert_eq!(sorts.lock().open.len(), 1);
        sorts.leave(|place| place == (1, 10));
        assert!(sorts.lock().open.is_empty());
    }

    #[test]
    fn cuts_of_old_sorts_are_dropped() {
        let sorts = Sorts::default();
        for number in 0..2 * MAX_KEPT_SORTS {
            let alone = Part {
                sort: (number as u128).to_be_bytes(),
                count: 1,
                ..part(0, &[1])
            };
            assert!(sorts.add((1, 10), alone).unwrap().is_some());
        }
        assert_eq!(sorts.lock().cut.len(), MAX_KEPT_SORTS);
    }

    #[test]
    fn samples_beyond_bounds_are_refused() {
        let good = part(0, &[1]);
        let bad = [
            Part {
                number: 2,
                ..good.clone()
            },
            Part {
                count: u64::MAX,
                ..good.clone()
            },
            Part {
                count: 0,
                ..good.clone()
            },
            Part {
                ranges: 0,
                ..good.clone()
            },
            Part {
                sample: Sample {
                    rows: 1,
                    keys: vec![vec![0; 1 << 20]],
                },
                ..good.clone()
            },
            Part {
                sample: Sample {
                    rows: 1,
                    keys: vec![vec![0]; 1 << 20],
                },
                ..good.clone()
            },
        ];
        let sorts = Sorts::default();
        for bad in bad {
            assert_eq!(sorts.add((1, 10), bad).unwrap_err().code, Code::ProtocolViolation);
        }
        assert!(sorts.add((1, 10), good).unwrap().is_none());
        let other = Part {
            ranges: 4,
            ..part(1, &[1])
        };
        assert_eq!(sorts.add((1, 11), other).unwrap_err().code, Code::ProtocolViolation);
    }
}
