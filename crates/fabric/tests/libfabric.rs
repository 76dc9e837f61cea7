//! Tests of libfabric: raw writes, two real processes, and hosts and peers on which it is unavailable. Skipped where
//! the library is not installed.

use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dayfly_fabric::libfabric::FabricError;
use dayfly_fabric::libfabric::ffi::{Endpoint, Entry, Library, Target, Wait, is_from_peer};
use dayfly_fabric::{AnyLink, Choice, FabricLink, Link, LinkError, Payload, Transport, tls};
use dayfly_protocol::slot::Geometry;

const GEOMETRY: Geometry = Geometry {
    slots: 16,
    stride_bytes: 256,
    bulk_bytes: 64 << 20,
};
const LIMIT: Duration = Duration::from_secs(60);
/// Environment variable of the second process: the provider. The next one contains the port to connect to.
const PROVIDER: &str = "DAYFLY_TEST_PROVIDER";
const PORT: &str = "DAYFLY_TEST_PORT";

/// Whether the library is installed.
fn is_there() -> bool {
    Library::get()
        .inspect_err(|error| eprintln!("left out: {error}"))
        .is_ok()
}

fn identity(seed: u8) -> tls::Identity {
    let mut pkcs8 = vec![
        0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
    ];
    pkcs8.extend([seed; 32]);
    tls::Identity::from_pkcs8(pkcs8).unwrap()
}

fn client(socket: OwnedFd, wanted: Choice) -> Result<FabricLink, LinkError> {
    let session = tls::client(&identity(1), &identity(2).public).unwrap();
    FabricLink::client(socket, session, GEOMETRY, wanted, false)
}

fn worker(socket: OwnedFd, offered: &[Choice]) -> Result<FabricLink, LinkError> {
    let session = tls::worker(&identity(2), &identity(1).public).unwrap();
    FabricLink::worker(socket, session, GEOMETRY, offered, false)
}

/// Opens both ends, a client that wants `wanted` and a worker that offers `offered`.
fn both(wanted: Choice, offered: &[Choice]) -> [Result<FabricLink, LinkError>; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let other = listener.accept().unwrap().0;
    let offered = offered.to_vec();
    let thread = std::thread::spawn(move || worker(other.into(), &offered));
    let client = client(socket.into(), wanted);
    [client, thread.join().unwrap()]
}

fn pair(provider: &str) -> (AnyLink, AnyLink) {
    let choice: Choice = provider.parse().unwrap();
    let [client, worker] = both(choice, &[choice]).map(|link| AnyLink::Fabric(Box::new(link.unwrap())));
    (client, worker)
}

fn next(link: &mut AnyLink) -> Result<u32, LinkError> {
    let until = Instant::now() + LIMIT;
    loop {
        if let Some(meta) = link.poll()? {
            return Ok(meta.sequence);
        }
        assert!(Instant::now() < until, "nothing came within {LIMIT:?}");
        link.wait(Duration::from_secs(1))?;
    }
}

fn raw(provider: &str) -> Endpoint {
    let loopback = Some([127, 0, 0, 1].into());
    let provider = Library::get().unwrap().provider(provider, None, loopback).unwrap();
    Endpoint::open(provider, 64, Wait::Never, 7).unwrap()
}

/// Waits for a write of the other side and returns its notice.
fn landed(endpoint: &mut Endpoint) -> u32 {
    let until = Instant::now() + LIMIT;
    let mut entries = [Entry::EMPTY; 1];
    loop {
        if endpoint.read(&mut entries).unwrap() == 1 && is_from_peer(&entries[0]) {
            return entries[0].data as u32;
        }
        assert!(Instant::now() < until, "no write has landed");
    }
}

