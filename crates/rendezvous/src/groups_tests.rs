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

fn seat(state: &mut Groups, conn: ConnectionId, join: &Join) -> Result<u32, Failure> {
    state.join(conn, OURS, join, [conn as u8; 16]).map(|seat| seat.rank)
}

fn formed(run: &str) -> Groups {
    let mut state = Groups::default();
    for rank in 0..2 {
        assert_eq!(seat(&mut state, rank.into(), &join("job", run, 2, None)), Ok(rank));
        state.card(rank.into(), card(rank)).unwrap();
    }
    state
}

#[test]
fn last_card_sends_all_cards_in_order() {
    let mut state = Groups::default();
    for (conn, rank) in [(10, Some(2)), (11, None), (12, None)] {
        let rank = seat(&mut state, conn, &join("job", "", 3, rank)).unwrap();
        assert_eq!(rank, [2, 0, 1][conn as usize - 10]);
    }
    assert_eq!(state.card(10, card(2)), Ok(vec![]));
    assert_eq!(state.card(12, card(1)), Ok(vec![]));
    let deliveries = state.card(11, card(0)).unwrap();
    let message = ToRank::World {
        cards: vec![card(0), card(1), card(2)],
    };
    assert_eq!(
        deliveries,
        [Delivery {
            to: vec![11, 12, 10],
            message
        }]
    );
}

#[test]
fn list_describes_groups_in_order() {
    let mut state = formed("b");
    seat(&mut state, 7, &join("early", "", 3, Some(1))).unwrap();
    state.lose(1, "its host burnt down");
    let [early, job] = &*state.list("", 9) else {
        panic!("two groups are listed")
    };
    assert_eq!(
        (&*early.name, early.size, &*early.ranks, early.is_formed),
        ("early", 3, &[1][..], false)
    );
    assert_eq!(
        (&*job.name, &*job.run, &*job.ranks, job.is_formed),
        ("job", "b", &[0][..], true)
    );
    assert_eq!(job.lost, Some((1, "its host burnt down".into())));
    assert_eq!(state.list("", 1).len(), 1);
    assert_eq!(state.list("jo", 9).len(), 1);
    assert!(state.list("ob", 9).is_empty());
}

#[test]
fn other_secret_for_a_used_name_is_refused() {
    let mut state = formed("a");
    for run in ["a", "b"] {
        let failure = state.join(9, THEIRS, &join("job", run, 2, None), [0; 16]).unwrap_err();
        assert_eq!(failure.code, Code::Unauthorized);
    }
    assert!(state.join(9, THEIRS, &join("other", "a", 2, None), [0; 16]).is_ok());
}

#[test]
fn two_runs_of_one_name_stay_apart() {
    let mut state = Groups::default();
    assert_eq!(seat(&mut state, 1, &join("job", "a", 2, Some(0))), Ok(0));
    assert_eq!(seat(&mut state, 2, &join("job", "b", 2, Some(0))), Ok(0));
    assert_eq!(state.missing(1), Ok((vec![1], 1)));
    assert_eq!(state.missing(2), Ok((vec![1], 1)));
}

