//! Nodes that were met or looked for and are not joined, with the reason, for operators.

use std::time::Duration;

use link::{NodeId, Time};

use super::ClusterRouter;
use crate::view::NotJoined;

/// Maximum number of entries, in all and with names at one address, where an unknown node may make up names. The oldest
/// entry is replaced.
const UNJOINED_MAX: usize = 32;
const UNJOINED_PER_ADDRESS: usize = 8;
/// Time without news after which an entry is removed.
const FORGOTTEN: Duration = Duration::from_secs(180);
/// Time after which a node that must connect to this one and does not is reported, and reported again.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reason for an address at which this node looked for others before it was joined to all of them.
const SPARE: &str = "Nobody was met there, and this node is joined to all members: start the node that is to be there, or remove the address from \
                     cluster.join";

/// Nodes, and other servers, that this node is not joined to.
#[derive(Debug, Default)]
pub(super) struct UnjoinedPeers {
    entries: Vec<Entry>,
    /// Time of the last check of nodes that must connect to this one.
    looked: Time,
}

#[derive(Debug)]
struct Entry {
    /// Address that is dialed, or host that it comes from.
    address: Box<str>,
    /// Name that it has announced, if any.
    name: Option<Box<str>>,
    reason: Box<str>,
    at: Time,
    count: u64,
}

impl UnjoinedPeers {
    /// Notes that a node is not joined, with the present reason.
    pub fn note(&mut self, now: Time, address: &str, name: Option<&str>, reason: &str) {
        let is_it = |entry: &&mut Entry| *entry.address == *address && entry.name.as_deref() == name;
        if let Some(entry) = self.entries.iter_mut().find(is_it) {
            if *entry.reason != *reason {
                entry.reason = reason.into();
            }
            (entry.at, entry.count) = (now, entry.count + 1);
            return;
        }
        let is_there = |entry: &Entry| *entry.address == *address;
        let is_full = self.entries.iter().filter(|entry| is_there(entry)).count() >= UNJOINED_PER_ADDRESS;
        if is_full || self.entries.len() >= UNJOINED_MAX {
            let others = self.entries.iter().enumerate().filter(|(_, entry)| !is_full || is_there(entry));
            if let Some((oldest, _)) = others.min_by_key(|(_, entry)| entry.at) {
                self.entries.remove(oldest);
            }
        }
        let (address, name, reason) = (address.into(), name.map(Into::into), reason.into());
        self.entries.push(Entry { address, name, reason, at: now, count: 1 });
    }

    /// Removes the node of this name and address: it is joined, will be joined, or is no member any more.
    pub fn joined(&mut self, name: &str, address: &str) {
        self.entries.retain(|entry| match &entry.name {
            Some(known) => **known != *name,
            None => *entry.address != *address,
        });
    }

    /// Notes that a node with the secret was found at an address.
    pub fn found(&mut self, address: &str) {
        self.entries.retain(|entry| entry.name.is_some() || *entry.address != *address);
    }

    /// Returns whether an entry with a name has the same address and reason.
    fn is_named(&self, nameless: &Entry) -> bool {
        let is_same = |it: &Entry| *it.address == *nameless.address && *it.reason == *nameless.reason;
        self.entries.iter().any(|entry| entry.name.is_some() && is_same(entry))
    }

    /// Returns whether this discovery address has an entry without a name.
    fn has(&self, address: &str) -> bool {
        self.entries.iter().any(|entry| entry.name.is_none() && *entry.address == *address)
    }

    fn expire(&mut self, now: Time) -> bool {
        self.entries.retain(|entry| entry.at.after(FORGOTTEN) > now);
        let is_due = self.looked.after(PATIENCE) <= now;
        if is_due {
            self.looked = now;
        }
        is_due
    }
}

/// Logs an entry. `is_transient`: no action is needed.
pub(super) fn log(address: &str, name: Option<&str>, reason: &str, suppressed: u64, is_transient: bool) {
    if is_transient {
        tracing::info!(address, name, suppressed, "not joined yet: {reason}");
    } else {
        tracing::warn!(address, name, suppressed, "not joined: {reason}");
    }
}

