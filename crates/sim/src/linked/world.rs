//! One simulation: the clusters over all their incarnations, and what joins them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bridge::Time;
use broker::InterestWatch;
use broker::access::INTERNAL_LISTENER;
use random::Random;

use super::client::{Act, Client, GROUP};
use super::oracle::Oracle;
use super::plan::{Fault, Plan};
use super::pull::{NAMES, Pull, TOPICS, Wants};
use crate::context::Context;
use crate::disk::Machine;
use crate::net::{Direction, Link, Net, Piece};
use crate::node::{Node, Setup, StartFailure};
use crate::report::Report;
use crate::schedule::{Event, MILLI, Micros, SECOND, Schedule};
use crate::trace::Trace;

/// An event of linked clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Starts the process of a node.
    Start {
        node: usize,
    },
    /// Lets a client act.
    Act {
        client: usize,
    },
    /// Lets a relay go on. Only the last one that was scheduled counts.
    Drive {
        pull: usize,
        tick: u64,
    },
    /// Begins a relay.
    Relay {
        pull: usize,
    },
    /// Looks at the filters of a node.
    Look {
        node: usize,
    },
    Fault {
        number: usize,
    },
}

struct Member {
    machine: Machine,
    setup: Setup,
    node: Option<Node>,
    watch: Option<InterestWatch>,
}

/// The end of a connection that does not belong to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Client(usize),
    Pull(usize),
}

/// A subscription for which the links are not settled yet.
struct Pending {
    subscriber: usize,
    filter: &'static str,
    origin: usize,
    /// Pulls from the subscriber's cluster to the origin, and how many of them are settled.
    way: Vec<usize>,
    reached: usize,
    /// True since a look at the filters of the cluster of the next pull.
    is_known: bool,
}

pub struct Linked {
    cx: Context,
    net: Net,
    plan: Plan,
    members: Vec<Member>,
    pulls: Vec<Pull>,
    clients: Vec<Client>,
    oracle: Oracle,
    /// Node and other end of each connection.
    ends: BTreeMap<Link, (usize, Owner)>,
    pending: Vec<Pending>,
    /// Filters of subscribers that were seen already.
    seen: BTreeSet<(usize, &'static str)>,
    incarnations: u32,
    is_ending: bool,
}

/// Maximum time of the end of a simulation.
const SETTLE_MAX: Micros = 300 * SECOND;

impl Linked {
    pub fn new(seed: u64, trace: Trace) -> Self {
        let mut random = Random::new(seed.wrapping_mul(0x9E37_79B9) ^ 0x117D);
        let plan = Plan::of(seed, &mut random);
        let member = |setup: &Setup, random: &mut Random| Member {
            machine: Machine::new(random.draw()),
            setup: setup.clone(),
            node: None,
            watch: None,
        };
        let members: Vec<_> = plan.setups.iter().map(|setup| member(setup, &mut random)).collect();
        let mut clients: Vec<_> =
            (0..plan.publishers).map(|number| Client::publisher(number, number % plan.nodes)).collect();
        let mut oracle = Oracle::default();
        for number in plan.publishers..plan.publishers + plan.subscribers {
            let node = number % plan.nodes;
            oracle.add_subscriber(number, node);
            clients.push(Client::subscriber(number, node));
        }
        for node in &plan.members {
            oracle.add_member(clients.len(), *node);
            clients.push(Client::member(clients.len(), *node));
        }
        let pulls = plan.routes.iter().map(|route| Pull::new(*route)).collect();
        let cx = Context {
            random,
            schedule: Schedule::default(),
            report: Report::default(),
            trace,
            has_slow_reads: true,
        };
        Self {
            cx,
            net: Net::default(),
            plan,
            members,
            pulls,
            clients,
            oracle,
            ends: BTreeMap::new(),
            pending: Vec::new(),
            seen: BTreeSet::new(),
            incarnations: 0,
            is_ending: false,
        }
    }

