//! Clients with sessions of all kinds: several use the same Client Identifier, at any nodes, with and without Clean
//! Start. [`Claims`] is their oracle.

use mqtt::{ReasonCode, Version};
use testkit::Endpoint;
use testkit::packets::{self, Sent};

use super::claims::Claims;
use super::ephemeral::{Fate, Unacknowledged, may_refuse};
use crate::context::Context;
use crate::net::Link;
use crate::schedule::{MILLI, Micros, SECOND};

pub struct Contenders(Vec<Contender>);

struct Contender {
    /// The Client Identifier, which another contender has, too.
    name: String,
    habits: Habits,
    connection: Option<Connection>,
    /// Time until which it does not connect.
    rests_until: Micros,
}

struct Connection {
    link: Link,
    endpoint: Endpoint,
    expiry_s: u32,
    /// CONNACK has arrived.
    is_open: bool,
    published: Unacknowledged,
    /// DISCONNECT was sent.
    has_left: bool,
    /// The node has sent DISCONNECT.
    is_closed: bool,
}

/// Values in the CONNECTs for a Client Identifier.
#[derive(Clone, Copy)]
struct Habits {
    clean_starts_percent: usize,
    expiries: &'static [u32],
}

/// Habits by Client Identifier. With the second, no Claim ends a session: it cannot be gone because a Claim took effect
/// that was not answered.
const HABITS: [Habits; 2] = [
    Habits { clean_starts_percent: 40, expiries: &[0, 1, 3, packets::DAY, packets::DAY] },
    Habits { clean_starts_percent: 0, expiries: &[1, 3, packets::DAY, packets::DAY] },
];
/// Number of contenders for each Client Identifier.
const OF_NAME: usize = 2;
/// Session Expiry Intervals of DISCONNECT.
const LAST_EXPIRIES: [Option<u32>; 4] = [None, Some(0), Some(2), Some(packets::DAY)];

impl Contenders {
    pub fn new() -> Self {
        let contender = |number: usize| Contender {
            name: format!("contender-{}", number % HABITS.len()),
            habits: HABITS[number % HABITS.len()],
            connection: None,
            rests_until: 0,
        };
        Self((0..HABITS.len() * OF_NAME).map(contender).collect())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn link(&self, contender: usize) -> Option<Link> {
        self.0[contender].connection.as_ref().map(|connection| connection.link)
    }

    /// Contender of a connection.
    pub fn of_link(&self, link: Link) -> Option<usize> {
        (0..self.0.len()).find(|contender| self.link(*contender) == Some(link))
    }

    /// Returns whether a contender without a connection wants one.
    pub fn wants_connection(&self, now: Micros, contender: usize) -> bool {
        self.0[contender].rests_until <= now
    }

    /// Begins a connection. Returns the bytes to send.
    pub fn connect(
        &mut self,
        cx: &mut Context,
        claims: &mut Claims,
        contender: usize,
        link: Link,
    ) -> Vec<u8> {
        let contender = &mut self.0[contender];
        let Habits { clean_starts_percent, expiries } = contender.habits;
        let (expiry_s, clean_start) = (*cx.random.pick(expiries), cx.random.percent(clean_starts_percent));
        let connect = packets::v5(&contender.name).expiry(expiry_s);
        let connect = if clean_start { connect } else { connect.resumes() };
        cx.log(|| format!("{} connects on {link}: {connect:?}", contender.name));
        claims.begin(cx.now(), link, &contender.name, clean_start, expiry_s);
        let mut endpoint = Endpoint::new(Version::V5);
        let mut bytes = Vec::new();
        endpoint.write(&Sent::Connect(Box::new(connect)), &mut bytes);
        contender.connection = Some(Connection {
            link,
            endpoint,
            expiry_s,
            is_open: false,
            published: Unacknowledged::default(),
            has_left: false,
            is_closed: false,
        });
        bytes
    }

    /// Notes that a connection is gone. `is_end` says that the node has ended it, and that nothing was lost.
    pub fn disconnected(&mut self, cx: &mut Context, claims: &mut Claims, contender: usize, is_end: bool) {
        let contender = &mut self.0[contender];
        let Some(connection) = contender.connection.take() else { return };
        if is_end && connection.has_left && !connection.is_closed {
            claims.left(cx.now(), connection.link);
        }
        let is_long = cx.random.percent(30);
        let rest = if is_long { cx.between(SECOND, 6 * SECOND) } else { cx.between(0, 200 * MILLI) };
        contender.rests_until = cx.now() + rest;
    }

    /// Lets a contender do something. Returns the bytes to send.
    pub fn act(&mut self, cx: &mut Context, claims: &mut Claims, contender: usize) -> (Vec<u8>, Fate) {
        let mut bytes = Vec::new();
        let Some(connection) = &mut self.0[contender].connection else { return (bytes, Fate::Keep) };
        if !connection.is_open || connection.has_left {
            return (bytes, Fate::Keep);
        }
        match cx.random.below(100) {
            0..4 => return (bytes, Fate::Lose),
            4..12 => {
                connection.has_left = true;
                // It must not be greater than 0 if that of CONNECT was 0 [MQTT-3.14.2-2].
                let expiry = *cx.random.pick(&LAST_EXPIRIES);
                let expiry = expiry.filter(|expiry| connection.expiry_s > 0 || *expiry == 0);
                cx.log(|| format!("contender {contender} leaves with {expiry:?}"));
                claims.leave(cx.now(), connection.link, expiry);
                let packet = Sent::Disconnect { reason: ReasonCode::Success, expiry };
                connection.endpoint.write(&packet, &mut bytes);
            }
            _ => {
                if let Some(id) = connection.published.send(cx.now()) {
                    let message = packets::message("contenders", "here").qos1(id);
                    connection.endpoint.write(&Sent::Publish(Box::new(message)), &mut bytes);
                }
            }
        }
        (bytes, Fate::Keep)
    }

    /// Handles received bytes.
    pub fn read(&mut self, cx: &mut Context, claims: &mut Claims, contender: usize, bytes: &[u8]) {
        let Contender { name, connection: Some(connection), .. } = &mut self.0[contender] else { return };
        connection.endpoint.read(bytes);
        while let Some(packet) = connection.endpoint.pop() {
            cx.log(|| format!("{name} on {} gets {}", connection.link, crate::scene::brief(&packet)));
            match packet {
                Sent::ConnAck { session_present, reason: ReasonCode::Success } => {
                    connection.is_open = true;
                    claims.connected(cx.now(), connection.link, session_present);
                }
                Sent::ConnAck { reason, .. } => {
                    connection.is_closed = true;
                    assert!(may_refuse(reason), "{name}: {reason}");
                }
                Sent::PubAck(id, reason) => {
                    let sent = connection.published.acknowledged(id);
                    let Some(sent) = sent.filter(|_| connection.is_open) else {
                        panic!("{name}: an acknowledgement of nothing")
                    };
                    if !reason.is_error() {
                        claims.served(cx.now(), connection.link, sent);
                    }
                }
                Sent::Disconnect { .. } => connection.is_closed = true,
                other => panic!("{name}: {other:?}"),
            }
        }
    }
}
