//! Read access for the host and operators.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use mqtt::{PacketId, QoS, Subscription};

use crate::counts::Counts;
use crate::entry::{Entry, Phase};
use crate::eras::NodeIncarnation;
use crate::ids::{Identity, MessageKey, SessionUid};
use crate::limits::{Limits, QueueLimits};
use crate::links::wanted_origin;
use crate::message::NEVER;
use crate::mutation::{Mutation, mutated};
use crate::queue::{PACKET_IDS, Queue};
use crate::request_number::RequestNumber;
use crate::retained::RetainedPage;
use crate::route::Options;
use crate::session::Session;
use crate::shard::Shard;
use crate::shard::subscribe::Wanting;
use crate::shard_set::ShardSet;

/// A session in its present state.
#[derive(Clone, Copy)]
pub struct SessionView<'a> {
    shard: &'a Shard,
    session: &'a Session,
}

/// One delivery to one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryView<'a> {
    /// Location of its message.
    pub key: MessageKey,
    /// Bytes of the message in the log, filled up to 8.
    pub size: u64,
    pub qos: QoS,
    pub retain: bool,
    /// True when the delivery was open before the present connection, so it may have been sent: its PUBLISH has DUP
    /// [MQTT-3.3.1-1].
    pub dup: bool,
    pub phase: Phase,
    /// Time at which the message expires, by its Message Expiry Interval or the maximum waiting time; [`NEVER`]
    /// without either.
    pub expires: u64,
    /// Subscription Identifiers.
    pub ids: &'a [u32],
    /// Shared subscription that the delivery belongs to.
    pub group: Option<&'a str>,
}

/// A message whose member is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Orphan<'a> {
    pub key: MessageKey,
    pub size: u64,
    pub expires: u64,
    /// The text of the shared subscription.
    pub group: &'a str,
}

impl Shard {
    pub fn id(&self) -> u16 {
        self.id
    }

    /// Index of the last record that was applied completely; 0 at first.
    pub fn applied(&self) -> u64 {
        self.applied - u64::from(self.is_midway())
    }

    /// The state's clock in ms.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Incarnation of a node that holds the shard alone: that of the last [`Started`](crate::Command::Started).
    /// `None` for a shard of a cluster.
    pub fn incarnation(&self) -> Option<u64> {
        self.eras.incarnation_alone()
    }

    /// Returns whether a node may own sessions in this incarnation or an earlier one.
    pub fn has_node(&self, owner: NodeIncarnation) -> bool {
        self.eras.has_node(owner)
    }

    /// Iterates over the incarnations of nodes of a cluster that may own sessions.
    pub fn live_nodes(&self) -> impl Iterator<Item = NodeIncarnation> {
        self.eras.live_nodes()
    }

    /// Returns whether a numbered command of a node's lane was applied, or a later one.
    pub fn has_applied(&self, owner: NodeIncarnation, lane: u16, number: u64) -> bool {
        self.eras.last_of_lane(owner, lane) >= number
    }

    /// Returns the last known incarnation of a node if `owner` cannot own sessions: it is over, or a later one is
    /// known.
    pub fn ended_by(&self, owner: NodeIncarnation) -> Option<u64> {
        self.eras.ended_by(owner)
    }

    /// Returns whether a Claim of an owner with this number has got a session, as far as the shard remembers.
    pub fn has_claimed(&self, owner: NodeIncarnation, number: RequestNumber) -> bool {
        let RequestNumber::Claim { number } = number else { return false };
        self.eras.has_claimed(owner, number)
    }

    /// Returns whether the queue of a session refuses messages when it is full.
    pub fn refuses_messages(&self) -> bool {
        !self.refusing.is_empty()
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Number of recorded identities.
    pub fn identities(&self) -> usize {
        self.identities.len()
    }

    /// Iterates over the recorded identities.
    pub fn known_identities(&self) -> impl Iterator<Item = Identity> {
        self.identities.iter()
    }

    /// Returns whether a message with this identity was accepted.
    pub fn knows(&self, identity: Identity) -> bool {
        self.identities.contains(identity) && !mutated(Mutation::ForgetIdentities)
    }

    pub fn session_of(&self, client_id: &str) -> Option<SessionUid> {
        Some(self.sessions.at(self.sessions.slot_of(client_id)?)?.uid)
    }

    /// Returns the session that has a slot now.
    pub fn session_at_slot(&self, slot: u32) -> Option<SessionView<'_>> {
        self.sessions.at(slot).map(|session| self.view(session))
    }

