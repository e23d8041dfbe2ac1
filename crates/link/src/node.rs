use std::fmt;

use ring::digest;

/// A node's name in eight bytes: the first of its SHA-256.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

impl NodeId {
    pub fn of_name(name: &str) -> Self {
        let digest = digest::digest(&digest::SHA256, name.as_bytes());
        Self(digest.as_ref().first_chunk().map_or(0, |first| u64::from_be_bytes(*first)))
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `printf n1 | sha256sum` says, for ever.
    #[test]
    fn a_name_has_this_number() {
        assert_eq!(NodeId::of_name("n1").to_string(), NODE_1);
    }

    const NODE_1: &str = "676b8bb84ce7267d";
}
