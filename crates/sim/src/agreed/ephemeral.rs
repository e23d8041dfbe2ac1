//! Clients with ephemeral sessions: several devices use the same Client Identifiers, at any nodes.
//!
//! The oracle: no two connections of one Client Identifier are served at the same time, and the Will of each connection
//! that was served and lost comes exactly once.

use std::collections::BTreeMap;

use mqtt::{QoS, ReasonCode, Version};
use testkit::Endpoint;
use testkit::packets::{self, Sent};

use super::claims::Claims;
use super::messages::{MessageId, Messages};
use crate::context::Context;
use crate::net::Link;
use crate::schedule::Micros;

pub struct Devices {
    devices: Vec<Device>,
    /// Times at which connections were served for certain, by Client Identifier.
    served: BTreeMap<String, Vec<Served>>,
    /// CONNACK says nothing about whether the connection is served.
    overlaps: bool,
}

struct Device {
    /// The Client Identifier, which another device has, too.
    name: String,
    number: usize,
    connection: Option<Connection>,
    connections: u64,
}

struct Connection {
    link: Link,
    endpoint: Endpoint,
    /// The Will.
    will: MessageId,
    /// CONNACK has arrived.
    is_open: bool,
    /// Time from which the connection is served for certain: that of CONNACK, or of the first acknowledgement.
    served: Option<Micros>,
    /// Time at which the PUBLISH was sent that is not acknowledged.
    published: Option<Micros>,
    /// DISCONNECT was sent.
    has_left: bool,
    /// The node has refused the connection, or sent DISCONNECT.
    is_closed: bool,
}

/// A connection was served at the node from `from` to `until` at least: it got an answer before that says so, and
/// PUBACK for a message that was sent later.
#[derive(Clone, Copy, Debug)]
struct Served {
    link: Link,
    from: Micros,
    until: Micros,
}

/// Fate of the connection of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Keep,
    /// The device goes away without DISCONNECT.
    Lose,
}

/// Number of Client Identifiers, and of devices with each.
const NAMES: usize = 2;
const OF_NAME: usize = 2;
/// Topic of all Wills.
pub const WILLS: &str = "wills";
/// Number of the first device as a publisher.
const PUBLISHER: usize = 3000;

impl Devices {
    pub fn new(overlaps: bool) -> Self {
        let device = |number: usize| Device {
            name: format!("device-{}", number % NAMES),
            number: PUBLISHER + number,
            connection: None,
            connections: 0,
        };
        Self { devices: (0..NAMES * OF_NAME).map(device).collect(), served: BTreeMap::new(), overlaps }
    }

    pub fn len(&self) -> usize {
        self.devices.len()
    }

    pub fn link(&self, device: usize) -> Option<Link> {
        self.devices[device].connection.as_ref().map(|connection| connection.link)
    }

    /// Device of a connection.
    pub fn of_link(&self, link: Link) -> Option<usize> {
        (0..self.devices.len()).find(|device| self.link(*device) == Some(link))
    }

    /// Begins a connection. Returns the bytes to send.
    pub fn connect(
        &mut self,
        cx: &mut Context,
        (messages, claims): (&mut Messages, &mut Claims),
        device: usize,
        link: Link,
    ) -> Vec<u8> {
        let device = &mut self.devices[device];
        device.connections += 1;
        claims.begin(cx.now(), link, &device.name, true, 0);
        let will = (device.number, device.connections);
        messages.sent(will, (WILLS, QoS::ExactlyOnce), cx.now());
        let message = packets::message(WILLS, format!("{} {} .", will.0, will.1)).qos(QoS::ExactlyOnce);
        let connect = packets::v5(&device.name).will(message);
        let mut endpoint = Endpoint::new(Version::V5);
        let mut bytes = Vec::new();
        endpoint.write(&Sent::Connect(Box::new(connect)), &mut bytes);
        device.connection = Some(Connection {
            link,
            endpoint,
            will,
            is_open: false,
            served: None,
            published: None,
            has_left: false,
            is_closed: false,
        });
        bytes
    }

    /// Notes that a connection is gone. Its Will is due if it was served for certain and has not left. Otherwise the
    /// node may have died with it.
    pub fn disconnected(
        &mut self,
        cx: &mut Context,
        (messages, claims): (&mut Messages, &mut Claims),
        device: usize,
        is_end: bool,
    ) {
        let Some(connection) = self.devices[device].connection.take() else { return };
        if is_end && connection.has_left && !connection.is_closed {
            claims.left(cx.now(), connection.link);
        }
        if connection.served.is_some() && !connection.has_left {
            cx.report.agreed_wills += 1;
            messages.acknowledged(connection.will, cx.now());
        }
    }

