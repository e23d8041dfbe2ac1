use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use broker::access::AllowAll;
use broker::peers::{Announce, Inbound, MemberIncarnations, Outbound, SubackLevel};
use broker::settings::Settings;
use broker::{Frame, Ticket, WorkerCommand};
use link::{BufferMax, ConnectionId, Demand, Identity, Mesh, MeshConfig, Output, Secret};
use replog::{Batching, Incarnation, Position};

use super::*;
use crate::config::{Config, ForwardAck, LeaderPolicy, NodeInfo, Replicas, Role, WithoutQuorum};
use crate::features::{FEATURES, SHARDS as FEATURE};
use crate::meta::{Meta, MetaConfig, RecordSyncConfig};
use crate::router::RouterCommand;
use crate::shard_positions::shard_of;

const WORKERS: u16 = 2;
const NAMES: [&str; 3] = ["a", "b", "c"];
/// A shard of worker 1, and a frame.
const SHARD: ShardId = ShardId(3);
const FRAME: &[u8] = b"a request";

type Posted = Arc<Mutex<VecDeque<(WorkerId, WorkerCommand)>>>;

/// Everything that the router has passed to the workers of a node.
#[derive(Debug, Default)]
struct Found {
    frames: Vec<(WorkerId, ShardFrame)>,
    leaders: Vec<(WorkerId, u16, Leader)>,
    lost: Vec<(WorkerId, u64)>,
    open: Vec<(WorkerId, u64)>,
    incarnations: Vec<(WorkerId, u64)>,
    members: Vec<(WorkerId, Arc<MemberIncarnations>)>,
    /// Nodes that the shards have lost the links to.
    agreements_lost: Vec<(ShardId, u64)>,
    agreement_frames: Vec<(ShardId, u64)>,
    /// SUBACKs by the slot of their connection, and whether they are sent.
    announced: Vec<(u32, bool)>,
}

struct Host {
    router: ClusterRouter,
    posted: Posted,
    /// Batches that workers have and do not report as taken.
    kept: Vec<(WorkerId, u32)>,
    keeps: bool,
    found: Found,
}

/// Routers that are members of each other, and the connections between them. No cores agree on anything here.
struct World {
    now: Time,
    hosts: Vec<Host>,
    features: [u64; 3],
    wires: Vec<[(usize, ConnectionId); 2]>,
    severed: bool,
    seed: u64,
}

fn id(at: usize) -> NodeId {
    NodeId::of_name(NAMES[at])
}

fn info(at: usize) -> NodeInfo {
    let address = at.to_string().into();
    NodeInfo { name: NAMES[at].into(), role: Role::Replicant, region: "r".into(), address }
}

impl World {
    fn new(features: [u64; 3]) -> Self {
        let mut world = Self {
            now: Time(1_000_000),
            hosts: Vec::new(),
            features,
            wires: Vec::new(),
            severed: false,
            seed: 1,
        };
        world.hosts = (0..3).map(|at| world.host(at)).collect();
        world.run();
        world
    }

    fn host(&mut self, at: usize) -> Host {
        let posted = Posted::default();
        let node = Node::new(Settings::default(), Arc::new(AllowAll), "test".into(), WORKERS, [at as u8; 16]);
        let mailbox = posted.clone();
        node.set_mailbox(move |worker, command| {
            mailbox.lock().expect("one thread").push_back((worker, command));
        });
        let name = NAMES[at].into();
        let identity =
            Identity { name, cluster: [1; 16], features: self.features[at], descriptor: Bytes::new() };
        self.seed += 1;
        let mut state = self.seed << 32 | 1;
        let fill = move |bytes: &mut [u8]| {
            for byte in bytes {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                *byte = (state >> 56) as u8;
            }
        };
        let link = link::Config {
            window: 3_000,
            buffer_max: BufferMax { requests: 5_000, ..link::Config::default().buffer_max },
            ..link::Config::default()
        };
        let config = MeshConfig { link, connections: 2, ..MeshConfig::default() };
        let mesh = Mesh::new(identity, Secret::new(b"secret"), Box::new(fill), config);
        let config = Config {
            own: info(at),
            incarnation: Incarnation(self.seed),
            wall_ms: 0,
            batching: Batching::default(),
            tombstones_max: 10,
            forward_ack: ForwardAck::Received,
            suback_timeout: Duration::from_secs(3),
            qos0_linger: Duration::ZERO,
            lease: Duration::from_secs(2),
            without_quorum: WithoutQuorum::Serve,
            leaders: LeaderPolicy::Spread,
            packs: true,
        };
        let of_meta = MetaConfig {
            join: Vec::new(),
            expect: 1,
            patience: Duration::from_secs(5),
            lease: config.lease,
            founding: 1,
            record_sync: RecordSyncConfig::default(),
            features: self.features[at],
            replicas: Replicas::default(),
            own_state: None,
            replace_after: Duration::from_secs(60),
            owner_key: [1; 16],
        };
        let meta = Meta::new(self.now, info(at), config.incarnation, of_meta, None);
        let mut router = ClusterRouter::new(self.now, config, node, mesh, 7, meta);
        for other in (0..3).filter(|other| *other != at) {
            router.mesh.add_peer(self.now, NAMES[other], &other.to_string());
            router.peers.add(self.now, id(other), info(other));
        }
        Host { router, posted, kept: Vec::new(), keeps: false, found: Found::default() }
    }

