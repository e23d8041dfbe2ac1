//! Scenarios with nodes that do not know origins of messages.

use cluster::{FEATURES, LOG, ORIGINS};

use super::*;

const NEW: u64 = FEATURES & !LOG | ORIGINS;
const OLD: u64 = FEATURES & !LOG;

impl Scenario {
    /// Nodes that know that all others understand origins.
    fn reading_origins(&self) -> Vec<usize> {
        let reads = |node: &usize| {
            self.cluster.members[*node].process.as_ref().is_some_and(|process| process.router.reads_origins())
        };
        (0..self.cluster.members.len()).filter(reads).collect()
    }

    fn restart_with(&mut self, node: usize, links: u64) {
        self.cluster.members[node].links = Some(links);
        self.restart(node);
    }
}

/// A core with the feature may have to store origins, and a replicant gets messages that have them. A replicant may go
/// back to an earlier version.
#[test]
fn messages_get_origins_when_the_last_node_understands_them() {
    for old in 0..4 {
        let links = |node| Some(if node == old { OLD } else { NEW });
        let mut scenario = meta_group_of_links(4, links, |plan| plan.nodes[REPLICANT].role = Role::Replicant);
        scenario.run_for(10 * SECOND);
        assert!(scenario.reading_origins().is_empty(), "n{old} is old");
        scenario.restart_with(old, NEW);
        scenario.until("all understand origins", |scenario| scenario.reading_origins() == [0, 1, 2, 3]);
        scenario.restart_with(REPLICANT, OLD);
        scenario.until("no node puts origins", |scenario| scenario.reading_origins().is_empty());
        scenario.restart_with(REPLICANT, NEW);
        scenario.until("all understand origins again", |scenario| scenario.reading_origins() == [0, 1, 2, 3]);
    }
}
