//! IPv4 and IPv6 addresses and networks.

use std::fmt;
use std::net::IpAddr;

/// Network in CIDR notation; a single address is a network of one. IPv4 written as IPv6 (`::ffff:10.0.0.1`) is IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Net {
    /// Canonical address, with zeros after the prefix.
    address: IpAddr,
    /// Prefix length in bits: 0..=32 or 0..=128.
    prefix_len: u8,
}

/// Reason why a text is not a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetError {
    Address,
    /// The prefix length is not within the number of bits of the address.
    PrefixLength {
        maximum: u8,
    },
    /// Bits after the prefix are set. This is most likely a mistake, and which half was meant is unknown.
    HostBits {
        meant: Net,
    },
}

impl fmt::Display for NetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address => f.write_str(
                "expected an address such as 192.0.2.7 or 2001:db8::7, or a network such as 192.0.2.0/24",
            ),
            Self::PrefixLength { maximum } => {
                write!(f, "the number behind the slash must be 0 to {maximum}")
            }
            Self::HostBits { meant } => {
                write!(f, "bits behind the prefix are set; the network is {meant}")
            }
        }
    }
}

impl std::error::Error for NetError {}

impl Net {
    /// # Errors
    /// [`NetError`]; its text says what to write instead.
    pub fn parse(text: &str) -> Result<Self, NetError> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| NetError::Address)?;
        let Some(bits) = bits else { return Ok(Self::of(address)) };
        let width = if address.is_ipv4() { 32 } else { 128 };
        let digits = !bits.is_empty() && bits.bytes().all(|byte| byte.is_ascii_digit());
        let bits = bits.parse::<u8>().ok().filter(|bits| digits && *bits <= width);
        let bits = bits.ok_or(NetError::PrefixLength { maximum: width })?;
        let canonical = address.to_canonical();
        let (address, prefix_len) = match (address.is_ipv6() && canonical.is_ipv4(), bits) {
            (true, 96..) => (canonical, bits - 96),
            // The prefix is shorter than the part that marks IPv4, so this is a network of IPv6 addresses.
            _ => (address, bits),
        };
        let net = Self { address: mask(address, prefix_len), prefix_len };
        if net.address == address { Ok(net) } else { Err(NetError::HostBits { meant: net }) }
    }

    /// Returns the network of one address.
    pub fn of(address: IpAddr) -> Self {
        let address = address.to_canonical();
        Self { address, prefix_len: if address.is_ipv4() { 32 } else { 128 } }
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.address.is_ipv4() && mask(address, self.prefix_len) == self.address
    }

    pub fn address(&self) -> IpAddr {
        self.address
    }

    pub fn prefix_len(&self) -> u8 {
        self.prefix_len
    }
}

impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = if self.address.is_ipv4() { 32 } else { 128 };
        write!(f, "{}", self.address)?;
        if self.prefix_len < width { write!(f, "/{}", self.prefix_len) } else { Ok(()) }
    }
}

/// Returns the first `bits` bits of an address, with zeros after them.
pub(super) fn mask(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let keep = u32::MAX.checked_shl(32 - u32::from(bits.min(32))).unwrap_or(0);
            IpAddr::V4((v4.to_bits() & keep).into())
        }
        IpAddr::V6(v6) => {
            let keep = u128::MAX.checked_shl(128 - u32::from(bits.min(128))).unwrap_or(0);
            IpAddr::V6((v6.to_bits() & keep).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> Net {
        Net::parse(text).unwrap()
    }

    #[track_caller]
    fn holds(net_text: &str, address: &str, expected: bool) {
        assert_eq!(net(net_text).contains(address.parse().unwrap()), expected, "{net_text} and {address}");
    }

    #[test]
    fn a_network_holds_its_addresses_and_no_others() {
        holds("10.0.0.0/8", "10.255.255.255", true);
        holds("10.0.0.0/8", "11.0.0.0", false);
        holds("10.1.2.3", "10.1.2.3", true);
        holds("10.1.2.3", "10.1.2.4", false);
        holds("0.0.0.0/0", "255.255.255.255", true);
        holds("0.0.0.0/0", "2001:db8::1", false);
        holds("::/0", "2001:db8::1", true);
        holds("::/0", "10.0.0.1", false);
        holds("2001:db8::/32", "2001:db8:ffff::1", true);
        holds("2001:db8::/32", "2001:db9::1", false);
        holds("192.0.2.128/25", "192.0.2.127", false);
    }

    /// A listener on `::` sees IPv4 clients as `::ffff:a.b.c.d`.
    #[test]
    fn ipv4_in_ipv6_is_ipv4() {
        holds("10.0.0.0/8", "::ffff:10.1.2.3", true);
        holds("::ffff:10.1.2.3", "10.1.2.3", true);
        assert_eq!(net("::ffff:10.0.0.0/104"), net("10.0.0.0/8"));
        assert_eq!(net("::ffff:0:0/96"), net("0.0.0.0/0"));
    }

    #[test]
    fn errors_for_invalid_networks_say_what_to_write() {
        for text in ["", "x", "10.0.0", "10.0.0.1:80", "fe80::1%eth0", "/8", " 10.0.0.1", "10.0.0.256"] {
            assert_eq!(Net::parse(text), Err(NetError::Address), "{text}");
        }
        for text in ["10.0.0.0/33", "10.0.0.0/", "10.0.0.0/-1", "10.0.0.0/+8", "10.0.0.0/8/8", "10.0.0.0/999"]
        {
            assert_eq!(Net::parse(text), Err(NetError::PrefixLength { maximum: 32 }), "{text}");
        }
        assert_eq!(Net::parse("::/129"), Err(NetError::PrefixLength { maximum: 128 }));
        let slip = Net::parse("10.1.2.3/8").unwrap_err();
        assert!(slip.to_string().contains("10.0.0.0/8"), "{slip}");
    }

    #[test]
    fn a_network_is_written_in_the_form_that_is_read() {
        for text in ["10.0.0.0/8", "10.1.2.3", "2001:db8::/32", "::1", "0.0.0.0/0"] {
            assert_eq!(net(text).to_string(), text);
        }
        assert_eq!(net("10.0.0.1/32").to_string(), "10.0.0.1");
    }
}
