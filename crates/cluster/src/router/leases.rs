//! Leases to acknowledge, and positions of this node's changes that all lease holders know.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use link::{Lane, NodeId, Time};
use replog::{Incarnation, Position, Replica, WriterId};

use broker::ShardId;

use super::ClusterRouter;
use crate::config::WithoutQuorum;
use crate::features::{BRIEF, SHARDS};
use crate::freshness::{Grants, KnownPositions, Leases};
use crate::interest::Interest;
use crate::mutation::{Mutation, mutated};
use crate::peer::Peer;
use crate::peers::Peers;
use crate::shard_positions::{self, ShardPositions, shard_of, writer_of};
use crate::wire::{PeerMessage, Vector};

/// Minimum and maximum time after which a node reports again to the cores which changes it has applied, microseconds.
/// In between it is [`REPORT_PAUSE_EACH`] for each other node, so that a core gets no more than 2,000 reports a second.
const REPORT_PAUSE: RangeInclusive<u64> = 1_000..=10_000;
const REPORT_PAUSE_EACH: u64 = 500;
/// Interval at which a node that waits for a lease to run out checks again, microseconds.
const CHECK_INTERVAL: u64 = 10_000;
/// Minimum interval between full reports while a core grants no lease, in microseconds.
const FULL_REPORT_INTERVAL: u64 = 5_000_000;
/// Interval between checks whether shards know the members of groups, in microseconds.
const JOINING_PAUSE: u64 = 1_000;
/// Time that a restarted core waits for an unreachable node that is not dead, in multiples of the SUBACK time-out.
const OUT_OF_REACH: u32 = 3;
/// Number of requests per lease time.
const RENEWALS: u32 = 4;

/// Leases that cores grant to this node and, on a core, leases that it grants to others.
#[derive(Debug)]
pub(super) struct LeaseState {
    pub held: Leases,
    /// Grants of this node, if it is a core.
    pub granted: Option<Grants>,
    knowledge: Knowledge,
    /// Time between two requests for leases, in microseconds.
    request_interval: u64,
    requested_at: Time,
    updated_at: Time,
    /// Number of times that nodes were named from which this node can learn routes of shards.
    pub sources_named: usize,
}

/// Knowledge of a node about the changes that others may have been promised that it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Knowledge {
    /// Changes may be missing. The node has learned since this time.
    Learning(Time),
    Complete,
}

impl LeaseState {
    pub fn new(now: Time, lease: Duration, is_core: bool) -> Self {
        Self {
            held: Leases::new(lease, is_core),
            granted: is_core.then(|| Grants::new(now, lease)),
            knowledge: Knowledge::Learning(now),
            request_interval: (lease / RENEWALS).as_micros() as u64,
            requested_at: Time::default(),
            updated_at: now,
            sources_named: 0,
        }
    }

    /// Returns whether this node knows all changes that others may have been promised that it knows.
    pub fn is_informed(&self) -> bool {
        self.knowledge == Knowledge::Complete
    }

    /// Starts to learn again, unless all is known.
    fn learn_from(&mut self, now: Time) {
        if let Knowledge::Learning(since) = &mut self.knowledge {
            *since = now;
        }
    }

    /// Returns the time until which a majority of cores lets this node acknowledge. A core counts itself once it is
    /// informed.
    fn fresh_until(&self) -> Time {
        self.held.fresh_until(if self.is_informed() { Time::NEVER } else { Time::default() })
    }

    /// Returns the position that a majority of cores has settled. This node's changes reach up to `own`.
    fn settled(&self, now: Time, writer: WriterId, own: (Incarnation, Position)) -> Position {
        let by_own =
            self.granted.as_ref().map_or(Position::default(), |grants| grants.settled(now, writer, own));
        self.held.settled_by_majority(by_own)
    }

    /// Returns the position of a shard that a majority of cores has settled. This node knows it up to `own`.
    pub fn settled_of_shard(&self, now: Time, shard: ShardId, own: Position) -> Position {
        let at = (writer_of(shard), shard_positions::at(own));
        let by_own =
            self.granted.as_ref().map_or(Position::default(), |grants| grants.settled(now, at.0, at.1));
        self.held.shard_settled_by_majority(shard, by_own)
    }

