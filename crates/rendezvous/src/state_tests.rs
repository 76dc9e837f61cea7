use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const OURS: PublicKey = PublicKey([1; 32]);
const THEIRS: PublicKey = PublicKey([2; 32]);

fn join(name: &str, run: &str, size: u32, rank: Option<u32>) -> Join {
    Join {
        version: VERSION,
        name: name.into(),
        run: run.into(),
        size,
        rank,
    }
}

fn card(rank: u32) -> Sealed {
    Sealed {
        card: rank.to_string(),
        mac: String::new(),
    }
}

fn seat(state: &mut State, conn: Conn, join: &Join) -> Result<u32, Failure> {
    state.join(conn, OURS, join, [conn as u8; 16]).map(|seat| seat.rank)
}

fn formed(run: &str) -> State {
    let mut state = State::default();
    for rank in 0..2 {
        assert_eq!(seat(&mut state, rank.into(), &join("job", run, 2, None)), Ok(rank));
        state.card(rank.into(), card(rank)).unwrap();
    }
    state
}

#[test]
fn the_last_card_brings_all_of_them_to_everybody_in_order() {
    let mut state = State::default();
    for (conn, rank) in [(10, Some(2)), (11, None), (12, None)] {
        let rank = seat(&mut state, conn, &join("job", "", 3, rank)).unwrap();
        assert_eq!(rank, [2, 0, 1][conn as usize - 10]);
    }
    assert_eq!(state.card(10, card(2)), Ok(vec![]));
    assert_eq!(state.card(12, card(1)), Ok(vec![]));
    let effects = state.card(11, card(0)).unwrap();
    let say = ToRank::World {
        cards: vec![card(0), card(1), card(2)],
    };
    assert_eq!(
        effects,
        [Effect {
            to: vec![11, 12, 10],
            say
        }]
    );
}

#[test]
fn another_secret_for_a_name_in_use_is_refused_in_every_run() {
    let mut state = formed("a");
    for run in ["a", "b"] {
        let failure = state.join(9, THEIRS, &join("job", run, 2, None), [0; 16]).unwrap_err();
        assert_eq!(failure.code, Code::Unauthorized);
    }
    assert!(state.join(9, THEIRS, &join("other", "a", 2, None), [0; 16]).is_ok());
}

#[test]
fn two_runs_of_one_name_do_not_meet() {
    let mut state = State::default();
    assert_eq!(seat(&mut state, 1, &join("job", "a", 2, Some(0))), Ok(0));
    assert_eq!(seat(&mut state, 2, &join("job", "b", 2, Some(0))), Ok(0));
    assert_eq!(state.missing(1), Ok((vec![1], 1)));
    assert_eq!(state.missing(2), Ok((vec![1], 1)));
}

#[test]
fn a_rank_is_taken_once_and_a_size_is_one_for_all() {
    let mut state = State::default();
    assert_eq!(seat(&mut state, 1, &join("job", "", 3, Some(1))), Ok(1));
    let failure = seat(&mut state, 2, &join("job", "", 3, Some(1))).unwrap_err();
    assert!(
        failure.message.contains("rank 1 of group `job` is here already"),
        "{failure}"
    );
    assert_eq!(
        seat(&mut state, 2, &join("job", "", 4, Some(2))).unwrap_err().code,
        Code::Mismatch
    );
    assert_eq!(
        seat(&mut state, 2, &join("job", "", 3, Some(3))).unwrap_err().code,
        Code::InvalidRequest
    );
    assert_eq!(
        seat(&mut state, 1, &join("job", "", 3, Some(2))).unwrap_err().code,
        Code::ProtocolViolation
    );
}

#[test]
fn a_rank_of_a_former_run_is_told_so() {
    let mut state = formed("a");
    let failure = seat(&mut state, 7, &join("job", "a", 2, Some(1))).unwrap_err();
    assert!(failure.message.contains("left over from a former run"), "{failure}");
    state.leave(0, None);
    state.gone(1, "killed");
    let failure = seat(&mut state, 7, &join("job", "a", 2, Some(1))).unwrap_err();
    assert!(failure.message.contains("run `a` of group `job` is over"), "{failure}");
    assert_eq!(seat(&mut state, 7, &join("job", "b", 2, Some(1))), Ok(1));
}

#[test]
fn a_group_without_a_named_run_can_follow_itself() {
    let mut state = formed("");
    state.leave(0, None);
    assert!(seat(&mut state, 7, &join("job", "", 2, None)).is_err());
    state.leave(1, None);
    assert_eq!(seat(&mut state, 7, &join("job", "", 2, None)), Ok(0));
}

#[test]
fn a_loss_is_told_to_those_who_are_left_and_closes_the_group() {
    let mut state = State::default();
    for rank in 0..2 {
        seat(&mut state, rank, &join("job", "", 3, None)).unwrap();
    }
    let effects = state.gone(0, "it fell silent");
    let say = ToRank::Lost {
        rank: 0,
        reason: "it fell silent".into(),
    };
    assert_eq!(effects, [Effect { to: vec![1], say }]);
    let failure = seat(&mut state, 2, &join("job", "", 3, None)).unwrap_err();
    assert_eq!(failure.code, Code::RankLost);
    assert_eq!(state.gone(1, "so did it"), []);
    assert_eq!(state.counts(), (0, 0));
}