    /// Lets two seconds pass.
    fn run(&mut self) {
        for _ in 0..200 {
            self.now = Time(self.now.0 + 10_000);
            (0..3).for_each(|at| self.turn(at));
        }
    }

    fn turn(&mut self, at: usize) {
        self.hosts[at].router.turn(self.now);
        while let Some(demand) = self.hosts[at].router.mesh.poll_demand() {
            match demand {
                Demand::Dial { connection, address, .. } => self.dial(at, connection, &address),
                Demand::Close { connection, .. } => self.close((at, connection)),
            }
        }
        let mut out = Output::default();
        while let Some(connection) = self.hosts[at].router.mesh.poll_writable() {
            self.hosts[at].router.mesh.output(self.now, connection, usize::MAX, &mut out);
            let bytes: Bytes = out.take().concat().into();
            let ends = self.wires.iter().find(|ends| ends.contains(&(at, connection)));
            if let Some(ends) = ends.filter(|_| !bytes.is_empty()) {
                let (other, there) = if ends[0] == (at, connection) { ends[1] } else { ends[0] };
                self.hosts[other].router.mesh.input(self.now, there, bytes);
            }
        }
        self.deliver(at);
    }

    fn dial(&mut self, at: usize, connection: ConnectionId, address: &str) {
        let other: usize = address.parse().expect("a number");
        let from = ([127, 0, 0, 1], 9).into();
        let accepted =
            if self.severed { None } else { self.hosts[other].router.mesh.accepted(self.now, from) };
        let Some(there) = accepted else {
            return self.hosts[at].router.mesh.closed(self.now, connection, "refused");
        };
        self.wires.push([(at, connection), (other, there)]);
        self.hosts[at].router.mesh.dialed(self.now, connection);
    }

    fn close(&mut self, end: (usize, ConnectionId)) {
        let ends: Vec<_> = self.wires.extract_if(.., |ends| ends.contains(&end)).flatten().collect();
        for (at, connection) in ends.into_iter().filter(|other| *other != end) {
            self.hosts[at].router.mesh.closed(self.now, connection, "closed");
        }
    }

    /// Cuts all connections, and makes them again after a while.
    fn interrupt(&mut self) {
        self.severed = true;
        for (at, connection) in std::mem::take(&mut self.wires).into_iter().flatten() {
            self.hosts[at].router.mesh.closed(self.now, connection, "cut");
        }
        self.run();
        self.severed = false;
        self.run();
    }

    /// Handles what was posted to the workers of a node, and reports it as taken.
    fn deliver(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        let posted = std::mem::take(&mut *host.posted.lock().expect("one thread"));
        for (worker, command) in posted {
            match command {
                WorkerCommand::Peers(inbound) => host.take(worker, *inbound),
                WorkerCommand::Store(events) => {
                    for (shard, event) in events {
                        if let StoreEvent::LinkLost(node) = event {
                            host.found.agreements_lost.push((shard, node));
                        }
                    }
                }
                _ => {}
            }
        }
        if !host.keeps {
            for (worker, key) in std::mem::take(&mut host.kept) {
                let outbound = Outbound { taken: vec![key], ..Outbound::new(worker) };
                self.submit(at, outbound);
            }
        }
    }