    /// Runs the simulation.
    ///
    /// # Panics
    /// Panics when a check fails.
    pub fn run(&mut self) {
        self.cx.report.seeds = 1;
        for node in 0..self.members.len() {
            self.cx.at(0, Event::Linked(Step::Start { node }));
        }
        for (number, (at, _)) in self.plan.faults.iter().enumerate() {
            self.cx.at(*at, Event::Linked(Step::Fault { number }));
        }
        for client in 0..self.clients.len() {
            let at = self.cx.between(0, SECOND);
            self.cx.at(at, Event::Linked(Step::Act { client }));
        }
        self.run_until(self.plan.length);
        self.settle();
        let (checked, far) = self.oracle.checked();
        let seconds = self.cx.now() / SECOND;
        let report = &mut self.cx.report;
        (report.linked_check_arrived, report.linked_check_arrived_over_links) = (checked, far);
        report.linked_check_arrived_in_group = self.oracle.checked_in_group();
        report.seconds = seconds;
        self.cx.report.events = self.cx.schedule.handled();
        for member in &mut self.members {
            member.machine.count(&mut self.cx);
        }
    }

    pub fn report(&self) -> Report {
        self.cx.report.clone()
    }

    pub fn take_trace(&mut self) -> Vec<String> {
        self.cx.trace.take()
    }

    fn now(&self) -> Time {
        Time(self.cx.now())
    }

    fn run_until(&mut self, until: Micros) {
        while let Some(event) = self.cx.schedule.next(until) {
            self.happens(event);
        }
        self.cx.schedule.pass_to(until);
    }

    /// Ends all faults, and waits until everything has arrived.
    ///
    /// # Panics
    /// Panics when something never arrives.
    fn settle(&mut self) {
        (self.is_ending, self.net.calm, self.cx.has_slow_reads) = (true, true, false);
        for member in &self.members {
            member.machine.mend();
        }
        let deadline = self.cx.now() + SETTLE_MAX;
        loop {
            self.run_until(self.cx.now() + SECOND);
            let open: usize = self.clients.iter().map(Client::open).sum();
            let (missing, of_group) = (self.oracle.missing(), self.oracle.missing_in_group());
            let are_settled = self.pulls.iter().all(Pull::is_settled);
            if open == 0 && missing.is_empty() && of_group.is_empty() && are_settled {
                break;
            }
            assert!(
                self.cx.now() < deadline,
                "{open} requests without an answer, links settled: {are_settled}, missing (message, subscriber): \
                 {missing:?}, missing in the group: {of_group:?}\n{}",
                self.pulls.iter().map(Pull::describe).collect::<Vec<_>>().join("\n")
            );
        }
        // What was sent too much would arrive meanwhile.
        self.run_until(self.cx.now() + 15 * SECOND);
        self.check_interest();
    }

    /// Asserts that the sessions of the links have the filters that are wanted.
    fn check_interest(&mut self) {
        for (at, member) in self.members.iter().enumerate() {
            let Some(watch) = &member.watch else { continue };
            for pull in self.pulls.iter().filter(|pull| pull.route.at == at) {
                let route = pull.route;
                let Some(source) = &self.members[route.from].watch else { continue };
                let of_source = if route.origin == route.from { "" } else { NAMES[route.origin] };
                let mut wanted = BTreeSet::new();
                let topics = mqtt::TopicFilter::parse(TOPICS).expect("a filter");
                watch.for_each(None, &mut |filter| {
                    let cut =
                        mqtt::TopicFilter::parse(filter).ok().and_then(|filter| linking::cut(filter, topics));
                    wanted.extend(cut);
                });
                let mut found = BTreeSet::new();
                source.for_each(Some(of_source), &mut |filter| {
                    found.insert(filter.to_owned());
                });
                assert!(wanted.is_subset(&found), "{route:?} wants {wanted:?}, and has {found:?}");
                self.cx.report.linked_check_interest += 1;
                // Other clusters may want others of the same origin.
                let is_alone = self
                    .pulls
                    .iter()
                    .filter(|it| (it.route.from, it.route.origin) == (route.from, route.origin))
                    .count()
                    == 1;
                let passes_on =
                    self.pulls.iter().any(|it| it.route.from == at && it.route.origin == route.origin);
                if is_alone && !passes_on && !pull.may_have_stale() {
                    found.retain(|filter| !filter.starts_with("$link/"));
                    assert_eq!(wanted, found, "{route:?}");
                    self.cx.report.linked_check_interest_exact += 1;
                }
            }
        }
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Linked(step) => self.step(step),
            Event::Arrive { link, direction: Direction::ToNode } => {
                let Some(piece) = self.net.take(link, Direction::ToNode) else { return };
                let Some(node) = self.node_of(link) else { return };
                let Some(node) = &mut self.members[node].node else { return };
                match piece {
                    Piece::Bytes(bytes) => node.receive(&mut self.cx, &mut self.net, link, &bytes),
                    Piece::End => node.lost(&mut self.cx, &mut self.net, link),
                }
            }
            Event::Lost { link, direction: Direction::ToNode } => {
                let Some(node) = self.node_of(link) else { return };
                if let Some(node) = &mut self.members[node].node {
                    node.lost(&mut self.cx, &mut self.net, link);
                }
            }
            Event::Arrive { link, direction: Direction::ToClient } => {
                match self.net.take(link, Direction::ToClient) {
                    Some(Piece::Bytes(bytes)) => self.arrives(link, &bytes),
                    Some(Piece::End) => self.loses(link),
                    None => {}
                }
            }
            Event::Lost { link, direction: Direction::ToClient } => self.loses(link),
            event => {
                let Some(incarnation) = event.incarnation() else { return };
                let is_it = |member: &&mut Member| {
                    member.node.as_ref().is_some_and(|node| node.incarnation() == incarnation)
                };
                if let Some(Member { node: Some(node), machine, .. }) = self.members.iter_mut().find(is_it) {
                    node.handle(&mut self.cx, &mut self.net, machine, event);
                }
            }
        }
    }

