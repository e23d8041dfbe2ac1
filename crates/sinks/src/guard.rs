//! Addresses that connectors must not reach.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Addresses that connectors may reach. Operators who can write actions could otherwise reach services of the node's
/// own machine and network, such as the metadata service of a cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// Allow addresses of the machine itself.
    pub allow_loopback: bool,
    /// Allow addresses of private networks.
    pub allow_private: bool,
}

/// Address that is refused, with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    LinkLocal(IpAddr),
    /// Multicast, broadcast, unspecified, or reserved.
    NoHost(IpAddr),
    Loopback(IpAddr),
    Private(IpAddr),
}

impl Guard {
    /// Checks an address to connect to, after the name was resolved.
    ///
    /// # Errors
    /// Connectors must not reach it.
    pub fn check(self, address: IpAddr) -> Result<(), Refused> {
        // An IPv4 address in the form of IPv6 leads to the same host.
        let canonical = match address {
            IpAddr::V6(v6) => embedded(v6).map_or(address, IpAddr::V4),
            IpAddr::V4(_) => address,
        };
        let (no_host, link_local, loopback, private) = match canonical {
            IpAddr::V4(v4) => (
                v4.is_unspecified() || v4.is_multicast() || v4.octets()[0] == 0 || v4.octets()[0] >= 240,
                v4.is_link_local() || METADATA_V4.contains(&v4),
                v4.is_loopback(),
                v4.is_private() || is_shared(v4),
            ),
            IpAddr::V6(v6) => (
                v6.is_unspecified() || v6.is_multicast(),
                v6.is_unicast_link_local() || METADATA_V6.contains(&v6),
                v6.is_loopback(),
                // Unique local, and the site-local addresses before them.
                v6.is_unique_local() || v6.segments()[0] & 0xffc0 == 0xfec0,
            ),
        };
        match () {
            () if no_host => Err(Refused::NoHost(address)),
            () if link_local => Err(Refused::LinkLocal(address)),
            () if loopback && !self.allow_loopback => Err(Refused::Loopback(address)),
            () if private && !self.allow_private => Err(Refused::Private(address)),
            () => Ok(()),
        }
    }
}

/// Metadata services of clouds outside of the link-local addresses: Alibaba and Oracle.
const METADATA_V4: [Ipv4Addr; 2] = [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(192, 0, 0, 192)];
/// The same: Amazon and Google.
const METADATA_V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)];

/// Returns the IPv4 address in an IPv6 address: mapped (RFC 4291), NAT64 (RFC 6052) or 6to4 (RFC 3056).
fn embedded(v6: Ipv6Addr) -> Option<Ipv4Addr> {
    let s = v6.segments();
    let v4 = |high: u16, low: u16| Some(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)));
    match s {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => v4(high, low),
        [0x2002, high, low, ..] => v4(high, low),
        _ => v6.to_ipv4_mapped(),
    }
}

/// Addresses that providers share among customers (RFC 6598).
fn is_shared(v4: Ipv4Addr) -> bool {
    v4.octets()[0] == 100 && v4.octets()[1] & 0xc0 == 64
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LinkLocal(address) => {
                write!(
                    f,
                    "{address} is a link-local address or a metadata service, which connectors must not reach"
                )
            }
            Self::NoHost(address) => write!(f, "{address} is no address of a host"),
            Self::Loopback(address) => write!(
                f,
                "{address} is an address of this machine; set actions.allow_loopback = true in the configuration of \
                 the node if connectors may reach it"
            ),
            Self::Private(address) => write!(
                f,
                "{address} is an address of a private network; set actions.allow_private = true in the configuration \
                 of the node if connectors may reach it"
            ),
        }
    }
}

impl std::error::Error for Refused {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_lead_to_this_machine_or_network_are_refused_in_all_forms() {
        let strict = Guard { allow_loopback: false, allow_private: false };
        let open = Guard { allow_loopback: true, allow_private: true };
        for (address, is_allowed, is_allowed_open) in [
            ("93.184.216.34", true, true),
            ("2606:2800:220:1::1", true, true),
            ("127.0.0.1", false, true),
            ("127.255.0.3", false, true),
            ("::1", false, true),
            ("::ffff:127.0.0.1", false, true),
            ("64:ff9b::7f00:1", false, true),
            ("2002:7f00:1::", false, true),
            ("10.1.2.3", false, true),
            ("172.31.0.1", false, true),
            ("192.168.0.1", false, true),
            ("100.64.0.1", false, true),
            ("fd00::1", false, true),
            ("fec0::1", false, true),
            ("::ffff:10.0.0.1", false, true),
            ("169.254.169.254", false, false),
            ("100.100.100.200", false, false),
            ("fd00:ec2::254", false, false),
            ("::ffff:169.254.169.254", false, false),
            ("64:ff9b::a9fe:a9fe", false, false),
            ("fe80::1", false, false),
            ("0.0.0.0", false, false),
            ("0.1.2.3", false, false),
            ("::", false, false),
            ("224.0.0.1", false, false),
            ("255.255.255.255", false, false),
            ("ff02::1", false, false),
        ] {
            let parsed: IpAddr = address.parse().expect("an address");
            assert_eq!(strict.check(parsed).is_ok(), is_allowed, "{address}");
            assert_eq!(open.check(parsed).is_ok(), is_allowed_open, "{address}");
        }
    }
}