    fn submit(&mut self, at: usize, outbound: Outbound) {
        self.hosts[at].router.handle_command(self.now, RouterCommand::Outbound(outbound));
    }

    /// Lets a worker send a frame.
    fn send(&mut self, at: usize, worker: u16, to: usize, port: Port, bytes: &[u8]) {
        let frame = ShardFrame { node: id(to).0, port, bytes: Bytes::copy_from_slice(bytes) };
        self.submit(at, Outbound { shard_frames: vec![frame], ..Outbound::new(WorkerId(worker)) });
    }

    fn lead(&mut self, at: usize, term: Option<u64>) {
        self.submit(at, Outbound { leads: vec![(SHARD, term)], ..Outbound::new(WorkerId(1)) });
        self.run();
    }

    /// Returns what the workers of a node have got since the last call.
    fn found(&mut self, at: usize) -> Found {
        std::mem::take(&mut self.hosts[at].found)
    }

    fn forget_found(&mut self) {
        (0..3).for_each(|at| drop(self.found(at)));
    }

    fn counters(&self, at: usize) -> (u64, u64) {
        let counters = self.hosts[at].router.counters();
        (counters.shard_frames_refused, counters.malformed)
    }

    /// Restarts a node.
    fn restart(&mut self, at: usize) {
        let ends: Vec<_> = self.wires.iter().flatten().copied().filter(|(host, _)| *host == at).collect();
        ends.into_iter().for_each(|end| self.close(end));
        self.hosts[at] = self.host(at);
        self.run();
    }
}

impl Host {
    fn take(&mut self, worker: WorkerId, inbound: Inbound) {
        let Inbound { key, messages, announced, links_lost, links_open, leaders, shard_frames, .. } = inbound;
        self.found.incarnations.extend(inbound.incarnation.map(|incarnation| (worker, incarnation)));
        self.found.members.extend(inbound.members.map(|members| (worker, members)));
        let subacks = announced.into_iter().map(|(connection, _, is_known)| (connection.slot, is_known));
        self.found.announced.extend(subacks);
        let agreement_frames = inbound.agreement_frames;
        let has_frames = !shard_frames.is_empty() || !agreement_frames.is_empty();
        if !messages.is_empty() || !links_lost.is_empty() || has_frames {
            self.kept.push((worker, key));
        }
        let agreement_frames = agreement_frames.into_iter().map(|(shard, frame)| (shard, frame.from));
        self.found.agreement_frames.extend(agreement_frames);
        self.found.lost.extend(links_lost.into_iter().map(|node| (worker, node)));
        self.found.open.extend(links_open.into_iter().map(|node| (worker, node)));
        self.found.leaders.extend(leaders.into_iter().map(|(shard, leader)| (worker, shard.0, leader)));
        self.found.frames.extend(shard_frames.into_iter().map(|frame| (worker, frame)));
    }

    /// Returns the bytes of peers' frames that no worker has taken.
    fn unconsumed(&self) -> u64 {
        self.router.mesh.peers().map(|peer| peer.link.unconsumed()).sum()
    }
}

/// All nodes take part in shards.
fn world() -> World {
    World::new([FEATURES | FEATURE; 3])
}

/// Both workers of a node get this about another node.
fn both(node: usize) -> Vec<(WorkerId, u64)> {
    (0..WORKERS).map(|worker| (WorkerId(worker), id(node).0)).collect()
}

fn of_node(mut found: Vec<(WorkerId, u64)>, node: usize) -> Vec<(WorkerId, u64)> {
    found.retain(|(_, of)| *of == id(node).0);
    found
}

