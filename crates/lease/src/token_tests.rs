use dayfly_protocol::api::Sandbox;
use dayfly_protocol::hello::{HELLO_BYTES, TOKEN_BYTES};
use dayfly_protocol::ids::Incarnation;
use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::replay::ReplayWindow;

const NOW: u64 = 1_800_000_000_000;
const NODE: NodeId = NodeId([5; 16]);

fn manager() -> SigningKey {
    SigningKey::from_seed([1; 32])
}

fn holder() -> SigningKey {
    SigningKey::from_seed([2; 32])
}

fn claims() -> Claims {
    Claims {
        workers: 4,
        cores: MilliCores::ONE,
        memory_bytes: 1 << 30,
        sandbox: Sandbox::Process,
        lease: Some(LeaseId([3; 16])),
        tenant: TenantId([4; 16]),
        node: NODE,
        holder: holder().public(),
        epoch: 7,
        not_before_ms: NOW,
        expires_at_ms: NOW + 60_000,
        duration_ms: 60_000,
    }
}

fn channel_to(worker: u16) -> Opening {
    Opening::Channel {
        worker: WorkerIndex(worker),
        transport: transport::SHM,
        geometry: Geometry::DEFAULT,
        options: 0,
    }
}

fn hello() -> Hello {
    channel_to(0).sign(NODE, claims().sign(&manager()), ChannelId([6; 16]), NOW, &holder())
}

fn check(hello: &Hello) -> Result<(), TokenError> {
    check_hello(hello, false, NOW, 0, &NODE, &[manager().public()])
}

#[test]
fn valid_hello_is_accepted_once() {
    let mut window = ReplayWindow::new(1_000, 10);
    let trusted = [SigningKey::from_seed([9; 32]).public(), manager().public()];
    assert_eq!(check_hello(&hello(), false, NOW, 0, &NODE, &trusted), Ok(()));
    assert_eq!(window.accept(&hello(), NOW), Ok(()));
    let again = window.accept(&hello(), NOW).unwrap_err();
    assert_eq!((again.clone(), again.code()), (TokenError::Replayed, Code::Replayed));
}

#[test]
fn verified_token_skips_only_the_signature_check() {
    let proven = |hello: &Hello, now: u64, trusted: &[PublicKey]| {
        let sent_now = Hello {
            sent_at_ms: now.into(),
            ..*hello
        };
        check_hello(&sent_now, true, now, 0, &NODE, trusted)
    };
    let mut unsigned = claims().sign(&manager());
    unsigned.signature = [0; 64];
    let hello = channel_to(0).sign(NODE, unsigned, ChannelId([6; 16]), NOW, &holder());
    let trusted = [manager().public()];
    assert_eq!(proven(&hello, NOW, &trusted), Ok(()));
    assert!(matches!(
        proven(&hello, NOW, &[]),
        Err(TokenError::UnknownIssuer { .. })
    ));
    let much_later = hello.token.expires_at_ms.get() + 1;
    assert!(matches!(
        proven(&hello, much_later, &trusted),
        Err(TokenError::Expired { .. })
    ));
    let stranger = SigningKey::from_seed([66; 32]);
    let stolen = channel_to(0).sign(NODE, unsigned, ChannelId([6; 16]), NOW, &stranger);
    assert_eq!(proven(&stolen, NOW, &trusted), Err(TokenError::HelloSignature));
}

#[test]
fn token_of_unknown_issuer_is_refused() {
    let forger = SigningKey::from_seed([66; 32]);
    let error = check_token(&claims().sign(&forger), NOW, 0, &NODE, &[manager().public()]).unwrap_err();
    assert_eq!(error, TokenError::UnknownIssuer { issuer: forger.id() });
    assert_eq!(error.code(), Code::Unauthorized);
}

#[test]
fn token_with_a_foreign_signature_is_refused() {
    let mut token = claims().sign(&SigningKey::from_seed([66; 32]));
    token.issuer = manager().id();
    assert_eq!(
        check_token(&token, NOW, 0, &NODE, &[manager().public()]),
        Err(TokenError::TokenSignature)
    );
}

#[test]
fn token_is_accepted_only_by_its_node() {
    let error = check_token(
        &claims().sign(&manager()),
        NOW,
        0,
        &NodeId([8; 16]),
        &[manager().public()],
    )
    .unwrap_err();
    assert_eq!(
        error,
        TokenError::WrongNode {
            token: NODE,
            node: NodeId([8; 16])
        }
    );
}

