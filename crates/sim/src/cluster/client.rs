//! A client of a cluster that keeps to the protocol. Its sessions end with their connections and it connects to any
//! node, or it keeps one session and returns to the node that holds it.

use std::collections::{BTreeMap, VecDeque};

use mqtt::QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};
use mqtt::{QoS, ReasonCode, Version};

use super::oracle::{GROUP_TOPICS, GROUPS, Level, Oracle, OutgoingPublish, RETAINED_TOPICS, SHARE};
use crate::client::LONG;
use crate::context::Context;
use crate::net::{Direction, Link, Net};
use crate::scene::brief;
use crate::schedule::{Micros, SECOND};
use testkit::Endpoint;
use testkit::packets::{
    Connecting, Sent, goodbye, message, puback, pubcomp, pubrec, pubrel, subscribe, unsubscribe, v5,
};

/// Parts of the simulation that clients use.
pub struct Scene<'a> {
    pub cx: &'a mut Context,
    pub net: &'a mut Net,
    pub oracle: &'a mut Oracle,
}

pub struct Client {
    name: String,
    /// Node that holds its durable session.
    home: Option<usize>,
    /// True if it subscribes to shared groups only.
    is_member: bool,
    /// Time until which it does nothing and reads nothing.
    paused: Micros,
    session: Option<Session>,
    connection: Option<Connection>,
    /// A packet arrived since this was last cleared.
    pub has_received: bool,
    /// Time of its next action.
    pub due: Micros,
}

/// Client side of a session that survives its connection.
#[derive(Default)]
struct Session {
    view: usize,
    /// QoS 2 Packet Identifiers received and not released, with their payloads.
    received: BTreeMap<u16, String>,
    /// Next Packet Identifier. Unfinished publishes of previous connections keep theirs.
    next_id: u16,
}

/// A connection of the client.
struct Connection {
    link: Link,
    node: usize,
    incarnation: u32,
    end: Endpoint,
    is_accepted: bool,
    is_old: bool,
    view: usize,
    asked: Vec<Asked>,
    /// Packet Identifier, number, and the awaited packet.
    publishes: Vec<(u16, usize, Await)>,
    received: BTreeMap<u16, String>,
    to_send: VecDeque<Sent>,
    next_id: u16,
}

/// A SUBSCRIBE, or an UNSUBSCRIBE without filters, that waits for its answer: Packet Identifier, and the nodes that
/// have to know of it before that.
type Asked = (u16, Level, Vec<(String, QoS)>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Await {
    Ack,
    Rec,
    Comp,
}

const PUBLISHES_MAX: usize = 12;
const TOPICS: [&str; 6] = ["t/0", "t/1", "t/2/x", "s/0", "s/1", "t/long/topic/of/many/levels"];
const FILTERS: [&str; 14] = [
    "t/0",
    "t/1",
    "t/#",
    "t/+",
    "t/+/x",
    "#",
    "s/+",
    "t/2/#",
    "u/unused",
    "r/+/b",
    "g/+",
    // Unusual shapes. Some nodes accept only one or two of them.
    "t/+/+/+/+/levels",
    "+/long/+/of/+/+",
    "+/+/+/#",
];

/// Effect of a PUBLISH on the retained message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetainAction {
    Nothing,
    Message,
    /// Deletes the retained message.
    Deletion,
}

impl Client {
    pub fn new(number: usize, home: Option<usize>) -> Self {
        let name = format!("client {number}");
        Self {
            name,
            home,
            is_member: false,
            paused: 0,
            session: None,
            connection: None,
            has_received: false,
            due: Micros::MAX,
        }
    }

    /// Makes a client that subscribes to shared groups only.
    pub fn member(number: usize) -> Self {
        Self { is_member: true, ..Self::new(number, None) }
    }

    /// Stops the client for a while, like a process after SIGSTOP.
    pub fn pauses(&mut self, until: Micros) {
        self.paused = until;
    }

    /// Node to which it has to connect.
    pub fn home(&self) -> Option<usize> {
        self.home
    }

