use std::fmt;

use ring::digest;

/// Id of a node: the first eight bytes of the SHA-256 of its name.
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

    /// Checks the number that `printf n1 | sha256sum` gives. It must never change.
    #[test]
    fn the_id_of_a_name_never_changes() {
        assert_eq!(NodeId::of_name("n1").to_string(), NODE_1);
    }

    const NODE_1: &str = "676b8bb84ce7267d";
}
