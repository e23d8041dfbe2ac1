//! A client with random behaviour that knows which packets it may expect.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use mqtt::QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};
use mqtt::Version::{V3_1_1, V5};
use mqtt::{QoS, ReasonCode};

use crate::net::{Net, Peer};
use crate::oracle::{Oracle, SHARE};
use random::Random;
use testkit::packets::*;

/// State that all actors share.
pub struct Simulation {
    pub net: Net,
    pub random: Random,
    pub oracle: Oracle,
    /// Connections whose client has received CONNACK.
    served: BTreeMap<String, Vec<Peer>>,
    connections: usize,
    /// Prints everything that clients send and receive.
    traces: bool,
}

pub struct Actor {
    name: String,
    /// Always a durable member of the group that neither leaves it nor starts clean.
    steady: bool,
    link: Option<Link>,
    session: Option<Session>,
    /// True while a CONNECT with Clean Start is not answered: the state of the previous session is unknown.
    must_clean: bool,
    /// Worker of the last connection.
    index: usize,
}

/// One connection.
struct Link {
    peer: Peer,
    number: usize,
    durable: bool,
    clean: bool,
    accepted: bool,
    /// Acknowledgements that the client sends later.
    to_send: VecDeque<Sent>,
    /// Filters that were requested and not answered; an empty one was requested again meanwhile.
    asked: Vec<(u16, Vec<(String, QoS)>)>,
    will: Option<usize>,
}

/// The client's part of a session.
#[derive(Default)]
struct Session {
    /// Number of the session in the oracle.
    view: usize,
    durable: bool,
    next_id: u16,
    /// Publishes whose exchange has not ended, in order: identifier, number, message, awaited packet.
    publishes: Vec<(u16, usize, Message, Await)>,
    /// QoS 2 identifiers received and not released.
    received: BTreeSet<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Await {
    Ack,
    Rec,
    Comp,
}

const PUBLISHES_MAX: usize = 12;
const TOPICS: [&str; 6] = ["t/0", "t/1", "t/2/x", "s/0", "s/1", "w/x"];
const FILTERS: [&str; 8] = ["t/0", "t/1", "t/#", "t/+", "t/+/x", "w/#", "r/#", "t/2/#"];

impl Simulation {
    pub fn new(net: Net, random: Random, oracle: Oracle) -> Self {
        Self {
            net,
            random,
            oracle,
            served: BTreeMap::new(),
            connections: 0,
            traces: std::env::var_os("MERIDIAN_SIM_TRACE").is_some(),
        }
    }

    fn send(&mut self, peer: Peer, packet: impl Into<Sent>) {
        let packet = packet.into();
        if self.traces {
            eprintln!("{} sends {packet:?}", peer.0);
        }
        self.net.send_without_running(peer, packet);
    }

    pub fn step(&mut self) {
        self.net.step(Some(&mut self.random));
    }

    /// [MQTT-3.1.4-3]
    pub fn check_one_connection_each(&mut self) {
        let net = &self.net;
        for (name, peers) in &mut self.served {
            peers.retain(|peer| !net.is_over(*peer));
            assert!(peers.len() <= 1, "{name} is served on {} connections", peers.len());
        }
    }
}

impl Session {
    /// Moves a publish one step further, or to its end. Returns its number, unless no such packet is awaited.
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

impl Actor {
    pub fn new(number: usize) -> Self {
        Self {
            name: format!("actor {number}"),
            steady: number == 0,
            link: None,
            session: None,
            must_clean: false,
            index: 0,
        }
    }

    /// Takes one random action.
    pub fn acts(&mut self, simulation: &mut Simulation) {
        self.listens(simulation);
        let Some(link) = &self.link else { return self.connects(simulation) };
        if !link.accepted && link.clean {
            return; // A client that asks for a clean start waits for the answer.
        }
        if !link.accepted {
            // CONNACK takes long: the client may give up, or try elsewhere.
            return match simulation.random.below(10) {
                0 => self.loses(simulation),
                1 => self.connects(simulation),
                _ => {}
            };
        }
        match simulation.random.below(100) {
            0..=3 => self.loses(simulation),
            4..=5 => self.says_goodbye(simulation),
            6..=8 => self.connects(simulation),
            9..=20 => self.subscribes(simulation),
            21..=24 => self.unsubscribes(simulation),
            25..=27 => {
                let peer = link.peer;
                match simulation.random.percent(50) {
                    true => simulation.net.stop_reading(peer),
                    false => simulation.net.go_on_reading_without_running(peer),
                }
            }
            28..=70 => self.publishes(simulation),
            _ => {
                let count = simulation.random.below(8);
                self.answers(simulation, count);
            }
        }
    }

