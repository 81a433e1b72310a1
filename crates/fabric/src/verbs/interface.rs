//! The IP addresses of network interfaces, found by the address of their hardware: that is how an
//! iWARP device names its port, while its connections are made by IP.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ptr::null_mut;

/// The address of an interface's hardware, as of Ethernet.
pub(super) type Hardware = [u8; 6];

/// The IP addresses of the interfaces whose hardware has this address, IPv4 mapped; without those
/// that hold for one link alone.
///
/// # Errors
/// When the system does not list its interfaces.
pub(super) fn addresses(hardware: Hardware) -> io::Result<Vec<Ipv6Addr>> {
    Ok(of_hardware(&entries()?, hardware))
}

/// A network interface: its name, and one of its addresses.
type Entry = (Vec<u8>, Address);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Address {
    Hardware(Hardware),
    Ip(Ipv6Addr),
}

fn of_hardware(entries: &[Entry], hardware: Hardware) -> Vec<Ipv6Addr> {
    let has = |name: &Vec<u8>| entries.contains(&(name.clone(), Address::Hardware(hardware)));
    let link_local = |ip: &Ipv6Addr| ip.segments()[0] == 0xfe80;
    let ips = entries.iter().filter_map(|(name, address)| match address {
        Address::Ip(ip) if !link_local(ip) && has(name) => Some(*ip),
        _ => None,
    });
    ips.collect()
}

fn entries() -> io::Result<Vec<Entry>> {
    let mut first: *mut libc::ifaddrs = null_mut();
    // SAFETY: the list is written during the call.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut entries = Vec::new();
    let mut at = first;
    // SAFETY: the list ends with a null pointer, and lives until it is freed below.
    while let Some(entry) = unsafe { at.as_ref() } {
        // SAFETY: an entry has a name that ends with a zero byte.
        let name = unsafe { std::ffi::CStr::from_ptr(entry.ifa_name) };
        // SAFETY: its address is null, or as long as its family says.
        let address = unsafe { entry.ifa_addr.as_ref().and_then(|addr| address(addr)) };
        entries.extend(address.map(|address| (name.to_bytes().to_vec(), address)));
        at = entry.ifa_next;
    }
    // SAFETY: made by `getifaddrs`; nothing points into it any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(entries)
}

/// # Safety
/// The address is the front of one of its family.
unsafe fn address(front: &libc::sockaddr) -> Option<Address> {
    let front: *const libc::sockaddr = front;
    // SAFETY: the family says what it is, and the caller that it is whole.
    unsafe {
        match i32::from((*front).sa_family) {
            libc::AF_INET => {
                let v4 = front.cast::<libc::sockaddr_in>().read_unaligned().sin_addr.s_addr;
                Some(Address::Ip(Ipv4Addr::from(v4.to_ne_bytes()).to_ipv6_mapped()))
            }
            libc::AF_INET6 => {
                let v6 = front.cast::<libc::sockaddr_in6>().read_unaligned().sin6_addr.s6_addr;
                Some(Address::Ip(v6.into()))
            }
            libc::AF_PACKET => {
                let link = front.cast::<libc::sockaddr_ll>().read_unaligned();
                let bytes = link.sll_addr.get(..usize::from(link.sll_halen))?;
                bytes.try_into().ok().map(Address::Hardware)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_the_hardware_asked_for() {
        let ip = |text: &str| Address::Ip(text.parse().unwrap());
        let entry = |name: &str, address| (name.as_bytes().to_vec(), address);
        let entries = [
            entry("lo", ip("::1")),
            entry("eth0", Address::Hardware([1; 6])),
            entry("eth1", Address::Hardware([2; 6])),
            entry("eth0", ip("::ffff:10.0.0.1")),
            entry("eth1", ip("::ffff:10.0.0.2")),
            entry("eth1", ip("2001:db8::2")),
            entry("eth1", ip("fe80::2")),
        ];
        let of = |hardware| {
            let found = of_hardware(&entries, hardware);
            found.iter().map(Ipv6Addr::to_string).collect::<Vec<_>>()
        };
        assert_eq!(of([1; 6]), ["::ffff:10.0.0.1"]);
        assert_eq!(of([2; 6]), ["::ffff:10.0.0.2", "2001:db8::2"]);
        assert!(of([3; 6]).is_empty());
    }

    #[test]
    fn the_system_lists_its_loopback() {
        let entries = entries().unwrap();
        let loopback = Address::Ip(Ipv4Addr::LOCALHOST.to_ipv6_mapped());
        assert!(entries.iter().any(|(_, address)| *address == loopback), "{entries:?}");
    }
}
