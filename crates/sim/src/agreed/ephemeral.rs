//! Clients with ephemeral sessions: several devices use the same Client Identifiers, at any nodes. Others have one of
//! their own, and stay away for a while when they have lost their connection: nobody claims it meanwhile, so the end of
//! their node ends their session.
//!
//! The oracle: no two connections of one Client Identifier are served at the same time. The Will of each connection
//! that was served and lost comes exactly once. That of a connection that ended with DISCONNECT does not come.
//!
//! # What is excused
//! - A Will may come or not if the node was over before the client knew that it was served: it may have died with the
//!   Claim.
//! - It may also come after DISCONNECT if the node was over: it may have died with the DISCONNECT. The same
//!   holds if the node ended the connection before it read DISCONNECT, and before the client sent it, or while
//!   DISCONNECT had to wait. It waits for the answer to the Claim, if the client did not know that it was
//!   served, or for the lease, if the node had none. Meanwhile another connection may get the Client Identifier,
//!   or the time for the answer may pass.

use std::collections::BTreeMap;

use mqtt::{QoS, ReasonCode, Version};
use testkit::Endpoint;
use testkit::packets::{self, Sent};

use super::claims::Claims;
use super::messages::{MessageId, Messages};
use crate::context::Context;
use crate::net::Link;
use crate::schedule::{Micros, SECOND};

pub struct Devices {
    devices: Vec<Device>,
    /// Times at which connections were served for certain, by Client Identifier.
    served: BTreeMap<String, Vec<Served>>,
    /// CONNACK says nothing about whether the connection is served.
    overlaps: bool,
    /// Wills of connections whose clients did not know that they were served, and of those that sent DISCONNECT and saw
    /// the end.
    unserved: Vec<(Link, MessageId)>,
    left: Vec<Left>,
}

/// A connection that ended with DISCONNECT.
struct Left {
    link: Link,
    will: MessageId,
    /// The node may have let DISCONNECT wait, or have ended the connection before.
    waited: bool,
    /// The node has read DISCONNECT before it ended the connection.
    is_read: bool,
}

struct Device {
    /// The Client Identifier, which another device has, too.
    name: String,
    number: usize,
    connection: Option<Connection>,
    connections: u64,
    /// No other device has the Client Identifier.
    is_alone: bool,
    /// Time until which it does not connect.
    rests_until: Micros,
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
    published: Unacknowledged,
    /// Number of bytes that the device has sent.
    sent: u64,
    /// Time at which DISCONNECT was sent. Nothing follows it.
    left_at: Option<Micros>,
    /// The node has ended the connection before DISCONNECT was sent.
    was_over: bool,
    /// The node has read DISCONNECT before it ended the connection.
    is_left_read: bool,
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

/// PUBLISHes of a connection that are not acknowledged, with the times at which they were sent.
#[derive(Default)]
pub struct Unacknowledged(BTreeMap<u16, Micros>);

impl Unacknowledged {
    /// Notes a PUBLISH that is sent now. Returns its Packet Identifier; `None` if too many are not acknowledged.
    pub fn send(&mut self, now: Micros) -> Option<u16> {
        let id = (1..=UNACKNOWLEDGED_MAX).find(|id| !self.0.contains_key(id))?;
        self.0.insert(id, now);
        Some(id)
    }

    /// Notes an acknowledgement. Returns the time at which the PUBLISH was sent; `None` if there is none.
    pub fn acknowledged(&mut self, id: u16) -> Option<Micros> {
        self.0.remove(&id)
    }
}

/// Number of Client Identifiers that several devices have, and of devices with each.
const NAMES: usize = 2;
const OF_NAME: usize = 2;
/// Number of devices that have a Client Identifier of their own.
const ALONE: usize = 3;
/// Shortest and longest time for which such a device stays away after it has lost its connection. The end of its node
/// is known by then.
const AWAY: (Micros, Micros) = (6 * SECOND, 12 * SECOND);
/// Maximum number of PUBLISHes of a connection that are not acknowledged. A device goes on while its node stands still.
const UNACKNOWLEDGED_MAX: u16 = 100;
/// Topic of all Wills.
pub const WILLS: &str = "wills";
/// Number of the first device as a publisher.
const PUBLISHER: usize = 3000;

impl Devices {
    pub fn new(overlaps: bool) -> Self {
        let device = |number: usize| {
            let is_alone = number >= NAMES * OF_NAME;
            let name = if is_alone { number } else { number % NAMES };
            Device {
                name: format!("device-{name}"),
                number: PUBLISHER + number,
                connection: None,
                connections: 0,
                is_alone,
                rests_until: 0,
            }
        };
        Self {
            devices: (0..NAMES * OF_NAME + ALONE).map(device).collect(),
            served: BTreeMap::new(),
            overlaps,
            unserved: Vec::new(),
            left: Vec::new(),
        }
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

    /// Returns whether a device without a connection wants one.
    pub fn wants_connection(&self, now: Micros, device: usize) -> bool {
        self.devices[device].rests_until <= now
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
            published: Unacknowledged::default(),
            sent: bytes.len() as u64,
            left_at: None,
            was_over: false,
            is_left_read: false,
            is_closed: false,
        });
        bytes
    }