    /// Lets a device do something. Returns the bytes to send.
    pub fn act(&mut self, cx: &mut Context, claims: &mut Claims, device: usize) -> (Vec<u8>, Fate) {
        let mut bytes = Vec::new();
        let Some(connection) = &mut self.devices[device].connection else { return (bytes, Fate::Keep) };
        if !connection.is_open || connection.has_left {
            return (bytes, Fate::Keep);
        }
        match cx.random.below(100) {
            0..2 => return (bytes, Fate::Lose),
            2..4 => {
                connection.has_left = true;
                if claims.is_answered(connection.link) {
                    claims.leave(cx.now(), connection.link, None);
                }
                connection.endpoint.write(&packets::goodbye(), &mut bytes);
            }
            _ if connection.published.is_none() => {
                connection.published = Some(cx.now());
                let message = packets::message("devices", "here").qos1(1);
                connection.endpoint.write(&Sent::Publish(Box::new(message)), &mut bytes);
            }
            _ => {}
        }
        (bytes, Fate::Keep)
    }

    /// Handles received bytes.
    pub fn read(&mut self, cx: &mut Context, claims: &mut Claims, device: usize, bytes: &[u8]) {
        let Self { devices, served, overlaps } = self;
        let device = &mut devices[device];
        let Some(connection) = &mut device.connection else { return };
        connection.endpoint.read(bytes);
        while let Some(packet) = connection.endpoint.pop() {
            cx.log(|| format!("{} of {} gets {}", device.number, device.name, crate::scene::brief(&packet)));
            match packet {
                Sent::ConnAck { session_present, reason: ReasonCode::Success } => {
                    assert!(!session_present, "an ephemeral session is not resumed");
                    connection.is_open = true;
                    claims.connected(cx.now(), connection.link, session_present);
                    connection.served = Some(cx.now()).filter(|_| !*overlaps);
                }
                Sent::ConnAck { reason, .. } => {
                    cx.report.agreed_devices_refused += 1;
                    connection.is_closed = true;
                    assert!(may_refuse(reason), "{}: {reason}", device.name);
                }
                Sent::PubAck(1, reason) => {
                    let Some(until) = connection.published.take().filter(|_| connection.is_open) else {
                        panic!("{}: an acknowledgement of nothing", device.name)
                    };
                    if reason.is_error() {
                        continue;
                    }
                    let now = cx.now();
                    claims.served(now, connection.link, until);
                    let from = *connection.served.get_or_insert(now);
                    if from <= until {
                        let now = Served { link: connection.link, from, until };
                        note_served(served.entry(device.name.clone()).or_default(), now);
                        cx.report.agreed_devices_served += 1;
                    }
                }
                Sent::Disconnect { reason, .. } => {
                    connection.is_closed = true;
                    cx.report.agreed_devices_taken_over += u64::from(reason == ReasonCode::SessionTakenOver);
                }
                other => panic!("{}: {other:?}", device.name),
            }
        }
    }
}

/// Returns whether a node may refuse a client for this reason: its Claim is overtaken, is not answered in time, or
/// cannot be answered now.
pub fn may_refuse(reason: ReasonCode) -> bool {
    matches!(
        reason,
        ReasonCode::SessionTakenOver
            | ReasonCode::UnspecifiedError
            | ReasonCode::ServerUnavailable
            | ReasonCode::ServerBusy
    )
}

/// Adds a time at which a connection was served. No other one was, at any of its times.
fn note_served(all: &mut Vec<Served>, now: Served) {
    if let Some(other) =
        all.iter().find(|other| other.link != now.link && other.from <= now.until && now.from <= other.until)
    {
        panic!("two connections of one Client Identifier were served at once: {other:?}, {now:?}");
    }
    match all.iter_mut().find(|known| known.link == now.link) {
        Some(known) => known.until = now.until,
        None => all.push(now),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "were served at once")]
    fn two_connections_that_take_turns_are_noticed() {
        let mut all = Vec::new();
        note_served(&mut all, Served { link: 1, from: 10, until: 20 });
        note_served(&mut all, Served { link: 2, from: 30, until: 40 });
        note_served(&mut all, Served { link: 1, from: 10, until: 41 });
    }
}
