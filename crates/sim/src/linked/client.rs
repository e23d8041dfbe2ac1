//! Publishers and subscribers with durable sessions. They repeat what is not acknowledged.

use std::collections::{BTreeSet, VecDeque};

use mqtt::{QoS, ReasonCode, Version};
use random::Random;
use testkit::Endpoint;
use testkit::packets::{Message, Sent, durable, message, pubcomp, pubrec, pubrel, subscribe, unsubscribe};

use super::oracle::Oracle;
use crate::net::Link;
use crate::report::Report;

const TOPICS: [&str; 5] = ["t/0", "t/1", "t/2", "t/2/x", "t/3"];
const FILTERS: [&str; 6] = ["t/0", "t/1", "t/+", "t/#", "t/2/#", "t/3"];
/// Group with one member over all clusters.
pub const GROUP: &str = "$share/linked:g/t/#";
/// Maximum number of messages of a publisher without an acknowledgement.
const WINDOW: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaits {
    Ack,
    Rec,
    Comp,
}

enum Kind {
    Publisher {
        next_id: u16,
        /// Packet Identifier, number, message, and the packet that is awaited.
        open: VecDeque<(u16, usize, Message, Awaits)>,
        sent: usize,
    },
    Subscriber {
        /// True if it has the subscription of a group, and no other.
        is_member: bool,
        /// QoS 2 Packet Identifiers that were received and not released.
        received: BTreeSet<u16>,
        filters: BTreeSet<&'static str>,
        /// Request without an answer: a filter that is subscribed or not.
        asked: Option<(&'static str, bool)>,
    },
}

pub struct Client {
    pub number: usize,
    pub node: usize,
    kind: Kind,
    pub connection: Option<(Link, Endpoint)>,
    is_accepted: bool,
}

/// Next step of a client.
pub enum Act {
    Connect,
    Send(Vec<u8>),
}

impl Client {
    pub fn publisher(number: usize, node: usize) -> Self {
        let kind = Kind::Publisher { next_id: 0, open: VecDeque::new(), sent: 0 };
        Self { number, node, kind, connection: None, is_accepted: false }
    }

    pub fn subscriber(number: usize, node: usize) -> Self {
        Self::with_subscriptions(number, node, false)
    }

    /// A member of the group.
    pub fn member(number: usize, node: usize) -> Self {
        Self::with_subscriptions(number, node, true)
    }

    fn with_subscriptions(number: usize, node: usize, is_member: bool) -> Self {
        let (received, filters) = Default::default();
        let kind = Kind::Subscriber { is_member, received, filters, asked: None };
        Self { number, node, kind, connection: None, is_accepted: false }
    }

    pub fn is_subscriber(&self) -> bool {
        matches!(self.kind, Kind::Subscriber { .. })
    }

    /// Filters with SUBACK.
    pub fn filters(&self) -> impl Iterator<Item = &'static str> + '_ {
        let filters = match &self.kind {
            Kind::Subscriber { filters, .. } => Some(filters),
            Kind::Publisher { .. } => None,
        };
        filters.into_iter().flatten().copied()
    }

    /// Number of messages that are not acknowledged.
    pub fn open(&self) -> usize {
        match &self.kind {
            Kind::Publisher { open, .. } => open.len(),
            Kind::Subscriber { asked, .. } => usize::from(asked.is_some()),
        }
    }

    /// Handles a new connection. Returns CONNECT.
    pub fn connected(&mut self, link: Link) -> Vec<u8> {
        let mut end = Endpoint::new(Version::V5);
        let mut bytes = Vec::new();
        let connect = durable(Version::V5, &format!("client-{}", self.number)).expiry(crate::client::LONG);
        end.write(&connect.into(), &mut bytes);
        self.connection = Some((link, end));
        self.is_accepted = false;
        bytes
    }

    pub fn lost(&mut self, link: Link) {
        self.connection.take_if(|(of, _)| *of == link);
    }

    /// Takes a step of its own. `is_ending`: nothing new begins.
    pub fn act(
        &mut self,
        random: &mut Random,
        report: &mut Report,
        oracle: &mut Oracle,
        is_ending: bool,
    ) -> Option<Act> {
        let Some((_, end)) = &mut self.connection else { return Some(Act::Connect) };
        if !self.is_accepted || is_ending {
            return None;
        }
        let mut bytes = Vec::new();
        match &mut self.kind {
            Kind::Publisher { next_id, open, sent } => {
                if open.len() >= WINDOW || *sent > 400 {
                    return None;
                }
                *sent += 1;
                *next_id = *next_id % 60_000 + 1;
                let topic = *random.pick(&TOPICS);
                let qos = if random.percent(50) { QoS::AtLeastOnce } else { QoS::ExactlyOnce };
                let number = oracle.sends(self.number, self.node, topic, qos);
                let mut message = message(topic, number).qos(qos);
                message.packet_id = Some(*next_id);
                let awaits = if qos == QoS::ExactlyOnce { Awaits::Rec } else { Awaits::Ack };
                end.write(&message.clone().into(), &mut bytes);
                open.push_back((*next_id, number, message, awaits));
                report.linked_published += 1;
            }
            Kind::Subscriber { is_member: true, filters, asked, .. } => {
                if asked.is_some() || !filters.is_empty() {
                    return None;
                }
                end.write(&subscribe(1).to(GROUP, QoS::ExactlyOnce).into(), &mut bytes);
                *asked = Some((GROUP, true));
            }
            Kind::Subscriber { filters, asked, .. } => {
                if asked.is_some() || !(filters.len() < 2 || random.percent(8)) {
                    return None;
                }
                let filter = *random.pick(&FILTERS);
                let subscribes = !filters.contains(filter);
                if subscribes {
                    end.write(&subscribe(1).to(filter, QoS::ExactlyOnce).into(), &mut bytes);
                } else {
                    filters.remove(filter);
                    oracle.unsubscribes(report, self.number, filter);
                    end.write(&unsubscribe(1, &[filter]), &mut bytes);
                }
                *asked = Some((filter, subscribes));
            }
        }
        Some(Act::Send(bytes))
    }

