//! Admission of connections: which are refused, and that the others are not affected.

mod common;

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use common::*;
use dayfly_fabric::tls;
use dayfly_lease::SigningKey;
use dayfly_lease::token::{Claims, Opening, sign_hello, sign_token};
use dayfly_protocol::api::Sandbox;
use dayfly_protocol::error::Code;
use dayfly_protocol::hello::{HELLO_BYTES, VERDICT_BYTES, transport};
use dayfly_protocol::ids::{ChannelId, CodeHash, LeaseId, NodeId, TenantId};
use dayfly_protocol::node_api::{MAX_FRAME_BYTES, Request, Response};
use zerocopy::IntoBytes;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_tokens_are_refused_with_their_reason() {
    let site = Site::start().await;
    let grant = site.lease(|_| {}).await.unwrap();
    let good = token(&grant);
    let refused = async |hello| site.knock(hello).await.unwrap_err().code;

    // Signed by another key, in the node's name.
    let mut forged = good;
    sign_token(&mut forged, &SigningKey::from_seed([66; 32]));
    forged.issuer = good.issuer;
    assert_eq!(refused(site.hello(forged, 0, transport::SHM)).await, Code::Unauthorized);

    // Signed by an unknown key.
    let mut unknown = good;
    sign_token(&mut unknown, &SigningKey::from_seed([66; 32]));
    assert_eq!(
        refused(site.hello(unknown, 0, transport::SHM)).await,
        Code::Unauthorized
    );

    // Altered: more workers than granted.
    let mut altered = good;
    altered.workers = 64.into();
    assert_eq!(
        refused(site.hello(altered, 9, transport::SHM)).await,
        Code::Unauthorized
    );

    // Used without the holder's key.
    let mut stolen = site.hello(good, 0, transport::SHM);
    sign_hello(&mut stolen, &SigningKey::from_seed([66; 32]));
    assert_eq!(refused(stolen).await, Code::Unauthorized);

    // Expired, for another node, and for a lease that never existed: all signed by the node itself.
    let key = std::fs::read(site.dir.path().join("state/node.key")).unwrap();
    let key = SigningKey::from_pkcs8(&key).unwrap();
    let claims = Claims {
        workers: 1,
        cores: dayfly_protocol::cores::MilliCores::ONE,
        memory_bytes: 1 << 20,
        sandbox: Sandbox::Process,
        lease: Some(grant.lease),
        tenant: TenantId([0; 16]),
        node: grant.node.id,
        holder: site.holder.public(),
        epoch: 0,
        not_before_ms: now_ms() - 1_000_000,
        expires_at_ms: now_ms() - 900_000,
        duration_ms: 1000,
    };
    let expired = claims.sign(&key);
    assert_eq!(
        refused(site.hello(expired, 0, transport::SHM)).await,
        Code::LeaseExpired
    );
    let lasting = Claims {
        expires_at_ms: now_ms() + 900_000,
        ..claims
    };
    let foreign = Claims {
        node: NodeId([9; 16]),
        ..lasting
    };
    assert_eq!(
        refused(site.hello(foreign.sign(&key), 0, transport::SHM)).await,
        Code::Unauthorized
    );
    let nowhere = Claims {
        lease: Some(LeaseId([9; 16])),
        ..lasting
    };
    assert_eq!(
        refused(site.hello(nowhere.sign(&key), 0, transport::SHM)).await,
        Code::NotFound
    );

    // The same hello twice.
    let hello = site.hello(good, 0, transport::SHM);
    site.knock(hello).await.unwrap();
    assert_eq!(refused(hello).await, Code::Replayed);

    // The refusal of another version names both versions.
    let mut other = site.hello(good, 0, transport::SHM);
    other.version = 9.into();
    sign_hello(&mut other, &site.holder);
    let failure = site.knock(other).await.unwrap_err();
    assert_eq!(failure.code, Code::VersionMismatch);
    for told in ["wire version 9 ", "this side", "Dayfly ", "install the same release"] {
        assert!(failure.message.contains(told), "{failure}");
    }

    // Shared memory is unavailable over TCP.
    let hello = site.hello(good, 0, transport::SHM);
    let failure = site.stream_channel_of(hello).await.unwrap_err();
    assert_eq!(failure.code, Code::TransportRefused);
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hello_flood_is_charged_to_its_lease() {
    let site = Site::with(|options| options.max_hellos = 32).await;
    let grant = site.lease(|_| {}).await.unwrap();
    let key = std::fs::read(site.dir.path().join("state/node.key")).unwrap();
    let flooding = Claims {
        workers: 1,
        cores: dayfly_protocol::cores::MilliCores::ONE,
        memory_bytes: 1 << 20,
        sandbox: Sandbox::Process,
        lease: Some(LeaseId([9; 16])),
        tenant: TenantId([9; 16]),
        node: grant.node.id,
        holder: site.holder.public(),
        epoch: 0,
        not_before_ms: now_ms(),
        expires_at_ms: now_ms() + 900_000,
        duration_ms: 1000,
    };
    let flooding = flooding.sign(&SigningKey::from_pkcs8(&key).unwrap());
    let mut codes = Vec::new();
    for _ in 0..40 {
        let refused = site.knock(site.hello(flooding, 0, transport::SHM)).await;
        codes.push(refused.unwrap_err().code);
    }
    // The first ones get "not found", the surplus ones "no capacity".
    assert_eq!(
        (codes.first(), codes.last()),
        (Some(&Code::NotFound), Some(&Code::NoCapacity))
    );
    // Other clients are admitted as long as they stay below their share.
    for _ in 0..8 {
        drop(site.control(token(&grant)).await.unwrap());
    }
    let flood = site.knock(site.hello(flooding, 0, transport::SHM)).await;
    assert_eq!(flood.unwrap_err().code, Code::NoCapacity);
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn allowance_and_lease_tokens_are_not_interchangeable() {
    let site = Site::start().await;
    let grant = site.lease(|_| {}).await.unwrap();
    let allowance = site.handle.allowance(site.holder.public());
    let failure = site.knock(site.hello(allowance, 0, transport::SHM)).await.unwrap_err();
    assert_eq!(failure.code, Code::Unauthorized);
    let mut control = site.control(token(&grant)).await.unwrap();
    let failure = control
        .ask(Request::Lease(Box::new(request(&site.holder))))
        .await
        .unwrap_err();
    assert_eq!(failure.code, Code::Unauthorized);
    let mut control = site.control(allowance).await.unwrap();
    assert_eq!(
        control.ask(Request::Release).await.unwrap_err().code,
        Code::Unauthorized
    );
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn incomplete_hello_is_closed_after_one_second() {
    let site = Site::start().await;
    let (unix, tcp) = (site.socket(), site.tcp());
    blocking(move || {
        let begun = Instant::now();
        let mut on_unix = connect(&unix);
        let mut on_tcp = std::net::TcpStream::connect(tcp).unwrap();
        on_unix.write_all(&[0; HELLO_BYTES / 2]).unwrap();
        on_tcp.write_all(&[0; HELLO_BYTES - 1]).unwrap();
        assert_eq!(on_unix.read(&mut [0; 8]).unwrap_or(0), 0);
        assert_eq!(on_tcp.read(&mut [0; 8]).unwrap_or(0), 0);
        let took = begun.elapsed();
        assert!(
            took >= Duration::from_millis(900) && took < Duration::from_secs(5),
            "{took:?}"
        );
    })
    .await;
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_is_refused_and_affects_no_other_connection() {
    let site = Site::start().await;
    let (unix, tcp) = (site.socket(), site.tcp());
    blocking(move || {
        for round in 0..50 {
            let mut noise: [u8; HELLO_BYTES] = random();
            if round % 2 == 0 {
                noise[..8].copy_from_slice(&dayfly_protocol::hello::MAGIC);
            }
            let mut on_unix = connect(&unix);
            on_unix.write_all(&noise).unwrap();
            let (verdict, _) = read_verdict(&on_unix);
            assert_ne!(verdict.code.get(), 0);
            let mut on_tcp = std::net::TcpStream::connect(tcp).unwrap();
            on_tcp.write_all(&noise).unwrap();
            let mut bytes = [0; VERDICT_BYTES];
            on_tcp.read_exact(&mut bytes).unwrap();
        }
    })
    .await;
    let grant = site.lease(|_| {}).await.unwrap();
    site.channel(&grant, 0).await.unwrap();
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_frames_end_control_connection_with_a_reason() {
    let site = Site::start().await;
    let grant = site.lease(|_| {}).await.unwrap();
    let asked = async |bytes: Vec<u8>| {
        let mut control = site.control(token(&grant)).await.unwrap();
        let mut stream = control.stream.take().unwrap();
        blocking(move || {
            stream.write_all(&bytes).unwrap();
            let mut length = [0; 4];
            stream.read_exact(&mut length).unwrap();
            let mut body = vec![0; u32::from_le_bytes(length) as usize];
            stream.read_exact(&mut body).unwrap();
            assert_eq!(stream.read(&mut [0; 8]).unwrap_or(0), 0, "the connection goes on");
            match serde_json::from_slice(&body).unwrap() {
                Response::Failed(failure) => failure.code,
                other => panic!("{other:?}"),
            }
        })
        .await
    };
    assert_eq!(
        asked((MAX_FRAME_BYTES + 1).to_le_bytes().to_vec()).await,
        Code::PayloadTooLarge
    );
    assert_eq!(
        asked([&5u32.to_le_bytes()[..], b"{nope"].concat()).await,
        Code::ProtocolViolation
    );
    assert_eq!(
        asked([&2u32.to_le_bytes()[..], b"{}"].concat()).await,
        Code::ProtocolViolation
    );
    // Half a frame is dropped after five seconds.
    assert_eq!(
        asked([&100u32.to_le_bytes()[..], b"half"].concat()).await,
        Code::TimedOut
    );
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn code_is_stored_only_under_its_own_hash() {
    let site = Site::start().await;
    let grant = site.lease(|_| {}).await.unwrap();
    let hash = site.put_library(&grant).await;
    let mut control = site.control(token(&grant)).await.unwrap();
    let present = control.ask(Request::HasCode { hash }).await.unwrap();
    assert_eq!(present, Response::Code { present: true });
    let wrong = CodeHash([1; 32]);
    let failure = control.put(wrong, library()).await.unwrap_err();
    assert_eq!(failure.code, Code::HashMismatch);
    // The connection continues, and no file is left.
    let present = control.ask(Request::HasCode { hash: wrong }).await.unwrap();
    assert_eq!(present, Response::Code { present: false });
    let files = std::fs::read_dir(site.dir.path().join("state/code")).unwrap().count();
    assert_eq!(files, 1);
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn socket_in_use_is_refused_and_stale_replaced() {
    let site = Site::start().await;
    let error = dayfly_node::Node::start(options(site.dir.path())).await.unwrap_err();
    assert_eq!(error.code(), Code::AddressInUse);
    let mut elsewhere = options(site.dir.path());
    elsewhere.unix = Some(site.dir.path().join("other.sock"));
    elsewhere.listen_tcp = Some(site.tcp());
    let error = dayfly_node::Node::start(elsewhere).await.unwrap_err();
    assert_eq!(error.code(), Code::AddressInUse);
    site.handle.shutdown().await;
    // The socket of a killed node.
    let socket = site.dir.path().join("state/node.sock");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    assert!(socket.exists());
    let handle = dayfly_node::Node::start(options(site.dir.path())).await.unwrap();
    handle.shutdown().await;
    assert!(!socket.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_directory_contains_allowance_for_its_user() {
    let site = Site::start().await;
    let path = site.dir.path().join("state/allowance.json");
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let file: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let seed: [u8; 32] = hex::decode(file["holder_seed"].as_str().unwrap())
        .unwrap()
        .try_into()
        .unwrap();
    let holder = SigningKey::from_seed(seed);
    let allowance = hex::decode(file["token"].as_str().unwrap()).unwrap();
    let allowance = zerocopy::FromBytes::read_from_bytes(&allowance).unwrap();
    let hello =
        Opening::Control { encrypted: false }.sign(site.node(), allowance, ChannelId(random()), now_ms(), &holder);
    site.knock(hello).await.unwrap();
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_off_loopback_are_encrypted_for_the_holder() {
    let site = Site::start().await;
    let (address, node_key) = (site.tcp(), site.handle.address().key);
    let allowance = site.handle.allowance(site.holder.public());
    let hello = || {
        Opening::Control { encrypted: true }.sign(site.node(), allowance, ChannelId(random()), now_ms(), &site.holder)
    };
    let ping = move |hello: dayfly_protocol::hello::Hello, key: SigningKey, node: dayfly_protocol::ids::PublicKey| {
        blocking(move || {
            let mut stream = std::net::TcpStream::connect(address)?;
            stream.set_read_timeout(Some(LIMIT))?;
            stream.write_all(hello.as_bytes())?;
            let mut verdict = [0; VERDICT_BYTES];
            stream.read_exact(&mut verdict)?;
            let identity = tls::Identity::from_pkcs8(key.to_pkcs8()).unwrap();
            let session = tls::client(&identity, &node).map_err(std::io::Error::other)?;
            let mut stream = rustls::StreamOwned::new(session, stream);
            let question = serde_json::to_vec(&Request::Ping)?;
            stream.write_all(&[&(question.len() as u32).to_le_bytes()[..], &question].concat())?;
            stream.flush()?;
            let mut length = [0; 4];
            stream.read_exact(&mut length)?;
            let mut answer = vec![0; u32::from_le_bytes(length) as usize];
            stream.read_exact(&mut answer)?;
            Ok::<Response, std::io::Error>(serde_json::from_slice(&answer)?)
        })
    };
    let answer = ping(hello(), site.holder.clone(), node_key).await.unwrap();
    assert_eq!(answer, Response::Done);
    // A forwarder of the holder's hello cannot continue in its place, and the client accepts no other node.
    let stranger = SigningKey::from_seed([66; 32]);
    ping(hello(), stranger.clone(), node_key).await.unwrap_err();
    ping(hello(), site.holder.clone(), stranger.public()).await.unwrap_err();
    // The node still serves.
    ping(hello(), site.holder.clone(), node_key).await.unwrap();
    site.handle.shutdown().await;
}
