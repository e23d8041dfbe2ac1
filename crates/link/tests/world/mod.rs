//! Nodes with a mesh each, checked against the guarantees of meshes. They share one clock and a network that delays,
//! cuts and swallows bytes.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use link::{
    BufferMax, Class, Config, ConnectionId, Credit, Demand, Event, Identity, Lane, Mesh, MeshConfig,
    MeshEvent, NodeId, Output, Refused, Secret, Time,
};

use random::Random;

/// Specification of a node.
#[derive(Clone)]
pub struct Spec {
    pub name: String,
    pub cluster: u8,
    pub secret: String,
    /// Names of the nodes that it knows; their addresses are their numbers.
    pub peers: Vec<(String, usize)>,
    /// Numbers of the nodes that it dials for discovery, without their names.
    pub seeks: Vec<usize>,
    pub config: MeshConfig,
}

pub struct Node {
    pub spec: Spec,
    pub mesh: Mesh,
    pub is_running: bool,
    /// Frames sent to each peer, and received from it.
    pub peers: BTreeMap<NodeId, Peer>,
    /// Lines of the log.
    pub log: Vec<(Time, String, String)>,
    pub dials: u64,
    /// Number of wake-ups without input.
    pub wakeups: u64,
    /// Edition of the descriptor, which contains the node's name and this number.
    pub edition: u64,
    /// Introduced nodes: the name, the number in the descriptor, and the address.
    pub introduced: Vec<(Time, String, u64, Option<usize>)>,
}

#[derive(Default)]
pub struct Peer {
    /// Incarnation of the link that sent frames belong to.
    tag: u64,
    sent: BTreeMap<Lane, u64>,
    acknowledged: BTreeMap<Lane, u64>,
    received: BTreeMap<Lane, u64>,
    /// Incarnation that received frames belong to.
    received_tag: Option<u64>,
    credits: VecDeque<Credit>,
    pub ups: u64,
    pub suspects: u64,
    pub restarts: u64,
    pub total: u64,
}

/// One connection. Its first end has dialed.
struct Wire {
    ends: [Option<(usize, ConnectionId)>; 2],
    /// Bytes on the way to each end.
    bytes: [VecDeque<(Time, Bytes)>; 2],
    /// Times at which each end learns, after the bytes, that the other has closed.
    closing: [Option<Time>; 2],
    /// True while bytes on the way to each end vanish.
    swallows: [bool; 2],
    is_slow: bool,
}

pub struct World {
    pub now: Time,
    pub nodes: Vec<Node>,
    wires: Vec<Wire>,
    /// Pairs of nodes that cannot reach each other.
    pub severed: Vec<(usize, usize)>,
    pub random: Random,
    tags: u64,
    pub received: u64,
    retransmitted: u64,
}

/// Returns a configuration that is small enough for short runs to reach every bound.
pub fn config(connections: u8) -> MeshConfig {
    let buffer_max = BufferMax {
        control: 10_000,
        claims: 10_000,
        agreement: 10_000,
        requests: 10_000,
        routes: 10_000,
        assured: 20_000,
        best_effort: 5_000,
    };
    MeshConfig {
        link: Config { window: 3_000, buffer_max, ..Config::default() },
        connections,
        dial_max: Duration::from_secs(2),
        discovery_interval: Duration::from_secs(3),
        handshakes_max: 8,
        ..MeshConfig::default()
    }
}

/// Returns nodes that all know each other.
pub fn specs(count: usize, connections: u8) -> Vec<Spec> {
    let names: Vec<(String, usize)> = (0..count).map(|index| (format!("n{index}"), index)).collect();
    let spec = |index: usize| Spec {
        name: names[index].0.clone(),
        cluster: 1,
        secret: "secret".into(),
        peers: names.iter().filter(|(_, other)| *other != index).cloned().collect(),
        seeks: Vec::new(),
        config: config(connections),
    };
    (0..count).map(spec).collect()
}

fn descriptor(name: &str, edition: u64) -> Bytes {
    format!("{edition} of {name}").into()
}

