//! Networks of network namespaces: an internet, sites behind NATs of every kind, and hosts.
//!
//! A namespace has no name. A descriptor keeps it, so it disappears with the test, however that ends.

use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use dayfly_comm::{JoinOptions, Joined, join};
use dayfly_protocol::error::Failure;
use dayfly_rendezvous::server::{ServeOptions, Server};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use super::common;

/// Whether the laboratory is unavailable here; prints why. Such a test is skipped.
pub fn unavailable() -> bool {
    static WHY: OnceLock<Option<String>> = OnceLock::new();
    let why = WHY.get_or_init(|| {
        if !rustix::process::geteuid().is_root() {
            return Some("making network namespaces needs root".into());
        }
        for (tool, package) in [("ip", "iproute2"), ("nft", "nftables")] {
            let found = Command::new(tool)
                .arg("-V")
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            if found.is_err() {
                return Some(format!("{tool} not found; install {package}"));
            }
        }
        let rules = "table ip probe { chain c { type nat hook postrouting priority 100; masquerade; }; }\n";
        Net::new()
            .try_run("nft", &["-f", "-"], rules)
            .err()
            .map(|why| format!("this kernel has no NAT for nft: {why}"))
    });
    if let Some(why) = why {
        eprintln!("left out: {why}");
    }
    why.is_some()
}

/// A network namespace.
pub struct Net(OwnedFd);

impl Net {
    /// An empty namespace with its loopback interface up.
    pub fn new() -> Self {
        let made = std::thread::spawn(|| {
            // SAFETY: only this thread leaves its network, and it does nothing except open the new one's file.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.expect("a namespace");
            std::fs::File::open("/proc/thread-self/ns/net").expect("its file")
        });
        let net = Self(made.join().expect("a namespace").into());
        net.ip("link set lo up");
        net.within(|| {
            // The kernel would delay the use of IPv6 addresses to check them.
            std::fs::write("/proc/sys/net/ipv6/ip_nonlocal_bind", "1").expect("a setting");
            for interfaces in ["all", "default"] {
                // Use addresses at once; a NAT that leads back inside must not announce a shorter way.
                for setting in [
                    format!("ipv6/conf/{interfaces}/accept_dad"),
                    format!("ipv4/conf/{interfaces}/send_redirects"),
                ] {
                    std::fs::write(format!("/proc/sys/net/{setting}"), "0").expect("a setting");
                }
            }
        });
        net
    }

    /// Path of the namespace for `ip`.
    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Runs a closure on a thread in this network.
    pub fn within<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        let inside = || {
            move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network)).expect("the namespace");
            what()
        };
        std::thread::scope(|scope| scope.spawn(inside).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    fn try_run(&self, program: &str, arguments: &[&str], input: &str) -> Result<(), String> {
        self.within(|| {
            let mut child = Command::new(program)
                .args(arguments)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .map_err(|error| format!("{program}: {error}"))?;
            if let Some(mut stdin) = child.stdin.take() {
                stdin.write_all(input.as_bytes()).map_err(|error| error.to_string())?;
            }
            let output = child.wait_with_output().map_err(|error| error.to_string())?;
            if output.status.success() {
                Ok(())
            } else {
                Err(format!(
                    "{program} {arguments:?} with\n{input}\n{}",
                    String::from_utf8_lossy(&output.stderr)
                ))
            }
        })
    }

    /// Runs commands of `ip`, one in each line.
    pub fn ip(&self, commands: &str) {
        self.try_run("ip", &["-batch", "-"], commands).expect("ip does it");
    }

    pub fn nft(&self, rules: &str) {
        self.try_run("nft", &["-f", "-"], rules).expect("nft takes the rules");
    }

    /// Forwards packets between its interfaces.
    fn forward(&self) {
        self.within(|| {
            for family in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
                std::fs::write(format!("/proc/sys/net/{family}"), "1").expect("it forwards");
            }
        });
    }
}

/// How a NAT maps and filters (RFC 4787).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One port for all peers; any address may send to it.
    FullCone,
    /// One port for all peers; only addresses that it has sent to may send to it.
    AddressRestricted,
    /// One port for all peers; only addresses and ports that it has sent to may send to it.
    PortRestricted,
    /// A different port for each peer.
    Symmetric,
}

/// Other properties of a site.
#[derive(Debug, Clone, Copy, Default)]
pub struct NatBehaviour {
    /// Hosts reach each other at their outer addresses.
    pub hairpin: bool,
    /// Hosts do not reach each other at their inner addresses.
    pub isolated: bool,
    /// Unknown senders get a reset instead of silence.
    pub resets: bool,
}