    pub fn link(&self) -> Option<Link> {
        self.connection.as_ref().map(|connection| connection.link)
    }

    /// Node, its incarnation, and the number of the session in the oracle.
    pub fn location(&self) -> Option<(usize, u32, usize)> {
        self.connection
            .as_ref()
            .filter(|connection| connection.is_accepted)
            .map(|connection| (connection.node, connection.incarnation, connection.view))
    }

    /// Sends CONNECT to a node over an open link.
    pub fn connects(&mut self, scene: &mut Scene<'_>, link: Link, node: usize, incarnation: u32) {
        self.end_connection(scene);
        let is_old = self.home.is_none() && !self.is_member && scene.cx.random.percent(30);
        let version = if is_old { Version::V3_1_1 } else { Version::V5 };
        let mut connecting = Connecting { version, ..v5(&self.name) };
        if self.home.is_some() {
            connecting = connecting.expiry(LONG);
            connecting.clean_start = self.session.is_none();
        }
        if !is_old && scene.cx.random.percent(40) {
            connecting.receive_max = Some(4 + scene.cx.random.below(30) as u16);
        }
        let (view, received, next_id) = match &self.session {
            Some(session) => (session.view, session.received.clone(), session.next_id),
            None => (scene.oracle.new_view(node, incarnation, self.home.is_some()), BTreeMap::new(), 0),
        };
        scene.oracle.view(view).is_connected = false;
        scene.cx.log(|| format!("{} has session {view}", self.name));
        self.connection = Some(Connection {
            link,
            node,
            incarnation,
            end: Endpoint::new(version),
            is_accepted: false,
            is_old,
            view,
            asked: Vec::new(),
            publishes: Vec::new(),
            received,
            to_send: VecDeque::new(),
            next_id,
        });
        self.send(scene, connecting);
    }

    /// Takes one random action, if it is connected.
    pub fn act(&mut self, scene: &mut Scene<'_>) {
        if scene.cx.now() < self.paused {
            return;
        }
        let Some(connection) = &self.connection else { return };
        if !connection.is_accepted {
            if scene.cx.random.percent(3) {
                self.drop_connection(scene);
            }
            return;
        }
        if scene.cx.random.percent(70) {
            let count = scene.cx.random.below(60);
            self.answers(scene, count);
        }
        match scene.cx.random.below(100) {
            0 => self.drop_connection(scene),
            1 => self.send_disconnect(scene),
            2..=11 => self.subscribes(scene),
            12..=15 => self.unsubscribes(scene),
            kind @ 16..=65 => {
                let random = &mut scene.cx.random;
                let qos = *random.pick(&[AtMostOnce, AtLeastOnce, ExactlyOnce]);
                let (topic, retain_action) = match kind {
                    16..=45 => (*random.pick(&TOPICS), RetainAction::Nothing),
                    46..=57 => (*random.pick(&GROUP_TOPICS), RetainAction::Nothing),
                    58..=63 => (*random.pick(&RETAINED_TOPICS), RetainAction::Message),
                    _ => (*random.pick(&RETAINED_TOPICS), RetainAction::Deletion),
                };
                self.publishes(scene, topic, qos, retain_action);
            }
            _ => {}
        }
    }

