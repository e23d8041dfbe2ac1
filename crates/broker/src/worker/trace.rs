//! Trace events. While no trace runs, each costs one check of an empty field.

use std::fmt::Write as _;
use std::sync::Arc;

use mqtt::{Packet, ReasonCode};

use super::monitor::Monitor;
use crate::admin::{Direction, EventContext, TraceEvent, TraceKind};
use crate::connection::Connection;
use crate::ids::{Time, WorkerId};
use crate::message::MessageView;

/// A PUBLISH as traces show it.
pub(super) struct TracedPublish<'a> {
    pub topic: &'a str,
    pub payload: &'a [u8],
    pub qos: mqtt::QoS,
    pub retain: bool,
    pub dup: bool,
    pub packet_id: Option<u16>,
}

impl<'a> TracedPublish<'a> {
    pub fn of(view: &MessageView<'a>) -> Self {
        let MessageView { topic, payload, qos, retain, .. } = *view;
        Self { topic, payload, qos, retain, dup: false, packet_id: None }
    }
}

impl Monitor {
    /// Returns whether any trace is running.
    #[inline]
    pub(super) fn is_traced(&self) -> bool {
        self.tracing.is_some()
    }

    #[cold]
    pub(super) fn trace_publish(
        &mut self,
        now: Time,
        connection: &Connection,
        direction: Direction,
        publish: &TracedPublish<'_>,
    ) {
        let Some(tracing) = &mut self.tracing else { return };
        let about = about(connection, Some(publish.topic));
        tracing.note(now, about, |payload_max| {
            publish_event(base(now, connection), direction, publish, payload_max)
        });
    }

    /// Traces a message that an operator publishes. Topic traces treat it like a message of a client.
    #[cold]
    pub(super) fn trace_operator(&mut self, now: Time, view: &MessageView<'_>) {
        let (worker, nobody) = (self.worker, Arc::<str>::from(""));
        let Some(tracing) = &mut self.tracing else { return };
        let about = EventContext { client_id: &nobody, address: None, topic: Some(view.topic) };
        let event = || TraceEvent { client_id: nobody.clone(), ..blank(now, worker) };
        tracing.note(now, about, |payload_max| {
            publish_event(event(), Direction::In, &TracedPublish::of(view), payload_max)
        });
    }

    #[cold]
    pub(super) fn trace_dropped(
        &mut self,
        now: Time,
        connection: &Connection,
        view: &MessageView<'_>,
        why: &str,
    ) {
        let Some(tracing) = &mut self.tracing else { return };
        tracing.note(now, about(connection, Some(view.topic)), |payload_max| {
            let event =
                publish_event(base(now, connection), Direction::Out, &TracedPublish::of(view), payload_max);
            let detail = format!("not delivered: {why} ({})", event.detail);
            TraceEvent { kind: TraceKind::Dropped, detail, ..event }
        });
    }

    /// Traces a received packet other than PUBLISH.
    #[cold]
    pub(super) fn trace_packet_in(&mut self, now: Time, connection: &Connection, packet: &Packet<'_>) {
        let kind = match packet {
            Packet::Connect(_) => TraceKind::Connect,
            Packet::Subscribe(_) => TraceKind::Subscribe,
            Packet::Unsubscribe(_) => TraceKind::Unsubscribe,
            Packet::Disconnect(_) => TraceKind::Disconnect,
            Packet::Publish(_) => return,
            _ => TraceKind::Packet(Direction::In),
        };
        // At CONNECT the connection does not know its Client Identifier yet.
        let client_id = match packet {
            Packet::Connect(connect) => Some(connect.client_id),
            _ => None,
        };
        self.trace_packet(now, connection, kind, packet, client_id);
    }

    /// Traces a sent packet other than PUBLISH.
    #[cold]
    pub(super) fn trace_packet_out(&mut self, now: Time, connection: &Connection, packet: &Packet<'_>) {
        let kind = match packet {
            Packet::ConnAck(_) => TraceKind::ConnAck,
            Packet::Publish(_) => return,
            _ => TraceKind::Packet(Direction::Out),
        };
        self.trace_packet(now, connection, kind, packet, None);
    }

    fn trace_packet(
        &mut self,
        now: Time,
        connection: &Connection,
        kind: TraceKind,
        packet: &Packet<'_>,
        client_id: Option<&str>,
    ) {
        let Some(tracing) = &mut self.tracing else { return };
        let client_id = client_id.map_or_else(|| connection.client_id.clone(), Into::into);
        let about = EventContext { client_id: &client_id, ..about(connection, None) };
        tracing.note(now, about, |_| TraceEvent {
            kind,
            client_id: client_id.clone(),
            packet_id: packet_id(packet),
            reason_code: reason(packet).map(ReasonCode::as_u8),
            detail: detail(packet),
            ..base(now, connection)
        });
    }

    #[cold]
    pub(super) fn trace_end(&mut self, now: Time, connection: &Connection, why: &str) {
        let Some(tracing) = &mut self.tracing else { return };
        tracing.note(now, about(connection, None), |_| TraceEvent {
            kind: TraceKind::Disconnect,
            detail: format!("connection ends: {why}"),
            ..base(now, connection)
        });
    }
}

