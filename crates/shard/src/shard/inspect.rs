//! What the host and operators read.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use mqtt::{PacketId, QoS, Subscription};

use crate::bodies::Bodies;
use crate::counts::Counts;
use crate::entry::{Entry, Phase};
use crate::ids::{Identity, MessageKey, SessionUid};
use crate::limits::Limits;
use crate::message::NEVER;
use crate::mutation::{Mutation, mutated};
use crate::queue::{PACKET_IDS, Queue};
use crate::retained::RetainedPage;
use crate::session::Session;
use crate::shard::Shard;

/// A session as it is now.
#[derive(Clone, Copy)]
pub struct SessionView<'a> {
    session: &'a Session,
    bodies: &'a Bodies,
    owned: bool,
}

/// One delivery to one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryView<'a> {
    /// Where its message stands.
    pub key: MessageKey,
    /// Bytes of the message in the log, filled up to 8.
    pub size: u64,
    pub qos: QoS,
    pub retain: bool,
    /// It was open before the present connection, so it may have been sent: a PUBLISH has DUP [MQTT-3.3.1-1].
    pub dup: bool,
    pub phase: Phase,
    /// By its Message Expiry Interval or because it has waited too long; [`NEVER`] without either.
    pub expires: u64,
    /// Subscription Identifiers.
    pub ids: &'a [u32],
    /// On behalf of a shared subscription.
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

    /// Index of the last record that was applied, all of it; 0 at first.
    pub fn applied(&self) -> u64 {
        self.applied - u64::from(self.is_midway())
    }

    /// The state's clock, ms.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Of the last [`Started`](crate::Command::Started).
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Identities that are remembered.
    pub fn identities(&self) -> usize {
        self.identities.len()
    }

    /// Whether a message with this identity has been taken.
    pub fn knows(&self, identity: Identity) -> bool {
        self.identities.contains(&identity) && !mutated(Mutation::ForgetIdentities)
    }

    pub fn session_of(&self, client_id: &str) -> Option<SessionUid> {
        Some(self.sessions.at(self.sessions.slot_of(client_id)?)?.uid)
    }

    pub fn session(&self, uid: SessionUid) -> Option<SessionView<'_>> {
        self.sessions.get(uid).map(|session| self.view(session))
    }

    fn view<'a>(&'a self, session: &'a Session) -> SessionView<'a> {
        SessionView { session, bodies: &self.bodies, owned: self.is_owned(session) }
    }

    /// Up to `limit` sessions from a place on, which is 0 at first, and the place to go on at.
    pub fn sessions_from(&self, list_index: u32, limit: usize) -> (Vec<SessionUid>, Option<u32>) {
        let some: Vec<_> = self.sessions.from(list_index).take(limit).map(|session| session.uid).collect();
        let next = some.last().map(|uid| uid.slot() + 1);
        let next = next.filter(|next| some.len() == limit && self.sessions.from(*next).next().is_some());
        (some, next)
    }

    /// Filters of all sessions, but for shared ones: what the node's index has to know of this shard.
    pub fn filters(&self) -> BTreeSet<&str> {
        let texts = self.sessions.from(0).flat_map(|session| session.subscriptions.iter());
        let plain = |text: &&str| Subscription::parse(text).is_ok_and(|parsed| parsed.share.is_none());
        texts.map(|(text, ..)| text).filter(plain).collect()
    }

    /// The topic's retained message, a [`MessageView`](crate::MessageView) encoded, expired or not.
    pub fn retained(&self, topic: &str) -> Option<&Arc<[u8]>> {
        self.retained.get(topic)
    }

    /// Up to `limit` retained messages that match a filter and have not expired by the state's clock, behind a topic; looks
    /// at a bounded number.
    pub fn retained_page(&self, filter: &str, after: Option<&str>, limit: usize) -> RetainedPage {
        self.retained.page(self.now, filter, after, limit)
    }

    /// How many retained messages there are, and their bytes.
    pub fn retained_counts(&self) -> (u64, u64) {
        (self.retained.len() as u64, self.retained.bytes())
    }

    /// A Will that is to be published, a [`MessageView`](crate::MessageView) encoded. Its `expires` is as the Claim had it.
    pub fn due_will(&self, id: u64) -> Option<&Arc<[u8]>> {
        self.wills.get(&id)
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

    /// As the last Claim said.
    pub fn user(self) -> u32 {
        self.session.user
    }

    /// The connection that serves it.
    pub fn owner(self) -> Option<u64> {
        self.owned.then_some(self.session.connection)
    }

    pub fn epoch(self) -> u32 {
        self.session.epoch
    }

    /// Of the last Claim.
    pub fn window(self) -> u16 {
        self.session.window
    }

    /// Session Expiry Interval.
    pub fn expiry_s(self) -> u32 {
        self.session.expiry_s
    }

    /// When it ends, by the state's clock; [`NEVER`] while it is owned.
    pub fn ends(self) -> u64 {
        self.session.ends
    }

    /// When its Will is due; [`NEVER`] without one and while it is owned.
    pub fn will_due(self) -> u64 {
        self.session.will().map_or(NEVER, |will| will.due)
    }

    /// Text, Subscription Options, Subscription Identifier or 0; in the order of the texts.
    pub fn subscriptions(self) -> impl Iterator<Item = (&'a str, u8, u32)> {
        self.session.subscriptions.iter()
    }

    pub fn subscriptions_len(self) -> usize {
        self.session.subscriptions.len()
    }

    /// Topic Filters whose retained messages are not all queued; shards of which they are, as bits, and of another one the topic up to
    /// which they are, or "".
    pub fn walks(self) -> impl Iterator<Item = (&'a str, u16, &'a str)> {
        self.session.walks().map(|(filter, walk)| (filter, walk.done, &*walk.after))
    }

    /// Packet Identifiers of QoS 2 publishes that were received and not released, in the order they came, with their toggles.
    pub fn received(self) -> impl Iterator<Item = (PacketId, bool)> {
        let inbound = self.session.inbound().into_iter();
        inbound.flat_map(|inbound| inbound.received().map(|id| (id, inbound.toggle(id))))
    }

    /// Whether the Packet Identifier was released an odd number of times.
    pub fn toggle(self, packet_id: PacketId) -> bool {
        self.session.inbound().is_some_and(|inbound| inbound.toggle(packet_id))
    }

    /// Whether QoS 2 publishes of it were ever received, as far as that can be told.
    pub fn has_received(self) -> bool {
        self.session.inbound().is_some()
    }

    /// Pages of toggles that are set: bit `b` of page `p` is that of Packet Identifier 64 p + b.
    pub fn toggles(self) -> impl Iterator<Item = (u16, u64)> {
        self.session.inbound().into_iter().flat_map(|inbound| inbound.toggles().iter().copied())
    }

    /// The open delivery that carries a Packet Identifier.
    pub fn number(self, packet_id: PacketId) -> Option<u64> {
        self.session.queue.as_ref()?.numbered(packet_id)
    }

    /// `None`: gone, or never there.
    pub fn entry(self, n: u64) -> Option<EntryView<'a>> {
        let queue = self.session.queue.as_ref()?;
        Some(self.entry_view(n, queue, queue.get(n)?))
    }

    /// Deliveries that are there, from one on, with their numbers.
    pub fn entries(self, from: u64) -> impl Iterator<Item = (u64, EntryView<'a>)> {
        let queue = self.session.queue.as_deref().into_iter();
        queue.flat_map(move |queue| {
            queue.from(from).map(move |(n, entry)| (n, self.entry_view(n, queue, entry)))
        })
    }

    fn entry_view(self, n: u64, queue: &Queue, entry: &Entry) -> EntryView<'a> {
        let details = self.bodies.details(entry);
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

    /// Deliveries that are open, and finished ones among them.
    pub fn open(self) -> Range<u64> {
        let next = self.session.next;
        self.session.queue.as_ref().map_or(next..next, |queue| queue.open_range())
    }

    /// Deliveries that wait.
    pub fn waiting(self) -> Range<u64> {
        let next = self.session.next;
        self.session.queue.as_ref().map_or(next..next, |queue| queue.waiting_range())
    }

    /// Deliveries below it lie within the limits of the queue.
    pub fn within(self) -> u64 {
        self.session.queue.as_ref().map_or(self.session.next, |queue| queue.within())
    }

    /// Deliveries that are open and not finished.
    pub fn unfinished(self) -> u32 {
        self.session.queue.as_ref().map_or(0, |queue| queue.unfinished())
    }

    /// Of the messages that wait.
    pub fn waiting_bytes(self) -> u64 {
        self.session.queue.as_ref().map_or(0, |queue| queue.waiting_bytes())
    }

    /// Of the messages that are pinned.
    pub fn pinned_bytes(self) -> u64 {
        self.session.queue.as_ref().map_or(0, |queue| queue.open_bytes())
    }
}

/// The Packet Identifier of a delivery.
pub fn packet_id(n: u64) -> PacketId {
    let ids = if mutated(Mutation::ReusePacketId) { 4 } else { PACKET_IDS };
    let id = 1 + (n % ids) as u16;
    PacketId::new(id).unwrap_or_else(|| unreachable!("1 + n mod 65,535 is never 0"))
}