#[test]
fn of_a_group_that_never_formed_only_the_first_loss_is_told_and_of_one_that_did_each() {
    let mut state = State::default();
    for rank in 0..3 {
        seat(&mut state, rank, &join("job", "", 4, None)).unwrap();
    }
    assert_eq!(state.gone(0, "killed").len(), 1);
    assert_eq!(state.leave(1, Some("rank 0 was lost")), []);
    let mut state = State::default();
    for rank in 0..3 {
        seat(&mut state, rank, &join("job", "", 3, None)).unwrap();
        state.card(rank, card(0)).unwrap();
    }
    assert_eq!(state.gone(0, "killed").len(), 1);
    assert_eq!(state.gone(1, "killed").len(), 1);
}

#[test]
fn one_that_leaves_when_all_is_done_is_no_loss() {
    let mut state = formed("");
    assert_eq!(state.leave(0, None), []);
    assert_eq!(state.gone(0, "closed"), []);
}

#[test]
fn a_relay_is_for_two_ranks_of_a_formed_group() {
    let mut state = formed("");
    assert_eq!(state.pair(0, 1), Ok(([0; 16], 0, 1)));
    for to in [0, 2] {
        assert_eq!(state.pair(0, to).unwrap_err().code, Code::ProtocolViolation);
    }
    assert!(state.pair(9, 1).is_err());
}

#[test]
fn of_a_call_both_hear_at_once_or_the_caller_that_the_other_has_left() {
    let mut state = formed("");
    let said = |effects: Vec<Effect>| {
        effects
            .into_iter()
            .map(|effect| (effect.to, effect.say))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        said(state.call(0, 1).unwrap()),
        [
            (vec![1], ToRank::Called { rank: 0 }),
            (vec![0], ToRank::Called { rank: 1 })
        ]
    );
    for to in [0, 2] {
        assert_eq!(state.call(0, to).unwrap_err().code, Code::ProtocolViolation);
    }
    assert!(state.call(9, 1).is_err());
    state.leave(1, None);
    assert_eq!(said(state.call(0, 1).unwrap()), [(vec![0], ToRank::Left { rank: 1 })]);
}

#[derive(Debug, Clone)]
enum Event {
    Join(Conn, u8, u8, Option<u32>),
    Card(Conn),
    Gone(Conn),
    Leave(Conn),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let conn = 0..12u64;
    let event = prop_oneof![
        4 => (conn.clone(), 0..2u8, 0..2u8, proptest::option::of(0..4u32)).prop_map(|(c, n, k, r)| Event::Join(c, n, k, r)),
        4 => conn.clone().prop_map(Event::Card),
        1 => conn.clone().prop_map(Event::Gone),
        1 => conn.prop_map(Event::Leave),
    ];
    proptest::collection::vec(event, 0..80)
}

proptest! {
    /// In any order of events: seats are unique, no rank learns of another secret's group, all ranks of a group get its
    /// cards, and nothing remains of ranks that are gone.
    #[test]
    fn no_order_of_events_mixes_groups_or_leaves_anything_behind(events in events()) {
        let mut state = State::default();
        let mut seats: BTreeMap<Conn, (u8, u8, u32)> = BTreeMap::new();
        for event in events {
            let effects = match event {
                Event::Join(conn, name, key, rank) => {
                    let nonce = [seats.len() as u8; 16];
                    let joined = state.join(conn, PublicKey([key; 32]), &join(&name.to_string(), "", 3, rank), nonce);
                    if let Ok(seat) = joined {
                        prop_assert!(seat.rank < 3);
                        prop_assert!(rank.is_none_or(|rank| rank == seat.rank));
                        prop_assert!(seats.values().all(|(n, k, r)| *n != name || (*k == key && *r != seat.rank)));
                        seats.insert(conn, (name, key, seat.rank));
                    }
                    Vec::new()
                }
                Event::Card(conn) => state.card(conn, card(0)).unwrap_or_default(),
                Event::Gone(conn) => {
                    let effects = state.gone(conn, "gone");
                    prop_assert!(effects.iter().all(|effect| !effect.to.contains(&conn)));
                    seats.remove(&conn);
                    effects
                }
                Event::Leave(conn) => {
                    let effects = state.leave(conn, None);
                    seats.remove(&conn);
                    effects
                }
            };
            for effect in effects {
                let groups: BTreeSet<_> = effect.to.iter().map(|conn| (seats[conn].0, seats[conn].1)).collect();
                prop_assert_eq!(groups.len(), 1);
                if let ToRank::World { cards } = effect.say {
                    prop_assert_eq!((cards.len(), effect.to.len()), (3, 3));
                }
            }
            prop_assert_eq!(state.counts().1, seats.len());
            let names: BTreeSet<_> = seats.values().map(|(name, ..)| name).collect();
            prop_assert_eq!(state.counts().0, names.len());
        }
    }
}