    /// Handles all received packets.
    pub fn listens(&mut self, simulation: &mut Simulation) {
        let Some(link) = &self.link else { return };
        let peer = link.peer;
        for packet in simulation.net.received(peer) {
            if simulation.traces {
                eprintln!("{} on {} gets {packet:?}", self.name, peer.0);
            }
            self.takes(simulation, packet);
        }
    }

    /// Finishes the remaining work step by step; returns false when there is none.
    pub fn heals(&mut self, simulation: &mut Simulation) -> bool {
        match &self.link {
            // A client that may have a session it no longer wants connects too: messages that wait there are for
            // others.
            None => {
                let durable = self.session.as_ref().is_some_and(|session| session.durable);
                let connects = self.steady || self.must_clean || durable;
                if connects {
                    self.connects(simulation);
                }
                connects
            }
            Some(link) => {
                let peer = link.peer;
                simulation.net.go_on_reading_without_running(peer);
                let before = simulation.net.client(peer).arrived();
                self.listens(simulation);
                let idle = self.link.as_ref().is_some_and(|link| link.to_send.is_empty());
                self.answers(simulation, usize::MAX);
                let waits = self.link.as_ref().is_some_and(|link| !link.asked.is_empty());
                !idle || before > 0 || waits
            }
        }
    }

    /// Checks that nothing that it sent is without an answer.
    pub fn check_all_answered(&self) {
        let Some(link) = &self.link else { return };
        assert!(link.accepted, "{} never received CONNACK", self.name);
        assert!(link.asked.is_empty(), "{} waits for SUBACK", self.name);
        let publishes = self.session.as_ref().map(|session| &session.publishes);
        let waiting: Vec<_> =
            publishes.into_iter().flatten().map(|(id, number, _, what)| (id, number, what)).collect();
        assert!(waiting.is_empty(), "{} waits for the acknowledgement of {waiting:?}", self.name);
    }

    fn connects(&mut self, simulation: &mut Simulation) {
        let taken_over = self.link.take();
        if let Some(link) = &taken_over {
            // The client leaves the old connection to the server, and looks at it no more.
            self.connection_ends(simulation, link);
        }
        let resumes = self.session.as_ref().is_some_and(|session| session.durable) && !self.must_clean;
        let waits = taken_over.as_ref().is_some_and(|link| !link.accepted);
        let may_clean = !self.steady && !waits;
        let clean = may_clean && (!resumes || simulation.random.percent(20));
        let durable = !clean || simulation.random.percent(50);
        if clean {
            if !self.must_clean {
                self.index = simulation.random.below(3);
            }
            self.must_clean = true;
            self.session_ends(simulation);
        }
        let version = if simulation.random.percent(50) { V5 } else { V3_1_1 };
        let connecting = v5(&self.name);
        let mut connecting = Connecting { version, clean_start: clean, ..connecting };
        if version == V3_1_1 {
            // Clean Session is both.
            if clean && durable {
                connecting.version = V5;
            }
        }
        if connecting.version == V5 {
            connecting.expiry = durable.then_some(DAY);
            connecting.receive_max =
                simulation.random.percent(60).then(|| 1 + simulation.random.below(4) as u16);
            connecting.alias_max = simulation.random.percent(30).then_some(2);
        }
        simulation.connections += 1;
        let number = simulation.connections;
        let mut will = None;
        if simulation.random.percent(50) {
            let of_will = simulation.oracle.will(number, "w/y", ExactlyOnce);
            connecting = connecting.will(message("w/y", of_will).qos(ExactlyOnce));
            will = Some(of_will);
        }
        // The effects of a CONNECT with Clean Start without an answer precede those of another one on the same worker.
        let index = if self.must_clean { self.index } else { simulation.random.below(3) };
        self.index = index;
        let peer = simulation.net.open(index, connecting.version);
        simulation.send(peer, connecting);
        self.link = Some(Link {
            peer,
            number,
            durable,
            clean,
            accepted: false,
            to_send: VecDeque::new(),
            asked: Vec::new(),
            will,
        });
    }

    fn session_ends(&mut self, simulation: &mut Simulation) {
        if let Some(session) = self.session.take() {
            simulation.oracle.session_ends(session.view);
            for (_, number, _, what) in session.publishes {
                if what != Await::Comp {
                    simulation.oracle.abandoned(number);
                }
            }
        }
    }

    fn connection_ends(&mut self, simulation: &mut Simulation, link: &Link) {
        if !link.accepted {
            return;
        }
        if let Some(session) = &self.session {
            simulation.oracle.connection_ends(session.view);
        }
        if !link.durable {
            self.session_ends(simulation);
        }
    }

