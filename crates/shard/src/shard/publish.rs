//! Delivery of a message to all sessions that match its topic.

use mqtt::{QoS, TopicName};

use crate::bodies::{EntryDetails, Ids};
use crate::effect::{Answer, Effect};
use crate::entry::{Entry, message_size};
use crate::ids::{Identity, MessageKey, SessionUid, fnv64};
use crate::links::{origin_cluster, wanted_origin};
use crate::message::MessageView;
use crate::mutation::{Mutation, mutated};
use crate::route::{Options, Route};
use crate::shard::enqueue::{Arrival, WhenFull};
use crate::shard::{Portion, Shard};

/// Data of a Publish for each session that it reaches.
struct Published<'a> {
    ordinal: u32,
    key: MessageKey,
    view: &'a MessageView<'a>,
    size: u64,
    when_full: WhenFull,
    /// True when several sessions may receive it.
    shared: bool,
}

impl Shard {
    /// Publishes a message. Returns `None` when there are more sessions than the portion allows: the next portion
    /// continues after the last session that has the message.
    pub(super) fn publish(
        &mut self,
        at: &mut Portion,
        key: MessageKey,
        view: &MessageView<'_>,
        (wait, identity): (bool, Option<Identity>),
        effects: &mut Vec<Effect>,
    ) -> Option<Answer> {
        let size = message_size(view.encoded_len());
        if at.routes == 0 {
            if identity.is_some_and(|identity| self.is_accepted(identity)) {
                self.matches.clear();
                self.counts.repeated += 1;
                return Some(Answer::Repeated);
            }
            self.find_sessions(view);
            if wait && let Some(session) = self.refusing_session(view, size, effects) {
                return Some(Answer::Refused { session });
            }
            if let Some(identity) = identity {
                self.identities.insert(identity);
            }
        }
        let matches = std::mem::take(&mut self.matches);
        let shared = matches.first().map(|route| route.slot) != matches.last().map(|route| route.slot);
        let when_full = if wait { WhenFull::GoOver } else { WhenFull::Refuse };
        let published = Published { ordinal: at.command, key, view, size, when_full, shared };
        for routes in matches[at.routes..].chunk_by(|one, other| one.slot == other.slot) {
            if effects.len() >= self.effects_max && at.routes > 0 {
                self.matches = matches;
                return None;
            }
            at.matched += u32::from(self.publish_to(&published, routes, effects));
            at.routes += routes.len();
        }
        self.matches = matches;
        at.routes = 0;
        Some(Answer::Published { matched: std::mem::take(&mut at.matched) })
    }

    /// Returns whether the message with this identity was accepted before. Otherwise the last message of its Packet
    /// Identifier was released.
    fn is_accepted(&mut self, identity: Identity) -> bool {
        if self.identities.contains(identity) && !mutated(Mutation::ForgetIdentities) {
            return true;
        }
        self.identities.remove(Identity { number: identity.number ^ 1, ..identity });
        false
    }

    /// Fills `matches` with the subscriptions of the sessions that receive a message, session by session.
    fn find_sessions(&mut self, view: &MessageView<'_>) {
        self.matches.clear();
        // No session keeps messages that are delivered at QoS 0.
        if view.qos > QoS::AtMostOnce
            && let Ok(topic) = TopicName::parse(view.topic)
        {
            self.reader.matches(topic, &mut self.matches);
            // The order of the index depends on its history.
            self.matches.sort_unstable_by_key(|route| (route.slot, route.id, route.options.0));
        }
    }

    /// Returns the first session that would receive a message and refuses it, because its queue is full.
    fn refusing_session(
        &mut self,
        view: &MessageView<'_>,
        size: u64,
        effects: &mut Vec<Effect>,
    ) -> Option<SessionUid> {
        if self.refusing.is_empty() {
            return None;
        }
        let matches = std::mem::take(&mut self.matches);
        let mut of_sessions = matches.chunk_by(|one, other| one.slot == other.slot);
        let refusing = of_sessions.find_map(|routes| {
            let slot = routes[0].slot;
            if !self.refusing.contains(&slot) || self.merged(view, routes).is_none() {
                return None;
            }
            self.touch_slot(slot);
            self.settle(slot, effects);
            let session = self.sessions.at(slot)?.uid;
            self.is_full_and_refuses(slot, size).then_some(session)
        });
        self.matches = matches;
        refusing
    }

