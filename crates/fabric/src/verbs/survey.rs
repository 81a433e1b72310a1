//! A survey of the devices, and of the one that would be used, for people.

use std::fmt;
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};

use super::cm::CmLibrary;
use super::device::{DeviceChoice, DeviceInfo, choose, open_all};
use super::library::Library;
use super::{Connect, VerbsFabric, VerbsOptions};
use crate::multicast::Group;
use crate::{Caps, Fabric, FabricError, LinkId};

/// The RDMA devices of this machine as this process sees them.
#[derive(Debug, Clone)]
pub struct Survey {
    /// Devices, or why there is no library to ask.
    pub devices: Result<Vec<DeviceInfo>, String>,
    /// Devices that do not open.
    pub refused: Vec<String>,
    /// The device that would be used, or the reason why none can.
    pub choice: Result<DeviceChoice, String>,
    /// By what it would connect.
    pub connect: Connect,
    /// Whether notices are messages even if the device carries immediate data.
    pub send_only: bool,
    /// Why librdmacm cannot be used; `None` where it can.
    pub rdma_cm_missing: Option<String>,
    /// Bytes that this process may pin; `None` without a limit.
    pub locked_max: Option<u64>,
}

/// Looks at all devices with these options. Opens each and uses none.
pub fn survey(options: &VerbsOptions) -> Survey {
    let locked_max = getrlimit(Resource::Memlock).current;
    let VerbsOptions { connect, send_only, .. } = *options;
    let rdma_cm_missing = CmLibrary::open().err().map(|missing| missing.to_string());
    let library = match Library::open() {
        Ok(library) => library,
        Err(missing) => {
            let reason = missing.to_string();
            let choice = Err(reason.clone());
            let (devices, refused) = (Err(reason), Vec::new());
            return Survey {
                devices,
                refused,
                choice,
                connect,
                send_only,
                rdma_cm_missing,
                locked_max,
            };
        }
    };
    let (opened, refused) = open_all(&library);
    let devices: Vec<DeviceInfo> = opened.iter().map(|device| device.info.clone()).collect();
    let choice = choose(&devices, options);
    let devices = Ok(devices);
    Survey { devices, refused, choice, connect, send_only, rdma_cm_missing, locked_max }
}

/// Connects the device with itself, and says what such a connection can do: how writes become known
/// is settled only then.
///
/// # Errors
/// As [`VerbsFabric::new`] and `connect`.
pub fn probe(options: &VerbsOptions) -> Result<Caps, FabricError> {
    let fabric = VerbsFabric::new(options.clone())?;
    let here = fabric.offer(LinkId { local: 0, remote: 1 })?;
    let there = fabric.offer(LinkId { local: 1, remote: 0 })?;
    let (of_here, of_there) = (here.address(), there.address());
    std::thread::scope(|scope| {
        // Neither leaves before both are connected.
        let other = scope.spawn(move || there.connect(&of_here));
        let end = here.connect(&of_there)?;
        match other.join() {
            Ok(other) => other.map(|_other| end.caps()),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Has the device send datagrams to a group of two of its own members: how many bytes one has, and
/// whether they arrive within a second. `None` where there are no groups.
///
/// # Errors
/// As [`VerbsFabric::new`], and when the group cannot be joined.
pub fn probe_groups(options: &VerbsOptions) -> Result<Option<(usize, bool)>, FabricError> {
    let fabric = VerbsFabric::new(options.clone())?;
    let Some(multicast) = fabric.multicast() else { return Ok(None) };
    let random = |source| FabricError::Connect { link: "a group".into(), source };
    let group = Group::random().map_err(random)?;
    let [mut from, mut to] = [multicast.join(group)?, multicast.join(group)?];
    let start = Instant::now();
    let mut arrives = false;
    while !arrives && start.elapsed() < Duration::from_secs(1) {
        // Datagrams that get lost, or find the queue full, are sent again.
        let _ = from.send(b"millstream");
        std::thread::sleep(Duration::from_millis(10));
        to.poll(&mut |bytes| arrives |= bytes == b"millstream");
    }
    Ok(Some((multicast.datagram_max(), arrives)))
}

impl fmt::Display for Survey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices = match &self.devices {
            Err(reason) => return writeln!(f, "libibverbs: {reason}"),
            Ok(devices) => devices,
        };
        match self.locked_max {
            None => writeln!(f, "locked memory  no limit")?,
            Some(bytes) => writeln!(f, "locked memory  {} KiB at most", bytes / 1024)?,
        }
        for reason in &self.refused {
            writeln!(f, "refused        {reason}")?;
        }
        for device in devices {
            write_device(f, device)?;
        }
        match (self.connect, &self.rdma_cm_missing) {
            (Connect::RdmaCm, None) => writeln!(f, "would connect  by rdma_cm")?,
            (Connect::RdmaCm, Some(reason)) => writeln!(f, "would connect  not at all: {reason}")?,
            (Connect::Tcp, None) => writeln!(f, "would connect  by tcp; rdma_cm is there too")?,
            (Connect::Tcp, Some(_)) => writeln!(f, "would connect  by tcp; rdma_cm is not there")?,
        }
        let choice = match &self.choice {
            Err(reason) => return writeln!(f, "would use      nothing: {reason}"),
            Ok(choice) => choice,
        };
        let carries = |device: &DeviceInfo| device.name == choice.device && device.infiniband;
        let notices = match (self.send_only, devices.iter().any(carries)) {
            (false, true) => "with immediate data",
            (true, _) => "as messages, as asked for",
            (false, false) => "as messages: the device carries no immediate data",
        };
        writeln!(f, "would notify   {notices}")?;
        writeln!(
            f,
            "would use      {} port {} gid {} ({} {}), mtu {}: {}",
            choice.device,
            choice.port,
            choice.gid.index,
            choice.gid.kind,
            choice.gid.address,
            choice.mtu,
            choice.why
        )
    }
}

fn write_device(f: &mut fmt::Formatter<'_>, device: &DeviceInfo) -> fmt::Result {
    let made_of = if device.software { "software" } else { "hardware" };
    let transport = if device.infiniband { "InfiniBand or RoCE" } else { "iWARP or other" };
    let atomics = ["none", "among themselves", "also with the processor"];
    writeln!(f, "device         {} ({made_of}, {transport})", device.name)?;
    if !device.firmware.is_empty() {
        writeln!(f, "  firmware     {}", device.firmware)?;
    }
    writeln!(
        f,
        "  limits       {} queue pairs of {} requests, {} shared receives, {} completions, \
         {} regions, {}/{} reads in/out, atomics {}, {} groups",
        device.queue_pairs_max,
        device.requests_max,
        device.shared_receives_max,
        device.completions_max,
        device.regions_max,
        device.reads_max.0,
        device.reads_max.1,
        atomics[usize::from(device.atomics).min(2)],
        device.groups_max,
    )?;
    for port in &device.ports {
        let state = if port.active { "active" } else { "down" };
        writeln!(
            f,
            "  port {}       {state}, {} Gbit/s, mtu {}, messages up to {} KiB, lid {}",
            port.number,
            port.gbits,
            port.mtu,
            port.message_max / 1024,
            port.lid
        )?;
        for gid in &port.gids {
            writeln!(f, "    gid {:<6} {} {}", gid.index, gid.kind, gid.address)?;
        }
    }
    Ok(())
}
