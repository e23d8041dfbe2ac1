//! Transfer of a shard's leadership to the preferred replica.
//!
//! A transfer stops the shard for the time of an election without a time-out, so it is made rarely: to a replica that
//! has answered for some time and has nearly all entries, by a leader that has led for some time, for one shard of a
//! core at a time.
//!
//! A leader whose log is full cannot store what it proposes. It transfers its leadership at once, to any replica that
//! has room. Without room, a replica says so to the leader, and is not chosen.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use consensus::{Progress, ReplicaId, RequestId, Status};
use link::{NodeId, Time};

/// Time for which a replica leads, and the preferred one answers, before the leadership is transferred.
const STEADY: Duration = Duration::from_secs(10);
/// Time between two looks at the preferred replica: that of a heartbeat.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Maximum time in microseconds since the last answer of the preferred replica: two heartbeats and a round trip.
const SILENCE_MAX: u64 = 1_500_000;
/// Number of entries that the preferred replica may lack, whatever their age. It leads when it has them.
const BEHIND_MAX: u64 = 100;
/// Maximum age of the entries that a busy replica may lack, if they are more: with a long round trip it never has the
/// last ones. The shard stops for about as long.
const BEHIND_TIME_MAX: Duration = Duration::from_secs(1);
/// Maximum number of these entries.
const BEHIND_BUSY_MAX: u64 = 50_000;
/// Time between two transfers of the same shard by the same replica. It doubles with each transfer, because the other
/// replica may fail each time, or may know another preferred one.
const PAUSE_MIN: Duration = Duration::from_secs(10);
const PAUSE_MAX: Duration = Duration::from_secs(600);
/// Time between two transfers of a core: requests that waited are sent again first.
const NEXT_SHARD_AFTER: Duration = Duration::from_millis(250);
/// Time after which a replica without room says so again, and time for which a leader remembers it.
pub(crate) const NO_ROOM_AGAIN: Duration = Duration::from_secs(4);
const NO_ROOM_KEPT: Duration = Duration::from_secs(10);
/// Time after which the permit of a transfer ends by itself, if its replica has ended. A transfer is given up earlier.
const PERMIT_LIMIT: Duration = Duration::from_secs(10);

/// Permission of one core to transfer the leadership of one shard at a time.
#[derive(Debug, Default)]
pub struct TransferPermit {
    /// Time in microseconds at which the next transfer may begin.
    free_at: AtomicU64,
    /// True while the core is to lead no shard, because it is drained or stops.
    leaves: AtomicBool,
    transferred: AtomicU64,
    failed: AtomicU64,
}

impl TransferPermit {
    fn take(&self, now: Time) -> bool {
        let until = now.after(PERMIT_LIMIT).0;
        self.free_at.try_update(Relaxed, Relaxed, |free_at| (free_at <= now.0).then_some(until)).is_ok()
    }

    /// Sets whether this core is to lead no shard. Then it transfers its shards without waiting until it and the other
    /// replica have been steady for some time.
    pub fn set_leaving(&self, leaves: bool) {
        self.leaves.store(leaves, Relaxed);
    }

    pub(crate) fn give_back(&self, now: Time, is_done: bool) {
        self.free_at.store(now.after(NEXT_SHARD_AFTER).0, Relaxed);
        if is_done { &self.transferred } else { &self.failed }.fetch_add(1, Relaxed);
    }

    /// Number of transfers of this process that were made, and of those that were given up.
    pub fn counts(&self) -> (u64, u64) {
        (self.transferred.load(Relaxed), self.failed.load(Relaxed))
    }
}

/// The preferred leader of a shard, and the transfer to it.
#[derive(Debug)]
pub(crate) struct LeadershipTransfer {
    preferred: Option<NodeId>,
    /// The log of this replica is full.
    is_full: bool,
    /// Nodes whose log is full, and the times until which that is known.
    without_room: BTreeMap<NodeId, Time>,
    /// Time since which this replica leads; `None` while it does not.
    leads_since: Option<Time>,
    /// Time since which the preferred replica answers.
    answers_since: Option<Time>,
    request: Option<RequestId>,
    /// Time of the last transfer, and the time that must pass before the next one.
    last: Option<Time>,
    pause: Duration,
    /// Last entry of this replica at the last look.
    looked: Option<(Time, u64)>,
    /// Time of the next look.
    due: Time,
}