    /// Delivers one copy for all subscriptions of a session that match [MQTT-3.3.4-2] [MQTT-3.3.4-4]. Returns true
    /// when the session receives one.
    fn publish_to(&mut self, published: &Published<'_>, routes: &[Route], effects: &mut Vec<Effect>) -> bool {
        let Published { ordinal, key, view, size, when_full, shared } = *published;
        let slot = routes[0].slot;
        let Some((qos, keeps_retain)) = self.merged(view, routes) else { return false };
        self.touch_slot(slot);
        self.settle(slot, effects);
        if self.sessions.at(slot).is_none() {
            return false;
        }
        let entry = Entry::new(key, size, qos, view.retain && keeps_retain, shared);
        let details = EntryDetails { expires: view.expires, ids: Ids::of(&self.ids), group: None };
        // A linked cluster that is slow must not make the publishers of this one wait.
        let when_full = if routes[0].options.is_of_link() { WhenFull::MakeRoom } else { when_full };
        self.enqueue(slot, Arrival { ordinal, entry, details, when_full }, effects);
        true
    }

    /// Returns the QoS of a session's copy of a message, and whether it keeps RETAIN. `None` if the session gets none,
    /// or if no session keeps it. Fills `ids` with the Subscription Identifiers.
    fn merged(&mut self, view: &MessageView<'_>, routes: &[Route]) -> Option<(QoS, bool)> {
        let slot = routes[0].slot;
        let mut merged: Option<Options> = None;
        let mut own = None;
        self.ids.clear();
        for route in routes {
            if route.options.no_local() {
                // [MQTT-3.8.3-3], for each subscription.
                let client_id = self.sessions.at(slot).map_or("", |session| &session.client_id);
                if *own.get_or_insert_with(|| fnv64(client_id.as_bytes()) == view.publisher_key) {
                    continue;
                }
            }
            if route.options.is_of_link() && !self.is_for_link(slot, view) {
                continue;
            }
            if route.options.is_behind_mountpoint() && self.is_above_mountpoint(slot, view.topic) {
                continue;
            }
            merged = Some(merged.map_or(route.options, |options| options.merge(route.options)));
            if route.id != 0 {
                self.ids.push(route.id);
            }
        }
        let options = merged?;
        let qos = view.qos.min(options.qos());
        (qos > QoS::AtMostOnce).then_some((qos, options.retain_as_published()))
    }

    /// Returns whether a session of a linked cluster gets messages of this origin.
    fn is_for_link(&self, slot: u32, view: &MessageView<'_>) -> bool {
        let client_id = self.sessions.at(slot).map_or("", |session| &session.client_id);
        origin_cluster(view.properties) == wanted_origin(client_id)
    }

    /// Returns whether the session's `#` matches a topic only because the topic is the parent of its mountpoint.
    /// Call it for such a subscription only.
    fn is_above_mountpoint(&self, slot: u32, topic: &str) -> bool {
        let Some(session) = self.sessions.at(slot) else { return false };
        let below = session.client_id.strip_prefix(topic);
        if !below.is_some_and(|rest| rest.starts_with('/')) {
            return false;
        }
        // Identifiers may contain a slash as well, so one of the client's own topics may look like that.
        let is_this = |(text, options, _): (&str, u8, u32)| {
            Options(options).is_behind_mountpoint() && text.strip_suffix("/#") == Some(topic)
        };
        session.subscriptions.iter().any(is_this)
    }

    /// Returns at most `limit` sessions that a topic's messages go to, and the number of all.
    pub fn matching(&self, topic: TopicName<'_>, limit: usize) -> (usize, Vec<SessionUid>) {
        let mut routes = Vec::new();
        self.reader.matches(topic, &mut routes);
        routes.sort_unstable_by_key(|route| route.slot);
        routes.dedup_by_key(|route| route.slot);
        let first = routes.iter().take(limit);
        let first = first.filter_map(|route| self.sessions.at(route.slot)).map(|session| session.uid);
        (routes.len(), first.collect())
    }
}