    pub fn session(&self, uid: SessionUid) -> Option<SessionView<'_>> {
        self.sessions.get(uid).map(|session| self.view(session))
    }

    fn view<'a>(&'a self, session: &'a Session) -> SessionView<'a> {
        SessionView { shard: self, session }
    }

    /// Returns up to `limit` sessions from a position on, which is 0 at first, and the position to continue at.
    pub fn sessions_from(&self, list_index: u32, limit: usize) -> (Vec<SessionUid>, Option<u32>) {
        let some: Vec<_> = self.sessions.from(list_index).take(limit).map(|session| session.uid).collect();
        let next = some.last().map(|uid| uid.slot() + 1);
        let next = next.filter(|next| some.len() == limit && self.sessions.from(*next).next().is_some());
        (some, next)
    }

    /// Returns the texts of the routes to this shard: of all subscriptions, except shared ones with QoS 0.
    /// Those of linked clusters are [`LinkFilter`](crate::LinkFilter)s.
    pub fn filters(&self) -> BTreeSet<Cow<'_, str>> {
        let mut filters: BTreeSet<_> = self.groups().map(Cow::Borrowed).collect();
        for session in self.sessions.from(0) {
            let origin = wanted_origin(&session.client_id);
            for (text, options, _) in session.subscriptions.iter() {
                let Ok(Subscription { share: None, filter }) = Subscription::parse(text) else { continue };
                filters.insert(match Wanting::of(origin, Options(options)) {
                    Wanting::Clients => Cow::Borrowed(text),
                    link => Cow::Owned(link.text(filter).into()),
                });
            }
        }
        filters
    }

    /// Iterates over the sessions with a shared subscription of QoS 1 or 2, `$share/{ShareName}/{filter}`, beginning
    /// after one of them and going around.
    pub fn group_members(
        &self,
        text: &str,
        after: Option<SessionUid>,
    ) -> impl Iterator<Item = SessionView<'_>> {
        let after = after.map_or(u32::MAX, SessionUid::slot);
        let sessions = self.groups.after(text, after).filter_map(|slot| self.sessions.at(slot));
        sessions.map(|session| self.view(session))
    }

    /// Iterates over the shared subscriptions of QoS 1 or 2 of all sessions, each once.
    pub fn groups(&self) -> impl Iterator<Item = &str> {
        self.groups.iter().map(|(text, _)| text)
    }

    /// Iterates over the shared subscriptions that follow one in their order, or over all of them, each with the number
    /// of its sessions.
    pub fn groups_after(&self, text: Option<&str>) -> impl Iterator<Item = (&str, usize)> {
        self.groups.following(text)
    }

    /// Returns the topic's retained message as an encoded [`MessageView`](crate::MessageView), expired or not.
    pub fn retained(&self, topic: &str) -> Option<&Arc<[u8]>> {
        self.retained.get(topic)
    }

    /// Returns up to `limit` retained messages after a topic that match a filter and have not expired by the
    /// state's clock. Examines a bounded number.
    pub fn retained_page(&self, filter: &str, after: Option<&str>, limit: usize) -> RetainedPage {
        self.retained.page(self.now, filter, after, limit)
    }

    /// Returns the number of retained messages and their bytes.
    pub fn retained_counts(&self) -> (u64, u64) {
        (self.retained.len() as u64, self.retained.bytes())
    }

    /// Returns a Will that is to be published, as an encoded [`MessageView`](crate::MessageView). Its `expires` is
    /// that of the Claim.
    pub fn due_will(&self, id: u64) -> Option<&Arc<[u8]>> {
        self.wills.get(&id)
    }

    /// Number of the first Will that is to be published, or of the next one that will be.
    pub fn first_due_will(&self) -> u64 {
        self.wills.first_key_value().map_or(self.wills_created + 1, |(id, _)| *id)
    }

    /// The same for messages whose member is gone.
    pub fn first_orphan(&self) -> u64 {
        self.orphans.first_key_value().map_or(self.orphans_created + 1, |(id, _)| *id)
    }

    pub fn due_wills(&self) -> impl Iterator<Item = (u64, &Arc<[u8]>)> {
        self.wills.iter().map(|(id, message)| (*id, message))
    }

    pub fn orphan(&self, id: u64) -> Option<Orphan<'_>> {
        self.orphans.get(&id).map(|entry| self.orphan_view(entry))
    }

    pub fn orphans(&self) -> impl Iterator<Item = (u64, Orphan<'_>)> {
        self.orphans.iter().map(|(id, entry)| (*id, self.orphan_view(entry)))
    }

    fn orphan_view(&self, entry: &Entry) -> Orphan<'_> {
        let details = self.bodies.details(entry);
        let group = details.and_then(|details| details.group.as_deref()).unwrap_or_default();
        Orphan { key: entry.key, size: entry.size(), expires: self.bodies.expires(entry), group }
    }

    /// Bytes of memory of the index of filters.
    pub fn routes_memory(&self) -> usize {
        self.routes.memory()
    }
}