pub const LANES: [Lane; 3] = [Lane::CONTROL, Lane::CLAIMS, Lane::ROUTES];

pub fn some_lane(random: &mut Random) -> Lane {
    match random.below(8) {
        at @ 0..3 => LANES[at],
        3 => Lane::best_effort(random.below(3) as u8),
        4 => Lane::agreement(random.below(5) as u16),
        5 => Lane::requests(random.below(5) as u16),
        _ => Lane::assured(random.below(5) as u8),
    }
}

impl World {
    pub fn new(specs: Vec<Spec>, seed: u64) -> Self {
        let mut world = Self {
            now: Time(1_000_000),
            nodes: Vec::new(),
            wires: Vec::new(),
            severed: Vec::new(),
            random: Random::new(seed),
            tags: 0,
            received: 0,
            retransmitted: 0,
        };
        for spec in specs {
            let node = world.node(spec);
            world.nodes.push(node);
        }
        world
    }

    fn node(&mut self, spec: Spec) -> Node {
        let name = spec.name.as_str().into();
        self.tags += 1;
        let (edition, descriptor) = (self.tags, descriptor(&spec.name, self.tags));
        let identity = Identity { name, cluster: [spec.cluster; 16], features: 3, descriptor };
        let mut random = Random::new(self.random.draw());
        let bytes =
            move |bytes: &mut [u8]| bytes.iter_mut().for_each(|byte| *byte = (random.draw() >> 40) as u8);
        let secret = Secret::new(spec.secret.as_bytes());
        let mut mesh = Mesh::new(identity, secret, Box::new(bytes), spec.config.clone());
        let mut peers = BTreeMap::new();
        for (name, address) in &spec.peers {
            mesh.add_peer(self.now, name, &address.to_string());
            self.tags += 1;
            peers.insert(NodeId::of_name(name), Peer { tag: self.tags, ..Peer::default() });
        }
        for address in &spec.seeks {
            mesh.discover(self.now, &address.to_string());
        }
        let (log, introduced) = (Vec::new(), Vec::new());
        Node { spec, mesh, is_running: true, peers, log, dials: 0, wakeups: 0, edition, introduced }
    }

    /// Changes the descriptor of a node.
    pub fn change_descriptor(&mut self, at: usize) {
        self.tags += 1;
        let node = &mut self.nodes[at];
        node.edition = self.tags;
        node.mesh.set_descriptor(self.now, descriptor(&node.spec.name, node.edition));
    }

    /// Checks that an introduced node exists.
    fn introduced(&mut self, at: usize, name: &str, said: &Bytes, address: Option<&str>) {
        let address = address.map(|address| address.parse::<usize>().expect("a number"));
        let is_of = |node: &&Node| *node.spec.name == *name;
        let found = match address {
            Some(address) => self.nodes.get(address).filter(is_of),
            None => self.nodes.iter().find(is_of),
        };
        let (found, own) = (found.expect("it is there by that name"), &self.nodes[at].spec);
        assert_eq!((&found.spec.secret, found.spec.cluster), (&own.secret, own.cluster));
        let edition = (1..=found.edition).rev().find(|edition| *said == descriptor(name, *edition));
        let edition = edition.expect("it is the descriptor that the node sends, or has sent");
        self.nodes[at].introduced.push((self.now, name.into(), edition, address));
    }

    /// Returns the last edition of a node's descriptor, as found at an address or received from a dialer.
    pub fn heard_of(&self, at: usize, other: usize, address: Option<usize>) -> Option<u64> {
        let name = &self.nodes[other].spec.name;
        let last = self.nodes[at].introduced.iter().rev().find(|it| it.1 == *name && it.3 == address);
        last.map(|(_, _, edition, _)| *edition)
    }

    pub fn id(&self, node: usize) -> NodeId {
        NodeId::of_name(&self.nodes[node].spec.name)
    }