#[test]
fn a_request_reaches_the_worker_of_its_shard_and_the_answer_its_own() {
    let mut world = world();
    assert_eq!(of_node(world.found(0).open, 1), both(1));
    world.hosts[1].keeps = true;
    world.send(0, 0, 1, Port::Shard(SHARD), FRAME);
    world.run();
    let request = ShardFrame { node: id(0).0, port: Port::Shard(SHARD), bytes: FRAME.into() };
    assert_eq!(world.found(1).frames, [(WorkerId(1), request)]);
    assert!(world.hosts[1].unconsumed() > 0, "the worker has not taken it yet");
    world.hosts[1].keeps = false;
    world.run();
    assert_eq!(world.hosts[1].unconsumed(), 0);
    world.send(1, 1, 0, Port::Worker(WorkerId(0)), b"an answer");
    world.run();
    let answer = ShardFrame { node: id(1).0, port: Port::Worker(WorkerId(0)), bytes: "an answer".into() };
    assert_eq!(world.found(0).frames, [(WorkerId(0), answer)]);
    assert!(world.found(2).frames.is_empty());
    assert_eq!([world.counters(0), world.counters(1)], [(0, 0); 2]);
}

#[test]
fn frames_of_replicas_travel_between_nodes() {
    let mut world = world();
    world.hosts[1].keeps = true;
    let frame = Frame::new(id(1).0, b"append".to_vec());
    world.submit(0, Outbound { agreement_frames: vec![(SHARD, frame)], ..Outbound::new(WorkerId(1)) });
    world.run();
    assert_eq!(world.found(1).agreement_frames, [(SHARD, id(0).0)]);
    assert!(world.hosts[1].unconsumed() > 0, "the worker has not taken it yet");
    world.hosts[1].keeps = false;
    world.run();
    assert_eq!(world.hosts[1].unconsumed(), 0);
    let peer = world.hosts[0].router.mesh.peer(id(1)).expect("a peer");
    assert_eq!(peer.link.counters().of(Class::Agreement).sent, 1);
}

/// The third node is of a version that takes heartbeats of shards in the lanes of the shards only.
#[test]
fn heartbeats_of_replicas_travel_in_the_control_lane() {
    let mut world =
        World::new([FEATURES | FEATURE, FEATURES | FEATURE, (FEATURES & !features::HEARTBEATS) | FEATURE]);
    let sent = |world: &World, to: usize, class| {
        world.hosts[0].router.mesh.peer(id(to)).expect("a peer").link.counters().of(class).sent
    };
    let before = [1, 2].map(|to| sent(&world, to, Class::Control));
    world.hosts[1].keeps = true;
    let heartbeat = |to: usize| Frame { is_heartbeat: true, ..Frame::new(id(to).0, b"append".to_vec()) };
    let agreement_frames = vec![(SHARD, heartbeat(1)), (SHARD, heartbeat(2))];
    world.submit(0, Outbound { agreement_frames, ..Outbound::new(WorkerId(1)) });
    world.run();
    for to in [1, 2] {
        assert_eq!(world.found(to).agreement_frames, [(SHARD, id(0).0)]);
    }
    assert!(world.hosts[1].unconsumed() > 0, "the worker has not taken it yet");
    world.hosts[1].keeps = false;
    world.run();
    assert_eq!(world.hosts[1].unconsumed(), 0);
    let control = [1, 2].map(|to| sent(&world, to, Class::Control));
    assert_eq!([control[0] - before[0], control[1] - before[1]], [1, 0]);
    assert_eq!([1, 2].map(|to| sent(&world, to, Class::Agreement)), [0, 1]);
}

/// Workers learn the leader of a shard, and learn it again after the link was lost: it still leads in the same term.
#[test]
fn a_leader_is_announced_and_announced_again_after_its_link_was_lost() {
    let mut world = world();
    world.forget_found();
    world.lead(1, Some(5));
    let leader = Leader { node: id(1).0, term: 5 };
    let told: Vec<_> = (0..WORKERS).map(|worker| (WorkerId(worker), SHARD.0, leader)).collect();
    for at in 0..3 {
        assert_eq!(world.found(at).leaders, told, "at {at}");
    }
    world.interrupt();
    for at in [0, 2] {
        let found = world.found(at);
        assert_eq!(of_node(found.lost, 1), both(1), "at {at}");
        assert_eq!(of_node(found.open, 1), both(1), "at {at}");
        assert_eq!(found.leaders, told, "at {at}");
        let shards =
            found.agreements_lost.iter().filter(|(_, node)| *node == id(1).0).map(|(shard, _)| *shard);
        assert!((0..SHARDS).all(|shard| shards.clone().any(|lost| lost.0 == shard)));
    }
    assert!(world.found(1).leaders.is_empty(), "there is no link to the own node");
    // Another node leads.
    world.lead(2, Some(6));
    world.lead(1, None);
    let leader = Leader { node: id(2).0, term: 6 };
    assert!(world.found(0).leaders.iter().all(|(_, _, found)| *found == leader));
    world.interrupt();
    assert!(world.found(0).leaders.iter().all(|(_, _, found)| *found == leader), "the last one only");
}

