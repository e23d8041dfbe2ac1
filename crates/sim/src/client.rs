//! A client that keeps to the protocol. It keeps its session, repeats unacknowledged messages, and knows what to
//! expect.

mod act;
mod receive_packet;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use mqtt::{QoS, Version};

use crate::net::{Direction, Link};
use crate::scene::Scene;
use testkit::Endpoint;
use testkit::packets::{Message, Sent};

/// Behaviour of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Always a durable member of the group. It neither leaves the group nor connects with Clean Start.
    Steady,
    /// Keeps a session most of the time.
    Common,
    /// Uses a session that expires soon.
    Brief,
}

pub struct Client {
    pub number: usize,
    name: String,
    kind: Kind,
    connection: Option<Connection>,
    session: Option<Session>,
    /// The last CONNECT with Clean Start has no answer: the state of the previous session is unknown.
    must_clean: bool,
    /// Connections with a Will.
    with_will: Vec<Link>,
    /// Accepted connections that the node may still serve.
    pub served: Vec<Link>,
    /// Earliest and latest time of the node at which it ended the session's last connection.
    ended: Option<(u64, u64)>,
    /// A connection was lost before CONNACK: it may have found the session expired and made a new one.
    in_doubt: bool,
    /// Connections that were given up before CONNACK and that the node has not ended. Their CONNECT may arrive after
    /// later ones.
    abandoned_connections: Vec<Link>,
    /// A packet arrived since this was last cleared.
    pub has_received: bool,
}

/// A connection of the client.
struct Connection {
    link: Link,
    end: Endpoint,
    /// Session Expiry Interval, seconds.
    expiry: u32,
    clean: bool,
    /// Time of the node when CONNECT was sent.
    began: u64,
    accepted: bool,
    /// Acknowledgements that the client delays.
    to_send: VecDeque<Sent>,
    /// Requested filters without an answer. A filter that was requested again is empty in the earlier request.
    asked: Vec<(u16, Vec<(String, QoS)>)>,
    reads: bool,
    /// Bytes sent so far.
    sent: u64,
    /// True for MQTT 3.1.1.
    old: bool,
}

/// Client side of a session.
struct Session {
    /// Number of the session in the oracle.
    view: usize,
    expiry: u32,
    next_id: u16,
    /// Unfinished publishes in order: Packet Identifier, number, message, and the awaited packet.
    publishes: Vec<(u16, usize, Message, Await)>,
    /// QoS 2 Packet Identifiers received and not released, with their payloads.
    received: BTreeMap<u16, String>,
    /// Subset of `received` that may belong to a session that has expired unnoticed. The next session may use them for
    /// other messages.
    doubtful: BTreeSet<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Await {
    Ack,
    Rec,
    Comp,
}

const PUBLISHES_MAX: usize = 12;
const TOPICS: [&str; 6] = ["t/0", "t/1", "t/2/x", "s/0", "s/1", "t/long/topic/of/many/levels"];
const FILTERS: [&str; 8] = ["t/0", "t/1", "t/#", "t/+", "t/+/x", "w/#", "r/#", "t/2/#"];
/// Session Expiry Interval that is longer than any simulation.
pub const LONG: u32 = 200 * 24 * 3600;

impl Session {
    fn new(view: usize, expiry: u32) -> Self {
        let (publishes, received, doubtful) = Default::default();
        Self { view, expiry, next_id: 0, publishes, received, doubtful }
    }

    /// Moves a publish to its next step, or removes it. Returns its number, or `None` if no such packet is awaited.
    fn settle(&mut self, id: u16, from: Await, to: Option<Await>) -> Option<usize> {
        let at = self.publishes.iter().position(|(known, _, _, what)| *known == id && *what == from)?;
        let number = self.publishes[at].1;
        match to {
            Some(to) => self.publishes[at].3 = to,
            None => drop(self.publishes.remove(at)),
        }
        Some(number)
    }
}

impl Client {
    pub fn new(number: usize, kind: Kind) -> Self {
        Self {
            number,
            name: format!("client {number}"),
            kind,
            connection: None,
            session: None,
            must_clean: false,
            with_will: Vec::new(),
            served: Vec::new(),
            ended: None,
            in_doubt: false,
            abandoned_connections: Vec::new(),
            has_received: false,
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn is_on(&self, link: Link) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.link == link)
    }

    /// Connection that the client currently uses.
    pub fn link(&self) -> Option<Link> {
        self.connection.as_ref().map(|connection| connection.link)
    }

