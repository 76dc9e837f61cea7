//! A fake node: it connects to a real manager with a WebSocket over TLS, and behaves as a test chooses.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dayfly_lease::ledger::{Resources, Wanted};
use dayfly_lease::{Ledger, SigningKey};
use dayfly_protocol::WIRE_VERSION;
use dayfly_protocol::api::{Capacity, HeldTerms, LeaseChange, LeaseRequest, Mode, NodeAddress};
use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{LeaseId, NodeId, PublicKey};
use dayfly_protocol::node_api::HeldLease;
use dayfly_protocol::node_messages::{LendablePools, ManagerMessage, NodeMessage};
use dayfly_store::system::now_ms;
use futures_util::{SinkExt, StreamExt};
use rustls::pki_types::ServerName;
use rustls::pki_types::pem::PemObject;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;

use crate::Handle;

/// Limit for every wait of a test.
pub const TIMEOUT: Duration = Duration::from_secs(10);

pub async fn tls(manager: &Handle) -> TlsStream<TcpStream> {
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(rustls::pki_types::CertificateDer::from_pem_slice(manager.ca_pem().as_bytes()).unwrap())
        .unwrap();
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(manager.address()).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .unwrap()
}

pub type Socket = WebSocketStream<TlsStream<TcpStream>>;

/// Opens a WebSocket to the manager. Returns the HTTP status if it is refused.
pub async fn websocket(manager: &Handle, path: &str, token: &str) -> Result<Socket, u16> {
    let mut request = format!("wss://localhost{path}").into_client_request().unwrap();
    request.headers_mut().insert(
        "authorization",
        HeaderValue::from_str(&format!("Bearer {token}")).unwrap(),
    );
    match tokio_tungstenite::client_async(request, tls(manager).await).await {
        Ok((socket, _)) => Ok(socket),
        Err(tokio_tungstenite::tungstenite::Error::Http(response)) => Err(response.status().as_u16()),
        Err(error) => panic!("{error}"),
    }
}

/// How a fake node responds to offers.
#[derive(Clone, Copy, PartialEq)]
pub enum Manner {
    Honest,
    Full,
    Silent,
    /// Its executors do not start.
    Broken,
}

