//! Founding of a cluster: which core does it, and which nodes are known before.
//!
//! Cores that belong to no cluster tell each other which nodes they know. The core with the smallest id founds the
//! cluster on three conditions. It knows as many cores as are expected. It has met one at each configured or learned
//! address. All of them know the same ones. The set of cores that a core knows only grows. So of two sets that their
//! cores agree on, one contains the other with the founding core, which announces the cluster.

use std::collections::{BTreeMap, BTreeSet};

use link::NodeId;

use super::descriptor::{NodeDescriptor, hash_of};
use crate::config::{NodeInfo, Role};
use crate::mutation::{Mutation, mutated};

/// Maximum number of nodes that are remembered before there is a cluster.
const KNOWN_MAX: usize = 256;
/// Maximum number of discovery addresses before there is a cluster.
const ADDRESSES_MAX: usize = 64;

/// Nodes that this node has learned of by introductions.
#[derive(Debug)]
pub struct Founding {
    own: NodeId,
    role: Role,
    /// Address at which this node itself can be met.
    address: Box<str>,
    /// True when no address was configured.
    is_alone: bool,
    /// Addresses at which others can be met, and the node met there.
    join: BTreeMap<Box<str>, Option<NodeId>>,
    /// Minimum number of cores of a new cluster, including this one.
    expect: usize,
    /// Last descriptor of each other core.
    descriptors: BTreeMap<NodeId, NodeDescriptor>,
}

impl Founding {
    pub fn new(own: NodeId, info: &NodeInfo, join: &[Box<str>], expect: usize) -> Self {
        let is_alone = join.is_empty();
        let join = join.iter().map(|address| (address.clone(), None)).collect();
        let (role, address) = (info.role, info.address.clone());
        Self { own, role, address, is_alone, join, expect, descriptors: BTreeMap::new() }
    }

    /// Notes that a node was met, perhaps at a discovery address. It may be this node itself.
    pub fn introduced(&mut self, node: NodeId, descriptor: &NodeDescriptor, address: Option<&str>) {
        if let Some(introduced) = address.and_then(|address| self.join.get_mut(address)) {
            *introduced = Some(node);
        }
        let has_room = self.descriptors.len() < KNOWN_MAX || self.descriptors.contains_key(&node);
        if node == self.own || descriptor.role != Role::Core || !has_room {
            return;
        }
        self.descriptors.insert(node, descriptor.clone());
        if descriptor.founded != 0 || self.role != Role::Core {
            return;
        }
        // Each of the cores that are about to found a cluster must meet each other one.
        for other in &descriptor.others {
            if *other != self.address && self.join.len() < ADDRESSES_MAX && !self.is_introduced_at(other) {
                self.join.entry(other.clone()).or_insert(None);
            }
        }
    }

    fn is_introduced_at(&self, address: &str) -> bool {
        self.descriptors.values().any(|descriptor| *descriptor.address == *address)
    }

    /// Iterates over the addresses at which others can be met.
    pub fn addresses(&self) -> impl Iterator<Item = &str> {
        self.join.keys().map(|address| &**address)
    }

    /// Returns the addresses at which this node has met other cores that are about to found a cluster.
    pub fn others(&self) -> Vec<Box<str>> {
        let founding = self.descriptors.values().filter(|descriptor| descriptor.founded == 0);
        founding.map(|descriptor| descriptor.address.clone()).collect()
    }

    /// Returns all cores that this one has ever met, and itself. None is removed, whatever happens to it.
    fn known(&self) -> BTreeSet<NodeId> {
        self.descriptors.keys().copied().chain([self.own]).collect()
    }

    /// Returns the hash of these cores for the node descriptor.
    pub fn hash(&self) -> u64 {
        if self.is_alone { 0 } else { hash_of(self.known().into_iter()) }
    }

    /// Returns whether this node must found a cluster. It belongs to none.
    pub fn founds(&self) -> bool {
        if self.role != Role::Core {
            return false;
        }
        if self.is_alone || mutated(Mutation::FoundAlone) {
            return true;
        }
        let (known, hash) = (self.known(), self.hash());
        let agree =
            self.descriptors.values().all(|descriptor| descriptor.founded == 0 && descriptor.known == hash);
        known.first() == Some(&self.own)
            && known.len() >= self.expect
            && self.join.values().all(Option::is_some)
            && agree
    }

    /// Returns whether a core is known that is about to join the new cluster.
    pub fn awaits_core(&self, is_member: impl Fn(NodeId) -> bool) -> bool {
        self.descriptors.keys().any(|core| !is_member(*core))
    }