    /// Sends a frame that carries its number and incarnation.
    pub fn send(&mut self, from: usize, to: usize, lane: Lane, length: usize) -> Result<(), Refused> {
        let (now, to) = (self.now, self.id(to));
        let node = &mut self.nodes[from];
        let peer = node.peers.get_mut(&to).expect("a peer");
        let next = peer.sent.entry(lane).or_default();
        let mut frame = [peer.tag.to_le_bytes(), next.to_le_bytes()].concat();
        frame.resize(length.max(16), 7);
        let number = node.mesh.send(now, to, lane, frame.into())?;
        if lane.class().is_resumed() {
            assert_eq!(number, *next, "numbers count frames");
        }
        *next += 1;
        Ok(())
    }

    /// Returns credit for up to `count` frames of each peer.
    pub fn consume(&mut self, node: usize, count: usize) {
        let node = &mut self.nodes[node];
        for (id, peer) in &mut node.peers {
            for credit in peer.credits.drain(..count.min(peer.credits.len())) {
                node.mesh.consume(*id, credit);
            }
        }
    }

    /// Lets time pass, and handles the events in it.
    pub fn pass(&mut self, milliseconds: u64) {
        let end = Time(self.now.0 + milliseconds * 1_000);
        while self.now < end {
            self.now = Time((self.now.0 + 5_000).min(end.0));
            self.arrive();
            for node in 0..self.nodes.len() {
                self.turn(node);
            }
        }
    }

    /// Lets time pass while all nodes consume what arrives.
    pub fn run(&mut self, milliseconds: u64) {
        for _ in 0..milliseconds / 10 {
            self.pass(10);
            (0..self.nodes.len()).for_each(|node| self.consume(node, usize::MAX));
        }
    }

    fn turn(&mut self, at: usize) {
        if !self.nodes[at].is_running {
            return;
        }
        let now = self.now;
        if self.nodes[at].mesh.timeout() <= now {
            self.nodes[at].mesh.handle_timeout(now);
            self.nodes[at].wakeups += 1;
        }
        self.settle(at);
        while let Some(id) = self.nodes[at].mesh.poll_writable() {
            let budget = [1, 1_000, 100_000][self.random.below(3)];
            let mut out = Output::default();
            self.nodes[at].mesh.output(now, id, budget, &mut out);
            let bytes: Bytes = out.take().concat().into();
            let wire = self.wires.iter_mut().enumerate().find_map(|(index, wire)| {
                let end = wire.ends.iter().position(|end| *end == Some((at, id)))?;
                Some((index, end))
            });
            if let Some((wire, end)) = wire {
                self.put(wire, 1 - end, bytes);
            }
        }
        self.nodes[at].mesh.check_invariants();
        self.settle(at);
    }

    fn put(&mut self, wire: usize, to: usize, bytes: Bytes) {
        let wire = &mut self.wires[wire];
        let delay = if wire.is_slow { 300_000 } else { 20_000 };
        let after = wire.bytes[to].back().map_or(Time(0), |(time, _)| *time);
        let at = Time(self.now.0 + self.random.below(delay) as u64).max(after);
        if !bytes.is_empty() && !wire.swallows[to] {
            wire.bytes[to].push_back((at, bytes));
        }
    }

    fn arrive(&mut self) {
        for index in 0..self.wires.len() {
            for end in [0, 1] {
                self.arrive_at(index, end);
            }
        }
        self.wires.retain(|wire| wire.ends.iter().any(Option::is_some));
    }

    fn arrive_at(&mut self, index: usize, end: usize) {
        let now = self.now;
        loop {
            let wire = &mut self.wires[index];
            let Some((node, id)) = wire.ends[end] else { return };
            if wire.bytes[end].front().is_none_or(|(time, _)| *time > now) {
                break;
            }
            let (_, mut bytes) = wire.bytes[end].pop_front().expect("it is there");
            while !bytes.is_empty() {
                let count = 1 + self.random.below(bytes.len());
                self.nodes[node].mesh.input(now, id, bytes.split_to(count));
                self.settle(node);
            }
        }
        let wire = &mut self.wires[index];
        if wire.bytes[end].is_empty() && wire.closing[end].is_some_and(|time| time <= now) {
            let (node, id) = wire.ends[end].take().expect("it is open");
            self.nodes[node].mesh.closed(now, id, "the peer closed it");
            self.settle(node);
        }
    }