    /// Handles received bytes. Returns the answers.
    pub fn reads(&mut self, report: &mut Report, oracle: &mut Oracle, link: Link, bytes: &[u8]) -> Vec<u8> {
        let Some((_, end)) = self.connection.as_mut().filter(|(of, _)| *of == link) else {
            return Vec::new();
        };
        end.read(bytes);
        let mut out = Vec::new();
        for packet in end.received() {
            match packet {
                Sent::ConnAck { reason: ReasonCode::Success, .. } => {
                    self.is_accepted = true;
                    repeat(&mut self.kind, end, &mut out);
                }
                Sent::Publish(message) => {
                    let Kind::Subscriber { is_member, received, .. } = &mut self.kind else {
                        panic!("a publisher gets a message")
                    };
                    let id = message.packet_id;
                    let is_new = message.qos < QoS::ExactlyOnce || received.insert(id.unwrap_or(0));
                    if is_new && *is_member {
                        oracle.arrives_in_group(report, self.number, &message.topic, &message.payload);
                    } else if is_new {
                        oracle.arrives(report, self.number, &message.topic, &message.payload);
                    }
                    match (message.qos, id) {
                        (QoS::AtLeastOnce, Some(id)) => end.write(&testkit::packets::puback(id), &mut out),
                        (QoS::ExactlyOnce, Some(id)) => end.write(&pubrec(id), &mut out),
                        _ => {}
                    }
                }
                Sent::PubRel(id, _) => {
                    if let Kind::Subscriber { received, .. } = &mut self.kind {
                        received.remove(&id);
                    }
                    end.write(&pubcomp(id), &mut out);
                }
                Sent::PubAck(id, reason) | Sent::PubRec(id, reason) | Sent::PubComp(id, reason) => {
                    assert!(
                        !reason.is_error() || reason == ReasonCode::PacketIdentifierNotFound,
                        "{packet:?}"
                    );
                    if let Kind::Publisher { open, .. } = &mut self.kind {
                        answered(open, (id, matches!(packet, Sent::PubRec(..))), oracle, end, &mut out);
                    }
                }
                Sent::SubAck(_, reasons) => {
                    assert!(!reasons[0].is_error(), "a subscription is refused: {reasons:?}");
                    if let Kind::Subscriber { filters, asked, .. } = &mut self.kind
                        && let Some((filter, true)) = asked.take()
                    {
                        filters.insert(filter);
                        oracle.granted(self.number, filter);
                    }
                }
                Sent::UnsubAck(..) => {
                    if let Kind::Subscriber { asked, .. } = &mut self.kind {
                        *asked = None;
                    }
                }
                _ => {}
            }
        }
        out
    }
}

/// Sends again what has no answer.
fn repeat(kind: &mut Kind, end: &mut Endpoint, out: &mut Vec<u8>) {
    match kind {
        Kind::Publisher { open, .. } => {
            for (id, _, message, awaits) in open {
                match awaits {
                    Awaits::Comp => end.write(&pubrel(*id), out),
                    Awaits::Ack | Awaits::Rec => {
                        message.dup = true;
                        end.write(&message.clone().into(), out);
                    }
                }
            }
        }
        Kind::Subscriber { asked: Some((filter, subscribes)), .. } => match subscribes {
            true => end.write(&subscribe(1).to(filter, QoS::ExactlyOnce).into(), out),
            false => end.write(&unsubscribe(1, &[*filter]), out),
        },
        Kind::Subscriber { .. } => {}
    }
}

fn answered(
    open: &mut VecDeque<(u16, usize, Message, Awaits)>,
    (id, is_received): (u16, bool),
    oracle: &mut Oracle,
    end: &mut Endpoint,
    out: &mut Vec<u8>,
) {
    let Some(at) = open.iter().position(|(of, ..)| *of == id) else { return };
    let (_, number, _, awaits) = &mut open[at];
    oracle.acknowledged(*number);
    if is_received && *awaits != Awaits::Ack {
        *awaits = Awaits::Comp;
        return end.write(&pubrel(id), out);
    }
    open.remove(at);
}
