//! Options of the user, as values and as text.

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;
use std::time::Duration;

use crate::Publish;

/// By what two sides meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Connect {
    /// A handshake of our own over a TCP socket, which stays open and says when the peer is gone.
    #[default]
    Tcp,
    /// The connection manager of rdma-core.
    RdmaCm,
}

/// How a [`VerbsFabric`](super::VerbsFabric) behaves.
#[derive(Debug, Clone)]
pub struct VerbsOptions {
    /// Name of the device; `None` takes the best one.
    pub device: Option<String>,
    /// Its port, counted from 1; `None` takes the best one.
    pub port: Option<u8>,
    /// Place of the address in the port's table; `None` takes the best one.
    pub gid_index: Option<u32>,
    /// Place of the partition key in the port's table.
    pub pkey_index: u16,
    /// Bytes of a packet at most; the smaller of the two sides holds.
    pub mtu: Option<u32>,
    /// Service level, 0 to 15.
    pub service_level: u8,
    /// Traffic class of RoCE packets (DSCP in the upper six bits).
    pub traffic_class: u8,
    /// By what connections are made; the same on both sides.
    pub connect: Connect,
    /// Where to listen for the handshake; a port is chosen by the system.
    pub bind: IpAddr,
    /// Where peers reach this process, if that is not `bind`. A device with this address is
    /// preferred.
    pub advertise: Option<IpAddr>,
    /// The strongest mode to promise; `None` leaves it to the devices.
    pub publish: Option<Publish>,
    /// Notices go as messages of their own, as where a device carries no immediate data.
    pub send_only: bool,
    /// Lets devices write to exported memory in any order. Rules [`Publish::InOrderPoll`] out.
    pub relaxed_ordering: bool,
    /// How long `connect` waits for the peer.
    pub connect_timeout: Duration,
    /// How long a packet may stay unacknowledged, as a power of two: 4.096 µs · 2ⁿ, n from 1 to 31.
    /// After eight of these in a row the connection is lost.
    pub ack_timeout: u8,
    /// Operations that can be outstanding on an endpoint.
    pub ops_max: u32,
    /// Receives of all connections together.
    pub receives_max: u32,
}

impl Default for VerbsOptions {
    fn default() -> Self {
        Self {
            device: None,
            port: None,
            gid_index: None,
            pkey_index: 0,
            mtu: None,
            service_level: 0,
            traffic_class: 0,
            connect: Connect::Tcp,
            bind: IpAddr::V4(Ipv4Addr::LOCALHOST),
            advertise: None,
            publish: None,
            send_only: false,
            relaxed_ordering: false,
            connect_timeout: Duration::from_secs(10),
            ack_timeout: 18,
            ops_max: 256,
            receives_max: 4096,
        }
    }
}

/// The keys of the text form, with an example of each.
const KEYS: [(&str, &str); 14] = [
    ("device", "mlx5_0"),
    ("port", "1"),
    ("gid", "3"),
    ("pkey", "0"),
    ("mtu", "4096"),
    ("sl", "0"),
    ("tclass", "106"),
    ("connect", "rdma_cm"),
    ("bind", "10.0.0.1"),
    ("advertise", "10.0.0.1"),
    ("publish", "notify"),
    ("relaxed", "yes"),
    ("ack_timeout", "18"),
    ("receives", "4096"),
];

/// `key=value` pairs with commas, as in `device=mlx5_0,gid=3`; other keys keep their defaults.
impl FromStr for VerbsOptions {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut options = Self::default();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (key, value) = pair
                .split_once('=')
                .map(|(key, value)| (key.trim(), value.trim()))
                .ok_or_else(|| format!("'{pair}': write key=value, as in {}", example("device")))?;
            options.set(key, value)?;
        }
        if options.connect == Connect::RdmaCm && options.pkey_index != 0 {
            return Err("pkey: with connect=rdma_cm it is that of the network interface".into());
        }
        Ok(options)
    }
}