    /// Carries out the demands of a mesh, and checks its events.
    fn settle(&mut self, at: usize) {
        while let Some(demand) = self.nodes[at].mesh.poll_demand() {
            match demand {
                Demand::Dial { connection, peer, address } => {
                    self.nodes[at].dials += u64::from(peer.is_some());
                    self.dial(at, connection, address.parse().expect("a number"));
                }
                Demand::Close { connection, last, .. } => self.hang_up(at, connection, last),
            }
        }
        while let Some(event) = self.nodes[at].mesh.poll_event() {
            match event {
                MeshEvent::Refused { address, reason, suppressed, is_transient, .. } => {
                    assert!(
                        !reason.is_empty()
                            && !address.is_empty()
                            && suppressed.is_none_or(|count| count < 100_000)
                    );
                    let is_nothing =
                        reason.contains("as a member yet") || reason.contains("it ended the connection");
                    assert_eq!(is_transient, is_nothing, "{reason}");
                    if suppressed.is_some() {
                        self.nodes[at].log.push((self.now, address.into(), reason.into()));
                    }
                }
                MeshEvent::UnauthenticatedLimit { address, closed } => {
                    self.unauthenticated_closed(at, address, closed)
                }
                MeshEvent::Link { peer, event } => self.happened(at, peer, event),
                MeshEvent::Introduced { name, descriptor, address } => {
                    self.introduced(at, &name, &descriptor, address.as_deref());
                }
            }
        }
    }

    fn unauthenticated_closed(&mut self, at: usize, address: IpAddr, closed: u64) {
        self.nodes[at].log.push((self.now, address.to_string(), format!("{closed} made room")));
    }

    fn can_reach(&self, from: usize, to: usize) -> bool {
        !self.severed.iter().any(|pair| *pair == (from, to) || *pair == (to, from))
    }

    fn dial(&mut self, from: usize, id: ConnectionId, to: usize) {
        let now = self.now;
        let is_there = self.nodes.get(to).is_some_and(|node| node.is_running);
        if !self.can_reach(from, to) && self.random.below(2) == 0 {
            // No node answers: the mesh gives up by itself.
            return;
        }
        if !is_there || !self.can_reach(from, to) {
            return self.nodes[from].mesh.closed(now, id, "connection refused");
        }
        let address = ([10, 0, 0, from as u8], id.number() as u16).into();
        let Some(accepted) = self.nodes[to].mesh.accepted(now, address) else {
            return self.nodes[from].mesh.closed(now, id, "connection reset");
        };
        self.wires.push(Wire {
            ends: [Some((from, id)), Some((to, accepted))],
            bytes: Default::default(),
            closing: [None; 2],
            swallows: [false; 2],
            is_slow: self.random.below(10) == 0,
        });
        self.nodes[from].mesh.dialed(now, id);
    }

    fn hang_up(&mut self, at: usize, id: ConnectionId, last: Bytes) {
        let ends = self.wires.iter().enumerate().find_map(|(index, wire)| {
            Some((index, wire.ends.iter().position(|end| *end == Some((at, id)))?))
        });
        let Some((index, end)) = ends else { return };
        self.put(index, 1 - end, last);
        self.wires[index].ends[end] = None;
        self.wires[index].bytes[end].clear();
        if !self.wires[index].swallows[1 - end] {
            self.wires[index].closing[1 - end] = Some(Time(self.now.0 + 10_000));
        }
    }