/// Writes as soon as the provider takes it.
fn write(endpoint: &mut Endpoint, bytes: &[u8], to: Target, notice: u32) {
    let until = Instant::now() + LIMIT;
    while !endpoint.inject(bytes, to, notice).unwrap() {
        assert!(Instant::now() < until, "the provider takes no write");
        // Until the two are connected, this call drives the connection.
        endpoint.read(&mut [Entry::EMPTY; 1]).unwrap();
    }
}

#[test]
fn raw_writes_arrive_with_their_notices() {
    if !is_there() {
        return;
    }
    for provider in ["tcp", "shm"] {
        let [here, there] = [raw(provider), raw(provider)].map(|mut endpoint| {
            let memory = vec![0u64; 64].into_boxed_slice();
            // SAFETY: the memory is dropped after its region, and read only after a notice.
            let region = unsafe { endpoint.register(memory.as_ptr().cast_mut().cast(), 512) }.unwrap();
            (region, endpoint, memory)
        });
        let (names, targets) = (
            [here.1.name().unwrap(), there.1.name().unwrap()],
            [here.0.target(), there.0.target()],
        );
        let play = move |side: usize, (region, mut endpoint, memory): (_, Endpoint, Box<[u64]>)| {
            endpoint.connect(&names[1 - side]).unwrap();
            for round in 0..1000u32 {
                if side == 0 {
                    write(&mut endpoint, &round.to_le_bytes(), targets[1].plus(8), round);
                }
                let notice = landed(&mut endpoint);
                assert_eq!(notice, if side == 0 { u32::MAX - round } else { round });
                // SAFETY: the notice shows that the write is complete.
                let seen = unsafe { std::ptr::read_volatile(memory.as_ptr().add(1)) };
                assert_eq!(seen as u32, round);
                if side == 1 {
                    write(
                        &mut endpoint,
                        &round.to_le_bytes(),
                        targets[0].plus(8),
                        u32::MAX - round,
                    );
                }
            }
            drop(region);
        };
        let other = std::thread::spawn({
            let play = play.clone();
            move || play(1, there)
        });
        play(0, here);
        other.join().unwrap();
    }
}

/// Not a separate test: the worker process of the test below.
#[test]
fn worker_process() {
    let (Ok(provider), Ok(port)) = (std::env::var(PROVIDER), std::env::var(PORT)) else {
        return;
    };
    let socket = TcpStream::connect(("127.0.0.1", port.parse().unwrap())).unwrap();
    let link = worker(socket.into(), &[provider.parse().unwrap()]).unwrap();
    let mut link = AnyLink::Fabric(Box::new(link));
    loop {
        match next(&mut link) {
            Ok(_) => {}
            Err(LinkError::PeerGone) => return,
            Err(error) => panic!("{error}"),
        }
        let input = link.current().input;
        let (length, sum) = (input.len(), input.iter().map(|byte| u64::from(*byte)).sum::<u64>());
        if length.is_multiple_of(3) {
            let mut reply = link.allocate(5000).unwrap();
            reply.as_mut_slice().fill(sum as u8);
            link.post_lent(1, reply, 5000).unwrap();
        } else {
            link.compose()[..8].copy_from_slice(&sum.to_le_bytes());
            link.post(0, 0, 8).unwrap();
        }
        link.done();
    }
}