    /// Describes what this node waits for before there is a cluster.
    pub fn waits_for(&self) -> String {
        let unmet: Vec<&str> = self
            .join
            .iter()
            .filter(|(_, introduced)| introduced.is_none())
            .map(|(address, _)| &**address)
            .collect();
        if !unmet.is_empty() {
            return format!(
                "no node was met yet at {}: it does not answer there, or refuses this one (meridian ctl cluster says which)",
                unmet.join(", ")
            );
        }
        let known = self.known();
        if self.descriptors.values().any(|descriptor| descriptor.founded != 0) {
            return "the cluster has not let this node in yet".to_owned();
        }
        if known.len() < self.expect {
            return format!("{} of {} cores have been met (cluster.expect)", known.len(), self.expect);
        }
        "the cores have not all met each other yet".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use replog::Incarnation;

    fn address(node: u64) -> Box<str> {
        format!("h{node}").into()
    }

    fn descriptor_of(founding: &Founding, founded: u128) -> NodeDescriptor {
        NodeDescriptor {
            role: Role::Core,
            region: "".into(),
            address: founding.address.clone(),
            incarnation: Incarnation(1),
            founded,
            known: founding.hash(),
            others: founding.others(),
        }
    }

    fn info(node: u64, role: Role) -> NodeInfo {
        NodeInfo { name: format!("n{node}").into(), role, region: "".into(), address: address(node) }
    }

    fn all(nodes: &[u64], expect: usize) -> Vec<Founding> {
        let join: Vec<Box<str>> = nodes.iter().map(|node| address(*node)).collect();
        nodes
            .iter()
            .map(|node| Founding::new(NodeId(*node), &info(*node, Role::Core), &join, expect))
            .collect()
    }

    /// Lets `who` meet `whom` at its address, and the other way round.
    fn meet(all: &mut [Founding], who: usize, whom: usize, founded: &[u128]) {
        let (a, b) = (descriptor_of(&all[who], founded[who]), descriptor_of(&all[whom], founded[whom]));
        let (a_id, b_id) = (all[who].own, all[whom].own);
        all[who].introduced(b_id, &b, Some(&address(b_id.0)));
        if who != whom {
            all[whom].introduced(a_id, &a, None);
        }
    }

    #[test]
    fn a_core_without_others_founds_and_a_replicant_never_does() {
        assert!(Founding::new(NodeId(1), &info(1, Role::Core), &[], 1).founds());
        assert!(!Founding::new(NodeId(1), &info(1, Role::Replicant), &[], 1).founds());
        let mut second = Founding::new(NodeId(2), &info(2, Role::Core), &[address(1)], 1);
        let first = Founding::new(NodeId(7), &info(7, Role::Core), &[], 1);
        second.introduced(NodeId(7), &descriptor_of(&first, 0), Some("h1"));
        assert!(!second.founds(), "the other founds alone");
    }

    #[test]
    fn the_core_with_the_smallest_id_founds_when_all_have_met() {
        let mut cores = all(&[1, 2, 3], 3);
        let founded = [0; 3];
        for _ in 0..2 {
            assert!(!cores[0].founds());
            for who in 0..3 {
                for whom in 0..3 {
                    meet(&mut cores, who, whom, &founded);
                }
            }
        }
        assert_eq!(cores.iter().map(Founding::founds).collect::<Vec<_>>(), [true, false, false]);
        assert_eq!(cores[1].waits_for(), "the cores have not all met each other yet");
        meet(&mut cores, 1, 0, &[9, 0, 0]);
        assert!(cores[1].waits_for().contains("has not let this node in"));
    }

    /// A core with the address of only one other core learns of the rest from it.
    #[test]
    fn cores_tell_each_other_of_those_that_they_have_met() {
        let given = [vec![1, 2], vec![1, 2], vec![2]];
        let cores = given.iter().enumerate().map(|(at, join)| {
            let join: Vec<_> = join.iter().map(|node| address(*node)).collect();
            let own = at as u64 + 1;
            Founding::new(NodeId(own), &info(own, Role::Core), &join, 2)
        });
        let mut cores: Vec<Founding> = cores.collect();
        for _ in 0..4 {
            for who in 0..3 {
                let sought: Vec<Box<str>> = cores[who].addresses().map(Into::into).collect();
                let whom = (0..3).filter(|at| sought.contains(&address(*at as u64 + 1)));
                whom.for_each(|whom| meet(&mut cores, who, whom, &[0; 3]));
            }
        }
        assert_eq!(cores.iter().map(Founding::founds).collect::<Vec<_>>(), [true, false, false]);
        assert!(cores[0].addresses().any(|at| *at == *address(3)));
        assert!(!cores[2].addresses().any(|at| *at == *address(3)), "it does not look for itself");
    }

    /// Nodes meet in any order, with different lists of addresses. Two cores that know each other, directly or not,
    /// never both found.
    #[test]
    fn one_of_the_cores_that_know_each_other_founds() {
        let mut seed = 1_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        let mut founded_at_all = 0;
        for _ in 0..3000 {
            let count = 2 + random(4);
            let expect = 2 + random(2) as usize;
            let nodes: Vec<u64> = (1..=count).collect();
            let mut cores: Vec<Founding> = nodes
                .iter()
                .map(|own| {
                    let some = nodes.iter().filter(|node| *node == own || random(4) > 0);
                    let join: Vec<Box<str>> = some.map(|node| address(*node)).collect();
                    Founding::new(NodeId(*own), &info(*own, Role::Core), &join, expect)
                })
                .collect();
            let mut founded = vec![0; nodes.len()];
            let mut clusters: Vec<BTreeSet<NodeId>> = Vec::new();
            for _ in 0..60 {
                let (who, whom) = (random(count) as usize, random(count) as usize);
                if cores[who].join.contains_key(&address(cores[whom].own.0)) {
                    meet(&mut cores, who, whom, &founded);
                }
                let at = random(count) as usize;
                if founded[at] == 0 && cores[at].founds() {
                    founded[at] = at as u128 + 1;
                    clusters.push(cores[at].known());
                }
            }
            for (at, cluster) in clusters.iter().enumerate() {
                let others = &clusters[at + 1..];
                assert!(others.iter().all(|other| other.is_disjoint(cluster)), "{clusters:?}");
            }
            founded_at_all += clusters.len();
        }
        assert!(founded_at_all > 500, "{founded_at_all}");
    }
}
