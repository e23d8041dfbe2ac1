//! What simulations once found, played step by step: a few cores, links of a millisecond, nothing by chance that matters.

#![cfg_attr(not(test), allow(dead_code, reason = "only some of it notices a fault that is put in"))]

use std::time::Duration;

use broker::settings::Settings;
use cluster::meta::{Answer, Command, Meta, Roster, State, WishId};
use cluster::{Config, ForwardAck, Letter, NodeInfo, Role, WithoutQuorum};
use link::{MeshConfig, NodeId};
use mqtt::QoS;
use replog::{Batching, Incarnation};

use super::client::{Client, Keeps, Scene};
use super::operators::ORDERS;
use super::oracle::{GROUPS, Level, RETAINED};
use super::plan::{Fault, Plan};
use super::world::Fleet;
use crate::node::Setup;
use crate::schedule::{MILLI, Micros, SECOND};
use crate::trace::Trace;

#[cfg(test)]
mod clocks;
#[cfg(test)]
mod links;

/// As long as a scenario may take.
const LONG: Micros = 1_000 * SECOND;

fn plan(batching: Duration) -> Plan {
    let info = |at: usize| NodeInfo {
        name: format!("n{at}").into(),
        role: Role::Core,
        region: "r".into(),
        address: at.to_string().into(),
    };
    let nodes: Vec<NodeInfo> = (0..3).map(info).collect();
    let mut settings = Settings::default();
    settings.sys.interval = Duration::ZERO;
    let setup = Setup {
        settings,
        workers: 1,
        segment_bytes: 64 << 10,
        commit_bytes_max: 8 << 20,
        low_bytes_per_commit: 1 << 20,
        entropy: [1; 48],
        sync_max: 300,
        #[cfg(feature = "trial")]
        mutation: None,
    };
    let mut mesh = MeshConfig { dial_max: Duration::from_millis(200), ..MeshConfig::default() };
    (mesh.link.heartbeat, mesh.link.silence_max) = (Duration::from_millis(100), Duration::from_millis(500));
    Plan {
        setups: vec![setup; 3],
        config: Config {
            own: nodes[0].clone(),
            others: Vec::new(),
            incarnation: Incarnation(0),
            world: 0,
            batching: Batching { interval: batching, bytes_max: 64 << 10, in_flight_max: 4 << 20 },
            tombstones_max: 1_000,
            forward_ack: ForwardAck::Received,
            suback_wait: Duration::from_secs(10),
            lease: Duration::from_secs(2),
            packs: true,
            without_quorum: WithoutQuorum::Hold,
        },
        mesh,
        latency: MILLI,
        jitter: 100,
        nodes,
        clients: 0,
        pace: SECOND,
        length: LONG,
        faults: Vec::new(),
        is_tight: false,
        is_harassed: false,
        is_agreed: false,
        meets: Vec::new(),
        old: Vec::new(),
        skews: vec![0; 3],
    }
}

/// Three nodes that know each other, a subscriber on the first and a publisher on the third.
struct Story {
    fleet: Fleet,
}

const SUBSCRIBER: usize = 0;
const PUBLISHER: usize = 1;
const PUBLISHER_NODE: usize = 2;

impl Plan {
    /// One more node than there are.
    fn add(&mut self, role: Role) {
        let at = self.nodes.len();
        let mut info = NodeInfo { name: format!("n{at}").into(), role, ..self.nodes[0].clone() };
        info.address = at.to_string().into();
        self.nodes.push(info);
        self.setups.push(Setup { entropy: [at as u8 + 1; 48], ..self.setups[0].clone() });
        self.skews.push(0);
    }
}

impl Story {
    fn of(plan: Plan) -> Self {
        Self::of_links(plan, |_| None)
    }

    /// The same, where it is not chance that says what a node offers for its links.
    fn of_links(plan: Plan, links: impl Fn(usize) -> Option<u64>) -> Self {
        let mut fleet = Fleet::of_plan(7, plan, Trace::default());
        fleet.wan.is_calm = true;
        fleet.net.calm = true;
        for node in 0..fleet.members.len() {
            fleet.members[node].log.get_or_insert(cluster::LOG);
            fleet.members[node].links = links(node);
            fleet.start(node);
        }
        let mut story = Self { fleet };
        story.passes(5 * SECOND);
        for (number, node) in [(SUBSCRIBER, 0), (PUBLISHER, PUBLISHER_NODE)] {
            // Members speak MQTT 5, in which a SUBSCRIBE says its level.
            story.fleet.clients.push(Client::member(number));
            story.fleet.connect(number, node);
        }
        story.passes(SECOND);
        story
    }

    fn passes(&mut self, time: Micros) {
        let until = self.fleet.cx.now() + time;
        self.fleet.run_until(until);
    }