#[test]
fn a_node_that_leads_no_more_is_no_leader_after_a_link_was_lost() {
    let mut world = world();
    world.lead(1, Some(5));
    world.lead(1, None);
    world.forget_found();
    world.interrupt();
    assert!(world.found(0).leaders.is_empty());
    // It leads again in the same term: it had given up for a while.
    world.lead(1, Some(5));
    assert_eq!(world.found(0).leaders.len(), usize::from(WORKERS));
}

/// A node that has restarted leads nothing until it says so.
#[test]
fn the_leaders_on_a_node_are_unknown_when_it_has_restarted() {
    let mut world = world();
    world.lead(1, Some(5));
    world.forget_found();
    world.restart(1);
    let found = world.found(0);
    // The link is down first, and then the peer has forgotten it.
    assert_eq!(of_node(found.lost, 1), [both(1), both(1)].concat());
    assert_eq!(of_node(found.open, 1), both(1));
    assert!(found.leaders.is_empty());
    world.lead(1, Some(6));
    assert_eq!(world.found(0).leaders.len(), usize::from(WORKERS));
    // It learns who leads elsewhere.
    world.lead(2, Some(7));
    world.restart(1);
    let leader = Leader { node: id(2).0, term: 7 };
    assert!(world.found(1).leaders.contains(&(WorkerId(0), SHARD.0, leader)));
}

#[test]
fn an_older_term_is_no_news() {
    let mut traffic = ShardTraffic::new(WORKERS);
    let lead = |traffic: &mut ShardTraffic, node, term| traffic.leads(NodeId(node), SHARD, term).is_some();
    assert!(lead(&mut traffic, 1, 5));
    assert!(lead(&mut traffic, 1, 5), "it may have lost what it was sent");
    assert!(!lead(&mut traffic, 2, 4));
    assert!(!lead(&mut traffic, 2, 5), "a term has one leader");
    traffic.follows(NodeId(1), SHARD, 4);
    assert_eq!(traffic.led_by(NodeId(1)).count(), 1, "it led before, too");
    assert!(lead(&mut traffic, 2, 6));
    traffic.follows(NodeId(1), SHARD, 5);
    assert_eq!([1, 2].map(|node| traffic.led_by(NodeId(node)).count()), [0, 1]);
}

/// A node of an earlier version gets none of these messages, and workers are notified that it gets no frames.
#[test]
fn a_node_without_the_feature_gets_nothing_about_shards() {
    let mut world = World::new([FEATURES | FEATURE, FEATURES, FEATURES | FEATURE]);
    assert_eq!(of_node(world.found(0).open, 1), []);
    world.lead(0, Some(5));
    world.send(0, 0, 1, Port::Shard(SHARD), FRAME);
    let frame = Frame::new(id(1).0, b"append".to_vec());
    world.submit(0, Outbound { agreement_frames: vec![(SHARD, frame)], ..Outbound::new(WorkerId(1)) });
    world.run();
    let (found, of_older) = (world.found(0), world.found(1));
    assert_eq!(found.lost, [(WorkerId(0), id(1).0)]);
    assert_eq!(world.counters(0), (1, 0));
    assert!(of_older.frames.is_empty() && of_older.leaders.is_empty() && of_older.open.is_empty());
    assert_eq!(world.counters(1), (0, 0), "it has got nothing that it does not know");
    let peer = world.hosts[0].router.mesh.peer(id(1)).expect("a peer");
    let sent = |class| peer.link.counters().of(class).sent;
    assert_eq!([sent(Class::Agreement), sent(Class::Requests)], [0, 0]);
    // The same from the other side: these messages need the feature.
    for message in [PeerMessage::ToShard { shard: 3, frame: FRAME }, PeerMessage::Leads { shard: 3, term: 1 }]
    {
        let (now, frame) = (world.now, message.encode());
        world.hosts[1].router.mesh.send(now, id(0), Lane::requests(0), frame.into()).expect("there is room");
    }
    world.run();
    assert_eq!(world.counters(0), (1, 2));
}

