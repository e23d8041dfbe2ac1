//! Target of a ban.

use std::fmt;
use std::net::IpAddr;

use super::net::{Net, NetError};

/// Property of a client that a ban compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BanKind {
    ClientId,
    Username,
    Address,
}

impl BanKind {
    pub const ALL: [Self; 3] = [Self::ClientId, Self::Username, Self::Address];

    pub fn name(self) -> &'static str {
        match self {
            Self::ClientId => "client_id",
            Self::Username => "username",
            Self::Address => "address",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// Exact text, or prefix of texts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Pattern {
    Exact(Box<str>),
    /// Prefix, never empty: an empty one would match every client.
    Prefix(Box<str>),
}

impl Pattern {
    pub fn matches(&self, text: &str) -> bool {
        match self {
            Self::Exact(exact) => **exact == *text,
            Self::Prefix(prefix) => text.starts_with(&**prefix),
        }
    }
}

/// Clients that a ban applies to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BanTarget {
    ClientId(Pattern),
    Username(Pattern),
    Address(Net),
}

/// Reason why a text cannot be the value of a ban.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueError {
    Empty,
    /// `*` alone, which would match every client.
    Everybody,
    /// The value has more than [`VALUE_MAX`] bytes.
    Long,
    Net(NetError),
}

/// Maximum size of a ban's value in bytes. Longer Client Identifiers are banned by a prefix.
pub const VALUE_MAX: usize = 1024;

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the value is empty; name the client to ban"),
            Self::Everybody => {
                f.write_str("`*` alone would ban every client; put at least one character in front of it")
            }
            Self::Long => write!(
                f,
                "the value has more than {VALUE_MAX} bytes; ban a prefix of it, with `*` at the end"
            ),
            Self::Net(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ValueError {}

impl BanTarget {
    /// Parses a Client Identifier or User Name (a `*` at the end makes it a prefix), an address or a network.
    ///
    /// # Errors
    /// [`ValueError`]; its text says what to write instead.
    pub fn parse(kind: BanKind, value: &str) -> Result<Self, ValueError> {
        Ok(match kind {
            BanKind::ClientId => Self::ClientId(pattern(value)?),
            BanKind::Username => Self::Username(pattern(value)?),
            BanKind::Address => Self::Address(Net::parse(value).map_err(ValueError::Net)?),
        })
    }

    pub fn kind(&self) -> BanKind {
        match self {
            Self::ClientId(_) => BanKind::ClientId,
            Self::Username(_) => BanKind::Username,
            Self::Address(_) => BanKind::Address,
        }
    }

    /// Returns whether this ban applies to the client. [`super::Bans::find`] checks all bans.
    pub fn matches(&self, client_id: &str, username: Option<&str>, peer: Option<IpAddr>) -> bool {
        match self {
            Self::ClientId(pattern) => pattern.matches(client_id),
            Self::Username(pattern) => username.is_some_and(|username| pattern.matches(username)),
            Self::Address(net) => peer.is_some_and(|peer| net.contains(peer)),
        }
    }
}

fn pattern(value: &str) -> Result<Pattern, ValueError> {
    match value.strip_suffix('*') {
        _ if value.is_empty() => Err(ValueError::Empty),
        _ if value.len() > VALUE_MAX => Err(ValueError::Long),
        Some("") => Err(ValueError::Everybody),
        Some(prefix) => Ok(Pattern::Prefix(prefix.into())),
        None => Ok(Pattern::Exact(value.into())),
    }
}

/// Formats the value as [`BanTarget::parse`] reads it.
impl fmt::Display for BanTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClientId(Pattern::Exact(text)) | Self::Username(Pattern::Exact(text)) => f.write_str(text),
            Self::ClientId(Pattern::Prefix(text)) | Self::Username(Pattern::Prefix(text)) => {
                write!(f, "{text}*")
            }
            Self::Address(net) => net.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_at_the_end_is_a_prefix_and_elsewhere_a_star() {
        let matches = |value, client_id| {
            BanTarget::parse(BanKind::ClientId, value).unwrap().matches(client_id, None, None)
        };
        assert!(matches("ab*", "abc") && matches("ab*", "ab") && !matches("ab*", "a"));
        assert!(matches("a*b", "a*b") && !matches("a*b", "axb"));
        assert!(matches("a**", "a*x") && !matches("a**", "ax"));
    }

    #[test]
    fn a_ban_compares_only_its_kind() {
        let username = BanTarget::parse(BanKind::Username, "eve").unwrap();
        assert!(username.matches("c", Some("eve"), None));
        assert!(!username.matches("eve", None, None) && !username.matches("eve", Some("bob"), None));
        let address = BanTarget::parse(BanKind::Address, "127.0.0.0/8").unwrap();
        assert!(address.matches("c", None, Some([127, 1, 2, 3].into())));
        assert!(!address.matches("c", None, None), "a Unix socket has no address");
    }

    #[test]
    fn values_that_match_no_client_or_every_client_are_refused() {
        for kind in [BanKind::ClientId, BanKind::Username] {
            assert_eq!(BanTarget::parse(kind, ""), Err(ValueError::Empty));
            assert_eq!(BanTarget::parse(kind, "*"), Err(ValueError::Everybody));
            assert_eq!(BanTarget::parse(kind, &"x".repeat(VALUE_MAX + 1)), Err(ValueError::Long));
        }
        assert_eq!(BanTarget::parse(BanKind::Address, "*"), Err(ValueError::Net(NetError::Address)));
    }
}