    fn with(&mut self, client: usize, what: impl FnOnce(&mut Client, &mut Scene<'_>)) {
        let fleet = &mut self.fleet;
        let mut scene = Scene { cx: &mut fleet.cx, net: &mut fleet.net, oracle: &mut fleet.oracle };
        what(&mut fleet.clients[client], &mut scene);
    }

    fn subscribes(&mut self) {
        let filters = vec![("t/#".to_owned(), QoS::AtLeastOnce)];
        self.with(SUBSCRIBER, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
    }

    /// Whether everybody who counts was said to know the subscription.
    fn is_subscribed(&mut self) -> bool {
        let (.., view) = self.fleet.clients[SUBSCRIBER].place().expect("the subscriber is connected");
        self.fleet.oracle.view(view).granted.contains_key("t/#")
    }

    fn publishes(&mut self) -> usize {
        self.says("t/0", QoS::AtLeastOnce, Keeps::Nothing)
    }

    fn says(&mut self, topic: &str, qos: QoS, keeps: Keeps) -> usize {
        self.says_as(PUBLISHER, topic, qos, keeps)
    }

    fn says_as(&mut self, client: usize, topic: &str, qos: QoS, keeps: Keeps) -> usize {
        let number = self.fleet.oracle.next_number();
        self.with(client, |client, scene| client.publishes(scene, topic, qos, keeps));
        number
    }

    /// A client on a node joins the shared group.
    fn joins_group(&mut self, client: usize) {
        let filters = vec![(GROUPS[0].to_owned(), QoS::AtLeastOnce)];
        self.with(client, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
    }

    /// One more client, on a node.
    fn connects(&mut self, node: usize) -> usize {
        let number = self.fleet.clients.len();
        self.fleet.clients.push(Client::new(number, None));
        self.fleet.connect(number, node);
        self.passes(SECOND);
        number
    }

    /// What somebody finds retained who asks for it on a node now.
    fn retained(&mut self, node: usize) -> Vec<usize> {
        let view = self.reads(node);
        self.fleet.oracle.view(view).retained.values().copied().collect()
    }

    /// Somebody asks a node for all that is retained. Returns the session.
    fn reads(&mut self, node: usize) -> usize {
        let reader = self.connects(node);
        let filters = vec![(RETAINED.to_owned(), QoS::AtLeastOnce)];
        self.with(reader, |client, scene| client.subscribes_to(scene, filters, Level::Local));
        self.passes(SECOND);
        self.fleet.clients[reader].place().expect("the reader is connected").2
    }

    /// Whether a node has a link to another, and how often that one has begun anew.
    fn link(&mut self, from: usize, to: usize) -> (bool, u64) {
        let process = self.fleet.members[from].process.as_mut().expect("the node runs");
        let peer = process.fabric.mesh().peer(NodeId::of_name(&format!("n{to}"))).expect("a peer");
        (peer.is_up, peer.link.counters().restarts)
    }

    fn got_in_group(&self, number: usize) -> u32 {
        self.fleet.oracle.came_to_group(number, GROUPS[0])
    }

    fn is_acknowledged(&self, number: usize) -> bool {
        self.fleet.oracle.is_acknowledged(number)
    }

    fn has_come(&mut self, number: usize) -> bool {
        self.came_to(SUBSCRIBER, number)
    }

    fn came_to(&mut self, client: usize, number: usize) -> bool {
        let (.., view) = self.fleet.clients[client].place().expect("the client is connected");
        self.fleet.oracle.has_come(view, number)
    }

    /// Filters that a node knows other nodes to want.
    fn routes_known(&self, node: usize) -> usize {
        let process = self.fleet.members[node].process.as_ref().expect("the node runs");
        let mut known = 0;
        process.node.broker().routes.for_each_wanted(|_, place, _| known += usize::from(place.is_some()));
        known
    }

    /// Until SUBACK has come, before the time is over after which it comes in any case.
    fn until_granted(&mut self, client: usize, filter: &str) {
        let (.., view) = self.fleet.clients[client].place().expect("the client is connected");
        let mut waited = 0;
        while !self.fleet.oracle.view(view).granted.contains_key(filter) {
            self.passes(MILLI);
            waited += 1;
            assert!(waited < 90_000, "no SUBACK for {filter}");
        }
    }

    /// Whether a node knows that another one wants a filter.
    fn knows_route(&self, node: usize, wanted: &str) -> bool {
        let process = self.fleet.members[node].process.as_ref().expect("the node runs");
        let mut is_known = false;
        process.node.broker().routes.for_each_wanted(|filter, place, _| {
            is_known |= place.is_some() && filter == wanted;
        });
        is_known
    }

    fn part(&mut self, one: usize, other: usize) {
        let now = self.fleet.cx.now();
        self.fleet.wan.cut(now, one, other, LONG);
        self.fleet.wan.cut(now, other, one, LONG);
    }

    fn join(&mut self, one: usize, other: usize) {
        self.fleet.wan.mend(&mut self.fleet.cx, one, other);
        self.fleet.wan.mend(&mut self.fleet.cx, other, one);
    }

    fn restart(&mut self, node: usize) {
        self.fleet.fault(&Fault::Kill { node });
        self.fleet.start(node);
    }
}

/// Cores have granted a lease, and forget that as they begin anew: the node that holds it may still acknowledge what a subscriber does not get.
#[cfg_attr(test, test)]
fn cores_that_begin_anew_wait_for_the_leases_that_they_have_forgotten() {
    let mut story = Story::of(plan(Duration::ZERO));
    story.part(2, 0);
    story.part(2, 1);
    story.restart(0);
    story.restart(1);
    // The lease of the third node began before the cut and holds for some time.
    story.passes(300 * MILLI);
    story.fleet.connect(SUBSCRIBER, 0);
    story.passes(100 * MILLI);
    story.subscribes();
    story.passes(600 * MILLI);
    let held = story.publishes();
    story.passes(200 * MILLI);
    assert!(story.is_acknowledged(held), "it has a lease still");
    assert!(!story.is_subscribed(), "a node that may acknowledge does not know it");
    story.passes(12 * SECOND);
    assert!(story.is_subscribed());
    assert!(!story.has_come(held));
    let late = story.publishes();
    story.passes(SECOND);
    assert!(!story.is_acknowledged(late), "it has no lease any more");
}

/// A core that begins anew does not know a subscription that it once helped to settle: it lets nobody acknowledge before it has heard of it.
#[cfg_attr(test, test)]
fn a_core_that_begins_anew_hears_of_every_node_before_it_grants_anything() {
    let mut story = Story::of(plan(Duration::ZERO));
    story.part(2, 0);
    story.part(2, 1);
    story.passes(4 * SECOND);
    story.subscribes();
    story.passes(SECOND);
    assert!(story.is_subscribed(), "who does not know it may not acknowledge");
    story.part(0, 1);
    story.restart(1);
    story.join(2, 1);
    story.passes(2 * SECOND);
    let number = story.publishes();
    story.passes(3 * SECOND);
    assert!(!story.is_acknowledged(number), "neither of the two has heard of the subscription");
    story.join(0, 1);
    story.passes(5 * SECOND);
    assert!(story.is_acknowledged(number));
    // It knows now who wants it, and keeps it for a node that it does not reach.
    story.join(2, 0);
    story.passes(10 * SECOND);
    assert!(story.has_come(number));
}

/// Seed 504 of `--cluster`: a node hears from others what a peer wants that has begun anew, when its own link is about the life before.
#[cfg_attr(test, test)]
fn what_others_say_that_a_new_life_wants_goes_there() {
    let mut plan = plan(Duration::ZERO);
    plan.add(Role::Replicant);
    let mut story = Story::of(plan);
    let publisher = story.connects(3);
    story.part(0, 3);
    story.passes(4 * SECOND);
    story.restart(0);
    story.fleet.connect(SUBSCRIBER, 0);
    story.passes(100 * MILLI);
    story.subscribes();
    story.passes(5 * SECOND);
    assert!(story.is_subscribed(), "it is known to the replicant by way of another core");
    let number = story.says_as(publisher, "t/0", QoS::AtLeastOnce, Keeps::Nothing);
    story.passes(SECOND);
    assert!(story.is_acknowledged(number));
    story.join(0, 3);
    story.passes(5 * SECOND);
    assert!(story.has_come(number));
}

/// While a node has no lease others are told that all know what it does not. It is not let in with what was known a lease ago.
#[test]
fn a_node_whose_lease_has_lapsed_hears_all_before_it_has_another() {
    // Changes of routes take their time, so that a lease could be there before them.
    let mut story = Story::of(plan(Duration::from_millis(1_500)));
    story.part(2, 0);
    story.part(2, 1);
    story.passes(4 * SECOND);
    story.subscribes();
    story.passes(4 * SECOND);
    assert!(story.is_subscribed(), "who does not know it may not acknowledge");
    story.join(2, 0);
    story.join(2, 1);
    let number = story.publishes();
    let mut waited = 0;
    while !story.is_acknowledged(number) {
        story.passes(10 * MILLI);
        waited += 1;
        assert!(waited < 2_000, "it never has a lease again");
    }
    story.passes(SECOND);
    assert!(
        story.has_come(number),
        "it was acknowledged, and the subscriber had a SUBACK before it was sent"
    );
}

/// A strategy that likes one node best offers a message there, hears that nobody is there any more, and does not offer it there again.
#[test]
fn a_group_whose_favourite_has_left_gives_the_message_to_another_node() {
    let mut slow = plan(Duration::from_secs(5));
    for setup in &mut slow.setups {
        setup.settings.shared.strategy = broker::settings::SharedStrategy::HashTopic;
    }
    let mut story = Story::of(slow);
    let other = story.connects(1);
    story.joins_group(SUBSCRIBER);
    story.joins_group(other);
    story.passes(20 * SECOND);
    let first = story.says("g/0", QoS::AtLeastOnce, Keeps::Nothing);
    story.passes(SECOND);
    assert_eq!(story.got_in_group(first), 1);
    let place = |story: &Story, client: usize| story.fleet.clients[client].place().map(|(.., view)| view);
    let chosen = story.fleet.oracle.last_in_group(first, GROUPS[0]);
    let leaver = if place(&story, other) == chosen { other } else { SUBSCRIBER };
    story.with(leaver, |client, scene| client.leaves(scene, GROUPS[0]));
    // Others have not heard of it.
    story.passes(100 * MILLI);
    let second = story.says("g/0", QoS::AtLeastOnce, Keeps::Nothing);
    story.passes(SECOND);
    assert!(story.is_acknowledged(second));
    assert_eq!(story.got_in_group(second), 1, "the other member is there");
}

/// A group whose only member is on a node that is cut off keeps its messages for it, as they are kept for other subscribers.
#[test]
fn what_is_for_a_group_waits_for_a_node_that_is_cut_off_when_nobody_else_is_there() {
    let mut story = Story::of(plan(Duration::ZERO));
    story.joins_group(SUBSCRIBER);
    story.passes(2 * SECOND);
    story.part(2, 0);
    story.passes(2 * SECOND);
    let number = story.says("g/0", QoS::AtLeastOnce, Keeps::Nothing);
    story.passes(SECOND);
    assert!(story.is_acknowledged(number), "the other two cores are enough");
    assert_eq!(story.got_in_group(number), 0);
    story.join(2, 0);
    story.passes(5 * SECOND);
    assert_eq!(story.got_in_group(number), 1);
}

/// What is on its way to a node that begins anew is lost with the link, and that node has had its copies already.
#[test]
fn what_is_retained_for_the_earlier_life_of_a_node_is_told_to_the_next() {
    let mut story = Story::of(plan(Duration::ZERO));
    let before = story.says("r/1", QoS::AtMostOnce, Keeps::Message);
    story.passes(SECOND);
    story.part(2, 1);
    story.restart(1);
    story.passes(2 * SECOND);
    let written = story.says("r/0", QoS::AtMostOnce, Keeps::Message);
    story.says("r/1", QoS::AtMostOnce, Keeps::Deletion);
    story.passes(SECOND);
    assert_eq!(story.retained(1), [before]);
    story.join(2, 1);
    story.passes(5 * SECOND);
    for node in 0..3 {
        assert_eq!(story.retained(node), [written], "n{node}");
    }
}

/// A node that is away for long is dialed more and more rarely. When it proves to be there, in a new life, it has to be dialed once more, with an id
/// of the link that stands for that life: at once, and not after such a pause, in which neither of the two would know what the other wants.
#[test]
fn a_node_that_was_away_for_long_and_began_anew_is_joined_at_once() {
    let mut patient = plan(Duration::ZERO);
    patient.mesh.dial_max = Duration::from_secs(30);
    let mut story = Story::of(patient);
    story.part(1, 0);
    story.part(2, 0);
    story.restart(0);
    story.passes(120 * SECOND);
    assert_eq!(story.link(1, 0), (false, 0), "nobody has heard of its new life");
    story.join(1, 0);
    story.join(2, 0);
    let mut waited = 0;
    while story.link(1, 0).1 == 0 {
        story.passes(10 * MILLI);
        waited += 1;
        assert!(waited < 4_000, "nobody dials it");
    }
    story.passes(SECOND);
    assert_eq!(story.link(1, 0), (true, 1));
}

/// A member has messages that were acknowledged to their publisher, and its connection is lost. Its node gives them to the nodes that have other
/// members, as far as it has heard: where there is none any more, they come back and go to somebody else.
#[test]
fn what_a_member_leaves_behind_finds_another_though_a_node_has_none_any_more() {
    let mut slow = plan(Duration::from_secs(5));
    for setup in &mut slow.setups {
        setup.settings.shared.strategy = broker::settings::SharedStrategy::Local;
    }
    let mut story = Story::of(slow);
    let (near, leaver, other) = (story.connects(2), story.connects(1), story.connects(1));
    for member in [SUBSCRIBER, near, leaver] {
        story.joins_group(member);
    }
    story.passes(20 * SECOND);
    let numbers: Vec<usize> = (0..6).map(|_| story.says("g/0", QoS::AtLeastOnce, Keeps::Nothing)).collect();
    story.passes(SECOND);
    for number in &numbers {
        assert!(
            story.is_acknowledged(*number) && story.got_in_group(*number) == 1,
            "the nearest member has it"
        );
    }
    // What changes after this is told after five seconds.
    let filters = vec![("t/1".to_owned(), QoS::AtLeastOnce)];
    story.with(other, |client, scene| client.subscribes_to(scene, filters, Level::Local));
    story.passes(100 * MILLI);
    story.with(leaver, |client, scene| client.leaves(scene, GROUPS[0]));
    story.passes(100 * MILLI);
    story.fleet.fault(&Fault::LoseClient { client: near });
    story.passes(3 * SECOND);
    for number in numbers {
        assert_eq!(story.got_in_group(number), 2, "{number} is for the subscriber now");
    }
}

/// A core deletes, tells another core and not the replicant, which it does not reach, and begins anew. The other core tells it what it has
/// forgotten; the replicant hears of that from nobody else, for it asks that other core for routes and has had its copies.
#[test]
fn what_a_node_retained_in_an_earlier_life_is_told_to_those_who_missed_it() {
    let mut mixed = plan(Duration::ZERO);
    mixed.nodes[1].role = Role::Replicant;
    let mut story = Story::of(mixed);
    // So that the replicant is attached to the first node.
    story.part(2, 1);
    story.passes(2 * SECOND);
    story.join(2, 1);
    story.passes(2 * SECOND);
    let before = story.says("r/1", QoS::AtMostOnce, Keeps::Message);
    story.passes(SECOND);
    story.part(2, 1);
    story.says("r/1", QoS::AtMostOnce, Keeps::Deletion);
    story.passes(SECOND);
    assert!(story.retained(0).is_empty());
    assert_eq!(story.retained(1), [before]);
    story.restart(2);
    story.join(2, 1);
    story.passes(10 * SECOND);
    for node in 0..3 {
        assert!(story.retained(node).is_empty(), "n{node}");
    }
}

/// A replicant deletes, tells one core only, and begins anew. It hears of routes from the other core, which does not know of that: the one that does
/// tells the replicant what it had done, and the replicant all others.
#[test]
fn what_a_node_retained_in_an_earlier_life_is_told_to_it() {
    let mut mixed = plan(Duration::ZERO);
    mixed.nodes[2].role = Role::Replicant;
    let mut story = Story::of(mixed);
    let writer = story.connects(0);
    let before = story.says_as(writer, "r/1", QoS::AtMostOnce, Keeps::Message);
    story.passes(SECOND);
    story.part(2, 0);
    story.passes(2 * SECOND);
    story.says("r/1", QoS::AtMostOnce, Keeps::Deletion);
    story.passes(SECOND);
    assert_eq!(story.retained(0), [before]);
    assert!(story.retained(1).is_empty());
    story.part(2, 1);
    story.restart(2);
    story.join(2, 0);
    story.passes(5 * SECOND);
    story.join(2, 1);
    story.passes(5 * SECOND);
    for node in 0..3 {
        assert!(story.retained(node).is_empty(), "n{node}");
    }
}

/// As documented: a node that was away brings back what the others have deleted when all of them have begun anew meanwhile. What comes back may be
/// older than what was deleted, though that had been acknowledged.
#[test]
fn what_comes_back_from_a_node_that_was_away_may_be_older_than_what_was_deleted() {
    let mut story = Story::of(plan(Duration::ZERO));
    let old = story.says("r/0", QoS::AtLeastOnce, Keeps::Message);
    story.passes(SECOND);
    story.part(1, 0);
    story.part(1, 2);
    story.passes(2 * SECOND);
    let new = story.says("r/0", QoS::AtLeastOnce, Keeps::Message);
    story.passes(2 * SECOND);
    assert!(story.is_acknowledged(old) && story.is_acknowledged(new));
    story.says("r/0", QoS::AtMostOnce, Keeps::Deletion);
    story.passes(SECOND);
    story.restart(0);
    story.restart(2);
    story.passes(5 * SECOND);
    story.join(1, 0);
    story.join(1, 2);
    story.passes(10 * SECOND);
    let readers: Vec<usize> = (0..3).map(|node| story.reads(node)).collect();
    for reader in &readers {
        let found = &story.fleet.oracle.view(*reader).retained;
        assert_eq!(found.values().collect::<Vec<_>>(), [&old]);
    }
    story.fleet.oracle.check_retained(&mut story.fleet.cx, &readers);
}

/// Links hold little: of what is retained while a node is cut off one message finds a place, and so does one of what it is sent when it begins anew. The
/// others are sent when there is room, and all nodes have the same.
#[test]
fn what_is_retained_and_finds_no_place_in_a_link_is_sent_when_there_is_room() {
    for begins_anew in [false, true] {
        let mut tight = plan(Duration::ZERO);
        tight.mesh.link.buffer_max.assured = 50;
        let mut story = Story::of(tight);
        story.part(2, 1);
        story.part(0, 1);
        story.passes(2 * SECOND);
        let written = ["r/0", "r/1", "r/a/b", "r/a/c"].map(|topic| {
            let number = story.says(topic, QoS::AtLeastOnce, Keeps::Message);
            story.passes(SECOND);
            assert!(story.is_acknowledged(number));
            number
        });
        assert!(story.retained(1).is_empty());
        if begins_anew {
            story.restart(1);
            story.passes(SECOND);
        }
        story.join(2, 1);
        story.join(0, 1);
        story.passes(10 * SECOND);
        for node in 0..3 {
            assert_eq!(story.retained(node), written, "n{node}, which began anew: {begins_anew}");
        }
    }
}

/// A core has begun to tell another one what the clients of a replicant want, in a whole copy, and both it and the replicant's link to it are
/// lost. The core that the replicant moves to has told the same meanwhile, which was refused for the first copy's sake.
#[test]
fn a_copy_of_routes_whose_source_is_lost_keeps_no_other_out() {
    let mut mixed = plan(Duration::ZERO);
    mixed.add(Role::Replicant);
    mixed.config.tombstones_max = 0;
    (mixed.config.batching.bytes_max, mixed.config.batching.in_flight_max) = (40, 200);
    let (near, source, reader, replicant) = (0, 1, PUBLISHER_NODE, 3);
    let mut story = Story::of(mixed);
    let subscriber = story.connects(replicant);
    // So that the replicant is attached to the source.
    story.part(replicant, near);
    story.part(replicant, reader);
    story.passes(2 * SECOND);
    // The reader misses a deletion.
    story.part(reader, near);
    story.part(reader, source);
    story.passes(2 * SECOND);
    let all = (0..60).map(|number| (format!("u/{number}"), QoS::AtLeastOnce));
    let all = all.chain([("t/#".to_owned(), QoS::AtLeastOnce)]).collect();
    story.with(subscriber, |client, scene| client.subscribes_to(scene, all, Level::Core));
    story.passes(SECOND);
    story.with(subscriber, |client, scene| client.leaves(scene, "u/7"));
    story.passes(SECOND);
    let now = story.fleet.cx.now();
    story.join(reader, source);
    story.fleet.wan.slow(now, source, reader, 4_000, LONG);
    let mut waited = 0;
    while story.routes_known(reader) < 10 {
        story.passes(10 * MILLI);
        waited += 1;
        assert!(waited < 500, "no copy begins");
    }
    assert!(story.routes_known(reader) < 40, "it goes on");
    for node in [near, reader, replicant] {
        story.part(source, node);
    }
    story.join(reader, near);
    story.join(replicant, near);
    story.passes(5 * SECOND);
    story.join(replicant, reader);
    story.passes(5 * SECOND);
    let number = story.publishes();
    story.passes(5 * SECOND);
    assert!(story.is_acknowledged(number), "two of three cores are there, and both know all routes");
    assert!(story.came_to(subscriber, number));
}

/// A replicant tells its core what its clients want, in a whole copy, and so does another core, which begins later and knows less: what the replicant says
/// finds no place meanwhile. SUBACK of level `core` waits until it has one.
#[test]
fn a_core_that_hears_of_a_replicant_by_another_core_does_not_know_what_it_has_not_taken_in() {
    let mut mixed = plan(Duration::ZERO);
    mixed.add(Role::Replicant);
    mixed.config.tombstones_max = 0;
    (mixed.config.batching.bytes_max, mixed.config.batching.in_flight_max) = (40, 200);
    (mixed.mesh.link.heartbeat, mixed.mesh.link.silence_max) =
        (Duration::from_secs(1), Duration::from_secs(20));
    mixed.config.suback_wait = Duration::from_secs(100);
    let (away, relay, reader, replicant) = (0, 1, PUBLISHER_NODE, 3);
    let mut story = Story::of(mixed);
    let subscriber = story.connects(replicant);
    // So that the replicant is attached to the relay.
    story.part(replicant, away);
    story.part(replicant, reader);
    story.passes(22 * SECOND);
    // The reader misses a deletion.
    story.part(reader, away);
    story.part(reader, relay);
    story.passes(22 * SECOND);
    let all = (0..300).map(|number| (format!("u/{number}"), QoS::AtLeastOnce)).collect();
    story.with(subscriber, |client, scene| client.subscribes_to(scene, all, Level::Core));
    story.passes(SECOND);
    story.with(subscriber, |client, scene| client.leaves(scene, "u/7"));
    story.passes(SECOND);
    story.part(replicant, relay);
    story.passes(22 * SECOND);
    for source in [replicant, relay] {
        story.join(source, reader);
        let now = story.fleet.cx.now();
        story.fleet.wan.slow(now, source, reader, 500, LONG);
        story.until("a copy begins", |story| story.routes_known(reader) > 0);
    }
    let filters = vec![("t/#".to_owned(), QoS::AtLeastOnce)];
    story.with(subscriber, |client, scene| client.subscribes_to(scene, filters, Level::Core));
    story.until_granted(subscriber, "t/#");
    assert!(story.knows_route(reader, "t/#"));
}

/// The link between a replicant and its core is lost again and again, with what was on it. Both say anew what they hear from each other, and what was sent
/// before that arrives after it: SUBACK of level `core` leaves when it has been taken in, not when it has arrived.
#[test]
fn what_a_core_is_told_while_the_link_comes_back_is_known_to_it_when_the_suback_leaves() {
    // It is dialed, and sends what it has before it hears anything.
    let replicant = (0..3).max_by_key(|node| id(*node)).expect("there are some");
    let (core, other) = ((replicant + 1) % 3, (replicant + 2) % 3);
    let mut mixed = plan(Duration::ZERO);
    (mixed.nodes[replicant].role, mixed.latency) = (Role::Replicant, 50 * MILLI);
    let mut story = Story::of(mixed);
    story.part(replicant, other);
    story.passes(2 * SECOND);
    let subscriber = story.connects(replicant);
    for round in 0..100 {
        for wire in story.fleet.wan.between(core, replicant) {
            story.fleet.wan.lose(&mut story.fleet.cx, wire);
        }
        story.passes(round * 7 * MILLI);
        let filter = format!("u/{round}");
        let filters = vec![(filter.clone(), QoS::AtLeastOnce)];
        story.with(subscriber, |client, scene| client.subscribes_to(scene, filters, Level::Core));
        story.until_granted(subscriber, &filter);
        assert!(story.knows_route(core, &filter), "round {round}");
        story.passes(SECOND);
    }
}

/// Durable sessions get messages of QoS 2 in their order, though one of them waits for a group's member on another node, and the next one for a member here.
#[test]
fn messages_keep_their_order_though_groups_take_them_at_different_times() {
    let mut slow = plan(Duration::ZERO);
    slow.latency = 50 * MILLI;
    let mut story = Story::of(slow);
    let mut readers = Vec::new();
    // One of them is of the group's shard.
    for _ in 0..40 {
        let reader = story.fleet.clients.len();
        story.fleet.clients.push(Client::new(reader, Some(PUBLISHER_NODE)));
        story.fleet.connect(reader, PUBLISHER_NODE);
        story.passes(100 * MILLI);
        let filters = vec![("g/0".to_owned(), QoS::ExactlyOnce)];
        story.with(reader, |client, scene| client.subscribes_to(scene, filters, Level::Local));
        readers.push(reader);
    }
    let near = story.connects(PUBLISHER_NODE);
    story.joins_group(SUBSCRIBER);
    story.joins_group(near);
    story.passes(3 * SECOND);
    // What it sends may be sent again, as its session lasts.
    let writer = readers[0];
    let said: Vec<usize> =
        (0..8).map(|_| story.says_as(writer, "g/0", QoS::ExactlyOnce, Keeps::Nothing)).collect();
    // Whatever comes behind a later one ends the simulation. Not all of them take all at once.
    story.passes(5 * SECOND);
    assert!(said.iter().all(|message| story.is_acknowledged(*message) && story.got_in_group(*message) == 1));
    assert!(readers.into_iter().all(|reader| story.came_to(reader, said[0])));
}

/// A node whose sessions want much begins anew. Others hear of that little by little, and know all the time that its sessions want what they wanted.
#[cfg_attr(test, test)]
fn what_sessions_want_holds_while_their_node_tells_it_anew() {
    let mut many = plan(Duration::ZERO);
    (many.config.batching.bytes_max, many.config.batching.in_flight_max) = (40, 200);
    many.latency = 50 * MILLI;
    let mut story = Story::of(many);
    let (number, home) = (story.fleet.clients.len(), 0);
    story.fleet.clients.push(Client::new(number, Some(home)));
    story.fleet.connect(number, home);
    story.passes(SECOND);
    let filters: Vec<_> = (0..60).map(|number| (format!("u/{number}"), QoS::AtLeastOnce)).collect();
    story.with(number, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
    story.until("all is known", |story| story.routes_known(PUBLISHER_NODE) == 60);
    story.restart(home);
    for _ in 0..6_000 {
        story.passes(MILLI);
        assert_eq!(story.routes_known(PUBLISHER_NODE), 60, "a message would miss a session that is there");
    }
    assert_eq!(story.link(PUBLISHER_NODE, home), (true, 1));
    // A later life may want less.
    story.fleet.connect(number, home);
    story.passes(SECOND);
    story.with(number, |client, scene| client.leaves(scene, "u/7"));
    story.until("it is known", |story| story.routes_known(PUBLISHER_NODE) == 59);
}

/// Cores that find each other, each with a log of its own.
fn agreed_of(cores: usize, change: impl FnOnce(&mut Plan)) -> Story {
    let mut plan = plan(Duration::from_millis(5));
    while plan.nodes.len() < cores {
        plan.add(Role::Core);
    }
    plan.is_agreed = true;
    for (number, setup) in plan.setups.iter_mut().enumerate() {
        setup.entropy = [number as u8 + 1; 48];
    }
    change(&mut plan);
    let mut story = Story::of(plan);
    let nodes = 0..cores;
    story.until("all belong to it", |story| nodes.clone().all(|node| story.members(node) == cores));
    story
}

fn agreed() -> Story {
    agreed_of(3, |_| ())
}

fn id(node: usize) -> NodeId {
    NodeId::of_name(&format!("n{node}"))
}

impl Story {
    fn meta(&self, node: usize) -> Option<&Meta> {
        self.fleet.members[node].process.as_ref()?.fabric.meta()
    }

    fn known(&self, node: usize) -> &Roster {
        self.meta(node).expect("the node runs").roster()
    }

    /// Members that a node knows, if it is one.
    fn members(&self, node: usize) -> usize {
        self.meta(node).filter(|meta| meta.is_member()).map_or(0, |meta| meta.roster().members.len())
    }

    /// The state of one node as another knows it.
    fn state(&self, node: usize, of: usize) -> Option<State> {
        self.known(node).members.get(&id(of)).map(|member| member.state)
    }

    fn leader(&self) -> usize {
        let leads = |node: &usize| self.meta(*node).is_some_and(|meta| meta.leader() == Some(id(*node)));
        (0..self.fleet.members.len()).find(leads).expect("somebody leads")
    }

    /// What a node knows to be agreed upon, if it belongs to the cluster: each member's state by name, and how many vote.
    fn roster(&self, node: usize) -> Option<(Vec<State>, usize)> {
        let meta = self.meta(node).filter(|meta| meta.is_member())?;
        let states = (0..3).filter_map(|at| self.state(node, at));
        let process = self.fleet.members[node].process.as_ref()?;
        let voters = meta.status(process.time(&self.fleet.cx)).map_or(0, |status| status.voters.len());
        Some((states.collect(), voters))
    }

    fn assert_whole(&self) {
        for node in 0..3 {
            assert_eq!(self.roster(node), Some((vec![State::Alive; 3], 3)), "n{node}");
        }
    }

    /// A message goes from the third node to the subscriber on the first.
    fn assert_serves(&mut self) {
        self.passes(SECOND);
        let number = self.publishes();
        self.passes(2 * SECOND);
        assert!(self.is_acknowledged(number));
        assert!(self.has_come(number));
    }

    /// The life of each node that has joined.
    fn lives(&self) -> Vec<u64> {
        (0..3).map(|at| self.known(0).members[&id(at)].incarnation.0).collect()
    }

    /// What the log may ask of cores, as one of them knows.
    fn adopted(&self, node: usize) -> u64 {
        self.meta(node).and_then(Meta::adopted).expect("a core that runs")
    }

    fn revisions(&self) -> Vec<u64> {
        self.fleet.members.iter().map(|member| member.copy.position().revision).collect()
    }

    fn founded(&self) -> Vec<u128> {
        (0..3).map(|node| self.known(node).founded).collect()
    }

    fn until(&mut self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        let mut waited = 0;
        while !is_so(self) {
            self.passes(10 * MILLI);
            waited += 1;
            assert!(waited < 6_000, "not in a minute: {what}");
        }
    }

    /// Nothing gets from a node to the others or back.
    fn isolate(&mut self, node: usize) {
        for other in (0..self.fleet.members.len()).filter(|other| *other != node) {
            self.part(node, other);
        }
    }

    fn release(&mut self, node: usize) {
        for other in (0..self.fleet.members.len()).filter(|other| *other != node) {
            self.join(node, other);
        }
    }
}

#[cfg_attr(test, test)]
fn nodes_that_know_addresses_only_form_one_cluster() {
    let mut story = agreed();
    story.assert_whole();
    story.subscribes();
    story.passes(3 * SECOND);
    assert!(story.is_subscribed());
    story.assert_serves();
}

#[test]
fn a_node_that_is_killed_joins_again_in_a_new_life() {
    let mut story = agreed();
    story.subscribes();
    for killed in [1, 2, 1] {
        story.passes(3 * SECOND);
        let lives = story.lives();
        story.fleet.fault(&Fault::Kill { node: killed });
        story.passes(30 * SECOND);
        story.assert_whole();
        let grown: Vec<bool> = story.lives().iter().zip(&lives).map(|(now, then)| now > then).collect();
        assert_eq!(grown, (0..3).map(|node| node == killed).collect::<Vec<_>>());
    }
}

#[test]
fn a_cluster_that_loses_all_its_processes_comes_back_as_it_was() {
    let mut story = agreed();
    let founded = story.founded();
    story.fleet.fault(&Fault::KillMany { nodes: vec![0, 1, 2] });
    story.passes(40 * SECOND);
    story.assert_whole();
    assert_eq!(story.founded(), founded);
}

#[cfg_attr(test, test)]
fn whoever_is_cut_off_is_dead_for_the_others_acknowledges_nothing_and_joins_again() {
    let mut story = agreed();
    story.subscribes();
    story.passes(3 * SECOND);
    let lives = story.lives();
    story.isolate(2);
    story.passes(10 * SECOND);
    assert_eq!(story.roster(0), Some((vec![State::Alive, State::Alive, State::Dead], 3)));
    let number = story.publishes();
    story.passes(5 * SECOND);
    assert!(!story.is_acknowledged(number), "the node is in no majority");
    story.release(2);
    story.passes(10 * SECOND);
    story.assert_whole();
    let now = story.lives();
    assert!(now[2] > lives[2] && now[..2] == lives[..2], "{lives:?} {now:?}");
    assert!(story.fleet.clients[PUBLISHER].place().is_none(), "its clients were let go");
}

/// Its lease may hold for longer than it takes the others to find that they do not hear it.
#[cfg_attr(test, test)]
fn nobody_is_dead_who_may_still_acknowledge() {
    let mut story = agreed();
    story.passes(5 * SECOND);
    let (leader, checked) = (story.leader(), story.fleet.cx.report.fleet_check_dead);
    let cut_off = (leader + 1) % 3;
    story.isolate(cut_off);
    story.until("it is dead", |story| story.state(leader, cut_off) == Some(State::Dead));
    story.passes(3 * SECOND);
    assert!(story.fleet.cx.report.fleet_check_dead > checked);
}

#[test]
fn a_replicant_that_was_cut_off_learns_what_was_agreed_upon_meanwhile() {
    let mut story = agreed_of(3, |plan| plan.nodes[2].role = Role::Replicant);
    // As much as cores remember by change, and more.
    for count in [3, 40] {
        story.part(2, 0);
        story.part(2, 1);
        story.passes(2 * SECOND);
        let before = story.fleet.members[2].copy.position();
        for number in 0..count {
            story.fleet.proposes_anew(number % 2);
            story.passes(SECOND / 4);
        }
        assert_eq!(story.fleet.members[2].copy.position(), before);
        assert!(!story.fleet.copies_are_the_same());
        // Nobody agrees to what it wants, and it is not done later either.
        story.fleet.proposes(2);
        story.passes(6 * SECOND);
        story.join(2, 0);
        story.join(2, 1);
        story.passes(15 * SECOND);
        assert!(story.fleet.copies_are_the_same());
        assert!(story.fleet.members[2].copy.position() > before);
        story.fleet.check_records();
    }
    assert!(story.fleet.report().fleet_wholes > 0);
}

#[test]
fn what_one_node_proposes_all_have_within_a_second() {
    let mut story = agreed_of(3, |plan| plan.nodes[2].role = Role::Replicant);
    story.passes(5 * SECOND);
    let mut revision = story.fleet.members[0].copy.position().revision;
    for node in [2, 0, 1, 2] {
        story.fleet.proposes_anew(node);
        story.passes(SECOND);
        revision += 1;
        let copies = story.fleet.members.iter().map(|member| member.copy.position().revision);
        assert_eq!(copies.collect::<Vec<_>>(), [revision; 3], "by n{node}");
    }
}

/// Others acknowledge what its subscribers would have wanted, had they not been given up: no connection goes on as if it had missed nothing.
#[cfg_attr(test, test)]
fn who_stays_connected_to_a_node_that_was_dead_for_others_misses_nothing() {
    let mut story = agreed();
    story.subscribes();
    story.passes(3 * SECOND);
    assert!(story.is_subscribed());
    story.isolate(0);
    story.until("it is dead", |story| story.state(1, 0) == Some(State::Dead));
    let number = story.publishes();
    story.passes(3 * SECOND);
    assert!(story.is_acknowledged(number), "whom it was for is dead");
    story.release(0);
    story.until("it joins again", |story| story.state(1, 0) == Some(State::Alive));
    story.passes(5 * SECOND);
    assert!(story.fleet.clients[SUBSCRIBER].place().is_none() || story.has_come(number));
}

/// A suspicion takes nothing away: it may be wrong.
#[cfg_attr(test, test)]
fn a_node_that_was_suspected_and_is_heard_again_keeps_what_its_clients_want() {
    let mut story = agreed_of(3, |plan| plan.config.lease = Duration::from_secs(10));
    story.subscribes();
    story.passes(15 * SECOND);
    assert!(story.is_subscribed());
    let lives = story.lives();
    story.isolate(0);
    story.until("it is suspected", |story| matches!(story.state(1, 0), Some(State::Suspect(_))));
    story.release(0);
    story.until("it is heard again", |story| story.state(1, 0) == Some(State::Alive));
    story.passes(5 * SECOND);
    assert_eq!(story.lives(), lives);
    story.assert_serves();
}

/// One core hears a node again that all suspect, and what it has to say is late. The one that leads declares that node dead by what it knows: had the
/// first let the node acknowledge, the dead would have a lease.
#[cfg_attr(test, test)]
fn who_is_suspected_may_acknowledge_nothing_though_a_core_hears_it_again() {
    let mut deaths = 0;
    for late in [0, 500, 1_000] {
        let mut story = agreed_of(3, |plan| {
            plan.config.lease = Duration::from_secs(6);
            plan.mesh.link.silence_max = Duration::from_millis(1_500);
        });
        story.passes(10 * SECOND);
        let leader = story.leader();
        let (first, cut_off) = ((leader + 1) % 3, (leader + 2) % 3);
        story.part(cut_off, first);
        story.passes(2_500 * MILLI);
        story.part(cut_off, leader);
        story.passes((4_700 + late) * MILLI);
        let now = story.fleet.cx.now();
        story.fleet.wan.cut(now, first, leader, 1_300 * MILLI);
        story.join(cut_off, first);
        story.passes(5 * SECOND);
        deaths += story.fleet.cx.report.fleet_deaths;
    }
    assert!(deaths > 0, "nobody was declared dead too late to be heard");
}

#[cfg_attr(test, test)]
fn a_node_that_has_lost_its_number_takes_a_greater_one_than_any_before() {
    let mut story = agreed();
    story.restart(0);
    story.passes(10 * SECOND);
    let lives = story.lives();
    story.fleet.members[0].incarnation = 0;
    story.restart(0);
    story.passes(10 * SECOND);
    story.assert_whole();
    story.fleet.connect(SUBSCRIBER, 0);
    story.passes(SECOND);
    story.subscribes();
    story.passes(3 * SECOND);
    assert!(story.is_subscribed());
    story.assert_serves();
    assert!(story.lives()[0] > lives[0]);
}

/// Cores that begin a cluster tell each other of those that they have met.
#[test]
fn a_core_that_is_told_of_one_other_begins_with_all() {
    for told_of in [0, 1] {
        let mut story = agreed_of(3, |plan| plan.meets = vec![vec![0, 1], vec![0, 1], vec![told_of]]);
        story.passes(10 * SECOND);
        story.assert_whole();
    }
}

/// Of four cores one is removed, and of the three that are left one is lost.
#[cfg_attr(test, test)]
fn a_core_that_was_removed_counts_no_more() {
    let mut story = agreed_of(4, |_| ());
    story.passes(8 * SECOND);
    story.isolate(3);
    story.until("it is dead", |story| story.state(0, 3) == Some(State::Dead));
    story.removes(0, 3, WishId(ORDERS));
    story.until("it is removed", |story| (0..3).all(|node| story.members(node) == 3));
    story.passes(5 * SECOND);
    story.isolate(2);
    story.passes(5 * SECOND);
    let writer = story.connects(1);
    let number = story.says_as(writer, "t/0", QoS::AtLeastOnce, Keeps::Nothing);
    story.passes(10 * SECOND);
    assert!(story.is_acknowledged(number), "two of three cores are a majority");
}

/// Two of five cores are gone, and removed at once: those who have heard of that, and those who have not, would be two majorities.
#[cfg_attr(test, test)]
fn cores_go_one_after_the_other() {
    let mut story = agreed_of(5, |_| ());
    story.passes(10 * SECOND);
    let leader = story.leader();
    let gone = [(leader + 1) % 5, (leader + 2) % 5];
    for node in gone {
        story.isolate(node);
    }
    story.until("they are dead", |story| {
        gone.iter().all(|node| story.state(leader, *node) == Some(State::Dead))
    });
    for (number, node) in gone.into_iter().enumerate() {
        story.removes(leader, node, WishId(ORDERS + number as u64));
    }
    story.until("both are removed", |story| story.members(leader) == 3);
}

/// Two nodes are removed, and the one that went first comes back first. It has one place with the others then: what is retained there is for all places, and
/// would come to it twice.
#[test]
fn a_node_that_was_removed_and_joins_again_hears_everything_once() {
    let mut story = agreed_of(5, |_| ());
    story.passes(10 * SECOND);
    let gone = [3, 4];
    for node in gone {
        story.isolate(node);
    }
    story.until("they are dead", |story| gone.iter().all(|node| story.state(0, *node) == Some(State::Dead)));
    for (number, node) in gone.into_iter().enumerate() {
        story.removes(0, node, WishId(ORDERS + number as u64));
        story.until("it is removed", |story| (0..3).all(|at| story.members(at) == 4 - number));
    }
    for other in 0..3 {
        story.join(other, 3);
    }
    story.until("it has joined again", |story| (0..4).all(|node| story.members(node) == 4));
    let reader = story.connects(3);
    let filters = vec![(RETAINED.to_owned(), QoS::ExactlyOnce)];
    story.with(reader, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
    story.passes(3 * SECOND);
    let writer = story.connects(0);
    let number = story.says_as(writer, "r/0", QoS::ExactlyOnce, Keeps::Message);
    story.passes(3 * SECOND);
    // Whatever comes twice ends the simulation.
    assert!(story.came_to(reader, number) && story.is_acknowledged(number));
}

/// A node has written much, is declared dead, and has written little since it joined again. What cores have settled of its life before is none of what
/// it waits for now.
#[test]
fn a_life_that_has_written_less_than_the_one_before_has_its_subscriptions_settled() {
    let mut story = agreed();
    for _ in 0..3 {
        let client = story.connects(0);
        let filters = (0..60).map(|number| (format!("u/{number}"), QoS::AtLeastOnce)).collect();
        story.with(client, |client, scene| client.subscribes_to(scene, filters, Level::Local));
        story.passes(SECOND);
        story.fleet.fault(&Fault::LoseClient { client });
        story.passes(SECOND);
    }
    story.subscribes();
    story.passes(3 * SECOND);
    assert!(story.is_subscribed());
    story.isolate(0);
    story.until("it is dead", |story| story.state(1, 0) == Some(State::Dead));
    story.release(0);
    story.until("it joins again", |story| story.state(1, 0) == Some(State::Alive));
    story.passes(5 * SECOND);
    story.fleet.connect(SUBSCRIBER, 0);
    story.passes(SECOND);
    story.subscribes();
    story.passes(5 * SECOND);
    assert!(story.is_subscribed());
    story.assert_serves();
}

/// One of three cores does not read records. They are refused until it is updated, and then no core of a version before takes part any more.
#[cfg_attr(test, test)]
fn what_some_core_does_not_understand_is_agreed_upon_when_it_is_updated() {
    let mut story = agreed_of(3, |plan| plan.old = vec![1]);
    story.passes(20 * SECOND);
    for node in [0, 2] {
        story.fleet.proposes_anew(node);
    }
    story.passes(5 * SECOND);
    assert_eq!((story.adopted(0), story.fleet.operators.unread), (0, 2));
    assert_eq!(story.revisions(), [0; 3]);
    story.fleet.members[1].log = Some(cluster::LOG);
    story.restart(1);
    story.until("all understand it", |story| story.adopted(0) == cluster::LOG);
    story.fleet.proposes_anew(0);
    story.passes(3 * SECOND);
    assert_eq!(story.revisions(), [1; 3]);
    story.fleet.members[0].log = Some(0);
    story.restart(0);
    assert_eq!(story.fleet.report().fleet_outdated, 1, "its log is of a later version");
    story.passes(20 * SECOND);
    story.assert_whole();
    story.fleet.check_records();
}

/// It is removed in the form that all understand.
#[test]
fn what_a_core_that_is_gone_understands_counts_until_it_is_removed() {
    let mut story = agreed_of(4, |plan| plan.old = vec![3]);
    story.passes(20 * SECOND);
    story.isolate(3);
    story.until("it is dead", |story| story.state(0, 3) == Some(State::Dead));
    story.fleet.proposes_anew(0);
    story.passes(5 * SECOND);
    assert_eq!((story.adopted(0), story.fleet.operators.unread), (0, 1));
    story.removes(0, 3, WishId(ORDERS));
    story.until("it is removed", |story| (0..3).all(|node| story.members(node) == 3));
    story.until("the rest understands it", |story| story.adopted(0) == cluster::LOG);
    assert_eq!(story.outcome(), Some(Ok(Answer::Done)));
    story.fleet.proposes_anew(1);
    story.passes(3 * SECOND);
    assert_eq!(story.revisions()[..3], [1; 3]);
}

/// Three cores, 200 ms there and back.
fn far_apart(time: Micros) -> Story {
    let mut story = agreed_of(3, |plan| {
        plan.latency = 100 * MILLI;
        plan.mesh.link.silence_max = Duration::from_secs(5);
    });
    story
        .until("all vote", |story| (0..3).all(|node| story.roster(node) == Some((vec![State::Alive; 3], 3))));
    story.passes(time);
    story
}

#[test]
fn another_core_leads_soon_after_the_last_word_of_the_one_that_led() {
    let mut times: Vec<Micros> = (0..9)
        .map(|round| {
            let mut story = far_apart(5 * SECOND + round * 170 * MILLI);
            let (leader, now) = (story.leader(), story.fleet.cx.now());
            story.isolate(leader);
            story.until("another leads", |story| {
                let others = (0..3).filter(|node| *node != leader);
                let known: Vec<_> = others.filter_map(|node| story.meta(node)?.leader()).collect();
                known.len() == 2 && known[0] == known[1] && known[0] != id(leader)
            });
            story.fleet.cx.now() - now
        })
        .collect();
    times.sort_unstable();
    assert!(times[4] < 4 * SECOND && times[8] < 7 * SECOND, "{times:?}");
}

/// Nor do both links of the leader that stall at one time.
#[test]
fn a_link_that_stalls_for_a_second_deposes_nobody() {
    let mut story = far_apart(5 * SECOND);
    let term = |story: &Story| {
        let process = story.fleet.members[0].process.as_ref().expect("runs");
        story.meta(0).and_then(|meta| meta.status(process.time(&story.fleet.cx))).expect("a core").term
    };
    let (leader, before) = (story.leader(), term(&story));
    for round in 0..20 {
        let now = story.fleet.cx.now();
        for other in (0..3).filter(|node| *node != leader) {
            story.fleet.wan.cut(now, leader, other, SECOND);
        }
        story.passes(3 * SECOND + round * 70 * MILLI);
    }
    assert_eq!((story.leader(), term(&story)), (leader, before));
}

impl Story {
    /// An operator wants something of a node.
    fn orders(&mut self, node: usize, letter: Letter) {
        let process = self.fleet.members[node].process.as_mut().expect("runs");
        let now = process.time(&self.fleet.cx);
        process.fabric.letter(now, letter);
        process.wake(&mut self.fleet.cx, 1);
    }

    /// An operator has a node remove another one, in the life that the first knows of.
    fn removes(&mut self, node: usize, gone: usize, wish: WishId) {
        let life = self.known(node).members[&id(gone)].incarnation;
        self.orders(node, Letter::Wish(wish, Command::Remove(id(gone), Some(life))));
    }

    /// What came of what an operator wanted last.
    fn outcome(&mut self) -> Option<Result<Answer, String>> {
        self.fleet.operators.ordered.pop()
    }

    fn leaders(&self, nodes: std::ops::Range<usize>) -> Vec<Option<NodeId>> {
        let process = |node: usize| self.fleet.members[node].process.as_ref().expect("runs");
        nodes.map(|node| process(node).fabric.meta().expect("agreed").leader()).collect()
    }
}

#[test]
fn cores_that_leave_give_up_their_votes_and_the_last_stays() {
    for first in 0..3 {
        let mut story = agreed();
        let (second, last) = ((first + 1) % 3, (first + 2) % 3);
        story.passes(2 * SECOND);
        for (leaves, stays, left) in [(first, second, 2), (second, last, 1)] {
            story.orders(leaves, Letter::Leave(WishId(ORDERS)));
            story.passes(20 * SECOND);
            assert_eq!(story.outcome(), Some(Ok(Answer::Done)), "n{leaves} of {left}, n{first} first");
            assert_eq!(story.roster(leaves), None);
            assert_eq!(story.roster(stays), Some((vec![State::Alive; left], left)));
            // Nobody waits for it: the rest has a leader, and what it has left it does not join again.
            story.passes(70 * SECOND);
            assert_eq!(story.roster(stays), Some((vec![State::Alive; left], left)));
            let meta =
                story.fleet.members[stays].process.as_ref().and_then(|it| it.fabric.meta()).expect("agreed");
            assert!(meta.leader().is_some(), "n{leaves} of {left}, n{first} first");
        }
        story.orders(last, Letter::Leave(WishId(ORDERS)));
        story.passes(SECOND);
        let outcome = story.outcome().expect("at once");
        assert!(outcome.is_err_and(|why| why.contains("last core")));
    }
}

#[test]
fn a_core_leaves_when_a_majority_is_there_again_and_says_so_when_it_is_not() {
    let mut story = agreed();
    for node in [0, 1] {
        story.part(2, node);
    }
    story.orders(2, Letter::Leave(WishId(ORDERS)));
    story.passes(61 * SECOND);
    let outcome = story.outcome().expect("its time is over");
    assert!(outcome.is_err_and(|why| why.contains("no majority")));
    assert_eq!(story.roster(0).map(|(states, _)| states.len()), Some(3), "nobody has heard of it");
}

#[test]
fn the_lead_goes_where_an_operator_wants_it() {
    let mut story = agreed();
    for (asked, wanted) in [(0, 1), (2, 1), (2, 0), (1, 2), (1, 2)] {
        let node = NodeId::of_name(&format!("n{wanted}"));
        story.orders(asked, Letter::Wish(WishId(ORDERS), Command::Lead(node)));
        story.passes(5 * SECOND);
        assert_eq!(story.outcome(), Some(Ok(Answer::Done)), "n{wanted}, asked of n{asked}");
        assert_eq!(story.leaders(0..3), [Some(node); 3]);
    }
    story.assert_whole();
}

#[test]
fn a_core_that_is_back_gets_its_share_of_replicants_when_it_is_asked_for() {
    let mut story = agreed_of(3, |plan| plan.nodes[2].role = Role::Replicant);
    let attached = |story: &Story| {
        let process = story.fleet.members[2].process.as_ref().expect("runs");
        process.fabric.view(process.time(&story.fleet.cx)).attached.map(|name| name.to_string())
    };
    // The only replicant falls to the core with the smallest number.
    let first = usize::from(NodeId::of_name("n1") < NodeId::of_name("n0"));
    story.fleet.fault(&Fault::Kill { node: first });
    story.passes(40 * SECOND);
    let other = Some(format!("n{}", 1 - first));
    assert_eq!(attached(&story), other, "a core that has just begun attracts nobody");
    story.orders(1 - first, Letter::Balance);
    story.passes(SECOND);
    assert_eq!(attached(&story), Some(format!("n{first}")));
    story.subscribes();
    story.passes(3 * SECOND);
    assert!(story.is_subscribed());
    story.assert_serves();
}

/// Each hears at first from the core that it has met first, which may be the same for all.
#[test]
fn replicants_that_begin_at_once_are_spread_over_the_cores() {
    let replicants = 3..9;
    let mut story = agreed_of(9, |plan| {
        plan.nodes[3..9].iter_mut().for_each(|node| node.role = Role::Replicant);
    });
    story.passes(20 * SECOND);
    let mut counts = std::collections::BTreeMap::new();
    for node in replicants {
        let process = story.fleet.members[node].process.as_ref().expect("runs");
        let view = process.fabric.view(process.time(&story.fleet.cx));
        *counts.entry(view.attached.map(|name| name.to_string())).or_insert(0) += 1;
    }
    let even = ["n0", "n1", "n2"].map(|core| (Some(core.to_owned()), 2));
    assert_eq!(counts.into_iter().collect::<Vec<_>>(), even);
}

/// Faults of the product, and what notices each of them.
#[cfg(feature = "trial")]
pub const TRIALS: [(cluster::Mutation, fn()); 14] = [
    (cluster::Mutation::ForgetGrants, cores_that_begin_anew_wait_for_the_leases_that_they_have_forgotten),
    (
        cluster::Mutation::GrantUninformed,
        a_core_that_begins_anew_hears_of_every_node_before_it_grants_anything,
    ),
    (cluster::Mutation::GrantSuspects, who_is_suspected_may_acknowledge_nothing_though_a_core_hears_it_again),
    (cluster::Mutation::BuryAtOnce, nobody_is_dead_who_may_still_acknowledge),
    (
        cluster::Mutation::PurgeSuspects,
        a_node_that_was_suspected_and_is_heard_again_keeps_what_its_clients_want,
    ),
    (cluster::Mutation::KeepClients, who_stays_connected_to_a_node_that_was_dead_for_others_misses_nothing),
    (
        cluster::Mutation::StayDead,
        whoever_is_cut_off_is_dead_for_the_others_acknowledges_nothing_and_joins_again,
    ),
    (cluster::Mutation::FoundAlone, nodes_that_know_addresses_only_form_one_cluster),
    (cluster::Mutation::CountRemoved, a_core_that_was_removed_counts_no_more),
    (cluster::Mutation::ManyCoresAtOnce, cores_go_one_after_the_other),
    (cluster::Mutation::ForgetEarly, what_sessions_want_holds_while_their_node_tells_it_anew),
    (cluster::Mutation::AdoptUnread, what_some_core_does_not_understand_is_agreed_upon_when_it_is_updated),
    (cluster::Mutation::OldLivesJoin, a_node_that_has_lost_its_number_takes_a_greater_one_than_any_before),
    (cluster::Mutation::SendToTheDead, what_others_say_that_a_new_life_wants_goes_there),
];
