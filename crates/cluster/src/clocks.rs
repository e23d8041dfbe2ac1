//! Differences between the clocks of other nodes and this node's, and which of the clocks is wrong.
//!
//! Clocks are requested, not announced: a delay in transit, even in a link that was cut off, is no difference of
//! clocks. The answer was given at some time after the request, so the error of the difference is at most half of the
//! round trip.

use std::collections::BTreeMap;

use broker::Slew;
use link::{NodeId, Time};

/// Difference from which clocks count as different, in milliseconds. With NTP clocks are a hundredth of that apart, and
/// half of [`ROUND_TRIP_MAX`] is a quarter of it. Actions of people on two nodes one after the other are further apart.
const DIFFERS: i64 = 2_000;
/// Difference up to which clocks that differed agree again, in milliseconds.
const AGREES: i64 = 1_000;
/// Maximum round trip of a usable answer, in microseconds.
const ROUND_TRIP_MAX: u64 = 1_000_000;
/// Interval between an answer and the next request, in microseconds. The shorter one applies while clocks differ, to
/// notice soon that they agree again.
const PAUSE: u64 = 60_000_000;
const PAUSE_DIFFERING: u64 = 10_000_000;
/// Time after which a request without an answer is repeated, in microseconds. The other node may not have known yet
/// that both are members.
const RETRY: u64 = 2_000_000;
/// Time within which links that come up together do so, in microseconds. Nothing is reported before: several answers
/// are needed to find the wrong clock.
const TOGETHER: u64 = 1_000_000;
/// Maximum time that a clock may report, in milliseconds: stamps have 48 bits for milliseconds since 1970.
const WALL_MS_MAX: u64 = 1 << 47;

const _: () = assert!(AGREES + ROUND_TRIP_MAX.cast_signed() / 2_000 < DIFFERS);

/// This node's wall clock, and the differences of the other nodes' clocks.
#[derive(Debug)]
pub struct Clocks {
    /// Wall-clock time at the start of the node's own time, in milliseconds, as this node's clock last reported.
    base: i64,
    peers: BTreeMap<NodeId, PeerClock>,
    /// Time at which the last link came up.
    up_at: Time,
    is_unjudged: bool,
    /// Time by which this node's clock is ahead of those of most nodes, in milliseconds, if it differs.
    off: Option<i64>,
    /// Wall-clock time at the start of the node's own time by the clocks of most nodes, as it was last found. It stays
    /// while they do not agree: the node's own time goes on without its wall clock.
    found: Option<i64>,
    /// Time that the shards follow. It begins with the first value of [`Self::found`] and follows later ones slowly:
    /// the clocks of most nodes may be wrong, and be corrected.
    followed: Option<Slew>,
    /// Number of cores at the last judgement.
    cores: usize,
}

#[derive(Debug, Default)]
struct PeerClock {
    is_up: bool,
    ask_at: Time,
    /// Time of the request in progress.
    asked: Option<Time>,
    waits_since: Option<Time>,
    /// Time by which it is ahead of this node's clock, in milliseconds.
    ahead: Option<i64>,
    differs: bool,
}

/// Change to report about clocks. Times are in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockEvent {
    /// This node's clock is ahead of those of most nodes by this time.
    Off(i64),
    /// This node's clock agrees with most nodes again.
    Right,
    /// A peer's clock is ahead of this node's by this time, or of those of most nodes when this node's is wrong.
    Differs { peer: NodeId, ahead: i64, is_sure: bool },
    /// The peer's clock agrees with this node's again.
    Agrees(NodeId),
}

impl Clocks {
    /// Creates the state. `base` is the wall-clock time at the start of the node's own time, in milliseconds.
    pub fn new(base: u64) -> Self {
        Self {
            base: bounded(base),
            peers: BTreeMap::new(),
            up_at: Time::default(),
            is_unjudged: false,
            off: None,
            found: None,
            followed: None,
            cores: 0,
        }
    }

    /// Sets this node's wall clock. It may have been adjusted since the last call.
    pub fn set(&mut self, now: Time, wall_ms: u64) {
        let base = bounded(wall_ms) - millis(now.0);
        let jump = base - self.base;
        if jump != 0 {
            self.base = base;
            self.peers.values_mut().filter_map(|peer| peer.ahead.as_mut()).for_each(|ahead| *ahead -= jump);
            self.is_unjudged = true;
        }
    }

    /// Returns the time of this node's wall clock, in milliseconds.
    pub fn wall_ms(&self, now: Time) -> u64 {
        (self.base + millis(now.0)).max(0).unsigned_abs()
    }

    /// Returns the wall-clock time at the start of the node's own time, in milliseconds. When this node's clock is
    /// wrong, the clocks of most nodes count.
    pub fn base(&self) -> u64 {
        (self.base - self.off.unwrap_or(0)).max(0).unsigned_abs()
    }

    pub fn link_up(&mut self, now: Time, id: NodeId) {
        let known = self.peers.entry(id).or_default();
        *known = PeerClock { is_up: true, differs: known.differs, ..PeerClock::default() };
        self.up_at = now;
    }