#[test]
fn token_is_valid_between_its_times_with_tolerance() {
    let token = claims().sign(&manager());
    let at = |now, tolerance| check_token(&token, now, tolerance, &NODE, &[manager().public()]);
    assert_eq!(
        at(NOW - 1, 0),
        Err(TokenError::NotYetValid {
            not_before_ms: NOW,
            now_ms: NOW - 1
        })
    );
    assert_eq!(at(NOW - 1, 1), Ok(()));
    assert_eq!(at(NOW + 60_000, 0), Ok(()));
    let late = at(NOW + 60_001, 0).unwrap_err();
    assert_eq!(late.code(), Code::LeaseExpired);
    assert_eq!(
        late.to_string(),
        "the token expired 1 ms ago; renew in time or lease again"
    );
    assert_eq!(at(NOW + 60_001, 1), Ok(()));
}

#[test]
fn stolen_token_is_refused_without_the_holders_key() {
    let stolen = channel_to(0).sign(NODE, claims().sign(&manager()), ChannelId([6; 16]), NOW, &manager());
    assert_eq!(check(&stolen), Err(TokenError::HelloSignature));
}

#[test]
fn allowance_opens_only_a_control_connection() {
    let allowance = Claims {
        lease: None,
        ..claims()
    }
    .sign(&manager());
    let channel = channel_to(0).sign(NODE, allowance, ChannelId([6; 16]), NOW, &holder());
    assert_eq!(check(&channel), Err(TokenError::AllowanceOpensNothing));
    let control = Opening::Control { encrypted: false }.sign(NODE, allowance, ChannelId([6; 16]), NOW, &holder());
    assert_eq!(check(&control), Ok(()));
}

#[test]
fn worker_outside_the_lease_is_not_found() {
    let token = claims().sign(&manager());
    let error = check(&channel_to(4).sign(NODE, token, ChannelId([6; 16]), NOW, &holder())).unwrap_err();
    assert_eq!(
        (error.code(), error),
        (Code::NotFound, TokenError::Worker { worker: 4, workers: 4 })
    );
}

#[test]
fn impossible_channel_geometry_is_refused() {
    let geometry = Geometry {
        slots: 3,
        ..Geometry::DEFAULT
    };
    let opening = Opening::Channel {
        worker: WorkerIndex(0),
        transport: transport::TCP,
        geometry,
        options: 0,
    };
    let hello = opening.sign(NODE, claims().sign(&manager()), ChannelId([6; 16]), NOW, &holder());
    assert_eq!(check(&hello), Err(TokenError::Geometry(GeometryError::Slots(3))));
}

#[test]
fn other_wire_version_is_named_in_the_error() {
    let mut hello = hello();
    hello.version = 9.into();
    sign_hello(&mut hello, &holder());
    let error = check(&hello).unwrap_err();
    assert_eq!(error.code(), Code::VersionMismatch);
    let expected = format!("wire version 9 and this side {WIRE_VERSION}");
    assert!(error.to_string().contains(&expected), "{error}");
}

#[test]
fn verdict_is_bound_to_its_channel_and_key() {
    let (node, channel) = (SigningKey::from_seed([20; 32]), ChannelId([6; 16]));
    let verdict = accept(&channel, Incarnation(1), 42, 0, manager().public(), &node);
    assert_eq!(check_verdict(&verdict, &channel, &node.public()), Ok(()));
    assert!(check_verdict(&verdict, &ChannelId([7; 16]), &node.public()).is_err());
    assert!(check_verdict(&verdict, &channel, &manager().public()).is_err());
    let mut swapped = verdict;
    swapped.executor_key = holder().public();
    let error = check_verdict(&swapped, &channel, &node.public()).unwrap_err();
    assert_eq!(error.code, Code::Unauthorized);
}

#[test]
fn refusal_has_its_code_and_a_cut_text() {
    let failure = Failure::new(Code::WorkerBusy, "ä".repeat(300));
    let heard = check_verdict(&refuse(&failure), &ChannelId([0; 16]), &holder().public()).unwrap_err();
    assert_eq!((heard.code, heard.message), (Code::WorkerBusy, "ä".repeat(196)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn altered_hello_is_refused(byte in 0..HELLO_BYTES, bit in 0..8u8) {
        let mut bytes = hello().as_bytes().to_vec();
        bytes[byte] ^= 1 << bit;
        let altered = Hello::read_from_bytes(&bytes).unwrap();
        prop_assert!(check(&altered).is_err());
    }

    #[test]
    fn altered_token_is_refused(byte in 0..TOKEN_BYTES, bit in 0..8u8) {
        let mut bytes = claims().sign(&manager()).as_bytes().to_vec();
        bytes[byte] ^= 1 << bit;
        let altered = Token::read_from_bytes(&bytes).unwrap();
        prop_assert!(check_token(&altered, NOW, 0, &NODE, &[manager().public()]).is_err());
    }

    #[test]
    fn random_bytes_are_refused_as_a_hello(bytes in proptest::collection::vec(any::<u8>(), HELLO_BYTES)) {
        let noise = Hello::read_from_bytes(&bytes).unwrap();
        prop_assert!(check(&noise).is_err());
    }
}
