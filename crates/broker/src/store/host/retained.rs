//! The shard's part of the retained messages: the last one of each topic that is durable.

use mqtt::{QoS, ReasonCode, TopicName};
use shard::{Answer, Command};

use super::propose::Continuation;
use super::{ShardHost, ShardOutput, Waiter};
use crate::admin::{RetainedInfo, RetainedMessage};
use crate::batch::Token;
use crate::ids::Time;
use crate::message::{Message, MessageView};
use crate::peers::NodeIndex;
use crate::quota::Payers;
use crate::retained::{self, PageBudget};
use crate::store::retained_stamps::Stamp;

/// Deletions of one shard that another node is told of when the two meet.
const DELETIONS_SENT_MAX: usize = 1000;

impl ShardHost {
    pub(super) fn retain(
        &mut self,
        now: Time,
        message: &Message,
        payers: Payers,
        (stamp, copied_by): (u64, Option<NodeIndex>),
        (refusal, token): (Option<ReasonCode>, Option<Token>),
        out: &mut ShardOutput,
    ) {
        // A client's message was asked for before anybody had it: now it is kept.
        let is_promised = matches!(token, Some(Token::Publish { .. }));
        let mut refused = refusal;
        if refused.is_none() && !is_promised {
            refused = self.limit_refusal(message, &payers);
        } else if refused.is_some() {
            self.counters.retained_refused += 1;
        }
        if let Some(mut reason) = refused {
            if refusal.is_none() && matches!(token, Some(Token::Append { .. })) {
                // A Will is tried again while there is no room, but not for these limits.
                reason = ReasonCode::Success;
            }
            return out.acknowledged.extend(token.map(|token| (token, reason)));
        }
        if stamp != 0
            && let Err(known) = self.note_stamp(&message.view(), stamp)
        {
            // A node that has missed a deletion offers what was deleted: it is told. What it has missed besides, it is sent anyway.
            if copied_by.is_some() && known.deletes && !message.view().payload.is_empty() {
                out.deleted.push((copied_by, message.view().topic.into(), known.at));
            }
            return out.acknowledged.extend(token.map(|token| (token, ReasonCode::Success)));
        }
        let view = message.view();
        match copied_by {
            // Others may have missed it too.
            Some(_) if view.payload.is_empty() && !view.retain => {
                out.deleted.push((None, view.topic.into(), stamp));
            }
            Some(node) => out.propagated.push((node, message.clone(), stamp)),
            None => {}
        }
        let append = token.map(|token| self.new_append(Waiter::Token(token)));
        let append = self.acknowledge_early(now, message, append, out);
        let mut stored = message.view().stored();
        // Nobody asks who published what is retained: it goes to no shared group [MQTT-4.8.2-1]. What a node without others has retained is
        // older than all that it retains in a cluster.
        stored.publisher_key = stamp;
        let bytes = if stored.payload.is_empty() { 0 } else { stored.encoded_len() as u64 };
        let charge = self.charged.for_retained(stored.topic, payers, bytes);
        self.propose(now, &Command::Retain { message: stored }, Continuation::Retain { append, charge });
        self.retained_asked = self.proposals.index();
    }

    /// Notes when a message was retained, unless something later is known of its topic: that is returned.
    fn note_stamp(&mut self, view: &MessageView<'_>, at: u64) -> Result<(), Stamp> {
        let applied =
            self.state.retained(view.topic).and_then(|bytes| shard::MessageView::decode(bytes).ok());
        let applied = applied.map(|message| message.publisher_key);
        self.stamps.note(view.topic, Stamp { at, deletes: view.payload.is_empty() }, applied)
    }

    /// Whether it is beyond the limits of retained messages. They are about right only: what is under way is not counted.
    fn limit_refusal(&mut self, message: &Message, payers: &Payers) -> Option<ReasonCode> {
        let view = message.view();
        let fits = view.payload.is_empty()
            || self.has_room_to_retain(view.topic, view.stored().encoded_len() as u64, payers);
        (!fits).then_some(ReasonCode::QuotaExceeded)
    }

    /// Whether a message may be retained, by the limits of the node and by the quotas of those who pay for it. Counts when it may not.
    pub(super) fn has_room_to_retain(&mut self, topic: &str, size: u64, payers: &Payers) -> bool {
        let fits = self.node_has_room_to_retain(topic, size);
        self.counters.retained_refused += u64::from(!fits);
        let may = self.may_retain(topic, size, payers);
        self.counters.quota_retained += u64::from(!may);
        fits && may
    }