impl ClusterRouter {
    /// Reports nodes that must connect to this one and do not. Of two nodes only one dials, so the other one gets no
    /// error when the first cannot be reached.
    pub(super) fn report_absent(&mut self, now: Time) {
        if !self.unjoined_peers.expire(now) {
            return;
        }
        let is_absent = |peer: &link::PeerStatus<'_>| {
            let is_due = !peer.is_dialed && !peer.is_up && peer.since.after(PATIENCE) <= now;
            is_due && !self.peers.is_known_dead(peer.node) && !self.unjoined_peers.has(peer.address)
        };
        let absent = self.mesh.peers().filter(is_absent);
        let absent: Vec<(Box<str>, Box<str>)> =
            absent.map(|peer| (peer.name.into(), peer.address.into())).collect();
        let reason = format!(
            "the other one of the two nodes must connect, and it does not: check that it runs, and that it reaches this node at {} (cluster.advertise, \
             or cluster.listen, of this node); its log and its `meridian ctl cluster` say why",
            self.config.own.address
        );
        absent.iter().for_each(|(name, address)| self.mesh.report_problem(now, name, address, &reason));
    }

    /// Returns the entries by address. A member that is declared dead is omitted. A configured address without a node
    /// gets a note when all members are joined.
    pub(super) fn not_joined(&self, now: Time) -> Vec<NotJoined> {
        let are_all_up = self.is_member() && self.peers.values().all(|peer| peer.is_up);
        let is_spare = |entry: &Entry| {
            are_all_up && entry.name.is_none() && self.membership.meta.is_given(&entry.address)
        };
        let is_dead = |name: &str, address: &str| {
            let id = NodeId::of_name(name);
            self.peers.is_known_dead(id)
                && self.peers.get(&id).is_some_and(|peer| *peer.info.address == *address)
        };
        let entries = self.unjoined_peers.entries.iter();
        let entries = entries.filter(|it| it.name.as_deref().is_none_or(|name| !is_dead(name, &it.address)));
        // A node that refuses this one at a discovery address also refuses it under its name.
        let entries = entries.filter(|it| it.name.is_some() || !self.unjoined_peers.is_named(it));
        let mut all: Vec<NotJoined> = entries
            .map(|entry| NotJoined {
                address: entry.address.clone(),
                name: entry.name.clone(),
                reason: match is_spare(entry) {
                    true => format!("{}. {SPARE}", entry.reason).into(),
                    false => entry.reason.clone(),
                },
                since: now.since(entry.at),
                count: entry.count,
            })
            .collect();
        all.sort_by(|a, b| (&a.address, &a.name).cmp(&(&b.address, &b.name)));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000)
    }

    fn entries_of(unjoined_peers: &UnjoinedPeers) -> Vec<(&str, Option<&str>, &str, u64)> {
        let entries = unjoined_peers.entries.iter();
        entries.map(|it| (&*it.address, it.name.as_deref(), &*it.reason, it.count)).collect()
    }

    #[test]
    fn each_unjoined_node_has_one_entry_with_its_last_problem_until_it_is_joined() {
        let mut unjoined_peers = UnjoinedPeers::default();
        unjoined_peers.note(at(1), "h:1", None, "silent");
        unjoined_peers.note(at(2), "h:1", None, "refused");
        unjoined_peers.note(at(2), "h", Some("b"), "secret");
        unjoined_peers.note(at(3), "h", Some("c"), "secret");
        assert_eq!(entries_of(&unjoined_peers)[0], ("h:1", None, "refused", 2));
        unjoined_peers.joined("b", "h:2");
        assert_eq!(entries_of(&unjoined_peers).len(), 2, "another address is another entry");
        unjoined_peers.joined("d", "h:1");
        assert_eq!(entries_of(&unjoined_peers), [("h", Some("c"), "secret", 1)]);
        unjoined_peers.note(at(4), "h:1", None, "silent");
        unjoined_peers.found("h:1");
        assert_eq!(entries_of(&unjoined_peers).len(), 1);
    }

    #[test]
    fn an_old_entry_is_removed_after_a_time_or_replaced_before() {
        let mut unjoined_peers = UnjoinedPeers::default();
        for number in 0..40 {
            unjoined_peers.note(at(number), &format!("h{number}"), None, "no");
        }
        assert_eq!(entries_of(&unjoined_peers).len(), UNJOINED_MAX);
        assert_eq!(entries_of(&unjoined_peers)[0].0, "h8");
        unjoined_peers.note(at(41), "h8", None, "no");
        unjoined_peers.note(at(42), "h50", None, "no");
        assert!(
            !entries_of(&unjoined_peers).iter().any(|it| it.0 == "h9")
                && entries_of(&unjoined_peers).iter().any(|it| it.0 == "h8")
        );
        for number in 0..40 {
            unjoined_peers.note(at(42), "h50", Some(&number.to_string()), "no");
        }
        let of_one = entries_of(&unjoined_peers).iter().filter(|it| it.0 == "h50").count();
        assert_eq!(
            (of_one, entries_of(&unjoined_peers).len()),
            (UNJOINED_PER_ADDRESS, UNJOINED_MAX),
            "made-up names hide few others"
        );
        unjoined_peers.entries.retain(|entry| *entry.address != *"h50");
        unjoined_peers.expire(at(180 + 40));
        assert_eq!(entries_of(&unjoined_peers).iter().map(|it| it.0).collect::<Vec<_>>(), ["h8"]);
    }
}