impl VerbsOptions {
    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "device" => self.device = Some(value.to_string()),
            "port" => self.port = Some(number(key, value, 1, 255)?),
            "gid" => self.gid_index = Some(number(key, value, 0, 255)?),
            "pkey" => self.pkey_index = number(key, value, 0, u16::MAX)?,
            "mtu" => match value {
                "256" | "512" | "1024" | "2048" | "4096" => {
                    self.mtu = Some(number(key, value, 256, 4096)?);
                }
                _ => return Err(format!("mtu={value}: 256, 512, 1024, 2048 or 4096")),
            },
            "sl" => self.service_level = number(key, value, 0, 15)?,
            "tclass" => self.traffic_class = number(key, value, 0, 255)?,
            "connect" => match value {
                "tcp" => self.connect = Connect::Tcp,
                "rdma_cm" => self.connect = Connect::RdmaCm,
                _ => return Err(format!("connect={value}: tcp or rdma_cm")),
            },
            "bind" => self.bind = address(key, value)?,
            "advertise" => self.advertise = Some(address(key, value)?),
            "publish" => (self.publish, self.send_only) = publish(value)?,
            "relaxed" => match value {
                "yes" => self.relaxed_ordering = true,
                "no" => self.relaxed_ordering = false,
                _ => return Err(format!("relaxed={value}: yes or no")),
            },
            "ack_timeout" => self.ack_timeout = number(key, value, 1, 31)?,
            "receives" => self.receives_max = number(key, value, 64, 1 << 20)?,
            _ => {
                let known: Vec<&str> = KEYS.iter().map(|(key, _)| *key).collect();
                return Err(format!("there is no option '{key}'; there are {}", known.join(", ")));
            }
        }
        Ok(())
    }
}

fn publish(value: &str) -> Result<(Option<Publish>, bool), String> {
    match value {
        "auto" => Ok((None, false)),
        "in_order" => Ok((Some(Publish::InOrderPoll), false)),
        "notify" => Ok((Some(Publish::Notify), false)),
        "counted" => Ok((Some(Publish::NotifyCounted), false)),
        "send_only" => Ok((Some(Publish::Notify), true)),
        _ => Err(format!("publish={value}: auto, in_order, notify, counted or send_only")),
    }
}

fn number<T>(key: &str, value: &str, least: T, most: T) -> Result<T, String>
where
    T: FromStr + PartialOrd + Display,
{
    match value.parse() {
        Ok(n) if n >= least && n <= most => Ok(n),
        _ => Err(format!("{key}={value}: a number from {least} to {most}")),
    }
}

fn address(key: &str, value: &str) -> Result<IpAddr, String> {
    value.parse().map_err(|_| format!("{key}={value}: an IP address, as in {}", example(key)))
}

fn example(key: &str) -> String {
    let found = KEYS.iter().find(|(known, _)| *known == key);
    found.map_or_else(String::new, |(key, value)| format!("{key}={value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_sets_what_it_names_and_nothing_else() {
        let all = KEYS.map(|(key, value)| format!("{key}={value}")).join(" , ");
        let options: VerbsOptions = all.parse().expect("examples are good");
        assert_eq!(options.device.as_deref(), Some("mlx5_0"));
        assert_eq!((options.port, options.gid_index, options.mtu), (Some(1), Some(3), Some(4096)));
        assert_eq!(options.advertise, Some(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1))));
        assert_eq!((options.publish, options.relaxed_ordering), (Some(Publish::Notify), true));
        assert_eq!(options.connect, Connect::RdmaCm);
        assert_eq!((options.traffic_class, options.receives_max), (106, 4096));
        let by_send: VerbsOptions = "publish=send_only".parse().expect("it is good");
        assert_eq!((by_send.publish, by_send.send_only), (Some(Publish::Notify), true));
        let none: VerbsOptions = "".parse().expect("nothing is good");
        assert_eq!((none.device, none.gid_index, none.publish), (None, None, None));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, hint) in [
            ("device", "write key=value"),
            ("gdi=3", "there are device, port, gid"),
            ("port=0", "from 1 to 255"),
            ("gid=-1", "from 0 to 255"),
            ("mtu=1500", "256, 512"),
            ("sl=16", "from 0 to 15"),
            ("connect=ib", "tcp or rdma_cm"),
            ("pkey=1,connect=rdma_cm", "network interface"),
            ("bind=here", "bind=10.0.0.1"),
            ("publish=maybe", "auto, in_order"),
            ("relaxed=1", "yes or no"),
            ("receives=1", "from 64"),
        ] {
            let error = text.parse::<VerbsOptions>().expect_err(text);
            assert!(error.contains(hint), "{text}: {error}");
        }
    }
}
