//! The choice of a device, with its port and address.

use std::ffi::{CStr, c_int};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::ptr::NonNull;
use std::sync::Arc;

use super::interface;
use super::library::Library;
use super::objects::Domain;
use super::sys;
use super::{Connect, VerbsOptions};

/// Entries of a port's address table that are looked at.
const GIDS_MAX: usize = 1024;
/// The vendor that Soft-RoCE and Soft-iWARP report.
const VENDORS_SOFTWARE: [u32; 2] = [0xff_ffff, 0x62_6d74];

/// A device as the library describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Name, as `ibv_devices` prints it.
    pub name: String,
    /// InfiniBand or RoCE. Others, as iWARP, do not carry immediate data.
    pub infiniband: bool,
    /// Runs over TCP, and is connected by rdma_cm alone.
    pub iwarp: bool,
    /// The kernel does the device's work.
    pub software: bool,
    /// Firmware, where there is one.
    pub firmware: String,
    /// Queue pairs.
    pub queue_pairs_max: u32,
    /// Requests of a queue pair.
    pub requests_max: u32,
    /// Receives of a shared queue; zero where there is none.
    pub shared_receives_max: u32,
    /// Entries of a completion queue.
    pub completions_max: u32,
    /// Reads and atomics that a queue pair answers, and that it asks, at a time.
    pub reads_max: (u32, u32),
    /// Regions.
    pub regions_max: u32,
    /// 0 none, 1 among themselves, 2 also with the processor.
    pub atomics: u8,
    /// Groups of datagrams.
    pub groups_max: u32,
    /// Ports.
    pub ports: Vec<PortInfo>,
}

/// A port of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortInfo {
    /// Counted from 1.
    pub number: u8,
    /// Traffic can flow.
    pub active: bool,
    /// Bytes of a packet.
    pub mtu: u32,
    /// Bytes of a message.
    pub message_max: u32,
    /// Address within an InfiniBand subnet; zero on Ethernet.
    pub lid: u16,
    /// Nominal rate in Gbit/s.
    pub gbits: u32,
    /// Addresses.
    pub gids: Vec<GidInfo>,
}

/// The kind of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum GidKind {
    /// RoCE in Ethernet frames: does not cross routers.
    RoceV1,
    /// InfiniBand.
    Infiniband,
    /// RoCE in UDP.
    RoceV2,
    /// iWARP: the address is one of the port's network interface.
    Iwarp,
}

/// An address of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GidInfo {
    /// Place in the port's table.
    pub index: u32,
    /// Its kind.
    pub kind: GidKind,
    /// The address; IPv4 is mapped.
    pub address: Ipv6Addr,
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GidKind::RoceV1 => "RoCE v1",
            GidKind::Infiniband => "InfiniBand",
            GidKind::RoceV2 => "RoCE v2",
            GidKind::Iwarp => "iWARP",
        })
    }
}

/// The device in use, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceChoice {
    /// The device's name.
    pub device: String,
    /// The port.
    pub port: u8,
    /// The address.
    pub gid: GidInfo,
    /// Bytes of a packet.
    pub mtu: u32,
    /// Why this one.
    pub why: String,
}

/// A device that was opened to look at it.
pub(super) struct Opened {
    library: Arc<Library>,
    context: NonNull<sys::Context>,
    pub(super) info: DeviceInfo,
}

impl Opened {
    /// Goes on to use the device.
    ///
    /// # Errors
    /// When it has no protection domain left.
    pub(super) fn into_domain(self) -> io::Result<Domain> {
        let this = std::mem::ManuallyDrop::new(self);
        let iwarp = this.info.iwarp;
        // SAFETY: read once, out of a value that is not dropped.
        let library = unsafe { std::ptr::read(&raw const this.library) };
        // SAFETY: as above; the name is not needed any more.
        drop(unsafe { std::ptr::read(&raw const this.info) });
        // SAFETY: opened by this library; `this` is not dropped, so that nobody else closes it.
        unsafe { Domain::new(library, this.context, iwarp) }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: opened by us, and nothing was made in it.
        unsafe { (self.library.ibv_close_device)(self.context.as_ptr()) };
    }
}