/// A link without room loses frames, and no later frame is sent before the worker knows.
#[test]
fn frames_without_room_are_reported_and_nothing_overtakes_them() {
    let mut world = world();
    world.lead(1, Some(5));
    world.forget_found();
    world.hosts[1].keeps = true;
    world.hosts[0].keeps = true;
    for number in 0..20 {
        world.send(0, 0, 1, Port::Shard(SHARD), &[number; 1_000]);
        world.run();
    }
    let numbers = |found: &Found| -> Vec<u8> { found.frames.iter().map(|(_, it)| it.bytes[0]).collect() };
    let arrived = numbers(&world.found(1));
    assert_eq!(arrived, [0, 1, 2], "a frame may begin within the window");
    let found = world.found(0);
    assert_eq!(found.lost, [(WorkerId(0), id(1).0)], "once, and to the worker that sent them");
    assert!(found.open.is_empty() && found.leaders.is_empty());
    // The link has room again, and the worker has not taken the notice: what it sends may follow a lost frame.
    world.hosts[1].keeps = false;
    world.run();
    assert_eq!(numbers(&world.found(1)), [3, 4, 5, 6, 7]);
    world.send(0, 0, 1, Port::Shard(SHARD), &[20; 1_000]);
    world.run();
    assert!(world.found(1).frames.is_empty());
    assert_eq!(world.counters(0).0, 13);
    // The same worker may send to others, and another worker to the same node.
    world.send(0, 0, 2, Port::Shard(SHARD), FRAME);
    world.send(0, 1, 1, Port::Shard(SHARD), FRAME);
    world.run();
    assert_eq!([world.found(1), world.found(2)].map(|found| found.frames.len()), [1, 1]);
    // The worker takes the notice in a turn in which it has sent another frame before.
    let (_, key) = world.hosts[0].kept.remove(0);
    let frame = ShardFrame { node: id(1).0, port: Port::Shard(SHARD), bytes: vec![21; 9].into() };
    let (taken, shard_frames) = (vec![key], vec![frame]);
    world.submit(0, Outbound { taken, shard_frames, ..Outbound::new(WorkerId(0)) });
    world.run();
    let found = world.found(0);
    assert_eq!((found.lost.len(), &found.open[..]), (0, &[(WorkerId(0), id(1).0)][..]));
    let leader = Leader { node: id(1).0, term: 5 };
    assert_eq!(found.leaders, [(WorkerId(0), SHARD.0, leader)]);
    world.send(0, 0, 1, Port::Shard(SHARD), &[7; 9]);
    world.run();
    assert_eq!(numbers(&world.found(1)), [7]);
}

/// An answer was lost: the other node's workers repeat their requests when they learn the leader again.
#[test]
fn a_shard_that_could_not_answer_is_announced_again() {
    let mut world = world();
    world.lead(1, Some(5));
    world.forget_found();
    world.hosts[0].keeps = true;
    for _ in 0..20 {
        world.send(1, 1, 0, Port::Worker(WorkerId(0)), &[1; 1_000]);
    }
    world.run();
    let (found, of_receiver) = (world.found(1), world.found(0));
    assert_eq!((found.lost, found.open), (vec![(WorkerId(1), id(0).0)], vec![(WorkerId(1), id(0).0)]));
    assert_eq!((of_receiver.frames.len(), of_receiver.leaders.len()), (3, 0), "the rest waits for credit");
    world.hosts[0].keeps = false;
    world.run();
    let found = world.found(0);
    assert_eq!((found.frames.len(), found.leaders.len()), (2, usize::from(WORKERS)));
}