/// Starts a process that is the worker of a channel to this one.
fn spawn_worker(provider: &str, listener: &TcpListener) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "worker_process"])
        .env(PROVIDER, provider)
        .env(PORT, listener.local_addr().unwrap().port().to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn messages_between_processes_arrive_once_in_order() {
    if !is_there() {
        return;
    }
    for provider in ["tcp", "shm"] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut child = spawn_worker(provider, &listener);
        let link = client(listener.accept().unwrap().0.into(), provider.parse().unwrap()).unwrap();
        let mut link = AnyLink::Fabric(Box::new(link));
        let mut expected = std::collections::VecDeque::new();
        let (total, mut sent) = (4000u32, 0u32);
        for received in 1..=total {
            while sent < total && sent - (received - 1) < u32::from(GEOMETRY.slots) {
                let length = (sent as usize * 7919) % if sent.is_multiple_of(20) { 40_000 } else { 240 };
                let bytes: Vec<u8> = (0..length).map(|i| (i as u32 ^ sent) as u8).collect();
                expected.push_back((length, bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>()));
                if length > GEOMETRY.inline_bytes() {
                    link.post_bulk(1, 0, Payload::Bytes(&bytes), None).unwrap();
                } else {
                    link.compose()[..length].copy_from_slice(&bytes);
                    link.post(1, 0, length).unwrap();
                }
                sent += 1;
            }
            assert_eq!(next(&mut link).unwrap(), received);
            let (length, sum) = expected.pop_front().unwrap();
            let input = link.current().input;
            if length.is_multiple_of(3) {
                assert!(input.len() == 5000 && input.iter().all(|byte| *byte == sum as u8));
            } else {
                assert_eq!(input, sum.to_le_bytes());
            }
            link.done();
        }
        drop(link);
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn killed_peer_ends_waiting_and_polling() {
    if !is_there() {
        return;
    }
    for (provider, waits) in [("tcp", true), ("tcp", false), ("shm", true), ("shm", false)] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut child = spawn_worker(provider, &listener);
        let mut link = client(listener.accept().unwrap().0.into(), provider.parse().unwrap()).unwrap();
        link.post(1, 0, 1).unwrap();
        while link.poll().unwrap().is_none() {
            link.wait(LIMIT).unwrap();
        }
        link.done();
        let worker_pid = child.id();
        let killer = std::thread::spawn(move || {
            child.kill().unwrap();
            child.wait().unwrap()
        });
        // The shm provider names its files after the process.
        let files = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        let own = format!("{worker_pid}:");
        let left = files.filter(|file| file.file_name().to_string_lossy().starts_with(&own));
        assert_eq!(left.count(), 0, "a file of {worker_pid} would be left behind");
        let since = Instant::now();
        let error = loop {
            assert!(since.elapsed() < LIMIT / 4, "nobody noticed over {provider}");
            let step = if waits { link.wait(LIMIT) } else { link.poll().map(drop) };
            if let Err(error) = step {
                break error;
            }
        };
        assert!(matches!(error, LinkError::PeerGone), "{error}");
        killer.join().unwrap();
    }
}

#[test]
fn memory_is_registered_once_for_many_messages() {
    if !is_there() {
        return;
    }
    let (mut client, mut worker) = pair("tcp");
    let thread = std::thread::spawn(move || {
        while next(&mut worker).is_ok() {
            let length = worker.current().input.len();
            let reply = worker.allocate(length).unwrap();
            worker.post_lent(0, reply, length).unwrap();
            worker.done();
        }
    });
    for _ in 0..200 {
        client.post_bulk(0, 0, Payload::Bytes(&[7; 100_000]), None).unwrap();
        next(&mut client).unwrap();
        // Take every second payload, so that its memory is not available for the next.
        drop(client.take());
        client.done();
    }
    let AnyLink::Fabric(link) = &client else { unreachable!() };
    let blocks = link.registered_blocks();
    assert!((1..10).contains(&blocks), "{blocks} blocks are registered");
    drop(client);
    thread.join().unwrap();
}

#[test]
fn waiting_on_a_descriptor_uses_no_processor() {
    if !is_there() {
        return;
    }
    let (mut client, _worker) = pair("tcp");
    let AnyLink::Fabric(link) = &mut client else {
        unreachable!()
    };
    assert!(link.blocks());
    let spent = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    };
    let (since, before) = (Instant::now(), spent());
    while since.elapsed() < Duration::from_millis(500) {
        link.wait(Duration::from_millis(500)).unwrap();
    }
    let spent = spent() - before;
    assert!(
        spent < Duration::from_millis(25),
        "{spent:?} of processor time in half a second"
    );
}