/// Hosts behind a NAT.
pub struct Site {
    /// The NAT, with interfaces `wan` and `lan`.
    pub net: Net,
    number: usize,
    outside: String,
    behaviour: NatBehaviour,
    hosts: std::cell::Cell<usize>,
}

/// A host.
pub struct Host {
    /// Its network, with one interface, `eth`.
    pub net: Net,
}

/// An internet. Its direct hosts have addresses in 198.18.0.0/16 and 2001:db8::/64.
pub struct Lab {
    core: Net,
    next: std::cell::Cell<usize>,
}

fn cable(near: &Net, port: &str, bridge: &str, far: &Net, name: &str) {
    near.ip(&format!(
        "link add {port} type veth peer name {name} netns {}\nlink set {port} master {bridge} up",
        far.path()
    ));
}

fn rules(kind: Kind, behaviour: NatBehaviour, outside: &str) -> String {
    let masquerade = if kind == Kind::Symmetric {
        "masquerade fully-random"
    } else {
        "masquerade persistent"
    };
    let inward = match kind {
        Kind::FullCone => "iifname wan dnat to tcp dport map @inside",
        Kind::AddressRestricted => "iifname wan ip saddr . tcp dport @sent dnat to tcp dport map @inside",
        Kind::PortRestricted | Kind::Symmetric => "",
    };
    let hairpin = if behaviour.hairpin {
        [
            format!("iifname lan ip daddr {outside} dnat to tcp dport map @inside"),
            format!("oifname lan ct status dnat snat to {outside}"),
        ]
    } else {
        [String::new(), String::new()]
    };
    format!(
        "table ip nat {{
            map inside {{ type inet_service : ipv4_addr; flags dynamic; size 4096; }}
            set sent {{ type ipv4_addr . inet_service; flags dynamic; size 4096; }}
            chain post {{
                type nat hook postrouting priority 100;
                oifname wan {masquerade}
                {}
            }}
            chain pre {{
                type nat hook prerouting priority -100;
                {inward}
                {}
            }}
            chain note {{
                type filter hook prerouting priority -150;
                iifname lan tcp flags syn update @inside {{ tcp sport : ip saddr }}
                iifname lan tcp flags syn update @sent {{ ip daddr . tcp sport }}
            }}
            chain pass {{
                type filter hook forward priority 0; policy drop;
                ct state established,related accept
                ct status dnat accept
                {}
                iifname lan accept
            }}
            chain own {{
                type filter hook input priority 0;
                iifname wan ct state new {}
            }}
        }}",
        hairpin[1],
        hairpin[0],
        if behaviour.isolated {
            "oifname lan iifname lan drop"
        } else {
            ""
        },
        if behaviour.resets {
            "meta l4proto tcp reject with tcp reset"
        } else {
            "drop"
        },
    )
}

impl Lab {
    /// An internet without hosts.
    pub fn new() -> Self {
        let core = Net::new();
        core.ip("link add core type bridge mcast_snooping 0\nlink set core up\naddress add 198.18.0.1/16 dev core\naddress add 2001:db8::1/64 dev core");
        core.forward();
        Self {
            core,
            next: std::cell::Cell::new(2),
        }
    }

    fn number(&self) -> usize {
        let number = self.next.get();
        self.next.set(number + 1);
        number
    }

    /// A host that all others can reach.
    pub fn host(&self) -> Host {
        let number = self.number();
        let net = Net::new();
        cable(&self.core, &format!("p{number}"), "core", &net, "eth");
        net.ip(&format!(
            "link set eth up\naddress add 198.18.0.{number}/16 dev eth\naddress add 2001:db8::{number:x}/64 dev eth\n\
             route add default via 198.18.0.1\nroute add ::/0 via 2001:db8::1"
        ));
        Host { net }
    }

    /// A rendezvous on its own host, with its addresses of both families.
    pub fn server(&self) -> (Server, [SocketAddr; 2]) {
        let number = self.next.get();
        let host = self.host();
        let listen = vec![
            SocketAddr::new(format!("198.18.0.{number}").parse().expect("an address"), 0),
            SocketAddr::new(format!("2001:db8::{number:x}").parse().expect("an address"), 0),
        ];
        let server = host.net.within(|| {
            common::serve(ServeOptions {
                listen,
                ..ServeOptions::default()
            })
        });
        let addresses = [server.addresses()[0], server.addresses()[1]];
        (server, addresses)
    }