impl LeadershipTransfer {
    pub fn new() -> Self {
        Self {
            preferred: None,
            is_full: false,
            without_room: BTreeMap::new(),
            leads_since: None,
            answers_since: None,
            request: None,
            last: None,
            pause: PAUSE_MIN,
            looked: None,
            due: Time::NEVER,
        }
    }

    /// Sets the node whose replica should lead; `None` if any replica may.
    pub fn prefer(&mut self, now: Time, preferred: Option<NodeId>) {
        if self.preferred != preferred {
            self.preferred = preferred;
            self.answers_since = None;
            self.due = now;
        }
    }

    /// Notes whether the log of this replica is full.
    pub fn set_full(&mut self, now: Time, is_full: bool) {
        self.is_full = is_full;
        self.due = now;
    }

    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Notes that the log of another replica is full.
    pub fn has_no_room(&mut self, now: Time, node: NodeId) {
        self.without_room.retain(|_, until| *until > now);
        self.without_room.insert(node, now.after(NO_ROOM_KEPT));
    }

    fn may_lead(&self, now: Time, node: NodeId) -> bool {
        self.without_room.get(&node).is_none_or(|until| *until <= now)
    }

    /// Notes that this replica leads and serves, or does so no more.
    pub fn leads(&mut self, now: Time, leads: bool) {
        self.leads_since = leads.then_some(now);
        self.answers_since = None;
        self.looked = None;
        self.due = now;
    }

    /// Time of the next call of [`Self::next`].
    pub fn due(&self) -> Time {
        let has_reason = self.preferred.is_some() || self.is_full;
        let looks = self.leads_since.is_some() && has_reason && self.request.is_none();
        if looks { self.due } else { Time::NEVER }
    }

    /// Returns the replica that takes over now, if there is one. [`Self::begun`] must follow.
    pub fn next(
        &mut self,
        now: Time,
        own: ReplicaId,
        status: &Status,
        permit: &TransferPermit,
    ) -> Option<ReplicaId> {
        if self.due() > now {
            return None;
        }
        self.due = now.after(LOOK_AGAIN);
        if self.is_full {
            let to = self.with_room(now, own, status)?;
            if !permit.take(now) {
                self.due = now.after(NEXT_SHARD_AFTER);
                return None;
            }
            return Some(to);
        }
        let preferred = self.preferred.filter(|preferred| self.may_lead(now, *preferred))?;
        let mut members = status.members.iter().filter(|(id, _)| status.voters.contains(id));
        let Some((to, _)) = members.find(|(_, member)| member.node == preferred) else {
            // The placement and the group differ for a moment.
            self.answers_since = None;
            return None;
        };
        if *to == own {
            self.due = Time::NEVER;
            return None;
        }
        let progress = status.progress.iter().find(|progress| progress.replica == *to);
        let silence = progress.and_then(|progress| progress.silence);
        if silence.is_none_or(|silence| silence > SILENCE_MAX) {
            self.answers_since = None;
            return None;
        }
        let answers_since = *self.answers_since.get_or_insert(now);
        let leaves = permit.leaves.load(Relaxed);
        let mut since = [Some(answers_since), self.leads_since].into_iter().flatten();
        let is_steady = leaves || since.all(|since| since.after(STEADY) <= now);
        let (last, its_last) = (status.last.unwrap_or(0), progress.and_then(|it| it.last).unwrap_or(0));
        let looked = self.looked.replace((now, last));
        let behind = last.saturating_sub(its_last);
        let has_recent = looked.is_some_and(|(at, then)| {
            now.since(at) <= BEHIND_TIME_MAX.as_micros() as u64 && its_last >= then
        });
        let has_most = behind <= BEHIND_MAX || behind <= BEHIND_BUSY_MAX && has_recent;
        let may_repeat =
            self.last.is_none_or(|last| last.after(if leaves { PAUSE_MIN } else { self.pause }) <= now);
        let may_begin = is_steady && has_most && !status.is_changing && may_repeat;
        if !may_begin {
            return None;
        }
        if !permit.take(now) {
            self.due = now.after(NEXT_SHARD_AFTER);
            return None;
        }
        // The next one after a pause of the maximum is a repetition, too.
        let is_repeated = self.last.is_some_and(|last| last.after(2 * PAUSE_MAX) > now);
        self.pause = if is_repeated { (self.pause * 2).min(PAUSE_MAX) } else { PAUSE_MIN };
        self.last = Some(now);
        Some(*to)
    }

