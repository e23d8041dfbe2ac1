//! Subscriptions of sessions, and their routes.

use mqtt::{QoS, ReasonCode, Subscription, TopicFilter};
use routing::{Inserted, Removed};

use crate::command::{Filter, WalkStep};
use crate::effect::{Answer, Effect, Subscribed};
use crate::ids::SessionUid;
use crate::links::{LinkFilter, wanted_origin};
use crate::route::{Options, Route};
use crate::session::Walk;
use crate::shard::Shard;

impl Shard {
    pub(super) fn subscribe(
        &mut self,
        uid: SessionUid,
        epoch: u32,
        filters: &[Filter<'_>],
        effects: &mut Vec<Effect>,
    ) -> Answer {
        match self.subscriber(uid, epoch, effects) {
            Ok(slot) => {
                let results =
                    filters.iter().map(|filter| self.subscribe_one(slot, filter, effects)).collect();
                Answer::Subscribed { results }
            }
            Err(answer) => answer,
        }
    }

    pub(super) fn unsubscribe(
        &mut self,
        uid: SessionUid,
        epoch: u32,
        filters: &[&str],
        effects: &mut Vec<Effect>,
    ) -> Answer {
        match self.subscriber(uid, epoch, effects) {
            Ok(slot) => {
                let results = filters.iter().map(|text| self.unsubscribe_one(slot, text, effects)).collect();
                Answer::Unsubscribed { results }
            }
            Err(answer) => answer,
        }
    }

    fn subscriber(&mut self, uid: SessionUid, epoch: u32, effects: &mut Vec<Effect>) -> Result<u32, Answer> {
        if epoch == 0 { self.slot(uid, effects) } else { self.owned_slot(uid, epoch) }
    }

    fn subscribe_one(&mut self, slot: u32, filter: &Filter<'_>, effects: &mut Vec<Effect>) -> Subscribed {
        let refused = |reason| Subscribed { reason, existed: false };
        let maximum = self.limits.subscriptions_max as usize;
        let session = self.session_at(slot);
        let before = session.subscriptions.get(filter.text).map(|(options, _)| Options(options));
        let existed = before.is_some();
        if !existed && session.subscriptions.len() >= maximum {
            return refused(ReasonCode::QuotaExceeded);
        }
        let origin: Box<str> = wanted_origin(&session.client_id).into();
        let Ok(subscription) = Subscription::parse(filter.text) else {
            return refused(ReasonCode::TopicFilterInvalid);
        };
        let options = Options(filter.options);
        if subscription.share.is_none() {
            let route = Route { slot, id: filter.id, options };
            let (wanting, filter) = (Wanting::of(&origin, options), subscription.filter);
            let inserted = self.routes.insert(filter, route);
            let before = before.map(|before| Wanting::of(&origin, before));
            match inserted {
                Err(_) => return refused(ReasonCode::QuotaExceeded),
                Ok(_) if before == Some(wanting) => {}
                Ok(Inserted::Added | Inserted::Replaced) if self.is_routed(filter, slot, wanting) => {}
                Ok(_) => effects.push(Effect::FilterAdded { filter: wanting.text(filter) }),
            }
            if let Some(before) = before.filter(|before| *before != wanting)
                && !self.is_routed(filter, slot, before)
            {
                effects.push(Effect::FilterRemoved { filter: before.text(filter) });
            }
        } else if options.qos() == QoS::AtMostOnce {
            // Messages for absent clients have a higher QoS. It may replace a subscription with one.
            self.leave_group(slot, filter.text, effects);
        } else if self.groups.insert(filter.text, slot) {
            effects.push(Effect::FilterAdded { filter: filter.text.into() });
        }
        self.session_at(slot).subscriptions.insert(filter.text, filter.options, filter.id);
        self.counts.subscriptions += u64::from(!existed);
        Subscribed { reason: granted_reason(options.qos()), existed }
    }

    fn unsubscribe_one(&mut self, slot: u32, text: &str, effects: &mut Vec<Effect>) -> ReasonCode {
        let session = self.session_at(slot);
        let Some((options, _)) = session.subscriptions.get(text) else {
            return ReasonCode::NoSubscriptionExisted;
        };
        session.subscriptions.remove(text);
        session.end_walk(text);
        let origin: Box<str> = wanted_origin(&session.client_id).into();
        self.counts.subscriptions -= 1;
        self.drop_subscription(slot, text, Wanting::of(&origin, Options(options)), effects);
        ReasonCode::Success
    }

    pub(super) fn walk(
        &mut self,
        uid: SessionUid,
        filter: &str,
        step: WalkStep<'_>,
        effects: &mut Vec<Effect>,
    ) -> Answer {
        let slot = match self.slot(uid, effects) {
            Ok(slot) => slot,
            Err(answer) => return answer,
        };
        let max = self.limits.subscriptions_max as usize;
        let session = self.session_at(slot);
        match step {
            WalkStep::BeginIfNew if session.subscriptions.contains(filter) => {}
            WalkStep::Begin | WalkStep::BeginIfNew => session.set_walk(filter, Walk::default(), max),
            WalkStep::At { done, after } => session.set_walk(filter, Walk { done, after: after.into() }, max),
            WalkStep::End => session.end_walk(filter),
        }
        Answer::Done
    }

    /// Removes a subscription of a session from the index, or from its group.
    pub(super) fn drop_subscription(
        &mut self,
        slot: u32,
        text: &str,
        wanting: Wanting<'_>,
        effects: &mut Vec<Effect>,
    ) {
        match Subscription::parse(text) {
            Ok(Subscription { share: None, filter }) => {
                if self.routes.remove(filter, slot) == Removed::Last || !self.is_routed(filter, slot, wanting)
                {
                    effects.push(Effect::FilterRemoved { filter: wanting.text(filter) });
                }
            }
            _ => self.leave_group(slot, text, effects),
        }
    }

    /// Returns whether sessions other than that of `slot` have a route to this shard for the same receivers.
    fn is_routed(&self, filter: TopicFilter<'_>, slot: u32, wanting: Wanting<'_>) -> bool {
        let sessions = &self.sessions;
        let is_same = |route: &Route| {
            let client_id = || sessions.at(route.slot).map_or("", |session| &session.client_id);
            match wanting {
                Wanting::Clients => !route.options.is_of_link(),
                Wanting::Link { origin } => {
                    route.options.is_of_link() && wanted_origin(client_id()) == origin
                }
            }
        };
        self.routes.any_of(filter, |route| route.slot != slot && is_same(route))
    }

    fn leave_group(&mut self, slot: u32, text: &str, effects: &mut Vec<Effect>) {
        if self.groups.remove(text, slot) {
            effects.push(Effect::FilterRemoved { filter: text.into() });
        }
    }
}

/// Receivers that a route to a shard has. Nodes look for the filters of each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanting<'a> {
    Clients,
    /// Linked clusters that get messages of this origin.
    Link {
        origin: &'a str,
    },
}

impl<'a> Wanting<'a> {
    /// Returns the receivers to which a subscription belongs. `origin` is that which its session wants.
    pub fn of(origin: &'a str, options: Options) -> Self {
        match options.is_of_link() {
            true => Self::Link { origin },
            false => Self::Clients,
        }
    }

    /// Text of the route.
    pub fn text(self, filter: TopicFilter<'_>) -> Box<str> {
        match self {
            Self::Clients => filter.as_str().into(),
            Self::Link { origin } => LinkFilter { origin, filter: filter.as_str() }.to_text(),
        }
    }
}

/// Returns the Reason Code of SUBACK (3.9.3).
pub(super) fn granted_reason(qos: QoS) -> ReasonCode {
    match qos {
        QoS::AtMostOnce => ReasonCode::Success,
        QoS::AtLeastOnce => ReasonCode::GrantedQoS1,
        QoS::ExactlyOnce => ReasonCode::GrantedQoS2,
    }
}