#[test]
fn signal_while_waiting_ends_nothing() {
    if !is_there() {
        return;
    }
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: a handler that does nothing, so that system calls return as interrupted.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
    }
    let (mut client, mut worker) = pair("tcp");
    // SAFETY: no precondition.
    let waiting = unsafe { libc::pthread_self() } as usize;
    let other = std::thread::spawn(move || {
        for _ in 0..50 {
            std::thread::sleep(Duration::from_millis(2));
            // SAFETY: that thread waits for this one before it ends.
            unsafe { libc::pthread_kill(waiting as libc::pthread_t, libc::SIGUSR1) };
        }
        worker.compose()[..5].copy_from_slice(b"after");
        worker.post(0, 0, 5).unwrap();
        worker
    });
    // Read every event of the provider's descriptor, however many there are.
    next(&mut client).unwrap();
    assert_eq!(client.current().input, b"after");
    other.join().unwrap();
}

#[test]
fn unoffered_provider_is_refused_by_name() {
    if !is_there() {
        return;
    }
    let [client, worker] = both("tcp".parse().unwrap(), &["shm".parse().unwrap()]);
    for end in [client, worker] {
        let error = end.unwrap_err();
        assert!(matches!(error, LinkError::Refused(_)));
        assert!(
            error.to_string().contains("`tcp`") && error.to_string().contains("shm"),
            "{error}"
        );
    }
}

#[test]
fn client_without_provider_gets_the_first_offered() {
    if !is_there() {
        return;
    }
    let [client, worker] = both(Choice::ANY, &["shm".parse().unwrap(), "tcp".parse().unwrap()]);
    for end in [client.unwrap(), worker.unwrap()] {
        let Transport::Libfabric(choice) = end.transport() else {
            unreachable!()
        };
        assert_eq!(choice.provider(), "shm");
        assert!(choice.domain().is_some(), "{choice}");
    }
}

#[test]
fn opening_libfabric_changes_no_signal_handler() {
    let handler = |signal| {
        // SAFETY: only queries; every member may be zero.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            assert_eq!(libc::sigaction(signal, std::ptr::null(), &mut action), 0);
            action.sa_sigaction
        }
    };
    if is_there() {
        drop(raw("tcp"));
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGABRT, libc::SIGILL] {
            assert_eq!(handler(signal), libc::SIG_DFL, "signal {signal}");
        }
    }
}

#[test]
fn unknown_provider_or_domain_is_named() {
    if !is_there() {
        return;
    }
    let library = Library::get().unwrap();
    let error = library.provider("telegraph", None, None).err().unwrap();
    assert!(
        matches!(error, FabricError::NoProvider { .. }) && error.to_string().contains("`telegraph`"),
        "{error}"
    );
    let error = library.provider("tcp", Some("nowhere"), None).err().unwrap();
    assert!(matches!(error, FabricError::NoDomain { .. }), "{error}");
    assert!(
        error.to_string().contains("`nowhere`") && error.to_string().contains("lo"),
        "{error}"
    );
}

/// Not a separate test: the process of the test below, whose libfabric is not a library.
#[test]
fn process_without_libfabric() {
    if std::env::var("DAYFLY_TEST_WITHOUT").is_err() {
        return;
    }
    let [client, _] = both("tcp".parse().unwrap(), &["tcp".parse().unwrap()]);
    let error = client.unwrap_err();
    assert!(matches!(error, LinkError::Refused(_)), "{error}");
    assert!(
        error.to_string().contains("libfabric cannot be used on this machine"),
        "{error}"
    );
}

#[test]
fn missing_libfabric_is_reported() {
    // A file of that name that is not a library precedes the real one.
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("libfabric.so.1"), "nothing").unwrap();
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "process_without_libfabric"])
        .env("DAYFLY_TEST_WITHOUT", "1")
        .env("LD_LIBRARY_PATH", dir.path())
        .status()
        .unwrap();
    assert!(status.success());
}