    fn loses(&mut self, simulation: &mut Simulation) {
        let Some(link) = self.link.take() else { return };
        // Unless the server has closed the connection before: then its Will was published some time ago.
        let is_due = link.accepted && !simulation.net.is_over(link.peer);
        simulation.net.lose_without_running(link.peer);
        self.connection_ends(simulation, &link);
        if let Some(will) = link.will.filter(|_| is_due) {
            simulation.oracle.will_is_due(will);
        }
    }

    fn says_goodbye(&mut self, simulation: &mut Simulation) {
        let Some(link) = self.link.take() else { return };
        let open = !simulation.net.is_over(link.peer);
        simulation.send(link.peer, goodbye());
        let taken = open && simulation.net.client(link.peer).unsent.is_empty();
        if let Some(will) = link.will.filter(|_| taken) {
            simulation.oracle.must_never_arrive(will);
        }
        self.connection_ends(simulation, &link);
    }

    fn subscribes(&mut self, simulation: &mut Simulation) {
        let (Some(link), Some(session)) = (&mut self.link, &mut self.session) else { return };
        if link.asked.len() > 3 {
            return;
        }
        session.next_id = session.next_id % 60_000 + 1;
        // Packet Identifiers of subscriptions are separate from those of publishes.
        let id = 61_000 + session.next_id % 4_000;
        let mut filters = Vec::new();
        for _ in 0..1 + simulation.random.below(2) {
            let filter = (*simulation.random.pick(&FILTERS)).to_owned();
            let qos = *simulation.random.pick(&[AtMostOnce, AtLeastOnce, ExactlyOnce]);
            filters.push((filter, qos));
        }
        if self.steady || simulation.random.percent(20) {
            let qos = *simulation.random.pick(&[AtLeastOnce, ExactlyOnce]);
            filters.push((format!("{SHARE}s/#"), qos));
        }
        let mut packet = subscribe(id);
        if simulation.random.percent(2) {
            // So many filters take more than one turn. Nobody publishes to them.
            let unused = (0..300).map(|number| format!("unused/{number}"));
            packet = unused.fold(packet, |packet, filter| packet.to(&filter, AtMostOnce));
            filters.splice(0..0, vec![(String::new(), AtMostOnce); 300]);
        }
        for (filter, qos) in filters.iter().filter(|(filter, _)| !filter.is_empty()) {
            // Until it is granted again, it is unknown at which QoS messages are owed.
            simulation.oracle.unsubscribes(session.view, filter);
            let earlier = link.asked.iter_mut().flat_map(|(_, asked)| asked);
            earlier.filter(|(other, _)| other == filter).for_each(|(other, _)| other.clear());
            packet = packet.to(filter, *qos);
        }
        link.asked.push((id, filters));
        simulation.send(link.peer, packet);
    }

    fn unsubscribes(&mut self, simulation: &mut Simulation) {
        let (Some(link), Some(session)) = (&mut self.link, &mut self.session) else { return };
        if !link.asked.is_empty() {
            return;
        }
        let granted: Vec<String> = simulation.oracle.session(session.view).granted.keys().cloned().collect();
        if granted.is_empty() {
            return;
        }
        let filter = simulation.random.pick(&granted).clone();
        if self.steady && filter.starts_with(SHARE) {
            return;
        }
        session.next_id = session.next_id % 60_000 + 1;
        let id = 61_000 + session.next_id % 4_000;
        simulation.oracle.unsubscribes(session.view, &filter);
        link.asked.push((id, Vec::new()));
        simulation.send(link.peer, unsubscribe(id, &[&filter]));
    }

    fn publishes(&mut self, simulation: &mut Simulation) {
        let (Some(link), Some(session)) = (&mut self.link, &mut self.session) else { return };
        let mut qos = *simulation.random.pick(&[AtMostOnce, AtLeastOnce, ExactlyOnce]);
        if simulation.oracle.flaky {
            // An identifier is remembered separately from its message, so one can fail without the other.
            qos = qos.min(AtLeastOnce);
        }
        if qos > AtMostOnce && session.publishes.len() >= PUBLISHES_MAX {
            return;
        }
        let retains = simulation.random.percent(10);
        let own = format!("r/{}", self.name);
        let topic = if retains { own.as_str() } else { simulation.random.pick(&TOPICS) };
        let number = simulation.oracle.publish(link.number, topic, qos);
        if retains {
            simulation.oracle.retains(number);
        }
        // Some messages are too large to be copied for each receiver.
        let width = if simulation.random.percent(4) { 20_000 } else { 1 };
        let mut packet = message(topic, format!("{number:0width$}"));
        packet.retain = retains;
        if qos > AtMostOnce {
            session.next_id = session.next_id % 60_000 + 1;
            (packet.qos, packet.packet_id) = (qos, Some(session.next_id));
            let what = if qos == ExactlyOnce { Await::Rec } else { Await::Ack };
            session.publishes.push((session.next_id, number, packet.clone(), what));
        }
        simulation.send(link.peer, packet);
    }

