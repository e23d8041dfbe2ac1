//! How far the clocks of other nodes are from this node's, and whose it is that is wrong.
//!
//! Clocks are asked for, not announced: what a word has waited on its way, in a link that was cut off even, is no difference of clocks. The
//! answer was given at some time after the question, so half of what the two took is how wrong the difference may be.

use std::collections::BTreeMap;

use link::{NodeId, Time};

/// Clocks that are further apart differ, milliseconds. With NTP they are a hundredth of that apart, and half of [`ROUND_TRIP_MAX`] is a
/// quarter of it; what people do on two nodes one after the other takes longer.
const DIFFERS: i64 = 2_000;
/// Clocks that differ agree again when they are no further apart than this, milliseconds.
const AGREES: i64 = 1_000;
/// An answer that takes longer says too little, microseconds.
const ROUND_TRIP_MAX: u64 = 1_000_000;
/// From an answer to the next question, microseconds; and where the clocks differ, to hear soon that they agree again.
const PAUSE: u64 = 60_000_000;
const PAUSE_DIFFERING: u64 = 10_000_000;
/// An answer that does not come is asked for again after this, microseconds: the other node may not have known yet that both are members.
const RETRY: u64 = 2_000_000;
/// Links that come up together do so within this, microseconds. Nothing is said before: who is wrong shows when there are several.
const TOGETHER: u64 = 1_000_000;
/// No clock says more: milliseconds of the world have 48 bits in stamps.
const WALL_MS_MAX: u64 = 1 << 47;

const _: () = assert!(AGREES + ROUND_TRIP_MAX.cast_signed() / 2_000 < DIFFERS);

/// This node's clock of the world, and how the others' stand to it.
#[derive(Debug)]
pub struct Clocks {
    /// Milliseconds of the world when the node's own time began, as this node's clock said last.
    base: i64,
    peers: BTreeMap<NodeId, PeerClock>,
    /// When a link came up last.
    up_at: Time,
    is_unjudged: bool,
    /// By how much this node's clock is ahead of those of most nodes, where it differs from them.
    off: Option<i64>,
}

#[derive(Debug, Default)]
struct PeerClock {
    is_up: bool,
    ask_at: Time,
    /// The question that is on its way, and since when an answer is waited for.
    asked: Option<Time>,
    waits_since: Option<Time>,
    /// By how much it is ahead of this node's clock, milliseconds.
    ahead: Option<i64>,
    differs: bool,
}

/// What is to be said about clocks. Milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockEvent {
    /// This node's clock is so far ahead of those of most nodes.
    Off(i64),
    /// It agrees with them again.
    Right,
    /// A peer's clock is so far ahead of this node's, or of those of most nodes where this node's is wrong.
    Differs { peer: NodeId, ahead: i64, is_sure: bool },
    /// It agrees with this node's again.
    Agrees(NodeId),
}

impl Clocks {
    /// `base` is milliseconds of the world when the node's own time began.
    pub fn new(base: u64) -> Self {
        Self {
            base: bounded(base),
            peers: BTreeMap::new(),
            up_at: Time::default(),
            is_unjudged: false,
            off: None,
        }
    }

    /// This node's clock says so now. It may have been set since it was looked at last.
    pub fn set(&mut self, now: Time, wall_ms: u64) {
        let base = bounded(wall_ms) - millis(now.0);
        let jump = base - self.base;
        if jump != 0 {
            self.base = base;
            self.peers.values_mut().filter_map(|peer| peer.ahead.as_mut()).for_each(|ahead| *ahead -= jump);
            self.is_unjudged = true;
        }
    }

    /// What this node's clock says.
    pub fn wall_ms(&self, now: Time) -> u64 {
        (self.base + millis(now.0)).max(0).unsigned_abs()
    }

    /// Milliseconds of the world when the node's own time began: by the clocks of most nodes where this one's is wrong.
    pub fn base(&self) -> u64 {
        (self.base - self.off.unwrap_or(0)).max(0).unsigned_abs()
    }

    pub fn link_up(&mut self, now: Time, id: NodeId) {
        let known = self.peers.entry(id).or_default();
        *known = PeerClock { is_up: true, differs: known.differs, ..PeerClock::default() };
        self.up_at = now;
    }

    /// What was said of the peer stays so until more is known.
    pub fn link_down(&mut self, id: NodeId) {
        if let Some(known) = self.peers.get_mut(&id) {
            *known = PeerClock { differs: known.differs, ..PeerClock::default() };
        }
    }