    fn node_of(&self, link: Link) -> Option<usize> {
        self.ends.get(&link).map(|(node, _)| *node)
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Start { node } => self.start(node),
            Step::Act { client } => self.act(client),
            Step::Drive { pull, tick } if self.pulls[pull].tick == tick => self.drive(pull),
            Step::Drive { .. } => {}
            Step::Relay { pull } => self.start_relay(pull),
            Step::Look { node } => self.look(node),
            Step::Fault { number } => self.fault(self.plan.faults[number].1),
        }
    }

    fn start(&mut self, at: usize) {
        if self.members[at].node.is_some() {
            return;
        }
        self.incarnations += 1;
        let member = &mut self.members[at];
        let started = Node::start(&mut self.cx, &mut member.machine, member.setup.clone(), self.incarnations);
        match started {
            Ok(node) => {
                node.broker().name_listeners(vec!["tcp".to_owned(), INTERNAL_LISTENER.to_owned()]);
                member.watch = Some(node.broker().watch_interest(Arc::new(|| ())));
                member.node = Some(node);
                self.cx.log(|| format!("cluster {}: starts", NAMES[at]));
                let pulls = (0..self.pulls.len()).filter(|pull| self.pulls[*pull].route.at == at);
                for pull in pulls.collect::<Vec<_>>() {
                    let delay = self.cx.between(MILLI, SECOND);
                    self.cx.after(delay, Event::Linked(Step::Relay { pull }));
                }
                self.cx.after(50 * MILLI, Event::Linked(Step::Look { node: at }));
            }
            Err(StartFailure::Broken(why)) => panic!("a node does not start: {why}"),
            Err(StartFailure::Disk | StartFailure::Outdated) => {
                member.machine.kill();
                self.cx.after(SECOND, Event::Linked(Step::Start { node: at }));
            }
        }
    }

    fn start_relay(&mut self, at: usize) {
        let pull = &mut self.pulls[at];
        let Some(watch) = self.members[pull.route.at].watch.as_ref().filter(|_| pull.relay.is_none()) else {
            return;
        };
        let seed = self.cx.random.draw();
        pull.start(Time(self.cx.now()), seed, watch);
        self.cx.report.linked_relays += 1;
        self.drive(at);
    }

    /// Follows changed filters, and looks which subscriptions the links bring messages for.
    fn look(&mut self, at: usize) {
        let Some(watch) = &self.members[at].watch else { return };
        self.cx.after(50 * MILLI, Event::Linked(Step::Look { node: at }));
        let changed = watch.take();
        assert!(!changed.is_overrun, "more filters than a simulation has");
        let now = Time(self.cx.now());
        let mut driven = Vec::new();
        for (number, pull) in self.pulls.iter_mut().enumerate().filter(|(_, pull)| pull.route.at == at) {
            if pull.follow(now, watch, &changed.filters) {
                driven.push(number);
            }
        }
        driven.into_iter().for_each(|pull| self.drive(pull));
        self.note_settled(at);
    }

    fn note_settled(&mut self, at: usize) {
        for client in self.clients.iter().filter(|client| client.is_subscriber() && client.node == at) {
            let filters: BTreeSet<_> = client.filters().collect();
            self.seen.retain(|(of, filter)| *of != client.number || filters.contains(filter));
            self.pending.retain(|it| it.subscriber != client.number || filters.contains(it.filter));
            for filter in filters {
                if self.seen.insert((client.number, filter)) {
                    for origin in (0..self.members.len()).filter(|origin| *origin != at) {
                        let way = self.way(at, origin);
                        if filter == GROUP && way.len() > 1 {
                            continue;
                        }
                        let subscriber = client.number;
                        self.pending.push(Pending {
                            subscriber,
                            filter,
                            origin,
                            way,
                            reached: 0,
                            is_known: false,
                        });
                    }
                }
            }
        }
        let (pulls, oracle) = (&self.pulls, &mut self.oracle);
        self.pending.retain_mut(|it| {
            let Some(next) = it.way.get(it.reached) else { return false };
            if pulls[*next].route.at == at {
                // The look after this one has followed the filters of now.
                if std::mem::replace(&mut it.is_known, true) && pulls[*next].is_settled() {
                    (it.reached, it.is_known) = (it.reached + 1, false);
                }
            }
            if it.reached == it.way.len() {
                oracle.settled(it.subscriber, it.filter, it.origin);
                return false;
            }
            true
        });
    }

    /// Pulls that bring messages of an origin to a cluster, the last one first.
    fn way(&self, at: usize, origin: usize) -> Vec<usize> {
        let mut way = Vec::new();
        let mut here = at;
        while here != origin {
            let next = self.pulls.iter().position(|it| it.route.at == here && it.route.origin == origin);
            let next = next.expect("each cluster has a way to each other one");
            way.push(next);
            here = self.pulls[next].route.from;
        }
        way
    }

    fn act(&mut self, number: usize) {
        let delay = self.cx.between(5 * MILLI, 300 * MILLI);
        self.cx.after(delay, Event::Linked(Step::Act { client: number }));
        let client = &mut self.clients[number];
        let Context { random, report, .. } = &mut self.cx;
        match client.act(random, report, &mut self.oracle, self.is_ending) {
            Some(Act::Connect) => {
                let node = client.node;
                let Some(link) = self.open(node, Owner::Client(number), number, false) else { return };
                let bytes = self.clients[number].connected(link);
                self.net.send(&mut self.cx, link, Direction::ToNode, bytes);
            }
            Some(Act::Send(bytes)) => {
                if let Some((link, _)) = &client.connection {
                    self.net.send(&mut self.cx, *link, Direction::ToNode, bytes);
                }
            }
            None => {}
        }
    }

    /// Opens a connection to a node. `wire` is the number of its end in the network.
    fn open(&mut self, node: usize, owner: Owner, wire: usize, is_internal: bool) -> Option<Link> {
        let process = self.members[node].node.as_mut()?;
        let link = self.net.open(wire);
        process.open_by(&mut self.cx, link, u16::from(is_internal));
        self.ends.insert(link, (node, owner));
        self.cx.report.connections += 1;
        Some(link)
    }

    fn arrives(&mut self, link: Link, bytes: &[u8]) {
        match self.ends.get(&link) {
            Some((_, Owner::Client(number))) => {
                let Some(client) = self.clients.get_mut(*number) else { return };
                let answers = client.reads(&mut self.cx.report, &mut self.oracle, link, bytes);
                self.net.send(&mut self.cx, link, Direction::ToNode, answers);
            }
            Some((_, Owner::Pull(number))) => {
                let number = *number;
                self.pulls[number].received(link, bytes);
                self.drive(number);
            }
            None => {}
        }
    }

    fn loses(&mut self, link: Link) {
        let now = self.now();
        match self.ends.get(&link) {
            Some((_, Owner::Client(number))) => {
                if let Some(client) = self.clients.get_mut(*number) {
                    client.lost(link);
                }
            }
            Some((_, Owner::Pull(number))) => {
                let number = *number;
                self.pulls[number].lost(now, link);
                self.drive(number);
            }
            None => return,
        }
        self.net.close(&mut self.cx, link, Direction::ToNode);
    }

    /// Lets a relay do what it wants, and schedules its next time-out.
    fn drive(&mut self, number: usize) {
        let now = self.now();
        while let Some(wants) = self.pulls[number].next(now) {
            match wants {
                Wants::Open(connection) => {
                    let route = self.pulls[number].route;
                    let is_local = connection.side == bridge::Side::Local;
                    let node = if is_local { route.at } else { route.from };
                    let wire = self.wire(number, is_local);
                    let link = self.open(node, Owner::Pull(number), wire, is_local);
                    self.pulls[number].opened(now, connection, link);
                }
                Wants::Close(link, rest) => {
                    self.net.send(&mut self.cx, link, Direction::ToNode, rest);
                    self.net.close(&mut self.cx, link, Direction::ToNode);
                }
                Wants::Send(link, bytes) => self.net.send(&mut self.cx, link, Direction::ToNode, bytes),
            }
        }
        let pull = &mut self.pulls[number];
        pull.tick += 1;
        if let Some(at) = pull.relay.as_ref().and_then(bridge::Relay::poll_timeout) {
            self.cx.at(at.0, Event::Linked(Step::Drive { pull: number, tick: pull.tick }));
        }
    }

    /// Number of an end of a relay in the network.
    fn wire(&self, pull: usize, is_local: bool) -> usize {
        self.clients.len() + 2 * pull + usize::from(is_local)
    }

    fn fault(&mut self, fault: Fault) {
        self.cx.log(|| format!("fault: {fault:?}"));
        match fault {
            Fault::Kill { node, down } => {
                self.cx.report.kills += 1;
                self.dies(node, down, false);
            }
            Fault::Cut { node, down } => {
                self.cx.report.power_cuts += 1;
                self.dies(node, down, true);
            }
            Fault::LoseConnection { pull } => {
                if let Some((link, _)) = self.pulls[pull].links[1] {
                    self.net.lose(&mut self.cx, link);
                    self.cx.report.linked_connections_lost += 1;
                }
            }
            Fault::Partition { pull, time } => {
                let wire = self.wire(pull, false);
                self.net.part(&mut self.cx, wire, time);
                self.cx.report.linked_partitions += 1;
            }
            Fault::KillRelay { pull } => {
                self.end_relay(pull);
                self.cx.report.linked_relays_killed += 1;
                let delay = self.cx.between(MILLI, 3 * SECOND);
                self.cx.after(delay, Event::Linked(Step::Relay { pull }));
            }
        }
    }

    fn end_relay(&mut self, number: usize) {
        let pull = &mut self.pulls[number];
        pull.relay = None;
        pull.tick += 1;
        for (link, _) in std::mem::take(&mut pull.links).into_iter().flatten() {
            self.net.close(&mut self.cx, link, Direction::ToNode);
            self.ends.entry(link).and_modify(|(_, owner)| *owner = Owner::Client(usize::MAX));
        }
    }

    /// Ends the process of a node, with its relays.
    fn dies(&mut self, at: usize, down: Micros, is_power_cut: bool) {
        let member = &mut self.members[at];
        if member.node.take().is_none() {
            return;
        }
        self.oracle.crashes();
        member.watch = None;
        match is_power_cut {
            true => member.machine.cut(&mut self.cx),
            false => member.machine.kill(),
        }
        let links: Vec<Link> =
            self.ends.iter().filter(|(_, (node, _))| *node == at).map(|(link, _)| *link).collect();
        for link in links {
            self.net.lose(&mut self.cx, link);
        }
        for pull in (0..self.pulls.len()).filter(|pull| self.pulls[*pull].route.at == at).collect::<Vec<_>>()
        {
            self.end_relay(pull);
        }
        self.cx.after(down, Event::Linked(Step::Start { node: at }));
    }
}