#[test]
fn duplicate_rank_or_other_size_is_refused() {
    let mut state = Groups::default();
    assert_eq!(seat(&mut state, 1, &join("job", "", 3, Some(1))), Ok(1));
    let failure = seat(&mut state, 2, &join("job", "", 3, Some(1))).unwrap_err();
    assert!(
        failure.message.contains("rank 1 of group `job` has already joined"),
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
fn rank_of_a_finished_run_is_refused() {
    let mut state = formed("a");
    let failure = seat(&mut state, 7, &join("job", "a", 2, Some(1))).unwrap_err();
    assert!(failure.message.contains("left over from an earlier run"), "{failure}");
    state.leave(0, None);
    state.lose(1, "killed");
    let failure = seat(&mut state, 7, &join("job", "a", 2, Some(1))).unwrap_err();
    assert!(
        failure.message.contains("run `a` of group `job` has ended"),
        "{failure}"
    );
    assert_eq!(seat(&mut state, 7, &join("job", "b", 2, Some(1))), Ok(1));
}

#[test]
fn unnamed_run_can_be_repeated() {
    let mut state = formed("");
    state.leave(0, None);
    assert!(seat(&mut state, 7, &join("job", "", 2, None)).is_err());
    state.leave(1, None);
    assert_eq!(seat(&mut state, 7, &join("job", "", 2, None)), Ok(0));
}

#[test]
fn loss_is_reported_and_closes_the_group() {
    let mut state = Groups::default();
    for rank in 0..2 {
        seat(&mut state, rank, &join("job", "", 3, None)).unwrap();
    }
    let deliveries = state.lose(0, "it fell silent");
    let message = ToRank::Lost {
        rank: 0,
        reason: "it fell silent".into(),
    };
    assert_eq!(deliveries, [Delivery { to: vec![1], message }]);
    let failure = seat(&mut state, 2, &join("job", "", 3, None)).unwrap_err();
    assert_eq!(failure.code, Code::RankLost);
    assert_eq!(state.lose(1, "so did it"), []);
    assert_eq!(state.counts(), (0, 0));
}

#[test]
fn unformed_group_reports_only_its_first_loss() {
    let mut state = Groups::default();
    for rank in 0..3 {
        seat(&mut state, rank, &join("job", "", 4, None)).unwrap();
    }
    assert_eq!(state.lose(0, "killed").len(), 1);
    assert_eq!(state.leave(1, Some("rank 0 was lost")), []);
    let mut state = Groups::default();
    for rank in 0..3 {
        seat(&mut state, rank, &join("job", "", 3, None)).unwrap();
        state.card(rank, card(0)).unwrap();
    }
    assert_eq!(state.lose(0, "killed").len(), 1);
    assert_eq!(state.lose(1, "killed").len(), 1);
}

#[test]
fn rank_that_leaves_formed_group_is_no_loss() {
    let mut state = formed("");
    assert_eq!(state.leave(0, None), []);
    assert_eq!(state.lose(0, "closed"), []);
}

#[test]
fn relay_needs_two_ranks_of_a_formed_group() {
    let mut state = formed("");
    assert_eq!(state.pair(0, 1), Ok(([0; 16], 0, 1)));
    for to in [0, 2] {
        assert_eq!(state.pair(0, to).unwrap_err().code, Code::ProtocolViolation);
    }
    assert!(state.pair(9, 1).is_err());
}

#[test]
fn call_notifies_both_or_reports_the_leaver() {
    let mut state = formed("");
    let said = |deliveries: Vec<Delivery>| {
        deliveries
            .into_iter()
            .map(|delivery| (delivery.to, delivery.message))
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
    Join(ConnectionId, u8, u8, Option<u32>),
    Card(ConnectionId),
    Gone(ConnectionId),
    Leave(ConnectionId),
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
    fn no_event_order_mixes_groups_or_leaks(events in events()) {
        let mut state = Groups::default();
        let mut seats: BTreeMap<ConnectionId, (u8, u8, u32)> = BTreeMap::new();
        for event in events {
            let deliveries = match event {
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
                    let deliveries = state.lose(conn, "gone");
                    prop_assert!(deliveries.iter().all(|delivery| !delivery.to.contains(&conn)));
                    seats.remove(&conn);
                    deliveries
                }
                Event::Leave(conn) => {
                    let deliveries = state.leave(conn, None);
                    seats.remove(&conn);
                    deliveries
                }
            };
            for delivery in deliveries {
                let groups: BTreeSet<_> = delivery.to.iter().map(|conn| (seats[conn].0, seats[conn].1)).collect();
                prop_assert_eq!(groups.len(), 1);
                if let ToRank::World { cards } = delivery.message {
                    prop_assert_eq!((cards.len(), delivery.to.len()), (3, 3));
                }
            }
            prop_assert_eq!(state.counts().1, seats.len());
            let names: BTreeSet<_> = seats.values().map(|(name, ..)| name).collect();
            prop_assert_eq!(state.counts().0, names.len());
        }
    }
}

fn ask(state: &mut Groups, key: PublicKey, service: &str, action: ServiceAction) -> Result<Option<String>, Failure> {
    let request = ServiceRequest {
        version: VERSION,
        group: "job".into(),
        service: service.into(),
        action,
    };
    state.service(key, request)
}

fn publish(text: &str) -> ServiceAction {
    ServiceAction::Publish { text: text.into() }
}

#[test]
fn published_service_is_kept_until_withdrawn() {
    let mut state = formed("");
    assert_eq!(ask(&mut state, OURS, "s", ServiceAction::LookUp), Ok(None));
    assert_eq!(ask(&mut state, OURS, "s", publish("one")), Ok(None));
    assert_eq!(ask(&mut state, OURS, "s", publish("two")), Ok(Some("one".into())));
    assert_eq!(
        ask(&mut state, OURS, "s", ServiceAction::LookUp),
        Ok(Some("one".into()))
    );
    assert_eq!(
        ask(&mut state, OURS, "s", ServiceAction::Withdraw),
        Ok(Some("one".into()))
    );
    assert_eq!(ask(&mut state, OURS, "s", ServiceAction::LookUp), Ok(None));
}

#[test]
fn services_end_with_the_last_rank() {
    let mut state = formed("");
    assert_eq!(ask(&mut state, OURS, "s", publish("one")), Ok(None));
    state.leave(0, None);
    assert_eq!(
        ask(&mut state, OURS, "s", ServiceAction::LookUp),
        Ok(Some("one".into()))
    );
    state.leave(1, None);
    let failure = ask(&mut state, OURS, "s", ServiceAction::LookUp).unwrap_err();
    assert_eq!(failure.code, Code::NotFound);
    assert!(state.services.is_empty());
    seat(&mut state, 2, &join("job", "", 1, None)).unwrap();
    assert_eq!(ask(&mut state, OURS, "s", ServiceAction::LookUp), Ok(None));
}

#[test]
fn service_of_another_secret_is_hidden() {
    let mut state = formed("");
    assert_eq!(ask(&mut state, OURS, "s", publish("one")), Ok(None));
    for action in [ServiceAction::LookUp, ServiceAction::Withdraw, publish("two")] {
        let failure = ask(&mut state, THEIRS, "s", action).unwrap_err();
        assert_eq!(failure.code, Code::NotFound);
    }
    assert_eq!(
        ask(&mut state, OURS, "s", ServiceAction::LookUp),
        Ok(Some("one".into()))
    );
}

#[test]
fn services_are_bounded_in_number_and_length() {
    let mut state = formed("");
    for service in ["", &"x".repeat(MAX_SERVICE + 1)] {
        let failure = ask(&mut state, OURS, service, publish("one")).unwrap_err();
        assert_eq!(failure.code, Code::InvalidRequest);
    }
    let long = "x".repeat(MAX_PUBLISHED + 1);
    assert_eq!(
        ask(&mut state, OURS, "s", publish(&long)).unwrap_err().code,
        Code::TooLarge
    );
    for number in 0..MAX_SERVICES {
        assert_eq!(ask(&mut state, OURS, &number.to_string(), publish("one")), Ok(None));
    }
    assert_eq!(
        ask(&mut state, OURS, "more", publish("one")).unwrap_err().code,
        Code::TooLarge
    );
    assert_eq!(ask(&mut state, OURS, "0", publish("two")), Ok(Some("one".into())));
}