    fn happened(&mut self, at: usize, from: NodeId, event: Event) {
        self.tags += 1;
        let tag = self.tags;
        let peer = self.nodes[at].peers.get_mut(&from).expect("a peer that it knows");
        match event {
            Event::Received { lane, number, frame, credit } => {
                let said = |at: usize| {
                    u64::from_le_bytes(
                        frame[at..at + 8].try_into().expect("frames carry their incarnation and number"),
                    )
                };
                let (tag, sent) = (said(0), said(8));
                assert_eq!(
                    *peer.received_tag.get_or_insert(tag),
                    tag,
                    "of one incarnation until it is reported to be over"
                );
                let next = peer.received.entry(lane).or_default();
                if lane.class().is_resumed() {
                    assert_eq!((number, sent), (*next, *next), "every number once and in order");
                } else {
                    assert!(sent >= *next, "in order, nothing twice");
                }
                *next = sent + 1;
                peer.total += 1;
                peer.credits.push_back(credit);
                self.received += 1;
            }
            Event::Acknowledged { lane, next } => {
                let before = peer.acknowledged.insert(lane, next);
                assert!(before.is_none_or(|before| before < next), "acknowledgements go on");
                assert!(next <= peer.sent[&lane]);
            }
            Event::Restarted => {
                let Peer { ups, suspects, restarts, total, .. } = *peer;
                let credits = std::mem::take(&mut peer.credits);
                *peer =
                    Peer { tag, ups, suspects, restarts: restarts + 1, total, credits, ..Peer::default() };
            }
            Event::Up => peer.ups += 1,
            Event::Suspect => peer.suspects += 1,
            Event::Continued => panic!("no restart was expected"),
            Event::Silent { .. } => panic!("that is between the mesh and its links"),
        }
    }

    /// Returns the number of some connection, if there is one.
    fn some_wire(&mut self) -> Option<usize> {
        (!self.wires.is_empty()).then(|| self.random.below(self.wires.len()))
    }

    /// Ends a connection, with the bytes in transit.
    pub fn cut(&mut self) {
        let Some(wire) = self.some_wire() else { return };
        let wire = &mut self.wires[wire];
        wire.closing = [Some(self.now); 2];
        wire.bytes.iter_mut().for_each(VecDeque::clear);
    }

    /// Makes a connection swallow bytes, one way or both, without a notice to either end.
    pub fn swallow(&mut self) {
        let Some(wire) = self.some_wire() else { return };
        let directions = [[true, true], [true, false], [false, true]][self.random.below(3)];
        for (direction, swallows) in directions.into_iter().enumerate() {
            self.wires[wire].swallows[direction] |= swallows;
            if swallows {
                self.wires[wire].bytes[direction].clear();
            }
        }
    }

    /// Separates two nodes: they cannot reach each other from now on.
    pub fn sever(&mut self, one: usize, other: usize) {
        self.severed.push((one, other));
        for wire in &mut self.wires {
            let nodes: Vec<usize> = wire.ends.iter().flatten().map(|(node, _)| *node).collect();
            if nodes.contains(&one) && nodes.contains(&other) {
                wire.swallows = [true; 2];
                wire.bytes.iter_mut().for_each(VecDeque::clear);
            }
        }
    }

    /// Stops a node, with or without its system closing the connections.
    pub fn stop(&mut self, at: usize, is_told: bool) {
        self.retransmitted += self.retransmitted_of(at);
        self.nodes[at].is_running = false;
        for wire in &mut self.wires {
            for end in [0, 1] {
                if wire.ends[end].is_some_and(|(node, _)| node == at) {
                    wire.ends[end] = None;
                    wire.closing[1 - end] = is_told.then_some(self.now);
                    wire.swallows[1 - end] |= !is_told;
                }
            }
        }
    }

    /// Starts a node again, without memory.
    pub fn start(&mut self, at: usize) {
        let spec = self.nodes[at].spec.clone();
        self.nodes[at] = self.node(spec);
    }

    /// Returns whether every node that knows another is joined to it.
    pub fn is_joined(&self) -> bool {
        self.nodes.iter().all(|node| node.mesh.peers().all(|peer| peer.is_up))
    }

