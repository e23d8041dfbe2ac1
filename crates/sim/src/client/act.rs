//! Actions of a client.

use mqtt::QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};
use mqtt::{QoS, Version};

use super::{Await, Client, Connection, FILTERS, Kind, LONG, PUBLISHES_MAX, TOPICS};
use crate::oracle::{OutgoingPublish, SHARE};
use crate::rules::WILL_TOPIC;
use crate::scene::Scene;
use crate::schedule::SECOND;
use testkit::Endpoint;
use testkit::packets::{Connecting, goodbye, message, subscribe, unsubscribe, v5};

impl Client {
    /// Takes one random action.
    pub fn act(&mut self, scene: &mut Scene) {
        let Some(connection) = &self.connection else { return self.connects(scene) };
        if !connection.accepted && connection.clean {
            return; // After a Clean Start it waits for CONNACK.
        }
        if !connection.accepted {
            // CONNACK takes long: the client may give up, or connect again.
            return match scene.cx.random.below(20) {
                0 => self.drop_connection(scene),
                1 => self.connects(scene),
                _ => {}
            };
        }
        match scene.cx.random.below(100) {
            0..=2 => self.drop_connection(scene),
            3..=4 => self.send_disconnect(scene),
            5..=6 => self.connects(scene),
            7..=16 => self.subscribes(scene),
            17..=19 => self.unsubscribes(scene),
            20..=22 => self.pauses(scene),
            23..=70 => self.publishes(scene),
            _ => {
                let count = scene.cx.random.below(8);
                self.answers(scene, count);
            }
        }
    }

    /// Finishes the client's open actions at the end of a simulation.
    pub fn heals(&mut self, scene: &mut Scene) {
        match &self.connection {
            // A client that may have an unwanted session connects, too: the messages in its queue are for others.
            None => {
                if self.kind == Kind::Steady || self.must_clean || self.session.is_some() {
                    self.connects(scene);
                }
            }
            Some(connection) => {
                if !connection.reads {
                    self.pauses(scene);
                }
                self.answers(scene, usize::MAX);
            }
        }
    }

    /// Returns whether the client waits for nothing.
    pub fn is_quiet(&self) -> bool {
        match &self.connection {
            None => self.kind != Kind::Steady && !self.must_clean && self.session.is_none(),
            Some(connection) => {
                let publishes = self.session.iter().any(|session| !session.publishes.is_empty());
                connection.accepted
                    && connection.reads
                    && connection.to_send.is_empty()
                    && connection.asked.is_empty()
                    && !publishes
            }
        }
    }

