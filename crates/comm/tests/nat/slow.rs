//! A slow network between sites: every packet is delayed, some are lost, and some overtake others. Not every test
//! kernel has netem. So the outer interfaces of all sites are TUN devices, and a thread carries their packets.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dayfly_comm::Joined;
use dayfly_rendezvous::server::{ServeOptions, Server};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::common;
use super::lab::{Host, Kind, NatBehaviour, Net, Site, world_on};

/// Delay and loss of packets.
#[derive(Debug, Clone, Copy, Default)]
pub struct Impairment {
    /// Delay of each packet.
    pub one_way: Duration,
    /// Largest additional delay, which lets packets overtake others.
    pub jitter: Duration,
    /// Lost packets in a thousand.
    pub lost_of_1000: u32,
}

/// Sites and a rendezvous with a slow network between them.
pub struct SlowNetwork {
    impairment: Impairment,
}

/// Carries packets until it is dropped.
struct PacketForwarder {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

const MTU: usize = 1500;
const TICK: Duration = Duration::from_millis(20);

/// A TUN device in a network. The file reads and writes its packets.
fn tun(net: &Net, name: &str) -> File {
    net.within(|| {
        let file = File::options()
            .read(true)
            .write(true)
            .open("/dev/net/tun")
            .expect("TUN");
        // `struct ifreq`: a name of 16 bytes, flags of 2 bytes, and further fields.
        let mut request = [0u8; 40];
        request[..name.len()].copy_from_slice(name.as_bytes());
        let flags = (libc::IFF_TUN | libc::IFF_NO_PI) as u16;
        request[16..18].copy_from_slice(&flags.to_ne_bytes());
        // SAFETY: the request has the system's length and outlives the call.
        let done = unsafe {
            libc::ioctl(
                std::os::fd::AsRawFd::as_raw_fd(&file),
                libc::TUNSETIFF,
                request.as_mut_ptr(),
            )
        };
        assert_eq!(done, 0, "TUNSETIFF: {}", std::io::Error::last_os_error());
        rustix::io::ioctl_fionbio(&file, true).expect("non-blocking");
        file
    })
}

impl PacketForwarder {
    fn start(impairment: Impairment, ports: Vec<(Ipv4Addr, File)>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || forward_packets(impairment, &ports, &stopped));
        Self {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for PacketForwarder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A generator with the same sequence in every run (xorshift64).
struct Noise(u64);

impl Noise {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        if bound == 0 { 0 } else { self.0 % bound }
    }
}

fn forward_packets(impairment: Impairment, ports: &[(Ipv4Addr, File)], stop: &AtomicBool) {
    let to: HashMap<Ipv4Addr, &File> = ports.iter().map(|(address, file)| (*address, file)).collect();
    let mut under_way: BinaryHeap<Reverse<(Instant, u64, Vec<u8>)>> = BinaryHeap::new();
    let mut noise = Noise(0x5ea);
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        while under_way.peek().is_some_and(|Reverse((due, ..))| *due <= now) {
            let Some(Reverse((.., packet))) = under_way.pop() else {
                break;
            };
            let destination: [u8; 4] = packet[16..20].try_into().expect("four bytes");
            if let Some(mut file) = to.get(&destination.into()).copied() {
                // A packet that the device refuses is lost.
                let _ = file.write(&packet);
            }
        }
        let due = under_way
            .peek()
            .map_or(TICK, |Reverse((due, ..))| due.saturating_duration_since(Instant::now()));
        let mut polled: Vec<PollFd> = ports
            .iter()
            .map(|(_, file)| PollFd::from_borrowed_fd(file.as_fd(), PollFlags::IN))
            .collect();
        let timeout = Timespec::try_from(due.min(TICK)).expect("a short time");
        let _ = poll(&mut polled, Some(&timeout));
        let ready: Vec<bool> = polled.iter().map(|polled| !polled.revents().is_empty()).collect();
        for ((_, file), _) in ports.iter().zip(ready).filter(|(_, ready)| *ready) {
            let mut file: &File = file;
            let mut packet = [0; MTU];
            while let Ok(length) = file.read(&mut packet) {
                let is_ipv4 = length >= 20 && packet[0] >> 4 == 4;
                if is_ipv4 && noise.below(1000) >= u64::from(impairment.lost_of_1000) {
                    let more = noise.below(u64::try_from(impairment.jitter.as_micros()).expect("a short time"));
                    let due = Instant::now() + impairment.one_way + Duration::from_micros(more);
                    number += 1;
                    under_way.push(Reverse((due, number, packet[..length].to_vec())));
                }
            }
        }
    }
}

impl SlowNetwork {
    /// A network with this impairment.
    pub fn new(impairment: Impairment) -> Self {
        Self { impairment }
    }

    /// A group with a rank behind each of these NATs.
    pub fn world(&self, kinds: &[Kind], behaviour: NatBehaviour) -> World {
        let mut ports = Vec::new();
        let server_net = Net::new();
        let at = Ipv4Addr::new(198, 18, 0, 2);
        ports.push((at, tun(&server_net, "eth")));
        server_net.ip(&format!("link set eth up mtu {MTU}\naddress add {at}/16 dev eth"));
        let sites: Vec<Site> = kinds
            .iter()
            .zip(3u8..)
            .map(|(kind, number)| {
                let net = Net::new();
                let outside = Ipv4Addr::new(198, 18, 1, number);
                ports.push((outside, tun(&net, "wan")));
                net.ip(&format!("link set wan up mtu {MTU}\naddress add {outside}/16 dev wan"));
                let number = usize::from(number);
                Site::behind(net, number, outside.to_string(), *kind, behaviour, "10.0.0.1/24")
            })
            .collect();
        let hosts: Vec<Host> = sites.iter().map(Site::host).collect();
        let forwarder = PacketForwarder::start(self.impairment, ports);
        let server = server_net.within(|| {
            common::serve(ServeOptions {
                listen: vec![SocketAddr::from((at, 0))],
                ..ServeOptions::default()
            })
        });
        let ranks = world_on(&hosts.iter().collect::<Vec<_>>(), server.addresses()[0]);
        World {
            ranks,
            _server: server,
            _ferry: forwarder,
            _sites: sites,
            _hosts: hosts,
        }
    }
}

/// Ranks, and the thread that carries their packets.
pub struct World {
    ranks: Vec<Joined>,
    _server: Server,
    _ferry: PacketForwarder,
    _sites: Vec<Site>,
    _hosts: Vec<Host>,
}

impl std::ops::Deref for World {
    type Target = Vec<Joined>;
    fn deref(&self) -> &Self::Target {
        &self.ranks
    }
}

impl std::ops::DerefMut for World {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.ranks
    }
}
