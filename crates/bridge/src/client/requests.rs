//! SUBSCRIBE and UNSUBSCRIBE packets that wait for their answer.

use std::time::Duration;

use mqtt::{
    Packet, PacketId, PacketType, Properties, ReasonCode, SubAck, Subscribe, SubscribeFiltersBuf,
    SubscriptionOptions, Unsubscribe, UnsubscribeFiltersBuf, Version,
};

use super::error::CloseReason;
use crate::time::Time;

/// Requests that the server has not answered.
///
/// Their Packet Identifiers share a space with the messages to the server, whose identifiers the other broker has
/// chosen. They count down from 65,535. When the server reports that one is in use, the request gets the next one.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    open: Vec<Open>,
    /// Number of identifiers that were used.
    used: u16,
    retries: u8,
}

/// A request without an answer.
#[derive(Debug)]
struct Open {
    packet_id: PacketId,
    request: Request,
    since: Time,
}

#[derive(Debug)]
enum Request {
    Subscribe(Vec<(String, SubscriptionOptions)>),
    Unsubscribe(Vec<String>),
}

/// Maximum number of filters in one packet. Some public brokers accept no more.
const FILTERS_MAX: usize = 8;

/// Maximum time for an answer. A cluster may wait for a majority of its nodes before it answers.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(60);

/// Maximum number of requests in a row that are repeated with another Packet Identifier.
const RETRIES_MAX: u8 = 16;

impl Requests {
    /// Number of packets without an answer.
    pub(crate) fn packets(&self) -> usize {
        self.open.len()
    }

    /// Number of filters without an answer.
    pub(crate) fn open(&self) -> usize {
        let filters = self.open.iter().map(|open| match &open.request {
            Request::Subscribe(filters) => filters.len(),
            Request::Unsubscribe(filters) => filters.len(),
        });
        filters.sum()
    }

    pub(crate) fn subscribe(
        &mut self,
        now: Time,
        version: Version,
        filters: &[(String, SubscriptionOptions)],
        out: &mut Vec<u8>,
    ) {
        for filters in filters.chunks(FILTERS_MAX) {
            self.subscribe_at_once(now, version, filters.to_vec(), out);
        }
    }

    /// Subscribes to all filters with one packet.
    pub(crate) fn subscribe_at_once(
        &mut self,
        now: Time,
        version: Version,
        filters: Vec<(String, SubscriptionOptions)>,
        out: &mut Vec<u8>,
    ) {
        let packet_id = self.next_id();
        let mut buf = SubscribeFiltersBuf::default();
        for (filter, options) in &filters {
            buf.push(filter, *options);
        }
        let (properties, list) = (Properties::EMPTY, buf.as_filters());
        let is_written =
            Packet::Subscribe(Subscribe { packet_id, properties, filters: list }).encode(version, out);
        debug_assert!(is_written, "parsed filters fit into a packet");
        self.open.push(Open { packet_id, request: Request::Subscribe(filters), since: now });
    }

    pub(crate) fn unsubscribe(&mut self, now: Time, version: Version, filters: &[String], out: &mut Vec<u8>) {
        for filters in filters.chunks(FILTERS_MAX) {
            self.unsubscribe_at_once(now, version, filters.to_vec(), out);
        }
    }

    /// Ends all these subscriptions with one packet.
    pub(crate) fn unsubscribe_at_once(
        &mut self,
        now: Time,
        version: Version,
        filters: Vec<String>,
        out: &mut Vec<u8>,
    ) {
        let packet_id = self.next_id();
        let mut buf = UnsubscribeFiltersBuf::default();
        for filter in &filters {
            buf.push(filter);
        }
        let (properties, list) = (Properties::EMPTY, buf.as_filters());
        let is_written =
            Packet::Unsubscribe(Unsubscribe { packet_id, properties, filters: list }).encode(version, out);
        debug_assert!(is_written, "parsed filters fit into a packet");
        self.open.push(Open { packet_id, request: Request::Unsubscribe(filters), since: now });
    }

    /// Handles a SUBACK. Returns `None` when the request is repeated with another Packet Identifier.
    pub(crate) fn subscribed(
        &mut self,
        now: Time,
        version: Version,
        ack: &SubAck<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Vec<(String, ReasonCode)>>, CloseReason> {
        let mismatch = CloseReason::AnswerMismatch(PacketType::SubAck);
        let filters = match self.take(ack.packet_id) {
            Some(Request::Subscribe(filters)) if filters.len() == ack.reasons.len() => filters,
            _ => return Err(mismatch),
        };
        let in_use = ReasonCode::PacketIdentifierInUse.as_u8();
        if ack.reasons.contains(&in_use) && self.retries < RETRIES_MAX {
            self.retries += 1;
            self.subscribe_at_once(now, version, filters, out);
            return Ok(None);
        }
        self.retries = 0;
        let answers = filters.into_iter().zip(ack.reasons).map(|((filter, _), byte)| (filter, reason(byte)));
        Ok(Some(answers.collect()))
    }

    /// Handles an UNSUBACK. Before 5.0 it has no Reason Codes.
    pub(crate) fn unsubscribed(
        &mut self,
        ack: &SubAck<'_>,
    ) -> Result<Vec<(String, ReasonCode)>, CloseReason> {
        match self.take(ack.packet_id) {
            Some(Request::Unsubscribe(filters)) => {
                let reason = |at: usize| ack.reasons.get(at).map_or(ReasonCode::Success, reason);
                let answers = filters.into_iter().enumerate();
                Ok(answers.map(|(at, filter)| (filter, reason(at))).collect())
            }
            _ => Err(CloseReason::AnswerMismatch(PacketType::UnsubAck)),
        }
    }

    /// Returns the time at which the oldest request must have its answer.
    pub(crate) fn timeout(&self) -> Option<Time> {
        self.open.first().map(|open| open.since.after(ANSWER_MAX))
    }

    /// Gives the server more time, because nothing was read for that time.
    pub(crate) fn extend(&mut self, by: Duration) {
        for open in &mut self.open {
            open.since = open.since.after(by);
        }
    }

    fn take(&mut self, packet_id: PacketId) -> Option<Request> {
        let at = self.open.iter().position(|open| open.packet_id == packet_id)?;
        Some(self.open.remove(at).request)
    }

    fn next_id(&mut self) -> PacketId {
        loop {
            let id = PacketId::new(u16::MAX - self.used);
            self.used = (self.used + 1) % u16::MAX;
            if let Some(id) = id.filter(|id| self.open.iter().all(|open| open.packet_id != *id)) {
                return id;
            }
        }
    }
}

fn reason(byte: &u8) -> ReasonCode {
    ReasonCode::try_from(*byte).unwrap_or(ReasonCode::UnspecifiedError)
}