fn about<'a>(connection: &'a Connection, topic: Option<&'a str>) -> EventContext<'a> {
    EventContext { client_id: &connection.client_id, address: connection.peer(), topic }
}

fn base(now: Time, connection: &Connection) -> TraceEvent {
    TraceEvent {
        client_id: connection.client_id.clone(),
        address: connection.peer(),
        ..blank(now, connection.id.worker)
    }
}

fn blank(at: Time, worker: WorkerId) -> TraceEvent {
    TraceEvent {
        at,
        kind: TraceKind::Packet(Direction::In),
        client_id: "".into(),
        address: None,
        worker,
        topic: None,
        qos: None,
        retain: false,
        packet_id: None,
        payload_bytes: None,
        payload: Vec::new(),
        reason_code: None,
        detail: String::new(),
    }
}

fn publish_event(
    event: TraceEvent,
    direction: Direction,
    publish: &TracedPublish<'_>,
    payload_max: usize,
) -> TraceEvent {
    let TracedPublish { topic, payload, qos, retain, dup, packet_id } = publish;
    let mut detail = format!("PUBLISH {topic} QoS {}, {} bytes", *qos as u8, payload.len());
    for (flag, name) in [(*retain, ", RETAIN"), (*dup, ", DUP")] {
        detail.push_str(if flag { name } else { "" });
    }
    if let Some(id) = packet_id {
        let _ = write!(detail, ", Packet Identifier {id}");
    }
    TraceEvent {
        kind: TraceKind::Publish(direction),
        topic: Some((*topic).into()),
        qos: Some(*qos),
        retain: *retain,
        packet_id: *packet_id,
        payload_bytes: Some(payload.len()),
        payload: payload[..payload.len().min(payload_max)].to_vec(),
        detail,
        ..event
    }
}

fn packet_id(packet: &Packet<'_>) -> Option<u16> {
    let id = match packet {
        Packet::PubAck(ack) | Packet::PubRec(ack) | Packet::PubRel(ack) | Packet::PubComp(ack) => {
            ack.packet_id
        }
        Packet::Subscribe(subscribe) => subscribe.packet_id,
        Packet::Unsubscribe(unsubscribe) => unsubscribe.packet_id,
        Packet::SubAck(ack) | Packet::UnsubAck(ack) => ack.packet_id,
        _ => return None,
    };
    Some(id.get())
}

fn reason(packet: &Packet<'_>) -> Option<ReasonCode> {
    match packet {
        Packet::ConnAck(ack) => Some(ack.reason),
        Packet::PubAck(ack) | Packet::PubRec(ack) | Packet::PubRel(ack) | Packet::PubComp(ack) => {
            Some(ack.reason)
        }
        Packet::Disconnect(disconnect) => Some(disconnect.reason),
        Packet::Auth(auth) => Some(auth.reason),
        _ => None,
    }
}

/// Maximum number of filters that are shown of one SUBSCRIBE or UNSUBSCRIBE.
const FILTERS_SHOWN: usize = 20;

fn detail(packet: &Packet<'_>) -> String {
    let mut text = packet.packet_type().to_string();
    // Writing to a String does not fail.
    let _ = match packet {
        Packet::Connect(connect) => {
            let clean = if connect.clean_start { "Clean Start" } else { "session resumed if there is one" };
            let _ = write!(text, " MQTT {}, {clean}, Keep Alive {} s", connect.version, connect.keep_alive);
            let _ = write!(text, ", Session Expiry {} s", connect.session_expiry());
            // The password is never shown.
            match connect.username {
                Some(username) => write!(text, ", user {username}"),
                None => Ok(()),
            }
        }
        Packet::ConnAck(ack) => write!(text, " {}, session present: {}", ack.reason, ack.session_present),
        Packet::Subscribe(subscribe) => {
            for (filter, options) in subscribe.filters.iter().take(FILTERS_SHOWN) {
                let _ = write!(text, " {filter} (QoS {})", options.qos as u8);
            }
            more(&mut text, subscribe.filters.iter().count())
        }
        Packet::Unsubscribe(unsubscribe) => {
            for filter in unsubscribe.filters.iter().take(FILTERS_SHOWN) {
                let _ = write!(text, " {filter}");
            }
            more(&mut text, unsubscribe.filters.iter().count())
        }
        Packet::SubAck(ack) | Packet::UnsubAck(ack) => {
            for reason in ack.reasons.iter().take(FILTERS_SHOWN) {
                let _ = write!(text, " 0x{reason:02x}");
            }
            more(&mut text, ack.reasons.len())
        }
        packet => match reason(packet) {
            Some(reason) => write!(text, " {reason}"),
            None => Ok(()),
        },
    };
    text
}

fn more(text: &mut String, count: usize) -> std::fmt::Result {
    match count.checked_sub(FILTERS_SHOWN) {
        Some(rest) if rest > 0 => write!(text, " and {rest} more"),
        _ => Ok(()),
    }
}
