//! Permissions of clients. Access control may have to ask another server for them.

use std::sync::Arc;

use mqtt::{Publish, ReasonCode, SubscribeFilters, Subscription};

use super::Worker;
use super::admit::ASKS_MAX;
use super::publish::{is_events, is_of_actions, is_of_links, is_reserved};
use crate::access::{Access, Action, Permission, RetryAuthorize};
use crate::batch::{AuthorizeSubject, WorkerCommand};
use crate::connection::{Connection, Phase, Role};
use crate::ids::ConnectionId;
use crate::node::Node;

/// Access rules in force, as far as a worker knows them without asking.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// [`Access::generation`] before the other fields were read, so these may be newer and are never older.
    pub generation: u64,
    pub guards_topics: bool,
    pub may_answer_later: bool,
    allows_without_grants: bool,
}

impl Rules {
    pub fn of(access: &dyn Access) -> Self {
        Self {
            generation: access.generation(),
            guards_topics: access.guards_topics(),
            may_answer_later: access.may_answer_later(),
            allows_without_grants: access.allows_without_grants(),
        }
    }

    /// Returns the rules in force, which are read again only if they have changed.
    pub fn current(&mut self, access: &dyn Access) -> Self {
        if access.generation() != self.generation {
            *self = Self::of(access);
        }
        *self
    }

    /// Returns whether the client may do everything with a topic, without a question.
    #[inline]
    pub fn allow(&self, connection: &Connection, topic: &str) -> bool {
        let has_grants = || {
            let principal = connection.extra.as_ref().and_then(|extra| extra.principal.as_ref());
            principal.is_some_and(|principal| principal.grants.is_some())
        };
        !self.guards_topics || self.allows_without_grants && !topic.starts_with('$') && !has_grants()
    }
}

impl Connection {
    /// Asks access control for a permission of the client. `None` means that the answer is not known yet;
    /// [`WorkerCommand::RetryAuthorize`] then follows.
    pub(super) fn authorize(
        &self,
        node: &Arc<Node>,
        action: Action,
        topic: &str,
        about: AuthorizeSubject,
    ) -> Option<Permission> {
        let id = self.id;
        let mut later = || {
            let node = node.clone();
            RetryAuthorize::new(move || node.post(id.worker, WorkerCommand::RetryAuthorize(id, about)))
        };
        node.access.authorize(self.identity(node), action, topic, &mut later)
    }

    /// Returns whether the client is known to have a permission now.
    pub(super) fn is_permitted(&self, node: &Node, action: Action, topic: &str) -> bool {
        let mut later = || RetryAuthorize::new(|| {});
        let permission = node.access.authorize(self.identity(node), action, topic, &mut later);
        permission.is_some_and(|permission| permission.allowed)
    }

    /// Returns whether the rules let the client receive a topic, and remembers a lasting answer. `topic` includes the
    /// mountpoint. A client without a flow gets none for that: a message to very many clients would take much memory.
    pub(super) fn may_receive(&mut self, node: &Node, rules: Rules, topic: &str) -> bool {
        let Some(topic) = self.unmounted(topic) else { return false };
        if rules.allow(self, topic) {
            return true;
        }
        if let Some(known) = self.known_permission(rules, Action::Receive, topic) {
            return known;
        }
        let mut later = || RetryAuthorize::new(|| {});
        let permission = node.access.authorize(self.identity(node), Action::Receive, topic, &mut later);
        if let (Some(flow), Some(permission)) = (self.flow.as_deref_mut(), permission) {
            flow.permissions.remember(rules.generation, Action::Receive, topic, permission);
        }
        permission.is_some_and(|permission| permission.allowed)
    }

    /// Returns whether the client is known to have a permission without a question. `topic` is without the mountpoint.
    #[inline]
    pub(super) fn has_known_permission(&self, rules: Rules, action: Action, topic: &str) -> bool {
        rules.allow(self, topic) || self.known_permission(rules, action, topic) == Some(true)
    }

    /// Returns the remembered permission to publish or to receive a topic.
    fn known_permission(&self, rules: Rules, action: Action, topic: &str) -> Option<bool> {
        self.flow.as_ref()?.permissions.get(rules.generation, action, topic)
    }

    /// Asks for the permission of a PUBLISH and remembers a lasting answer. `None` means that the answer is not known
    /// yet.
    fn ask_and_remember(
        &mut self,
        node: &Arc<Node>,
        rules: Rules,
        action: Action,
        topic: &str,
    ) -> Option<Permission> {
        let permission = self.authorize(node, action, topic, AuthorizeSubject::Packet)?;
        self.flow().permissions.remember(rules.generation, action, topic, permission);
        Some(permission)
    }

    /// Returns whether the client may read the topics of the broker itself that a Topic Filter matches, as far as that
    /// does not depend on rules: without any rules no client may read events. Only actions read their messages.
    pub(super) fn may_read_own_topics(&self, node: &Node, filter: &str) -> bool {
        let is_process = self.marks.role.is_process();
        (is_process || !is_events(filter) || node.access.guards_topics())
            && (is_process || !is_of_actions(filter))
            && (is_process || self.marks.role == Role::Link || !is_of_links(filter))
    }