    fn node_has_room_to_retain(&self, topic: &str, size: u64) -> bool {
        let limits = &self.settings.retained;
        let (others, others_bytes) = self.load.retained_elsewhere(self.id);
        let (count, bytes) = (others + self.retained_len() as u64, others_bytes + self.retained_bytes());
        let before = self.state.retained(topic).map(|message| message.len() as u64);
        let more = u64::from(before.is_none());
        let more_bytes = size.saturating_sub(before.unwrap_or(0));
        more_bytes == 0 && more == 0
            || count + more <= limits.messages_max && bytes + more_bytes <= limits.bytes_max.bytes()
    }

    pub(super) fn delete_retained(&mut self, now: Time, topic: &str, token: Token, out: &mut ShardOutput) {
        // Operators say what they like; the log takes Topic Names.
        if TopicName::parse(topic).is_err() {
            return out.acknowledged.push((token, ReasonCode::NoSubscriptionExisted));
        }
        let message = shard::MessageView {
            topic,
            properties: &[],
            payload: &[],
            qos: QoS::AtMostOnce,
            retain: true,
            expires: shard::NEVER,
            received: now.0,
            publisher_key: 0,
        };
        let charge = self.charged.for_retained(topic, Payers::default(), 0);
        self.propose(now, &Command::Retain { message }, Continuation::Delete(token, charge));
        self.retained_asked = self.proposals.index();
    }

    pub(super) fn deleted_retained(token: Token, answer: &Answer, out: &mut ShardOutput) {
        let was_there = matches!(answer, Answer::Retained { replaced: true });
        let reason = if was_there { ReasonCode::Success } else { ReasonCode::NoSubscriptionExisted };
        out.acknowledged.push((token, reason));
    }

    /// The index of a batch that has to be applied before a reader sees every retained message that was sent here so far.
    pub(crate) fn retained_barrier(&self) -> Option<u64> {
        (self.retained_asked > self.state.applied()).then_some(self.retained_asked)
    }

    pub(crate) fn has_applied(&self, index: u64) -> bool {
        self.state.applied() >= index
    }

    /// The last topics whose retained message was deleted, and when.
    pub(crate) fn retained_deletions(&self) -> impl Iterator<Item = (&str, u64)> {
        self.stamps.deletions().take(DELETIONS_SENT_MAX)
    }

    pub(crate) fn retained_len(&self) -> usize {
        self.state.retained_counts().0 as usize
    }

    pub(crate) fn retained_bytes(&self) -> u64 {
        self.state.retained_counts().1
    }

    /// Adds messages that match, behind a topic, as far as the budget allows; returns the topic to go on behind.
    pub(crate) fn retained_page(
        &self,
        now: Time,
        filter: &str,
        after: Option<&str>,
        budget: &mut PageBudget,
        found: &mut Vec<Message>,
    ) -> Option<Box<str>> {
        let page = self.state.retained_page(filter, after, budget.messages());
        budget.examine(page.examined);
        for bytes in &page.messages {
            let Ok(stored) = shard::MessageView::decode(bytes) else { continue };
            // The state's clock stands still while nothing happens.
            if !stored.is_expired(now.0) {
                budget.spend(bytes.len());
                found.push(Message::of_stored(&stored));
            }
        }
        page.after
    }

    /// What an operator sees of the messages that match, behind a topic; looks at a bounded number of them, and returns the
    /// topic to go on behind.
    pub(crate) fn retained_list(
        &self,
        now: Time,
        filter: &str,
        after: Option<&str>,
        limit: usize,
    ) -> (Vec<RetainedInfo>, Option<Box<str>>) {
        let mut found = Vec::new();
        let mut budget = PageBudget::of_messages(limit.max(1));
        let next = self.retained_page(now, filter, after, &mut budget, &mut found);
        (found.iter().map(|message| retained::info(now, message)).collect(), next)
    }

    /// One message with its payload.
    pub(crate) fn retained_whole(&self, now: Time, topic: &str) -> Option<RetainedMessage> {
        let stored = shard::MessageView::decode(self.state.retained(topic)?).ok()?;
        (!stored.is_expired(now.0)).then(|| retained::whole(now, &Message::of_stored(&stored)))
    }

    /// When there are more or less, and about once a second: others are told how much there is.
    pub(crate) fn tend_retained(&self) {
        let is = (self.retained_len() as u64, self.retained_bytes());
        self.load.note_retained(self.id, is, &self.settings);
    }
}
