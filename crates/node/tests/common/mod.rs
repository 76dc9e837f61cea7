//! A node with real executors, and a minimal client for tests.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dayfly_fabric::{AnyLink, Link, LinkError, StreamLink, descriptors, shm, tls};
use dayfly_lease::SigningKey;
use dayfly_lease::ledger::Resources;
use dayfly_lease::token::{Opening, check_verdict};
use dayfly_node::{Handle, Node, Options};
use dayfly_protocol::api::{Grant, LeaseRequest, Mode, Usage};
use dayfly_protocol::error::Failure;
use dayfly_protocol::executor::{Form, LoadFunction};
use dayfly_protocol::hello::{Hello, Token, VERDICT_BYTES, Verdict, transport};
use dayfly_protocol::ids::{ChannelId, CodeHash, FunctionIndex, NodeId, WorkerIndex};
use dayfly_protocol::node_api::{ChannelStatus, Request, Response};
use dayfly_protocol::slot::{Geometry, Status};
use sha2::{Digest, Sha256};
use zerocopy::{FromBytes, IntoBytes};

/// Limit of each step of a test, for a busy machine.
pub const LIMIT: Duration = Duration::from_secs(20);

pub const GEOMETRY: Geometry = Geometry {
    slots: 8,
    stride_bytes: 1024,
    bulk_bytes: 1 << 20,
};

/// The executor of this build, in the directory above the tests'. Cargo passes only this crate's own binaries to its
/// tests. So this builds the executor with Cargo, unless it is newer than its sources.
pub fn executor() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT
        .get_or_init(|| {
            let tests = std::env::current_exe().unwrap();
            let binary = tests.ancestors().nth(2).unwrap().join("dayfly-executor");
            let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
            let newest = ["executor", "fabric", "protocol"].map(|name| newest_in(&crates.join(name)));
            let built = std::fs::metadata(&binary).and_then(|found| found.modified());
            if built.is_ok_and(|built| newest.iter().all(|source| *source < built)) {
                return binary;
            }
            let status = Command::new(env!("CARGO"))
                .args(["build", "--quiet", "-p", "dayfly-executor", "--bin", "dayfly-executor"])
                .args(if cfg!(debug_assertions) {
                    &[][..]
                } else {
                    &["--release"]
                })
                .status()
                .unwrap();
            assert!(status.success(), "the executor does not build");
            binary
        })
        .clone()
}

/// Latest change of a file below a directory.
fn newest_in(directory: &Path) -> SystemTime {
    let entries = std::fs::read_dir(directory).unwrap().flatten();
    let changed = entries.map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => newest_in(&entry.path()),
        _ => entry
            .metadata()
            .and_then(|found| found.modified())
            .unwrap_or(UNIX_EPOCH),
    });
    changed.max().unwrap_or(UNIX_EPOCH)
}

const FUNCTIONS: &str = r#"
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
uint32_t echo(void *in, uint32_t size, void *out) { memcpy(out, in, size); return size; }
uint32_t crash(void *in, uint32_t size, void *out) { volatile int *p = 0; *p = 1; return 0; }
uint32_t leave(void *in, uint32_t size, void *out) { exit(7); }
uint32_t spin(void *in, uint32_t size, void *out) { for (;;) { volatile int x = 0; (void)x; } }
uint32_t nap(void *in, uint32_t size, void *out) { usleep(1000 * *(uint32_t *)in); return 0; }
uint32_t burn(void *in, uint32_t size, void *out) {
    struct timespec begun, now;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - begun.tv_sec) * 1000 + (now.tv_nsec - begun.tv_nsec) / 1000000 < *(uint32_t *)in);
    return 0;
}
static void *burn_thread(void *in) { burn(in, 4, 0); return 0; }
uint32_t burn_two(void *in, uint32_t size, void *out) {
    pthread_t other;
    if (pthread_create(&other, 0, burn_thread, in)) return 1;
    burn(in, size, out);
    pthread_join(other, 0);
    return 0;
}
uint32_t nap_burn(void *in, uint32_t size, void *out) {
    nap(in, 4, out);
    return burn((char *)in + 4, 4, out);
}
uint32_t hold(void *in, uint32_t size, void *out) {
    uint32_t *steps = in; /* milliseconds, MiB, milliseconds */
    nap(&steps[0], 4, out);
    size_t bytes = (size_t)steps[1] << 20;
    volatile char *taken = malloc(bytes);
    for (size_t at = 0; at < bytes; at += 4096) taken[at] = 1;
    nap(&steps[2], 4, out);
    free((void *)taken);
    return 0;
}
uint32_t grow(void *in, uint32_t size, void *out) { return hold(in, size, out); }
uint32_t keep(void *in, uint32_t size, void *out) {
    static volatile char *kept;
    size_t bytes = (size_t)((uint32_t *)in)[1] << 20;
    nap(in, 4, out);
    kept = malloc(bytes);
    for (size_t at = 0; at < bytes; at += 4096) kept[at] = 1;
    return nap((uint32_t *)in + 2, 4, out);
}
uint32_t spawn(void *in, uint32_t size, void *out) {
    int32_t pid = fork();
    if (pid == 0) { setsid(); for (;;) pause(); }
    memcpy(out, &pid, 4); return 4;
}
"#;

