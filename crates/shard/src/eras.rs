//! Incarnations of nodes that own sessions.

use std::collections::BTreeMap;

use crate::error::{Malformed, malformed};
use crate::requests::{ClaimResult, Requests, RequestsForm};
use crate::wire::{Reader, Writer};

/// One incarnation of a node. A node that starts again is another owner of sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIncarnation {
    pub node: u64,
    /// Greater than that of every earlier incarnation of the node.
    pub incarnation: u64,
}

/// Maximum number of nodes that a shard remembers. Beyond it, nodes that are gone are forgotten, the longest known
/// first.
pub(crate) const NODES_MAX: usize = 4096;

/// Id of a node that holds a shard alone, without a cluster.
const ALONE: u64 = 0;

/// Eras of a shard. An era is the number of one incarnation of a node that owns sessions, in the order in which they
/// first claimed one.
#[derive(Debug)]
pub(crate) struct Eras {
    /// Last known incarnation of each node.
    nodes: BTreeMap<u64, Latest>,
    /// Number of the last era that began.
    last: u32,
    /// End times of eras whose sessions may still be marked as owned.
    ended: BTreeMap<u32, u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Latest {
    incarnation: u64,
    /// Era of the incarnation; `None` when it is over.
    era: Option<u32>,
    /// Requests of the incarnation that may come again; none when it is over.
    requests: Requests,
}

/// Result of a command of an incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entered {
    /// This is its era.
    Era(u32),
    /// The incarnation is over.
    Over,
    /// All nodes that the shard remembers are alive, and there is no room for another one.
    Full,
}

impl Default for Eras {
    /// A node without a cluster owns all sessions.
    fn default() -> Self {
        let alone = Latest { era: Some(0), ..Latest::default() };
        Self { nodes: BTreeMap::from([(ALONE, alone)]), last: 0, ended: BTreeMap::new() }
    }
}

impl Eras {
    /// Begins an incarnation of a node that holds the shard alone: all others are over. `are_owned`: some sessions
    /// are marked as owned. Returns whether some may have to be released.
    pub fn start_alone(&mut self, incarnation: u64, now: u64, are_owned: bool) -> bool {
        let live: Vec<u32> = self.nodes.values().filter_map(|latest| latest.era).collect();
        for era in &live {
            self.end(*era, now, are_owned);
        }
        self.last += 1;
        let alone = Latest { incarnation, era: Some(self.last), ..Latest::default() };
        self.nodes = BTreeMap::from([(ALONE, alone)]);
        are_owned && !live.is_empty()
    }

    /// Returns the era of an owner, which begins if this is its first command. A node that has started again has no
    /// other incarnation any more. The second value is true when sessions of that one may have to be released.
    pub fn enter(&mut self, owner: Option<NodeIncarnation>, now: u64, are_owned: bool) -> (Entered, bool) {
        let Some(NodeIncarnation { node, incarnation }) = owner else {
            let era = self.nodes.get(&ALONE).and_then(|alone| alone.era);
            return (era.map_or(Entered::Over, Entered::Era), false);
        };
        let known = self.nodes.get(&node).map(|latest| (latest.incarnation, latest.era));
        let previous = match known {
            Some((last, era)) if last == incarnation => {
                return (era.map_or(Entered::Over, Entered::Era), false);
            }
            Some((last, _)) if last > incarnation => return (Entered::Over, false),
            Some((_, era)) => era,
            None if !self.make_room() => return (Entered::Full, false),
            None => None,
        };
        let is_any = previous.is_some_and(|era| self.end(era, now, are_owned));
        self.last += 1;
        self.nodes.insert(node, Latest { incarnation, era: Some(self.last), ..Latest::default() });
        (Entered::Era(self.last), is_any)
    }

    /// Returns the result of a Claim of an owner that has [entered](Self::enter); `None` when the number is unknown.
    pub fn claim(&self, node: u64, number: u64) -> Option<ClaimResult> {
        self.nodes.get(&node)?.requests.claim(number)
    }

