//! One simulation: a node over all its incarnations, its clients, and faults. It ends with a time without faults, and a
//! last crash.

mod faults;
mod flips;
mod settle;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use self::settle::Reader;
use crate::client::{Client, Kind};
use crate::context::Context;
use crate::disk::Machine;
use crate::hostile::Hostile;
use crate::net::{Direction, Link, Net, Piece};
use crate::oracle::{Ending, Oracle};
use crate::plan::Plan;
use crate::report::Report;
use crate::scene::Scene;
use crate::schedule::{Event, MILLI, Micros, SECOND, Schedule};
use crate::trace::Trace;
use random::Random;

pub struct World {
    scene: Scene,
    plan: Plan,
    clients: Vec<Client>,
    hostile: Vec<Hostile>,
    /// Number of incarnations that began.
    incarnations: u32,
    /// Connections that the node had when it died, until its next start.
    orphaned: Vec<(Link, Ending)>,
    /// Wills that were cancelled, with the time. The cancellation is durable some time later.
    taken_back: VecDeque<(Micros, Link)>,
    /// Number of the disk operation in which the power is cut.
    cut_at: Option<u64>,
    /// True if the node's process ends soon.
    ending: bool,
    /// True if it is stopped in order.
    stopping: bool,
    died_at: Micros,
    same_boot: bool,
    /// Time between a failure of the disk and the restart.
    restart_after: Micros,
    /// Number of messages that past incarnations dropped by rule.
    dropped: u64,
    /// Client that reads all retained messages.
    reader: Option<Reader>,
}

impl World {
    pub fn new(seed: u64, trace: Trace) -> Self {
        let mut random = Random::new(seed.wrapping_mul(0x9E37_79B9) ^ 0x51B);
        let plan = Plan::of(seed, &mut random);
        let machine = Machine::new(random.draw());
        let oracle = Oracle::new(plan.tight, plan.setup.settings.queue.full_wait < Duration::from_secs(60));
        let cx = Context {
            random,
            schedule: Schedule::default(),
            report: Report::default(),
            trace,
            has_slow_reads: true,
        };
        let scene = Scene {
            cx,
            net: Net::default(),
            machine,
            node: None,
            oracle,
            stopped_at: 0,
            past: Vec::new(),
            goodbyes: BTreeMap::new(),
            healing: false,
        };
        let kind = |number| match number {
            0 | 1 => Kind::Steady,
            number if number % 4 == 3 => Kind::Brief,
            _ => Kind::Common,
        };
        let clients = (0..plan.clients).map(|number| Client::new(number, kind(number))).collect();
        let hostile = (0..plan.hostile).map(|number| Hostile::new(plan.clients + number)).collect();
        Self {
            scene,
            plan,
            clients,
            hostile,
            incarnations: 0,
            orphaned: Vec::new(),
            taken_back: VecDeque::new(),
            cut_at: None,
            ending: false,
            stopping: false,
            died_at: 0,
            same_boot: false,
            restart_after: SECOND,
            dropped: 0,
            reader: None,
        }
    }

    #[cfg(feature = "trial")]
    pub fn mutate(&mut self, mutation: storage::Mutation) {
        self.plan.setup.mutation = Some(mutation);
    }

    /// Runs the simulation.
    ///
    /// # Panics
    /// Panics when a check fails.
    pub fn run(&mut self) {
        let cx = &mut self.scene.cx;
        cx.report.seeds = 1;
        cx.at(0, Event::Start);
        for (number, (at, _)) in self.plan.faults.iter().enumerate() {
            cx.at(*at, Event::Fault { number });
        }
        for client in 0..self.clients.len() + self.hostile.len() {
            let at = cx.between(0, SECOND);
            cx.at(at, Event::Act { client });
        }
        self.run_until(self.plan.length);
        self.heal();
        self.settle();
        self.check();
        self.crash_once_more();
        self.settle();
        self.check();
        self.scene.cx.report.check_after_last_crash += 1;
        let cx = &mut self.scene.cx;
        cx.report.seconds = cx.now() / SECOND;
        cx.report.events = cx.schedule.handled();
        self.scene.machine.count(cx);
        self.flip_bits();
    }

    pub fn report(&self) -> Report {
        let mut report = self.scene.cx.report.clone();
        report.add(&self.scene.oracle.excused);
        report
    }

    pub fn take_trace(&mut self) -> Vec<String> {
        self.scene.cx.trace.take()
    }

    fn run_until(&mut self, until: Micros) {
        while let Some(event) = self.scene.cx.schedule.next(until) {
            self.happens(event);
            self.check_after_event();
        }
        self.scene.cx.schedule.pass_to(until);
    }