/// Opens every device. Those that cannot be opened are named with the reason.
pub(super) fn open_all(library: &Arc<Library>) -> (Vec<Opened>, Vec<String>) {
    let (mut opened, mut refused) = (Vec::new(), Vec::new());
    let mut n: c_int = 0;
    // SAFETY: the count is written during the call.
    let list = unsafe { (library.ibv_get_device_list)(&raw mut n) };
    if list.is_null() {
        refused.push(format!("no device list: {}", io::Error::last_os_error()));
        return (opened, refused);
    }
    for i in 0..usize::try_from(n).unwrap_or(0) {
        // SAFETY: the list has `n` devices, whose names end with a zero byte.
        let (device, name) = unsafe {
            let device = *list.add(i);
            let name = CStr::from_ptr((library.ibv_get_device_name)(device));
            (device, name.to_string_lossy().into_owned())
        };
        // SAFETY: the device is in the list, which is freed below.
        let context = unsafe { (library.ibv_open_device)(device) };
        let Some(context) = NonNull::new(context) else {
            refused.push(format!("{name} cannot be opened: {}", io::Error::last_os_error()));
            continue;
        };
        // SAFETY: as above.
        let transport = unsafe { (*device).transport_type };
        match describe(library, context, name, transport) {
            Ok(info) => opened.push(Opened { library: library.clone(), context, info }),
            Err(reason) => {
                refused.push(reason);
                // SAFETY: opened above, and nothing was made in it.
                unsafe { (library.ibv_close_device)(context.as_ptr()) };
            }
        }
    }
    // SAFETY: made by the library; opened devices do not need the list.
    unsafe { (library.ibv_free_device_list)(list) };
    (opened, refused)
}

fn describe(
    library: &Library,
    context: NonNull<sys::Context>,
    name: String,
    transport: c_int,
) -> Result<DeviceInfo, String> {
    // SAFETY: all fields are numbers, for which zero is a value.
    let mut attr: sys::DeviceAttr = unsafe { std::mem::zeroed() };
    // SAFETY: the context is open and the structure is complete.
    let code = unsafe { (library.ibv_query_device)(context.as_ptr(), &raw mut attr) };
    if code != 0 {
        return Err(format!("{name} cannot be queried: error {code}"));
    }
    let count = |n: c_int| u32::try_from(n).unwrap_or(0);
    let mut gids = gids(library, context);
    if transport == sys::TRANSPORT_IWARP {
        gids = gids.into_iter().flat_map(|(port, gid)| by_interface(port, gid)).collect();
    }
    let ports = (1..=attr.phys_port_cnt)
        .filter_map(|number| port(library, context, number, &gids))
        .collect();
    let firmware: Vec<u8> = attr.fw_ver.iter().copied().take_while(|byte| *byte != 0).collect();
    Ok(DeviceInfo {
        name,
        infiniband: transport == sys::TRANSPORT_IB,
        iwarp: transport == sys::TRANSPORT_IWARP,
        software: VENDORS_SOFTWARE.contains(&attr.vendor_id),
        firmware: String::from_utf8_lossy(&firmware).into_owned(),
        queue_pairs_max: count(attr.max_qp),
        requests_max: count(attr.max_qp_wr),
        shared_receives_max: if attr.max_srq > 0 { count(attr.max_srq_wr) } else { 0 },
        completions_max: count(attr.max_cqe),
        reads_max: (count(attr.max_qp_rd_atom), count(attr.max_qp_init_rd_atom)),
        regions_max: count(attr.max_mr),
        atomics: attr.atomic_cap.clamp(sys::ATOMIC_NONE, sys::ATOMIC_GLOB) as u8,
        groups_max: count(attr.max_mcast_grp),
        ports,
    })
}