    /// Returns whether a Claim of an incarnation has got a session, as far as it is remembered.
    pub fn has_claimed(&self, owner: NodeIncarnation, number: u64) -> bool {
        let latest = self.nodes.get(&owner.node).filter(|latest| latest.incarnation == owner.incarnation);
        latest.is_some_and(|latest| latest.requests.claim(number).flatten().is_some())
    }

    /// Remembers a Claim of an owner that has entered.
    pub fn note_claim(&mut self, node: u64, number: u64, result: ClaimResult) {
        if let Some(latest) = self.nodes.get_mut(&node) {
            latest.requests.note_claim(number, result);
        }
    }

    /// Notes a number of a lane of an owner that has entered. Returns false when it is not greater than the last one.
    pub fn advance(&mut self, node: u64, lane: u16, number: u64) -> bool {
        self.nodes.get_mut(&node).is_some_and(|latest| latest.requests.advance(lane, number))
    }

    /// Notes that the last command of a lane of an owner that has entered was refused.
    pub fn note_refused(&mut self, node: u64, lane: u16, number: u64) {
        if let Some(latest) = self.nodes.get_mut(&node) {
            latest.requests.note_refused(lane, number);
        }
    }

    /// Returns whether a command of an owner that has entered was refused, or may have been.
    pub fn may_have_refused(&self, node: u64, lane: u16, number: u64) -> bool {
        self.nodes.get(&node).is_some_and(|latest| latest.requests.may_have_refused(lane, number))
    }

    /// Returns the last number of a lane of an incarnation; 0 when it has none, or is over.
    pub fn last_of_lane(&self, owner: NodeIncarnation, lane: u16) -> u64 {
        let latest = self.nodes.get(&owner.node).filter(|latest| latest.incarnation == owner.incarnation);
        latest.map_or(0, |latest| latest.requests.last_of_lane(lane))
    }

    /// Ends the incarnations of a node up to this one. Returns whether sessions may have to be released.
    pub fn end_node(&mut self, owner: NodeIncarnation, now: u64, are_owned: bool) -> bool {
        let NodeIncarnation { node, incarnation } = owner;
        let known = self.nodes.get(&node);
        if known.is_some_and(|latest| latest.incarnation > incarnation) {
            return false;
        }
        if known.is_none() && !self.make_room() {
            return false;
        }
        let known = self.nodes.insert(node, Latest { incarnation, ..Latest::default() });
        let era = known.and_then(|latest| latest.era);
        era.is_some_and(|era| self.end(era, now, are_owned))
    }

    /// Returns whether there is room for another node, after one that is gone was forgotten if need be.
    fn make_room(&mut self) -> bool {
        if self.nodes.len() < NODES_MAX {
            return true;
        }
        let gone = self.nodes.iter().filter(|(_, latest)| latest.era.is_none());
        let Some((node, _)) = gone.min_by_key(|(_, latest)| latest.incarnation) else { return false };
        let node = *node;
        self.nodes.remove(&node);
        true
    }

    fn end(&mut self, era: u32, now: u64, are_owned: bool) -> bool {
        if are_owned {
            self.ended.insert(era, now);
        }
        are_owned
    }

    /// Returns whether the owner of a session of this era is alive, if it has one.
    #[inline]
    pub fn is_live(&self, era: u32) -> bool {
        self.ended.is_empty() || !self.ended.contains_key(&era)
    }

    /// Returns whether a node is alive in this incarnation or an earlier one.
    pub fn has_node(&self, NodeIncarnation { node, incarnation }: NodeIncarnation) -> bool {
        let known = self.nodes.get(&node);
        known.is_some_and(|latest| latest.era.is_some() && latest.incarnation <= incarnation)
    }

    /// Iterates over the incarnations of nodes of a cluster that may own sessions.
    pub fn live_nodes(&self) -> impl Iterator<Item = NodeIncarnation> {
        let live = self.nodes.iter().filter(|(node, latest)| **node != ALONE && latest.era.is_some());
        live.map(|(node, latest)| NodeIncarnation { node: *node, incarnation: latest.incarnation })
    }