impl<'a> SessionView<'a> {
    pub fn uid(self) -> SessionUid {
        self.session.uid
    }

    pub fn client_id(self) -> &'a str {
        &self.session.client_id
    }

    /// User of the last Claim.
    pub fn user(self) -> u32 {
        self.session.user
    }

    /// Connection that serves the session.
    pub fn owner(self) -> Option<u64> {
        self.shard.is_owned(self.session).then_some(self.session.connection)
    }

    /// Node of that connection; `None` when it holds the shard alone.
    pub fn owner_node(self) -> Option<NodeIncarnation> {
        self.owner().and_then(|_| self.shard.eras.owner(self.session.era))
    }

    pub fn epoch(self) -> u32 {
        self.session.epoch
    }

    /// Limits of its queue; `None` for those of the shard.
    pub fn queue_limits(self) -> Option<QueueLimits> {
        self.session.queue_limits().copied()
    }

    /// Number of the last command of the present epoch that had a [`RequestNumber`](crate::RequestNumber); 0 when there
    /// was none.
    pub fn last_number(self) -> u64 {
        self.shard.sessions.last_number(self.session.uid.slot())
    }

    /// Window of the last Claim.
    pub fn window(self) -> u16 {
        self.session.receive_maximum
    }

    /// Session Expiry Interval in seconds.
    pub fn expiry_s(self) -> u32 {
        self.session.expiry_s
    }

    /// Time of the state's clock at which the session ends; [`NEVER`] while it is owned.
    pub fn ends(self) -> u64 {
        self.session.ends
    }

    /// Time at which its Will is due; [`NEVER`] without one and while the session is owned.
    pub fn will_due(self) -> u64 {
        self.session.will().map_or(NEVER, |will| will.due)
    }

    /// Returns text, Subscription Options, and Subscription Identifier or 0, in the order of the texts.
    pub fn subscriptions(self) -> impl Iterator<Item = (&'a str, u8, u32)> {
        self.session.subscriptions.iter()
    }

    /// Returns Subscription Options and Subscription Identifier, or 0, of a subscription.
    pub fn subscription(self, text: &str) -> Option<(u8, u32)> {
        self.session.subscriptions.get(text)
    }

    pub fn subscriptions_len(self) -> usize {
        self.session.subscriptions.len()
    }

    /// Returns the Topic Filters whose retained messages are not all queued. Each has the shards that are done,
    /// and for one more shard the topic up to which messages are queued, or "".
    pub fn walks(self) -> impl Iterator<Item = (&'a str, ShardSet, &'a str)> {
        self.session.walks().map(|(filter, walk)| (filter, walk.done, &*walk.after))
    }

    /// Returns the Packet Identifiers of QoS 2 publishes that were received and not released, in the order of their
    /// arrival, with their toggles.
    pub fn received(self) -> impl Iterator<Item = (PacketId, bool)> {
        let inbound = self.session.inbound().into_iter();
        inbound.flat_map(|inbound| inbound.received().map(|id| (id, inbound.toggle(id))))
    }

    /// Returns whether the Packet Identifier was released an odd number of times.
    pub fn toggle(self, packet_id: PacketId) -> bool {
        self.session.inbound().is_some_and(|inbound| inbound.toggle(packet_id))
    }

    /// Returns whether QoS 2 publishes of the session were ever received, as far as the state shows.
    pub fn has_received(self) -> bool {
        self.session.inbound().is_some()
    }

    /// Returns whether the number of releases of a Packet Identifier is odd.
    pub fn has_toggle(self, id: u16) -> bool {
        PacketId::new(id).is_some_and(|id| self.session.inbound().is_some_and(|inbound| inbound.toggle(id)))
    }

    /// Returns the pages of toggles that are set: bit `b` of page `p` belongs to Packet Identifier 64 p + b.
    pub fn toggles(self) -> impl Iterator<Item = (u16, u64)> {
        self.session.inbound().into_iter().flat_map(|inbound| inbound.toggles().iter().copied())
    }

    /// Returns the open delivery with a Packet Identifier.
    pub fn number(self, packet_id: PacketId) -> Option<u64> {
        self.session.queue.as_ref()?.numbered(packet_id)
    }

    /// Returns a delivery; `None` when it is gone or never existed.
    pub fn entry(self, n: u64) -> Option<EntryView<'a>> {
        let queue = self.session.queue.as_ref()?;
        Some(self.entry_view(n, queue, queue.get(n)?))
    }

    /// Returns the existing deliveries from `from` on, with their numbers.
    pub fn entries(self, from: u64) -> impl Iterator<Item = (u64, EntryView<'a>)> {
        let queue = self.session.queue.as_deref().into_iter();
        queue.flat_map(move |queue| {
            queue.from(from).map(move |(n, entry)| (n, self.entry_view(n, queue, entry)))
        })
    }

    fn entry_view(self, n: u64, queue: &Queue, entry: &Entry) -> EntryView<'a> {
        let details = self.shard.bodies.details(entry);
        EntryView {
            key: entry.key,
            size: entry.size(),
            qos: entry.qos(),
            retain: entry.retain(),
            dup: n < queue.dup_below,
            phase: entry.phase(),
            expires: details.map_or(NEVER, |details| details.expires),
            ids: details.map_or(&[], |details| details.ids.as_slice()),
            group: details.and_then(|details| details.group.as_deref()),
        }
    }

    /// Range of open deliveries, finished ones among them included.
    pub fn open(self) -> Range<u64> {
        let next = self.session.next;
        self.session.queue.as_ref().map_or(next..next, |queue| queue.open_range())
    }

    /// Range of waiting deliveries.
    pub fn waiting(self) -> Range<u64> {
        let next = self.session.next;
        self.session.queue.as_ref().map_or(next..next, |queue| queue.waiting_range())
    }

    /// Deliveries below this number are within the limits of the queue.
    pub fn within(self) -> u64 {
        self.session.queue.as_ref().map_or(self.session.next, |queue| queue.within())
    }

    /// Number of deliveries that are open and not finished.
    pub fn unfinished(self) -> u32 {
        self.session.queue.as_ref().map_or(0, |queue| queue.unfinished())
    }

    /// Bytes of the waiting messages.
    pub fn waiting_bytes(self) -> u64 {
        self.session.queue.as_ref().map_or(0, |queue| queue.waiting_bytes())
    }

    /// Bytes of the pinned messages.
    pub fn pinned_bytes(self) -> u64 {
        self.session.queue.as_ref().map_or(0, |queue| queue.open_bytes())
    }
}

/// Returns the Packet Identifier of a delivery.
pub fn packet_id(n: u64) -> PacketId {
    let ids = if mutated(Mutation::ReusePacketId) { 4 } else { PACKET_IDS };
    let id = 1 + (n % ids) as u16;
    PacketId::new(id).unwrap_or_else(|| unreachable!("1 + n mod 65,535 is never 0"))
}
