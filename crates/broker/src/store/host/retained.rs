//! The shard's part of the retained messages: the last one of each topic that is durable.

use std::sync::atomic::Ordering::Relaxed;

use mqtt::{QoS, ReasonCode, TopicName};
use shard::{Answer, Command};

use super::propose::Asked;
use super::{ShardHost, ShardOutput, Waiter};
use crate::admin::{RetainedInfo, RetainedMessage};
use crate::ids::Time;
use crate::mail::Token;
use crate::message::Message;
use crate::retained::{self, PageBudget};

impl ShardHost {
    pub(super) fn retain(
        &mut self,
        now: Time,
        message: &Message,
        token: Option<Token>,
        out: &mut ShardOutput,
    ) {
        if let Some(reason) = self.retain_refusal(message) {
            self.counters.retained_refused += 1;
            return out.acknowledged.extend(token.map(|token| (token, reason)));
        }
        let append = token.map(|token| self.new_append(Waiter::Token(token)));
        let append = self.go_ahead(now, message, append, out);
        self.propose(now, &Command::Retain { message: message.view().stored() }, Asked::Retain { append });
        self.retained_asked = self.proposals.index();
    }

    /// Why a retained message is not taken. Limits are about right only: what is under way is not counted.
    fn retain_refusal(&self, message: &Message) -> Option<ReasonCode> {
        let view = message.view();
        if let Some(reason) = self.publish_refusal() {
            return Some(reason);
        }
        if view.payload.is_empty() {
            return None;
        }
        let limits = &self.settings.retained;
        let (others, others_bytes) = self.load.retained_elsewhere(self.id);
        let (count, bytes) = (others + self.retained_len() as u64, others_bytes + self.retained_bytes());
        let size = view.stored().encoded_len() as u64;
        let before = self.state.retained(view.topic).map(|message| message.len() as u64);
        let more = u64::from(before.is_none());
        let more_bytes = size.saturating_sub(before.unwrap_or(0));
        let fits = more_bytes == 0 && more == 0
            || count + more <= limits.messages_max && bytes + more_bytes <= limits.bytes_max.bytes();
        (!fits).then_some(ReasonCode::QuotaExceeded)
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
        self.propose(now, &Command::Retain { message }, Asked::Delete(token));
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

    /// About once a second: others are told how much there is.
    pub(crate) fn tend_retained(&mut self) {
        let figures = &self.load.retained[self.id.index()];
        figures.messages.store(self.retained_len() as u64, Relaxed);
        figures.bytes.store(self.retained_bytes(), Relaxed);
    }
}