#[test]
fn a_frame_for_no_shard_or_worker_is_malformed() {
    let mut world = world();
    world.forget_found();
    let bad = [
        (Lane::requests(0), PeerMessage::ToShard { shard: SHARDS, frame: FRAME }),
        (Lane::requests(0), PeerMessage::ToWorker { worker: WORKERS, frame: FRAME }),
        (Lane::requests(0), PeerMessage::Leads { shard: SHARDS, term: 1 }),
        (Lane::requests(0), PeerMessage::Follows { shard: SHARDS, term: 1 }),
        (Lane::agreement(0), PeerMessage::Shard { shard: SHARDS, frame: FRAME }),
        // They come in their own lanes only, where their credit waits for the worker.
        (Lane::ROUTES, PeerMessage::ToShard { shard: 3, frame: FRAME }),
        (Lane::ROUTES, PeerMessage::Shard { shard: 3, frame: FRAME }),
        (Lane::agreement(0), PeerMessage::ToWorker { worker: 0, frame: FRAME }),
    ];
    let count = bad.len() as u64;
    for (lane, message) in bad {
        let (now, frame) = (world.now, message.encode());
        world.hosts[1].router.mesh.send(now, id(0), lane, frame.into()).expect("there is room");
    }
    let now = world.now;
    world.hosts[1]
        .router
        .mesh
        .send(now, id(0), Lane::requests(0), Bytes::from_static(&[27, 1]).into())
        .expect("room");
    world.run();
    assert_eq!(world.counters(0), (0, count + 1));
    assert_eq!(world.hosts[0].unconsumed(), 0, "its credit is returned");
    let found = world.found(0);
    assert!(found.frames.is_empty() && found.leaders.is_empty() && found.agreement_frames.is_empty());
}

/// The cores have declared a node dead. Its workers go on in the next incarnation, and ask the same leaders again.
#[test]
fn workers_learn_the_next_incarnation_of_their_node_and_the_leaders_again() {
    let mut world = world();
    world.lead(1, Some(5));
    let (own, other) = (ShardId(4), Leader { node: id(1).0, term: 5 });
    world.submit(0, Outbound { leads: vec![(own, Some(9))], ..Outbound::new(WorkerId(0)) });
    world.run();
    world.forget_found();
    world.hosts[0].router.restart_incarnation();
    let incarnation = world.hosts[0].router.incarnation().0;
    world.run();
    let found = world.found(0);
    assert_eq!(found.incarnations, [0, 1].map(|worker| (WorkerId(worker), incarnation)));
    let here = Leader { node: id(0).0, term: 9 };
    for worker in [0, 1].map(WorkerId) {
        for known in [(worker, SHARD.0, other), (worker, own.0, here)] {
            assert!(found.leaders.contains(&known), "{known:?} of {:?}", found.leaders);
        }
    }
    assert!(found.lost.is_empty(), "the links are as before");
}

/// A leader that knows an old roster must not restart a node again and again while that joins.
#[test]
fn a_node_that_is_no_member_does_not_restart_for_a_leader() {
    let mut world = world();
    let before = world.hosts[0].router.incarnation();
    world.submit(0, Outbound { ended: Some(before.0), ..Outbound::new(WorkerId(0)) });
    world.run();
    assert_eq!(world.hosts[0].router.incarnation(), before);
}

/// The node does not notice, because its link stays, so it does not say again which shards it leads.
#[test]
fn the_leaders_on_a_node_that_was_removed_and_joins_again_are_known() {
    let mut world = world();
    world.lead(1, Some(5));
    world.forget_found();
    let now = world.now;
    world.hosts[0].router.remove_peer(now, id(1));
    world.run();
    let found = world.found(0);
    assert_eq!(of_node(found.lost, 1), both(1));
    assert!(found.open.is_empty() && found.leaders.is_empty());
    let now = world.now;
    world.hosts[0].router.add_peer(now, id(1), &info(1));
    world.run();
    let leader = Leader { node: id(1).0, term: 5 };
    let told: Vec<_> = (0..WORKERS).map(|worker| (WorkerId(worker), SHARD.0, leader)).collect();
    assert_eq!(world.found(0).leaders, told);
    // What it says while it is no member is known, too.
    let now = world.now;
    world.hosts[0].router.remove_peer(now, id(1));
    world.lead(1, None);
    let now = world.now;
    world.hosts[0].router.add_peer(now, id(1), &info(1));
    world.forget_found();
    world.interrupt();
    assert!(world.found(0).leaders.is_empty());
}