    /// Notes that a node has ended a connection, and how many bytes it had taken from it.
    pub fn ended(&mut self, link: Link, taken: u64) {
        let mut connections = self.devices.iter_mut().filter_map(|device| device.connection.as_mut());
        if let Some(connection) = connections.find(|connection| connection.link == link) {
            connection.was_over = connection.left_at.is_none();
            connection.is_left_read = connection.left_at.is_some() && taken >= connection.sent;
        }
    }

    /// Notes that a connection is gone. Its Will is due if it was served for certain and has not left. Otherwise the
    /// node may have died with it. `last_frozen` is the last time at which its node had no lease.
    pub fn disconnected(
        &mut self,
        cx: &mut Context,
        (messages, claims): (&mut Messages, &mut Claims),
        device: usize,
        (is_end, last_frozen): (bool, Option<Micros>),
    ) {
        let device = &mut self.devices[device];
        let Some(connection) = device.connection.take() else { return };
        if device.is_alone && connection.left_at.is_none() {
            device.rests_until = cx.now() + cx.between(AWAY.0, AWAY.1);
        }
        let Connection { link, will, served, left_at, was_over, is_left_read, .. } = connection;
        match () {
            () if is_end && connection.left_at.is_some() && !connection.is_closed => {
                claims.left(cx.now(), link);
                let waited = was_over || served.is_none() || last_frozen >= left_at;
                self.left.push(Left { link, will, waited, is_read: is_left_read });
            }
            () if connection.left_at.is_some() => {}
            () if served.is_some() => {
                cx.report.agreed_wills += 1;
                messages.acknowledged(will, cx.now());
            }
            () if connection.is_open => self.unserved.push((link, will)),
            () => {}
        }
    }

    /// Notes at the end which Wills are due although the clients did not know that they were served: their nodes have
    /// not ended since, so a shard or the node has published them.
    pub fn note_unserved(&mut self, cx: &mut Context, messages: &mut Messages, claims: &Claims) {
        for (link, will) in std::mem::take(&mut self.unserved) {
            if claims.has_node_ended(link) {
                cx.report.agreed_excused_wills_unserved += 1;
            } else {
                cx.report.agreed_wills_unserved += 1;
                messages.acknowledged(will, cx.now());
            }
        }
    }

    /// Checks that no Will has come of a connection that ended with DISCONNECT [MQTT-3.14.4-3].
    pub fn check_left(&self, cx: &mut Context, claims: &Claims, has_come: impl Fn(MessageId) -> bool) {
        for Left { link, will, waited, is_read } in &self.left {
            if claims.has_node_ended(*link) {
                cx.report.agreed_excused_wills_left += 1;
            } else if *waited && !is_read {
                cx.report.agreed_excused_wills_unread += 1;
            } else {
                cx.report.agreed_check_wills_withdrawn += 1;
                assert!(!has_come(*will), "the Will {will:?} has come although its client sent DISCONNECT");
            }
        }
    }

    /// Lets a device do something. Returns the bytes to send.
    pub fn act(&mut self, cx: &mut Context, claims: &mut Claims, device: usize) -> (Vec<u8>, Fate) {
        let mut bytes = Vec::new();
        let Device { connection: Some(connection), number, name, .. } = &mut self.devices[device] else {
            return (bytes, Fate::Keep);
        };
        if !connection.is_open || connection.left_at.is_some() {
            return (bytes, Fate::Keep);
        }
        match cx.random.below(100) {
            0..2 => return (bytes, Fate::Lose),
            2..4 => {
                cx.log(|| format!("{number} of {name} leaves {}", connection.link));
                connection.left_at = Some(cx.now());
                if claims.is_answered(connection.link) {
                    claims.leave(cx.now(), connection.link, None);
                }
                connection.endpoint.write(&packets::goodbye(), &mut bytes);
            }
            _ => {
                if let Some(id) = connection.published.send(cx.now()) {
                    let message = packets::message("devices", "here").qos1(id);
                    connection.endpoint.write(&Sent::Publish(Box::new(message)), &mut bytes);
                }
            }
        }
        connection.sent += bytes.len() as u64;
        (bytes, Fate::Keep)
    }

