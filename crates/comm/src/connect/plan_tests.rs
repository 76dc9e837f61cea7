use dayfly_protocol::ids::PublicKey;

use super::*;

fn card(host: &str, local: &str, observed: &str, nat: Nat) -> Card {
    Card {
        key: PublicKey([0; 32]),
        host: host.into(),
        user: 1,
        unix: Some(host.into()),
        locals: vec![local.parse().unwrap()],
        observed: observed.parse().unwrap(),
        nat,
        settings_digest: 0,
        store: None,
    }
}

fn both(low: &Card, high: &Card, routes: &RouteOptions) -> [Vec<Step>; 2] {
    let low = Party { rank: 0, card: low };
    let high = Party { rank: 1, card: high };
    [plan(low, high, routes), plan(high, low, routes)]
}

fn soonest(steps: &[Step], route: Route) -> Option<Duration> {
    steps
        .iter()
        .filter(|step| step.route == route)
        .map(|step| step.after)
        .min()
}

#[test]
fn higher_rank_dials_local_socket_on_shared_host() {
    let card = card("h", "10.0.0.1:5", "10.0.0.1:5", Nat::None);
    let [low, high] = both(&card, &card, &RouteOptions::default());
    assert_eq!(soonest(&high, Route::Local), Some(Duration::ZERO));
    assert_eq!(soonest(&low, Route::Local), None);
    for steps in [&low, &high] {
        assert!(
            steps
                .iter()
                .all(|step| step.route == Route::Local || step.after >= HEAD_START)
        );
    }
}

#[test]
fn different_users_of_one_host_use_loopback() {
    let low = card("h", "10.0.0.1:5", "10.0.0.1:5", Nat::None);
    let high = Card { user: 2, ..low.clone() };
    let [_, steps] = both(&low, &high, &RouteOptions::default());
    assert_eq!(steps[0].target, Target::Address("127.0.0.1:5".parse().unwrap()));
    assert_eq!(steps[0].after, Duration::ZERO);
}

#[test]
fn translated_rank_dials_first_and_two_dial_simultaneously() {
    let free = card("a", "1.0.0.1:5", "1.0.0.1:5", Nat::None);
    let inside = card("b", "10.0.0.1:6", "2.0.0.1:6", Nat::Independent);
    let [low, high] = both(&inside, &free, &RouteOptions::default());
    assert_eq!(soonest(&low, Route::Direct), Some(Duration::ZERO));
    assert_eq!(soonest(&high, Route::Direct), Some(HEAD_START));
    let other = card("c", "10.0.0.1:7", "3.0.0.1:7", Nat::Independent);
    for steps in both(&inside, &other, &RouteOptions::default()) {
        assert_eq!(soonest(&steps, Route::Punched), Some(Duration::ZERO));
        assert_eq!(soonest(&steps, Route::Relay), Some(RouteOptions::default().relay_after));
    }
}

#[test]
fn two_symmetric_nats_use_relay_at_once() {
    let first = card("a", "10.0.0.1:6", "2.0.0.1:6", Nat::Dependent);
    let second = card("b", "10.0.0.1:6", "3.0.0.1:6", Nat::Dependent);
    for steps in both(&first, &second, &RouteOptions::default()) {
        assert_eq!(soonest(&steps, Route::Relay), Some(Duration::ZERO));
    }
    let neighbour = card("b", "10.0.0.2:6", "2.0.0.1:7", Nat::Dependent);
    for steps in both(&first, &neighbour, &RouteOptions::default()) {
        assert_eq!(soonest(&steps, Route::Relay), Some(RouteOptions::default().relay_after));
    }
}

