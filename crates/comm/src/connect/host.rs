//! A rank's host: its identity and its addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::MetadataExt;

use dayfly_rendezvous::messages::MAX_ADDRESSES;

/// Name of the running system and this thread's network. Two ranks with the same name can reach each other's sockets.
pub fn identity() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    // This thread may be in another network namespace than its process.
    let network = std::fs::metadata("/proc/thread-self/ns/net").map_or(0, |net| net.ino());
    format!("{}/{network}", boot.trim())
}

/// Addresses of this host's active interfaces, without the loopback and link-local ones.
pub fn addresses() -> Vec<IpAddr> {
    let mut found = Vec::new();
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the list is written only on success, and is freed below.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return found;
    }
    let mut entry = list;
    while !entry.is_null() {
        // SAFETY: entries of a list that is not freed yet; `ifa_next` of the last one is null.
        let interface = unsafe { &*entry };
        entry = interface.ifa_next;
        if interface.ifa_flags & libc::IFF_UP as libc::c_uint == 0 || interface.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: not null; every address begins with its family.
        let ip = match i32::from(unsafe { (*interface.ifa_addr).sa_family }) {
            libc::AF_INET => {
                // SAFETY: the family determines the type.
                let address = unsafe { &*interface.ifa_addr.cast::<libc::sockaddr_in>() };
                IpAddr::V4(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)))
            }
            libc::AF_INET6 => {
                // SAFETY: the family determines the type.
                let address = unsafe { &*interface.ifa_addr.cast::<libc::sockaddr_in6>() };
                IpAddr::V6(Ipv6Addr::from(address.sin6_addr.s6_addr))
            }
            _ => continue,
        };
        let local = match ip {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        };
        if !ip.is_loopback() && !ip.is_unspecified() && !local && !found.contains(&ip) {
            found.push(ip);
        }
    }
    // SAFETY: getifaddrs returned the list, and no reference to it remains.
    unsafe { libc::freeifaddrs(list) };
    found.truncate(MAX_ADDRESSES);
    found
}
