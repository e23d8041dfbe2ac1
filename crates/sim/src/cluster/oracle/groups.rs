//! Shared groups with members on any nodes. A message acknowledged at QoS 1 reaches a member that stays. A message at
//! QoS 2 reaches one member only. Without faults, each message arrives once.

use std::collections::{BTreeMap, BTreeSet};

use mqtt::{QoS, TopicFilter, TopicName};

use super::{Oracle, Published, View};
use crate::context::Context;
use crate::schedule::Micros;
use testkit::packets::Message;

/// Shared groups. A session is a member of at most one.
pub const GROUPS: [&str; 3] = ["$share/a/g/#", "$share/b/g/+", "$share/a/g/0"];
/// Topics of messages for groups and for others.
pub const GROUP_TOPICS: [&str; 3] = ["g/0", "g/1", "g/2/x"];
pub const SHARE: &str = "$share/";

/// State of all messages for groups.
#[derive(Default)]
pub struct Groups {
    group_messages: BTreeMap<(usize, &'static str), GroupMessage>,
    /// Messages that have to arrive and have not.
    pending: BTreeSet<(usize, &'static str)>,
    /// True if nodes keep messages that they acknowledged for a group as long as a member stays: they wait for each
    /// other, and have room.
    pub are_assured: bool,
}

/// A message of a group.
#[derive(Default)]
struct GroupMessage {
    /// Members that were known where it was published, and have stayed since.
    witnesses: BTreeSet<usize>,
    /// True when one of the witnesses has left meanwhile.
    has_lost_witness: bool,
    /// True when no fault is left, so that the message arrives exactly once.
    is_exact: bool,
    arrivals: u32,
    /// Session at which the message arrived last.
    #[cfg(test)]
    last: Option<usize>,
    at_qos_2: Option<usize>,
}

/// Filter after the name of the group.
pub fn filter_of(text: &str) -> &str {
    text.strip_prefix(SHARE).and_then(|rest| rest.split_once('/')).map_or(text, |(_, filter)| filter)
}

fn matches(group: &str, topic: &str) -> bool {
    let filter = TopicFilter::parse(filter_of(group));
    filter.is_ok_and(|filter| TopicName::parse(topic).is_ok_and(|topic| filter.matches(topic)))
}

impl Groups {
    /// Removes a member. Returns the number of messages that no member has to get any more.
    fn lose(&mut self, view: usize) -> u64 {
        let (group_messages, pending) = (&mut self.group_messages, self.pending.len());
        self.pending.retain(|key| {
            let Some(it) = group_messages.get_mut(key) else { return false };
            it.has_lost_witness |= it.witnesses.remove(&view);
            !it.witnesses.is_empty()
        });
        (pending - self.pending.len()) as u64
    }
}

impl Oracle {
    /// Records a message for groups that leaves its client.
    pub(super) fn publish_to_groups(&mut self, number: usize, message: &Published) {
        let Published { node, incarnation, qos, ref topic, .. } = *message;
        for group in GROUPS.into_iter().filter(|group| matches(group, topic)) {
            let is_member = |view: &View| {
                let Some((_, level, since)) = view.granted.get(group).filter(|_| view.is_connected) else {
                    return false;
                };
                let is_here = (view.node, view.incarnation) == (node, incarnation);
                is_here || self.is_settled || self.is_known((*level, *since), view.node, (node, incarnation))
            };
            let members = self.views.iter().enumerate().filter(|(_, view)| is_member(view));
            let witnesses: BTreeSet<usize> = members.map(|(at, _)| at).collect();
            let has_room = qos > QoS::AtMostOnce || !self.is_tight;
            let is_exact = self.is_settled && !witnesses.is_empty() && has_room;
            if is_exact || self.groups.are_assured && qos == QoS::AtLeastOnce && !witnesses.is_empty() {
                self.groups.pending.insert((number, group));
            }
            self.groups
                .group_messages
                .insert((number, group), GroupMessage { witnesses, is_exact, ..GroupMessage::default() });
        }
    }

    /// Checks a message that arrives at a member.
    pub(super) fn arrives_in_group(
        &mut self,
        cx: &mut Context,
        (at, number): (usize, usize),
        group: &'static str,
        got: &Message,
    ) {
        let (view, message) = (&self.views[at], &self.messages[number]);
        let is_across = (message.node, message.incarnation) != (view.node, view.incarnation);
        let it = self.groups.group_messages.get_mut(&(number, group));
        let it = it.unwrap_or_else(|| panic!("message {number} comes to {group}, which does not match"));
        it.arrivals += 1;
        #[cfg(test)]
        {
            it.last = Some(at);
        }
        assert!(it.arrivals == 1 || !it.is_exact, "message {number} comes to {group} again, at session {at}");
        let report = &mut cx.report;
        if got.qos == QoS::ExactlyOnce {
            let before = it.at_qos_2.replace(at);
            assert!(
                before.is_none(),
                "message {number} comes at QoS 2 to sessions {before:?} and {at} of {group}"
            );
            report.cluster_check_groups_once += u64::from(is_across);
        }
        if self.groups.pending.remove(&(number, group)) {
            report.cluster_check_groups += u64::from(!it.is_exact);
            report.cluster_check_groups_across += u64::from(is_across);
            report.cluster_check_groups_handed_over += u64::from(it.has_lost_witness);
            report.cluster_check_groups_settled += u64::from(it.is_exact);
        }
    }

    #[cfg(any(test, feature = "trial"))]
    pub fn arrivals_in_group(&self, number: usize, group: &'static str) -> u32 {
        self.groups.group_messages.get(&(number, group)).map_or(0, |it| it.arrivals)
    }

    #[cfg(test)]
    pub fn last_in_group(&self, number: usize, group: &'static str) -> Option<usize> {
        self.groups.group_messages.get(&(number, group)).and_then(|it| it.last)
    }

    /// Handles a session that stops being a member.
    pub(super) fn leaves_group(&mut self, view: usize) {
        if self.views[view].group.is_some() {
            self.excused.cluster_excused_groups_left += self.groups.lose(view);
        }
    }

    /// Drops the debts of a node that died: messages for its members, and messages that it was about to pass on.
    pub(super) fn groups_lose_node(&mut self, incarnation: u32) {
        let (views, messages) = (&self.views, &self.messages);
        let had =
            |group| views.iter().any(|view| view.incarnation == incarnation && view.group == Some(group));
        let lost: BTreeSet<&str> = GROUPS.into_iter().filter(|group| had(*group)).collect();
        let pending = self.groups.pending.len();
        self.groups
            .pending
            .retain(|(number, group)| !lost.contains(group) && messages[*number].incarnation != incarnation);
        self.excused.cluster_excused_groups_died += (pending - self.groups.pending.len()) as u64;
        for at in 0..self.views.len() {
            if self.views[at].incarnation == incarnation && self.views[at].group.is_some() {
                self.excused.cluster_excused_groups_died += self.groups.lose(at);
            }
        }
    }

    /// Drops members for which `is_lost` returns true: the acknowledging node may not have known them.
    pub(super) fn groups_forget(
        &mut self,
        number: usize,
        is_lost: &mut impl FnMut(&Published, &View, Micros) -> bool,
    ) {
        for group in GROUPS {
            if !self.groups.pending.contains(&(number, group)) {
                continue;
            }
            let (views, message) = (&self.views, &self.messages[number]);
            let Some(it) = self.groups.group_messages.get_mut(&(number, group)) else { continue };
            it.witnesses.retain(|at| {
                let view = &views[*at];
                let since = view.granted.get(group).map_or(Micros::MAX, |(.., since)| *since);
                !is_lost(message, view, since)
            });
            if it.witnesses.is_empty() {
                self.groups.pending.remove(&(number, group));
                self.excused.cluster_excused_groups_unreached += 1;
            }
        }
    }

    /// Asserts at the end that every owed message has arrived.
    pub(super) fn check_groups(&self) {
        for (number, group) in &self.groups.pending {
            let message = &self.messages[*number];
            let members = &self.groups.group_messages[&(*number, *group)].witnesses;
            assert!(
                !message.is_acknowledged,
                "message {number} of node {} never came to {group}, where {members:?} have stayed: {message:?}",
                message.node
            );
        }
    }
}
