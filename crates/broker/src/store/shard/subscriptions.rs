//! Subscriptions of durable sessions, and what the indexes know of them.

use mqtt::{QoS, ReasonCode, Subscription, TopicFilter};
use routing::{Inserted, Removed};

use super::{MemoryShard, ShardOutput};
use crate::ids::{ConnectionId, SessionId, Ticket};
use crate::route::{Options, Route, RouteKind};
use crate::store::{GroupName, Join, Member, Request};

impl MemoryShard {
    pub(super) fn subscribe(
        &mut self,
        id: SessionId,
        filters: Vec<(Box<str>, Options, u32)>,
        (connection, ticket): (ConnectionId, Ticket),
        out: &mut ShardOutput,
    ) -> Vec<(ReasonCode, bool)> {
        let maximum = self.settings.session.subscriptions_max as usize;
        let one = |(place, (text, options, subscription_id)): (u32, (Box<str>, Options, u32))| {
            let Some(session) = self.sessions.get_mut(id.slot, id.generation) else {
                return (ReasonCode::UnspecifiedError, false);
            };
            let existed = session.subscriptions.contains_key(&text);
            if !existed && session.subscriptions.len() >= maximum {
                return (ReasonCode::QuotaExceeded, false);
            }
            let Ok(subscription) = Subscription::parse(&text) else {
                return (ReasonCode::TopicFilterInvalid, false);
            };
            if subscription.share.is_none() {
                let route = Route {
                    slot: id.slot,
                    generation: id.generation,
                    subscription_id,
                    place: self.id.0,
                    options,
                    kind: RouteKind::Session,
                };
                match self.routes.insert(subscription.filter, route) {
                    Err(_) => return (ReasonCode::QuotaExceeded, false),
                    Ok(Inserted::Replaced) => {}
                    Ok(Inserted::New | Inserted::Added) => {
                        let uses = self.uses.entry(subscription.filter.as_str().into()).or_default();
                        uses.sessions += 1;
                        if uses.sessions == 1
                            && self
                                .node_routes
                                .insert(subscription.filter, self.node_route(RouteKind::Shard))
                                .is_err()
                        {
                            self.drop_route(id, subscription.filter);
                            return (ReasonCode::QuotaExceeded, false);
                        }
                    }
                }
            }
            if let Some(share) = subscription.share {
                let group = GroupName { share: share.into(), filter: subscription.filter.as_str().into() };
                let reply = Some((connection, ticket, place));
                self.tell_group(id, group, options, subscription_id, reply, out);
            }
            let granted = options.qos();
            if let Some(session) = self.sessions.get_mut(id.slot, id.generation) {
                let known = session.subscriptions.insert(text, (options, subscription_id));
                self.subscriptions += usize::from(known.is_none());
            }
            (granted_reason(granted), existed)
        };
        (0..).zip(filters).map(one).collect()
    }

    pub(super) fn node_route(&self, kind: RouteKind) -> Route {
        let options = Options::default().with_qos(QoS::ExactlyOnce);
        Route { slot: 0, generation: 0, subscription_id: 0, place: self.id.0, options, kind }
    }

    pub(super) fn unsubscribe(
        &mut self,
        id: SessionId,
        text: &str,
        reply: Option<(ConnectionId, Ticket)>,
        out: &mut ShardOutput,
    ) -> ReasonCode {
        let Some(session) = self.sessions.get_mut(id.slot, id.generation) else {
            return ReasonCode::UnspecifiedError;
        };
        if session.subscriptions.remove(text).is_none() {
            return ReasonCode::NoSubscriptionExisted;
        }
        self.subscriptions -= 1;
        self.drop_subscription(id, text, reply, out);
        ReasonCode::Success
    }

    pub(super) fn drop_subscription(
        &mut self,
        id: SessionId,
        text: &str,
        reply: Option<(ConnectionId, Ticket)>,
        out: &mut ShardOutput,
    ) {
        match Subscription::parse(text) {
            Ok(Subscription { share: None, filter }) => self.drop_route(id, filter),
            Ok(Subscription { share: Some(share), filter }) => {
                let group = GroupName { share: share.into(), filter: filter.as_str().into() };
                let shard = group.shard();
                let leave = Request::Leave { group: Box::new(group), member: Member::Session(id), reply };
                out.requests.push((shard, leave));
            }
            Err(_) => {}
        }
    }

    pub(super) fn drop_route(&mut self, id: SessionId, filter: TopicFilter<'_>) {
        let key = (RouteKind::Session, self.id.0, id.slot, id.generation);
        if matches!(self.routes.remove(filter, key), Removed::NotFound) {
            return;
        }
        if let Some(uses) = self.uses.get_mut(filter.as_str()) {
            uses.sessions -= 1;
            if uses.sessions == 0 {
                self.node_routes.remove(filter, (RouteKind::Shard, self.id.0, 0, 0));
            }
            self.forget_uses(filter);
        }
    }

    pub(super) fn forget_uses(&mut self, filter: TopicFilter<'_>) {
        if self.uses.get(filter.as_str()).is_some_and(|uses| uses.sessions == 0 && uses.groups == 0) {
            self.uses.remove(filter.as_str());
        }
    }

    /// Tells the shared groups of a session where to find it now.
    pub(super) fn tell_groups(&mut self, id: SessionId, out: &mut ShardOutput) {
        let Some(session) = self.sessions.get(id.slot, id.generation) else { return };
        for (text, (options, subscription_id)) in &session.subscriptions {
            let Ok(Subscription { share: Some(share), filter }) = Subscription::parse(text) else { continue };
            let group = GroupName { share: share.into(), filter: filter.as_str().into() };
            self.tell_group(id, group, *options, *subscription_id, None, out);
        }
    }

    pub(super) fn tell_group(
        &self,
        id: SessionId,
        group: GroupName,
        options: Options,
        subscription_id: u32,
        reply: Option<(ConnectionId, Ticket, u32)>,
        out: &mut ShardOutput,
    ) {
        let Some(session) = self.sessions.get(id.slot, id.generation) else { return };
        let shard = group.shard();
        let join = Join {
            group,
            member: Member::Session(id),
            connection: session.owner,
            options,
            subscription_id,
            reply,
        };
        out.requests.push((shard, Request::Join(Box::new(join))));
    }
}

fn granted_reason(qos: QoS) -> ReasonCode {
    match qos {
        QoS::AtMostOnce => ReasonCode::Success,
        QoS::AtLeastOnce => ReasonCode::GrantedQoS1,
        QoS::ExactlyOnce => ReasonCode::GrantedQoS2,
    }
}