    /// Handles received bytes.
    pub fn read(&mut self, cx: &mut Context, claims: &mut Claims, device: usize, bytes: &[u8]) {
        let Self { devices, served, overlaps, .. } = self;
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
                Sent::PubAck(id, reason) => {
                    let sent = connection.published.acknowledged(id);
                    let Some(until) = sent.filter(|_| connection.is_open) else {
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
    use random::Random;

    use super::*;
    use crate::report::Report;
    use crate::schedule::Schedule;
    use crate::trace::Trace;

    const LINK: Link = 1;

    /// Time at which the node ends the connection of a device.
    #[derive(Clone, Copy)]
    enum End {
        BeforeDisconnect,
        /// Later, with this number of bytes that it has not read.
        Unread(u64),
    }

    /// A device that has sent DISCONNECT, and sees the end of its connection. Returns the report of the check of its
    /// Will.
    fn check_left(served: Option<Micros>, end: End, last_frozen: Option<Micros>, has_come: bool) -> Report {
        let (random, schedule) = (Random::new(1), Schedule::default());
        let (report, trace) = (Report::default(), Trace::default());
        let mut cx = Context { random, schedule, report, trace, has_slow_reads: false };
        let (mut messages, mut claims) = (Messages::default(), Claims::new(true));
        let mut devices = Devices::new(true);
        devices.connect(&mut cx, (&mut messages, &mut claims), 0, LINK);
        let connection = devices.devices[0].connection.as_mut().expect("connected");
        (connection.is_open, connection.served) = (true, served);
        let sent = |devices: &Devices| {
            devices.devices[0].connection.as_ref().map_or(0, |connection| connection.sent)
        };
        if matches!(end, End::BeforeDisconnect) {
            devices.ended(LINK, sent(&devices));
        }
        while let Some(Connection { left_at: None, .. }) = devices.devices[0].connection {
            devices.act(&mut cx, &mut claims, 0);
        }
        if let End::Unread(unread) = end {
            devices.ended(LINK, sent(&devices) - unread);
        }
        devices.disconnected(&mut cx, (&mut messages, &mut claims), 0, (true, last_frozen));
        devices.check_left(&mut cx, &claims, |_| has_come);
        cx.report
    }

    #[test]
    fn a_will_may_come_if_the_node_ends_the_connection_while_disconnect_waits() {
        for (served, last_frozen) in [(None, None), (Some(0), Some(0))] {
            let report = check_left(served, End::Unread(1), last_frozen, true);
            assert_eq!((report.agreed_excused_wills_unread, report.agreed_check_wills_withdrawn), (1, 0));
        }
    }

    #[test]
    fn a_will_may_come_if_the_node_ends_the_connection_before_disconnect() {
        let report = check_left(Some(0), End::BeforeDisconnect, None, true);
        assert_eq!((report.agreed_excused_wills_unread, report.agreed_check_wills_withdrawn), (1, 0));
    }

    #[test]
    fn a_will_does_not_come_if_the_node_has_read_disconnect_or_did_not_let_it_wait() {
        for (served, unread, last_frozen) in
            [(None, 0, None), (Some(0), 0, Some(0)), (Some(0), 0, None), (Some(0), 1, None)]
        {
            let report = check_left(served, End::Unread(unread), last_frozen, false);
            assert_eq!((report.agreed_excused_wills_unread, report.agreed_check_wills_withdrawn), (0, 1));
        }
    }

    #[test]
    #[should_panic(expected = "has come although its client sent DISCONNECT")]
    fn a_will_of_a_client_whose_disconnect_was_read_is_noticed() {
        check_left(None, End::Unread(0), None, true);
    }

    #[test]
    #[should_panic(expected = "were served at once")]
    fn two_connections_that_take_turns_are_noticed() {
        let mut all = Vec::new();
        note_served(&mut all, Served { link: 1, from: 10, until: 20 });
        note_served(&mut all, Served { link: 2, from: 30, until: 40 });
        note_served(&mut all, Served { link: 1, from: 10, until: 41 });
    }
}
