//! All bans at one moment, indexed for the look-up at each CONNECT.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use super::net::mask;
use super::target::{BanTarget, Pattern};
use super::{Ban, BanId};

/// All bans at one moment. A look-up costs two hash look-ups, two binary searches and one look-up for each prefix
/// length in use, however many bans there are.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    /// Bans in the order of their ids.
    all: Vec<Arc<Ban>>,
    client_ids: Texts,
    usernames: Texts,
    /// One table for each prefix length in use.
    v4: Vec<(u8, HashMap<IpAddr, Arc<Ban>>)>,
    v6: Vec<(u8, HashMap<IpAddr, Arc<Ban>>)>,
}

#[derive(Debug, Default)]
struct Texts {
    exact: HashMap<Box<str>, Arc<Ban>>,
    prefixes: Prefixes,
}

impl Snapshot {
    /// Builds the snapshot. `bans` are in the order of their ids, and no two have the same target.
    pub(super) fn new(bans: impl Iterator<Item = Arc<Ban>>) -> Self {
        let mut new = Self::default();
        let (mut client_ids, mut usernames) = (Vec::new(), Vec::new());
        for ban in bans {
            match &ban.target {
                BanTarget::ClientId(Pattern::Exact(text)) => {
                    new.client_ids.exact.insert(text.clone(), ban.clone());
                }
                BanTarget::Username(Pattern::Exact(text)) => {
                    new.usernames.exact.insert(text.clone(), ban.clone());
                }
                BanTarget::ClientId(Pattern::Prefix(text)) => client_ids.push((text.clone(), ban.clone())),
                BanTarget::Username(Pattern::Prefix(text)) => usernames.push((text.clone(), ban.clone())),
                BanTarget::Address(net) => {
                    let tables = if net.address().is_ipv4() { &mut new.v4 } else { &mut new.v6 };
                    let at =
                        tables.iter().position(|(bits, _)| *bits == net.prefix_len()).unwrap_or_else(|| {
                            tables.push((net.prefix_len(), HashMap::new()));
                            tables.len() - 1
                        });
                    tables[at].1.insert(net.address(), ban.clone());
                }
            }
            new.all.push(ban);
        }
        new.client_ids.prefixes = Prefixes::new(client_ids);
        new.usernames.prefixes = Prefixes::new(usernames);
        new
    }

    pub(super) fn all(&self) -> &[Arc<Ban>] {
        &self.all
    }

    /// Returns the bans after `after`, in the order of their ids.
    pub(super) fn after(&self, after: Option<BanId>) -> &[Arc<Ban>] {
        let at = after.map_or(0, |after| self.all.partition_point(|ban| ban.id <= after));
        &self.all[at..]
    }

    pub(super) fn find(
        &self,
        client_id: &str,
        username: Option<&str>,
        peer: Option<IpAddr>,
        now: impl Fn() -> SystemTime,
    ) -> Option<&Arc<Ban>> {
        if self.all.is_empty() {
            return None;
        }
        let in_force = |ban: &&Arc<Ban>| ban.until.is_none_or(|until| now() < until);
        let address = || {
            let peer = peer?.to_canonical();
            let tables = if peer.is_ipv4() { &self.v4 } else { &self.v6 };
            tables.iter().filter_map(|(bits, table)| table.get(&mask(peer, *bits))).find(in_force)
        };
        self.client_ids
            .find(client_id, &in_force)
            .or_else(|| self.usernames.find(username?, &in_force))
            .or_else(address)
    }
}

impl Texts {
    fn find(&self, text: &str, in_force: &impl Fn(&&Arc<Ban>) -> bool) -> Option<&Arc<Ban>> {
        let exact = self.exact.get(text).filter(in_force);
        exact.or_else(|| self.prefixes.of(text).find(in_force))
    }
}

/// Prefixes, each with a link to the next shorter one that is a prefix of it.
#[derive(Debug, Default)]
struct Prefixes {
    /// Prefixes sorted by their bytes.
    nodes: Vec<Prefix>,
}

#[derive(Debug)]
struct Prefix {
    text: Box<str>,
    ban: Arc<Ban>,
    shorter: Option<u32>,
}

impl Prefixes {
    fn new(mut prefixes: Vec<(Box<str>, Arc<Ban>)>) -> Self {
        prefixes.sort_by(|a, b| a.0.cmp(&b.0));
        let mut nodes: Vec<Prefix> = Vec::with_capacity(prefixes.len());
        for (text, ban) in prefixes {
            // A prefix of this one is either its predecessor or a shorter prefix of its predecessor.
            let mut shorter = nodes.len().checked_sub(1).map(|at| at as u32);
            while let Some(at) = shorter
                && !text.starts_with(&*nodes[at as usize].text)
            {
                shorter = nodes[at as usize].shorter;
            }
            nodes.push(Prefix { text, ban, shorter });
        }
        Self { nodes }
    }

    /// Returns the bans of all prefixes of a text, the longest first.
    fn of(&self, text: &str) -> impl Iterator<Item = &Arc<Ban>> {
        // Every prefix of `text` sorts at or before it, and is a prefix of all entries between. So all of them are on
        // the chain of shorter prefixes from the last entry that does not sort after `text`.
        let last = self.nodes.partition_point(|node| *node.text <= *text).checked_sub(1);
        let mut next = last.map(|at| at as u32);
        std::iter::from_fn(move || {
            let node = &self.nodes[next? as usize];
            next = node.shorter;
            Some(node)
        })
        .filter(move |node| text.starts_with(&*node.text))
        .map(|node| &node.ban)
    }
}