    fn send(&mut self, scene: &mut Scene, packet: impl Into<Sent>) {
        let packet = packet.into();
        let Some(connection) = &mut self.connection else { return };
        scene.log_sent(&self.name, connection.link, &packet);
        let mut bytes = Vec::new();
        connection.end.write(&packet, &mut bytes);
        connection.sent += bytes.len() as u64;
        scene.send(connection.link, bytes);
    }

    /// Handles bytes of one of its connections.
    pub fn reads(&mut self, scene: &mut Scene, link: Link, bytes: &[u8]) {
        let Some(connection) = self.connection.as_mut().filter(|connection| connection.link == link) else {
            return;
        };
        connection.end.read(bytes);
        for packet in connection.end.received() {
            scene.log_received(&self.name, link, &packet);
            self.has_received = true;
            self.receive_packet(scene, packet);
        }
    }

    /// Handles the loss of one of its connections.
    pub fn loses_link(&mut self, scene: &mut Scene, link: Link) {
        if self.is_on(link) {
            scene.cx.log(|| format!("{} finds {link} closed", self.name));
            self.end_connection(scene);
        }
    }

    /// Records that the node ended a connection of this client, within these times of the node.
    pub fn served_until(&mut self, earliest: u64, latest: u64) {
        let (first, last) = self.ended.unwrap_or((earliest, latest));
        self.ended = Some((first.min(earliest), last.max(latest)));
    }

    /// Handles the end of a connection on the node's side.
    pub fn is_ended(&mut self, link: Link) {
        self.served.retain(|served| *served != link);
        self.abandoned_connections.retain(|abandoned| *abandoned != link);
    }

    /// Handles the death of the node, which ends its side of all connections.
    pub fn is_served_no_more(&mut self) {
        self.served.clear();
        self.abandoned_connections.clear();
    }

    /// Handles the death of the node. Its last changes may not be durable, so the session may start to expire at the
    /// restart.
    pub fn survives_death(&mut self, died: u64, begins: u64) {
        if let Some((earliest, latest)) = &mut self.ended {
            if *latest + 40_000 >= died {
                *latest = (*latest).max(begins);
            }
            // After a power cut, the node's clock may go back to its last durable time.
            *earliest = (*earliest).min(begins);
        }
    }

    fn end_connection(&mut self, scene: &mut Scene) {
        let Some(connection) = self.connection.take() else { return };
        if !connection.accepted {
            self.in_doubt = true;
            self.abandoned_connections.push(connection.link);
            return;
        }
        if let Some(session) = &self.session {
            scene.oracle.connection_ends(session.view);
        }
        if connection.expiry == 0 {
            self.end_session(scene);
        }
    }

    fn end_session(&mut self, scene: &mut Scene) {
        if let Some(session) = self.session.take() {
            scene.oracle.session_ends(session.view);
            for (_, number, _, what) in session.publishes {
                if what != Await::Comp {
                    scene.oracle.abandoned(number);
                }
            }
        }
    }

    /// Closes the client's side of the connection without DISCONNECT.
    fn drop_connection(&mut self, scene: &mut Scene) {
        let Some(link) = self.link() else { return };
        if scene.cx.random.percent(50) {
            scene.net.lose(&mut scene.cx, link);
        } else {
            scene.net.close(&mut scene.cx, link, Direction::ToNode);
        }
        self.end_connection(scene);
    }

    /// Asserts that all requests of the client have an answer.
    pub fn check_all_answered(&self, scene: &mut Scene) {
        if let Some(connection) = &self.connection {
            assert!(connection.accepted, "{} never got CONNACK", self.name);
            assert!(connection.asked.is_empty(), "{} waits for SUBACK or UNSUBACK", self.name);
            let publishes = self.session.iter().flat_map(|session| &session.publishes);
            let waiting: Vec<_> = publishes.map(|(id, number, _, what)| (id, number, what)).collect();
            assert!(waiting.is_empty(), "{} waits for acknowledgements of {waiting:?}", self.name);
            scene.cx.report.check_answered += 1;
        }
    }

    /// Number of publishes that a durable session waits for and that are not acknowledged.
    pub fn unanswered(&self, scene: &Scene) -> usize {
        let publishes = self.session.iter().flat_map(|session| &session.publishes);
        publishes.filter(|(_, number, _, what)| *what != Await::Comp && scene.oracle.is_owed(*number)).count()
    }

    fn version(&self, scene: &mut Scene) -> Version {
        // Only 5.0 has a Session Expiry Interval.
        let is_new = self.kind == Kind::Brief || scene.cx.random.percent(50);
        if is_new { Version::V5 } else { Version::V3_1_1 }
    }
}
