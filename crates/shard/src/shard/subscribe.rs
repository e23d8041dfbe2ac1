//! Subscriptions of sessions, and their routes.

use mqtt::{QoS, ReasonCode, Subscription};
use routing::{Inserted, Removed};

use crate::command::{Filter, WalkStep};
use crate::effect::{Answer, Effect, Subscribed};
use crate::ids::SessionUid;
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
        let subscriptions = &self.session_at(slot).subscriptions;
        let existed = subscriptions.contains(filter.text);
        if !existed && subscriptions.len() >= maximum {
            return refused(ReasonCode::QuotaExceeded);
        }
        let Ok(subscription) = Subscription::parse(filter.text) else {
            return refused(ReasonCode::TopicFilterInvalid);
        };
        let options = Options(filter.options);
        if subscription.share.is_none() {
            let route = Route { slot, id: filter.id, options };
            match self.routes.insert(subscription.filter, route) {
                Err(_) => return refused(ReasonCode::QuotaExceeded),
                Ok(Inserted::New) => {
                    effects.push(Effect::FilterAdded { filter: subscription.filter.as_str().into() });
                }
                Ok(Inserted::Added | Inserted::Replaced) => {}
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
        if !self.session_at(slot).subscriptions.remove(text) {
            return ReasonCode::NoSubscriptionExisted;
        }
        self.session_at(slot).end_walk(text);
        self.counts.subscriptions -= 1;
        self.drop_subscription(slot, text, effects);
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
    pub(super) fn drop_subscription(&mut self, slot: u32, text: &str, effects: &mut Vec<Effect>) {
        match Subscription::parse(text) {
            Ok(Subscription { share: None, filter }) => {
                if self.routes.remove(filter, slot) == Removed::Last {
                    effects.push(Effect::FilterRemoved { filter: text.into() });
                }
            }
            _ => self.leave_group(slot, text, effects),
        }
    }

    fn leave_group(&mut self, slot: u32, text: &str, effects: &mut Vec<Effect>) {
        if self.groups.remove(text, slot) {
            effects.push(Effect::FilterRemoved { filter: text.into() });
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