    /// The peer has forgotten what it was asked.
    pub fn restarted(&mut self, now: Time, id: NodeId) {
        if self.peers.get(&id).is_some_and(|peer| peer.is_up) {
            self.link_up(now, id);
        }
    }

    pub fn forget(&mut self, id: NodeId) {
        self.peers.remove(&id);
    }

    /// Who is to be asked now.
    pub fn due(&self, now: Time) -> impl Iterator<Item = NodeId> {
        self.peers.iter().filter(move |(_, peer)| peer.is_up && peer.ask_at <= now).map(|(id, _)| *id)
    }

    pub fn asked(&mut self, now: Time, id: NodeId) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.asked = Some(now);
            peer.waits_since.get_or_insert(now);
            peer.ask_at = Time(now.0 + RETRY);
        }
    }

    /// A peer's clock says so, asked at `stamp`. Of any other question than the last there is no answer.
    pub fn answered(&mut self, now: Time, id: NodeId, stamp: u64, wall_ms: u64) {
        let own = self.base + millis(now.0);
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let Some(asked) = peer.asked.take_if(|asked| asked.0 == stamp) else { return };
        peer.waits_since = None;
        peer.ask_at = Time(now.0 + PAUSE);
        let round_trip = now.since(asked);
        if round_trip <= ROUND_TRIP_MAX {
            peer.ahead = Some(bounded(wall_ms) + millis(round_trip / 2) - own);
            self.is_unjudged = true;
        }
    }

    /// What has changed, if anything was heard since the last time; once those whose links came up together have answered.
    pub fn judge(&mut self, now: Time) -> Option<Vec<ClockEvent>> {
        let waits = |peer: &PeerClock| peer.waits_since.is_some_and(|since| now.since(since) < RETRY);
        if !self.is_unjudged || now.since(self.up_at) < TOGETHER || self.peers.values().any(waits) {
            return None;
        }
        self.is_unjudged = false;
        let mut all: Vec<i64> = self.peers.values().filter_map(|peer| peer.ahead).collect();
        if all.is_empty() {
            return None;
        }
        all.push(0);
        all.sort_unstable();
        // Where most agree, the one in the middle is one of them.
        let middle = all[all.len() / 2];
        let is_decided =
            2 * all.iter().filter(|ahead| (*ahead - middle).abs() <= DIFFERS).count() > all.len();
        let mut events = Vec::new();
        if is_decided {
            let off = differs_by(middle, self.off.is_some()).then_some(-middle);
            match (self.off, off) {
                (None, Some(ahead)) => events.push(ClockEvent::Off(ahead)),
                (Some(_), None) => events.push(ClockEvent::Right),
                (None, None) | (Some(_), Some(_)) => {}
            }
            self.off = off;
        }
        for (id, peer) in &mut self.peers {
            let Some(ahead) = peer.ahead else { continue };
            let ahead = ahead + self.off.unwrap_or(0);
            let differs = differs_by(ahead, peer.differs);
            if differs {
                peer.ask_at = peer.ask_at.min(Time(now.0 + PAUSE_DIFFERING));
            }
            match (std::mem::replace(&mut peer.differs, differs), differs) {
                (false, true) => events.push(ClockEvent::Differs { peer: *id, ahead, is_sure: is_decided }),
                // Otherwise it was this node's that was wrong.
                (true, false) if self.off.is_none() => events.push(ClockEvent::Agrees(*id)),
                _ => {}
            }
        }
        Some(events)
    }

    /// By how much a peer's clock is ahead of this node's, milliseconds.
    pub fn ahead(&self, id: NodeId) -> Option<i64> {
        self.peers.get(&id)?.ahead
    }

    /// Whether a peer's clock was said to differ.
    pub fn differs(&self, id: NodeId) -> bool {
        self.peers.get(&id).is_some_and(|peer| peer.differs)
    }

    /// By how much this node's clock is ahead of those of most nodes, milliseconds, where it differs from them.
    pub fn off(&self) -> Option<i64> {
        self.off
    }
}

/// One that drifts around the limit is not complained of again and again.
fn differs_by(ahead: i64, did_differ: bool) -> bool {
    ahead.abs() > if did_differ { AGREES } else { DIFFERS }
}

/// Whatever a clock says.
fn bounded(wall_ms: u64) -> i64 {
    wall_ms.min(WALL_MS_MAX).cast_signed()
}