    /// Takes the grant of a core for the request of a time. The core counts from a later time, so its grant is not over
    /// before this lease.
    pub fn take_grant(&mut self, now: Time, core: NodeId, asked: Time) {
        let asked = if mutated(Mutation::CountFromReceipt) { now } else { asked.min(now) };
        self.held.granted(core, asked);
    }

    /// Requests leases at the next turn, not at the next interval.
    pub fn request_at_once(&mut self) {
        self.requested_at = Time::default();
    }

    /// Returns whether leases must be requested now. Returns true once per interval.
    fn take_request(&mut self, now: Time) -> bool {
        let is_due =
            now.since(self.requested_at) >= self.request_interval || self.requested_at == Time::default();
        if is_due {
            self.requested_at = now;
        }
        is_due
    }

    fn request_due(&self) -> Time {
        Time(self.requested_at.0.saturating_add(self.request_interval))
    }
}

/// Reports of this node's positions to the cores.
#[derive(Debug)]
pub(super) struct Reports {
    /// Last reported positions.
    reported: KnownPositions,
    /// Revisions of the replica and of the positions of shards at the last full report.
    all_of: Option<(u64, u64)>,
    /// Time of the last report.
    at: Time,
    /// Time of the start of the last full report.
    full_at: Time,
}

impl Reports {
    pub fn new(now: Time) -> Self {
        Self { reported: KnownPositions::new(), all_of: None, at: Time::default(), full_at: now }
    }

    /// Forgets the reports: they are void.
    pub fn clear(&mut self) {
        (self.reported, self.all_of) = (KnownPositions::new(), None);
    }

    /// Iterates over the writers, except this node, whose positions are not those reported.
    fn unreported(
        &self,
        own: WriterId,
        replica: &Replica<Interest>,
        shards: &ShardPositions,
    ) -> impl Iterator<Item = (WriterId, Incarnation, Position)> {
        let is_behind = self.all_of != Some((replica.revision(), shards.revision()));
        let vector = is_behind.then(|| replica.vector().chain(shards.vector())).into_iter().flatten();
        vector.filter(move |(writer, incarnation, position)| {
            *writer != own && self.reported.get(writer) != Some(&(*incarnation, *position))
        })
    }

    /// Returns whether a report may be sent `pause` microseconds after the last one.
    fn may_report(&self, now: Time, pause: u64) -> bool {
        now.since(self.at) >= pause || self.at == Time::default()
    }

    /// Notes that these positions are reported.
    fn report(&mut self, now: Time, vector: &Vector) {
        self.at = now;
        let positions = vector.iter();
        self.reported
            .extend(positions.map(|(writer, incarnation, position)| (*writer, (*incarnation, *position))));
    }

    /// Notes that all positions are reported, up to revisions of the replica and of the positions of shards.
    fn complete(&mut self, revisions: (u64, u64)) {
        self.all_of = Some(revisions);
    }

    /// Returns whether everything may be reported again.
    fn may_restart(&self, now: Time) -> bool {
        now.since(self.full_at) >= FULL_REPORT_INTERVAL
    }

    /// Begins to report everything again.
    fn restart(&mut self, now: Time) {
        self.clear();
        self.full_at = now;
    }
}

impl ClusterRouter {
    pub(super) fn update_leases(&mut self, now: Time) {
        self.leases.updated_at = now;
        if !self.is_member() {
            // Changes that this node has not received are not known yet, either.
            self.leases.learn_from(now);
        }
        if let Knowledge::Learning(since) = self.leases.knowledge
            && self.is_member()
            && (self.has_learned_all(now, since) || mutated(Mutation::GrantUninformed))
        {
            self.leases.knowledge = Knowledge::Complete;
            self.peers.values_mut().for_each(|peer| (peer.knew, peer.knew_of_shards) = (None, None));
        }
        if let Some(grants) = &mut self.leases.granted {
            grants.take_snapshot(now, required(&self.routes.replica, &self.peers, &self.shard_positions));
        }
        self.node.set_knows_routes(self.leases.is_informed());
        self.ask_for_leases(now);
        self.report_applied(now);
        self.report_settled(now);
        self.report_settled_shards(now);
        let fresh_until = self.fresh_until();
        self.event_log.unrouted(now, self.node.routes.unrouted() > 0);
        self.event_log.fresh(now, fresh_until > now);
        let until = match self.config.without_quorum {
            WithoutQuorum::Serve => Time::NEVER,
            _ if self.node.routes.unrouted() > 0 => Time::default(),
            _ if !mutated(Mutation::AlwaysFresh) => fresh_until,
            _ => Time::NEVER,
        };
        // Both clocks are one. The broker counts in milliseconds from the end of the node's earlier incarnations.
        self.node.set_fresh_until(broker::Time(self.node.began().0.saturating_add(until.0 / 1000)));
        self.settle_suspects(now);
    }