#[test]
fn loopback_of_another_host_is_not_dialled() {
    let mut beside = card("a", "10.0.0.1:5", "127.0.0.1:5", Nat::None);
    beside.locals.push("127.0.0.1:5".parse().unwrap());
    let away = card("b", "10.0.0.2:6", "10.0.0.2:6", Nat::None);
    for steps in both(&beside, &away, &RouteOptions::default()) {
        assert!(steps.iter().any(|step| step.route == Route::Direct));
        for step in steps {
            assert!(
                !matches!(step.target, Target::Address(address) if address.ip().is_loopback()),
                "{step:?}"
            );
        }
    }
}

#[test]
fn disabled_routes_are_not_planned() {
    let first = card("a", "10.0.0.1:6", "2.0.0.1:6", Nat::Independent);
    let second = card("b", "10.0.0.1:6", "3.0.0.1:6", Nat::Independent);
    assert!(both(&first, &second, &RouteOptions::none()).iter().all(Vec::is_empty));
    let relay = RouteOptions {
        relay: true,
        ..RouteOptions::none()
    };
    for steps in both(&first, &second, &relay) {
        assert_eq!(steps.len(), 1);
        assert_eq!(steps[0].after, Duration::ZERO);
    }
}

#[test]
fn shared_store_is_tried_last() {
    let first = Card {
        store: Some("s3://bucket".into()),
        ..card("a", "10.0.0.1:5", "10.0.0.1:5", Nat::None)
    };
    let second = Card {
        host: "b".into(),
        ..first.clone()
    };
    let last = RouteOptions {
        stored: true,
        ..RouteOptions::default()
    };
    for steps in both(&first, &second, &last) {
        let others = steps.iter().filter(|step| step.route != Route::Stored);
        let slowest = others.map(|step| step.after).max().unwrap();
        assert!(soonest(&steps, Route::Stored).unwrap() > slowest, "{steps:?}");
    }
    for steps in both(&first, &second, &RouteOptions::only_stored()) {
        assert_eq!(steps.len(), 1);
        assert_eq!(soonest(&steps, Route::Stored), Some(Duration::ZERO));
    }
    let elsewhere = Card {
        store: Some("s3://another".into()),
        ..second
    };
    for steps in both(&first, &elsewhere, &last) {
        assert_eq!(soonest(&steps, Route::Stored), None);
    }
}

#[test]
fn cautious_plan_dials_only_possible_rank_addresses() {
    let cautious = RouteOptions {
        cautious: true,
        ..RouteOptions::default()
    };
    let mine = card("h", "10.0.0.1:5000", "10.0.0.1:5000", Nat::None);
    let dialled = |local: &str, observed: &str, host: &str, nat| {
        let theirs = card(host, local, observed, nat);
        let [low, high] = both(&mine, &theirs, &cautious);
        let steps = low
            .into_iter()
            .chain(both(&theirs, &mine, &cautious)[1].clone())
            .chain(high);
        let from_mine =
            steps.filter(|step| !matches!(step.target, Target::Address(address) if address == mine.observed));
        from_mine
            .filter(|step| matches!(step.target, Target::Address(_)))
            .count()
    };
    for named in [
        "127.0.0.1:6379",
        "[::1]:6379",
        "[::ffff:127.0.0.1]:6379",
        "0.0.0.0:6379",
        "169.254.169.254:8000",
        "[fe80::1]:8000",
        "224.0.0.1:8000",
        "255.255.255.255:8000",
        "10.0.0.7:22",
    ] {
        for (host, nat) in [("h", Nat::None), ("other", Nat::None), ("other", Nat::Independent)] {
            assert_eq!(dialled(named, named, host, nat), 0, "{named} on {host}, {nat:?}");
        }
    }
    assert!(dialled("10.0.0.7:40000", "10.0.0.7:40000", "other", Nat::None) > 0);
    let dependent = Card {
        nat: Nat::Dependent,
        ..mine.clone()
    };
    let theirs = card("other", "127.0.0.1:22", "127.0.0.1:22", Nat::Independent);
    assert!(
        both(&dependent, &theirs, &cautious)[0]
            .iter()
            .all(|step| step.target == Target::Relay)
    );
}