    fn answers(&mut self, simulation: &mut Simulation, count: usize) {
        let Some(link) = &mut self.link else { return };
        for _ in 0..count {
            let Some(packet) = link.to_send.pop_front() else { return };
            simulation.send(link.peer, packet);
        }
    }

    fn takes(&mut self, simulation: &mut Simulation, packet: Sent) {
        let Some(link) = &mut self.link else { return };
        if let Sent::ConnAck { session_present, reason } = packet {
            if reason != ReasonCode::Success {
                return; // Another of its own connections took over; the end of this one follows.
            }
            return self.is_accepted(simulation, session_present);
        }
        if packet == Sent::Closed || matches!(packet, Sent::Disconnect { .. }) {
            if packet == Sent::Closed
                && let Some(link) = self.link.take()
            {
                self.connection_ends(simulation, &link);
            }
            return;
        }
        let Some(session) = &mut self.session else { panic!("{packet:?} before CONNACK") };
        match packet {
            Sent::PubAck(id, reason) => {
                let number = session.settle(id, Await::Ack, None).expect("PUBACK of a publish");
                assert!(!reason.is_error() || simulation.oracle.flaky);
                if !reason.is_error() {
                    simulation.oracle.acknowledged(number);
                }
            }
            Sent::PubRec(id, reason) => {
                assert!(!reason.is_error());
                if let Some(number) = session.settle(id, Await::Rec, Some(Await::Comp)) {
                    simulation.oracle.acknowledged(number);
                }
                link.to_send.push_back(pubrel(id));
            }
            Sent::PubComp(id, _) => {
                session.settle(id, Await::Comp, None);
            }
            Sent::PubRel(id, reason) => {
                assert_eq!(reason, ReasonCode::Success);
                session.received.remove(&id);
                link.to_send.push_back(pubcomp(id));
            }
            Sent::Publish(message) => {
                let number = message.payload.trim_start_matches('0').parse().unwrap_or(0);
                let new = match (message.qos, message.packet_id) {
                    (ExactlyOnce, Some(id)) => {
                        link.to_send.push_back(pubrec(id));
                        session.received.insert(id)
                    }
                    (AtLeastOnce, Some(id)) => {
                        link.to_send.push_back(puback(id));
                        true
                    }
                    _ => true,
                };
                if new && !message.retain {
                    simulation.oracle.arrives(session.view, number, message.qos);
                }
            }
            Sent::SubAck(id, reasons) => {
                let at =
                    link.asked.iter().position(|(known, _)| *known == id).expect("SUBACK of a SUBSCRIBE");
                let (_, filters) = link.asked.remove(at);
                assert_eq!(reasons.len(), filters.len());
                for ((filter, qos), reason) in filters.into_iter().zip(reasons) {
                    assert!(!reason.is_error() || simulation.oracle.flaky);
                    if !filter.is_empty() && !reason.is_error() {
                        simulation.oracle.group_is_steady |= self.steady && filter.starts_with(SHARE);
                        simulation.oracle.session(session.view).granted.insert(filter, qos);
                    }
                }
            }
            Sent::UnsubAck(id, _) => {
                let at = link.asked.iter().position(|(known, _)| *known == id).expect("UNSUBACK");
                link.asked.remove(at);
            }
            other => panic!("{other:?}"),
        }
    }

    fn is_accepted(&mut self, simulation: &mut Simulation, session_present: bool) {
        let Some(link) = &mut self.link else { return };
        link.accepted = true;
        simulation.served.entry(self.name.clone()).or_default().push(link.peer);
        assert!(!(link.clean && session_present), "Clean Start finds a session");
        if link.clean {
            self.must_clean = false;
        }
        match &mut self.session {
            Some(session) => {
                assert!(session_present, "the session of {} is lost", self.name);
                simulation.oracle.session(session.view).connected = true;
                // [MQTT-4.4.0-1]
                for (id, number, message, what) in &session.publishes {
                    if *what == Await::Comp {
                        link.to_send.push_back(pubrel(*id));
                    } else {
                        simulation.oracle.repeat(*number, link.number);
                        link.to_send.push_back(message.clone().dup().into());
                    }
                }
                // New publishes come after these.
                while let Some(packet) = link.to_send.pop_front() {
                    simulation.send(link.peer, packet);
                }
            }
            None => {
                let view = simulation.oracle.new_session(link.durable);
                if simulation.traces {
                    eprintln!("{} has session {view}", self.name);
                }
                self.session = Some(Session { view, durable: link.durable, ..Session::default() });
            }
        }
    }
}