    /// Returns whether publishers need not wait for an unreachable peer. A majority of cores has let this node
    /// acknowledge since it suspected the peer, so the peer is cut off and not this node.
    pub(super) fn may_ignore(&self, now: Time, peer: &Peer) -> bool {
        if self.config.without_quorum == WithoutQuorum::Serve || mutated(Mutation::SettleCutOff) {
            return true;
        }
        let fresh_until = self.fresh_until();
        let asked = Time(fresh_until.0.saturating_sub(self.config.lease.as_micros() as u64));
        fresh_until > now && asked >= peer.suspected_at
    }

    /// Returns the time until which a majority of cores lets this node acknowledge.
    pub(super) fn fresh_until(&self) -> Time {
        if self.is_member() { self.leases.fresh_until() } else { Time::default() }
    }

    /// Returns whether this restarted core, which learns since a time, knows all changes that others may have been
    /// promised that it knows. It does not wait for a node that the cores have declared dead. It waits for another node
    /// as long as SUBACKs do if other cores have sent it what they knew of the node. Otherwise it waits three times as
    /// long for an unreachable node, and without a limit for a reachable one.
    fn has_learned_all(&self, now: Time, since: Time) -> bool {
        let vector: KnownPositions = self
            .routes
            .replica
            .vector()
            .map(|(writer, incarnation, position)| (writer, (incarnation, position)))
            .collect();
        let is_heard = |id: &NodeId, peer: &Peer| {
            let known = vector.get(&WriterId(id.0));
            peer.began_at.zip(known).is_some_and(|(began, known)| known.0 == began.0 && known.1 >= began.1)
        };
        let has_waited = |times: u32| now >= since.after(self.config.suback_timeout * times);
        let may_wait = |id: &NodeId, peer: &Peer| {
            // Its clients are gone with it, and messages that its sessions miss until it returns are not promised.
            let is_gone = peer.dead.is_some() && !peer.is_up;
            is_gone && self.membership.meta.may_grant()
                || has_waited(1)
                    && (is_gone
                        || mutated(Mutation::GrantInTime)
                        || self.peers.are_known_by_cores(WriterId(id.0), &vector)
                        || !peer.is_up && has_waited(OUT_OF_REACH))
        };
        self.peers.iter().all(|(id, peer)| is_heard(id, peer) || may_wait(id, peer))
            && self.knows_shards(has_waited(OUT_OF_REACH))
    }

    /// Returns the time by which leases need attention.
    pub(super) fn leases_due(&self) -> Time {
        let tell = match self.unreported().next() {
            // Shards do not report that they know members: it takes them at most one turn.
            Some(_) if self.node.routes.are_joining() => Time(self.leases.updated_at.0 + JOINING_PAUSE),
            Some(_) => Time(self.reports.at.0 + self.report_pause()),
            None => Time::NEVER,
        };
        let settle =
            self.subacks.wait_for_others() || self.peers.values().any(|peer| peer.settle.are_waiting());
        let check = if settle { Time(self.leases.updated_at.0 + CHECK_INTERVAL) } else { Time::NEVER };
        self.leases.request_due().min(tell).min(check)
    }

    fn ask_for_leases(&mut self, now: Time) {
        if !self.leases.take_request(now) {
            return;
        }
        for id in self.peers.reachable_cores() {
            self.send_message(now, id, Lane::CONTROL, &PeerMessage::Renew(now.0));
        }
        self.ask_clocks(now);
        self.name_route_sources();
        self.report_all_again(now);
    }