    /// Returns the other voter that answers and has most entries, of those whose log is not full.
    fn with_room(&self, now: Time, own: ReplicaId, status: &Status) -> Option<ReplicaId> {
        if status.is_changing {
            return None;
        }
        let answers = |progress: &&Progress| {
            let node = status.members.iter().find(|(id, _)| *id == progress.replica);
            progress.replica != own
                && status.voters.contains(&progress.replica)
                && progress.silence.is_some_and(|silence| silence <= SILENCE_MAX)
                && node.is_some_and(|(_, member)| self.may_lead(now, member.node))
        };
        status.progress.iter().filter(answers).max_by_key(|progress| progress.last).map(|it| it.replica)
    }

    pub fn begun(&mut self, request: RequestId) {
        self.request = Some(request);
    }

    /// Returns whether this is the request of the transfer, which has ended then.
    pub fn ended(&mut self, now: Time, request: RequestId) -> bool {
        let is_it = self.request == Some(request);
        if is_it {
            self.request = None;
            self.due = now.after(LOOK_AGAIN);
        }
        is_it
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use consensus::{Member, Role};

    use super::*;

    const OWN: ReplicaId = ReplicaId(1);
    const SECOND: u64 = 1_000_000;
    const NEVER: [u64; 0] = [];

    /// Status of replica 1, which leads. Replica 2 has answered before this time and has this many of the 5,000
    /// entries.
    fn status(silence: Option<u64>, last: u64) -> Status {
        let ids = || [1, 2, 3].into_iter().map(ReplicaId);
        Status {
            role: Role::Leader,
            term: 1,
            leader: Some(OWN),
            voters: ids().collect(),
            learners: BTreeSet::new(),
            members: ids().map(|id| (id, Member { node: NodeId(id.0 + 10) })).collect(),
            is_changing: false,
            last: Some(5_000),
            applied: None,
            snapshot: None,
            quorum_age: Some(0),
            progress: vec![Progress { replica: ReplicaId(2), last: Some(last), silence }],
            failure: None,
        }
    }

    /// Looks at each second from one to another, and returns the seconds at which a transfer begins.
    fn begins(
        transfer: &mut LeadershipTransfer,
        permit: &TransferPermit,
        seconds: std::ops::Range<u64>,
        status: &Status,
    ) -> Vec<u64> {
        let mut begun = Vec::new();
        for second in seconds {
            let now = Time(second * SECOND);
            if let Some(to) = transfer.next(now, OWN, status, permit) {
                assert_eq!(to, ReplicaId(2));
                transfer.begun(RequestId(second));
                begun.push(second);
                assert!(transfer.ended(now, RequestId(second)));
                permit.give_back(now, false);
            }
        }
        begun
    }

    fn leading(preferred: u64) -> LeadershipTransfer {
        let mut transfer = LeadershipTransfer::new();
        transfer.prefer(Time(0), Some(NodeId(preferred)));
        transfer.leads(Time(0), true);
        transfer
    }

    #[test]
    fn leadership_goes_to_the_preferred_replica_once_both_are_steady() {
        let permit = TransferPermit::default();
        let good = status(Some(0), 4_900);
        let mut transfer = leading(12);
        assert_eq!(begins(&mut transfer, &permit, 0..11, &good), [10]);
        // It was silent meanwhile.
        let mut transfer = leading(12);
        assert_eq!(begins(&mut transfer, &permit, 11..15, &good), NEVER);
        assert_eq!(begins(&mut transfer, &permit, 15..16, &status(Some(SILENCE_MAX + 1), 5_000)), NEVER);
        assert_eq!(begins(&mut transfer, &permit, 16..30, &good), [26]);
        // This replica was elected again.
        transfer.leads(Time(30 * SECOND), false);
        assert_eq!(transfer.due(), Time::NEVER);
        transfer.leads(Time(50 * SECOND), true);
        assert_eq!(begins(&mut transfer, &permit, 50..61, &good), [60]);
    }

    #[test]
    fn leadership_stays_while_the_preferred_replica_lags_or_is_no_voter_or_leads_already() {
        let permit = TransferPermit::default();
        let good = status(Some(0), 5_000);
        let learner =
            Status { voters: [OWN, ReplicaId(3)].into(), learners: [ReplicaId(2)].into(), ..good.clone() };
        let changing = Status { is_changing: true, ..good.clone() };
        for bad in [status(Some(0), 4_899), status(None, 5_000), learner, changing] {
            assert_eq!(begins(&mut leading(12), &permit, 0..60, &bad), NEVER, "{bad:?}");
        }
        for preferred in [11, 19] {
            assert_eq!(begins(&mut leading(preferred), &permit, 0..60, &good), NEVER);
        }
        let mut own = leading(11);
        begins(&mut own, &permit, 0..2, &good);
        assert_eq!(own.due(), Time::NEVER);
        own.prefer(Time(2 * SECOND), Some(NodeId(12)));
        assert_eq!(begins(&mut own, &permit, 2..13, &good), [12]);
        own.prefer(Time(13 * SECOND), None);
        assert_eq!(own.due(), Time::NEVER);
    }

    /// A busy shard with a long round trip: the preferred replica always lacks what was written since it last answered.
    #[test]
    fn leadership_goes_to_a_replica_that_lacks_only_what_was_written_last() {
        // Entries for each second; those that the replica has not confirmed are as old as this many milliseconds.
        let begins = |rate: u64, lag_ms: u64| {
            let permit = TransferPermit::default();
            let mut transfer = leading(12);
            (0..60).find(|second| {
                let now = Time(second * SECOND);
                let written = 5_000 + rate * second;
                let last = written.saturating_sub(rate * lag_ms / 1_000);
                let status = Status { last: Some(written), ..status(Some(0), last) };
                transfer.next(now, OWN, &status, &permit).is_some()
            })
        };
        assert_eq!(begins(2_000, 300), Some(10), "600 entries");
        assert_eq!(begins(2_000, 1_200), None, "it is too late");
        assert_eq!(begins(200_000, 400), None, "too many entries");
        assert_eq!(begins(50, 1_900), Some(10), "few entries, however old");
    }

    /// A core that is drained does not wait for steadiness, and leaves its shards one by one.
    #[test]
    fn a_core_that_leaves_transfers_at_once() {
        let (permit, good) = (TransferPermit::default(), status(Some(0), 5_000));
        let mut transfer = leading(12);
        assert_eq!(transfer.next(Time(0), OWN, &good, &permit), None, "it is not steady yet");
        permit.set_leaving(true);
        assert_eq!(transfer.next(Time(SECOND), OWN, &good, &permit), Some(ReplicaId(2)));
        let mut other = leading(12);
        assert_eq!(other.next(Time(SECOND), OWN, &good, &permit), None, "one at a time");
        permit.give_back(Time(SECOND), true);
        assert_eq!(other.next(Time(2 * SECOND), OWN, &good, &permit), Some(ReplicaId(2)));
    }

    /// The age of entries that the replica lacks shows in the difference of two looks.
    #[test]
    fn the_age_of_entries_is_known_after_the_second_look() {
        let permit = TransferPermit::default();
        let mut transfer = leading(12);
        begins(&mut transfer, &permit, 0..9, &status(Some(0), 4_000));
        let lags = Status { last: Some(5_300), ..status(Some(0), 5_000) };
        // The last look is too old.
        assert_eq!(begins(&mut transfer, &permit, 20..21, &lags), NEVER);
        assert_eq!(
            begins(&mut transfer, &permit, 21..22, &lags),
            NEVER,
            "it has got nothing since the last look"
        );
        let goes_on = Status { last: Some(5_600), ..status(Some(0), 5_300) };
        assert_eq!(begins(&mut transfer, &permit, 22..23, &goes_on), [22]);
    }

    /// A full log is no reason to wait: the leader cannot store what it proposes.
    #[test]
    fn a_leader_without_room_transfers_at_once_to_a_replica_with_room() {
        let mut both = status(Some(0), 4_000);
        both.progress.push(Progress { replica: ReplicaId(3), last: Some(3_999), silence: Some(0) });
        for preferred in [None, Some(NodeId(11)), Some(NodeId(13))] {
            let permit = TransferPermit::default();
            let mut transfer = LeadershipTransfer::new();
            transfer.prefer(Time(0), preferred);
            transfer.set_full(Time(0), true);
            assert_eq!(transfer.due(), Time::NEVER, "it does not lead");
            transfer.leads(Time(0), true);
            assert_eq!(begins(&mut transfer, &permit, 0..1, &both), [0], "to the one with most entries");
            transfer.has_no_room(Time(SECOND), NodeId(12));
            assert_eq!(transfer.next(Time(SECOND), OWN, &both, &permit), Some(ReplicaId(3)));
            permit.give_back(Time(SECOND), true);
            transfer.has_no_room(Time(2 * SECOND), NodeId(13));
            assert_eq!(begins(&mut transfer, &permit, 2..10, &both), NEVER, "none has room");
            transfer.set_full(Time(11 * SECOND), false);
            assert_eq!(begins(&mut transfer, &permit, 11..12, &both), NEVER);
        }
        // Nor does a preferred replica get a shard that it has no room for.
        let (permit, good) = (TransferPermit::default(), status(Some(0), 5_000));
        let mut transfer = leading(12);
        transfer.has_no_room(Time(9 * SECOND), NodeId(12));
        assert_eq!(begins(&mut transfer, &permit, 0..39, &good), [29]);
    }

    /// The preferred replica may fail each time, or its node may know another preferred one.
    #[test]
    fn repeated_transfers_become_rare() {
        let permit = TransferPermit::default();
        let good = status(Some(0), 5_000);
        let mut transfer = leading(12);
        let begun = begins(&mut transfer, &permit, 0..3_000, &good);
        assert_eq!(begun, [10, 20, 40, 80, 160, 320, 640, 1_240, 1_840, 2_440]);
        assert_eq!(permit.counts(), (0, 10));
        // A core that comes and goes is preferred again and again.
        transfer.prefer(Time(3_000 * SECOND), None);
        transfer.prefer(Time(3_001 * SECOND), Some(NodeId(12)));
        assert_eq!(begins(&mut transfer, &permit, 3_001..3_100, &good), [3_040]);
        // After a long time it is as at the beginning.
        assert_eq!(begins(&mut transfer, &permit, 5_000..5_025, &good), [5_000, 5_010]);
    }

    #[test]
    fn a_core_transfers_one_shard_at_a_time() {
        let permit = TransferPermit::default();
        let good = status(Some(0), 5_000);
        let (mut one, mut other) = (leading(12), leading(12));
        assert_eq!(one.next(Time(0), OWN, &good, &permit), None);
        assert_eq!(other.next(Time(0), OWN, &good, &permit), None);
        let now = Time(10 * SECOND);
        assert_eq!(one.next(now, OWN, &good, &permit), Some(ReplicaId(2)));
        assert_eq!(other.next(now, OWN, &good, &permit), None);
        permit.give_back(now, true);
        assert_eq!(other.next(other.due(), OWN, &good, &permit), Some(ReplicaId(2)));
        assert!(other.due() > now && permit.counts() == (1, 0));
        // A replica that ends during its transfer does not give its permit back.
        let mut third = leading(12);
        third.next(now, OWN, &good, &permit);
        let later = now.after(Duration::from_secs(11));
        assert_eq!(third.next(later, OWN, &good, &permit), Some(ReplicaId(2)));
    }
}