    /// Notes that a link is down. The last state of the peer's clock stays until more is known.
    pub fn link_down(&mut self, id: NodeId) {
        if let Some(known) = self.peers.get_mut(&id) {
            *known = PeerClock { differs: known.differs, ..PeerClock::default() };
        }
    }

    /// Notes that the peer has restarted and forgotten the request.
    pub fn restarted(&mut self, now: Time, id: NodeId) {
        if self.peers.get(&id).is_some_and(|peer| peer.is_up) {
            self.link_up(now, id);
        }
    }

    pub fn forget(&mut self, id: NodeId) {
        self.peers.remove(&id);
    }

    /// Iterates over the peers to ask now.
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

    /// Handles a peer's clock, in answer to the request of `stamp`. Answers to any but the last request are ignored.
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

    /// Returns the wall-clock time at the start of the node's own time that the shards follow; `None` until so many
    /// clocks have agreed as make a majority of the cores. `cores`: their number, 0 if it is not known.
    pub fn followed(&mut self, now: Time, cores: usize) -> Option<u64> {
        let own = self.base;
        let is_alone = cores == 1 && self.peers.values().all(|peer| peer.ahead.is_none());
        let found = if is_alone { *self.found.insert(own) } else { self.found? };
        let now_ms = now.0 / 1_000;
        let followed = self.followed.get_or_insert_with(|| Slew::new(now_ms, found));
        followed.move_towards(now_ms, found);
        Some(followed.ahead_ms().max(0).unsigned_abs())
    }

    /// Returns the changes if an answer has arrived since the last call, once the nodes whose links came up together
    /// have answered. `cores`: see [`Self::followed`].
    pub fn judge(&mut self, now: Time, cores: usize) -> Option<Vec<ClockEvent>> {
        // The cores may be known after the first clocks.
        self.is_unjudged |= std::mem::replace(&mut self.cores, cores) != cores;
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
        // If most clocks agree, the median is one of them.
        let middle = all[all.len() / 2];
        let agreeing = all.iter().filter(|ahead| (*ahead - middle).abs() <= DIFFERS).count();
        let is_decided = 2 * agreeing > all.len();
        if is_decided && cores > 0 && agreeing > cores / 2 {
            self.found = Some(self.base + middle);
        }
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
                // Otherwise this node's clock was the wrong one.
                (true, false) if self.off.is_none() => events.push(ClockEvent::Agrees(*id)),
                _ => {}
            }
        }
        Some(events)
    }

    /// Returns the time by which a peer's clock is ahead of this node's, in milliseconds.
    pub fn ahead(&self, id: NodeId) -> Option<i64> {
        self.peers.get(&id)?.ahead
    }

    /// Returns whether a peer's clock was reported to differ.
    pub fn differs(&self, id: NodeId) -> bool {
        self.peers.get(&id).is_some_and(|peer| peer.differs)
    }

    /// Returns the time by which this node's clock is ahead of those of most nodes, in milliseconds, if it differs.
    pub fn off(&self) -> Option<i64> {
        self.off
    }
}

/// Returns whether a difference counts. The two limits keep a clock that drifts around one from being reported
/// repeatedly.
fn differs_by(ahead: i64, did_differ: bool) -> bool {
    ahead.abs() > if did_differ { AGREES } else { DIFFERS }
}