fn port(
    library: &Library,
    context: NonNull<sys::Context>,
    number: u8,
    gids: &[(u8, GidInfo)],
) -> Option<PortInfo> {
    // SAFETY: all fields are numbers, for which zero is a value.
    let mut attr: sys::PortAttr = unsafe { std::mem::zeroed() };
    // SAFETY: the context is open and the structure is at least as long as what is filled.
    if unsafe { (library.ibv_query_port)(context.as_ptr(), number, &raw mut attr) } != 0 {
        return None;
    }
    Some(PortInfo {
        number,
        active: matches!(attr.state, sys::PORT_ACTIVE | sys::PORT_ACTIVE_DEFER),
        mtu: sys::mtu_bytes(attr.active_mtu),
        message_max: attr.max_msg_sz,
        lid: attr.lid,
        gbits: rate(attr.active_width, attr.active_speed),
        gids: gids.iter().filter(|(port, _)| *port == number).map(|(_, gid)| *gid).collect(),
    })
}

/// Valid addresses of all ports.
fn gids(library: &Library, context: NonNull<sys::Context>) -> Vec<(u8, GidInfo)> {
    let empty =
        sys::GidEntry { gid: [0; 2], gid_index: 0, port_num: 0, gid_type: 0, ndev_ifindex: 0 };
    let mut table = vec![empty; GIDS_MAX];
    let entry = size_of::<sys::GidEntry>();
    // SAFETY: the context is open and the table has room for this number of entries of this size.
    let n = unsafe {
        let room = table.len();
        (library._ibv_query_gid_table)(context.as_ptr(), table.as_mut_ptr(), room, 0, entry)
    };
    table.truncate(usize::try_from(n).unwrap_or(0));
    let info = |entry: &sys::GidEntry| {
        let kind = match entry.gid_type {
            sys::GID_IB => GidKind::Infiniband,
            sys::GID_ROCE_V1 => GidKind::RoceV1,
            sys::GID_ROCE_V2 => GidKind::RoceV2,
            _ => return None,
        };
        let mut octets = [0; 16];
        octets[..8].copy_from_slice(&entry.gid[0].to_ne_bytes());
        octets[8..].copy_from_slice(&entry.gid[1].to_ne_bytes());
        let address = Ipv6Addr::from(octets);
        let port = u8::try_from(entry.port_num).ok()?;
        Some((port, GidInfo { index: entry.gid_index, kind, address }))
    };
    table.iter().filter_map(info).collect()
}

/// The addresses of an iWARP port, which names itself by that of its hardware.
fn by_interface(port: u8, gid: GidInfo) -> Vec<(u8, GidInfo)> {
    let octets = gid.address.octets();
    let found = interface::addresses(std::array::from_fn(|at| octets[at])).unwrap_or_default();
    let as_gid = |address| (port, GidInfo { kind: GidKind::Iwarp, address, ..gid });
    found.into_iter().map(as_gid).collect()
}

/// Gbit/s of a link, by the library's codes for lanes and for the rate of a lane.
fn rate(width: u8, speed: u8) -> u32 {
    let lanes = match width {
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 1,
    };
    let tenths = match speed {
        1 => 25,
        2 => 50,
        4 | 8 => 100,
        16 => 140,
        32 => 250,
        64 => 500,
        128 => 1000,
        _ => 0,
    };
    lanes * tenths / 10
}

/// How good an address is; the largest is taken.
type Rank = (bool, bool, u32, u32);