    /// Returns the last known incarnation of a node if `owner` cannot own sessions: it is over, or a later one is
    /// known.
    pub fn ended_by(&self, owner: NodeIncarnation) -> Option<u64> {
        let latest = self.nodes.get(&owner.node)?;
        let is_over = latest.incarnation > owner.incarnation
            || latest.incarnation == owner.incarnation && latest.era.is_none();
        is_over.then_some(latest.incarnation)
    }

    /// Time at which an era ended; `None` for one that has not.
    pub fn end_of(&self, era: u32) -> Option<u64> {
        self.ended.get(&era).copied()
    }

    /// Returns whether sessions of ended eras may be marked as owned.
    pub fn are_swept(&self) -> bool {
        self.ended.is_empty()
    }

    /// Changes the end times of eras.
    pub fn shift(&mut self, later: impl Fn(u64) -> u64) {
        self.ended.values_mut().for_each(|at| *at = later(*at));
    }

    /// Notes that no session of an ended era is marked as owned any more.
    pub fn swept(&mut self) {
        self.ended.clear();
    }

    /// Incarnation of a node that holds the shard alone; `None` for one of a cluster.
    pub fn incarnation_alone(&self) -> Option<u64> {
        self.nodes.get(&ALONE).map(|alone| alone.incarnation)
    }

    /// Incarnation of a live era; `None` for a node that holds the shard alone.
    pub fn owner(&self, era: u32) -> Option<NodeIncarnation> {
        let (node, latest) = self.nodes.iter().find(|(_, latest)| latest.era == Some(era))?;
        (*node != ALONE).then_some(NodeIncarnation { node: *node, incarnation: latest.incarnation })
    }

    /// Returns whether a session may be of this era. One that is `owned` may be only of a live era, or of one whose
    /// sessions are being released.
    pub fn is_plausible(&self, era: u32, owned: bool) -> bool {
        let is_known =
            || self.ended.contains_key(&era) || self.nodes.values().any(|latest| latest.era == Some(era));
        era <= self.last && (!owned || is_known())
    }

    /// Returns whether the state has the form of a node that holds the shard alone.
    pub fn is_alone(&self) -> bool {
        self.nodes.len() == 1 && self.nodes.get(&ALONE).is_some_and(|alone| alone.era == Some(self.last))
    }

    /// Encodes the state of a node that holds the shard alone. The state of a cluster has another form, see
    /// [`Self::encode_nodes`].
    pub fn encode_alone(&self, sweep: u32, out: &mut impl Writer) {
        out.u64(self.incarnation_alone().unwrap_or_default());
        out.u32(self.last);
        out.u32(sweep);
        self.encode_ended(out);
    }

    /// Form that the requests of all nodes need. The state has another form then.
    pub fn requests_form(&self) -> RequestsForm {
        let requests = || self.nodes.values().map(|latest| &latest.requests);
        match () {
            () if requests().any(Requests::has_refusals) => RequestsForm::WithRefusals,
            () if requests().any(|requests| !requests.is_empty()) => RequestsForm::WithoutRefusals,
            () => RequestsForm::Absent,
        }
    }

    /// Encodes the incarnations of all nodes, and their requests.
    pub fn encode_nodes(&self, sweep: u32, form: RequestsForm, out: &mut impl Writer) {
        out.u32(self.last);
        out.u32(sweep);
        out.u32(self.nodes.len() as u32);
        for (node, Latest { incarnation, era, requests }) in &self.nodes {
            out.u64(*node);
            out.u64(*incarnation);
            out.bool(era.is_some());
            out.u32(era.unwrap_or_default());
            requests.encode(form, out);
        }
        self.encode_ended(out);
    }

    fn encode_ended(&self, out: &mut impl Writer) {
        out.u32(self.ended.len() as u32);
        for (era, at) in &self.ended {
            out.u32(*era);
            out.u64(*at);
        }
    }

    /// Decodes what [`Self::encode_alone`] wrote. The second value is the slot at which the sweep continues.
    pub fn decode_alone(reader: &mut Reader<'_>) -> Result<(Self, u32), Malformed> {
        let (incarnation, last, sweep) = (reader.u64()?, decode_last(reader)?, reader.u32()?);
        let alone = Latest { incarnation, era: Some(last), ..Latest::default() };
        let nodes = BTreeMap::from([(ALONE, alone)]);
        let ended = decode_ended(reader, last)?;
        if ended.contains_key(&last) {
            return malformed("end of an incarnation");
        }
        Ok((Self { nodes, last, ended }, sweep))
    }