/// A node is removed and comes back: nothing reaches it before the workers know that it was gone.
#[test]
fn a_node_that_was_removed_is_a_new_one() {
    let mut world = world();
    world.lead(1, Some(5));
    world.forget_found();
    let now = world.now;
    world.hosts[0].keeps = true;
    world.hosts[0].router.shards_peer_gone(id(1), false);
    world.run();
    let found = world.found(0);
    assert_eq!((of_node(found.lost, 1), of_node(found.open, 1).len()), (both(1), 0));
    world.hosts[0].router.shards_link_up(id(1));
    world.hosts[0].router.turn(now);
    world.deliver(0);
    assert!(world.found(0).open.is_empty(), "the workers have not taken the notices");
    world.hosts[0].router.shards_peer_gone(id(1), false);
    world.hosts[0].keeps = false;
    world.run();
    assert!(!world.hosts[0].router.shards.peers.contains_key(&id(1)), "it is forgotten");
    world.hosts[0].router.shards_link_up(id(1));
    world.run();
    assert_eq!(of_node(world.found(0).open, 1), both(1));
}

/// A node without the feature has no routes of shards, and older versions read no positions of them.
#[test]
fn route_positions_go_to_nodes_with_the_feature() {
    let mut world = World::new([FEATURES | FEATURE, FEATURES, FEATURES | FEATURE]);
    world.submit(0, Outbound { route_positions: vec![(SHARD, 7)], ..Outbound::new(WorkerId(1)) });
    world.hosts.iter_mut().for_each(|host| host.router.routes.begin());
    world.run();
    let shards_of = |world: &World, at: usize| {
        let peer = world.hosts[at].router.peers.get(&id(0)).expect("a peer");
        let hello = peer.last_hello.as_ref().expect("it has sent a hello");
        let of_shard = hello.vector.iter().filter_map(|(writer, _, at)| Some((shard_of(*writer)?, at.0)));
        (hello.vector.len(), of_shard.collect::<Vec<_>>())
    };
    assert_eq!(shards_of(&world, 1), (1, Vec::new()), "only its own position");
    assert_eq!(shards_of(&world, 2), (2, vec![(SHARD, 7)]));
}

#[test]
fn requests_to_settle_a_shard_need_the_feature_and_a_shard() {
    let mut world = World::new([FEATURES | FEATURE, FEATURES, FEATURES | FEATURE]);
    let settle = |shard| PeerMessage::SettleShard { shard, position: Position(7) };
    let settled = |shard| PeerMessage::ShardSettled { shard, position: Position(7) };
    let reach = |shard| PeerMessage::ReachShards(vec![(3, Position(7)), (shard, Position(7))]);
    let without_feature = [settle(3), settled(3), reach(3)].map(|message| (1, message));
    let without_shard = [settle(SHARDS), settled(SHARDS), reach(SHARDS)].map(|message| (2, message));
    for (from, message) in without_feature.into_iter().chain(without_shard) {
        let (now, (_, malformed)) = (world.now, world.counters(0));
        assert!(world.hosts[from].router.send_message(now, id(0), Lane::ROUTES, &message));
        world.run();
        assert_eq!(world.counters(0).1, malformed + 1, "{message:?} of {from}");
    }
    for message in [settle(3), settled(3), reach(3)] {
        let now = world.now;
        assert!(world.hosts[2].router.send_message(now, id(0), Lane::ROUTES, &message));
    }
    world.run();
    assert_eq!(world.counters(0).1, 6);
}

/// No core answers here. A node that serves alone accepts what has to be known in its region.
#[test]
fn a_suback_of_a_shard_waits_for_cores_by_its_level() {
    let mut world = world();
    let levels = [SubackLevel::Local, SubackLevel::Core, SubackLevel::Region, SubackLevel::Cluster];
    let announces = levels.into_iter().zip(0..).map(|(level, slot)| Announce {
        connection: broker::ConnectionId { worker: WorkerId(0), slot, generation: 0 },
        ticket: Ticket::of_operator(0),
        level,
        shard: Some((SHARD, 7)),
    });
    let route_positions = vec![(SHARD, 7)];
    let announces = announces.collect();
    world.submit(0, Outbound { route_positions, announces, ..Outbound::new(WorkerId(0)) });
    world.run();
    assert_eq!(world.found(0).announced, [(0, true), (1, true)]);
    assert_eq!(world.hosts[0].router.view(world.now).subacks_waiting.cluster, 2);
    world.run();
    assert_eq!(world.found(0).announced, [(2, true), (3, false)], "their time is over");
    assert_eq!(world.counters(0).1, 0);
}
