//! Retained messages: the same on every node at the end, and never older than a later acknowledged write.

use std::collections::BTreeMap;

use mqtt::QoS;

use super::Oracle;
use crate::context::Context;
use crate::schedule::{MILLI, Micros};
use testkit::packets::Message;

/// Topics on which clients set and delete retained messages.
pub const RETAINED_TOPICS: [&str; 4] = ["r/0", "r/1", "r/a/b", "r/a/c"];
/// Filter of all these topics.
pub const RETAINED: &str = "r/#";
/// Maximum difference of the nodes' clocks.
pub const SKEW_MAX: Micros = 500 * MILLI;

/// Retained messages that a session got for its subscriptions, by topic.
pub type FoundRetained = BTreeMap<String, usize>;

/// Writes of each topic, by the numbers of their messages.
#[derive(Default)]
pub struct Retained {
    writes: BTreeMap<String, Vec<Write>>,
}

#[derive(Clone, Copy, Debug)]
struct Write {
    number: usize,
    deletes: bool,
    /// True at QoS 1 or 2: the acknowledging node has stored it.
    is_assured: bool,
    sent: Micros,
    acknowledged: Option<Micros>,
    node: usize,
    incarnation: u32,
    /// True if every node had it when it was acknowledged. Only such deletions are guaranteed to last.
    is_everywhere: bool,
}

impl Write {
    /// Returns whether its stamp is certainly greater than that of another write.
    fn is_later_than(&self, other: &Self) -> bool {
        let skew =
            if (self.node, self.incarnation) == (other.node, other.incarnation) { 0 } else { SKEW_MAX };
        self.acknowledged.is_some() && other.acknowledged.is_some_and(|at| self.sent > at + skew + MILLI)
    }

    /// Returns whether it wins against all earlier writes, while a node is off that may have it alone.
    fn is_promised(&self, absent_node: Option<usize>) -> bool {
        let is_kept = self.is_assured && self.acknowledged.is_some();
        is_kept && (!self.deletes || self.is_everywhere) && Some(self.node) != absent_node
    }
}

impl Oracle {
    pub(super) fn writes(&mut self, number: usize, deletes: bool) {
        let message = &self.messages[number];
        let write = Write {
            number,
            deletes,
            is_assured: message.qos > QoS::AtMostOnce,
            sent: message.sent,
            acknowledged: None,
            node: message.node,
            incarnation: message.incarnation,
            is_everywhere: false,
        };
        self.retained.writes.entry(message.topic.clone()).or_default().push(write);
    }

    /// Handles the loss of a node's disk: its own writes may be nowhere else.
    pub fn loses_disk(&mut self, node: usize) {
        let writes = self.retained.writes.values_mut().flatten();
        writes.filter(|write| write.node == node).for_each(|write| write.is_assured = false);
    }

    fn write(&mut self, number: usize) -> Option<&mut Write> {
        let writes = self.retained.writes.get_mut(&self.messages[number].topic)?;
        writes.iter_mut().rev().find(|write| write.number == number)
    }

    pub(super) fn write_acknowledged(&mut self, number: usize, now: Micros) {
        if let Some(write) = self.write(number) {
            write.acknowledged = Some(now);
        }
    }

    /// Records for a deletion whether every node has it by now.
    pub fn deletion_is_everywhere(&mut self, number: usize, is_so: impl FnOnce(Micros, usize, u32) -> bool) {
        if let Some(write) = self.write(number).filter(|write| write.deletes) {
            write.is_everywhere = is_so(write.sent, write.node, write.incarnation);
        }
    }

    /// Records a retained message that arrives for a subscription.
    pub(super) fn arrives_retained(&mut self, cx: &mut Context, (at, number): (usize, usize), got: &Message) {
        let message = &self.messages[number];
        assert!(
            message.is_retained,
            "message {number} comes as a retained one to session {at}, and was not retained"
        );
        cx.report.cluster_retained_received += 1;
        self.views[at].retained.insert(got.topic.clone(), number);
    }

    /// Compares what sessions on all nodes found after they subscribed to everything at the end.
    pub fn check_retained(&self, cx: &mut Context, readers: &[usize]) {
        let found: Vec<(usize, &FoundRetained)> =
            readers.iter().map(|at| (self.views[*at].node, &self.views[*at].retained)).collect();
        let Some(((first, expected), others)) = found.split_first() else { return };
        for (node, found) in others {
            assert_eq!(found, expected, "n{node} has retained something else than n{first}");
            cx.report.cluster_check_retained_same += 1;
        }
        for (topic, writes) in &self.retained.writes {
            match expected.get(topic) {
                Some(number) => {
                    let write = writes.iter().find(|write| write.number == *number);
                    let write = write.unwrap_or_else(|| panic!("{number} was never written to {topic}"));
                    // All other nodes may have restarted and forgotten a deletion. Then a node that was away may bring
                    // back an older message (docs/clustering.md), and nothing is guaranteed about messages before that
                    // deletion.
                    let may_be_deleted = |later: &Write| {
                        writes.iter().any(|deletion| deletion.deletes && !later.is_later_than(deletion))
                    };
                    let promised = || {
                        writes.iter().filter(|it| it.is_promised(self.absent_node) && it.is_later_than(write))
                    };
                    let later = promised().find(|later| later.deletes || !may_be_deleted(later));
                    assert!(later.is_none(), "{topic} has {write:?}, and {later:?} came later");
                    cx.report.cluster_check_retained_last += u64::from(write.acknowledged.is_some());
                    cx.report.cluster_excused_retained_older += u64::from(promised().next().is_some());
                    let only_gone = |it: &&Write| {
                        it.is_promised(None) && !it.is_promised(self.absent_node) && it.is_later_than(write)
                    };
                    cx.report.cluster_excused_retained_gone +=
                        u64::from(writes.iter().any(|it| only_gone(&it)));
                }
                None => {
                    let kept = |write: &&Write| write.is_promised(self.absent_node) && !write.deletes;
                    let mut deletions = writes.iter().filter(|write| write.deletes);
                    let is_deleted = deletions.any(|deletion| {
                        !writes.iter().any(|later| kept(&later) && later.is_later_than(deletion))
                    });
                    let lost = writes.iter().rfind(kept);
                    assert!(is_deleted || lost.is_none(), "{topic} has nothing, but {lost:?} is its last");
                    cx.report.cluster_check_retained_deleted += u64::from(is_deleted);
                    cx.report.cluster_excused_retained_deleted += u64::from(is_deleted && lost.is_some());
                }
            }
        }
    }
}