/// A shared library of C functions, compiled once for each test process.
pub fn library() -> &'static [u8] {
    static LIBRARY: OnceLock<Vec<u8>> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let (source, library) = (dir.path().join("f.c"), dir.path().join("f.so"));
        std::fs::write(&source, FUNCTIONS).unwrap();
        let status = Command::new("cc")
            .args(["-O1", "-w", "-shared", "-fPIC", "-pthread", "-o"])
            .args([&library, &source])
            .status()
            .unwrap();
        assert!(status.success(), "the C compiler failed");
        std::fs::read(library).unwrap()
    })
}

pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).unwrap();
    bytes
}

/// A node in its own directory.
pub struct Site {
    pub dir: tempfile::TempDir,
    pub handle: Handle,
    pub holder: SigningKey,
}

pub fn options(dir: &Path) -> Options {
    let mut options = Options::new(dir.join("state"));
    options.executor = Some(executor());
    options.listen_tcp = Some("127.0.0.1:0".parse().unwrap());
    options.grace = Duration::from_millis(200);
    // Core 0 is shared. "Hot" tests own core 1 if it exists, and are not pinned otherwise.
    options.resources = Some(Resources {
        cores: vec![0, 1],
        kept_cores: 1,
        memory_bytes: 1 << 30,
        workers: 8,
        gpus: Vec::new(),
    });
    options
}

impl Site {
    pub async fn start() -> Self {
        Self::with(|_| {}).await
    }

    pub async fn with(change: impl FnOnce(&mut Options)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut options = options(dir.path());
        change(&mut options);
        let handle = Node::start(options).await.unwrap();
        Self {
            dir,
            handle,
            holder: SigningKey::from_seed(random()),
        }
    }

    /// Leases under the node's own allowance.
    pub async fn lease(&self, change: impl FnOnce(&mut LeaseRequest)) -> Result<Grant, Failure> {
        let mut request = request(&self.holder);
        change(&mut request);
        let allowance = self.handle.allowance(self.holder.public());
        let mut control = self.control(allowance).await?;
        match control.ask(Request::Lease(Box::new(request))).await? {
            Response::Granted(grant) => Ok(*grant),
            other => panic!("{other:?}"),
        }
    }

    pub fn node(&self) -> NodeId {
        self.handle.address().id
    }

    pub async fn control(&self, token: Token) -> Result<Control, Failure> {
        let (socket, holder) = (self.socket(), self.holder.clone());
        let (node, key) = (self.node(), self.handle.address().key);
        blocking(move || {
            let hello = Opening::Control { encrypted: false }.sign(node, token, ChannelId(random()), now_ms(), &holder);
            let mut stream = connect(&socket);
            stream.write_all(hello.as_bytes()).unwrap();
            let (verdict, _) = read_verdict(&stream);
            check_verdict(&verdict, &hello.channel, &key)?;
            Ok(Control { stream: Some(stream) })
        })
        .await
    }

    pub fn socket(&self) -> PathBuf {
        self.handle.address().unix.clone().unwrap().into()
    }

    /// Opens a shared-memory channel.
    pub async fn channel(&self, grant: &Grant, worker: u16) -> Result<Channel, Failure> {
        let hello = self.hello(token(grant), worker, transport::SHM);
        let (socket, key) = (self.socket(), self.handle.address().key);
        blocking(move || {
            let mut stream = connect(&socket);
            stream.write_all(hello.as_bytes()).unwrap();
            let (verdict, files) = read_verdict(&stream);
            check_verdict(&verdict, &hello.channel, &key)?;
            let link = shm::client(&files[0], GEOMETRY, false).unwrap();
            Ok(Channel {
                id: hello.channel,
                verdict,
                link: AnyLink::Mapped(link),
                stream: Some(stream),
            })
        })
        .await
    }