    /// Returns whether the client may publish to `topic`, which is without the mountpoint.
    pub(super) fn may_publish(
        &mut self,
        node: &Arc<Node>,
        rules: Rules,
        publish: &Publish<'_>,
        topic: &str,
    ) -> bool {
        // This applies behind a mountpoint too, because a wildcard of the tenant would match the topic there.
        if is_reserved(topic, self.own_client_id())
            || (self.marks.mounted && topic.starts_with('$'))
            || !self.may_publish_by_link(topic)
        {
            return false;
        }
        if rules.allow(self, topic) {
            return true;
        }
        let action = Action::Publish { qos: publish.qos, retain: publish.retain };
        if let Some(known) = self.known_permission(rules, action, topic) {
            return known;
        }
        self.ask_and_remember(node, rules, action, topic).is_some_and(|permission| permission.allowed)
    }
}

impl Worker {
    /// Returns the access rules in force.
    pub(super) fn rules(&mut self) -> Rules {
        self.rules.current(&*self.node.access)
    }

    /// Returns whether this PUBLISH has to wait for its permission. The PUBLISH has no effect before the permission is
    /// known.
    pub(super) fn awaits_permission(&mut self, slot: u32, rules: Rules, publish: &Publish<'_>) -> bool {
        let Some(connection) = self.connections.occupant(slot) else { return false };
        if connection.flow.as_ref().is_some_and(|flow| flow.questions > 0) {
            return true;
        }
        let alias = publish.properties.topic_alias().filter(|_| publish.topic.is_empty());
        let aliased = alias.and_then(|alias| {
            let aliases = &connection.flow.as_ref()?.aliases_in;
            aliases.resolve(alias, self.settings.mqtt.topic_alias_max).ok()
        });
        let topic = aliased.as_deref().unwrap_or(publish.topic);
        if topic.is_empty() || is_reserved(topic, connection.own_client_id()) {
            return false;
        }
        let action = Action::Publish { qos: publish.qos, retain: publish.retain };
        if connection.known_permission(rules, action, topic).is_some() {
            return false;
        }
        let permission = connection.ask_and_remember(&self.node, rules, action, topic);
        self.await_answers(slot, u32::from(permission.is_none()))
    }

    /// Returns whether a SUBSCRIBE with these filters has to wait for the permission of one of them. The worker asks
    /// for all unknown permissions at once.
    pub(super) fn awaits_permissions(&mut self, slot: u32, filters: SubscribeFilters<'_>) -> bool {
        let Some(connection) = self.connections.occupant_ref(slot) else { return false };
        if connection.flow.as_ref().is_some_and(|flow| flow.questions > 0) {
            return true;
        }
        let mut unknown = 0;
        for (text, asked) in filters.iter() {
            let Ok(subscription) = Subscription::parse(text) else { continue };
            let action = Action::Subscribe { qos: asked.qos };
            let filter = subscription.filter.as_str();
            let permission = connection.authorize(&self.node, action, filter, AuthorizeSubject::Packet);
            unknown += u32::from(permission.is_none());
        }
        self.await_answers(slot, unknown)
    }

    /// Makes a packet wait for `questions` answers. Returns false if the packet does not wait. After [`ASKS_MAX`]
    /// attempts it waits no more and is refused.
    fn await_answers(&mut self, slot: u32, questions: u32) -> bool {
        let Some(connection) = self.connections.occupant(slot) else { return false };
        if questions == 0 && connection.flow.is_none() {
            return false;
        }
        let flow = connection.flow();
        if questions == 0 || flow.attempts >= ASKS_MAX {
            // Answers that are still to come are ignored.
            flow.attempts = 0;
            return false;
        }
        flow.attempts += 1;
        flow.questions = questions;
        self.counters.permissions_awaited += 1;
        true
    }

    /// Handles the answer to an earlier question of this connection.
    pub(super) fn retry_authorize(&mut self, id: ConnectionId, about: AuthorizeSubject) {
        let Some(connection) = self.connections.get_mut(id.slot, id.generation) else { return };
        match (about, connection.phase) {
            (AuthorizeSubject::Will, Phase::Authenticating) => self.claim_client_id(id.slot),
            (AuthorizeSubject::Packet, Phase::Open) => {
                let Some(flow) = connection.flow.as_mut() else { return };
                flow.questions = flow.questions.saturating_sub(1);
                if flow.questions == 0 {
                    self.unblock(id.slot);
                }
            }
            (AuthorizeSubject::Subscription, Phase::Open) => self.recheck_again(),
            _ => {}
        }
    }

    /// Closes a connection whose admission has expired.
    pub(super) fn check_expiry(&mut self, slot: u32) {
        let Some(connection) = self.connections.occupant(slot) else { return };
        let expires = connection.extra.as_ref().and_then(|extra| extra.expires);
        if connection.phase == Phase::Open && expires.is_some_and(|expires| expires <= self.clock.now()) {
            self.counters.admissions_expired += 1;
            self.close(slot, ReasonCode::MaximumConnectTime);
        }
    }
}