    fn happens(&mut self, event: Event) {
        if let Some(until) = self.waits_until(&event) {
            self.scene.cx.report.check_read_after_pause +=
                u64::from(matches!(event, Event::Arrive { direction: Direction::ToNode, .. }));
            return self.scene.cx.at(until, event);
        }
        let scene = &mut self.scene;
        match event {
            Event::Start => self.start(),
            Event::Act { client } => self.act(client),
            Event::Fault { number } => self.fault(self.plan.faults[number].1),
            Event::End { incarnation } => self.end(incarnation),
            Event::Room => scene.machine.disk.set_capacity(None),
            Event::ReadAll { incarnation } => {
                if let Some(node) = scene.node.as_mut().filter(|node| node.incarnation() == incarnation) {
                    node.has_read_all(&mut scene.cx, &mut scene.net);
                }
            }
            Event::SimCluster(_) | Event::Quorum(_) | Event::AgreedShards(_) | Event::Linked(_) => {}
            Event::Arrive { link, direction: Direction::ToNode } => {
                let Some(piece) = scene.net.take(link, Direction::ToNode) else { return };
                let Some(node) = &mut scene.node else { return };
                match piece {
                    Piece::Bytes(bytes) => node.receive(&mut scene.cx, &mut scene.net, link, &bytes),
                    Piece::End => node.lost(&mut scene.cx, &mut scene.net, link),
                }
            }
            Event::Lost { link, direction: Direction::ToNode } => {
                if let Some(node) = &mut scene.node {
                    node.lost(&mut scene.cx, &mut scene.net, link);
                }
            }
            Event::Arrive { link, direction: Direction::ToClient } => {
                match scene.net.take(link, Direction::ToClient) {
                    Some(Piece::Bytes(bytes)) => {
                        if let Some(reader) = self.reader.as_mut().filter(|reader| reader.link == link) {
                            reader.end.read(&bytes);
                        } else if let Some(client) = self.clients.iter_mut().find(|client| client.is_on(link))
                        {
                            client.reads(scene, link, &bytes);
                        }
                    }
                    Some(Piece::End) => self.client_loses(link),
                    None => {}
                }
            }
            Event::Lost { link, direction: Direction::ToClient } => self.client_loses(link),
            Event::Turn { incarnation, .. }
            | Event::Batch { incarnation, .. }
            | Event::WorkerCommand { incarnation, .. }
            | Event::Commit { incarnation }
            | Event::Keep { incarnation }
            | Event::Read { incarnation, .. }
            | Event::Note { incarnation }
            | Event::Follow { incarnation } => {
                if let Some(node) = scene.node.as_mut().filter(|node| node.incarnation() == incarnation) {
                    node.handle(&mut scene.cx, &mut scene.net, &mut scene.machine, event);
                }
            }
        }
    }

    /// Time until which the process that an event is for stands still.
    fn waits_until(&self, event: &Event) -> Option<Micros> {
        let node = self.scene.node.as_ref()?;
        let is_for_it = match event {
            Event::Arrive { direction, .. } | Event::Lost { direction, .. } => {
                *direction == Direction::ToNode
            }
            _ => event.incarnation() == Some(node.incarnation()),
        };
        node.paused_until(self.scene.cx.now()).filter(|_| is_for_it)
    }

    fn client_loses(&mut self, link: Link) {
        let scene = &mut self.scene;
        self.clients.iter_mut().for_each(|client| client.loses_link(scene, link));
        self.hostile.iter_mut().for_each(|hostile| hostile.loses_link(link));
        scene.net.close(&mut scene.cx, link, Direction::ToNode);
    }

    fn act(&mut self, number: usize) {
        let scene = &mut self.scene;
        let delay = match self.clients.get_mut(number) {
            Some(client) => {
                if scene.healing {
                    client.heals(scene);
                } else {
                    client.act(scene);
                }
                client.pace(scene)
            }
            None => {
                if scene.healing {
                    return;
                }
                self.hostile[number - self.clients.len()].act(scene);
                scene.cx.between(MILLI, SECOND)
            }
        };
        scene.cx.after(delay, Event::Act { client: number });
    }

    /// Checks after each event for ended connections, a power cut, and clients that are served twice.
    fn check_after_event(&mut self) {
        self.notice_failures();
        let Some(node) = &mut self.scene.node else { return };
        for (link, taken) in node.take_ended() {
            self.node_ended(link, taken);
        }
        let now = self.scene.cx.now();
        while let Some((_, link)) = self.taken_back.pop_front_if(|(at, _)| *at + DURABLE_AFTER < now) {
            self.scene.oracle.will_is_taken_back(&mut self.scene.cx.report, link);
        }
        self.check_one_connection_each();
    }

    /// Handles the end of a connection by the node, which had taken this number of bytes from it.
    fn node_ended(&mut self, link: Link, taken: u64) {
        let time = self.scene.time();
        let goodbye = self.scene.goodbyes.get(&link).is_some_and(|bytes| taken >= *bytes);
        let ending = match goodbye {
            true => Ending::Goodbye,
            false if self.stopping => Ending::Stopped,
            false => Ending::Lost,
        };
        if let Some(client) = self.scene.net.client_of(link).and_then(|client| self.clients.get_mut(client)) {
            client.served_until(time, time);
            client.is_ended(link);
        }
        self.scene.cx.log(|| format!("node: ends {link} ({ending:?})"));
        self.scene.oracle.will_ends(link, ending, time);
        if ending == Ending::Goodbye {
            self.taken_back.push_back((self.scene.cx.now(), link));
        }
    }

    /// Asserts that each Client Identifier has one connection [MQTT-3.1.4-3].
    fn check_one_connection_each(&mut self) {
        for client in &self.clients {
            let served = &client.served;
            assert!(served.len() <= 1, "{} is served on the connections {served:?}", client.name());
            self.scene.cx.report.check_one_connection += served.len() as u64;
        }
    }
}

/// Time after which an action of a client is durable, unless the disk is full or has failed.
const DURABLE_AFTER: Micros = 30 * SECOND;