/// Takes the best device, port and address that the options allow.
///
/// An address that equals the one that peers reach this process by comes first; then hardware
/// before software, the faster port, and of a port's addresses RoCE v2 over IPv4, which crosses
/// routers and is what networks are set up for.
///
/// # Errors
/// The reason, in words.
pub(super) fn choose(
    devices: &[DeviceInfo],
    options: &VerbsOptions,
) -> Result<DeviceChoice, String> {
    if devices.is_empty() {
        return Err("there is no RDMA device (`rdma link` lists them)".into());
    }
    let wanted = options.advertise.unwrap_or(options.bind);
    let mut refused = Vec::new();
    let mut best: Option<(Rank, DeviceChoice)> = None;
    for device in devices {
        if let Some(reason) = unusable(device, options) {
            refused.push(format!("{}: {reason}", device.name));
            continue;
        }
        for port in &device.ports {
            if let Some(reason) = closed(port, options) {
                refused.push(format!("{} port {}: {reason}", device.name, port.number));
                continue;
            }
            for gid in &port.gids {
                if options.gid_index.is_some_and(|index| index != gid.index) {
                    continue;
                }
                let same = is_same(gid.address, wanted);
                let rank = (same, !device.software, port.gbits, preference(gid));
                if best.as_ref().is_none_or(|(least, _)| rank > *least) {
                    best = Some((rank, choice(device, port, gid, options, same)));
                }
            }
        }
    }
    best.map(|(_, choice)| choice).ok_or_else(|| {
        if refused.is_empty() {
            match options.gid_index {
                Some(index) => format!("no port has an address with index {index}"),
                None => "no port has an address".into(),
            }
        } else {
            refused.join("; ")
        }
    })
}

fn unusable(device: &DeviceInfo, options: &VerbsOptions) -> Option<String> {
    if options.device.as_ref().is_some_and(|name| *name != device.name) {
        return Some(format!("not the one asked for ({})", options.device.as_deref()?));
    }
    if device.iwarp && options.connect == Connect::Tcp {
        return Some("is iWARP, which rdma_cm alone connects: add connect=rdma_cm".into());
    }
    if device.shared_receives_max == 0 {
        return Some("has no shared receive queues".into());
    }
    None
}

fn closed(port: &PortInfo, options: &VerbsOptions) -> Option<String> {
    if options.port.is_some_and(|number| number != port.number) {
        return Some("not the one asked for".into());
    }
    if !port.active {
        return Some("not active (cable, subnet manager or network interface)".into());
    }
    None
}

fn is_same(gid: Ipv6Addr, wanted: IpAddr) -> bool {
    match wanted {
        IpAddr::V4(v4) => gid.to_ipv4_mapped() == Some(v4),
        IpAddr::V6(v6) => gid == v6,
    }
}

fn preference(gid: &GidInfo) -> u32 {
    let local = gid.address.segments()[0] == 0xfe80;
    match (gid.kind, gid.address.to_ipv4_mapped().is_some(), local) {
        (GidKind::RoceV2 | GidKind::Iwarp, true, _) => 5,
        (GidKind::RoceV2 | GidKind::Iwarp, false, false) => 4,
        (GidKind::Infiniband, ..) => 3,
        (GidKind::RoceV1, true, _) => 2,
        (GidKind::RoceV2 | GidKind::Iwarp, false, true) => 1,
        (GidKind::RoceV1, false, _) => 0,
    }
}