fn millis(micros: u64) -> i64 {
    (micros / 1_000).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000;
    /// 2025, about.
    const BASE: u64 = 1_750_000_000_000;
    const B: NodeId = NodeId(2);
    const C: NodeId = NodeId(3);
    const D: NodeId = NodeId(4);

    fn at(ms: u64) -> Time {
        Time(ms * 1_000)
    }

    /// Peers are asked at `ms` and answer 20 ms later, with clocks so far ahead.
    fn exchange(clocks: &mut Clocks, ms: u64, all: &[(NodeId, i64)]) -> Vec<ClockEvent> {
        for (id, ahead) in all {
            clocks.asked(at(ms), *id);
            let wall_ms = (BASE + ms + 10).saturating_add_signed(*ahead);
            clocks.answered(at(ms + 20), *id, at(ms).0, wall_ms);
        }
        judge(clocks, ms + 20)
    }

    fn judge(clocks: &mut Clocks, ms: u64) -> Vec<ClockEvent> {
        clocks.judge(at(ms)).unwrap_or_default()
    }

    fn with(peers: &[NodeId]) -> Clocks {
        let mut clocks = Clocks::new(BASE);
        peers.iter().for_each(|id| clocks.link_up(at(0), *id));
        clocks
    }

    #[test]
    fn a_clock_that_differs_is_complained_of_once_and_when_it_agrees_again() {
        let mut clocks = with(&[B, C]);
        let differs = ClockEvent::Differs { peer: B, ahead: HOUR, is_sure: true };
        assert_eq!(exchange(&mut clocks, 1_000, &[(B, HOUR), (C, 500)]), [differs]);
        assert_eq!((clocks.ahead(B), clocks.differs(B), clocks.differs(C)), (Some(HOUR), true, false));
        assert_eq!(clocks.off(), None);
        assert_eq!(
            (clocks.due(at(11_019)).count(), clocks.due(at(11_020)).collect::<Vec<_>>()),
            (0, vec![B])
        );
        assert_eq!(exchange(&mut clocks, 61_000, &[(B, HOUR - 1)]), []);
        clocks.link_down(B);
        assert_eq!((clocks.ahead(B), clocks.differs(B)), (None, true));
        clocks.link_up(at(70_000), B);
        assert_eq!(
            exchange(&mut clocks, 71_000, &[(B, 1_500)]),
            [],
            "not so near that it could differ again soon"
        );
        assert_eq!(exchange(&mut clocks, 72_000, &[(B, -900)]), [ClockEvent::Agrees(B)]);
        assert_eq!(exchange(&mut clocks, 73_000, &[(B, -1_900)]), []);
        let behind = ClockEvent::Differs { peer: B, ahead: -2_001, is_sure: true };
        assert_eq!(exchange(&mut clocks, 74_000, &[(B, -2_001)]), [behind]);
    }

    #[test]
    fn half_a_second_is_no_difference() {
        let mut clocks = with(&[B, C, D]);
        assert_eq!(exchange(&mut clocks, 1_000, &[(B, 500), (C, -500), (D, 0)]), []);
        assert_eq!((clocks.ahead(B), clocks.differs(B), clocks.off()), (Some(500), false, None));
    }

    #[test]
    fn a_node_that_differs_from_most_says_so_of_itself_and_stamps_by_the_others() {
        let mut clocks = with(&[B, C]);
        assert_eq!(
            exchange(&mut clocks, 1_000, &[(B, -HOUR), (C, -HOUR + 300)]),
            [ClockEvent::Off(HOUR - 300)]
        );
        assert_eq!((clocks.differs(B), clocks.differs(C), clocks.off()), (false, false, Some(HOUR - 300)));
        assert_eq!(clocks.base(), BASE - HOUR as u64 + 300);
        assert_eq!(clocks.wall_ms(at(5)), BASE + 5, "others hear what its clock says");
        assert_eq!(exchange(&mut clocks, 61_000, &[(B, -HOUR), (C, -HOUR)]), []);
        clocks.set(at(70_000), BASE + 70_000 - HOUR as u64);
        assert_eq!(
            judge(&mut clocks, 70_000),
            [ClockEvent::Right],
            "it is known at once when its clock is set"
        );
        assert_eq!((clocks.base(), clocks.off()), (BASE - HOUR as u64, None));
    }

    /// Of two it is not known which is right. When a third one says it, what was said of the second is void.
    #[test]
    fn whose_clock_is_wrong_shows_when_there_are_three() {
        let mut clocks = with(&[B]);
        let differs = ClockEvent::Differs { peer: B, ahead: HOUR, is_sure: false };
        assert_eq!(exchange(&mut clocks, 1_000, &[(B, HOUR)]), [differs]);
        clocks.link_up(at(2_000), C);
        assert_eq!(exchange(&mut clocks, 3_000, &[(C, HOUR)]), [ClockEvent::Off(-HOUR)]);
        assert!(!clocks.differs(B));
        clocks.link_down(B);
        clocks.link_down(C);
        assert_eq!(judge(&mut clocks, 5_000), []);
        assert_eq!(clocks.off(), Some(-HOUR), "nobody is there to say otherwise");
        let mut disagreeing = with(&[B, C]);
        let unsure = |peer, ahead| ClockEvent::Differs { peer, ahead, is_sure: false };
        let events = exchange(&mut disagreeing, 1_000, &[(B, HOUR), (C, 2 * HOUR)]);
        assert_eq!(events, [unsure(B, HOUR), unsure(C, 2 * HOUR)], "no two agree");
    }

    #[test]
    fn one_that_differs_from_most_is_named_by_whoever_is_wrong_too() {
        let mut clocks = with(&[B, C, D, NodeId(5)]);
        let events = exchange(&mut clocks, 1_000, &[(B, HOUR), (C, HOUR), (D, -HOUR), (NodeId(5), HOUR)]);
        assert_eq!(
            events,
            [ClockEvent::Off(-HOUR), ClockEvent::Differs { peer: D, ahead: -2 * HOUR, is_sure: true }]
        );
    }

    #[test]
    fn what_waited_on_its_way_is_no_difference() {
        let mut clocks = with(&[B]);
        clocks.asked(at(1_000), B);
        clocks.answered(at(31_000), B, at(1_000).0, BASE + 1_000);
        assert_eq!(judge(&mut clocks, 31_000), []);
        assert_eq!(
            (clocks.ahead(B), clocks.due(at(90_999)).count(), clocks.due(at(91_000)).count()),
            (None, 0, 1)
        );
        clocks.asked(at(91_000), B);
        clocks.answered(at(91_001), B, at(1_000).0, 0);
        assert_eq!(clocks.ahead(B), None, "that was the answer to another question");
        assert_eq!(
            (clocks.due(at(92_999)).count(), clocks.due(at(93_000)).count()),
            (0, 1),
            "it is asked again"
        );
    }

    #[test]
    fn nothing_is_said_before_those_who_come_together_have_answered() {
        let mut clocks = with(&[B, C]);
        assert_eq!(clocks.due(at(0)).collect::<Vec<_>>(), [B, C]);
        assert_eq!(exchange(&mut clocks, 10, &[(B, HOUR)]), [], "other links may come up");
        clocks.asked(at(900), C);
        assert_eq!(judge(&mut clocks, 1_100), [], "it was asked");
        clocks.answered(at(1_200), C, at(900).0, BASE + 1_100);
        let differs = ClockEvent::Differs { peer: B, ahead: HOUR, is_sure: true };
        assert_eq!(judge(&mut clocks, 1_200), [differs]);
        let mut silent = with(&[B, C]);
        silent.asked(at(10), C);
        assert_eq!(exchange(&mut silent, 1_900, &[(B, HOUR)]), []);
        assert_eq!(judge(&mut silent, 2_010).len(), 1, "one that does not answer is not waited for");
    }

    #[test]
    fn no_clock_is_too_absurd() {
        for own in [0, BASE, u64::MAX] {
            for theirs in [0, 1, BASE, WALL_MS_MAX, u64::MAX] {
                let mut clocks = Clocks::new(own);
                clocks.set(at(500), own);
                [B, C].into_iter().for_each(|id| clocks.link_up(at(0), id));
                for id in [B, C] {
                    clocks.asked(at(1_000), id);
                    clocks.answered(at(1_000), id, at(1_000).0, theirs);
                }
                judge(&mut clocks, 1_000);
                let most = WALL_MS_MAX.cast_signed() + 1_000;
                assert!(clocks.ahead(B).is_some_and(|ahead| ahead.abs() <= most));
                assert!(
                    clocks.base() <= WALL_MS_MAX + 1_000 && clocks.wall_ms(at(1_000)) <= WALL_MS_MAX + 1_000
                );
                clocks.set(at(2_000), theirs);
                clocks.set(at(3_000), u64::MAX - own);
                judge(&mut clocks, 3_000);
            }
        }
    }
}