    /// Reports everything again to a core that is reachable but grants nothing. It may have forgotten the reports,
    /// because it learned of this node's removal only when this node was a member again.
    fn report_all_again(&mut self, now: Time) {
        let granted: BTreeMap<NodeId, Time> = self.leases.held.granted_by().collect();
        let grants_nothing = |core: &NodeId| granted.get(core).is_none_or(|until| *until <= now);
        if self.reports.may_restart(now) && self.peers.reachable_cores().iter().any(grants_nothing) {
            self.reports.restart(now);
        }
    }

    pub(super) fn asked_for_lease(&mut self, now: Time, from: NodeId, stamp: u64) {
        if !self.may_be_granted(from) || !self.may_know_shards(from) {
            return;
        }
        self.tell_shard_positions(now, from);
        let required = required(&self.routes.replica, &self.peers, &self.shard_positions);
        if self.leases.is_informed()
            && let Some(grants) = &mut self.leases.granted
            && grants.renew(now, from, required)
        {
            self.send_message(now, from, Lane::CONTROL, &PeerMessage::Grant(stamp));
        }
    }

    /// Iterates over the writers whose positions are greater than reported.
    fn unreported(&self) -> impl Iterator<Item = (WriterId, Incarnation, Position)> {
        self.reports.unreported(WriterId(self.own.0), &self.routes.replica, &self.shard_positions)
    }

    fn report_pause(&self) -> u64 {
        let pause = self.peers.len() as u64 * REPORT_PAUSE_EACH;
        pause.clamp(*REPORT_PAUSE.start(), *REPORT_PAUSE.end())
    }

    /// Reports this node's positions to the cores.
    fn report_applied(&mut self, now: Time) {
        if !self.reports.may_report(now, self.report_pause()) {
            return;
        }
        let vector: Vector = self.unreported().collect();
        if vector.is_empty() {
            self.reports.complete((self.routes.replica.revision(), self.shard_positions.revision()));
            return;
        }
        // Changes that shards do not know yet do not count as known here.
        if self.node.routes.are_joining() {
            return;
        }
        self.reports.report(now, &vector);
        let has_none = self.fresh_until() <= now;
        let of_nodes = vector.iter().filter(|(writer, ..)| shard_of(*writer).is_none());
        let forms = |vector: Vector| (PeerMessage::Applied(vector.clone()), PeerMessage::Brief(vector));
        let (without_shards, all) = (forms(of_nodes.copied().collect()), forms(vector));
        for id in self.peers.reachable_cores() {
            let (whole, brief) = if self.can(id, SHARDS) { &all } else { &without_shards };
            let message = if self.can(id, BRIEF) || mutated(Mutation::AlwaysBrief) { brief } else { whole };
            self.send_message(now, id, Lane::ROUTES, message);
            // This report may complete the conditions for a lease. The request follows in the same lane, so that the
            // core receives it after the report.
            if has_none {
                self.send_message(now, id, Lane::ROUTES, &PeerMessage::Renew(now.0));
            }
        }
    }

    /// Reports the settled positions to writers that wait for them.
    fn report_settled(&mut self, now: Time) {
        self.ask_to_settle(now);
        let Some(grants) = &self.leases.granted else { return };
        let waits = |peer: &Peer| peer.settle.is_waiting_for_own();
        if !self.peers.values().any(waits) || self.node.routes.are_joining() {
            return;
        }
        let vector: BTreeMap<_, _> = self
            .routes
            .replica
            .vector()
            .map(|(writer, incarnation, position)| (writer, (incarnation, position)))
            .collect();
        let mut known = Vec::new();
        for (id, peer) in self.peers.iter().filter(|(_, peer)| waits(peer)) {
            let writer = WriterId(id.0);
            // A greater position may be known of an earlier incarnation than this one has reached.
            let is_current = |known: &&(Incarnation, Position)| peer.incarnation == Some(known.0);
            let Some(own) = vector.get(&writer).filter(is_current) else { continue };
            let in_region = self.peers.known_in(&peer.info.region, grants, writer, *own);
            known.push((*id, own.0, grants.settled(now, writer, *own), in_region));
        }
        for (id, incarnation, settled, in_region) in known {
            let Some(peer) = self.peers.get_mut(&id) else { continue };
            let settle = &mut peer.settle;
            let cluster = (&mut settle.in_cluster, settled, PeerMessage::Settled(incarnation, settled));
            let region =
                (&mut settle.in_region, in_region, PeerMessage::KnownInRegion(incarnation, in_region));
            for (settle_request, position, message) in [cluster, region] {
                let Some(wanted) = settle_request.wanted else { continue };
                if position > settle_request.reported {
                    if self.mesh.send(now, id, Lane::ROUTES, message.encode().into()).is_err() {
                        continue;
                    }
                    settle_request.reported = position;
                }
                settle_request.wanted = Some(wanted).filter(|wanted| position < *wanted);
            }
        }
    }