    pub(super) fn connects(&mut self, scene: &mut Scene) {
        let waits = self.connection.as_ref().is_some_and(|connection| !connection.accepted);
        let Some(link) = scene.connect(self.number) else { return };
        if self.connection.is_some() {
            // The client ignores the old connection from now on, and leaves it to the server.
            scene.cx.report.takeovers += 1;
            self.end_connection(scene);
        }
        let resumes = self.session.is_some() && !self.must_clean;
        let may_clean = self.kind != Kind::Steady && !waits;
        let mut clean = may_clean && !scene.healing && (!resumes || scene.cx.random.percent(15));
        clean |= self.must_clean;
        let durable = !clean || self.kind == Kind::Brief || scene.cx.random.percent(60);
        let mut version = self.version(scene);
        if clean && durable {
            version = Version::V5; // Clean Session of MQTT 3.1.1 discards the session at the end, too.
        }
        if clean {
            self.must_clean = true;
            self.end_session(scene);
        }
        let expiry = match (durable, self.kind) {
            (false, _) => 0,
            (true, Kind::Brief) => 4 + self.number as u32 % 8,
            (true, _) => LONG,
        };
        let mut connecting = Connecting { version, clean_start: clean, ..v5(&self.name) };
        connecting.keep_alive = if scene.cx.random.percent(30) { 5 } else { 0 };
        if version == Version::V5 {
            connecting.expiry = durable.then_some(expiry);
            connecting.receive_max = scene.cx.random.percent(60).then(|| 1 + scene.cx.random.below(4) as u16);
            connecting.alias_max = scene.cx.random.percent(30).then_some(2);
        }
        let began = scene.time();
        for with_will in &self.with_will {
            scene.oracle.will_is_overtaken(*with_will, began, clean);
        }
        if !scene.healing && !scene.oracle.denies_wills() && scene.cx.random.percent(50) {
            let delay = (version == Version::V5 && scene.cx.random.percent(50))
                .then(|| scene.cx.random.below(12) as u32);
            let due = u64::from(delay.unwrap_or(0).min(expiry)) * 1000;
            let number = scene.oracle.will(link, WILL_TOPIC, due, durable);
            let will = message(WILL_TOPIC, number).qos(ExactlyOnce);
            connecting = match delay {
                Some(delay) => connecting.delayed_will(will, delay),
                None => connecting.will(will),
            };
            self.with_will.push(link);
            if waits || !self.abandoned_connections.is_empty() {
                // An earlier CONNECT may arrive after this one.
                scene.oracle.will_is_overtaken(link, began, false);
            }
        }
        self.connection = Some(Connection {
            link,
            end: Endpoint::new(version),
            expiry,
            clean,
            began,
            accepted: false,
            to_send: Default::default(),
            asked: Vec::new(),
            reads: true,
            sent: 0,
            old: version != Version::V5,
        });
        self.send(scene, connecting);
    }

    fn send_disconnect(&mut self, scene: &mut Scene) {
        let Some(link) = self.link() else { return };
        self.send(scene, goodbye());
        scene.goodbyes.insert(link, self.connection.as_ref().map_or(0, |connection| connection.sent));
        scene.net.close(&mut scene.cx, link, crate::net::Direction::ToNode);
        self.end_connection(scene);
    }

    /// Stops reading, or resumes it.
    fn pauses(&mut self, scene: &mut Scene) {
        let Some(connection) = &mut self.connection else { return };
        connection.reads = !connection.reads;
        if let Some(node) = &mut scene.node {
            node.set_reads(&mut scene.cx, &mut scene.net, connection.link, connection.reads);
        }
    }

    fn subscribes(&mut self, scene: &mut Scene) {
        let Some(connection) = self
            .connection
            .as_ref()
            .filter(|connection| connection.asked.len() <= 3 && self.session.is_some())
        else {
            return;
        };
        let random = &mut scene.cx.random;
        let mut filters = Vec::new();
        for _ in 0..1 + random.below(2) {
            let filter = (*random.pick(&FILTERS)).to_owned();
            let qos = *random.pick(&[AtMostOnce, AtLeastOnce, ExactlyOnce, ExactlyOnce]);
            filters.push((filter, qos));
        }
        // Members whose session ends with their connection would take messages with them after a crash.
        if self.kind == Kind::Steady || connection.expiry == LONG && random.percent(20) {
            filters.push((format!("{SHARE}s/#"), *random.pick(&[AtLeastOnce, ExactlyOnce])));
        }
        self.subscribes_to(scene, filters);
    }

    /// Subscribes to all retained messages, again if it is subscribed already.
    pub fn asks_for_retained(&mut self, scene: &mut Scene) {
        if self.connection.as_ref().is_some_and(|connection| connection.accepted) {
            self.subscribes_to(scene, vec![("r/#".to_owned(), ExactlyOnce)]);
        }
    }