fn choice(
    device: &DeviceInfo,
    port: &PortInfo,
    gid: &GidInfo,
    options: &VerbsOptions,
    same: bool,
) -> DeviceChoice {
    let asked = [
        options.device.as_ref().map(|_| "device"),
        options.port.map(|_| "port"),
        options.gid_index.map(|_| "gid index"),
    ];
    let asked: Vec<_> = asked.into_iter().flatten().collect();
    let mut why = match (same, device.software) {
        (true, _) => "its address is the one that peers reach this process by".to_string(),
        (false, false) => format!("hardware, {} Gbit/s, {}", port.gbits, gid.kind),
        (false, true) => format!("software only, {}", gid.kind),
    };
    if !asked.is_empty() {
        why += &format!(" ({} as asked for)", asked.join(", "));
    }
    let mtu = options.mtu.map_or(port.mtu, |mtu| mtu.min(port.mtu));
    DeviceChoice { device: device.name.clone(), port: port.number, gid: *gid, mtu, why }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn gid(index: u32, kind: GidKind, address: &str) -> GidInfo {
        GidInfo { index, kind, address: address.parse().expect("an address") }
    }

    fn device(name: &str, software: bool, gbits: u32, gids: Vec<GidInfo>) -> DeviceInfo {
        let port = PortInfo {
            number: 1,
            active: true,
            mtu: 4096,
            message_max: 1 << 30,
            lid: 0,
            gbits,
            gids,
        };
        DeviceInfo {
            name: name.into(),
            infiniband: true,
            iwarp: false,
            software,
            firmware: String::new(),
            queue_pairs_max: 100,
            requests_max: 100,
            shared_receives_max: 100,
            completions_max: 100,
            reads_max: (16, 16),
            regions_max: 100,
            atomics: 1,
            groups_max: 8,
            ports: vec![port],
        }
    }

    fn table(v4: &str) -> Vec<GidInfo> {
        vec![
            gid(0, GidKind::RoceV1, "fe80::1"),
            gid(1, GidKind::RoceV2, "fe80::1"),
            gid(2, GidKind::RoceV1, v4),
            gid(3, GidKind::RoceV2, v4),
        ]
    }

    fn chosen(devices: &[DeviceInfo], options: &VerbsOptions) -> (String, u32) {
        let choice = choose(devices, options).expect("one is good enough");
        (choice.device, choice.gid.index)
    }

    #[test]
    fn hardware_speed_and_routable_addresses_come_first() {
        let soft = device("rxe0", true, 400, table("::ffff:10.0.0.1"));
        let slow = device("mlx5_0", false, 25, table("::ffff:10.0.0.2"));
        let fast = device("mlx5_1", false, 100, table("::ffff:10.0.1.2"));
        let all = [soft, slow, fast];
        assert_eq!(chosen(&all, &VerbsOptions::default()), ("mlx5_1".into(), 3));
        assert_eq!(chosen(&all[..1], &VerbsOptions::default()), ("rxe0".into(), 3));
        let at = |last| Some(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)));
        let options = VerbsOptions { advertise: at(1), ..VerbsOptions::default() };
        assert_eq!(chosen(&all, &options), ("rxe0".into(), 3));
        let options = VerbsOptions { advertise: at(2), ..VerbsOptions::default() };
        assert_eq!(chosen(&all, &options), ("mlx5_0".into(), 3));
        let options = VerbsOptions { device: Some("mlx5_0".into()), gid_index: Some(1), ..options };
        assert_eq!(chosen(&all, &options), ("mlx5_0".into(), 1));
    }

    #[test]
    fn what_stands_in_the_way_is_said() {
        let refusal = |devices: &[DeviceInfo], options: &VerbsOptions| {
            choose(devices, options).expect_err("nothing is good enough")
        };
        let default = VerbsOptions::default();
        assert!(refusal(&[], &default).contains("no RDMA device"));
        let good = device("mlx5_0", false, 100, table("::ffff:10.0.0.2"));
        let mut down = good.clone();
        down.ports[0].active = false;
        assert!(refusal(&[down], &default).contains("mlx5_0 port 1: not active"));
        let iwarp = DeviceInfo { infiniband: false, iwarp: true, ..good.clone() };
        assert!(refusal(std::slice::from_ref(&iwarp), &default).contains("connect=rdma_cm"));
        let by_cm = VerbsOptions { connect: Connect::RdmaCm, ..VerbsOptions::default() };
        assert!(choose(&[iwarp], &by_cm).is_ok());
        let none = DeviceInfo { shared_receives_max: 0, ..good.clone() };
        assert!(refusal(&[none], &default).contains("shared receive"));
        let options = VerbsOptions { device: Some("mlx5_7".into()), ..VerbsOptions::default() };
        assert!(refusal(std::slice::from_ref(&good), &options).contains("mlx5_7"));
        let options = VerbsOptions { gid_index: Some(99), ..VerbsOptions::default() };
        assert!(refusal(&[good], &options).contains("index 99"));
    }

    #[test]
    fn a_rate_is_lanes_by_lane() {
        assert_eq!([rate(2, 32), rate(2, 64), rate(1, 1), rate(2, 128)], [100, 200, 2, 400]);
    }
}