    /// A site with its own NAT. All sites have the same inner addresses.
    pub fn site(&self, kind: Kind, behaviour: NatBehaviour) -> Site {
        let number = self.number();
        let net = Net::new();
        cable(&self.core, &format!("p{number}"), "core", &net, "wan");
        let outside = format!("198.18.1.{number}");
        net.ip(&format!(
            "link set wan up\naddress add {outside}/16 dev wan\naddress add 2001:db8::1:{number:x}/64 dev wan\n\
             route add ::/0 via 2001:db8::1"
        ));
        self.core.ip(&format!(
            "route add 2001:db8:{number:x}::/64 via 2001:db8::1:{number:x}"
        ));
        Site::behind(net, number, outside, kind, behaviour, "10.0.0.1/24")
    }
}

impl Site {
    pub fn behind(net: Net, number: usize, outside: String, kind: Kind, behaviour: NatBehaviour, inner: &str) -> Self {
        net.ip(&format!(
            "link add lan type bridge mcast_snooping 0\nlink set lan up\naddress add {inner} dev lan"
        ));
        net.forward();
        net.nft(&rules(kind, behaviour, &outside));
        Self {
            net,
            number,
            outside,
            behaviour,
            hosts: std::cell::Cell::new(10),
        }
    }

    fn plug(&self, far: &Net, name: &str) -> usize {
        let host = self.hosts.get();
        self.hosts.set(host + 1);
        cable(&self.net, &format!("h{host}"), "lan", far, name);
        host
    }

    /// A host in this site.
    pub fn host(&self) -> Host {
        let net = Net::new();
        let host = self.plug(&net, "eth");
        // On a network that isolates its hosts, all packets go to the router.
        let prefix = if self.behaviour.isolated { 32 } else { 24 };
        net.ip(&format!(
            "link set eth up\naddress add 10.0.0.{host}/{prefix} dev eth\n\
             route replace 10.0.0.1 dev eth\nroute add default via 10.0.0.1"
        ));
        Host { net }
    }

    /// A host in this site that also has an IPv6 address, without a NAT.
    pub fn host_with_ipv6(&self) -> Host {
        let host = self.host();
        let number = self.number;
        let at = self.hosts.get();
        self.net
            .ip(&format!("address replace 2001:db8:{number:x}::1/64 dev lan"));
        host.net.ip(&format!(
            "address add 2001:db8:{number:x}::{at:x}/64 dev eth\nroute add ::/0 via 2001:db8:{number:x}::1"
        ));
        host
    }

    /// A site within this one, which acts as its carrier.
    pub fn site(&self, kind: Kind) -> Site {
        let net = Net::new();
        let host = self.plug(&net, "wan");
        let outside = format!("10.0.0.{host}");
        net.ip(&format!(
            "link set wan up\naddress add {outside}/24 dev wan\nroute add default via 10.0.0.1"
        ));
        Site::behind(
            net,
            self.number,
            outside,
            kind,
            NatBehaviour::default(),
            "192.168.0.1/24",
        )
    }

    /// A host in a site within a site.
    pub fn inner_host(&self) -> Host {
        let net = Net::new();
        let host = self.plug(&net, "eth");
        net.ip(&format!(
            "link set eth up\naddress add 192.168.0.{host}/24 dev eth\nroute add default via 192.168.0.1"
        ));
        Host { net }
    }

    /// Replaces the outer address by another one.
    pub fn move_house(&self) {
        let outside = &self.outside;
        let number = self.number;
        self.net.ip(&format!(
            "address del {outside}/16 dev wan\naddress add 198.18.2.{number}/16 dev wan"
        ));
    }
}

/// Joins a rank on each host, in order, with these options.
pub fn join_on(hosts: &[&Host], options: &JoinOptions) -> Vec<Result<Joined, Failure>> {
    std::thread::scope(|scope| {
        let spawn = |(host, rank)| {
            let options = JoinOptions {
                rank: Some(rank),
                ..options.clone()
            };
            let host: &Host = host;
            scope.spawn(move || host.net.within(|| join(&options)))
        };
        let threads: Vec<_> = hosts.iter().copied().zip(0u32..).map(spawn).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a rank does not panic"))
            .collect()
    })
}

/// As [`join_on`], for a group that must form.
pub fn world_on(hosts: &[&Host], server: SocketAddr) -> Vec<Joined> {
    let size = u32::try_from(hosts.len()).expect("a size");
    let joined = join_on(hosts, &common::at(server, "lab", size));
    joined.into_iter().map(|joined| joined.expect("a rank joins")).collect()
}