pub struct FakeNode {
    pub id: NodeId,
    pub credential: Option<String>,
    pub epoch: u64,
    pub signing_keys: Vec<PublicKey>,
    /// Messages of the manager. Offers and ends are responded to first.
    pub heard: mpsc::UnboundedReceiver<ManagerMessage>,
    pub say: mpsc::UnboundedSender<NodeMessage>,
    /// What its heartbeats report that it could lend.
    pub pools: Arc<Mutex<Option<LendablePools>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for FakeNode {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub fn ledger(cores: u16) -> Ledger {
    Ledger::new(Resources::of_machine((0..=cores).collect(), 8 << 30))
}

pub fn registration(id: u8, held: &[LeaseId], books: &Ledger) -> NodeMessage {
    NodeMessage::Register {
        version: WIRE_VERSION,
        address: NodeAddress {
            id: NodeId([id; 16]),
            name: format!("fake-{id}"),
            host: "boot".into(),
            unix: None,
            tcp: Some("127.0.0.1:1".into()),
            key: SigningKey::from_seed([id; 32]).public(),
            fabrics: vec![if id.is_multiple_of(2) { "even" } else { "odd" }.into()],
        },
        capacity: books.capacity(),
        free: books.free(),
        leases: held
            .iter()
            .map(|&lease| HeldLease {
                lease,
                remaining_ms: 30_000,
                terms: None,
            })
            .collect(),
        sandboxes: None,
    }
}

impl FakeNode {
    /// Joins with a new join token. The node has 2 cores for leases.
    pub async fn join(manager: &Handle, id: u8, manner: Manner) -> Self {
        let token = manager.join_token(Duration::from_secs(60)).await.unwrap().token;
        Self::connect(manager, id, &token, manner, &[]).await.unwrap()
    }

    pub async fn connect(
        manager: &Handle,
        id: u8,
        token: &str,
        manner: Manner,
        held: &[LeaseId],
    ) -> Result<Self, Failure> {
        let mut socket = websocket(manager, "/v1/nodes/connect", token)
            .await
            .expect("the upgrade");
        let mut books = ledger(2);
        send(&mut socket, &registration(id, held, &books)).await;
        let (epoch, signing_keys, heartbeat, credential) = match receive(&mut socket).await.expect("an answer") {
            ManagerMessage::Registered {
                epoch,
                signing_keys,
                heartbeat_ms,
                credential,
                ..
            } => (epoch, signing_keys, Duration::from_millis(heartbeat_ms), credential),
            ManagerMessage::Refused(failure) => return Err(failure),
            other => panic!("{other:?}"),
        };
        let (tell, heard) = mpsc::unbounded_channel();
        let (say, mut to_say) = mpsc::unbounded_channel();
        let held: HashSet<LeaseId> = held.iter().copied().collect();
        let pools = Arc::<Mutex<Option<LendablePools>>>::default();
        let reported = Arc::clone(&pools);
        let task = tokio::spawn(async move {
            let mut held = held;
            let mut beats = tokio::time::interval(heartbeat);
            loop {
                tokio::select! {
                    message = receive(&mut socket) => {
                        let Some(message) = message else { return };
                        if let Some(answer) = answer(&message, &mut books, &mut held, manner) {
                            send(&mut socket, &answer).await;
                        }
                        let _ = tell.send(message);
                    }
                    Some(message) = to_say.recv() => send(&mut socket, &message).await,
                    _ = beats.tick(), if manner != Manner::Silent => {
                        let beat = NodeMessage::Heartbeat {
                            free: books.free(),
                            clock_ms: now_ms(),
                            harvest: None,
                            pools: reported.lock().unwrap().clone().map(Box::new),
                        };
                        send(&mut socket, &beat).await;
                    }
                }
            }
        });
        Ok(Self {
            id: NodeId([id; 16]),
            credential,
            epoch,
            signing_keys,
            heard,
            say,
            pools,
            task,
        })
    }

    pub async fn hears(&mut self, wanted: impl Fn(&ManagerMessage) -> bool) -> ManagerMessage {
        let search = async {
            loop {
                let message = self.heard.recv().await.expect("the connection lives");
                if wanted(&message) {
                    return message;
                }
            }
        };
        tokio::time::timeout(TIMEOUT, search)
            .await
            .expect("the wanted message in time")
    }
}

fn answer(
    message: &ManagerMessage,
    books: &mut Ledger,
    held: &mut HashSet<LeaseId>,
    manner: Manner,
) -> Option<NodeMessage> {
    let (request, refused, mode) = match (message, manner) {
        (_, Manner::Silent) => return None,
        (ManagerMessage::Offer { request, .. }, Manner::Full) => {
            (*request, Some(Failure::new(Code::NoCapacity, "the fake is full")), None)
        }
        (ManagerMessage::Offer { request, .. }, Manner::Broken) => {
            let failure = Failure::new(Code::ExecutorFailed, "the fake has no executor");
            (*request, Some(failure), None)
        }
        (
            ManagerMessage::Offer {
                request, lease, spec, ..
            },
            Manner::Honest,
        ) => match books.reserve(*lease, spec) {
            Ok(reservation) => {
                held.insert(*lease);
                (*request, None, Some(reservation.mode))
            }
            Err(error) => (*request, Some(error.into()), None),
        },
        (
            ManagerMessage::Renew {
                request, lease, change, ..
            },
            _,
        ) => {
            let (terms, refused) = match renew(lease, change, books) {
                Ok(terms) => (terms, None),
                Err(error) => (None, Some(error.into())),
            };
            return Some(NodeMessage::Answer {
                request: *request,
                refused,
                mode: None,
                image: None,
                sandbox: None,
                terms,
            });
        }
        (ManagerMessage::End { request, lease, .. }, _) => {
            books.release(lease);
            let refused = (!held.remove(lease)).then(|| Failure::new(Code::NotFound, "no such lease"));
            (*request, refused, None)
        }
        _ => return None,
    };
    Some(NodeMessage::Answer {
        request,
        refused,
        mode,
        image: None,
        sandbox: None,
        terms: None,
    })
}

/// Changes a lease that the fake was offered. Returns nothing for one that it does not know.
fn renew(
    lease: &LeaseId,
    change: &LeaseChange,
    books: &mut Ledger,
) -> Result<Option<Box<HeldTerms>>, dayfly_lease::ledger::LedgerError> {
    let Some(held) = books.held(lease).cloned() else {
        return Ok(None);
    };
    let workers = change.workers.unwrap_or(held.workers);
    let mode = change.mode.unwrap_or(held.mode);
    let wanted = LeaseRequest {
        memory_bytes: held.memory_bytes / u64::from(held.workers) * u64::from(workers),
        ..LeaseRequest::native(workers, mode, 1, PublicKey([0; 32]))
    };
    let cores = if mode == Mode::Hot { workers.into() } else { 0 };
    let wanted = Wanted {
        request: &wanted,
        kept_cores: &held.cores,
        cores,
    };
    let held = books.change(lease, &wanted)?;
    Ok(Some(Box::new(HeldTerms {
        lease: *lease,
        workers,
        numbers: Vec::new(),
        mode: held.mode,
        memory_bytes: held.memory_bytes,
    })))
}

pub async fn send(socket: &mut Socket, message: &NodeMessage) {
    // An error means that the manager closed the connection, which the test checks itself.
    let _ = socket
        .send(Message::text(serde_json::to_string(message).unwrap()))
        .await;
}

pub async fn receive(socket: &mut Socket) -> Option<ManagerMessage> {
    loop {
        match socket.next().await?.ok()? {
            Message::Text(text) => return Some(serde_json::from_str(&text).unwrap()),
            Message::Close(_) => return None,
            _ => {}
        }
    }
}

pub const NOTHING: Capacity = Capacity {
    cores: 0,
    memory_bytes: 0,
    workers: MilliCores::ZERO,
    gpus: 0,
};
