//! A client that keeps to the rules: it keeps its session, sends again what was not acknowledged, and knows what it may expect.

mod act;
mod receive_packet;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use mqtt::{QoS, Version};

use crate::endpoint::Endpoint;
use crate::net::{Direction, Link};
use crate::packets::{Message, Sent};
use crate::scene::Scene;

/// What a client is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Always a durable member of the group, that neither leaves it nor starts clean.
    Steady,
    /// Keeps a session most of the time.
    Common,
    /// Its session expires soon.
    Brief,
}

pub struct Client {
    pub number: usize,
    name: String,
    kind: Kind,
    connection: Option<Connection>,
    session: Option<Session>,
    /// Its last CONNECT with Clean Start was not answered: nobody knows what became of the session before.
    must_clean: bool,
    /// Connections with a Will.
    with_will: Vec<Link>,
    /// Connections on which it was told that it is connected and that the node may still serve.
    pub served: Vec<Link>,
    /// When the node ended the last connection that had the session, its time: at the earliest and at the latest.
    ended: Option<(u64, u64)>,
    /// A connection was lost before it was answered: it may have found the session expired, and begun another.
    in_doubt: bool,
    /// Connections given up before they were answered, that the node has not ended: their CONNECT may still arrive, after later ones.
    abandoned_connections: Vec<Link>,
    /// Something came since somebody looked.
    pub has_received: bool,
}

/// One connection.
struct Connection {
    link: Link,
    end: Endpoint,
    /// Session Expiry Interval.
    expiry: u32,
    clean: bool,
    /// The node's time when CONNECT left.
    began: u64,
    accepted: bool,
    /// Acknowledgements the client takes its time for.
    to_send: VecDeque<Sent>,
    /// Filters asked for and not answered; an empty one was asked for again meanwhile.
    asked: Vec<(u16, Vec<(String, QoS)>)>,
    reads: bool,
    /// Bytes so far.
    sent: u64,
    /// Of MQTT 3.1.1.
    old: bool,
}

/// The client's part of a session.
struct Session {
    /// Its number with the oracle.
    view: usize,
    expiry: u32,
    next_id: u16,
    /// Publishes without an end, in order: identifier, number, what is awaited.
    publishes: Vec<(u16, usize, Message, Await)>,
    /// QoS 2 identifiers received and not released, and the payloads that came with them.
    received: BTreeMap<u16, String>,
    /// Those of them that may be from a session that has expired unnoticed: the next one may use them for other messages.
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
/// Longer than all that a simulation may make of it.
pub const LONG: u32 = 200 * 24 * 3600;

impl Session {
    fn new(view: usize, expiry: u32) -> Self {
        let (publishes, received, doubtful) = Default::default();
        Self { view, expiry, next_id: 0, publishes, received, doubtful }
    }

    /// Takes a publish a step further, or to its end; its number, unless nothing like it is awaited.
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

    /// The connection it uses now.
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

    /// Bytes came on one of its connections.
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

    /// One of its connections is gone.
    pub fn loses_link(&mut self, scene: &mut Scene, link: Link) {
        if self.is_on(link) {
            scene.cx.log(|| format!("{} finds {link} closed", self.name));
            self.end_connection(scene);
        }
    }

    /// The node has ended a connection of this client's, at this time of its own, or within these when it died.
    pub fn served_until(&mut self, earliest: u64, latest: u64) {
        let (first, last) = self.ended.unwrap_or((earliest, latest));
        self.ended = Some((first.min(earliest), last.max(latest)));
    }

    /// The node has ended one of its connections.
    pub fn is_ended(&mut self, link: Link) {
        self.served.retain(|served| *served != link);
        self.abandoned_connections.retain(|abandoned| *abandoned != link);
    }

    /// The node has died, and with it its end of each connection.
    pub fn is_served_no_more(&mut self) {
        self.served.clear();
        self.abandoned_connections.clear();
    }

    /// The node has died. What it had done last may not be durable, so that the session's time begins with the next life.
    pub fn survives_death(&mut self, died: u64, begins: u64) {
        if let Some((earliest, latest)) = &mut self.ended {
            if *latest + 40_000 >= died {
                *latest = (*latest).max(begins);
            }
            // After a power cut the node's time may have gone back, to what was durable of it.
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

    /// Closes its end of the connection without a word.
    fn drop_connection(&mut self, scene: &mut Scene) {
        let Some(link) = self.link() else { return };
        if scene.cx.random.percent(50) {
            scene.net.lose(&mut scene.cx, link);
        } else {
            scene.net.close(&mut scene.cx, link, Direction::ToNode);
        }
        self.end_connection(scene);
    }

    /// Nothing that it sent is without an answer.
    pub fn check_all_answered(&self, scene: &mut Scene) {
        if let Some(connection) = &self.connection {
            assert!(connection.accepted, "{} never heard whether it is connected", self.name);
            assert!(connection.asked.is_empty(), "{} waits for SUBACK or UNSUBACK", self.name);
            let publishes = self.session.iter().flat_map(|session| &session.publishes);
            let waiting: Vec<_> = publishes.map(|(id, number, _, what)| (id, number, what)).collect();
            assert!(waiting.is_empty(), "{} waits for acknowledgements of {waiting:?}", self.name);
            scene.cx.report.check_answered += 1;
        }
    }

    /// Publishes that a durable session waits for, and that nobody has acknowledged.
    pub fn unanswered(&self, scene: &Scene) -> usize {
        let publishes = self.session.iter().flat_map(|session| &session.publishes);
        publishes.filter(|(_, number, _, what)| *what != Await::Comp && scene.oracle.is_owed(*number)).count()
    }

    fn version(&self, scene: &mut Scene) -> Version {
        // What expires soon can be said in 5.0 only.
        let is_new = self.kind == Kind::Brief || scene.cx.random.percent(50);
        if is_new { Version::V5 } else { Version::V3_1_1 }
    }
}