    /// Asks cores for the settled positions of this node's changes and of shards, when SUBACKs wait for them.
    fn ask_to_settle(&mut self, now: Time) {
        self.ask_to_settle_shards(now);
        let in_region = self.subacks.wanted_in_region();
        if let Some((core, position)) = in_region.and_then(|wanted| self.attachment.ask_about_region(wanted))
        {
            let message = PeerMessage::Settle { position, in_region: true };
            if !self.send_message(now, core, Lane::ROUTES, &message) {
                self.attachment.ask_again();
            }
        }
        if let Some(position) = self.subacks.ask_to_settle() {
            let message = PeerMessage::Settle { position, in_region: false };
            for id in self.peers.reachable_cores() {
                if !self.send_message(now, id, Lane::ROUTES, &message) {
                    self.subacks.ask_again();
                }
            }
        }
    }

    /// Position up to which this node's changes are known in its region. In a cluster of one region it is
    /// [`Self::settled`]: a node that restarts has to know them, too, before it acknowledges.
    pub(super) fn known_in_region(&self) -> Position {
        let settled = self.settled();
        let own = &*self.config.own.region;
        if self.peers.values().all(|peer| *peer.info.region == *own) {
            return settled;
        }
        let in_region = match &self.leases.granted {
            Some(grants) => {
                let at = (self.config.incarnation, self.routes.own_position());
                self.peers.known_in(own, grants, WriterId(self.own.0), at)
            }
            None => self.attachment.region_knows(),
        };
        if self.is_member() { in_region.max(settled) } else { settled }
    }

    /// Returns the position up to which all nodes that may acknowledge know this node's changes.
    pub(super) fn settled(&self) -> Position {
        if !self.is_member() {
            return Position::default();
        }
        let own = (self.config.incarnation, self.routes.own_position());
        self.leases.settled(self.now, WriterId(self.own.0), own)
    }
}

impl Peers {
    /// Returns whether this core knows a node's changes, up to `vector`, as far as other cores did at their first
    /// contact. There must be one of these cores in each majority.
    fn are_known_by_cores(&self, writer: WriterId, vector: &KnownPositions) -> bool {
        let cores = || self.values().filter(|peer| peer.is_core());
        let is_known =
            |knew: &&KnownPositions| knew.get(&writer).is_none_or(|then| vector.get(&writer) >= Some(then));
        let asked = cores().filter_map(|core| core.knew.as_ref()).filter(is_known);
        let all = cores().count() + 1;
        asked.count() + all / 2 + 1 > all
    }

    /// Returns the position up to which all nodes of a region know a writer's changes. This core knows them up to
    /// `own`.
    fn known_in(
        &self,
        region: &str,
        grants: &Grants,
        writer: WriterId,
        (incarnation, own): (Incarnation, Position),
    ) -> Position {
        let is_there =
            |id: NodeId, peer: &Peer| id.0 != writer.0 && peer.dead.is_none() && *peer.info.region == *region;
        let nodes = self.iter().filter(|(id, peer)| is_there(**id, peer));
        let applied = nodes.map(|(id, _)| grants.applied_by(*id, writer, incarnation));
        applied.min().map_or(own, |least| least.min(own))
    }
}