    /// Heals the network: all nodes are joined, and every frame that must arrive does.
    pub fn heal(&mut self) {
        self.severed.clear();
        self.run(20_000);
        assert!(self.is_joined());
        for from in 0..self.nodes.len() {
            for to in 0..self.nodes.len() {
                if from != to {
                    self.check_arrived(from, to);
                }
            }
        }
    }

    /// Checks that all frames from one node to another have arrived.
    pub fn check_arrived(&self, from: usize, to: usize) {
        let sender = &self.nodes[from].peers[&self.id(to)];
        let receiver = &self.nodes[to].peers[&self.id(from)];
        for (lane, sent) in &sender.sent {
            if lane.class().is_resumed() && *sent > 0 {
                assert_eq!(receiver.received_tag, Some(sender.tag), "they belong to the same incarnations");
                assert_eq!(receiver.received.get(lane), Some(sent), "nothing is missing on {lane:?}");
                assert_eq!(sender.acknowledged.get(lane), Some(sent));
            }
        }
        let status = self.nodes[from].mesh.peer(self.id(to)).expect("a peer");
        assert!(status.waiting(self.now).all(|(_, waiting)| waiting == (0, 0, 0)), "nothing waits");
    }

    pub fn retransmitted(&self) -> u64 {
        self.retransmitted + (0..self.nodes.len()).map(|node| self.retransmitted_of(node)).sum::<u64>()
    }

    fn retransmitted_of(&self, node: usize) -> u64 {
        let of =
            |class| self.nodes[node].mesh.peers().map(move |it| it.link.counters().of(class).retransmitted);
        [Class::Claims, Class::Requests, Class::Routes, Class::Assured].into_iter().flat_map(of).sum()
    }

    /// Returns how many lines in the log of a node have a reason that contains `part`.
    pub fn said(&self, node: usize, part: &str) -> usize {
        self.nodes[node].log.iter().filter(|(_, _, reason)| reason.contains(part)).count()
    }

    /// Connects to a node without joining and sends bytes; returns whether the node closed the connection, and its
    /// answer.
    pub fn unauthenticated(&mut self, to: usize, pieces: &[&[u8]]) -> (bool, Vec<u8>) {
        self.unauthenticated_from(9, to, pieces)
    }

    /// Connects like [`Self::unauthenticated`], from the address 10.9.9.`last`.
    pub fn unauthenticated_from(&mut self, last: u8, to: usize, pieces: &[&[u8]]) -> (bool, Vec<u8>) {
        let now = self.now;
        let from = ([10, 9, 9, last], 99).into();
        let Some(id) = self.nodes[to].mesh.accepted(now, from) else { return (true, Vec::new()) };
        let mut said = Vec::new();
        for piece in pieces {
            self.nodes[to].mesh.input(now, id, Bytes::copy_from_slice(piece));
            let mut out = Output::default();
            self.nodes[to].mesh.output(now, id, 1 << 20, &mut out);
            said.extend(out.take().concat());
            self.nodes[to].mesh.check_invariants();
        }
        let mut is_closed = false;
        while let Some(demand) = self.nodes[to].mesh.poll_demand() {
            match demand {
                Demand::Close { connection, last, .. } if connection == id => {
                    is_closed = true;
                    said.extend(last);
                }
                Demand::Dial { connection, .. } => self.nodes[to].mesh.closed(now, connection, "not now"),
                Demand::Close { connection, last, .. } => self.hang_up(to, connection, last),
            }
        }
        while let Some(event) = self.nodes[to].mesh.poll_event() {
            match event {
                MeshEvent::Refused { address, reason, suppressed: Some(_), .. } => {
                    self.nodes[to].log.push((now, address.into(), reason.into()));
                }
                MeshEvent::Refused { .. } => {}
                MeshEvent::UnauthenticatedLimit { address, closed } => {
                    self.unauthenticated_closed(to, address, closed)
                }
                MeshEvent::Link { peer, event } => self.happened(to, peer, event),
                MeshEvent::Introduced { name, descriptor, address } => {
                    self.introduced(to, &name, &descriptor, address.as_deref());
                }
            }
        }
        (is_closed, said)
    }
}