    fn subscribes_to(&mut self, scene: &mut Scene, filters: Vec<(String, QoS)>) {
        let (Some(connection), Some(session)) = (&mut self.connection, &mut self.session) else { return };
        session.next_id = session.next_id % 60_000 + 1;
        // Subscriptions use other Packet Identifiers than publishes.
        let id = 61_000 + session.next_id % 4_000;
        let mut packet = subscribe(id);
        for (filter, qos) in &filters {
            // Until SUBACK, the QoS of the subscription is unknown.
            scene.oracle.unsubscribes(session.view, filter);
            scene.oracle.session(session.view).asked.insert(filter.clone());
            let earlier = connection.asked.iter_mut().flat_map(|(_, asked)| asked);
            earlier.filter(|(other, _)| other == filter).for_each(|(other, _)| other.clear());
            packet = packet.to(filter, *qos);
        }
        connection.asked.push((id, filters));
        self.send(scene, packet);
    }

    fn unsubscribes(&mut self, scene: &mut Scene) {
        let (Some(connection), Some(session)) = (&mut self.connection, &mut self.session) else { return };
        if !connection.asked.is_empty() {
            return;
        }
        let granted: Vec<String> = scene.oracle.session(session.view).granted.keys().cloned().collect();
        if granted.is_empty() {
            return;
        }
        let filter = scene.cx.random.pick(&granted).clone();
        if self.kind == Kind::Steady && filter.starts_with(SHARE) {
            return;
        }
        session.next_id = session.next_id % 60_000 + 1;
        let id = 61_000 + session.next_id % 4_000;
        scene.oracle.unsubscribes(session.view, &filter);
        connection.asked.push((id, Vec::new()));
        self.send(scene, unsubscribe(id, &[&filter]));
    }

    fn publishes(&mut self, scene: &mut Scene) {
        let at = scene.time();
        let (Some(connection), Some(session)) = (&mut self.connection, &mut self.session) else { return };
        let random = &mut scene.cx.random;
        let qos = *random.pick(&[AtMostOnce, AtLeastOnce, ExactlyOnce]);
        if qos > AtMostOnce && session.publishes.len() >= PUBLISHES_MAX {
            return;
        }
        let retains = random.percent(10);
        let own = format!("r/{}", self.number);
        let topic = if retains { own.as_str() } else { random.pick(&TOPICS) };
        let number = scene.oracle.next_number();
        // Some payloads are too large to be copied for each receiver, or for a segment.
        let width = if random.percent(4) { 1 + random.below(20_000) } else { 1 };
        let deletes = retains && random.percent(30);
        let payload = if deletes { String::new() } else { format!("{number:.>width$}") };
        let mut packet = message(topic, payload);
        packet.retain = retains;
        if !connection.old && !retains && random.percent(15) {
            packet.expiry = Some(1 + random.below(20) as u32);
        }
        let outgoing = OutgoingPublish {
            link: connection.link,
            topic: topic.to_owned(),
            payload: packet.payload.clone(),
            qos,
            retain: retains,
            expiry: packet.expiry,
            at,
        };
        scene.oracle.publish(outgoing);
        let report = &mut scene.cx.report;
        match qos {
            AtMostOnce => report.published_qos0 += 1,
            AtLeastOnce => report.published_qos1 += 1,
            ExactlyOnce => report.published_qos2 += 1,
        }
        if qos > AtMostOnce {
            session.next_id = session.next_id % 60_000 + 1;
            (packet.qos, packet.packet_id) = (qos, Some(session.next_id));
            let what = if qos == ExactlyOnce { Await::Rec } else { Await::Ack };
            session.publishes.push((session.next_id, number, packet.clone(), what));
        }
        self.send(scene, packet);
    }

    pub(super) fn answers(&mut self, scene: &mut Scene, count: usize) {
        for _ in 0..count {
            let Some(packet) = self.connection.as_mut().and_then(|connection| connection.to_send.pop_front())
            else {
                return;
            };
            self.send(scene, packet);
        }
    }

    /// Time until the next action, microseconds.
    pub fn pace(&self, scene: &mut Scene) -> u64 {
        let mean = if scene.healing { SECOND / 10 } else { SECOND / 2 };
        scene.cx.between(1_000, 2 * mean)
    }
}