/// Returns the positions of this core that nodes with a lease must know.
fn required(
    replica: &Replica<Interest>,
    peers: &Peers,
    shards: &ShardPositions,
) -> impl Iterator<Item = (WriterId, Incarnation, Position)> {
    of_members(replica, peers).chain(shards.vector().filter(|_| !mutated(Mutation::GrantWithoutShards)))
}

/// Returns the positions of this node for itself and the members that are not dead. No node has to know the others:
/// changes of an incarnation that never joined are not passed on, and the last changes of a dead node do not go to
/// nodes that were unreachable then.
fn of_members(
    replica: &Replica<Interest>,
    peers: &Peers,
) -> impl Iterator<Item = (WriterId, Incarnation, Position)> {
    let is_alive = |writer: WriterId, incarnation: Incarnation| {
        let peer = peers.get(&NodeId(writer.0));
        peer.is_some_and(|peer| peer.dead.is_none_or(|dead| incarnation > dead))
    };
    replica.vector().filter(move |(writer, incarnation, _)| {
        is_alive(*writer, *incarnation) || replica.is_own(*writer) || mutated(Mutation::RememberIncarnations)
    })
}

#[cfg(test)]
mod tests {
    use broker::peers::Wants;

    use super::*;

    const LEASE: Duration = Duration::from_secs(4);
    const OWN: WriterId = WriterId(1);

    fn at(ms: u64) -> Time {
        Time(ms * 1000)
    }

    #[test]
    fn a_core_counts_itself_once_it_knows_what_others_were_promised() {
        let mut leases = LeaseState::new(at(0), LEASE, true);
        assert_eq!(leases.fresh_until(), at(0));
        leases.learn_from(at(7));
        assert_eq!(leases.knowledge, Knowledge::Learning(at(7)));
        leases.knowledge = Knowledge::Complete;
        leases.learn_from(at(9));
        assert!(leases.is_informed(), "what is known stays known");
        assert_eq!(leases.fresh_until(), Time::NEVER);
    }

    #[test]
    fn leases_are_requested_at_intervals_and_at_once_after_a_change() {
        let mut leases = LeaseState::new(at(0), LEASE, false);
        assert!(leases.take_request(at(500)));
        assert_eq!(leases.request_due(), at(1500));
        assert!(!leases.take_request(at(1499)) && leases.take_request(at(1500)));
        leases.request_at_once();
        assert!(leases.take_request(at(1501)) && !leases.take_request(at(1502)));
    }

    #[test]
    fn each_position_is_reported_once_until_the_reports_are_void() {
        let (other, mut reports) = (WriterId(2), Reports::new(at(0)));
        let mut replica = Replica::new(0, 10);
        for writer in [OWN, other] {
            replica.own(writer, Incarnation(1));
            replica.set(writer, b"a", Some(Interest::Wants(Wants::QOS0)));
        }
        let mut shards = ShardPositions::default();
        let vector: Vector = reports.unreported(OWN, &replica, &shards).collect();
        assert_eq!(vector, [(other, Incarnation(1), Position(1))]);
        assert!(reports.may_report(at(1), 2000));
        reports.report(at(1), &vector);
        assert_eq!(reports.unreported(OWN, &replica, &shards).count(), 0);
        reports.complete((replica.revision(), shards.revision()));
        replica.set(other, b"a", None);
        assert_eq!(reports.unreported(OWN, &replica, &shards).count(), 1);
        assert!(!reports.may_report(at(2), 2000) && reports.may_report(at(3), 2000));
        reports.report(at(3), &reports.unreported(OWN, &replica, &shards).collect());
        reports.complete((replica.revision(), shards.revision()));
        shards.reach(ShardId(3), Position(0));
        let vector: Vector = reports.unreported(OWN, &replica, &shards).collect();
        assert_eq!(vector, [(WriterId(3), Incarnation(1), Position(0))]);
        reports.report(at(3), &vector);
        assert!(!reports.may_restart(at(4999)) && reports.may_restart(at(5000)));
        reports.restart(at(5000));
        assert_eq!(reports.unreported(OWN, &replica, &shards).count(), 2);
        assert!(!reports.may_restart(at(5001)));
    }
}