    /// Returns whether the client waits for nothing.
    pub fn is_quiet(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| {
            connection.is_accepted
                && connection.publishes.is_empty()
                && connection.asked.is_empty()
                && connection.to_send.is_empty()
        })
    }

    /// Describes what the client waits for.
    pub fn waits_for(&self) -> Option<String> {
        let Some(connection) = &self.connection else {
            return Some(format!("{} is not connected", self.name));
        };
        let Connection { node, is_accepted, publishes, asked, .. } = connection;
        (!self.is_quiet()).then(|| {
            format!(
                "{} on n{node} (accepted: {is_accepted}) waits for {publishes:?} and {asked:?}",
                self.name
            )
        })
    }

    /// Returns whether acknowledgements are delayed.
    pub fn has_answers(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| !connection.to_send.is_empty())
    }

    pub fn answers(&mut self, scene: &mut Scene<'_>, count: usize) {
        for _ in 0..count {
            let Some(packet) = self.connection.as_mut().and_then(|connection| connection.to_send.pop_front())
            else {
                return;
            };
            self.send(scene, packet);
        }
    }

    fn send(&mut self, scene: &mut Scene<'_>, packet: impl Into<Sent>) {
        let packet = packet.into();
        let Some(connection) = &mut self.connection else { return };
        let (name, link, node) = (&self.name, connection.link, connection.node);
        scene.cx.log(|| format!("{name} on {link} to n{node} sends {}", brief(&packet)));
        let mut bytes = Vec::new();
        connection.end.write(&packet, &mut bytes);
        scene.net.send(scene.cx, connection.link, Direction::ToNode, bytes);
    }

    pub fn drop_connection(&mut self, scene: &mut Scene<'_>) {
        let Some(link) = self.link() else { return };
        scene.net.lose(scene.cx, link);
        self.end_connection(scene);
    }

    fn send_disconnect(&mut self, scene: &mut Scene<'_>) {
        let Some(link) = self.link() else { return };
        self.send(scene, goodbye());
        scene.net.close(scene.cx, link, Direction::ToNode);
        self.end_connection(scene);
    }

    /// Handles the loss of one of its connections.
    pub fn loses_link(&mut self, scene: &mut Scene<'_>, link: Link) {
        if self.link() == Some(link) {
            scene.cx.log(|| format!("{} finds {link} closed", self.name));
            scene.oracle.link_ends(link);
            self.end_connection(scene);
        }
    }

    fn end_connection(&mut self, scene: &mut Scene<'_>) {
        let Some(connection) = self.connection.take() else { return };
        scene.oracle.connection_ends(connection.view);
        if let Some(session) = &mut self.session {
            (session.received, session.next_id) = (connection.received, connection.next_id);
        }
    }

    fn subscribes(&mut self, scene: &mut Scene<'_>) {
        let random = &mut scene.cx.random;
        let mut filters = Vec::new();
        if self.is_member {
            let Some(view) = self.connection.as_ref().map(|connection| connection.view) else { return };
            let group = scene.oracle.view(view).group.unwrap_or(*random.pick(&GROUPS));
            let qos = *random.pick(&[AtLeastOnce, ExactlyOnce]);
            let level = *random.pick(&[Level::Local, Level::Region, Level::Cluster]);
            return self.subscribes_to(scene, vec![(group.to_owned(), qos)], level);
        }
        for _ in 0..1 + random.below(2) {
            let filter = *random.pick(&FILTERS);
            let qos = *random.pick(&[AtMostOnce, AtLeastOnce, ExactlyOnce, ExactlyOnce]);
            filters.push((filter.to_owned(), qos));
        }
        let level = *random.pick(&[Level::Local, Level::Core, Level::Region, Level::Cluster]);
        self.subscribes_to(scene, filters, level);
    }

    pub fn subscribes_to(&mut self, scene: &mut Scene<'_>, filters: Vec<(String, QoS)>, level: Level) {
        let Some(connection) = &mut self.connection else { return };
        if connection.asked.len() > 3 {
            return;
        }
        connection.next_id = connection.next_id % 60_000 + 1;
        let id = connection.next_id;
        let mut packet = subscribe(id);
        for (filter, qos) in &filters {
            // Until SUBACK, the QoS of the subscription is unknown.
            scene.oracle.unsubscribes(connection.view, filter);
            let view = scene.oracle.view(connection.view);
            view.asked.insert(filter.clone());
            view.group = GROUPS.into_iter().find(|group| group == filter).or(view.group);
            for (.., asked) in &mut connection.asked {
                asked.iter_mut().filter(|(other, _)| other == filter).for_each(|(other, _)| other.clear());
            }
            packet = packet.to(filter, *qos);
        }
        // MQTT 3.1.1 has no property for the level: the lowest level of any node applies.
        let level = if connection.is_old { Level::Local } else { level };
        if !connection.is_old {
            packet = packet.level(match level {
                Level::Local => "local",
                Level::Core => "core",
                Level::Region => "region",
                Level::Cluster => "cluster",
            });
        }
        // Subscriptions of durable sessions wait for all nodes.
        let level = if self.home.is_some() { Level::Cluster } else { level };
        connection.asked.push((id, level, filters));
        self.send(scene, packet);
    }

    fn unsubscribes(&mut self, scene: &mut Scene<'_>) {
        let Some(connection) = &mut self.connection else { return };
        if !connection.asked.is_empty() {
            return;
        }
        let granted: Vec<String> = scene.oracle.view(connection.view).granted.keys().cloned().collect();
        if granted.is_empty() {
            return;
        }
        let filter = scene.cx.random.pick(&granted).clone();
        self.leaves(scene, &filter);
    }

    /// Unsubscribes from a filter.
    pub fn leaves(&mut self, scene: &mut Scene<'_>, filter: &str) {
        let Some(connection) = &mut self.connection else { return };
        connection.next_id = connection.next_id % 60_000 + 1;
        let id = connection.next_id;
        scene.oracle.unsubscribes(connection.view, filter);
        scene.cx.report.cluster_groups_left += u64::from(filter.starts_with(SHARE));
        connection.asked.push((id, Level::Local, Vec::new()));
        self.send(scene, unsubscribe(id, &[filter]));
    }

    pub fn publishes(&mut self, scene: &mut Scene<'_>, topic: &str, qos: QoS, retain_action: RetainAction) {
        let now = scene.cx.now();
        let Some(connection) = &mut self.connection else { return };
        if qos > AtMostOnce && connection.publishes.len() >= PUBLISHES_MAX {
            return;
        }
        let number = scene.oracle.next_number();
        // Some payloads are too large to be copied for each receiver.
        let width = if scene.cx.random.percent(4) { 1 + scene.cx.random.below(20_000) } else { 1 };
        let payload = match retain_action {
            RetainAction::Nothing | RetainAction::Message => {
                let number = number.to_string();
                ".".repeat(width.saturating_sub(number.len())) + &number
            }
            RetainAction::Deletion => String::new(),
        };
        let is_retained = retain_action != RetainAction::Nothing;
        let (link, node, incarnation) = (connection.link, connection.node, connection.incarnation);
        let at = now;
        scene.oracle.publish(&OutgoingPublish {
            at,
            link,
            node,
            incarnation,
            topic,
            payload: &payload,
            qos,
            is_retained,
        });
        scene.cx.report.cluster_retained += u64::from(retain_action == RetainAction::Message);
        scene.cx.report.cluster_retained_deleted += u64::from(retain_action == RetainAction::Deletion);
        let mut packet = message(topic, payload);
        packet.retain = is_retained;
        let report = &mut scene.cx.report;
        match qos {
            AtMostOnce => report.published_qos0 += 1,
            AtLeastOnce => report.published_qos1 += 1,
            ExactlyOnce => report.published_qos2 += 1,
        }
        if qos > AtMostOnce {
            connection.next_id = connection.next_id % 60_000 + 1;
            (packet.qos, packet.packet_id) = (qos, Some(connection.next_id));
            let what = if qos == ExactlyOnce { Await::Rec } else { Await::Ack };
            connection.publishes.push((connection.next_id, number, what));
        }
        self.send(scene, packet);
    }

    /// Handles bytes of one of its connections.
    pub fn reads(&mut self, scene: &mut Scene<'_>, link: Link, bytes: &[u8]) {
        let Some(connection) = self.connection.as_mut().filter(|connection| connection.link == link) else {
            return;
        };
        connection.end.read(bytes);
        for packet in connection.end.received() {
            let name = &self.name;
            scene.cx.log(|| format!("{name} on {link} gets {}", brief(&packet)));
            self.has_received = true;
            self.receive_packet(scene, packet);
        }
    }

    fn receive_packet(&mut self, scene: &mut Scene<'_>, packet: Sent) {
        let Some(connection) = &mut self.connection else { return };
        match packet {
            Sent::ConnAck { session_present, reason } => {
                if reason != ReasonCode::Success {
                    return; // The connection ends next.
                }
                connection.is_accepted = true;
                scene.cx.report.cluster_accepted += 1;
                let view = scene.oracle.view(connection.view);
                // The node may have died meanwhile, which ended the connection in the oracle.
                (view.is_connected, view.incarnation) = (true, connection.incarnation);
                if self.home.is_some() {
                    assert_eq!(session_present, self.session.is_some(), "the session of {}", self.name);
                    scene.cx.report.cluster_check_sessions += u64::from(session_present);
                    let view = connection.view;
                    self.session.get_or_insert_with(|| Session { view, ..Session::default() });
                } else {
                    assert!(!session_present, "Clean Start finds a session");
                }
            }
            Sent::Disconnect { .. } | Sent::Closed => {}
            Sent::PubAck(id, reason) => settle(scene, connection, id, Await::Ack, None, reason),
            Sent::PubRec(id, reason) => {
                let to = (!reason.is_error()).then_some(Await::Comp);
                settle(scene, connection, id, Await::Rec, to, reason);
                if to.is_some() {
                    connection.to_send.push_back(pubrel(id));
                }
            }
            Sent::PubComp(id, _) => {
                connection.publishes.retain(|(known, _, what)| (*known, *what) != (id, Await::Comp));
            }
            Sent::PubRel(id, _) => {
                connection.received.remove(&id);
                connection.to_send.push_back(pubcomp(id));
            }
            Sent::Publish(message) => {
                let is_new = match (message.qos, message.packet_id) {
                    (ExactlyOnce, Some(id)) => {
                        connection.to_send.push_back(pubrec(id));
                        match connection.received.get(&id) {
                            Some(payload) => {
                                assert!(message.dup && *payload == message.payload, "{id} is not released");
                                false
                            }
                            None => connection.received.insert(id, message.payload.clone()).is_none(),
                        }
                    }
                    (AtLeastOnce, Some(id)) => {
                        connection.to_send.push_back(puback(id));
                        !message.dup || !scene.oracle.has(connection.view, &message)
                    }
                    _ => true,
                };
                if is_new {
                    scene.oracle.arrives(scene.cx, connection.view, &message);
                }
            }
            Sent::SubAck(id, reasons) => {
                let at = connection
                    .asked
                    .iter()
                    .position(|(known, ..)| *known == id)
                    .expect("SUBACK of a SUBSCRIBE");
                let (_, level, filters) = connection.asked.remove(at);
                assert_eq!(reasons.len(), filters.len());
                scene.cx.report.cluster_subacks_region += u64::from(level == Level::Region);
                scene.cx.report.cluster_subacks_cluster += u64::from(level == Level::Cluster);
                for ((filter, qos), reason) in filters.into_iter().zip(reasons) {
                    if !filter.is_empty() && !reason.is_error() {
                        scene.cx.report.cluster_groups_joined += u64::from(filter.starts_with(SHARE));
                        scene
                            .oracle
                            .view(connection.view)
                            .granted
                            .insert(filter, (qos, level, scene.cx.now()));
                    }
                }
            }
            Sent::UnsubAck(id, _) => {
                let at = connection.asked.iter().position(|(known, ..)| *known == id).expect("UNSUBACK");
                connection.asked.remove(at);
            }
            other => panic!("{} gets {other:?}", self.name),
        }
    }
}

/// Moves a publish to its next step, or removes it.
fn settle(
    scene: &mut Scene<'_>,
    connection: &mut Connection,
    id: u16,
    from: Await,
    to: Option<Await>,
    reason: ReasonCode,
) {
    let at = connection.publishes.iter().position(|(known, _, what)| (*known, *what) == (id, from));
    let at = at.expect("an answer to a PUBLISH");
    let number = connection.publishes[at].1;
    match to {
        Some(to) => connection.publishes[at].2 = to,
        None => drop(connection.publishes.remove(at)),
    }
    if reason.is_error() {
        return;
    }
    scene.oracle.acknowledged(number, scene.cx.now());
    scene.cx.report.cluster_slow_acknowledgements +=
        u64::from(scene.cx.now() > scene.oracle.sent_at(number) + SECOND);
}