    /// Opens a channel over TCP or TLS.
    pub async fn stream_channel(&self, grant: &Grant, worker: u16, transport: u8) -> Result<Channel, Failure> {
        let hello = self.hello(token(grant), worker, transport);
        let (address, key, holder) = (self.tcp(), self.handle.address().key, self.holder.clone());
        blocking(move || {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            stream.set_nodelay(true).unwrap();
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            stream.write_all(hello.as_bytes()).unwrap();
            let mut bytes = [0; VERDICT_BYTES];
            stream.read_exact(&mut bytes).unwrap();
            let verdict = Verdict::read_from_bytes(&bytes).unwrap();
            check_verdict(&verdict, &hello.channel, &key)?;
            let link = if transport == self::transport::TLS {
                let identity = tls::Identity::from_pkcs8(holder.to_pkcs8()).unwrap();
                let session = tls::client(&identity, &verdict.executor_key).unwrap();
                StreamLink::tls(stream.into(), session, GEOMETRY).unwrap()
            } else {
                StreamLink::tcp(stream.into(), GEOMETRY).unwrap()
            };
            Ok(Channel {
                id: hello.channel,
                verdict,
                link: AnyLink::Stream(Box::new(link)),
                stream: None,
            })
        })
        .await
    }

    /// Sends a hello over TCP. Returns the refusal, if any.
    pub async fn stream_channel_of(&self, hello: Hello) -> Result<(), Failure> {
        let (address, key) = (self.tcp(), self.handle.address().key);
        blocking(move || {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            stream.write_all(hello.as_bytes()).unwrap();
            let mut bytes = [0; VERDICT_BYTES];
            stream.read_exact(&mut bytes).unwrap();
            check_verdict(&Verdict::read_from_bytes(&bytes).unwrap(), &hello.channel, &key)
        })
        .await
    }

    /// Usage of the only lease.
    pub fn usage(&self) -> Usage {
        self.handle.status().leases[0].usage
    }

    pub fn tcp(&self) -> std::net::SocketAddr {
        self.handle.address().tcp.as_ref().unwrap().parse().unwrap()
    }