    /// Decodes what [`Self::encode_nodes`] wrote. The second value is the slot at which the sweep continues.
    pub fn decode_nodes(reader: &mut Reader<'_>, form: RequestsForm) -> Result<(Self, u32), Malformed> {
        let (last, sweep) = (decode_last(reader)?, reader.u32()?);
        let mut nodes = BTreeMap::new();
        let mut live = Vec::new();
        for _ in 0..reader.u32()? {
            let (node, incarnation) = (reader.u64()?, reader.u64()?);
            let (is_live, era) = (reader.bool()?, reader.u32()?);
            let is_possible = if is_live { era <= last && !live.contains(&era) } else { era == 0 };
            let requests = Requests::decode(form, reader)?;
            if !requests.is_empty() && (!is_live || node == ALONE) {
                return malformed("requests of an incarnation");
            }
            live.extend(is_live.then_some(era));
            let latest = Latest { incarnation, era: is_live.then_some(era), requests };
            if !is_possible || nodes.len() == NODES_MAX || nodes.insert(node, latest).is_some() {
                return malformed("incarnation of a node");
            }
        }
        let ended = decode_ended(reader, last)?;
        if live.iter().any(|era| ended.contains_key(era)) {
            return malformed("incarnation of a node");
        }
        Ok((Self { nodes, last, ended }, sweep))
    }

    /// Checks that the state contradicts itself nowhere.
    pub fn check_invariants(&self) {
        assert!(self.nodes.len() <= NODES_MAX);
        for (node, latest) in &self.nodes {
            latest.requests.check_invariants();
            let may_have_requests = *node != ALONE && latest.era.is_some();
            assert!(latest.requests.is_empty() || may_have_requests);
        }
        let live: Vec<u32> = self.nodes.values().filter_map(|latest| latest.era).collect();
        for (at, era) in live.iter().enumerate() {
            assert!(*era <= self.last && !live[..at].contains(era) && !self.ended.contains_key(era));
        }
        assert!(self.ended.keys().all(|era| *era <= self.last));
    }
}

/// Decodes the number of the last era. There are fewer than 2^31, so a damaged number does not overflow later.
fn decode_last(reader: &mut Reader<'_>) -> Result<u32, Malformed> {
    let last = reader.u32()?;
    if last < 1 << 31 { Ok(last) } else { malformed("number of an era") }
}

fn decode_ended(reader: &mut Reader<'_>, last: u32) -> Result<BTreeMap<u32, u64>, Malformed> {
    let mut ended = BTreeMap::new();
    for _ in 0..reader.u32()? {
        let (era, at) = (reader.u32()?, reader.u64()?);
        if era > last || ended.insert(era, at).is_some() {
            return malformed("end of an incarnation");
        }
    }
    Ok(ended)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(node: u64, incarnation: u64) -> NodeIncarnation {
        NodeIncarnation { node, incarnation }
    }

    #[test]
    fn nodes_that_are_gone_are_forgotten_before_one_is_refused() {
        let mut eras = Eras::default();
        for node in 1..NODES_MAX as u64 {
            let entered = eras.enter(Some(owner(node, node)), 5, true);
            assert_eq!(entered, (Entered::Era(node as u32), false));
        }
        let other = Some(owner(u64::MAX, 1));
        assert_eq!(eras.enter(other, 5, true), (Entered::Full, false));
        assert!(!eras.end_node(owner(u64::MAX, 1), 5, true));
        assert!(eras.end_node(owner(9, 9), 6, true) && eras.end_node(owner(4, 4), 6, true));
        assert_eq!(eras.enter(other, 7, true), (Entered::Era(NODES_MAX as u32), false));
        eras.check_invariants();
        assert_eq!(eras.enter(Some(owner(9, 9)), 7, true), (Entered::Over, false), "it is still known");
        assert!(!eras.nodes.contains_key(&4));
    }
}