/// Limits any clock's value to the valid range.
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
    /// A time in 2025.
    const BASE: u64 = 1_750_000_000_000;
    const B: NodeId = NodeId(2);
    const C: NodeId = NodeId(3);
    const D: NodeId = NodeId(4);
    const CORES: usize = 3;

    fn at(ms: u64) -> Time {
        Time(ms * 1_000)
    }

    /// Asks peers at `ms`; they answer 20 ms later, with clocks that are ahead by these times.
    fn exchange(clocks: &mut Clocks, ms: u64, all: &[(NodeId, i64)]) -> Vec<ClockEvent> {
        for (id, ahead) in all {
            clocks.asked(at(ms), *id);
            let wall_ms = (BASE + ms + 10).saturating_add_signed(*ahead);
            clocks.answered(at(ms + 20), *id, at(ms).0, wall_ms);
        }
        judge(clocks, ms + 20)
    }

    fn judge(clocks: &mut Clocks, ms: u64) -> Vec<ClockEvent> {
        clocks.judge(at(ms), CORES).unwrap_or_default()
    }

    fn with(peers: &[NodeId]) -> Clocks {
        let mut clocks = Clocks::new(BASE);
        peers.iter().for_each(|id| clocks.link_up(at(0), *id));
        clocks
    }

    #[test]
    fn a_clock_that_differs_is_reported_once_and_again_when_it_agrees() {
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
    fn a_node_whose_clock_differs_from_most_reports_itself_and_stamps_by_the_others() {
        let mut clocks = with(&[B, C]);
        assert_eq!(
            exchange(&mut clocks, 1_000, &[(B, -HOUR), (C, -HOUR + 300)]),
            [ClockEvent::Off(HOUR - 300)]
        );
        assert_eq!((clocks.differs(B), clocks.differs(C), clocks.off()), (false, false, Some(HOUR - 300)));
        assert_eq!(clocks.base(), BASE - HOUR as u64 + 300);
        assert_eq!(clocks.wall_ms(at(5)), BASE + 5, "others learn the time of its clock");
        assert_eq!(exchange(&mut clocks, 61_000, &[(B, -HOUR), (C, -HOUR)]), []);
        clocks.set(at(70_000), BASE + 70_000 - HOUR as u64);
        assert_eq!(
            judge(&mut clocks, 70_000),
            [ClockEvent::Right],
            "it is known at once when its clock is set"
        );
        assert_eq!((clocks.base(), clocks.off()), (BASE - HOUR as u64, None));
    }

    /// Two clocks do not show which one is right. When a third one decides, the report about the second is withdrawn.
    #[test]
    fn three_clocks_show_the_wrong_one() {
        let mut clocks = with(&[B]);
        let differs = ClockEvent::Differs { peer: B, ahead: HOUR, is_sure: false };
        assert_eq!(exchange(&mut clocks, 1_000, &[(B, HOUR)]), [differs]);
        clocks.link_up(at(2_000), C);
        assert_eq!(exchange(&mut clocks, 3_000, &[(C, HOUR)]), [ClockEvent::Off(-HOUR)]);
        assert!(!clocks.differs(B));
        clocks.link_down(B);
        clocks.link_down(C);
        assert_eq!(judge(&mut clocks, 5_000), []);
        assert_eq!(clocks.off(), Some(-HOUR), "no clock contradicts");
        let mut disagreeing = with(&[B, C]);
        let unsure = |peer, ahead| ClockEvent::Differs { peer, ahead, is_sure: false };
        let events = exchange(&mut disagreeing, 1_000, &[(B, HOUR), (C, 2 * HOUR)]);
        assert_eq!(events, [unsure(B, HOUR), unsure(C, 2 * HOUR)], "no two agree");
    }

    #[test]
    fn a_node_with_a_wrong_clock_names_another_wrong_clock() {
        let mut clocks = with(&[B, C, D, NodeId(5)]);
        let events = exchange(&mut clocks, 1_000, &[(B, HOUR), (C, HOUR), (D, -HOUR), (NodeId(5), HOUR)]);
        assert_eq!(
            events,
            [ClockEvent::Off(-HOUR), ClockEvent::Differs { peer: D, ahead: -2 * HOUR, is_sure: true }]
        );
    }

    #[test]
    fn shards_follow_the_clocks_of_most_cores_and_no_jump() {
        let mut clocks = with(&[B, C]);
        assert_eq!(clocks.followed(at(500), CORES), None, "no other clock is known");
        exchange(&mut clocks, 1_000, &[(B, -HOUR), (C, -HOUR)]);
        let followed = BASE - HOUR as u64;
        assert_eq!(clocks.followed(at(1_020), CORES), Some(followed));
        // This node's clock is set by a day.
        clocks.set(at(2_000), BASE + 2_000 + 24 * HOUR as u64);
        judge(&mut clocks, 2_000);
        assert_eq!(clocks.followed(at(2_000), CORES), Some(followed));
        // Then those of most nodes.
        exchange(&mut clocks, 62_000, &[(B, 24 * HOUR), (C, 24 * HOUR)]);
        let found = clocks.found.expect("most agree").unsigned_abs();
        assert_eq!(found, BASE + 24 * HOUR as u64);
        let (before, after) =
            [62_020, 162_020].map(|ms| clocks.followed(at(ms), CORES).expect("it is known")).into();
        assert_eq!(after - before, 1_000, "a hundredth of the time that has passed");
    }

    #[test]
    fn shards_follow_nobody_until_so_many_agree_as_make_a_majority_of_the_cores() {
        let mut clocks = with(&[B, C, D]);
        clocks.asked(at(1_000), B);
        clocks.answered(at(1_020), B, at(1_000).0, BASE + 1_010);
        clocks.judge(at(1_020), 5);
        assert_eq!(clocks.followed(at(1_020), 5), None, "two of five");
        clocks.judge(at(1_030), 3);
        assert_eq!(clocks.followed(at(1_030), 3), Some(BASE), "two of three");
        let mut clocks = with(&[B, C, D]);
        exchange(&mut clocks, 61_000, &[(B, HOUR), (C, 2 * HOUR), (D, -HOUR)]);
        assert_eq!(clocks.followed(at(61_020), CORES), None, "no two agree");
        assert_eq!(with(&[B]).followed(at(5_000), 0), None, "the cores are not known yet");
        assert_eq!(with(&[]).followed(at(5_000), 1), Some(BASE), "the only core");
    }

    #[test]
    fn a_delay_in_transit_is_no_difference() {
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
    fn nothing_is_reported_before_nodes_that_join_together_have_answered() {
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
    fn absurd_clocks_are_handled() {
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