    /// The fate of a channel that has ended.
    pub async fn fate(&self, grant: &Grant, channel: ChannelId) -> ChannelStatus {
        let mut control = self.control(token(grant)).await.unwrap();
        let begun = Instant::now();
        loop {
            match control.ask(Request::ChannelStatus { channel }).await.unwrap() {
                Response::ChannelStatus(fate) if fate.end.is_some() => return fate,
                Response::ChannelStatus(_) => assert!(begun.elapsed() < LIMIT, "the channel does not end"),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Sends a hello unchanged. Returns the refusal, if any.
    pub async fn knock(&self, hello: Hello) -> Result<(), Failure> {
        let (socket, key) = (self.socket(), self.handle.address().key);
        blocking(move || {
            let mut stream = connect(&socket);
            stream.write_all(hello.as_bytes()).unwrap();
            check_verdict(&read_verdict(&stream).0, &hello.channel, &key)
        })
        .await
    }

    pub fn hello(&self, token: Token, worker: u16, transport: u8) -> Hello {
        let opening = Opening::Channel {
            worker: WorkerIndex(worker),
            transport,
            geometry: GEOMETRY,
            options: 0,
        };
        opening.sign(self.node(), token, ChannelId(random()), now_ms(), &self.holder)
    }

    /// Sends the functions' library. Returns its hash.
    pub async fn put_library(&self, grant: &Grant) -> CodeHash {
        let mut control = self.control(token(grant)).await.unwrap();
        let hash = CodeHash(Sha256::digest(library()).into());
        assert_eq!(control.put(hash, library()).await.unwrap(), Response::Done);
        hash
    }
}

pub fn request(holder: &SigningKey) -> LeaseRequest {
    LeaseRequest {
        memory_bytes: 64 << 20,
        ..LeaseRequest::native(1, Mode::Warm, 60_000, holder.public())
    }
}

pub fn token(grant: &Grant) -> Token {
    Token::read_from_bytes(&hex::decode(&grant.token).unwrap()).unwrap()
}

pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

pub fn connect(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

pub fn read_verdict(stream: &UnixStream) -> (Verdict, Vec<OwnedFd>) {
    let mut bytes = [0; VERDICT_BYTES];
    let (length, files) = descriptors::receive(stream, &mut bytes).unwrap();
    assert_eq!(length, VERDICT_BYTES, "half a verdict");
    (Verdict::read_from_bytes(&bytes).unwrap(), files)
}

/// A control connection.
pub struct Control {
    pub stream: Option<UnixStream>,
}

impl Control {
    pub async fn ask(&mut self, request: Request) -> Result<Response, Failure> {
        self.send(serde_json::to_vec(&request).unwrap(), Vec::new()).await
    }

    pub async fn put(&mut self, hash: CodeHash, code: &[u8]) -> Result<Response, Failure> {
        let request = Request::PutCode {
            hash,
            length: code.len() as u64,
        };
        self.send(serde_json::to_vec(&request).unwrap(), code.to_vec()).await
    }

    async fn send(&mut self, body: Vec<u8>, raw: Vec<u8>) -> Result<Response, Failure> {
        let mut stream = self.stream.take().unwrap();
        let (stream, response) = blocking(move || {
            stream.write_all(&(body.len() as u32).to_le_bytes()).unwrap();
            stream.write_all(&body).unwrap();
            stream.write_all(&raw).unwrap();
            let mut length = [0; 4];
            stream.read_exact(&mut length).unwrap();
            let mut body = vec![0; u32::from_le_bytes(length) as usize];
            stream.read_exact(&mut body).unwrap();
            (stream, serde_json::from_slice(&body).unwrap())
        })
        .await;
        self.stream = Some(stream);
        match response {
            Response::Failed(failure) => Err(failure),
            response => Ok(response),
        }
    }
}

/// The client's end of a channel.
pub struct Channel {
    pub id: ChannelId,
    pub verdict: Verdict,
    pub link: AnyLink,
    /// The connection on which a shared-memory channel was opened.
    pub stream: Option<UnixStream>,
}

impl Channel {
    pub fn post(&mut self, function: u16, deadline_ms: u32, input: &[u8]) -> u32 {
        self.link.compose()[..input.len()].copy_from_slice(input);
        self.link.post(function, deadline_ms, input.len()).unwrap()
    }

    pub fn receive(&mut self) -> Result<(Status, Vec<u8>), LinkError> {
        let begun = Instant::now();
        loop {
            for _ in 0..10_000 {
                if let Some(meta) = self.link.poll()? {
                    let output = self.link.current().input.to_vec();
                    self.link.done();
                    return Ok((Status::from_wire(meta.function).unwrap(), output));
                }
                std::hint::spin_loop();
            }
            assert!(begun.elapsed() < LIMIT, "no response");
            self.link.wait(Duration::from_millis(50))?;
        }
    }

    pub async fn call(
        self,
        function: u16,
        deadline_ms: u32,
        input: &[u8],
    ) -> (Self, Result<(Status, Vec<u8>), LinkError>) {
        let (mut channel, input) = (self, input.to_vec());
        blocking(move || {
            channel.post(function, deadline_ms, &input);
            let result = channel.receive();
            (channel, result)
        })
        .await
    }

    /// Resolves a function.
    pub async fn load(self, hash: CodeHash, symbol: &str) -> (Self, u16) {
        let form = Form::Plain { symbol: symbol.into() };
        let function = serde_json::to_vec(&LoadFunction { hash, form }).unwrap();
        let (channel, result) = self.call(FunctionIndex::LOAD.0, 0, &function).await;
        let (status, output) = result.unwrap();
        assert_eq!(status, Status::Ok, "{}", String::from_utf8_lossy(&output));
        (channel, u16::from_le_bytes([output[0], output[1]]))
    }
}

/// Process id of a process's parent.
pub fn parent_of(pid: u32) -> i32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after = stat.rsplit_once(')').unwrap().1;
    after.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Whether a process exists and is not a zombie.
pub fn is_alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit_once(')').unwrap().1.trim_start().starts_with('Z'))
}

/// Waits until `done` returns true. Panics after [`LIMIT`].
pub async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < LIMIT, "{what} did not come about");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
